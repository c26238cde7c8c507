//! Whether requests that are cancelled while they wait cost the others anything.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use crate::limiters::{Contestant, Limits, Pace};
use crate::table::{Row, brief, grouped};
use crate::tasks::{is_pending, queue, take};

const WAITERS: usize = 1_000;
const PLACES: u32 = 8;
const HOLD: Duration = Duration::from_millis(10);
const PACE: Duration = Duration::from_millis(1);
const BURST: u32 = 10;
const SLOW: Duration = Duration::from_millis(200);

pub(crate) fn of_places() -> Row {
    let question = format!(
        "{} tasks wait for {PLACES} places, each held for {}; all places come back, and every other task is aborted before it runs: the last grant",
        grouped(WAITERS),
        brief(HOLD)
    );
    Row::of_places(&question, |who| {
        let last = |requests| {
            who.run(PLACES, move |places| {
                last_grant(places, PLACES, requests, HOLD)
            })
        };
        answer(who, last(Requests::HalfAborted), last(Requests::Half))
    })
}

pub(crate) fn of_rates() -> Row {
    let question = format!(
        "{} tasks wait, every other one is aborted, and a unit comes back each {}: the last grant",
        grouped(WAITERS),
        brief(PACE)
    );
    Row::of_rates(&question, |who| {
        let pace = Pace::new(PACE, BURST);
        let last = |requests| {
            who.run(pace, move |rate| {
                last_grant(rate, BURST, requests, Duration::ZERO)
            })
        };
        answer(who, last(Requests::HalfAborted), last(Requests::Half))
    })
}

pub(crate) fn after_its_unit_has_come() -> Row {
    let question = format!(
        "a future is dropped after its unit has come, and before it is polled again; a unit comes back each {}: the next request waits",
        brief(SLOW)
    );
    Row::of_rates(&question, |who| {
        let waited = who.run(Pace::new(SLOW, 1), wait_after_a_dropped_grant);
        who.guarantees(
            waited.is_zero(),
            "a grant that is dropped before it is taken is lost",
        );
        brief(waited)
    })
}

async fn wait_after_a_dropped_grant<L: Limits>(limiter: L) -> Duration {
    limiter.acquire(1).await;
    let mut dropped = Box::pin(limiter.acquire(1));
    assert!(is_pending(&mut dropped).await, "the burst is used up");
    sleep(SLOW + SLOW / 2).await;
    drop(dropped);
    let start = Instant::now();
    limiter.acquire(1).await;
    start.elapsed()
}

fn answer(who: impl Contestant, last: Duration, without: Duration) -> String {
    who.guarantees(last == without, "cancelled requests delay others");
    format!(
        "after {}; {} if they had never asked",
        brief(last),
        brief(without)
    )
}

#[derive(Clone, Copy, PartialEq)]
enum Requests {
    HalfAborted,
    Half,
}

/// How long it takes until the last request is granted that is not aborted.
async fn last_grant<L: Limits>(
    limiter: L,
    units: u32,
    requests: Requests,
    hold: Duration,
) -> Duration {
    let taken = take(&limiter, units).await;
    let count = if requests == Requests::Half {
        WAITERS / 2
    } else {
        WAITERS
    };
    let tasks = queue(count, |_| {
        let limiter = limiter.clone();
        async move {
            let held = limiter.acquire(1).await;
            let at = Instant::now();
            if !hold.is_zero() {
                sleep(hold).await;
            }
            drop(held);
            at
        }
    });
    let tasks = tasks.await;
    let start = Instant::now();
    drop(taken);
    if requests == Requests::HalfAborted {
        tasks.iter().step_by(2).for_each(|task| task.abort());
    }
    let grants = join_all(tasks).await.into_iter().filter_map(Result::ok);
    let last = grants.max().expect("some are granted");
    last - start
}
