//! The pace of [`Throttle`](super::Throttle) and of [`TokenBucket`](super::TokenBucket): the generic cell rate algorithm.
//!
//! GCRA (ITU-T I.371, "virtual scheduling") keeps one number, the *theoretical arrival time*, at which everything admitted so
//! far has been paced out. A cost of `n` moves it by `n` intervals, and is admitted when the result lies at most `burst`
//! intervals ahead of now. The same said with a bucket: what the arrival time lies ahead of now has been taken and is not
//! refilled yet.
//!
//! An interval need not be a whole number of nanoseconds (7 a second is one in 142,857,142.857… ns). So time is counted in
//! *parts*, of which a nanosecond has as many as make an interval whole: at 7 a second there are 7 parts to the nanosecond and
//! 1,000,000,000 to the unit. Nothing is rounded, so nothing drifts; only an instant that is told is rounded up.

use super::{MAX_SPAN_NANOS, Moment, StateWords, Strategy, Verdict};

/// The parameters of a pace, checked: `burst` units take at most [`MAX_SPAN_NANOS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PaceRule {
    /// Parts a nanosecond.
    parts_per_nano: u64,
    /// Parts a unit.
    parts_per_unit: u64,
    /// Parts that the arrival time may lie ahead of now: the burst.
    tolerance: u128,
    /// Parts that it lies ahead when new.
    taken: u128,
}

/// The theoretical arrival time, in parts since [`Moment::START`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PaceState {
    arrival: u128,
}

impl PaceRule {
    /// `units` every `period` nanoseconds, `burst` at once; `initial` of them when new. `None` when the burst takes longer to
    /// refill than [`MAX_SPAN_NANOS`]. None of the numbers but `initial` is zero.
    pub(crate) fn new(units: u64, period: u64, burst: u64, initial: u64) -> Option<Self> {
        let shared = gcd(units, period);
        let (parts_per_nano, parts_per_unit) = (units / shared, period / shared);
        let tolerance = u128::from(burst) * u128::from(parts_per_unit);
        let taken = u128::from(burst.saturating_sub(initial)) * u128::from(parts_per_unit);
        (tolerance <= u128::from(MAX_SPAN_NANOS) * u128::from(parts_per_nano)).then_some(Self {
            parts_per_nano,
            parts_per_unit,
            tolerance,
            taken,
        })
    }

    fn parts(&self, now: Moment) -> u128 {
        u128::from(now.nanos()) * u128::from(self.parts_per_nano)
    }

    fn parts_of(&self, units: u64) -> u128 {
        u128::from(units) * u128::from(self.parts_per_unit)
    }

    /// The first instant at which `arrival` lies no more than `ahead` parts ahead.
    fn first(&self, arrival: u128, ahead: u128, now: Moment) -> Moment {
        let wait = arrival.saturating_sub(ahead).saturating_sub(self.parts(now));
        now.plus(match u64::try_from(wait) {
            Ok(wait) if self.parts_per_nano == 1 => wait,
            Ok(wait) => wait.div_ceil(self.parts_per_nano),
            Err(_) => u64::try_from(wait.div_ceil(u128::from(self.parts_per_nano))).unwrap_or(u64::MAX),
        })
    }

    /// Parts that have been taken and are not refilled yet.
    fn backlog(&self, state: PaceState, now: Moment) -> u128 {
        state.arrival.saturating_sub(self.parts(now))
    }

    /// Takes back a grant of `cost` that was decided at `at`. What comes back is bounded by the trail, so that the grants
    /// decided since stay within the rule without it. Returns the state after.
    pub(crate) fn refund(&self, state: PaceState, refund_bound: &mut RefundBound, at: Moment, cost: u64) -> PaceState {
        PaceState { arrival: state.arrival.saturating_sub(refund_bound.take_back(at, self.parts_of(cost))) }
    }

    /// One word, where the arrival time fits into it for [`MAX_SPAN_NANOS`] and longer: few parts to the nanosecond.
    pub(crate) fn fits_a_word(&self) -> bool {
        self.parts_per_nano <= 4
    }
}

impl From<StateWords> for PaceState {
    fn from([low, high]: StateWords) -> Self {
        Self { arrival: u128::from(high) << 64 | u128::from(low) }
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
        if self.taken == 0 { PaceState::default() } else { PaceState { arrival: self.parts(now).saturating_add(self.taken) } }
    }

    #[inline(always)]
    fn decide(&self, state: PaceState, now: Moment, cost: u64) -> Verdict<PaceState> {
        let charged = self.charge(state, now, cost);
        if charged.arrival <= self.parts(now).saturating_add(self.tolerance) {
            Verdict::Granted(charged)
        } else {
            Verdict::WaitUntil(self.first(charged.arrival, self.tolerance, now))
        }
    }

    #[inline(always)]
    fn charge(&self, state: PaceState, now: Moment, cost: u64) -> PaceState {
        PaceState { arrival: state.arrival.max(self.parts(now)).saturating_add(self.parts_of(cost)) }
    }

    fn ready_at(&self, state: PaceState, now: Moment, ahead: u64, cost: u64) -> Moment {
        let arrival = self.charge(self.charge(state, now, ahead), now, cost).arrival;
        self.first(arrival, self.tolerance, now)
    }

    fn remaining(&self, state: PaceState, now: Moment) -> u64 {
        let left = self.tolerance.saturating_sub(self.backlog(state, now));
        match u64::try_from(left) {
            Ok(left) => left / self.parts_per_unit,
            Err(_) => (left / u128::from(self.parts_per_unit)) as u64,
        }
    }

    fn used(&self, state: PaceState, now: Moment) -> u64 {
        u64::try_from(self.backlog(state, now).div_ceil(u128::from(self.parts_per_unit))).unwrap_or(u64::MAX)
    }

    fn reset_at(&self, state: PaceState, now: Moment) -> Moment {
        self.first(state.arrival, 0, now)
    }

    fn forgive(&self, state: PaceState, _now: Moment, cost: u64) -> PaceState {
        PaceState { arrival: state.arrival.saturating_sub(self.parts_of(cost)) }
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// What must be remembered of the past so that a grant can be taken back.
///
/// Taking its intervals off the arrival time is wrong when a later grant found less of a *backlog* (arrival time minus now) than
/// that: it was paced from its own instant, not from the one taken back. Let `i` be a grant that stays, decided after the one
/// taken back: the rule holds for the grants from `i` on as long as the arrival time stays at or above `i`'s instant plus their
/// intervals, and it lies above that by at least the backlog that `i` found. So what comes back is bounded by the least backlog
/// that any later instant found. Grants of one instant are exchangeable, so one of the latest instant comes back whole.
///
/// The least backlog since any instant is kept as a stack of (instant, least backlog found from then on), rising in both. It is
/// bounded: where it is full, two neighbours become one that claims less than both. It lies beside the state, once a gate,
/// because few grants are taken back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RefundBound {
    latest: Moment,
    len: usize,
    found: [(Moment, u128); Self::MAX_LEN],
}

impl RefundBound {
    /// Enough that a refund is whole where grants come steadily; each entry is looked at by a refund only.
    const MAX_LEN: usize = 8;

    /// Grants decided before `now` are not known of, and cannot be taken back.
    pub(crate) fn new(now: Moment) -> Self {
        let mut found = [(Moment::START, 0); Self::MAX_LEN];
        found[0] = (now, 0);
        Self { latest: now, len: 1, found }
    }

    /// Notes a grant decided at `now` on `before`, the state that it found.
    #[inline(always)]
    pub(crate) fn note(&mut self, rule: &PaceRule, before: PaceState, now: Moment) {
        if now != self.latest {
            self.latest = now;
            self.push(now, rule.backlog(before, now));
        }
    }

    #[inline]
    fn push(&mut self, now: Moment, backlog: u128) {
        while self.len > 0 && self.found[self.len - 1].1 >= backlog {
            self.len -= 1;
        }
        if self.len == Self::MAX_LEN {
            self.found[1].1 = self.found[0].1;
            self.found.copy_within(1.., 0);
            self.len -= 1;
        }
        self.found[self.len] = (now, backlog);
        self.len += 1;
    }

    fn take_back(&mut self, at: Moment, parts: u128) -> u128 {
        if at == self.latest {
            return parts;
        }
        let later = self.found[..self.len].iter().position(|(instant, _)| *instant > at).unwrap_or(self.len);
        let back = self.found[..self.len].get(later).map_or(parts, |(_, least)| parts.min(*least));
        for (_, least) in &mut self.found[later..self.len] {
            *least -= back;
        }
        // Rising again: what was found since an earlier instant includes what was found since a later one.
        if let Some(&(_, least)) = self.found[..self.len].get(later) {
            self.found[..later].iter_mut().for_each(|(_, earlier)| *earlier = (*earlier).min(least));
        }
        back
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Strategy as _; // both globs have a `Strategy`
    use super::*;

    const S: u64 = 1_000_000_000;

    fn rule(units: u64, period: u64, burst: u64) -> PaceRule {
        PaceRule::new(units, period, burst, burst).unwrap()
    }

    /// Every grant that counts, with the rule applied to each pair: what GCRA promises, said naively.
    fn within_rule((units, period, burst): (u64, u64, u64), grants: &[(u64, u64)]) -> bool {
        (0..grants.len()).all(|first| {
            let mut taken = 0;
            grants[first..].iter().all(|&(at, cost)| {
                taken += cost;
                taken * period <= burst * period + (at - grants[first].0) * units
            })
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        /// Invariants 1 and 7; trap: a deadline reset to now + interval after each wake.
        #[test]
        fn denied_until_exactly_the_predicted_instant_then_granted(
            units in 1_u64..40, period in 1_u64..1_000, burst in 1_u64..8, initial in 0_u64..9,
            steps in prop::collection::vec((0_u64..3_000, 1_u64..8, 0_u64..5), 1..60),
        ) {
            let rule = PaceRule::new(units, period, burst, initial).unwrap();
            let (mut now, mut grants) = (Moment::START, Vec::new());
            let mut state = rule.initial(now);
            prop_assert_eq!(rule.remaining(state, now), initial.min(burst));
            if initial < burst {
                grants.push((0, burst - initial)); // as if taken before
            }
            for (step, cost, ahead) in steps {
                now = now.plus(step);
                let cost = cost.min(burst);
                let admits = |state, cost| matches!(rule.decide(state, now, cost), Verdict::Granted(_));
                let remaining = rule.remaining(state, now);
                prop_assert!(remaining == burst || !admits(state, remaining + 1));
                prop_assert!(remaining == 0 || admits(state, remaining));
                prop_assert!(rule.ready_at(state, now, ahead, cost) >= rule.ready_at(state, now, 0, cost));
                if let Verdict::WaitUntil(at) = rule.decide(state, now, cost) {
                    prop_assert_eq!(at, rule.ready_at(state, now, 0, cost));
                    prop_assert!(matches!(rule.decide(state, at.minus(1), cost), Verdict::WaitUntil(again) if again == at));
                    now = at;
                }
                let Verdict::Granted(next) = rule.decide(state, now, cost) else { panic!("denied at its retry-after") };
                prop_assert_eq!(next, rule.charge(state, now, cost));
                state = next;
                grants.push((now.nanos(), cost));
                prop_assert!(within_rule((units, period, burst), &grants));
                let reset = rule.reset_at(state, now);
                prop_assert!(rule.remaining(state, reset) == burst && rule.backlog(state, reset.minus(1)) > 0);
            }
        }

        /// Invariants 1 and 2: grants are taken back in any order, some long after; what stays is within the rule.
        #[test]
        fn refunds_in_any_order_never_exceed_the_rule(
            units in 1_u64..20, period in 1_u64..200, burst in 1_u64..8,
            steps in prop::collection::vec((prop_oneof![Just(0_u64), 0_u64..400], 1_u64..4, any::<bool>(), any::<prop::sample::Index>()), 1..80),
        ) {
            let rule = rule(units, period, burst);
            let (mut state, mut refund_bound, mut now) = (PaceState::default(), RefundBound::new(Moment::START), Moment::START);
            let (mut grants, mut undelivered) = (Vec::<(u64, u64)>::new(), Vec::<(u64, u64)>::new());
            for (step, cost, refund, pick) in steps {
                now = now.plus(step);
                if refund && !undelivered.is_empty() {
                    let (at, cost) = undelivered.remove(pick.index(undelivered.len()));
                    let same_instant = at == refund_bound.latest.nanos();
                    let before = state;
                    state = rule.refund(state, &mut refund_bound, Moment::from_nanos(at), cost);
                    prop_assert!(!same_instant || before.arrival - state.arrival == rule.parts_of(cost));
                    let index = grants.iter().position(|&grant| grant == (at, cost)).unwrap();
                    grants.remove(index);
                }
                let cost = cost.min(burst);
                while let Verdict::Granted(next) = rule.decide(state, now, cost) {
                    refund_bound.note(&rule, state, now);
                    state = next;
                    grants.push((now.nanos(), cost));
                    undelivered.push((now.nanos(), cost));
                    prop_assert!(within_rule((units, period, burst), &grants), "{:?}", grants);
                }
            }
        }
    }

    /// Trap: overflow at the largest quotas.
    #[test]
    fn the_largest_parameters_do_not_overflow() {
        let slowest = rule(1, MAX_SPAN_NANOS, 1);
        let Verdict::Granted(state) = slowest.decide(PaceState::default(), Moment::START, 1) else { panic!() };
        assert_eq!(slowest.ready_at(state, Moment::START, u64::MAX, 1), Moment::NEVER);
        assert_eq!(slowest.decide(state, Moment::START, 1), Verdict::WaitUntil(Moment::from_nanos(MAX_SPAN_NANOS)));
        assert_eq!(PaceRule::new(1, MAX_SPAN_NANOS, 2, 2), None);
        let fastest = rule(u64::MAX, 1, u64::MAX);
        let late = Moment::NEVER.minus(1);
        let Verdict::Granted(state) = fastest.decide(PaceState::default(), late, u64::MAX) else { panic!() };
        assert_eq!(fastest.remaining(state, late), 0);
        let state = fastest.charge(state, late, u64::MAX);
        assert_eq!(fastest.charge(state, late, u64::MAX).arrival, u128::MAX, "it saturates");
    }

    /// Trap: rates that do not divide a second lose or gain units by rounding.
    #[test]
    fn a_billion_grants_do_not_drift() {
        // Seven a second, asked for in blocks of seven hundred thousand as fast as they come: a billion take their time exactly.
        let rule = rule(7, S, 700_000);
        let (mut state, mut now) = (PaceState::default(), Moment::START);
        let blocks = 1_000_000_000_u64.div_ceil(700_000);
        for _ in 0..blocks {
            now = rule.ready_at(state, now, 0, 700_000);
            let Verdict::Granted(next) = rule.decide(state, now, 700_000) else { panic!("denied at its retry-after") };
            state = next;
        }
        assert_eq!(now.nanos(), (blocks - 1) * 100_000 * S);
        assert_eq!(rule.remaining(state, now.plus(S)), 7);
        assert_eq!(rule.remaining(state, now.plus(S - 1)), 6, "no free parts_per_unit");
    }

    #[test]
    fn from_one_a_week_to_a_billion_a_second() {
        let week = 7 * 24 * 3_600 * S;
        let rare = rule(1, week, 1);
        let Verdict::Granted(state) = rare.decide(PaceState::default(), Moment::START, 1) else { panic!() };
        assert_eq!(rare.decide(state, Moment::from_nanos(week - 1), 1), Verdict::WaitUntil(Moment::from_nanos(week)));
        let often = rule(S, S, 1_000);
        let mut state = PaceState::default();
        for nanos in 0..100_000 {
            let Verdict::Granted(next) = often.decide(state, Moment::from_nanos(nanos), 1) else { panic!() };
            state = next;
        }
        assert_eq!(often.remaining(state, Moment::from_nanos(99_999)), 999);
    }
}
