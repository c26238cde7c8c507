//! Tests of the two counters against a list of every grant.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::super::super::{MAX_SPAN_NANOS, Strategy as _}; // both globs have a `Strategy`
use super::*;

fn at(nanos: u64) -> Moment {
    Moment::from_nanos(nanos)
}

/// The rule, applied naively to a list of every grant.
fn weight(grants: &[(u64, u64)], period: u64, now: u64) -> u64 {
    let units = |window| {
        grants
            .iter()
            .filter(|grant| grant.0 / period + 1 == window)
            .map(|grant| grant.1)
            .sum::<u64>()
    };
    let window = now / period + 1;
    units(window - 1) * (period - now % period) + units(window) * period
}

proptest! {
    #![proptest_config(crate::replay::cases(4_000))]

    /// Invariants 1 and 7, against a list of every grant, with refunds, rewards and debts.
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
                    state = rule.refund(state, now, Moment::from_nanos(at), cost);
                }
                2 => {
                    state = rule.forgive(state, now, cost);
                    let mut left = cost;
                    for (_, units) in grants.iter_mut().rev() {
                        let taken = left.min(*units);
                        *units -= taken;
                        left -= taken;
                    }
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

proptest! {
    #![proptest_config(crate::replay::cases(4_000))]

    /// The period changes at any time, against a list of every grant: the usage never falls by a change, all of it leaves within
    /// two periods after the last one, and no span shorter than the shortest period admits more than the documented bound.
    #[test]
    fn changes_of_the_period_never_admit_more_than_the_documented_bound(
        limit in 1_u64..12, periods in prop::collection::vec(1_u64..200, 2..4),
        steps in prop::collection::vec((0_u64..80, 1_u64..12, prop::option::of(any::<prop::sample::Index>())), 1..60),
    ) {
        let shortest = *periods.iter().min().unwrap();
        let mut rule = CounterRule { limit, period: periods[0] };
        let (mut state, mut now, mut grants) = (rule.initial(Moment::START), Moment::START, Vec::<(u64, u64)>::new());
        for (step, cost, change) in steps {
            now = now.plus(step);
            if let Some(change) = change {
                let new = CounterRule { limit, period: *change.get(&periods) };
                let taken = new.take_over(now, &rule, state, Ratio { new: 1, old: 1 });
                let (before, after) = (rule.usage(state, now), new.usage(taken, now));
                prop_assert!(after.parts * u128::from(before.parts_per_unit) >= before.parts * u128::from(after.parts_per_unit));
                prop_assert!(new.period != rule.period || after == before);
                let end = now.plus(2 * new.period);
                prop_assert!(new.reset_at(taken, now) <= end && new.remaining(taken, end) == limit);
                rule = new;
                state = taken;
            }
            while let Ok(next) = rule.decide(state, now, cost.min(limit)) {
                state = next;
                grants.push((now.nanos(), cost.min(limit)));
            }
        }
        for first in 0..grants.len() {
            let mut units = 0;
            for grant in grants[first..].iter().take_while(|grant| grant.0 - grants[first].0 < shortest) {
                units += grant.1;
                prop_assert!(units * shortest <= limit * shortest + limit * (grant.0 - grants[first].0));
            }
        }
    }

    /// After a change to a longer period, the counter weighs what a new one would that had seen all grants that the old one
    /// still knew.
    #[test]
    fn a_longer_period_counts_from_the_grants(
        limit in 1_u64..12, period in 1_u64..200, longer in 0_u64..200, wait in 0_u64..800,
        steps in prop::collection::vec((0_u64..80, 1_u64..12), 1..30),
    ) {
        let former = CounterRule { limit, period };
        let (mut state, mut now, mut grants) = (former.initial(Moment::START), 0, Vec::new());
        for (step, cost) in steps {
            now += step;
            state = former.charge(state, at(now), cost);
            grants.push((now, cost));
        }
        let line = now / period * period;
        grants.retain(|grant| grant.0 + period >= line);
        let rule = CounterRule { limit, period: period + longer };
        let taken = rule.take_over(at(now), &former, state, Ratio { new: 1, old: 1 });
        // The list counts in windows from 0. So it is moved to have a line at `line`.
        let moved = 2 * rule.period - line % rule.period;
        let grants: Vec<_> = grants.iter().map(|grant| (grant.0 + moved, grant.1)).collect();
        let expected = weight(&grants, rule.period, now + wait + moved);
        prop_assert_eq!(rule.usage(taken, at(now + wait)).parts, u128::from(expected));
    }
}

/// The bound is tight: all units at the end of a window, and then each unit as soon as it is admitted.
#[test]
fn an_adversary_gets_one_less_than_twice_the_limit_in_one_period() {
    for limit in [1, 2, 7, 100, 1_000] {
        let rule = CounterRule {
            limit,
            period: 1_000_000,
        };
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

/// The opposite case: units at the start of a window still weigh in full when the log has forgotten them.
#[test]
fn a_whole_limit_is_refused_that_the_log_would_admit() {
    let rule = CounterRule {
        limit: 10,
        period: 1_000,
    };
    let state = rule.charge(rule.initial(at(0)), at(0), 10);
    assert_eq!(
        (
            rule.remaining(state, at(1_000)),
            rule.remaining(state, at(1_999))
        ),
        (0, 9)
    );
}

/// Measures the numbers in the docs of [`SlidingWindow`](super::super::SlidingWindow).
#[test]
fn the_guess_is_off_by_a_few_percent_under_random_traffic() {
    let rule = CounterRule {
        limit: 100,
        period: 1_000_000_000,
    };
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
            while log
                .front()
                .is_some_and(|granted| granted.plus(rule.period) <= instant)
            {
                log.pop_front();
            }
            let guess = rule.weight(rule.rolled(state, instant), instant) as f64 / period;
            off += (guess - log.len() as f64).abs();
            if let Ok(next) = rule.decide(state, instant, 1) {
                state = next;
                log.push_back(instant);
                fullest = fullest.max(log.len());
            }
        }
        let off = off / f64::from(attempts) / limit * 100.0;
        println!(
            "at {load} times the limit: off by {off:.2} % on average, at most {fullest} in one period"
        );
        assert!((0.9..2.9).contains(&off) && (100..=117).contains(&fullest));
    }
}

#[test]
fn a_refund_comes_back_from_the_window_of_its_grant() {
    let rule = CounterRule {
        limit: 4,
        period: 100,
    };
    let state = rule.charge(rule.charge(rule.initial(at(0)), at(50), 4), at(150), 2);
    assert_eq!(rule.remaining(state, at(150)), 0);
    assert_eq!(
        rule.remaining(rule.refund(state, at(150), at(150), 2), at(150)),
        2
    );
    assert_eq!(
        rule.remaining(rule.refund(state, at(150), at(50), 4), at(150)),
        2
    );
    assert_eq!(
        rule.refund(rule.charge(state, at(350), 1), at(350), at(150), 2),
        rule.charge(state, at(350), 1),
        "too late"
    );
}

#[test]
fn the_largest_parameters_do_not_overflow() {
    let most = u64::from(u32::MAX);
    let rule = CounterRule {
        limit: most,
        period: MAX_SPAN_NANOS,
    };
    let Ok(state) = rule.decide(rule.initial(at(0)), at(3), most) else {
        panic!()
    };
    assert_eq!(rule.ready_at(state, at(3), 0, most), at(2 * MAX_SPAN_NANOS));
    assert_eq!(
        rule.ready_at(state, at(3), u64::MAX, u64::MAX),
        Moment::NEVER
    );
    let debt = rule.charge(state, at(3), u64::MAX);
    assert_eq!(
        (debt, rule.remaining(debt, at(3))),
        (state, 0),
        "it saturates"
    );
    assert_eq!(rule.reset_at(debt, Moment::NEVER), Moment::NEVER);
    assert_eq!(
        rule.decide(debt, Moment::NEVER, u64::MAX),
        Err(Moment::NEVER)
    );
    let fastest = CounterRule {
        limit: 1,
        period: 1,
    };
    let state = fastest.charge(fastest.initial(at(0)), Moment::NEVER, 1);
    assert_eq!(fastest.ready_at(state, Moment::NEVER, 1, 1), Moment::NEVER);
}
