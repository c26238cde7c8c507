//! Invariant 9: bad input is an error that contains the value; never a panic, never an endless wait.

mod common;

use std::time::Duration;

use common::{every_strategy, ms};
use tollgate::{
    AcquireError, Adapt, ConfigError, FixedWindow, KeyedLimiter, Limit, Limiter, MaxConcurrency, Penalty, Policy, Priority, Rate,
    RunError, SlidingWindow, Throttle, TokenBucket, TryAcquireError,
};

#[test]
fn nonsense_in_the_newer_limits_is_refused_with_the_limit_in_the_error() {
    let refused = |limit: Limit, expected: fn(Limit) -> ConfigError| {
        assert_eq!(Limiter::new(limit).unwrap_err(), expected(limit));
        assert_eq!(KeyedLimiter::<u8>::new(limit).unwrap_err(), expected(limit));
    };
    let zero_limit = |limit| ConfigError::ZeroLimit { limit };
    refused(TokenBucket::new(Rate::per_second(1), 0).into(), zero_limit);
    refused(SlidingWindow::log(0, ms(1)).into(), zero_limit);
    refused(SlidingWindow::counter(0, ms(1)).into(), zero_limit);
    refused(Penalty::new(0, Rate::per_second(1)).into(), zero_limit);
    refused(MaxConcurrency::new(1).adapt(Adapt::aimd().between(0, 9)).into(), zero_limit);
    refused(MaxConcurrency::new(0).adapt(Adapt::aimd()).into(), zero_limit);
    let zero_rate = |limit| ConfigError::ZeroRate { limit };
    refused(TokenBucket::new(Rate::per_second(0), 5).into(), zero_rate);
    refused(TokenBucket::new(Rate::per_second(0), 5).refill_each_period().into(), zero_rate);
    refused(Penalty::new(5, Rate::per_second(0)).into(), zero_rate);
    let zero_duration = |limit| ConfigError::ZeroDuration { limit };
    refused(TokenBucket::new(Rate::new(1, Duration::ZERO), 5).into(), zero_duration);
    refused(SlidingWindow::log(1, Duration::ZERO).into(), zero_duration);
    refused(Penalty::new(5, Rate::per_second(1)).half_life(Duration::ZERO).into(), zero_duration);
    refused(Penalty::new(5, Rate::per_second(1)).ban(Duration::ZERO).into(), zero_duration);
    refused(MaxConcurrency::new(1).adapt(Adapt::aimd().timeout(Duration::ZERO)).into(), zero_duration);
    let too_long = |limit| ConfigError::TooLong { limit, max: Duration::from_secs(100 * 365 * 24 * 3_600) };
    refused(TokenBucket::new(Rate::new(1, Duration::MAX), 1).into(), too_long);
    refused(TokenBucket::new(Rate::per_day(1), u64::MAX).into(), too_long);
    refused(SlidingWindow::counter(1, Duration::MAX).into(), too_long);
    refused(Penalty::new(5, Rate::per_second(1)).forgive_after(Duration::MAX).into(), too_long);
    let out_of_range = |limit| ConfigError::OutOfRange { limit };
    refused(SlidingWindow::counter(1 << 32, ms(1)).into(), out_of_range);
    refused(Penalty::new(1 << 32, Rate::per_second(1)).into(), out_of_range);
    refused(MaxConcurrency::new(5).adapt(Adapt::aimd().between(9, 3)).into(), out_of_range);
    refused(MaxConcurrency::new(5).adapt(Adapt::gradient().tolerance(10)).into(), out_of_range);
}

#[test]
fn a_zero_limit_burst_or_window_is_refused_with_the_limit_in_the_error() {
    let zeros: [Limit; 3] =
        [MaxConcurrency::new(0).into(), Throttle::every(ms(1)).burst(0).into(), FixedWindow::new(0, ms(1)).into()];
    for limit in zeros {
        assert_eq!(Limiter::new(limit).unwrap_err(), ConfigError::ZeroLimit { limit });
        let among_others = Policy::from(MaxConcurrency::new(1)).and(limit);
        assert_eq!(Limiter::new(among_others).unwrap_err(), ConfigError::ZeroLimit { limit });
    }
}

#[test]
fn a_zero_duration_is_refused_with_the_limit_in_the_error() {
    let zero = Duration::ZERO;
    let zeros: [Limit; 3] =
        [MaxConcurrency::new(1).ttl(zero).into(), Throttle::every(zero).into(), FixedWindow::new(1, zero).into()];
    for limit in zeros {
        assert_eq!(Limiter::new(limit).unwrap_err(), ConfigError::ZeroDuration { limit });
    }
}

/// Trap: overflow at large quotas.
#[test]
fn an_absurd_duration_is_refused_and_the_longest_works() {
    let century = Duration::from_secs(100 * 365 * 24 * 3_600);
    let longest: [Limit; 3] =
        [MaxConcurrency::new(1).ttl(century).into(), Throttle::every(century).into(), FixedWindow::new(1, century).into()];
    for limit in longest {
        let limiter = common::limiter(limit);
        std::mem::forget(limiter.try_acquire().unwrap());
        assert!(matches!(limiter.try_acquire(), Err(TryAcquireError::Denied(_))));
    }
    for long in [century + Duration::from_nanos(1), Duration::MAX] {
        let too_long: [Limit; 3] =
            [MaxConcurrency::new(1).ttl(long).into(), Throttle::every(long).into(), FixedWindow::new(1, long).into()];
        for limit in too_long {
            assert_eq!(Limiter::new(limit).unwrap_err(), ConfigError::TooLong { limit, max: century });
        }
    }
    let by_burst: Limit = Throttle::every(Duration::from_secs(1)).burst(u64::MAX).into();
    assert_eq!(Limiter::new(by_burst).unwrap_err(), ConfigError::TooLong { limit: by_burst, max: century });
}

/// Trap: borrowing ahead hides a cost that can never be met.
#[tokio::test(start_paused = true)]
async fn a_cost_that_can_never_be_met_and_a_cost_of_zero_fail_at_once() {
    for policy in every_strategy() {
        let max = policy.limits().iter().map(Limit::capacity).min().unwrap();
        let limiter = common::limiter(policy);
        for cost in [max + 1, u64::MAX] {
            assert_eq!(limiter.acquire_many(cost).await.unwrap_err(), AcquireError::ExceedsLimit { cost, max });
            assert_eq!(limiter.try_acquire_many(cost).unwrap_err(), TryAcquireError::ExceedsLimit { cost, max });
            assert_eq!((limiter.check(cost).is_allowed(), limiter.check(cost).retry_after()), (false, None));
        }
        assert_eq!(limiter.acquire_many(0).await.unwrap_err(), AcquireError::ZeroCost);
        assert_eq!(limiter.try_acquire_many(0).unwrap_err(), TryAcquireError::ZeroCost);
        assert!(!limiter.check(0).is_allowed());
        assert_eq!(limiter.snapshot().granted, 0);
        assert!(limiter.try_acquire_many(max).is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn a_priority_or_timeout_out_of_range_is_an_error_with_the_value() {
    assert_eq!(Priority::new(u8::MAX).unwrap_err().level, u8::MAX);
    assert_eq!(Priority::new(10).unwrap_err().to_string(), "a priority of 10 is out of range; the highest is 9");
    let limiter = common::limiter(MaxConcurrency::new(1));
    let error = limiter.request().timeout(Duration::MAX).acquire().await.unwrap_err();
    assert!(matches!(error, AcquireError::TimeoutTooLong { timeout: Duration::MAX, .. }));
}

#[tokio::test(start_paused = true)]
async fn a_closed_limiter_says_so_everywhere() {
    for policy in every_strategy() {
        let limiter = common::limiter(policy);
        limiter.close();
        limiter.close();
        assert_eq!(limiter.acquire().await.unwrap_err(), AcquireError::Closed);
        assert_eq!(limiter.request().timeout(ms(1)).acquire().await.unwrap_err(), AcquireError::Closed);
        assert_eq!(limiter.run(async {}).await.unwrap_err(), RunError::Acquire(AcquireError::Closed));
        assert_eq!(limiter.try_acquire().unwrap_err(), TryAcquireError::Closed);
        assert_eq!(limiter.snapshot().next_grant_in, None);
        limiter.drained().await;
    }
}

#[test]
fn errors_read_well() {
    let limiter = common::limiter(Policy::from(FixedWindow::new(3, ms(500))).and(MaxConcurrency::new(3)));
    let _out = limiter.try_acquire_many(3).unwrap();
    let denied = limiter.try_acquire().unwrap_err();
    assert_eq!(denied.to_string(), "denied by `3 concurrent`; no time to retry is known");
    let too_much = limiter.try_acquire_many(7).unwrap_err().to_string();
    assert_eq!(
        too_much,
        "a cost of 7 can never be admitted: the smallest burst or limit in the policy is 3; split the request, or raise it"
    );
    let late = AcquireError::TimedOut { retry_after: Some(ms(20)) };
    assert_eq!(late.to_string(), "no permit within the timeout; a retry can succeed in 20ms at the earliest");
}

const fn assert_handle<T: Clone + Send + Sync + std::fmt::Debug + 'static>() {}
const fn assert_permit<T: Send + Sync + std::fmt::Debug + 'static>() {}
const fn assert_future<T: Send + Sync>() {}

#[test]
fn handles_permits_and_futures_can_go_anywhere() {
    assert_handle::<Limiter>();
    assert_permit::<tollgate::Permit>();
    assert_future::<tollgate::Acquire<'static>>();
    const fn assert_send<T: Send>(_: &T) {}
    let limiter = common::limiter(MaxConcurrency::new(1));
    assert_send(&limiter.run(async {}));
    assert_send(&limiter.drained());
    assert_send(&limiter.try_acquire().unwrap().reclaimed());
    assert_future::<tollgate::WithPermits<futures_util::stream::Empty<u8>>>();
}
