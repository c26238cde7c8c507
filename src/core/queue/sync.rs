//! The atomics of the [answers](super::answers), in one place, where a model checker replaces them.

pub(super) use std::sync::atomic::{AtomicU64, Ordering};
