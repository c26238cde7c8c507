//! The pace of [`Throttle`](super::Throttle) and of [`TokenBucket`](super::TokenBucket): the generic cell rate algorithm.
//!
//! GCRA (ITU-T I.371, "virtual scheduling") keeps one number, the *theoretical arrival time*: when the next unit would come if
//! all units so far had come at the rate. A cost of `n` moves it by `n` intervals, and is admitted when the result lies at most
//! `burst` intervals ahead of now. In terms of a bucket: the distance from now to the arrival time is the usage that is not yet
//! refilled.
//!
//! An interval need not be a whole number of nanoseconds (7 a second is one in 142,857,142.857… ns). So units are counted in
//! *parts*: at 7 a second, each nanosecond brings 7 parts and a unit has 1,000,000,000. Nothing is rounded, so nothing drifts;
//! only an instant that is returned is rounded up.
//!
//! Parts arrive in steps. A continuous refill has a step of one nanosecond. A refill of `units` each period is the same rule
//! with a step of one period that brings `units` parts, one to the unit: the bucket then gains `units` at each multiple of the
//! period, up to the burst.

#[cfg(test)]
mod tests;

use super::usage::quotient;
use super::{LimitReport, MAX_SPAN_NANOS, Moment, Ratio, Slope, StateWords, Strategy, Usage};

/// The parameters of a pace, checked: an empty bucket is full after [`MAX_SPAN_NANOS`] at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PaceRule {
    /// Nanoseconds from one refill to the next; refills lie on its multiples since [`Moment::START`].
    step: u64,
    parts_per_step: u64,
    parts_per_unit: u64,
    /// The most parts by which the arrival time may lie ahead of now: the burst.
    tolerance: u128,
    /// The parts by which the arrival time lies ahead of now in the reset state.
    taken: u128,
    fits_a_word: bool,
}

/// The theoretical arrival time, in parts since [`Moment::START`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PaceState {
    arrival: u128,
}

impl PaceRule {
    /// Refilled continuously, `units` every `period` nanoseconds, `burst` at most; `initial` when new. `None` when an empty
    /// bucket takes longer to fill than [`MAX_SPAN_NANOS`]. No number but `initial` is zero.
    pub(crate) fn continuous(units: u64, period: u64, burst: u64, initial: u64) -> Option<Self> {
        let shared = gcd(units.into(), period.into()) as u64; // not more than the units
        Self::new(1, units / shared, period / shared, burst, initial)
    }

    /// The same, but `units` are added at once, at each multiple of `period` since [`Moment::START`].
    pub(crate) fn each_period(units: u64, period: u64, burst: u64, initial: u64) -> Option<Self> {
        Self::new(period, units, 1, burst, initial)
    }

    fn new(
        step: u64,
        parts_per_step: u64,
        parts_per_unit: u64,
        burst: u64,
        initial: u64,
    ) -> Option<Self> {
        let tolerance = u128::from(burst) * u128::from(parts_per_unit);
        let taken = u128::from(burst.saturating_sub(initial)) * u128::from(parts_per_unit);
        let steps_to_full = tolerance.div_ceil(u128::from(parts_per_step));
        let fills_in_time = steps_to_full <= u128::from(MAX_SPAN_NANOS / step);
        let fits_a_word = parts_per_step <= step.saturating_mul(4);
        fills_in_time.then_some(Self {
            step,
            parts_per_step,
            parts_per_unit,
            tolerance,
            taken,
            fits_a_word,
        })
    }

    /// How many refills there were up to `now`. The comparison spares the continuous refill a division.
    #[inline(always)]
    fn steps(&self, now: Moment) -> u64 {
        if self.step == 1 {
            now.nanos()
        } else {
            now.nanos() / self.step
        }
    }

    /// The parts of all refills up to `now`.
    #[inline(always)]
    fn parts(&self, now: Moment) -> u128 {
        u128::from(self.steps(now)) * u128::from(self.parts_per_step)
    }

    fn parts_of(&self, units: u64) -> u128 {
        u128::from(units) * u128::from(self.parts_per_unit)
    }

    /// The first instant at which this many parts have come since `now`.
    #[inline(always)]
    fn after(&self, parts: u128, now: Moment) -> Moment {
        if parts == 0 {
            return now;
        }
        let steps = match u64::try_from(parts) {
            Ok(parts) if self.parts_per_step == 1 => parts,
            Ok(parts) => parts.div_ceil(self.parts_per_step),
            Err(_) => {
                u64::try_from(parts.div_ceil(u128::from(self.parts_per_step))).unwrap_or(u64::MAX)
            }
        };
        Moment::from_nanos(
            self.steps(now)
                .saturating_add(steps)
                .saturating_mul(self.step),
        )
    }

    /// Parts that were taken and are not yet refilled.
    #[inline(always)]
    fn backlog(&self, state: PaceState, now: Moment) -> u128 {
        state.arrival.saturating_sub(self.parts(now))
    }

    /// The units that a backlog leaves.
    #[inline(always)]
    fn units_left(&self, backlog: u128) -> u64 {
        let parts = self.tolerance.saturating_sub(backlog);
        // Usually none after a denial: that needs no division.
        if parts < u128::from(self.parts_per_unit) {
            0
        } else {
            quotient(parts, self.parts_per_unit)
        }
    }

    /// Refunds a grant of `cost` that was decided at `at`, by at most `refund_bound`, so that the grants decided since still obey
    /// the rule. Returns the state after.
    pub(crate) fn refund_within(
        &self,
        state: PaceState,
        refund_bound: &mut RefundBound,
        at: Moment,
        cost: u64,
    ) -> PaceState {
        PaceState {
            arrival: state
                .arrival
                .saturating_sub(refund_bound.take_back(at, self.parts_of(cost))),
        }
    }

    /// Refunds `cost`, but `most` parts at most. Returns the state after, and the parts that were refunded.
    pub(crate) fn refund_at_most(
        &self,
        state: PaceState,
        cost: u64,
        most: u64,
    ) -> (PaceState, u64) {
        let parts = self.parts_of(cost).min(most.into());
        (
            PaceState {
                arrival: state.arrival.saturating_sub(parts),
            },
            parts as u64,
        )
    }

    /// [`Strategy::decide`] for an arrival time of one word, in 64 bits; `None` if these are too few. A denial does not say until
    /// when.
    #[inline(always)]
    pub(crate) fn decide_in_a_word(
        &self,
        arrival: u64,
        now: Moment,
        cost: u64,
    ) -> Option<Result<u64, ()>> {
        let parts = self.steps(now).checked_mul(self.parts_per_step)?;
        let next = arrival
            .max(parts)
            .checked_add(cost.checked_mul(self.parts_per_unit)?)?;
        Some(if u128::from(next - parts) <= self.tolerance {
            Ok(next)
        } else {
            Err(())
        })
    }

    /// [`Strategy::report`] without waiting units, in 64 bits; `None` if these are too few.
    #[inline(always)]
    fn report_in_a_word(&self, state: PaceState, now: Moment, cost: u64) -> Option<LimitReport> {
        let parts = self.steps(now).checked_mul(self.parts_per_step)?;
        let backlog = u64::try_from(state.arrival).ok()?.saturating_sub(parts);
        let used = backlog.checked_add(cost.checked_mul(self.parts_per_unit)?)?;
        let excess = used.saturating_sub(u64::try_from(self.tolerance).ok()?);
        let denied_until = (excess > 0).then(|| self.after(excess.into(), now));
        Some(LimitReport {
            denied_until,
            remaining: self.units_left(backlog.into()),
            ready_at: denied_until.unwrap_or(now),
            reset_at: self.after(backlog.into(), now),
        })
    }

    /// Whether the arrival time fits one word for [`MAX_SPAN_NANOS`] and longer: at most 4 parts a nanosecond.
    pub(crate) fn fits_a_word(&self) -> bool {
        self.fits_a_word
    }
}

impl From<StateWords> for PaceState {
    fn from([low, high]: StateWords) -> Self {
        Self {
            arrival: u128::from(high) << 64 | u128::from(low),
        }
    }
}

impl From<PaceState> for StateWords {
    fn from(PaceState { arrival }: PaceState) -> Self {
        [arrival as u64, (arrival >> 64) as u64]
    }
}

impl Strategy for PaceRule {
    type State = PaceState;

    fn initial(&self, now: Moment) -> PaceState {
        if self.taken == 0 {
            PaceState::default()
        } else {
            PaceState {
                arrival: self.parts(now).saturating_add(self.taken),
            }
        }
    }

    /// Compares the backlog, because an arrival time saturates at the end of the clock.
    #[inline(always)]
    fn decide(&self, state: PaceState, now: Moment, cost: u64) -> Result<PaceState, Moment> {
        if let Ok(arrival) = u64::try_from(state.arrival)
            && let Some(Ok(next)) = self.decide_in_a_word(arrival, now, cost)
        {
            return Ok(PaceState {
                arrival: next.into(),
            });
        }
        let used = self.backlog(state, now).saturating_add(self.parts_of(cost));
        if used <= self.tolerance {
            Ok(PaceState {
                arrival: self.parts(now).saturating_add(used),
            })
        } else {
            Err(self.after(used - self.tolerance, now))
        }
    }

    #[inline(always)]
    fn charge(&self, state: PaceState, now: Moment, cost: u64) -> PaceState {
        PaceState {
            arrival: state
                .arrival
                .max(self.parts(now))
                .saturating_add(self.parts_of(cost)),
        }
    }

    fn ready_at(&self, state: PaceState, now: Moment, ahead: u64, cost: u64) -> Moment {
        let asked = self.parts_of(ahead).saturating_add(self.parts_of(cost));
        self.after(
            self.backlog(state, now)
                .saturating_add(asked)
                .saturating_sub(self.tolerance),
            now,
        )
    }

    #[inline(always)]
    fn remaining(&self, state: PaceState, now: Moment) -> u64 {
        self.units_left(self.backlog(state, now))
    }

    fn usage(&self, state: PaceState, now: Moment) -> Usage {
        Usage {
            parts: self.backlog(state, now),
            parts_per_unit: self.parts_per_unit,
        }
    }

    fn with_usage(&self, now: Moment, usage: Usage, ratio: Ratio) -> PaceState {
        PaceState {
            arrival: self
                .parts(now)
                .saturating_add(ratio.of(usage, self.parts_per_unit)),
        }
    }

    #[inline(always)]
    fn reset_at(&self, state: PaceState, now: Moment) -> Moment {
        self.after(self.backlog(state, now), now)
    }

    /// A forgotten key starts with the tokens of a new bucket. If these are fewer than the burst, a full bucket is kept for as long
    /// as a new one takes to fill, so that a caller can still retry at its `retry_after`.
    fn forgettable_at(&self, state: PaceState, now: Moment) -> Moment {
        self.after(
            state
                .arrival
                .saturating_add(self.taken)
                .saturating_sub(self.parts(now)),
            now,
        )
    }

    fn forgive(&self, state: PaceState, _now: Moment, cost: u64) -> PaceState {
        PaceState {
            arrival: state.arrival.saturating_sub(self.parts_of(cost)),
        }
    }

    /// Computes the report from the backlog, which is computed once.
    #[inline(always)]
    fn report(&self, state: PaceState, now: Moment, ahead: u64, cost: u64) -> LimitReport {
        if ahead == 0
            && let Some(report) = self.report_in_a_word(state, now, cost)
        {
            return report;
        }
        let backlog = self.backlog(state, now);
        let cost = self.parts_of(cost);
        let excess = |ahead: u128| {
            backlog
                .saturating_add(ahead)
                .saturating_add(cost)
                .saturating_sub(self.tolerance)
        };
        let denied_until = (excess(0) > 0).then(|| self.after(excess(0), now));
        LimitReport {
            denied_until,
            remaining: self.units_left(backlog),
            ready_at: if ahead == 0 {
                denied_until.unwrap_or(now)
            } else {
                self.after(excess(self.parts_of(ahead)), now)
            },
            reset_at: self.after(backlog, now),
        }
    }

    /// The pace as a line, if parts arrive continuously and the numbers fit 64 bits.
    fn slope(&self, state: PaceState, now: Moment) -> Option<Slope> {
        let used = u64::try_from(self.backlog(state, now)).ok()?;
        let tolerance = u64::try_from(self.tolerance).ok()?;
        let &Self {
            parts_per_step: parts_per_nano,
            parts_per_unit,
            ..
        } = self;
        (self.step == 1).then_some(Slope {
            parts_per_nano,
            parts_per_unit,
            tolerance,
            used,
            holds_for: u64::MAX,
        })
    }

    /// The state in which this many parts are used.
    fn with_used(&self, _state: PaceState, base: Moment, used: u64) -> PaceState {
        PaceState {
            arrival: self.parts(base) + u128::from(used),
        }
    }
}

/// The greatest common divisor.
pub(crate) fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The part of the past that must be recorded so that grants can be refunded.
///
/// Subtracting all of its intervals from the arrival time would be wrong if a later grant found a smaller *backlog* (arrival time
/// minus now) than these: that grant was paced from its own instant, not from the refunded one. Let `i` be a grant that stays,
/// decided after the refunded one. The rule holds for the grants from `i` on while the arrival time is at or above `i`'s instant
/// plus their intervals, and it lies above that by at least the backlog that `i` found. So a refund is at most the least backlog
/// that any later instant found. Grants of one instant are exchangeable, so one of the latest instant is refunded whole.
///
/// The least backlog since each instant is kept as a stack of (instant, least backlog found from then on), rising in both. When
/// the stack is full, the older half, except for the oldest entry, becomes one entry: at the latest of their instants, with the
/// smallest backlog. So the bound is exact for grants of at least the latest half of [`RefundBound::MAX_LEN`] instants, and for older
/// ones it is too small. While a permit is out, about as many others are granted as are out with it: so many permits at the same time
/// are refunded whole. The stack is not part of the state, so that a table of keys, where refunds are rare, needs none.
#[derive(Debug, Clone)]
pub(crate) struct RefundBound {
    /// At most [`Self::MAX_LEN`], and at least one.
    found: Vec<(Moment, u128)>,
}

impl RefundBound {
    /// In 16 kB. Most stacks are short: an entry stays only while all later grants find a larger backlog.
    pub(super) const MAX_LEN: usize = if cfg!(test) { 8 } else { 512 }; // a short one joins entries sooner
    /// A longer stack gives its memory back when it is short again.
    const KEPT: usize = 32;

    /// Grants decided before `now` cannot be refunded.
    #[cold]
    pub(crate) fn new(now: Moment) -> Self {
        Self {
            found: vec![(now, 0)],
        }
    }

    /// Records a grant decided at `now` on the state `before`.
    #[inline(always)]
    pub(crate) fn note(&mut self, rule: &PaceRule, before: PaceState, now: Moment) {
        let backlog = rule.backlog(before, now);
        match self.found.last() {
            Some((latest, _)) if *latest == now => return,
            Some((_, least)) if *least < backlog => {}
            _ => self.drop_from(backlog),
        }
        if self.found.len() == Self::MAX_LEN {
            self.merge_oldest();
        }
        self.found.push((now, backlog));
    }

    /// Drops the entries that found as much or more.
    #[inline]
    fn drop_from(&mut self, backlog: u128) {
        while self.found.pop_if(|(_, least)| *least >= backlog).is_some() {}
        let capacity = self.found.capacity();
        if capacity > Self::KEPT && self.found.len() < capacity / 4 {
            self.found.shrink_to(capacity / 2);
        }
    }

    /// Joins several entries at once, because moving all others at each grant would cost more than the rest of the grant. The
    /// oldest entry stays: often it found no backlog, and then nothing of the joined instants could be refunded.
    #[cold]
    fn merge_oldest(&mut self) {
        const LAST: usize = RefundBound::MAX_LEN / 2;
        self.found[LAST].1 = self.found[1].1;
        self.found.drain(1..LAST);
    }

    fn take_back(&mut self, at: Moment, parts: u128) -> u128 {
        let later = self.found.partition_point(|(instant, _)| *instant <= at);
        let Some(&(_, bound)) = self.found.get(later) else {
            return parts;
        };
        let back = parts.min(bound);
        for (_, least) in &mut self.found[later..] {
            *least -= back;
        }
        // Keeps the stack rising: the least since an earlier instant includes that since a later one.
        for (_, least) in &mut self.found[..later] {
            *least = (*least).min(bound - back);
        }
        back
    }
}
