//! Everything that decides, without acting: no tokio, no clock, no calls to foreign code.
//!
//! Every input that depends on time takes `now`; actions outside (wake, report, start a timer) are returned as data. So a test
//! drives millions of schedules without a runtime.

pub(crate) mod answers;
#[cfg(test)]
#[path = "core/answers/tests.rs"]
mod answers_tests;
pub(crate) mod arena;
pub(crate) mod costs;
pub(crate) mod deadlines;
pub(crate) mod dialogue;
pub(crate) mod effects;
pub(crate) mod forecast;
pub(crate) mod gate;
pub(crate) mod grant;
pub(crate) mod kept;
pub(crate) mod lease;
pub(crate) mod ledger;
pub(crate) mod levels;
mod limit_state;
pub(crate) mod line;
mod measure;
mod migrate;
pub(crate) mod plan;
pub(crate) mod queue;
pub(crate) mod refused;
pub(crate) mod request;
pub(crate) mod schedule;
pub(crate) mod suspension;
mod sync;
mod track;
pub(crate) mod waiter;
pub(crate) mod waiting_line;
