use crate::core::arena::Index;
use crate::strategy::Moment;

/// The record of a grant: enough to undo it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) fence: u64,
    pub(crate) claim: Claim,
    /// When it was decided; [`Moment::NEVER`] if no clock was read because the gate needs none.
    pub(crate) at: Moment,
}

impl Grant {
    pub(crate) const NOTHING: Self = Self { fence: 0, claim: Claim::None, at: Moment::NEVER };
}

/// What a permit holds until its release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    /// The permit of a rate.
    None,
    Place,
    /// A place, until it is reclaimed.
    Lease(Index),
}

impl Claim {
    pub(crate) fn lease(self) -> Option<Index> {
        match self {
            Self::Lease(index) => Some(index),
            _ => None,
        }
    }
}
