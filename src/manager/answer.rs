//! The answers to a request.

use super::clock::GrantTime;
use crate::core::arena::Index;
use crate::core::grant::{Admission, Claim};
use crate::error::AcquireError;

/// What became of a request that is ready to wait.
#[derive(Debug)]
pub(crate) enum Enqueued {
    Granted,
    Queued(Index),
}

/// Boxed, so that [`Enqueued`] or this fits into two registers: a refusal can bear the allocation.
pub(crate) type Refused = Box<AcquireError>;

/// The data of a permit besides its manager and its cost.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Granted {
    pub(crate) fence: u64,
    pub(crate) claim: Claim,
    pub(crate) at: GrantTime,
}

impl Granted {
    pub(crate) const NOTHING: Self = Self { fence: 0, claim: Claim::None, at: GrantTime::NOT_READ };

    /// The grant as the core takes it back.
    pub(super) fn admission(self) -> Admission {
        Admission { fence: self.fence, at: self.at.moment(), claim: self.claim }
    }

    /// Word by word: see `Permit::new`.
    #[inline(always)]
    pub(super) fn fill_in(&mut self, admission: Admission, at: GrantTime) {
        self.fence = admission.fence;
        if admission.claim != Claim::None {
            self.claim = admission.claim;
        }
        if at.is_read() {
            self.at = at;
        }
    }
}
