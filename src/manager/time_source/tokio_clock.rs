use std::time::Duration;

use tokio::time::Instant;

/// Tokio's clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimeSource;

/// What a clock showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Reading(Instant);

impl TimeSource {
    pub(crate) const TOKIO: Self = Self;

    #[inline(always)]
    pub(crate) fn now(self) -> Reading {
        Reading(Instant::now())
    }

    #[inline(always)]
    pub(in crate::manager) fn now_after(self, _latest: Reading) -> Reading {
        self.now()
    }

    #[inline(always)]
    pub(in crate::manager) fn instant(self, Reading(instant): Reading) -> Instant {
        instant
    }

    #[inline(always)]
    pub(in crate::manager) fn on_tokio_clock(self, Reading(instant): Reading) -> Instant {
        instant
    }
}

impl Reading {
    /// The nanoseconds since a reading that is not later; [`u64::MAX`] if they are more.
    #[inline(always)]
    pub(in crate::manager) fn nanos_since(self, Self(earlier): Self) -> Option<u64> {
        let elapsed = self.0.checked_duration_since(earlier)?;
        Some(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
    }

    /// [`Reading::nanos_since`] in fewer instructions; `None` if they are more than [`u64::MAX`].
    #[inline(always)]
    pub(in crate::manager) fn checked_nanos_since(self, Self(earlier): Self) -> Option<u64> {
        let elapsed = self.0.checked_duration_since(earlier)?;
        elapsed.as_secs().checked_mul(1_000_000_000)?.checked_add(elapsed.subsec_nanos().into())
    }

    #[inline(always)]
    pub(in crate::manager) fn plus(self, nanos: u64) -> Self {
        Self(self.0 + Duration::from_nanos(nanos))
    }

    /// `None` where no reading is that early.
    #[inline(always)]
    pub(in crate::manager) fn minus(self, nanos: u64) -> Option<Self> {
        self.0.checked_sub(Duration::from_nanos(nanos)).map(Self)
    }
}
