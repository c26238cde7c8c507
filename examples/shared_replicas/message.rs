//! The messages of a process to the one that started it: a line for each.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Instants are by the clock of the machine, since 1970. They and durations are whole microseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Message {
    /// The process has reached the store.
    Ready,
    /// The process got a permit, possibly after a wait.
    Granted {
        fence: u64,
        at: Duration,
        waited: Duration,
    },
    /// The process is about to release a permit.
    Released {
        fence: u64,
        at: Duration,
    },
    /// The process was notified that a lease was reclaimed.
    Lost {
        fence: u64,
    },
    Failed(String),
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready => f.write_str("ready"),
            Self::Granted { fence, at, waited } => write!(
                f,
                "granted {fence} {} {}",
                at.as_micros(),
                waited.as_micros()
            ),
            Self::Released { fence, at } => write!(f, "released {fence} {}", at.as_micros()),
            Self::Lost { fence } => write!(f, "lost {fence}"),
            Self::Failed(why) => write!(f, "failed {why}"),
        }
    }
}

impl Message {
    /// `None` for a line that is not a message, such as the half of one that a process had written when it was killed.
    pub(crate) fn read(line: &str) -> Option<Self> {
        let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
        if kind == "failed" {
            return Some(Self::Failed(rest.to_owned()));
        }
        let numbers = rest
            .split_terminator(' ')
            .map(str::parse)
            .collect::<Result<Vec<u64>, _>>()
            .ok()?;
        let micros = Duration::from_micros;
        match (kind, numbers.as_slice()) {
            ("ready", []) => Some(Self::Ready),
            ("granted", &[fence, at, waited]) => Some(Self::Granted {
                fence,
                at: micros(at),
                waited: micros(waited),
            }),
            ("released", &[fence, at]) => Some(Self::Released {
                fence,
                at: micros(at),
            }),
            ("lost", &[fence]) => Some(Self::Lost { fence }),
            _ => None,
        }
    }
}

/// The clock that the processes of one machine share.
pub(crate) fn since_epoch() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}
