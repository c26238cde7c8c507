//! The driver: one task with one timer, in one runtime.
//!
//! The driver sleeps until the next instant that matters, or without a timer, and is woken early when that instant changes. It
//! holds what it drives only during a run, and ends when what it drives was dropped.

use std::sync::{Arc, Weak};

use tokio::runtime::{self, Handle};
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::timeout_at;

use super::driven::{Driven, Next};
use super::{timekeeper, timers};

/// Starts a driver. `precise`: the [timekeeper] acts before it.
pub(super) fn spawn<D: Driven>(
    driven: &Arc<D>,
    runtime: &Handle,
    wakeup: &Arc<Notify>,
    precise: bool,
) {
    let driver = Driver {
        driven: Arc::downgrade(driven),
        runtime: runtime.id(),
        wakeup: Arc::clone(wakeup),
        precise,
    };
    runtime.spawn(drive(driver));
}

/// Its drop reports that the driver has ended: its runtime was shut down, perhaps before the first poll, or has no timers and tokio
/// panicked.
#[derive(Debug)]
struct Driver<D: Driven> {
    driven: Weak<D>,
    runtime: runtime::Id,
    wakeup: Arc<Notify>,
    precise: bool,
}

async fn drive<D: Driven>(driver: Driver<D>) {
    loop {
        // The wake-up is registered before `run_due`. Otherwise a wake-up between `run_due` and the sleep would be missed.
        let woken = driver.wakeup.notified();
        let Some(driven) = driver.driven.upgrade() else {
            return;
        };
        match driven.run_due_contained() {
            // Endless panics, too, must not occupy the runtime's worker for ever.
            None | Some(Next::Continue) => yield_now().await,
            Some(Next::Sleep(Some(_))) if timers::are_missing_in(driver.runtime) => return,
            Some(Next::Sleep(Some(at))) => {
                if driver.precise {
                    timekeeper::run_at(at, driver.driven.clone(), &driver.wakeup);
                }
                drop(timeout_at(at, woken).await);
            }
            Some(Next::Sleep(None)) => woken.await,
            Some(Next::End) => return,
        }
    }
}

impl<D: Driven> Drop for Driver<D> {
    fn drop(&mut self) {
        timers::task_ended(self.runtime);
        if self.precise {
            timekeeper::dismiss(self.driven.as_ptr(), Some(self.runtime));
        }
        if let Some(driven) = self.driven.upgrade() {
            driven.driver_gone(self.runtime);
        }
    }
}
