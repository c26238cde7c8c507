//! Tests of the penalty against a sweeper that replays every attempt.

use proptest::prelude::*;
use proptest::strategy::Strategy as Generator;

use super::super::{MAX_SPAN_NANOS, Strategy as _}; // both globs have a `Strategy`
use super::*;

const S: u64 = 1_000_000_000;

impl PenaltyRule {
    fn value(&self, state: PenaltyState, now: Moment) -> u64 {
        self.settled(state, now).value.into()
    }

    /// [`PenaltyRule::denied`] of a state that is not settled.
    fn deny(&self, state: PenaltyState, now: Moment, cost: u64) -> PenaltyState {
        self.denied(self.settled(state, now), now, cost)
    }
}

fn at(nanos: u64) -> Moment {
    Moment::from_nanos(nanos)
}

fn nanos(nanos: u64) -> Duration {
    Duration::from_nanos(nanos)
}

#[derive(Debug, Clone, Copy)]
enum Touch {
    Attempt(u64),
    Charge(u64),
    Refund(u64),
}

/// The model: a sweeper that visits the counter each nanosecond.
#[derive(Debug, Clone, Default, PartialEq)]
struct Naive {
    now: u64,
    value: u64,
    since_step: u64,
    banned: u64,
    bans: u32,
    quiet: u64,
}

impl Naive {
    fn tick(&mut self, rule: &PenaltyRule) {
        self.now += 1;
        if self.banned > 0 {
            self.banned -= 1;
            self.quiet = 0;
        } else if self.value > 0 {
            self.since_step += 1;
            if self.since_step == rule.period {
                self.since_step = 0;
                self.value = match rule.fall {
                    FallRule::By(units) => self.value.saturating_sub(units),
                    FallRule::Halving => self.value / 2,
                };
            }
            self.quiet = 0;
        } else {
            self.quiet += 1;
        }
        self.forgive(rule);
    }

    fn forgive(&mut self, rule: &PenaltyRule) {
        if self.value == 0
            && self.banned == 0
            && rule.ban.is_none_or(|ban| self.quiet >= ban.forgive_after)
        {
            self.bans = 0;
        }
    }

    fn admits(&self, rule: &PenaltyRule, cost: u64) -> bool {
        self.banned == 0 && self.value + cost <= rule.threshold.into()
    }

    fn raise(&mut self, rule: &PenaltyRule, cost: u64) {
        if self.banned == 0 {
            if self.value == 0 {
                self.since_step = 0;
            }
            self.value = (self.value + cost).min(rule.ceiling.into());
            self.quiet = 0;
        }
    }

    fn touch(&mut self, rule: &PenaltyRule, touch: Touch) -> bool {
        match touch {
            Touch::Charge(cost) => self.raise(rule, cost),
            Touch::Refund(cost) => self.value = self.value.saturating_sub(cost),
            Touch::Attempt(cost) if self.admits(rule, cost) => {
                self.raise(rule, cost);
                return true;
            }
            Touch::Attempt(cost) => match rule.ban {
                Some(ban) if self.banned == 0 => {
                    self.bans += 1;
                    self.banned =
                        (1..self.bans).fold(ban.first, |length, _| (length * 2).min(ban.longest));
                    self.value = 0;
                    self.quiet = 0;
                }
                None if !rule.ignores_denied => self.raise(rule, cost),
                _ => {}
            },
        }
        self.forgive(rule);
        false
    }

    /// Replays the list of all attempts.
    fn replay(rule: &PenaltyRule, touches: &[(u64, Touch)]) -> Vec<bool> {
        let mut naive = Self::default();
        let mut touched = |&(at, touch): &(u64, Touch)| {
            while naive.now < at {
                naive.tick(rule);
            }
            naive.touch(rule, touch)
        };
        touches.iter().map(&mut touched).collect()
    }
}

fn rules() -> impl Generator<Value = PenaltyRule> {
    let ban = prop::option::of((1_u64..60, 1_u64..300, prop::option::of(0_u64..200)));
    (
        1_u64..12,
        0_u64..30,
        1_u64..60,
        prop::option::of(1_u64..6),
        ban,
        any::<bool>(),
    )
        .prop_map(|(threshold, ceiling, period, units, ban, counts_denied)| {
            let mut penalty = Penalty::new(threshold, Rate::new(units.unwrap_or(1), nanos(period)));
            if units.is_none() {
                penalty = penalty.half_life(nanos(period));
            }
            if ceiling > 0 {
                penalty = penalty.ceiling(ceiling);
            }
            if let Some((first, longest, forgive_after)) = ban {
                penalty = penalty.escalate(nanos(longest)).ban(nanos(first));
                if let Some(forgive_after) = forgive_after {
                    penalty = penalty.forgive_after(nanos(forgive_after));
                }
            }
            if counts_denied {
                penalty.checked(Duration::ZERO).unwrap()
            } else {
                penalty.ignore_denied().checked(Duration::ZERO).unwrap()
            }
        })
}

proptest! {
    #![proptest_config(crate::replay::cases(3_000))]

    /// Invariants 1 and 7, against a sweeper that replays every attempt. Trap: steps lost by reading.
    #[test]
    fn agrees_with_a_sweeper_that_replays_every_attempt(
        rule in rules(), steps in prop::collection::vec((0_u64..120, 1_u64..12, 0_u8..10, any::<bool>()), 1..40),
    ) {
        let (mut state, mut now, mut naive) = (rule.initial(Moment::START), Moment::START, Naive::default());
        let (mut touches, mut admitted) = (Vec::new(), Vec::new());
        for (step, cost, what, retry) in steps {
            now = now.plus(step);
            while naive.now < now.nanos() {
                naive.tick(&rule);
            }
            let mut outcome = false;
            let touch = match what {
                0 => Touch::Charge(cost),
                1 => Touch::Refund(cost),
                _ => Touch::Attempt(cost.min(rule.threshold.into())),
            };
            match touch {
                Touch::Charge(cost) => state = rule.charge(state, now, cost),
                Touch::Refund(cost) => state = rule.forgive(state, now, cost),
                Touch::Attempt(cost) => match rule.decide(state, now, cost) {
                    Ok(next) => {
                        prop_assert_eq!(next, rule.charge(state, now, cost));
                        prop_assert_eq!(rule.ready_at(state, now, 0, cost), now);
                        state = next;
                        outcome = true;
                    }
                    _ => state = rule.deny(state, now, cost),
                },
            }
            prop_assert_eq!(outcome, naive.touch(&rule, touch));
            touches.push((now.nanos(), touch));
            admitted.push(outcome);
            prop_assert_eq!(PenaltyState::from(StateWords::from(state)), state);
            prop_assert_eq!(rule.value(state, now), naive.value);
            let remaining = if naive.banned > 0 { 0 } else { u64::from(rule.threshold).saturating_sub(naive.value) };
            prop_assert_eq!(rule.remaining(state, now), remaining);

            // Denied one nanosecond before its retry-after, granted at it.
            let cost = cost.min(rule.threshold.into());
            if let Err(until) = rule.decide(state, now, cost) {
                prop_assert_eq!(until, rule.ready_at(state, now, 0, cost));
                prop_assert_eq!(rule.decide(state, until.minus(1), cost), Err(until));
                prop_assert!(rule.decide(state, until, cost).is_ok());
                let mut later = naive.clone();
                while !later.admits(&rule, cost) {
                    later.tick(&rule);
                }
                prop_assert_eq!(later.now, until.nanos());
                if retry {
                    // Also read at arbitrary instants in between.
                    state = rule.settled(state, at(now.nanos().midpoint(until.nanos())));
                    now = until;
                }
            }
            let reset = rule.reset_at(state, now);
            prop_assert_eq!(rule.settled(state, reset), PenaltyState::default());
            prop_assert!(reset == now || rule.settled(state, reset.minus(1)) != PenaltyState::default());
            let mut later = naive.clone();
            while later.value > 0 || later.banned > 0 || later.bans > 0 {
                later.tick(&rule);
            }
            prop_assert_eq!(later.now, reset.nanos());
        }
        prop_assert_eq!(Naive::replay(&rule, &touches), admitted);
    }

    #[test]
    fn no_cost_is_admitted_before_it_is_predicted(
        rule in rules(), ahead in 0_u64..40, cost in 1_u64..12,
        before in prop::collection::vec((0_u64..120, 1_u64..12), 0..12),
    ) {
        let (mut state, mut now, cost) = (rule.initial(Moment::START), Moment::START, cost.min(rule.threshold.into()));
        for (step, cost) in before {
            now = now.plus(step);
            state = if step % 3 == 0 { rule.deny(state, now, cost) } else { rule.charge(state, now, cost) };
        }
        let predicted = rule.ready_at(state, now, ahead, cost);
        for _ in 0..ahead {
            now = rule.ready_at(state, now, 0, 1);
            state = rule.charge(state, now, 1);
        }
        prop_assert!(predicted <= rule.ready_at(state, now, 0, cost));
    }
}

/// While it is far above the threshold, a halving takes off more than half of the threshold.
#[test]
fn a_prediction_counts_the_halvings_to_the_threshold_first() {
    let rule = Penalty::new(10, Rate::per_second(1))
        .half_life(nanos(S))
        .ceiling(80)
        .checked(Duration::ZERO)
        .unwrap();
    let state = rule.charge(rule.initial(at(0)), at(0), 80);
    // 40, 20, 10; of the five before it and itself, one is left above 5; 5 again.
    assert_eq!(rule.ready_at(state, at(0), 5, 1), at(5 * S));
}

#[test]
fn an_attempt_is_refunded_unless_a_step_came_since() {
    let rule = Penalty::new(10, Rate::new(1, nanos(100)))
        .checked(Duration::ZERO)
        .unwrap();
    let first = rule.charge(rule.initial(at(0)), at(30), 4);
    let second = rule.charge(first, at(60), 3);
    assert_eq!(rule.refund(first, at(40), at(30), 4), rule.initial(at(0)));
    assert_eq!(rule.refund(second, at(129), at(60), 3), first);
    assert_eq!(rule.refund(second, at(130), at(60), 3), second);
}

#[test]
fn a_changed_penalty_keeps_the_counter_the_ban_and_the_part_of_a_step() {
    let rule = |period| {
        Penalty::new(10, Rate::new(1, nanos(period)))
            .ban(nanos(500))
            .checked(Duration::ZERO)
            .unwrap()
    };
    let (former, new, ratio) = (rule(100), rule(1_000), Ratio { new: 10, old: 10 });
    let state = former.charge(former.initial(at(0)), at(30), 4);
    let taken_over = new.take_over(at(170), &former, state, ratio);
    assert_eq!((taken_over.value, taken_over.at), (3, at(130)));
    let banned = former.deny(state, at(170), 8);
    assert_eq!(new.take_over(at(171), &former, banned, ratio), banned);
}

/// Every attempt counts, up to a ceiling that sets the longest lock-out, without a sweep over all counters.
#[test]
fn a_client_that_keeps_retrying_is_locked_out_for_as_long_as_the_ceiling_takes_to_fall_and_no_longer()
 {
    let rule = Penalty::new(10, Rate::new(2, Duration::from_secs(1)))
        .ceiling(14)
        .checked(Duration::ZERO)
        .unwrap();
    let mut state = rule.initial(at(5));
    for _ in 0..10 {
        let Ok(next) = rule.decide(state, at(5), 1) else {
            panic!()
        };
        state = next;
    }
    for _ in 0..1_000 {
        assert!(rule.decide(state, at(5), 1).is_err());
        state = rule.deny(state, at(5), 1);
    }
    assert_eq!(rule.value(state, at(5)), 14);
    assert_eq!(
        rule.decide(state, at(5), 1),
        Err(at(5 + 3 * S)),
        "14, 12, 10, 8"
    );
    assert_eq!(
        (rule.value(state, at(4 + S)), rule.value(state, at(5 + S))),
        (14, 12),
        "a whole step, without a sweep"
    );
    assert_eq!(rule.value(state, at(5 + 6 * S)), 2);
    assert_eq!(
        rule.settled(state, at(5 + 7 * S)),
        rule.initial(at(0)),
        "forgotten at zero"
    );
}

/// Trap: a counter that is read more often than it steps never falls, or falls late.
#[test]
fn the_steps_stay_where_they_were_however_often_it_is_touched() {
    let rule = Penalty::new(100, Rate::new(1, nanos(100)))
        .checked(Duration::ZERO)
        .unwrap();
    let mut state = rule.charge(rule.initial(at(0)), at(30), 10);
    for now in 30..530 {
        state = rule.forgive(rule.charge(state, at(now), 3), at(now), 3);
        assert_eq!(rule.value(state, at(now)), 10 - (now - 30) / 100);
    }
    let rule = Penalty::new(100, Rate::new(1, nanos(100)))
        .half_life(nanos(100))
        .checked(Duration::ZERO)
        .unwrap();
    let state = rule.charge(rule.charge(rule.initial(at(0)), at(30), 9), at(129), 2);
    assert_eq!(
        [129, 130, 230, 330, 430].map(|now| rule.value(state, at(now))),
        [11, 5, 2, 1, 0]
    );
}

#[test]
fn bans_double_up_to_the_longest_and_are_forgiven_after_quiet() {
    let penalty = Penalty::new(2, Rate::new(1, nanos(10)));
    let rule = penalty
        .escalate(nanos(700))
        .ban(nanos(200))
        .forgive_after(nanos(50))
        .checked(Duration::ZERO)
        .unwrap();
    let (mut state, mut now) = (rule.initial(at(0)), 0);
    for length in [200, 400, 700, 700] {
        state = rule.charge(state, at(now), 2);
        state = rule.deny(state, at(now), 1);
        assert_eq!(rule.decide(state, at(now), 1), Err(at(now + length)));
        assert_eq!(
            rule.deny(state, at(now + length - 1), 1),
            state,
            "attempts do not make it longer"
        );
        assert_eq!(
            rule.forgive(state, at(now + 1), 1),
            state,
            "nor does a reward make it shorter"
        );
        assert_eq!(rule.charge(state, at(now + 1), 1), state);
        assert_eq!(
            (
                rule.remaining(state, at(now + 1)),
                rule.value(state, at(now + 1))
            ),
            (0, 0)
        );
        now += length;
        assert_eq!(
            (
                rule.remaining(state, at(now - 1)),
                rule.remaining(state, at(now))
            ),
            (0, 2),
            "the counter is reset"
        );
    }
    // The time until forgiveness counts from when the counter is zero: here from the second step, after an attempt in between.
    assert_eq!(rule.reset_at(state, at(now)), at(now + 50));
    state = rule.charge(state, at(now + 49), 2);
    assert_eq!(rule.reset_at(state, at(now + 49)), at(now + 49 + 20 + 50));
    let next_ban = |now| rule.reset_at(rule.deny(state, at(now), 2), at(now)).nanos() - now - 50;
    assert_eq!(
        (next_ban(now + 49 + 69), next_ban(now + 49 + 70)),
        (700, 200)
    );
}

#[test]
fn the_order_of_the_builder_does_not_matter() {
    let penalty = Penalty::new(2, Rate::per_second(1));
    let [first, longest, quiet] = [1, 2, 3].map(Duration::from_secs);
    let one = penalty
        .ban(first)
        .escalate(longest)
        .forgive_after(quiet)
        .ceiling(9)
        .ignore_denied();
    let other = penalty
        .ignore_denied()
        .ceiling(9)
        .forgive_after(quiet)
        .escalate(longest)
        .ban(first);
    assert_eq!(one, other);
    assert!(
        penalty
            .escalate(longest)
            .forgive_after(quiet)
            .checked(Duration::ZERO)
            .unwrap()
            .ban
            .is_none()
    );
    let ban = penalty
        .escalate(nanos(1))
        .ban(first)
        .checked(Duration::ZERO)
        .unwrap()
        .ban
        .unwrap();
    assert_eq!(
        (ban.longest, ban.forgive_after),
        (S, S),
        "no shorter than the first; forgiven after the longest"
    );
}

/// The time until bans are forgiven is no time to wait. See [`Describe::until_reset`].
#[test]
fn a_client_does_not_wait_until_bans_are_forgiven() {
    let secs = Duration::from_secs;
    let steps = Penalty::new(10, Rate::per_second(1));
    assert!(!steps.description().bans && steps.ban(secs(60)).description().bans);
    // 10 to 0 in ten steps, or in four halvings.
    for (penalty, to_zero) in [(steps, 10_u64), (steps.half_life(secs(30)), 120)] {
        let banning = penalty.ban(secs(60));
        for (reset_after, wait) in [
            (to_zero, to_zero),
            (to_zero + 1, (to_zero + 1).saturating_sub(60)),
            (to_zero + 60, to_zero),
        ] {
            assert_eq!(banning.until_reset(secs(reset_after), 10), secs(wait));
        }
    }
}

#[test]
fn the_ceiling_is_twice_the_threshold_unless_set_and_never_below_it() {
    let penalty = Penalty::new(10, Rate::per_second(1));
    assert_eq!(
        (
            penalty.checked(Duration::ZERO).unwrap().ceiling,
            penalty.ceiling(3).checked(Duration::ZERO).unwrap().ceiling,
            penalty.ceiling(11).checked(Duration::ZERO).unwrap().ceiling
        ),
        (20, 10, 11)
    );
}

#[test]
fn the_largest_parameters_do_not_overflow() {
    let (most, span) = (u64::from(u32::MAX), nanos(MAX_SPAN_NANOS));
    let slow = Penalty::new(most, Rate::new(1, span));
    for rule in [
        slow.checked(Duration::ZERO).unwrap(),
        slow.half_life(span).checked(Duration::ZERO).unwrap(),
    ] {
        let state = rule.charge(rule.initial(at(3)), at(3), u64::MAX);
        assert_eq!(rule.value(rule.deny(state, at(3), u64::MAX), at(3)), most);
        assert_eq!(rule.decide(state, at(3), 1), Err(at(3 + MAX_SPAN_NANOS)));
        assert_eq!(
            rule.ready_at(state, at(3), u64::MAX, u64::MAX),
            Moment::NEVER
        );
        assert_eq!(rule.reset_at(state, at(3)), Moment::NEVER);
        assert!(rule.value(state, Moment::NEVER) >= most >> 5);
    }
    let fast = Penalty::new(most, Rate::new(u64::MAX, nanos(1)))
        .checked(Duration::ZERO)
        .unwrap();
    let state = fast.charge(fast.initial(at(3)), at(3), most);
    assert_eq!(
        (
            fast.value(state, at(4)),
            fast.ready_at(state, at(3), u64::MAX, 1)
        ),
        (0, at(5))
    );

    let rule = slow
        .ban(span)
        .escalate(span)
        .forgive_after(span)
        .checked(Duration::ZERO)
        .unwrap();
    let mut state = rule.charge(rule.initial(at(0)), at(0), most);
    let mut now = at(0);
    for _ in 0..70_000 {
        state = rule.deny(state, now, 1);
        now = rule.ready_at(state, now, 0, 1);
    }
    assert_eq!(now, Moment::NEVER);
    assert_eq!(rule.reset_at(state, now), Moment::NEVER);
    let state = PenaltyState {
        bans: u16::MAX,
        ..PenaltyState::default()
    };
    assert_eq!(
        rule.deny(state, at(0), 1),
        PenaltyState {
            at: at(MAX_SPAN_NANOS),
            value: 0,
            bans: u16::MAX
        }
    );
}
