//! Several limits in one policy, read from text: which of them denies, and when to retry.
//!
//! ```text
//! cargo run --example combined
//! cargo run --example combined -- "3 concurrent and throttle every 100ms burst 3"
//! cargo run --example combined -- "20/s brust 5"      # exit code 2; the error points at the mistake
//! ```
//!
//! One caller starts as much work as the policy admits. Each piece of work takes 50 ms, and 500 ms in every other second. A denied
//! caller sleeps for the retry-after. When there is none, because it takes a release, the caller waits until some work ends.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, value_parser};
use common::{Human, exit_code, say};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tollgate::{Decision, Limiter, Permit, Policy, TryAcquireError};

/// Works under a policy given as text, and shows which of its limits denied
#[derive(Debug, Parser)]
struct Options {
    /// Limits joined by `and`
    #[arg(default_value = "4 concurrent ttl 2s and 20/s burst 5 and sliding log 60/5s")]
    policy: String,
    /// How long to work
    #[arg(long, value_name = "SECONDS", default_value_t = 7, value_parser = value_parser!(u32).range(..=3_600))]
    seconds: u32,
}

// One thread, so that the caller continues right after the release that it waits for.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    exit_code(run(&Options::parse()).await)
}

async fn run(options: &Options) -> Result<ExitCode, Box<dyn Error>> {
    let policy: Policy = options.policy.parse()?;
    let limiter = Limiter::new(policy.clone())?;
    say!("{policy}\n");
    say!("{:>9}  {:>9}  denied by", "", "granted");

    let mut works = JoinSet::new();
    let start = Instant::now();
    let end = start + Duration::from_secs(options.seconds.into());
    let mut log = Log {
        start,
        granted: 0,
        streak: None,
        denials: vec![0; policy.limits().len()],
    };
    while Instant::now() < end {
        match limiter.try_acquire() {
            Ok(permit) => {
                log.granted += 1;
                works.spawn(work(permit, start));
            }
            Err(TryAcquireError::Denied(decision)) => {
                log.denied(&decision, &policy);
                match decision.retry_after() {
                    // A limit such as `1/day` may ask for a longer sleep than the rest of the run.
                    Some(after) => sleep_until(end.min(Instant::now() + after)).await,
                    None => drop(works.join_next().await),
                }
            }
            Err(error) => return Err(error.into()),
        }
        while works.try_join_next().is_some() {} // removes the work that has ended
    }
    log.end_streak();

    say!("\n{} granted, and denied:", limiter.snapshot().granted);
    for (limit, denials) in policy.limits().iter().zip(&log.denials) {
        say!("{denials:>9} times by `{limit}`");
    }
    Ok(ExitCode::SUCCESS)
}

async fn work(permit: Permit, start: Instant) {
    let slow = start.elapsed().as_secs() % 2 == 1;
    sleep(Duration::from_millis(if slow { 500 } else { 50 })).await;
    permit.release();
}

/// Prints one line for the first denial by a limit, and one line for all further ones in a row by the same limit.
struct Log {
    start: Instant,
    granted: u64,
    streak: Option<Streak>,
    /// How often each limit of the policy denied.
    denials: Vec<u64>,
}

struct Streak {
    by: usize,
    more: u64,
    granted_before: u64,
}

impl Log {
    fn denied(&mut self, decision: &Decision, policy: &Policy) {
        let Some(by) = policy
            .limits()
            .iter()
            .position(|limit| Some(*limit) == decision.denied_by())
        else {
            return;
        };
        self.denials[by] += 1;
        match &mut self.streak {
            Some(streak) if streak.by == by => streak.more += 1,
            _ => {
                self.end_streak();
                let after = decision
                    .retry_after()
                    .map_or("until a permit is released".to_owned(), |after| {
                        format!("for {}", Human(after))
                    });
                say!(
                    "{}  {:>9}  `{}`, {after}",
                    self.at(),
                    self.granted,
                    policy.limits()[by]
                );
                self.streak = Some(Streak {
                    by,
                    more: 0,
                    granted_before: self.granted,
                });
            }
        }
    }

    fn end_streak(&mut self) {
        if let Some(Streak {
            more: more @ 1..,
            granted_before,
            ..
        }) = self.streak.take()
        {
            say!(
                "{}  {:>9}  … and {more} more",
                self.at(),
                format!("+{}", self.granted - granted_before)
            );
        }
    }

    fn at(&self) -> String {
        format!("{:>7.3} s", self.start.elapsed().as_secs_f64())
    }
}
