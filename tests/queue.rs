//! The queue as callers see it: bounded, with a rule for when it is full.

mod common;

use common::ms;
use tokio::time::{Instant, sleep};
use tokio_test::{assert_pending, assert_ready, task};
use tollgate::{AcquireError, Limiter, MaxConcurrency, Overflow, Policy, Priority, Throttle};

fn bounded(max_queue: usize, overflow: Overflow) -> Limiter {
    Limiter::builder(MaxConcurrency::new(1)).max_queue(max_queue).overflow(overflow).build().unwrap()
}

macro_rules! waiting {
    ($limiter:expr, $priority:expr) => {{
        let mut waiting = task::spawn($limiter.request().priority($priority).acquire());
        assert_pending!(waiting.poll());
        waiting
    }};
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_rejects_the_newcomer_at_once_unless_told_otherwise() {
    let limiter = bounded(2, Overflow::default());
    let out = limiter.acquire().await.unwrap();
    let (first, _second) = (waiting!(limiter, Priority::LOW), waiting!(limiter, Priority::LOW));
    let error = limiter.request().priority(Priority::HIGHEST).acquire().await.unwrap_err();
    assert_eq!((error, limiter.snapshot().shed), (AcquireError::QueueFull, 1));
    drop(out);
    assert!(first.is_woken());
    let _third = waiting!(limiter, Priority::LOW); // a place is free again
}

#[tokio::test(start_paused = true)]
async fn drop_oldest_sheds_who_has_waited_longest_whatever_the_priority() {
    let limiter = bounded(2, Overflow::DropOldest);
    let out = limiter.acquire().await.unwrap();
    let (mut urgent, mut second) = (waiting!(limiter, Priority::HIGH), waiting!(limiter, Priority::LOW));
    let mut third = waiting!(limiter, Priority::LOW);
    assert_eq!(assert_ready!(urgent.poll()).unwrap_err(), AcquireError::Shed);
    let _fourth = waiting!(limiter, Priority::LOWEST);
    assert_eq!(assert_ready!(second.poll()).unwrap_err(), AcquireError::Shed);
    drop(out);
    let _permit = assert_ready!(third.poll()).unwrap();
    assert_eq!(limiter.snapshot().shed, 2);
}

#[tokio::test(start_paused = true)]
async fn drop_lowest_priority_sheds_who_would_be_served_last_or_turns_the_newcomer_away() {
    let limiter = bounded(2, Overflow::DropLowestPriority);
    let _out = limiter.acquire().await.unwrap();
    let (_first, mut second) = (waiting!(limiter, Priority::LOW), waiting!(limiter, Priority::LOW));
    assert_eq!(limiter.request().priority(Priority::LOW).acquire().await.unwrap_err(), AcquireError::QueueFull);
    let _urgent = waiting!(limiter, Priority::HIGH);
    assert_eq!(assert_ready!(second.poll()).unwrap_err(), AcquireError::Shed);
}

#[tokio::test(start_paused = true)]
async fn a_queue_of_none_never_waits() {
    for overflow in [Overflow::Reject, Overflow::DropOldest, Overflow::DropLowestPriority] {
        let limiter = bounded(0, overflow);
        let out = limiter.acquire().await.unwrap();
        assert_eq!(limiter.acquire().await.unwrap_err(), AcquireError::QueueFull);
        drop(out);
        drop(limiter.acquire().await.unwrap());
    }
}

/// A fixed bug: somebody went for a newcomer who would not have stayed.
#[tokio::test(start_paused = true)]
async fn nobody_is_shed_for_a_request_that_does_not_wait() {
    let limiter = bounded(1, Overflow::DropOldest);
    let _out = limiter.acquire().await.unwrap();
    let waiting = waiting!(limiter, Priority::NORMAL);
    let error = limiter.request().timeout(ms(0)).acquire().await.unwrap_err();
    assert_eq!(error, AcquireError::TimedOut { retry_after: None });
    assert!(!waiting.is_woken());
}

/// The victim may be the one that everybody waits behind.
#[tokio::test(start_paused = true)]
async fn when_the_front_is_shed_the_next_is_served_if_it_can_be() {
    let limiter = Limiter::builder(MaxConcurrency::new(4)).max_queue(2).overflow(Overflow::DropOldest).build().unwrap();
    let _out = limiter.try_acquire_many(2).unwrap();
    let mut large = task::spawn(limiter.acquire_many(3));
    assert_pending!(large.poll());
    let small = waiting!(limiter, Priority::NORMAL);
    let mut newest = task::spawn(limiter.acquire());
    let _permit = assert_ready!(newest.poll()).unwrap();
    assert_eq!(assert_ready!(large.poll()).unwrap_err(), AcquireError::Shed);
    assert!(small.is_woken());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_more_urgent_than_all_who_wait_is_served_at_once_if_it_can_be() {
    let limiter = Limiter::new(MaxConcurrency::new(4)).unwrap();
    let _out = limiter.try_acquire_many(2).unwrap();
    let mut large = task::spawn(limiter.acquire_many(3));
    assert_pending!(large.poll());
    let mut urgent = task::spawn(limiter.request().priority(Priority::HIGH).acquire());
    let _permit = assert_ready!(urgent.poll()).unwrap();
}

/// The timer follows the front: one that comes later and is due sooner is not kept waiting.
#[tokio::test(start_paused = true)]
async fn an_urgent_small_request_before_a_large_one_moves_the_timer_forward() {
    let limiter = Limiter::new(Throttle::every(ms(10)).burst(10)).unwrap();
    drop(limiter.try_acquire_many(10).unwrap());
    let start = Instant::now();
    let mut large = task::spawn(limiter.acquire_many(10));
    assert_pending!(large.poll());
    sleep(ms(1)).await; // the driver sleeps until the large one's turn
    drop(limiter.request().priority(Priority::HIGH).acquire().await.unwrap());
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
                let error = limiter.request().timeout(ms(nth)).acquire().await.unwrap_err();
                (error, start.elapsed(), ms(nth))
            })
        })
        .collect();
    for task in waiting {
        let (error, after, timeout) = task.await.unwrap();
        assert_eq!((error, after), (AcquireError::TimedOut { retry_after: None }, timeout));
    }
    assert_eq!(limiter.snapshot().timed_out, 200);
}

#[tokio::test(start_paused = true)]
async fn the_snapshot_counts_and_knows_when_the_next_grant_is() {
    let limiter = Limiter::new(Policy::from(Throttle::every(ms(100))).and(MaxConcurrency::new(2))).unwrap();
    assert_eq!(limiter.snapshot().next_grant_in, Some(ms(0)));
    let _first = limiter.try_acquire().unwrap();
    assert!(limiter.try_acquire().is_err());
    assert_eq!((limiter.snapshot().next_grant_in, limiter.snapshot().denied), (Some(ms(100)), 1));
    sleep(ms(30)).await;
    let second = waiting!(limiter, Priority::NORMAL);
    assert_eq!((limiter.snapshot().next_grant_in, limiter.snapshot().queued), (Some(ms(70)), 1));
    sleep(ms(100)).await;
    let _second = second.await.unwrap();
    assert_eq!((limiter.snapshot().next_grant_in, limiter.snapshot().in_flight), (None, 2));
}

/// Several hundred waiters come through at one instant: they are woken in batches, in order.
#[tokio::test(start_paused = true)]
async fn a_large_release_serves_all_that_fit_in_order() {
    // Outside tokio's cooperative budget, which is 128 polls: all join the queue in one go.
    tokio::task::unconstrained(async {
        let limiter = Limiter::new(MaxConcurrency::new(1_000)).unwrap();
        let out = limiter.try_acquire_many(1_000).unwrap();
        let mut waiting: Vec<_> = (0..1_001).map(|_| waiting!(limiter, Priority::NORMAL)).collect();
        drop(out);
        assert!(waiting[..1_000].iter().all(task::Spawn::is_woken) && !waiting[1_000].is_woken());
        waiting.pop();
        for (nth, waiting) in waiting.into_iter().enumerate() {
            assert_eq!(waiting.await.unwrap().fence(), nth as u64 + 2);
        }
    })
    .await;
}

/// A fixed bug: sums of huge costs saturate, and what was left of them said that nobody waits.
#[tokio::test(start_paused = true)]
async fn a_denial_is_never_called_allowed_however_huge_the_costs_that_wait() {
    let limiter = Limiter::new(MaxConcurrency::new(u64::MAX)).unwrap();
    let _out = limiter.try_acquire().unwrap();
    let (mut first, mut second) = (task::spawn(limiter.acquire_many(u64::MAX)), task::spawn(limiter.acquire_many(u64::MAX)));
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    drop(first);
    assert!(limiter.try_acquire().is_err() && !limiter.check(1).is_allowed());
}
