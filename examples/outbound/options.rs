//! The command line, and the policy that it asks for.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use tollgate::{FixedWindow, MaxConcurrency, Policy, Throttle};

/// Sockets that an unlimited run opens at once: below the usual 1,024 open files, with client and server in one process.
const SOCKETS: u64 = 256;

/// Fetches URLs with bounded concurrency and a bounded pace
#[derive(Debug, Parser)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Options {
    /// File of URLs, one a line (`-`: standard input); without it, pages of a web server of its own
    #[arg(value_name = "FILE")]
    pub(crate) input: Option<PathBuf>,
    /// Requests in flight at once
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) concurrency: u64,
    /// Requests a second
    #[arg(long, value_name = "N", default_value_t = 200.0, value_parser = rate)]
    pub(crate) rate: f64,
    /// Requests that may start at once after a lull, before the rate holds
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) burst: u64,
    /// Requests in each window as well (default: no such limit)
    #[arg(long, value_name = "N")]
    window: Option<u64>,
    /// How long a window lasts
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds, requires = "window")]
    window_period: Duration,
    /// After this a request loses its permit and is dropped (default: never)
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    ttl: Option<Duration>,
    /// How long one HTTP request may take
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub(crate) timeout: Duration,
    /// How long a request may wait for its permit (default: as long as it takes)
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) max_wait: Option<Duration>,
    /// Pages that its own web server has
    #[arg(long, value_name = "N", default_value_t = 2_000)]
    pub(crate) pages: usize,
    /// See what happens without limits
    #[arg(long)]
    pub(crate) unlimited: bool,
    /// Where the drawing goes
    #[arg(long, value_name = "FILE", default_value = "target/outbound.svg")]
    pub(crate) svg: PathBuf,
}

impl Options {
    pub(crate) fn policy(&self) -> Policy {
        if self.unlimited {
            return MaxConcurrency::new(SOCKETS).into();
        }
        let concurrency = MaxConcurrency::new(self.concurrency);
        let concurrency = self.ttl.map_or(concurrency, |ttl| concurrency.ttl(ttl));
        let pace = Throttle::every(Duration::from_secs_f64(1.0 / self.rate)).burst(self.burst);
        let policy = Policy::from(concurrency).and(pace);
        match self.window {
            Some(requests) => policy.and(FixedWindow::new(requests, self.window_period)),
            None => policy,
        }
    }

    /// The limits in words.
    pub(crate) fn limits(&self) -> String {
        if self.unlimited { format!("no limits but {SOCKETS} sockets") } else { self.policy().to_string() }
    }
}

/// A pace has an interval, and 0 a second has none: the one nonsense that the limiter cannot be shown.
fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if (1e-6..=1e9).contains(&rate) => Ok(rate),
        _ => Err("give it a number of requests a second from 0.000001 to 1000000000".into()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map_err(|_| "give it a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}
