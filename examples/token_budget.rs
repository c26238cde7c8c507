//! A budget of tokens for calls whose cost is known only afterwards: what `settle` gains, and how it handles a debt.
//!
//! ```text
//! cargo run --example token_budget                      # 600,000 tokens a minute, 5 s
//! cargo run --example token_budget -- --estimate 2000   # a worse estimate, a larger gain
//! ```
//!
//! Each call takes its estimate with `acquire_many`. There are two groups of workers, each with a budget of its own. The first
//! keeps to the estimate. The second settles each permit at the tokens that the call has used: the difference goes back to the
//! budget, or is a debt.

use std::error::Error;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::{Parser, value_parser};
use common::{Human, exit_code, say};
use indicatif::HumanCount;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};
use tollgate::{Limiter, Rate, TokenBucket};

/// The longest wait that the example accepts. With a small budget, the last call would wait hours until a debt is paid.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Calls a model within a budget of tokens; what a call uses is known only afterwards
#[derive(Debug, Clone, Parser)]
struct Options {
    /// Tokens a minute
    #[arg(long, value_name = "TOKENS", default_value_t = 600_000)]
    budget: u64,
    /// Estimate of the tokens that a call uses
    #[arg(long, value_name = "TOKENS", default_value_t = 1_000)]
    estimate: u64,
    /// Workers in each group; each makes one call after the other
    #[arg(long, value_name = "N", default_value_t = 16)]
    workers: usize,
    /// How long the workers work
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = value_parser!(u32).range(1..=3_600))]
    seconds: u32,
}

impl Options {
    /// The bucket holds what comes in a second, so that there is room for refunds: one that finds the bucket full is lost. It
    /// also holds the estimate of one call.
    fn bucket(&self) -> TokenBucket {
        TokenBucket::new(
            Rate::per_minute(self.budget),
            self.estimate.max(self.budget / 60),
        )
    }

    /// How long the last call waits: for its own estimate, and for the five estimates by which the call before it exceeded its own.
    fn longest_wait(&self) -> Duration {
        let seconds = self.estimate as f64 * 6.0 * 60.0 / self.budget as f64;
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    exit_code(run(&Options::parse()).await)
}

async fn run(options: &Options) -> Result<ExitCode, Box<dyn Error>> {
    let wait = options.longest_wait();
    if options.budget > 0 && wait > LONGEST_WAIT {
        let [wait, longest] = [wait, LONGEST_WAIT].map(Human);
        let least = count(options.estimate.saturating_mul(6));
        return Err(
            format!("a call would wait {wait}, and {longest} is the most here: give a --budget of {least} or more").into()
        );
    }
    let Options {
        budget,
        estimate,
        workers,
        seconds,
    } = options;
    say!(
        "{workers} workers in each group, {seconds} s, an estimate of {} tokens for each call,",
        count(*estimate)
    );
    say!(
        "and a budget of {} tokens a minute, which is {} a second\n",
        count(*budget),
        count(budget / 60)
    );
    let (kept, settled) = tokio::join!(spend(options, false), spend(options, true));
    print(&kept?, &settled?, options);
    in_debt(options).await
}

/// Stands for a model: it takes a while and returns how many tokens the call has used.
async fn call_the_model(call: u64) -> u64 {
    // 100 to 699, in an order that looks random but is the same in every run.
    let used = 100 + (call + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) % 600;
    sleep(Duration::from_micros(20_000 + 300 * used)).await;
    used
}

/// What one group has spent.
#[derive(Debug, Default)]
struct Spent {
    calls: u64,
    estimated: u64,
    used: u64,
}

async fn spend(options: &Options, settles: bool) -> Result<Spent, Box<dyn Error>> {
    // The bucket starts empty, so that the result shows the rate without an initial burst.
    let limiter = Limiter::new(options.bucket().initial(0))?;
    let end = Instant::now() + Duration::from_secs(options.seconds.into());
    let estimate = options.estimate;
    let next: &'static AtomicU64 = Box::leak(Box::default());
    let mut workers = JoinSet::new();
    for _ in 0..options.workers {
        let limiter = limiter.clone();
        workers.spawn(async move {
            let mut spent = Spent::default();
            while Instant::now() < end {
                let Ok(permit) = timeout_at(end, limiter.acquire_many(estimate)).await else {
                    break;
                };
                let permit = permit?;
                let used = call_the_model(next.fetch_add(1, Ordering::Relaxed)).await;
                if settles {
                    _ = permit.settle(used);
                }
                spent = Spent {
                    calls: spent.calls + 1,
                    estimated: spent.estimated + estimate,
                    used: spent.used + used,
                };
            }
            Ok::<_, tollgate::AcquireError>(spent)
        });
    }
    let mut total = Spent::default();
    while let Some(spent) = workers.join_next().await {
        let Spent {
            calls,
            estimated,
            used,
        } = spent??;
        total = Spent {
            calls: total.calls + calls,
            estimated: total.estimated + estimated,
            used: total.used + used,
        };
    }
    Ok(total)
}

fn print(kept: &Spent, settled: &Spent, options: &Options) {
    let row = |name, figure: &dyn Fn(&Spent) -> String| {
        say!("{name:<20}{:>14}{:>14}", figure(kept), figure(settled));
    };
    let a_second = |spent: &Spent| spent.used as f64 / f64::from(options.seconds.max(1));
    say!("{:<20}{:>14}{:>14}", "", "estimate kept", "settled");
    row("calls", &|spent| count(spent.calls));
    row("tokens estimated", &|spent| count(spent.estimated));
    row("tokens used", &|spent| count(spent.used));
    row("used per second", &|spent| count(a_second(spent) as u64));
    row("share of the budget", &|spent| {
        format!("{:.0} %", a_second(spent) * 6_000.0 / options.budget as f64)
    });
}

/// One call uses six times its estimate. The next call waits until the debt is paid.
async fn in_debt(options: &Options) -> Result<ExitCode, Box<dyn Error>> {
    let (estimate, limiter) = (
        options.estimate,
        Limiter::new(options.bucket().initial(options.estimate))?,
    );
    say!(
        "\na call whose estimate is {} tokens and that uses {}:",
        count(estimate),
        count(6 * estimate)
    );
    let tell = |what: &str| {
        let next = limiter.check(estimate);
        let when = next
            .retry_after()
            .map_or("at once".to_owned(), |after| format!("in {}", Human(after)));
        say!(
            "  {what:<14} {:>6} tokens left, the next call may start {when}",
            count(next.remaining())
        );
    };
    tell("before");
    let permit = limiter.acquire_many(estimate).await?;
    tell("while it runs");
    _ = permit.settle(6 * estimate);
    tell("settled");
    let start = Instant::now();
    limiter.acquire_many(estimate).await?.release();
    say!("  the next call waited {}", Human(start.elapsed()));
    Ok(ExitCode::SUCCESS)
}

fn count(number: u64) -> String {
    HumanCount(number).to_string()
}
