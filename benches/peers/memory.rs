//! W7: the heap bytes of a queued waiter, in addition to those of a task that waits for nothing.

use std::future::{Future, pending};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};

use tokio::sync::Semaphore;
use tokio::task::yield_now;
use tollgate::MaxConcurrency;

use crate::heap::bytes_kept_by;
use crate::setup::{current_thread, limiter};
use crate::table::{Bar, Row, Unit};

/// A static, so that the tasks need not hold a reference to it.
static STARTED: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn per_waiter() -> Vec<Row> {
    let in_tasks = [1_000, 10_000, 100_000, 1_000_000]
        .into_iter()
        .flat_map(waiters);
    in_tasks.chain(alone()).collect()
}

/// The bytes of a waiter in a box, where tokio does not round its task up to a multiple of 128 bytes.
fn alone() -> [Row; 2] {
    let limiter = limiter(MaxConcurrency::new(1));
    let _permit = limiter.try_acquire();
    let ours = bytes_each_boxed(|| limiter.acquire());
    let semaphore = Arc::new(Semaphore::new(0));
    let owned = bytes_each_boxed(|| Arc::clone(&semaphore).acquire_owned());
    let borrowed = bytes_each_boxed(|| semaphore.acquire());
    let case = "heap per waiter, its future in a box";
    let row = |peer, bar| Row::figure(("W7", case), Unit::Bytes, ours, Some(peer), bar);
    [
        row(("tokio acquire_owned()", owned), Some(Bar::AtMost(64.0))),
        row(("tokio acquire()", borrowed), None),
    ]
}

fn bytes_each_boxed<F: Future>(wait: impl Fn() -> F) -> f64 {
    const COUNT: usize = 10_000;
    let runtime = current_thread();
    let _in_runtime = runtime.enter();
    let mut boxes = Vec::with_capacity(COUNT);
    let (bytes, _) = bytes_kept_by(|| {
        for _ in 0..COUNT {
            let mut waiting = Box::pin(wait());
            assert!(
                waiting
                    .as_mut()
                    .poll(&mut Context::from_waker(Waker::noop()))
                    .is_pending()
            );
            boxes.push(waiting);
        }
    });
    bytes as f64 / COUNT as f64
}

fn waiters(count: usize) -> [Row; 2] {
    eprintln!("  {count} waiters");
    let limiter = limiter(MaxConcurrency::new(1));
    let bare = bytes_each(count, move || {
        black_box(limiter);
        pending::<()>()
    });

    let permit = limiter.try_acquire();
    let ours = bytes_each(count, || limiter.acquire()) - bare;
    drop(permit);

    let semaphore = Arc::new(Semaphore::new(0));
    let owned = bytes_each(count, move || Arc::clone(&semaphore).acquire_owned()) - bare;
    let semaphore: &'static Semaphore = Box::leak(Box::new(Semaphore::new(0)));
    let borrowed = bytes_each(count, || semaphore.acquire()) - bare;

    let case = format!("heap per waiter, {count} wait, above {bare:.0} B");
    let row = |peer, bar| Row::figure(("W7", &case), Unit::Bytes, ours, Some(peer), bar);
    [
        row(("tokio acquire_owned()", owned), Some(Bar::AtMost(176.0))),
        row(("tokio acquire()", borrowed), None),
    ]
}

/// Heap bytes of each of `count` tasks that wait forever. Each task creates its future itself: a future that is moved into an
/// async block takes up its space twice.
fn bytes_each<F>(count: usize, wait: impl Fn() -> F + Clone + Send + 'static) -> f64
where
    F: Future<Output: Send> + Send,
{
    let runtime = current_thread();
    STARTED.store(0, Ordering::Relaxed);
    let (bytes, ()) = bytes_kept_by(|| {
        for _ in 0..count {
            let wait = wait.clone();
            runtime.spawn(async move {
                STARTED.fetch_add(1, Ordering::Relaxed);
                wait().await;
            });
        }
        runtime.block_on(async {
            while STARTED.load(Ordering::Relaxed) < count {
                yield_now().await;
            }
        });
    });
    bytes as f64 / count as f64
}
