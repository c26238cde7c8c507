//! Invariant 9: bad input is an error that contains the value; never a panic, never an endless wait.

use std::time::Duration;

use crate::common::{self, every_strategy, ms};
use tollgate::{
    AcquireError, Adapt, Align, ConfigError, FixedWindow, KeyedLimiter, Limit, Limiter,
    MaxConcurrency, Penalty, Policy, Priority, Rate, RunError, SlidingWindow, Throttle,
    TokenBucket, TryAcquireError,
};

#[test]
fn invalid_numbers_of_newer_limits_are_refused_with_the_limit_in_the_error() {
    let refused = |limit: Limit, expected: ConfigError| {
        assert_eq!(Limiter::new(limit).unwrap_err(), expected);
        assert_eq!(KeyedLimiter::<u8>::new(limit).unwrap_err(), expected);
    };
    let zero_limit = |number, limit: Limit| {
        refused(
            limit,
            ConfigError::ZeroLimit {
                limit: Box::new(limit),
                number,
            },
        );
    };
    zero_limit("burst", TokenBucket::new(Rate::per_second(1), 0).into());
    zero_limit("limit", SlidingWindow::log(0, ms(1)).into());
    zero_limit("limit", SlidingWindow::counter(0, ms(1)).into());
    zero_limit("threshold", Penalty::new(0, Rate::per_second(1)).into());
    zero_limit("limit", MaxConcurrency::new(0).adapt(Adapt::aimd()).into());
    let zero_rate = |limit: Limit| {
        refused(
            limit,
            ConfigError::ZeroRate {
                limit: Box::new(limit),
            },
        );
    };
    zero_rate(TokenBucket::new(Rate::per_second(0), 5).into());
    zero_rate(
        TokenBucket::new(Rate::per_second(0), 5)
            .refill_each_period()
            .into(),
    );
    zero_rate(Penalty::new(5, Rate::per_second(0)).into());
    let penalty = Penalty::new(5, Rate::per_second(1));
    let zero_duration = |number, limit: Limit| {
        refused(
            limit,
            ConfigError::ZeroDuration {
                limit: Box::new(limit),
                number,
            },
        );
    };
    zero_duration(
        "period",
        TokenBucket::new(Rate::new(1, Duration::ZERO), 5).into(),
    );
    zero_duration("period", SlidingWindow::log(1, Duration::ZERO).into());
    zero_duration(
        "period",
        Penalty::new(5, Rate::new(1, Duration::ZERO)).into(),
    );
    zero_duration("half-life", penalty.half_life(Duration::ZERO).into());
    zero_duration("ban", penalty.ban(Duration::ZERO).into());
    zero_duration(
        "longest ban",
        penalty.ban(ms(1)).escalate(Duration::ZERO).into(),
    );
    zero_duration(
        "timeout",
        MaxConcurrency::new(1)
            .adapt(Adapt::aimd().timeout(Duration::ZERO))
            .into(),
    );
    let max = Duration::from_secs(100 * 365 * 24 * 3_600);
    let too_long = |number, limit: Limit| {
        refused(
            limit,
            ConfigError::TooLong {
                limit: Box::new(limit),
                number,
                max,
            },
        );
    };
    too_long(
        "period",
        TokenBucket::new(Rate::new(1, Duration::MAX), 1).into(),
    );
    too_long(
        "time to refill the burst",
        TokenBucket::new(Rate::per_day(1), u64::MAX).into(),
    );
    too_long("period", SlidingWindow::counter(1, Duration::MAX).into());
    too_long(
        "time to forgive bans",
        penalty.forgive_after(Duration::MAX).into(),
    );
    let out_of_range = |number, given, range: std::ops::RangeInclusive<u64>, limit: Limit| {
        refused(
            limit,
            ConfigError::OutOfRange {
                limit: Box::new(limit),
                number,
                given,
                range,
            },
        );
    };
    let large = 1 << 32;
    out_of_range(
        "limit",
        large,
        1..=large - 1,
        SlidingWindow::counter(large, ms(1)).into(),
    );
    out_of_range(
        "threshold",
        large,
        1..=large - 1,
        Penalty::new(large, Rate::per_second(1)).into(),
    );
    out_of_range(
        "ceiling",
        large,
        0..=large - 1,
        penalty.ceiling(large).into(),
    );
    let adapts = |adapt| MaxConcurrency::new(5).adapt(adapt).into();
    out_of_range("floor", 9, 1..=3, adapts(Adapt::aimd().between(9, 3)));
    out_of_range("floor", 0, 1..=9, adapts(Adapt::aimd().between(0, 9)));
    out_of_range(
        "ceiling",
        0,
        1..=u64::MAX,
        adapts(Adapt::aimd().between(0, 0)),
    );
    out_of_range(
        "backoff",
        1_000,
        1..=999,
        adapts(Adapt::aimd().backoff(1_000)),
    );
    out_of_range(
        "tolerance",
        10,
        1_000..=1_000_000,
        adapts(Adapt::gradient().tolerance(10)),
    );
    out_of_range(
        "smoothing",
        0,
        1..=1_000,
        adapts(Adapt::gradient().smoothing(0)),
    );
}

/// A reload of several limiters can check all policies before it sets one.
#[test]
fn validate_refuses_exactly_the_policies_that_a_limiter_refuses() {
    let durations = [
        Duration::ZERO,
        ms(1),
        Duration::from_secs(100 * 365 * 24 * 3_600),
        Duration::MAX,
    ];
    let mut limits: Vec<Limit> = Vec::new();
    for units in [0, 1, 9, u64::MAX] {
        limits.extend::<[Limit; 2]>([
            MaxConcurrency::new(units).into(),
            MaxConcurrency::new(units).counting("no unit").into(),
        ]);
        limits.push(
            MaxConcurrency::new(units)
                .adapt(Adapt::aimd().between(units, 5))
                .into(),
        );
        for time in durations {
            let rate = Rate::new(units, time);
            let penalty = Penalty::new(9, rate);
            limits.extend::<[Limit; 2]>([
                MaxConcurrency::new(units).ttl(time).into(),
                Throttle::every(time).burst(units).into(),
            ]);
            limits.extend::<[Limit; 2]>([
                FixedWindow::new(units, time).into(),
                FixedWindow::new(units, time).align(Align::WallClock).into(),
            ]);
            limits.extend::<[Limit; 2]>([
                TokenBucket::new(rate, 9).into(),
                TokenBucket::new(rate, 9).refill_each_period().into(),
            ]);
            limits.extend::<[Limit; 2]>([
                SlidingWindow::log(units, time).into(),
                SlidingWindow::counter(units, time).into(),
            ]);
            limits.extend([
                Limit::from(penalty),
                penalty.ceiling(units).into(),
                Penalty::new(units, rate).half_life(time).into(),
            ]);
            limits.extend::<[Limit; 2]>([
                Limit::from(penalty.ban(time)),
                penalty.ban(ms(1)).escalate(time).into(),
            ]);
        }
    }
    let good = Policy::from(MaxConcurrency::new(8));
    let mut policies = vec![Policy::from_iter([])];
    for limit in limits {
        policies.extend([
            limit.into(),
            good.clone().and(limit),
            Policy::from(limit).and(good.clone()),
        ]);
    }
    let limiter = Limiter::new(good).unwrap();
    let mut refused = 0;
    for policy in policies {
        let (valid, error) = (policy.validate(), Limiter::new(policy.clone()).err());
        assert_eq!(valid.clone().err(), error, "{policy:?}");
        assert_eq!(limiter.set_policy(policy.clone()), valid, "{policy:?}");
        refused += usize::from(error.is_some());
    }
    assert!((100..700).contains(&refused), "{refused}");
}

#[test]
fn a_zero_limit_burst_or_window_is_refused_with_the_limit_in_the_error() {
    let zeros: [(&str, Limit); 3] = [
        ("limit", MaxConcurrency::new(0).into()),
        ("burst", Throttle::every(ms(1)).burst(0).into()),
        ("limit", FixedWindow::new(0, ms(1)).into()),
    ];
    for (number, limit) in zeros {
        assert_eq!(
            Limiter::new(limit).unwrap_err(),
            ConfigError::ZeroLimit {
                limit: Box::new(limit),
                number
            }
        );
        let among_others = MaxConcurrency::new(1).and(limit);
        assert_eq!(
            Limiter::new(among_others).unwrap_err(),
            ConfigError::ZeroLimit {
                limit: Box::new(limit),
                number
            }
        );
    }
}

/// Limits with this duration, each with the name of the number.
fn of_length(time: Duration) -> [(&'static str, Limit); 3] {
    [
        ("TTL", MaxConcurrency::new(1).ttl(time).into()),
        ("interval", Throttle::every(time).into()),
        ("period", FixedWindow::new(1, time).into()),
    ]
}

#[test]
fn a_zero_duration_is_refused_with_the_limit_in_the_error() {
    let zero = Duration::ZERO;
    for (number, limit) in of_length(zero) {
        assert_eq!(
            Limiter::new(limit).unwrap_err(),
            ConfigError::ZeroDuration {
                limit: Box::new(limit),
                number
            }
        );
    }
}

/// Trap: overflow at large quotas.
#[test]
fn a_duration_above_the_longest_is_refused_and_the_longest_works() {
    let century = Duration::from_secs(100 * 365 * 24 * 3_600);
    for (_, limit) in of_length(century) {
        let limiter = common::limiter(limit);
        std::mem::forget(limiter.try_acquire().unwrap());
        assert!(matches!(
            limiter.try_acquire(),
            Err(TryAcquireError::Denied(_))
        ));
    }
    for long in [century + Duration::from_nanos(1), Duration::MAX] {
        for (number, limit) in of_length(long) {
            assert_eq!(
                Limiter::new(limit).unwrap_err(),
                ConfigError::TooLong {
                    limit: Box::new(limit),
                    number,
                    max: century
                }
            );
        }
    }
    let by_burst: Limit = Throttle::every(Duration::from_secs(1))
        .burst(u64::MAX)
        .into();
    let number = "time to refill the burst";
    assert_eq!(
        Limiter::new(by_burst).unwrap_err(),
        ConfigError::TooLong {
            limit: Box::new(by_burst),
            number,
            max: century
        }
    );
}

/// Trap: borrowing ahead hides a cost that can never be met.
#[tokio::test(start_paused = true)]
async fn a_cost_that_can_never_be_met_and_a_cost_of_zero_fail_at_once() {
    for policy in every_strategy() {
        let max = policy.limits().iter().map(Limit::capacity).min().unwrap();
        let limiter = common::limiter(policy);
        for cost in [max + 1, u64::MAX] {
            assert_eq!(
                common::exceeded(&limiter.acquire_many(cost).await.unwrap_err()),
                Some((cost, max))
            );
            assert_eq!(
                common::exceeded(&limiter.try_acquire_many(cost).unwrap_err()),
                Some((cost, max))
            );
            assert_eq!(
                (
                    limiter.check(cost).is_allowed(),
                    limiter.check(cost).retry_after()
                ),
                (false, None)
            );
        }
        assert_eq!(
            limiter.acquire_many(0).await.unwrap_err(),
            AcquireError::ZeroCost
        );
        assert_eq!(
            limiter.try_acquire_many(0).unwrap_err(),
            TryAcquireError::ZeroCost
        );
        assert!(!limiter.check(0).is_allowed());
        assert_eq!(limiter.snapshot().granted, 0);
        assert!(limiter.try_acquire_many(max).is_ok());
    }
}

/// Both limits would deny one unit, the second for longer.
#[tokio::test(start_paused = true)]
async fn a_check_of_nothing_names_the_limit_that_would_bind_for_a_unit() {
    let empty = |period| TokenBucket::new(Rate::new(1, period), 1).initial(0);
    let policy = empty(Duration::from_secs(1)).and(empty(Duration::from_secs(60)));
    let limiter = Limiter::new(policy.clone()).unwrap();
    let keyed = KeyedLimiter::new(policy).unwrap();
    for check in [limiter.check(0), keyed.check(&1_u8, 0)] {
        assert_eq!(
            (check.is_allowed(), check.denied_by_index()),
            (false, Some(1))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_priority_or_timeout_out_of_range_is_an_error_with_the_value() {
    assert_eq!(Priority::new(u8::MAX).unwrap_err().level, u8::MAX);
    assert_eq!(
        Priority::new(10).unwrap_err().to_string(),
        "a priority of 10 is out of range; the highest is 9"
    );
    let limiter = common::limiter(MaxConcurrency::new(1));
    let error = limiter
        .request()
        .timeout(Duration::MAX)
        .acquire()
        .await
        .unwrap_err();
    assert!(matches!(
        error,
        AcquireError::TimeoutTooLong {
            timeout: Duration::MAX,
            ..
        }
    ));
}

#[tokio::test(start_paused = true)]
async fn every_call_of_a_closed_limiter_returns_closed() {
    for policy in every_strategy() {
        let limiter = common::limiter(policy);
        limiter.close();
        limiter.close();
        assert_eq!(limiter.acquire().await.unwrap_err(), AcquireError::Closed);
        assert_eq!(
            limiter
                .request()
                .timeout(ms(1))
                .acquire()
                .await
                .unwrap_err(),
            AcquireError::Closed
        );
        assert_eq!(
            limiter.run(async {}).await.unwrap_err(),
            RunError::Acquire(AcquireError::Closed)
        );
        assert_eq!(limiter.try_acquire().unwrap_err(), TryAcquireError::Closed);
        assert_eq!(limiter.snapshot().next_grant_in, None);
        limiter.drained().await;
    }
}

#[test]
fn error_messages_name_the_limit_and_what_to_do() {
    let limiter =
        common::limiter(Policy::from(FixedWindow::new(3, ms(500))).and(MaxConcurrency::new(3)));
    let _out = limiter.try_acquire_many(3).unwrap();
    let denied = limiter.try_acquire().unwrap_err();
    assert_eq!(
        denied.to_string(),
        "denied by `3 concurrent`; no time to retry is known"
    );
    let too_much = limiter.try_acquire_many(7).unwrap_err().to_string();
    assert_eq!(
        too_much,
        "a cost of 7 can never be admitted: the limit of `window 3/500ms` is 3; split the request, or raise the limit"
    );
    let late = AcquireError::TimedOut {
        retry_after: Some(ms(20)),
        decision: None,
    };
    assert_eq!(
        late.to_string(),
        "no permit within the timeout; retry after 20ms"
    );
}

const fn assert_handle<T: Clone + Send + Sync + std::fmt::Debug + 'static>() {}
const fn assert_permit<T: Send + Sync + std::fmt::Debug + 'static>() {}
const fn assert_future<T: Send + Sync>() {}

#[test]
fn handles_permits_and_futures_are_send_sync_and_static() {
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
