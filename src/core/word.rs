//! The state of one limit, packed into a word that is changed without the lock. Here is the [line](packed_rate) of a rate under the
//! lock: how it is drawn anew, and what can be refunded.

pub(crate) mod packed_rate;

use crate::core::word::packed_rate::{MAX_VALUE, PackedRate};
use crate::strategy::{Moment, Slope};

/// The line of a rate through changes of its usage.
#[derive(Debug)]
pub(crate) struct PackedRateHistory {
    line: PackedRate,
    /// The latest value that a word was given, or gave back.
    latest: u64,
    /// Whether the line was raised since it was drawn.
    raised: bool,
    /// By how much it was raised since the latest grant, beyond what time brought.
    raised_since_grant: u64,
    /// The fence of the latest grant whose value does not count on this track.
    refundable_after: u64,
}

impl PackedRateHistory {
    /// A new track after this many grants.
    pub(crate) fn new(parts_per_nano: u64, now: Moment, fence: u64) -> Self {
        let line = PackedRate {
            base: now.nanos(),
            parts_per_nano,
            ..PackedRate::default()
        };
        Self {
            line,
            latest: 0,
            raised: true,
            raised_since_grant: 0,
            refundable_after: fence,
        }
    }

    /// The value of the line. Before its base it is that at the base.
    fn present(&self, now: Moment) -> u64 {
        let age = now.nanos().saturating_sub(self.line.base);
        self.line
            .origin
            .saturating_add(age.saturating_mul(self.line.parts_per_nano))
    }

    /// The value that a grant has reached, which was just made under the lock, with `used` parts after it.
    pub(crate) fn reached(&mut self, now: Moment, used: u64) -> u64 {
        self.raised_since_grant = 0;
        self.present(now).saturating_add(used)
    }

    /// Returns a line that holds from `now` on, with the value of its usage; the present line if it still holds. `None` where no value
    /// is small enough. `fence` is that of the latest grant.
    pub(crate) fn draw(
        &mut self,
        slope: Slope,
        now: Moment,
        fence: u64,
    ) -> Option<(PackedRate, u64)> {
        let room = room(slope)?;
        let Slope {
            parts_per_nano,
            parts_per_unit,
            tolerance,
            used,
            holds_for,
        } = slope;
        let present = self.present(now);
        // A usage of zero is any value up to the line.
        let value = if used == 0 {
            present.min(self.latest)
        } else {
            present.saturating_add(used)
        };
        let age = now.nanos().saturating_sub(self.line.base);
        let ends_as_drawn =
            parts_per_nano != 0 || self.line.max_age.checked_sub(age) == Some(holds_for);
        if !self.raised && value >= self.latest && ends_as_drawn && age <= self.line.max_age / 2 {
            self.latest = value;
            return Some((self.line, value));
        }
        // The value must differ from all that were held on another line.
        let raise = (self.latest + 1).saturating_sub(present.saturating_add(used));
        let mut origin = present.saturating_add(raise);
        self.raised_since_grant = self.raised_since_grant.saturating_add(raise);
        if origin > room {
            *self = Self::new(parts_per_nano, now, fence);
            origin = 0;
        }
        let max_age = (MAX_VALUE - tolerance - origin)
            .checked_div(parts_per_nano)
            .unwrap_or(u64::MAX)
            .min(holds_for);
        self.line = PackedRate {
            base: now.nanos(),
            origin,
            parts_per_nano,
            parts_per_unit,
            tolerance,
            max_age,
        };
        self.latest = origin + used;
        self.raised = false;
        Some((self.line, self.latest))
    }

    /// The parts used at the base of the line, after a word has raised the value to this one. `None` if it has not.
    pub(crate) fn take_over(&mut self, value: u64) -> Option<(Moment, u64)> {
        if value == self.latest {
            return None;
        }
        self.latest = value;
        self.raised_since_grant = 0;
        Some((Moment::from_nanos(self.line.base), value - self.line.origin))
    }

    /// How many parts of a grant can be refunded `now`, by the value that the grant has reached.
    ///
    /// A refund must leave what every later grant has found used, less what time has refilled since: that grant was paced by it. As
    /// the value never falls, each grant fills an interval of values of its own, from what it found to what it reached; and a later
    /// grant found at least what the earlier ones reached. So of the intervals of grants, the parts that lay above the line when the
    /// latest grant was made can be refunded in any order, and each later grant had found as much. The line has not fallen since.
    pub(crate) fn refundable(&self, now: Moment, fence: u64, reached: u64) -> u64 {
        let line = self.present(now).saturating_sub(self.raised_since_grant);
        if fence > self.refundable_after {
            reached.saturating_sub(line)
        } else {
            0
        }
    }

    /// Units were charged without a grant. A later refund must leave them, as it leaves those of a grant.
    pub(crate) fn charged(&mut self) {
        self.raised_since_grant = 0;
    }

    /// The usage was lowered by a refund.
    pub(crate) fn refund(&mut self, parts: u64) {
        self.line.origin = self.line.origin.saturating_add(parts);
        self.raised_since_grant = self.raised_since_grant.saturating_add(parts);
        self.raised |= parts > 0;
    }
}

/// Whether the rate fits a line while it has no debt.
pub(crate) fn fits(slope: Slope) -> bool {
    room(Slope { used: 0, ..slope }).is_some()
}

/// The largest origin of a line that holds for at least a second; `None` where no value is small enough.
fn room(slope: Slope) -> Option<u64> {
    const MIN_AGE: u64 = 1_000_000_000;
    MAX_VALUE
        .checked_sub(slope.tolerance.max(slope.used))?
        .checked_sub(slope.parts_per_nano.checked_mul(MIN_AGE)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::strategy::{PaceRule, Strategy as _, WindowRule};

    type PaceState = <PaceRule as crate::strategy::Strategy>::State;

    #[derive(Debug, Clone, Copy)]
    enum Input {
        /// Takes units without the lock, on the line as it was drawn last.
        Take { cost: u64 },
        /// The lock is taken and left; the line is drawn anew if need be.
        Draw,
        /// A grant under the lock.
        Grant { cost: u64 },
        /// Refunds all units but some of an earlier grant.
        Refund {
            grant: prop::sample::Index,
            kept: u64,
        },
    }

    fn inputs() -> impl Strategy<Value = Vec<(u64, Input)>> {
        let input = prop_oneof![
            4 => (1_u64..6).prop_map(|cost| Input::Take { cost }),
            1 => Just(Input::Draw),
            2 => (1_u64..6).prop_map(|cost| Input::Grant { cost }),
            3 => (any::<prop::sample::Index>(), 0_u64..4).prop_map(|(grant, kept)| Input::Refund { grant, kept }),
        ];
        prop::collection::vec((prop_oneof![Just(0_u64), 0_u64..40], input), 1..60)
    }

    /// A grant, as it is known outside.
    #[derive(Debug)]
    struct Made {
        at: Moment,
        cost: u64,
        /// What was used of it, once that is settled.
        kept: Option<u64>,
        reached: u64,
        fence: u64,
    }

    /// The first line of a rate that has this state.
    fn drawn<R: crate::strategy::Strategy>(
        rule: &R,
        state: R::State,
        now: Moment,
    ) -> Option<(PackedRate, u64)> {
        let slope = rule.slope(state, now)?;
        PackedRateHistory::new(slope.parts_per_nano, now, 0).draw(slope, now, 0)
    }

    /// A line admits what its rule admits, and denies as its rule does. It may leave a denial to the lock.
    fn answers_as_its_rule<R: crate::strategy::Strategy>(
        rule: &R,
        state: R::State,
        (line, value): (PackedRate, u64),
        (now, cost): (Moment, u64),
    ) -> Result<(), TestCaseError> {
        let holds = now.nanos() - line.base <= line.max_age;
        let report = rule.report(state, now, 0, cost);
        let admits = holds && report.denied_until.is_none();
        prop_assert_eq!(line.take(value, now.nanos(), cost).is_some(), admits);
        match line.denial(value, now.nanos(), cost) {
            Some(denial) => {
                let until = Some(Moment::from_nanos(denial.until));
                prop_assert_eq!(until, report.denied_until);
                prop_assert_eq!(until, Some(report.ready_at));
                prop_assert_eq!(denial.remaining, report.remaining);
                prop_assert_eq!(Moment::from_nanos(denial.reset_at), report.reset_at);
            }
            None => prop_assert!(
                report.denied_until.is_none()
                    || !holds
                    || line.parts_per_nano == 0 && value - line.origin > line.tolerance,
                "left to the lock"
            ),
        }
        Ok(())
    }

    /// On one line after another, what is taken without the lock and what is charged under it add up as the rule adds them.
    fn follows_its_rule<R: crate::strategy::Strategy>(
        rule: &R,
        capacity: u64,
        inputs: &[(u64, Input)],
    ) -> Result<(), TestCaseError> {
        let (mut state, mut now) = (rule.initial(Moment::START), Moment::from_nanos(1_000));
        let slope = rule.slope(state, now);
        let mut track =
            PackedRateHistory::new(slope.map_or(0, |slope| slope.parts_per_nano), now, 0);
        let mut word = None;
        for (nanos, input) in inputs {
            now = now.plus(*nanos);
            if let Input::Take { cost } = input {
                let cost = *cost.min(&capacity);
                if word.is_none() {
                    word = rule
                        .slope(state, now)
                        .and_then(|slope| track.draw(slope, now, 0));
                }
                if let Some((line, value)) = &mut word {
                    answers_as_its_rule(rule, state, (*line, *value), (now, cost))?;
                    if let Some(next) = line.take(*value, now.nanos(), cost) {
                        *value = next;
                        state = rule.decide(state, now, cost).unwrap();
                    }
                }
                continue;
            }
            if let Some((_, value)) = word.take()
                && let Some((base, used)) = track.take_over(value)
            {
                let taken = rule.with_used(state, base, used);
                prop_assert_eq!(rule.usage(taken, now), rule.usage(state, now));
                state = taken;
            }
            match input {
                Input::Grant { cost } => {
                    let next = rule.decide(state, now, *cost.min(&capacity));
                    state = next.unwrap_or(state);
                }
                Input::Refund { kept, .. } => state = rule.forgive(state, now, *kept),
                Input::Take { .. } | Input::Draw => {}
            }
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(crate::replay::cases(4_000))]

        #[test]
        fn a_line_answers_as_its_rule(
            units in 1_u64..4, period in 1_u64..30, burst in 1_u64..8, charges in prop::collection::vec((0_u64..30, 0_u64..6), 0..6),
            drawn_after in 0_u64..40, later in 0_u64..60, cost in 1_u64..8, phase in prop::option::of(0_u64..10),
        ) {
            let (pace, window) = (
                PaceRule::continuous(units, period, burst, burst).unwrap(),
                WindowRule { limit: burst, period: 10 * period, phase },
            );
            let (mut of_pace, mut of_window, mut now) = (Default::default(), Default::default(), Moment::START);
            for (nanos, units) in charges {
                now = now.plus(nanos);
                of_pace = pace.charge(of_pace, now, units);
                of_window = window.charge(of_window, now, units);
            }
            let drawn_at = now.plus(drawn_after);
            let asked = (drawn_at.plus(later), cost.min(burst));
            if let Some(word) = drawn(&pace, of_pace, drawn_at) {
                answers_as_its_rule(&pace, of_pace, word, asked)?;
            }
            if let Some(word) = drawn(&window, of_window, drawn_at) {
                answers_as_its_rule(&window, of_window, word, asked)?;
            }
        }

        #[test]
        fn a_rate_goes_on_from_line_to_line(
            units in 1_u64..4, period in 1_u64..30, burst in 1_u64..8, phase in prop::option::of(0_u64..10), inputs in inputs(),
        ) {
            follows_its_rule(&PaceRule::continuous(units, period, burst, burst).unwrap(), burst, &inputs)?;
            follows_its_rule(&WindowRule { limit: burst, period: 10 * period, phase }, burst, &inputs)?;
        }

        /// Whatever is refunded, between two grants there is never more than the burst and what time brings.
        #[test]
        fn refunds_never_let_the_grants_exceed_the_pace(
            units in 1_u64..4, period in 1_u64..30, burst in 1_u64..8, inputs in inputs(),
        ) {
            let rule = PaceRule::continuous(units, period, burst, burst).unwrap();
            let (mut state, mut now, mut fence) = (PaceState::default(), Moment::START, 0);
            let mut track = PackedRateHistory::new(rule.slope(state, now).unwrap().parts_per_nano, now, 0);
            let (mut line, mut value) = track.draw(rule.slope(state, now).unwrap(), now, 0).unwrap();
            let mut is_open = true;
            let mut made: Vec<Made> = Vec::new();
            for (nanos, input) in inputs {
                now = now.plus(nanos);
                if !is_open && matches!(input, Input::Take { .. } | Input::Draw) {
                    let former = (line, value);
                    (line, value) = track.draw(rule.slope(state, now).unwrap(), now, fence).unwrap();
                    prop_assert!(line == former.0 || value > former.1, "a value returned on another line");
                    prop_assert!(value >= former.1);
                    is_open = true;
                }
                if let Input::Take { cost } = input {
                    if let Some(reached) = line.take(value, now.nanos(), cost) {
                        prop_assert!(reached > value);
                        value = reached;
                        fence += 1;
                        made.push(Made { at: now, cost, kept: None, reached, fence });
                    }
                    continue;
                }
                if is_open && let Some((base, used)) = track.take_over(value) {
                    state = rule.with_used(state, base, used);
                }
                is_open = matches!(input, Input::Draw);
                match input {
                    Input::Grant { cost } => if let Ok(next) = rule.decide(state, now, cost) {
                        state = next;
                        fence += 1;
                        let used = rule.slope(state, now).unwrap().used;
                        made.push(Made { at: now, cost, kept: None, reached: track.reached(now, used), fence });
                    },
                    Input::Refund { grant, kept } if !made.is_empty() => {
                        let grant = grant.get(&made);
                        if grant.kept.is_none() && kept < grant.cost {
                            let most = track.refundable(now, grant.fence, grant.reached);
                            let (refunded, parts) = rule.refund_at_most(state, grant.cost - kept, most);
                            state = refunded;
                            track.refund(parts);
                            let nth = grant.fence as usize - 1;
                            made[nth].kept = Some(kept);
                        }
                    }
                    _ => {}
                }
                for from in 0..made.len() {
                    let mut sum = 0;
                    for to in from..made.len() {
                        sum += made[to].kept.unwrap_or(made[to].cost);
                        let elapsed = made[to].at.since(made[from].at);
                        prop_assert!(sum * period <= burst * period + elapsed * units, "from grant {from} to {to}: {made:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_line_stays_until_half_its_age_has_passed() {
        let start = Moment::from_nanos(1_000);
        let pace = PaceRule::continuous(3, 10, 6, 6).unwrap();
        let window = WindowRule {
            limit: 6,
            period: 100,
            phase: None,
        };
        stays_until_half_its_age(&pace, pace.charge(pace.initial(start), start, 2), start);
        let opened = window.charge(window.initial(start), start, 2);
        assert_eq!(stays_until_half_its_age(&window, opened, start), 99);
    }

    fn stays_until_half_its_age<R: crate::strategy::Strategy>(
        rule: &R,
        state: R::State,
        start: Moment,
    ) -> u64 {
        let slope_at = |now| rule.slope(state, now).unwrap();
        let mut track = PackedRateHistory::new(slope_at(start).parts_per_nano, start, 0);
        let (line, _) = track.draw(slope_at(start), start, 0).unwrap();
        let mut draw_at = |age: u64| {
            let now = start.plus(age);
            track.refund(0);
            track.draw(slope_at(now), now, 0).unwrap().0
        };
        let half = line.max_age / 2;
        for age in [0, 1, 2, half] {
            assert_eq!(draw_at(age), line);
        }
        let next = draw_at(half + 1);
        assert_eq!(next.base, line.base + half + 1);
        line.max_age
    }

    /// Nothing is used of a window that a grant opened and a refund closed, so the next grant opens another.
    #[test]
    fn a_window_that_another_replaces_has_another_line() {
        let rule = WindowRule {
            limit: 3,
            period: 100,
            phase: None,
        };
        let (opened, now) = (Moment::from_nanos(1_000), Moment::from_nanos(1_020));
        let mut track = PackedRateHistory::new(0, opened, 0);
        let first = rule.charge(rule.initial(opened), opened, 3);
        track
            .draw(rule.slope(first, opened).unwrap(), opened, 1)
            .unwrap();
        let closed = rule.refund(first, opened, opened, 3);
        assert!(rule.slope(closed, opened).is_none());
        let second = rule.charge(closed, now, 3);
        let (line, value) = track
            .draw(rule.slope(second, now).unwrap(), now, 2)
            .unwrap();
        let denial = line.denial(value, 1_050, 1).unwrap();
        assert_eq!(denial.until, 1_120);
    }

    #[test]
    fn a_pace_is_a_line_while_no_value_exceeds_the_largest() {
        let now = Moment::from_nanos(1_000);
        let mut track = PackedRateHistory::new(3, now, 0);
        for used in [40, 7, 0] {
            let slope = Slope {
                parts_per_nano: 3,
                parts_per_unit: 10,
                tolerance: 50,
                used,
                holds_for: u64::MAX,
            };
            let (line, _) = track.draw(slope, now, 0).unwrap();
            let last = line.origin + line.max_age * 3 + line.tolerance;
            assert!((MAX_VALUE - 2..=MAX_VALUE).contains(&last), "{last}");
        }
    }

    /// A limit so high that only five units above it fit.
    #[test]
    fn a_line_that_reaches_the_largest_value_begins_anew_and_refunds_nothing_from_before() {
        let slope = Slope {
            parts_per_nano: 0,
            parts_per_unit: 1,
            tolerance: MAX_VALUE - 5,
            used: 0,
            holds_for: 100,
        };
        let now = Moment::from_nanos(1_000);
        let mut track = PackedRateHistory::new(0, now, 0);
        let origins = [(); 7].map(|()| {
            let (line, _) = track.draw(slope, now, 9).unwrap();
            track.refund(1);
            line.origin
        });
        assert_eq!(origins, [1, 2, 3, 4, 5, 0, 1]);
        assert_eq!(
            [9, 10].map(|fence| track.refundable(now, fence, 100)),
            [0, 100]
        );
    }

    #[test]
    fn a_rate_fits_a_line_that_lasts_a_second_whatever_its_debt() {
        let slope = Slope {
            parts_per_nano: 3,
            parts_per_unit: 1,
            tolerance: MAX_VALUE - 3_000_000_000,
            used: MAX_VALUE,
            holds_for: u64::MAX,
        };
        assert!(fits(slope));
        let tolerance = slope.tolerance + 1;
        assert!(!fits(Slope { tolerance, ..slope }));
    }

    /// Refunds without a grant between them leave nothing used, in any order, if time does not pass.
    #[test]
    fn grants_are_refunded_whole_in_any_order() {
        let rule = PaceRule::continuous(1, 10, 6, 6).unwrap();
        let now = Moment::START;
        for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
            let mut track = PackedRateHistory::new(1, now, 0);
            let (line, mut value) = track
                .draw(rule.slope(PaceState::default(), now).unwrap(), now, 0)
                .unwrap();
            let reached = [1, 2, 3].map(|cost| {
                value = line.take(value, 0, cost).unwrap();
                value
            });
            let (base, used) = track.take_over(value).unwrap();
            let mut state = rule.with_used(PaceState::default(), base, used);
            for nth in order {
                let most = track.refundable(now, nth as u64 + 1, reached[nth]);
                let (refunded, parts) = rule.refund_at_most(state, nth as u64 + 1, most);
                state = refunded;
                track.refund(parts);
                track.draw(rule.slope(state, now).unwrap(), now, 3);
            }
            assert_eq!(rule.remaining(state, now), 6);
        }
    }
}
