//! What several examples have in common: output, durations for people, drawings, and stores.
#![allow(missing_docs, clippy::missing_errors_doc, clippy::must_use_candidate, reason = "for the examples alone")]

pub mod plot;
pub mod store;

use std::error::Error;
use std::io::{self, Write as _};
use std::process::{self, ExitCode};
use std::sync::OnceLock;
use std::time::Duration;
use std::{fmt, iter};

use tokio::sync::Notify;

/// Notified when the output is no longer read, if `while_read` waits for that.
static UNREAD: OnceLock<Notify> = OnceLock::new();

/// Prints a line as `println!` does. The program ends without an error when its output is no longer read, as by `head`: at once, or
/// when [`while_read`] has dropped the run.
#[macro_export]
macro_rules! say {
    ($($line:tt)*) => { $crate::print_line(format_args!($($line)*)) };
}

#[doc(hidden)]
pub fn print_line(line: fmt::Arguments<'_>) {
    if writeln!(io::stdout(), "{line}").is_err() {
        match UNREAD.get() {
            Some(unread) => unread.notify_one(),
            None => process::exit(0),
        }
    }
}

/// Drops the run at its next await when the output is no longer read: for one that has folders and processes to clean up.
pub async fn while_read(run: impl Future<Output = Result<ExitCode, Box<dyn Error>>>) -> Result<ExitCode, Box<dyn Error>> {
    let unread = UNREAD.get_or_init(Notify::new);
    tokio::select! {
        done = run => done,
        () = unread.notified() => Ok(ExitCode::SUCCESS),
    }
}

/// The exit code of an example: 2, with the error in a line, when it could not do its work.
pub fn exit_code(done: Result<ExitCode, Box<dyn Error>>) -> ExitCode {
    done.unwrap_or_else(|error| {
        eprintln!("error: {}", chain(&*error));
        ExitCode::from(2)
    })
}

/// The error with its causes, in a line. What a cause says again is left out.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    for cause in iter::successors(error.source(), |cause| (*cause).source()).map(ToString::to_string) {
        if !text.ends_with(&cause) {
            text += &format!(": {cause}");
        }
    }
    text
}

/// A duration in one unit with three digits: `59.999999222s` is `60.0 s`.
#[derive(Debug, Clone, Copy)]
pub struct Human(pub Duration);

impl fmt::Display for Human {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64();
        let (value, unit) = match seconds {
            0.0 => return f.pad("0 s"),
            ..0.000_999_5 => (seconds * 1e6, "µs"),
            ..0.999_5 => (seconds * 1e3, "ms"),
            ..119.95 => (seconds, "s"),
            ..7_197.0 => (seconds / 60.0, "min"),
            _ => (seconds / 3_600.0, "h"),
        };
        let decimals = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
        f.pad(&format!("{value:.decimals$} {unit}"))
    }
}

/// Reads a number of seconds from a millisecond to an hour.
pub fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds) if (0.001..=3_600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("give a number of seconds from 0.001 to 3600".into()),
    }
}
