use super::super::{Moment, Ratio, StateWords, Strategy, Usage};

/// The parameters of a [`SlidingWindow::counter`](super::SlidingWindow::counter), checked: the limit is at most [`u32::MAX`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct CounterRule {
    pub(crate) limit: u64,
    /// Nanoseconds; windows start at its multiples since [`Moment::START`].
    pub(crate) period: u64,
}

/// The units of the latest window with a charge and of the one before it. A debt beyond [`u32::MAX`] is cut off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CounterState {
    /// Which window of the grid.
    window: u64,
    current: u32,
    previous: u32,
}

impl CounterState {
    /// The state of the next window.
    fn next(self) -> Self {
        Self { window: self.window.saturating_add(1), current: 0, previous: self.current }
    }

    fn plus(self, cost: u64) -> Self {
        Self { current: self.current.saturating_add(u32::try_from(cost).unwrap_or(u32::MAX)), ..self }
    }
}

impl CounterRule {
    /// The state of the window at `now`.
    #[inline(always)]
    fn rolled(&self, state: CounterState, now: Moment) -> CounterState {
        let window = now.nanos() / self.period;
        match window.saturating_sub(state.window) {
            0 => state,
            1 => state.next(),
            _ => CounterState { window, current: 0, previous: 0 },
        }
    }

    fn start(&self, window: u64) -> Moment {
        Moment::from_nanos(window.saturating_mul(self.period))
    }

    /// The usage, in units times nanoseconds.
    #[inline(always)]
    fn weight(&self, rolled: CounterState, now: Moment) -> u128 {
        let period = u128::from(self.period);
        let to_go = period.saturating_sub(now.since(self.start(rolled.window)).into());
        u128::from(rolled.previous) * to_go + u128::from(rolled.current) * period
    }

    /// The rest of the limit, in units times nanoseconds.
    #[inline(always)]
    fn room(&self, rolled: CounterState, now: Moment) -> u128 {
        (u128::from(self.limit) * u128::from(self.period)).saturating_sub(self.weight(rolled, now))
    }

    /// How far into the window of `rolled` there is room for `cost`. `None`: not in this window.
    fn elapsed(&self, rolled: CounterState, cost: u64) -> Option<u64> {
        let units = self.limit.checked_sub(rolled.current.into())?.checked_sub(cost)?;
        let room = u128::from(units) * u128::from(self.period);
        // The longest part of the previous window that may weigh; rounded down, for an instant rounded up.
        let to_go = room.checked_div(rolled.previous.into()).and_then(|to_go| u64::try_from(to_go).ok()).unwrap_or(u64::MAX);
        Some(self.period.saturating_sub(to_go)).filter(|elapsed| *elapsed < self.period)
    }

    /// The first instant with room. The weight only falls while nothing is granted, across windows too.
    fn first(&self, rolled: CounterState, now: Moment, cost: u64) -> Moment {
        let next = rolled.next();
        [rolled, next]
            .into_iter()
            .find_map(|state| Some(self.start(state.window).plus(self.elapsed(state, cost)?)))
            .unwrap_or_else(|| self.start(next.next().window))
            .max(now)
    }

    /// Refunds a grant of `cost` that was decided at `at`, if its window still counts. Exact: as if the grant had never been
    /// made.
    pub(crate) fn refund(&self, state: CounterState, at: Moment, cost: u64) -> CounterState {
        let cost = u32::try_from(cost).unwrap_or(u32::MAX);
        match state.window.checked_sub(at.nanos() / self.period) {
            Some(0) => CounterState { current: state.current.saturating_sub(cost), ..state },
            Some(1) => CounterState { previous: state.previous.saturating_sub(cost), ..state },
            _ => state,
        }
    }

    /// What a counter of other parameters takes over: both counts, if the windows are the same. Otherwise all usage counts as
    /// granted now, since the counts of one grid do not say what lies in the windows of another.
    pub(crate) fn take_over(&self, now: Moment, former: &Self, state: CounterState, ratio: Ratio) -> CounterState {
        if self.period != former.period {
            return self.with_usage(now, former.usage(state, now), ratio);
        }
        let rolled = former.rolled(state, now);
        let of = |units: u32| u32::try_from(ratio.of_whole(Usage::of_units(units.into()))).unwrap_or(u32::MAX);
        CounterState { current: of(rolled.current), previous: of(rolled.previous), ..rolled }
    }
}

impl Strategy for CounterRule {
    type State = CounterState;

    fn initial(&self, _now: Moment) -> CounterState {
        CounterState::default()
    }

    #[inline(always)]
    fn decide(&self, state: CounterState, now: Moment, cost: u64) -> Result<CounterState, Moment> {
        let rolled = self.rolled(state, now);
        if u128::from(cost) * u128::from(self.period) <= self.room(rolled, now) {
            Ok(rolled.plus(cost))
        } else {
            Err(self.first(rolled, now, cost))
        }
    }

    fn charge(&self, state: CounterState, now: Moment, cost: u64) -> CounterState {
        self.rolled(state, now).plus(cost)
    }

    fn ready_at(&self, state: CounterState, now: Moment, ahead: u64, cost: u64) -> Moment {
        let rolled = self.rolled(state, now);
        let alone = self.first(rolled, now, cost);
        // No window of the grid holds more than the limit, whatever the one before it holds.
        let here = self.limit.saturating_sub(rolled.current.into());
        let beyond = (u128::from(ahead) + u128::from(cost)).saturating_sub(here.into());
        let windows = u64::try_from(beyond.div_ceil(self.limit.max(1).into())).unwrap_or(u64::MAX);
        if windows == 0 { alone } else { alone.max(self.start(rolled.window.saturating_add(windows))) }
    }

    fn remaining(&self, state: CounterState, now: Moment) -> u64 {
        (self.room(self.rolled(state, now), now) / u128::from(self.period)) as u64
    }

    fn usage(&self, state: CounterState, now: Moment) -> Usage {
        Usage { parts: self.weight(self.rolled(state, now), now), parts_per_unit: self.period }
    }

    /// The latest units first.
    fn forgive(&self, state: CounterState, now: Moment, cost: u64) -> CounterState {
        let rolled = self.rolled(state, now);
        let cost = u32::try_from(cost).unwrap_or(u32::MAX);
        let current = rolled.current.saturating_sub(cost);
        let left = cost - (rolled.current - current);
        CounterState { current, previous: rolled.previous.saturating_sub(left), ..rolled }
    }

    fn reset_at(&self, state: CounterState, now: Moment) -> Moment {
        match self.rolled(state, now) {
            CounterState { current: 0, previous: 0, .. } => now,
            CounterState { window, current: 0, .. } => self.start(window.saturating_add(1)),
            CounterState { window, .. } => self.start(window.saturating_add(2)),
        }
    }
}

impl From<StateWords> for CounterState {
    fn from([window, units]: StateWords) -> Self {
        Self { window, current: units as u32, previous: (units >> 32) as u32 }
    }
}

impl From<CounterState> for StateWords {
    fn from(CounterState { window, current, previous }: CounterState) -> Self {
        [window, u64::from(previous) << 32 | u64::from(current)]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::super::super::{MAX_SPAN_NANOS, Strategy as _}; // both globs have a `Strategy`
    use super::*;

    fn at(nanos: u64) -> Moment {
        Moment::from_nanos(nanos)
    }

    /// The rule, applied naively to a list of every grant.
    fn weight(grants: &[(u64, u64)], period: u64, now: u64) -> u64 {
        let units = |window| grants.iter().filter(|grant| grant.0 / period + 1 == window).map(|grant| grant.1).sum::<u64>();
        let window = now / period + 1;
        units(window - 1) * (period - now % period) + units(window) * period
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        /// Invariants 1 and 7, against a list of every grant, with refunds and debts.
        #[test]
        fn agrees_with_a_list_of_every_grant(
            limit in 1_u64..9, period in 1_u64..300,
            steps in prop::collection::vec((0_u64..200, 1_u64..9, 0_u8..12, any::<prop::sample::Index>()), 1..60),
        ) {
            let rule = CounterRule { limit, period };
            let (mut state, mut now, mut grants) = (rule.initial(Moment::START), Moment::START, Vec::new());
            for (step, cost, what, pick) in steps {
                now = now.plus(step);
                match what {
                    0 => {
                        state = rule.charge(state, now, cost * 2); // whether or not there is room
                        grants.push((now.nanos(), cost * 2));
                    }
                    1 if !grants.is_empty() => {
                        let (at, cost) = grants.remove(pick.index(grants.len()));
                        state = rule.refund(state, Moment::from_nanos(at), cost);
                    }
                    _ => {
                        let cost = cost.min(limit);
                        let admits = |now: Moment| weight(&grants, period, now.nanos()) + cost * period <= limit * period;
                        if let Err(until) = rule.decide(state, now, cost) {
                            prop_assert!(!admits(now) && !admits(until.minus(1)) && admits(until));
                            prop_assert_eq!(until, rule.ready_at(state, now, 0, cost));
                            prop_assert_eq!(rule.decide(state, until.minus(1), cost), Err(until));
                            now = until;
                        }
                        let Ok(next) = rule.decide(state, now, cost) else { panic!("denied at its retry-after") };
                        prop_assert!(admits(now));
                        prop_assert_eq!(next, rule.charge(state, now, cost));
                        state = next;
                        grants.push((now.nanos(), cost));
                    }
                }
                let left = (limit * period).saturating_sub(weight(&grants, period, now.nanos())) / period;
                prop_assert_eq!(rule.remaining(state, now), left);
                let reset = rule.reset_at(state, now).nanos();
                prop_assert_eq!(weight(&grants, period, reset), 0);
                prop_assert!(reset == now.nanos() || weight(&grants, period, reset - 1) > 0);
                prop_assert_eq!(CounterState::from(StateWords::from(state)), state);
            }
        }

        #[test]
        fn no_cost_is_admitted_before_it_is_predicted(
            limit in 1_u64..9, period in 1_u64..300, ahead in 0_u64..40, cost in 1_u64..9,
            before in prop::collection::vec((0_u64..200, 1_u64..20), 0..12),
        ) {
            let rule = CounterRule { limit, period };
            let (mut state, mut now, cost) = (rule.initial(Moment::START), Moment::START, cost.min(limit));
            for (step, cost) in before {
                now = now.plus(step);
                state = rule.charge(state, now, cost);
            }
            let predicted = rule.ready_at(state, now, ahead, cost);
            for _ in 0..ahead {
                now = rule.ready_at(state, now, 0, 1);
                state = rule.charge(state, now, 1);
            }
            prop_assert!(predicted <= rule.ready_at(state, now, 0, cost));
        }

        /// The documented bound, between any two grants of any schedule: `limit × (1 + t / period)`, and below twice the limit.
        #[test]
        fn never_admits_more_than_its_documented_bound(
            limit in 1_u64..12, period in 1_u64..200, greed in 1_u64..8,
            steps in prop::collection::vec((0_u64..80, 1_u64..12), 1..60),
        ) {
            let rule = CounterRule { limit, period };
            let (mut state, mut now, mut grants) = (rule.initial(Moment::START), Moment::START, Vec::<(u64, u64)>::new());
            for (step, cost) in steps {
                now = now.plus(step / greed); // greedy callers retry at once and take what remains
                while let Ok(next) = rule.decide(state, now, cost.min(limit)) {
                    state = next;
                    grants.push((now.nanos(), cost.min(limit)));
                }
            }
            for first in 0..grants.len() {
                let mut units = 0;
                for grant in grants[first..].iter().take_while(|grant| grant.0 - grants[first].0 < period) {
                    units += grant.1;
                    prop_assert!(units * period <= limit * period + limit * (grant.0 - grants[first].0));
                    prop_assert!(units < 2 * limit);
                }
            }
        }
    }

    /// The bound is tight: all units at the end of a window, and then each unit as soon as it is admitted.
    #[test]
    fn an_adversary_gets_one_less_than_twice_the_limit_in_one_period() {
        for limit in [1, 2, 7, 100, 1_000] {
            let rule = CounterRule { limit, period: 1_000_000 };
            let first = at(rule.period - 1);
            let mut state = rule.charge(rule.initial(first), first, limit);
            let (mut now, mut units) = (first, limit);
            loop {
                now = rule.ready_at(state, now, 0, 1);
                if now.since(first) >= rule.period {
                    break;
                }
                state = rule.charge(state, now, 1);
                units += 1;
            }
            assert_eq!(units, 2 * limit - 1);
        }
    }

    /// The other way: all at the start of a window still weigh whole when the log has forgotten them.
    #[test]
    fn a_whole_limit_is_refused_that_the_log_would_admit() {
        let rule = CounterRule { limit: 10, period: 1_000 };
        let state = rule.charge(rule.initial(at(0)), at(0), 10);
        assert_eq!((rule.remaining(state, at(1_000)), rule.remaining(state, at(1_999))), (0, 9));
    }

    /// What the docs of [`SlidingWindow`](super::super::SlidingWindow) say was measured.
    #[test]
    fn the_guess_is_off_by_a_few_percent_under_random_traffic() {
        let rule = CounterRule { limit: 100, period: 1_000_000_000 };
        let mut seed = 0_u64;
        let mut random = || {
            // SplitMix64 (Steele, Lea, Flood 2014).
            seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (seed ^ seed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((mixed ^ mixed >> 31) >> 11) as f64 / (1_u64 << 53) as f64
        };
        let (attempts, limit, period) = (200_000, rule.limit as f64, rule.period as f64);
        for load in [0.9, 1.0, 1.1, 1.5] {
            let (mut state, mut now, mut off, mut fullest) = (rule.initial(Moment::START), 0.0, 0.0, 0);
            let mut log = VecDeque::<Moment>::new();
            for _ in 0..attempts {
                now -= (1.0 - random()).ln() * period / (limit * load);
                let instant = at(now as u64);
                while log.front().is_some_and(|granted| granted.plus(rule.period) <= instant) {
                    log.pop_front();
                }
                let guess = limit - rule.room(rule.rolled(state, instant), instant) as f64 / period;
                off += (guess - log.len() as f64).abs();
                if let Ok(next) = rule.decide(state, instant, 1) {
                    state = next;
                    log.push_back(instant);
                    fullest = fullest.max(log.len());
                }
            }
            let off = off / f64::from(attempts) / limit * 100.0;
            println!("at {load} times the limit: off by {off:.2} % on average, at most {fullest} in one period");
            assert!((0.9..2.9).contains(&off) && (100..=117).contains(&fullest));
        }
    }

    #[test]
    fn a_refund_comes_back_from_the_window_of_its_grant() {
        let rule = CounterRule { limit: 4, period: 100 };
        let state = rule.charge(rule.charge(rule.initial(at(0)), at(50), 4), at(150), 2);
        assert_eq!(rule.remaining(state, at(150)), 0);
        assert_eq!(rule.remaining(rule.refund(state, at(150), 2), at(150)), 2);
        assert_eq!(rule.remaining(rule.refund(state, at(50), 4), at(150)), 2);
        assert_eq!(rule.refund(rule.charge(state, at(350), 1), at(150), 2), rule.charge(state, at(350), 1), "too late");
    }

    #[test]
    fn the_largest_parameters_do_not_overflow() {
        let most = u64::from(u32::MAX);
        let rule = CounterRule { limit: most, period: MAX_SPAN_NANOS };
        let Ok(state) = rule.decide(rule.initial(at(0)), at(3), most) else { panic!() };
        assert_eq!(rule.ready_at(state, at(3), 0, most), at(2 * MAX_SPAN_NANOS));
        assert_eq!(rule.ready_at(state, at(3), u64::MAX, u64::MAX), Moment::NEVER);
        let debt = rule.charge(state, at(3), u64::MAX);
        assert_eq!((debt, rule.remaining(debt, at(3))), (state, 0), "it saturates");
        assert_eq!(rule.reset_at(debt, Moment::NEVER), Moment::NEVER);
        assert_eq!(rule.decide(debt, Moment::NEVER, u64::MAX), Err(Moment::NEVER));
        let fastest = CounterRule { limit: 1, period: 1 };
        let state = fastest.charge(fastest.initial(at(0)), Moment::NEVER, 1);
        assert_eq!(fastest.ready_at(state, Moment::NEVER, 1, 1), Moment::NEVER);
    }
}
