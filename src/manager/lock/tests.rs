//! A word and its guard decide as plain numbers do, before the lock and behind it.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::Index;
use tokio::runtime::Builder;

use super::guard::*;
use super::word::{PutBack, WordRate};
use crate::core::word::packed_rate::*;
use crate::limiter::Limiter;
use crate::permit::Permit;
use crate::policy::Policy;
use crate::rate::Rate;
use crate::strategy::{FixedWindow, Throttle, TokenBucket};

/// The state behind the word.
#[derive(Debug, Clone)]
struct State {
    content: WordValue,
    line: PackedRate,
    fence: u64,
    latest: Option<u64>,
    waits: bool,
    fits: bool,
}

impl State {
    fn new(content: WordValue, fence: u64) -> Self {
        Self {
            content,
            line: PackedRate::default(),
            fence,
            latest: None,
            waits: false,
            fits: true,
        }
    }
}

impl BehindWord for State {
    fn take_over(&mut self, content: WordValue, fence: u64, latest: Option<u64>) {
        (self.content, self.fence, self.latest) = (content, fence, latest);
    }

    fn put_back(&mut self, units: u64) {
        if let WordValue::Places { units: left } = &mut self.content {
            *left += units;
        }
    }

    fn may_hand_over(&self) -> bool {
        !self.waits
    }

    fn hand_over(&mut self) -> Option<(WordContents, u64)> {
        let contents = match self.content {
            WordValue::Places { units } => WordContents::Places { units },
            WordValue::Rate { value } => WordContents::Rate {
                line: self.line,
                value,
            },
        };
        self.fits.then_some((contents, self.fence))
    }
}

#[derive(Debug, Default)]
struct Beginning(WordRate);

impl Source for Beginning {
    type State = State;
    type OutsideLock = ();

    fn state(&self) -> (State, ()) {
        (State::new(WordValue::Places { units: 0 }, 0), ())
    }

    fn rate(&self) -> Option<&WordRate> {
        Some(&self.0)
    }
}

fn guarded(state: State) -> Guarded<Beginning> {
    Guarded::new(Arc::default(), state, ())
}

/// What a word counts: the grants and the openings so far.
#[derive(Debug)]
struct Counted {
    fence: u64,
    openings: u64,
    is_open: bool,
    bits: u32,
}

impl Counted {
    /// Whether the word can count another grant.
    fn grants(&self) -> bool {
        let most = (1 << self.bits) - 1;
        self.is_open && self.fence.wrapping_add(self.openings) & most < most
    }

    fn grant(&mut self) -> u64 {
        self.fence = self.fence.wrapping_add(1);
        self.fence
    }

    fn visit(&mut self, opens: bool) {
        self.is_open = opens;
        self.openings += u64::from(opens);
    }
}

#[derive(Debug, Clone)]
enum OnPlaces {
    Take(u64),
    PutBack,
    Visit { waits: bool, fits: bool, more: u64 },
    Peek,
}

fn on_places() -> impl Strategy<Value = OnPlaces> {
    let visit = (
        prop::bool::weighted(0.3),
        prop::bool::weighted(0.8),
        0_u64..3,
    );
    prop_oneof![
        4 => (0_u64..5).prop_map(OnPlaces::Take),
        3 => Just(OnPlaces::PutBack),
        2 => visit.prop_map(|(waits, fits, more)| OnPlaces::Visit { waits, fits, more }),
        1 => Just(OnPlaces::Peek),
    ]
}

#[derive(Debug, Clone)]
enum OnRate {
    Take {
        later: i64,
        cost: u64,
    },
    Deny {
        later: i64,
        cost: u64,
    },
    Visit {
        waits: bool,
        line: PackedRate,
        used: u64,
    },
    Peek,
    ReplacePolicy,
}

/// The time of the first line.
const START: u64 = 5_000_000;

fn line() -> impl Strategy<Value = PackedRate> {
    let (base, max_age) = (
        START - 9..START + 9,
        prop_oneof![0_u64..9, 0_u64..9_000_000],
    );
    (base, 0_u64..50, 0_u64..4, 1_u64..20, 0_u64..90, max_age).prop_map(
        |(base, origin, parts_per_nano, parts_per_unit, tolerance, max_age)| PackedRate {
            base,
            origin,
            parts_per_nano,
            parts_per_unit,
            tolerance,
            max_age,
        },
    )
}

fn on_rate() -> impl Strategy<Value = OnRate> {
    let request = || {
        let later =
            prop_oneof![8 => -3_i64..12, 1 => -1_000_002_i64..-999_998, 1 => 0_i64..3_000_000];
        (later, 0_u64..5)
    };
    prop_oneof![
        12 => request().prop_map(|(later, cost)| OnRate::Take { later, cost }),
        12 => request().prop_map(|(later, cost)| OnRate::Deny { later, cost }),
        4 => (prop::bool::weighted(0.2), line(), 0_u64..100)
            .prop_map(|(waits, line, used)| OnRate::Visit { waits, line, used }),
        2 => Just(OnRate::Peek),
        1 => Just(OnRate::ReplacePolicy),
    ]
}

/// Fences from which a count of so many bits soon is full, or wraps around with the fence.
fn fence(bits: u32) -> impl Strategy<Value = u64> {
    let full = 1_u64 << bits;
    prop_oneof![0..9_u64, full - 9..full + 9, u64::MAX - 9..=u64::MAX]
}

proptest! {
    #![proptest_config(crate::replay::cases(2_000))]

    #[test]
    fn places_are_taken_and_put_back_as_a_number_is_lowered_and_raised(
        places in 0_u64..9, fence in fence(30), only_a_word: bool, inputs in prop::collection::vec(on_places(), 1..40),
    ) {
        let mut counted = Counted { fence, openings: u64::from(!only_a_word), is_open: true, bits: 30 };
        let (mut left, mut held, mut only_a_word) = (places, Vec::new(), only_a_word);
        let guarded = if only_a_word {
            Guarded::of_places(Arc::<Beginning>::default(), places, fence)
        } else {
            guarded(State::new(WordValue::Places { units: places }, fence))
        };
        let word = &guarded.word;
        for input in inputs {
            match input {
                OnPlaces::Take(cost) => {
                    let takes = counted.grants() && (1..=left).contains(&cost);
                    prop_assert_eq!(word.take_place(cost), takes.then(|| counted.grant()));
                    if takes {
                        left -= cost;
                        held.push(cost);
                    }
                }
                OnPlaces::PutBack => if let Some(cost) = held.pop() {
                    match word.put_back(cost) {
                        PutBack::Done => prop_assert!(counted.is_open),
                        PutBack::Refused => {
                            prop_assert!(!counted.is_open);
                            guarded.lock().put_back(cost);
                        }
                        PutBack::InTransit => prop_assert!(false, "no other thread shuts it"),
                    }
                    left += cost;
                },
                OnPlaces::Visit { waits, fits, more } => {
                    let mut state = guarded.lock();
                    prop_assert_eq!((state.content, state.fence), (WordValue::Places { units: left }, counted.fence));
                    prop_assert!(!word.is_open() && word.take_place(1).is_none());
                    left += more;
                    state.put_back(more);
                    (state.waits, state.fits) = (waits, fits);
                    drop(state);
                    counted.visit(!waits && fits);
                    only_a_word = false;
                }
                OnPlaces::Peek => {
                    let peeked = guarded.peek().map(|state| (state.content, state.fence));
                    prop_assert_eq!(peeked, counted.is_open.then_some((WordValue::Places { units: left }, counted.fence)));
                    only_a_word = false;
                }
            }
            let only_in_word = only_a_word.then_some((WordValue::Places { units: left }, counted.fence));
            prop_assert_eq!(guarded.content_of_word(), only_in_word);
            prop_assert_eq!(guarded.copy_of_word().map(|copy| (copy.content, copy.fence)), only_in_word);
            prop_assert_eq!(guarded.is_only_a_word(), only_a_word);
            prop_assert_eq!(word.is_open(), counted.is_open);
            prop_assert!(!word.decides_rate());
        }
    }

    /// A reading of the clock that is up to a millisecond behind the latest one is of the same clock.
    #[test]
    fn a_word_of_a_rate_grants_and_denies_as_its_line(
        first in line(), fence in fence(9), inputs in prop::collection::vec(on_rate(), 1..40),
    ) {
        let mut counted = Counted { fence, openings: 1, is_open: true, bits: 9 };
        let (mut line, mut value, mut latest, mut is_of_another_policy) = (first, first.origin, 0_u64, false);
        let beginning = State { line, ..State::new(WordValue::Rate { value }, fence) };
        let guarded = guarded(beginning);
        let (word, rate) = (&guarded.word, &guarded.common().0);
        for input in inputs {
            let at = |later: i64| latest.max(START).saturating_add_signed(later);
            match input {
                OnRate::Take { later, cost } => {
                    let now = at(later);
                    let is_of_the_clock = now + 1_000_000 >= latest;
                    latest = latest.max(now);
                    let next = line.take(value, now, cost).filter(|_| is_of_the_clock && counted.grants());
                    let taken = word.take_rate(rate, now, cost).map(|(fence, value)| (fence, value.get()));
                    prop_assert_eq!(taken, next.map(|next| (counted.grant(), next)));
                    value = next.unwrap_or(value);
                    prop_assert_eq!(rate.latest(), latest);
                }
                OnRate::Deny { later, cost } => {
                    let now = at(later);
                    let present = (now + 1_000_000 >= latest).then_some(now.max(latest));
                    prop_assert_eq!(rate.present(now), present);
                    let denial = present.filter(|_| counted.is_open && !is_of_another_policy)
                        .and_then(|now| line.denial(value, now, cost));
                    prop_assert_eq!(word.deny_rate(rate, now, cost), denial);
                }
                OnRate::Visit { waits, line: next, used } => {
                    let mut state = guarded.lock();
                    prop_assert_eq!((state.content, state.fence), (WordValue::Rate { value }, counted.fence));
                    prop_assert!(!counted.is_open || state.latest == Some(latest));
                    prop_assert!(word.take_rate(rate, latest, 1).is_none() && word.deny_rate(rate, latest, 1).is_none());
                    line = next;
                    value = line.origin + latest.saturating_sub(line.base) * line.parts_per_nano + used;
                    (state.content, state.line, state.waits) = (WordValue::Rate { value }, line, waits);
                    drop(state);
                    counted.visit(!waits);
                }
                OnRate::Peek => {
                    let peeked = guarded.peek().map(|state| (state.content, state.fence));
                    prop_assert_eq!(peeked, counted.is_open.then_some((WordValue::Rate { value }, counted.fence)));
                }
                OnRate::ReplacePolicy => {
                    let _state = guarded.lock();
                    rate.policy_is_replaced();
                    is_of_another_policy = true;
                    counted.openings += u64::from(counted.is_open);
                }
            }
            prop_assert_eq!(word.is_open(), counted.is_open);
            prop_assert_eq!(word.decides_rate(), counted.is_open);
            prop_assert_eq!(word.take_place(1), None);
        }
    }
}

fn limits_that_are_lines() -> impl Strategy<Value = Policy> {
    let (units, period) = (1_u64..9, (1_u64..40).prop_map(Duration::from_nanos));
    let refilled = (1_u64..9, period.clone()).prop_map(|(units, period)| Rate::new(units, period));
    prop_oneof![
        (period.clone(), units.clone())
            .prop_map(|(interval, burst)| Throttle::every(interval).burst(burst).into()),
        (units.clone(), period).prop_map(|(limit, period)| FixedWindow::new(limit, period).into()),
        (refilled, units).prop_map(|(rate, burst)| TokenBucket::new(rate, burst).into()),
    ]
}

proptest! {
    #![proptest_config(crate::replay::cases(500))]

    /// The word of one limiter stays shut, because the state behind it knows two clocks.
    #[test]
    fn a_limiter_answers_by_its_word_as_by_its_lock(
        policy in limits_that_are_lines(),
        inputs in prop::collection::vec((0_u64..12, 0_u64..6, prop::option::weighted(0.2, (any::<Index>(), 0_u64..6))), 1..40),
    ) {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            tokio::time::advance(Duration::from_secs(3_600)).await;
            let limiters = [(); 2].map(|()| Limiter::new(policy.clone()).unwrap());
            let by_lock = &limiters[1].manager().state;
            thread::scope(|scope| _ = scope.spawn(|| by_lock.lock().clock.now()));
            let mut permits = Vec::new();
            for (nanos, cost, settled) in inputs {
                tokio::time::advance(Duration::from_nanos(nanos)).await;
                if let Some((permit, actual)) = settled && !permits.is_empty() {
                    let [one, other]: [Permit; 2] = permits.swap_remove(permit.index(permits.len()));
                    prop_assert_eq!(one.settle(actual), other.settle(actual));
                }
                let answers = limiters.each_ref().map(|limiter| limiter.try_acquire_many(cost));
                let [one, other] = answers.each_ref().map(|answer| match answer {
                    Ok(permit) => format!("{} at {:?}", permit.fence(), permit.acquired_at()),
                    Err(error) => format!("{error:?}"),
                });
                prop_assert_eq!(one, other);
                let [one, other] = limiters.each_ref().map(|limiter| format!("{:?} {:?}", limiter.check(cost), limiter.snapshot()));
                prop_assert_eq!(one, other);
                if let [Ok(one), Ok(other)] = answers {
                    permits.push([one, other]);
                }
                prop_assert!(!by_lock.word.is_open());
            }
            Ok(())
        })?;
    }
}

#[test]
fn a_word_becomes_of_another_kind() {
    let line = PackedRate {
        parts_per_unit: 1,
        tolerance: 3,
        max_age: 100,
        ..PackedRate::default()
    };
    let places = WordValue::Places { units: 5 };
    let guarded = guarded(State::new(places, 7));
    let (word, rate) = (&guarded.word, &guarded.common().0);
    let become_of = |content| {
        let mut state = guarded.lock();
        (state.content, state.line) = (content, line);
    };
    become_of(WordValue::Rate { value: 2 });
    assert_eq!(
        word.take_rate(rate, 50, 1),
        Some((8, 3.try_into().unwrap()))
    );
    assert!(word.take_place(1).is_none() && word.deny_rate(rate, 50, 1).is_some());
    assert_eq!(guarded.lock().latest, Some(50));
    become_of(places);
    assert_eq!(word.take_place(1), Some(9));
    assert_eq!(word.take_rate(rate, 50, 1), None);
    assert_eq!(word.deny_rate(rate, 50, 1), None);
    assert_eq!(guarded.lock().latest, None);
}
