//! The wakers of the tasks that await a reclaim or the drain, under the manager's lock.
//!
//! They are taken out under the lock and woken one by one outside it, each with its panic contained. tokio's `Notify` would stop at
//! the first waker that panics.

use std::collections::BTreeMap;
use std::task::Waker;

/// What is awaited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Awaited {
    Drain,
    /// The reclaim of the permit with this fence.
    Reclaim(u64),
}

/// Identifies a watcher.
pub(super) type WatcherId = u64;

#[derive(Debug, Default)]
pub(super) struct Watchers {
    wakers: BTreeMap<(Awaited, WatcherId), Waker>,
    latest: WatcherId,
}

impl Watchers {
    /// Registers a waker for the event. `id` is `None` at first and set by this call. Returns the waker that it replaces.
    pub(super) fn watch(&mut self, awaited: Awaited, id: &mut Option<WatcherId>, waker: Waker) -> Option<Waker> {
        let id = *id.get_or_insert_with(|| {
            self.latest += 1;
            self.latest
        });
        self.wakers.insert((awaited, id), waker)
    }

    /// Whether the drain is awaited.
    pub(super) fn await_drain(&self) -> bool {
        matches!(self.wakers.first_key_value(), Some(((Awaited::Drain, _), _)))
    }

    pub(super) fn unwatch(&mut self, awaited: Awaited, id: WatcherId) -> Option<Waker> {
        self.wakers.remove(&(awaited, id))
    }

    /// The event has happened: takes out one waker to be woken.
    pub(super) fn take(&mut self, awaited: Awaited) -> Option<Waker> {
        let (&key, _) = self.wakers.range((awaited, 0)..=(awaited, WatcherId::MAX)).next()?;
        self.wakers.remove(&key)
    }

    /// Takes out all wakers, so that their tasks look for a driver.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Waker> + use<> {
        std::mem::take(&mut self.wakers).into_values()
    }
}
