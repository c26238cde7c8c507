//! The rules for one more request when the queue is full.

use std::time::Duration;

/// Which request is refused when one more must wait and the queue is full. See
/// [`LimiterBuilder::overflow`](crate::LimiterBuilder::overflow) for an example.
///
/// Each refusal is counted in [`LimiterSnapshot::shed`](crate::LimiterSnapshot::shed) and reported to the
/// [observer](crate::LimiterBuilder::observer) as [`EventKind::Shed`](crate::EventKind::Shed).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Overflow {
    /// The new request gets [`AcquireError::QueueFull`](crate::AcquireError::QueueFull).
    #[default]
    Reject,
    /// The request that has waited longest, whatever its priority, gets [`AcquireError::Shed`](crate::AcquireError::Shed).
    DropOldest,
    /// The request that would be served last (the latest of the lowest priority) gets
    /// [`AcquireError::Shed`](crate::AcquireError::Shed) if its priority is below that of the new request. Otherwise the new
    /// request gets [`AcquireError::QueueFull`](crate::AcquireError::QueueFull).
    DropLowestPriority,
    /// The oldest request of the lowest priority gets [`AcquireError::Shed`](crate::AcquireError::Shed). If all waiting requests
    /// have a higher priority than the new one, the new request gets [`AcquireError::QueueFull`](crate::AcquireError::QueueFull)
    /// instead. Use this rule for work that is worth less the longer it has waited. (The npm package *bottleneck* has the same
    /// strategy under the name `LEAK`.)
    Leak,
    /// The newest request of the longest [flow](crate::PermitRequest::flow) gets [`AcquireError::Shed`](crate::AcquireError::Shed). So a
    /// flow that has filled the queue does not keep out the others.
    ///
    /// The longest flow is the one with the most waiting requests, divided by its weight; of equal ones, the one whose newest request came
    /// last. Parents are compared first, then the flows within the longest one. In a flow, the newest request of its lowest priority is
    /// dropped. If the new request would make its own flow the longest, or as long as the longest one, or if the request to be dropped has a
    /// higher priority, then the new request gets [`AcquireError::QueueFull`](crate::AcquireError::QueueFull) instead.
    DropLongest,
    /// All waiting requests get [`AcquireError::Shed`](crate::AcquireError::Shed), and the limiter blocks. The new request, and
    /// every request that comes within `penalty` of the last one, gets [`AcquireError::Blocked`](crate::AcquireError::Blocked)
    /// and restarts the penalty. The penalty ends when no request has come for that long. (The npm package *bottleneck* has the
    /// same strategy under the name `BLOCK`.)
    Block {
        /// How long no request may come before the limiter accepts one again: any duration. With zero the limiter accepts the
        /// next request; with [`Duration::MAX`] it never accepts one.
        penalty: Duration,
    },
}

impl Overflow {
    /// The penalty of [`Overflow::Block`]; zero for the other rules.
    pub(crate) fn penalty(self) -> Duration {
        match self {
            Self::Block { penalty } => penalty,
            _ => Duration::ZERO,
        }
    }
}
