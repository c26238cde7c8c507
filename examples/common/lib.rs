//! Code that several examples share: output, readable durations, drawings, and stores.
#![allow(
    missing_docs,
    clippy::missing_errors_doc,
    clippy::must_use_candidate,
    reason = "for the examples alone"
)]

pub mod plot;
pub mod store;

use std::error::Error;
use std::io::{self, Write as _};
use std::process::{self, ExitCode};
use std::sync::OnceLock;
use std::time::Duration;
use std::{fmt, iter};

use tokio::sync::Notify;

/// Notified when the output is no longer read, if `while_wanted` waits for that.
static UNREAD: OnceLock<Notify> = OnceLock::new();

/// Prints a line as `println!` does. The program ends without an error when its output is no longer read, for example by `head`. It
/// ends at once, or when [`while_wanted`] has dropped the run.
#[macro_export]
macro_rules! say {
    ($($line:tt)*) => { $crate::print_line(format_args!($($line)*)) };
}

#[doc(hidden)]
pub fn print_line(line: fmt::Arguments<'_>) {
    let Err(error) = writeln!(io::stdout(), "{line}") else {
        return;
    };
    if error.kind() != io::ErrorKind::BrokenPipe {
        eprintln!("error: cannot write the output: {error}");
        process::exit(2);
    }
    match UNREAD.get() {
        Some(unread) => unread.notify_one(),
        None => process::exit(0),
    }
}

/// Drops the run at its next await when its output is no longer read, or at Ctrl-C or SIGTERM. Use it for a run that has folders
/// and processes to clean up.
pub async fn while_wanted(
    run: impl Future<Output = Result<ExitCode, Box<dyn Error>>>,
) -> Result<ExitCode, Box<dyn Error>> {
    let unread = UNREAD.get_or_init(Notify::new);
    tokio::select! {
        biased; // Ctrl-C ends the processes of the run, too. The run would take that for a fault
        code = signal() => Ok(code?),
        () = unread.notified() => Ok(ExitCode::SUCCESS),
        done = run => done,
    }
}

/// Waits for Ctrl-C or SIGTERM. The exit code is the one of shells: 128 and the number of the signal.
async fn signal() -> io::Result<ExitCode> {
    #[cfg(unix)]
    let terminate = async {
        use tokio::signal::unix::{SignalKind, signal};
        signal(SignalKind::terminate())?.recv().await;
        io::Result::Ok(())
    };
    #[cfg(not(unix))]
    let terminate = std::future::pending();
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted.map(|()| ExitCode::from(130)),
        terminated = terminate => terminated.map(|()| ExitCode::from(143)),
    }
}

/// The exit code of an example: 2, with the error in a line, when it could not do its work.
pub fn exit_code(done: Result<ExitCode, Box<dyn Error>>) -> ExitCode {
    done.unwrap_or_else(|error| {
        eprintln!("error: {}", chain(&*error));
        ExitCode::from(2)
    })
}

/// The error with its causes, in a line. Repeated text of a cause is left out.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    for cause in
        iter::successors(error.source(), |cause| (*cause).source()).map(ToString::to_string)
    {
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
        let decimals = if value < 9.995 {
            2
        } else {
            usize::from(value < 99.95)
        };
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
