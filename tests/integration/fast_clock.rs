//! `fast_clock()`: decisions by the processor's counter, waiting by tokio's timers.
//!
//! These tests take real time. Only bounds hold on a busy machine: never more than the limit, and no wait without an end.

use std::thread;
use std::time::{Duration, Instant};

use crate::common::ms;
use tokio::runtime::Builder;
use tokio::time::{self, advance};
use tollgate::{
    AcquireError, FixedWindow, KeyedLimiter, Limiter, LimiterGroup, MaxConcurrency, Policy, Rate,
    SlidingWindow, Throttle, TokenBucket, TryAcquireError,
};

/// By how much a span on the fast clock may exceed the same span on the system's clock.
const CLOCKS_PART: Duration = ms(1);

fn fast(policy: impl Into<Policy>) -> Limiter {
    Limiter::builder(policy).fast_clock().build().unwrap()
}

/// A policy of one unit a millisecond with a burst of 10, with this number of limits.
fn thousand_a_second(limits: usize) -> Policy {
    let limit = Throttle::every(ms(1)).burst(10);
    (1..limits).fold(limit.into(), |policy: Policy, _| policy.and(limit))
}

/// Acquires for 60 ms. Returns the number of grants, and the number that the limit allows.
fn taken_and_allowed(try_acquire: impl Fn() -> bool + Sync) -> (u128, u128) {
    let start = Instant::now();
    let taker = || {
        let mut taken = 0;
        while start.elapsed() < ms(60) {
            taken += u128::from(try_acquire());
        }
        taken
    };
    let taken = thread::scope(|scope| {
        [(); 2]
            .map(|()| scope.spawn(taker))
            .map(|taker| taker.join().unwrap())
            .iter()
            .sum()
    });
    (taken, 10 + (start.elapsed() + CLOCKS_PART).as_millis())
}

#[test]
fn a_rate_is_granted_and_never_exceeded() {
    for limits in [1, 2] {
        let (limiter, keyed) = (
            fast(thousand_a_second(limits)),
            KeyedLimiter::builder(thousand_a_second(limits)),
        );
        let keyed = keyed.fast_clock().build().unwrap();
        for (taken, allowed) in [
            taken_and_allowed(|| limiter.try_acquire().is_ok()),
            taken_and_allowed(|| keyed.try_acquire(&1).is_ok()),
        ] {
            assert!(
                10 < taken && taken <= allowed,
                "{limits} limits: {taken} taken, {allowed} allowed"
            );
        }
    }
}

#[tokio::test]
async fn waiters_are_granted_in_order_and_not_too_early() {
    let limiter = fast(Throttle::every(ms(5)));
    let keyed = KeyedLimiter::builder(Throttle::every(ms(5)))
        .fast_clock()
        .build()
        .unwrap();
    let start = Instant::now();
    for number in 0..4 {
        let (one, other) = tokio::join!(limiter.acquire(), keyed.acquire(&"key"));
        assert_eq!(
            (one.unwrap().fence(), other.unwrap().fence()),
            (number + 1, number + 1)
        );
        assert!(start.elapsed() + CLOCKS_PART >= ms(5) * number as u32);
    }
}

#[tokio::test]
async fn every_time_based_limit_grants_in_time() {
    let second = ms(1_000);
    let policies: [Policy; 5] = [
        TokenBucket::new(Rate::per_second(200), 1).into(),
        FixedWindow::new(1, ms(5)).into(),
        SlidingWindow::log(1, ms(5)).into(),
        SlidingWindow::counter(1, ms(5)).into(),
        Policy::from(MaxConcurrency::new(1).ttl(ms(5))).and(Throttle::every(ms(5))),
    ];
    for policy in policies {
        let limiter = fast(policy.clone());
        for _ in 0..3 {
            let permit = limiter.request().timeout(20 * second).acquire().await;
            permit
                .unwrap_or_else(|error| panic!("{policy}: {error}"))
                .forget(); // a place is reclaimed after its TTL
        }
    }
}

#[tokio::test]
async fn a_timeout_and_a_ttl_end() {
    let limiter = fast(MaxConcurrency::new(1).ttl(ms(500)));
    let leaked = limiter.acquire().await.unwrap();
    let refused = limiter
        .request()
        .timeout(ms(5))
        .acquire()
        .await
        .unwrap_err();
    assert!(
        matches!(refused, AcquireError::TimedOut { .. }),
        "{refused}"
    );
    leaked.reclaimed().await;
    assert!(!leaked.is_live());
    let permit = limiter.acquire().await.unwrap();
    let (acquired_at, expires_at) = (permit.acquired_at().unwrap(), permit.expires_at().unwrap());
    assert!(
        time::Instant::now() + CLOCKS_PART >= acquired_at
            && acquired_at + ms(500) <= expires_at + CLOCKS_PART
    );
}

#[test]
fn a_thread_outside_every_runtime_is_granted_a_place_in_time() {
    let limiter = fast(Throttle::every(ms(5)));
    for _ in 0..3 {
        drop(limiter.blocking_acquire().unwrap());
    }
}

#[test]
fn a_retry_at_its_time_is_granted() {
    let limiter = fast(Throttle::every(ms(5)));
    let _permit = limiter.try_acquire().unwrap();
    if let Err(TryAcquireError::Denied(decision)) = limiter.try_acquire() {
        let retry_after = decision.retry_after().unwrap();
        assert!(retry_after <= ms(5));
        thread::sleep(retry_after + CLOCKS_PART);
    }
    assert!(limiter.try_acquire().is_ok());
}

/// The documentation of `LimiterBuilder::fast_clock` describes this.
#[tokio::test(start_paused = true)]
async fn a_paused_clock_of_tokio_neither_refills_nor_hangs() {
    let limiter = fast(Throttle::every(ms(20)));
    let start = Instant::now();
    drop(limiter.acquire().await.unwrap());
    advance(ms(3_600_000)).await;
    let denied = limiter.try_acquire().is_err();
    assert!(
        denied || start.elapsed() + CLOCKS_PART >= ms(20),
        "an hour on tokio's clock counts nothing"
    );
    drop(limiter.acquire().await.unwrap());
    assert!(
        start.elapsed() + CLOCKS_PART >= ms(20),
        "it waits in real time"
    );
}

/// Two runtimes have two clocks. The limiter follows neither.
#[test]
fn runtimes_with_different_clocks_wait_for_one_limiter() {
    let limiter = fast(Throttle::every(ms(5)));
    let start = Instant::now();
    thread::scope(|scope| {
        for paused in [false, true] {
            let runtime = Builder::new_current_thread()
                .enable_all()
                .start_paused(paused)
                .build()
                .unwrap();
            let limiter = &limiter;
            scope.spawn(move || {
                runtime.block_on(async {
                    for _ in 0..3 {
                        drop(limiter.acquire().await.unwrap());
                    }
                });
            });
        }
    });
    assert!(start.elapsed() + CLOCKS_PART >= ms(25));
}

#[tokio::test]
async fn a_group_may_mix_clocks_and_a_new_policy_keeps_the_clock() {
    let members = [
        fast(MaxConcurrency::new(1)),
        Limiter::new(Throttle::every(ms(5))).unwrap(),
    ];
    members[0].set_policy(Throttle::every(ms(5))).unwrap();
    let group = LimiterGroup::new(members);
    let start = Instant::now();
    for _ in 0..3 {
        drop(group.acquire().await.unwrap());
    }
    assert!(start.elapsed() + CLOCKS_PART >= ms(10));
}
