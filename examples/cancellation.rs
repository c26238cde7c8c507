//! Cancelling a request for a permit at any moment loses no permit and delays no other request.
//!
//! ```text
//! cargo run --example cancellation
//! ```

use std::error::Error;
use std::pin::pin;
use std::time::Duration;

use clap::Parser;
use common::say;
use futures_util::poll;
use tokio::time::{Instant, sleep};
use tollgate::{Limiter, MaxConcurrency, RunError, Throttle};

/// Cancels requests for permits at chosen moments and shows that nothing is lost
#[derive(Debug, Parser)]
struct Options {}

// With one thread, other tasks run only while this one awaits: so the example can choose each moment.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    Options::parse();
    dropped_while_it_waits().await?;
    dropped_before_it_takes_its_permit().await?;
    dropped_before_it_takes_a_throttled_permit().await?;
    dropped_by_the_limiter().await
}

async fn dropped_while_it_waits() -> Result<(), Box<dyn Error>> {
    say!("1. A request that is dropped while it waits leaves the queue");
    let limiter = Limiter::new(MaxConcurrency::new(1))?;
    let taken = limiter.acquire().await?;
    let mut second = pin!(limiter.acquire());
    let patience = Duration::from_millis(100);
    {
        let first = tokio::time::timeout(patience, limiter.acquire());
        let mut first = pin!(first);
        assert!(poll!(first.as_mut()).is_pending() && poll!(second.as_mut()).is_pending());
        tell("the first and the second wait", &limiter);
        assert!(first.await.is_err());
    }
    tell("the first gave up after 100 ms", &limiter);
    drop(taken);
    let _permit = second.await?;
    tell("the place came back, the second has it", &limiter);
    Ok(())
}

async fn dropped_before_it_takes_its_permit() -> Result<(), Box<dyn Error>> {
    say!(
        "2. A permit whose request is dropped before it takes the permit goes to the next request"
    );
    let limiter = Limiter::new(MaxConcurrency::new(1))?;
    let taken = limiter.acquire().await?;
    let mut first = Box::pin(limiter.acquire());
    let mut second = pin!(limiter.acquire());
    assert!(poll!(first.as_mut()).is_pending() && poll!(second.as_mut()).is_pending());
    drop(taken);
    tell("granted to the first, which has not taken it yet", &limiter);
    drop(first);
    tell("the first was dropped", &limiter);
    let _permit = second.await?;
    tell("the second has it", &limiter);
    Ok(())
}

async fn dropped_before_it_takes_a_throttled_permit() -> Result<(), Box<dyn Error>> {
    say!("3. The same under a throttle of one per 500 ms: no grant is lost");
    let limiter = Limiter::new(Throttle::every(Duration::from_millis(500)))?;
    let start = Instant::now();
    limiter.acquire().await?.release();
    let mut first = Box::pin(limiter.acquire());
    assert!(poll!(first.as_mut()).is_pending());
    sleep(Duration::from_millis(600)).await;
    tell(
        "granted at 500 ms to the first, which has not taken it at 600 ms",
        &limiter,
    );
    drop(first);
    limiter.acquire().await?.release();
    tell(
        &format!(
            "the first was dropped; the next got its permit at {} ms",
            start.elapsed().as_millis()
        ),
        &limiter,
    );
    Ok(())
}

async fn dropped_by_the_limiter() -> Result<(), Box<dyn Error>> {
    say!("4. run() drops the work when the permit is reclaimed");
    let limiter = Limiter::new(MaxConcurrency::new(1).ttl(Duration::from_millis(300)))?;
    let stuck = limiter.run(async {
        let _cleanup = Cleanup;
        sleep(Duration::from_secs(3_600)).await;
    });
    match stuck.await {
        Err(error @ RunError::Reclaimed { .. }) => tell(&error.to_string(), &limiter),
        other => say!("   unexpected: {other:?}"),
    }
    let answer = limiter.run(async { 6 * 7 }).await?;
    tell(
        &format!("the next work ran to its end and returned {answer}"),
        &limiter,
    );
    Ok(())
}

/// Stands for a resource that the work holds.
struct Cleanup;

impl Drop for Cleanup {
    fn drop(&mut self) {
        say!("   the dropped work releases its resources");
    }
}

fn tell(what: &str, limiter: &Limiter) {
    let now = limiter.snapshot();
    say!("   {what}");
    say!(
        "       in flight {}, queued {}, granted {}, refunded {}, reclaimed {}",
        now.in_flight,
        now.queued,
        now.granted,
        now.refunded,
        now.reclaimed
    );
}
