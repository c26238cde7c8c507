//! The answers to a request.

use std::sync::Arc;

use crate::core::request::{Claim, Grant};
use crate::manager::parts::Manager;
use crate::manager::time::clock::ClockOrigin;
use crate::strategy::Moment;

/// A permit that is made of a grant. It is made in place, because copying the grant would stall until its fields are written.
pub(crate) trait FromGrant {
    /// Makes the permit of a grant that may hold a place.
    fn held(manager: &Arc<Manager>, granted: TimedGrant, cost: u64) -> Self;

    /// Makes the permit of a grant by a rate of a registered manager. The permit holds nothing.
    fn spent(id_prefix: u64, granted: TimedGrant, cost: u64) -> Self;
}

/// A grant, and the origin of the clock that its time was read from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimedGrant {
    pub(crate) grant: Grant,
    pub(crate) origin: ClockOrigin,
}

impl TimedGrant {
    pub(crate) const NOTHING: Self = Self {
        grant: Grant::NOTHING,
        origin: ClockOrigin::NONE,
    };

    /// A grant of a place by the word. No clock was read.
    #[inline(always)]
    pub(in crate::manager) fn of_place(fence: u64) -> Self {
        Self {
            grant: Grant::of_place(fence),
            origin: ClockOrigin::NONE,
        }
    }

    /// Fills in a grant that is [nothing](TimedGrant::NOTHING) so far, word by word: see `Permit::new`.
    #[inline(always)]
    pub(in crate::manager) fn fill_in(&mut self, grant: Grant, origin: ClockOrigin) {
        self.grant.fence = grant.fence;
        if grant.claim != Claim::NONE {
            self.grant.claim = grant.claim;
        }
        if grant.at != Moment::NEVER {
            self.grant.at = grant.at;
            self.origin = origin;
        }
    }
}
