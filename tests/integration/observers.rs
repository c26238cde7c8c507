//! Observers that panic at any event: the panic does not reach the caller, no event is lost, and the call returns its answer.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{ms, queued};
use tokio::time::{Instant, advance};
use tokio_test::{assert_pending, assert_ready, assert_ready_ok, task};
use tollgate::{
    AcquireError, EventKind, KeyedLimiter, Limiter, LimiterEvent, LimiterGroup, MaxConcurrency,
    Overflow, Permit, Priority, UpstreamSignal,
};

/// A panic whose payload panics when it is dropped.
struct PanicsAgain;

impl Drop for PanicsAgain {
    fn drop(&mut self) {
        resume_unwind(Box::new("on purpose, without the noise of the hook"));
    }
}

/// Counts a reclaim or a shed request, and panics at any event.
fn count_and_panic(events: &AtomicU64, event: &LimiterEvent<'_>) {
    events.fetch_add(
        u64::from(matches!(
            event.kind,
            EventKind::Reclaimed { .. } | EventKind::Shed { .. }
        )),
        Relaxed,
    );
    resume_unwind(Box::new(PanicsAgain))
}

fn observer(events: &Arc<AtomicU64>) -> impl Fn(&LimiterEvent<'_>) + Send + Sync + 'static {
    let events = Arc::clone(events);
    move |event| count_and_panic(&events, event)
}

/// Advances the paused clock before any other task is polled, so a driver is late.
fn advance_before_any_driver(by: Duration) {
    assert_pending!(task::spawn(advance(by)).poll());
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_an_observer_does_not_reach_a_call_that_reclaims() {
    type Call = fn(&Limiter, Permit);
    let calls: [(&str, Call); 13] = [
        ("try_acquire", |limiter, _live| {
            drop(limiter.try_acquire().unwrap());
        }),
        ("acquire", |limiter, _live| {
            drop(assert_ready_ok!(task::spawn(limiter.acquire()).poll()));
        }),
        ("check", |limiter, _live| {
            assert!(limiter.check(1).is_allowed());
        }),
        ("snapshot", |limiter, _live| {
            assert_eq!(limiter.snapshot().in_flight, 1);
        }),
        ("group", |limiter, _live| {
            drop(LimiterGroup::new([limiter.clone()]).try_acquire().unwrap());
        }),
        ("set_policy", |limiter, _live| {
            limiter.set_policy(MaxConcurrency::new(3)).unwrap();
        }),
        ("pause_for", |limiter, _live| limiter.pause_for(ms(1))),
        ("resume", |limiter, _live| limiter.resume()),
        ("apply_upstream_signal", |limiter, _live| {
            limiter.apply_upstream_signal(&UpstreamSignal::new().limited().retry_after(ms(1)));
        }),
        ("close", |limiter, _live| limiter.close()),
        ("settle", |_, live| assert!(live.settle(0))),
        ("release to a waiter", |limiter, live| {
            let mut waiting = queued(limiter.acquire_many(2));
            live.release();
            drop(assert_ready_ok!(waiting.poll()));
        }),
        ("abandon", |limiter, _live| {
            drop(queued(limiter.acquire_many(2)));
        }),
    ];
    for (name, call) in calls {
        let events = Arc::default();
        let limiter = Limiter::builder(MaxConcurrency::new(2).ttl(ms(10)))
            .on_event(observer(&events))
            .build()
            .unwrap();
        limiter.try_acquire().unwrap().forget();
        advance_before_any_driver(ms(5));
        let live = limiter.try_acquire().unwrap();
        advance_before_any_driver(ms(6));
        call(&limiter, live);
        assert_eq!(events.load(Relaxed), 1, "{name}");
        assert_eq!(limiter.snapshot().reclaimed, 1, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_request_is_answered_although_the_observer_of_a_shed_one_panics() {
    tokio::task::unconstrained(async {
        let penalty = ms(100);
        for (overflow, error, shed) in [
            (
                Overflow::Reject,
                Some(AcquireError::QueueFull { retry_after: None }),
                1,
            ),
            (Overflow::DropOldest, None, 1),
            (Overflow::DropLowestPriority, None, 1),
            (
                Overflow::Block { penalty },
                Some(AcquireError::Blocked {
                    retry_after: penalty,
                }),
                201,
            ),
        ] {
            let events = Arc::default();
            let builder = Limiter::builder(MaxConcurrency::new(1))
                .max_queue(200)
                .overflow(overflow)
                .on_event(observer(&events));
            let limiter = builder.build().unwrap();
            let _out = limiter.try_acquire().unwrap();
            let mut waiting: Vec<_> = (0..200)
                .map(|_| queued(limiter.request().priority(Priority::LOW).acquire()))
                .collect();
            let mut newest = task::spawn(limiter.acquire());
            match error {
                Some(error) => assert_eq!(assert_ready!(newest.poll()).unwrap_err(), error),
                None => assert_pending!(newest.poll()),
            }
            assert_eq!(
                (events.load(Relaxed), limiter.snapshot().shed),
                (shed, shed),
                "{overflow:?}"
            );
            let woken = waiting.iter_mut().filter(|waiting| waiting.is_woken());
            let refused = woken.map(|waiting| assert_ready!(waiting.poll()).unwrap_err());
            let dropped = refused
                .inspect(|error| assert!(matches!(error, AcquireError::Shed { .. })))
                .count() as u64;
            assert_eq!(
                dropped,
                if overflow == Overflow::Reject {
                    0
                } else {
                    shed.min(200)
                },
                "{overflow:?}"
            );
        }
    })
    .await;
}

/// This is tried with the driver of all keys and with the driver of a limiter.
#[tokio::test(start_paused = true)]
async fn a_panic_of_an_observer_does_not_end_the_driver() {
    let (start, policy) = (Instant::now(), MaxConcurrency::new(1).ttl(ms(10)));
    let events: Arc<AtomicU64> = Arc::default();
    let keyed = KeyedLimiter::<u8>::builder(policy).on_event(observer(&events));
    let keyed = keyed.build().unwrap();
    let own = Limiter::builder(policy)
        .on_event(observer(&events))
        .build()
        .unwrap();
    for limiter in [own, keyed.limiter(&1).unwrap(), keyed.limiter(&2).unwrap()] {
        let (before, since) = (events.load(Relaxed), start.elapsed());
        for _ in 0..3 {
            limiter.acquire().await.unwrap().forget();
        }
        limiter.acquire().await.unwrap().release();
        assert_eq!(
            (events.load(Relaxed) - before, start.elapsed() - since),
            (3, ms(30))
        );
    }
}

/// A fixed bug: a second observer replaced the first.
#[tokio::test]
async fn every_observer_is_called_in_order_although_another_panics() {
    let calls: Arc<Mutex<Vec<&str>>> = Arc::default();
    let note = |name| {
        let calls = Arc::clone(&calls);
        move || calls.lock().unwrap().push(name)
    };
    let [first, second, third] = ["first", "second", "third"].map(note);
    let limiter = Limiter::builder(MaxConcurrency::new(1))
        .max_queue(0)
        .on_event(move |_| first())
        .on_event(move |_| {
            second();
            resume_unwind(Box::new("on purpose, without the noise of the hook"));
        })
        .on_event(move |_| third())
        .build()
        .unwrap();
    let _held = limiter.acquire().await.unwrap();
    assert!(limiter.acquire().await.is_err());
    assert_eq!(*calls.lock().unwrap(), ["first", "second", "third"]);

    calls.lock().unwrap().clear();
    let [first, second] = ["first", "second"].map(note);
    let keyed = KeyedLimiter::builder(MaxConcurrency::new(1))
        .max_keys(1)
        .on_event(move |_| {
            first();
            resume_unwind(Box::new("as above"));
        });
    let keyed = keyed.on_event(move |_| second()).build().unwrap();
    let _held = keyed.try_acquire(&1).unwrap();
    assert!(keyed.try_acquire(&2).is_err());
    assert_eq!(*calls.lock().unwrap(), ["first", "second"]);
}
