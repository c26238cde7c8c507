use crate::core::arena::Index;
use crate::strategy::Moment;

/// What a gate gave: enough to take it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Admission {
    pub(crate) fence: u64,
    /// When it was decided; [`Moment::NEVER`] where the gate needed no clock, so that none was read.
    pub(crate) at: Moment,
    pub(crate) claim: Claim,
}

/// What a permit holds that must come back.
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
