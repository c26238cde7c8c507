use std::sync::Arc;
use std::time::Duration;

use crate::event::LimiterEvent;

/// Something that a keyed limiter did on its own. See [`KeyedLimiterBuilder::on_event`](crate::KeyedLimiterBuilder::on_event) for
/// an example.
#[derive(Debug)]
#[non_exhaustive]
pub enum KeyedLimiterEvent<'a, K> {
    /// A key was forgotten before it was reset: [`WhenFull::EvictSoonestReset`](crate::WhenFull::EvictSoonestReset).
    Evicted {
        /// The key.
        key: &'a K,
        /// How long until it would have been reset.
        reset_after: Duration,
    },
    /// A new key was refused: [`WhenFull::Deny`](crate::WhenFull::Deny).
    TooManyKeys {
        /// The key.
        key: &'a K,
    },
    /// An event of the limiter of one key.
    Limiter {
        /// The key.
        key: &'a K,
        /// The event.
        event: &'a LimiterEvent,
    },
}

// Not derived: that would ask the same of the keys.
impl<K> Clone for KeyedLimiterEvent<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for KeyedLimiterEvent<'_, K> {}

/// The observers of events, called outside every lock.
pub(super) type KeyedObserver<K> = Arc<dyn Fn(KeyedLimiterEvent<'_, K>) + Send + Sync>;
