//! A small tenant beside one that floods the limiter.

use std::time::Duration;

use governor::RateLimiter;
use tokio::time::{Instant, sleep, timeout};

use crate::limiters::{Contestant, Limits, OfPlaces, OfRates, Pace, Places, Rate, real};
use crate::table::{Row, brief, grouped};
use crate::tasks::{queue, results, take};

const FLOOD: usize = 10_000;
const SMALL: usize = 10;
const PLACES: u32 = 10;
const HOLD: Duration = Duration::from_millis(10);
/// 5,000 a second, with a burst of 10 ms.
const PACE: (Duration, u32) = (Duration::from_micros(200), 50);
const LIMIT: Duration = Duration::from_secs(15);

pub(crate) fn of_places() -> Row {
    let question = format!(
        "{} requests of one tenant wait for {PLACES} places, each held for {}; then a small tenant makes {SMALL}: its median and longest wait",
        grouped(FLOOD),
        brief(HOLD)
    );
    Row::of_places(&question, |who| {
        let waits = |ask: Ask| {
            who.run(PLACES, move |places: Places| {
                waits(places, PLACES, HOLD, ask)
            })
        };
        match who {
            OfPlaces::Tollgate => {
                with_flows(who, waits(Ask::AsTenant), waits(Ask::Plainly), HOLD * 2)
            }
            _ => show(&waits(Ask::Plainly)),
        }
    })
}

pub(crate) fn of_rates() -> Row {
    let pace = Pace::new(PACE.0, PACE.1);
    let question = format!(
        "{} requests of one tenant wait, and a unit comes back each {}; then a small tenant makes {SMALL}: its median and longest wait",
        grouped(FLOOD),
        brief(pace.interval)
    );
    Row::of_rates(&question, |who| {
        let waits = |ask: Ask| {
            who.run(pace, move |rate: Rate| {
                waits(rate, pace.burst, Duration::ZERO, ask)
            })
        };
        // Flows take turns, so every other unit is for the small tenant.
        let at_most = pace.interval * (2 * SMALL as u32) + Duration::from_millis(1);
        match who {
            OfRates::Tollgate => {
                with_flows(who, waits(Ask::AsTenant), waits(Ask::Plainly), at_most)
            }
            OfRates::Governor => {
                let keyed = keyed_governor(Pace::new(pace.interval * 2, pace.burst / 2));
                format!(
                    "{}; with `keyed`, half the rate each: {}",
                    show(&waits(Ask::Plainly)),
                    show(&keyed)
                )
            }
            _ => show(&waits(Ask::Plainly)),
        }
    })
}

#[derive(Clone, Copy, PartialEq)]
enum Ask {
    AsTenant,
    Plainly,
}

fn with_flows(who: impl Contestant, flows: Waits, plain: Waits, at_most: Duration) -> String {
    let longest = flows.iter().max().copied().flatten();
    who.guarantees(
        flows.len() == SMALL && flows.iter().all(Option::is_some),
        "a small tenant starves",
    );
    who.guarantees(
        longest <= Some(at_most),
        "a small tenant waits longer than for its turn",
    );
    format!(
        "with a `flow` for each: {}; without: {}",
        show(&flows),
        show(&plain)
    )
}

/// The waits of the small tenant. `None`: longer than the limit.
type Waits = Vec<Option<Duration>>;

fn show(waits: &Waits) -> String {
    let mut granted: Vec<Duration> = waits.iter().copied().flatten().collect();
    granted.sort_unstable();
    if granted.len() < waits.len() {
        return format!(
            "**{} of {} granted within {}**",
            granted.len(),
            waits.len(),
            brief(LIMIT)
        );
    }
    let (median, longest) = (granted[granted.len() / 2], granted[granted.len() - 1]);
    format!("{}, {}", brief(median), brief(longest))
}

async fn waits<L: Limits>(limiter: L, units: u32, hold: Duration, ask: Ask) -> Waits {
    let taken = take(&limiter, units).await;
    let request = |tenant| {
        let limiter = limiter.clone();
        async move {
            let held = match ask {
                Ask::AsTenant => limiter.acquire_for(tenant).await,
                Ask::Plainly => limiter.acquire(1).await,
            };
            let at = Instant::now();
            if !hold.is_zero() {
                sleep(hold).await;
            }
            drop(held);
            at
        }
    };
    let _flood = queue(FLOOD, |_| request("flood")).await;
    let start = Instant::now();
    let small = queue(SMALL, |_| timeout(LIMIT, request("small"))).await;
    drop(taken);
    let grants = results(small).await.into_iter();
    grants
        .map(|granted| granted.ok().map(|at| at - start))
        .collect()
}

/// governor's limiter with keys, each of which has a quota of its own.
fn keyed_governor(pace: Pace) -> Waits {
    let governor: &'static _ = Box::leak(Box::new(RateLimiter::keyed(pace.quota())));
    real().block_on(async {
        for _ in 0..pace.burst {
            governor.until_key_ready(&"flood").await;
        }
        let _flood = queue(FLOOD, |_| governor.until_key_ready(&"flood")).await;
        let start = Instant::now();
        let small = queue(SMALL, |_| async {
            governor.until_key_ready(&"small").await;
            Instant::now()
        });
        results(small.await)
            .await
            .into_iter()
            .map(|at| Some(at - start))
            .collect()
    })
}
