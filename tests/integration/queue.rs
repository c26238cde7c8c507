//! The queue as callers see it: its bound, and the rule for a full queue.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{self, ms, queued};
use tokio::time::{Instant, advance, sleep};
use tokio_test::{assert_pending, assert_ready, task};
use tollgate::{
    AcquireError, EventKind, Limiter, LimiterEvent, MaxConcurrency, Overflow, Policy, Priority,
    ShedReason, Throttle, TryAcquireError,
};

fn bounded(max_queue: usize, overflow: Overflow) -> Limiter {
    Limiter::builder(MaxConcurrency::new(1))
        .max_queue(max_queue)
        .overflow(overflow)
        .build()
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_rejects_the_new_request_at_once_by_default() {
    let limiter = bounded(2, Overflow::default());
    let out = limiter.acquire().await.unwrap();
    let (first, _second) = (
        queued(limiter.request().priority(Priority::LOW).acquire()),
        queued(limiter.request().priority(Priority::LOW).acquire()),
    );
    let error = limiter
        .request()
        .priority(Priority::HIGHEST)
        .acquire()
        .await
        .unwrap_err();
    assert_eq!(
        (error, limiter.snapshot().shed),
        (AcquireError::QueueFull { retry_after: None }, 1)
    );
    drop(out);
    assert!(first.is_woken());
    let _third = queued(limiter.request().priority(Priority::LOW).acquire()); // a place is free again
}

#[tokio::test(start_paused = true)]
async fn drop_oldest_sheds_the_longest_waiter_whatever_the_priority() {
    let limiter = bounded(2, Overflow::DropOldest);
    let out = limiter.acquire().await.unwrap();
    let (mut urgent, mut second) = (
        queued(limiter.request().priority(Priority::HIGH).acquire()),
        queued(limiter.request().priority(Priority::LOW).acquire()),
    );
    let mut third = queued(limiter.request().priority(Priority::LOW).acquire());
    assert_eq!(
        assert_ready!(urgent.poll()).unwrap_err(),
        AcquireError::Shed { retry_after: None }
    );
    let _fourth = queued(limiter.request().priority(Priority::LOWEST).acquire());
    assert_eq!(
        assert_ready!(second.poll()).unwrap_err(),
        AcquireError::Shed { retry_after: None }
    );
    drop(out);
    let _permit = assert_ready!(third.poll()).unwrap();
    assert_eq!(limiter.snapshot().shed, 2);
}

#[tokio::test(start_paused = true)]
async fn drop_lowest_priority_sheds_the_last_to_be_served_or_refuses_the_new_request() {
    let limiter = bounded(2, Overflow::DropLowestPriority);
    let _out = limiter.acquire().await.unwrap();
    let (_first, mut second) = (
        queued(limiter.request().priority(Priority::LOW).acquire()),
        queued(limiter.request().priority(Priority::LOW).acquire()),
    );
    assert_eq!(
        limiter
            .request()
            .priority(Priority::LOW)
            .acquire()
            .await
            .unwrap_err(),
        AcquireError::QueueFull { retry_after: None }
    );
    let _urgent = queued(limiter.request().priority(Priority::HIGH).acquire());
    assert_eq!(
        assert_ready!(second.poll()).unwrap_err(),
        AcquireError::Shed { retry_after: None }
    );
}

#[tokio::test(start_paused = true)]
async fn a_request_never_waits_under_max_queue_0() {
    for overflow in [
        Overflow::Reject,
        Overflow::DropOldest,
        Overflow::DropLowestPriority,
    ] {
        let limiter = bounded(0, overflow);
        let out = limiter.acquire().await.unwrap();
        assert_eq!(
            limiter.acquire().await.unwrap_err(),
            AcquireError::QueueFull { retry_after: None }
        );
        drop(out);
        drop(limiter.acquire().await.unwrap());
    }
}

/// A fixed bug: a waiter was shed for a new request that does not wait.
#[tokio::test(start_paused = true)]
async fn no_waiter_is_shed_for_a_request_that_does_not_wait() {
    let limiter = bounded(1, Overflow::DropOldest);
    let _out = limiter.acquire().await.unwrap();
    let waiting = queued(limiter.request().priority(Priority::NORMAL).acquire());
    let error = limiter
        .request()
        .timeout(ms(0))
        .acquire()
        .await
        .unwrap_err();
    assert_eq!(
        error,
        AcquireError::TimedOut {
            retry_after: None,
            decision: None
        }
    );
    assert!(!waiting.is_woken());
}

/// The victim may be the front of the queue.
#[tokio::test(start_paused = true)]
async fn shedding_the_front_serves_the_next_request_if_it_can_be_granted() {
    let limiter = Limiter::builder(MaxConcurrency::new(4))
        .max_queue(2)
        .overflow(Overflow::DropOldest)
        .build()
        .unwrap();
    let _out = limiter.try_acquire_many(2).unwrap();
    let mut large = task::spawn(limiter.acquire_many(3));
    assert_pending!(large.poll());
    let small = queued(limiter.request().priority(Priority::NORMAL).acquire());
    let mut newest = task::spawn(limiter.acquire());
    let _permit = assert_ready!(newest.poll()).unwrap();
    assert_eq!(
        assert_ready!(large.poll()).unwrap_err(),
        AcquireError::Shed { retry_after: None }
    );
    assert!(small.is_woken());
}

#[tokio::test(start_paused = true)]
async fn a_request_more_urgent_than_all_waiters_is_granted_at_once_if_it_can_be() {
    let limiter = Limiter::new(MaxConcurrency::new(4)).unwrap();
    let _out = limiter.try_acquire_many(2).unwrap();
    let mut large = task::spawn(limiter.acquire_many(3));
    assert_pending!(large.poll());
    let mut urgent = task::spawn(limiter.request().priority(Priority::HIGH).acquire());
    let _permit = assert_ready!(urgent.poll()).unwrap();
}

/// A fixed bug: a full queue refused the request, or dropped waiters for it, before it was decided whether the request must wait.
#[tokio::test(start_paused = true)]
async fn a_full_queue_refuses_and_sheds_nothing_for_a_request_that_can_be_granted_at_once() {
    let rules = [
        Overflow::Reject,
        Overflow::DropOldest,
        Overflow::DropLowestPriority,
        Overflow::Leak,
        Overflow::Block { penalty: ms(100) },
    ];
    for overflow in rules {
        let limiter = Limiter::builder(MaxConcurrency::new(2))
            .max_queue(1)
            .overflow(overflow)
            .build()
            .unwrap();
        let _out = limiter.acquire().await.unwrap();
        let mut large = queued(
            limiter
                .request()
                .cost(2)
                .priority(Priority::LOWEST)
                .acquire(),
        );
        let urgent = limiter
            .request()
            .priority(Priority::HIGHEST)
            .acquire()
            .await
            .expect("a place is left");
        assert_pending!(large.poll());
        assert_eq!(
            (limiter.snapshot().shed, limiter.snapshot().queued),
            (0, 1),
            "{overflow:?}"
        );
        drop(urgent);
        let urgent = limiter
            .request()
            .priority(Priority::HIGHEST)
            .timeout(ms(0))
            .acquire()
            .await;
        drop(urgent.expect("it does not have to wait"));
        let less_urgent =
            task::spawn(limiter.request().priority(Priority::LOWEST).acquire()).poll();
        match overflow {
            Overflow::DropOldest | Overflow::Leak => {
                drop(assert_ready!(less_urgent).expect("the waiter was dropped for it"));
            }
            _ => drop(
                assert_ready!(less_urgent).expect_err("behind the waiter it would have to wait"),
            ),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_of_the_newest_first_grants_the_newest_at_once_if_it_can() {
    let limiter = Limiter::builder(Throttle::every(ms(10)).burst(2))
        .newest_first()
        .max_queue(1)
        .build()
        .unwrap();
    drop(limiter.acquire().await.unwrap());
    let mut large = queued(limiter.acquire_many(2));
    let start = Instant::now();
    drop(limiter.acquire().await.unwrap());
    assert_eq!((start.elapsed(), limiter.snapshot().shed), (ms(0), 0));
    assert_pending!(large.poll());
    drop(large.await.unwrap());
    assert_eq!(start.elapsed(), ms(20));
}

/// The timer is set for the front of the queue: a later request that comes first and is due sooner is not delayed.
#[tokio::test(start_paused = true)]
async fn an_urgent_small_request_before_a_large_one_moves_the_timer_forward() {
    let limiter = Limiter::new(Throttle::every(ms(10)).burst(10)).unwrap();
    drop(limiter.try_acquire_many(10).unwrap());
    let start = Instant::now();
    let mut large = task::spawn(limiter.acquire_many(10));
    assert_pending!(large.poll());
    sleep(ms(1)).await; // the driver sleeps until the large one's turn
    drop(
        limiter
            .request()
            .priority(Priority::HIGH)
            .acquire()
            .await
            .unwrap(),
    );
    assert_eq!(start.elapsed(), ms(10));
    drop(large.await.unwrap());
    assert_eq!(start.elapsed(), ms(110));
}

#[tokio::test(start_paused = true)]
async fn deadlines_of_a_long_queue_are_kept_each_on_time_by_one_timer() {
    let limiter = Limiter::new(MaxConcurrency::new(1)).unwrap();
    let _out = limiter.acquire().await.unwrap();
    let start = Instant::now();
    let waiting: Vec<_> = (1..=200)
        .rev()
        .map(|nth| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                let error = limiter
                    .request()
                    .timeout(ms(nth))
                    .acquire()
                    .await
                    .unwrap_err();
                (error, start.elapsed(), ms(nth))
            })
        })
        .collect();
    for task in waiting {
        let (error, after, timeout) = task.await.unwrap();
        assert_eq!(
            (error, after),
            (
                AcquireError::TimedOut {
                    retry_after: None,
                    decision: None
                },
                timeout
            )
        );
    }
    assert_eq!(limiter.snapshot().timed_out, 200);
}

/// A fixed bug: a waiter with an earlier deadline was assumed to leave the queue, although it would be granted first.
#[tokio::test(start_paused = true)]
async fn a_timeout_that_cannot_be_met_is_refused_at_once_behind_a_waiter_that_is_granted_in_time() {
    let every_100_ms = || Policy::from(Throttle::every(ms(100)));
    for policy in [every_100_ms(), every_100_ms().and(MaxConcurrency::new(8))] {
        let limiter = Limiter::new(policy).unwrap();
        drop(limiter.acquire().await.unwrap());
        let mut ahead = queued(limiter.request().timeout(ms(150)).acquire());
        let start = Instant::now();
        let error = limiter
            .request()
            .timeout(ms(199))
            .acquire()
            .await
            .unwrap_err();
        assert_eq!(
            (start.elapsed(), error.retry_after()),
            (ms(0), Some(ms(200))),
            "{error}"
        );
        let at_the_very_end = limiter.request().timeout(ms(200)).acquire();
        drop(at_the_very_end.await.unwrap());
        assert_eq!(start.elapsed(), ms(200));
        drop(assert_ready!(ahead.poll()).unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn the_snapshot_has_the_counts_and_the_time_of_the_next_grant() {
    let limiter =
        Limiter::new(Policy::from(Throttle::every(ms(100))).and(MaxConcurrency::new(2))).unwrap();
    assert_eq!(limiter.snapshot().next_grant_in, Some(ms(0)));
    let _first = limiter.try_acquire().unwrap();
    assert!(limiter.try_acquire().is_err());
    assert_eq!(
        (limiter.snapshot().next_grant_in, limiter.snapshot().denied),
        (Some(ms(100)), 1)
    );
    sleep(ms(30)).await;
    let second = queued(limiter.request().priority(Priority::NORMAL).acquire());
    assert_eq!(
        (limiter.snapshot().next_grant_in, limiter.snapshot().queued),
        (Some(ms(70)), 1)
    );
    sleep(ms(100)).await;
    let _second = second.await.unwrap();
    assert_eq!(
        (
            limiter.snapshot().next_grant_in,
            limiter.snapshot().in_flight
        ),
        (None, 2)
    );
}

/// Several hundred waiters are served at one instant: they are woken in batches, in order.
#[tokio::test(start_paused = true)]
async fn a_large_release_serves_all_that_fit_in_order() {
    // Outside tokio's cooperative budget, which is 128 polls: all join the queue in one go.
    tokio::task::unconstrained(async {
        let limiter = Limiter::new(MaxConcurrency::new(1_000)).unwrap();
        let out = limiter.try_acquire_many(1_000).unwrap();
        let mut waiting: Vec<_> = (0..1_001)
            .map(|_| queued(limiter.request().priority(Priority::NORMAL).acquire()))
            .collect();
        drop(out);
        assert!(waiting[..1_000].iter().all(task::Spawn::is_woken) && !waiting[1_000].is_woken());
        waiting.pop();
        for (nth, waiting) in waiting.into_iter().enumerate() {
            assert_eq!(waiting.await.unwrap().fence(), nth as u64 + 2);
        }
    })
    .await;
}

/// A fixed bug: sums of huge costs saturate, and a saturated sum was later taken for an empty queue.
#[tokio::test(start_paused = true)]
async fn a_denial_is_never_reported_as_allowed_behind_huge_waiting_costs() {
    let limiter = Limiter::new(MaxConcurrency::new(u64::MAX)).unwrap();
    let _out = limiter.try_acquire().unwrap();
    let (mut first, mut second) = (
        task::spawn(limiter.acquire_many(u64::MAX)),
        task::spawn(limiter.acquire_many(u64::MAX)),
    );
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    drop(first);
    assert!(limiter.try_acquire().is_err() && !limiter.check(1).is_allowed());
}

/// A fixed bug: units were lost by the release of a cost that does not fit into the word, if the remaining units fit into it.
#[tokio::test(start_paused = true)]
async fn a_release_of_a_huge_cost_loses_no_unit() {
    for (limit, cost) in [
        (u64::MAX, u64::MAX),
        (1 << 33, (1 << 33) - 5),
        (1 << 32, 1 << 32),
        ((1 << 32) - 1, (1 << 32) - 1),
    ] {
        let limiter = Limiter::new(MaxConcurrency::new(limit)).unwrap();
        let permit = limiter.try_acquire_many(cost).unwrap();
        assert_eq!(limiter.try_acquire().is_ok(), cost < limit);
        drop(permit);
        assert_eq!(limiter.check(1).remaining(), limit);
        let permit = limiter.try_acquire_many(limit).unwrap();
        limiter.set_policy(Throttle::every(ms(1))).unwrap();
        limiter.set_policy(MaxConcurrency::new(9)).unwrap();
        assert!(limiter.try_acquire().is_err());
        drop(permit);
        assert_eq!(limiter.check(1).remaining(), 9);
    }
}

/// A cost that does not fit into the small form of a future waits, is granted and is released like others.
#[tokio::test(start_paused = true)]
async fn a_huge_cost_waits_and_is_released_as_a_small_one() {
    let limiter = Limiter::new(MaxConcurrency::new(u64::MAX)).unwrap();
    for cost in [
        1,
        u64::from(u32::MAX),
        u64::from(u32::MAX) + 1,
        u64::from(u32::MAX) + 2,
        u64::MAX,
    ] {
        for acquire in [
            |limiter: &'static Limiter, cost| limiter.acquire_many(cost),
            |limiter: &'static Limiter, cost| {
                limiter.request().cost(cost).timeout(ms(100)).acquire()
            },
        ] {
            let limiter: &'static Limiter = Box::leak(Box::new(limiter.clone()));
            let permit = acquire(limiter, cost).await.unwrap();
            assert_eq!(
                (permit.cost(), limiter.check(1).remaining()),
                (cost, u64::MAX - cost)
            );
            drop(permit);
            let out = limiter.try_acquire_many(u64::MAX).unwrap();
            drop(queued(acquire(limiter, cost))); // given up while it waits
            let (untaken, mut taken) = (
                queued(acquire(limiter, cost)),
                queued(acquire(limiter, cost)),
            );
            drop(out);
            assert!(untaken.is_woken());
            drop(untaken); // given up with its grant in its slot
            let permit = assert_ready!(taken.poll()).unwrap();
            assert_eq!(
                (permit.cost(), limiter.check(1).remaining()),
                (cost, u64::MAX - cost)
            );
            drop(permit);
            assert_eq!(limiter.check(1).remaining(), u64::MAX, "{cost}");
        }
    }
}

const PENALTY: Duration = ms(100);

/// The `BLOCK` of the npm package bottleneck: a full queue is dropped, and no request is accepted until none has come for a while.
#[tokio::test(start_paused = true)]
async fn block_drops_all_waiters_and_accepts_no_request_until_none_has_come_for_the_penalty() {
    let limiter = bounded(2, Overflow::Block { penalty: PENALTY });
    let out = limiter.acquire().await.unwrap();
    let (mut first, mut second) = (
        queued(limiter.request().priority(Priority::HIGHEST).acquire()),
        queued(limiter.request().priority(Priority::LOW).acquire()),
    );
    let blocked = AcquireError::Blocked {
        retry_after: PENALTY,
    };
    assert_eq!(limiter.acquire().await.unwrap_err(), blocked);
    assert_eq!(
        assert_ready!(first.poll()).unwrap_err(),
        AcquireError::Shed {
            retry_after: Some(PENALTY)
        }
    );
    assert_eq!(
        assert_ready!(second.poll()).unwrap_err(),
        AcquireError::Shed {
            retry_after: Some(PENALTY)
        }
    );
    drop(out);
    assert_eq!(
        (
            limiter.snapshot().queued,
            limiter.snapshot().in_flight,
            limiter.snapshot().shed
        ),
        (0, 0, 3)
    );

    // A request of any kind restarts the time of the block. A check does not.
    for _ in 0..3 {
        advance(ms(99)).await;
        assert_eq!(limiter.acquire().await.unwrap_err(), blocked);
        advance(ms(99)).await;
        let Err(TryAcquireError::Denied(decision)) = limiter.try_acquire() else {
            panic!("it is blocked")
        };
        assert!(decision.is_paused() && decision.retry_after() == Some(PENALTY));
        advance(ms(99)).await;
        assert_eq!(
            limiter
                .request()
                .timeout(ms(0))
                .acquire()
                .await
                .unwrap_err(),
            blocked
        );
    }
    advance(ms(60)).await;
    assert_eq!(
        (
            limiter.check(1).is_allowed(),
            limiter.snapshot().next_grant_in
        ),
        (false, Some(ms(40)))
    );
    limiter.resume(); // `resume` ends only pauses
    assert!(limiter.acquire_many(0).await.is_err() && limiter.acquire_many(2).await.is_err());
    advance(ms(39)).await;
    assert!(!limiter.check(1).is_allowed());
    advance(ms(1)).await;
    assert_eq!(limiter.snapshot().next_grant_in, Some(ms(0)));
    let _out = limiter.try_acquire().unwrap();
    let _waits_again = queued(limiter.request().priority(Priority::NORMAL).acquire());
    assert_eq!((limiter.snapshot().shed, limiter.snapshot().denied), (9, 3));
}

/// A block leaves no timer, and a place that is released meanwhile goes to the next request that is accepted.
#[tokio::test(start_paused = true)]
async fn a_block_costs_no_timer_and_accepts_no_request_early() {
    let limiter = bounded(0, Overflow::Block { penalty: PENALTY });
    let out = limiter.acquire().await.unwrap();
    assert!(limiter.acquire().await.is_err());
    drop(out);
    let start = Instant::now();
    common::idle_for_real().await;
    assert_eq!(start.elapsed(), ms(0));
    assert!(limiter.try_acquire().is_err());
    limiter.pause_for(ms(300));
    sleep(ms(200)).await;
    assert_eq!(
        limiter.check(1).retry_after(),
        Some(ms(100)),
        "paused for longer than blocked"
    );
    limiter.close();
    assert_eq!(limiter.acquire().await.unwrap_err(), AcquireError::Closed);
}

/// A fixed bug: the retry-after of a blocked queue ignored a pause that ends later.
#[tokio::test(start_paused = true)]
async fn the_retry_after_of_a_block_includes_a_pause_that_ends_later() {
    let limiter = bounded(0, Overflow::Block { penalty: PENALTY });
    let _out = limiter.acquire().await.unwrap();
    assert!(limiter.acquire().await.is_err());
    limiter.pause_for(ms(300));
    assert!(
        limiter.check(1).retry_after().is_none(),
        "it takes a release as well"
    );
    limiter.set_policy(MaxConcurrency::new(2)).unwrap();
    assert_eq!(limiter.check(1).retry_after(), Some(ms(300)));
    limiter.pause_for(Duration::MAX);
    assert_eq!(limiter.check(1).retry_after(), None);
}

/// Every waiter is woken, in batches between which the lock is released.
#[tokio::test(start_paused = true)]
async fn every_waiter_of_a_dropped_queue_of_ten_thousand_is_woken() {
    const COUNT: usize = 10_000;
    tokio::task::unconstrained(async {
        let reported = Arc::new(Mutex::new(0));
        let telling = Arc::clone(&reported);
        let limiter = Limiter::builder(MaxConcurrency::new(1))
            .max_queue(COUNT)
            .overflow(Overflow::Block { penalty: PENALTY })
            .on_event(move |_| *telling.lock().unwrap() += 1)
            .build()
            .unwrap();
        let _out = limiter.acquire().await.unwrap();
        let mut waiting: Vec<_> = (0..COUNT)
            .map(|_| queued(limiter.request().priority(Priority::NORMAL).acquire()))
            .collect();
        assert!(matches!(
            limiter.acquire().await,
            Err(AcquireError::Blocked { .. })
        ));
        assert!(waiting.iter().all(task::Spawn::is_woken));
        assert!(waiting.iter_mut().all(|waiting| matches!(
            assert_ready!(waiting.poll()),
            Err(AcquireError::Shed { .. })
        )));
        let snapshot = limiter.snapshot();
        assert_eq!(
            (snapshot.queued, snapshot.shed, *reported.lock().unwrap()),
            (0, COUNT as u64 + 1, COUNT + 1)
        );
        let start = Instant::now();
        common::idle_for_real().await;
        assert_eq!(start.elapsed(), ms(0));
    })
    .await;
}

/// Trap: requests are dropped silently. Each is reported, with its line of code and the reason.
#[tokio::test(start_paused = true)]
async fn every_request_that_is_shed_is_reported_with_its_reason() {
    let observed = |overflow| {
        let events = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&events);
        let observer = move |event: &LimiterEvent<'_>| {
            let EventKind::Shed {
                cost,
                priority,
                reason,
                requested_in,
                ..
            } = &event.kind
            else {
                panic!("{event:?}")
            };
            assert_eq!(requested_in.file(), file!());
            seen.lock()
                .unwrap()
                .push((*cost, *priority, *reason, requested_in.line()));
        };
        let limiter = Limiter::builder(MaxConcurrency::new(9))
            .max_queue(1)
            .overflow(overflow)
            .on_event(observer);
        (limiter.build().unwrap(), events)
    };
    let (low, high) = (Priority::LOW, Priority::HIGH);
    let cases = [
        (
            Overflow::Reject,
            vec![(3, high, ShedReason::QueueFull, false)],
        ),
        (
            Overflow::DropOldest,
            vec![(2, low, ShedReason::Dropped, true)],
        ),
        (
            Overflow::DropLowestPriority,
            vec![(2, low, ShedReason::Dropped, true)],
        ),
        (
            Overflow::Block { penalty: PENALTY },
            vec![
                (3, high, ShedReason::Blocked, false),
                (2, low, ShedReason::Dropped, true),
                (1, high, ShedReason::Blocked, false),
            ],
        ),
    ];
    for (overflow, expected) in cases {
        let (limiter, events) = observed(overflow);
        let _out = limiter.try_acquire_many(9).unwrap();
        let first_line = line!() + 1;
        let mut first = task::spawn(limiter.request().cost(2).priority(low).acquire());
        assert_pending!(first.poll());
        let mut second = task::spawn(limiter.request().cost(3).priority(high).acquire());
        let _ = second.poll();
        if matches!(overflow, Overflow::Block { .. }) {
            assert!(limiter.request().priority(high).acquire().await.is_err());
        }
        let reported: Vec<_> = events
            .lock()
            .unwrap()
            .iter()
            .map(|&(cost, priority, reason, line)| (cost, priority, reason, line == first_line))
            .collect();
        assert_eq!(reported, expected, "{overflow:?}");
        assert_eq!(limiter.snapshot().shed, expected.len() as u64);
    }
    // Requests from several lines of code wait in one queue.
    let (limiter, events) = observed(Overflow::DropOldest);
    let _out = limiter.try_acquire_many(9).unwrap();
    let (mut lines, mut waiting) = (Vec::new(), Vec::new());
    for nth in 0..7 {
        if nth % 3 == 0 {
            lines.push(line!() + 1);
            waiting.push(queued(limiter.acquire()));
        } else {
            lines.push(line!() + 1);
            waiting.push(queued(limiter.acquire_many(2)));
        }
    }
    lines.pop(); // it still waits
    assert_eq!(
        events
            .lock()
            .unwrap()
            .iter()
            .map(|event| event.3)
            .collect::<Vec<_>>(),
        lines
    );

    let (limiter, events) = observed(Overflow::DropLowestPriority);
    let _out = limiter.try_acquire_many(9).unwrap();
    let _first = queued(limiter.request().priority(high).acquire());
    assert_eq!(
        limiter.request().priority(low).acquire().await.unwrap_err(),
        AcquireError::QueueFull { retry_after: None }
    );
    assert_eq!(
        events.lock().unwrap()[0].2,
        ShedReason::QueueFull,
        "the new request is the least urgent"
    );
}

/// The observer of a shed request may use the limiter: nothing is locked. The denial is an event, at which it does so again.
#[tokio::test(start_paused = true)]
async fn an_observer_may_call_the_limiter() {
    static LIMITER: std::sync::LazyLock<Limiter> = std::sync::LazyLock::new(|| {
        let ask = |_: &LimiterEvent<'_>| {
            drop((LIMITER.snapshot(), LIMITER.check(1), LIMITER.try_acquire()));
        };
        let overflow = Overflow::Block { penalty: PENALTY };
        Limiter::builder(MaxConcurrency::new(1))
            .max_queue(100)
            .overflow(overflow)
            .on_event(ask)
            .build()
            .unwrap()
    });
    let _out = LIMITER.acquire().await.unwrap();
    let mut waiting: Vec<_> = (0..100)
        .map(|_| queued(LIMITER.request().priority(Priority::NORMAL).acquire()))
        .collect();
    assert!(LIMITER.acquire().await.is_err());
    assert!(waiting.iter_mut().all(|waiting| matches!(
        assert_ready!(waiting.poll()),
        Err(AcquireError::Shed { .. })
    )));
}

/// The instant of a grant is that of the decision, not that of the poll that takes the permit.
#[tokio::test(start_paused = true)]
async fn acquired_at_is_the_instant_of_the_grant_if_a_clock_was_read() {
    let start = Instant::now();
    let limiter = Limiter::new(Throttle::every(ms(100))).unwrap();
    assert_eq!(limiter.try_acquire().unwrap().acquired_at(), Some(start));
    let mut late = queued(limiter.acquire());
    sleep(ms(250)).await;
    assert_eq!(
        assert_ready!(late.poll()).unwrap().acquired_at(),
        Some(start + ms(100))
    );

    let clockless = Limiter::new(MaxConcurrency::new(1)).unwrap();
    assert_eq!(clockless.try_acquire().unwrap().acquired_at(), None);
    let recorded = Limiter::builder(MaxConcurrency::new(1))
        .record_grant_time()
        .build()
        .unwrap();
    assert_eq!(
        recorded.try_acquire().unwrap().acquired_at(),
        Some(Instant::now())
    );
}

#[tokio::test(start_paused = true)]
async fn the_text_of_a_decision_says_that_it_allows_or_that_the_limiter_is_paused() {
    let limiter = Limiter::new(MaxConcurrency::new(2)).unwrap();
    assert_eq!(
        limiter.check(1).to_string(),
        "allowed: `2 concurrent` has 2 left"
    );
    limiter.pause_for(Duration::MAX);
    assert_eq!(
        limiter.check(1).to_string(),
        "paused; no time to retry is known"
    );
}

/// The retry-after counts the waiting requests.
#[tokio::test(start_paused = true)]
async fn a_full_queue_says_when_to_retry() {
    let limiter = Limiter::builder(Throttle::every(ms(100)))
        .max_queue(2)
        .build()
        .unwrap();
    drop(limiter.acquire().await.unwrap());
    let _waiting = [queued(limiter.acquire()), queued(limiter.acquire())];
    let error = limiter.acquire().await.unwrap_err();
    assert_eq!(
        (error.retry_after(), error.to_string().as_str()),
        (
            Some(ms(300)),
            "the limiter's queue is full; raise max_queue, or retry after 300ms"
        )
    );
    let urgent = limiter
        .request()
        .priority(Priority::HIGH)
        .acquire()
        .await
        .unwrap_err();
    assert_eq!(
        urgent,
        AcquireError::QueueFull {
            retry_after: Some(ms(100))
        }
    );
}
