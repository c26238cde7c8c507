//! Usage carries over when the policy of a limiter is replaced.

use std::time::Duration;

use crate::common::{limiter, ms};
use tokio::time::advance;
use tollgate::{
    Align, FixedWindow, Limit, Penalty, Rate, SlidingWindow, Throttle, TokenBucket, UsageCarryOver,
};

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A fixed bug: 1.8 tokens left of 3 became 20 of 60, since the usage was rounded to whole units before it was scaled.
#[tokio::test(start_paused = true)]
async fn a_fraction_of_a_unit_is_carried_in_proportion() {
    let kinds: [fn(u64) -> Limit; 3] = [
        |units| TokenBucket::new(Rate::per_second(1), units).into(),
        |units| Throttle::every(secs(1)).burst(units).into(),
        |units| FixedWindow::new(units, secs(60)).into(),
    ];
    for new in kinds {
        let limiter = limiter(TokenBucket::new(Rate::per_second(1), 3));
        limiter.try_acquire_many(3).unwrap().release();
        advance(ms(1_800)).await;
        limiter
            .set_policy_with(new(60), UsageCarryOver::InProportion)
            .unwrap();
        assert_eq!(limiter.check(1).remaining(), 36, "{}", new(60));
    }
}

#[tokio::test(start_paused = true)]
async fn a_fraction_of_a_unit_is_carried_unchanged() {
    let limiter = limiter(TokenBucket::new(Rate::per_second(1), 3));
    limiter.try_acquire_many(3).unwrap().release();
    advance(ms(1_800)).await;
    limiter
        .set_policy(TokenBucket::new(Rate::per_minute(1), 3))
        .unwrap();
    assert_eq!(
        (limiter.check(1).remaining(), limiter.check(2).retry_after()),
        (1, Some(secs(12))),
        "0.2 at 60 s each"
    );
    limiter
        .set_policy(TokenBucket::new(Rate::per_second(7), 3))
        .unwrap();
    let a_fifth_of_a_seventh = Duration::from_nanos(28_571_429); // of a second, rounded up
    assert_eq!(limiter.check(2).retry_after(), Some(a_fifth_of_a_seventh));
}

/// A fixed bug: each change rounded the remaining part up to a whole unit, or made all usage expire a period after the change, so
/// that a limiter whose policy changed often never granted again.
#[tokio::test(start_paused = true)]
async fn a_limiter_whose_policy_changes_often_still_grants() {
    let kinds: [fn(Duration) -> Limit; 7] = [
        |period| Throttle::every(period).into(),
        |period| TokenBucket::new(Rate::new(1, period), 1).into(),
        |period| FixedWindow::new(1, period).into(),
        |period| FixedWindow::new(1, period).align(Align::FirstGrant).into(),
        |period| SlidingWindow::log(1, period).into(),
        |period| SlidingWindow::counter(1, period).into(),
        |period| Penalty::new(1, Rate::new(1, period)).into(),
    ];
    for kind in kinds {
        for carry in [UsageCarryOver::AsIs, UsageCarryOver::InProportion] {
            let limiter = limiter(kind(secs(60)));
            let mut granted = 0;
            for change in 0..1_000 {
                granted +=
                    u64::from(limiter.check(1).is_allowed() && limiter.try_acquire().is_ok());
                advance(secs(10)).await;
                limiter
                    .set_policy_with(kind(secs(if change % 2 == 0 { 59 } else { 60 })), carry)
                    .unwrap();
            }
            let least = match kind(secs(60)) {
                // Windows on a grid miss the boundaries of a grid that is not in force at that time.
                limit if limit == FixedWindow::new(1, secs(60)).into() => 80,
                // A unit of a counter counts until two windows have passed.
                limit if limit == SlidingWindow::counter(1, secs(60)).into() => 80,
                _ => 140,
            };
            assert!(
                (least..=10_000 / 59 + 1).contains(&granted),
                "{}: {granted} in 10,000 s",
                kind(secs(60))
            );
        }
    }
}

/// A sliding counter with the same period keeps its two counters.
#[tokio::test(start_paused = true)]
async fn a_sliding_counter_whose_limit_changes_often_still_grants() {
    let limiter = limiter(SlidingWindow::counter(2, secs(60)));
    let mut granted = 0;
    for change in 0..1_000 {
        granted += u64::from(limiter.try_acquire().is_ok());
        advance(secs(10)).await;
        limiter
            .set_policy(SlidingWindow::counter(2 + change % 2, secs(60)))
            .unwrap();
    }
    assert!(granted >= 300, "{granted} in 10,000 s");
}

/// Never over: a grant keeps its instant, also in a longer window.
#[tokio::test(start_paused = true)]
async fn a_log_keeps_the_instants_of_its_grants() {
    let limiter = limiter(SlidingWindow::log(10, secs(10)));
    limiter.try_acquire_many(4).unwrap().release();
    advance(secs(4)).await;
    limiter.try_acquire_many(6).unwrap().release();
    limiter
        .set_policy(SlidingWindow::log(10, secs(60)))
        .unwrap();
    let reported = |cost| limiter.check(cost).retry_after();
    assert_eq!(
        (reported(4), reported(5)),
        (Some(secs(56)), Some(secs(60))),
        "it counts from the grant"
    );
    limiter.set_policy(SlidingWindow::log(10, secs(6))).unwrap();
    assert_eq!(
        (reported(4), reported(5)),
        (Some(ms(5_600)), Some(secs(6))),
        "it leaves after as large a share"
    );
    limiter
        .set_policy_with(SlidingWindow::log(5, secs(6)), UsageCarryOver::InProportion)
        .unwrap();
    assert_eq!(
        (limiter.check(1).remaining(), reported(2), reported(3)),
        (0, Some(ms(5_600)), Some(secs(6)))
    );
}

/// A fixed bug: the fall of the old counter was computed with the steps of the new one.
#[tokio::test(start_paused = true)]
async fn a_replaced_penalty_has_fallen_by_its_own_steps() {
    let limiter = limiter(Penalty::new(10, Rate::new(1, secs(100))));
    limiter.try_acquire_many(10).unwrap().release();
    advance(secs(150)).await;
    limiter
        .set_policy(Penalty::new(10, Rate::new(1, secs(1))))
        .unwrap();
    assert_eq!(limiter.check(1).remaining(), 1);
    assert_eq!(
        limiter.check(2).retry_after(),
        Some(ms(500)),
        "half of a step has passed"
    );
}

/// A fixed bug: a charge of 0 lowered a counter that a former policy had carried over above the ceiling of the new one.
#[tokio::test(start_paused = true)]
async fn a_charge_of_nothing_lowers_no_counter() {
    let retry_after = |charges: bool| {
        let limiter = limiter(Penalty::new(5, Rate::per_second(1)));
        limiter.try_acquire_many(2).unwrap().release();
        limiter.try_acquire_many(5).unwrap_err(); // the counter is at 7
        let longer = Penalty::new(3, Rate::new(1, secs(30)));
        limiter.set_policy(longer).unwrap();
        if charges {
            limiter.penalize(0);
        }
        limiter.check(1).retry_after()
    };
    assert_eq!(
        (retry_after(false), retry_after(true)),
        (Some(secs(150)), Some(secs(150)))
    );
}
