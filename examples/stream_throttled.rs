//! Streams under limits: `throttled`, `with_permits` and `for_each_permitted`.
//!
//! ```text
//! cargo run --example stream_throttled
//! ```

use std::error::Error;
use std::time::Duration;

use clap::Parser;
use common::say;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use tokio::time::{Instant, sleep};
use tollgate::{Limiter, MaxConcurrency, StreamLimitExt as _, Throttle};

const TENTH: Duration = Duration::from_millis(100);

/// Runs streams under limits
#[derive(Debug, Parser)]
struct Options {}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    Options::parse();
    throttled().await?;
    with_permits().await?;
    for_each_permitted().await?;
    closed().await?;
    Ok(())
}

async fn throttled() -> Result<(), Box<dyn Error>> {
    say!("throttled: five items, two at first and then one per 100 ms");
    let limiter = Limiter::new(Throttle::every(TENTH).burst(2))?;
    let start = Instant::now();
    let mut items = stream::iter(["a", "b", "c", "d", "e"]).throttled(&limiter);
    while let Some(item) = items.next().await {
        say!("  {} {item}", stamp(start));
    }
    Ok(())
}

async fn with_permits() -> Result<(), Box<dyn Error>> {
    say!(
        "with_permits: four items, each with its permit in a task of its own; two tasks at a time, 150 ms of work each"
    );
    let limiter = Limiter::new(MaxConcurrency::new(2))?;
    let start = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    let mut items = stream::iter(["a", "b", "c", "d"]).with_permits(&limiter);
    while let Some((item, permit)) = items.try_next().await? {
        tasks.spawn(async move {
            say!(
                "  {} {item} starts with permit {}",
                stamp(start),
                permit.fence()
            );
            sleep(TENTH + TENTH / 2).await;
            say!("  {} {item} ends", stamp(start));
            drop(permit); // lets the stream yield the next item
        });
    }
    tasks.join_all().await;
    Ok(())
}

async fn for_each_permitted() -> Result<(), Box<dyn Error>> {
    say!(
        "for_each_permitted: six items without tasks; three at a time, one start per 50 ms, 300 ms of work each"
    );
    let limiter = Limiter::new(MaxConcurrency::new(3).and(Throttle::every(TENTH / 2)))?;
    let start = Instant::now();
    let work = async |item| {
        say!(
            "  {} {item} starts, {} in flight",
            stamp(start),
            limiter.snapshot().in_flight
        );
        sleep(3 * TENTH).await;
    };
    stream::iter(["a", "b", "c", "d", "e", "f"])
        .for_each_permitted(&limiter, work)
        .await?;
    say!(
        "  {} all have ended, {} in flight",
        stamp(start),
        limiter.snapshot().in_flight
    );
    Ok(())
}

async fn closed() -> Result<(), Box<dyn Error>> {
    say!("a limiter that is closed half-way: the stream ends, has the reason, and loses no item");
    let limiter = Limiter::new(Throttle::every(TENTH))?;
    let start = Instant::now();
    let mut items = stream::iter(["a", "b", "c", "d"]).try_throttled(&limiter);
    let why = loop {
        match items.try_next().await {
            Ok(Some(item)) => {
                say!("  {} {item}", stamp(start));
                if item == "b" {
                    limiter.close();
                }
            }
            Ok(None) => return Ok(()),
            Err(error) => break error,
        }
    };
    let (source, waiting) = items.into_inner();
    let rest: Vec<_> = source.collect().await;
    say!("  ended: {why}; {waiting:?} was waiting, and the source still has {rest:?}");
    Ok(())
}

fn stamp(start: Instant) -> String {
    format!("{:>5} ms ", start.elapsed().as_millis())
}
