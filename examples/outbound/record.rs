//! What happened to each request, in times since the start.

use std::time::Duration;

use crate::options::Options;

/// How a request that had its permit ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Fetched,
    TooManyRequests,
    Failed,
}

/// One request that had its permit.
#[derive(Debug)]
pub(crate) struct Record {
    /// From the moment it asked for its permit until it was granted.
    pub(crate) waited: Duration,
    pub(crate) granted: Duration,
    pub(crate) finished: Duration,
    pub(crate) outcome: Outcome,
}

/// A whole run; its records are in the order of their grants.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) records: Vec<Record>,
    /// Lines that were no URL, and requests that got no permit.
    pub(crate) unsent: usize,
    pub(crate) elapsed: Duration,
}

impl Run {
    pub(crate) fn count(&self, outcome: Outcome) -> usize {
        self.records.iter().filter(|record| record.outcome == outcome).count()
    }

    pub(crate) fn failed(&self) -> usize {
        self.unsent + self.count(Outcome::Failed)
    }

    /// A page that was refused with 429 is a page that did not come, and the limits were there to prevent it. Only who runs
    /// without limits into the example's own server asked for just that.
    pub(crate) fn all_well(&self, options: &Options) -> bool {
        let storm_wanted = options.unlimited && options.input.is_none();
        self.failed() == 0 && (storm_wanted || self.count(Outcome::TooManyRequests) == 0)
    }

    /// How many were in flight from each instant on. A request is in flight while it holds its permit.
    pub(crate) fn in_flight(&self) -> Vec<(Duration, i64)> {
        let starts = self.records.iter().map(|record| (record.granted, true));
        let ends = self.records.iter().map(|record| (record.finished, false));
        // Within one instant ends sort first: a place is free before it is granted again.
        let mut changes: Vec<_> = starts.chain(ends).collect();
        changes.sort_unstable();
        let counted = changes.into_iter().scan(0, |count, (at, start)| {
            *count += if start { 1 } else { -1 };
            Some((at, *count))
        });
        counted.collect()
    }

    /// The most that were granted in any one second.
    pub(crate) fn busiest_second(&self) -> usize {
        let grants = &self.records;
        let from = |index: usize| {
            let end = grants[index].granted + Duration::from_secs(1);
            grants[index..].partition_point(|record| record.granted < end)
        };
        (0..grants.len()).map(from).max().unwrap_or(0)
    }
}
