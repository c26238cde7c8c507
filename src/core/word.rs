//! The state of one limit, packed into a word that is changed without the lock.

pub(crate) mod packed_rate;
pub(crate) mod packed_rate_history;
