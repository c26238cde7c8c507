use std::time::Duration;

/// An instant on the limiter's own time line: nanoseconds since the limiter was built.
///
/// The pure rooms are handed moments and never read a clock. One 64-bit word reaches 584 years; all arithmetic saturates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Moment(u64);

impl Moment {
    /// The instant at which the limiter was built.
    pub(crate) const START: Self = Self(0);
    /// Later than anything that happens: "no timer", "no deadline".
    pub(crate) const NEVER: Self = Self(u64::MAX);

    pub(crate) const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    pub(crate) const fn nanos(self) -> u64 {
        self.0
    }

    /// This instant moved later by `nanos`.
    pub(crate) const fn plus(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// This instant moved earlier by `nanos`, not beyond [`Moment::START`].
    pub(crate) const fn minus(self, nanos: u64) -> Self {
        Self(self.0.saturating_sub(nanos))
    }

    /// Nanoseconds from `earlier` to this instant; 0 when `earlier` is later.
    pub(crate) const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// [`Moment::since`] as a [`Duration`].
    pub(crate) const fn duration_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.since(earlier))
    }

    /// `None` for [`Moment::NEVER`].
    pub(crate) fn known(self) -> Option<Self> {
        (self != Self::NEVER).then_some(self)
    }
}
