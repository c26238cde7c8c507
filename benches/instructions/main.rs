//! Runs one operation in a loop, to count its instructions.
//!
//! `scripts/instructions` counts all of them and compares them with `benches/instructions.txt`. To see where one spends its
//! instructions:
//!
//! ```text
//! CARGO_PROFILE_BENCH_DEBUG=true cargo bench --package instructions --no-run
//! valgrind --tool=callgrind target/release/deps/instructions-… acquire 100000
//! callgrind_annotate callgrind.out.…
//! ```
//!
//! The cost of one operation is the difference between a run of 200,000 operations and one of 100,000, divided by 100,000.

use std::convert::Infallible;
use std::env;
use std::future::{Future, ready};
use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::stream::{self, StreamExt as _};
use http::{Request, Response};
use tokio::runtime::Builder;
use tokio::sync::Semaphore;
use tokio::task::yield_now;
use tokio::time::advance;
use tollgate::layers::{ClientIp, LimitLayer, RateLimitStyle};
use tollgate::{
    FixedWindow, KeyedLimiter, Limiter, MaxConcurrency, Penalty, Policy, Rate, SlidingWindow,
    StreamLimitExt as _, Throttle, TokenBucket,
};
use tower::{Layer as _, Service as _, service_fn};

const PLACES: u64 = 1_000;
const TASKS: u64 = 64;
const LONG: Duration = Duration::from_secs(3_600);

type Operation = (&'static str, fn(u64));

const OPERATIONS: [Operation; 30] = [
    ("acquire", |times| {
        awaited(times, MaxConcurrency::new(PLACES));
    }),
    ("acquire-ttl", |times| {
        awaited(times, MaxConcurrency::new(PLACES).ttl(LONG));
    }),
    ("try-acquire", |times| {
        tried(times, MaxConcurrency::new(PLACES));
    }),
    ("throttle", |times| tried(times, never_waiting())),
    ("window", |times| {
        tried(times, FixedWindow::new(u32::MAX.into(), LONG));
    }),
    ("bucket", |times| {
        tried(times, TokenBucket::new(Rate::per_second(7), 8_000_000));
    }),
    ("counter", |times| {
        tried(times, SlidingWindow::counter(u32::MAX.into(), LONG));
    }),
    ("log", |times| {
        tried(times, SlidingWindow::log(u32::MAX.into(), LONG));
    }),
    ("log-sliding", |times| sliding(times, 1_000)),
    ("penalty", |times| {
        tried(times, Penalty::new(u32::MAX.into(), Rate::per_second(1)));
    }),
    ("two", |times| tried(times, slow().and(slow()))),
    ("three", |times| {
        tried(times, slow().and(slow()).and(slow()));
    }),
    ("denied", |times| tried(times, Throttle::every(LONG))),
    ("denied-penalty", |times| {
        tried(times, Penalty::new(1, Rate::per_hour(1)));
    }),
    ("denied-places", |times| {
        let limiter = limiter(MaxConcurrency::new(1));
        let _permit = limiter.try_acquire();
        tried_with(times, limiter);
    }),
    ("keyed-one", |times| tried_keyed(times, 1, slow())),
    ("keyed-three", |times| {
        tried_keyed(times, 16, slow().and(slow()).and(slow()));
    }),
    ("keyed-places", |times| {
        tried_keyed(times, 1, MaxConcurrency::new(PLACES));
    }),
    ("keyed-denied", |times| {
        tried_keyed(times, 16, Throttle::every(LONG));
    }),
    ("keyed-new", |times| {
        // Each key is used once, and forgotten soon.
        tried_keyed_with(0..times, keyed(Throttle::every(Duration::from_nanos(1))));
    }),
    ("throttled", |times| {
        let limiter = limiter(never_waiting());
        in_task(async move {
            stream::repeat(())
                .take(times as usize)
                .throttled(limiter)
                .for_each(async |()| ())
                .await;
        });
    }),
    ("hand-off", |times| {
        let limiter = limiter(MaxConcurrency::new(8));
        handed_over(times, move |_| limiter.acquire());
    }),
    ("hand-off-flows", |times| {
        let limiter = limiter(MaxConcurrency::new(8));
        handed_over(times, move |task| limiter.request().flow(task).acquire());
    }),
    ("paced", paced),
    ("layer", |times| {
        answered(times, slow(), RateLimitStyle::None);
    }),
    ("layer-fields", |times| {
        answered(times, slow(), RateLimitStyle::Draft10);
    }),
    ("layer-two", |times| {
        let both = "1000 concurrent and 4000000000/h"
            .parse::<Policy>()
            .expect("a policy");
        answered(times, both, RateLimitStyle::Draft10);
    }),
    ("layer-denied", |times| {
        answered(times, Throttle::every(LONG), RateLimitStyle::Draft10);
    }),
    ("tokio-acquire", |times| {
        let semaphore = Arc::new(Semaphore::new(PLACES as usize));
        in_task(async move {
            for _ in 0..times {
                drop(
                    Arc::clone(&semaphore)
                        .acquire_owned()
                        .await
                        .expect("a permit"),
                );
            }
        });
    }),
    ("tokio-hand-off", |times| {
        let semaphore = Arc::new(Semaphore::new(8));
        handed_over(times, move |_| Arc::clone(&semaphore).acquire_owned());
    }),
];

fn main() {
    let arguments: Vec<String> = env::args()
        .skip(1)
        .filter(|arg| !arg.starts_with("--"))
        .collect();
    let times = arguments.get(1).map_or(Ok(100_000), |times| times.parse());
    let operation = OPERATIONS
        .iter()
        .find(|(name, _)| Some(*name) == arguments.first().map(String::as_str));
    match (operation, times) {
        (Some((_, run)), Ok(times)) => run(times),
        _ => {
            eprintln!("usage: instructions OPERATION [TIMES]; the operations are");
            OPERATIONS.iter().for_each(|(name, _)| println!("{name}"));
        }
    }
}

fn limiter(policy: impl Into<Policy>) -> &'static Limiter {
    Box::leak(Box::new(Limiter::new(policy).expect("a sound policy")))
}

fn never_waiting() -> Throttle {
    Throttle::every(Duration::from_nanos(1)).burst(1_000_000_000_000)
}

/// It is never dropped: whether the allocator tidies up when all shards are freed differs from run to run, by instructions that would
/// count as the operation's.
fn keyed(policy: impl Into<Policy>) -> &'static KeyedLimiter<u64> {
    Box::leak(Box::new(KeyedLimiter::new(policy).expect("a sound policy")))
}

/// A policy that refills nothing during a run, so no key is forgotten.
fn slow() -> Policy {
    Throttle::every(Duration::from_secs(60))
        .burst(10_000_000)
        .into()
}

/// All keys exist before the loop begins, so a run of any length inserts the same number.
fn tried_keyed(times: u64, keys: u64, policy: impl Into<Policy>) {
    let limiter = keyed(policy);
    tried_keyed_with(0..keys, limiter);
    tried_keyed_with((0..times).map(|number| number % keys), limiter);
}

fn tried_keyed_with(keys: impl Iterator<Item = u64>, limiter: &KeyedLimiter<u64>) {
    for key in keys {
        black_box(limiter.try_acquire(&key).is_ok());
    }
}

fn tried(times: u64, policy: impl Into<Policy>) {
    tried_with(times, limiter(policy));
}

fn tried_with(times: u64, limiter: &Limiter) {
    for _ in 0..times {
        black_box(limiter.try_acquire().is_ok());
    }
}

/// Requests of one client to a service behind a layer.
fn answered(times: u64, policy: impl Into<Policy>, style: RateLimitStyle) {
    let limiter = KeyedLimiter::new(policy).expect("a sound policy");
    let answer = |_: Request<()>| ready(Ok::<_, Infallible>(Response::new(String::new())));
    let mut service = LimitLayer::new(limiter)
        .style(style)
        .by(ClientIp::peer())
        .layer(service_fn(answer));
    let client = SocketAddr::from(([192, 0, 2, 1], 4711));
    for _ in 0..times {
        let mut request = Request::new(());
        request.extensions_mut().insert(client);
        black_box(service.call(request).now_or_never());
    }
}

/// A log at its limit. One of its grants expires before each request.
fn sliding(times: u64, limit: u64) {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async move {
        let limiter = limiter(SlidingWindow::log(limit, Duration::from_nanos(limit)));
        for _ in 0..times {
            black_box(limiter.try_acquire().is_ok());
            advance(Duration::from_nanos(1)).await;
        }
    });
}

fn awaited(times: u64, policy: impl Into<Policy>) {
    let limiter = limiter(policy);
    in_task(async move {
        for _ in 0..times {
            drop(limiter.acquire().await.expect("a permit"));
        }
    });
}

/// 64 tasks that each hold a permit across a yield. `acquire` gets the number of its task.
fn handed_over<F, P, E>(times: u64, acquire: impl Fn(u64) -> F + Clone + Send + 'static)
where
    F: Future<Output = Result<P, E>> + Send,
    P: Send,
    E: std::fmt::Debug,
{
    let task = move |number| {
        let acquire = acquire.clone();
        async move {
            for _ in 0..times / TASKS {
                let permit = acquire(number).await.expect("a permit");
                yield_now().await;
                drop(permit);
            }
        }
    };
    in_task(in_tasks(task));
}

/// 64 tasks that wait for a rate. Each tick of the timer, a millisecond, grants ten.
fn paced(times: u64) {
    let limiter = limiter(Throttle::every(Duration::from_micros(100)).burst(10));
    let task = move |_| async move {
        for _ in 0..times / TASKS {
            drop(limiter.acquire().await.expect("a permit"));
        }
    };
    let runtime = Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(in_tasks(task));
}

async fn in_tasks<F: Future<Output = ()> + Send + 'static>(task: impl Fn(u64) -> F) {
    let tasks: Vec<_> = (0..TASKS)
        .map(|number| tokio::spawn(task(number)))
        .collect();
    for task in tasks {
        task.await.expect("the task ran to its end");
    }
}

fn in_task(task: impl Future<Output = ()> + Send + 'static) {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime
        .block_on(runtime.spawn(task))
        .expect("the task ran to its end");
}
