//! The table that is printed at the end.

use common::say;

use crate::callers::Run;
use crate::server::PHASES;

/// Prints a line for each phase: what the server served, and what it can serve.
pub(crate) fn print(run: &Run) {
    say!(
        "\n{:<20} {:>6} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "the server",
        "places",
        "limit",
        "p50",
        "p99",
        "served/s",
        "possible",
        "refused/s"
    );
    for (index, phase) in PHASES.iter().enumerate() {
        let (from, to) = (run.length * index as u32, run.length * (index as u32 + 1));
        let calls = run
            .calls
            .iter()
            .filter(|call| (from..to).contains(&call.finished));
        let (refused, served): (Vec<_>, Vec<_>) = calls.partition(|call| call.refused);
        let mut latencies: Vec<_> = served
            .iter()
            .map(|call| call.latency.as_secs_f64() * 1e3)
            .collect();
        latencies.sort_unstable_by(f64::total_cmp);
        // Nearest rank.
        let percentile = |percent: usize| {
            let rank = (latencies.len() * percent).div_ceil(100);
            latencies
                .get(rank.saturating_sub(1))
                .copied()
                .unwrap_or(f64::NAN)
        };
        let limits: Vec<_> = run
            .limits
            .iter()
            .filter(|(at, _)| (from..to).contains(at))
            .map(|(_, limit)| *limit as f64)
            .collect();
        say!(
            "{:<20} {:>6} {:>6.0} {:>6.0} ms {:>6.0} ms {:>9.0} {:>9.0} {:>9.0}",
            phase.name,
            phase.places,
            limits.iter().sum::<f64>() / limits.len() as f64,
            percentile(50),
            percentile(99),
            served.len() as f64 / run.length.as_secs_f64(),
            phase.throughput(),
            refused.len() as f64 / run.length.as_secs_f64(),
        );
    }
    say!("(limit: the mean over the phase; p50 and p99: latency of those served)\n");
}
