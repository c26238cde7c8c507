//! A future that awaits a reclaim, the drain or the closing.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::core::arena::Index;
use crate::manager::lock::state::{Awaited, WatcherId};
use crate::manager::parts::Manager;
use crate::manager::visit::Visit;

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
    pub(crate) fn reclaimed(self: &Arc<Self>, lease: Index, fence: u64) -> Watch {
        let mut watch = self.watch(Awaited::Reclaim(fence));
        watch.lease = Some(lease);
        watch
    }

    pub(crate) fn watch(self: &Arc<Self>, awaited: Awaited) -> Watch {
        Watch {
            manager: Arc::clone(self),
            awaited,
            lease: None,
            id: None,
        }
    }
}

impl Future for Watch {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let waker = cx.waker().clone(); // outside the lock: a clone runs foreign code
        let Self {
            manager,
            awaited,
            lease,
            id,
        } = &mut *self;
        let Visit { mut state, now, .. } = manager.visit().after_due();
        let has_happened = match (*awaited, *lease) {
            (Awaited::Reclaim(fence), Some(lease)) => {
                state.schedule.live_lease(now, lease, fence).is_none()
            }
            _ => state.has_happened(*awaited),
        };
        if has_happened {
            return Poll::Ready(());
        }
        let watchers = state.watchers.get_or_insert_default();
        let replaced = watchers.watch(*awaited, id, waker);
        // Only the passing of time reclaims a leaked permit, and the driver may have ended with its runtime.
        let needs_driver = match awaited {
            Awaited::Reclaim(_) => true,
            Awaited::Drain => state.schedule.outlook().leases_permits(),
            Awaited::CloseToNew | Awaited::Close => false,
        };
        let driver = needs_driver.then(|| state.ensure_driver_here());
        drop(state);
        if let Some(Ok(Some(runtime))) = driver {
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
            let waker = state
                .watchers
                .as_mut()
                .and_then(|watchers| watchers.unwatch(self.awaited, id));
            state.drop_unused_watchers();
            drop(state);
            drop(waker); // outside the lock
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::limiter::Limiter;
    use crate::strategy::MaxConcurrency;

    /// While something is watched, each unlock checks whether it has happened.
    #[tokio::test]
    async fn nothing_is_left_of_a_watch_that_is_dropped_or_has_completed() {
        let limiter = Limiter::new(MaxConcurrency::new(1)).unwrap();
        let manager = limiter.manager();
        let _place = limiter.try_acquire().unwrap();
        for close in [Limiter::close_to_new, Limiter::close] {
            let mut watches = [
                manager.watch(Awaited::CloseToNew),
                manager.watch(Awaited::Close),
                manager.watch(Awaited::Drain),
            ];
            let completed = watches
                .iter_mut()
                .filter_map(FutureExt::now_or_never)
                .count();
            assert_eq!(completed, usize::from(limiter.is_closed()));
            assert!(manager.lock().watchers.is_some());
            drop(watches);
            assert!(manager.lock().watchers.is_none());

            let mut watch = if limiter.is_closed() {
                manager.watch(Awaited::Close)
            } else {
                manager.watch(Awaited::CloseToNew)
            };
            assert!((&mut watch).now_or_never().is_none());
            close(&limiter);
            assert!(manager.lock().watchers.is_none());
            assert!(watch.now_or_never().is_some());
        }
    }
}
