//! A permit that a group returns is live: a permit that is reclaimed during the wait for other members is acquired again.

use crate::common::ms;
use tokio::time::{Instant, sleep};
use tokio_test::{assert_pending, assert_ready, task};
use tollgate::{Limiter, LimiterGroup, MaxConcurrency, Throttle};

/// A fixed bug: a group held a permit with a TTL while it waited for the next member, and delivered it after its reclaim.
#[tokio::test(start_paused = true)]
async fn a_group_delivers_no_permit_that_was_reclaimed_while_it_waited() {
    for round in 0..50 {
        let places = Limiter::new(MaxConcurrency::new(1).ttl(ms(100))).unwrap();
        let slow = Limiter::new(Throttle::every(ms(150))).unwrap();
        let group = LimiterGroup::new(if round % 2 == 0 {
            [places.clone(), slow.clone()]
        } else {
            [slow.clone(), places.clone()]
        });
        // Other requests take each unit of the slow member, so the group must queue for it while it holds the other permit.
        let others = tokio::spawn({
            let slow = slow.clone();
            async move {
                for _ in 0..20 {
                    drop(slow.acquire().await.unwrap());
                }
            }
        });
        let rivals = tokio::spawn({
            let places = places.clone();
            async move {
                for _ in 0..20 {
                    let permit = places.acquire().await.unwrap();
                    sleep(ms(30)).await;
                    drop(permit);
                }
            }
        });
        tokio::task::yield_now().await;
        for _ in 0..3 {
            let permit = group.acquire().await.unwrap();
            assert!(
                permit.permits().iter().all(tollgate::Permit::is_live),
                "round {round}"
            );
            sleep(ms(99)).await;
            assert!(
                permit.permits().iter().all(tollgate::Permit::is_live),
                "its TTL counts from the delivery"
            );
        }
        others.abort();
        rivals.abort();
    }
}

/// A fixed bug: a grant was reclaimed before the group took it, and the group returned it.
#[tokio::test(start_paused = true)]
async fn a_group_that_is_polled_too_late_waits_again() {
    let (places, other) = (
        Limiter::new(MaxConcurrency::new(1).ttl(ms(100))).unwrap(),
        Limiter::new(MaxConcurrency::new(9)).unwrap(),
    );
    let group = LimiterGroup::new([places.clone(), other.clone()]);
    let out = places.acquire().await.unwrap();
    let mut waiting = task::spawn(group.acquire());
    assert_pending!(waiting.poll());
    drop(out);
    sleep(ms(150)).await; // its grant was reclaimed
    let start = Instant::now();
    let permit = assert_ready!(waiting.poll()).unwrap();
    assert!(permit.permits().iter().all(tollgate::Permit::is_live));
    assert_eq!(
        (
            start.elapsed(),
            places.snapshot().in_flight,
            other.snapshot().in_flight
        ),
        (ms(0), 1, 1)
    );
}
