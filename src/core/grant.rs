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
    pub(crate) const NOTHING: Self = Self { fence: 0, claim: Claim::NONE, at: Moment::NEVER };

    /// A place, granted without a clock: the fence says it all.
    pub(crate) const fn of_place(fence: u64) -> Self {
        Self { fence, claim: Claim::PLACE, at: Moment::NEVER }
    }
}

/// What a permit holds until its release: nothing, which is the permit of a rate, a place, or a place until it is reclaimed.
///
/// It is one word, so that a grant is moved in registers. Reading an enum as a whole right after its parts were written stalls
/// the processor for longer than a grant takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claim(u64);

impl Claim {
    pub(crate) const NONE: Self = Self(u64::MAX);
    pub(crate) const PLACE: Self = Self(u64::MAX - 1);

    pub(crate) fn of_lease(index: Index) -> Self {
        Self(index.number().into())
    }

    pub(crate) fn lease(self) -> Option<Index> {
        u32::try_from(self.0).ok().map(Index::new)
    }
}
