//! Runtimes, and the limiters that several workloads share.

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

pub(crate) type Governor<C> = RateLimiter<NotKeyed, InMemoryState, C, NoOpMiddleware<<C as Clock>::Instant>>;

pub(crate) fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

pub(crate) fn two_workers() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// It lives as long as the process, as a limiter in a `static` does: tasks borrow it.
pub(crate) fn limiter(policy: impl Into<Policy>) -> &'static Limiter {
    Box::leak(Box::new(Limiter::new(policy).expect("a sound policy")))
}

/// Units in [`never_waiting`]'s burst: a second's worth, so that no loop outruns it.
pub(crate) const PLENTY: u32 = 1_000_000_000;

/// A throttle that admits faster than any loop can ask.
pub(crate) fn never_waiting() -> Throttle {
    Throttle::every(Duration::from_nanos(1)).burst(PLENTY.into())
}

/// The same for governor.
pub(crate) fn never_waiting_quota() -> Quota {
    let burst = PLENTY.try_into().expect("not zero");
    Quota::with_period(Duration::from_nanos(1)).expect("not zero").allow_burst(burst)
}

/// On the clock that tollgate reads.
pub(crate) fn governor(quota: Quota) -> Arc<Governor<MonotonicClock>> {
    Arc::new(RateLimiter::direct_with_clock(quota, MonotonicClock))
}

/// Nanoseconds an operation of a task that does so many, one after another. A spawned task, since only there tokio's
/// cooperative budget costs what it costs in a program.
pub(crate) fn nanos_each_in_task<F>(runtime: &Runtime, operations: u32, task: F) -> f64
where
    F: Future<Output = ()> + Send + 'static,
{
    let timed = async move {
        let start = Instant::now();
        task.await;
        since(start, operations)
    };
    runtime.block_on(runtime.spawn(timed)).expect("the task ran to its end")
}
