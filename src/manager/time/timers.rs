//! Which runtimes were built without timers.
//!
//! Tokio has no call that reports this: a timer that is made there panics, and the panic hook runs. The result is kept for all
//! limiters and keys, so that the panic happens once in each such runtime.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tokio::runtime::{self, Handle};

use crate::lock::Lock;

/// More than a program has at the same time. In a runtime that is forgotten, a timer panics once more.
const REMEMBERED: usize = 32;

/// The latest runtimes come last.
static MISSING_IN: Lock<Vec<runtime::Id>> = Lock::new(Vec::new());
/// Whether there is any, so that drivers need not lock.
static ANY: AtomicBool = AtomicBool::new(false);

/// Whether the runtime is known to have no timers.
pub(in crate::manager) fn are_missing_in(runtime: runtime::Id) -> bool {
    ANY.load(Relaxed) && MISSING_IN.lock().contains(&runtime)
}

/// The caller's runtime, if it has timers.
pub(in crate::manager) fn runtime_here() -> Option<Handle> {
    Handle::try_current()
        .ok()
        .filter(|here| !are_missing_in(here.id()))
}

/// Records that a driver in the runtime has ended. If it panicked, the timer panicked, because the driver catches all other
/// panics; or the runtime is being dropped by a panic, and nothing will wait there any more.
pub(in crate::manager) fn task_ended(runtime: runtime::Id) {
    if !std::thread::panicking() || are_missing_in(runtime) {
        return;
    }
    let mut missing_in = MISSING_IN.lock();
    let forgotten = (missing_in.len() + 1).saturating_sub(REMEMBERED);
    missing_in.drain(..forgotten);
    missing_in.push(runtime);
    ANY.store(true, Relaxed);
}
