//! 1,000 tasks on two workers hammer one limiter with random cancels, panics and leaks; in the end every unit is accounted for.
//! The manager is a mutex, tokio's `Notify`, and tasks that start and end, so it is stressed and not modelled with loom. The
//! slots of the answers, which are shared without the mutex, are raced in `hand_off`.

use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{Random, ms};
use futures_util::FutureExt;
use tokio::task::{JoinSet, yield_now};
use tollgate::{FixedWindow, Limiter, MaxConcurrency, Policy, Throttle};

#[derive(Default)]
struct Tally {
    out: AtomicU64,
    taken: AtomicU64,
    leaked: AtomicU64,
    fences: Mutex<HashSet<u64>>,
}

async fn hammer(limiter: Limiter, tally: Arc<Tally>, seed: u64, limit: u64, leaks: bool) {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    for _ in 0..30 {
        let cost = 1 + random.below(3);
        let patience = Duration::from_micros(random.below(3_000));
        let acquire = limiter
            .request()
            .cost(cost)
            .priority(tollgate::Priority::new(random.below(3) as u8).unwrap());
        let acquired = match random.below(4) {
            // The future is dropped in any state.
            0 => tokio::time::timeout(patience, acquire.acquire()).await.ok(),
            1 => Some(acquire.timeout(patience).acquire().await),
            2 => limiter.try_acquire_many(cost).ok().map(Ok),
            _ => Some(acquire.acquire().await),
        };
        let Some(Ok(permit)) = acquired else { continue };
        tally.taken.fetch_add(1, Ordering::Relaxed);
        assert!(
            tally.fences.lock().unwrap().insert(permit.fence()),
            "a fence was given twice"
        );
        if leaks && random.below(40) == 0 {
            tally.leaked.fetch_add(1, Ordering::Relaxed);
            match random.below(2) {
                0 => permit.forget(),
                _ => std::mem::forget(permit),
            }
            continue;
        }
        let out = tally.out.fetch_add(cost, Ordering::SeqCst) + cost;
        assert!(leaks || out <= limit, "{out} units out, {limit} allowed");
        let panics = random.below(20) == 0;
        let work = AssertUnwindSafe(async {
            let held = Held(permit, &tally.out, cost);
            for _ in 0..random.below(3) {
                yield_now().await;
            }
            if panics {
                std::panic::resume_unwind(Box::new("on purpose, without the noise of the hook"));
            }
            drop(held);
        });
        assert_eq!(work.catch_unwind().await.is_err(), panics);
    }
}

/// Decrements its count before the permit is released.
struct Held<'a>(#[allow(dead_code)] tollgate::Permit, &'a AtomicU64, u64);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.1.fetch_sub(self.2, Ordering::SeqCst);
    }
}

async fn thousand_tasks(
    policy: impl Into<Policy>,
    limit: u64,
    leaks: bool,
) -> (Limiter, Arc<Tally>) {
    let limiter = Limiter::new(policy).unwrap();
    let (tally, mut tasks) = (Arc::new(Tally::default()), JoinSet::new());
    for seed in 1..=1_000 {
        let task = tasks.spawn(hammer(
            limiter.clone(),
            Arc::clone(&tally),
            seed,
            limit,
            leaks,
        ));
        if seed % 10 == 0 {
            let delay = Duration::from_micros(seed * 13);
            tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                task.abort(); // at any await point
            });
        }
    }
    let all = async {
        while let Some(ended) = tasks.join_next().await {
            assert!(ended.is_ok() || ended.unwrap_err().is_cancelled());
        }
    };
    tokio::time::timeout(Duration::from_secs(120), all)
        .await
        .expect("a waiter is stranded");
    (limiter, tally)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_tasks_never_exceed_the_limit_and_lose_no_unit() {
    let (limiter, tally) = thousand_tasks(MaxConcurrency::new(8), 8, false).await;
    let snapshot = limiter.snapshot();
    assert_eq!(
        (snapshot.in_flight, snapshot.queued),
        (0, 0),
        "{snapshot:?}"
    );
    assert_eq!(
        snapshot.granted,
        tally.taken.load(Ordering::Relaxed) + snapshot.refunded,
        "{snapshot:?}"
    );
    assert!(limiter.try_acquire_many(8).is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_tasks_that_leak_get_every_unit_back() {
    let (limiter, tally) = thousand_tasks(MaxConcurrency::new(16).ttl(ms(20)), 16, true).await;
    limiter.close();
    tokio::time::timeout(Duration::from_secs(10), limiter.drained())
        .await
        .expect("a leak was not reclaimed");
    let snapshot = limiter.snapshot();
    assert_eq!(
        (snapshot.in_flight, snapshot.queued),
        (0, 0),
        "{snapshot:?}"
    );
    // A grant whose TTL passes before its owner takes it, and then gives up, is reclaimed and not refunded.
    let untaken = snapshot.granted - tally.taken.load(Ordering::Relaxed) - snapshot.refunded;
    assert!(
        snapshot.reclaimed >= tally.leaked.load(Ordering::Relaxed) + untaken,
        "{snapshot:?}, {untaken} were not taken"
    );
    assert!(tally.leaked.load(Ordering::Relaxed) > 0, "the test leaks");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_tasks_under_three_limits_at_once_all_get_through() {
    let policy = Policy::from(MaxConcurrency::new(8))
        .and(Throttle::every(Duration::from_micros(20)).burst(100))
        .and(FixedWindow::new(1_000, ms(10)));
    let (limiter, tally) = thousand_tasks(policy, 8, false).await;
    let snapshot = limiter.snapshot();
    assert_eq!(
        (snapshot.in_flight, snapshot.queued),
        (0, 0),
        "{snapshot:?}"
    );
    assert_eq!(
        snapshot.granted,
        tally.taken.load(Ordering::Relaxed) + snapshot.refunded,
        "{snapshot:?}"
    );
}
