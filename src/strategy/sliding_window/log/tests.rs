//! Tests of the log against a list of every grant.

use proptest::prelude::*;

use super::super::super::MAX_SPAN_NANOS;
use super::super::grants::{CHUNK, steps};
use super::*;

fn at(nanos: u64) -> Moment {
    Moment::from_nanos(nanos)
}

proptest! {
    #![proptest_config(crate::replay::cases(4_000))]

    /// Invariants 1 and 7, against a list of every grant, with refunds and debts.
    #[test]
    fn agrees_with_a_list_of_every_grant(
        limit in 1_u64..9, period in 1_u64..300,
        steps in prop::collection::vec((0_u64..120, 1_u64..9, 0_u8..12, any::<prop::sample::Index>()), 1..60),
    ) {
        let rule = LogRule { limit, period };
        let (mut log, mut now, mut grants) = (Grants::default(), Moment::START, Vec::<(u64, u64)>::new());
        for (step, cost, what, pick) in steps {
            now = now.plus(step);
            let count = |grants: &[(u64, u64)], now: Moment| {
                grants.iter().filter(|grant| grant.0 + period > now.nanos()).map(|grant| grant.1).sum::<u64>()
            };
            match what {
                0 => {
                    rule.charge(&mut log, now, cost * 2); // whether or not there is room
                    grants.push((now.nanos(), cost * 2));
                }
                1 if !grants.is_empty() => {
                    let (at, cost) = grants.remove(pick.index(grants.len()));
                    log.take_back(Moment::from_nanos(at), cost);
                }
                _ => {
                    let cost = cost.min(limit);
                    let admits = |now: Moment| count(&grants, now) + cost <= limit;
                    if let Err(until) = rule.decide(&log, now, cost) {
                        prop_assert!(!admits(now) && !admits(until.minus(1)) && admits(until));
                        prop_assert_eq!(until, rule.ready_at(&log, now, 0, cost));
                        prop_assert_eq!(rule.decide(&log, until.minus(1), cost), Err(until));
                        prop_assert_eq!(rule.decide(&log, until, cost), Ok(()));
                        now = until;
                    }
                    prop_assert!(admits(now));
                    rule.charge(&mut log, now, cost);
                    grants.push((now.nanos(), cost));
                    prop_assert!(count(&grants, now) <= limit);
                }
            }
            prop_assert_eq!(rule.remaining(&log, now), limit.saturating_sub(count(&grants, now)));
            let reset = rule.reset_at(&log, now);
            prop_assert_eq!(count(&grants, reset), 0);
            prop_assert!(reset == now || count(&grants, reset.minus(1)) > 0);
            prop_assert_eq!(log.used(), log.to_vec().iter().map(|entry| entry.1).sum::<u64>());
        }
    }

    /// If the units ahead are granted one by one, each as early as possible, the request behind them is granted exactly at its
    /// `ready_at`.
    #[test]
    fn no_cost_is_admitted_before_it_is_predicted(
        limit in 1_u64..9, period in 1_u64..300, ahead in 0_u64..40, cost in 1_u64..9,
        before in prop::collection::vec((0_u64..120, 1_u64..20), 0..12),
    ) {
        let rule = LogRule { limit, period };
        let (mut log, mut now, cost) = (Grants::default(), Moment::START, cost.min(limit));
        for (step, cost) in before {
            now = now.plus(step);
            rule.charge(&mut log, now, cost);
        }
        let predicted = rule.ready_at(&log, now, ahead, cost);
        for _ in 0..ahead {
            now = rule.decide(&log, now, 1).err().unwrap_or(now);
            rule.charge(&mut log, now, 1);
        }
        prop_assert_eq!(rule.decide(&log, now, cost).err().unwrap_or(now), predicted);
    }
}

#[test]
fn a_log_takes_over_the_grants_that_count_and_no_entry_without_units() {
    let rule = LogRule {
        limit: 8,
        period: 100,
    };
    let mut log = Grants::default();
    for granted in 0..8 {
        rule.charge(&mut log, at(granted), 1);
    }
    let at_most = |units, now| {
        rule.take_over(at(now), &rule, &log, Ratio { new: units, old: 8 })
            .to_vec()
    };
    assert_eq!(at_most(2, 50), [(at(3), 1), (at(7), 1)]);
    assert_eq!(at_most(8, 105), [(at(6), 1), (at(7), 1)]);
}

/// Trap: retry-after names the oldest entry, which frees too little.
#[test]
fn a_cost_waits_for_the_last_unit_in_its_way_not_the_oldest() {
    let (rule, mut log) = (
        LogRule {
            limit: 3,
            period: 100,
        },
        Grants::default(),
    );
    for instant in [0, 10, 20] {
        rule.charge(&mut log, at(instant), 1);
    }
    let told = |cost| rule.decide(&log, at(30), cost);
    assert_eq!(
        (told(1), told(2), told(3), told(4)),
        (Err(at(100)), Err(at(110)), Err(at(120)), Err(Moment::NEVER))
    );
}

/// Trap: a log that grows with the attempts, or with the units.
#[test]
fn holds_one_entry_an_instant_and_none_that_has_left() {
    assert_eq!(size_of::<(Moment, u64)>(), 16, "as the docs say");
    let (rule, mut log) = (
        LogRule {
            limit: 100,
            period: 1_000,
        },
        Grants::default(),
    );
    for nanos in 0..100_000 {
        if rule.decide(&log, at(nanos), 1).is_ok() {
            rule.charge(&mut log, at(nanos), 1);
        }
        assert!(log.to_vec().len() <= 100);
    }
    rule.charge(&mut log, at(200_000), 50);
    rule.charge(&mut log, at(200_000), 50);
    assert_eq!(log.to_vec(), [(at(200_000), 100)]);
}

#[test]
fn the_largest_parameters_do_not_overflow() {
    let (rule, mut log) = (
        LogRule {
            limit: u64::MAX,
            period: MAX_SPAN_NANOS,
        },
        Grants::default(),
    );
    rule.charge(&mut log, at(3), u64::MAX);
    rule.charge(&mut log, at(4), u64::MAX);
    assert_eq!(
        rule.ready_at(&log, at(5), u64::MAX, u64::MAX),
        at(3).plus(MAX_SPAN_NANOS).plus(MAX_SPAN_NANOS)
    );
    assert_eq!(rule.decide(&log, at(5), 1), Err(at(3 + MAX_SPAN_NANOS)));
    let slow = LogRule { limit: 1, ..rule };
    assert_eq!(slow.ready_at(&log, at(5), u64::MAX, 1), Moment::NEVER);
    rule.charge(&mut log, at(3 + MAX_SPAN_NANOS), 1);
    assert_eq!(rule.remaining(&log, at(3 + MAX_SPAN_NANOS)), u64::MAX - 1);
}

proptest! {
    #![proptest_config(crate::replay::cases(300))]

    /// The same test with so many grants that the log compacts itself, and with refunds of the latest units.
    #[test]
    fn a_long_log_agrees_with_a_list_of_every_grant(
        limit in 300_u64..600, period in 100_u64..900,
        steps in prop::collection::vec((0_u64..3, 1_u64..4, 0_u8..40, any::<prop::sample::Index>()), 600..900),
    ) {
        let rule = LogRule { limit, period };
        let (mut log, mut now, mut grants) = (Grants::default(), Moment::START, Vec::<(u64, u64)>::new());
        for (step, cost, what, pick) in steps {
            now = now.plus(step);
            match what {
                0..10 if !grants.is_empty() => {
                    let (at, cost) = grants.remove(pick.index(grants.len()));
                    log.take_back(Moment::from_nanos(at), cost);
                }
                10 => {
                    let mut left = cost * 10;
                    log.take_back_latest(left);
                    for grant in grants.iter_mut().rev() {
                        let back = left.min(grant.1);
                        (grant.1, left) = (grant.1 - back, left - back);
                    }
                    grants.retain(|grant| grant.1 > 0);
                }
                11 => now = now.plus(period / 3),
                _ if rule.decide(&log, now, cost).is_ok() => {
                    rule.charge(&mut log, now, cost);
                    grants.push((now.nanos(), cost));
                }
                _ => {}
            }
            grants.retain(|grant| grant.0 + period > now.nanos());
            let used: u64 = grants.iter().map(|grant| grant.1).sum();
            prop_assert_eq!(rule.used(&log, now), used);
            let (mut gone, cost) = (0, cost * 50);
            let ready = grants.iter().find(|grant| {
                gone += grant.1;
                used - gone + cost <= limit
            });
            let ready = if used + cost <= limit { now } else { at(ready.unwrap().0 + period) };
            prop_assert_eq!(rule.ready_at(&log, now, 0, cost), ready);
        }
    }

    /// Debts are kept in no more entries than the limit, which changes nothing for waiters.
    #[test]
    fn joined_debts_admit_at_the_same_instants(
        limit in 1_u64..100, period in 100_u64..900, steps in prop::collection::vec((1_u64..3, 1_u64..4), 200..400),
    ) {
        let rule = LogRule { limit, period };
        let (mut log, mut now, mut grants) = (Grants::default(), Moment::START, Vec::<(u64, u64)>::new());
        for (step, cost) in steps {
            now = now.plus(step);
            rule.charge(&mut log, now, cost);
            grants.push((now.nanos(), cost));
            prop_assert!(log.to_vec().len() as u64 <= limit.max(FEW as u64));
            let units = |now: Moment| grants.iter().filter(|grant| grant.0 + period > now.nanos()).map(|grant| grant.1).sum::<u64>();
            let cost = cost.min(limit);
            if let Err(until) = rule.decide(&log, now, cost) {
                prop_assert!(units(until) + cost <= limit && units(until.minus(1)) + cost > limit);
            } else {
                prop_assert!(units(now) + cost <= limit);
            }
        }
    }
}

/// A fixed bug: each denial visited half of a log of a million, and each check visited all of it after it had expired.
#[test]
fn a_log_of_a_million_is_asked_in_a_few_steps() {
    const MILLION: u64 = 1_000_000;
    let rule = LogRule {
        limit: MILLION,
        period: 2 * MILLION,
    };
    let mut log = Grants::default();
    let filled = steps::of(|| (0..MILLION).for_each(|nanos| rule.charge(&mut log, at(nanos), 1)));
    assert_eq!(filled, MILLION);
    let (now, half_gone, gone) = (at(MILLION), at(5 * MILLION / 2), at(3 * MILLION));
    let asked = steps::of(|| {
        assert_eq!(
            rule.decide(&log, now, MILLION / 2),
            Err(at(5 * MILLION / 2 - 1))
        );
        assert_eq!(rule.report(&log, gone, 0, MILLION).remaining, MILLION);
        assert_eq!(
            rule.report(&log, half_gone, 10, 1).remaining,
            MILLION / 2 + 1
        );
    });
    assert!(asked <= 120, "{asked} steps");
    // Numbers of chunks, and entries of one.
    let refunded = steps::of(|| log.take_back(at(MILLION / 3), 1));
    assert!(
        refunded <= MILLION / CHUNK as u64 + CHUNK as u64,
        "{refunded} steps"
    );
    let forgiven = steps::of(|| log.take_back_latest(MILLION / 4));
    assert!(forgiven <= 30, "{forgiven} steps");
    assert_eq!(rule.used(&log, now), 3 * MILLION / 4 - 1);
}

/// A fixed bug: about once in a million grants, one grant moved a million entries or freed them all.
#[test]
fn a_grant_drops_one_chunk_at_most_and_each_entry_once() {
    const LEN: u64 = 100_000;
    let rule = LogRule {
        limit: LEN,
        period: LEN,
    };
    let mut log = Grants::default();
    let mut charge = |nanos: u64| {
        let steps = steps::of(|| rule.charge(&mut log, at(nanos), 1));
        assert!(steps <= CHUNK as u64 + 1, "{steps} steps at {nanos}");
        (steps, log.len(), log.memory())
    };
    let steps: u64 = (0..3 * LEN).map(|nanos| charge(nanos).0).sum();
    assert_eq!(
        steps,
        3 * LEN + 2 * LEN,
        "a grant adds an entry, and drops one after the first period"
    );
    let calls = LEN / CHUNK as u64 + 2;
    let (_, len, memory) = (0..calls)
        .map(|nanos| charge(5 * LEN + nanos))
        .last()
        .unwrap();
    assert_eq!(len as u64, calls);
    assert!(memory <= 2 * CHUNK, "memory for {memory}");
}

/// Expired units that are not dropped yet, because later charges drop them, must not take the room of new ones.
#[test]
fn the_largest_debt_is_counted_after_the_same_debt_in_many_chunks_has_left() {
    let rule = LogRule {
        limit: u64::MAX,
        period: 100_000,
    };
    let mut log = Grants::default();
    for nanos in 0..5 * CHUNK as u64 {
        rule.charge(&mut log, at(nanos), u64::MAX / 2_000);
    }
    assert_eq!(log.used(), u64::MAX);
    let now = at(200_000);
    rule.charge(&mut log, now, u64::MAX);
    assert_eq!(
        (rule.used(&log, now), rule.reset_at(&log, now)),
        (u64::MAX, at(300_000))
    );
    assert_eq!(log.to_vec(), [(now, u64::MAX)]);
}

/// A fixed bug: each call to penalize kept an entry, without bound.
#[test]
fn a_log_that_is_charged_beyond_its_limit_stays_bounded() {
    for limit in [1, 100, 1_000] {
        let (rule, mut log) = (
            LogRule {
                limit,
                period: 1_000_000,
            },
            Grants::default(),
        );
        for nanos in 0..20_000 {
            rule.charge(&mut log, at(nanos), 1);
            assert!(log.memory() <= 4 * limit.max(FEW as u64) as usize + 2 * FEW);
        }
        assert_eq!(rule.used(&log, at(20_000)), 20_000);
        assert_eq!(
            rule.decide(&log, at(20_000), 1),
            Err(at(1_000_000 + 20_000 - limit))
        );
    }
}

#[test]
fn memory_is_in_proportion_to_the_grants_that_count() {
    for limit in [3, 50, 200, 300, 2_000] {
        let (rule, mut log) = (
            LogRule {
                limit,
                period: limit,
            },
            Grants::default(),
        );
        for nanos in 0..10 * limit {
            rule.charge(&mut log, at(nanos), 1);
            assert!(
                log.memory() <= 4 * limit as usize + FEW,
                "{} for {limit}",
                log.memory()
            );
        }
    }
}

/// A log that was long frees its memory.
#[test]
fn memory_comes_back_when_the_grants_have_left() {
    let (rule, mut log) = (
        LogRule {
            limit: 10_000,
            period: 10_000,
        },
        Grants::default(),
    );
    for nanos in 0..40_000 {
        let step = if nanos < 20_000 { 1 } else { 1_000 };
        rule.charge(&mut log, at(nanos * step), 1);
    }
    assert!(log.memory() <= 4 * FEW);
}
