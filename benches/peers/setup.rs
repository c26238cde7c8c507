//! Runtimes and limiters that several workloads use.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use governor::clock::{Clock, MonotonicClock};
use governor::middleware::NoOpMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use tokio::runtime::{Builder, Runtime};
use tollgate::{Limiter, Policy, Throttle};

use crate::rounds::since;

pub(crate) type Governor<C> =
    RateLimiter<NotKeyed, InMemoryState, C, NoOpMiddleware<<C as Clock>::Instant>>;

pub(crate) fn current_thread() -> Runtime {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

pub(crate) fn two_workers() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
}

/// A limiter that lives as long as the process, like one in a `static`, so that tasks can borrow it.
pub(crate) fn limiter(policy: impl Into<Policy>) -> &'static Limiter {
    Box::leak(Box::new(Limiter::new(policy).expect("a sound policy")))
}

/// The burst of [`never_waiting`]: as many units as a second brings, so that no loop uses them up.
pub(crate) const PLENTY: u32 = 1_000_000_000;

/// A throttle that is faster than any loop.
pub(crate) fn never_waiting() -> Throttle {
    Throttle::every(Duration::from_nanos(1)).burst(PLENTY.into())
}

/// The same throttle for governor.
pub(crate) fn never_waiting_quota() -> Quota {
    let burst = PLENTY.try_into().expect("not zero");
    Quota::with_period(Duration::from_nanos(1))
        .expect("not zero")
        .allow_burst(burst)
}

/// A limiter of governor that reads the same clock as tollgate.
pub(crate) fn governor(quota: Quota) -> Arc<Governor<MonotonicClock>> {
    Arc::new(RateLimiter::direct_with_clock(quota, MonotonicClock))
}

/// Nanoseconds for each operation of a task that performs `operations`, one after another. The task is spawned because only then
/// does tokio's cooperative budget cost what it costs in a program.
pub(crate) fn nanos_each_in_task<F>(runtime: &Runtime, operations: u32, task: F) -> f64
where
    F: Future<Output = ()> + Send + 'static,
{
    let timed = async move {
        let start = Instant::now();
        task.await;
        since(start, operations)
    };
    runtime
        .block_on(runtime.spawn(timed))
        .expect("the task ran to its end")
}
