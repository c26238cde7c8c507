//! A change of the policy at run time, under load and with waiters.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{self, idle_for_real, limiter, ms, queued};
use tokio::time::{Instant, advance, sleep};
use tokio_test::assert_ready;
use tollgate::{
    Adapt, ConfigError, FixedWindow, Limit, Limiter, MaxConcurrency, Outcome, Penalty, Permit,
    Policy, Rate, SlidingWindow, Throttle, TokenBucket, TryAcquireError, UsageCarryOver,
};

const SECOND: Duration = ms(1_000);

fn window(units: u64) -> FixedWindow {
    FixedWindow::new(units, SECOND)
}

/// Every kind of rate takes over from every other kind, unit by unit and in proportion.
#[tokio::test(start_paused = true)]
async fn usage_is_kept_whatever_limit_takes_over() {
    let kinds: [fn(u64) -> Limit; 7] = [
        |units| Throttle::every(ms(100)).burst(units).into(),
        |units| TokenBucket::new(Rate::per_second(10), units).into(),
        |units| {
            TokenBucket::new(Rate::per_second(units), units)
                .refill_each_period()
                .into()
        },
        |units| window(units).into(),
        |units| SlidingWindow::log(units, SECOND).into(),
        |units| SlidingWindow::counter(units, SECOND).into(),
        |units| Penalty::new(units, Rate::per_second(10)).into(),
    ];
    for old in kinds {
        for new in kinds {
            for (carry, most, left) in [
                (UsageCarryOver::AsIs, 20, 14),
                (UsageCarryOver::AsIs, 4, 0),
                (UsageCarryOver::InProportion, 20, 8),
                (UsageCarryOver::InProportion, 5, 2),
            ] {
                let limiter = limiter(old(10));
                drop(limiter.try_acquire_many(6).unwrap());
                limiter.set_policy_with(new(most), carry).unwrap();
                assert_eq!(
                    limiter.check(1).remaining(),
                    left,
                    "{} to {}, {carry:?}",
                    old(10),
                    new(most)
                );
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_invalid_policy_is_refused_and_changes_nothing() {
    let limiter = limiter(window(10));
    drop(limiter.try_acquire_many(6).unwrap());
    let waiting = queued(limiter.acquire_many(8));
    let error = limiter
        .set_policy(Policy::from(window(20)).and(MaxConcurrency::new(0)))
        .unwrap_err();
    assert!(matches!(error, ConfigError::ZeroLimit { .. }));
    assert_eq!(
        (limiter.check(1).limit(), limiter.snapshot().queued),
        (10, 1)
    );
    assert!(!waiting.is_woken());
}

#[tokio::test(start_paused = true)]
async fn shrinking_below_the_places_in_use_waits_for_releases_and_growing_serves_at_once() {
    let limiter = limiter(MaxConcurrency::new(4));
    let mut out: Vec<_> = (0..4).map(|_| limiter.try_acquire().unwrap()).collect();
    let waiting: Vec<_> = (0..4).map(|_| queued(limiter.acquire_many(1))).collect();
    let woken = || {
        waiting
            .iter()
            .take_while(|waiting| waiting.is_woken())
            .count()
    };
    limiter.set_policy(MaxConcurrency::new(2)).unwrap();
    assert_eq!(
        (limiter.snapshot().in_flight, limiter.snapshot().concurrency),
        (4, Some(2))
    );
    out.truncate(2);
    assert_eq!(woken(), 0, "two are out still");
    out.truncate(1);
    assert_eq!((woken(), limiter.snapshot().in_flight), (1, 2));
    limiter.set_policy(MaxConcurrency::new(4)).unwrap();
    assert_eq!((woken(), limiter.snapshot().in_flight), (3, 4));
    limiter.set_policy(window(100)).unwrap();
    assert_eq!(woken(), 4, "nothing is to be waited for");
}

#[tokio::test(start_paused = true)]
async fn a_cost_that_can_no_longer_be_admitted_fails_and_waiters_behind_it_are_served() {
    let limiter = limiter(MaxConcurrency::new(8));
    let out = limiter.try_acquire_many(6).unwrap();
    let (mut five, two, mut eight) = (
        queued(limiter.acquire_many(5)),
        queued(limiter.acquire_many(2)),
        queued(limiter.acquire_many(8)),
    );
    limiter.set_policy(MaxConcurrency::new(4)).unwrap();
    assert_eq!(
        common::exceeded(&assert_ready!(five.poll()).unwrap_err()),
        Some((5, 4))
    );
    assert_eq!(
        common::exceeded(&assert_ready!(eight.poll()).unwrap_err()),
        Some((8, 4))
    );
    assert!(!two.is_woken());
    drop(out);
    two.await.unwrap().release();
    assert_eq!(
        (limiter.snapshot().queued, limiter.snapshot().in_flight),
        (0, 0)
    );
}

/// A front whose cost has become impossible is refused at once, although nothing is released.
#[tokio::test(start_paused = true)]
async fn when_the_front_becomes_impossible_the_next_does_not_wait_for_a_release() {
    let limiter = limiter(MaxConcurrency::new(8));
    let _out = limiter.try_acquire_many(2).unwrap();
    let (eight, two) = (
        queued(limiter.acquire_many(8)),
        queued(limiter.acquire_many(2)),
    );
    limiter.set_policy(MaxConcurrency::new(4)).unwrap();
    assert!(eight.is_woken() && two.is_woken());
    assert_eq!(limiter.snapshot().in_flight, 4);
}

/// The timer follows the policy: waiters of a slow rate continue at the faster one, and those of a fast rate at the slower one.
#[tokio::test(start_paused = true)]
async fn waiters_follow_the_new_pace_at_once() {
    let limiter = limiter(Throttle::every(ms(100)));
    drop(limiter.try_acquire().unwrap());
    let start = Instant::now();
    let tasks: Vec<_> = (0..6)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                limiter.acquire().await.unwrap().release();
                start.elapsed().as_millis()
            })
        })
        .collect();
    sleep(ms(250)).await;
    limiter.set_policy(Throttle::every(ms(10))).unwrap(); // half a unit is used
    sleep(ms(25)).await;
    limiter.set_policy(Throttle::every(SECOND)).unwrap();
    let mut at = Vec::new();
    for task in tasks {
        at.push(task.await.unwrap());
    }
    assert_eq!(at, [100, 200, 255, 265, 275, 1_275]);
}

#[tokio::test(start_paused = true)]
async fn no_waiter_is_stranded_when_a_clock_begins_or_ceases_to_matter() {
    let limiter = limiter(MaxConcurrency::new(1));
    let _for_ever = limiter.try_acquire().unwrap();
    let (first, second) = (
        queued(limiter.acquire_many(1)),
        queued(limiter.acquire_many(1)),
    );
    sleep(ms(500)).await;
    let start = Instant::now();
    limiter.set_policy(Throttle::every(ms(100))).unwrap(); // new: none of it is used
    first.await.unwrap().release();
    assert_eq!(start.elapsed(), ms(0));
    second.await.unwrap().release();
    assert_eq!(start.elapsed(), ms(100));
    let third = queued(limiter.acquire_many(1));
    limiter.set_policy(MaxConcurrency::new(2)).unwrap();
    third.await.unwrap().release();
    assert_eq!(
        (start.elapsed(), limiter.snapshot().in_flight),
        (ms(100), 1)
    );
}

/// Permits in flight are counted even if no limit counts them, so a concurrency that is added again is never exceeded.
#[tokio::test(start_paused = true)]
async fn a_concurrency_that_was_removed_and_comes_back_counts_what_is_out() {
    let limiter = limiter(MaxConcurrency::new(4));
    let mut out: Vec<_> = (0..4).map(|_| limiter.try_acquire().unwrap()).collect();
    limiter.set_policy(window(100)).unwrap();
    assert_eq!(
        (limiter.snapshot().in_flight, limiter.snapshot().concurrency),
        (4, None)
    );
    let uncounted = limiter.try_acquire_many(10).unwrap();
    out.pop();
    assert_eq!(limiter.snapshot().in_flight, 3);
    limiter
        .set_policy(Policy::from(MaxConcurrency::new(4)).and(window(100)))
        .unwrap();
    assert_eq!(limiter.snapshot().in_flight, 3);
    let fourth = limiter.try_acquire().unwrap();
    assert!(limiter.try_acquire().is_err());
    drop(uncounted);
    assert!(limiter.try_acquire().is_err(), "it holds no place");
    out.clear();
    drop(fourth);
    assert_eq!(limiter.snapshot().in_flight, 0);
    assert!(limiter.try_acquire_many(4).is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_new_ttl_counts_from_the_grant_or_the_last_renewal() {
    let limiter = limiter(MaxConcurrency::new(3).ttl(ms(100)));
    let start = Instant::now();
    let (plain, renewed) = (
        limiter.acquire().await.unwrap(),
        limiter.acquire().await.unwrap(),
    );
    sleep(ms(50)).await;
    assert!(renewed.renew());
    limiter
        .set_policy(MaxConcurrency::new(3).ttl(ms(200)))
        .unwrap();
    assert_eq!(
        (plain.expires_at(), renewed.expires_at()),
        (Some(start + ms(200)), Some(start + ms(250)))
    );
    sleep(ms(55)).await; // past the end of the former TTL
    assert!(plain.is_live());
    limiter
        .set_policy(MaxConcurrency::new(3).ttl(ms(60)))
        .unwrap();
    assert!(!plain.is_live() && renewed.expires_at() == Some(start + ms(110)));
    renewed.reclaimed().await;
    assert_eq!(
        (start.elapsed(), limiter.snapshot().reclaimed),
        (ms(110), 2)
    );
}

#[tokio::test(start_paused = true)]
async fn a_shorter_ttl_that_has_passed_already_makes_room_for_waiters_at_once() {
    let limiter = limiter(MaxConcurrency::new(1).ttl(ms(1_000)));
    let late = limiter.acquire().await.unwrap();
    sleep(ms(50)).await;
    let waiting = queued(limiter.acquire_many(1));
    limiter
        .set_policy(MaxConcurrency::new(1).ttl(ms(50)))
        .unwrap();
    assert!(waiting.is_woken() && !late.is_live());
}

/// Two fixed bugs: after a change to a policy without a TTL, permits got a TTL of a hundred years, which counted from no known
/// instant, and a timer for it.
#[tokio::test(start_paused = true)]
async fn a_ttl_that_was_taken_away_is_gone_and_those_granted_meanwhile_never_get_one() {
    let limiter = limiter(MaxConcurrency::new(3).ttl(ms(100)));
    let before = limiter.acquire().await.unwrap();
    sleep(ms(50)).await;
    limiter.set_policy(MaxConcurrency::new(3)).unwrap();
    assert!(before.is_live() && before.expires_at().is_none() && before.renew());
    sleep(ms(100)).await; // the timer that was set may fire, once
    let start = Instant::now();
    idle_for_real().await;
    assert_eq!(start.elapsed(), ms(0));
    let meanwhile = limiter.acquire().await.unwrap();
    assert!(meanwhile.expires_at().is_none() && meanwhile.renew());
    sleep(ms(850)).await;
    assert!(before.renew());
    limiter
        .set_policy(MaxConcurrency::new(3).ttl(ms(100)))
        .unwrap();
    assert!(before.is_live() && meanwhile.is_live());
    assert_eq!(before.expires_at(), Some(Instant::now() + ms(100)));
    assert_eq!(meanwhile.expires_at(), None);
    sleep(ms(500)).await;
    assert!(!before.is_live() && meanwhile.is_live());
    assert_eq!(limiter.snapshot().in_flight, 1);
    drop(meanwhile);
    assert_eq!(limiter.snapshot().in_flight, 0);
}

/// A fixed bug, never over: a refund went to limits that had never charged the permit.
#[tokio::test(start_paused = true)]
async fn a_refund_gives_nothing_to_a_limit_that_came_after_the_grant() {
    for limit in [
        Limit::from(window(5)),
        TokenBucket::new(Rate::per_second(5), 5).into(),
        SlidingWindow::log(5, SECOND).into(),
        SlidingWindow::counter(5, SECOND).into(),
        Penalty::new(5, Rate::per_second(5)).into(),
    ] {
        let limiter = limiter(MaxConcurrency::new(100));
        let before = limiter.try_acquire_many(5).unwrap();
        limiter
            .set_policy(Policy::from(MaxConcurrency::new(100)).and(limit))
            .unwrap();
        let _full = limiter.try_acquire_many(5).unwrap();
        assert!(before.refund());
        assert!(
            limiter.try_acquire().is_err(),
            "{limit}: ten in a window of five"
        );
    }
}

/// The same bug, for usage that was carried over and is measured in other units than the grant.
#[tokio::test(start_paused = true)]
async fn carried_usage_stays_although_its_permit_is_refunded() {
    for (new, carry) in [
        (window(20), UsageCarryOver::InProportion),
        (FixedWindow::new(20, 10 * SECOND), UsageCarryOver::AsIs),
    ] {
        let limiter = limiter(FixedWindow::new(100, ms(10)));
        let before = limiter.try_acquire_many(50).unwrap();
        advance(ms(if carry == UsageCarryOver::AsIs { 15 } else { 0 })).await;
        limiter.set_policy_with(new, carry).unwrap();
        let rest = limiter.check(1).remaining();
        let _full = limiter.try_acquire_many(rest).unwrap();
        assert!(before.refund());
        assert!(limiter.try_acquire().is_err(), "{carry:?}");
    }
}

/// A limit that is equal in both policies keeps its state and the grants that it can refund.
#[tokio::test(start_paused = true)]
async fn a_limit_that_stays_keeps_its_state_and_takes_back_what_it_charged() {
    let limiter = limiter(Policy::from(window(10)).and(MaxConcurrency::new(50)));
    let before = limiter.try_acquire_many(6).unwrap();
    advance(ms(400)).await;
    limiter
        .set_policy(
            Policy::from(MaxConcurrency::new(20))
                .and(window(10))
                .and(Throttle::every(ms(1)).burst(30)),
        )
        .unwrap();
    assert_eq!(limiter.check(5).retry_after(), Some(ms(600)));
    assert!(before.refund());
    assert_eq!(limiter.check(1).remaining(), 10);
}

/// A fixed bug: a bucket that is not full when new lost its tokens at every change.
#[tokio::test(start_paused = true)]
async fn the_initial_level_of_a_bucket_does_not_apply_when_it_takes_over() {
    let bucket = |rate: u64, interval: bool| {
        let bucket = TokenBucket::new(Rate::per_second(rate), 10).initial(2);
        if interval {
            bucket.refill_each_period()
        } else {
            bucket
        }
    };
    for interval in [false, true] {
        let limiter = limiter(bucket(10, interval));
        assert_eq!(limiter.check(1).remaining(), 2);
        advance(ms(2_500)).await;
        assert_eq!(limiter.check(1).remaining(), 10);
        drop(limiter.try_acquire_many(3).unwrap());
        limiter.set_policy(bucket(11, interval)).unwrap();
        assert_eq!(limiter.check(1).remaining(), 7, "interval: {interval}");
        limiter
            .set_policy(Policy::from(bucket(11, interval)).and(bucket(12, interval)))
            .unwrap();
        assert_eq!(limiter.check(1).remaining(), 2, "the second is new");
    }
}

#[tokio::test(start_paused = true)]
async fn an_adaptive_limit_that_stays_keeps_its_measurements() {
    let adaptive = MaxConcurrency::new(20).adapt(Adapt::aimd().between(2, 100));
    let limiter = limiter(adaptive);
    let report = |limiter: &Limiter, outcome| limiter.try_acquire().unwrap().report(outcome);
    assert!(report(&limiter, Outcome::Overloaded));
    assert_eq!(limiter.snapshot().concurrency, Some(18));
    limiter
        .set_policy(Policy::from(adaptive).and(window(1_000)))
        .unwrap();
    assert_eq!(limiter.snapshot().concurrency, Some(18));
    limiter
        .set_policy(MaxConcurrency::new(20).adapt(Adapt::aimd().between(2, 101)))
        .unwrap();
    assert_eq!(
        limiter.snapshot().concurrency,
        Some(20),
        "another limit starts reset"
    );
}

/// A fixed bug: a permit from before the change reported a round trip that was not measured.
#[tokio::test(start_paused = true)]
async fn an_adaptive_limit_ignores_reports_of_permits_older_than_itself() {
    let limiter = limiter(MaxConcurrency::new(20));
    sleep(ms(10_000)).await;
    let before = limiter.try_acquire().unwrap();
    limiter
        .set_policy(MaxConcurrency::new(20).adapt(Adapt::aimd().timeout(ms(100))))
        .unwrap();
    assert!(before.report(Outcome::Ok));
    assert_eq!(
        (limiter.snapshot().concurrency, limiter.snapshot().in_flight),
        (Some(20), 0)
    );
}

/// Under load, with policies that change all the time: never over, and no waiter is lost.
#[tokio::test(start_paused = true)]
async fn a_storm_of_changes_strands_no_waiter_and_leaves_nothing_behind() {
    let policies = [
        Policy::from(MaxConcurrency::new(3)),
        Policy::from(Throttle::every(ms(3)).burst(2)),
        Policy::from(MaxConcurrency::new(5).ttl(ms(400))).and(window(50)),
        Policy::from(TokenBucket::new(Rate::per_second(300), 4)).and(MaxConcurrency::new(2)),
        Policy::from(SlidingWindow::counter(20, ms(100))),
        Policy::from(MaxConcurrency::new(20).adapt(Adapt::gradient().between(4, 30)))
            .and(SlidingWindow::log(30, ms(100))),
    ];
    let limiter = limiter(policies[0].clone());
    let work = |nth: u64, limiter: Limiter| async move {
        sleep(ms(nth % 50)).await;
        let permit: Permit = limiter.acquire_many(1 + nth % 2).await.unwrap();
        sleep(ms(1 + nth % 7)).await;
        match nth % 4 {
            0 => drop(permit.settle(nth % 3)),
            1 => drop(permit.refund()),
            2 => drop(permit.report(Outcome::Ok)),
            _ => permit.release(),
        }
    };
    let tasks: Vec<_> = (0..1_000)
        .map(|nth| tokio::spawn(work(nth, limiter.clone())))
        .collect();
    let changes = {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            for nth in 0.. {
                let carry = if nth % 2 == 0 {
                    UsageCarryOver::AsIs
                } else {
                    UsageCarryOver::InProportion
                };
                limiter
                    .set_policy_with(policies[nth * 5 % policies.len()].clone(), carry)
                    .unwrap();
                sleep(ms(11)).await;
            }
        })
    };
    for task in tasks {
        tokio::time::timeout(Duration::from_secs(600), task)
            .await
            .expect("a request is stranded")
            .unwrap();
    }
    changes.abort();
    assert_eq!(
        (
            limiter.snapshot().in_flight,
            limiter.snapshot().queued,
            limiter.snapshot().granted
        ),
        (0, 0, 1_000)
    );
}

/// On threads and the real clock, with everything at once: no more units are in flight than the largest policy allows, and all
/// are released.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn changes_from_several_threads_exceed_no_limit_and_lose_no_waiter() {
    let policies = [
        Policy::from(MaxConcurrency::new(3)),
        Policy::from(MaxConcurrency::new(5)).and(TokenBucket::new(Rate::per_second(100_000), 50)),
        Policy::from(MaxConcurrency::new(4).ttl(Duration::from_secs(60)))
            .and(SlidingWindow::log(500, ms(5))),
        Policy::from(MaxConcurrency::new(2)).and(FixedWindow::new(300, ms(3))),
    ];
    let limiter = limiter(policies[0].clone());
    let (out, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let work = |nth: u64, limiter: Limiter, out: Arc<AtomicU64>, most: Arc<AtomicU64>| async move {
        for round in 0..30 {
            let cost = 1 + (nth + round) % 2;
            if (nth + round).is_multiple_of(11) {
                drop(
                    tokio::time::timeout(Duration::from_micros(50), limiter.acquire_many(cost))
                        .await,
                ); // given up, or not
                continue;
            }
            let permit = limiter.acquire_many(cost).await.unwrap();
            most.fetch_max(
                out.fetch_add(cost, Ordering::SeqCst) + cost,
                Ordering::SeqCst,
            );
            tokio::task::yield_now().await;
            out.fetch_sub(cost, Ordering::SeqCst);
            match (nth + round) % 3 {
                0 => drop(permit.settle(round % 3)),
                1 => drop(permit.refund()),
                _ => permit.release(),
            }
        }
    };
    let tasks: Vec<_> = (0..100)
        .map(|nth| {
            tokio::spawn(work(
                nth,
                limiter.clone(),
                Arc::clone(&out),
                Arc::clone(&most),
            ))
        })
        .collect();
    let stop = Arc::new(AtomicBool::new(false));
    let changes = {
        let (limiter, stop) = (limiter.clone(), Arc::clone(&stop));
        std::thread::spawn(move || {
            for nth in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                limiter
                    .set_policy(policies[nth % policies.len()].clone())
                    .unwrap();
                limiter.pause_for(Duration::from_micros(200));
                std::thread::sleep(Duration::from_micros(100));
                if nth % 3 == 0 {
                    limiter.resume();
                }
            }
            limiter.resume();
        })
    };
    for task in tasks {
        tokio::time::timeout(Duration::from_secs(60), task)
            .await
            .expect("a request is stranded")
            .unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    changes.join().unwrap();
    assert!(most.load(Ordering::SeqCst) <= 5, "{most:?} were out");
    let snapshot = limiter.snapshot();
    assert_eq!(
        (snapshot.in_flight, snapshot.queued, snapshot.reclaimed),
        (0, 0, 0)
    );
}

/// A fixed bug: a ban became the bare threshold, and a change of policy lifted it.
#[tokio::test(start_paused = true)]
async fn a_ban_outlasts_a_change_of_the_penalty() {
    let penalty = |threshold| Penalty::new(threshold, Rate::per_second(1)).ban(ms(1_000_000));
    let limiter = limiter(penalty(2));
    drop(limiter.try_acquire_many(2).unwrap());
    assert!(limiter.try_acquire().is_err());
    for carry in [UsageCarryOver::AsIs, UsageCarryOver::InProportion] {
        limiter.set_policy_with(penalty(20), carry).unwrap();
        assert_eq!(limiter.check(1).retry_after(), Some(ms(1_000_000)));
    }
    advance(ms(1_000_000)).await;
    drop(limiter.try_acquire_many(10).unwrap());
    limiter
        .set_policy_with(penalty(40), UsageCarryOver::InProportion)
        .unwrap();
    assert_eq!(limiter.check(1).remaining(), 20);
}

/// A fixed bug: a carry-over of no units opened a window.
#[tokio::test(start_paused = true)]
async fn a_window_from_the_first_grant_is_not_opened_by_a_change() {
    let from_first_grant =
        |units| FixedWindow::new(units, ms(1_000)).align(tollgate::Align::FirstGrant);
    let limiter = limiter(from_first_grant(5));
    limiter.set_policy(from_first_grant(10)).unwrap();
    advance(ms(900)).await;
    let _full = limiter.try_acquire_many(10).unwrap();
    assert_eq!(limiter.check(1).retry_after(), Some(ms(1_000)));
}

#[tokio::test(start_paused = true)]
async fn a_denial_is_that_of_the_present_policy_and_counts() {
    let limiter = limiter(Throttle::every(ms(100)).burst(2));
    let denied = |cost| {
        let Err(TryAcquireError::Denied(decision)) = limiter.try_acquire_many(cost) else {
            panic!("{cost} units are granted")
        };
        (
            decision.denied_by().unwrap().to_string(),
            decision.limit(),
            decision.remaining(),
            decision.retry_after(),
            decision.reset_after(),
        )
    };
    drop(limiter.try_acquire().unwrap());
    advance(ms(30)).await;
    let throttle = String::from("throttle every 100ms burst 2");
    let expected = (throttle, 2, 1, Some(ms(70)), ms(70));
    assert_eq!((denied(2), denied(2)), (expected.clone(), expected));
    limiter
        .set_policy(TokenBucket::new(Rate::per_second(10), 2))
        .unwrap();
    let expected = (String::from("10/s burst 2"), 2, 1, Some(ms(70)), ms(70));
    assert_eq!(denied(2), expected);
    limiter.set_policy(FixedWindow::new(4, ms(500))).unwrap();
    drop(limiter.try_acquire_many(3).unwrap());
    let (limit, _, remaining, ..) = denied(3);
    assert_eq!((limit.as_str(), remaining), ("window 4/500ms", 0));
    assert_eq!(limiter.snapshot().denied, 4);
}
