use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::event::KeyedObserver;
use super::tier::TierOf;
use crate::core::plan::Plan;
use crate::core::schedule::Options;
use crate::manager::{Origin, TimeSource};

/// The data that all keys share.
pub(super) struct Shared<K> {
    /// The plan of all keys, if all can be idle and none has a tier: an idle key is then found and decided at once.
    pub(super) plan: Option<Arc<Plan>>,
    pub(super) time_source: TimeSource,
    pub(super) id_prefixes: IdPrefixes,
    pub(super) tier_of: Option<TierOf<K>>,
    pub(super) origin: Arc<Origin>,
    pub(super) options: Arc<Options>,
    pub(super) observer: Option<KeyedObserver<K>>,
}

/// The source of the random parts of permit ids: one for each manager, and one for the idle keys of each shard.
pub(super) struct IdPrefixes {
    first: u64,
    count: AtomicU64,
}

impl IdPrefixes {
    pub(super) fn new(first: u64) -> Self {
        Self { first, count: AtomicU64::new(0) }
    }

    pub(super) fn next(&self) -> u64 {
        /// An id, as a UUID, has no room for some of the bits below.
        const SHIFT: u32 = 16;
        self.first.wrapping_add(self.count.fetch_add(1, Relaxed) << SHIFT)
    }
}
