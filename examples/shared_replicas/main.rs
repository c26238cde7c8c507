//! Several processes share one limit: this one starts them, collects what each was granted, and checks that all together never
//! exceed it.
//!
//! ```text
//! cargo run --example shared_replicas --features sqlite             # 4 processes, 9 s, in a temporary SQLite file
//! cargo run --example shared_replicas --features sqlite -- --kill   # one of them is killed while it holds places
//! cargo run --example shared_replicas --features sqlite -- --policy "3 concurrent and sliding log 20/s"
//! cargo run --example shared_replicas --features sqlite,redis -- --store redis://127.0.0.1/
//! cargo run --example shared_replicas --features sqlite -- --store memory   # each has limits of its own, so together they exceed them
//! ```
//!
//! `--store` also takes the path of an SQLite file and, with the features `postgres` and `mysql`, `postgres://…` and `mysql://…`.
//!
//! The work under a permit is short in the first third of the run, where the rate limits it, and long after that, where the places
//! do. It prints a table and writes a drawing to `target/shared_replicas.svg`. The exit code is 0 when the limits held, 1 when they
//! did not, and 2 when something else failed.

mod check;
mod drawing;
mod message;
mod options;
mod processes;
mod progress;
mod record;
mod replica;
mod report;

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser as _;
use common::store::AnyStore;
use common::{Human, exit_code, say, while_wanted};
use tokio::time::{Instant, sleep};
use tollgate::store::Store as _;
use tollgate::{Limit, Policy, SharedLimiter};

use crate::message::{Message, since_epoch};
use crate::options::Options;
use crate::processes::Processes;
use crate::progress::Progress;
use crate::record::{Killed, Run};

/// How long the processes may take to start, and to end after the run.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often the run looks whether it is time to kill, and moves its progress bar.
const TICK: Duration = Duration::from_millis(50);

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    if options.name.is_some() {
        return replica::run(&options).await;
    }
    exit_code(while_wanted(run(options)).await)
}

async fn run(mut options: Options) -> Result<ExitCode, Box<dyn Error>> {
    let policy: Policy = options.policy.parse()?;
    let folder = tempfile::tempdir()?;
    let store = options
        .store
        .clone()
        .unwrap_or_else(|| folder.path().join("limits.db").display().to_string());
    // A name that no earlier run has used in the store.
    let name = format!(
        "shared_replicas-{}-{}",
        std::process::id(),
        since_epoch().as_millis()
    );
    let opened = AnyStore::open(&store)?;
    let store_name = opened.name();
    let limiter = SharedLimiter::new(opened, &name, policy.clone())?;
    options.refuse_late_returns(&policy)?;
    options.store = Some(store);
    options.name = Some(name);

    say!(
        "{} processes, {} callers in each, {}, {store_name}",
        options.processes,
        options.callers,
        Human(options.run)
    );
    say!("{policy}\n");
    let run = watch(&options, &policy).await?;
    let comes_back = if run.killed.is_some() {
        all_places_come_back(&limiter, &policy).await?
    } else {
        true
    };
    limiter.reset().await?;

    let findings = check::check(&policy, &run);
    report::print(&run, &policy, &findings);
    drawing::draw(&run, &policy, &options)?;
    say!("drawing    {}", options.svg.display());
    if !comes_back {
        eprintln!(
            "error: places of the killed process have not come back within one TTL of its last renewal"
        );
    }
    if let Some(over) = findings.iter().find(|finding| finding.over) {
        eprintln!("error: {over}");
    }
    let all_well = comes_back && findings.iter().all(|finding| !finding.over);
    Ok(if all_well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Starts the processes, and records their messages until the last one has ended.
async fn watch(options: &Options, policy: &Policy) -> Result<Run, Box<dyn Error>> {
    let mut processes = Processes::start(options)?;
    let deadline = Instant::now() + PATIENCE;
    let mut ready = 0;
    while ready < options.processes {
        match tokio::time::timeout_at(deadline, processes.next()).await {
            Ok(Some((_, Some(Message::Ready)))) => ready += 1,
            Ok(Some((index, Some(Message::Failed(why))))) => {
                return Err(format!("process {}: {why}", index + 1).into());
            }
            Ok(Some((index, None))) => {
                return Err(format!("process {} ended too early", index + 1).into());
            }
            Ok(Some(_)) => {}
            Ok(None) => return Err("no process is left".into()),
            Err(_) => {
                return Err(
                    format!("the processes were not ready after {}", Human(PATIENCE)).into(),
                );
            }
        }
    }

    let (start, begin) = (since_epoch(), Instant::now());
    let mut run = Run::new(start, options.processes);
    let progress = Progress::new(options.run);
    processes.go(start)?;
    let deadline = begin + options.run + PATIENCE;
    let mut ticks = tokio::time::interval(TICK);
    loop {
        tokio::select! {
            said = processes.next() => match said {
                Some((index, Some(Message::Failed(why)))) => return Err(format!("process {}: {why}", index + 1).into()),
                Some((index, Some(message))) => run.record(index, message),
                Some((index, None)) if run.may_end(index) => {}
                Some((index, None)) => return Err(format!("process {} ended too early", index + 1).into()),
                None => break,
            },
            now = ticks.tick() => {
                progress.show(begin.elapsed(), &run, policy);
                if options.kill
                    && run.killed.is_none()
                    && begin.elapsed() > options.kill_after()
                    && let Some(victim) = run.holds_most()
                {
                    run.killed = Some(Killed { process: victim, at: since_epoch().saturating_sub(start) });
                    processes.kill(victim)?;
                }
                if now > deadline {
                    return Err("the processes do not end".into());
                }
            }
        }
    }
    progress.finish();
    run.finish(options.run);
    Ok(run)
}

/// Whether the store has all places back one TTL after the last process has ended.
async fn all_places_come_back(
    limiter: &SharedLimiter,
    policy: &Policy,
) -> Result<bool, Box<dyn Error>> {
    let ttl = policy.limits().iter().filter_map(|limit| match limit {
        Limit::MaxConcurrency(concurrency) => concurrency.get_ttl(),
        _ => None,
    });
    let deadline = Instant::now() + ttl.min().unwrap_or_default();
    loop {
        let is_late = Instant::now() > deadline;
        let limits = limiter.limits().await?;
        let mut places = limits
            .iter()
            .filter(|status| matches!(status.limit, Limit::MaxConcurrency(_)));
        if places.all(|status| status.remaining == status.capacity) {
            return Ok(true);
        }
        if is_late {
            return Ok(false);
        }
        sleep(TICK).await;
    }
}
