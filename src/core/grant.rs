//! A grant as data, and what its permit holds.

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
    pub(crate) const NOTHING: Self = Self {
        fence: 0,
        claim: Claim::NONE,
        at: Moment::NEVER,
    };

    /// A place, granted without a clock: the fence says it all.
    pub(crate) const fn of_place(fence: u64) -> Self {
        Self {
            fence,
            claim: Claim::PLACE,
            at: Moment::NEVER,
        }
    }
}

/// What a permit holds until its release: a place, a place until it is reclaimed, or nothing, which is the permit of a rate. The permit
/// of a rate may know the value that it [reached](crate::core::word::packed_rate), for its refund.
///
/// It is one word, so that a grant is moved in registers. Reading an enum as a whole right after its parts were written stalls
/// the processor for longer than a grant takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claim(u64);

impl Claim {
    pub(crate) const NONE: Self = Self(u64::MAX);
    /// The indexes of leases lie below, the values of rates above. Its units are its plain cost.
    pub(crate) const PLACE: Self = Self(Self::COUNTED_PLACE.0 + 1);
    /// A place under a policy that counts units or requests: it is released under the lock, because its plain cost does not say how
    /// many units come back.
    pub(crate) const COUNTED_PLACE: Self = Self(Self::NAMED_UNITS.0 + 1);
    /// No place, but units that the gate has recorded, until the permit comes back.
    pub(crate) const NAMED_UNITS: Self = Self(1 << 32);

    pub(crate) fn of_lease(index: Index) -> Self {
        Self(index.number().into())
    }

    /// The claim of a rate's grant that reached this value. A value that is too large is not kept.
    #[inline(always)]
    pub(crate) fn of_rate(reached: u64) -> Self {
        Self(reached.saturating_add(Self::PLACE.0 + 1))
    }

    /// Whether the gate is to know of the release: of a place, a lease, or recorded units.
    #[inline(always)]
    pub(crate) fn holds(self) -> bool {
        self.0 <= Self::PLACE.0
    }

    /// Whether it is counted as in flight.
    #[inline(always)]
    pub(crate) fn holds_place(self) -> bool {
        self.holds() && self != Self::NAMED_UNITS
    }

    /// Whether the gate may have recorded units, and no lease ends the record.
    pub(crate) fn names_units(self) -> bool {
        self == Self::COUNTED_PLACE || self == Self::NAMED_UNITS
    }

    pub(crate) fn lease(self) -> Option<Index> {
        u32::try_from(self.0).ok().map(Index::new)
    }

    /// The value that a rate's grant reached, if it is kept.
    pub(crate) fn reached(self) -> Option<u64> {
        if self == Self::NONE {
            None
        } else {
            self.0.checked_sub(Self::PLACE.0 + 1)
        }
    }
}
