//! Ten workers and one limiter: who gets which permit, and when, under each of four rules.
//!
//! ```text
//! cargo run --example worker_pool -- throttle       # one per second
//! cargo run --example worker_pool -- concurrency    # three at a time
//! cargo run --example worker_pool -- leak           # five at once, never given back; five more once those are reclaimed
//! cargo run --example worker_pool -- window         # five now and five in the next window
//! ```
//!
//! Each takes its intervals as options: `throttle --interval-ms 200`. See `leak --help` and the like.

use std::error::Error;
use std::time::Duration;

use clap::{Parser, Subcommand};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tollgate::{FixedWindow, Limiter, LimiterEvent, MaxConcurrency, Permit, Policy, Throttle};

/// Ten workers and one limiter: who gets which permit, and when
#[derive(Debug, Parser)]
struct Options {
    #[command(subcommand)]
    rule: Rule,
    /// Workers, all of which ask at once
    #[arg(long, global = true, default_value_t = 10)]
    workers: usize,
}

#[derive(Debug, Clone, Copy, Subcommand)]
enum Rule {
    /// One permit per interval
    Throttle {
        #[arg(long, default_value_t = 1_000)]
        interval_ms: u64,
    },
    /// At most so many permits out at once; each worker holds its own for a while
    Concurrency {
        #[arg(long, default_value_t = 3)]
        limit: u64,
        #[arg(long, default_value_t = 1_000)]
        hold_ms: u64,
    },
    /// Workers that never give their permits back: reclaimed by force when the TTL has passed
    Leak {
        #[arg(long, default_value_t = 5)]
        limit: u64,
        #[arg(long, default_value_t = 2_000)]
        ttl_ms: u64,
    },
    /// So many permits in each window
    Window {
        #[arg(long, default_value_t = 5)]
        limit: u64,
        #[arg(long, default_value_t = 2_000)]
        window_ms: u64,
    },
}

impl Rule {
    fn policy(self) -> Policy {
        match self {
            Self::Throttle { interval_ms } => Throttle::every(Duration::from_millis(interval_ms)).into(),
            Self::Concurrency { limit, .. } => MaxConcurrency::new(limit).into(),
            Self::Leak { limit, ttl_ms } => MaxConcurrency::new(limit).ttl(Duration::from_millis(ttl_ms)).into(),
            Self::Window { limit, window_ms } => FixedWindow::new(limit, Duration::from_millis(window_ms)).into(),
        }
    }

    /// What a worker does with its permit.
    async fn work(self, worker: usize, permit: Permit, start: Instant) {
        match self {
            // These permits hold no place: what was granted is spent, held or not.
            Self::Throttle { .. } | Self::Window { .. } => {}
            Self::Concurrency { hold_ms, .. } => {
                sleep(Duration::from_millis(hold_ms)).await;
                say(start.elapsed(), &format!("worker {worker:>2} gives it back"));
            }
            // A leak that nobody will ever hear of, and one whose holder is still there and is told.
            Self::Leak { .. } if worker.is_multiple_of(2) => permit.forget(),
            Self::Leak { .. } => {
                permit.reclaimed().await;
                say(start.elapsed(), &format!("worker {worker:>2} learns that it lost permit {}", permit.fence()));
            }
        }
    }
}

// One thread: what happens in one instant is printed in the order in which it happened.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let Options { rule, workers } = Options::parse();
    let start = Instant::now();
    let limiter = Limiter::builder(rule.policy()).record_grant_time().on_event(move |event| tell(event, start)).build();
    let limiter = match limiter {
        Ok(limiter) => limiter,
        Err(error) => {
            eprintln!("error: {error}");
            std::process::exit(2);
        }
    };

    println!("{workers} workers, {}", rule.policy());
    let mut pool = JoinSet::new();
    for worker in 1..=workers {
        let limiter = limiter.clone();
        pool.spawn(async move {
            let permit = limiter.acquire().await?;
            let granted = permit.acquired_at().map_or_else(|| start.elapsed(), |at| at - start);
            say(granted, &format!("worker {worker:>2} gets permit {} ({})", permit.fence(), permit.id()));
            rule.work(worker, permit, start).await;
            Ok::<_, tollgate::AcquireError>(())
        });
    }
    while let Some(done) = pool.join_next().await {
        done??;
    }
    let end = limiter.snapshot();
    println!("{} granted, {} reclaimed, {} still out, {} waiting", end.granted, end.reclaimed, end.in_flight, end.queued);
    Ok(())
}

fn tell(event: &LimiterEvent, start: Instant) {
    if let LimiterEvent::Reclaimed { fence, held, acquired_in, .. } = event {
        say(start.elapsed(), &format!("permit {fence} is reclaimed after {held:.1?}; asked for in {acquired_in}"));
    }
}

fn say(at: Duration, what: &str) {
    println!("{:>6.3} s  {what}", at.as_secs_f64());
}
