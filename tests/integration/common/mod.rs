//! Helpers of several modules.

pub(crate) mod counting;
pub(crate) mod everything;
pub(crate) mod faulty;
pub(crate) mod replay;
#[cfg(feature = "http")]
pub(crate) mod upstreams;

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;
use tokio_test::{assert_pending, task};
use tollgate::{
    AcquireError, Align, FixedWindow, Limiter, MaxConcurrency, Policy, Throttle, TryAcquireError,
};

/// A xorshift generator with a fixed seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// The cost and the maximum of an `ExceedsLimit` error. Checks that the limit in it has this capacity.
pub(crate) fn exceeded(error: &(dyn std::error::Error + 'static)) -> Option<(u64, u64)> {
    let of_try = error.downcast_ref().and_then(|error| match error {
        TryAcquireError::ExceedsLimit { cost, max, limit } => Some((*cost, *max, limit)),
        _ => None,
    });
    let of_acquire = || match error.downcast_ref() {
        Some(AcquireError::ExceedsLimit { cost, max, limit }) => Some((*cost, *max, limit)),
        _ => None,
    };
    let (cost, max, limit) = of_try.or_else(of_acquire)?;
    (limit.capacity() == max).then_some((cost, max))
}

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) fn limiter(policy: impl Into<Policy>) -> Limiter {
    Limiter::new(policy).unwrap()
}

/// A request that has been polled once and waits.
pub(crate) fn queued<F>(acquire: F) -> task::Spawn<F>
where
    F: Future,
    F::Output: Debug,
{
    let mut waiting = task::spawn(acquire);
    assert_pending!(waiting.poll());
    waiting
}

/// When each of `count` acquires is granted, in milliseconds.
pub(crate) async fn grants(limiter: &Limiter, count: usize) -> Vec<u128> {
    let start = Instant::now();
    let mut at = Vec::new();
    for _ in 0..count {
        limiter.acquire().await.unwrap().release();
        at.push(start.elapsed().as_millis());
    }
    at
}

pub(crate) fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// A runtime with a paused clock of its own.
pub(crate) fn paused() -> Runtime {
    Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap()
}

/// Runs the future, and fails if it takes more than ten seconds.
pub(crate) fn within_ten_seconds<T>(runtime: &Runtime, future: impl Future<Output = T>) -> T {
    runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(10), future)
            .await
            .expect("it hangs")
    })
}

/// One policy of each kind. Each admits at most three units at once, and another one within 100 ms.
pub(crate) fn every_strategy() -> Vec<Policy> {
    let window = FixedWindow::new(3, ms(100));
    vec![
        Throttle::every(ms(100)).into(),
        Throttle::every(ms(40)).burst(3).into(),
        MaxConcurrency::new(3).into(),
        MaxConcurrency::new(3).ttl(ms(80)).into(),
        window.into(),
        window.align(Align::FirstGrant).into(),
        window.align(Align::WallClock).into(),
        Policy::from(MaxConcurrency::new(2))
            .and(Throttle::every(ms(30)).burst(3))
            .and(window),
    ]
}

/// Waits for real time without a timer. Meanwhile a paused clock jumps to the next timer, if there is one.
pub(crate) async fn idle_for_real() {
    let (done, waiting) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        std::thread::sleep(ms(30));
        done.send(())
    });
    waiting.await.unwrap();
}

/// Counts how often a future is polled.
pub(crate) struct CountPolls<F>(pub(crate) Pin<Box<F>>, pub(crate) Arc<AtomicUsize>);

impl<F: Future> Future for CountPolls<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.as_mut().poll(cx)
    }
}
