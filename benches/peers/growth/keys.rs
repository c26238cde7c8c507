//! Keys: up to ten million numbers, in a keyed limiter or in governor's.

use std::num::NonZeroU32;
use std::time::Duration;

use cpu_time::ThreadTime;
use governor::clock::MonotonicClock;
use governor::{Quota, RateLimiter};
use tollgate::{KeyedLimiter, Throttle};

use crate::curve::{Chart, Curve, Points};
use crate::heap::bytes_kept_by;
use crate::scatter::{key, scatter};
use crate::timing::{median, nanos_each};

const SIZES: [usize; 6] = [100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000];
const PEER: &str = "governor";
/// No key is refilled during a run, nor becomes idle and is forgotten.
const INTERVAL: Duration = Duration::from_secs(3_600);
/// More than a run takes of any key.
const BURST: NonZeroU32 = NonZeroU32::new(500_000).unwrap();
/// A limiter has at least this much room, as one with default options.
const DEFAULT_MAX_KEYS: usize = 1_000_000;
/// Keys that become known in all rounds of one size, if that is not fewer than one round.
const FILLED: usize = 1_000_000;
const MOST_FILLS: usize = 101;
const BATCH: usize = 1 << 17;
const BATCHES: usize = 9;

pub(crate) fn chart() -> Chart {
    let ours = costs(
        |size| {
            KeyedLimiter::builder(Throttle::every(INTERVAL).burst(BURST.get().into()))
                .max_keys(size.max(DEFAULT_MAX_KEYS))
                .build()
                .expect("a sound policy")
        },
        |limiter: &KeyedLimiter<u64>, key| limiter.try_acquire(key).is_ok(),
    );
    let quota = Quota::with_period(INTERVAL).expect("not zero");
    let theirs = costs(
        |_| RateLimiter::dashmap_with_clock(quota.allow_burst(BURST), MonotonicClock),
        |governor, key| governor.check_key(key).is_ok(),
    );
    Chart {
        title: "keys, a throttle for each",
        promise: "A lookup reads 1.8 to 3 slots on average; a full table grows by a third.",
        unit: "ns",
        curves: vec![
            Curve::new("a random known key", ours.known),
            Curve::new("a new key, on average while filled", ours.new),
            Curve::of_peer(PEER, "a random known key", theirs.known),
            Curve::of_peer(PEER, "a new key, on average while filled", theirs.new),
        ],
        bytes: vec![
            Curve::new("a key of 8 bytes", ours.bytes),
            Curve::of_peer(PEER, "a key of 8 bytes", theirs.bytes),
        ],
    }
}

#[derive(Default)]
struct Costs {
    known: Points,
    new: Points,
    bytes: Points,
}

fn costs<L>(empty: impl Fn(usize) -> L, admits: impl Fn(&L, &u64) -> bool) -> Costs {
    let mut costs = Costs::default();
    for size in SIZES {
        eprintln!("  {size}");
        let mut spans = Vec::with_capacity(MOST_FILLS);
        // The tables before the last one only show how long it takes to fill one.
        for _ in 1..(FILLED / size).clamp(1, MOST_FILLS) {
            fill(&empty(size), size, &admits, &mut spans);
        }
        let limiter = empty(size);
        let (bytes, ()) = bytes_kept_by(|| fill(&limiter, size, &admits, &mut spans));
        costs.new.push((size, median(spans)));
        costs.bytes.push((size, bytes as f64 / size as f64));
        let batch = |round: usize| {
            let keys: Vec<u64> = (round * BATCH..(round + 1) * BATCH)
                .map(|nth| key(scatter(nth as u64) as usize % size))
                .collect();
            let mut keys = keys.iter();
            nanos_each(BATCH as u32, || {
                assert!(keys.next().is_some_and(|key| admits(&limiter, key)));
            })
        };
        batch(0); // warms up
        let batches = (1..=BATCHES).map(batch).collect();
        costs.known.push((size, median(batches)));
    }
    costs
}

/// Fills a limiter, and adds the nanoseconds for each key: of the processor's time, because a large limiter is filled only once, and
/// the time of other programs would be in it.
fn fill<L>(limiter: &L, size: usize, admits: impl Fn(&L, &u64) -> bool, spans: &mut Vec<f64>) {
    let start = ThreadTime::now();
    (0..size).for_each(|number| assert!(admits(limiter, &key(number))));
    spans.push(start.elapsed().as_nanos() as f64 / size as f64);
}
