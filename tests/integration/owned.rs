//! Futures that borrow nothing, work that runs under a permit, and a limiter that is polled.

use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::task::Poll;
use std::time::Duration;

use futures_util::poll;
use tokio::time::{Instant, advance, sleep};
use tollgate::{
    AcquireError, AcquireOwned, KeyedLimiter, Limiter, MaxConcurrency, PollLimiter, Priority, Run,
    RunError, Throttle,
};

const SECOND: Duration = Duration::from_secs(1);

fn places(limit: u64) -> Limiter {
    Limiter::new(MaxConcurrency::new(limit)).unwrap()
}

fn is_static<T: Send + 'static>(future: T) -> T {
    future
}

/// When it is dropped, notes how many permits are in flight.
struct NotesInFlight(Limiter, Arc<AtomicU64>);

impl Drop for NotesInFlight {
    fn drop(&mut self) {
        self.1.store(self.0.snapshot().in_flight, SeqCst);
    }
}

#[tokio::test]
async fn an_owned_acquire_is_spawned_and_kept() {
    let limiter = places(1);
    let permit = tokio::spawn(limiter.acquire_owned())
        .await
        .unwrap()
        .unwrap();
    let mut kept: Vec<AcquireOwned> = vec![
        limiter.acquire_owned(),
        limiter.request().cost(1).timeout(SECOND).acquire_owned(),
    ];
    assert!(poll!(&mut kept[0]).is_pending() && poll!(&mut kept[1]).is_pending());
    assert_eq!(limiter.snapshot().queued, 2);
    drop(kept.remove(0));
    assert_eq!(limiter.snapshot().queued, 1);
    drop(permit);
    let _permit = kept.remove(0).await.unwrap();
    assert_eq!(size_of::<AcquireOwned>(), 24);
}

#[tokio::test]
async fn an_owned_acquire_outlives_its_limiter() {
    let limiter = places(1);
    let held = limiter.acquire().await.unwrap();
    let mut waiting = limiter.acquire_owned();
    assert!(poll!(&mut waiting).is_pending());
    drop(limiter);
    drop(held);
    assert_eq!(waiting.await.unwrap().cost(), 1);
}

#[tokio::test]
async fn a_request_can_be_awaited_without_acquire() {
    let limiter = places(3);
    let permit = limiter
        .request()
        .cost(2)
        .priority(Priority::HIGH)
        .await
        .unwrap();
    let keyed = KeyedLimiter::new(MaxConcurrency::new(3)).unwrap();
    assert_eq!(
        (
            permit.cost(),
            keyed.request(&'a').cost(3).await.unwrap().cost()
        ),
        (2, 3)
    );
}

#[tokio::test]
async fn work_is_dropped_before_its_place_is_free() {
    let limiter = places(1);
    let in_flight = Arc::new(AtomicU64::new(9));
    let notes = || NotesInFlight(limiter.clone(), Arc::clone(&in_flight));

    let noted = notes();
    limiter.run(async move { drop(noted) }).await.unwrap();
    assert_eq!(
        (in_flight.swap(9, SeqCst), limiter.snapshot().in_flight),
        (1, 0),
        "it completed"
    );

    let noted = notes();
    let mut run = Box::pin(limiter.run(async move {
        let _noted = noted;
        pending::<()>().await;
    }));
    assert!(poll!(&mut run).is_pending());
    drop(run);
    assert_eq!(
        (in_flight.swap(9, SeqCst), limiter.snapshot().in_flight),
        (1, 0),
        "it was cancelled"
    );
}

#[tokio::test]
async fn a_completed_run_holds_neither_work_nor_place() {
    let limiter = places(1);
    let work = Arc::new(());
    let held = Arc::clone(&work);
    let mut run = Box::pin(limiter.run(async move {
        let _held = held;
        7
    }));
    assert_eq!(run.as_mut().await, Ok(7));
    assert_eq!(
        (limiter.snapshot().in_flight, Arc::strong_count(&work)),
        (0, 1)
    );
}

#[tokio::test]
async fn a_run_that_gets_no_permit_never_polls_its_work() {
    let limiter = places(1);
    limiter.close();
    let error = limiter
        .run(async { panic!("it was polled") })
        .await
        .unwrap_err();
    assert_eq!(error, RunError::Acquire(AcquireError::Closed));
}

#[tokio::test(start_paused = true)]
async fn a_run_has_a_cost_and_a_timeout() {
    let limiter = places(2);
    let held = limiter.run(sleep(10 * SECOND));
    let held = tokio::spawn(is_static(held));
    tokio::task::yield_now().await;
    let start = Instant::now();
    let error = limiter
        .request()
        .cost(2)
        .timeout(SECOND)
        .run(async {})
        .await
        .unwrap_err();
    assert!(matches!(
        error,
        RunError::Acquire(AcquireError::TimedOut { .. })
    ));
    assert_eq!(start.elapsed(), SECOND);
    limiter
        .request()
        .cost(2)
        .timeout(10 * SECOND)
        .run(async {})
        .await
        .unwrap();
    assert_eq!(start.elapsed(), 10 * SECOND);
    held.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_run_whose_permit_is_reclaimed_drops_its_work() {
    let limiter = Limiter::new(MaxConcurrency::new(1).ttl(SECOND)).unwrap();
    let work = Arc::new(());
    let held = Arc::clone(&work);
    let mut run = Box::pin(limiter.run(async move {
        let _held = held;
        pending::<()>().await;
    }));
    assert!(poll!(&mut run).is_pending());
    advance(SECOND).await;
    assert!(matches!(
        run.as_mut().await,
        Err(RunError::Reclaimed { .. })
    ));
    assert_eq!(Arc::strong_count(&work), 1);
}

#[tokio::test]
async fn a_run_that_panics_gives_its_place_back() {
    let limiter = places(1);
    let run: Run<_> = limiter.run(async { panic!("the work failed") });
    assert!(tokio::spawn(is_static(run)).await.is_err());
    assert_eq!(limiter.snapshot().in_flight, 0);
}

#[tokio::test]
async fn a_wrapped_function_is_limited_each_time() {
    let limiter = places(2);
    let most = Arc::new(AtomicU64::new(0));
    let work = {
        let (limiter, most) = (limiter.clone(), Arc::clone(&most));
        limiter.clone().wrap(move |page: u64| {
            let (limiter, most) = (limiter.clone(), Arc::clone(&most));
            async move {
                most.fetch_max(limiter.snapshot().in_flight, SeqCst);
                tokio::task::yield_now().await;
                page * 2
            }
        })
    };
    let pages: Vec<_> = (0..8).map(|page| tokio::spawn(work(page))).collect();
    for (page, task) in pages.into_iter().enumerate() {
        assert_eq!(task.await.unwrap(), Ok(page as u64 * 2));
    }
    assert_eq!(most.load(SeqCst), 2);
}

#[tokio::test]
async fn a_polled_limiter_keeps_its_place_and_begins_again() {
    let limiter = places(1);
    let held = limiter.acquire().await.unwrap();
    let mut polled = PollLimiter::new(limiter.clone());
    let mut other = polled.clone();
    for _ in 0..3 {
        assert!(
            poll_fn(|cx| Poll::Ready(
                polled.poll_acquire(cx).is_pending() && other.poll_acquire(cx).is_pending()
            ))
            .await
        );
    }
    assert_eq!(limiter.snapshot().queued, 2, "one request each");
    drop(held);
    let permit = poll_fn(|cx| polled.poll_acquire(cx)).await.unwrap();
    assert!(poll_fn(|cx| Poll::Ready(other.poll_acquire(cx).is_pending())).await);
    drop(other);
    assert_eq!(limiter.snapshot().queued, 0);
    drop(permit);
    drop(poll_fn(|cx| polled.poll_acquire(cx)).await.unwrap());
    assert_eq!(limiter.snapshot().granted, 3);
}

#[tokio::test(start_paused = true)]
async fn work_runs_by_key() {
    let per_host = KeyedLimiter::<String>::new(Throttle::every(SECOND)).unwrap();
    let start = Instant::now();
    let [one, other] = ["one", "other"].map(str::to_owned);
    let tasks = [&one, &one, &other]
        .map(|host| tokio::spawn(is_static(per_host.run(host, async move { Instant::now() }))));
    let mut waited = Vec::new();
    for task in tasks {
        waited.push(task.await.unwrap().unwrap() - start);
    }
    assert_eq!(waited, [Duration::ZERO, SECOND, Duration::ZERO]);
}

#[test]
fn a_thread_blocks_by_key() {
    let per_user = KeyedLimiter::new(MaxConcurrency::new(1)).unwrap();
    let held = per_user.blocking_acquire(&1).unwrap();
    let other = per_user.clone();
    let waits = std::thread::spawn(move || other.blocking_acquire(&1).unwrap().cost());
    while per_user.limiter(&1).unwrap().snapshot().queued == 0 {
        std::thread::yield_now();
    }
    drop(held);
    assert_eq!(waits.join().unwrap(), 1);
}
