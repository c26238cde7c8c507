//! Invariant 2, never lost: the `acquire` future is dropped at every poll, in each state, for each strategy, and no other caller
//! notices. The reference is the same schedule without the cancelled request.

use crate::common::{self, every_strategy, ms};
use tokio::time::{Instant, sleep};
use tokio_test::{assert_pending, task};
use tollgate::{Limiter, MaxConcurrency, Overflow, Permit, Policy, Throttle};

#[derive(Debug, Clone, Copy, PartialEq)]
enum DroppedWhen {
    /// The reference: the request is never made.
    NeverMade,
    NeverPolled,
    AtTheFront,
    Behind,
    PolledAgain,
    /// The request is granted, and has not taken its permit.
    Granted,
    /// The request was granted, its task was woken, and another request was granted since.
    GrantedLongAgo,
}

/// Spends all units, lets a witness and a cancelled request wait, and returns one held permit every 50 ms. Returns when the witness
/// is served.
async fn witness_served_at(
    policy: &Policy,
    cost: u64,
    dropped: DroppedWhen,
) -> (u128, Limiter, Vec<Permit>) {
    let limiter = Limiter::new(policy.clone()).unwrap();
    let mut held: Vec<Permit> = std::iter::from_fn(|| limiter.try_acquire().ok()).collect();
    let start = Instant::now();
    let mut cancelled =
        (dropped != DroppedWhen::NeverMade).then(|| task::spawn(limiter.acquire_many(cost)));
    let mut witness = task::spawn(limiter.acquire());
    if dropped == DroppedWhen::Behind {
        assert_pending!(witness.poll());
    }
    if let Some(cancelled) = cancelled
        .as_mut()
        .filter(|_| dropped != DroppedWhen::NeverPolled)
    {
        assert_pending!(cancelled.poll());
    }
    if dropped == DroppedWhen::PolledAgain {
        assert_pending!(cancelled.as_mut().unwrap().poll());
    }
    if dropped != DroppedWhen::Behind {
        assert_pending!(witness.poll());
    }
    if !matches!(dropped, DroppedWhen::Granted | DroppedWhen::GrantedLongAgo) {
        cancelled = None;
    }
    while !witness.is_woken() {
        sleep(ms(1)).await;
        if start.elapsed().as_millis().is_multiple_of(50) {
            held.pop();
        }
        if cancelled.as_ref().is_some_and(task::Spawn::is_woken) && dropped == DroppedWhen::Granted
        {
            assert!(
                !witness.is_woken() || cost == 1,
                "{policy}: they were served at once, not in order"
            );
            cancelled = None;
            break;
        }
        assert!(
            start.elapsed() < ms(1_000),
            "{policy}, {dropped:?}: the witness is stranded"
        );
    }
    assert!(
        witness.is_woken(),
        "{policy}, {dropped:?}: the grant did not go to the next"
    );
    let served = start.elapsed().as_millis();
    drop(witness.await.unwrap());
    sleep(ms(500)).await;
    drop(cancelled);
    (served, limiter, held)
}

#[tokio::test(start_paused = true)]
async fn a_dropped_acquire_delays_no_other_request_in_any_state_under_any_strategy() {
    // Windows of the wall clock begin at another instant in each run, so they have no reference.
    for policy in every_strategy()
        .into_iter()
        .filter(|policy| !policy.to_string().contains("wall clock"))
    {
        let max = policy
            .limits()
            .iter()
            .map(tollgate::Limit::capacity)
            .min()
            .unwrap();
        for cost in [1, max] {
            let (reference, ..) = witness_served_at(&policy, cost, DroppedWhen::NeverMade).await;
            for dropped in [
                DroppedWhen::NeverPolled,
                DroppedWhen::AtTheFront,
                DroppedWhen::Behind,
                DroppedWhen::PolledAgain,
                DroppedWhen::Granted,
            ] {
                let (served, limiter, held) = witness_served_at(&policy, cost, dropped).await;
                // The large request was granted before the witness, so the witness waited for it.
                let waited_for = cost > 1 && dropped == DroppedWhen::Granted;
                assert!(
                    served == reference || waited_for && served > reference,
                    "{policy}, cost {cost}, {dropped:?}: {served} ms"
                );
                drop(held);
                let snapshot = limiter.snapshot();
                assert_eq!(
                    (snapshot.in_flight, snapshot.queued),
                    (0, 0),
                    "{policy}, {dropped:?}"
                );
                assert_eq!(
                    snapshot.refunded,
                    u64::from(dropped == DroppedWhen::Granted),
                    "{policy}, {dropped:?}"
                );
                assert!(
                    limiter.check(max).is_allowed(),
                    "{policy}, {dropped:?}: all units are there again"
                );
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_dropped_long_after_it_was_made_loses_no_unit() {
    for policy in every_strategy() {
        let max = policy
            .limits()
            .iter()
            .map(tollgate::Limit::capacity)
            .min()
            .unwrap();
        let (_, limiter, held) = witness_served_at(&policy, 1, DroppedWhen::GrantedLongAgo).await;
        drop(held);
        sleep(ms(500)).await;
        assert_eq!(
            (limiter.snapshot().in_flight, limiter.snapshot().queued),
            (0, 0),
            "{policy}"
        );
        assert!(limiter.check(max).is_allowed(), "{policy}");
    }
}

/// Trap: a dropped head of the queue strands the waiters behind it.
#[tokio::test(start_paused = true)]
async fn dropping_a_large_request_at_the_front_serves_the_small_ones_behind_it_at_once() {
    let limiter = Limiter::new(MaxConcurrency::new(4)).unwrap();
    let _out = limiter.try_acquire_many(2).unwrap();
    let (mut large, mut small) = (
        task::spawn(limiter.acquire_many(3)),
        task::spawn(limiter.acquire_many(2)),
    );
    assert_pending!(large.poll());
    assert_pending!(small.poll());
    drop(large);
    assert!(small.is_woken());
}

/// Many grants of one instant are dropped in every order: the whole burst is refunded.
#[tokio::test(start_paused = true)]
async fn grants_of_one_instant_are_refunded_whole_in_any_order() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]] {
        let limiter = Limiter::new(Throttle::every(ms(100)).burst(3)).unwrap();
        drop(limiter.try_acquire_many(3).unwrap());
        let mut large = task::spawn(limiter.acquire_many(3));
        assert_pending!(large.poll());
        let mut behind: Vec<_> = (0..3)
            .map(|_| Some(task::spawn(limiter.acquire())))
            .collect();
        behind
            .iter_mut()
            .flatten()
            .for_each(|waiter| assert_pending!(waiter.poll()));
        sleep(ms(301)).await;
        drop(large); // its three units go to the three behind it
        assert!(behind.iter().flatten().all(task::Spawn::is_woken));
        for nth in order {
            behind[nth] = None;
        }
        assert!(limiter.check(3).is_allowed());
        assert_eq!(limiter.snapshot().refunded, 4);
    }
}

/// Futures are dropped whose answer is a refusal: a timeout, a request shed by a full queue, a closed limiter.
#[tokio::test(start_paused = true)]
async fn refusals_that_are_never_polled_leave_nothing_behind() {
    let limiter = Limiter::new(MaxConcurrency::new(1)).unwrap();
    let out = limiter.try_acquire().unwrap();
    let (mut late, mut next) = (
        task::spawn(limiter.request().timeout(ms(10)).acquire()),
        task::spawn(limiter.acquire()),
    );
    assert_pending!(late.poll());
    assert_pending!(next.poll());
    sleep(ms(20)).await;
    assert!(late.is_woken());
    drop((late, out));
    assert!(next.is_woken());
    drop(next);
    assert_eq!(
        (limiter.snapshot().in_flight, limiter.snapshot().queued),
        (0, 0)
    );

    let limiter = Limiter::builder(MaxConcurrency::new(1))
        .max_queue(1)
        .overflow(Overflow::DropOldest)
        .build()
        .unwrap();
    let out = limiter.try_acquire().unwrap();
    let (mut shed, mut closed) = (
        task::spawn(limiter.acquire()),
        task::spawn(limiter.acquire()),
    );
    assert_pending!(shed.poll());
    assert_pending!(closed.poll());
    assert!(shed.is_woken());
    drop(shed);
    limiter.close();
    assert!(closed.is_woken());
    drop((closed, out));
    limiter.drained().await;
    assert_eq!((limiter.snapshot().queued, limiter.snapshot().shed), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_drops_its_tasks_gives_everything_back() {
    let limiter = Limiter::new(MaxConcurrency::new(2).ttl(ms(10_000))).unwrap();
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                let _permit = limiter.acquire().await.unwrap();
                std::future::pending::<()>().await;
            })
        })
        .collect();
    sleep(ms(1)).await;
    assert_eq!(
        (limiter.snapshot().in_flight, limiter.snapshot().queued),
        (2, 18)
    );
    for task in tasks.into_iter().rev() {
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
    }
    assert_eq!(
        (limiter.snapshot().in_flight, limiter.snapshot().queued),
        (0, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn run_gives_its_permit_back_when_it_is_dropped_half_way() {
    let limiter = Limiter::new(MaxConcurrency::new(1)).unwrap();
    let mut work = Box::pin(limiter.run(sleep(ms(1_000))));
    assert!(tokio::time::timeout(ms(10), &mut work).await.is_err());
    let mut queued = task::spawn(limiter.run(async {}));
    assert_pending!(queued.poll());
    drop(work);
    queued.await.unwrap();
    assert_eq!(limiter.snapshot().in_flight, 0);
    assert_eq!(
        common::exceeded(&limiter.acquire_many(2).await.unwrap_err()),
        Some((2, 1))
    );
}
