//! What keys cost in memory, by an allocator that counts for each thread.

use std::future::Future;
use std::hash::Hash;
use std::task::{Context, Waker};
use std::time::Duration;

use crate::common::counting::{LARGEST, LIVE, PEAK};
use tollgate::{
    Adapt, FixedWindow, KeyedLimiter, MaxConcurrency, Penalty, Policy, Priority, Rate,
    SlidingWindow, Throttle, TokenBucket,
};

/// The bytes that are live after `fill`, and the most that were live during it.
fn bytes(fill: impl FnOnce() -> KeyedLimiter<u64>) -> (usize, usize) {
    let before = LIVE.get();
    PEAK.set(before);
    let keyed = fill();
    let live = LIVE.get() - before;
    let peak = PEAK.get() - before;
    drop(keyed);
    (live, peak)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
}

/// Trap: a map that an attacker grows.
#[test]
fn a_million_keys_take_30_bytes_each_and_a_bound_on_them_bounds_the_memory() {
    let bucket = TokenBucket::new(Rate::per_hour(1), 5);
    let (live, _) = bytes(|| {
        let keyed = KeyedLimiter::builder(bucket)
            .max_keys(1_100_000)
            .build()
            .unwrap();
        (0..1_000_000).for_each(|key| drop(keyed.try_acquire(&key).unwrap()));
        assert_eq!(keyed.len(), 1_000_000);
        keyed
    });
    assert!(live <= 30_000_000, "{live} bytes");

    let (_, peak) = bytes(|| {
        let keyed = KeyedLimiter::builder(bucket)
            .max_keys(50_000)
            .build()
            .unwrap();
        (0..1_000_000).for_each(|key| drop(keyed.try_acquire(&key)));
        keyed
    });
    // A table has at most two thirds more slots than keys. While it grows there are two, but one shard does so at a time.
    assert!(peak <= 50_000 * 30, "{peak} bytes");
}

#[test]
fn a_runtime_that_is_not_polled_keeps_no_list_that_grows() {
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
    let before = LIVE.get();
    wait(10_000);
    let after = LIVE.get();
    assert!(after <= before + 1_000, "{} bytes more", after - before);
    drop(line);
}

/// A pause of all keys is stored once for each shard, not for each key.
#[test]
fn keys_that_are_not_in_use_take_no_memory_when_all_are_paused() {
    for policy in [
        Policy::from(TokenBucket::new(Rate::per_hour(1), 5)),
        MaxConcurrency::new(5).into(),
    ] {
        let keyed = KeyedLimiter::<u64>::new(policy).unwrap();
        (0..50_000).for_each(|key| drop(keyed.try_acquire(&key).unwrap()));
        let before = LIVE.get();
        keyed.pause_for(HOUR);
        assert!((0..50_000).all(|key| keyed.check(&key, 1).is_paused()));
        let more = LIVE.get().saturating_sub(before);
        assert!(more <= 100_000, "{more} bytes");
    }
}

const HOUR: Duration = Duration::from_secs(3_600);

/// Trap: a million hostile keys with a waiter each. The future of a waiter is its owner's and not counted.
#[test]
fn a_key_with_a_waiter_takes_a_kilobyte_and_one_with_places_out_less_and_all_of_it_comes_back() {
    const KEYS: u64 = 5_000;
    let places = || MaxConcurrency::new(1);
    // A few bytes above what a key takes: the shards of a limiter, and so the spare room of their tables, differ from run to run.
    let policies: [(Policy, usize, usize); 13] = [
        (Throttle::every(HOUR).into(), 50, 708),
        (TokenBucket::new(Rate::per_hour(7), 1).into(), 50, 708),
        (FixedWindow::new(1, HOUR).into(), 50, 708),
        (SlidingWindow::counter(1, HOUR).into(), 50, 708),
        (Penalty::new(1, Rate::per_hour(1)).into(), 50, 708),
        (SlidingWindow::log(1, HOUR).into(), 682, 842),
        (places().into(), 96, 708),
        (Policy::from(places()).and(Throttle::every(HOUR)), 658, 819),
        (places().adapt(Adapt::aimd()).into(), 666, 827),
        (places().ttl(HOUR).into(), 795, 875), // a lease, and an entry in the driver's timers
        (places().ttl(HOUR).adapt(Adapt::gradient()).into(), 914, 994),
        (
            Policy::from(places().ttl(HOUR)).and(Throttle::every(HOUR)),
            908,
            988,
        ),
        (
            Policy::from(places().ttl(HOUR))
                .and(SlidingWindow::log(1, HOUR))
                .and(FixedWindow::new(1, HOUR)),
            1_090,
            1_170,
        ),
    ];
    for (policy, most_out, most_waiting) in policies {
        let runtime = runtime();
        let _within = runtime.enter(); // not in a task, whose budget would end
        let keyed = KeyedLimiter::<u64>::builder(policy.clone())
            .max_keys(KEYS as usize)
            .build()
            .unwrap();
        let keys: Vec<u64> = (0..KEYS).collect();
        let mut waiting: Vec<_> = keys
            .iter()
            .map(|key| Box::pin(keyed.acquire(key)))
            .collect();
        let mut permits = Vec::with_capacity(keys.len());
        let empty = LIVE.get();
        permits.extend(keys.iter().map(|key| keyed.try_acquire(key).unwrap()));
        let out = (LIVE.get() - empty) / keys.len();
        assert!(
            out <= most_out,
            "{out} bytes for a key of {policy} that has a permit"
        );
        for waiting in &mut waiting {
            assert!(
                waiting
                    .as_mut()
                    .poll(&mut Context::from_waker(Waker::noop()))
                    .is_pending()
            );
        }
        let waited_for = (LIVE.get() - empty) / keys.len();
        assert!(
            waited_for <= most_waiting,
            "{waited_for} bytes for a key of {policy} with a waiter"
        );

        waiting.into_iter().for_each(drop);
        permits.clear();
        runtime.block_on(tokio::time::advance(3 * HOUR));
        for _ in 0..100 {
            keys.iter().for_each(|key| _ = keyed.snapshot(key)); // each call looks at a few others
        }
        assert_eq!(keyed.len(), 0, "{policy}");
        let left = LIVE.get().saturating_sub(empty) / keys.len();
        assert!(left <= 20, "{left} bytes a key of {policy} are left");
    }
}

/// A key with places out, and without a waiter, is decided in one word. Checks and denials do not change that.
#[test]
fn a_key_of_a_concurrency_with_places_out_takes_96_bytes_after_any_calls() {
    const KEYS: u64 = 20_000; // just too many for tables of the next smaller size
    let places = MaxConcurrency::new(2);
    for tiered in [false, true] {
        let builder = KeyedLimiter::<u64>::builder(places).max_keys(KEYS as usize);
        let builder = if tiered {
            builder.tiers(move |_| places.into())
        } else {
            builder
        };
        let keyed = builder.build().unwrap();
        let mut permits = Vec::with_capacity(2 * KEYS as usize);
        let empty = LIVE.get();
        for key in 0..KEYS {
            permits.extend([
                keyed.try_acquire(&key).unwrap(),
                keyed.try_acquire(&key).unwrap(),
            ]);
            assert!(keyed.try_acquire(&key).is_err() && !keyed.check(&key, 1).is_allowed());
            assert_eq!(keyed.snapshot(&key).unwrap().in_flight, 2);
        }
        assert_eq!(keyed.snapshots().count() as u64, KEYS);
        let out = (LIVE.get() - empty) as f64 / KEYS as f64;
        assert!(out <= 96.0, "{out} bytes a key, tiers: {tiered}");
        permits.clear();
        for _ in 0..10 {
            (0..KEYS).for_each(|key| _ = keyed.snapshot(&key));
        }
        assert!(keyed.is_empty());
        let left = LIVE.get().saturating_sub(empty) as u64 / KEYS;
        assert!(left <= 20, "{left} bytes a key are left");
    }
}

/// Trap: a table that grows under a lock and moves all its entries. The test measures the largest allocation.
#[test]
fn no_wait_moves_the_entries_of_all_keys() {
    const KEYS: u64 = 40_000;
    let runtime = runtime();
    let _within = runtime.enter();
    let keyed = KeyedLimiter::<u64>::new(Throttle::every(HOUR)).unwrap();
    let keys: Vec<u64> = (0..KEYS).collect();
    keys.iter()
        .for_each(|key| drop(keyed.try_acquire(key).unwrap()));
    let mut waiting: Vec<_> = keys
        .iter()
        .map(|key| Box::pin(keyed.acquire(key)))
        .collect();
    LARGEST.set(0);
    for waiting in &mut waiting {
        assert!(
            waiting
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
    }
    assert!(LARGEST.get() <= 16_384, "{} bytes at once", LARGEST.get());
}

/// The same with a timeout or a priority, for a key of a limit with a place out.
#[test]
fn a_key_with_a_waiter_that_has_a_timeout_or_a_priority_takes_a_kilobyte() {
    const KEYS: u64 = 5_000;
    for (timeout, priority) in [
        (Some(HOUR), Priority::NORMAL),
        (None, Priority::HIGHEST),
        (None, Priority::LOW),
    ] {
        let runtime = runtime();
        let _within = runtime.enter();
        let keyed = KeyedLimiter::<u64>::new(MaxConcurrency::new(1)).unwrap();
        let keys: Vec<u64> = (0..KEYS).collect();
        let mut permits = Vec::with_capacity(keys.len());
        let request = |key| {
            let request = keyed.request(key).priority(priority);
            Box::pin(match timeout {
                Some(timeout) => request.timeout(timeout).acquire(),
                None => request.acquire(),
            })
        };
        let mut waiting: Vec<_> = keys.iter().map(request).collect();
        let empty = LIVE.get();
        permits.extend(keys.iter().map(|key| keyed.try_acquire(key).unwrap()));
        for waiting in &mut waiting {
            assert!(
                waiting
                    .as_mut()
                    .poll(&mut Context::from_waker(Waker::noop()))
                    .is_pending()
            );
        }
        let waited_for = (LIVE.get() - empty) / keys.len();
        assert!(
            waited_for <= 1_024,
            "{waited_for} bytes with {timeout:?}, {priority:?}"
        );
    }
}

/// A key type that is not from the standard library.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Own(u64);

fn check_that_forgotten_keys_give_memory_back<K: Hash + Eq + Clone + Send + Sync + 'static>(
    key: impl Fn(u64) -> K,
) {
    const KEYS: u64 = 40_000;
    const KEPT: u64 = 200;
    let runtime = runtime();
    let _within = runtime.enter();
    let keyed = KeyedLimiter::builder(FixedWindow::new(1, HOUR))
        .max_keys(KEYS as usize)
        .build()
        .unwrap();
    let empty = LIVE.get();
    (0..KEYS).for_each(|number| drop(keyed.try_acquire(&key(number)).unwrap()));
    let full = LIVE.get() - empty;
    runtime.block_on(tokio::time::advance(2 * HOUR));
    (0..KEPT).for_each(|number| drop(keyed.try_acquire(&key(number)).unwrap()));
    for _ in 0..6 {
        (0..KEYS).for_each(|number| _ = keyed.snapshot(&key(number)));
    }
    assert_eq!(keyed.len() as u64, KEPT);
    assert!(
        (0..KEPT).all(|number| keyed.try_acquire(&key(number)).is_err()),
        "they moved with what they had used"
    );
    let left = LIVE.get() - empty;
    assert!(left <= full / 8, "{left} of {full} bytes are left");
}

#[test]
fn keys_that_are_forgotten_give_their_memory_back_and_the_others_stay() {
    check_that_forgotten_keys_give_memory_back(|number| number);
    check_that_forgotten_keys_give_memory_back(Own);
}
