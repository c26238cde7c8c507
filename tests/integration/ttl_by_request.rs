//! Permits with a TTL of their own: each is reclaimed on time, and never later than the policy's TTL.

use std::thread;
use std::time::Duration;

use crate::common::{limiter, ms, queued};
use tokio::time::{Instant, advance};
use tokio_test::{assert_ready_ok, task};
use tollgate::{
    AcquireError, Limiter, MaxConcurrency, Policy, RunError, Throttle, TryAcquireError,
};

fn leased(places: u64) -> Limiter {
    limiter(MaxConcurrency::new(places).ttl(ms(100)))
}

#[tokio::test(start_paused = true)]
async fn each_permit_is_reclaimed_at_the_end_of_its_own_ttl_or_of_the_policys() {
    let limiter = leased(11);
    let start = Instant::now();
    let mut permits = Vec::new();
    for ttl in [70, 10, 300, 0, 50] {
        permits.push(limiter.request().ttl(ms(ttl)).acquire().await.unwrap());
        permits.push(limiter.acquire().await.unwrap());
    }
    permits.push(limiter.request().ttl(Duration::MAX).try_acquire().unwrap());
    let ends = [70_u64, 100, 10, 100, 100, 100, 0, 100, 50, 100, 100];
    assert_eq!(
        permits[6].expires_at(),
        Some(start + Duration::from_nanos(1)),
        "a TTL of 0 is the shortest"
    );
    let reported: Vec<_> = permits
        .iter()
        .map(|permit| (permit.expires_at().unwrap() - start).as_millis())
        .collect();
    assert_eq!(reported, ends.map(u128::from));
    let mut order: Vec<_> = permits.iter().zip(ends).collect();
    order.sort_by_key(|(_, end)| *end);
    for (permit, end) in order {
        permit.reclaimed().await;
        assert!(
            start.elapsed() >= ms(end) && start.elapsed() <= ms(end + 1),
            "{end}: {:?}",
            start.elapsed()
        );
    }
    assert_eq!(
        (limiter.snapshot().in_flight, limiter.snapshot().reclaimed),
        (0, 11)
    );
}

#[tokio::test(start_paused = true)]
async fn the_place_of_a_shorter_ttl_goes_to_a_waiter_in_time() {
    let limiter = leased(1);
    let start = Instant::now();
    limiter
        .request()
        .ttl(ms(20))
        .acquire()
        .await
        .unwrap()
        .forget();
    let permit = limiter.request().ttl(ms(30)).acquire().await.unwrap();
    assert_eq!(
        (start.elapsed(), permit.expires_at()),
        (ms(20), Some(start + ms(50))),
        "one that has waited has it too"
    );
    let permit = limiter
        .request()
        .ttl(ms(30))
        .run(std::future::pending::<()>());
    assert!(matches!(permit.await, Err(RunError::Reclaimed { .. })));
    assert_eq!(start.elapsed(), ms(20 + 30 + 30));
}

#[tokio::test(start_paused = true)]
async fn the_ttl_counts_from_the_grant_and_holds_from_the_poll_that_takes_it() {
    let limiter = leased(1);
    let first = limiter.try_acquire().unwrap();
    let mut waiting = queued(limiter.request().ttl(ms(30)).acquire());
    drop(first);
    advance(ms(40)).await;
    let late = assert_ready_ok!(waiting.poll());
    assert!(!late.is_live() && late.expires_at().is_none());
    assert_eq!(limiter.available(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_restarts_the_own_ttl_and_renew_for_changes_it() {
    let limiter = leased(2);
    let permit = limiter.request().ttl(ms(20)).try_acquire().unwrap();
    advance(ms(15)).await;
    assert!(permit.renew());
    let start = Instant::now();
    assert_eq!(permit.expires_at(), Some(start + ms(20)));
    for (ttl, counts) in [(50, 50), (5, 5), (1_000, 100), (30, 30)] {
        assert!(permit.renew_for(ms(ttl)));
        assert_eq!(permit.expires_at(), Some(start + ms(counts)));
    }
    limiter
        .set_policy(MaxConcurrency::new(2).ttl(ms(10)))
        .unwrap();
    assert_eq!(permit.expires_at(), Some(start + ms(10)));
    limiter.set_policy(MaxConcurrency::new(2)).unwrap();
    assert_eq!(permit.expires_at(), Some(start + ms(30)), "its own remains");
    advance(ms(30)).await;
    assert!(!permit.renew_for(ms(20)) && !permit.renew() && !permit.is_live());
    assert_eq!(limiter.available(), 2);

    let unleased = limiter.try_acquire().unwrap();
    assert!(unleased.renew_for(ms(1)) && unleased.expires_at().is_none());
}

#[tokio::test(start_paused = true)]
async fn without_a_ttl_in_the_policy_the_request_is_an_error_and_takes_nothing() {
    for policy in [
        Policy::from(MaxConcurrency::new(1)),
        Throttle::every(ms(10)).into(),
    ] {
        let limiter = limiter(policy.clone());
        let request = limiter.request().ttl(ms(10));
        let error = request.clone().acquire().await.unwrap_err();
        assert_eq!(
            error,
            AcquireError::NoTtl {
                ttl: ms(10),
                policy: policy.clone()
            }
        );
        let text = format!(
            "the request has a TTL of 10ms, and permits of `{policy}` have none to shorten; add one with MaxConcurrency::ttl"
        );
        assert_eq!(error.to_string(), text);
        assert_eq!(
            request.clone().try_acquire().unwrap_err(),
            TryAcquireError::NoTtl {
                ttl: ms(10),
                policy
            }
        );
        assert!(limiter.try_acquire().is_ok());
    }
}

#[test]
fn a_blocked_thread_gets_the_place_of_a_shorter_ttl() {
    let limiter = limiter(MaxConcurrency::new(1).ttl(Duration::from_secs(3_600)));
    let permit = limiter.try_acquire().unwrap();
    let waiting = {
        let limiter = limiter.clone();
        thread::spawn(move || {
            limiter
                .request()
                .ttl(ms(5))
                .blocking_acquire()
                .unwrap()
                .expires_at()
                .is_some()
        })
    };
    while limiter.snapshot().queued == 0 {
        thread::yield_now();
    }
    assert!(permit.renew_for(ms(10)));
    assert!(waiting.join().unwrap());
    assert!(!permit.is_live());
}

#[tokio::test(start_paused = true)]
async fn a_released_permit_with_a_ttl_of_its_own_leaves_no_timer() {
    let limiter = leased(4);
    let mut permits: Vec<_> = [30, 10, 20]
        .into_iter()
        .map(|ttl| limiter.request().ttl(ms(ttl)).try_acquire().unwrap())
        .collect();
    drop(permits.remove(1));
    assert!(permits.remove(0).settle(1));
    let mut rest = task::spawn(permits[0].reclaimed());
    tokio_test::assert_pending!(rest.poll());
    drop(rest);
    drop(permits);
    advance(ms(200)).await;
    assert_eq!((limiter.snapshot().reclaimed, limiter.available()), (0, 4));
}

#[tokio::test(start_paused = true)]
async fn a_reserved_turn_and_an_explained_grant_have_their_own_ttl_too() {
    let limiter = leased(3);
    let request = || limiter.request().ttl(ms(20)).jitter(ms(10_000));
    let end = Some(Instant::now() + ms(20));
    let reserved = request().reserve().unwrap().await.unwrap();
    let (explained, _) = request().try_acquire_explained();
    assert_eq!(
        (reserved.expires_at(), explained.unwrap().expires_at()),
        (end, end),
        "and no jitter delays them"
    );
    let waited = limiter
        .request()
        .ttl(ms(20))
        .acquire_explained()
        .await
        .0
        .unwrap();
    assert_eq!(waited.expires_at(), end);
    limiter.set_policy(MaxConcurrency::new(3)).unwrap();
    let (refused, limits) = request().try_acquire_explained();
    assert!(matches!(refused, Err(TryAcquireError::NoTtl { .. })) && limits.len() == 1);
}
