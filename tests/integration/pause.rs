//! Paused limiters: by hand, and by an upstream's signal.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use crate::common::{CountPolls, every_strategy, idle_for_real, limiter, ms, queued};
use tokio::time::{Instant, advance, sleep};
use tokio_test::{assert_pending, assert_ready, task};
use tollgate::{
    AcquireError, Limiter, MaxConcurrency, Policy, Priority, Throttle, TryAcquireError,
    UpstreamSignal,
};

/// A pause holds for every policy, with a clock and without one, and for requests from before the pause and during it.
#[tokio::test(start_paused = true)]
async fn all_requests_wait_for_the_end_of_a_pause_and_are_granted_in_order() {
    for policy in every_strategy() {
        let limiter = limiter(policy.clone());
        sleep(ms(30)).await;
        while limiter
            .try_acquire()
            .map(drop)
            .is_ok_and(|()| limiter.snapshot().in_flight > 0)
        {}
        let start = Instant::now();
        limiter.pause_for(ms(500));
        let tasks: Vec<_> = (0..3)
            .map(|_| {
                let limiter = limiter.clone();
                tokio::spawn(async move {
                    let permit = limiter.acquire().await.unwrap();
                    (permit.fence(), start.elapsed())
                })
            })
            .collect();
        sleep(ms(300)).await;
        assert!(limiter.try_acquire().is_err(), "{policy}");
        assert_eq!(limiter.snapshot().paused_for, Some(ms(200)));
        assert_eq!(
            (limiter.snapshot().queued, limiter.snapshot().next_grant_in),
            (3, Some(ms(200))),
            "{policy}"
        );
        let mut fences = Vec::new();
        for (nth, task) in tasks.into_iter().enumerate() {
            let (fence, at) = task.await.unwrap();
            assert!(
                at >= ms(500) && (nth > 0 || at == ms(500)),
                "{policy}: {at:?}"
            );
            fences.push(fence);
        }
        assert!(fences.is_sorted(), "{policy}");
        assert_eq!(limiter.snapshot().paused_for, None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_denial_in_a_pause_names_the_pause_although_the_policy_would_admit_the_request() {
    let limiter = limiter(MaxConcurrency::new(2));
    limiter.pause_for(ms(100));
    let Err(TryAcquireError::Denied(decision)) = limiter.try_acquire() else {
        panic!("it is paused")
    };
    assert!(decision.is_paused() && decision.denied_by().is_none() && !decision.is_allowed());
    assert_eq!(
        (decision.retry_after(), decision.remaining()),
        (Some(ms(100)), 2)
    );
    assert_eq!(decision.to_string(), "paused; retry after 100ms");
    advance(ms(100)).await;
    assert!(limiter.check(1).is_allowed() && !limiter.check(1).is_paused());
    let _all = limiter.try_acquire_many(2).unwrap();
    limiter.pause_for(ms(100));
    let decision = limiter.check(1);
    assert!(
        !decision.is_paused() && decision.denied_by().is_some(),
        "the policy denies it too"
    );
    assert_eq!(decision.retry_after(), None, "and takes a release");
}

#[tokio::test(start_paused = true)]
async fn the_latest_end_of_several_pauses_counts_and_resume_ends_them_all() {
    let limiter = limiter(MaxConcurrency::new(2));
    let start = Instant::now();
    limiter.pause_for(ms(500));
    limiter.pause_for(ms(100));
    limiter.pause_until(start + ms(300));
    limiter.pause_until(start);
    assert_eq!(limiter.snapshot().paused_for, Some(ms(500)));
    let (first, second) = (queued(limiter.acquire()), queued(limiter.acquire()));
    sleep(ms(200)).await;
    assert!(!first.is_woken());
    limiter.resume();
    assert!(first.is_woken() && second.is_woken());
    limiter.resume();
    assert_eq!(
        (limiter.snapshot().paused_for, start.elapsed()),
        (None, ms(200))
    );
}

#[tokio::test(start_paused = true)]
async fn a_timeout_within_the_pause_fails_at_once_and_one_beyond_it_is_served() {
    let limiter = limiter(MaxConcurrency::new(1));
    let mut before = task::spawn(limiter.request().timeout(ms(50)).acquire());
    let out = limiter.try_acquire().unwrap();
    assert_pending!(before.poll());
    drop(task::spawn(limiter.acquire()));
    limiter.pause_for(ms(100));
    drop(out);
    let start = Instant::now();
    let error = limiter
        .request()
        .timeout(ms(99))
        .acquire()
        .await
        .unwrap_err();
    assert_eq!(
        (error, start.elapsed()),
        (
            AcquireError::TimedOut {
                retry_after: Some(ms(100)),
                decision: None
            },
            ms(0)
        )
    );
    let error = before.await.unwrap_err();
    assert_eq!(
        (error, start.elapsed()),
        (
            AcquireError::TimedOut {
                retry_after: Some(ms(50)),
                decision: None
            },
            ms(50)
        )
    );
    limiter
        .request()
        .timeout(ms(50))
        .acquire()
        .await
        .unwrap()
        .release();
    assert_eq!(start.elapsed(), ms(100));
    // A pause without end has no known end, so a request is not refused at once, but at its timeout.
    limiter.pause_for(Duration::MAX);
    let error = limiter
        .request()
        .timeout(ms(70))
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
            ms(170)
        )
    );
}

#[tokio::test(start_paused = true)]
async fn permits_stay_valid_in_a_pause_and_their_ttl_runs_on() {
    let limiter = limiter(MaxConcurrency::new(2).ttl(ms(100)));
    let (leaked, renewed) = (
        limiter.acquire().await.unwrap(),
        limiter.acquire().await.unwrap(),
    );
    let waiting = queued(limiter.acquire());
    limiter.pause_for(Duration::MAX);
    sleep(ms(60)).await;
    assert!(leaked.is_live() && renewed.renew());
    let start = Instant::now();
    leaked.reclaimed().await;
    assert_eq!((start.elapsed(), limiter.snapshot().in_flight), (ms(40), 1));
    assert!(!waiting.is_woken());
    drop(renewed);
    assert_eq!(
        (limiter.snapshot().in_flight, limiter.snapshot().reclaimed),
        (0, 1)
    );
    limiter.resume();
    assert!(waiting.is_woken());
}

#[tokio::test(start_paused = true)]
async fn closing_fails_waiters_in_a_pause_without_end() {
    let limiter = limiter(Policy::from(MaxConcurrency::new(2)).and(Throttle::every(ms(10))));
    let out = limiter.try_acquire().unwrap();
    limiter.pause_for(Duration::MAX);
    assert_eq!(
        (
            limiter.snapshot().paused_for,
            limiter.snapshot().next_grant_in
        ),
        (Some(Duration::MAX), None)
    );
    assert_eq!(limiter.check(1).retry_after(), None);
    let mut waiting = queued(limiter.acquire());
    limiter.close();
    assert_eq!(
        assert_ready!(waiting.poll()).unwrap_err(),
        AcquireError::Closed
    );
    limiter.resume();
    assert_eq!(limiter.acquire().await.unwrap_err(), AcquireError::Closed);
    drop(out);
    limiter.drained().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_gives_up_in_a_pause_delays_no_other() {
    let limiter = limiter(MaxConcurrency::new(1));
    limiter.pause_for(ms(100));
    let start = Instant::now();
    let (front, second, third) = (
        queued(limiter.acquire()),
        queued(limiter.acquire()),
        queued(limiter.acquire()),
    );
    drop(front);
    sleep(ms(50)).await;
    drop(second);
    let mut urgent = task::spawn(limiter.request().priority(Priority::HIGH).acquire());
    assert_pending!(urgent.poll());
    urgent.await.unwrap().release();
    assert_eq!(start.elapsed(), ms(100));
    third.await.unwrap().release();
    assert_eq!(start.elapsed(), ms(100));
    assert_eq!(limiter.snapshot().in_flight, 0);
}

/// Blocked threads run their own timers, on the real clock, without any runtime.
#[test]
fn threads_that_block_wait_for_the_end_of_a_pause_too() {
    let limiter = limiter(MaxConcurrency::new(2));
    let start = std::time::Instant::now();
    limiter.pause_for(ms(50));
    let _permit = limiter.blocking_acquire().unwrap();
    assert!((ms(50)..ms(5_000)).contains(&start.elapsed()));
    // The pause is resumed, closed, and set while a thread waits.
    let wait = || {
        let limiter = limiter.clone();
        std::thread::spawn(move || limiter.blocking_acquire().map(drop))
    };
    let until_queued = |count| {
        while limiter.snapshot().queued < count {
            std::thread::yield_now();
        }
    };
    limiter.pause_for(Duration::MAX);
    let waiting = [wait(), wait()];
    until_queued(2);
    limiter.resume();
    waiting
        .into_iter()
        .for_each(|waiting| waiting.join().unwrap().unwrap());
    let full = limiter.try_acquire().unwrap();
    let waiting = wait();
    until_queued(1);
    let start = std::time::Instant::now();
    limiter.pause_for(ms(50));
    drop(full);
    waiting.join().unwrap().unwrap();
    assert!((ms(50)..ms(5_000)).contains(&start.elapsed()));
    limiter.pause_for(Duration::MAX);
    let waiting = wait();
    until_queued(1);
    limiter.close();
    assert_eq!(waiting.join().unwrap(), Err(AcquireError::Closed));
}

/// A pause makes time matter that did not matter before: the call that pauses starts a driver in its own runtime.
#[test]
fn a_pause_ends_for_waiters_that_relied_on_a_runtime_that_is_not_polled() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let (still, running) = (runtime(), runtime());
    let limiter = limiter(MaxConcurrency::new(2));
    let out = limiter.try_acquire_many(2).unwrap();
    let mut first = task::spawn(limiter.acquire());
    still.block_on(async { assert_pending!(first.poll()) }); // its runtime has the driver, and is no longer polled
    running.block_on(async {
        let second = queued(limiter.acquire());
        limiter.pause_for(ms(30));
        drop(out);
        sleep(ms(100)).await;
        assert!(second.is_woken(), "no timer ran");
    });
    assert!(first.is_woken());
}

/// Invariant 6.
#[tokio::test(start_paused = true)]
async fn a_pause_without_waiters_sets_no_timer_and_an_ended_pause_leaves_none() {
    for policy in every_strategy()
        .into_iter()
        .filter(|policy| !policy.to_string().contains("ttl"))
    {
        let limiter = limiter(policy.clone());
        limiter.pause_for(ms(10_000));
        limiter.apply_upstream_signal(&UpstreamSignal::new().limited().retry_after(ms(5_000)));
        let start = Instant::now();
        idle_for_real().await;
        assert_eq!(start.elapsed(), ms(0), "{policy}: no request waits for it");
        let given_up = queued(limiter.acquire());
        tokio::task::yield_now().await;
        drop(given_up);
        idle_for_real().await;
        assert_eq!(start.elapsed(), ms(0), "{policy}: the only one gave up");
        let waiting = queued(limiter.acquire());
        tokio::task::yield_now().await;
        limiter.resume();
        waiting.await.unwrap().release();
        let resumed = Instant::now();
        idle_for_real().await;
        assert_eq!(resumed.elapsed(), ms(0), "{policy}: it was resumed");
        limiter.pause_for(ms(100));
        limiter.acquire().await.unwrap().release();
        let over = Instant::now();
        idle_for_real().await;
        assert_eq!(over.elapsed(), ms(0), "{policy}: it is over");
        limiter.pause_for(Duration::MAX);
        let _waiting = queued(limiter.acquire());
        idle_for_real().await;
        assert_eq!(
            over.elapsed(),
            ms(0),
            "{policy}: there is no end to wait for"
        );
    }
}

/// Invariant 6: a waiter is not woken for a pause, nor for its end, but once for its permit. Where time did not matter, the first
/// pause makes it matter: then each is woken once, to start a driver in its own runtime.
#[tokio::test(start_paused = true)]
async fn repeated_pauses_poll_no_waiter_in_vain() {
    for (policy, woken_once) in [
        (Policy::from(Throttle::every(ms(1))), 0),
        (MaxConcurrency::new(1).into(), 98),
    ] {
        let limiter = limiter(policy.clone());
        let out = limiter.try_acquire().unwrap();
        let polls = Arc::new(AtomicUsize::new(0));
        let waiters: Vec<_> = (0..100)
            .map(|_| {
                let limiter = limiter.clone();
                let acquire = async move { limiter.acquire().await.unwrap().release() };
                tokio::spawn(CountPolls(Box::pin(acquire), Arc::clone(&polls)))
            })
            .collect();
        tokio::task::yield_now().await;
        drop(out);
        let pauses = {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                for nth in 0..50 {
                    limiter.pause_for(ms(5));
                    sleep(ms(nth % 4)).await;
                    if nth % 2 == 0 {
                        limiter.resume();
                    }
                }
            })
        };
        for waiter in waiters {
            waiter.await.unwrap();
        }
        pauses.await.unwrap();
        let expected = 2 * 100 + woken_once;
        assert_eq!(
            polls.load(Ordering::Relaxed),
            expected,
            "{policy}: one to join the queue, one to take the permit"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_denial_of_an_upstream_pauses_all_requests_for_as_long_as_it_says() {
    let says = UpstreamSignal::new();
    let cases = [
        (says.limited().retry_after(ms(30_000)), 30_000),
        (says.retry_after(ms(250)), 250), // a 503 pauses, too
        (says.limited().reset_after(ms(700)), 700),
        (says.limited(), 1_000),
        (says.remaining(0).reset_after(ms(400)), 400),
        (says.remaining(0), 0),
        (says.remaining(1).reset_after(ms(400)), 0),
        (says.reset_after(ms(400)), 0),
        (says, 0),
    ];
    for (signal, millis) in cases {
        let limiter = limiter(MaxConcurrency::new(8));
        limiter.apply_upstream_signal(&signal);
        let start = Instant::now();
        limiter.acquire().await.unwrap().release();
        assert_eq!(start.elapsed(), ms(millis), "{signal:?}");
    }
}

/// Answers come out of order: an older, more generous one must not shorten the pause of a newer one.
#[tokio::test(start_paused = true)]
async fn a_signal_that_comes_late_never_shortens_a_pause() {
    let limiter = Limiter::builder(MaxConcurrency::new(8))
        .spread_below(10)
        .build()
        .unwrap();
    limiter.apply_upstream_signal(&UpstreamSignal::new().limited().retry_after(ms(30_000)));
    for late in [
        UpstreamSignal::new().limited().retry_after(ms(1_000)),
        UpstreamSignal::new().remaining(500).reset_after(ms(60_000)),
        UpstreamSignal::new().remaining(3).reset_after(ms(100)),
        UpstreamSignal::new().remaining(0).reset_after(ms(100)),
        UpstreamSignal::new(),
    ] {
        limiter.apply_upstream_signal(&late);
        assert_eq!(limiter.snapshot().paused_for, Some(ms(30_000)), "{late:?}");
    }
    limiter.resume();
    assert!(limiter.try_acquire().is_ok(), "resume ends all of it");
}

#[tokio::test(start_paused = true)]
async fn a_quota_that_is_nearly_spent_is_spread_until_its_reset() {
    let limiter = Limiter::builder(MaxConcurrency::new(8))
        .spread_below(5)
        .build()
        .unwrap();
    let at = async |count: usize| {
        let start = Instant::now();
        let mut at = Vec::new();
        for _ in 0..count {
            limiter.acquire().await.unwrap().release();
            at.push(start.elapsed().as_millis());
        }
        at
    };
    limiter.apply_upstream_signal(&UpstreamSignal::new().remaining(5).reset_after(ms(1_000)));
    assert_eq!(at(4).await, [0, 0, 0, 0], "five are not fewer than five");
    limiter.apply_upstream_signal(&UpstreamSignal::new().remaining(4).reset_after(ms(1_000)));
    assert_eq!(at(6).await, [0, 250, 500, 750, 1_000, 1_000]);
    // Each response reports one unit less: the pace continues.
    limiter.apply_upstream_signal(&UpstreamSignal::new().remaining(4).reset_after(ms(1_000)));
    assert_eq!(at(1).await, [0]);
    limiter.apply_upstream_signal(&UpstreamSignal::new().remaining(3).reset_after(ms(900)));
    let decision = limiter.check(1);
    assert!(decision.is_paused() && decision.retry_after() == Some(ms(250)));
    assert_eq!(at(2).await, [250, 550]);
    limiter.resume();
    assert_eq!(at(3).await, [0, 0, 0]);
}

/// A fixed bug: only the first 64 pieces of due work were done before the input.
#[tokio::test(start_paused = true)]
async fn all_due_work_is_done_before_an_input_although_the_timer_is_late() {
    const POLICY: &str = "100 concurrent ttl 10ms and 1/h burst 101";
    let inputs: [fn(&Limiter); 4] = [
        |limiter| limiter.pause_for(ms(500)),
        Limiter::close,
        |limiter| limiter.penalize(101),
        |limiter| {
            limiter
                .set_policy("100 concurrent ttl 10ms and 1/h")
                .unwrap();
        },
    ];
    for (nth, input) in inputs.into_iter().enumerate() {
        let limiter = Limiter::new(POLICY).unwrap();
        let _leaked: Vec<_> = (0..100).map(|_| limiter.try_acquire().unwrap()).collect();
        let mut waiting = queued(limiter.acquire());
        assert_pending!(task::spawn(advance(ms(10))).poll()); // the timer has not run
        input(&limiter);
        assert!(matches!(waiting.poll(), Poll::Ready(Ok(_))), "{nth}");
    }
}
