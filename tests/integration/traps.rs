//! Known ways in which limiters go wrong, with a test for each. More of them are tested elsewhere: retry-after and overflow in
//! policies.rs and `strategy/`, cancellation in cancellation.rs, leaks and late releases in reclaim.rs, bad costs in bad_input.rs, HTTP in
//! traps_http.rs.

use std::time::Duration;

use crate::common::ms;
use tokio::time::{Instant, advance, sleep};
use tokio_test::{assert_pending, task};
use tollgate::{FixedWindow, Limiter, MaxConcurrency, Policy, Throttle};

/// Trap: a wake that resets the deadline to `now + interval` loses the timer's rounding on every tick. Tokio's timer rounds up to the
/// millisecond: a limiter that schedules from its wakes delivers 1,000 a second of a rate of
/// 2,500.
#[tokio::test(start_paused = true)]
async fn the_rounding_of_the_timer_is_caught_up_within_the_burst() {
    let limiter = Limiter::new(Throttle::every(Duration::from_micros(400)).burst(25)).unwrap();
    drop(limiter.try_acquire_many(25).unwrap());
    let start = Instant::now();
    for _ in 0..2_500 {
        drop(limiter.acquire().await.unwrap());
    }
    let late = start.elapsed() - ms(1_000);
    assert!(
        late <= ms(1),
        "{late:?} late after a second: no more than the last tick"
    );
}

/// Trap: each waiter has its own timer. All wake at once, and large requests starve among small ones.
#[tokio::test(start_paused = true)]
async fn a_request_of_ten_among_unit_requests_is_served_in_its_turn() {
    let limiter = Limiter::new(Throttle::every(ms(1)).burst(10)).unwrap();
    drop(limiter.try_acquire_many(10).unwrap());
    let unit = |limiter: Limiter| async move {
        loop {
            drop(limiter.acquire().await.unwrap());
        }
    };
    let units: Vec<_> = (0..50)
        .map(|_| tokio::spawn(unit(limiter.clone())))
        .collect();
    tokio::task::yield_now().await;
    let start = Instant::now();
    drop(limiter.acquire_many(10).await.unwrap());
    assert_eq!(start.elapsed(), ms(60), "fifty before it, and its own ten");
    units.iter().for_each(tokio::task::JoinHandle::abort);
}

/// Trap: fixed windows allow twice the limit across a boundary. That is documented; a throttle beside the window prevents it.
#[tokio::test(start_paused = true)]
async fn the_boundary_burst_of_a_fixed_window_is_closed_by_a_throttle_with_it() {
    let around_boundary = async |policy: Policy| {
        let limiter = Limiter::new(policy).unwrap();
        sleep(ms(990)).await;
        let spend = || std::iter::from_fn(|| limiter.try_acquire().ok()).count();
        let before = spend();
        advance(ms(20)).await;
        before + spend()
    };
    let window = FixedWindow::new(10, ms(1_000));
    assert_eq!(around_boundary(window.into()).await, 20);
    assert_eq!(
        around_boundary(Policy::from(window).and(Throttle::every(ms(100)).burst(10))).await,
        10
    );
}

/// Trap: periods below a millisecond are silently rounded to zero.
#[tokio::test(start_paused = true)]
async fn an_interval_of_nanoseconds_is_not_rounded() {
    let limiter = Limiter::new(Throttle::every(Duration::from_nanos(3))).unwrap();
    drop(limiter.try_acquire().unwrap());
    assert_eq!(
        limiter.check(1).retry_after(),
        Some(Duration::from_nanos(3))
    );
    advance(Duration::from_nanos(2)).await;
    assert!(limiter.try_acquire().is_err());
    advance(Duration::from_nanos(1)).await;
    assert!(limiter.try_acquire().is_ok());
}

/// Trap: a fast path outside tokio's cooperative budget, so that a task that acquires in a loop starves its neighbours.
#[tokio::test]
async fn a_task_that_acquires_in_a_loop_lets_its_neighbours_run() {
    let limiter = Limiter::new(MaxConcurrency::new(8)).unwrap();
    let greedy = {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            loop {
                drop(limiter.acquire().await.unwrap());
            }
        })
    };
    for _ in 0..10 {
        tokio::task::yield_now().await; // the task would never return here
    }
    greedy.abort();
    assert!(limiter.snapshot().granted > 0);
}

/// Trap: a fast path that bypasses the queue. A release followed at once by an acquire does not overtake the waiters.
#[tokio::test(start_paused = true)]
async fn a_holder_that_releases_and_takes_again_goes_to_the_end_of_the_queue() {
    let limiter = Limiter::new(MaxConcurrency::new(1)).unwrap();
    let out = limiter.try_acquire().unwrap();
    let mut waiting = task::spawn(limiter.acquire());
    assert_pending!(waiting.poll());
    drop(out);
    assert!(limiter.try_acquire().is_err());
    let mut again = task::spawn(limiter.acquire());
    assert_pending!(again.poll());
    assert!(waiting.is_woken());
}

/// Trap: a request that is polled twice is admitted twice. Polling again, with another waker, is still one request.
#[tokio::test(start_paused = true)]
async fn a_request_that_is_polled_often_counts_once() {
    let limiter = Limiter::new(MaxConcurrency::new(1)).unwrap();
    let out = limiter.try_acquire().unwrap();
    let mut waiting = Box::pin(limiter.acquire());
    for _ in 0..5 {
        assert!(tokio::time::timeout(ms(1), &mut waiting).await.is_err());
        assert_eq!(limiter.snapshot().queued, 1);
    }
    let moved = async move { waiting.await.map(drop) };
    drop(out);
    moved.await.unwrap();
    assert_eq!(
        (limiter.snapshot().granted, limiter.snapshot().in_flight),
        (2, 0)
    );
}

/// Trap: a release that refills a window or a rate. As documented, it refunds nothing there.
#[tokio::test(start_paused = true)]
async fn a_release_does_not_refill_a_window_or_a_throttle() {
    for policy in [
        Policy::from(FixedWindow::new(1, ms(100))),
        Throttle::every(ms(100)).into(),
    ] {
        let limiter = Limiter::new(policy).unwrap();
        limiter.try_acquire().unwrap().release();
        assert!(limiter.try_acquire().is_err());
    }
}

/// Trap: a permit goes to the caller that reads next, not to the one it was granted to. Here each of 100 callers gets its own.
#[tokio::test(start_paused = true)]
async fn each_permit_reaches_the_caller_it_was_given_to() {
    let limiter = Limiter::new(Throttle::every(ms(1))).unwrap();
    drop(limiter.try_acquire().unwrap());
    let mut waiting: Vec<_> = (0..100).map(|_| task::spawn(limiter.acquire())).collect();
    waiting
        .iter_mut()
        .for_each(|waiting| assert_pending!(waiting.poll()));
    sleep(ms(200)).await;
    for (nth, waiting) in waiting.into_iter().enumerate().rev() {
        assert_eq!(
            waiting.await.unwrap().fence(),
            nth as u64 + 2,
            "read in the wrong order on purpose"
        );
    }
}

/// Blocking a thread that runs tasks would stop these tasks, for ever if one of them holds the permit.
#[tokio::test]
async fn a_task_that_blocks_its_thread_panics_as_with_tokio() {
    let limiter = Limiter::new(MaxConcurrency::new(2)).unwrap();
    let handle = limiter.clone();
    let error = tokio::spawn(async move { drop(handle.blocking_acquire()) })
        .await
        .unwrap_err()
        .into_panic();
    assert!(
        error
            .downcast_ref::<String>()
            .is_some_and(|message| message.starts_with("Cannot block the current thread"))
    );
    assert_eq!(limiter.snapshot().granted, 0);
    let handle = limiter.clone();
    assert!(
        tokio::task::spawn_blocking(move || handle.blocking_acquire().is_ok())
            .await
            .unwrap()
    );
}

/// Trap: `drained` of an open limiter waits for ever.
#[tokio::test]
async fn an_open_limiter_is_drained_when_nothing_is_in_use() {
    for policy in [
        Policy::from(MaxConcurrency::new(2)),
        MaxConcurrency::new(2).ttl(ms(3_600_000)).into(),
    ] {
        let limiter = Limiter::new(policy).unwrap();
        limiter.drained().await;
        let held = [
            limiter.acquire().await.unwrap(),
            limiter.acquire().await.unwrap(),
        ];
        let mut waits = task::spawn(limiter.acquire());
        assert_pending!(waits.poll());
        let mut drained = task::spawn(limiter.drained());
        assert_pending!(drained.poll());
        drop(held);
        assert!(
            waits.is_woken() && !drained.is_woken(),
            "the place went to the one that waits"
        );
        let last = waits.await.unwrap();
        drop(limiter.try_acquire().unwrap());
        assert_pending!(drained.poll());
        drop(last);
        assert!(drained.is_woken());
        drained.await;
        let _next = limiter.acquire().await.unwrap();
        let given_up = task::spawn(limiter.drained());
        drop(given_up);
        assert_eq!(limiter.snapshot().in_flight, 1);
    }
}

/// Trap: a release finds the word open while a task waits in `drained`, and does not wake that task.
#[test]
fn every_drain_is_noticed_while_permits_come_and_go() {
    let limiter = Limiter::new(MaxConcurrency::new(4)).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    drop(limiter.try_acquire());
                    std::hint::spin_loop();
                }
            });
        }
        runtime.block_on(async {
            for _ in 0..2_000 {
                tokio::select! {
                    biased; // a timeout would poll the future once more before it gives up
                    () = sleep(ms(20_000)) => panic!("the last release woke no task"),
                    () = limiter.drained() => {}
                }
            }
        });
    });
    assert_eq!(limiter.snapshot().in_flight, 0);
}
