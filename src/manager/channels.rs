//! The three channels, and what a request asks for.

pub(in crate::manager) mod in_channel;
pub(in crate::manager) mod out_channel;
pub(in crate::manager) mod release_channel;

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::time::Duration;

use crate::core::request::{Caller, CostDetails, Costs, Request};
use crate::error::AcquireError;
use crate::flow::FlowId;
use crate::priority::Priority;
use crate::strategy::{MAX_SPAN_NANOS, Moment, Unit};

/// The largest weight of a flow. The public docs name the number.
const MAX_WEIGHT: u32 = 1_000_000;

/// What a caller asks for; its timeout counts from the first poll.
#[derive(Debug, Clone)]
pub(crate) struct RequestOptions {
    pub(crate) cost: u64,
    /// What its cost has besides the plain cost.
    pub(crate) details: Option<Arc<CostDetails>>,
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
    /// A weight of its flow that is out of range.
    invalid_weight: Option<u64>,
}

impl RequestOptions {
    /// A request with default options.
    #[inline]
    pub(crate) fn new(cost: u64, caller: Caller) -> Self {
        Self {
            cost,
            details: None,
            timeout: None,
            rare: None,
            priority: Priority::NORMAL,
            caller,
            blocking: false,
        }
    }

    /// Whether a request that does not block a thread has nothing but a cost.
    #[inline(always)]
    pub(crate) fn only_cost(&self) -> bool {
        let untimed = self.timeout.is_none() && self.rare.is_none();
        untimed && self.priority == Priority::NORMAL && self.details.is_none()
    }

    /// Refuses a request whose flow has a weight that is out of range.
    #[inline(always)]
    pub(crate) fn check_weights(&self) -> Result<(), AcquireError> {
        let rare = self.rare.as_ref();
        match rare.and_then(|rare| rare.invalid_weight) {
            Some(weight) => Err(AcquireError::WeightOutOfRange {
                weight,
                max: MAX_WEIGHT.into(),
            }),
            None => Ok(()),
        }
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
        Costs::new(self.cost, &self.details)
    }

    /// Sets how many of a unit the request takes.
    pub(crate) fn set_cost_of(&mut self, unit: &str, cost: u64) {
        self.details_mut().set(Unit::new(unit), cost);
    }

    /// Asks for the status of each limit at the grant.
    pub(crate) fn ask_for_explanation(&mut self) {
        self.details_mut().ask_for_explanation();
    }

    pub(crate) fn flow_id(&self) -> Option<FlowId> {
        self.details.as_ref()?.flow_id()
    }

    /// Sets the flow of the request, and the parent that it is within.
    pub(crate) fn set_flow(&mut self, flow: FlowId, parent: Option<FlowId>) {
        self.details_mut().set_flow(flow, parent);
    }

    pub(crate) fn set_weight(&mut self, weight: u64) {
        if let Some(weight) = self.valid(weight) {
            self.details_mut().set_weight(weight);
        }
    }

    pub(crate) fn set_parent_weight(&mut self, weight: u64) {
        if let Some(weight) = self.valid(weight) {
            self.details_mut().set_parent_weight(weight);
        }
    }

    /// The weight, or `None` if it is out of range, which makes the request fail.
    fn valid(&mut self, weight: u64) -> Option<NonZeroU32> {
        let valid = u32::try_from(weight).ok().and_then(NonZeroU32::new);
        let valid = valid.filter(|weight| weight.get() <= MAX_WEIGHT);
        if valid.is_none() {
            self.rare().invalid_weight = Some(weight);
        }
        valid
    }

    fn details_mut(&mut self) -> &mut CostDetails {
        Arc::make_mut(self.details.get_or_insert_default())
    }

    /// The request for the queue, with a deadline instead of a timeout; [`Moment::NEVER`] if it has none.
    #[inline(always)]
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
