//! Counts of grants in spans of time.

use std::time::{Duration, Instant};

/// The largest number of these sorted instants in any span of this length.
pub(crate) fn most_within(instants: &[Instant], span: Duration) -> usize {
    let mut first = 0;
    let counts = instants.iter().enumerate().map(|(last, at)| {
        while *at - instants[first] > span {
            first += 1;
        }
        last + 1 - first
    });
    counts.max().unwrap_or(0)
}
