//! Invariant 8: the runtime may end.

use std::cell::RefCell;
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{current_thread, ms, paused, within_ten_seconds};
use futures_util::FutureExt;
use tokio::runtime::Builder;
use tokio_test::{assert_pending, task};
use tollgate::{
    AcquireError, FixedWindow, KeyedLimiter, Limiter, LimiterGroup, MaxConcurrency, Throttle,
};

static SHARED: LazyLock<Limiter> = LazyLock::new(|| Limiter::new(Throttle::every(ms(5))).unwrap());

#[test]
fn a_static_limiter_serves_several_runtimes_one_after_another() {
    for _ in 0..4 {
        let runtime = current_thread();
        within_ten_seconds(&runtime, async {
            for _ in 0..5 {
                drop(SHARED.acquire().await.unwrap());
            }
        });
    }
}

#[test]
fn waiters_in_another_runtime_continue_when_the_drivers_runtime_ends() {
    for policy in [
        Throttle::every(ms(500)).into(),
        tollgate::Policy::from(MaxConcurrency::new(1).ttl(ms(500))),
    ] {
        let limiter = Limiter::new(policy).unwrap();
        std::mem::forget(limiter.try_acquire().unwrap());
        let (first, second) = (
            current_thread(),
            Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .unwrap(),
        );
        let mut starts_driver = task::spawn(limiter.acquire());
        first.block_on(async { assert_pending!(starts_driver.poll()) });
        let handle = limiter.clone();
        let waiting = second.spawn(async move { handle.acquire().await.map(drop) });
        thread::sleep(ms(5));
        drop(starts_driver);
        drop(first);
        within_ten_seconds(&second, waiting).unwrap().unwrap();
    }
}

/// The first runtime has the driver, and is never polled again.
#[test]
fn a_runtime_that_is_not_driven_does_not_hold_up_another_one() {
    for policy in [
        Throttle::every(ms(500)).into(),
        tollgate::Policy::from(MaxConcurrency::new(1).ttl(ms(500))),
    ] {
        let limiter = Limiter::new(policy).unwrap();
        std::mem::forget(limiter.try_acquire().unwrap());
        let (asleep, awake) = (current_thread(), current_thread());
        let mut front = task::spawn(limiter.acquire());
        asleep.block_on(async { assert_pending!(front.poll()) });
        within_ten_seconds(&awake, async {
            let behind = limiter.acquire();
            assert!(front.await.is_ok());
            drop(behind.await.unwrap());
        });
        drop(asleep);
    }
}

#[test]
fn the_task_of_a_runtime_that_is_shutting_down_is_replaced() {
    let limiter = Limiter::new(Throttle::every(ms(20))).unwrap();
    for round in 0..20 {
        drop(limiter.try_acquire());
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let handle = limiter.clone();
        runtime.spawn(async move { handle.acquire().await.map(drop) });
        thread::sleep(Duration::from_micros(100 * round));
        runtime.shutdown_background();
    }
    within_ten_seconds(&current_thread(), limiter.acquire())
        .unwrap()
        .release();
}

/// A paused runtime has advanced its clock by an hour, so that it is ahead of the clock of the next runtime.
#[test]
fn an_hour_that_passed_on_a_paused_clock_is_not_waited_out_on_the_next_one() {
    let limiter = Limiter::new(Throttle::every(ms(10))).unwrap();
    let paused = Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    paused.block_on(async {
        tokio::time::advance(Duration::from_secs(3_600)).await;
        limiter.try_acquire().unwrap().release();
    });
    within_ten_seconds(&current_thread(), async {
        assert!(
            limiter.try_acquire().is_err(),
            "no unit is handed out twice"
        );
        drop(limiter.acquire().await.unwrap());
    });
}

/// A fixed bug: a call that removed its own key, because the key's manager knew that it was reset, then granted it at an earlier
/// instant, from which the next unit was counted. Here the manager's clock is an hour ahead; otherwise it was ahead by the time for which
/// a thread had been interrupted.
#[test]
fn a_key_that_is_removed_and_added_by_one_call_is_not_granted_in_the_past() {
    // Each eighth call checks keys for removal: it is to be the one after the advance.
    for calls in 0..8 {
        let keyed = KeyedLimiter::<u64>::new(Throttle::every(ms(10))).unwrap();
        let held = paused().block_on(async {
            let held = keyed.limiter(&1).unwrap();
            tokio::time::advance(Duration::from_secs(3_600)).await;
            held.try_acquire().unwrap().release();
            held
        });
        paused().block_on(async {
            assert!(held.try_acquire().is_err());
            for _ in 0..calls {
                drop(keyed.check(&1, 1));
            }
            tokio::time::advance(ms(10)).await;
            drop(held);
            drop(keyed.try_acquire(&1).unwrap());
            assert!(
                keyed.try_acquire(&1).is_err(),
                "two units at once after {calls} calls"
            );
        });
    }
}

#[test]
fn a_limiter_is_built_and_tried_outside_a_runtime_and_waiting_there_is_an_error() {
    let limiter = Limiter::new(MaxConcurrency::new(1)).unwrap();
    let out = limiter
        .acquire()
        .now_or_never()
        .expect("it need not wait")
        .unwrap();
    assert_eq!(
        limiter.acquire().now_or_never().unwrap().unwrap_err(),
        AcquireError::NoRuntime
    );
    assert_eq!(limiter.snapshot().queued, 0);
    drop(out);
    assert!(limiter.try_acquire().is_ok());
}

#[test]
fn waiting_in_a_runtime_without_timers_returns_no_runtime() {
    let timerless = Builder::new_current_thread().build().unwrap();
    let limiter = Limiter::new(Throttle::every(ms(1_000))).unwrap();
    limiter.try_acquire().unwrap().release();
    assert_eq!(
        timerless.block_on(limiter.acquire()).unwrap_err(),
        AcquireError::NoRuntime
    );
    assert_eq!(
        timerless.block_on(limiter.acquire()).map(drop),
        Err(AcquireError::NoRuntime)
    );
    within_ten_seconds(&current_thread(), limiter.acquire())
        .unwrap()
        .release();
    // A policy of places needs no timer.
    let places = Limiter::new(MaxConcurrency::new(1)).unwrap();
    let (out, handle) = (places.try_acquire().unwrap(), places.clone());
    timerless.block_on(async move {
        let waiting = tokio::spawn(async move { handle.acquire().await.map(drop) });
        tokio::task::yield_now().await;
        drop(out);
        waiting.await.unwrap().unwrap();
    });
}

#[test]
fn blocking_threads_are_served_in_order_at_the_pace_without_any_runtime() {
    let limiter = Limiter::new(Throttle::every(ms(10))).unwrap();
    limiter.try_acquire().unwrap().release();
    let start = Instant::now();
    let threads: Vec<_> = (0..8)
        .map(|nth| {
            let handle = limiter.clone();
            let thread = thread::spawn(move || handle.blocking_acquire().unwrap().fence());
            // Waits, so that the threads arrive in order. One snapshot has both numbers, because a queued request may be granted between
            // two.
            loop {
                let now = limiter.snapshot();
                if now.queued + now.granted >= 2 + nth {
                    return thread;
                }
                thread::yield_now();
            }
        })
        .collect();
    let fences: Vec<_> = threads
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .collect();
    assert!(fences.is_sorted(), "{fences:?}");
    assert!(
        start.elapsed() >= ms(80),
        "eight intervals, at the instant of the decision"
    );
}

#[test]
fn a_blocking_thread_gets_a_released_place_a_reclaimed_one_and_its_timeout() {
    let limiter = Limiter::new(MaxConcurrency::new(1).ttl(ms(500))).unwrap();
    let (out, handle) = (limiter.try_acquire().unwrap(), limiter.clone());
    let waiting = thread::spawn(move || handle.blocking_acquire().unwrap());
    while limiter.snapshot().queued == 0 {
        thread::yield_now();
    }
    drop(out);
    let leaked = waiting.join().unwrap();
    let timed_out = limiter
        .request()
        .timeout(ms(20))
        .blocking_acquire()
        .unwrap_err();
    assert!(matches!(timed_out, AcquireError::TimedOut { .. }));
    let next = limiter.blocking_acquire().unwrap();
    assert!(!leaked.is_live() && next.is_live());
    let handle = limiter.clone();
    let refused = thread::spawn(move || handle.blocking_acquire().unwrap_err());
    while limiter.snapshot().queued == 0 {
        thread::yield_now();
    }
    limiter.close();
    assert_eq!(refused.join().unwrap(), AcquireError::Closed);
}

#[test]
fn blocking_threads_and_tasks_share_one_queue() {
    let limiter = Limiter::new(FixedWindow::new(1, ms(20))).unwrap();
    limiter.try_acquire().unwrap().release();
    let handle = limiter.clone();
    let thread =
        thread::spawn(move || (0..5).for_each(|_| drop(handle.blocking_acquire().unwrap())));
    within_ten_seconds(&current_thread(), async {
        for _ in 0..5 {
            drop(limiter.acquire().await.unwrap());
        }
    });
    thread.join().unwrap();
    assert_eq!(limiter.snapshot().granted, 11);
}

/// A fixed bug: no driver ran for a caller of `drained`.
#[test]
fn drained_ends_though_the_runtime_that_kept_the_time_is_gone() {
    for kept_by_a_runtime in [false, true] {
        let limiter = Limiter::new(MaxConcurrency::new(1).ttl(ms(30))).unwrap();
        let leak_and_close = || {
            std::mem::forget(limiter.try_acquire().unwrap());
            limiter.close();
        };
        match kept_by_a_runtime {
            true => current_thread().block_on(async { leak_and_close() }),
            false => leak_and_close(),
        }
        within_ten_seconds(&current_thread(), limiter.drained());
        assert_eq!(limiter.snapshot().reclaimed, 1);
    }
}

/// A fixed bug: drivers were started in an ended runtime and died at once, each waking the waiter that started the next.
#[test]
fn waiting_in_a_runtime_that_has_ended_is_an_error() {
    let limiter = Limiter::new(Throttle::every(ms(1_000))).unwrap();
    limiter.try_acquire().unwrap().release();
    let ended = current_thread();
    let handle = ended.handle().clone();
    drop(ended);
    assert_eq!(
        handle.block_on(limiter.acquire()).map(drop),
        Err(AcquireError::NoRuntime)
    );
    within_ten_seconds(&current_thread(), limiter.acquire())
        .unwrap()
        .release();
}

/// A fixed bug: only waiters in the queue were woken to find another driver.
#[test]
fn awaiting_a_reclaim_or_the_drain_outlives_the_runtime_of_the_first_poll() {
    let limiter = Limiter::new(MaxConcurrency::new(1).ttl(ms(500))).unwrap();
    let (first, second) = (current_thread(), current_thread());
    let permit = limiter.try_acquire().unwrap();
    limiter.close();
    let (mut reclaimed, mut drained) = (
        task::spawn(permit.reclaimed()),
        task::spawn(limiter.drained()),
    );
    first.block_on(async {
        assert_pending!(reclaimed.poll());
        assert_pending!(drained.poll());
    });
    drop(first);
    within_ten_seconds(&second, async {
        reclaimed.await;
        drained.await;
    });
}

/// A fixed bug: every change between two clocks counted their difference as time that had passed.
#[test]
fn two_runtimes_with_two_clocks_do_not_make_the_limiters_time_run_ahead() {
    let limiter = Limiter::new(Throttle::every(Duration::from_secs(3_600))).unwrap();
    let ahead = Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    // A minute more, because that clock stands still until the first grant.
    ahead.block_on(tokio::time::advance(Duration::from_secs(3_660)));
    let mut granted = 0;
    for _ in 0..100 {
        granted += u64::from(limiter.try_acquire().is_ok());
        granted += ahead.block_on(async { u64::from(limiter.try_acquire().is_ok()) });
    }
    assert_eq!(
        granted, 2,
        "one, and one for the hour that the clock was advanced by"
    );
}

/// A fixed bug: a denial behind an open word took a reading of the slower clock for a reading of the faster clock.
#[test]
fn a_denial_on_a_slower_clock_than_the_one_read_under_the_lock_does_not_wait_for_their_difference()
{
    let limiter = Limiter::new(Throttle::every(Duration::from_secs(1))).unwrap();
    paused().block_on(async {
        tokio::time::advance(Duration::from_secs(3_600)).await;
        drop(LimiterGroup::new([limiter.clone()]).try_acquire().unwrap()); // under the lock
    });
    paused().block_on(async {
        for retry_after in [
            limiter.check(1).retry_after(),
            limiter.snapshot().next_grant_in,
        ] {
            assert!(
                retry_after.is_some_and(|after| after <= Duration::from_secs(1)),
                "{retry_after:?}"
            );
        }
        assert!(limiter.try_acquire().is_err());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(limiter.try_acquire().is_ok());
    });
}

/// Runs `call` in the destructor of a thread-local, before or after those of tokio's thread-locals. Returns its result.
fn in_a_destructor<R: Send + 'static>(
    after_tokio: bool,
    call: impl FnOnce() -> R + Send + 'static,
) -> thread::JoinHandle<R> {
    struct AtEnd(Option<Box<dyn FnOnce()>>);
    impl Drop for AtEnd {
        fn drop(&mut self) {
            self.0.take().into_iter().for_each(|call| call());
        }
    }
    thread_local!(static AT_END: RefCell<AtEnd> = const { RefCell::new(AtEnd(None)) });
    // A thread destroys its latest thread-local first.
    let begin_tokio = || drop(tokio::sync::Mutex::const_new(()).blocking_lock());
    thread::spawn(move || {
        let (returned, result) = std::sync::mpsc::channel();
        let ends = thread::spawn(move || {
            if !after_tokio {
                begin_tokio();
            }
            AT_END.with_borrow_mut(|end| {
                end.0 = Some(Box::new(move || returned.send(call()).unwrap()));
            });
            if after_tokio {
                begin_tokio();
            }
        });
        ends.join().unwrap();
        result.recv().unwrap()
    })
}

/// A fixed bug: it called tokio, whose thread-locals no longer exist there, and the process was aborted. So the test runs in a process of
/// its own.
#[test]
fn blocking_acquire_in_the_destructor_of_a_thread_local_waits_as_elsewhere() {
    const CHILD: &str = "TOLLGATE_TEST_DESTRUCTORS";
    if std::env::var_os(CHILD).is_none() {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child
            .args([
                "--exact",
                "runtimes::blocking_acquire_in_the_destructor_of_a_thread_local_waits_as_elsewhere",
            ])
            .env(CHILD, "");
        let output = child.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(
            String::from_utf8_lossy(&output.stdout).contains("1 passed"),
            "the test has another name: {output:?}"
        );
        return;
    }
    for after_tokio in [false, true] {
        let queued = |limiter: &Limiter, count| {
            while limiter.snapshot().queued < count {
                thread::yield_now();
            }
        };
        let places = Limiter::new(MaxConcurrency::new(1)).unwrap();
        let keyed = KeyedLimiter::<u32>::new(MaxConcurrency::new(1)).unwrap();
        let key = keyed.limiter(&7).unwrap();
        let [ask, ask_key] =
            [places.clone(), key.clone()].map(|limiter| move || limiter.blocking_acquire());
        let [at_once, at_once_key] = [
            in_a_destructor(after_tokio, ask.clone()),
            in_a_destructor(after_tokio, ask_key.clone()),
        ];
        let held = [at_once, at_once_key].map(|granted| granted.join().unwrap().unwrap());

        let by_key = keyed.clone();
        let waiting = [
            in_a_destructor(after_tokio, ask.clone()),
            in_a_destructor(after_tokio, move || by_key.blocking_acquire(&7)),
        ];
        queued(&places, 1);
        queued(&key, 1);
        drop(held);
        let held = waiting.map(|waiting| waiting.join().unwrap().unwrap());

        let slow = places.clone();
        let slow = in_a_destructor(after_tokio, move || {
            slow.request()
                .timeout(ms(20))
                .jitter(ms(5))
                .blocking_acquire()
        });
        assert!(matches!(
            slow.join().unwrap(),
            Err(AcquireError::TimedOut { .. })
        ));

        let refused = [
            in_a_destructor(after_tokio, ask.clone()),
            in_a_destructor(after_tokio, ask_key.clone()),
        ];
        queued(&places, 1);
        queued(&key, 1);
        places.close();
        keyed.close();
        let later = [
            in_a_destructor(after_tokio, ask),
            in_a_destructor(after_tokio, move || keyed.blocking_acquire(&7)),
        ];
        for refused in refused.into_iter().chain(later) {
            assert_eq!(refused.join().unwrap().unwrap_err(), AcquireError::Closed);
        }
        drop(held);

        let rate = Limiter::new(Throttle::every(ms(30))).unwrap();
        let start = Instant::now();
        drop(rate.try_acquire().unwrap());
        drop(
            in_a_destructor(after_tokio, move || rate.blocking_acquire())
                .join()
                .unwrap()
                .unwrap(),
        );
        assert!(start.elapsed() >= ms(30));
    }
    // After a clock was paused in this process, tokio's clock looks for a runtime. In a thread without its thread-locals that panics.
    current_thread().block_on(async { tokio::time::pause() });
    let (places, keyed) = (
        Limiter::new(MaxConcurrency::new(1)).unwrap(),
        KeyedLimiter::<u32>::new("1/s").unwrap(),
    );
    let answers = [
        in_a_destructor(true, move || places.blocking_acquire()),
        in_a_destructor(true, move || keyed.blocking_acquire(&7)),
    ];
    for answer in answers {
        assert_eq!(answer.join().unwrap().unwrap_err(), AcquireError::NoRuntime);
    }
}
