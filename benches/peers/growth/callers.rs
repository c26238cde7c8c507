//! Callers: up to 10,000 tasks on two workers acquire a permit, hold it across a yield and drop it, in a loop.

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;
use tokio::task::yield_now;
use tollgate::{Limiter, MaxConcurrency};

use crate::curve::{Chart, Curve, Points};
use crate::timing::{median, since};

const SIZES: [usize; 5] = [1, 10, 100, 1_000, 10_000];
const PEER: &str = "tokio Semaphore";
/// The turns of all callers in one batch.
const TURNS: usize = 50_000;
const BATCHES: usize = 7;
/// So few places that callers wait, and so many that none waits.
const FEW: u32 = 8;
const MANY: u32 = 10_000;

pub(crate) fn chart() -> Chart {
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .expect("a runtime");
    let [few, many] = [FEW, MANY].map(|places| {
        eprintln!("  {places} places");
        let limiter = Limiter::new(MaxConcurrency::new(places.into())).expect("a sound policy");
        let limiter: &'static Limiter = Box::leak(Box::new(limiter));
        let ours = costs(&runtime, || limiter.acquire());
        let semaphore = Arc::new(Semaphore::new(places as usize));
        let theirs = costs(&runtime, move || Arc::clone(&semaphore).acquire_owned());
        (ours, theirs)
    });
    Chart {
        title: "callers at once, on two threads",
        promise: "Without waiters one compare-and-swap decides; with waiters, a lock.",
        unit: "ns",
        curves: vec![
            Curve::new("8 places", few.0),
            Curve::new("a place for each", many.0),
            Curve::of_peer(PEER, "8 places", few.1),
            Curve::of_peer(PEER, "a place for each", many.1),
        ],
        bytes: Vec::new(),
    }
}

fn costs<F, P, E>(runtime: &Runtime, acquire: impl Fn() -> F + Clone + Send + 'static) -> Points
where
    F: Future<Output = Result<P, E>> + Send,
    P: Send,
    E: Debug,
{
    let cost = |size| {
        batch(runtime, size, &acquire); // warms up
        let batches = (0..BATCHES).map(|_| batch(runtime, size, &acquire));
        (size, median(batches.collect()))
    };
    SIZES.map(cost).into()
}

fn batch<F, P, E>(
    runtime: &Runtime,
    callers: usize,
    acquire: &(impl Fn() -> F + Clone + Send + 'static),
) -> f64
where
    F: Future<Output = Result<P, E>> + Send,
    P: Send,
    E: Debug,
{
    let turns = TURNS / callers;
    let start = Instant::now();
    let tasks = (0..callers).map(|_| {
        let acquire = acquire.clone();
        runtime.spawn(async move {
            for _ in 0..turns {
                let permit = acquire().await.expect("a permit");
                yield_now().await;
                drop(permit);
            }
        })
    });
    for task in runtime.block_on(join_all(tasks)) {
        task.expect("the task ran to its end");
    }
    since(start, TURNS as u32)
}
