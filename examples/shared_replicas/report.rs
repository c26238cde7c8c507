//! The table that is printed at the end.

use std::time::Duration;

use common::{Human, say};
use tollgate::Policy;

use crate::check::{Finding, returned};
use crate::record::Run;

pub(crate) fn print(run: &Run, policy: &Policy, findings: &[Finding]) {
    say!("process     grants  share  waited p50         p99        held  lost");
    for process in 0..run.processes.len() {
        let killed = run
            .killed
            .as_ref()
            .filter(|killed| killed.process == process);
        let note = killed
            .map(|killed| format!("   killed at {}", Human(killed.at)))
            .unwrap_or_default();
        row(&(process + 1).to_string(), run, |of| of == process, &note);
    }
    row("all", run, |_| true, "");

    say!("");
    for finding in findings {
        say!("{finding}");
    }
    if let Some(returned) = returned(policy, run) {
        let when = |after: Option<Duration>| match after {
            Some(after) => format!("{} later", Human(after)),
            None => "never".to_owned(),
        };
        say!(
            "of the killed process's {} places, others had one {}, all {}",
            returned.held,
            when(returned.first),
            when(returned.all)
        );
    }
}

/// How many grants there were, which share that is of all, how long their callers waited, and how long they held them on average.
fn row(name: &str, run: &Run, counted: impl Fn(usize) -> bool, note: &str) {
    let grants: Vec<_> = run
        .grants()
        .filter(|(process, _)| counted(*process))
        .collect();
    let mut waits: Vec<_> = grants.iter().map(|(_, grant)| grant.waited).collect();
    waits.sort_unstable();
    let [p50, p99] = [50, 99].map(|percent| Human(percentile(&waits, percent)));
    let held: Duration = grants
        .iter()
        .map(|(process, grant)| run.held_until(*process, grant).saturating_sub(grant.at))
        .sum();
    let held = Human(held.checked_div(grants.len() as u32).unwrap_or_default());
    let share = 100.0 * grants.len() as f64 / run.grants().count().max(1) as f64;
    let lost = grants.iter().filter(|(_, grant)| grant.lost).count();
    say!(
        "{name:<10}{:>8} {share:>4.0} % {p50:>11} {p99:>11} {held:>11} {lost:>5}{note}",
        grants.len()
    );
}

/// By nearest rank.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted
        .get(rank.saturating_sub(1))
        .copied()
        .unwrap_or_default()
}
