//! Permits that are returned with the status of each limit at their grant.

use std::time::Duration;

use std::future::Future;

use crate::common::{ms, queued};
use tokio::time::Instant;
use tokio_test::{assert_pending, assert_ready, task};
use tollgate::{
    AcquireError, Decision, Limit, LimitStatus, Limiter, MaxConcurrency, Overflow, Permit,
    Priority, TryAcquireError,
};

fn remaining(limits: &[LimitStatus]) -> Vec<u64> {
    limits.iter().map(|limit| limit.remaining).collect()
}

async fn granted(
    acquire: impl Future<Output = (Result<Permit, AcquireError>, Vec<LimitStatus>)>,
) -> (Permit, Vec<LimitStatus>) {
    let (permit, limits) = acquire.await;
    (permit.unwrap(), limits)
}

#[tokio::test(start_paused = true)]
async fn an_explained_grant_has_the_status_of_every_limit() {
    let limiter = Limiter::new("4 concurrent and 10/min and window 100/h").unwrap();
    let (permit, limits) = granted(limiter.request().cost(3).acquire_explained()).await;
    assert_eq!(remaining(&limits), [1, 7, 97]);
    assert_eq!(
        limits
            .iter()
            .map(|limit| limit.capacity)
            .collect::<Vec<_>>(),
        [4, 10, 100]
    );
    assert_eq!(
        limits
            .iter()
            .map(|limit| limit.reset_after.as_secs())
            .collect::<Vec<_>>(),
        [0, 18, 3_600]
    );
    assert_eq!(limits[1].limit, "10/min".parse::<Limit>().unwrap());
    assert_eq!(limits, limiter.limits());
    drop(permit);
    assert_eq!(remaining(&limiter.limits()), [4, 7, 97]);
}

#[tokio::test(start_paused = true)]
async fn an_explained_denial_has_the_status_of_every_limit_at_its_own_instant() {
    let limiter = Limiter::new("4 concurrent and 10/min").unwrap();
    let _held = limiter.try_acquire_many(3).unwrap();
    let (answer, limits) = limiter.request().cost(2).try_acquire_explained();
    assert!(matches!(answer, Err(TryAcquireError::Denied(_))));
    assert_eq!(remaining(&limits), [1, 7]);
    let (answer, limits) = limiter.request().try_acquire_explained();
    assert_eq!((answer.is_ok(), remaining(&limits)), (true, vec![0, 6]));
}

/// The explanation of a grant to a waiter is the status at the grant, not at the poll that takes it.
#[tokio::test(start_paused = true)]
async fn an_explanation_is_of_the_instant_of_the_grant_and_not_of_the_poll() {
    for policy in [
        "3 concurrent",
        "3 concurrent ttl 1h",
        "3 concurrent and 100/s",
        "3 concurrent per request",
    ] {
        let limiter = Limiter::new(policy).unwrap();
        let mut held: Vec<_> = (0..3).map(|_| limiter.try_acquire().unwrap()).collect();
        let mut explained = queued(limiter.request().acquire_explained());
        drop(held.pop());
        assert!(explained.is_woken(), "{policy}");
        drop(held); // the other two come back after the grant
        let (permit, limits) = assert_ready!(explained.poll());
        let _held = permit.unwrap();
        assert_eq!(
            (limits[0].remaining, limiter.limits()[0].remaining),
            (0, 2),
            "{policy}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_for_a_rate_is_explained_in_its_units() {
    let limiter = Limiter::new("100 tokens/s and 5/s per request").unwrap();
    let request = || limiter.request().cost_of("tokens", 80);
    let (_, limits) = granted(request().acquire_explained()).await;
    assert_eq!(remaining(&limits), [20, 4]);
    let start = Instant::now();
    let (permit, limits) = granted(request().acquire_explained()).await;
    assert_eq!((start.elapsed(), remaining(&limits)), (ms(600), vec![0, 4]));
    assert!(permit.settle_costs([("tokens", 10)]));
}

#[tokio::test]
async fn a_cancelled_explained_request_leaves_nothing_behind() {
    let limiter = Limiter::new(MaxConcurrency::new(1)).unwrap();
    let held = limiter.try_acquire().unwrap();
    let granted = queued(limiter.request().acquire_explained());
    let mut waiting = queued(limiter.request().acquire_explained());
    drop(held);
    assert!(granted.is_woken());
    drop(granted);
    assert!(waiting.is_woken());
    let (permit, limits) = assert_ready!(waiting.poll());
    let permit = permit.unwrap();
    assert_eq!((permit.fence(), remaining(&limits)), (3, vec![0]));
    drop(permit);
    drop(task::spawn(limiter.request().acquire_explained())); // never polled
    assert_eq!(limiter.snapshot().in_flight, 0);
    limiter.close();
    let (answer, limits) = limiter.request().acquire_explained().await;
    assert_eq!(
        (answer.unwrap_err(), remaining(&limits)),
        (AcquireError::Closed, vec![1])
    );
    let (answer, limits) = limiter.request().try_acquire_explained();
    assert_eq!(
        (answer.unwrap_err(), remaining(&limits)),
        (TryAcquireError::Closed, vec![1])
    );
}

#[tokio::test(start_paused = true)]
async fn timeouts_and_order_apply_to_explained_requests() {
    let limiter = Limiter::new(MaxConcurrency::new(1)).unwrap();
    let held = limiter.try_acquire().unwrap();
    let mut first = queued(limiter.acquire());
    let mut second = queued(
        limiter
            .request()
            .timeout(Duration::from_secs(1))
            .acquire_explained(),
    );
    drop(held);
    let permit = assert_ready!(first.poll()).unwrap();
    assert_pending!(second.poll());
    tokio::time::sleep(ms(1_001)).await;
    assert!(second.is_woken());
    let (retry_after, decision) = timed_out(assert_ready!(second.poll()).0);
    assert_eq!(
        (
            retry_after,
            decision.retry_after(),
            decision.denied_by_index()
        ),
        (None, None, Some(0))
    );
    drop(permit);
}

#[tokio::test(start_paused = true)]
async fn each_key_explains_its_grants_and_denials_idle_or_active() {
    for policy in [
        "3/min and 100/h",
        "3/min and 100/h and 5 concurrent",
        "3/min per request and 100/h",
    ] {
        let per_user = tollgate::KeyedLimiter::new(policy).unwrap();
        let (answer, limits) = per_user.request("alice").try_acquire_explained();
        assert_eq!(
            (answer.map(drop), remaining(&limits)[..2].to_vec()),
            (Ok(()), vec![2, 99]),
            "{policy}"
        );
        let (_permit, limits) = granted(per_user.request("alice").acquire_explained()).await;
        assert_eq!(remaining(&limits)[..2], [1, 98], "{policy}");
        drop(per_user.request("alice").try_acquire().unwrap());
        let (answer, limits) = per_user.request("alice").try_acquire_explained();
        assert!(matches!(answer, Err(TryAcquireError::Denied(_))));
        assert_eq!(remaining(&limits)[..2], [0, 97], "{policy}");
        let start = Instant::now();
        let waited = tokio::spawn(per_user.request("alice").acquire_explained());
        let (permit, limits) = waited.await.unwrap();
        let _permit = permit.unwrap();
        assert_eq!(
            (start.elapsed().as_secs(), remaining(&limits)[0]),
            (20, 0),
            "{policy}"
        );
        assert_eq!(
            (
                remaining(&per_user.limits("alice")),
                remaining(&per_user.limits("bob"))[..2].to_vec()
            )
                .1,
            vec![3, 100]
        );
    }
}

fn timed_out(answer: Result<Permit, AcquireError>) -> (Option<Duration>, Decision) {
    match answer {
        Err(AcquireError::TimedOut {
            retry_after,
            decision: Some(decision),
        }) => (retry_after, *decision),
        other => panic!("{other:?}"),
    }
}

/// A request can time out for several reasons, with requests before it in the queue and without.
#[tokio::test(start_paused = true)]
async fn a_timeout_names_the_limit_that_the_request_waited_for() {
    let decided = |limiter: &Limiter, cost: u64| {
        let late = limiter
            .request()
            .cost(cost)
            .timeout(ms(10))
            .acquire_explained();
        async { timed_out(late.await.0).1 }
    };
    let limiter = Limiter::new("2 concurrent and 100/s burst 4").unwrap();
    let held = limiter.try_acquire_many(2).unwrap();
    let waiting: Vec<_> = (0..3).map(|_| queued(limiter.acquire())).collect();
    let decision = decided(&limiter, 1).await;
    assert_eq!(
        (
            decision.denied_by_index(),
            decision.retry_after(),
            decision.remaining()
        ),
        (Some(0), None, 0)
    ); // not of the rate
    drop(waiting);
    held.release();
    tokio::time::sleep(ms(1_000)).await;
    limiter.try_acquire_many(2).unwrap().release();
    limiter.try_acquire_many(2).unwrap().release();
    let decision = decided(&limiter, 2).await;
    assert_eq!(
        (decision.denied_by_index(), decision.retry_after()),
        (Some(1), Some(ms(20)))
    );
    limiter.pause_for(ms(60_000));
    tokio::time::sleep(ms(1_000)).await;
    let decision = decided(&limiter, 1).await;
    assert_eq!(
        (
            decision.is_paused(),
            decision.denied_by(),
            decision.retry_after()
        ),
        (true, None, Some(ms(59_000)))
    );

    let limiter = Limiter::new("penalty 2 falling 1/s").unwrap();
    limiter.try_acquire_many(2).unwrap().release();
    let decision = decided(&limiter, 1).await;
    assert_eq!(
        decision
            .denied_by()
            .map(|limit| matches!(limit, Limit::Penalty(_))),
        Some(true)
    );
}

#[tokio::test(start_paused = true)]
async fn an_explained_refusal_is_of_its_own_instant_and_not_of_the_poll() {
    let limiter = Limiter::new("window 5/min and 9 concurrent").unwrap();
    let held = limiter.try_acquire_many(4).unwrap();
    let (answer, limits) = limiter
        .request()
        .cost(2)
        .timeout(Duration::from_secs(59))
        .acquire_explained()
        .await;
    let after = Some(Duration::from_secs(60));
    let (retry_after, decision) = timed_out(answer);
    assert_eq!(
        (retry_after, decision.retry_after(), remaining(&limits)),
        (after, after, vec![1, 5])
    );
    assert_eq!(
        (decision.denied_by_index(), decision.remaining()),
        (Some(0), 1)
    );

    let limiter = Limiter::builder("2 concurrent and 100/min burst 100")
        .max_queue(1)
        .overflow(Overflow::DropLowestPriority);
    let limiter = limiter.build().unwrap();
    let places = limiter.try_acquire_many(2).unwrap();
    let mut dropped = queued(
        limiter
            .request()
            .priority(Priority::LOW)
            .acquire_explained(),
    );
    let mut late = queued(limiter.request().timeout(ms(10)).acquire_explained());
    let (answer, limits) = assert_ready!(dropped.poll());
    assert_eq!(
        (
            matches!(answer, Err(AcquireError::Shed { .. })),
            remaining(&limits)
        ),
        (true, vec![0, 98])
    );
    let (answer, limits) = limiter.request().acquire_explained().await;
    assert_eq!(
        (
            matches!(answer, Err(AcquireError::QueueFull { .. })),
            remaining(&limits)
        ),
        (true, vec![0, 98])
    );
    tokio::time::sleep(ms(11)).await;
    assert!(late.is_woken());
    drop(places); // after its timeout, before its poll
    let (answer, limits) = assert_ready!(late.poll());
    assert_eq!(
        (
            matches!(answer, Err(AcquireError::TimedOut { .. })),
            remaining(&limits)
        ),
        (true, vec![0, 98])
    );
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn an_explained_refusal_of_a_key_has_the_status_of_its_limits() {
    let per_user = tollgate::KeyedLimiter::new("window 3/min").unwrap();
    per_user.try_acquire_many("alice", 3).unwrap().release();
    let (answer, limits) = per_user
        .request("alice")
        .timeout(ms(1))
        .acquire_explained()
        .await;
    assert_eq!((answer.is_err(), remaining(&limits)), (true, vec![0]));
}
