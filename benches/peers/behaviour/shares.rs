//! How evenly tasks share a limit, if each asks again as soon as it can.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::sleep;

use crate::limiters::{Contestant, Limits, Pace};
use crate::table::{Row, brief, grouped};
use crate::tasks::take;

const TASKS: usize = 100;
const PLACES: u32 = 10;
const BURST: u32 = 10;
const PACE: Duration = Duration::from_millis(1);
const SPAN: Duration = Duration::from_secs(1);

pub(crate) fn of_places() -> Row {
    let question = format!(
        "{TASKS} tasks share {PLACES} places, hold one for {} and ask again at once: permits of a task in {}",
        brief(PACE),
        brief(SPAN)
    );
    Row::of_places(&question, |who| {
        answer(who, who.run(PLACES, |places| shares(places, 0, PACE)))
    })
}

pub(crate) fn of_rates() -> Row {
    let question = format!(
        "{TASKS} tasks share a rate of a unit each {}, burst {BURST} or 1, and ask again at once: grants of a task in {}",
        brief(PACE),
        brief(SPAN)
    );
    Row::of_rates(&question, |who| {
        let shares = |burst| {
            let pace = Pace::new(PACE, burst);
            answer(
                who,
                who.run(pace, |rate| shares(rate, burst, Duration::ZERO)),
            )
        };
        format!("{}; burst 1: {}", shares(BURST), shares(1))
    })
}

async fn shares<L: Limits>(limiter: L, units: u32, hold: Duration) -> Vec<usize> {
    drop(take(&limiter, units).await); // the first burst goes to whoever comes first
    let counts: Vec<_> = (0..TASKS).map(|_| Arc::new(AtomicUsize::new(0))).collect();
    for count in &counts {
        let (limiter, count) = (limiter.clone(), Arc::clone(count));
        tokio::spawn(async move {
            loop {
                let held = limiter.acquire(1).await;
                count.fetch_add(1, Relaxed);
                if !hold.is_zero() {
                    sleep(hold).await;
                }
                drop(held);
            }
        });
    }
    sleep(SPAN).await;
    counts.iter().map(|count| count.load(Relaxed)).collect()
}

fn answer(who: impl Contestant, mut shares: Vec<usize>) -> String {
    shares.sort_unstable();
    let (fewest, most) = (shares[0], shares[TASKS - 1]);
    who.guarantees(most - fewest <= 1, "tasks of one limiter do not take turns");
    let none = shares.iter().filter(|share| **share == 0).count();
    let share = format!("{} to {}", grouped(fewest), grouped(most));
    if none > 0 {
        format!("{share}, {none} of {TASKS} tasks none")
    } else {
        share
    }
}
