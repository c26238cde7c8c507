//! Leaked permits: reclaimed on time, seen by their holders and by the observer, and never twice.

use std::sync::{Arc, Mutex};

use crate::common::{ms, queued};
use futures_util::{StreamExt as _, stream};
use tokio::time::{Instant, sleep};
use tokio_test::{assert_pending, assert_ready, task};
use tollgate::{
    EventKind, Limiter, LimiterEvent, MaxConcurrency, Policy, RunError, StreamLimitExt as _,
    Throttle,
};

/// A limiter, and the reclaims that it reports.
fn observed(policy: impl Into<Policy>) -> (Limiter, Arc<Mutex<Vec<EventKind>>>) {
    let events = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&events);
    let note = move |event: &LimiterEvent<'_>| {
        if let EventKind::Reclaimed { .. } = event.kind {
            seen.lock().unwrap().push(event.kind.clone());
        }
    };
    (
        Limiter::builder(policy).on_event(note).build().unwrap(),
        events,
    )
}

fn line(event: &EventKind) -> u32 {
    let EventKind::Reclaimed { acquired_in, .. } = event else {
        panic!("{event:?}")
    };
    acquired_in.line()
}

/// Trap: a sweep once per TTL lets a leak live for two TTLs. The reclaim needs no waiter.
#[tokio::test(start_paused = true)]
async fn a_leak_is_reclaimed_one_ttl_after_its_grant_without_a_waiter() {
    let (limiter, events) = observed(MaxConcurrency::new(2).ttl(ms(100)));
    limiter.acquire().await.unwrap().forget();
    sleep(ms(60)).await;
    std::mem::forget(limiter.acquire().await.unwrap());
    let in_flight = async |after| {
        sleep(ms(after)).await;
        limiter.snapshot().in_flight
    };
    assert_eq!((in_flight(39).await, in_flight(2).await), (2, 1));
    assert_eq!((in_flight(58).await, in_flight(2).await), (1, 0));
    let events = events.lock().unwrap();
    assert_eq!(events.len(), 2);
    for (nth, event) in events.iter().enumerate() {
        let EventKind::Reclaimed {
            fence,
            cost,
            held,
            acquired_in,
            ..
        } = event
        else {
            panic!("{event:?}")
        };
        assert_eq!((*fence, *cost, *held), (nth as u64 + 1, 1, ms(100)));
        assert_eq!(acquired_in.file(), file!());
    }
}

/// Trap: a leaked permit shrinks the limiter for ever.
#[tokio::test(start_paused = true)]
async fn leaks_delay_waiters_by_one_ttl_and_no_more() {
    let limiter = Limiter::new(MaxConcurrency::new(5).ttl(ms(100))).unwrap();
    let start = Instant::now();
    let mut at = Vec::new();
    for _ in 0..15 {
        std::mem::forget(limiter.acquire().await.unwrap());
        at.push(start.elapsed().as_millis() / 10 * 10);
    }
    assert_eq!(
        at,
        [
            0, 0, 0, 0, 0, 100, 100, 100, 100, 100, 200, 200, 200, 200, 200
        ]
    );
}

/// Trap: a reclaimed permit that is dropped later is released twice, although another holder has its place by then.
#[tokio::test(start_paused = true)]
async fn a_reclaimed_permit_does_not_release_the_one_that_took_its_place() {
    let limiter = Limiter::new(MaxConcurrency::new(1).ttl(ms(10))).unwrap();
    let mut late = Vec::new();
    for _ in 0..5 {
        late.push(limiter.acquire().await.unwrap());
    }
    let live = late.pop().unwrap();
    for permit in late {
        assert!(!permit.is_live());
        drop(permit);
        assert_eq!(limiter.snapshot().in_flight, 1);
        assert!(live.is_live() && limiter.try_acquire().is_err());
    }
}

/// Trap: `renew` revives a permit that was reclaimed, or a permit whose TTL has passed before its reclaim.
#[test]
fn a_permit_past_its_ttl_is_dead_before_the_timer_fires() {
    let limiter = Limiter::new(MaxConcurrency::new(1).ttl(ms(500))).unwrap();
    let permit = limiter.try_acquire().unwrap(); // outside every runtime: there is no timer
    assert!(permit.renew());
    std::thread::sleep(ms(501));
    assert!(!permit.renew() && !permit.is_live());
    let next = limiter.try_acquire().expect("the next call reclaims it");
    drop(permit);
    assert!(next.is_live());
    assert_eq!(
        (limiter.snapshot().in_flight, limiter.snapshot().reclaimed),
        (1, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_permit_is_kept_as_long_as_it_is_renewed() {
    let limiter = Limiter::new(MaxConcurrency::new(2).ttl(ms(100))).unwrap();
    let (renewed, other) = (
        limiter.acquire().await.unwrap(),
        limiter.acquire().await.unwrap(),
    );
    for _ in 0..10 {
        sleep(ms(60)).await;
        assert!(renewed.renew());
    }
    assert!(renewed.is_live() && !other.is_live());
    let start = Instant::now();
    renewed.reclaimed().await;
    assert_eq!(start.elapsed(), ms(100));
}

#[tokio::test(start_paused = true)]
async fn reclaimed_can_be_awaited_from_several_places_and_given_up() {
    let limiter = Limiter::new(MaxConcurrency::new(1).ttl(ms(10))).unwrap();
    let permit = limiter.acquire().await.unwrap();
    let mut given_up = task::spawn(permit.reclaimed());
    assert_pending!(given_up.poll());
    drop(given_up);
    tokio::join!(permit.reclaimed(), permit.reclaimed());
    permit.reclaimed().await;

    let without_ttl = Limiter::new(MaxConcurrency::new(1)).unwrap();
    let permit = without_ttl.acquire().await.unwrap();
    let mut never = task::spawn(permit.reclaimed());
    assert_pending!(never.poll());
    assert!(permit.is_live() && permit.renew() && permit.expires_at().is_none());
}

#[tokio::test(start_paused = true)]
async fn run_drops_its_future_on_reclaim_and_returns_reclaimed() {
    let (limiter, events) =
        observed(Policy::from(MaxConcurrency::new(1).ttl(ms(50))).and(Throttle::every(ms(1))));
    let dropped = Arc::new(());
    let inside = Arc::clone(&dropped);
    let stuck = limiter.run(async move {
        let _inside = inside;
        sleep(ms(10_000)).await;
    });
    let start = Instant::now();
    let Err(RunError::Reclaimed { id }) = stuck.await else {
        panic!("it ran on")
    };
    assert_eq!((start.elapsed(), Arc::strong_count(&dropped)), (ms(50), 1));
    let events = events.lock().unwrap();
    let [
        EventKind::Reclaimed {
            id: reported,
            acquired_in,
            ..
        },
    ] = events.as_slice()
    else {
        panic!("{events:?}")
    };
    assert_eq!((*reported, acquired_in.file()), (id, file!()));
}

#[tokio::test(start_paused = true)]
async fn an_untaken_grant_is_reclaimed_too() {
    let limiter = Limiter::new(MaxConcurrency::new(1).ttl(ms(100))).unwrap();
    let out = limiter.acquire().await.unwrap();
    let (mut sleepy, mut next) = (
        task::spawn(limiter.acquire()),
        task::spawn(limiter.acquire()),
    );
    assert_pending!(sleepy.poll());
    assert_pending!(next.poll());
    drop(out);
    sleep(ms(101)).await;
    assert!(next.is_woken());
    let late = assert_ready!(sleepy.poll()).unwrap();
    assert!(!late.is_live());
    drop(late);
    assert_eq!(limiter.snapshot().in_flight, 1);
}

/// A fixed bug: `try_acquire` did due work, but `check` and `snapshot` did not.
#[test]
fn check_and_snapshot_do_due_work_although_the_timer_is_late() {
    let limiter = Limiter::new(MaxConcurrency::new(1).ttl(ms(10))).unwrap();
    std::mem::forget(limiter.try_acquire().unwrap());
    std::thread::sleep(ms(11));
    assert_eq!(
        (limiter.snapshot().in_flight, limiter.check(1).is_allowed()),
        (0, true)
    );
    assert!(limiter.try_acquire().is_ok());
}

/// A fixed bug: more leaks than fit into one batch were reclaimed only in part before the denial.
#[test]
fn leaks_by_the_hundred_are_all_reclaimed_before_a_request_is_denied() {
    for count in [1, 62, 63, 64, 65, 127, 128, 200] {
        let limiter = Limiter::new(MaxConcurrency::new(count).ttl(ms(10))).unwrap();
        for _ in 0..count {
            std::mem::forget(limiter.try_acquire().unwrap());
        }
        std::thread::sleep(ms(11));
        assert!(limiter.try_acquire_many(count).is_ok(), "{count}");
    }
}

/// A fixed bug: work was started under a permit that had been reclaimed before it was taken.
#[tokio::test(start_paused = true)]
async fn run_does_not_start_work_under_a_dead_permit() {
    let limiter = Limiter::new(MaxConcurrency::new(1).ttl(ms(10))).unwrap();
    let out = limiter.acquire().await.unwrap();
    let mut sleepy = task::spawn(limiter.run(async { panic!("it was started") }));
    assert_pending!(sleepy.poll());
    drop(out);
    sleep(ms(20)).await;
    assert!(matches!(
        assert_ready!(sleepy.poll()),
        Err(RunError::Reclaimed { .. })
    ));
}

/// The event and the lease name the line of the request, for each kind of request.
#[tokio::test(start_paused = true)]
async fn the_event_names_the_line_that_asked() {
    let (limiter, events) = observed(MaxConcurrency::new(8).ttl(ms(10)));
    let mut lines = vec![line!() + 1];
    std::mem::forget(limiter.acquire().await.unwrap());
    lines.push(line!() + 1);
    std::mem::forget(limiter.try_acquire().unwrap());
    lines.push(line!() + 1);
    std::mem::forget(limiter.request().cost(2).acquire().await.unwrap());
    lines.push(line!() + 1);
    let blocking = limiter.request();
    std::mem::forget(std::thread::scope(|scope| {
        scope
            .spawn(|| blocking.blocking_acquire().unwrap())
            .join()
            .unwrap()
    }));
    lines.push(line!() + 1);
    let mut items = stream::iter([0]).with_permits(&limiter);
    std::mem::forget(items.next().await.unwrap().unwrap().1);
    sleep(ms(20)).await;
    let reported: Vec<u32> = events.lock().unwrap().iter().map(line).collect();
    assert_eq!(reported, lines);
}

/// Waiters of several lines in one queue, with and without a timeout, and before and after the policy has a TTL.
#[tokio::test(start_paused = true)]
async fn the_event_names_the_line_of_a_waiter_among_others_also_when_the_ttl_came_later() {
    for ttl_comes_later in [false, true] {
        let (one, with_ttl) = (MaxConcurrency::new(1), MaxConcurrency::new(1).ttl(ms(10)));
        let (limiter, events) = observed(if ttl_comes_later { one } else { with_ttl });
        let first = limiter.try_acquire().unwrap();
        let (mut lines, mut waiting) = (Vec::new(), Vec::new());
        for nth in 0..100 {
            match nth % 5 {
                0..=2 => {
                    lines.push(line!() + 1);
                    waiting.push(queued(limiter.acquire()));
                }
                3 => {
                    lines.push(line!() + 1);
                    waiting.push(queued(limiter.request().timeout(ms(100_000)).acquire()));
                }
                _ => {
                    lines.push(line!() + 1);
                    waiting.push(queued(limiter.acquire_many(1)));
                }
            }
        }
        for given_up in [70, 50, 3, 0] {
            drop(waiting.remove(given_up));
            lines.remove(given_up);
        }
        if ttl_comes_later {
            limiter.set_policy(with_ttl).unwrap();
        }
        drop(first);
        for waiter in &mut waiting {
            sleep(ms(11)).await;
            assert_ready!(waiter.poll()).unwrap().forget();
        }
        sleep(ms(11)).await;
        let reported: Vec<u32> = events.lock().unwrap().iter().map(line).collect();
        assert_eq!(reported, lines, "the TTL comes later: {ttl_comes_later}");
    }
}

/// A panicking observer stops neither the manager nor the caller.
#[tokio::test(start_paused = true)]
async fn an_observer_that_panics_does_no_harm() {
    let limiter = Limiter::builder(MaxConcurrency::new(1).ttl(ms(10)))
        .on_event(|_| panic!("on purpose"))
        .build()
        .unwrap();
    for _ in 0..5 {
        std::mem::forget(limiter.acquire().await.unwrap());
    }
    assert_eq!(limiter.snapshot().granted, 5);
}
