use std::time::Duration;

/// Who goes when a full queue gets another request. See [`Builder::overflow`](crate::LimiterBuilder::overflow) for an example.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Overflow {
    /// The newcomer is turned away with [`AcquireError::QueueFull`].
    #[default]
    Reject,
    /// Who has waited longest, whatever the priority, is dropped with [`AcquireError::Shed`].
    DropOldest,
    /// Who would be served last (the latest of the lowest priority) is dropped with [`AcquireError::Shed`], if it is less
    /// urgent than the newcomer; otherwise the newcomer is turned away with [`AcquireError::QueueFull`].
    DropLowestPriority,
    /// All who wait are dropped with [`AcquireError::Shed`], and nobody is accepted until nobody has come for as long as the
    /// penalty: whoever comes before is turned away with [`AcquireError::Blocked`], and starts it anew. (This is what the npm
    /// package *bottleneck* calls its strategy `BLOCK`.)
    Block {
        /// How long it must be quiet: any time. With zero the queue is dropped and the next one is accepted; after
        /// [`Duration::MAX`] nobody ever is.
        penalty: Duration,
    },
}

impl Overflow {
    /// Of [`Overflow::Block`]; zero for the others.
    pub(crate) fn penalty(self) -> Duration {
        match self {
            Self::Block { penalty } => penalty,
            _ => Duration::ZERO,
        }
    }
}
