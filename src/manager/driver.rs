//! The manager's task: one timer, one bell.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};

use tokio::runtime;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::timeout_at;

use super::Manager;

/// Drives a manager in one runtime, until no handle and no permit is left.
///
/// It sleeps until time matters next, or without a timer, and is woken early by the manager's bell. It holds the manager only
/// while it acts for it.
pub(crate) async fn drive(exit_guard: ExitGuard, wakeup: Arc<Notify>) {
    loop {
        // Before the turn: a bell that is rung between the turn and the sleep would be missed.
        let woken = wakeup.notified();
        let Some(manager) = exit_guard.manager.upgrade() else { return };
        // A waker that panics is its owner's affair; the others are served by the next turn.
        let run_due = catch_unwind(AssertUnwindSafe(|| manager.run_due()));
        drop(manager);
        match run_due {
            Err(panic) => {
                std::mem::forget(panic); // whose drop may panic in turn
                yield_now().await; // were there no end of panics, the runtime's worker would never come free
            }
            Ok(Some(at)) => drop(timeout_at(at, woken).await),
            Ok(None) => woken.await,
        }
    }
}

/// Says that the driver is gone, however it went: its runtime was shut down, before its first turn perhaps, or has no timers
/// and tokio panicked.
#[derive(Debug)]
pub(crate) struct ExitGuard {
    manager: Weak<Manager>,
    runtime: runtime::Id,
}

impl ExitGuard {
    pub(crate) fn new(manager: Weak<Manager>, runtime: runtime::Id) -> Self {
        Self { manager, runtime }
    }
}

impl Drop for ExitGuard {
    fn drop(&mut self) {
        if let Some(manager) = self.manager.upgrade() {
            manager.driver_gone(self.runtime);
        }
    }
}
