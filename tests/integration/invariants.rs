//! The nine invariants, each by name, through the public API and on a paused clock. `src/core/schedule/model.rs` checks the first
//! five and the seventh against a naive reference over random schedules.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{self, CountPolls, every_strategy, grants, idle_for_real, ms};
use tokio::time::{Instant, advance, sleep, timeout};
use tokio_test::{assert_pending, assert_ready, task};
use tollgate::{
    AcquireError, Align, FixedWindow, MaxConcurrency, Policy, Priority, Throttle, TryAcquireError,
};

#[tokio::test(start_paused = true)]
async fn invariant_1_never_over_a_throttle_keeps_its_interval_and_idle_time_earns_nothing() {
    let limiter = common::limiter(Throttle::every(ms(100)));
    assert_eq!(grants(&limiter, 3).await, [0, 100, 200]);
    sleep(ms(1_050)).await;
    assert_eq!(grants(&limiter, 3).await, [0, 100, 200]);
}

#[tokio::test(start_paused = true)]
async fn invariant_1_never_over_a_burst_is_earned_back_at_the_pace() {
    let limiter = common::limiter(Throttle::every(ms(100)).burst(3));
    assert_eq!(grants(&limiter, 5).await, [0, 0, 0, 100, 200]);
    sleep(ms(200)).await;
    assert_eq!(grants(&limiter, 4).await, [0, 0, 100, 200]);
}

#[tokio::test(start_paused = true)]
async fn invariant_1_never_over_a_window_admits_its_limit_whatever_is_released() {
    let limiter = common::limiter(FixedWindow::new(5, ms(1_000)));
    assert_eq!(
        grants(&limiter, 12).await,
        [
            0, 0, 0, 0, 0, 1_000, 1_000, 1_000, 1_000, 1_000, 2_000, 2_000
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn invariant_1_never_over_windows_lie_where_align_says() {
    let on_a_grid = common::limiter(FixedWindow::new(2, ms(100)));
    sleep(ms(70)).await;
    assert_eq!(grants(&on_a_grid, 4).await, [0, 0, 30, 30]);
    let from_first_grant = common::limiter(FixedWindow::new(2, ms(100)).align(Align::FirstGrant));
    sleep(ms(70)).await;
    assert_eq!(grants(&from_first_grant, 4).await, [0, 0, 100, 100]);
    sleep(ms(130)).await;
    assert_eq!(grants(&from_first_grant, 4).await, [0, 0, 100, 100]);

    let day = 86_400_000;
    let on_the_wall = common::limiter(FixedWindow::new(2, ms(day)).align(Align::WallClock));
    let into_day = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64 % day;
    let wait = u64::try_from(grants(&on_the_wall, 3).await[2]).unwrap();
    let off = (day - into_day).abs_diff(wait);
    assert!(
        off.min(day - off) < 5_000,
        "{wait} ms, {into_day} ms into the day"
    );
}

#[tokio::test(start_paused = true)]
async fn invariant_1_never_over_max_concurrency_counts_units_of_any_mix_of_costs() {
    let limiter = common::limiter(MaxConcurrency::new(8));
    let (five, three) = (
        limiter.acquire_many(5).await.unwrap(),
        limiter.acquire_many(3).await.unwrap(),
    );
    let mut four = task::spawn(limiter.acquire_many(4));
    assert_pending!(four.poll());
    drop(three);
    assert_pending!(four.poll());
    drop(five);
    assert!(four.is_woken());
    assert_eq!(assert_ready!(four.poll()).unwrap().cost(), 4);
}

#[tokio::test(start_paused = true)]
async fn invariant_2_never_lost_an_undelivered_grant_goes_to_the_next_waiter() {
    for policy in [
        Policy::from(MaxConcurrency::new(1)),
        Throttle::every(ms(100)).into(),
        FixedWindow::new(1, ms(100)).into(),
    ] {
        let limiter = common::limiter(policy);
        let out = limiter.try_acquire().unwrap();
        let (mut first, mut second) = (
            task::spawn(limiter.acquire()),
            task::spawn(limiter.acquire()),
        );
        assert_pending!(first.poll());
        assert_pending!(second.poll());
        drop(out);
        sleep(ms(101)).await; // past the instant at which the driver acts
        assert!(first.is_woken() && !second.is_woken());
        drop(first);
        assert!(second.is_woken());
        let _permit = assert_ready!(second.poll()).unwrap();
        assert_eq!(
            (limiter.snapshot().granted, limiter.snapshot().refunded),
            (3, 1)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn invariant_2_never_lost_a_panicking_holder_releases() {
    let limiter = common::limiter(MaxConcurrency::new(1));
    let handle = limiter.clone();
    let holder = tokio::spawn(async move {
        let _permit = handle.acquire().await.unwrap();
        panic!("on purpose");
    });
    assert!(holder.await.unwrap_err().is_panic());
    assert_eq!(limiter.snapshot().in_flight, 0);
}

#[tokio::test(start_paused = true)]
async fn invariant_3_in_order_first_come_first_served_and_no_barging() {
    for policy in every_strategy() {
        let limiter = common::limiter(policy.clone());
        while limiter.try_acquire().map(std::mem::forget).is_ok() {}
        let mut waiters: Vec<_> = (0..3).map(|_| task::spawn(limiter.acquire())).collect();
        waiters
            .iter_mut()
            .for_each(|waiter| assert_pending!(waiter.poll()));
        for _ in 0..50 {
            sleep(ms(10)).await;
            let served = waiters.iter().filter(|waiter| waiter.is_woken()).count();
            assert!(
                waiters[..served].iter().all(task::Spawn::is_woken),
                "{policy}: out of order"
            );
            if served < waiters.len() {
                assert!(
                    matches!(limiter.try_acquire(), Err(TryAcquireError::Denied(_))),
                    "{policy}: barged"
                );
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn invariant_3_in_order_a_large_cost_is_not_starved_by_small_ones() {
    let limiter = common::limiter(MaxConcurrency::new(4));
    let mut out: Vec<_> = (0..4).map(|_| limiter.try_acquire().unwrap()).collect();
    let (mut large, mut small) = (
        task::spawn(limiter.acquire_many(3)),
        task::spawn(limiter.acquire()),
    );
    assert_pending!(large.poll());
    assert_pending!(small.poll());
    out.truncate(2);
    assert!(
        !small.is_woken() && limiter.try_acquire().is_err(),
        "two are free, and the large one is waited for"
    );
    out.truncate(1);
    assert!(large.is_woken() && !small.is_woken());
    out.clear();
    assert!(small.is_woken());
}

#[tokio::test(start_paused = true)]
async fn invariant_3_in_order_priorities_go_first_and_within_one_arrival_counts() {
    let limiter = common::limiter(Throttle::every(ms(10)));
    limiter.try_acquire().unwrap().release();
    let start = Instant::now();
    let order = [
        Priority::LOW,
        Priority::NORMAL,
        Priority::HIGH,
        Priority::NORMAL,
        Priority::HIGH,
        Priority::LOWEST,
    ];
    let waiting = order.into_iter().map(|priority| {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            limiter
                .request()
                .priority(priority)
                .acquire()
                .await
                .unwrap()
                .release();
            start.elapsed().as_millis()
        })
    });
    let mut at = Vec::new();
    for task in waiting.collect::<Vec<_>>() {
        at.push(task.await.unwrap());
    }
    assert_eq!(at, [50, 30, 10, 40, 20, 60]);
}

#[tokio::test(start_paused = true)]
async fn invariant_4_all_or_none_a_denial_charges_no_limit_and_names_the_one_that_takes_longest() {
    let policy = Policy::from(FixedWindow::new(3, ms(1_000)))
        .and(Throttle::every(ms(100)).burst(2))
        .and(MaxConcurrency::new(4));
    let limiter = common::limiter(policy);
    drop(limiter.try_acquire_many(2).unwrap());
    for _ in 0..10 {
        let Err(TryAcquireError::Denied(decision)) = limiter.try_acquire() else {
            panic!("the burst is spent")
        };
        assert_eq!(
            decision.denied_by().unwrap().to_string(),
            "throttle every 100ms burst 2"
        );
        assert_eq!(decision.retry_after(), Some(ms(100)));
    }
    advance(ms(200)).await;
    let Err(TryAcquireError::Denied(decision)) = limiter.try_acquire_many(2) else {
        panic!("one is left in the window")
    };
    assert_eq!(
        (
            decision.denied_by().unwrap().to_string().as_str(),
            decision.limit()
        ),
        ("window 3/s", 3)
    );
    assert_eq!(
        (decision.retry_after(), decision.remaining()),
        (Some(ms(800)), 1)
    );
    assert!(
        limiter.try_acquire().is_ok(),
        "the ten denials took nothing"
    );
}

#[tokio::test(start_paused = true)]
async fn invariant_5_reclaim_once_on_time_and_a_late_drop_renew_or_release_changes_nothing() {
    let limiter = common::limiter(MaxConcurrency::new(1).ttl(ms(100)));
    let start = Instant::now();
    let (late, mut next) = (
        limiter.try_acquire().unwrap(),
        task::spawn(limiter.acquire()),
    );
    assert_eq!(late.expires_at(), Some(start + ms(100)));
    assert_pending!(next.poll());
    late.reclaimed().await;
    assert_eq!(start.elapsed(), ms(100));
    assert!(next.is_woken());
    let next = assert_ready!(next.poll()).unwrap();
    assert!(!late.is_live() && !late.renew() && late.expires_at().is_none());
    assert!(late.fence() < next.fence());
    late.reclaimed().await; // at once
    drop(late);
    assert_eq!(
        (limiter.snapshot().in_flight, limiter.snapshot().reclaimed),
        (1, 1)
    );
    assert!(next.is_live());
    next.release();
    assert_eq!(limiter.snapshot().in_flight, 0);
}

#[tokio::test(start_paused = true)]
async fn invariant_6_idle_is_free_no_timer_is_armed_and_the_paused_clock_stands_still() {
    for policy in every_strategy()
        .into_iter()
        .filter(|policy| !policy.to_string().contains("ttl"))
    {
        let limiter = common::limiter(policy.clone());
        let out: Vec<_> = std::iter::from_fn(|| limiter.try_acquire().ok()).collect();
        let start = Instant::now();
        idle_for_real().await;
        assert_eq!(
            start.elapsed(),
            ms(0),
            "{policy}: spent, and no request waits"
        );

        let mut given_up = task::spawn(limiter.request().timeout(ms(500)).acquire());
        assert_pending!(given_up.poll());
        tokio::task::yield_now().await;
        drop(given_up);
        idle_for_real().await;
        assert_eq!(start.elapsed(), ms(0), "{policy}: the only waiter gave up");

        drop(out);
        limiter.acquire().await.unwrap().release();
        let served = Instant::now();
        idle_for_real().await;
        assert_eq!(served.elapsed(), ms(0), "{policy}: all were served");
    }
}

#[tokio::test(start_paused = true)]
async fn invariant_6_idle_is_free_the_timer_of_a_released_lease_fires_once_at_most() {
    let limiter = common::limiter(MaxConcurrency::new(1).ttl(ms(100)));
    let start = Instant::now();
    for _ in 0..10 {
        let permit = limiter.acquire().await.unwrap();
        tokio::task::yield_now().await; // the driver finishes its poll
        drop(permit);
    }
    idle_for_real().await;
    assert_eq!(start.elapsed(), ms(100));
    idle_for_real().await;
    assert_eq!(start.elapsed(), ms(100));
}

#[tokio::test(start_paused = true)]
async fn invariant_6_idle_is_free_a_queue_costs_one_timer_and_two_polls_a_grant() {
    let limiter = common::limiter(Throttle::every(ms(1)));
    limiter.try_acquire().unwrap().release();
    let polls = Arc::new(AtomicUsize::new(0));
    let waiters: Vec<_> = (0..200)
        .map(|_| {
            let limiter = limiter.clone();
            let acquire = async move { limiter.acquire().await.unwrap().fence() };
            tokio::spawn(CountPolls(Box::pin(acquire), Arc::clone(&polls)))
        })
        .collect();
    for (index, waiter) in waiters.into_iter().enumerate() {
        assert_eq!(waiter.await.unwrap(), index as u64 + 2, "served in order");
    }
    assert_eq!(
        polls.load(Ordering::Relaxed),
        2 * 200,
        "one to join the queue, one to take the permit"
    );
}

#[tokio::test(start_paused = true)]
async fn invariant_6_idle_is_free_a_pause_costs_no_poll_and_leaves_no_timer() {
    for resumed in [false, true] {
        for policy in every_strategy()
            .into_iter()
            .filter(|policy| !policy.to_string().contains("ttl"))
        {
            let limiter = common::limiter(policy.clone());
            let (polls, start) = (Arc::new(AtomicUsize::new(0)), Instant::now());
            let waiters: Vec<_> = (0..30)
                .map(|_| {
                    let limiter = limiter.clone();
                    let acquire = async move {
                        let permit = limiter.acquire().await.unwrap();
                        sleep(ms(10)).await;
                        permit.fence()
                    };
                    tokio::spawn(CountPolls(Box::pin(acquire), Arc::clone(&polls)))
                })
                .collect();
            let granted = || limiter.snapshot().granted as usize;
            tokio::task::yield_now().await;
            let in_place = granted();
            sleep(ms(5)).await; // a window on the wall clock may end in between
            let before_pause = granted();
            limiter.pause_for(if resumed { Duration::MAX } else { ms(400) });
            sleep(ms(200)).await;
            // Each is polled when it starts; if it waited, once more when it is granted; and if it was granted, once more after its
            // sleep. If time did not matter before, requests that wait are polled to start a driver.
            let start_driver = if policy == MaxConcurrency::new(3).into() {
                30 - before_pause
            } else {
                0
            };
            let expected = (
                30 + 2 * before_pause - in_place + start_driver,
                before_pause,
            );
            assert_eq!(
                (polls.load(Ordering::Relaxed), granted()),
                expected,
                "{policy}"
            );
            if resumed {
                idle_for_real().await;
                assert_eq!(
                    start.elapsed(),
                    ms(205),
                    "{policy}: a pause without an end arms no timer"
                );
                limiter.resume();
            }
            for (nth, waiter) in waiters.into_iter().enumerate() {
                assert_eq!(
                    waiter.await.unwrap(),
                    nth as u64 + 1,
                    "{policy}: served in order"
                );
            }
            assert_eq!(
                polls.load(Ordering::Relaxed),
                2 * in_place + 3 * (30 - in_place) + start_driver,
                "{policy}"
            );
            let served = Instant::now();
            limiter.pause_for(ms(400));
            idle_for_real().await;
            assert_eq!(
                served.elapsed(),
                ms(0),
                "{policy}: a pause that no request waits for arms no timer"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn invariant_7_time_is_honest_a_retry_after_is_exact_to_the_nanosecond() {
    let (odd, period) = (
        Duration::from_nanos(123_456_789),
        Duration::from_nanos(987_654_321),
    );
    for policy in [
        Policy::from(Throttle::every(odd).burst(3)),
        FixedWindow::new(3, period).into(),
    ] {
        let limiter = common::limiter(policy.clone());
        limiter.try_acquire_many(3).unwrap().release();
        let after = limiter.check(2).retry_after().unwrap();
        advance(after - Duration::from_nanos(1)).await;
        assert_eq!(
            limiter.check(2).retry_after(),
            Some(Duration::from_nanos(1)),
            "{policy}"
        );
        advance(Duration::from_nanos(1)).await;
        assert!(limiter.try_acquire_many(2).is_ok(), "{policy}");
    }
}

/// Trap: peers do not follow tokio's clock. A test that waits for hours takes none.
#[tokio::test(start_paused = true)]
async fn invariant_7_time_is_honest_waiting_follows_the_paused_clock() {
    let (limiter, real) = (
        common::limiter(Throttle::every(ms(3_600_000))),
        std::time::Instant::now(),
    );
    assert_eq!(grants(&limiter, 3).await, [0, 3_600_000, 7_200_000]);
    assert!(real.elapsed() < ms(5_000));
}

// Invariant 8, the runtime may go: see runtimes.rs. Invariant 9, bad input is an error: see bad_input.rs.

#[tokio::test(start_paused = true)]
async fn a_timeout_fails_at_once_when_the_wait_is_known_to_be_longer_and_on_time_when_it_is_not() {
    let limiter = common::limiter(Throttle::every(ms(100)));
    limiter.try_acquire().unwrap().release();
    let start = Instant::now();
    let _ahead: Vec<_> = (0..3)
        .map(|_| {
            let mut ahead = task::spawn(limiter.acquire());
            assert_pending!(ahead.poll());
            ahead
        })
        .collect();
    let error = limiter
        .request()
        .timeout(ms(399))
        .acquire()
        .await
        .unwrap_err();
    assert_eq!(
        (error, start.elapsed()),
        (
            AcquireError::TimedOut {
                retry_after: Some(ms(400)),
                decision: None
            },
            ms(0)
        )
    );
    let fits = limiter.request().timeout(ms(400));
    fits.acquire().await.unwrap().release();
    assert_eq!(start.elapsed(), ms(400));

    let places = common::limiter(MaxConcurrency::new(1));
    let _out = places.try_acquire().unwrap();
    let error = places
        .request()
        .timeout(ms(50))
        .acquire()
        .await
        .unwrap_err();
    assert_eq!(
        (error, start.elapsed()),
        (
            AcquireError::TimedOut {
                retry_after: None,
                decision: None
            },
            ms(450)
        )
    );
    let error = places.request().timeout(ms(0)).acquire().await.unwrap_err();
    assert_eq!(
        (error, start.elapsed()),
        (
            AcquireError::TimedOut {
                retry_after: None,
                decision: None
            },
            ms(450)
        )
    );
    assert_eq!(
        (places.snapshot().timed_out, places.snapshot().queued),
        (2, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn closing_fails_waiting_and_later_requests_and_drained_waits_for_permits_in_flight() {
    let limiter = common::limiter(MaxConcurrency::new(1));
    let out = limiter.acquire().await.unwrap();
    let mut waiting = task::spawn(limiter.acquire());
    assert_pending!(waiting.poll());
    limiter.close();
    assert_eq!(
        assert_ready!(waiting.poll()).unwrap_err(),
        AcquireError::Closed
    );
    assert_eq!(limiter.acquire().await.unwrap_err(), AcquireError::Closed);
    assert_eq!(limiter.try_acquire().unwrap_err(), TryAcquireError::Closed);
    assert!(limiter.is_closed() && !limiter.check(1).is_allowed() && out.is_live());
    assert!(timeout(ms(10), limiter.drained()).await.is_err());
    drop(out);
    limiter.drained().await;
}
