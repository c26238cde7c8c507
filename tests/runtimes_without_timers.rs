//! A runtime that was built without timers. This program has one test, because the test counts panics with the panic hook of the process.

#[allow(dead_code, reason = "it uses a part")]
#[path = "integration/common/mod.rs"]
mod common;

use std::panic;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use common::{current_thread, ms, within_ten_seconds};
use tokio::runtime::Builder;
use tollgate::{AcquireError, KeyedLimiter, Limiter, MaxConcurrency, Throttle};

/// Only a panic of tokio shows that a runtime has no timers. It is caused once in each runtime, however many limiters and keys wait there.
#[test]
fn a_runtime_without_timers_is_detected_by_one_panic_for_all_limiters() {
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    panic::set_hook(Box::new(|_| _ = PANICS.fetch_add(1, Relaxed)));
    let policy = Throttle::every(ms(1_000));
    let limiters = [(); 3].map(|()| common::limiter(policy));
    let keyed = KeyedLimiter::<u8>::new(policy).unwrap();
    for runtime in 1..=2 {
        let timerless = Builder::new_current_thread().build().unwrap();
        for nth in 0..3_u8 {
            let limiter = &limiters[usize::from(nth)];
            drop((limiter.try_acquire(), keyed.try_acquire(&nth)));
            for _ in 0..2 {
                assert_eq!(
                    timerless.block_on(limiter.acquire()).map(drop),
                    Err(AcquireError::NoRuntime)
                );
                assert_eq!(
                    timerless.block_on(keyed.acquire(&nth)).map(drop),
                    Err(AcquireError::NoRuntime)
                );
            }
        }
        assert_eq!(PANICS.load(Relaxed), runtime);
        // A policy of places needs no timer.
        let places = Limiter::new(MaxConcurrency::new(1)).unwrap();
        timerless.block_on(async {
            let (held, handle) = (places.try_acquire().unwrap(), places.clone());
            let waiting = tokio::spawn(async move { handle.acquire().await.map(drop) });
            tokio::task::yield_now().await;
            drop(held);
            waiting.await.unwrap().unwrap();
        });
    }
    within_ten_seconds(&current_thread(), async {
        for (limiter, nth) in limiters.iter().zip(0..) {
            drop((
                limiter.acquire().await.unwrap(),
                keyed.acquire(&nth).await.unwrap(),
            ));
        }
    });
    assert_eq!(PANICS.load(Relaxed), 2);
}
