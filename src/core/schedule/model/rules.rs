//! The rules, a sentence each.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::costs::Cost;
use super::harness::Harness;
use super::limits::Bound;
use super::reference::{Reference, Turn, Waiting};
use crate::core::queue::untaken_answers::AnswerKind;
use crate::core::request::Costs;
use crate::decision::Decision;
use crate::policy::Limit;
use crate::strategy::Moment;

/// A time after which every limit here is reset: 20 minutes. An adaptive one takes ten.
pub(super) const LONG: u64 = 1_200_000_000_000;

/// A grant is within every limit at the instant at which it is made, and nothing is granted while the limiter is paused or closed.
pub(super) fn never_over(reference: &Reference, cost: Cost) -> TestCaseResult {
    let Reference { now, .. } = *reference;
    prop_assert!(!reference.refuses_waiters(), "granted although closed");
    prop_assert!(
        !reference.is_suspended(now, cost, Bound::Least),
        "granted although suspended"
    );
    for (index, limit) in reference.limits.iter().enumerate() {
        let admits = reference.limit_admits(index, now, cost, Bound::Least);
        prop_assert!(admits, "{cost:?} more at {now} is over {}", limit.limit);
    }
    Ok(())
}

/// No unit is lost: the front waits only for what some limit does not admit.
pub(super) fn never_lost(reference: &Reference) -> TestCaseResult {
    let Some(front) = reference.front() else {
        return Ok(());
    };
    prop_assert!(
        !reference.must_admit(reference.now, front.cost),
        "at {} request {} still waits",
        reference.now,
        front.id
    );
    Ok(())
}

/// Requests are granted by priority, then in arrival order; no request overtakes a waiter. And no request is refused without a
/// reason.
pub(super) fn in_order(harness: &Harness) -> TestCaseResult {
    for waiting in &harness.reference.waiting {
        let answer = harness.answer(waiting.id);
        prop_assert!(
            answer != Some(AnswerKind::Granted),
            "request {} was granted before its turn",
            waiting.id
        );
        prop_assert!(
            answer != Some(AnswerKind::Failed),
            "request {} was refused without a reason",
            waiting.id
        );
    }
    for id in harness.tickets.keys() {
        let expected = harness
            .reference
            .answers
            .get(id)
            .map(|answer| match answer {
                Ok(_) => AnswerKind::Granted,
                Err(_) => AnswerKind::Failed,
            });
        prop_assert_eq!(harness.answer(*id), expected, "request {}", id);
    }
    Ok(())
}

/// A grant wins a tie with a deadline: no request times out at the instant at which it could have been granted.
pub(super) fn a_grant_wins_a_tie_with_a_deadline(
    reference: &Reference,
    expired: Waiting,
) -> TestCaseResult {
    let is_front = reference
        .front()
        .is_some_and(|front| front.id == expired.id);
    prop_assert!(
        !is_front || !reference.must_admit(reference.now, expired.cost),
        "request {} could be granted",
        expired.id
    );
    Ok(())
}

/// A request is refused at once if it cannot be served by its deadline, and only then. Where the least and the most of an amount
/// would lead to different answers, either is right.
pub(super) fn a_request_is_refused_at_once_if_it_cannot_be_served_in_time(
    reference: &Reference,
    newcomer: Waiting,
    is_refused: bool,
) -> TestCaseResult {
    let ways = reference.each_way();
    let served: Vec<_> = ways
        .iter()
        .flat_map(|way| {
            [Bound::Least, Bound::Most].map(|bound| way.could_be_served(newcomer, bound))
        })
        .collect();
    if is_refused {
        prop_assert!(
            served.contains(&false),
            "request {} was refused at once",
            newcomer.id
        );
    } else {
        prop_assert!(
            served.contains(&true),
            "request {} was not refused at once",
            newcomer.id
        );
    }
    Ok(())
}

/// Only a request that must wait joins the queue, or is refused because that is full.
pub(super) fn a_request_that_can_be_granted_is_granted(
    reference: &Reference,
    newcomer: Waiting,
    is_granted: bool,
) -> TestCaseResult {
    let can_be =
        reference.goes_first(newcomer) && reference.must_admit(reference.now, newcomer.cost);
    prop_assert!(
        is_granted || !can_be,
        "request {} could be granted at once",
        newcomer.id
    );
    Ok(())
}

/// All or none: a denial charges no limit (but a penalty, of which `remaining` is left as it was), and names one that denies.
pub(super) fn all_or_none(
    harness: &Harness,
    cost: Cost,
    denied: &Decision,
    remaining: Option<u64>,
) -> TestCaseResult {
    let reference = &harness.reference;
    let counts_denials = reference
        .limits
        .iter()
        .any(|limit| matches!(limit.limit, Limit::Penalty(_)));
    let remains = harness
        .schedule
        .outlook()
        .check(harness.moment(), Costs::new(cost.plain, &cost.details()))
        .remaining();
    prop_assert!(
        counts_denials || remaining.is_none_or(|before| before == remains),
        "a denial charged a limit"
    );
    prop_assert!(!denied.is_allowed());
    match denied.denied_by_index() {
        Some(by) if reference.waiting.is_empty() => {
            let denier = reference.limits[by].limit;
            prop_assert_eq!(denied.denied_by(), Some(denier));
            prop_assert!(
                !reference.limit_admits(by, reference.now, cost, Bound::Most),
                "{denier} admits"
            );
        }
        Some(_) => {}
        None => prop_assert!(
            denied.is_paused() && reference.is_suspended(reference.now, cost, Bound::Most)
        ),
    }
    Ok(())
}

/// A retry-after is exact when no request waits and no other comes: denied one nanosecond before it, granted at it.
pub(super) fn retry_after_is_exact(
    reference: &Reference,
    cost: Cost,
    answered: Option<Duration>,
) -> TestCaseResult {
    match answered {
        Some(after) => {
            let retry = reference.now + after.as_nanos() as u64;
            prop_assert!(
                !reference.must_admit(retry - 1, cost),
                "it is admitted before {after:?}"
            );
            prop_assert!(
                reference.may_admit(retry, cost),
                "it is not admitted after {after:?}"
            );
        }
        None => prop_assert!(
            !reference.must_admit(reference.now + LONG, cost),
            "it does not take a release"
        ),
    }
    Ok(())
}

/// A retry-after is exact while others wait, however late the timers of waiters that leave are: denied one nanosecond before it,
/// granted at it, if nothing is released and no other request comes. There is none if only a release helps.
///
/// Where the least and the most of an amount would lead to different grants, the schedule decides.
pub(super) fn retry_after_is_exact_behind_others(
    reference: &Reference,
    cost: Cost,
    answered: Option<Duration>,
) -> TestCaseResult {
    /// Instants that are checked: longer than all pauses and spreads except the longest ones.
    const HORIZON: u64 = 1_000;
    /// With more waiters, it is a lower bound.
    const FORECAST: usize = 64;
    if reference.waiting.len() > FORECAST {
        return Ok(());
    }
    let turns: Vec<_> = (reference.each_way().iter())
        .flat_map(|way| {
            [Bound::Least, Bound::Most]
                .map(|bound| way.turn_of_new_request(cost, reference.now + HORIZON, bound))
        })
        .collect();
    if turns.iter().any(|turn| *turn != turns[0]) {
        return Ok(());
    }
    let (expected, _) = turns[0].clone();
    let answered = answered.map(|after| reference.now + after.as_nanos() as u64);
    let is_exact = match expected {
        Turn::At(turn) => answered == Some(turn),
        Turn::Later => answered.is_none_or(|answered| answered > reference.now + HORIZON),
        Turn::TakesARelease => answered.is_none(),
    };
    prop_assert!(
        is_exact,
        "answered {answered:?} at {}, but it is {expected:?}",
        reference.now
    );
    Ok(())
}

/// `remaining` is the most that the policy would admit at once; if its limits count by unit, the most that the denying limit
/// would admit.
pub(super) fn what_remains_would_be_admitted(
    reference: &Reference,
    denied: &Decision,
) -> TestCaseResult {
    let (now, remaining) = (reference.now, denied.remaining());
    if reference.counts_by_unit() {
        let Some(by) = denied.denied_by_index() else {
            return Ok(());
        };
        let admits = |units, bound| reference.limit_admits_units(by, now, units, bound);
        prop_assert!(
            remaining == 0 || admits(remaining, Bound::Least),
            "{remaining} is too much"
        );
        prop_assert!(
            !admits(remaining + 1, Bound::Most),
            "{remaining} is too little"
        );
        return Ok(());
    }
    prop_assert!(
        reference.policy_admits(now, Cost::plain(remaining), Bound::Least) || remaining == 0,
        "{remaining} is too much"
    );
    prop_assert!(
        !reference.policy_admits(now, Cost::plain(remaining + 1), Bound::Most),
        "{remaining} is too little"
    );
    Ok(())
}

/// `remaining` is 0 while a request waits.
pub(super) fn nothing_remains_while_a_request_waits(remaining: u64) -> TestCaseResult {
    prop_assert_eq!(remaining, 0);
    Ok(())
}

/// Each waiter with an answer was woken for it.
pub(super) fn everybody_with_an_answer_was_woken(harness: &Harness) -> TestCaseResult {
    for (id, ticket) in &harness.tickets {
        let is_answered = harness.answer(*id).is_some();
        prop_assert!(
            !is_answered || ticket.alarm.is_woken(),
            "request {} was answered and not woken",
            id
        );
    }
    Ok(())
}

/// Without a runtime, some blocked thread wakes when time matters next to the waiters.
pub(super) fn a_blocked_thread_keeps_the_time(harness: &Harness) -> TestCaseResult {
    if !harness.has_runtime && !harness.reference.waiting.is_empty() {
        let next = harness.schedule.next_wake();
        prop_assert!(
            harness.next_alarm() <= next,
            "all threads sleep at {:?}",
            next
        );
    }
    Ok(())
}

/// The timer wakes for what is due, not after it: no grant, no reclaim and no refusal comes late.
pub(super) fn the_timer_is_not_late(reference: &Reference, wake: u64) -> TestCaseResult {
    prop_assert!(
        wake > reference.now,
        "woken at {} for what was due at {wake}",
        reference.now
    );
    let front = reference
        .front()
        .filter(|front| reference.must_admit(wake - 1, front.cost));
    prop_assert!(front.is_none(), "{front:?} could be granted before {wake}");
    let expiry = reference
        .grants
        .values()
        .map(|grant| reference.expires(grant))
        .min();
    prop_assert!(
        expiry.is_none_or(|expiry| expiry >= wake),
        "a reclaim was due before {wake}"
    );
    let deadline = reference
        .waiting
        .iter()
        .map(|waiting| waiting.deadline)
        .min();
    prop_assert!(
        deadline.is_none_or(|deadline| deadline >= wake),
        "a refusal was due before {wake}"
    );
    Ok(())
}

/// No waiter is stranded: while a request waits, an event is due, or a permit is held, or the limiter is paused.
pub(super) fn no_waiter_is_stranded(harness: &Harness) -> TestCaseResult {
    let Harness {
        reference,
        schedule,
        ..
    } = harness;
    let is_held = reference.is_in_flight() || reference.paused_until == u64::MAX;
    let is_stranded =
        !reference.waiting.is_empty() && !is_held && schedule.next_wake() == Moment::NEVER;
    prop_assert!(
        !is_stranded,
        "a request waits, and nothing will ever happen"
    );
    Ok(())
}

/// An adaptive limit stays within its bounds, and only a report, another policy and time change it.
pub(super) fn an_adapting_limit_keeps_its_bounds(
    reference: &Reference,
    concurrency: Option<u64>,
) -> TestCaseResult {
    let bounds = reference
        .limits
        .iter()
        .filter_map(|limit| match limit.limit {
            Limit::MaxConcurrency(concurrency) => {
                let fixed = (concurrency.limit, concurrency.limit);
                Some(
                    concurrency
                        .adapt
                        .map_or(fixed, |adapt| (adapt.floor, adapt.ceiling)),
                )
            }
            _ => None,
        });
    let bounds = bounds.reduce(|one, other| (one.0.min(other.0), one.1.min(other.1)));
    prop_assert_eq!(bounds.is_some(), concurrency.is_some());
    if let (Some((floor, ceiling)), Some(limit)) = (bounds, concurrency) {
        prop_assert!(
            (floor..=ceiling).contains(&limit),
            "{limit} is not within {floor} and {ceiling}"
        );
    }
    Ok(())
}

/// The counts agree: units in flight, waiters, and how often each event happened.
pub(super) fn what_is_counted_agrees(harness: &Harness) -> TestCaseResult {
    let (reference, snapshot) = (
        &harness.reference,
        harness.schedule.outlook().snapshot(harness.moment()),
    );
    prop_assert_eq!(snapshot, reference.counts(snapshot));
    prop_assert_eq!(
        snapshot.paused_for.is_some(),
        reference.paused_until > reference.now
    );
    Ok(())
}

/// It is drained when it is closed, no request waits, and no grant is in flight, neither with a holder nor in a slot.
pub(super) fn drained_means_that_nothing_is_out(harness: &Harness) -> TestCaseResult {
    let Harness {
        reference,
        schedule,
        tickets,
        ..
    } = harness;
    let is_out = |fence: &u64| reference.grants[fence].is_out || !reference.grants[fence].has_place;
    let in_slot = tickets
        .keys()
        .any(|id| matches!(&reference.answers.get(id), Some(Ok(fence)) if is_out(fence)));
    let is_drained = reference.waiting.is_empty() && !reference.is_in_flight() && !in_slot;
    prop_assert_eq!(schedule.outlook().is_drained(), is_drained);
    Ok(())
}

/// A suspension that has ended leaves nothing behind.
pub(super) fn a_suspension_that_has_ended_leaves_nothing_behind(
    harness: &Harness,
) -> TestCaseResult {
    prop_assert_eq!(
        harness.schedule.waiters.suspension.is_none(),
        harness.reference.is_unsuspended()
    );
    Ok(())
}

/// When everything is released and time has passed, the limiter is reset, and no timer is set.
pub(super) fn all_comes_back(harness: &mut Harness) -> TestCaseResult {
    let Harness {
        reference,
        schedule,
        ..
    } = harness;
    let now = Moment::from_nanos(reference.now);
    let snapshot = schedule.outlook().snapshot(now);
    prop_assert_eq!(
        (snapshot.in_flight, snapshot.queued, schedule.next_wake()),
        (0, 0, Moment::NEVER)
    );
    let fixed = reference
        .limits
        .iter()
        .filter(|limit| !limit.counts_places())
        .map(|limit| limit.limit.capacity())
        .min();
    let remaining = fixed.into_iter().chain(snapshot.concurrency).min().unwrap();
    let details = schedule.outlook().one_of_each_unit();
    let most = if details.is_some() {
        1
    } else {
        reference.max_cost()
    };
    let decision = schedule.outlook().check(now, Costs::new(most, &details));
    prop_assert_eq!(decision.is_allowed(), !reference.closed);
    prop_assert_eq!(
        (decision.remaining(), decision.reset_after()),
        (remaining, Duration::ZERO)
    );
    prop_assert!(schedule.outlook().at_rest(now).is_some());
    Ok(())
}
