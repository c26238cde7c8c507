//! The parts of a run. Each has its own limiters, its own load, and its own account of the units.

pub(crate) mod cluster;
pub(crate) mod flows;
pub(crate) mod keyed;
pub(crate) mod layers;
pub(crate) mod local;
pub(crate) mod postgres;
pub(crate) mod redis;
mod stores;

use std::time::Duration;

use tollgate::LimiterSnapshot;

use crate::tally::{Counts, Tally, read};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Longer than anything takes on a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// Compares the numbers of a limiter that has come to rest with those of its callers.
fn compare(name: &str, tally: &Tally, counts: &Counts, snapshot: &LimiterSnapshot) {
    let LimiterSnapshot {
        in_flight,
        queued,
        granted,
        denied,
        timed_out,
        reclaimed,
        refunded,
        ..
    } = *snapshot;
    let leaked_or_late = read(&counts.leaked) + read(&counts.late);
    for (what, found, expected) in [
        ("units in flight", in_flight, 0),
        ("requests in the queue", queued, 0),
        (
            "grants, and those that were undone",
            granted,
            read(&counts.granted) + refunded,
        ),
        ("denials", denied, read(&counts.denied)),
        ("timeouts", timed_out, read(&counts.timed_out)),
        (
            "reclaimed permits, and events of them",
            reclaimed,
            read(&counts.reclaimed),
        ),
        (
            "reclaimed permits, and those leaked or late",
            reclaimed,
            leaked_or_late,
        ),
    ] {
        if found != expected {
            tally.fault(format_args!(
                "{name}: {what}: {found} instead of {expected}"
            ));
        }
    }
}
