//! Tests of the pace against a naive model of the rule.

use proptest::prelude::*;

use super::super::Strategy as _; // both globs have a `Strategy`
use super::*;

const S: u64 = 1_000_000_000;

fn at(nanos: u64) -> Moment {
    Moment::from_nanos(nanos)
}

fn rule(units: u64, period: u64, burst: u64) -> PaceRule {
    PaceRule::continuous(units, period, burst, burst).unwrap()
}

/// Checks the promise of GCRA naively: applies the rule to each pair of grants that count.
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
    #![proptest_config(crate::replay::cases(4_000))]

    /// Invariants 1 and 7; trap: a deadline reset to now + interval after each wake.
    #[test]
    fn denied_until_exactly_the_predicted_instant_then_granted(
        units in 1_u64..40, period in 1_u64..1_000, burst in 1_u64..8, initial in 0_u64..9,
        steps in prop::collection::vec((0_u64..3_000, 1_u64..8, 0_u64..5), 1..60),
    ) {
        let rule = PaceRule::continuous(units, period, burst, initial).unwrap();
        let (mut now, mut grants) = (Moment::START, Vec::new());
        let mut state = rule.initial(now);
        prop_assert_eq!(rule.remaining(state, now), initial.min(burst));
        if initial < burst {
            grants.push((0, burst - initial)); // as if taken before
        }
        for (step, cost, ahead) in steps {
            now = now.plus(step);
            let cost = cost.min(burst);
            let admits = |state, cost| rule.decide(state, now, cost).is_ok();
            let remaining = rule.remaining(state, now);
            prop_assert!(remaining == burst || !admits(state, remaining + 1));
            prop_assert!(remaining == 0 || admits(state, remaining));
            prop_assert!(rule.ready_at(state, now, ahead, cost) >= rule.ready_at(state, now, 0, cost));
            if let Err(at) = rule.decide(state, now, cost) {
                prop_assert_eq!(at, rule.ready_at(state, now, 0, cost));
                prop_assert!(matches!(rule.decide(state, at.minus(1), cost), Err(again) if again == at));
                now = at;
            }
            let Ok(next) = rule.decide(state, now, cost) else { panic!("denied at its retry-after") };
            prop_assert_eq!(next, rule.charge(state, now, cost));
            state = next;
            grants.push((now.nanos(), cost));
            prop_assert!(within_rule((units, period, burst), &grants));
            let reset = rule.reset_at(state, now);
            prop_assert!(rule.remaining(state, reset) == burst && rule.backlog(state, reset.minus(1)) > 0);
        }
    }

    /// Invariants 1 and 2: grants are refunded in any order, some of them late; the remaining ones obey the rule.
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
                let same_instant = refund_bound.found.last().is_some_and(|last| last.0.nanos() == at);
                let before = state;
                state = rule.refund_within(state, &mut refund_bound, Moment::from_nanos(at), cost);
                prop_assert!(!same_instant || before.arrival - state.arrival == rule.parts_of(cost));
                let index = grants.iter().position(|&grant| grant == (at, cost)).unwrap();
                grants.remove(index);
            }
            let cost = cost.min(burst);
            while let Ok(next) = rule.decide(state, now, cost) {
                refund_bound.note(&rule, state, now);
                state = next;
                grants.push((now.nanos(), cost));
                undelivered.push((now.nanos(), cost));
                prop_assert!(within_rule((units, period, burst), &grants), "{:?}", grants);
            }
        }
    }
}

proptest! {
    #![proptest_config(crate::replay::cases(2_000))]

    /// A burst that is taken up at more instants than the refund bound holds: it joins entries again and again. What is refunded
    /// of any grants, in any order, never lets the others exceed the rule, and the latest five instants are refunded whole.
    #[test]
    fn a_refund_after_many_instants_is_never_too_much(
        (units, period, burst) in (1_u64..6, 1_u64..60, 20_u64..60),
        steps in prop::collection::vec((1_u64..12, 1_u64..4, prop::bool::weighted(0.2), any::<prop::sample::Index>()), 1..80),
    ) {
        let rule = rule(units, period, burst);
        let (mut state, mut refund_bound, mut now) = (PaceState::default(), RefundBound::new(Moment::START), Moment::START);
        let mut grants = Vec::<(u64, u64)>::new();
        for (step, cost, refund, pick) in steps {
            now = now.plus(step);
            if refund && !grants.is_empty() {
                let (at, cost) = grants.remove(pick.index(grants.len()));
                state = rule.refund_within(state, &mut refund_bound, Moment::from_nanos(at), cost);
            }
            prop_assert!(refund_bound.found.len() <= RefundBound::MAX_LEN);
            let cost = cost.min(rule.remaining(state, now));
            if cost > 0 {
                refund_bound.note(&rule, state, now);
                state = rule.charge(state, now, cost);
                grants.push((now.nanos(), cost));
            }
            let mut greedy = grants.clone();
            greedy.push((now.nanos(), rule.remaining(state, now)));
            prop_assert!(within_rule((units, period, burst), &greedy), "{:?}", greedy);
        }
    }
}

/// What the docs of [`Permit::settle`](crate::Permit::settle) promise. Earlier grants are refunded by what the second instant
/// found used. A fixed bug: they were refunded by what the first one found, which is nothing after an idle time.
#[test]
fn grants_of_the_latest_five_instants_are_refunded_whole() {
    let rule = rule(1, MAX_SPAN_NANOS / 1_000, 1_000);
    let cost = |instant| if instant == 1 { 2 } else { 5 };
    for instants in 2..100_u64 {
        for picked in 1..=instants {
            let (mut state, mut refund_bound) = (PaceState::default(), RefundBound::new(at(1)));
            for instant in 1..=instants {
                refund_bound.note(&rule, state, at(instant));
                state = rule.charge(state, at(instant), cost(instant));
            }
            let back = state.arrival
                - rule
                    .refund_within(state, &mut refund_bound, at(picked), cost(picked))
                    .arrival;
            let least = if picked + 5 > instants {
                cost(picked)
            } else {
                2
            };
            let refilled = u128::from(instants); // a part each nanosecond
            assert!(
                back + refilled >= rule.parts_of(least),
                "{picked} of {instants}: {back}"
            );
            assert!(back <= rule.parts_of(cost(picked)));
        }
    }
}

/// Other instants would be joined sooner, and less of their grants would be refunded.
#[test]
fn only_instants_that_found_more_used_are_recorded() {
    let rule = rule(1, 1, 100);
    let (mut state, mut refund_bound) = (PaceState::default(), RefundBound::new(at(0)));
    let mut note = |now| {
        refund_bound.note(&rule, state, at(now));
        state = rule.charge(state, at(now), 2);
        refund_bound.found.len()
    };
    let found = [0, 0, 1, 1, 2, 4, 8, 20].map(&mut note);
    assert_eq!(found, [1, 1, 2, 2, 3, 3, 3, 1]);
}

#[test]
fn a_record_that_is_short_again_gives_memory_back() {
    for (capacity, len, left) in [
        (1_024, 255, 512),
        (1_024, 256, 1_024),
        (RefundBound::KEPT, 0, RefundBound::KEPT),
    ] {
        let mut found = Vec::with_capacity(capacity);
        found.resize(len, (at(0), 0));
        let mut refund_bound = RefundBound { found };
        refund_bound.drop_from(1);
        assert_eq!(refund_bound.found.capacity(), left);
    }
}

/// Trap: overflow at the largest quotas.
#[test]
fn the_largest_parameters_do_not_overflow() {
    let slowest = rule(1, MAX_SPAN_NANOS, 1);
    let Ok(state) = slowest.decide(PaceState::default(), Moment::START, 1) else {
        panic!()
    };
    assert_eq!(
        slowest.ready_at(state, Moment::START, u64::MAX, 1),
        Moment::NEVER
    );
    assert_eq!(
        slowest.decide(state, Moment::START, 1),
        Err(Moment::from_nanos(MAX_SPAN_NANOS))
    );
    assert_eq!(PaceRule::continuous(1, MAX_SPAN_NANOS, 2, 2), None);
    let fastest = rule(u64::MAX, 1, u64::MAX);
    let late = Moment::NEVER.minus(1);
    let Ok(state) = fastest.decide(PaceState::default(), late, u64::MAX) else {
        panic!()
    };
    assert_eq!(fastest.remaining(state, late), 0);
    let state = fastest.charge(state, late, u64::MAX);
    assert_eq!(
        fastest.charge(state, late, u64::MAX).arrival,
        u128::MAX,
        "it saturates"
    );
    // A fixed bug: where the burst reaches beyond the largest arrival time, any cost was granted.
    assert_eq!(
        rule(u64::MAX, 1 << 62, 16).decide(PaceState::default(), late, 1 << 62),
        Err(Moment::NEVER)
    );
}

/// Trap: rates that do not divide a second lose or gain units by rounding.
#[test]
fn a_billion_grants_do_not_drift() {
    // Seven a second, acquired in blocks of seven hundred thousand as fast as they are granted: a billion take exactly their
    // time.
    let rule = rule(7, S, 700_000);
    let (mut state, mut now) = (PaceState::default(), Moment::START);
    let blocks = 1_000_000_000_u64.div_ceil(700_000);
    for _ in 0..blocks {
        now = rule.ready_at(state, now, 0, 700_000);
        let Ok(next) = rule.decide(state, now, 700_000) else {
            panic!("denied at its retry-after")
        };
        state = next;
    }
    assert_eq!(now.nanos(), (blocks - 1) * 100_000 * S);
    assert_eq!(rule.remaining(state, now.plus(S)), 7);
    assert_eq!(
        rule.remaining(state, now.plus(S - 1)),
        6,
        "no free parts_per_unit"
    );
}

#[test]
fn from_one_a_week_to_a_billion_a_second() {
    let week = 7 * 24 * 3_600 * S;
    let rare = rule(1, week, 1);
    let Ok(state) = rare.decide(PaceState::default(), Moment::START, 1) else {
        panic!()
    };
    assert_eq!(
        rare.decide(state, Moment::from_nanos(week - 1), 1),
        Err(Moment::from_nanos(week))
    );
    let often = rule(S, S, 1_000);
    let mut state = PaceState::default();
    for nanos in 0..100_000 {
        let Ok(next) = often.decide(state, Moment::from_nanos(nanos), 1) else {
            panic!()
        };
        state = next;
    }
    assert_eq!(often.remaining(state, Moment::from_nanos(99_999)), 999);
}

proptest! {
    #![proptest_config(crate::replay::cases(4_000))]

    /// A naive bucket: tokens, and each refill added up to the burst. Grants are also refunded, at any time, which leaves the
    /// bucket as if they had never been made; there are few enough for the refund bound.
    #[test]
    fn a_refill_each_period_adds_up_to_the_burst(
        units in 1_u64..8, period in 1_u64..60, burst in 1_u64..20, initial in 0_u64..22,
        steps in prop::collection::vec((prop_oneof![Just(0_u64), 0_u64..100], 1_u64..20, 0_u8..10, any::<prop::sample::Index>()), 1..8),
    ) {
        let rule = PaceRule::each_period(units, period, burst, initial).unwrap();
        let mut now = Moment::START;
        let (mut state, mut refund_bound) = (rule.initial(now), RefundBound::new(now));
        let mut charges = Vec::<(u64, u64)>::new();
        let tokens = |charges: &[(u64, u64)], now: u64| {
            let charged = |at: u64| charges.iter().filter(|charge| charge.0 == at).map(|charge| charge.1 as i64).sum::<i64>();
            (0..=now).fold(initial.min(burst) as i64, |tokens, at| {
                let refill = if at > 0 && at % period == 0 { units as i64 } else { 0 };
                (tokens + refill).min(burst as i64) - charged(at)
            })
        };
        for (step, cost, what, pick) in steps {
            now = now.plus(step);
            match what {
                0 => {
                    refund_bound.note(&rule, state, now);
                    state = rule.charge(state, now, cost * 2); // possibly a debt
                    charges.push((now.nanos(), cost * 2));
                }
                1..=3 if !charges.is_empty() => {
                    let (at, cost) = charges.remove(pick.index(charges.len()));
                    state = rule.refund_within(state, &mut refund_bound, Moment::from_nanos(at), cost);
                }
                _ => {
                    let cost = cost.min(burst);
                    let admits = |now: Moment| tokens(&charges, now.nanos()) >= cost as i64;
                    if let Err(until) = rule.decide(state, now, cost) {
                        prop_assert!(!admits(now) && !admits(until.minus(1)) && admits(until));
                        prop_assert_eq!(until, rule.ready_at(state, now, 0, cost));
                        now = until;
                    }
                    prop_assert!(admits(now));
                    let Ok(next) = rule.decide(state, now, cost) else { panic!("denied at its retry-after") };
                    refund_bound.note(&rule, state, now);
                    state = next;
                    charges.push((now.nanos(), cost));
                }
            }
            let tokens = tokens(&charges, now.nanos());
            prop_assert_eq!(rule.remaining(state, now), tokens.max(0) as u64);
            prop_assert_eq!(rule.usage(state, now).round_up(), (burst as i64 - tokens) as u64);
            let reset = rule.reset_at(state, now);
            prop_assert_eq!(rule.remaining(state, reset), burst);
            prop_assert!(reset == now || rule.remaining(state, reset.minus(1)) < burst);
        }
    }
}

#[test]
fn a_refill_each_period_of_any_size_does_not_overflow() {
    let slowest = PaceRule::each_period(1, MAX_SPAN_NANOS, 1, 1).unwrap();
    let state = slowest.charge(slowest.initial(Moment::START), Moment::START, 1);
    assert_eq!(
        slowest.decide(state, Moment::START, 1),
        Err(Moment::from_nanos(MAX_SPAN_NANOS))
    );
    assert_eq!(
        slowest.ready_at(state, Moment::START, u64::MAX, 1),
        Moment::NEVER
    );
    assert_eq!(
        PaceRule::each_period(1, MAX_SPAN_NANOS, 2, 2),
        None,
        "two periods until it is full"
    );
    let fastest = PaceRule::each_period(u64::MAX, 1, u64::MAX, 0).unwrap();
    assert_eq!(
        fastest.decide(fastest.initial(Moment::START), Moment::START, 1),
        Err(Moment::from_nanos(1))
    );
    let late = Moment::NEVER.minus(1);
    let state = fastest.charge(
        fastest.charge(PaceState::default(), late, u64::MAX),
        late,
        u64::MAX,
    );
    assert_eq!(fastest.remaining(state, late), 0);
    assert!(PaceRule::each_period(4, 1, 8, 8).unwrap().fits_a_word() && !fastest.fits_a_word());
}

proptest! {
    #![proptest_config(crate::replay::cases(20_000))]

    #[test]
    fn a_decision_in_one_word_is_that_in_two(
        numbers in prop::array::uniform6((any::<u64>(), 0_u32..64)), each_period: bool, far: bool, past in 0_u128..5,
    ) {
        let [units, period, burst, arrival, now, cost] = numbers.map(|(number, shift)| number >> shift);
        let pace = if each_period { PaceRule::each_period } else { PaceRule::continuous };
        let Some(rule) = pace(units.max(1), period.max(1), burst.max(1), burst) else { return Ok(()) };
        let now = at(if far { (u64::MAX - 1).saturating_sub(now) } else { now });
        // At random, and about where a cost begins to be denied.
        let latest = rule.parts(now).saturating_add(rule.tolerance).saturating_sub(rule.parts_of(cost));
        let about_latest = latest.saturating_add(past).saturating_sub(2).min(u64::MAX.into()) as u64;
        for arrival in [arrival, u64::MAX - arrival, about_latest] {
            let decided = rule.decide(PaceState { arrival: arrival.into() }, now, cost);
            let overflows = |parts| parts > u128::from(u64::MAX);
            match rule.decide_in_a_word(arrival, now, cost) {
                Some(in_a_word) => {
                    let next = decided.map(|state| state.arrival);
                    prop_assert_eq!(in_a_word.map(u128::from), next.map_err(|_| ()));
                }
                None => {
                    let next = rule.charge(PaceState { arrival: arrival.into() }, now, cost).arrival;
                    prop_assert!(overflows(next) || overflows(rule.parts(now)) || overflows(rule.parts_of(cost)));
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(crate::replay::cases(20_000))]

    #[test]
    fn a_report_says_what_its_parts_say(
        numbers in prop::array::uniform7((any::<u64>(), 0_u32..64)), each_period: bool, far: bool, past in 0_u128..5,
    ) {
        let [units, period, burst, arrival, now, ahead, cost] = numbers.map(|(number, shift)| number >> shift);
        let pace = if each_period { PaceRule::each_period } else { PaceRule::continuous };
        let Some(rule) = pace(units.max(1), period.max(1), burst.max(1), burst) else { return Ok(()) };
        let now = at(if far { (u64::MAX - 1).saturating_sub(now) } else { now });
        let latest = rule.parts(now).saturating_add(rule.tolerance);
        let about_latest = |units| latest.saturating_sub(rule.parts_of(units)).saturating_add(past).saturating_sub(2);
        // A debt, and about where a cost begins to be denied.
        let in_debt = rule.charge(PaceState { arrival: latest }, now, arrival).arrival;
        for arrival in [0, arrival.into(), in_debt, about_latest(0), about_latest(cost), about_latest(cost.saturating_add(ahead))] {
            let state = PaceState { arrival };
            for (ahead, cost) in [(0, cost), (ahead, cost), (ahead, 0), (0, 0)] {
                let report = rule.report(state, now, ahead, cost);
                let denied_until = rule.decide(state, now, cost).err();
                let ready_at = if ahead == 0 { denied_until.unwrap_or(now) } else { rule.ready_at(state, now, ahead, cost) };
                prop_assert_eq!((report.denied_until, report.ready_at), (denied_until, ready_at));
                prop_assert_eq!(report.remaining, rule.remaining(state, now));
                prop_assert_eq!(report.reset_at, rule.reset_at(state, now));
            }
        }
    }
}
