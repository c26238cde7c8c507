//! The lock: the word before it, the guard that is the only way to the state, and the state.

pub(in crate::manager) mod guard;
pub(in crate::manager) mod state;
mod sync;
#[cfg(test)]
mod tests;
pub(in crate::manager) mod word;
