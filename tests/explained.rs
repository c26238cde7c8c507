//! Permits that come with what each limit said at their grant.

mod common;

use std::time::Duration;

use common::{ms, queued};
use tokio::time::Instant;
use tokio_test::{assert_pending, assert_ready, task};
use tollgate::{Limit, LimitStatus, Limiter, MaxConcurrency, TryAcquireError};

fn remaining(limits: &[LimitStatus]) -> Vec<u64> {
    limits.iter().map(|limit| limit.remaining).collect()
}

#[tokio::test(start_paused = true)]
async fn a_grant_says_what_every_limit_has_left_and_when_it_is_reset() {
    let limiter = Limiter::new("4 concurrent and 10/min and window 100/h").unwrap();
    let (permit, limits) = limiter.request().cost(3).acquire_explained().await.unwrap();
    assert_eq!(remaining(&limits), [1, 7, 97]);
    assert_eq!(limits.iter().map(|limit| limit.capacity).collect::<Vec<_>>(), [4, 10, 100]);
    assert_eq!(limits.iter().map(|limit| limit.reset_after.as_secs()).collect::<Vec<_>>(), [0, 18, 3_600]);
    assert_eq!(limits[1].limit, "10/min".parse::<Limit>().unwrap());
    assert_eq!(limits, limiter.limits());
    drop(permit);
    assert_eq!(remaining(&limiter.limits()), [4, 7, 97]);
}

#[tokio::test(start_paused = true)]
async fn a_denial_says_it_of_the_same_instant() {
    let limiter = Limiter::new("4 concurrent and 10/min").unwrap();
    let _held = limiter.try_acquire_many(3).unwrap();
    let (answer, limits) = limiter.request().cost(2).try_acquire_explained();
    assert!(matches!(answer, Err(TryAcquireError::Denied(_))));
    assert_eq!(remaining(&limits), [1, 7]);
    let (answer, limits) = limiter.request().try_acquire_explained();
    assert_eq!((answer.is_ok(), remaining(&limits)), (true, vec![0, 6]));
}

/// Of a grant to a waiter it is what the limits said at the grant, not at the poll that takes it.
#[tokio::test(start_paused = true)]
async fn it_is_as_of_the_grant_and_not_of_the_poll() {
    for policy in ["3 concurrent", "3 concurrent ttl 1h", "3 concurrent and 100/s", "3 concurrent per request"] {
        let limiter = Limiter::new(policy).unwrap();
        let mut held: Vec<_> = (0..3).map(|_| limiter.try_acquire().unwrap()).collect();
        let mut explained = queued(limiter.request().acquire_explained());
        drop(held.pop());
        assert!(explained.is_woken(), "{policy}");
        drop(held); // the other two come back after the grant
        let (_permit, limits) = assert_ready!(explained.poll()).unwrap();
        assert_eq!((limits[0].remaining, limiter.limits()[0].remaining), (0, 2), "{policy}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_waits_for_time_is_explained_too_and_units_are_counted() {
    let limiter = Limiter::new("100 tokens/s and 5/s per request").unwrap();
    let request = || limiter.request().cost_of("tokens", 80);
    let (_, limits) = request().acquire_explained().await.unwrap();
    assert_eq!(remaining(&limits), [20, 4]);
    let start = Instant::now();
    let (permit, limits) = request().acquire_explained().await.unwrap();
    assert_eq!((start.elapsed(), remaining(&limits)), (ms(600), vec![0, 4]));
    assert!(permit.settle_costs([("tokens", 10)]));
}

#[tokio::test]
async fn a_cancelled_one_leaves_nothing_behind() {
    let limiter = Limiter::new(MaxConcurrency::new(1)).unwrap();
    let held = limiter.try_acquire().unwrap();
    let granted = queued(limiter.request().acquire_explained());
    let mut waiting = queued(limiter.request().acquire_explained());
    drop(held);
    assert!(granted.is_woken());
    drop(granted);
    assert!(waiting.is_woken());
    let (permit, limits) = assert_ready!(waiting.poll()).unwrap();
    assert_eq!((permit.fence(), remaining(&limits)), (3, vec![0]));
    drop(permit);
    drop(task::spawn(limiter.request().acquire_explained())); // never polled
    assert_eq!(limiter.snapshot().in_flight, 0);
    limiter.close();
    assert!(limiter.request().acquire_explained().await.unwrap_err().is_closed());
    let (answer, limits) = limiter.request().try_acquire_explained();
    assert_eq!((answer.unwrap_err(), remaining(&limits)), (TryAcquireError::Closed, vec![1]));
}

#[tokio::test(start_paused = true)]
async fn a_timeout_and_an_order_apply_as_ever() {
    let limiter = Limiter::new(MaxConcurrency::new(1)).unwrap();
    let held = limiter.try_acquire().unwrap();
    let mut first = queued(limiter.acquire());
    let mut second = queued(limiter.request().timeout(Duration::from_secs(1)).acquire_explained());
    drop(held);
    let permit = assert_ready!(first.poll()).unwrap();
    assert_pending!(second.poll());
    tokio::time::sleep(ms(1_001)).await;
    assert!(second.is_woken());
    assert!(assert_ready!(second.poll()).is_err());
    drop(permit);
}

#[tokio::test(start_paused = true)]
async fn each_key_explains_its_grants_and_denials_idle_or_active() {
    for policy in ["3/min and 100/h", "3/min and 100/h and 5 concurrent", "3/min per request and 100/h"] {
        let per_user = tollgate::KeyedLimiter::new(policy).unwrap();
        let (answer, limits) = per_user.request("alice").try_acquire_explained();
        assert_eq!((answer.map(drop), remaining(&limits)[..2].to_vec()), (Ok(()), vec![2, 99]), "{policy}");
        let (_permit, limits) = per_user.request("alice").acquire_explained().await.unwrap();
        assert_eq!(remaining(&limits)[..2], [1, 98], "{policy}");
        drop(per_user.request("alice").try_acquire().unwrap());
        let (answer, limits) = per_user.request("alice").try_acquire_explained();
        assert!(matches!(answer, Err(TryAcquireError::Denied(_))));
        assert_eq!(remaining(&limits)[..2], [0, 97], "{policy}");
        let start = Instant::now();
        let waited = tokio::spawn(per_user.request("alice").acquire_explained());
        let (_permit, limits) = waited.await.unwrap().unwrap();
        assert_eq!((start.elapsed().as_secs(), remaining(&limits)[0]), (20, 0), "{policy}");
        assert_eq!((remaining(&per_user.limits("alice")), remaining(&per_user.limits("bob"))[..2].to_vec()).1, vec![3, 100]);
    }
}
