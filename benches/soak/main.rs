//! All kinds of limiters under load at the same time, for minutes or hours, while servers are killed. Each part keeps an account of the
//! units by itself. At the end nothing was over, every unit is accounted for, no task hangs, and memory has not grown.
//!
//! `scripts/soak` runs it.

mod drawing;
mod holder;
mod memory;
mod parts;
#[path = "../../examples/common/plot.rs"]
#[allow(dead_code, unreachable_pub, reason = "the examples use the rest")]
mod plot;
mod record;
mod reference;
mod run;
/// Servers that a part starts for itself.
#[path = "../../tests/integration/support"]
#[allow(dead_code, unused_qualifications, reason = "the tests use the rest")]
mod support {
    pub(crate) mod ports;
    pub(crate) mod redis_cluster;
    pub(crate) mod redis_server;
}
mod tally;

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use std::{env, panic};

use indicatif::BinaryBytes;
use tokio::runtime::Builder;
use tokio::signal;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::holder::OnPurpose;
use crate::record::{Sample, growth};
use crate::run::Run;
use crate::tally::{Tally, read};

#[global_allocator]
static HEAP: memory::Counting = memory::Counting;

/// Panics other than those of holders that are meant to.
static PANICS: AtomicU64 = AtomicU64::new(0);

type Part = fn(Arc<Run>, Arc<Tally>) -> Pin<Box<dyn Future<Output = ()> + Send>>;

const PARTS: [(&str, Part); 7] = [
    ("local", |run, tally| {
        Box::pin(parts::local::run(run, tally))
    }),
    ("keyed", |run, tally| {
        Box::pin(parts::keyed::run(run, tally))
    }),
    ("flows", |run, tally| {
        Box::pin(parts::flows::run(run, tally))
    }),
    ("redis", |run, tally| {
        Box::pin(parts::redis::run(run, tally))
    }),
    ("cluster", |run, tally| {
        Box::pin(parts::cluster::run(run, tally))
    }),
    ("postgres", |run, tally| {
        Box::pin(parts::postgres::run(run, tally))
    }),
    ("layers", |run, tally| {
        Box::pin(parts::layers::run(run, tally))
    }),
];

/// How long all parts may take to end.
const END: Duration = Duration::from_secs(180);

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1).peekable();
    let minutes = arguments.next_if(|argument| argument.parse::<f64>().is_ok());
    let minutes: f64 = minutes.map_or(1.0, |minutes| minutes.parse().unwrap_or(1.0));
    let names: Vec<_> = arguments.collect();
    let unknown = names
        .iter()
        .find(|name| !PARTS.iter().any(|(part, _)| part == name));
    if let Some(unknown) = unknown
        .cloned()
        .or_else(|| (!(0.2..=10_000.0).contains(&minutes)).then(|| minutes.to_string()))
    {
        let known = PARTS.map(|(part, _)| part).join(", ");
        eprintln!("soak: {unknown}: give minutes, 0.2 at least, and parts: {known}");
        return ExitCode::from(2);
    }
    panic::set_hook({
        let print = panic::take_hook();
        Box::new(move |panic| {
            if !panic.payload().is::<OnPurpose>() {
                PANICS.fetch_add(1, Relaxed);
                print(panic);
            }
        })
    });
    let runtime = Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let wanted = PARTS
        .into_iter()
        .filter(|(part, _)| names.is_empty() || names.iter().any(|name| name == part));
    let code = runtime.block_on(soak(
        Duration::from_secs_f64(minutes * 60.0),
        wanted.collect(),
    ));
    // A task that hangs must not keep the program from ending.
    runtime.shutdown_timeout(Duration::from_secs(5));
    code
}

async fn soak(lasts: Duration, parts: Vec<(&'static str, Part)>) -> ExitCode {
    let run = Arc::new(Run::begin(lasts));
    let tallies: Vec<_> = parts.iter().map(|(name, _)| Tally::new(name)).collect();
    let works: Vec<_> = parts
        .iter()
        .zip(&tallies)
        .map(|((_, part), tally)| tokio::spawn(part(Arc::clone(&run), Arc::clone(tally))))
        .collect();
    let samples = sample(&run, &tallies).await;
    run.stop();
    println!("ends ...");
    end(works, &tallies).await;
    let kills = run.kills();
    let is_sound = judge(&tallies, &samples);
    let names: Vec<_> = parts.iter().map(|(name, _)| *name).collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/soak.svg");
    let verdict = if is_sound {
        "nothing over, nothing lost, memory flat"
    } else {
        "failed"
    };
    match drawing::draw(&path, &names, &samples, &kills, verdict) {
        Ok(()) => println!("drawn in target/soak.svg"),
        Err(error) => {
            eprintln!("soak: {error}");
            return ExitCode::FAILURE;
        }
    }
    if is_sound {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Measures every second, and prints from time to time, until the run is over or Ctrl-C.
async fn sample(run: &Run, tallies: &[Arc<Tally>]) -> Vec<Sample> {
    // No sample makes it grow, so that it does not count as growth.
    let mut samples = Vec::with_capacity(run.lasts.as_secs() as usize + 10);
    let print_every = (run.lasts.as_secs() / 60).max(5);
    let mut terminated =
        signal::unix::signal(signal::unix::SignalKind::terminate()).expect("signals");
    let mut ticks = interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticks.tick().await;
    while !run.left().is_zero() {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = signal::ctrl_c() => break,
            _ = terminated.recv() => break,
        }
        let sums: Vec<_> = tallies.iter().map(|tally| tally.sum()).collect();
        let granted = sums.iter().map(|sum| read(&sum.granted)).collect();
        let at = run.began.elapsed().as_secs_f64();
        let now = Sample {
            at,
            resident: memory::resident(),
            live: memory::live(),
            granted,
        };
        if (samples.len() as u64 + 1).is_multiple_of(print_every) {
            println!(
                "{:>4.0} s  memory    {} resident, {} heap",
                now.at,
                BinaryBytes(now.resident),
                BinaryBytes(now.live)
            );
            for (tally, sum) in tallies.iter().zip(sums) {
                let faults = tally.faults().0;
                let faults = if faults > 0 {
                    format!("{faults} FAULTS")
                } else {
                    String::new()
                };
                println!("        {:<9} {sum}{faults}", tally.name);
            }
        }
        samples.push(now);
    }
    samples
}

/// Waits until all parts have ended. It is a fault of a part if it does not.
async fn end(works: Vec<JoinHandle<()>>, tallies: &[Arc<Tally>]) {
    let by = tokio::time::Instant::now() + END;
    for (mut work, tally) in works.into_iter().zip(tallies) {
        match timeout(
            by.saturating_duration_since(tokio::time::Instant::now()),
            &mut work,
        )
        .await
        {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tally.fault(error),
            Err(_) => {
                work.abort();
                tally.fault("does not end");
            }
        }
    }
}

/// Prints the verdict of each part, and returns whether all is well.
fn judge(tallies: &[Arc<Tally>], samples: &[Sample]) -> bool {
    let mut is_sound = true;
    for tally in tallies {
        let sum = tally.sum();
        if read(&sum.granted) == 0 {
            tally.fault("nothing was granted");
        }
        let (count, faults) = tally.faults();
        is_sound &= count == 0;
        let verdict = if count == 0 {
            "ok".to_owned()
        } else {
            format!("{count} FAULTS")
        };
        println!("{:<9} {verdict}: {sum}", tally.name);
        for line in tally.notes().into_iter().chain(faults) {
            println!("          {line}");
        }
    }
    for growth in growth(samples) {
        let verdict = if growth.is_tolerated() { "ok" } else { "GROWN" };
        is_sound &= growth.is_tolerated();
        println!("{:<9} {verdict}: {growth}", "memory");
    }
    let panics = PANICS.load(Relaxed);
    println!(
        "{:<9} {}: {panics} that were not on purpose",
        "panics",
        if panics == 0 { "ok" } else { "FAULTS" }
    );
    is_sound && panics == 0
}
