//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, value_parser};
use common::{Human, seconds};
use tollgate::{Limit, Policy};

/// Starts several processes that share one limit, and checks that all together never exceed it
#[derive(Debug, Clone, Parser)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Options {
    /// Limits joined by `and`
    #[arg(
        long,
        value_name = "POLICY",
        default_value = "8 concurrent ttl 1s and 40/s burst 10"
    )]
    pub(crate) policy: String,
    /// Number of processes
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = value_parser!(u16).range(1..=64))]
    pub(crate) processes: u16,
    /// Callers in each process, each of which asks for one permit after the other
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = value_parser!(u16).range(1..=1_000))]
    pub(crate) callers: u16,
    /// `memory`, redis://…, postgres://…, mysql://…, or the path of an SQLite file (default: a temporary file)
    #[arg(long, value_name = "STORE")]
    pub(crate) store: Option<String>,
    /// Length of the run
    #[arg(long, value_name = "SECONDS", default_value = "9", value_parser = seconds)]
    pub(crate) run: Duration,
    /// How long a permit is held in the first third of the run, on average
    #[arg(long, value_name = "SECONDS", default_value = "0.05", value_parser = seconds)]
    short: Duration,
    /// How long it is held after that
    #[arg(long, value_name = "SECONDS", default_value = "0.35", value_parser = seconds)]
    long: Duration,
    /// Kill the process with the most places in the middle of the run
    #[arg(long)]
    pub(crate) kill: bool,
    /// File for the drawing
    #[arg(
        long,
        value_name = "FILE",
        default_value = "target/shared_replicas.svg"
    )]
    pub(crate) svg: PathBuf,
    /// The name of the limiter: with it, this is one of the processes
    #[arg(long, hide = true)]
    pub(crate) name: Option<String>,
}

impl Options {
    /// The command line of one of the processes.
    pub(crate) fn of_replica(&self) -> Vec<String> {
        let mut arguments = vec![
            format!("--policy={}", self.policy),
            format!("--callers={}", self.callers),
        ];
        let times = [
            ("run", self.run),
            ("short", self.short),
            ("long", self.long),
        ];
        arguments.extend(times.map(|(option, time)| format!("--{option}={}", time.as_secs_f64())));
        arguments.extend(self.store.iter().map(|store| format!("--store={store}")));
        arguments.extend(self.name.iter().map(|name| format!("--name={name}")));
        arguments
    }

    /// How long work takes that starts at this time: half to one and a half times the average, by a number from 0 to 1.
    pub(crate) fn work(&self, at: Duration, random: f64) -> Duration {
        let average = if at < self.run / 3 {
            self.short
        } else {
            self.long
        };
        average.mul_f64(0.5 + random)
    }

    pub(crate) fn kill_after(&self) -> Duration {
        self.run.mul_f64(0.55)
    }

    /// Without a TTL, or with a long one, the run would end before the places of the killed process come back.
    pub(crate) fn refuse_late_returns(&self, policy: &Policy) -> Result<(), String> {
        let most = self.run.mul_f64(0.4);
        for limit in policy.limits() {
            if let Limit::MaxConcurrency(concurrency) = limit
                && self.kill
                && concurrency.get_ttl().is_none_or(|ttl| ttl > most)
            {
                return Err(format!(
                    "with --kill, give `{limit}` a TTL of at most {}, 0.4 of the run",
                    Human(most)
                ));
            }
        }
        Ok(())
    }
}
