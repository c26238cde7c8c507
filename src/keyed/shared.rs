//! What all keys of a keyed limiter share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use super::idle::KeyRef;
use super::tier::TierOf;
use crate::contain_panic::contain_panic;
use crate::event::EventKind;
use crate::manager::TimeSource;
use crate::observe::{KeyedObservers, Observers};

/// The data that all keys share.
pub(super) struct KeyedShared<K> {
    /// Whether an idle key is likely to be decided at once: the shards have a plan for that.
    pub(super) decides_at_once: AtomicBool,
    pub(super) time_source: TimeSource,
    /// The numbers given to managers, and to shards for the permits of their idle keys: each makes other permit ids.
    pub(super) numbers: AtomicU64,
    pub(super) tier_of: Option<TierOf<K>>,
    pub(super) name: Option<Arc<str>>,
    pub(super) observer: Option<Arc<KeyedObservers>>,
}

impl<K: Send + Sync + 'static> KeyedShared<K> {
    pub(super) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Relaxed)
    }

    /// Reports an event of a key without a manager, or of a request whose key is unknown, to the observer. Called outside every lock.
    pub(super) fn tell(&self, key: Option<&K>, kind: impl FnOnce() -> EventKind) {
        if let Some(observer) = &self.observer {
            observer.emit(key, &kind());
        }
    }

    /// [`KeyedShared::tell`] for a borrowed key. If the key cannot be cloned, the event is not reported.
    #[cold]
    pub(super) fn emit_of_idle(
        &self,
        key: &(impl KeyRef<K> + ?Sized),
        kinds: impl IntoIterator<Item = EventKind>,
    ) {
        let Some(observer) = &self.observer else {
            return;
        };
        contain_panic(|| {
            let key = key.to_key();
            for kind in kinds {
                observer.emit(Some(&key), &kind);
            }
        });
    }
}

impl<K: Clone + Send + Sync + 'static> KeyedShared<K> {
    /// The observer of the manager of this key, which clones it.
    pub(super) fn observer_of(&self, key: &K) -> Observers {
        let observer = self.observer.as_ref();
        observer.map_or(Observers::NONE, |observer| {
            observer.of_key(Some(key.clone()))
        })
    }
}
