//! Errors: each tells its cause once, as its source, and its message says what is wrong and what to do.

mod common;

use std::error::Error;
use std::iter::successors;

use common::ms;
use tollgate::{
    AcquireError, Adapt, KeyedLimiter, Limit, Limiter, LimiterGroup, MaxConcurrency, Penalty, Rate, SlidingWindow,
    TryAcquireError,
};

/// What a report such as anyhow's prints: each error of the chain.
fn report(error: &(dyn Error + 'static)) -> Vec<String> {
    successors(Some(error), |&error| error.source()).map(ToString::to_string).collect()
}

#[tokio::test]
async fn run_tells_why_the_work_was_not_started_once() {
    let limiter = common::limiter(MaxConcurrency::new(1));
    limiter.close();
    let error = limiter.run(async {}).await.unwrap_err();
    assert_eq!(report(&error), ["the future was not started: it got no permit", "the limiter is closed"]);
}

#[tokio::test]
async fn a_group_tells_why_its_member_refused_once() {
    let member = Limiter::builder(MaxConcurrency::new(1)).name("in all").build().unwrap();
    member.close();
    let group = LimiterGroup::new([common::limiter(MaxConcurrency::new(1)), member.clone()]);
    let expected = ["the limiter `in all` refused", "the limiter is closed"];
    assert_eq!(report(&group.try_acquire().unwrap_err()), expected);
    assert_eq!(report(&group.acquire().await.unwrap_err()), expected);
}

#[tokio::test]
async fn a_key_tells_what_is_wrong_with_its_tier_once() {
    let limiter = KeyedLimiter::builder(MaxConcurrency::new(1)).tiers(|_| MaxConcurrency::new(0).into()).build().unwrap();
    let expected = ["the policy of the key's tier is invalid", "`0 concurrent` admits nothing; give it a limit of at least 1"];
    let error: TryAcquireError = limiter.try_acquire(&1).unwrap_err();
    assert_eq!(report(&error), expected);
    let error: AcquireError = limiter.acquire(&1).await.unwrap_err();
    assert_eq!(report(&error), expected);
}

#[test]
fn a_number_out_of_range_is_told_with_the_range() {
    let told = |limit: Limit| Limiter::new(limit).unwrap_err().to_string();
    assert_eq!(
        told(SlidingWindow::counter(1 << 32, ms(1)).into()),
        "`sliding counter 4294967296/ms` has a number out of range: a sliding counter holds at most 4294967295 units"
    );
    assert_eq!(
        told(Penalty::new(5, Rate::per_second(1)).ceiling(1 << 32).into()),
        "`penalty 5 falling 1/s ceiling 4294967296` has a number out of range: threshold and ceiling are at most 4294967295"
    );
    assert!(told(MaxConcurrency::new(5).adapt(Adapt::aimd().between(9, 3)).into()).contains("the floor is 1 to the ceiling"));
}

#[test]
fn a_permit_prints_what_a_log_needs() {
    let limiter = common::limiter(MaxConcurrency::new(5));
    drop(limiter.try_acquire().unwrap());
    let permit = limiter.try_acquire_many(3).unwrap();
    assert_eq!(format!("{permit:?}"), format!("Permit {{ id: {}, fence: 2, cost: 3, .. }}", permit.id()));
}
