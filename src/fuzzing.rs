//! What the fuzzers of `fuzz/` check of the code that is not public: properties that hold for any bytes.

use crate::core::schedule::{model, simulation};
use crate::store;

/// A ledger as bytes, and calls on it.
pub fn ledger(bytes: &[u8]) {
    store::fuzzed::ledger(bytes);
}

/// What the servers of stores send.
pub fn replies(bytes: &[u8]) {
    store::fuzzed::replies(bytes);
}

/// Inputs to a schedule, compared with its reference.
pub fn schedule(bytes: &[u8]) {
    model::fuzzed::schedule(bytes);
}

/// The order of events of two processes and a store.
pub fn session(bytes: &[u8]) {
    simulation::fuzzed::session(bytes);
}
