//! The calls of a session, of which at most one is in flight, and its pauses after failed calls.

use std::time::Duration;

use crate::core::queue::WaiterId;
use crate::error::StoreError;
use crate::exchange::{Asks, Call, Reply, Settlement};
use crate::strategy::Moment;

/// How a call has ended: the reply, or why there is none and whether the call may have been carried out all the same.
pub(crate) type CallAnswer = Result<Reply, CallFailed>;

/// Why a call brought no reply.
#[derive(Debug)]
pub(crate) struct CallFailed {
    pub(crate) error: StoreError,
    pub(crate) may_have_run: bool,
}

impl CallFailed {
    /// A failure because no reply has come, within this time if it is known.
    pub(crate) fn unanswered(store: String, after: Option<Duration>) -> Self {
        let error = StoreError::Unanswered {
            store,
            after,
            source: None,
        };
        Self {
            error,
            may_have_run: true,
        }
    }
}

/// A call that renews leases, with the fences of their permits.
#[derive(Debug)]
pub(crate) struct Renewal {
    pub(crate) call: Call,
    pub(crate) fences: Vec<u64>,
}

/// What a carrier does next.
#[derive(Debug)]
pub(crate) enum Trip {
    /// Take this call to the store, and bring the reply, or the failure, with its generation.
    Call { call: Box<Call>, generation: u64 },
    /// Yield, so that more of the requests that were woken come, and ask again with this number of waiters.
    Yield(u64),
    /// Hold the limiter until this instant, and ask again: something is owed to the store, or this process must remember its own
    /// grants.
    WaitUntil(Moment),
    /// Nothing: the carrier ends.
    End,
}

/// The state of the tasks that carry calls: whether one is due, or waits.
#[derive(Debug)]
pub(super) struct Carrier {
    /// The deadline for a carrier that was started, or that brings a reply, to ask for its next trip. [`Moment::START`] if there
    /// is none.
    pub(super) due: Moment,
    /// When a carrier that waits asks again; [`Moment::NEVER`] if none waits.
    pub(super) wakes_at: Moment,
}

/// The call in flight, and what is needed to make the next one.
#[derive(Debug, Default)]
pub(super) struct Calls {
    pub(super) in_flight: Option<CallInFlight>,
    /// The number of the call in flight, or of the latest one.
    pub(super) generation: u64,
    /// The number of the next lease.
    next_lease: u64,
    /// Nanoseconds for which a reply is awaited.
    deadline: u64,
    /// The instant of the latest reply, by the clock of this process and by that of the store. `None`: the store's clock is not known.
    pub(super) clocks: Option<(Moment, u64)>,
}

/// A call in flight.
#[derive(Debug)]
pub(super) struct CallInFlight {
    pub(super) sent_at: Moment,
    pub(super) asks: AskBatch,
    pub(super) returns: Vec<(u64, Moment)>,
    pub(super) settlements: Vec<Settlement>,
    /// Whether the store has reported meanwhile that the turn of this process has come. It may have decided before that.
    pub(super) turn_came: bool,
    /// Whether the limits in the store were reset meanwhile. The store may have decided before that.
    pub(super) was_reset: bool,
    /// The revision of its policy. Another policy may be adopted meanwhile.
    pub(super) revision: u64,
}

impl CallInFlight {
    /// Whether it asks for something, or gives something back.
    pub(super) fn changes_limits(&self) -> bool {
        !(self.asks.runs.is_empty() && self.returns.is_empty() && self.settlements.is_empty())
    }
}

/// The asks of a call: runs of equal ones.
#[derive(Debug)]
pub(super) struct AskBatch {
    /// The number of the lease of the first ask.
    first_lease: u64,
    waiters: Vec<WaiterId>,
    pub(super) runs: Vec<Asks>,
}

impl AskBatch {
    /// Adds the ask of a waiter. `is_same`: its costs are those of the ask before it.
    pub(super) fn push(
        &mut self,
        id: WaiterId,
        waits: bool,
        is_same: bool,
        costs: impl FnOnce() -> Box<[u64]>,
    ) {
        match self.runs.last_mut() {
            Some(run) if is_same && run.waits == waits => run.count += 1,
            _ => self.add_run(1, waits, false, costs()),
        }
        self.waiters.push(id);
    }

    pub(super) fn add_run(&mut self, count: u64, waits: bool, ahead: bool, costs: Box<[u64]>) {
        self.runs.push(Asks {
            first: self.first_lease + self.len(),
            count,
            costs,
            waits,
            ahead,
        });
    }

    /// How many waiters ask.
    pub(super) fn len(&self) -> u64 {
        self.waiters.len() as u64
    }

    /// Each ask of a waiter, in order: the waiter, the number of its lease, and its run.
    pub(super) fn iter(&self) -> impl Iterator<Item = (WaiterId, u64, &Asks)> {
        let numbers = self
            .runs
            .iter()
            .flat_map(|run| (run.first..run.first + run.count).map(move |number| (number, run)));
        let asks = self.waiters.iter().zip(numbers);
        asks.map(|(id, (number, run))| (*id, number, run))
    }

    /// The runs of which not all were granted.
    pub(super) fn denied(&self, granted: u64) -> impl Iterator<Item = &Asks> {
        let mut asked = 0;
        self.runs.iter().filter(move |run| {
            asked += run.count;
            asked > granted
        })
    }
}

impl Calls {
    pub(super) fn new(first_lease: u64, deadline: u64) -> Self {
        Self {
            next_lease: first_lease,
            deadline,
            ..Self::default()
        }
    }

    /// An empty batch for the next call.
    pub(super) fn batch(&self) -> AskBatch {
        AskBatch {
            first_lease: self.next_lease,
            waiters: Vec::new(),
            runs: Vec::new(),
        }
    }

    /// Begins a call. `returns`: those in it, with the instants at which their leases expire. Returns its generation.
    pub(super) fn begin(
        &mut self,
        now: Moment,
        call: &Call,
        asks: AskBatch,
        returns: Vec<(u64, Moment)>,
    ) -> u64 {
        self.generation += 1;
        self.next_lease += asks.len();
        self.in_flight = Some(CallInFlight {
            sent_at: now,
            asks,
            returns,
            settlements: call.settlements.clone(),
            turn_came: false,
            was_reset: false,
            revision: call.revision,
        });
        self.generation
    }

    /// Ends the call of this generation. `None` if it was given up before.
    pub(super) fn complete(&mut self, generation: u64) -> Option<CallInFlight> {
        self.in_flight.take_if(|_| generation == self.generation)
    }

    pub(super) fn is_in_flight(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Whether the call in flight gives something back.
    pub(super) fn gives_back(&self) -> bool {
        self.in_flight
            .as_ref()
            .is_some_and(|call| !call.returns.is_empty() || !call.settlements.is_empty())
    }

    /// When a reply is no longer awaited.
    pub(super) fn reply_due(&self) -> Option<Moment> {
        let call = self.in_flight.as_ref()?;
        Some(call.sent_at.plus(self.deadline))
    }

    /// The instant, by the store's clock, from which a call that is sent now is no longer worth carrying out. `None` if its clock
    /// is not known well.
    pub(super) fn valid_until(&self, now: Moment) -> Option<u64> {
        /// The clocks of two machines may drift apart by a millisecond in ten seconds.
        const RECENT: u64 = 10_000_000_000;
        let (at, by_store) = self.clocks.filter(|(at, _)| now.since(*at) < RECENT)?;
        Some(
            by_store
                .saturating_add(now.since(at))
                .saturating_add(self.deadline),
        )
    }
}

/// By default, nothing has failed.
#[derive(Debug, Default)]
pub(super) struct BackOff {
    failures: u32,
    /// After a failure, no request is sent before this moment.
    pub(super) asks_from: Moment,
    /// After a failure, no call that has only returns and settlements is sent before this moment. Many keys may have some, and
    /// none needs to send them soon.
    pub(super) settles_from: Moment,
}

impl BackOff {
    /// Records a failed call. The next one is sent after a wait, which doubles up to the `longest`. A random part, up to half, is
    /// left out, so that processes do not ask at the same instants.
    pub(super) fn note_failure(&mut self, now: Moment, longest: u64, random: Random) {
        const FIRST: u64 = 50_000_000;
        const LONGEST_TO_SETTLE: u64 = 10_000_000_000;
        let doubled = FIRST.saturating_mul(1 << self.failures.min(16));
        let after = |longest| {
            let after = doubled.min(longest);
            now.plus(after - random.below(after / 2))
        };
        self.failures = self.failures.saturating_add(1);
        self.asks_from = after(longest);
        self.settles_from = after(LONGEST_TO_SETTLE);
    }

    /// Lets a call be sent at once, although one has failed.
    pub(super) fn end_wait(&mut self, now: Moment) {
        self.asks_from = now;
        self.settles_from = now;
    }
}

/// A source of numbers that differ between processes, and between the calls of one, so that processes do not ask at the same instants.
#[derive(Debug, Clone, Copy)]
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(self, end: u64) -> u64 {
        // A multiplicative hash (Knuth, "The art of computer programming", volume 3, 6.4).
        let hash = self.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        ((u128::from(end) * u128::from(hash)) >> 32) as u64
    }

    /// A random time from half to one and a half times `nanos`.
    pub(super) fn around(self, nanos: u64) -> u64 {
        (nanos / 2).saturating_add(self.below(nanos))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const NOW: Moment = Moment::from_nanos(1_000 * MS);

    /// The least and the greatest of the random times.
    fn range(of: impl Fn(Random) -> u64) -> (u64, u64) {
        let times = (0..1_000).map(|number| of(Random(number)));
        times.fold((u64::MAX, 0), |(least, most), time| {
            (least.min(time), most.max(time))
        })
    }

    /// Whether the range is this one, up to a hundredth of it.
    fn spans((least, most): (u64, u64), from: u64, to: u64) -> bool {
        let part = (to - from) / 100;
        from <= least && least <= from + part && to - part <= most && most <= to
    }

    #[test]
    fn random_times_are_spread_over_their_range() {
        for nanos in [1_000, MS, 1_000 * MS, u64::MAX / 2] {
            assert!(spans(range(|random| random.below(nanos)), 0, nanos - 1));
            let around = range(|random| random.around(nanos));
            assert!(spans(around, nanos / 2, nanos + nanos / 2 - 1));
        }
    }

    #[test]
    fn each_failure_doubles_the_wait_up_to_the_longest() {
        let waits = |failures: u32, of: fn(&BackOff) -> Moment| {
            range(|random| {
                let mut back_off = BackOff::default();
                for _ in 0..failures {
                    back_off.note_failure(NOW, 500 * MS, random);
                }
                of(&back_off).since(NOW)
            })
        };
        for (failures, to_ask, to_settle) in [
            (1, 50, 50),
            (2, 100, 100),
            (4, 400, 400),
            (5, 500, 800),
            (8, 500, 6_400),
            (9, 500, 10_000),
            (100, 500, 10_000),
        ] {
            let spans = |longest, of| spans(waits(failures, of), longest * MS / 2, longest * MS);
            assert!(spans(to_ask, |back_off| back_off.asks_from), "{failures}");
            assert!(
                spans(to_settle, |back_off| back_off.settles_from),
                "{failures}"
            );
        }
    }

    #[test]
    fn the_clock_of_the_store_is_known_for_ten_seconds_after_a_reply() {
        let mut calls = Calls::new(0, 500);
        assert_eq!(calls.valid_until(NOW), None);
        calls.clocks = Some((NOW, 7_000));
        let after = 10_000 * MS;
        assert_eq!(
            calls.valid_until(NOW.plus(after - 1)),
            Some(7_000 + after - 1 + 500)
        );
        assert_eq!(calls.valid_until(NOW.plus(after)), None);
    }
}
