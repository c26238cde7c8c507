//! The precise timer: grants are punctual and never early, and follow a paused clock.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use tokio::time::{Instant, advance, pause, resume};
use tollgate::{KeyedLimiter, Limiter, MaxConcurrency, Policy, Throttle};

fn precise(policy: impl Into<Policy>) -> Limiter {
    Limiter::builder(policy).precise_timer().build().unwrap()
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_are_never_early() {
    let every = Duration::from_micros(300);
    let limiter = precise(Throttle::every(every));
    let callers = (0..4).map(|_| {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            let mut granted = Vec::new();
            for _ in 0..100 {
                let permit = limiter.acquire().await.unwrap();
                granted.push((permit.fence(), permit.acquired_at().unwrap()));
            }
            granted
        })
    });
    let mut granted = Vec::new();
    for caller in callers.collect::<Vec<_>>() {
        granted.extend(caller.await.unwrap());
    }
    granted.sort_unstable();
    assert_eq!(granted.len(), 400);
    assert!(
        granted
            .windows(2)
            .all(|two| two[1].1 - two[0].1 >= every && two[0].0 + 1 == two[1].0)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_of_keys_are_never_early() {
    const GRANTS: u32 = 200;
    let every = Duration::from_millis(1);
    let keyed = KeyedLimiter::<u64>::builder(Throttle::every(every))
        .precise_timer()
        .build()
        .unwrap();
    let start = Instant::now();
    let callers = (0..4).map(|key| {
        let keyed = keyed.clone();
        tokio::spawn(async move {
            let mut granted = Vec::new();
            for _ in 0..GRANTS {
                granted.push(keyed.acquire(&key).await.unwrap().acquired_at().unwrap());
            }
            granted
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        let granted = caller.await.unwrap();
        assert!(granted.windows(2).all(|two| two[1] - two[0] >= every));
    }
    assert!(start.elapsed() >= (GRANTS - 1) * every);
}

#[tokio::test(start_paused = true)]
async fn grants_of_keys_follow_a_paused_clock() {
    let keyed = KeyedLimiter::<u64>::builder(Throttle::every(ms(10)))
        .precise_timer()
        .build()
        .unwrap();
    let start = Instant::now();
    for nth in 0..20 {
        drop(keyed.acquire(&(nth % 2)).await.unwrap());
        assert_eq!(start.elapsed(), u32::try_from(nth / 2).unwrap() * ms(10));
    }
}

/// The thread grants the request, because nothing polls the runtime of the waiter and its timer.
#[test]
fn the_thread_grants_requests_of_keys() {
    struct SendsThreadName(Mutex<Sender<Option<String>>>);
    impl Wake for SendsThreadName {
        fn wake(self: Arc<Self>) {
            self.0
                .lock()
                .unwrap()
                .send(thread::current().name().map(str::to_owned))
                .unwrap();
        }
    }
    let keyed = KeyedLimiter::<u64>::builder(Throttle::every(ms(500)))
        .precise_timer()
        .build()
        .unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let (woken, waits) = channel();
    let waker = Waker::from(Arc::new(SendsThreadName(Mutex::new(woken))));
    let mut waiting = Box::pin(keyed.acquire(&1));
    runtime.block_on(async {
        drop(keyed.acquire(&1).await.unwrap());
        assert!(
            waiting
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
        tokio::task::yield_now().await; // its driver sleeps
    });
    assert_eq!(
        waits.recv_timeout(ms(10_000)).unwrap().as_deref(),
        Some("tollgate-timekeeper")
    );
    assert!(
        waiting
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_ready()
    );
}

/// Keys become due while other keys are called. The task or the thread serves each of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_due_key_is_served_by_the_thread_or_by_the_tasks() {
    let keyed = KeyedLimiter::<u64>::builder(Throttle::every(ms(2)))
        .precise_timer()
        .build()
        .unwrap();
    let callers = (0..200).map(|key| {
        let keyed = keyed.clone();
        tokio::spawn(async move {
            for _ in 0..20 {
                drop(keyed.acquire(&key).await.unwrap());
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        tokio::time::timeout(ms(10_000), caller)
            .await
            .expect("a request was forgotten")
            .unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn grants_follow_a_paused_clock() {
    let limiter = precise(Throttle::every(ms(10)));
    let start = Instant::now();
    for nth in 0..20 {
        drop(limiter.acquire().await.unwrap());
        assert_eq!(start.elapsed(), nth * ms(10));
    }
}

#[tokio::test]
async fn grants_follow_a_clock_that_is_paused_while_a_request_waits() {
    let limiter = precise(Throttle::every(ms(200)));
    drop(limiter.acquire().await.unwrap());
    let start = Instant::now();
    let handle = limiter.clone();
    let waits = tokio::spawn(async move { handle.acquire().await.map(drop) });
    tokio::task::yield_now().await; // it is queued
    tokio::task::yield_now().await; // its driver sleeps
    pause();
    let granted = limiter.snapshot().granted;
    thread::sleep(ms(300)); // the thread's instant passes, but no time on this clock
    assert_eq!(limiter.snapshot().granted, granted);
    waits.await.unwrap().unwrap();
    assert!(start.elapsed() < ms(2_000), "{:?}", start.elapsed());
    resume();
}

#[tokio::test]
async fn grants_follow_an_advanced_clock() {
    pause();
    advance(ms(60_000)).await;
    resume();
    let limiter = precise(Throttle::every(ms(5)));
    let start = Instant::now();
    for _ in 0..5 {
        drop(limiter.acquire().await.unwrap());
    }
    assert!(start.elapsed() >= ms(20));
}

#[tokio::test]
async fn a_leaked_permit_is_reclaimed() {
    let limiter = precise(MaxConcurrency::new(1).ttl(ms(5)));
    let start = Instant::now();
    limiter.acquire().await.unwrap().forget();
    let _next = limiter.acquire().await.unwrap();
    assert!(start.elapsed() >= ms(5));
    assert_eq!(limiter.snapshot().reclaimed, 1);
}

/// The thread keeps the instant at which it wakes for a limiter, and no reference to the limiter.
#[test]
fn the_thread_does_not_keep_a_dropped_limiter_alive() {
    struct CountsDrop(Arc<AtomicU32>);
    impl Drop for CountsDrop {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
        }
    }
    let drops = Arc::new(AtomicU32::new(0));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let counts = CountsDrop(Arc::clone(&drops));
        let builder = Limiter::builder(Throttle::every(ms(3_600_000))).precise_timer();
        let limiter = builder
            .on_event(move |_| _ = counts.0.load(SeqCst))
            .build()
            .unwrap();
        drop(limiter.acquire().await.unwrap());
        assert!(
            tokio::time::timeout(ms(5), limiter.acquire())
                .await
                .is_err()
        );
        drop(limiter);
        tokio::time::timeout(ms(10_000), async {
            while drops.load(SeqCst) == 0 {
                tokio::task::yield_now().await;
            }
        })
        .await
        .expect("the limiter is still held");
    });
}

#[test]
fn a_limiter_outlives_the_runtimes_of_its_waiters() {
    let limiter = precise(Throttle::every(ms(400)));
    for _ in 0..3 {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            drop(limiter.acquire().await.unwrap());
            assert!(
                tokio::time::timeout(ms(2), limiter.acquire())
                    .await
                    .is_err()
            );
            drop(tokio::time::timeout(ms(2), limiter.clone().acquire_owned()).await);
        });
    }
    assert_eq!(limiter.snapshot().granted, 3);
}
