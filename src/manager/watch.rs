//! A future that awaits a reclaim or the drain.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::lock::Manager;
use super::watchers::{Awaited, WatcherId};
use crate::core::arena::Index;

/// Completes when what it awaits has happened.
#[derive(Debug)]
#[must_use = "it does nothing unless awaited"]
pub(crate) struct Watch {
    manager: Arc<Manager>,
    awaited: Awaited,
    /// The lease that is awaited.
    lease: Option<Index>,
    id: Option<WatcherId>,
}

impl Manager {
    /// Completes when the permit is not live any more.
    pub(crate) fn reclaimed(self: &Arc<Self>, index: Index, fence: u64) -> Watch {
        Watch { manager: Arc::clone(self), awaited: Awaited::Reclaim(fence), lease: Some(index), id: None }
    }

    /// Completes when no request waits, and every place was released.
    pub(crate) fn drained(self: &Arc<Self>) -> Watch {
        Watch { manager: Arc::clone(self), awaited: Awaited::Drain, lease: None, id: None }
    }
}

impl Future for Watch {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let waker = cx.waker().clone(); // outside the lock: a clone runs foreign code
        let Self { manager, awaited, lease, id } = &mut *self;
        let (mut state, now) = manager.lock_and_advance();
        let (happened, needs_driver) = match (*awaited, *lease) {
            (Awaited::Reclaim(fence), Some(index)) => (state.schedule.live_lease(now, index, fence).is_none(), true),
            // Only the passing of time reclaims a leaked permit, and the driver may have ended with its runtime.
            _ => (state.schedule.is_drained(), state.schedule.leases_permits()),
        };
        if happened {
            return Poll::Ready(());
        }
        let replaced = state.watchers.get_or_insert_default().watch(*awaited, id, waker);
        let driver = if needs_driver { state.ensure_driver_here().ok().flatten() } else { None };
        drop(state);
        if let Some(runtime) = driver {
            manager.timer_host().start(manager, runtime);
        }
        drop(replaced);
        Poll::Pending
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let waker = self.manager.lock().watchers.as_mut().and_then(|watchers| watchers.unwatch(self.awaited, id));
            drop(waker); // outside the lock
        }
    }
}
