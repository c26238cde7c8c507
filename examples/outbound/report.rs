//! The table that is printed at the end.

use indicatif::HumanCount;

use crate::options::Options;
use crate::record::{Outcome, Run};

/// Prints each measured number next to its limit.
pub(crate) fn print(run: &Run, options: &Options) {
    let Options { concurrency, rate, burst, unlimited, .. } = options;
    let applied = if *unlimited { " (not applied)" } else { "" };
    let peak = run.in_flight().into_iter().map(|(_, count)| count).max().unwrap_or(0);
    let seconds = run.elapsed.as_secs_f64();

    println!("limits            {}", options.limits());
    println!("fetched           {:>9}", count(run.count(Outcome::Fetched)));
    println!("failed            {:>9}", count(run.failed()));
    println!("429s              {:>9}", count(run.count(Outcome::TooManyRequests)));
    println!("peak in flight    {peak:>9}   limit {concurrency}{applied}");
    println!("achieved rate     {:>7.1}/s   limit {rate}/s, burst {burst}{applied}", run.records.len() as f64 / seconds);
    println!("most in a second  {:>9}   limit {}{applied}", count(run.busiest_second()), rate + *burst as f64);
    println!("time              {seconds:>8.2}s");
    println!("wait p50          {:>7.1}ms", percentile(run, 50));
    println!("wait p99          {:>7.1}ms", percentile(run, 99));
}

fn count(number: usize) -> String {
    HumanCount(number as u64).to_string()
}

/// A percentile of the waits for a permit, in milliseconds, by nearest rank.
fn percentile(run: &Run, percent: usize) -> f64 {
    let mut waits: Vec<_> = run.records.iter().map(|record| record.waited).collect();
    waits.sort_unstable();
    let rank = (waits.len() * percent).div_ceil(100);
    waits.get(rank.saturating_sub(1)).map_or(0.0, |wait| wait.as_secs_f64() * 1e3)
}
