//! The answers to a request.

use super::clock::ClockOrigin;
use crate::core::grant::{Claim, Grant};
use crate::error::AcquireError;
use crate::strategy::Moment;

/// Boxed, so that [`Enqueued`](crate::core::schedule::Enqueued) or this fits into two registers: a refusal can bear the allocation.
pub(crate) type Refused = Box<AcquireError>;

/// Word by word: see `Permit::new`.
#[inline(always)]
pub(super) fn fill_in(granted: &mut (Grant, ClockOrigin), grant: Grant, origin: ClockOrigin) {
    granted.0.fence = grant.fence;
    if grant.claim != Claim::NONE {
        granted.0.claim = grant.claim;
    }
    if grant.at != Moment::NEVER {
        (granted.0.at, granted.1) = (grant.at, origin);
    }
}
