//! The wakers of the tasks that await a reclaim, the drain or the closing, under the manager's lock.
//!
//! They are taken out under the lock and woken one by one outside it, each with its panic contained. tokio's `Notify` would stop at
//! the first waker that panics.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::Waker;

/// What is awaited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Awaited {
    /// That no request waits, and every place was released.
    Drain,
    /// That new requests are refused.
    CloseToNew,
    /// That all requests are refused, also those that wait.
    Close,
    /// The reclaim of the permit with this fence.
    Reclaim(u64),
}

/// Identifies a watcher among those of all managers.
pub(in crate::manager) type WatcherId = u64;

/// The latest id. It is not kept in [`Watchers`], which are dropped while a watcher that was just woken still has its id.
static LATEST: AtomicU64 = AtomicU64::new(0);

#[derive(Debug, Default)]
pub(in crate::manager) struct Watchers {
    wakers: BTreeMap<(Awaited, WatcherId), Waker>,
}

impl Watchers {
    /// Registers a waker for the event. `id` is `None` at first and set by this call. Returns the waker that it replaces.
    pub(in crate::manager) fn watch(
        &mut self,
        awaited: Awaited,
        id: &mut Option<WatcherId>,
        waker: Waker,
    ) -> Option<Waker> {
        let id = *id.get_or_insert_with(|| LATEST.fetch_add(1, Relaxed) + 1);
        self.wakers.insert((awaited, id), waker)
    }

    pub(in crate::manager) fn is_empty(&self) -> bool {
        self.wakers.is_empty()
    }

    /// Whether the drain is awaited.
    pub(in crate::manager) fn await_drain(&self) -> bool {
        matches!(
            self.wakers.first_key_value(),
            Some(((Awaited::Drain, _), _))
        )
    }

    pub(in crate::manager) fn unwatch(&mut self, awaited: Awaited, id: WatcherId) -> Option<Waker> {
        self.wakers.remove(&(awaited, id))
    }

    /// The event has happened: takes out one waker to be woken.
    pub(in crate::manager) fn take(&mut self, awaited: Awaited) -> Option<Waker> {
        let (&key, _) = self
            .wakers
            .range((awaited, 0)..=(awaited, WatcherId::MAX))
            .next()?;
        self.wakers.remove(&key)
    }

    /// All wakers, so that their tasks look for a driver.
    pub(in crate::manager) fn take_all(self) -> impl Iterator<Item = Waker> + use<> {
        self.wakers.into_values()
    }
}
