//! What happened to each request. All times are since the start.

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
    /// How long it waited for its permit.
    pub(crate) waited: Duration,
    pub(crate) granted: Duration,
    pub(crate) finished: Duration,
    pub(crate) outcome: Outcome,
}

/// A whole run. The records are in the order of their grants.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) options: Options,
    pub(crate) records: Vec<Record>,
    /// The number of lines that were not a URL, and of requests that got no permit.
    pub(crate) unsent: usize,
    pub(crate) elapsed: Duration,
}

impl Run {
    pub(crate) fn count(&self, outcome: Outcome) -> usize {
        self.records
            .iter()
            .filter(|record| record.outcome == outcome)
            .count()
    }

    pub(crate) fn failed(&self) -> usize {
        self.unsent + self.count(Outcome::Failed)
    }

    /// Whether every page was fetched. An answer of 429 counts as a failure, since the limits are there to prevent it, except
    /// in an unlimited run against the example's own server, which is meant to show it.
    pub(crate) fn all_well(&self) -> bool {
        let shows_refusals = self.options.unlimited && self.options.input.is_none();
        self.failed() == 0 && (shows_refusals || self.count(Outcome::TooManyRequests) == 0)
    }

    /// Each change of the number of requests in flight: when, and the new number. A request is in flight while it holds its permit.
    pub(crate) fn in_flight(&self) -> Vec<(Duration, i64)> {
        let starts = self.records.iter().map(|record| (record.granted, true));
        let ends = self.records.iter().map(|record| (record.finished, false));
        // At the same instant an end sorts before a start: a place is free before it is granted again.
        let mut changes: Vec<_> = starts.chain(ends).collect();
        changes.sort_unstable();
        let counted = changes.into_iter().scan(0, |count, (at, start)| {
            *count += if start { 1 } else { -1 };
            Some((at, *count))
        });
        counted.collect()
    }

    /// The largest number of grants in any one second.
    pub(crate) fn busiest_second(&self) -> usize {
        let grants = &self.records;
        let from = |index: usize| {
            let end = grants[index].granted + Duration::from_secs(1);
            grants[index..].partition_point(|record| record.granted < end)
        };
        (0..grants.len()).map(from).max().unwrap_or(0)
    }
}
