//! What a permit costs that is never given back, and a future that waits and is never polled again.

use std::future::{Future, pending};
use std::pin::Pin;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::time::{Instant, sleep};
use tollgate::MaxConcurrency;

use crate::limiters::{Contestant, Limits, OfPlaces, Pace, Places, limiter, paused};
use crate::table::{Row, brief};
use crate::tasks::{is_pending, queue, take};

const PLACES: u32 = 8;
const TTL: Duration = Duration::from_secs(5);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const OTHERS: usize = 10;
const PACE: Duration = Duration::from_millis(10);

pub(crate) fn of_permits() -> Row {
    let question = format!(
        "of {PLACES} places, three are leaked by `mem::forget`, and one is held by a task that never returns: free places"
    );
    Row::of_places(&question, |who| {
        answer(who, |places| leak_permits(places).boxed_local())
    })
}

pub(crate) fn of_waiting_for_places() -> Row {
    let question = format!(
        "a future that waits for one of {PLACES} places is kept, but never polled again, and all places come back: free places"
    );
    Row::of_places(&question, |who| {
        answer(who, |places| leak_waiting(places).boxed_local())
    })
}

pub(crate) fn of_waiting_for_rates() -> Row {
    let question = format!(
        "a future that waits for a unit is kept, but never polled again, and {OTHERS} others wait behind it; a unit comes back each {}",
        brief(PACE)
    );
    Row::of_rates(&question, |who| {
        let granted = who.run(Pace::new(PACE, 1), behind_a_kept_future);
        who.guarantees(
            granted == OTHERS,
            "a future that is not polled stops others",
        );
        format!(
            "{granted} of {OTHERS} others granted within {}",
            brief(SECOND)
        )
    })
}

type Leaking = fn(Places) -> Pin<Box<dyn Future<Output = (u32, Duration)>>>;

fn answer(who: OfPlaces, leak: Leaking) -> String {
    let plain = who.run(PLACES, leak);
    if who != OfPlaces::Tollgate {
        return show(plain);
    }
    let limit = MaxConcurrency::new(PLACES.into()).ttl(TTL);
    let with_ttl = paused().block_on(async { leak(Places::Tollgate(limiter(limit))).await });
    who.guarantees(
        with_ttl == (PLACES, TTL),
        "places are not back exactly when their TTL ends",
    );
    format!(
        "with `.ttl(…)` of {}: {}; without: {}",
        brief(TTL),
        show(with_ttl),
        show(plain)
    )
}

fn show((places, after): (u32, Duration)) -> String {
    match places {
        PLACES => format!("all {PLACES} after {}", brief(after)),
        _ => format!("{places} of {PLACES} after {}", brief(after)),
    }
}

async fn leak_permits(places: Places) -> (u32, Duration) {
    let mut taken = take(&places, 4).await;
    for _ in 0..3 {
        std::mem::forget(taken.pop());
    }
    tokio::spawn(async move {
        let _held = taken;
        pending::<()>().await;
    });
    left(&places).await
}

async fn leak_waiting(places: Places) -> (u32, Duration) {
    let taken = take(&places, PLACES).await;
    let mut waiting = Box::pin(places.acquire(1));
    assert!(is_pending(&mut waiting).await, "all places are taken");
    drop(taken);
    left(&places).await
}

/// The places that are free, and how long it took until they were: until all of them, or for a minute.
async fn left(places: &Places) -> (u32, Duration) {
    let start = Instant::now();
    loop {
        let free = free(places);
        if free == PLACES || start.elapsed() >= MINUTE {
            return (free, start.elapsed());
        }
        sleep(Duration::from_millis(1)).await;
    }
}

/// The places that can be taken without waiting. They are given back at once.
fn free(places: &Places) -> u32 {
    let taken: Vec<_> = std::iter::from_fn(|| places.acquire(1).now_or_never()).collect();
    taken.len() as u32
}

async fn behind_a_kept_future<L: Limits>(limiter: L) -> usize {
    limiter.acquire(1).await;
    let mut waiting = Box::pin(limiter.acquire(1));
    assert!(is_pending(&mut waiting).await, "the burst is used up");
    let others = queue(OTHERS, |_| {
        let limiter = limiter.clone();
        async move {
            limiter.acquire(1).await;
        }
    });
    let others = others.await;
    sleep(SECOND).await;
    others.iter().filter(|other| other.is_finished()).count()
}
