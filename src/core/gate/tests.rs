//! Which states fit into a word, and what is counted after changes of the plan.

use std::panic::Location;
use std::time::Duration;

use super::*;
use crate::policy::Policy;
use crate::strategy::Unit;

const START: Moment = Moment::START;

fn plan(policy: &str) -> Plan {
    let policy: Policy = policy.parse().unwrap();
    Plan::new(policy, Duration::ZERO).unwrap()
}

fn gate(policy: &str) -> Gate {
    Gate::new(plan(policy), START, false)
}

fn admit(gate: &mut Gate, cost: u64) -> Grant {
    gate.admit(START, Costs::plain(cost), Location::caller())
        .unwrap()
}

/// A grant that costs 1 and these bytes.
fn admit_bytes(gate: &mut Gate, bytes: u64) -> Grant {
    let mut details = CostDetails::default();
    details.set(Unit::new("bytes"), bytes);
    let details = Some(Arc::new(details));
    let costs = Costs::new(1, &details);
    gate.admit(START, costs, Location::caller()).unwrap()
}

fn set_plan(gate: &mut Gate, policy: &str) {
    gate.set_plan(plan(policy), START, UsageCarryOver::AsIs);
}

fn units_in_flight(gate: &Gate) -> Vec<u64> {
    gate.units_in_flight().collect()
}

fn opens_with_places(gate: &mut Gate, expected: u64) -> bool {
    let opening = gate.opening(START);
    gate.fits_word() && matches!(opening, Some(WordContents::Places { units }) if units == expected)
}

#[test]
fn a_plain_concurrency_or_one_rate_fits_into_a_word() {
    let fit = |policy: &str| {
        let later = {
            let mut changed = gate("5 concurrent").prefer_line(START);
            set_plan(&mut changed, policy);
            changed.fits_word()
        };
        let fits = gate(policy).prefer_line(START).fits_word();
        assert_eq!(fits, later, "{policy}");
        [gate(policy).fits_word(), fits]
    };
    assert_eq!(fit("4 concurrent"), [true, true]);
    for policy in ["3/s", "throttle every 10ms burst 5", "window 3/min"] {
        assert_eq!(fit(policy), [false, true], "{policy}");
    }
    for policy in [
        "4 concurrent ttl 1s",
        "4 concurrent and 3/s",
        "4 concurrent and 5 concurrent",
        "3/s and 5/min",
        "4 concurrent counting bytes",
        "3/s counting bytes",
        "sliding log 3/s",
        "window 9000000000000000000/min",
        "1000000000/ns",
    ] {
        assert_eq!(fit(policy), [false, false], "{policy}");
    }
}

#[test]
fn a_word_opens_with_the_units_that_are_left() {
    let mut places = gate("4 concurrent");
    admit(&mut places, 3);
    assert!(opens_with_places(&mut places, 1));
    for policy in ["4/s", "window 4/min"] {
        let mut rate = gate(policy).prefer_line(START);
        admit(&mut rate, 3);
        let Some(WordContents::Rate { line, value }) = rate.opening(START) else {
            panic!("{policy} is a line");
        };
        assert!(line.take(value, 0, 1).is_some(), "{policy}");
        assert!(line.take(value, 0, 2).is_none(), "{policy}");
    }
}

#[test]
fn places_are_passed_on_where_all_are_in_use() {
    let mut places = gate("2 concurrent");
    admit(&mut places, 1);
    assert_eq!(places.passed_on(), None);
    admit(&mut places, 1);
    assert_eq!(places.passed_on(), Some(3));
    let mut leases = gate("1 concurrent ttl 1s");
    admit(&mut leases, 1);
    assert_eq!(leases.passed_on(), None);
}

#[test]
fn a_gate_without_leases_forgets_that_there_was_a_ttl() {
    let mut gate = gate("4 concurrent ttl 1s");
    let Grant { fence, claim, .. } = admit(&mut gate, 1);
    gate.release(fence, 1, claim).unwrap();
    set_plan(&mut gate, "4 concurrent");
    assert!(!gate.leases_permits() && !gate.follows_time() && gate.fits_word());
}

/// A word does not count bytes.
#[test]
fn places_are_plain_once_all_permits_that_count_otherwise_are_released() {
    let mut gate = gate("9 concurrent counting bytes");
    let Grant { fence, claim, .. } = admit_bytes(&mut gate, 5);
    set_plan(&mut gate, "7 concurrent");
    assert!(!gate.fits_word());
    assert_eq!(units_in_flight(&gate), [5, 5]);
    gate.release(fence, 1, claim).unwrap();
    assert!(!gate.is_in_flight());
    assert!(opens_with_places(&mut gate, 7));
    admit(&mut gate, 2);
    set_plan(&mut gate, "6 concurrent");
    assert!(opens_with_places(&mut gate, 4));
}

#[test]
fn what_no_limit_counts_any_more_is_counted_for_a_later_plan() {
    let both = "9 concurrent and 9 concurrent per request";
    let mut gate = gate(both);
    let first = admit(&mut gate, 3);
    set_plan(&mut gate, "9 concurrent");
    assert!(!gate.fits_word());
    let second = admit(&mut gate, 4);
    assert_eq!(units_in_flight(&gate), [7, 2]);
    set_plan(&mut gate, both);
    assert_eq!(units_in_flight(&gate), [7, 2]);
    for (cost, Grant { fence, claim, .. }) in [(3, first), (4, second)] {
        gate.release(fence, cost, claim).unwrap();
    }
    assert_eq!(units_in_flight(&gate), [0, 0]);
}

/// A word counts its holders, and does not know their fences.
#[test]
fn units_of_a_word_are_returned_to_former_plans_too() {
    let mut gate = gate("9 concurrent");
    gate.opening(START).unwrap();
    gate.take_over(WordValue::Places { units: 5 }, 4);
    set_plan(&mut gate, "99 concurrent counting bytes");
    assert_eq!(units_in_flight(&gate), [4, 4]);
    gate.return_units(3);
    assert_eq!(units_in_flight(&gate), [1, 1]);
    gate.return_units(1);
    assert!(!gate.is_in_flight());
}

#[test]
fn a_pace_that_is_a_line_no_more_records_grants_for_their_refunds() {
    let mut gate = gate("9/s").prefer_line(START);
    admit(&mut gate, 1);
    set_plan(&mut gate, "9/s and 100 concurrent");
    let grant = admit(&mut gate, 4);
    assert_eq!(gate.limits().available(START), 4);
    gate.settle(START, grant, 4, Actual::Nothing, None).unwrap();
    assert_eq!(gate.limits().available(START), 8);
}

/// The store decides.
#[test]
fn a_gate_of_a_store_grants_nothing_in_place() {
    let ttl = NonZeroU64::new(1_000).unwrap();
    let mut gate = Gate::of_store(Arc::new(plan("9 concurrent")), START, ttl);
    assert_eq!(gate.limits().max_cost_in_place(), 0);
    gate.set_stored_plan(Arc::new(plan("8 concurrent")), START, ttl);
    assert_eq!(gate.limits().max_cost_in_place(), 0);
}

#[test]
fn a_request_that_cannot_wait_has_nothing_left_behind_others() {
    let gate = gate("9 concurrent");
    let remaining = [0, 1].map(|ahead| {
        let limits = gate.limits();
        let decision = limits.decide_behind(START, ahead, Costs::plain(1), START);
        (decision.is_allowed(), decision.remaining())
    });
    assert_eq!(remaining, [(true, 9), (false, 0)]);
}

#[test]
fn a_denial_that_changes_several_limits_changes_the_state() {
    let mut gate = gate("penalty 1 falling 1/s ceiling 9 and penalty 2 falling 1/s ceiling 9");
    admit(&mut gate, 1);
    assert!(gate.limits_mut().note_denial(START, Costs::plain(2)));
}

/// The first grant is refunded last, after the line was raised by the third.
#[test]
fn a_settlement_at_the_cost_leaves_a_line_as_it_is() {
    let mut gate = gate("10/s").prefer_line(START);
    let [first, second, third] = [2, 3, 4].map(|cost| admit(&mut gate, cost));
    for (grant, cost, actual) in [
        (third, 4, Actual::Nothing),
        (second, 3, Actual::Cost(3)),
        (first, 2, Actual::Nothing),
    ] {
        gate.settle(START, grant, cost, actual, None).unwrap();
    }
    assert_eq!(gate.limits().available(START), 7);
}

#[test]
fn a_plan_says_what_its_limits_need() {
    let of = |policy: &str| {
        let plan = plan(policy);
        (
            gate(policy).holds_places(),
            plan.adapts(),
            plan.only_rule().is_some(),
        )
    };
    assert_eq!(of("3/s"), (false, false, true));
    assert_eq!(of("3/s and 5/min"), (false, false, false));
    assert_eq!(of("4 concurrent"), (true, false, false));
    assert_eq!(of("4 concurrent and 3/s"), (true, false, false));
    assert_eq!(of("4 concurrent gradient from 1 to 9"), (true, true, false));
}

#[test]
fn the_first_limit_that_never_admits_a_cost_is_named() {
    let plan = plan("5 concurrent and 3/s and 4/min");
    let misfits = [3, 4, 5, 6].map(|cost| plan.misfit(cost));
    assert_eq!(misfits, [None, Some(1), Some(1), Some(0)]);
}
