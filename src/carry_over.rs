/// What becomes of what has been used when a limiter is given another policy. See
/// [`Limiter::set_policy_with`](crate::Limiter::set_policy_with) for an example.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum UsageCarryOver {
    /// As many units as were used of the old limit are used of the new one: of 60 used out of 100, 60 out of 200.
    #[default]
    AsIs,
    /// The same share of the new limit is used, rounded up: of 60 used out of 100, 120 out of 200.
    InProportion,
}

impl UsageCarryOver {
    pub(crate) fn over(self, used: u64, old: u64, new: u64) -> u64 {
        match self {
            Self::AsIs => used,
            Self::InProportion => {
                let share = (u128::from(used) * u128::from(new)).div_ceil(u128::from(old));
                u64::try_from(share).unwrap_or(u64::MAX)
            }
        }
    }
}
