//! Reservations: turns that are taken now and used later.

use std::time::Duration;

use crate::common::{limiter, ms, queued};
use tokio::time::{Instant, advance};
use tokio_test::assert_pending;
use tollgate::{
    AcquireError, FixedWindow, Limiter, MaxConcurrency, Priority, Rate, SlidingWindow, Throttle,
    TokenBucket,
};

#[tokio::test(start_paused = true)]
async fn a_reservation_says_when_its_turn_comes_and_keeps_it() {
    for policy in [
        "throttle every 10ms",
        "1/10ms",
        "window 1/10ms",
        "sliding log 1/10ms",
    ] {
        let limiter = Limiter::new(policy).unwrap();
        let reserved: Vec<_> = (0..4).map(|_| limiter.reserve().unwrap()).collect();
        let reported: Vec<_> = reserved
            .iter()
            .map(|reservation| reservation.ready_in().unwrap())
            .collect();
        assert_eq!(reported, [0, 10, 20, 30].map(ms), "{policy}");
        let mut late = queued(limiter.acquire());
        let start = Instant::now();
        for (reservation, reported) in reserved.into_iter().zip(reported) {
            drop(reservation.await.unwrap());
            assert!(
                start.elapsed() >= reported && start.elapsed() <= reported + ms(1),
                "{policy}: {:?}",
                start.elapsed()
            );
        }
        assert_pending!(late.poll());
    }
}

#[tokio::test(start_paused = true)]
async fn the_next_one_gets_the_turn_of_a_cancelled_reservation() {
    let limiter = limiter(Throttle::every(ms(10)));
    let (first, second) = (limiter.reserve().unwrap(), limiter.reserve().unwrap());
    assert_eq!(second.ready_in(), Some(ms(10)));
    drop(first); // its grant is refunded
    assert_eq!(second.ready_in(), Some(Duration::ZERO));
    drop(second.await.unwrap());
    assert_eq!(limiter.snapshot().refunded, 1);
}

#[tokio::test]
async fn a_place_is_ready_when_one_is_released_and_that_time_is_unknown() {
    let limiter = limiter(MaxConcurrency::new(1));
    let held = limiter.try_acquire().unwrap();
    let reservation = limiter.reserve().unwrap();
    assert_eq!(reservation.ready_in(), None);
    assert!(limiter.try_acquire().is_err());
    drop(held);
    assert_eq!(reservation.ready_in(), Some(Duration::ZERO));
    assert!(limiter.try_acquire().is_err(), "it is in use");
    drop(reservation);
    assert!(limiter.try_acquire().is_ok());
    assert_eq!(limiter.snapshot().in_flight, 0);
}

#[tokio::test(start_paused = true)]
async fn a_reservation_has_a_cost_a_priority_and_a_timeout() {
    let limiter = limiter(TokenBucket::new(Rate::per_second(10), 10));
    drop(limiter.try_acquire_many(10).unwrap());
    let large = limiter.request().cost(5).reserve().unwrap();
    let small = limiter.request().cost(1).reserve().unwrap();
    assert_eq!(
        (large.ready_in(), small.ready_in()),
        (Some(ms(500)), Some(ms(600)))
    );
    let urgent = limiter
        .request()
        .priority(Priority::HIGH)
        .reserve()
        .unwrap();
    assert_eq!(
        (urgent.ready_in(), large.ready_in()),
        (Some(ms(100)), Some(ms(600)))
    );
    let error = limiter.request().timeout(ms(500)).reserve().unwrap_err();
    assert_eq!(
        error,
        AcquireError::TimedOut {
            retry_after: Some(ms(800)),
            decision: None
        }
    );
    assert!(matches!(
        limiter.request().cost(11).reserve(),
        Err(AcquireError::ExceedsLimit { .. })
    ));
    assert_eq!(
        format!("{urgent:?}"),
        "Reservation { ready_in: Some(100ms), .. }"
    );
}

#[tokio::test(start_paused = true)]
async fn with_many_ahead_the_time_is_a_lower_bound() {
    let limiter = limiter(Throttle::every(ms(10)));
    let all: Vec<_> = (0..100).map(|_| limiter.reserve().unwrap()).collect();
    assert_eq!(all[64].ready_in(), Some(ms(640)));
    assert!(all[99].ready_in().unwrap() <= ms(990));
    advance(ms(985)).await;
    let last = all.into_iter().next_back().unwrap(); // the others are dropped
    assert!(last.await.is_ok());
}

#[test]
fn a_reservation_that_must_wait_needs_a_runtime() {
    let limiter = limiter(FixedWindow::new(1, Duration::from_secs(60)));
    let granted = limiter.reserve().unwrap();
    assert_eq!(granted.ready_in(), Some(Duration::ZERO));
    assert_eq!(limiter.reserve().unwrap_err(), AcquireError::NoRuntime);
    limiter.close();
    assert_eq!(limiter.reserve().unwrap_err(), AcquireError::Closed);
}

/// A reservation is charged when its turn comes. With a charge at once, a log would drop the entry too early.
#[tokio::test(start_paused = true)]
async fn a_log_is_not_exceeded_by_reservations() {
    let limiter = limiter(SlidingWindow::log(2, ms(100)));
    let reserved: Vec<_> = (0..6).map(|_| limiter.reserve().unwrap()).collect();
    let (start, mut at) = (Instant::now(), Vec::new());
    for reservation in reserved {
        drop(reservation.await.unwrap());
        at.push(start.elapsed());
    }
    assert!(
        at.windows(3).all(|three| three[2] - three[0] >= ms(100)),
        "{at:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_turn_of_a_key_is_reserved_too() {
    let per_host = tollgate::KeyedLimiter::new(Throttle::every(ms(10))).unwrap();
    let reserved: Vec<_> = (0..3)
        .map(|_| per_host.request("a").reserve().unwrap())
        .collect();
    let reported: Vec<_> = reserved
        .iter()
        .map(|reservation| reservation.ready_in().unwrap())
        .collect();
    assert_eq!(reported, [0, 10, 20].map(ms));
    assert_eq!(
        per_host.request("b").reserve().unwrap().ready_in(),
        Some(Duration::ZERO)
    );
    let start = Instant::now();
    for reservation in reserved {
        drop(reservation.await.unwrap());
    }
    assert!(
        start.elapsed() >= ms(20) && start.elapsed() < ms(23),
        "{:?}",
        start.elapsed()
    );
}
