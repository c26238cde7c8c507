//! A request that finds nobody before it carries its own call to the store. Whatever becomes of it, those behind it are served.

mod common;

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Waker};
use std::time::Duration;

use common::faulty::{Faulty, Way};
use common::ms;
use tokio::time::{Instant, sleep, timeout};
use tollgate::store::OnStoreDown;
use tollgate::{AcquireError, SharedLimiter, TryAcquireError};

/// The way to a store, and a limiter that takes it. A call takes 10 ms.
fn slow(policy: &str) -> (Faulty, SharedLimiter) {
    let faulty = Faulty::by(Way::Slow(ms(10)));
    let limiter = faulty.builder(policy).build().unwrap();
    (faulty, limiter)
}

#[tokio::test(start_paused = true)]
async fn it_is_granted_by_one_call() {
    let (store, limiter) = slow("2/h burst 2");
    let start = Instant::now();
    drop(limiter.acquire().await.unwrap());
    drop(limiter.try_acquire().await.unwrap());
    assert!(matches!(limiter.try_acquire().await, Err(TryAcquireError::Denied(_))));
    assert_eq!((start.elapsed(), store.calls.load(Relaxed)), (ms(30), 3));
}

#[tokio::test(start_paused = true)]
async fn those_behind_it_are_served_if_it_is_dropped() {
    let (_, limiter) = slow("1 concurrent");
    let mut leader = tokio_test::task::spawn(limiter.acquire());
    assert!(leader.poll().is_pending());
    let behind = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire().await.map(|_| Instant::now()) }
    });
    sleep(ms(5)).await;
    let start = Instant::now();
    drop(leader);
    // The first call ends at 5 ms, and what it was granted goes back by the next one.
    assert_eq!(behind.await.unwrap().unwrap() - start, ms(15));
}

#[tokio::test(start_paused = true)]
async fn those_behind_it_do_not_wait_for_ever_if_it_is_not_polled() {
    let (_, limiter) = slow("10 concurrent");
    let mut leader = tokio_test::task::spawn(limiter.acquire());
    assert!(leader.poll().is_pending());
    let start = Instant::now();
    drop(limiter.acquire().await.unwrap());
    assert_eq!(start.elapsed(), ms(510), "the deadline of the call, and another call");
    assert!(matches!(leader.await, Err(AcquireError::Store(_))));
}

#[tokio::test(start_paused = true)]
async fn it_may_move_from_task_to_task() {
    let (store, limiter) = slow("1 concurrent");
    let mut leader = pin!(limiter.acquire_owned());
    for _ in 0..5 {
        assert!(leader.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        sleep(ms(1)).await;
    }
    assert!(timeout(ms(100), leader).await.is_ok_and(|granted| granted.is_ok()));
    assert_eq!(store.calls.load(Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn its_own_deadline_ends_it_but_not_the_call() {
    let (_, limiter) = slow("1 concurrent");
    let start = Instant::now();
    let late = limiter.request().timeout(ms(4)).acquire().await;
    assert!(matches!(late, Err(AcquireError::TimedOut { .. })), "{late:?}");
    assert_eq!(start.elapsed(), ms(4));
    drop(limiter.acquire().await.unwrap());
    assert_eq!(start.elapsed(), ms(20), "what the call was granted has come back");
}

#[tokio::test(start_paused = true)]
async fn a_closed_limiter_refuses_it_at_once() {
    let (_, limiter) = slow("1 concurrent");
    let mut leader = tokio_test::task::spawn(limiter.acquire());
    assert!(leader.poll().is_pending());
    limiter.close();
    assert!(leader.is_woken());
    assert!(matches!(leader.await, Err(AcquireError::Closed)));
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_store_is_an_error() {
    let store = Faulty::by(Way::Panics);
    for policy in ["1 concurrent", "1/s"] {
        let limiter = store.builder(policy).build().unwrap();
        assert!(matches!(limiter.acquire().await, Err(AcquireError::Store(_))));
        assert!(matches!(limiter.try_acquire().await, Err(TryAcquireError::Store(_))));
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_never_ends_is_given_up_at_the_deadline() {
    for rule in [OnStoreDown::Error, OnStoreDown::Allow] {
        let builder = Faulty::by(Way::Cut).builder("1/s").on_store_down(rule.clone());
        let limiter = builder.build().unwrap();
        let start = Instant::now();
        let is_granted = limiter.acquire().await.is_ok();
        assert_eq!((start.elapsed(), is_granted), (ms(500), matches!(rule, OnStoreDown::Allow)));
    }
}

/// A runtime whose future is polled elsewhere may end while its call is under way.
#[test]
fn it_outlives_its_runtime() {
    let (_, limiter) = slow("1 concurrent");
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut leader = Box::pin(limiter.acquire_owned());
    let first = runtime();
    first.block_on(async {
        assert!(leader.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    });
    drop(first);
    let answer = runtime().block_on(async { timeout(Duration::from_secs(10), leader).await });
    assert!(answer.is_ok(), "it waits for ever");
    let granted = runtime().block_on(async { timeout(Duration::from_secs(10), limiter.acquire()).await });
    assert!(granted.is_ok(), "it keeps others waiting for ever");
}
