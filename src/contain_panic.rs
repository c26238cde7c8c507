use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs other people's code, an observer or a waker, whose panic goes no further: it may run inside a permit's drop, in the task
/// that everybody waits for, or before others are served.
#[inline]
pub(crate) fn contain_panic(act: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(act)) {
        std::mem::forget(panic); // whose drop may panic in turn
    }
}
