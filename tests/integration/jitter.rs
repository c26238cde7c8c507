//! Requests that are delayed at random before they ask.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::common::{self, limiter, ms, queued};
use tokio::time::{Instant, advance};
use tollgate::{AcquireError, MaxConcurrency, Rate, Throttle, TokenBucket};

/// How late a timer of tokio may be.
const TICK: Duration = ms(1);

#[tokio::test(start_paused = true)]
async fn delays_are_random_from_0_to_the_longest() {
    let limiter = limiter(TokenBucket::new(Rate::per_second(1_000), 1_000));
    let mut delays = BTreeSet::new();
    for _ in 0..200 {
        let start = Instant::now();
        limiter
            .request()
            .jitter(ms(1_000))
            .acquire()
            .await
            .unwrap()
            .release();
        assert!(start.elapsed() <= ms(1_000) + TICK, "{:?}", start.elapsed());
        delays.insert(start.elapsed());
    }
    // Each bound is missed at most once in 10^9 runs.
    assert!(
        delays.len() > 50
            && *delays.first().unwrap() < ms(200)
            && *delays.last().unwrap() > ms(800)
    );
}

#[tokio::test(start_paused = true)]
async fn a_delay_comes_before_the_grant_so_that_the_rate_is_kept() {
    let limiter = limiter(Throttle::every(ms(100)));
    let start = Instant::now();
    let requests: Vec<_> = (0..20)
        .map(|_| tokio::spawn(limiter.request().jitter(ms(500)).acquire_owned()))
        .collect();
    let mut at = Vec::new();
    for request in requests {
        at.push(request.await.unwrap().unwrap().acquired_at().unwrap());
    }
    at.sort();
    assert!(
        at.windows(2).all(|pair| pair[1] - pair[0] >= ms(100)),
        "{at:?}"
    );
    assert!(*at.last().unwrap() - start <= ms(500 + 19 * 100) + 20 * TICK);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_dropped_during_its_delay_leaves_nothing() {
    let limiter = limiter(MaxConcurrency::new(1));
    // A delay of 0 to 100 years is practically never short.
    let delayed = queued(
        limiter
            .request()
            .jitter(Duration::from_secs(100 * 365 * 24 * 3_600))
            .acquire(),
    );
    assert_eq!((limiter.snapshot().queued, limiter.available()), (0, 1));
    let _permit = limiter.try_acquire().unwrap();
    drop(delayed);
    advance(ms(10)).await;
    assert_eq!(
        (limiter.snapshot().queued, limiter.snapshot().granted),
        (0, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn the_timeout_begins_after_the_delay_and_a_request_that_does_not_wait_has_none() {
    let limiter = limiter(MaxConcurrency::new(1));
    let start = Instant::now();
    let permit = limiter.request().jitter(ms(10_000)).try_acquire().unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
    let mut waits = Duration::ZERO;
    for _ in 0..20 {
        let start = Instant::now();
        let timed_out = limiter
            .request()
            .jitter(ms(100))
            .timeout(ms(50))
            .acquire()
            .await
            .unwrap_err();
        assert!(matches!(timed_out, AcquireError::TimedOut { .. }));
        assert!(
            start.elapsed() >= ms(50) && start.elapsed() <= ms(150) + 2 * TICK,
            "{:?}",
            start.elapsed()
        );
        waits = waits.max(start.elapsed());
    }
    assert!(waits > ms(60));
    drop(permit);
}

#[test]
fn outside_a_runtime_a_delay_is_an_error_and_a_blocked_thread_sleeps() {
    let limiter = limiter(MaxConcurrency::new(1));
    let mut request = tokio_test::task::spawn(limiter.request().jitter(ms(1)).acquire());
    assert_eq!(
        tokio_test::assert_ready_err!(request.poll()),
        AcquireError::NoRuntime
    );
    assert_eq!(
        limiter
            .request()
            .jitter(ms(1))
            .blocking_acquire()
            .unwrap()
            .cost(),
        1
    );
    let without_timers = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let refused = without_timers
        .block_on(async { limiter.request().jitter(ms(1)).acquire().await.unwrap_err() });
    assert_eq!(refused, AcquireError::NoRuntime);
}

#[tokio::test(start_paused = true)]
async fn a_delay_goes_on_when_its_runtime_is_gone() {
    let limiter = limiter(MaxConcurrency::new(1));
    let request = std::thread::spawn({
        let limiter = limiter.clone();
        move || {
            let other = common::current_thread();
            let _entered = other.enter();
            queued(
                limiter
                    .request()
                    .jitter(Duration::from_secs(1_000_000))
                    .acquire_owned(),
            )
            .into_inner()
        }
    });
    assert_eq!(request.join().unwrap().await.unwrap().cost(), 1);
}
