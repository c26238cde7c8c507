//! Streams: items in order and on time, none lost, and an idle source spends nothing.

use std::cell::Cell;
use std::marker::PhantomPinned;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use crate::common::ms;
use futures_util::stream::{self, FusedStream, Stream};
use futures_util::{FutureExt, StreamExt as _};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tollgate::{
    AcquireError, EventKind, FixedWindow, KeyedLimiter, Limiter, MaxConcurrency, Policy, Rate,
    StreamLimitExt as _, Throttle, TokenBucket,
};

/// A stream of the numbers 0 to 4. Neither the stream nor its items are `Unpin`.
fn pinned() -> impl Stream<Item = (u32, PhantomPinned)> {
    stream::unfold(0, async |next| {
        (next < 5).then_some(((next, PhantomPinned), next + 1))
    })
}

#[tokio::test(start_paused = true)]
async fn neither_the_stream_nor_its_items_need_be_unpin() {
    let limiter = Limiter::new(Throttle::every(ms(10))).unwrap();
    let throttled = pin!(pinned().throttled(&limiter));
    assert_eq!(
        throttled.map(|item| item.0).collect::<Vec<_>>().await,
        [0, 1, 2, 3, 4]
    );
    let permitted = pin!(pinned().with_permits(&limiter));
    assert_eq!(permitted.count().await, 5);
    pinned()
        .for_each_permitted(&limiter, |_| async {})
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn items_come_in_order_at_the_pace() {
    let limiter = Limiter::new(FixedWindow::new(2, ms(100))).unwrap();
    let start = Instant::now();
    let at = stream::iter(0..5)
        .throttled(&limiter)
        .map(|item| (item, start.elapsed().as_millis()));
    assert_eq!(
        at.collect::<Vec<_>>().await,
        [(0, 0), (1, 0), (2, 100), (3, 100), (4, 200)]
    );
}

#[tokio::test(start_paused = true)]
async fn an_idle_source_spends_nothing() {
    let limiter = Limiter::new(MaxConcurrency::new(1)).unwrap();
    let (items, source) = mpsc::unbounded_channel::<u8>();
    let source = stream::unfold(source, |mut source| async {
        source.recv().await.map(|item| (item, source))
    });
    let mut throttled = Box::pin(source.with_permits(&limiter));
    assert!(throttled.next().now_or_never().is_none());
    assert_eq!(
        (limiter.snapshot().granted, limiter.snapshot().queued),
        (0, 0)
    );
    items.send(7).unwrap();
    let (item, _permit) = throttled.next().await.unwrap().unwrap();
    assert_eq!((item, limiter.snapshot().granted), (7, 1));
}

#[tokio::test(start_paused = true)]
async fn size_hints_are_kept_and_count_the_item_that_waits() {
    let limiter = Limiter::new(Throttle::every(ms(100))).unwrap();
    let mut throttled = stream::iter(0..3).throttled(&limiter);
    assert_eq!(throttled.size_hint(), (3, Some(3)));
    throttled.next().await;
    assert_eq!(throttled.size_hint(), (2, Some(2)));
    assert!(throttled.next().now_or_never().is_none());
    assert_eq!(
        throttled.size_hint(),
        (2, Some(2)),
        "one waits, one is to come"
    );
    assert_eq!((&mut throttled).count().await, 2);
    assert_eq!(
        (throttled.size_hint(), throttled.is_terminated()),
        ((0, Some(0)), true)
    );
    assert_eq!(throttled.next().await, None, "fused");

    let endless = stream::repeat(0).throttled(&limiter);
    assert_eq!(endless.size_hint(), (usize::MAX, None));
}

#[tokio::test(start_paused = true)]
async fn no_unit_is_lost_when_a_stream_is_dropped_half_way() {
    let limiter = Limiter::new(Throttle::every(ms(100))).unwrap();
    let mut throttled = stream::iter(0..4).throttled(&limiter);
    assert_eq!(throttled.next().await, Some(0));
    assert!(throttled.next().now_or_never().is_none());
    assert_eq!(limiter.snapshot().queued, 1);
    let (source, waiting) = throttled.into_inner();
    assert_eq!(
        (waiting, source.collect::<Vec<_>>().await),
        (Some(1), vec![2, 3])
    );
    assert_eq!(limiter.snapshot().queued, 0, "its place went with it");
    let start = Instant::now();
    drop(limiter.acquire().await.unwrap());
    assert_eq!(start.elapsed(), ms(100), "and it spent nothing");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_poll_of_a_stream_keeps_its_place_and_its_item() {
    let limiter = Limiter::new(Throttle::every(ms(100))).unwrap();
    let mut throttled = stream::iter(0..3).throttled(&limiter);
    let start = Instant::now();
    let mut items = Vec::new();
    while items.len() < 3 {
        if let Ok(item) = tokio::time::timeout(ms(30), throttled.next()).await {
            items.push((item.unwrap(), start.elapsed().as_millis()));
        }
    }
    assert_eq!(items, [(0, 0), (1, 100), (2, 200)]);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_ends_the_stream_and_the_item_is_given_back() {
    let limiter = Limiter::builder(MaxConcurrency::new(1))
        .max_queue(0)
        .build()
        .unwrap();
    let _out = limiter.try_acquire().unwrap();
    let mut items = stream::iter(0..3).with_permits(&limiter);
    assert_eq!(
        items.next().await.unwrap().unwrap_err(),
        AcquireError::QueueFull { retry_after: None }
    );
    assert_eq!(
        (
            items.size_hint(),
            items.is_terminated(),
            items.next().await.is_none()
        ),
        ((0, Some(0)), true, true)
    );
    assert_eq!(items.into_inner().1, Some(0));

    let rate = Limiter::builder(Throttle::every(ms(100)))
        .max_queue(0)
        .build()
        .unwrap();
    let mut items = stream::iter(0..3).try_throttled(&rate);
    assert_eq!(items.next().await, Some(Ok(0)));
    assert_eq!(
        (items.next().await, items.next().await),
        (
            Some(Err(AcquireError::QueueFull {
                retry_after: Some(ms(100))
            })),
            None
        )
    );
    assert!(items.is_terminated());
    assert_eq!(items.into_inner().1, Some(1));

    let mut items = stream::iter(0..3).throttled(&rate);
    assert!(items.error().is_none() && items.next().await.is_none());
    assert_eq!(
        (items.error(), items.is_terminated()),
        (
            Some(&AcquireError::QueueFull {
                retry_after: Some(ms(100))
            }),
            true
        )
    );
    assert_eq!(items.into_inner().1, Some(0));

    let mut work = stream::iter(0..3).for_each_permitted(&limiter, async |_| ());
    assert_eq!(
        (&mut work).await,
        Err(AcquireError::QueueFull { retry_after: None })
    );
    assert_eq!(work.into_inner().1, Some(0));
}

#[tokio::test(start_paused = true)]
async fn for_each_permitted_runs_as_many_at_once_and_as_fast_as_the_limiter_allows() {
    let policy = Policy::from(MaxConcurrency::new(3)).and(Throttle::every(ms(10)));
    let limiter = Limiter::new(policy).unwrap();
    let (running, peak, start) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)), Instant::now());
    let work = stream::iter(0..9).for_each_permitted(&limiter, |_| {
        let (running, peak) = (Rc::clone(&running), Rc::clone(&peak));
        async move {
            running.set(running.get() + 1);
            peak.set(peak.get().max(running.get()));
            sleep(ms(100)).await;
            running.set(running.get() - 1);
        }
    });
    work.await.unwrap();
    assert_eq!((peak.get(), limiter.snapshot().in_flight), (3, 0));
    assert_eq!(
        start.elapsed(),
        ms(320),
        "three rounds, started 10 ms apart"
    );
}

#[tokio::test(start_paused = true)]
async fn for_each_permitted_ends_what_runs_when_it_is_refused_and_drops_it_when_it_is_dropped() {
    let limiter = Limiter::new(MaxConcurrency::new(2)).unwrap();
    let done = Cell::new(0);
    let mut work = Box::pin(stream::iter(0..5).for_each_permitted(&limiter, async |_| {
        sleep(ms(50)).await;
        done.set(done.get() + 1);
    }));
    assert!(tokio::time::timeout(ms(10), &mut work).await.is_err());
    limiter.close();
    assert_eq!(work.await, Err(AcquireError::Closed));
    assert_eq!(done.get(), 2);

    let limiter = Limiter::new(MaxConcurrency::new(2)).unwrap();
    let work = stream::iter(0..5).for_each_permitted(&limiter, |_| sleep(ms(50)));
    assert!(tokio::time::timeout(ms(10), work).await.is_err());
    assert_eq!(
        (limiter.snapshot().in_flight, limiter.snapshot().queued),
        (0, 0)
    );
}

/// Work under permits ends in another order than it began.
#[tokio::test(start_paused = true)]
async fn outputs_come_in_the_order_of_the_items_or_as_they_are_complete() {
    let slept = |millis| async move {
        sleep(ms(millis)).await;
        millis
    };
    let limiter = Limiter::new(MaxConcurrency::new(2)).unwrap();
    let start = Instant::now();
    let outputs = stream::iter([30, 10, 40, 5]).map_permitted_unordered(&limiter, slept);
    assert_eq!(
        outputs
            .map(|output| (output.unwrap(), start.elapsed()))
            .collect::<Vec<_>>()
            .await,
        [(10, ms(10)), (30, ms(30)), (5, ms(35)), (40, ms(50)),]
    );
    let start = Instant::now();
    let outputs = stream::iter([30, 10, 40, 5]).map_permitted(&limiter, slept);
    assert_eq!(
        outputs
            .map(|output| (output.unwrap(), start.elapsed()))
            .collect::<Vec<_>>()
            .await,
        [(30, ms(30)), (10, ms(30)), (40, ms(50)), (5, ms(50)),]
    );
    assert_eq!(limiter.snapshot().in_flight, 0);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_comes_after_the_outputs_of_what_runs() {
    for ordered in [true, false] {
        let limiter = Limiter::new(MaxConcurrency::new(2)).unwrap();
        let work = async |item| {
            sleep(ms(50)).await;
            item
        };
        let mut outputs = pin!(if ordered {
            stream::iter(0..5).map_permitted(&limiter, work)
        } else {
            stream::iter(0..5).map_permitted_unordered(&limiter, work)
        });
        assert!(outputs.next().now_or_never().is_none());
        limiter.close();
        let mut seen = Vec::new();
        while let Some(output) = outputs.next().await {
            seen.push(output);
        }
        assert_eq!(seen, [Ok(0), Ok(1), Err(AcquireError::Closed)]);
        assert!(outputs.is_terminated());
    }
}

/// Such a stream would not be slowed down, because it holds no permits.
#[tokio::test]
async fn a_throttled_stream_without_a_rate_panics_where_it_is_made_and_try_throttled_yields_the_refusal()
 {
    for policy in ["3 concurrent", "3 concurrent and 2 concurrent ttl 1s"] {
        let policy: Policy = policy.parse().unwrap();
        let limiter = Limiter::new(policy.clone()).unwrap();
        let place = Arc::new(Mutex::new(None));
        let hook = Arc::new(std::panic::take_hook());
        let (seen, others, this_thread) = (
            Arc::clone(&place),
            Arc::clone(&hook),
            std::thread::current().id(),
        );
        std::panic::set_hook(Box::new(move |panic| {
            if std::thread::current().id() == this_thread {
                *seen.lock().unwrap() =
                    panic.location().map(|at| (at.file().to_owned(), at.line()));
            } else {
                others(panic);
            }
        }));
        let line = line!() + 2;
        let make = || {
            drop(stream::iter(0..3).throttled(&limiter));
        };
        let panic = catch_unwind(AssertUnwindSafe(make)).unwrap_err();
        std::panic::set_hook(Box::new(move |panic| hook(panic)));
        let refused = AcquireError::NoRate {
            policy: policy.clone(),
        }
        .to_string();
        assert_eq!(panic.downcast_ref::<String>(), Some(&refused));
        assert_eq!(
            place.lock().unwrap().take(),
            Some((file!().to_owned(), line))
        );
        let mut items = stream::iter(0..3).try_throttled(&limiter);
        assert_eq!(
            items.next().await,
            Some(Err(AcquireError::NoRate { policy }))
        );
        assert_eq!((items.next().await, limiter.snapshot().granted), (None, 0));
        assert_eq!(items.into_inner().1, Some(0));
    }
    let mixed =
        Limiter::new(Policy::from(MaxConcurrency::new(1)).and(Throttle::every(ms(1)))).unwrap();
    assert_eq!(stream::iter(0..3).throttled(&mixed).count().await, 3);
}

/// Behind other adapters, `error()` of the stream cannot be called.
#[tokio::test(start_paused = true)]
async fn a_throttled_stream_that_ends_early_is_an_event_and_try_throttled_yields_the_error() {
    type End = fn(&Limiter);
    let no_rate = || AcquireError::NoRate {
        policy: MaxConcurrency::new(2).into(),
    };
    let ends: [(End, AcquireError); 3] = [
        (Limiter::close, AcquireError::Closed),
        (Limiter::close_to_new, AcquireError::Closed),
        (
            |limiter| limiter.set_policy(MaxConcurrency::new(2)).unwrap(),
            no_rate(),
        ),
    ];
    for (end, error) in ends {
        let events: Arc<Mutex<Vec<EventKind>>> = Arc::default();
        let reported = Arc::clone(&events);
        let limiter = Limiter::builder(Throttle::every(ms(100)))
            .on_event(move |event| {
                if let EventKind::StreamEnded { .. } = event.kind {
                    reported.lock().unwrap().push(event.kind.clone());
                }
            })
            .build()
            .unwrap();
        let (other, start) = (limiter.clone(), Instant::now());
        let items = stream::iter(0..100);
        let line = line!() + 1;
        let throttled = items.throttled(&limiter);
        let throttled = throttled
            .map(|item| async move { item })
            .buffer_unordered(4);
        let ended = tokio::spawn(async move {
            sleep(ms(250)).await;
            end(&other);
        });
        assert!(throttled.collect::<Vec<_>>().await.len() < 10);
        ended.await.unwrap();
        // `close_to_new` serves items that already wait.
        assert!(
            [ms(250), ms(300)].contains(&start.elapsed()),
            "{:?}",
            start.elapsed()
        );
        let events = std::mem::take(&mut *events.lock().unwrap());
        let [
            EventKind::StreamEnded {
                error: reported,
                requested_in,
                ..
            },
        ] = &events[..]
        else {
            panic!("{events:?}")
        };
        assert_eq!(
            (reported, requested_in.file(), requested_in.line()),
            (&error, file!(), line)
        );

        let mut tried = stream::iter(0..3).try_throttled(&limiter);
        assert_eq!(
            (tried.next().await, tried.next().await),
            (Some(Err(error)), None)
        );
    }
    let whole = stream::iter(0..3).throttled(
        Limiter::builder("100/s")
            .on_event(|event| panic!("{event:?}"))
            .build()
            .unwrap(),
    );
    assert_eq!(
        whole.count().await,
        3,
        "a stream that ends with its source is no event"
    );
}

/// A fixed bug: a stream went on without any limit when its limiter was given a policy without a rate.
/// A fixed bug: it waited until the place came back.
#[tokio::test(start_paused = true)]
async fn a_policy_without_a_rate_ends_a_stream_that_waits_although_no_place_is_free() {
    let limiter = Limiter::new("1/h burst 1").unwrap();
    let mut items = stream::iter(0..3).throttled(&limiter);
    assert_eq!(items.next().await, Some(0));
    let start = Instant::now();
    let waiting = tokio::spawn(async move { (items.next().await, items.error().cloned()) });
    sleep(ms(1_000)).await;
    limiter.set_policy(MaxConcurrency::new(1)).unwrap();
    let _held = limiter.try_acquire();
    let (item, error) = waiting.await.unwrap();
    assert!(
        item.is_none() && matches!(error, Some(AcquireError::NoRate { .. })),
        "{item:?} {error:?}"
    );
    assert_eq!((start.elapsed(), limiter.snapshot().queued), (ms(1_000), 0));
}

#[tokio::test(start_paused = true)]
async fn a_stream_ends_at_its_next_item_although_no_place_is_free() {
    let limiter = Limiter::new("10/s burst 2").unwrap();
    let mut items = stream::iter(0..3).throttled(&limiter);
    assert_eq!(items.next().await, Some(0));
    limiter.set_policy(MaxConcurrency::new(1)).unwrap();
    let _held = limiter.acquire().await.unwrap();
    assert_eq!(items.next().await, None);
    assert!(matches!(items.error(), Some(AcquireError::NoRate { .. })));
    assert_eq!(limiter.snapshot().queued, 0);
}

#[tokio::test(start_paused = true)]
async fn a_policy_without_a_rate_ends_a_stream_that_runs_and_the_item_is_given_back() {
    let keyed = KeyedLimiter::<u32>::new(Throttle::every(ms(100))).unwrap();
    let places = || Policy::from(MaxConcurrency::new(2));
    for limiter in [
        Limiter::new(Throttle::every(ms(100))).unwrap(),
        keyed.limiter(&7).unwrap(),
    ] {
        let mut items = stream::iter(0..9).try_throttled(&limiter);
        assert_eq!(
            (items.next().await, items.next().await),
            (Some(Ok(0)), Some(Ok(1)))
        );
        let start = Instant::now();
        assert!(items.next().now_or_never().is_none());
        limiter.set_policy(places()).unwrap();
        assert_eq!(
            items.next().await,
            Some(Err(AcquireError::NoRate { policy: places() }))
        );
        assert_eq!(
            (
                start.elapsed(),
                limiter.snapshot().in_flight,
                items.next().await
            ),
            (ms(0), 0, None)
        );
        assert_eq!(items.into_inner().1, Some(2));

        let mut items = stream::iter(0..9).throttled(&{
            limiter
                .set_policy(Throttle::every(ms(100)).burst(9))
                .unwrap();
            limiter.clone()
        });
        assert_eq!(items.next().await, Some(0));
        limiter.set_policy(places()).unwrap();
        limiter
            .set_policy(places().and(Throttle::every(ms(100)).burst(9)))
            .unwrap();
        assert_eq!(items.next().await, Some(1), "it has a rate again");
        limiter.set_policy(places()).unwrap();
        assert_eq!(
            (items.next().await, items.error()),
            (None, Some(&AcquireError::NoRate { policy: places() }))
        );
        assert_eq!(items.into_inner().1, Some(2));
    }
}

#[tokio::test(start_paused = true)]
async fn an_item_has_its_own_cost() {
    let limiter = Limiter::new(TokenBucket::new(Rate::per_second(10), 10)).unwrap();
    let start = Instant::now();
    let costs = [10, 0, 5, 0, 10, 1];
    let times = stream::iter(costs)
        .throttled(&limiter)
        .cost_by(|cost| *cost);
    let times: Vec<_> = times.map(|_| start.elapsed().as_millis()).collect().await;
    assert_eq!(times, [0, 0, 500, 500, 1_500, 1_600]);

    let mut items = stream::iter([1, 11, 1])
        .try_throttled(&limiter)
        .cost_by(|cost| *cost);
    assert_eq!(items.next().await, Some(Ok(1)));
    let refused = items.next().await.unwrap().unwrap_err();
    assert!(matches!(
        refused,
        AcquireError::ExceedsLimit {
            cost: 11,
            max: 10,
            ..
        }
    ));
    assert_eq!(items.next().await, None);
    assert_eq!(items.into_inner().1, Some(11));

    let places = Limiter::new(MaxConcurrency::new(5)).unwrap();
    let mut held = stream::iter([2, 3, 0])
        .with_permits(&places)
        .cost_by(|cost| *cost);
    let two = held.next().await.unwrap().unwrap();
    let three = held.next().await.unwrap().unwrap();
    assert_eq!(
        (two.1.cost(), three.1.cost(), places.available()),
        (2, 3, 0)
    );
    assert!(held.next().await.unwrap().is_err(), "a permit of 0 units");
    drop((two, three));

    let most = Cell::new(0);
    let work = async |cost: u64| {
        most.set(most.get().max(places.snapshot().in_flight));
        sleep(ms(10)).await;
        cost
    };
    let done = stream::iter([4, 1, 5, 2])
        .map_permitted(&places, work)
        .cost_by(|cost| *cost);
    let done: Vec<_> = done.map(Result::unwrap).collect().await;
    assert_eq!((done, most.get()), (vec![4, 1, 5, 2], 5));
}

/// Two streams of bytes, in flows of their own.
#[tokio::test(start_paused = true)]
async fn writers_of_1_kb_and_of_9_kb_share_the_bytes_equally() {
    let limiter = Limiter::new(TokenBucket::new(Rate::per_second(100_000), 9_000)).unwrap();
    let written = [1_000, 9_000].map(|len| {
        let chunks = stream::repeat(vec![0_u8; len])
            .throttled(&limiter)
            .flow(len);
        let chunks = chunks.cost_by(|chunk| chunk.len() as u64);
        let mut bytes = 0_u64;
        async move {
            let writing = chunks.for_each(|chunk| {
                bytes += chunk.len() as u64;
                std::future::ready(())
            });
            let _ = tokio::time::timeout(ms(60_000), writing).await;
            bytes
        }
    });
    let written = futures_util::future::join_all(written).await;
    assert!(
        (written[0] + written[1]).abs_diff(6_000_000) <= 19_000,
        "{written:?}"
    );
    assert!(written[0].abs_diff(written[1]) <= 18_000, "{written:?}");
}
