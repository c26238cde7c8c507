//! An allocator that counts live bytes while counting is on.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering};

/// Off for workloads that measure time. The allocator then costs them one load and one branch.
static COUNTING: AtomicBool = AtomicBool::new(false);
static LIVE: AtomicIsize = AtomicIsize::new(0);

pub(crate) struct Counting;

/// The bytes that `work` allocates and does not free, and its result. The caller drops the result, which is not counted.
pub(crate) fn bytes_kept_by<T>(work: impl FnOnce() -> T) -> (isize, T) {
    LIVE.store(0, Ordering::Relaxed);
    COUNTING.store(true, Ordering::Relaxed);
    let result = work();
    COUNTING.store(false, Ordering::Relaxed);
    (LIVE.load(Ordering::Relaxed), result)
}

fn count(bytes: usize, sign: isize) {
    if COUNTING.load(Ordering::Relaxed) {
        LIVE.fetch_add(bytes as isize * sign, Ordering::Relaxed);
    }
}

// SAFETY: every call is passed on to `System` with the caller's own arguments, under the same contract. Counting touches only two
// atomics and does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        // SAFETY: as above.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(layout.size(), -1);
        count(size, 1);
        // SAFETY: as above.
        unsafe { System.realloc(place, layout, size) }
    }
}
