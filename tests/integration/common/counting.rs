//! An allocator that counts for each thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

pub(crate) struct Counting;

thread_local! {
    /// Bytes that are live. It starts far above zero, because a thread may free memory that another one allocated.
    pub(crate) static LIVE: Cell<usize> = const { Cell::new(1 << 40) };
    /// The most bytes that were live since the cell was set.
    pub(crate) static PEAK: Cell<usize> = const { Cell::new(0) };
    /// The number of blocks that were allocated since the cell was set.
    pub(crate) static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    /// The size of the largest allocation since the cell was set.
    pub(crate) static LARGEST: Cell<usize> = const { Cell::new(0) };
}

unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.set(LIVE.get().wrapping_add(layout.size()));
        PEAK.set(PEAK.get().max(LIVE.get()));
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        LARGEST.set(LARGEST.get().max(layout.size()));
        // SAFETY: the caller fulfils the contract of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        LIVE.set(LIVE.get().wrapping_sub(layout.size()));
        // SAFETY: the caller fulfils the contract of the system's allocator.
        unsafe { System.dealloc(block, layout) }
    }
}
