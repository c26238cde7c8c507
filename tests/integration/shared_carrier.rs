//! Which requests a call carries. When one of them fails or is dropped, the others are served.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Waker};
use std::time::Duration;

use crate::common::faulty::{Faulty, Way};
use crate::common::ms;
use tokio::time::{Instant, sleep, timeout};
use tollgate::store::OnStoreDown;
use tollgate::{AcquireError, SharedLimiter, TryAcquireError};

/// A store, and a limiter over it. A call takes 10 ms.
fn slow(policy: &str) -> (Faulty, SharedLimiter) {
    let faulty = Faulty::by(Way::Slow(ms(10)));
    let limiter = faulty.builder(policy).build().unwrap();
    (faulty, limiter)
}

#[tokio::test(start_paused = true)]
async fn a_request_is_granted_by_one_call() {
    let (store, limiter) = slow("2/h burst 2");
    let start = Instant::now();
    drop(limiter.acquire().await.unwrap());
    drop(limiter.try_acquire().await.unwrap());
    assert!(matches!(
        limiter.try_acquire().await,
        Err(TryAcquireError::Denied(_))
    ));
    assert_eq!((start.elapsed(), store.calls.load(Relaxed)), (ms(30), 3));
}

#[tokio::test(start_paused = true)]
async fn requests_behind_a_dropped_one_are_served() {
    let (_, limiter) = slow("1 concurrent");
    let mut first = tokio_test::task::spawn(limiter.acquire());
    assert!(first.poll().is_pending());
    let behind = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire().await.map(|_| Instant::now()) }
    });
    sleep(ms(5)).await;
    let start = Instant::now();
    drop(first);
    // The first call ends at 5 ms, and its grants are returned by the next one.
    assert_eq!(behind.await.unwrap().unwrap() - start, ms(15));
}

#[tokio::test(start_paused = true)]
async fn requests_behind_one_that_is_not_polled_do_not_wait() {
    let (_, limiter) = slow("10 concurrent");
    let mut first = tokio_test::task::spawn(limiter.acquire());
    assert!(first.poll().is_pending());
    let start = Instant::now();
    drop(limiter.acquire().await.unwrap());
    assert_eq!(start.elapsed(), ms(10));
    assert!(first.await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_request_may_be_polled_by_several_tasks() {
    let (store, limiter) = slow("1 concurrent");
    let mut first = pin!(limiter.acquire_owned());
    for _ in 0..5 {
        assert!(
            first
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
        sleep(ms(1)).await;
    }
    assert!(
        timeout(ms(100), first)
            .await
            .is_ok_and(|granted| granted.is_ok())
    );
    assert_eq!(store.calls.load(Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn a_timeout_ends_the_request_but_not_the_call() {
    let (_, limiter) = slow("1 concurrent");
    let start = Instant::now();
    let late = limiter.request().timeout(ms(4)).acquire().await;
    assert!(
        matches!(late, Err(AcquireError::TimedOut { .. })),
        "{late:?}"
    );
    assert_eq!(start.elapsed(), ms(4));
    drop(limiter.acquire().await.unwrap());
    assert_eq!(
        start.elapsed(),
        ms(20),
        "what the call was granted has come back"
    );
}

#[tokio::test(start_paused = true)]
async fn a_closed_limiter_refuses_a_request_at_once() {
    let (_, limiter) = slow("1 concurrent");
    let mut first = tokio_test::task::spawn(limiter.acquire());
    assert!(first.poll().is_pending());
    limiter.close();
    assert!(first.is_woken());
    assert!(matches!(first.await, Err(AcquireError::Closed)));
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_store_is_an_error() {
    let store = Faulty::by(Way::Panics);
    for policy in ["1 concurrent", "1/s"] {
        let limiter = store.builder(policy).build().unwrap();
        assert!(matches!(
            limiter.acquire().await,
            Err(AcquireError::Store(_))
        ));
        assert!(matches!(
            limiter.try_acquire().await,
            Err(TryAcquireError::Store(_))
        ));
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_never_ends_is_given_up_at_the_deadline() {
    for rule in [OnStoreDown::Error, OnStoreDown::Allow] {
        let builder = Faulty::by(Way::Cut)
            .builder("1/s")
            .on_store_down(rule.clone());
        let limiter = builder.build().unwrap();
        let start = Instant::now();
        let is_granted = limiter.acquire().await.is_ok();
        assert_eq!(
            (start.elapsed(), is_granted),
            (ms(500), matches!(rule, OnStoreDown::Allow))
        );
    }
}

/// A runtime whose future is polled elsewhere may end while its call is under way.
#[test]
fn a_request_outlives_the_runtime_that_polled_it_first() {
    let (_, limiter) = slow("1 concurrent");
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let mut first = Box::pin(limiter.acquire_owned());
    let gone = runtime();
    gone.block_on(async {
        assert!(
            first
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
    });
    drop(gone);
    let answer = runtime().block_on(async { timeout(Duration::from_secs(10), first).await });
    drop(answer.expect("it waits for ever"));
    let granted =
        runtime().block_on(async { timeout(Duration::from_secs(10), limiter.acquire()).await });
    assert!(granted.is_ok(), "it keeps others waiting for ever");
}

/// Requests that came one after another share the next call, even if there are only two.
#[tokio::test(start_paused = true)]
async fn requests_that_come_one_after_another_share_a_call() {
    let (store, limiter) = slow("1000000/s burst 1000000");
    let ask_ten_times = |limiter: SharedLimiter| async move {
        for _ in 0..10 {
            drop(limiter.acquire().await.unwrap());
        }
    };
    let one = tokio::spawn(ask_ten_times(limiter.clone()));
    sleep(ms(5)).await;
    ask_ten_times(limiter).await;
    one.await.unwrap();
    let calls = store.calls.load(Relaxed);
    assert!(calls <= 12, "{calls} calls for 20 requests");
}

/// A fixed bug: it was explained with local limits, not with the limits in the store.
#[tokio::test(start_paused = true)]
async fn a_prefetched_grant_is_not_explained() {
    let faulty = Faulty::by(Way::Slow(ms(10)));
    let builder = faulty.builder("1000000/s burst 1000000");
    let limiter = builder.prefetch(100, ms(10_000)).build().unwrap();
    let mut at_once = 0;
    for _ in 0..50 {
        let start = Instant::now();
        let (permit, limits) = limiter.request().acquire_explained().await;
        let is_prefetched = start.elapsed().is_zero();
        assert!(permit.is_ok() && limits.is_empty() == is_prefetched);
        at_once += u32::from(is_prefetched);
    }
    assert!(at_once > 10, "{at_once} of 50 were prefetched");
}
