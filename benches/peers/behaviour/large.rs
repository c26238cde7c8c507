//! A large request, while small ones never stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::limiters::{Contestant, Limits, OfPlaces, OfRates, Pace};
use crate::table::{NO_COST, Row, brief};

/// The tasks that make small requests.
const SMALL: u32 = 16;
const LARGE: u32 = 8;
const HOLD: Duration = Duration::from_millis(10);
const LIMIT: Duration = Duration::from_secs(2);

pub(crate) fn of_places() -> Row {
    let question = format!(
        "all {LARGE} of {LARGE} places are requested at once, while {SMALL} tasks take one for {}, again and again",
        brief(HOLD)
    );
    Row::of_places(&question, |who| {
        if who == OfPlaces::Tower {
            return NO_COST.to_owned();
        }
        answer(who, who.run(LARGE, beside_small))
    })
}

pub(crate) fn of_rates() -> Row {
    let pace = Pace::new(HOLD, LARGE);
    let question = format!(
        "{LARGE} units are requested at once (the burst; one comes back each {hold}), while {SMALL} tasks take one and work for {hold}, again and again",
        hold = brief(HOLD)
    );
    Row::of_rates(&question, |who| {
        if who == OfRates::Tower {
            return NO_COST.to_owned();
        }
        answer(who, who.run(pace, beside_small))
    })
}

fn answer(who: impl Contestant, (waited, overtook): (Option<Duration>, u32)) -> String {
    who.guarantees(overtook == 0, "later requests overtake a large one");
    // The small requests before it take this time, and then its own units come back.
    let most = HOLD * (SMALL + LARGE) + Duration::from_millis(1);
    who.guarantees(
        waited.is_some_and(|waited| waited <= most),
        "a large request waits too long",
    );
    match waited {
        Some(waited) => format!(
            "granted after {}, {overtook} later ones before it",
            brief(waited)
        ),
        None => format!(
            "**not within {}**, {overtook} later ones before it",
            brief(LIMIT)
        ),
    }
}

/// How long the large request waits, and the number of requests that are made later and granted first.
async fn beside_small<L: Limits>(limiter: L) -> (Option<Duration>, u32) {
    let asked = Arc::new(AtomicBool::new(false));
    let overtook = Arc::new(AtomicU32::new(0));
    for _ in 0..SMALL {
        let (limiter, asked, overtook) =
            (limiter.clone(), Arc::clone(&asked), Arc::clone(&overtook));
        tokio::spawn(async move {
            loop {
                let is_later = asked.load(Relaxed);
                let held = limiter.acquire(1).await;
                overtook.fetch_add(is_later.into(), Relaxed);
                sleep(HOLD).await;
                drop(held);
            }
        });
    }
    sleep(HOLD * SMALL).await; // the burst is used up
    // A task, because tasks run in the order in which they are woken.
    let large = tokio::spawn(async move {
        asked.store(true, Relaxed);
        let start = Instant::now();
        let granted = timeout(LIMIT, limiter.acquire(LARGE)).await;
        let waited = granted.is_ok().then(|| start.elapsed());
        (waited, overtook.load(Relaxed))
    });
    large.await.expect("the task runs to its end")
}
