//! What a clock showed.

use std::sync::LazyLock;
use std::time::Duration;

use tokio::time::Instant;

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
pub(crate) struct Reading(pub(super) u64);

impl Reading {
    #[inline(always)]
    pub(super) fn of(instant: Instant) -> Self {
        let elapsed = instant.saturating_duration_since(*ZERO);
        // It wraps around after 580 years. Then the clock seems to step back, which counts nothing.
        let seconds = elapsed.as_secs().wrapping_mul(1_000_000_000);
        Self(seconds.wrapping_add(elapsed.subsec_nanos().into()))
    }

    /// The instant at which tokio's clock showed or will show this, as long as it is neither paused nor advanced.
    pub(super) fn instant(self) -> Instant {
        *ZERO + Duration::from_nanos(self.0)
    }

    /// The nanoseconds since a reading that is not later.
    #[inline(always)]
    pub(super) fn nanos_since(self, Self(earlier): Self) -> Option<u64> {
        self.0.checked_sub(earlier)
    }

    pub(super) fn plus(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    pub(super) fn minus(self, nanos: u64) -> Self {
        Self(self.0.saturating_sub(nanos))
    }
}
