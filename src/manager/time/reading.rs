//! What a clock showed.

use std::sync::LazyLock;
use std::time::Duration;

use tokio::time::Instant;

/// The instant that readings are counted from.
static ZERO: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The reading at [`ZERO`], above two years: a paused clock may show an earlier instant.
const AT_ZERO: u64 = 1 << 56;

/// What a clock showed, in nanoseconds that are counted from the same instant for all clocks of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Reading(pub(super) u64);

impl Reading {
    #[inline(always)]
    pub(super) fn of(instant: Instant) -> Self {
        let Some(elapsed) = instant.checked_duration_since(*ZERO) else {
            return Self::before_zero(instant);
        };
        // It wraps around after 580 years. Then the clock seems to step back, which counts nothing.
        let seconds = elapsed.as_secs().wrapping_mul(1_000_000_000);
        let nanos = u64::from(elapsed.subsec_nanos()) + AT_ZERO;
        Self(seconds.wrapping_add(nanos))
    }

    #[cold]
    fn before_zero(instant: Instant) -> Self {
        let nanos = ZERO.saturating_duration_since(instant).as_nanos();
        Self(AT_ZERO.saturating_sub(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }

    /// The instant at which tokio's clock showed or will show this, as long as it is neither paused nor advanced.
    pub(super) fn instant(self) -> Instant {
        let later = *ZERO + Duration::from_nanos(self.0.saturating_sub(AT_ZERO));
        let earlier = Duration::from_nanos(AT_ZERO.saturating_sub(self.0));
        later.checked_sub(earlier).unwrap_or(later)
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
