//! Tasks that wait.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::Poll;

use tokio::task::{JoinHandle, yield_now};

use crate::limiters::Limits;

/// Spawns tasks, and returns when each has made its request, in the order of their numbers. No time passes meanwhile on a paused clock.
pub(crate) async fn queue<F>(
    count: usize,
    request: impl Fn(usize) -> F,
) -> Vec<JoinHandle<F::Output>>
where
    F: Future<Output: Send> + Send + 'static,
{
    let asked = Arc::new(AtomicUsize::new(0));
    let spawn = |number| {
        let (asked, request) = (Arc::clone(&asked), request(number));
        tokio::spawn(async move {
            asked.fetch_add(1, Relaxed); // this thread polls the request before it reads the count
            request.await
        })
    };
    let tasks = (0..count).map(spawn).collect();
    while asked.load(Relaxed) < count {
        yield_now().await;
    }
    tasks
}

pub(crate) async fn results<T>(tasks: Vec<JoinHandle<T>>) -> Vec<T> {
    let mut results = Vec::with_capacity(tasks.len());
    for task in tasks {
        results.push(task.await.expect("the task runs to its end"));
    }
    results
}

/// Takes the first units, one by one.
pub(crate) async fn take<L: Limits>(limiter: &L, units: u32) -> Vec<L::Grant> {
    let mut taken = Vec::new();
    for _ in 0..units {
        taken.push(limiter.acquire(1).await);
    }
    taken
}

/// The output of a future, and how often it was polled.
pub(crate) async fn counting_polls<F: Future>(future: F) -> (F::Output, u32) {
    let mut future = pin!(future);
    let mut polls = 0;
    let output = poll_fn(|context| {
        polls += 1;
        future.as_mut().poll(context)
    });
    let output = output.await;
    (output, polls)
}

/// Polls a future once.
pub(crate) async fn is_pending<F: Future>(future: &mut Pin<Box<F>>) -> bool {
    poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending())).await
}
