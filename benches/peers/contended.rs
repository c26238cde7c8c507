//! W3: 64 tasks, each of which acquires a permit, holds it across a yield and drops it, in a loop.

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::runtime::Runtime;
use tokio::sync::{Barrier, Semaphore};
use tokio::task::yield_now;
use tollgate::MaxConcurrency;

use crate::rounds::{Contest, median};
use crate::setup::{current_thread, limiter, two_workers};
use crate::table::{Bar, Row, Unit};

const TASKS: usize = 64;
const ROUNDS: usize = 21;
const SLICE: Duration = Duration::from_millis(100);
/// The time in which the turns of each task are counted. It is so long that a short suspension of a worker does not affect the median.
const LONG_SLICE: Duration = Duration::from_millis(500);
const LONG_SLICES: usize = 5;

pub(crate) fn held_across_a_yield() -> Vec<Row> {
    let runtimes = [
        ("one thread", current_thread(), [1.0, 1.1, 1.2]),
        ("two workers", two_workers(), [1.0, 1.0, 1.3]),
    ];
    let mut rows = Vec::new();
    for (threads, runtime, bars) in &runtimes {
        for (places, bar) in [1, 8, 64].into_iter().zip(bars) {
            eprintln!("  limit {places}, {threads}");
            rows.extend(one_limit(runtime, threads, places, Bar::AtLeast(*bar)));
        }
    }
    rows
}

fn one_limit(runtime: &Runtime, threads: &str, places: u32, bar: Bar) -> Vec<Row> {
    let case = format!("{TASKS} tasks, limit {places}, {threads}");
    let spread_case = format!("{case}: max/min per task");
    let tasks_wait = (places as usize) < TASKS;

    let limiter = limiter(MaxConcurrency::new(places.into()));
    let ours = |slice| hammer(runtime, slice, || limiter.acquire());
    let semaphore = Arc::new(Semaphore::new(places as usize));
    let theirs = |slice| {
        let semaphore = Arc::clone(&semaphore);
        hammer(runtime, slice, move || {
            Arc::clone(&semaphore).acquire_owned()
        })
    };

    let mut rows = Contest::new(("W3", &case), Unit::Millions, || ours(SLICE).per_micro)
        .against("tokio acquire_owned().await", Some(bar), || {
            theirs(SLICE).per_micro
        })
        .run(ROUNDS);
    if tasks_wait {
        let spreads =
            (0..LONG_SLICES).map(|_| (ours(LONG_SLICE).spread, theirs(LONG_SLICE).spread));
        let (ours, theirs): (Vec<f64>, Vec<f64>) = spreads.unzip();
        let theirs = ("tokio", median(theirs));
        rows.push(Row::figure(
            ("W3", &spread_case),
            Unit::Plain(3),
            median(ours),
            Some(theirs),
            Some(Bar::AtMost(1.05)),
        ));
    }
    rows
}

struct Turns {
    /// Turns of all tasks per microsecond.
    per_micro: f64,
    /// The most turns of any task, divided by the fewest.
    spread: f64,
}

fn hammer<F, P, E>(
    runtime: &Runtime,
    slice: Duration,
    acquire: impl Fn() -> F + Clone + Send + 'static,
) -> Turns
where
    F: Future<Output = Result<P, E>> + Send,
    P: Send,
    E: Debug,
{
    let stop = Arc::new(AtomicBool::new(false));
    // All tasks start together: the first would take thousands of turns alone if this thread were suspended before it spawns the others.
    let all_spawned = Arc::new(Barrier::new(TASKS));
    let start = Instant::now();
    let task = || {
        let (acquire, stop, all_spawned) =
            (acquire.clone(), Arc::clone(&stop), Arc::clone(&all_spawned));
        runtime.spawn(async move {
            all_spawned.wait().await;
            let mut turns = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                let permit = acquire().await.expect("a permit");
                yield_now().await;
                drop(permit);
                turns += 1;
            }
            turns
        })
    };
    let tasks: Vec<_> = (0..TASKS).map(|_| task()).collect();
    let turns = runtime.block_on(async {
        tokio::time::sleep(slice).await;
        stop.store(true, Ordering::Relaxed);
        join_all(tasks).await
    });
    let elapsed = start.elapsed();
    let turns: Vec<u64> = turns
        .into_iter()
        .map(|turns| turns.expect("the task ran to its end"))
        .collect();
    let (most, fewest) = (turns.iter().max(), turns.iter().min());
    Turns {
        per_micro: turns.iter().sum::<u64>() as f64 / elapsed.as_micros() as f64,
        spread: *most.unwrap_or(&0) as f64 / *fewest.unwrap_or(&0) as f64,
    }
}
