//! W1 and W2: acquiring and dropping an owned permit without contention.

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tollgate::MaxConcurrency;

use crate::rounds::{Contest, nanos_each};
use crate::setup::{current_thread, limiter, nanos_each_in_task};
use crate::table::{Bar, Row, Unit};

const ROUNDS: usize = 101;
const BATCH: u32 = 50_000;
const PLACES: u32 = 1_000;

pub(crate) fn plain() -> Vec<Row> {
    let runtime = &current_thread();
    let limiter = limiter(MaxConcurrency::new(PLACES.into()));
    let semaphore = &Arc::new(Semaphore::new(PLACES as usize));
    let owned = Arc::clone(semaphore);

    let awaited = Contest::new(("W1", "acquire().await, drop"), Unit::Nanos, || {
        loop_of(runtime, || limiter.acquire())
    })
    .against(
        "tokio acquire_owned().await",
        Some(Bar::AtMost(0.7)),
        move || {
            let owned = Arc::clone(&owned);
            loop_of(runtime, move || Arc::clone(&owned).acquire_owned())
        },
    )
    .run(ROUNDS);

    let tried = Contest::new(("W1", "try_acquire(), drop"), Unit::Nanos, || {
        nanos_each(BATCH, || assert!(limiter.try_acquire().is_ok()))
    })
    .against("tokio try_acquire_owned()", Some(Bar::AtMost(0.7)), || {
        nanos_each(BATCH, || {
            assert!(Arc::clone(semaphore).try_acquire_owned().is_ok());
        })
    })
    .run(ROUNDS);
    [awaited, tried].into_iter().flatten().collect()
}

pub(crate) fn with_ttl() -> Vec<Row> {
    let runtime = &current_thread();
    let limiter = limiter(MaxConcurrency::new(PLACES.into()).ttl(Duration::from_secs(30)));
    let semaphore = Arc::new(Semaphore::new(PLACES as usize));
    Contest::new(
        ("W2", "with a TTL: acquire().await, drop"),
        Unit::Nanos,
        || loop_of(runtime, || limiter.acquire()),
    )
    .against(
        "tokio acquire_owned().await, no TTL",
        Some(Bar::AtMost(1.25)),
        move || {
            let semaphore = Arc::clone(&semaphore);
            loop_of(runtime, move || Arc::clone(&semaphore).acquire_owned())
        },
    )
    .run(ROUNDS)
}

fn loop_of<F, P, E>(runtime: &Runtime, acquire: impl Fn() -> F + Send + 'static) -> f64
where
    F: Future<Output = Result<P, E>> + Send,
    P: Send,
    E: Debug,
{
    nanos_each_in_task(runtime, BATCH, async move {
        for _ in 0..BATCH {
            drop(acquire().await.expect("a permit"));
        }
    })
}
