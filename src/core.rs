//! Everything that decides, without acting: no tokio, no clock, no calls to foreign code.
//!
//! Every input that depends on time takes `now`; actions outside (wake, report, start a timer) are returned as data. So a test
//! drives millions of schedules without a runtime.

pub(crate) mod arena;
pub(crate) mod effects;
pub(crate) mod gate;
pub(crate) mod ledger;
pub(crate) mod queue;
pub(crate) mod request;
pub(crate) mod schedule;
pub(crate) mod session;
pub(crate) mod suspension;
pub(crate) mod word;
