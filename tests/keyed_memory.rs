//! What a million keys cost in memory, by an allocator that counts. One test, so that nothing else allocates meanwhile.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tollgate::{KeyedLimiter, Rate, Throttle, TokenBucket};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(live, Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that are live after `fill`, and the most that ever were.
fn bytes(fill: impl FnOnce() -> KeyedLimiter<u64>) -> (usize, usize) {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    let keyed = fill();
    let live = LIVE.load(Relaxed) - before;
    let peak = PEAK.load(Relaxed) - before;
    drop(keyed);
    (live, peak)
}

/// Trap: a map that an attacker grows.
#[test]
fn a_million_keys_take_40_bytes_each_and_a_bound_on_them_bounds_the_memory() {
    let bucket = TokenBucket::new(Rate::per_hour(1), 5);
    let (live, _) = bytes(|| {
        let keyed = KeyedLimiter::builder(bucket).max_keys(1_100_000).build().unwrap();
        (0..1_000_000).for_each(|key| drop(keyed.try_acquire(&key).unwrap()));
        assert_eq!(keyed.len(), 1_000_000);
        keyed
    });
    assert!(live <= 40_000_000, "{live} bytes");

    let (_, peak) = bytes(|| {
        let keyed = KeyedLimiter::builder(bucket).max_keys(50_000).build().unwrap();
        (0..1_000_000).for_each(|key| drop(keyed.try_acquire(&key)));
        keyed
    });
    // A table is at most twice as large as it need be, and once more while it grows, of which one shard does at a time.
    assert!(peak <= 50_000 * 45, "{peak} bytes");

    // A runtime that nobody runs any more has no list of turns that grows with each wait in another one.
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let (idle, busy) = (runtime(), runtime());
    let keyed = KeyedLimiter::new(Throttle::every(Duration::from_millis(1))).unwrap();
    drop(keyed.try_acquire(&0).unwrap());
    idle.block_on(keyed.acquire(&0)).map(drop).unwrap();
    let wait = |times| {
        busy.block_on(async {
            for _ in 0..times {
                drop(keyed.acquire(&0).await.unwrap());
            }
        });
    };
    let line = keyed.limiter(&0).unwrap();
    wait(1_000);
    let before = LIVE.load(Relaxed);
    wait(10_000);
    let after = LIVE.load(Relaxed);
    assert!(after <= before + 1_000, "{} bytes more", after - before);
    drop(line);
}
