//! Places are handed from one task to the next on two workers, while requests are given up in every state: before the queue, in it,
//! and with a place granted that was not taken. Granted places are taken without the manager's lock, so this races.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use crate::common::Random;
use tokio::task::{JoinSet, yield_now};
use tollgate::{Limiter, MaxConcurrency, Permit, Priority};

/// Polls the request this many times, whether or not it was woken, and then drops it; or waits for the permit.
async fn acquire(
    limiter: &Limiter,
    cost: u64,
    priority: Priority,
    polls: Option<u64>,
) -> Option<Permit> {
    let mut request = Box::pin(limiter.request().cost(cost).priority(priority).acquire());
    let Some(polls) = polls else {
        return Some(request.await.unwrap());
    };
    for _ in 0..polls {
        let polled = poll_fn(|cx| Poll::Ready(request.as_mut().poll(cx))).await;
        if let Poll::Ready(permit) = polled {
            return Some(permit.unwrap());
        }
        yield_now().await;
    }
    None
}

#[derive(Default)]
struct Tally {
    out: AtomicU64,
    fences: Mutex<BTreeSet<u64>>,
    given_up: AtomicU64,
}

async fn take_turns(limiter: Limiter, tally: Arc<Tally>, limit: u64, seed: u64) {
    const TURNS: usize = 400;
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    for _ in 0..TURNS {
        let cost = 1 + random.below(limit.min(4));
        let priority = if random.below(8) == 0 {
            Priority::HIGH
        } else {
            Priority::NORMAL
        };
        let polls = (random.below(2) == 0).then(|| random.below(12));
        let Some(permit) = acquire(&limiter, cost, priority, polls).await else {
            tally.given_up.fetch_add(1, Ordering::Relaxed);
            continue;
        };
        let out = tally.out.fetch_add(cost, Ordering::SeqCst) + cost;
        assert!(out <= limit, "{out} units out, {limit} allowed");
        assert!(
            tally.fences.lock().unwrap().insert(permit.fence()),
            "a fence was given twice"
        );
        if random.below(2) == 0 {
            yield_now().await;
        }
        tally.out.fetch_sub(cost, Ordering::SeqCst);
    }
}

async fn check_that_nothing_is_lost(limit: u64, tasks: u64) {
    let limiter = Limiter::new(MaxConcurrency::new(limit)).unwrap();
    let (tally, mut running) = (Arc::new(Tally::default()), JoinSet::new());
    for seed in 1..=tasks {
        running.spawn(take_turns(limiter.clone(), Arc::clone(&tally), limit, seed));
    }
    let all = async {
        while let Some(ended) = running.join_next().await {
            ended.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(120), all)
        .await
        .expect("a waiter is stranded");
    let snapshot = limiter.snapshot();
    assert_eq!(
        (snapshot.in_flight, snapshot.queued),
        (0, 0),
        "{snapshot:?}"
    );
    let fences = tally.fences.lock().unwrap();
    assert_eq!(
        fences.len() as u64 + snapshot.refunded,
        snapshot.granted,
        "each grant was taken, or given back: {snapshot:?}"
    );
    assert!(fences.last() <= Some(&snapshot.granted));
    assert!(tally.given_up.load(Ordering::Relaxed) > 0, "some give up");
    assert!(limiter.try_acquire_many(limit).is_ok());
}

/// The numbers of waiters need few slots, many slots, and more slots than the first buckets have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn places_that_are_given_up_at_random_go_to_the_next_and_none_is_lost() {
    for (limit, tasks) in [(1, 3), (1, 64), (5, 64), (8, 1_500)] {
        check_that_nothing_is_lost(limit, tasks).await;
    }
}

/// The work of a holder happens before that of the next one, so counting without an atomic addition loses nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_sees_the_writes_of_the_holder_before_it() {
    const TASKS: u64 = 8;
    const TURNS: u64 = 20_000;
    let (limiter, count) = (
        Limiter::new(MaxConcurrency::new(1)).unwrap(),
        Arc::new(AtomicU64::new(0)),
    );
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (limiter, count) = (limiter.clone(), Arc::clone(&count));
        tasks.spawn(async move {
            for _ in 0..TURNS {
                let _permit = limiter.acquire().await.unwrap();
                let before = count.load(Ordering::Relaxed);
                count.store(before + 1, Ordering::Relaxed);
            }
        });
    }
    tasks.join_all().await;
    assert_eq!(count.load(Ordering::Relaxed), TASKS * TURNS);
}
