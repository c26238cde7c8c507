//! The driver: the one task with the one timer, and who keeps the time where.
//!
//! | who | keeps the time for | where |
//! |---|---|---|
//! | a driver of its own | one [`Limiter`](crate::Limiter) | each runtime in which somebody waits for it |
//! | a [shared driver](super::shared_driver) | all active keys of a [`KeyedLimiter`](crate::KeyedLimiter) | the same |
//! | a caller that blocks its thread | the limiter at whose front it waits | its thread |

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};

use tokio::runtime::{self, Handle};
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::timeout_at;

use super::shared_driver::{Driven, SharedDriver};

/// Who drives a manager when time matters.
#[derive(Debug)]
pub(crate) enum TimerHost {
    /// A driver of its own in each runtime; this wakes them before their timers do.
    Own(Arc<Notify>),
    SharedDriver(Arc<SharedDriver>),
}

impl TimerHost {
    /// Starts a driver in the runtime. Outside every lock: a runtime that is shutting down drops the driver at once, and with it
    /// its [`ExitGuard`].
    #[cold]
    pub(super) fn start<D: Driven>(&self, driven: &Arc<D>, runtime: Handle) {
        match self {
            Self::Own(wakeup) => {
                let exit_guard = ExitGuard { driven: Arc::downgrade(driven), runtime: runtime.id() };
                runtime.spawn(drive(exit_guard, Arc::clone(wakeup)));
            }
            Self::SharedDriver(shared_driver) => {
                let driven: Arc<dyn Driven> = Arc::<D>::clone(driven);
                shared_driver.enlist(&driven, &runtime);
            }
        }
    }

    /// Wakes the drivers before the time that they know of.
    pub(super) fn wake<D: Driven>(&self, driven: &D) {
        match self {
            Self::Own(wakeup) => wakeup.notify_waiters(),
            Self::SharedDriver(shared_driver) => shared_driver.call(driven),
        }
    }

    /// What was driven is gone.
    pub(super) fn dismiss<D: Driven>(&self, driven: &D) {
        match self {
            Self::Own(wakeup) => wakeup.notify_waiters(), // the drivers find it gone
            Self::SharedDriver(shared_driver) => shared_driver.dismiss(driven),
        }
    }
}

/// Drives a manager in one runtime, until no handle and no permit is left.
///
/// It sleeps until time matters next, or without a timer, and is woken early when that changes. It holds the manager only while
/// it acts for it.
async fn drive<D: Driven>(exit_guard: ExitGuard<D>, wakeup: Arc<Notify>) {
    loop {
        // Before `run_due`: a wake-up between that and the sleep would be missed.
        let woken = wakeup.notified();
        let Some(driven) = exit_guard.driven.upgrade() else { return };
        match catch_unwind(AssertUnwindSafe(|| driven.run_due())) {
            Err(panic) => {
                std::mem::forget(panic); // whose drop may panic in turn
                yield_now().await; // were there no end of panics, the runtime's worker would never come free
            }
            Ok(Some(at)) => drop(timeout_at(at, woken).await),
            Ok(None) => woken.await,
        }
    }
}

/// Reports that the driver is gone, for whatever reason: its runtime was shut down, perhaps before the first poll, or has no timers,
/// where tokio panics.
#[derive(Debug)]
struct ExitGuard<D: Driven> {
    driven: Weak<D>,
    runtime: runtime::Id,
}

impl<D: Driven> Drop for ExitGuard<D> {
    fn drop(&mut self) {
        if let Some(driven) = self.driven.upgrade() {
            driven.driver_gone(self.runtime);
        }
    }
}
