//! Invariant 8: a waiter never depends on a runtime that is not polled while its own is.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::{current_thread, ms, within_ten_seconds};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_test::{assert_pending, task};
use tollgate::{
    Acquire, KeyedLimiter, Limiter, MaxConcurrency, Permit, Policy, Priority, Throttle,
};

fn multi_thread() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
}

/// A limiter of one place, which is taken, a driver in a runtime that is never polled again, and a task that waits in another
/// runtime, which is polled.
struct DriverAsleep {
    limiter: &'static Limiter,
    out: Permit,
    awake: Runtime,
    waiting: JoinHandle<()>,
    front: task::Spawn<Acquire<'static>>,
    _asleep: Runtime,
}

impl DriverAsleep {
    /// The same for a limiter and for the limiter of a key, because they have different drivers.
    fn both() -> [Self; 2] {
        let keyed = KeyedLimiter::new(MaxConcurrency::new(1)).unwrap();
        [
            Limiter::new(MaxConcurrency::new(1)).unwrap(),
            keyed.limiter(&"key").unwrap(),
        ]
        .map(Self::new)
    }

    fn new(limiter: Limiter) -> Self {
        let limiter: &Limiter = Box::leak(Box::new(limiter));
        let (out, asleep, awake) = (
            limiter.try_acquire().unwrap(),
            current_thread(),
            multi_thread(),
        );
        let mut front = task::spawn(limiter.acquire());
        asleep.block_on(async { assert_pending!(front.poll()) });
        let waiting = awake.spawn(async { drop(limiter.acquire().await.unwrap()) });
        while limiter.snapshot().queued < 2 {
            thread::yield_now();
        }
        Self {
            limiter,
            out,
            awake,
            waiting,
            front,
            _asleep: asleep,
        }
    }

    /// Releases the place and drops the front. The waiter is then served by time alone.
    fn expect_served_in_time(self) {
        drop((self.out, self.front));
        within_ten_seconds(&self.awake, self.waiting).unwrap();
    }
}

/// A fixed bug: the waiters were not woken when time began to matter, so they never noticed that their driver was not polled.
#[test]
fn a_pause_that_is_set_outside_every_runtime_ends_on_time() {
    for waiting in DriverAsleep::both() {
        waiting.limiter.pause_for(ms(50));
        waiting.expect_served_in_time();
    }
}

/// A fixed bug: the driver of the third runtime ended with it, and the remaining one was not polled.
#[test]
fn a_pause_that_is_set_in_a_runtime_that_ends_is_over_on_time() {
    for waiting in DriverAsleep::both() {
        current_thread().block_on(async { waiting.limiter.pause_for(ms(50)) });
        waiting.expect_served_in_time();
    }
}

/// A fixed bug, as with a pause.
#[test]
fn waiters_are_served_at_the_rate_that_a_new_policy_sets() {
    for waiting in DriverAsleep::both() {
        waiting.limiter.set_policy(Throttle::every(ms(50))).unwrap();
        assert!(
            waiting.front.is_woken(),
            "it has the first unit, and does not give it up"
        );
        within_ten_seconds(&waiting.awake, waiting.waiting).unwrap();
    }
}

/// The waiter is polled outside every runtime, where it can start no driver.
#[test]
fn a_new_policy_starts_a_driver_in_the_runtime_that_sets_it() {
    let limiter: &Limiter = Box::leak(Box::new(Limiter::new(Throttle::every(ms(20))).unwrap()));
    drop(limiter.try_acquire().unwrap());
    let (asleep, awake) = (current_thread(), multi_thread());
    let mut starts_the_driver = task::spawn(limiter.acquire());
    asleep.block_on(async { assert_pending!(starts_the_driver.poll()) });
    let mut waiting = task::spawn(limiter.acquire());
    assert_pending!(waiting.poll());
    awake.block_on(async { limiter.set_policy(Throttle::every(ms(10))).unwrap() });
    let woken = awake.spawn(async move {
        while !waiting.is_woken() {
            sleep(ms(1)).await;
        }
    });
    within_ten_seconds(&awake, woken).unwrap();
}

/// A fixed bug, as with a pause: a request with a timeout makes time matter as well.
#[test]
fn a_timeout_ahead_in_the_queue_ends_though_its_own_runtime_is_gone() {
    let limiter: &Limiter = Box::leak(Box::new(Limiter::new(MaxConcurrency::new(2)).unwrap()));
    let (_out, asleep, awake) = (
        limiter.try_acquire().unwrap(),
        current_thread(),
        multi_thread(),
    );
    let mut starts_the_driver = task::spawn(limiter.acquire_many(2));
    asleep.block_on(async { assert_pending!(starts_the_driver.poll()) });
    let waiting = awake.spawn(async { drop(limiter.acquire().await.unwrap()) });
    while limiter.snapshot().queued < 2 {
        thread::yield_now();
    }
    // The front requests more than remains, and gives up after 50 ms. Then the others can be served.
    let urgent = limiter
        .request()
        .cost(2)
        .priority(Priority::HIGH)
        .timeout(ms(50));
    let mut gives_up = task::spawn(urgent.acquire());
    current_thread().block_on(async { assert_pending!(gives_up.poll()) });
    drop(starts_the_driver);
    within_ten_seconds(&awake, waiting).unwrap();
}

/// A fixed bug: the drivers slept until an instant on the clock of the latest caller.
#[test]
fn calls_from_a_clock_that_is_an_hour_ahead_keep_no_waiter_on_the_real_one_asleep() {
    for policy in [
        Policy::from(Throttle::every(ms(20))),
        MaxConcurrency::new(1).ttl(ms(20)).into(),
    ] {
        let limiter = Limiter::new(policy).unwrap();
        limiter.try_acquire().unwrap().forget();
        let (done, handle) = (AtomicBool::new(false), limiter.clone());
        thread::scope(|scope| {
            scope.spawn(|| {
                let paused = Builder::new_current_thread()
                    .enable_all()
                    .start_paused(true)
                    .build()
                    .unwrap();
                paused.block_on(async {
                    tokio::time::advance(Duration::from_secs(3_600)).await;
                    while !done.load(Ordering::Relaxed) {
                        drop(handle.check(1));
                    }
                });
            });
            let (answers, blocking) = std::sync::mpsc::channel();
            let handle = limiter.clone();
            thread::spawn(move || {
                for _ in 0..10 {
                    handle.blocking_acquire().unwrap().forget();
                }
                answers.send(())
            });
            let runtime = current_thread();
            let tasks = runtime.block_on(async {
                tokio::time::timeout(Duration::from_secs(10), async {
                    for _ in 0..10 {
                        limiter.acquire().await.unwrap().forget();
                    }
                })
                .await
            });
            let blocking = blocking.recv_timeout(Duration::from_secs(10));
            done.store(true, Ordering::Relaxed);
            assert!(
                tasks.is_ok() && blocking.is_ok(),
                "it hangs: {tasks:?}, {blocking:?}"
            );
        });
    }
}
