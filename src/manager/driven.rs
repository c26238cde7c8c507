use std::fmt;
use std::sync::Arc;

use tokio::runtime;
use tokio::time::Instant;

/// What a driver drives.
pub(crate) trait Driven: fmt::Debug + Send + Sync + 'static {
    /// Does what is due, and returns until when the driver may sleep.
    fn run_due(self: Arc<Self>) -> Option<Instant>;

    /// The driver in a runtime ended while the manager still exists. That happens only when the runtime ends, or has no timers
    /// and tokio panics. No other driver is to be started there.
    fn driver_gone(&self, runtime: runtime::Id);
}
