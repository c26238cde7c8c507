use crate::core::arena::Index;
use crate::strategy::Moment;

/// The record of a grant: enough to undo it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Admission {
    pub(crate) fence: u64,
    /// When it was decided; [`Moment::NEVER`] if no clock was read because the gate needs none.
    pub(crate) at: Moment,
    pub(crate) claim: Claim,
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
