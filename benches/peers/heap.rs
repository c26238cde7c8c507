//! An allocator that counts live bytes while it is asked to.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering};

/// Off for all workloads but one, so that counting costs the others a load and a branch.
static COUNTING: AtomicBool = AtomicBool::new(false);
static LIVE: AtomicIsize = AtomicIsize::new(0);

pub(crate) struct Counting;

/// Bytes that are live after `work` and were not before. What `work` hands back is dropped uncounted.
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

// SAFETY: every call goes to `System` with the caller's own arguments, whose contract is the same; counting touches no memory
// but two atomics and does not allocate.
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
