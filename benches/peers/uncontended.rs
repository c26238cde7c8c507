//! W1 and W2: acquiring and dropping an owned permit without contention.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::future::Future;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, TryAcquireError};
use tollgate::{Limiter, MaxConcurrency, Permit};

use crate::rounds::{Contest, nanos_each};
use crate::setup::{current_thread, limiter, nanos_each_in_task};
use crate::table::{Bar, Row, Unit};

const ROUNDS: usize = 101;
const BATCH: u32 = 50_000;
const PLACES: u32 = 1_000;
/// Spawning takes longer than a permit.
const SPAWNED: u32 = 5_000;

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
        Some(Bar::AtMost(0.6)),
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

/// Permits as programs keep them: they are moved before they are dropped.
pub(crate) fn kept() -> Vec<Row> {
    let runtime = &current_thread();
    let limiter = limiter(MaxConcurrency::new(PLACES.into()));
    let semaphore = &*Box::leak(Box::new(Arc::new(Semaphore::new(PLACES as usize))));
    let at_most = Some(Bar::AtMost(1.0));

    let returned = Contest::new(
        ("W1", "try_acquire() in a function that returns it"),
        Unit::Nanos,
        || nanos_each(BATCH, || drop(ours(black_box(limiter)).expect("a permit"))),
    )
    .against("tokio try_acquire_owned()", at_most, || {
        nanos_each(BATCH, || {
            drop(theirs(black_box(semaphore)).expect("a permit"));
        })
    })
    .run(ROUNDS);

    let queued = Contest::new(("W1", "kept in a queue of four"), Unit::Nanos, || {
        queue_of_four(|| ours(black_box(limiter)).expect("a permit"))
    })
    .against("tokio try_acquire_owned()", at_most, || {
        queue_of_four(|| theirs(black_box(semaphore)).expect("a permit"))
    })
    .run(ROUNDS);

    let spawned = Contest::new(("W1", "moved into a spawned task"), Unit::Nanos, || {
        nanos_each_in_task(runtime, SPAWNED, async move {
            for _ in 0..SPAWNED {
                hand_to_task(awaited(limiter).await.expect("a permit")).await;
            }
        })
    })
    .against("tokio acquire_owned()", at_most, || {
        nanos_each_in_task(runtime, SPAWNED, async move {
            for _ in 0..SPAWNED {
                hand_to_task(awaited_by_tokio(semaphore).await.expect("a permit")).await;
            }
        })
    })
    .run(ROUNDS);
    [returned, queued, spawned].into_iter().flatten().collect()
}

#[inline(never)]
fn ours(limiter: &Limiter) -> Result<Permit, tollgate::TryAcquireError> {
    limiter.try_acquire()
}

#[inline(never)]
fn theirs(semaphore: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, TryAcquireError> {
    Arc::clone(semaphore).try_acquire_owned()
}

#[inline(never)]
async fn awaited(limiter: &Limiter) -> Result<Permit, tollgate::AcquireError> {
    limiter.acquire().await
}

#[inline(never)]
async fn awaited_by_tokio(
    semaphore: &Arc<Semaphore>,
) -> Result<OwnedSemaphorePermit, AcquireError> {
    Arc::clone(semaphore).acquire_owned().await
}

fn queue_of_four<P>(permit: impl Fn() -> P) -> f64 {
    let mut queue = VecDeque::with_capacity(4);
    nanos_each(BATCH, || {
        if queue.len() == 4 {
            drop(black_box(queue.pop_front()));
        }
        queue.push_back(permit());
    })
}

async fn hand_to_task<P: Send + 'static>(permit: P) {
    tokio::spawn(async move { drop(permit) })
        .await
        .expect("the task ran to its end");
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
