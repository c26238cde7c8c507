//! How usage carries over when a policy is replaced.

use crate::strategy::Ratio;

/// How usage carries over when the policy of a limiter is replaced. See
/// [`Limiter::set_policy_with`](crate::Limiter::set_policy_with) for an example.
///
/// Parts of a unit are carried over too, and nothing is rounded down: the new limit never has less usage than the old one. Limits
/// that count whole units (windows, sliding windows, penalties) round a part of a unit up.
///
/// If the kind of limit stays the same, the age of usage is kept: a unit in a [`SlidingWindow::log`](crate::SlidingWindow::log),
/// the two windows of a [`SlidingWindow::counter`](crate::SlidingWindow::counter), a window that opens with a grant
/// ([`Align::FirstGrant`](crate::Align::FirstGrant)) and a step of a [`Penalty`](crate::Penalty) continue. In a longer period
/// they count from the grant; in a shorter period their age is scaled down to it. So the grid of a counter moves with a change of
/// its period. If the kind changes, or a log becomes a counter, all usage counts as granted at the change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum UsageCarryOver {
    /// The same units: 60 used of 100 become 60 used of 200.
    #[default]
    AsIs,
    /// The same share: 60 used of 100 become 120 used of 200.
    InProportion,
}

impl UsageCarryOver {
    /// The factor for usage when a capacity changes from `old` to `new`.
    pub(crate) fn ratio(self, old: u64, new: u64) -> Ratio {
        match self {
            Self::AsIs => Ratio { new: 1, old: 1 },
            Self::InProportion => Ratio { new, old },
        }
    }
}
