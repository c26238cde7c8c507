//! Which request is served first, which one a full queue drops, and how a limiter closes with its queue.

use crate::common::{ms, queued};
use tokio::time::Instant;
use tokio_test::{assert_pending, assert_ready};
use tollgate::{AcquireError, Limiter, MaxConcurrency, Overflow, Priority, Throttle};

fn one() -> tollgate::LimiterBuilder {
    Limiter::builder(MaxConcurrency::new(1))
}

#[tokio::test]
async fn the_newest_of_one_priority_is_served_first() {
    let limiter = one().newest_first().build().unwrap();
    let held = limiter.try_acquire().unwrap();
    let [mut low, mut old, mut new] = [Priority::LOW, Priority::NORMAL, Priority::NORMAL]
        .map(|priority| queued(limiter.request().priority(priority).acquire()));
    assert!(limiter.try_acquire().is_err());
    drop(held);
    let permit = assert_ready!(new.poll()).unwrap();
    let mut newest = queued(limiter.acquire());
    drop(permit);
    let permit = assert_ready!(newest.poll()).unwrap();
    assert_pending!(old.poll());
    drop(permit);
    drop(assert_ready!(old.poll()).unwrap());
    drop(assert_ready!(low.poll()).unwrap());
}

#[tokio::test(start_paused = true)]
async fn the_newest_first_keeps_the_pace_and_the_deadlines() {
    let limiter = Limiter::builder(Throttle::every(ms(10)))
        .newest_first()
        .build()
        .unwrap();
    limiter.try_acquire().unwrap().release();
    let start = Instant::now();
    let waiting: Vec<_> = (0..4)
        .map(|nth| {
            let request = limiter.request().timeout(ms(25)).acquire_owned();
            tokio::spawn(async move { (nth, request.await.map(drop), start.elapsed()) })
        })
        .collect();
    let mut answers = Vec::new();
    for answer in waiting {
        answers.push(answer.await.unwrap());
    }
    assert_eq!((answers[3].2, answers[2].2), (ms(10), ms(20)));
    assert!(
        answers[..2]
            .iter()
            .all(|(_, answer, _)| matches!(answer, Err(AcquireError::TimedOut { .. }))),
        "{answers:?}"
    );
}

#[tokio::test]
async fn a_leaking_queue_drops_the_oldest_of_the_lowest_priority() {
    let limiter = one().max_queue(2).overflow(Overflow::Leak).build().unwrap();
    let _held = limiter.try_acquire().unwrap();
    let mut high = queued(limiter.request().priority(Priority::HIGH).acquire());
    let mut oldest = queued(limiter.acquire());
    let mut newer = queued(limiter.acquire());
    assert!(matches!(
        assert_ready!(oldest.poll()),
        Err(AcquireError::Shed { .. })
    ));
    let mut newest = queued(limiter.request().priority(Priority::HIGH).acquire());
    assert!(matches!(
        assert_ready!(newer.poll()),
        Err(AcquireError::Shed { .. })
    ));
    assert!(matches!(
        limiter.acquire().await,
        Err(AcquireError::QueueFull { .. })
    ));
    assert_pending!(high.poll());
    assert_pending!(newest.poll());
}

#[tokio::test]
async fn a_full_queue_of_the_newest_first_drops_the_one_that_would_be_served_last() {
    let limiter = one()
        .newest_first()
        .max_queue(2)
        .overflow(Overflow::DropLowestPriority)
        .build()
        .unwrap();
    let _held = limiter.try_acquire().unwrap();
    let (mut old, mut new) = (queued(limiter.acquire()), queued(limiter.acquire()));
    let _high = queued(limiter.request().priority(Priority::HIGH).acquire());
    assert!(matches!(
        assert_ready!(old.poll()),
        Err(AcquireError::Shed { .. })
    ));
    assert_pending!(new.poll());
}

#[tokio::test]
async fn a_limiter_that_is_closed_to_new_requests_serves_its_queue_and_then_it_is_drained() {
    let limiter = one().build().unwrap();
    let held = limiter.try_acquire().unwrap();
    let (mut first, mut second) = (queued(limiter.acquire()), queued(limiter.acquire()));
    limiter.close_to_new();
    assert!(limiter.is_closed());
    assert_eq!(limiter.acquire().await.unwrap_err(), AcquireError::Closed);
    assert!(limiter.try_acquire().unwrap_err().is_closed() && !limiter.check(1).is_allowed());
    let mut drained = queued(limiter.drained());
    drop(held);
    drop(assert_ready!(first.poll()).unwrap());
    let permit = assert_ready!(second.poll()).unwrap();
    assert_pending!(drained.poll());
    drop(permit);
    assert!(drained.is_woken());
    assert_ready!(drained.poll());
    assert!(limiter.try_acquire().is_err());
}

#[tokio::test]
async fn close_refuses_the_requests_that_close_to_new_still_serves() {
    let limiter = one().build().unwrap();
    let _held = limiter.try_acquire().unwrap();
    let mut waiting = queued(limiter.acquire());
    limiter.close_to_new();
    limiter.close_to_new();
    assert_pending!(waiting.poll());
    limiter.close();
    assert_eq!(
        assert_ready!(waiting.poll()).unwrap_err(),
        AcquireError::Closed
    );
    let other = one().build().unwrap();
    other.close();
    other.close_to_new();
    assert_eq!(other.acquire().await.unwrap_err(), AcquireError::Closed);
}
