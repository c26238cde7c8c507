//! A future that awaits a reclaim, the drain or the closing.

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

    /// Completes when new requests are refused.
    pub(crate) fn closed_to_new(self: &Arc<Self>) -> Watch {
        Watch { manager: Arc::clone(self), awaited: Awaited::CloseToNew, lease: None, id: None }
    }

    /// Completes when all requests are refused, also those that wait.
    pub(crate) fn closed(self: &Arc<Self>) -> Watch {
        Watch { manager: Arc::clone(self), awaited: Awaited::Close, lease: None, id: None }
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
            (Awaited::CloseToNew, _) => (state.schedule.is_closed(), false),
            (Awaited::Close, _) => (state.schedule.refuses_waiters(), false),
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
            let mut state = self.manager.lock();
            let waker = state.watchers.as_mut().and_then(|watchers| watchers.unwatch(self.awaited, id));
            state.drop_unused_watchers();
            drop(state);
            drop(waker); // outside the lock
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use crate::limiter::Limiter;
    use crate::strategy::MaxConcurrency;

    /// Where something is watched, each unlock looks whether it has happened.
    #[tokio::test]
    async fn nothing_is_left_of_a_watch_that_is_dropped_or_has_completed() {
        let limiter = Limiter::new(MaxConcurrency::new(1)).unwrap();
        let manager = limiter.manager();
        let _place = limiter.try_acquire().unwrap();
        for close in [Limiter::close_to_new, Limiter::close] {
            let mut watches = [manager.closed_to_new(), manager.closed(), manager.drained()];
            let completed = watches.iter_mut().filter_map(FutureExt::now_or_never).count();
            assert_eq!(completed, usize::from(limiter.is_closed()));
            assert!(manager.lock().watchers.is_some());
            drop(watches);
            assert!(manager.lock().watchers.is_none());

            let mut watch = if limiter.is_closed() { manager.closed() } else { manager.closed_to_new() };
            assert!((&mut watch).now_or_never().is_none());
            close(&limiter);
            assert!(manager.lock().watchers.is_none());
            assert!(watch.now_or_never().is_some());
        }
    }
}
