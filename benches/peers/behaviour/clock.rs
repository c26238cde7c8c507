//! Whether a wait of an hour is over at once when a test pauses tokio's clock.

use std::future::Future;
use std::thread;
use std::time::Duration;

use futures_util::future::{Either, select};
use governor::RateLimiter;
use governor::clock::FakeRelativeClock;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::limiters::{Contestant, Limits, OfRates, Pace, paused, wait};
use crate::table::{Row, brief};

const HOUR: Duration = Duration::from_secs(3_600);
/// How long the wait may take in real time.
const REAL: Duration = Duration::from_millis(500);

pub(crate) fn an_hour() -> Row {
    let pace = Pace::new(HOUR, 1);
    Row::of_rates(
        "a test pauses tokio's clock, and a unit comes back in an hour",
        |who| {
            let answer = paused().block_on(async {
                let limiter = who.open(pace);
                limiter.acquire(1).await;
                in_real_time(limiter.acquire(1)).await
            });
            who.guarantees(
                matches!(answer, Some((HOUR, _))),
                "an hour is not an hour on a paused clock",
            );
            let answer = show(answer);
            match who {
                OfRates::Governor => format!("{answer}; {}", governor_check(pace)),
                OfRates::Ratelimit => {
                    let on_tokio = show(ratelimit_on_tokio(pace));
                    format!("{answer}; with a `Clock` that reads tokio's: {on_tokio}")
                }
                _ => answer,
            }
        },
    )
}

fn show(answer: Option<(Duration, Duration)>) -> String {
    let Some((waited, took)) = answer else {
        return format!("**not granted** within {} of real time", brief(REAL));
    };
    let by_clock = match (waited.checked_sub(HOUR), HOUR.checked_sub(waited)) {
        (Some(Duration::ZERO), _) => "exactly an hour".to_owned(),
        (Some(late), _) => format!("an hour and {late:?}"),
        (None, early) => format!("an hour less {:?}", early.unwrap_or_default()),
    };
    format!("{by_clock}, in {} of real time", brief(took))
}

/// How long a request waits by tokio's clock and in real time. `None`: for too long.
async fn in_real_time(request: impl Future) -> Option<(Duration, Duration)> {
    let (sender, deadline) = oneshot::channel();
    thread::spawn(move || {
        thread::sleep(REAL);
        sender.send(()).ok();
    });
    let (start, began) = (Instant::now(), std::time::Instant::now());
    match select(std::pin::pin!(request), deadline).await {
        Either::Left(_) => Some((start.elapsed(), began.elapsed())),
        Either::Right(_) => None,
    }
}

/// ratelimit with tokio's clock in place of std's.
fn ratelimit_on_tokio(pace: Pace) -> Option<(Duration, Duration)> {
    paused().block_on(async {
        let bucket = ratelimit::Builder::with_clock(1, TokioClock(Instant::now()))
            .period(pace.interval)
            .max_tokens(1)
            .initial_available(1)
            .build()
            .expect("a sound rate");
        wait(&bucket, 1).await;
        in_real_time(wait(&bucket, 1)).await
    })
}

struct TokioClock(Instant);

impl ratelimit::Clock for TokioClock {
    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// governor's own way to pause: a clock of its own, for `check` only.
fn governor_check(pace: Pace) -> String {
    let clock = FakeRelativeClock::default();
    let governor = RateLimiter::direct_with_clock(pace.quota(), clock.clone());
    assert!(governor.check().is_ok(), "the burst is there");
    let just_before = HOUR - Duration::from_nanos(1);
    clock.advance(just_before);
    let early = governor.check().is_ok();
    clock.advance(HOUR - just_before);
    match (early, governor.check().is_ok()) {
        (false, true) => "`check` with its `FakeRelativeClock`: exactly an hour".to_owned(),
        (early, on_time) => format!(
            "`check` with its `FakeRelativeClock`: {early} before the hour, {on_time} after it"
        ),
    }
}
