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

use tollgate::Limiter;

use crate::reference::Reference;
use crate::tally::{Counts, Tally, read};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Longer than anything takes on a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// A number as a limiter and as its callers have counted it.
type Counted = (&'static str, u64, u64);

/// Checks that a limiter and its callers have counted the same.
fn agree(name: &str, tally: &Tally, numbers: impl IntoIterator<Item = Counted>) {
    for (what, found, expected) in numbers {
        if found != expected {
            tally.fault(format_args!(
                "{name}: {what}: {found} instead of {expected}"
            ));
        }
    }
}

/// The permits that a limiter has granted, refunded and reclaimed.
fn permits(counts: &Counts, [granted, refunded, reclaimed]: [u64; 3]) -> [Counted; 3] {
    let undone = "grants, and those that were undone";
    let leaked_or_late = read(&counts.leaked) + read(&counts.late);
    [
        (undone, granted, read(&counts.granted) + refunded),
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
    ]
}

/// The requests that a limiter has denied, and those that timed out.
fn failures(counts: &Counts, [denied, timed_out]: [u64; 2]) -> [Counted; 2] {
    [
        ("denials", denied, read(&counts.denied)),
        ("timeouts", timed_out, read(&counts.timed_out)),
    ]
}

/// Waits until all units of a limiter are back, and checks that it and its callers have counted the same.
async fn settle(
    name: &str,
    tally: &Tally,
    counts: &Counts,
    limiter: &Limiter,
    reference: &Reference,
) {
    let is_whole = || {
        let limits = limiter.limits();
        limits.iter().all(|limit| limit.remaining == limit.capacity)
            && limiter.snapshot().in_flight == 0
    };
    let what = format!("units that have not come back: {name}");
    tally.until(SOON, &what, is_whole).await;
    reference.check_sum();
    let found = limiter.snapshot();
    agree(
        name,
        tally,
        permits(counts, [found.granted, found.refunded, found.reclaimed]),
    );
    agree(
        name,
        tally,
        failures(counts, [found.denied, found.timed_out]),
    );
    agree(name, tally, [("requests in the queue", found.queued, 0)]);
}
