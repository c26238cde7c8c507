//! Every future that acquires is given up at each of its await points, in every way: then all units are back, and the requests
//! behind it are served.

use std::future::Future;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::common::{limiter, ms};
use futures_util::stream;
use tokio::time::sleep;
use tollgate::{
    FixedWindow, KeyedLimiter, Limiter, LimiterGroup, MaxConcurrency, Policy, Priority,
    StreamLimitExt as _,
};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    Dropped,
    /// The future is no longer polled, and its task is aborted at the end.
    Aborted,
    /// The task of the future panics.
    Unwound,
}

#[derive(Debug, Clone, Copy)]
struct GivenUp {
    way: Way,
    /// The future is given up after this many polls.
    polls: usize,
    /// Whether the future is given up when it has been woken, with an untaken grant. Otherwise it is given up while it waits.
    when_woken: bool,
}

/// A future that polls another one and gives it up.
struct Cut {
    future: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    given_up: GivenUp,
    polls: usize,
}

impl Future for Cut {
    /// Whether the other future completed.
    type Output = bool;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool> {
        let GivenUp {
            way,
            polls,
            when_woken,
        } = self.given_up;
        if self.polls < polls {
            self.polls += 1;
            if self.future.as_mut().unwrap().as_mut().poll(cx).is_ready() {
                return Poll::Ready(true);
            }
            if when_woken || self.polls < polls {
                return Poll::Pending;
            }
        }
        match way {
            Way::Dropped => {
                self.future = None;
                Poll::Ready(false)
            }
            Way::Aborted => Poll::Pending,
            Way::Unwound => resume_unwind(Box::new("on purpose, without the noise of the hook")),
        }
    }
}

const UNITS: u64 = 8;

/// Rates of an hour, so that no unit comes back by time during a test.
fn policies() -> [Policy; 2] {
    let hour = FixedWindow::new(UNITS, Duration::from_secs(3_600));
    [
        MaxConcurrency::new(UNITS),
        MaxConcurrency::new(UNITS).ttl(ms(1_800_000)),
    ]
    .map(|places| Policy::from(places).and(hour))
}

/// Gives up the future of `make` at each await point in every way. All units are held at first, and returned one limiter after
/// another. `make` counts the units that its future spends for good. Returns the number of polls of a future that completes.
async fn at_each_await_point<F>(
    limiters: &dyn Fn() -> Vec<Limiter>,
    make: &dyn Fn(Vec<Limiter>, Arc<AtomicU64>) -> F,
) -> usize
where
    F: Future<Output = ()> + Send + 'static,
{
    for polls in 0.. {
        let mut completed = 0;
        for way in [Way::Dropped, Way::Aborted, Way::Unwound] {
            for when_woken in [false, true] {
                let given_up = GivenUp {
                    way,
                    polls,
                    when_woken,
                };
                let (limiters, spent) = (limiters(), Arc::new(AtomicU64::new(0)));
                let held: Vec<_> = limiters
                    .iter()
                    .map(|limiter| limiter.try_acquire_many(UNITS).unwrap())
                    .collect();
                let future = Box::pin(make(limiters.clone(), Arc::clone(&spent)));
                let task = tokio::spawn(Cut {
                    future: Some(future),
                    given_up,
                    polls: 0,
                });
                sleep(ms(1)).await;
                let behind = limiters
                    .iter()
                    .cloned()
                    .map(|limiter| async move { limiter.acquire().await.unwrap().refund() });
                let behind: Vec<_> = behind.map(tokio::spawn).collect();
                for permit in held {
                    sleep(ms(10)).await;
                    assert!(permit.refund());
                }
                sleep(ms(1_000)).await;
                task.abort();
                completed += usize::from(task.await.unwrap_or(false));
                for (limiter, behind) in limiters.iter().zip(behind) {
                    assert!(
                        behind.is_finished(),
                        "{given_up:?}: the request behind it waits"
                    );
                    assert!(behind.await.unwrap(), "{given_up:?}");
                    let snapshot = limiter.snapshot();
                    assert_eq!(
                        (snapshot.in_flight, snapshot.queued),
                        (0, 0),
                        "{given_up:?}"
                    );
                    let left = UNITS - spent.load(Relaxed);
                    assert!(
                        limiter.try_acquire_many(left + 1).is_err(),
                        "{given_up:?}: more than {left} are left"
                    );
                    limiter
                        .try_acquire_many(left)
                        .unwrap_or_else(|error| panic!("{given_up:?}: {error}, not {left}"))
                        .release();
                }
            }
        }
        if completed == 6 {
            return polls;
        }
    }
    unreachable!("a future completes")
}

#[tokio::test(start_paused = true)]
async fn an_acquire_gives_all_units_back_with_and_without_options() {
    for policy in policies() {
        let limiters = || vec![limiter(policy.clone())];
        let plain = |limiters: Vec<Limiter>, _| async move {
            assert!(limiters[0].acquire_many(3).await.unwrap().refund());
        };
        assert_eq!(at_each_await_point(&limiters, &plain).await, 2, "{policy}");
        let with_options = |limiters: Vec<Limiter>, _| async move {
            let request = limiters[0]
                .request()
                .cost(3)
                .priority(Priority::HIGH)
                .timeout(ms(10_000_000));
            assert!(request.acquire().await.unwrap().refund());
        };
        assert_eq!(
            at_each_await_point(&limiters, &with_options).await,
            2,
            "{policy}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_acquire_of_a_group_gives_all_units_back() {
    for policy in policies() {
        // After four rounds, a group acquires one member after another.
        let members = || (0..7).map(|_| limiter(policy.clone())).collect();
        let polls = at_each_await_point(&members, &|members, _| async move {
            let group = LimiterGroup::new(members);
            assert!(group.acquire_many(3).await.unwrap().refund());
        });
        assert!((6..=9).contains(&polls.await), "{policy}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_acquire_of_a_key_gives_all_units_back() {
    for policy in policies() {
        let keyed = KeyedLimiter::new(policy.clone()).unwrap();
        let next = AtomicU64::new(0);
        let key = || vec![keyed.limiter(&next.fetch_add(1, Relaxed)).unwrap()];
        let acquire = |_, _| {
            let (keyed, key) = (keyed.clone(), next.load(Relaxed) - 1);
            async move { assert!(keyed.acquire_many(&key, 3).await.unwrap().refund()) }
        };
        assert_eq!(at_each_await_point(&key, &acquire).await, 2, "{policy}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_gives_its_place_back_and_spends_a_unit_only_if_it_started() {
    for policy in policies() {
        let run = |limiters: Vec<Limiter>, spent: Arc<AtomicU64>| async move {
            let work = async {
                spent.fetch_add(1, Relaxed);
                sleep(ms(20)).await;
                sleep(ms(20)).await;
            };
            limiters[0].run(work).await.unwrap();
        };
        assert_eq!(
            at_each_await_point(&|| vec![limiter(policy.clone())], &run).await,
            4,
            "{policy}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_work_gives_its_places_back_and_spends_a_unit_only_for_what_started() {
    for policy in policies() {
        let work = |limiters: Vec<Limiter>, spent: Arc<AtomicU64>| async move {
            let each = |item| {
                spent.fetch_add(1, Relaxed);
                sleep(ms(20 * item))
            };
            stream::iter(1..4_u64)
                .for_each_permitted(&limiters[0], each)
                .await
                .unwrap();
        };
        let polls = at_each_await_point(&|| vec![limiter(policy.clone())], &work).await;
        assert!(polls >= 5, "{policy}: {polls}");
    }
}
