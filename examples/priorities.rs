//! The order in which requests are served: priorities, a full queue, and timeouts that fail at once.
//!
//! ```text
//! cargo run --example priorities
//! ```

use std::error::Error;
use std::time::Duration;

use clap::Parser;
use common::{Human, say};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tollgate::{AcquireError, Limiter, MaxConcurrency, Overflow, Priority, Throttle};

/// Shows the order of service under priorities, a full queue and timeouts
#[derive(Debug, Parser)]
struct Options {}

// One thread, so that tasks run in the order in which they were spawned: every run prints the same.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    Options::parse();
    served_by_priority_then_arrival().await?;
    for overflow in [
        Overflow::Reject,
        Overflow::DropOldest,
        Overflow::DropLowestPriority,
    ] {
        full_queue(overflow).await?;
    }
    fails_at_once().await
}

const CALLERS: [(&str, Priority); 6] = [
    ("report", Priority::LOW),
    ("page 1", Priority::NORMAL),
    ("login", Priority::HIGH),
    ("page 2", Priority::NORMAL),
    ("backup", Priority::LOWEST),
    ("payment", Priority::HIGH),
];

async fn served_by_priority_then_arrival() -> Result<(), Box<dyn Error>> {
    let limiter = Limiter::new(MaxConcurrency::new(1))?;
    say!(
        "one place, which is taken; six callers ask for it in this order (priority): {}",
        names()
    );
    say!("served: {}\n", serve(&limiter).await?);
    Ok(())
}

async fn full_queue(overflow: Overflow) -> Result<(), Box<dyn Error>> {
    let limiter = Limiter::builder(MaxConcurrency::new(1))
        .max_queue(3)
        .overflow(overflow)
        .build()?;
    say!("the same six callers, a queue of at most three, and Overflow::{overflow:?}");
    say!("served: {}", serve(&limiter).await?);
    say!("refused or dropped: {}\n", limiter.snapshot().shed);
    Ok(())
}

/// Lets all callers request the only place while it is taken, then releases it. Returns the callers in the order of their grants.
async fn serve(limiter: &Limiter) -> Result<String, Box<dyn Error>> {
    let taken = limiter.acquire().await?;
    let mut callers = JoinSet::new();
    for (name, priority) in CALLERS {
        let limiter = limiter.clone();
        callers.spawn(async move {
            match limiter.request().priority(priority).acquire().await {
                Ok(_permit) => Some(name),
                Err(error) => {
                    say!("  {name} (priority {}): {error}", priority.level());
                    None
                }
            }
        });
    }
    tokio::task::yield_now().await; // here the callers ask
    drop(taken);
    let mut served = Vec::new();
    while let Some(caller) = callers.join_next().await {
        served.extend(caller?);
    }
    Ok(served.join(", "))
}

fn names() -> String {
    CALLERS
        .map(|(name, priority)| format!("{name} ({})", priority.level()))
        .join(", ")
}

async fn fails_at_once() -> Result<(), Box<dyn Error>> {
    say!("one permit per minute, and a caller with a timeout of 5 s:");
    let limiter = Limiter::new(Throttle::every(Duration::from_secs(60)))?;
    limiter.acquire().await?.release(); // a release gives nothing back to a rate: the minute's permit is spent
    let five_seconds = limiter.request().timeout(Duration::from_secs(5));
    let start = Instant::now();
    report(five_seconds.acquire().await.err(), start);

    say!("one place, not released, and a caller with a timeout of 200 ms:");
    let limiter = Limiter::new(MaxConcurrency::new(1))?;
    let _taken = limiter.acquire().await?;
    let start = Instant::now();
    report(
        limiter
            .request()
            .timeout(Duration::from_millis(200))
            .acquire()
            .await
            .err(),
        start,
    );

    say!("one place, released after 100 ms, and the same caller:");
    let limiter = Limiter::new(MaxConcurrency::new(1))?;
    let taken = limiter.acquire().await?;
    tokio::spawn(async move {
        sleep(Duration::from_millis(100)).await;
        drop(taken);
    });
    let start = Instant::now();
    report(
        limiter
            .request()
            .timeout(Duration::from_millis(200))
            .acquire()
            .await
            .err(),
        start,
    );
    Ok(())
}

fn report(error: Option<AcquireError>, start: Instant) {
    let answer = match error {
        None => "got its permit".to_owned(),
        Some(AcquireError::TimedOut {
            retry_after: Some(after),
            ..
        }) => {
            format!("no permit within the timeout; retry after {}", Human(after))
        }
        Some(error) => error.to_string(),
    };
    say!("  after {} ms: {answer}", start.elapsed().as_millis());
}
