//! A simulated server, whose load follows an adaptive limit.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::*;

/// A server in virtual time. It works on one call for each of its workers, queues others, and refuses a call after 1 ms when it
/// holds three times as many as it has workers. Its callers call again at once: as many as the limit allows, at most `callers`.
pub(super) struct Server {
    pub(super) adapt: Adapt,
    pub(super) state: AdaptState,
    pub(super) base: u64,
    /// Exponential service times in place of constant ones.
    pub(super) jitter: bool,
    /// If set, one call in this many is reported an hour late.
    pub(super) stuck: u64,
    pub(super) refuses: bool,
    pub(super) callers: u64,
    /// Units that a call costs.
    pub(super) cost: u64,
    /// When each worker is free.
    pub(super) free_at: BinaryHeap<Reverse<u64>>,
    /// (back at, granted at, fence, refused)
    pub(super) out: BinaryHeap<Reverse<(u64, u64, u64, bool)>>,
    pub(super) granted: u64,
    pub(super) now: u64,
    pub(super) random: u64,
}

/// The results of a run.
#[derive(Debug)]
pub(super) struct Seen {
    /// The least and the greatest estimate. The limit is lower during probes.
    pub(super) low: f64,
    pub(super) high: f64,
    /// The share of the server's capacity that was used.
    pub(super) throughput: f64,
}

impl Server {
    pub(super) fn new(adapt: Adapt, initial: u64, workers: usize) -> Self {
        Self {
            adapt,
            state: adapt.initial(initial),
            base: 10 * MS,
            jitter: false,
            stuck: u64::MAX,
            refuses: true,
            callers: u64::MAX,
            cost: 1,
            free_at: vec![Reverse(0); workers].into(),
            out: BinaryHeap::new(),
            granted: 0,
            now: 0,
            random: 0x9E37_79B9_7F4A_7C15,
        }
    }

    pub(super) fn service(&mut self) -> u64 {
        if !self.jitter {
            return self.base;
        }
        // xorshift64 (Marsaglia 2003)
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let unit = ((self.random >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        (self.base as f64 * -unit.ln()) as u64
    }

    pub(super) fn enter(&mut self) {
        self.granted += 1;
        let full = 3 * self.free_at.len();
        let holds = || {
            self.out
                .iter()
                .filter(|Reverse((.., refused))| !refused)
                .count()
        };
        if self.refuses && self.out.len() >= full && holds() >= full {
            self.out
                .push(Reverse((self.now + MS, self.now, self.granted, true)));
            return;
        }
        let service = self.service();
        let mut worker = self.free_at.peek_mut().expect("a worker");
        worker.0 = self.now.max(worker.0) + service;
        self.out
            .push(Reverse((worker.0, self.now, self.granted, false)));
    }

    pub(super) fn run(&mut self, span: u64) -> Seen {
        let (start, until) = (self.now, self.now + span);
        let (mut seen, mut done) = (
            Seen {
                low: self.state.estimate,
                high: self.state.estimate,
                throughput: 0.0,
            },
            0_u64,
        );
        loop {
            while (self.out.len() as u64) < (self.state.limit() / self.cost).min(self.callers) {
                self.enter();
            }
            match self.out.peek() {
                Some(&Reverse((at, ..))) if at <= until => self.now = at,
                _ => break,
            }
            let in_flight = self.out.len() as u64 * self.cost;
            let Some(Reverse((at, from, fence, refused))) = self.out.pop() else {
                break;
            };
            let outcome = if refused {
                Outcome::Overloaded
            } else {
                Outcome::Ok
            };
            done += u64::from(!refused);
            let rtt_nanos = Some(if fence % self.stuck == 0 {
                3_600 * SECOND
            } else {
                at - from
            });
            let sample = Sample {
                outcome,
                rtt_nanos,
                cost: self.cost,
                in_flight,
                fence,
                latest_fence: self.granted,
            };
            self.state = self
                .adapt
                .update(self.state, Moment::from_nanos(self.now), sample);
            seen.low = seen.low.min(self.state.estimate);
            seen.high = seen.high.max(self.state.estimate);
        }
        self.now = until;
        seen.throughput =
            done as f64 * self.base as f64 / (self.now - start) as f64 / self.free_at.len() as f64;
        seen
    }

    pub(super) fn workers(&mut self, workers: usize) {
        let mut free_at = std::mem::take(&mut self.free_at).into_sorted_vec();
        free_at.reverse(); // the workers that are free first stay
        free_at.resize(workers, Reverse(self.now));
        self.free_at = free_at.into();
    }
}
