//! A refusal of a request that may wait.

use crate::error::AcquireError;
use crate::snapshot::LimitStatus;

/// Boxed, so that an answer fits into two registers: a refusal can bear the allocation.
pub(crate) type Refused = Box<RefusedRequest>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RefusedRequest {
    pub(crate) error: AcquireError,
    /// What the limits said then, if the request asked for it.
    pub(crate) limits: Vec<LimitStatus>,
}

impl From<AcquireError> for Refused {
    fn from(error: AcquireError) -> Self {
        Self::new(RefusedRequest {
            error,
            limits: Vec::new(),
        })
    }
}
