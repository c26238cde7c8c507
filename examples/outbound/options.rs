//! The command line, and the policy that it makes.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use common::seconds;
use tollgate::{FixedWindow, MaxConcurrency, Policy, Throttle};

/// How many sockets an unlimited run opens at once. Client and server are in one process, which may usually have 1,024 open files.
const SOCKETS: u64 = 256;

/// Fetches URLs with a limited concurrency and a limited rate
#[derive(Debug, Clone, Parser)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Options {
    /// File of URLs, one in each line; `-` is standard input (default: pages of a web server of its own)
    #[arg(value_name = "FILE")]
    pub(crate) input: Option<PathBuf>,
    /// Limit of requests in flight at once
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(crate) concurrency: u64,
    /// Limit of requests a second
    #[arg(long, value_name = "N", default_value_t = 200.0, value_parser = rate)]
    pub(crate) rate: f64,
    /// How many requests may start at once after an idle time
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) burst: u64,
    /// Limit of requests in each window (default: none)
    #[arg(long, value_name = "N")]
    pub(crate) window: Option<u64>,
    /// Length of a window
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds, requires = "window")]
    pub(crate) window_period: Duration,
    /// Time after which a request loses its permit and is dropped (default: never)
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) ttl: Option<Duration>,
    /// Timeout of one HTTP request
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub(crate) timeout: Duration,
    /// Timeout of the wait for a permit (default: none)
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) max_wait: Option<Duration>,
    /// Number of pages of the web server of its own
    #[arg(long, value_name = "N", default_value_t = 2_000)]
    pub(crate) pages: usize,
    /// Fetch without limits only (default, of pages of its own: without limits and then with them)
    #[arg(long)]
    pub(crate) unlimited: bool,
    /// File for the drawing
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
        let policy = concurrency.and(pace);
        match self.window {
            Some(requests) => policy.and(FixedWindow::new(requests, self.window_period)),
            None => policy,
        }
    }

    /// The name of a limit, with a note if it is not applied.
    pub(crate) fn named(&self, limit: &str) -> String {
        format!(
            "{limit}{}",
            if self.unlimited { ", not applied" } else { "" }
        )
    }

    /// The limits in words.
    pub(crate) fn limits(&self) -> String {
        if self.unlimited {
            format!("no limits but {SOCKETS} sockets")
        } else {
            self.policy().to_string()
        }
    }
}

/// A throttle takes an interval, and there is none for a rate of 0. So this number is checked here and not by the limiter.
fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if (0.01..=1e9).contains(&rate) => Ok(rate),
        _ => Err("give a number of requests a second from 0.01 to 1000000000".into()),
    }
}
