//! Tests of the bytes of a ledger: what is written is read, and damage is found.

use std::time::Duration;

use proptest::prelude::*;

use super::turns::{MAX_TICKETS, SLICE};
use super::*;
use crate::exchange::{Asks, Call, Scope, Settlement};
use crate::policy::{Limit, Policy};

/// With every kind of limit.
const POLICIES: [&str; 10] = [
    "7/s burst 5",
    "100/s burst 3 and 4 concurrent ttl 1s",
    "100/s burst 20 refilled each period",
    "window 5/100ms and window 9/s wall clock",
    "window 3/50ms from first grant",
    "sliding log 4/80ms and 2 concurrent",
    "sliding counter 6/100ms",
    "throttle every 20ms burst 4",
    "penalty 5 falling 10/s ban 1s up to 5s",
    "3 concurrent and sliding log 100/s and 20/s burst 8",
];

#[test]
fn the_policies_have_every_limit() {
    assert_eq!(crate::policy::lacking(&POLICIES), [""; 0]);
}

fn policy(text: &str) -> Policy {
    text.parse().unwrap()
}

fn plan(policy: &Policy) -> Arc<Plan> {
    Arc::new(Plan::new(policy.clone(), Duration::ZERO).unwrap())
}

fn has_pace(policy: &Policy) -> bool {
    policy
        .limits()
        .iter()
        .any(|limit| matches!(limit, Limit::Throttle(_) | Limit::TokenBucket(_)))
}

#[derive(Debug, Clone)]
struct Step {
    after: u64,
    holder: u64,
    asks: Vec<(u64, u64, bool)>,
    returned: Option<prop::sample::Index>,
    renewed: Option<prop::sample::Index>,
    settled: Option<(prop::sample::Index, u64)>,
}

fn step() -> impl Strategy<Value = Step> {
    let asks = prop::collection::vec((1_u64..4, 1_u64..4, any::<bool>()), 0..3);
    let index = || prop::option::of(any::<prop::sample::Index>());
    let settled = prop::option::of((any::<prop::sample::Index>(), 0_u64..8));
    (
        0_u64..120_000_000,
        0_u64..3,
        asks,
        index(),
        index(),
        settled,
    )
        .prop_map(|(after, holder, asks, returned, renewed, settled)| Step {
            after,
            holder,
            asks,
            returned,
            renewed,
            settled,
        })
}

/// Makes calls of steps.
struct Caller {
    policy: Policy,
    now: u64,
    next: u64,
    granted: Vec<(u64, u64)>,
}

impl Caller {
    fn new(policy: Policy) -> Self {
        Self {
            policy,
            now: 1_700_000_000_000_000_000,
            next: 1,
            granted: Vec::new(),
        }
    }

    fn call(&mut self, step: &Step) -> (Moment, Call) {
        self.now += step.after;
        let costs = |cost: u64| vec![cost; self.policy.limits().len()].into_boxed_slice();
        let mut asks = Vec::new();
        for (count, cost, waits) in &step.asks {
            asks.push(Asks {
                first: self.next,
                count: *count,
                costs: costs(*cost),
                waits: *waits,
                ahead: false,
            });
            self.next += count;
        }
        let number = |index: &prop::sample::Index| 1 + index.index(self.next as usize) as u64;
        let settled = step
            .settled
            .as_ref()
            .filter(|_| !self.granted.is_empty())
            .map(|(index, actual)| {
                let (granted_at, cost) = self.granted[index.index(self.granted.len())];
                let actual = if has_pace(&self.policy) {
                    (*actual).max(cost)
                } else {
                    *actual
                };
                Settlement {
                    granted_at,
                    charged: costs(cost),
                    actual: costs(actual),
                }
            });
        let call = Call {
            scope: Scope {
                limiter: "api".into(),
                key: b"k".as_slice().into(),
            },
            policy: self.policy.clone(),
            holder: step.holder,
            valid_until: None,
            returns: step.returned.iter().map(number).collect(),
            settlements: settled.into_iter().collect(),
            renewals: step.renewed.iter().map(number).collect(),
            ttl: 200_000_000,
            peek: asks.is_empty().then(|| costs(1)),
            asks,
            polls_every: 0,
            waits_no_more: false,
            revision: 0,
            keeps_policy: false,
        };
        self.granted
            .extend(step.asks.first().map(|(_, cost, _)| (self.now, *cost)));
        (Moment::from_nanos(self.now), call)
    }
}

proptest! {
    #![proptest_config(crate::replay::cases(600))]

    #[test]
    fn a_ledger_that_was_read_behaves_as_the_one_that_was_written(
        text in prop::sample::select(&POLICIES), steps in prop::collection::vec(step(), 1..40),
    ) {
        let policy = policy(text);
        let (plan, text) = (plan(&policy), policy.to_string());
        let mut caller = Caller::new(policy);
        let mut kept = Ledger::new(Arc::clone(&plan), 3, Moment::from_nanos(caller.now));
        let mut stored = kept.encode(&text);
        for step in steps {
            let (now, call) = caller.call(&step);
            let mut read = decode(&plan, &text, &stored).unwrap();
            prop_assert_eq!(read.revision(), 3);
            prop_assert_eq!(read.call(now, &call), kept.call(now, &call));
            prop_assert_eq!(read.forgettable_at(), kept.forgettable_at());
            stored = read.encode(&text);
            prop_assert_eq!(&stored, &kept.encode(&text));
        }
    }

    /// Replicas that wait ask again, so none waits here.
    #[test]
    fn a_new_revision_of_the_same_policy_changes_no_answer(
        text in prop::sample::select(&POLICIES), steps in prop::collection::vec(step(), 1..40), changes_at in 0..40_usize,
    ) {
        let policy = policy(text);
        let plan = plan(&policy);
        let mut caller = Caller::new(policy);
        let [mut kept, mut changed] =
            [(); 2].map(|()| Ledger::new(Arc::clone(&plan), 3, Moment::from_nanos(caller.now)));
        for (number, mut step) in steps.into_iter().enumerate() {
            step.asks.iter_mut().for_each(|(_, _, waits)| *waits = false);
            let (now, call) = caller.call(&step);
            if number == changes_at {
                prop_assert_eq!(changed.agree(&plan, 4, now), Agreement::Adopted);
            }
            prop_assert_eq!(changed.call(now, &call), kept.call(now, &call));
        }
    }

    #[test]
    fn no_bytes_panic(
        text in prop::sample::select(&POLICIES), steps in prop::collection::vec(step(), 1..12),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6), cut in any::<prop::sample::Index>(),
        cuts in any::<bool>(), tail in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let policy = policy(text);
        let (plan, text) = (plan(&policy), policy.to_string());
        let mut caller = Caller::new(policy);
        let mut ledger = Ledger::new(Arc::clone(&plan), 0, Moment::from_nanos(caller.now));
        for step in &steps {
            let (now, call) = caller.call(step);
            ledger.call(now, &call);
        }
        let mut bytes = ledger.encode(&text);
        for (index, byte) in changes {
            let index = index.index(bytes.len());
            bytes[index] = byte;
        }
        if cuts {
            bytes.truncate(cut.index(bytes.len()));
            bytes.extend(tail);
        }
        let as_found = decode(&plan, &text, &bytes);
        prop_assert!(as_found.is_err() || bytes == ledger.encode(&text), "the checksum finds accidents");
        // Bytes with a right checksum cause no panic either.
        if bytes.len() > HEAD {
            bytes[0] = VERSION;
            let checksum = checksum(&bytes[HEAD..]).to_le_bytes();
            bytes[1..HEAD].copy_from_slice(&checksum);
        }
        if let Ok(mut ledger) = decode(&plan, &text, &bytes) {
            for step in &steps {
                let (now, call) = caller.call(step);
                ledger.call(now, &call);
                ledger.forgettable_at();
            }
            let bytes = ledger.encode(&text);
            prop_assert!(decode(&plan, &text, &bytes).is_ok());
        }
    }

    #[test]
    fn numbers_are_read_as_they_were_written(number in any::<u64>(), bits in 0_u32..64) {
        let number = number >> bits;
        let mut bytes = Vec::new();
        put(&mut bytes, number);
        prop_assert_eq!(take(&mut bytes.as_slice()), Ok(number));
    }
}

/// Reads a ledger of the policy with this text.
fn decode(plan: &Arc<Plan>, text: &str, bytes: &[u8]) -> Result<Ledger, Damaged> {
    let encoded = Encoded::read(bytes)?;
    if encoded.text != text {
        return Err(Damaged);
    }
    Ledger::decode(Arc::clone(plan), encoded)
}

fn step_of(asks: Vec<(u64, u64, bool)>) -> Step {
    Step {
        after: 0,
        holder: 1,
        asks,
        returned: None,
        renewed: None,
        settled: None,
    }
}

#[test]
fn another_policy_keeps_the_leases_the_fence_and_the_usage() {
    let (old, new) = (
        policy("4 concurrent and 2/s burst 5"),
        policy("3 concurrent and sliding log 9/min"),
    );
    let mut caller = Caller::new(old.clone());
    let (now, call) = caller.call(&step_of(vec![(2, 1, true)]));
    let mut ledger = Ledger::new(plan(&old), 1, now);
    let fence = ledger.call(now, &call).0.first_fence + 1;
    assert_eq!(ledger.agree(&plan(&new), 1, now), Agreement::Differs);
    assert_eq!(ledger.agree(&plan(&new), 0, now), Agreement::Differs);
    assert_eq!(ledger.agree(&plan(&new), 4, now), Agreement::Adopted);
    assert_eq!(ledger.agree(&plan(&new), 4, now), Agreement::Same);
    assert_eq!(ledger.agree(&plan(&new), 3, now), Agreement::Differs);
    assert_eq!(ledger.revision(), 4);
    caller.policy = new;
    let (now, call) = caller.call(&step_of(vec![(2, 1, true)]));
    let (reply, _) = ledger.call(now, &call);
    assert_eq!(
        (reply.granted, reply.first_fence),
        (1, fence + 1),
        "two places are taken"
    );
    assert_eq!(reply.limits[1].remaining, 6, "three units are used");
}

/// A key whose holders wait for their turns.
struct Line {
    caller: Caller,
    ledger: Ledger,
}

impl Line {
    fn new(text: &str) -> Self {
        let policy = policy(text);
        let caller = Caller::new(policy.clone());
        let ledger = Ledger::new(plan(&policy), 0, Moment::from_nanos(caller.now));
        Self { caller, ledger }
    }

    /// A holder asks (how often, at what cost each) and returns leases, whose numbers are those of the asks in their order. Returns
    /// how many asks are granted, and whose turn it is.
    fn call(
        &mut self,
        after: u64,
        holder: u64,
        asks: &[(u64, u64)],
        returns: &[u64],
    ) -> (usize, Vec<u64>) {
        let asks = asks.iter().map(|(count, cost)| (*count, *cost, true));
        let (now, mut call) = self.caller.call(&Step {
            after,
            holder,
            ..step_of(asks.collect())
        });
        call.returns = returns.to_vec();
        if !returns.is_empty() && call.asks.is_empty() {
            call.peek = None;
        }
        let (reply, offer) = self.ledger.call(now, &call);
        (reply.granted as usize, offer.turns)
    }
}

/// A holder that returns its place and asks in one call keeps its turn for a while, beside one that waits.
#[test]
fn a_turn_lasts_a_slice() {
    let mut line = Line::new("1 concurrent ttl 10s");
    assert_eq!(line.call(0, 1, &[(2, 1)], &[]).0, 1);
    assert_eq!(line.call(1, 2, &[(1, 1)], &[]).0, 0);
    assert_eq!(line.call(1, 1, &[(1, 1)], &[1]).0, 1);
    assert_eq!(
        line.call(1, 1, &[(1, 1)], &[4]).0,
        1,
        "it has got more by now"
    );
    assert_eq!(line.call(SLICE, 1, &[(1, 1)], &[5]), (0, vec![2]));
    assert_eq!(line.call(1, 2, &[(1, 1)], &[]).0, 1);
}

#[test]
fn the_asks_that_are_left_of_a_call_wait_for_a_turn_in_their_order() {
    let mut line = Line::new("3 concurrent ttl 10s");
    assert_eq!(line.call(0, 9, &[(2, 1)], &[]).0, 2);
    assert_eq!(line.call(1, 1, &[(1, 1), (1, 2), (1, 1)], &[]).0, 1);
    assert_eq!(line.call(1, 9, &[], &[1]), (0, vec![]), "one place for two");
    assert_eq!(line.call(1, 9, &[], &[2]), (0, vec![1]));
}

#[test]
fn a_holder_holds_the_places_of_its_leases() {
    let mut line = Line::new("3 concurrent ttl 10s");
    line.call(0, 1, &[(2, 1)], &[]);
    line.call(1, 2, &[(1, 1)], &[]);
    let of = |holder| held(&line.ledger.leases, holder);
    assert_eq!([0, 1, 2, 3].map(of), [0, 2, 1, 0]);
}

#[test]
fn an_ask_that_other_replicas_hold_up_is_stopped_by_the_first_limit_that_counts_it() {
    let limit_of = |costs: [u64; 2]| soon(Moment::START, &costs).map(|stop| stop.limit);
    let limits = [[0, 1], [2, 1], [0, 0]].map(limit_of);
    assert_eq!(limits, [Some(1), Some(0), None]);
}

#[test]
fn costs_of_zero_begin_no_window() {
    let policy = policy("window 3/s from first grant and 5/s");
    let mut caller = Caller::new(policy.clone());
    let mut ledger = Ledger::new(plan(&policy), 0, Moment::from_nanos(caller.now));
    let mut reset_at = |after, costs: [u64; 2]| {
        let step = Step {
            after,
            ..step_of(vec![(1, 1, false)])
        };
        let (now, mut call) = caller.call(&step);
        call.asks[0].costs = Box::new(costs);
        let (reply, _) = ledger.call(now, &call);
        assert_eq!(reply.granted, 1);
        reply.limits[0].reset_at - now.nanos()
    };
    assert_eq!(reset_at(0, [0, 1]), 0);
    assert_eq!(reset_at(500_000_000, [1, 0]), 1_000_000_000);
}

#[test]
fn no_turn_is_reported_by_a_check_or_for_a_rate() {
    let mut line = Line::new("1 concurrent ttl 10s");
    assert_eq!(line.call(0, 9, &[(1, 1)], &[]).0, 1);
    assert_eq!(line.call(1, 1, &[(1, 1)], &[]).0, 0);
    let expired = 300_000_000; // the lease is, the ticket is not
    assert_eq!(line.call(expired, 2, &[], &[]), (0, vec![]), "a check");
    let mut line = Line::new("sliding log 1/100ms");
    assert_eq!(line.call(0, 9, &[(1, 1)], &[]).0, 1);
    assert_eq!(line.call(1, 1, &[(1, 1)], &[]).0, 0);
    assert_eq!(line.call(100_000_000, 9, &[], &[7]), (0, vec![]));
}

/// Each of them may come when the units of those before it have come.
#[test]
fn replicas_that_find_the_line_full_ask_again_one_after_the_other() {
    let mut line = Line::new("1/s");
    let start = line.caller.now;
    let mut denied_until = |holder| {
        let (now, call) = line.caller.call(&Step {
            after: 0,
            holder,
            ..step_of(vec![(1, 1, true)])
        });
        line.ledger.call(now, &call).0.stop.map(|stop| stop.until)
    };
    let replicas = MAX_TICKETS as u64 + 3;
    let last: Vec<_> = (0..replicas).map(&mut denied_until).collect();
    let second = |number: u64| Some(DeniedUntil::Instant(start + number * 1_000_000_000));
    assert_eq!(last[..2], [None, second(1)]);
    assert_eq!(
        last[MAX_TICKETS + 1..],
        [second(replicas - 1), second(replicas)]
    );
}

#[test]
fn each_ask_that_is_denied_in_a_call_counts_once_for_a_penalty() {
    let policy = policy("penalty 2 falling 1/s ceiling 20");
    let [mut together, mut alone] = [(); 2].map(|()| Ledger::new(plan(&policy), 0, Moment::START));
    let mut caller = Caller::new(policy);
    let (now, call) = caller.call(&step_of(vec![(5, 1, false)]));
    let (reply, _) = together.call(now, &call);
    assert_eq!(reply.granted, 2);
    let last = (0..5).map(|_| {
        let (now, call) = caller.call(&step_of(vec![(1, 1, false)]));
        alone.call(now, &call).0
    });
    let last = last.last().unwrap();
    assert_eq!(reply.limits, last.limits);
}

#[test]
fn the_limit_that_stops_a_request_longest_is_reported_or_the_first_of_them() {
    for (text, reported) in [
        ("sliding log 1/100ms and sliding log 1/s", 1),
        ("sliding log 1/s and sliding log 1/100ms", 0),
        ("sliding log 1/s and window 1/s from first grant", 0),
    ] {
        let policy = policy(text);
        let mut caller = Caller::new(policy.clone());
        let (now, call) = caller.call(&step_of(vec![(2, 1, false)]));
        let mut ledger = Ledger::new(plan(&policy), 0, now);
        let (reply, _) = ledger.call(now, &call);
        assert_eq!((reply.granted, reply.stop.unwrap().limit), (1, reported));
    }
}

/// The next unit would come after the last instant.
#[test]
fn a_rate_denies_for_ever_at_the_end_of_time() {
    let policy = policy("1/s");
    let mut caller = Caller::new(policy.clone());
    caller.now = Moment::LAST.nanos();
    let (now, call) = caller.call(&step_of(vec![(2, 1, false)]));
    let (reply, _) = Ledger::new(plan(&policy), 0, now).call(now, &call);
    let until = reply.stop.map(|stop| stop.until);
    assert_eq!((reply.granted, until), (1, Some(DeniedUntil::Never)));
}

/// Such as the costs by unit of a request that takes no place.
#[test]
fn a_grant_without_a_place_opens_no_lease() {
    let policy = policy("2 concurrent ttl 1s and 5/s");
    let mut caller = Caller::new(policy.clone());
    let (now, mut call) = caller.call(&step_of(vec![(1, 1, false)]));
    call.asks[0].costs = Box::new([0, 1]);
    let mut ledger = Ledger::new(plan(&policy), 0, now);
    assert_eq!(ledger.call(now, &call).0.granted, 1);
    assert_eq!(ledger.leases.len(), 0);
}

#[test]
fn bytes_with_a_right_checksum_are_damaged_if_no_ledger_can_have_written_them() {
    let policy = policy("2 concurrent ttl 1s and 5/s");
    let (plan, text) = (plan(&policy), policy.to_string());
    let mut caller = Caller::new(policy);
    let (now, call) = caller.call(&step_of(vec![(1, 1, false)]));
    let mut ledger = Ledger::new(Arc::clone(&plan), 0, now);
    ledger.call(now, &call);
    let mut longer = ledger.encode(&text);
    longer.push(0);
    let checksum = checksum(&longer[HEAD..]).to_le_bytes();
    longer[1..HEAD].copy_from_slice(&checksum);
    assert_eq!(decode(&plan, &text, &longer).err(), Some(Damaged));
    let lease = ledger.leases.values_mut().next().unwrap();
    lease.costs = Arc::new([1, 1]); // a rate has no leases
    let bytes = ledger.encode(&text);
    assert_eq!(decode(&plan, &text, &bytes).err(), Some(Damaged));
}

#[test]
fn as_many_tickets_as_there_may_be_are_read() {
    let mut line = Line::new("1 concurrent ttl 10s");
    for holder in 0..2 * MAX_TICKETS as u64 {
        line.call(1, holder, &[(1, 1)], &[]);
    }
    let plan = Arc::clone(&line.ledger.plan);
    let text = plan.policy().to_string();
    let bytes = line.ledger.encode(&text);
    let read = decode(&plan, &text, &bytes).unwrap();
    assert_eq!(read.turns.tickets.len(), MAX_TICKETS);
    assert_eq!(read.encode(&text), bytes);
}

/// How much could be refunded is not known after reading.
#[test]
fn a_pace_that_was_read_refunds_nothing_of_earlier_grants() {
    let policy = policy("1/s burst 5");
    let (plan, text) = (plan(&policy), policy.to_string());
    let mut caller = Caller::new(policy);
    let (granted_at, mut call) = caller.call(&step_of(vec![(1, 5, true)]));
    let mut ledger = Ledger::new(Arc::clone(&plan), 0, granted_at);
    assert_eq!(ledger.call(granted_at, &call).0.granted, 1);
    let mut read = decode(&plan, &text, &ledger.encode(&text)).unwrap();
    assert_eq!(ledger.agree(&plan, 1, granted_at), Agreement::Adopted);
    let (charged, actual) = (Box::new([5]), Box::new([0]));
    call.settlements = vec![Settlement {
        granted_at: granted_at.nanos(),
        charged,
        actual,
    }];
    call.asks = Vec::new();
    assert_eq!(read.call(granted_at, &call).0.limits[0].remaining, 0);
    assert_eq!(
        ledger.call(granted_at, &call).0.limits[0].remaining,
        5,
        "one that was kept does, also after a new revision of its policy"
    );
}

#[test]
fn a_limit_that_stays_under_another_policy_refunds_what_its_grants_have_not_used() {
    let (old, new) = (policy("1/s burst 5"), policy("9/min and 1/s burst 5"));
    let mut caller = Caller::new(old.clone());
    let (now, mut call) = caller.call(&step_of(vec![(1, 5, true)]));
    let mut ledger = Ledger::new(plan(&old), 0, now);
    assert_eq!(ledger.call(now, &call).0.granted, 1);
    assert_eq!(ledger.agree(&plan(&new), 1, now), Agreement::Adopted);
    call.settlements = vec![Settlement {
        granted_at: now.nanos(),
        charged: Box::new([0, 5]),
        actual: Box::new([0, 2]),
    }];
    call.asks = Vec::new();
    assert_eq!(ledger.call(now, &call).0.limits[1].remaining, 3);
}

#[test]
fn another_version_is_refused() {
    let policy = policy("1/s");
    let text = policy.to_string();
    let mut bytes = Ledger::new(plan(&policy), 0, Moment::START).encode(&text);
    assert!(bytes.len() < 32, "{} bytes", bytes.len());
    assert!(decode(&plan(&policy), &text, &bytes).is_ok());
    for other in [VERSION - 1, VERSION + 1] {
        bytes[0] = other;
        assert_eq!(decode(&plan(&policy), &text, &bytes).err(), Some(Damaged));
    }
}
