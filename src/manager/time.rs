//! Time: the clock that decisions read, and the tasks and threads that wake waiters.

pub(in crate::manager) mod clock;
pub(in crate::manager) mod driven;
mod driver;
#[cfg(feature = "quanta")]
mod fast_clock;
#[cfg(not(feature = "quanta"))]
mod no_fast_clock;
pub(in crate::manager) mod reading;
pub(in crate::manager) mod runtimes;
pub(in crate::manager) mod shared_driver;
pub(in crate::manager) mod time_source;
pub(in crate::manager) mod timekeeper;
pub(in crate::manager) mod timer_host;
pub(in crate::manager) mod timers;
