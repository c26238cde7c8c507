//! Requests to a group with options, and work under the permits of a group.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{limiter, ms};
use futures_util::poll;
use tokio::time::{Instant, advance, sleep};
use tollgate::{
    AcquireError, GroupAcquire, LimiterGroup, MaxConcurrency, Priority, RunError, Throttle,
};

#[tokio::test(start_paused = true)]
async fn the_timeout_is_for_all_members_together() {
    let (one, other) = (
        limiter(MaxConcurrency::new(1)),
        limiter(MaxConcurrency::new(1)),
    );
    let group = LimiterGroup::new([one.clone(), other.clone()]);
    let (first, second) = (one.acquire().await.unwrap(), other.acquire().await.unwrap());
    tokio::spawn(async move {
        sleep(ms(60)).await;
        drop(first);
        sleep(ms(60)).await;
        drop(second);
    });
    let start = Instant::now();
    let error = group.request().timeout(ms(100)).await.unwrap_err();
    assert_eq!(
        (error.member, error.error),
        (
            1,
            AcquireError::TimedOut {
                retry_after: None,
                decision: None
            }
        )
    );
    assert_eq!(
        start.elapsed(),
        ms(100),
        "60 ms for one, so 40 ms for the other"
    );
    assert_eq!(
        (
            one.snapshot().in_flight,
            one.snapshot().queued,
            other.snapshot().queued
        ),
        (0, 0, 0)
    );
    assert_eq!(
        group
            .request()
            .timeout(ms(30))
            .await
            .unwrap()
            .permits()
            .len(),
        2
    );
    let too_long = group.request().timeout(Duration::MAX);
    let _held = one.acquire().await.unwrap();
    assert!(matches!(
        too_long.await.unwrap_err().error,
        AcquireError::TimeoutTooLong { .. }
    ));
}

#[tokio::test(start_paused = true)]
async fn a_group_waits_by_its_priority() {
    let shared = limiter(Throttle::every(ms(10)));
    drop(shared.acquire().await.unwrap());
    let group = LimiterGroup::new([shared.clone(), limiter(MaxConcurrency::new(9))]);
    let (mut normal, mut high) = (
        shared.acquire_owned(),
        Box::pin(group.request().priority(Priority::HIGH).acquire()),
    );
    assert!(poll!(&mut normal).is_pending() && poll!(&mut high).is_pending());
    advance(ms(10)).await;
    assert!(poll!(&mut normal).is_pending());
    high.await.unwrap().release();
    normal.await.unwrap().release();
}

#[tokio::test(start_paused = true)]
async fn a_group_future_is_named_and_spawned() {
    let places = limiter(MaxConcurrency::new(1));
    let group = LimiterGroup::new([places.clone()]);
    let held = places.acquire().await.unwrap();
    let waits: GroupAcquire = group.acquire();
    drop(group);
    let waits = tokio::spawn(waits);
    tokio::task::yield_now().await;
    drop(held);
    assert_eq!(waits.await.unwrap().unwrap().permits().len(), 1);
    assert_eq!(places.snapshot().in_flight, 0);
}

#[tokio::test(start_paused = true)]
async fn work_runs_under_all_permits_of_a_group() {
    let (places, pace) = (
        limiter(MaxConcurrency::new(2)),
        limiter(Throttle::every(ms(10))),
    );
    let group = LimiterGroup::new([places.clone(), pace]);
    let start = Instant::now();
    let work = |n| {
        let places = places.clone();
        tokio::spawn(group.run(async move { (n, places.snapshot().in_flight, start.elapsed()) }))
    };
    let ran = [work(1), work(2)];
    for (ran, expected) in ran.into_iter().zip([(1, 1, ms(0)), (2, 1, ms(10))]) {
        assert_eq!(ran.await.unwrap().unwrap(), expected);
    }
    assert_eq!(places.snapshot().in_flight, 0);
    assert_eq!(
        LimiterGroup::default().run(async { 7 }).await,
        Ok(7),
        "an empty group admits everything"
    );
    places.close();
    let error = group
        .run(async { panic!("it was polled") })
        .await
        .unwrap_err();
    assert_eq!(
        (error.member, error.is_closed(), error.error),
        (0, true, RunError::Acquire(AcquireError::Closed))
    );
}

#[tokio::test(start_paused = true)]
async fn work_is_dropped_when_one_permit_of_the_group_is_reclaimed() {
    let (endless, short) = (
        limiter(MaxConcurrency::new(1)),
        limiter(MaxConcurrency::new(1).ttl(ms(50))),
    );
    let group = LimiterGroup::new([endless.clone(), short.clone()]);
    let work = Arc::new(());
    let held = Arc::clone(&work);
    let start = Instant::now();
    let run = group.run(async move {
        let _held = held;
        pending::<()>().await;
    });
    let error = run.await.unwrap_err();
    assert!(matches!(error.error, RunError::Reclaimed { .. }) && error.member == 1);
    assert_eq!((start.elapsed(), Arc::strong_count(&work)), (ms(50), 1));
    assert_eq!(
        (endless.snapshot().in_flight, short.snapshot().in_flight),
        (0, 0)
    );
}
