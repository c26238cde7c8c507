//! The table that is printed at the end.

use common::{Human, say};
use indicatif::HumanCount;

use crate::record::{Outcome, Run};

/// Prints each measured number of each run, and its limit.
pub(crate) fn print(runs: &[Run]) {
    let row = |name: &str, figure: &dyn Fn(&Run) -> String, limit: String| {
        let figures: String = runs
            .iter()
            .map(|run| format!("{:>15}", figure(run)))
            .collect();
        say!("{}", format!("{name:<16}{figures}   {limit}").trim_end());
    };
    let limited = runs
        .iter()
        .map(|run| &run.options)
        .find(|options| !options.unlimited);
    let limit = |text: &dyn Fn(&crate::Options) -> String| limited.map(text).unwrap_or_default();
    let peak = |run: &Run| {
        run.in_flight()
            .into_iter()
            .map(|(_, count)| count)
            .max()
            .unwrap_or(0)
            .to_string()
    };

    row(
        "",
        &|run| {
            if run.options.unlimited {
                "without limits"
            } else {
                "with limits"
            }
            .to_owned()
        },
        limit(&|options| options.limits()),
    );
    row(
        "fetched",
        &|run| count(run.count(Outcome::Fetched)),
        String::new(),
    );
    row("failed", &|run| count(run.failed()), String::new());
    row(
        "429s",
        &|run| count(run.count(Outcome::TooManyRequests)),
        String::new(),
    );
    row(
        "peak in flight",
        &peak,
        limit(&|options| format!("limit {}", options.concurrency)),
    );
    row(
        "achieved rate",
        &|run| {
            format!(
                "{:.1}/s",
                run.records.len() as f64 / run.elapsed.as_secs_f64()
            )
        },
        limit(&|options| format!("limit {}/s, burst {}", options.rate, options.burst)),
    );
    row(
        "most in a second",
        &|run| count(run.busiest_second()),
        limit(&|options| format!("limit {}", options.rate + options.burst as f64)),
    );
    row("time", &|run| Human(run.elapsed).to_string(), String::new());
    row("wait p50", &|run| percentile(run, 50), String::new());
    row("wait p99", &|run| percentile(run, 99), String::new());
}

fn count(number: usize) -> String {
    HumanCount(number as u64).to_string()
}

/// A percentile of the waits for a permit, by nearest rank.
fn percentile(run: &Run, percent: usize) -> String {
    let mut waits: Vec<_> = run.records.iter().map(|record| record.waited).collect();
    waits.sort_unstable();
    let rank = (waits.len() * percent).div_ceil(100);
    Human(
        waits
            .get(rank.saturating_sub(1))
            .copied()
            .unwrap_or_default(),
    )
    .to_string()
}
