//! The data that all keys of a keyed limiter share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use super::idle::KeyRef;
use super::tier::TierOf;
use crate::contain_panic::contain_panic;
use crate::event::EventKind;
use crate::manager::TimeSource;
use crate::observe::KeyedObservers;

/// The data that all keys share.
pub(super) struct KeyedShared<K> {
    /// Whether a request of an idle key is likely to be decided at once, because the shards have a plan for it.
    pub(super) decides_at_once: AtomicBool,
    pub(super) time_source: TimeSource,
    /// The number of the next manager, or of the next shard for the permits of its idle keys. Each number makes different permit
    /// ids.
    pub(super) numbers: AtomicU64,
    pub(super) tier_of: Option<TierOf<K>>,
    /// Whether there are observers. A copy for the path of a denial.
    pub(super) observed: bool,
    pub(super) observers: Arc<KeyedObservers>,
}

impl<K: Send + Sync + 'static> KeyedShared<K> {
    pub(super) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Relaxed)
    }

    /// Reports events of a borrowed key that has no manager. If cloning the key panics, the events are not reported. Called
    /// outside every lock.
    #[cold]
    pub(super) fn tell_of_borrowed(
        &self,
        key: &(impl KeyRef<K> + ?Sized),
        kinds: impl IntoIterator<Item = EventKind>,
    ) {
        if self.observed {
            contain_panic(|| {
                let key = key.to_key();
                for kind in kinds {
                    self.observers.tell(Some(&key), || kind);
                }
            });
        }
    }
}
