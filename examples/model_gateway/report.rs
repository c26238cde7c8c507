//! The table that is printed at the end.

use common::{Human, say};
use indicatif::HumanCount;

use crate::gateway::Run;

pub(crate) fn print(kept: &Run, settled: &Run) {
    let row = |name, figure: &dyn Fn(&Run) -> String| {
        say!("{name:<20}{:>14} {:>14}", figure(kept), figure(settled));
    };
    say!("{:<20}{:>14} {:>14}", "", "estimate kept", "settled");
    row("calls", &|run| count(run.calls.len() as u64));
    row("429s", &|run| count(run.refused));
    row("tokens estimated", &|run| {
        count(run.calls.iter().map(|call| call.estimated).sum())
    });
    row("tokens used", &|run| count(run.used()));
    row("tokens allowed", &|run| count(run.allowed as u64));
    row("used of the allowed", &|run| {
        format!("{:.0} %", run.percent())
    });
    row("wait p50", &|run| percentile(run, 50));
    row("wait p99", &|run| percentile(run, 99));
}

fn count(number: u64) -> String {
    HumanCount(number).to_string()
}

/// A percentile of the waits for a permit, by nearest rank.
fn percentile(run: &Run, percent: usize) -> String {
    let mut waits: Vec<_> = run.calls.iter().map(|call| call.waited).collect();
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
