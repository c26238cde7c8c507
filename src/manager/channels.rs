//! The three channels, and what a request asks for.

pub(in crate::manager) mod in_channel;
pub(in crate::manager) mod out_channel;
pub(in crate::manager) mod release_channel;

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use crate::core::request::{Caller, Costs, Request, UnitCosts};
use crate::error::AcquireError;
use crate::priority::Priority;
use crate::strategy::{MAX_SPAN_NANOS, Moment, Unit};

/// What a caller asks for; its timeout counts from the first poll.
#[derive(Debug, Clone)]
pub(crate) struct RequestOptions {
    pub(crate) cost: u64,
    /// How many of each unit it takes, if it names units.
    pub(crate) by_unit: Option<Arc<UnitCosts>>,
    pub(crate) timeout: Option<Duration>,
    /// Boxed, so that one check shows that there are none.
    pub(crate) rare: Option<Box<RareOptions>>,
    pub(crate) priority: Priority,
    pub(crate) caller: Caller,
    /// The caller blocks its own thread, and runs the timer there while it is at the front.
    pub(crate) blocking: bool,
}

/// The options that few requests have.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RareOptions {
    /// The TTL of its permit. A longer one than that of the policy has no effect.
    pub(crate) ttl: Option<Duration>,
    /// The longest random delay before the request begins.
    pub(crate) jitter: Option<Duration>,
}

impl RequestOptions {
    /// A request with default options.
    #[inline]
    pub(crate) fn new(cost: u64, caller: Caller) -> Self {
        Self {
            cost,
            by_unit: None,
            timeout: None,
            rare: None,
            priority: Priority::NORMAL,
            caller,
            blocking: false,
        }
    }

    /// Whether it has nothing but a cost.
    #[inline(always)]
    pub(crate) fn only_cost(&self) -> bool {
        let untimed = self.timeout.is_none() && self.rare.is_none();
        untimed && self.priority == Priority::NORMAL && !self.blocking && self.by_unit.is_none()
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

    #[inline(always)]
    pub(crate) fn ttl(&self) -> Option<Duration> {
        self.rare.as_ref()?.ttl
    }

    #[inline(always)]
    pub(crate) fn jitter(&self) -> Option<Duration> {
        self.rare.as_ref()?.jitter
    }

    /// Removes the random delay.
    pub(crate) fn forgo_jitter(&mut self) {
        self.rare.iter_mut().for_each(|rare| rare.jitter = None);
    }

    pub(crate) fn rare(&mut self) -> &mut RareOptions {
        self.rare.get_or_insert_default()
    }

    #[inline(always)]
    pub(crate) fn costs(&self) -> Costs<'_> {
        Costs::new(self.cost, &self.by_unit)
    }

    /// Sets how many of a unit the request takes.
    pub(crate) fn set_cost_of(&mut self, unit: &str, cost: u64) {
        Arc::make_mut(self.by_unit.get_or_insert_default()).set(Unit::new(unit), cost);
    }

    /// Asks for the status of each limit at the grant.
    pub(crate) fn ask_for_explanation(&mut self) {
        Arc::make_mut(self.by_unit.get_or_insert_default()).ask_for_explanation();
    }

    /// The request for the queue, with a deadline instead of a timeout; [`Moment::NEVER`] if it has none.
    pub(in crate::manager) fn request(&self, deadline: Moment) -> Request<'_> {
        let &Self {
            priority,
            caller,
            blocking,
            ..
        } = self;
        Request {
            costs: self.costs(),
            priority,
            deadline,
            caller,
            blocking,
        }
    }
}

/// A TTL in nanoseconds. 0 becomes 1, because a permit that was handed out is live. A TTL that does not fit becomes the largest
/// number, which is longer than the TTL of any policy.
pub(crate) fn nonzero_nanos(ttl: Duration) -> NonZeroU64 {
    u64::try_from(ttl.as_nanos()).map_or(NonZeroU64::MAX, |nanos| {
        NonZeroU64::new(nanos).unwrap_or(NonZeroU64::MIN)
    })
}
