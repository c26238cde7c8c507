//! Ten workers share one limiter: which worker gets which permit, and when, under each of four rules.
//!
//! ```text
//! cargo run --example worker_pool                   # all four, one after the other, in about 20 seconds
//! cargo run --example worker_pool -- throttle       # one per second
//! cargo run --example worker_pool -- concurrency    # three at a time
//! cargo run --example worker_pool -- leak           # five at once that are never released; five more when those are reclaimed
//! cargo run --example worker_pool -- window         # five now and five in the next window
//! ```
//!
//! Each rule has options, such as `throttle --interval-ms 200`; `leak --help` lists those of `leak`.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, Parser, Subcommand};
use common::{Human, exit_code, say};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tollgate::{
    EventKind, FixedWindow, Limiter, LimiterEvent, MaxConcurrency, Permit, Policy, Throttle,
};

const LONGEST_WAIT: Duration = Duration::from_secs(600);

/// Lets workers share one limiter, and shows which worker gets which permit, and when. Without a rule it shows all of them
#[derive(Debug, Parser)]
struct Options {
    #[command(subcommand)]
    rule: Option<Rule>,
    /// Number of workers; all ask at once
    #[arg(long, value_name = "N", global = true, default_value_t = 10)]
    workers: usize,
}

#[derive(Debug, Clone, Copy, Subcommand)]
enum Rule {
    /// One permit per interval
    Throttle {
        /// Time between two permits
        #[arg(long, value_name = "MS", default_value_t = 1_000)]
        interval_ms: u64,
    },
    /// A limited number of permits at once; each worker holds its permit for a while
    Concurrency {
        /// Permits at once
        #[arg(long, value_name = "N", default_value_t = 3)]
        limit: u64,
        /// How long a worker holds its permit
        #[arg(long, value_name = "MS", default_value_t = 1_000)]
        hold_ms: u64,
    },
    /// Workers that never release their permits: the limiter reclaims each permit when its TTL has passed
    Leak {
        /// Permits at once
        #[arg(long, value_name = "N", default_value_t = 5)]
        limit: u64,
        /// Time after which a permit is reclaimed
        #[arg(long, value_name = "MS", default_value_t = 2_000)]
        ttl_ms: u64,
    },
    /// A limited number of permits in each window
    Window {
        /// Permits in each window
        #[arg(long, value_name = "N", default_value_t = 5)]
        limit: u64,
        /// Length of a window
        #[arg(long, value_name = "MS", default_value_t = 2_000)]
        window_ms: u64,
    },
}

impl Rule {
    /// Each rule with its defaults.
    fn all() -> impl Iterator<Item = Self> {
        let names = Options::command()
            .get_subcommands()
            .map(|rule| rule.get_name().to_owned())
            .collect::<Vec<_>>();
        names
            .into_iter()
            .filter_map(|name| Options::parse_from(["worker_pool", &name]).rule)
    }

    fn policy(self) -> Policy {
        match self {
            Self::Throttle { interval_ms } => {
                Throttle::every(Duration::from_millis(interval_ms)).into()
            }
            Self::Concurrency { limit, .. } => MaxConcurrency::new(limit).into(),
            Self::Leak { limit, ttl_ms } => MaxConcurrency::new(limit)
                .ttl(Duration::from_millis(ttl_ms))
                .into(),
            Self::Window { limit, window_ms } => {
                FixedWindow::new(limit, Duration::from_millis(window_ms)).into()
            }
        }
    }

    /// How long the last of the workers waits for its permit.
    fn longest_wait(self, workers: u64) -> Duration {
        let before = workers.saturating_sub(1);
        let (each, turns) = match self {
            Self::Throttle { interval_ms } => (interval_ms, before),
            Self::Concurrency {
                limit,
                hold_ms: each,
            }
            | Self::Leak {
                limit,
                ttl_ms: each,
            } => (each, before / limit.max(1)),
            Self::Window { limit, window_ms } => (window_ms, before / limit.max(1)),
        };
        Duration::from_millis(each.saturating_mul(turns))
    }

    /// What a worker does with its permit.
    async fn work(self, worker: usize, permit: Permit, start: Instant) {
        match self {
            // These permits hold no place, so holding one has no effect.
            Self::Throttle { .. } | Self::Window { .. } => {}
            Self::Concurrency { hold_ms, .. } => {
                sleep(Duration::from_millis(hold_ms)).await;
                say_at(start.elapsed(), &format!("worker {worker:>2} releases it"));
            }
            // One half forgets its permits. The other half still has them, and learns when they are reclaimed.
            Self::Leak { .. } if worker.is_multiple_of(2) => permit.forget(),
            Self::Leak { .. } => {
                permit.reclaimed().await;
                say_at(
                    start.elapsed(),
                    &format!(
                        "worker {worker:>2} learns that it lost permit {}",
                        permit.fence()
                    ),
                );
            }
        }
    }
}

// One thread, so that things are printed in the order in which they happened.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    exit_code(run(&Options::parse()).await)
}

async fn run(&Options { rule, workers }: &Options) -> Result<ExitCode, Box<dyn Error>> {
    match rule {
        Some(rule) => show(rule, workers).await?,
        None => {
            for (index, rule) in Rule::all().enumerate() {
                if index > 0 {
                    say!("");
                }
                show(rule, workers).await?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn show(rule: Rule, workers: usize) -> Result<(), Box<dyn Error>> {
    let wait = rule.longest_wait(workers as u64);
    if wait > LONGEST_WAIT {
        return Err(format!(
            "the last worker would wait {}, and {} is the most here",
            Human(wait),
            Human(LONGEST_WAIT)
        )
        .into());
    }
    let start = Instant::now();
    let limiter = Limiter::builder(rule.policy())
        .record_grant_time()
        .on_event(move |event| tell(event, start))
        .build()?;

    say!("{workers} workers under: {}", rule.policy());
    let mut pool = JoinSet::new();
    for worker in 1..=workers {
        let limiter = limiter.clone();
        pool.spawn(async move {
            let permit = limiter.acquire().await?;
            let granted = permit
                .acquired_at()
                .map_or_else(|| start.elapsed(), |at| at - start);
            say_at(
                granted,
                &format!(
                    "worker {worker:>2} gets permit {} ({})",
                    permit.fence(),
                    permit.id()
                ),
            );
            rule.work(worker, permit, start).await;
            Ok::<_, tollgate::AcquireError>(())
        });
    }
    while let Some(done) = pool.join_next().await {
        done??;
    }
    let end = limiter.snapshot();
    say!(
        "{} granted, {} reclaimed, {} in flight, {} waiting",
        end.granted,
        end.reclaimed,
        end.in_flight,
        end.queued
    );
    Ok(())
}

fn tell(event: &LimiterEvent<'_>, start: Instant) {
    if let EventKind::Reclaimed {
        fence,
        held,
        acquired_in,
        ..
    } = &event.kind
    {
        say_at(
            start.elapsed(),
            &format!(
                "permit {fence} is reclaimed after {}; it was acquired in {acquired_in}",
                Human(*held)
            ),
        );
    }
}

fn say_at(at: Duration, what: &str) {
    say!("{:>6.3} s  {what}", at.as_secs_f64());
}
