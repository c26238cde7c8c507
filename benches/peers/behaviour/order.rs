//! Whether requests are granted in the order in which they were made.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::limiters::{Contestant, Limits, Pace};
use crate::table::{Row, brief, grouped};
use crate::tasks::{queue, results};

const WAITERS: usize = 100;
const PACE: Duration = Duration::from_millis(1);

pub(crate) fn of_places() -> Row {
    let question = format!("{WAITERS} tasks wait in a known order for the only place");
    Row::of_places(&question, |who| answer(who, who.run(1, grants)))
}

pub(crate) fn of_rates() -> Row {
    let question = format!(
        "{WAITERS} tasks wait in a known order, and a unit comes back each {}",
        brief(PACE)
    );
    Row::of_rates(&question, |who| {
        answer(who, who.run(Pace::new(PACE, 1), grants))
    })
}

/// The numbers of the tasks, in the order of their grants.
async fn grants<L: Limits>(limiter: L) -> Vec<usize> {
    let grants = Arc::new(Mutex::new(Vec::new()));
    let first = limiter.acquire(1).await;
    let tasks = queue(WAITERS, |number| {
        let (limiter, grants) = (limiter.clone(), Arc::clone(&grants));
        async move {
            let _held = limiter.acquire(1).await;
            grants
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(number);
        }
    });
    let tasks = tasks.await;
    drop(first);
    results(tasks).await;
    let mut grants = grants.lock().unwrap_or_else(PoisonError::into_inner);
    std::mem::take(&mut grants)
}

fn answer(who: impl Contestant, grants: Vec<usize>) -> String {
    assert_eq!(grants.len(), WAITERS);
    let before = |place: usize, number: usize| {
        grants[..place]
            .iter()
            .filter(|&&other| other > number)
            .count()
    };
    let inversions: usize = grants
        .iter()
        .enumerate()
        .map(|(place, number)| before(place, *number))
        .sum();
    who.guarantees(inversions == 0, "requests are granted out of order");
    let pairs = WAITERS * (WAITERS - 1) / 2;
    format!(
        "{} of {} pairs out of order",
        grouped(inversions),
        grouped(pairs)
    )
}
