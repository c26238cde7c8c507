//! The atomics of the [answers](super::answers), in one place: a model checker exchanges them.

pub(super) use std::sync::atomic::{AtomicU64, Ordering};
