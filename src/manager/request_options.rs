use std::time::Duration;

use crate::core::request::{Caller, Request};
use crate::error::AcquireError;
use crate::priority::Priority;
use crate::strategy::{MAX_SPAN_NANOS, Moment};

/// What a caller asks for; its timeout counts from the first poll.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestOptions {
    pub(crate) cost: u64,
    pub(crate) timeout: Option<Duration>,
    pub(crate) priority: Priority,
    pub(crate) caller: Caller,
    /// The caller blocks its own thread, and runs the timer there while it is at the front.
    pub(crate) blocking: bool,
}

impl RequestOptions {
    /// The default request.
    #[inline]
    pub(crate) fn new(cost: u64, caller: Caller) -> Self {
        Self { cost, timeout: None, priority: Priority::NORMAL, caller, blocking: false }
    }

    /// Whether it has nothing but a cost.
    #[inline(always)]
    pub(crate) fn only_cost(&self) -> bool {
        self.timeout.is_none() && self.priority == Priority::NORMAL && !self.blocking
    }

    /// The timeout in nanoseconds.
    #[inline(always)]
    pub(crate) fn checked_timeout(&self) -> Result<Option<u64>, AcquireError> {
        let max = Duration::from_nanos(MAX_SPAN_NANOS);
        match self.timeout {
            Some(timeout) if timeout > max => Err(AcquireError::TimeoutTooLong { timeout, max }),
            timeout => Ok(timeout.map(|timeout| timeout.as_nanos() as u64)),
        }
    }

    /// The request as the queue takes it: the timeout is now a deadline, or [`Moment::NEVER`].
    pub(super) fn request(&self, deadline: Moment) -> Request {
        let &Self { cost, priority, caller, blocking, .. } = self;
        Request { cost, priority, deadline, caller, blocking }
    }
}
