//! How much of a rate is granted, and whether more. In real time, because timers that are late are what makes the difference.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::time::sleep;
use tollgate::Limiter;

use crate::limiters::{Contestant, Limits, OfRates, Pace, Rate, real};
use crate::spans::most_within;
use crate::table::{Row, brief, grouped};

const TASKS: usize = 100;
const SPAN: Duration = Duration::from_secs(2);
const SECOND: Duration = Duration::from_secs(1);
const INTERVAL: Duration = Duration::from_millis(1);

pub(crate) fn with_burst() -> Row {
    let pace = Pace::new(INTERVAL, 10);
    Row::of_rates(&question(pace), |who| measure(who, pace, || who.open(pace)))
}

pub(crate) fn without_burst() -> Row {
    let pace = Pace::new(INTERVAL, 1);
    Row::of_rates(&question(pace), |who| {
        let plain = measure(who, pace, || who.open(pace));
        if who != OfRates::Tollgate {
            return plain;
        }
        let precise = || {
            let precise = Limiter::builder(pace.throttle()).precise_timer().build();
            Rate::Tollgate(precise.expect("a sound policy"))
        };
        format!(
            "{plain}; with `precise_timer()` {}",
            measure(who, pace, precise)
        )
    })
}

fn question(pace: Pace) -> String {
    format!(
        "{TASKS} tasks ask again and again, at a unit each {}, burst {}, in real time: share of the rate that is granted, and most grants in any second",
        brief(INTERVAL),
        pace.burst
    )
}

fn measure(who: OfRates, pace: Pace, open: impl FnOnce() -> Rate) -> String {
    let grants = real().block_on(async { grants(open()).await });
    let units = |span: Duration| span.as_nanos() as f64 / pace.interval.as_nanos() as f64;
    let percent = 100.0 * (grants.len() as f64 - f64::from(pace.burst)) / units(SPAN);
    let most = |mut instants: Vec<Instant>| {
        instants.sort_unstable();
        most_within(&instants, SECOND)
    };
    let allowed = pace.burst as usize + units(SECOND) as usize;
    let decisions: Vec<_> = grants.iter().filter_map(|grant| grant.decided).collect();
    who.guarantees(!decisions.is_empty(), "a permit of a rate has no instant");
    who.guarantees(
        most(decisions) <= allowed,
        "more is granted than the rate admits",
    );
    let most = most(grants.iter().map(|grant| grant.got).collect());
    format!("{percent:.1} %, {} of {}", grouped(most), grouped(allowed))
}

struct Grant {
    got: Instant,
    decided: Option<Instant>,
}

async fn grants(limiter: Rate) -> Vec<Grant> {
    let grants = Arc::new(Mutex::new(Vec::new()));
    let start = Instant::now();
    for _ in 0..TASKS {
        let (limiter, grants) = (limiter.clone(), Arc::clone(&grants));
        tokio::spawn(async move {
            loop {
                let decided = limiter.acquire(1).await.map(tokio::time::Instant::into_std);
                let got = Instant::now();
                grants
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(Grant { got, decided });
            }
        });
    }
    sleep(SPAN).await;
    let mut grants = grants.lock().unwrap_or_else(PoisonError::into_inner);
    grants.retain(|grant| grant.got <= start + SPAN); // this task may wake late
    std::mem::take(&mut grants)
}
