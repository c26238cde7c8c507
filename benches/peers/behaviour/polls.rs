//! How often a future that waits is polled until it is granted.

use std::time::Duration;

use tokio::time::sleep;

use crate::limiters::{Contestant, Limits, Pace};
use crate::table::{Row, brief, grouped};
use crate::tasks::{counting_polls, queue, results, take};

const WAITERS: usize = 1_000;
const PLACES: u32 = 8;
const BURST: u32 = 10;
const PACE: Duration = Duration::from_millis(1);

pub(crate) fn of_places() -> Row {
    let question = format!(
        "{} tasks wait for {PLACES} places, each held for {}: polls until a grant",
        grouped(WAITERS),
        brief(PACE)
    );
    Row::of_places(&question, |who| {
        answer(who, who.run(PLACES, |places| polls(places, PLACES, PACE)))
    })
}

pub(crate) fn of_rates() -> Row {
    let question = format!(
        "{} tasks wait, and a unit comes back each {}: polls until a grant",
        grouped(WAITERS),
        brief(PACE)
    );
    let pace = Pace::new(PACE, BURST);
    Row::of_rates(&question, |who| {
        answer(
            who,
            who.run(pace, |rate| polls(rate, BURST, Duration::ZERO)),
        )
    })
}

async fn polls<L: Limits>(limiter: L, units: u32, hold: Duration) -> Vec<u32> {
    let taken = take(&limiter, units).await;
    let tasks = queue(WAITERS, |_| {
        let limiter = limiter.clone();
        async move {
            let (_held, polls) = counting_polls(limiter.acquire(1)).await;
            if !hold.is_zero() {
                sleep(hold).await;
            }
            polls
        }
    });
    let tasks = tasks.await;
    drop(taken);
    results(tasks).await
}

fn answer(who: impl Contestant, polls: Vec<u32>) -> String {
    let most = polls.iter().max().copied().unwrap_or(0);
    let mean = f64::from(polls.iter().sum::<u32>()) / polls.len() as f64;
    who.guarantees(most <= 2, "a request that waits is polled more than twice");
    format!("{mean:.1} on average, at most {}", grouped(most as usize))
}
