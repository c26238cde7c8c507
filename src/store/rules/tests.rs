//! Tests of the rules that decide in the stores in Rust.

use proptest::prelude::*;

use super::*;
use crate::exchange::{Asks, DeniedAsk, DeniedUntil, ReplyTerms, Scope, Settlement};

const NOW: u64 = 1_800_000_000_000_000_005;
const MS: u64 = 1_000_000;

fn call(policy: &str) -> Call {
    Call::new(
        Scope {
            limiter: "limiter".into(),
            key: [].into(),
        },
        policy.parse().unwrap(),
        1,
    )
}

/// First calls for a new key that starts empty, which take nothing: asks for these units, a peek, or neither.
fn firsts(policy: &str, cost: u64) -> [Call; 4] {
    let asks = |waits| Call {
        asks: vec![Asks {
            waits,
            ..Asks::new(1, 1, [cost])
        }],
        ..call(policy)
    };
    [
        asks(true),
        asks(false),
        Call {
            peek: Some([cost].into()),
            ..call(policy)
        },
        call(policy),
    ]
}

#[test]
fn a_bucket_that_starts_low_fills_from_the_first_call_on() {
    let rules = Rules::new("rules");
    let in_steps = NOW - NOW % (100 * MS);
    for (policy, cost, at) in [
        ("10/s burst 3 initial 0", 1, NOW + 100 * MS),
        ("10/s burst 3 initial 0", 3, NOW + 300 * MS),
        ("10/s burst 3 initial 1", 2, NOW + 100 * MS),
        ("7/s burst 3 initial 0", 1, NOW + 142_857_143),
        (
            "1/100ms burst 3 refilled each period initial 0",
            1,
            in_steps + 100 * MS,
        ),
        (
            "1/100ms burst 3 refilled each period initial 0",
            3,
            in_steps + 300 * MS,
        ),
    ] {
        let [_, tries, ..] = firsts(policy, cost);
        for first in firsts(policy, cost) {
            let written = rules.decide(NOW, None, &first).unwrap().state;
            assert!(written.is_some(), "{policy}: {first:?} begins it");
            let denied = rules.decide(at - 1, written.as_ref(), &tries).unwrap();
            assert_eq!(
                denied.reply.stop,
                Some(DeniedAsk {
                    limit: 0,
                    until: DeniedUntil::Instant(at)
                }),
                "{policy}: {first:?}"
            );
            let waits = first.asks.iter().any(|asks| asks.waits);
            assert_eq!(
                denied.state.is_some(),
                waits,
                "{policy}: a further denial changes nothing, unless the request of the first one waits no more"
            );
            assert_eq!(
                rules
                    .decide(at, written.as_ref(), &tries)
                    .unwrap()
                    .reply
                    .granted,
                1,
                "{policy}: {first:?}"
            );
        }
    }
}

/// The state expires after twice the time to fill, so that a caller can still call after its retry-after.
#[test]
fn a_key_that_starts_low_expires_some_time_after_it_is_full() {
    let rules = Rules::new("rules");
    let expires_at = |policy| {
        rules
            .decide(NOW, None, &call(policy))
            .unwrap()
            .state
            .unwrap()
            .expires_at
    };
    assert_eq!(expires_at("10/s burst 3 initial 0"), NOW + 600 * MS);
    assert_eq!(
        expires_at("7/s burst 3 initial 0"),
        NOW + 857_142_858,
        "rounded up"
    );
    assert_eq!(
        expires_at("1/100ms burst 3 refilled each period initial 0"),
        NOW - NOW % (100 * MS) + 600 * MS
    );
}

/// A row that was inserted only for its lock holds no state.
#[test]
fn an_empty_state_is_that_of_a_new_key() {
    let empty = KeyState {
        bytes: Vec::new(),
        expires_at: 0,
    };
    let rules = Rules::new("rules");
    for policy in ["10/s burst 3 initial 0", "10/s burst 3"] {
        for first in firsts(policy, 4) {
            assert_eq!(
                rules.decide(NOW, Some(&empty), &first),
                rules.decide(NOW, None, &first)
            );
        }
    }
}

#[test]
fn a_call_without_a_grant_is_not_written_if_the_key_is_as_new() {
    let rules = Rules::new("rules");
    for policy in [
        "5/h",
        "5/h burst 5 initial 5",
        "5/h burst 5 refilled each period",
        "throttle every 1h burst 5",
        "window 5/h",
        "window 5/h wall clock",
        "window 5/h from first grant",
        "sliding log 5/h",
        "sliding counter 5/h",
        "5 concurrent ttl 1m",
    ] {
        for first in firsts(policy, 6) {
            assert_eq!(
                rules.decide(NOW, None, &first).unwrap().state,
                None,
                "{policy}: {first:?}"
            );
        }
    }
    let [waits, tried, peek, reading] = firsts("penalty 5 falling 1/h", 6);
    let written = [waits, tried, peek, reading]
        .map(|first| rules.decide(NOW, None, &first).unwrap().state.is_some());
    assert_eq!(
        written,
        [false, true, false, false],
        "a penalty counts the attempts that do not wait"
    );
}

#[test]
fn a_bucket_that_starts_low_fills_from_the_call_on_that_replaces_another_policy() {
    let rules = Rules::new("rules");
    let former = rules
        .decide(
            NOW,
            None,
            &Call {
                ttl: 5 * MS,
                asks: vec![Asks::new(1, 5, [1])],
                ..call("5 concurrent")
            },
        )
        .unwrap()
        .state;
    let [mut asks, ..] = firsts("10/s burst 3 initial 0", 1);
    asks.revision = 1;
    for first in firsts("10/s burst 3 initial 0", 1) {
        let replaced = rules
            .decide(
                NOW,
                former.as_ref(),
                &Call {
                    revision: 1,
                    ..first
                },
            )
            .unwrap()
            .state;
        assert_eq!(
            rules
                .decide(NOW + 100 * MS - 1, replaced.as_ref(), &asks)
                .unwrap()
                .reply
                .granted,
            0
        );
        assert_eq!(
            rules
                .decide(NOW + 100 * MS, replaced.as_ref(), &asks)
                .unwrap()
                .reply
                .granted,
            1
        );
    }
}

#[test]
fn a_call_is_too_late_from_its_end_on() {
    let until = |valid_until| Call {
        valid_until: Some(valid_until),
        ..call("5/h")
    };
    let rules = Rules::new("rules");
    assert!(rules.decide(NOW, None, &until(NOW + 1)).is_ok());
    let late = rules.decide(NOW, None, &until(NOW)).unwrap_err();
    assert!(matches!(late, StoreError::TooLate { .. }), "{late:?}");
}

#[test]
fn grants_and_leases_that_expire_are_written() {
    let asks = |policy| Call {
        ttl: 5 * MS,
        asks: vec![Asks::new(1, 1, [1])],
        ..call(policy)
    };
    let rules = Rules::new("rules");
    for policy in ["5/h", "5 concurrent"] {
        let first = rules.decide(NOW, None, &asks(policy)).unwrap().state;
        let second = rules.decide(NOW + 1, first.as_ref(), &asks(policy));
        assert!(second.unwrap().state.is_some(), "{policy}");
    }
    let held = rules
        .decide(NOW, None, &asks("5 concurrent"))
        .unwrap()
        .state;
    for (at, is_expired) in [(5 * MS - 1, false), (5 * MS, true)] {
        let decided = rules.decide(NOW + at, held.as_ref(), &call("5 concurrent"));
        assert_eq!(decided.unwrap().state.is_some(), is_expired);
    }
}

/// It is written again when less than half of the time is left.
#[test]
fn a_policy_is_kept_without_a_write_for_each_call() {
    let rules = Rules::new("rules");
    let keeps = Call {
        keeps_policy: true,
        ..call("5/h")
    };
    let kept = rules.decide(NOW, None, &keeps).unwrap().state;
    assert_eq!(
        kept.as_ref().unwrap().expires_at,
        NOW + Call::KEEPS_POLICY_FOR
    );
    for (since, is_written) in [(0, false), (1, true)] {
        let now = NOW + Call::KEEPS_POLICY_FOR / 2 + since;
        let decided = rules.decide(now, kept.as_ref(), &keeps).unwrap();
        assert_eq!(decided.state.is_some(), is_written);
    }
}

#[test]
fn any_policy_replaces_one_whose_state_has_expired() {
    let rules = Rules::new("rules");
    let former = Call {
        revision: 7,
        asks: vec![Asks::new(1, 1, [1])],
        ..call("throttle every 5ms")
    };
    let state = rules.decide(NOW, None, &former).unwrap().state;
    let other = |now| rules.decide(now, state.as_ref(), &call("5/h"));
    let differs = other(NOW + 5 * MS - 1).unwrap_err();
    assert!(
        matches!(differs, StoreError::PolicyDiffers { .. }),
        "{differs:?}"
    );
    assert!(other(NOW + 5 * MS).is_ok());
    // The same policy keeps its state, and its fences.
    let again = rules.decide(
        NOW + 5 * MS,
        state.as_ref(),
        &Call {
            asks: Vec::new(),
            ..former
        },
    );
    assert_eq!(again.unwrap().state, None);
}

#[test]
fn policies_are_read_once() {
    let policies = PolicyCache::default();
    let get = |number: usize| policies.get(number, || Ok(number)).unwrap();
    let (first, _) = (get(1), get(2));
    assert!(Arc::ptr_eq(&first, &get(1)));
    for number in 0..3 * PolicyCache::<usize, usize>::MAX {
        get(number);
        assert!(policies.0.lock().len() <= PolicyCache::<usize, usize>::MAX);
    }
}

const POLICIES: [&str; 8] = [
    "10/s burst 3 initial 1",
    "1/100ms burst 3 refilled each period initial 0 and throttle every 1h burst 5",
    "window 5/10ms and window 3/h from first grant",
    "sliding log 4/8ms and 2 concurrent ttl 1s",
    "sliding counter 6/10ms and sliding counter 4000000000/100d",
    "penalty 5 falling 1000/s ban 10ms up to 50ms",
    "penalty 4294967295 falling 1/h and 3 concurrent ttl 1h",
    "18446744073709551615/s and sliding log 18446744073709551615/h and window 18446744073709551615/d",
];

fn units() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0_u64..4, 1 => u64::MAX - 3..=u64::MAX, 1 => any::<u64>()]
}

proptest! {
    #![proptest_config(crate::replay::cases(2_000))]

    /// Otherwise a limiter would treat such a reply as a fault of the store.
    #[test]
    fn the_rules_give_no_reply_that_no_store_may_send(
        policy in prop::sample::select(&POLICIES[..]),
        from in prop_oneof![2 => Just(NOW), 1 => Just(1), 1 => u64::MAX - 100_000_000..u64::MAX],
        calls in prop::collection::vec(
            (0_u64..40 * MS, prop::collection::vec((units(), 1_u64..4, any::<bool>()), 0..3), units(), 0_u8..4, 0_u64..9), 1..12,
        ),
    ) {
        let rules = Rules::new("rules");
        let (mut now, mut state, mut next) = (from, None, 1);
        for (passed, asks, charged, kind, lease) in calls {
            now = now.saturating_add(passed).min(u64::MAX - 1);
            let mut call = Call { ttl: 5 * MS, ..call(policy) };
            let count = call.policy.limits().len();
            for (cost, times, waits) in asks {
                call.asks.push(Asks { waits, ..Asks::new(next, times, vec![cost; count]) });
                next += times;
            }
            match kind {
                0 => call.settlements.push(Settlement::charge(vec![charged; count])),
                1 => (call.asks, call.peek) = (Vec::new(), Some(vec![charged; count].into())),
                2 => call.renewals.push(lease),
                _ => call.returns.push(lease),
            }
            let terms = ReplyTerms::of(&call);
            let decided = rules.decide(now, state.as_ref(), &call).unwrap();
            prop_assert_eq!(terms.check(&Ok(decided.reply.clone())), Ok(()), "{:?} to {:?}", decided.reply, call);
            state = decided.state.or(state);
        }
    }
}
