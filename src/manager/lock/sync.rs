//! The atomics and the lock of the [word](super::word) and its [guard](super::guard), in one place, where a model checker
//! replaces them.

pub(in crate::manager) use std::sync::OnceLock;
pub(in crate::manager) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub(in crate::manager) use parking_lot::{Mutex, MutexGuard};
