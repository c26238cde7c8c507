//! The grants of tasks that waited, from which rate, limit and order are checked.

use std::time::{Duration, Instant};

use crate::spans::most_within;

/// When a task was granted its permit, and its way through the queue.
#[derive(Clone, Copy)]
pub(crate) struct Grant {
    /// The instant of the decision where the limiter records it, otherwise the instant at which the task got the permit.
    pub(crate) at: Instant,
    /// The instant at which the task got the permit.
    pub(crate) got: Instant,
    pub(crate) turn: Option<Turn>,
}

impl Grant {
    /// A grant of a limiter that records neither the instant of the decision nor a fence.
    pub(crate) fn now() -> Self {
        let got = Instant::now();
        Self {
            at: got,
            got,
            turn: None,
        }
    }
}

/// The way of a request through the queue.
#[derive(Clone, Copy)]
pub(crate) struct Turn {
    pub(crate) asked: Instant,
    /// An instant at which the request was in the queue.
    pub(crate) queued: Instant,
    pub(crate) fence: u64,
}

pub(crate) struct Trace {
    tasks: Vec<Vec<Grant>>,
    /// The instants of all grants, sorted.
    instants: Vec<Instant>,
    interval: Duration,
    burst: u64,
}

impl Trace {
    /// The grants of each task, and the throttle that they must keep to.
    pub(crate) fn new(tasks: Vec<Vec<Grant>>, interval: Duration, burst: u64) -> Self {
        let mut instants: Vec<Instant> = tasks.iter().flatten().map(|grant| grant.at).collect();
        instants.sort_unstable();
        assert!(
            instants.len() as u64 > burst,
            "there are fewer grants than the burst"
        );
        Self {
            tasks,
            instants,
            interval,
            burst,
        }
    }

    /// How far the rate from the first grant to the last was from the wanted one, in percent. The burst was there before the first
    /// grant and does not count.
    pub(crate) fn rate_error(&self) -> f64 {
        let paced = self.instants.len() as u64 - self.burst;
        let elapsed = self.instants[self.instants.len() - 1] - self.instants[0];
        100.0 * (paced as f64 * self.interval.as_secs_f64() / elapsed.as_secs_f64() - 1.0)
    }

    /// The times from each task's permit to the next one's, sorted. They are by the tasks' clock for every limiter, whether or not it
    /// records its decisions.
    pub(crate) fn gaps(&self) -> Vec<Duration> {
        let mut got: Vec<Instant> = self.tasks.iter().flatten().map(|grant| grant.got).collect();
        got.sort_unstable();
        let mut gaps: Vec<Duration> = got.windows(2).map(|pair| pair[1] - pair[0]).collect();
        gaps.sort_unstable();
        gaps
    }

    /// The largest number of grants in any span of this length.
    pub(crate) fn most_within(&self, span: Duration) -> usize {
        most_within(&self.instants, span)
    }

    /// The number of grants that the throttle allows in a span of this length.
    pub(crate) fn allowed_within(&self, span: Duration) -> u64 {
        self.burst + (span.as_nanos() / self.interval.as_nanos()) as u64
    }

    /// The number of grants above the limit in the worst span of any length. At most 0 if the throttle was kept.
    ///
    /// The grants `i..=j` keep it when `j - i + 1 <= burst + (at(j) - at(i)) / interval`. With `lead(k) = k - at(k) / interval`, the
    /// excess is the largest rise of the lead, minus `burst - 1`.
    pub(crate) fn over(&self) -> f64 {
        let interval = self.interval.as_nanos() as i128;
        let mut lowest = i128::MAX;
        let rises = (0..).zip(&self.instants).map(|(number, at)| {
            let lead = number * interval - (*at - self.instants[0]).as_nanos() as i128;
            lowest = lowest.min(lead);
            lead - lowest
        });
        let rise = rises.max().unwrap_or(0);
        (rise - (i128::from(self.burst) - 1) * interval) as f64 / interval as f64
    }

    pub(crate) fn unserved(&self) -> usize {
        self.tasks.iter().filter(|grants| grants.is_empty()).count()
    }

    /// The most turns of any task minus the fewest. The first burst does not count, since no task queues for it.
    pub(crate) fn spread(&self) -> usize {
        let end_of_burst = self.instants[self.burst as usize - 1];
        let turns = |grants: &Vec<Grant>| {
            grants
                .iter()
                .filter(|grant| grant.at > end_of_burst)
                .count()
        };
        let turns: Vec<usize> = self.tasks.iter().map(turns).collect();
        turns.iter().max().unwrap_or(&0) - turns.iter().min().unwrap_or(&0)
    }

    /// How often a request was served out of order: a later fence has an earlier instant, or belongs to a request that was in the
    /// queue before the request with the earlier fence was made.
    pub(crate) fn out_of_order(&self) -> usize {
        let mut turns: Vec<(Turn, Instant)> = self
            .tasks
            .iter()
            .flatten()
            .filter_map(|grant| Some((grant.turn?, grant.at)))
            .collect();
        turns.sort_unstable_by_key(|(turn, _)| turn.fence);
        let stepped_back = turns
            .windows(2)
            .filter(|pair| pair[1].1 < pair[0].1)
            .count();
        let mut queued_first = None;
        let passed = turns.iter().rev().filter(|(turn, _)| {
            let passed = queued_first.is_some_and(|queued| queued < turn.asked);
            queued_first =
                Some(queued_first.map_or(turn.queued, |queued: Instant| queued.min(turn.queued)));
            passed
        });
        stepped_back + passed.count()
    }
}
