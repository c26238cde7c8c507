//! An instant on a limiter's own time line.

use std::time::Duration;

/// An instant on the limiter's own time line: nanoseconds since the limiter was built.
///
/// The pure modules take moments as arguments and never read a clock. 64 bits of nanoseconds reach 584 years; all arithmetic
/// saturates at [`Moment::NEVER`]. After that, time stands still: a limiter grants the units that remain at [`Moment::LAST`], and
/// from then on only released places.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Moment(u64);

impl Moment {
    /// The instant at which the limiter was built.
    pub(crate) const START: Self = Self(0);
    /// The last instant that a clock returns. Every window that is open then never ends.
    pub(crate) const LAST: Self = Self(u64::MAX - 1);
    /// Later than all instants. It stands for: no timer, no deadline, or only after a release.
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
