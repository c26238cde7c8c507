//! An error has its cause once, as its source. Its message states what is wrong and what to do.

use std::error::Error;
use std::iter::successors;

use std::time::Duration;

use crate::common::{self, ms};
use futures_util::stream::{self, StreamExt as _};
use tollgate::{
    AcquireError, Adapt, KeyedLimiter, Limit, Limiter, LimiterGroup, MaxConcurrency, Overflow,
    Policy, Priority, RunError, SlidingWindow, StreamLimitExt as _, Throttle, TryAcquireError,
};

/// The text that a report such as anyhow's prints: each error of the chain.
fn report(error: &(dyn Error + 'static)) -> Vec<String> {
    successors(Some(error), |&error| error.source())
        .map(ToString::to_string)
        .collect()
}

#[tokio::test]
async fn run_reports_once_why_the_work_was_not_started() {
    let limiter = common::limiter(MaxConcurrency::new(1));
    limiter.close();
    let error = limiter.run(async {}).await.unwrap_err();
    assert_eq!(
        report(&error),
        [
            "the future was not started: it got no permit",
            "the limiter is closed"
        ]
    );
}

#[tokio::test]
async fn a_group_reports_once_why_its_member_refused() {
    let member = Limiter::builder(MaxConcurrency::new(1))
        .name("in all")
        .build()
        .unwrap();
    member.close();
    let group = LimiterGroup::new([common::limiter(MaxConcurrency::new(1)), member.clone()]);
    let expected = ["the limiter `in all` refused", "the limiter is closed"];
    assert_eq!(report(&group.try_acquire().unwrap_err()), expected);
    assert_eq!(report(&group.acquire().await.unwrap_err()), expected);
}

#[tokio::test]
async fn a_key_reports_once_what_is_wrong_with_its_tier() {
    let limiter = KeyedLimiter::builder(MaxConcurrency::new(1))
        .tiers(|_| MaxConcurrency::new(0).into())
        .build()
        .unwrap();
    let expected = [
        "the policy of the key's tier is invalid",
        "`0 concurrent` admits nothing: its limit is 0; set at least 1",
    ];
    let error: TryAcquireError = limiter.try_acquire(&1).unwrap_err();
    assert_eq!(report(&error), expected);
    let error: AcquireError = limiter.acquire(&1).await.unwrap_err();
    assert_eq!(report(&error), expected);
}

#[test]
fn a_number_out_of_range_is_reported_with_its_range() {
    let reported = |limit: Limit| Limiter::new(limit).unwrap_err().to_string();
    assert_eq!(
        reported(SlidingWindow::counter(1 << 32, ms(1)).into()),
        "the limit of `sliding counter 4294967296/ms` is 4294967296; set 1 to 4294967295"
    );
    assert_eq!(
        reported(
            MaxConcurrency::new(5)
                .adapt(Adapt::aimd().between(9, 3))
                .into()
        ),
        "the floor of `5 concurrent aimd from 9 to 3` is 9; set 1 to 3"
    );
    assert_eq!(
        reported(Throttle::every(Duration::ZERO).into()),
        "the interval of `throttle every 0s` is zero; set at least 1 ns"
    );
    assert_eq!(
        reported(Throttle::every(ms(1_000)).burst(u64::MAX).into()),
        "the time to refill the burst of `throttle every 1s burst 18446744073709551615` is longer than 100 years; shorten it"
    );
}

#[tokio::test]
async fn a_cost_that_is_too_large_is_reported_with_the_limit_and_the_number_to_raise() {
    for (policy, reported) in [
        (
            "8 concurrent and throttle every 100ms",
            "the burst of `throttle every 100ms` is 1; split the request, or raise the burst",
        ),
        (
            "20/s burst 4 and window 5/s",
            "the burst of `20/s burst 4` is 4; split the request, or raise the burst",
        ),
        (
            "20 concurrent aimd from 2 to 30",
            "the floor of `20 concurrent aimd from 2 to 30` is 2; split the request, or raise the floor",
        ),
        (
            "penalty 3 falling 1/s",
            "the threshold of `penalty 3 falling 1/s` is 3; split the request, or raise the threshold",
        ),
        (
            "9 concurrent and sliding log 7/s",
            "the limit of `sliding log 7/s` is 7; split the request, or raise the limit",
        ),
    ] {
        let reported = format!("a cost of 10 can never be admitted: {reported}");
        let (limiter, keyed) = (
            Limiter::new(policy).unwrap(),
            KeyedLimiter::new(policy).unwrap(),
        );
        assert_eq!(
            limiter.try_acquire_many(10).unwrap_err().to_string(),
            reported
        );
        assert_eq!(
            limiter.acquire_many(10).await.unwrap_err().to_string(),
            reported
        );
        assert_eq!(
            keyed.try_acquire_many(&1, 10).unwrap_err().to_string(),
            reported
        );
        assert_eq!(
            keyed.acquire_many(&1, 10).await.unwrap_err().to_string(),
            reported
        );
    }
}

/// Each error of each kind of failure.
async fn all_errors() -> Vec<Box<dyn Error>> {
    let mut errors: Vec<Box<dyn Error>> = Vec::new();
    for policy in [
        "8 concurent",
        "0 concurrent",
        "0/s burst 1",
        "every 0s",
        "every 999999d",
        "5 concurrent aimd from 9 to 3",
    ] {
        errors.push(Limiter::new(policy).unwrap_err().into());
        let tier: Policy = policy.parse().unwrap_or_else(|_| Policy::from_iter([]));
        let keyed = KeyedLimiter::builder(MaxConcurrency::new(1))
            .tiers(move |_| tier.clone())
            .build()
            .unwrap();
        errors.push(keyed.try_acquire(&1).unwrap_err().into());
        errors.push(keyed.acquire(&1).await.unwrap_err().into());
    }
    errors.push(
        KeyedLimiter::<u8>::builder(MaxConcurrency::new(1))
            .max_keys(0)
            .build()
            .unwrap_err()
            .into(),
    );
    errors.push(Priority::new(77).unwrap_err().into());

    let limiter = Limiter::builder(MaxConcurrency::new(1))
        .max_queue(0)
        .build()
        .unwrap();
    let _held = limiter.acquire().await.unwrap();
    let group = LimiterGroup::new([limiter.clone()]);
    for cost in [0, 1, 2] {
        errors.push(limiter.try_acquire_many(cost).unwrap_err().into());
        errors.push(limiter.acquire_many(cost).await.unwrap_err().into());
        errors.push(group.try_acquire_many(cost).unwrap_err().into());
        errors.push(group.acquire_many(cost).await.unwrap_err().into());
    }
    errors.push(limiter.run(async {}).await.unwrap_err().into());
    errors.push(
        limiter
            .request()
            .timeout(Duration::MAX)
            .acquire()
            .await
            .unwrap_err()
            .into(),
    );
    errors.push(
        limiter
            .request()
            .timeout(Duration::ZERO)
            .acquire()
            .await
            .unwrap_err()
            .into(),
    );
    limiter.close();
    errors.push(limiter.run(async {}).await.unwrap_err().into());
    errors.push(group.acquire().await.unwrap_err().into());

    let stuck = common::limiter(MaxConcurrency::new(1).ttl(ms(1)));
    errors.push(
        stuck
            .run(std::future::pending::<()>())
            .await
            .unwrap_err()
            .into(),
    );
    let mut throttled = Box::pin(stream::iter([1]).try_throttled(&stuck));
    errors.push(throttled.next().await.unwrap().unwrap_err().into());
    errors
}

#[tokio::test(start_paused = true)]
async fn no_error_message_repeats_its_source() {
    let errors = all_errors().await;
    assert!(errors.iter().any(|error| error.source().is_some()));
    for error in errors {
        let chain = report(&*error);
        for (index, message) in chain.iter().enumerate() {
            assert!(!message.is_empty());
            let others = chain
                .iter()
                .enumerate()
                .filter(|(other, _)| *other != index);
            assert!(
                others
                    .into_iter()
                    .all(|(_, other)| !other.contains(message.as_str())),
                "{chain:#?}"
            );
        }
    }
}

/// The `?` operator converts it, in a function that returns the error of one limiter.
#[tokio::test(start_paused = true)]
async fn an_error_of_a_group_converts_into_that_of_the_member() {
    let limiter = Limiter::builder(MaxConcurrency::new(1))
        .max_queue(0)
        .build()
        .unwrap();
    let group = LimiterGroup::new([common::limiter(MaxConcurrency::new(9)), limiter.clone()]);
    let waits = async || -> Result<(), AcquireError> {
        group.acquire().await?.release();
        Ok(())
    };
    let tries = || -> Result<(), TryAcquireError> {
        group.try_acquire()?.release();
        Ok(())
    };
    let runs = async || -> Result<(), RunError> { Ok(group.run(async {}).await?) };
    let boxed = async || -> Result<(), Box<dyn Error + Send + Sync>> {
        group.acquire().await?.release();
        Ok(())
    };
    assert_eq!(
        (waits().await, tries(), runs().await, boxed().await.is_ok()),
        (Ok(()), Ok(()), Ok(()), true)
    );
    let _held = limiter.try_acquire().unwrap();
    let full = AcquireError::QueueFull { retry_after: None };
    assert_eq!(
        (waits().await, runs().await),
        (Err(full.clone()), Err(RunError::Acquire(full.clone())))
    );
    assert!(matches!(tries(), Err(TryAcquireError::Denied(_))));
    let error = boxed()
        .await
        .unwrap_err()
        .downcast::<tollgate::GroupError<AcquireError>>()
        .unwrap();
    assert_eq!((error.member, error.error), (1, full));
}

#[test]
fn a_store_error_states_its_reason_once() {
    use tollgate::store::{Cause, StoreError};

    let cause = Cause::new(std::io::Error::other("connection refused"));
    let failure = Box::new(StoreError::Unreachable {
        store: "redis://limits:6379".to_owned(),
        source: cause,
    });
    let expected = [
        "the store redis://limits:6379 cannot be reached",
        "connection refused",
    ];
    assert_eq!(report(&AcquireError::Store(failure.clone())), expected);
    assert_eq!(report(&TryAcquireError::Store(failure.clone())), expected);
    let started = "the future was not started: it got no permit";
    assert_eq!(
        report(&RunError::Acquire(AcquireError::Store(failure))),
        [&[started], &expected[..]].concat()
    );
}

#[tokio::test(start_paused = true)]
async fn errors_report_when_to_retry_and_whether_the_limiter_is_closed() {
    let limiter = common::limiter(Throttle::every(ms(500)));
    let group = LimiterGroup::new([limiter.clone()]);
    let _permit = limiter.try_acquire().unwrap();
    let late = limiter
        .request()
        .timeout(ms(1))
        .acquire()
        .await
        .unwrap_err();
    let after = Some(ms(500));
    assert_eq!((late.retry_after(), late.is_closed()), (after, false));
    assert_eq!(
        (
            RunError::from(late.clone()).retry_after(),
            RunError::from(late).is_closed()
        ),
        (after, false)
    );
    let denied = limiter.try_acquire().unwrap_err();
    assert_eq!((denied.retry_after(), denied.is_closed()), (after, false));
    let denied = group.try_acquire().unwrap_err();
    assert_eq!((denied.retry_after(), denied.is_closed()), (after, false));
    assert_eq!(limiter.try_acquire_many(2).unwrap_err().retry_after(), None);

    limiter.close();
    let closed = limiter.run(async {}).await.unwrap_err();
    assert_eq!((closed.retry_after(), closed.is_closed()), (None, true));
    assert!(
        limiter.acquire().await.unwrap_err().is_closed()
            && limiter.try_acquire().unwrap_err().is_closed()
    );
    assert!(
        group.acquire().await.unwrap_err().is_closed()
            && group.try_acquire().unwrap_err().is_closed()
    );

    let blocking = Limiter::builder(MaxConcurrency::new(1))
        .max_queue(0)
        .overflow(Overflow::Block { penalty: ms(70) })
        .build()
        .unwrap();
    let _held = blocking.acquire().await.unwrap();
    assert!(blocking.acquire().await.is_err());
    assert_eq!(
        blocking.acquire().await.unwrap_err().retry_after(),
        Some(ms(70))
    );
    let stuck = common::limiter(MaxConcurrency::new(1).ttl(ms(1)));
    let reclaimed = stuck.run(std::future::pending::<()>()).await.unwrap_err();
    assert_eq!(
        (reclaimed.retry_after(), reclaimed.is_closed()),
        (None, false)
    );
}

#[test]
fn the_debug_form_of_a_permit_has_its_id_fence_and_cost() {
    let limiter = common::limiter(MaxConcurrency::new(5));
    drop(limiter.try_acquire().unwrap());
    let permit = limiter.try_acquire_many(3).unwrap();
    assert_eq!(
        format!("{permit:?}"),
        format!("Permit {{ id: {}, fence: 2, cost: 3, .. }}", permit.id())
    );
}
