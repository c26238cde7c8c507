//! Time: the clock that decisions read, and the tasks and threads that wake waiters. [`Reading`] is what a clock
//! showed, and [`Driven`] is what those tasks and threads drive.

pub(in crate::manager) mod clock;
pub(in crate::manager) mod driver;
#[cfg(feature = "quanta")]
mod fast_clock;
#[cfg(not(feature = "quanta"))]
mod no_fast_clock;
pub(in crate::manager) mod runtimes;
pub(in crate::manager) mod timekeeper;

use std::fmt;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tokio::runtime;
use tokio::time::Instant;

use crate::contain_panic::contain_panic;

/// What a driver drives: one manager, or those of many keys.
pub(crate) trait Driven: fmt::Debug + Send + Sync + 'static {
    /// Does what is due.
    fn run_due(self: Arc<Self>) -> Next;

    /// [`Driven::run_due`]; `None` if that panicked.
    fn run_due_contained(self: Arc<Self>) -> Option<Next> {
        let mut next = None;
        contain_panic(|| next = Some(self.run_due()));
        next
    }

    /// Handles that the driver in a runtime has ended while the manager still exists. That happens only when the runtime ends, or
    /// has no timers and tokio panics. No other driver is to be started there.
    fn driver_gone(&self, runtime: runtime::Id);
}

/// What a driver does after a run.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Next {
    /// There is more to do: the driver yields to other tasks, and runs again.
    Continue,
    /// It sleeps until this instant, or without a timer, until it is woken.
    Sleep(Option<Instant>),
    End,
}

/// The instant that readings are counted from: up to two years ago, as far as the system can represent instants before its start.
/// A paused clock may show an instant before the first reading.
static ZERO: LazyLock<Instant> = LazyLock::new(|| {
    let spans = (0..26).rev().map(|power| Duration::from_secs(1 << power));
    spans.fold(Instant::now(), |zero, span| {
        zero.checked_sub(span).unwrap_or(zero)
    })
});

/// What a clock showed, in nanoseconds that are counted from the same instant for all clocks of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Reading(u64);

impl Reading {
    #[inline(always)]
    fn of(instant: Instant) -> Self {
        let elapsed = instant.saturating_duration_since(*ZERO);
        // It wraps around after 580 years. Then the clock seems to step back, which counts nothing.
        let seconds = elapsed.as_secs().wrapping_mul(1_000_000_000);
        Self(seconds.wrapping_add(elapsed.subsec_nanos().into()))
    }

    /// The instant at which tokio's clock showed or will show this, as long as it is neither paused nor advanced.
    fn instant(self) -> Instant {
        *ZERO + Duration::from_nanos(self.0)
    }

    /// The nanoseconds since a reading that is not later.
    #[inline(always)]
    fn nanos_since(self, Self(earlier): Self) -> Option<u64> {
        self.0.checked_sub(earlier)
    }

    fn plus(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    fn minus(self, nanos: u64) -> Self {
        Self(self.0.saturating_sub(nanos))
    }
}
