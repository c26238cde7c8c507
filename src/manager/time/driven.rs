//! What a driver drives.

use std::fmt;
use std::sync::Arc;

use tokio::runtime;
use tokio::time::Instant;

use crate::contain_panic::contain_panic;

/// What a driver drives: one manager, or those of many keys.
pub(crate) trait Driven: fmt::Debug + Send + Sync + 'static {
    /// Does what is due.
    fn run_due(self: Arc<Self>) -> Next;

    /// [`Driven::run_due`]; `None` if that panicked.
    fn run_due_contained(self: Arc<Self>) -> Option<Next> {
        let mut next = None;
        contain_panic(|| next = Some(self.run_due()));
        next
    }

    /// Handles that the driver in a runtime has ended while the manager still exists. That happens only when the runtime ends, or
    /// has no timers and tokio panics. No other driver is to be started there.
    fn driver_gone(&self, runtime: runtime::Id);
}

/// What a driver does after a run.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Next {
    /// There is more to do: the driver yields to other tasks, and runs again.
    Continue,
    /// It sleeps until this instant, or without a timer, until it is woken.
    Sleep(Option<Instant>),
    End,
}
