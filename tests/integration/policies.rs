//! Token buckets, sliding windows and penalties through a limiter, and known traps of each.

use std::time::Duration;

use crate::common::{self, grants, limiter, ms};
use tokio::time::{Instant, advance, sleep};
use tokio_test::{assert_pending, assert_ready_ok, task};
use tollgate::{
    AcquireError, Adapt, ConfigError, FixedWindow, Limit, Limiter, MaxConcurrency, Outcome,
    Penalty, Policy, Rate, SlidingWindow, Throttle, TokenBucket, TryAcquireError,
};

const fn ns(nanos: u64) -> Duration {
    Duration::from_nanos(nanos)
}

fn denied(limiter: &Limiter) -> Option<Duration> {
    let Err(TryAcquireError::Denied(decision)) = limiter.try_acquire() else {
        panic!("it was admitted")
    };
    decision.retry_after()
}

#[tokio::test(start_paused = true)]
async fn each_new_limit_serves_a_queue_at_the_instants_that_its_rule_says() {
    let bucket = TokenBucket::new(Rate::per_second(10), 2);
    assert_eq!(grants(&limiter(bucket), 5).await, [0, 0, 100, 200, 300]);
    assert_eq!(
        grants(&limiter(bucket.initial(0)), 3).await,
        [100, 200, 300]
    );
    assert_eq!(
        grants(
            &limiter(TokenBucket::new(Rate::per_second(2), 2).refill_each_period()),
            5
        )
        .await,
        [0, 0, 1_000, 1_000, 2_000]
    );
    let log = limiter(SlidingWindow::log(2, ms(100)));
    limiter_at(&log, 60).await;
    assert_eq!(grants(&log, 4).await, [0, 40, 100, 140]);
    assert_eq!(
        grants(&limiter(SlidingWindow::counter(2, ms(100))), 5).await,
        [0, 0, 150, 200, 300]
    );
    let penalty = limiter(Penalty::new(2, Rate::new(1, ms(100))));
    assert_eq!(grants(&penalty, 5).await, [0, 0, 100, 200, 300]);
}

/// Takes one unit now, and then advances the clock by this many milliseconds.
async fn limiter_at(limiter: &Limiter, millis: u64) {
    limiter.try_acquire().unwrap().release();
    advance(ms(millis)).await;
}

/// Trap: a retry-after in whole seconds. A wait below a second is reported as 0, and a wait of a second and a half as 1.
#[tokio::test(start_paused = true)]
async fn a_retry_after_is_not_cut_to_whole_seconds() {
    let odd = ns(1_500_000_001);
    let limits: [Limit; 5] = [
        TokenBucket::new(Rate::new(1, odd), 1).into(),
        SlidingWindow::log(1, odd).into(),
        Penalty::new(1, Rate::new(1, odd)).ignore_denied().into(),
        FixedWindow::new(1, odd).into(),
        Throttle::every(odd).into(),
    ];
    for limit in limits {
        let limiter = limiter(limit);
        limiter.try_acquire().unwrap().release();
        assert_eq!(denied(&limiter), Some(odd), "{limit}");
        advance(ns(1_400_000_000)).await;
        assert_eq!(denied(&limiter), Some(ns(100_000_001)), "{limit}");
        advance(ns(100_000_000)).await;
        assert_eq!(denied(&limiter), Some(ns(1)), "{limit}");
        advance(ns(1)).await;
        assert!(limiter.try_acquire().is_ok(), "{limit}");
    }
}

/// Trap: "n per second" that means one in n seconds, or n at once and then one by one.
#[tokio::test(start_paused = true)]
async fn a_rate_of_n_per_second_grants_n_each_second() {
    let rates = [
        (Rate::per_second(4), 250),
        (Rate::per_minute(4), 15_000),
        (Rate::per_hour(4), 900_000),
        (Rate::new(4, ms(20)), 5),
    ];
    for (rate, each) in rates {
        let limiter = limiter(TokenBucket::new(rate, 1));
        assert_eq!(
            grants(&limiter, 4).await,
            [0, each, 2 * each, 3 * each],
            "{rate:?}"
        );
    }
}

/// Trap: periods below a millisecond, or intervals that are no whole number of nanoseconds, are rounded to zero.
#[tokio::test(start_paused = true)]
async fn fast_rates_are_neither_unlimited_nor_refused() {
    let fast = limiter(TokenBucket::new(Rate::per_second(3_000_000_000), 3));
    fast.try_acquire_many(3).unwrap().release();
    assert_eq!(denied(&fast), Some(ns(1)));
    advance(ns(1)).await;
    assert_eq!(fast.check(1).remaining(), 3);
    let slower = limiter(TokenBucket::new(Rate::per_second(700_000_000), 7));
    slower.try_acquire_many(7).unwrap().release();
    assert_eq!(slower.check(7).retry_after(), Some(ns(10)));
    assert_eq!(
        slower.check(1).retry_after(),
        Some(ns(2)),
        "1.43 ns, rounded up"
    );
    let shortest: [Limit; 3] = [
        SlidingWindow::log(1, ns(1)).into(),
        SlidingWindow::counter(1, ns(1)).into(),
        Penalty::new(1, Rate::new(1, ns(1))).into(),
    ];
    for limit in shortest {
        let limiter = limiter(limit);
        limiter.try_acquire().unwrap().release();
        assert!(denied(&limiter) >= Some(ns(1)), "{limit}");
        advance(ns(3)).await;
        assert!(limiter.try_acquire().is_ok(), "{limit}");
    }
    for limit in [
        Limit::from(TokenBucket::new(Rate::new(1, ns(0)), 1)),
        SlidingWindow::log(1, ns(0)).into(),
    ] {
        assert_eq!(
            Limiter::new(limit).unwrap_err(),
            ConfigError::ZeroDuration {
                limit: Box::new(limit),
                number: "period"
            }
        );
    }
}

/// Trap: quotas of a billion and more overflow. The quota is per day, and is taken at once and in parts.
#[tokio::test(start_paused = true)]
async fn huge_quotas_do_not_overflow() {
    const DAY: Duration = Duration::from_secs(86_400);
    for quota in [1_000_000_000, u64::from(u32::MAX)] {
        let limits: [Limit; 6] = [
            TokenBucket::new(Rate::new(quota, DAY), quota).into(),
            TokenBucket::new(Rate::new(quota, DAY), quota)
                .refill_each_period()
                .into(),
            SlidingWindow::log(quota, DAY).into(),
            SlidingWindow::counter(quota, DAY).into(),
            Penalty::new(quota, Rate::new(quota, DAY)).into(),
            FixedWindow::new(quota, DAY).into(),
        ];
        for limit in limits {
            let limiter = limiter(limit);
            limiter.try_acquire_many(quota - 1).unwrap().release();
            assert_eq!(
                (limiter.check(1).remaining(), limiter.check(2).is_allowed()),
                (1, false),
                "{limit}"
            );
            limiter.try_acquire().unwrap().release();
            assert!(
                denied(&limiter).is_some_and(|after| after <= 2 * DAY),
                "{limit}"
            );
            advance(3 * DAY).await;
            assert!(limiter.check(quota).is_allowed(), "{limit}");
        }
    }
    let unbounded = limiter(TokenBucket::new(Rate::new(u64::MAX, ns(1)), u64::MAX));
    unbounded.try_acquire_many(u64::MAX).unwrap().release();
    assert_eq!(denied(&unbounded), Some(ns(1)));
    let log = limiter(SlidingWindow::log(u64::MAX, DAY));
    log.try_acquire_many(u64::MAX).unwrap().release();
    assert_eq!(denied(&log), Some(DAY));
}

/// Trap: the request is counted before it is decided, so that the last one of the limit is refused, and refused requests keep
/// being counted.
#[tokio::test(start_paused = true)]
async fn a_sliding_window_admits_its_limit_and_does_not_count_denied_requests() {
    for limit in [
        SlidingWindow::log(3, ms(300)),
        SlidingWindow::counter(3, ms(300)),
    ] {
        let limiter = limiter(limit);
        for left in [2, 1, 0] {
            assert!(limiter.try_acquire().is_ok(), "{limit:?}");
            assert_eq!(limiter.check(1).remaining(), left);
        }
        let after = denied(&limiter).unwrap();
        for _ in 0..100 {
            assert_eq!(
                denied(&limiter),
                Some(after),
                "a denial moves nothing: {limit:?}"
            );
        }
        advance(after - ns(1)).await;
        assert_eq!(denied(&limiter), Some(ns(1)));
        advance(ns(1)).await;
        assert!(limiter.try_acquire().is_ok());
        assert_eq!(limiter.snapshot().denied, 102);
    }
}

/// Trap: the retry-after is one window from now, whenever the earlier grants were made.
#[tokio::test(start_paused = true)]
async fn a_retry_after_is_when_the_oldest_grant_expires_not_a_window_from_now() {
    let limiter = limiter(SlidingWindow::log(3, ms(300)));
    limiter_at(&limiter, 100).await;
    limiter_at(&limiter, 100).await;
    limiter_at(&limiter, 50).await;
    assert_eq!(denied(&limiter), Some(ms(50)));
    assert_eq!(
        (
            limiter.check(2).retry_after(),
            limiter.check(3).retry_after()
        ),
        (Some(ms(150)), Some(ms(250)))
    );
}

/// Trap: the refill is late by the part of the period that had passed.
#[tokio::test(start_paused = true)]
async fn a_refill_each_period_keeps_its_grid_and_stops_at_the_burst() {
    let limiter = limiter(TokenBucket::new(Rate::new(3, ms(300)), 3).refill_each_period());
    limiter_at(&limiter, 1_050).await; // three refills later
    assert_eq!(limiter.check(1).remaining(), 3, "not twelve");
    limiter.try_acquire_many(3).unwrap().release();
    assert_eq!(
        denied(&limiter),
        Some(ms(150)),
        "the next refill is at 1200"
    );
    let start = Instant::now();
    limiter.acquire_many(3).await.unwrap().release();
    assert_eq!(start.elapsed(), ms(150));
}

/// A fixed bug: the bucket silently held the units of the rate, and `initial` above them was cut.
#[tokio::test(start_paused = true)]
async fn a_refill_each_period_adds_the_units_of_the_rate_up_to_the_burst() {
    let bucket = TokenBucket::new(Rate::per_second(5), 8).refill_each_period();
    let limiter = limiter(bucket.initial(1));
    let mut remaining = Vec::new();
    for _ in 0..4 {
        remaining.push(limiter.check(1).remaining());
        advance(ms(500)).await;
    }
    remaining.push(limiter.check(1).remaining());
    assert_eq!(
        (remaining, limiter.check(1).limit()),
        (vec![1, 1, 6, 6, 8], 8)
    );
    limiter.try_acquire_many(8).unwrap().release();
    assert_eq!(
        (
            limiter.check(5).retry_after(),
            limiter.check(6).retry_after()
        ),
        (Some(ms(1_000)), Some(ms(2_000)))
    );
    let start = Instant::now();
    let mut at = Vec::new();
    for cost in [2, 2, 6] {
        limiter.acquire_many(cost).await.unwrap().release();
        at.push(start.elapsed().as_millis());
    }
    assert_eq!(at, [1_000, 1_000, 2_000]);
    let eight: Policy = "5/s burst 8 refilled each period".parse().unwrap();
    assert_eq!(eight, Policy::from(bucket));
    let keyed = tollgate::KeyedLimiter::new(eight).unwrap();
    keyed.try_acquire_many(&"key", 8).unwrap().release();
    assert_eq!(keyed.check(&"key", 8).retry_after(), Some(ms(2_000)));
}

/// Guava borrows ahead: a cost above the burst is granted at once, and the next request waits for it.
#[tokio::test(start_paused = true)]
async fn a_cost_above_the_burst_is_an_error_and_borrows_nothing() {
    let limits: [Limit; 4] = [
        TokenBucket::new(Rate::per_second(100), 5).into(),
        SlidingWindow::log(5, ms(50)).into(),
        SlidingWindow::counter(5, ms(50)).into(),
        Penalty::new(5, Rate::per_second(100)).into(),
    ];
    for limit in limits {
        let limiter = limiter(limit);
        for cost in [6, 1_000, u64::MAX] {
            assert_eq!(
                common::exceeded(&limiter.acquire_many(cost).await.unwrap_err()),
                Some((cost, 5))
            );
            assert_eq!(
                common::exceeded(&limiter.try_acquire_many(cost).unwrap_err()),
                Some((cost, 5))
            );
        }
        assert_eq!(limiter.check(1).remaining(), 5, "{limit}");
        limiter.try_acquire_many(5).unwrap().release();
        let (start, known) = (Instant::now(), limiter.check(5).retry_after());
        limiter.acquire_many(5).await.unwrap().release();
        assert!(start.elapsed() > ms(0), "{limit}: it waits for all five");
        assert!(
            known.is_some_and(|known| start.elapsed().abs_diff(known) < ms(1)),
            "{limit}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn denied_attempts_raise_a_penalty_and_checks_do_not() {
    let limiter = limiter(Penalty::new(3, Rate::new(1, ms(100))).ceiling(6));
    limiter.try_acquire_many(3).unwrap().release();
    for _ in 0..10 {
        assert_eq!(limiter.check(1).retry_after(), Some(ms(100)));
        assert_eq!(limiter.snapshot().next_grant_in, Some(ms(100)));
    }
    for raised in 2..=4 {
        assert_eq!(
            denied(&limiter),
            Some(ms(100 * raised)),
            "the answer includes the effect of the attempt"
        );
    }
    assert_eq!(denied(&limiter), Some(ms(400)), "the ceiling");
    limiter.try_acquire_many(9).unwrap_err(); // a cost that can never be admitted is no attempt
    assert_eq!(limiter.check(1).retry_after(), Some(ms(400)));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_raises_a_penalty_only_when_granted_and_is_granted_at_the_predicted_instant() {
    let limiter = limiter(Penalty::new(2, Rate::new(1, ms(100))));
    let start = Instant::now();
    limiter.try_acquire_many(2).unwrap().release();
    let mut waiting: Vec<_> = (0..3)
        .map(|_| {
            let mut waiting = task::spawn(limiter.acquire());
            assert_pending!(waiting.poll());
            waiting
        })
        .collect();
    drop(waiting.pop()); // a request that waits or gives up is not a denied attempt
    assert_eq!(limiter.snapshot().next_grant_in, Some(ms(100)));
    for (nth, waiting) in waiting.into_iter().enumerate() {
        waiting.await.unwrap().release();
        assert_eq!(start.elapsed(), ms(100 * (nth as u64 + 1)));
    }
    assert_eq!(limiter.snapshot().next_grant_in, Some(ms(100)));
}

/// Denied attempts delay the waiters: the timer is set again, and no waiter is stranded.
#[tokio::test(start_paused = true)]
async fn attempts_while_others_wait_delay_them_to_the_instant_that_is_reported() {
    let limiter = limiter(Penalty::new(2, Rate::new(1, ms(100))).ceiling(4));
    let start = Instant::now();
    limiter.try_acquire_many(2).unwrap().release();
    let mut waiting = task::spawn(limiter.acquire());
    assert_pending!(waiting.poll());
    assert!(limiter.try_acquire().is_err() && limiter.try_acquire().is_err());
    waiting.await.unwrap().release();
    assert_eq!(start.elapsed(), ms(300));
}

#[tokio::test(start_paused = true)]
async fn a_ban_holds_off_waiters_too_and_ends_on_time() {
    let limiter = limiter(
        Penalty::new(2, Rate::new(1, ms(100)))
            .ban(ms(500))
            .escalate(ms(2_000)),
    );
    let start = Instant::now();
    limiter.try_acquire_many(2).unwrap().release();
    assert_eq!(denied(&limiter), Some(ms(500)));
    let error = limiter
        .request()
        .timeout(ms(499))
        .acquire()
        .await
        .unwrap_err();
    assert_eq!(
        (error, start.elapsed()),
        (
            AcquireError::TimedOut {
                retry_after: Some(ms(500)),
                decision: None
            },
            ms(0)
        )
    );
    assert_eq!(grants(&limiter, 3).await, [500, 500, 600]);
    assert_eq!(
        denied(&limiter),
        Some(ms(1_000)),
        "the second is twice as long"
    );
}

/// A denial by another limit neither raises the penalty nor charges the others.
#[tokio::test(start_paused = true)]
async fn a_denial_by_another_limit_raises_no_penalty() {
    let policy = Policy::from(Penalty::new(5, Rate::new(1, ms(1_000)))).and(MaxConcurrency::new(1));
    let limiter = limiter(policy);
    let out = limiter.try_acquire().unwrap();
    for _ in 0..10 {
        assert_eq!(denied(&limiter), None);
    }
    drop(out);
    assert!(limiter.check(1).is_allowed());
    for _ in 0..4 {
        drop(limiter.try_acquire().unwrap());
    }
    assert!(limiter.try_acquire().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_reported_place_goes_to_the_next_waiter_where_no_limit_learns_from_it() {
    let limiter = Limiter::new("1 concurrent and 2/s burst 2").unwrap();
    let held = limiter.try_acquire().unwrap();
    let mut waiting = [(); 2].map(|()| task::spawn(limiter.acquire()));
    waiting
        .iter_mut()
        .for_each(|waiting| assert_pending!(waiting.poll()));
    assert!(held.report(Outcome::Overloaded));
    let [first, second] = &mut waiting;
    let first = assert_ready_ok!(first.poll());
    assert!(first.report(Outcome::Ok));
    assert_pending!(second.poll(), "the rate is used up");
    assert_eq!(limiter.snapshot().in_flight, 0);
    let before = Instant::now();
    let second = second.await.unwrap();
    assert_eq!(before.elapsed(), ms(500));
    assert!(second.report(Outcome::Ignored));
    let leased = Limiter::new("1 concurrent ttl 10s and 100/s").unwrap();
    let permit = leased.try_acquire().unwrap();
    sleep(ms(10_001)).await;
    assert!(!permit.report(Outcome::Ok), "it was reclaimed");
}

#[tokio::test(start_paused = true)]
async fn an_adaptive_concurrency_serves_waiters_as_it_rises_and_admits_no_cost_above_its_floor() {
    let limiter = limiter(MaxConcurrency::new(4).adapt(Adapt::aimd().between(2, 6)));
    assert_eq!(
        common::exceeded(&limiter.acquire_many(3).await.unwrap_err()),
        Some((3, 2))
    );
    let mut out: Vec<_> = (0..4).map(|_| limiter.try_acquire().unwrap()).collect();
    let mut waiting: Vec<_> = (0..8).map(|_| task::spawn(limiter.acquire())).collect();
    waiting
        .iter_mut()
        .for_each(|waiting| assert_pending!(waiting.poll()));
    let mut served = 0;
    for _ in 0..20 {
        let Some(permit) = out.pop() else { break };
        assert!(permit.report(Outcome::Ok));
        while waiting.get(served).is_some_and(task::Spawn::is_woken) {
            served += 1;
        }
        let snapshot = limiter.snapshot();
        assert!(
            Some(snapshot.in_flight) <= snapshot.concurrency,
            "{snapshot:?}"
        );
    }
    assert!(limiter.snapshot().concurrency >= Some(4) && served >= 4);
    for waiting in waiting.drain(..served) {
        assert!(waiting.await.unwrap().report(Outcome::Overloaded));
    }
    assert!(limiter.snapshot().concurrency >= Some(2));
    for waiting in waiting {
        waiting.await.unwrap().release();
    }
    assert_eq!(limiter.snapshot().in_flight, 0);
}

/// A fixed bug: a request that waited for the counter to fall slept on when a ban, which ends with a reset, made its grant
/// sooner.
#[tokio::test(start_paused = true)]
async fn a_ban_that_ends_before_the_counter_falls_wakes_the_waiter() {
    let limiter = Limiter::new(Penalty::new(3, Rate::per_hour(3)).ban(ms(1_000))).unwrap();
    let _full = limiter.try_acquire_many(3).unwrap();
    let start = Instant::now();
    let mut waiting = task::spawn(limiter.acquire());
    assert_pending!(waiting.poll());
    sleep(ms(10)).await; // the driver sleeps until the counter falls
    assert!(limiter.try_acquire().is_err());
    assert_eq!(limiter.snapshot().next_grant_in, Some(ms(1_000)));
    waiting.await.unwrap().release();
    assert_eq!(start.elapsed(), ms(1_010));
}
