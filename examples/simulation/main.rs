//! Up to 1,000 processes on one key of a store, in virtual time: how much of the limit they use, how evenly, and how many calls that
//! takes; strictly, with prefetched units, and while one in ten processes dies or stands still. Every run is checked: all together never
//! exceed the limit.
//!
//! ```text
//! cargo run --example simulation --features simulation               # prints a table, and draws what is in BENCHMARKS.md
//! cargo run --example simulation --features simulation -- --faults   # messages are lost, and processes die
//! ```
//!
//! It runs the state machine of the crate with the rules of its in-memory store, but no runtime: a message takes 1 to 20 ms each
//! way, and each process has four callers, which ask again as soon as they are granted. It takes a minute and a half, or ten seconds with
//! `--release`.
//!
//! It prints a table and writes a drawing to `target/simulation.svg`. The exit code is 0 when the limit held, 1 when it did not, and 2
//! when something else failed.

mod drawing;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, value_parser};
use common::{exit_code, say, seconds};
use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use tollgate::simulation::{Outcome, Setting};
use tollgate::{Rate, TokenBucket};

/// Simulates many processes that share a rate
#[derive(Debug, Parser)]
#[command(allow_negative_numbers = true)]
struct Options {
    /// Units a second
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = value_parser!(u64).range(1..=1_000_000))]
    rate: u64,
    /// Units at once
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = value_parser!(u64).range(1..=1_000_000))]
    burst: u64,
    /// The most processes
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = value_parser!(u32).range(1..=10_000))]
    processes: u32,
    /// Length of each run, in virtual time
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    run: Duration,
    /// The most units that a process prefetches
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = value_parser!(u64).range(1..))]
    prefetch: u64,
    /// How long a process keeps prefetched units
    #[arg(long, value_name = "SECONDS", default_value = "0.1", value_parser = seconds)]
    kept: Duration,
    /// Lose messages, cut processes off, and let some of them die
    #[arg(long)]
    faults: bool,
    /// Seed of all delays
    #[arg(long, value_name = "N", default_value_t = 7)]
    seed: u64,
    /// File for the drawing
    #[arg(long, value_name = "FILE", default_value = "target/simulation.svg")]
    svg: PathBuf,
}

impl Options {
    fn bucket(&self) -> TokenBucket {
        TokenBucket::new(Rate::per_second(self.rate), self.burst)
    }

    /// 1, 3, 10, 30 and so on, and the most.
    fn sizes(&self) -> Vec<u32> {
        let most = self.processes;
        let sizes = (0..5)
            .flat_map(|power| [10_u32.pow(power), 3 * 10_u32.pow(power)])
            .take_while(|size| *size < most);
        sizes.chain([most]).collect()
    }

    fn setting(&self, processes: u32, kind: Kind) -> Setting {
        Setting {
            policy: self.bucket().into(),
            processes: processes as usize,
            prefetch: (kind == Kind::Prefetched).then_some((self.prefetch, self.kept)),
            faults: self.faults,
            failing: kind == Kind::Failing,
            length: self.run,
            seed: self.seed,
        }
    }
}

/// What a run is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Strict,
    Prefetched,
    /// One in ten processes fails. The figures are of the others.
    Failing,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Strict, Self::Prefetched, Self::Failing];

    fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Prefetched => "prefetched units",
            Self::Failing => "one in ten fails",
        }
    }
}

/// The result of one run.
struct Row {
    processes: u32,
    kind: Kind,
    /// The share used of what the limit admits, from 0 to 1, also by processes that fail.
    used: f64,
    /// Units above the limit, in any span.
    over: u64,
    calls_per_grant: f64,
    /// The grants of a process, as multiples of an equal share.
    fewest: f64,
    most: f64,
    each: (u64, u64),
    /// Jain's index of fairness: 1 for equal shares.
    index: f64,
}

impl Row {
    fn of(outcome: &Outcome, setting: &Setting, kind: Kind, options: &Options) -> Self {
        let granted = outcome.grants.len() as f64;
        let admitted = options.burst as f64 + options.rate as f64 * options.run.as_secs_f64();
        let each = &outcome.of_each;
        let sum = each.iter().sum::<u64>() as f64;
        let squares: f64 = each.iter().map(|grants| (*grants as f64).powi(2)).sum();
        let index = sum * sum / (each.len() as f64 * squares);
        let each = (
            each.iter().min().copied().unwrap_or(0),
            each.iter().max().copied().unwrap_or(0),
        );
        let share = outcome.of_each.iter().sum::<u64>() as f64 / outcome.of_each.len() as f64;
        Self {
            processes: setting.processes as u32,
            kind,
            used: granted / admitted,
            over: over(&outcome.grants, options),
            calls_per_grant: outcome.calls as f64 / granted,
            fewest: each.0 as f64 / share,
            most: each.1 as f64 / share,
            each,
            index,
        }
    }
}

/// The number of units above the limit in the worst span. A bucket that leaks at the rate counts them in exact integers. A unit is 10^9
/// parts.
fn over(grants: &[Duration], options: &Options) -> u64 {
    const UNIT: u128 = 1_000_000_000;
    let (mut level, mut most) = (0_u128, 0_u128);
    for (index, at) in grants.iter().enumerate() {
        let since = *at - grants[index.saturating_sub(1)];
        level = level.saturating_sub(since.as_nanos() * u128::from(options.rate)) + UNIT;
        most = most.max(level);
    }
    most.saturating_sub(u128::from(options.burst) * UNIT)
        .div_ceil(UNIT) as u64
}

fn main() -> ExitCode {
    exit_code(run(&Options::parse()))
}

fn run(options: &Options) -> Result<ExitCode, Box<dyn Error>> {
    let settings = options
        .sizes()
        .into_iter()
        .flat_map(|size| Kind::ALL.map(|kind| (kind, options.setting(size, kind))));
    let settings: Vec<_> = settings.collect();
    // The time of a run is proportional to its processes, plus a constant.
    let length = |setting: &Setting| setting.processes as u64 + 50;
    let progress = ProgressBar::new(settings.iter().map(|(_, setting)| length(setting)).sum());
    progress.set_style(ProgressStyle::with_template(
        "{bar:40.cyan} {percent} %   {msg}",
    )?);
    let mut rows = Vec::new();
    let mut done = 0;
    for (kind, setting) in &settings {
        progress.set_message(format!(
            "{} processes",
            HumanCount(setting.processes as u64)
        ));
        let mut shown = Duration::ZERO;
        let outcome = tollgate::simulation::run(setting, |at| {
            if at > shown {
                progress.set_position(
                    done + (length(setting) as f64 * at.div_duration_f64(setting.length)) as u64,
                );
                shown = at + setting.length / 100;
            }
        })?;
        done += length(setting);
        rows.push(Row::of(&outcome, setting, *kind, options));
    }
    progress.finish_and_clear();
    print(&rows);
    drawing::draw(&rows, options)?;
    say!("\ndrawing  {}", options.svg.display());
    let over = rows.iter().find(|row| row.over > 0);
    if let Some(row) = over {
        eprintln!(
            "error: {} processes were {} units over the limit",
            row.processes, row.over
        );
    }
    Ok(if over.is_some() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Prints the rows as a table in Markdown.
fn print(rows: &[Row]) {
    say!(
        "| processes | run | used of the limit | over it | calls per grant | grants of each process | Jain's index |"
    );
    say!("|---|---|---|---|---|---|---|");
    for row in rows {
        let (processes, used, (fewest, most)) =
            (HumanCount(row.processes.into()), row.used * 100.0, row.each);
        let (fewest, most) = (HumanCount(fewest), HumanCount(most));
        say!(
            "| {processes} | {} | {used:.1} % | {} | {:.2} | {fewest} to {most} | {:.3} |",
            row.kind.name(),
            row.over,
            row.calls_per_grant,
            row.index
        );
    }
}
