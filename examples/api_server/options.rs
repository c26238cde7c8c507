//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, value_parser};
use common::seconds;

/// Serves an API with a penalty, authentication, plans and limits from several processes, and checks by a load that they keep to them
#[derive(Debug, Clone, Parser)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Options {
    /// Where the limits are: redis://…, the path of an SQLite file, or `memory`, which instances do not share (default: a temporary
    /// SQLite file)
    #[arg(long, value_name = "STORE")]
    pub(crate) store: Option<String>,
    /// Number of instances of the server, each a process
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = value_parser!(u16).range(1..=16))]
    pub(crate) instances: u16,
    /// Length of the run
    #[arg(long, value_name = "SECONDS", default_value = "9", value_parser = run)]
    pub(crate) run: Duration,
    /// Length of a "minute"; the quotas of the plans are as much smaller (default: 3, and 60 with --serve)
    #[arg(long, value_name = "SECONDS", value_parser = minute)]
    minute: Option<Duration>,
    /// Only serve, without a load, until Ctrl-C
    #[arg(long, conflicts_with = "run")]
    pub(crate) serve: bool,
    /// A network of proxies, whose X-Forwarded-For is believed; can be repeated (default: none, and this host with a load)
    #[arg(long = "proxy", value_name = "NETWORK")]
    pub(crate) proxies: Vec<String>,
    /// The database of the users
    #[arg(long, hide = true)]
    pub(crate) users: Option<PathBuf>,
    /// The name of the limits in the store: with it, this is one of the instances
    #[arg(long, hide = true)]
    pub(crate) name: Option<String>,
}

impl Options {
    pub(crate) fn minute(&self) -> Duration {
        self.minute
            .unwrap_or(Duration::from_secs(if self.serve { 60 } else { 3 }))
    }

    /// The command line of an instance.
    pub(crate) fn of_instance(&self) -> Vec<String> {
        let mut arguments = vec![format!("--minute={}", self.minute().as_secs_f64())];
        arguments.extend(self.store.iter().map(|store| format!("--store={store}")));
        arguments.extend(
            self.proxies
                .iter()
                .map(|network| format!("--proxy={network}")),
        );
        arguments.extend(
            self.users
                .iter()
                .map(|path| format!("--users={}", path.display())),
        );
        arguments.extend(self.name.iter().map(|name| format!("--name={name}")));
        arguments
    }
}

/// Reads the length of a run. A shorter run may end before the abuser is locked out.
fn run(text: &str) -> Result<Duration, String> {
    match seconds(text) {
        Ok(run) if run >= Duration::from_secs(2) => Ok(run),
        _ => Err("give a number of seconds from 2 to 3600".into()),
    }
}

/// Reads the length of a minute. In a shorter one the free plan would allow nothing.
fn minute(text: &str) -> Result<Duration, String> {
    match seconds(text) {
        Ok(minute) if (Duration::from_secs(1)..=Duration::from_secs(60)).contains(&minute) => {
            Ok(minute)
        }
        _ => Err("give a number of seconds from 1 to 60".into()),
    }
}
