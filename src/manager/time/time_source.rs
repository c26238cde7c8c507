//! Where a limiter reads the time by which it decides.
//!
//! A limiter reads tokio's clock, or by choice, with the feature `quanta`, the [fast clock](super::fast_clock). Timers always
//! follow tokio's clock, so an instant at which one is to fire is [translated](TimeSource::on_tokio_clock).

use std::time::Duration;

use tokio::time::Instant;

#[cfg(feature = "quanta")]
use super::fast_clock::{CounterClock, FastClock};
#[cfg(not(feature = "quanta"))]
use super::no_fast_clock::FastClock;
use super::reading::Reading;

/// Tokio's clock, or the fast one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimeSource(Option<FastClock>);

impl TimeSource {
    pub(crate) const TOKIO: Self = Self(None);

    #[inline(always)]
    pub(crate) fn now(self) -> Reading {
        match self.0 {
            None => Reading::of(Instant::now()),
            Some(clock) => clock.now(),
        }
    }

    /// A reading that is not before `latest`, unless the clock has stepped back.
    #[inline(always)]
    pub(in crate::manager) fn now_after(self, latest: Reading) -> Reading {
        match self.0 {
            None => self.now(),
            Some(clock) => clock.now_after(latest),
        }
    }

    /// The instant that tokio's clock will show when this one shows `reading`, if both run at the same speed.
    ///
    /// Their speeds may differ: tokio's clock may be paused, and the fast one may be slower by some parts in a million. A timer
    /// that fires too early for this clock is then set again, for the rest. As tokio rounds up to a millisecond, that does not
    /// spin.
    pub(in crate::manager) fn on_tokio_clock(self, reading: Reading) -> Instant {
        let Some(clock) = self.0 else {
            return reading.instant();
        };
        let (now, tokio_now) = (clock.now(), Instant::now());
        let ahead =
            |reading: Reading, other| Duration::from_nanos(reading.nanos_since(other).unwrap_or(0));
        let later = tokio_now + ahead(reading, now);
        later.checked_sub(ahead(now, reading)).unwrap_or(later)
    }
}

#[cfg(feature = "quanta")]
impl TimeSource {
    /// The fast clock. The first call in a process measures the counter, which takes up to 0.2 s.
    pub(crate) fn fast() -> Self {
        Self(Some(CounterClock::of_process()))
    }

    /// A fast clock that stands still until it is moved by hand.
    #[cfg(test)]
    pub(crate) fn by_hand() -> (Self, std::sync::Arc<quanta::Mock>) {
        let (clock, hand) = CounterClock::by_hand();
        (Self(Some(clock)), hand)
    }
}
