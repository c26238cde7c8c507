use std::sync::Arc;
use std::time::Duration;

use crate::event::LimiterEvent;

/// What a keyed limiter did without being asked to. See [`KeyedLimiterBuilder::on_event`](crate::KeyedLimiterBuilder::on_event) for an example.
#[derive(Debug)]
#[non_exhaustive]
pub enum KeyedLimiterEvent<'a, K> {
    /// A key was forgotten before it was as good as new: [`WhenFull::EvictSoonestReset`](crate::WhenFull::EvictSoonestReset).
    Evicted {
        /// The key.
        key: &'a K,
        /// How long until it would have been.
        reset_after: Duration,
    },
    /// A new key was turned away: [`WhenFull::Deny`](crate::WhenFull::Deny).
    TooManyKeys {
        /// The key.
        key: &'a K,
    },
    /// What the limiter of one key did.
    Limiter {
        /// The key.
        key: &'a K,
        /// What it did.
        event: &'a LimiterEvent,
    },
}

/// Who is told of events, outside every lock.
pub(super) type KeyedObserver<K> = Arc<dyn Fn(KeyedLimiterEvent<'_, K>) + Send + Sync>;
