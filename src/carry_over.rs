use crate::strategy::Ratio;

/// What becomes of the usage when a limiter is given another policy. See
/// [`Limiter::set_policy_with`](crate::Limiter::set_policy_with) for an example.
///
/// Parts of a unit are carried over too, and nothing is rounded down: the new limit never has less used than the old one. Limits
/// that count whole units (windows, sliding windows, penalties) take a part of one as one.
///
/// Time that has passed is kept where the kind of limit stays: a unit in a [`SlidingWindow::log`](crate::SlidingWindow::log), a
/// window that opens with a grant ([`Align::FirstGrant`](crate::Align::FirstGrant)) and a step of a
/// [`Penalty`](crate::Penalty) go on from where they were. In a longer period they count from the grant; in a shorter one they
/// leave after as large a share of it. A [`SlidingWindow::counter`](crate::SlidingWindow::counter) of another period counts all
/// usage as granted at the change, and so does a limit of another kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum UsageCarryOver {
    /// As many units as were used of the old limit are used of the new one: of 60 used out of 100, 60 out of 200.
    #[default]
    AsIs,
    /// The same share of the new limit is used: of 60 used out of 100, 120 out of 200.
    InProportion,
}

impl UsageCarryOver {
    /// What the usage is multiplied by between limits of these capacities.
    pub(crate) fn ratio(self, old: u64, new: u64) -> Ratio {
        match self {
            Self::AsIs => Ratio { new: 1, old: 1 },
            Self::InProportion => Ratio { new, old },
        }
    }
}
