//! Foreign code that may panic.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs foreign code, an observer or a waker, and catches its panic: the code may run inside the drop of a permit, in the driver,
/// or before others are woken.
#[inline]
pub(crate) fn contain_panic(act: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(act)) {
        std::mem::forget(panic); // its drop may panic too
    }
}
