//! Flows, at the points where the front changes although no waiter is granted.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::task::Wake;

use proptest::prelude::*;

use super::*;
use crate::core::request::CostDetails;
use crate::flow::FlowId;

type Details = Option<Arc<CostDetails>>;

fn of_flow(flow: &str, weight: u32) -> Details {
    let mut details = CostDetails::default();
    details.set_flow(FlowId::of(flow), None);
    details.set_weight(NonZeroU32::new(weight).unwrap());
    Some(Arc::new(details))
}

fn in_flow(cost: u64, details: &Details) -> Request<'_> {
    Request {
        costs: Costs::new(cost, details),
        ..request(cost, None)
    }
}

impl Driven {
    fn granted(&mut self, now: u64, details: &Details) -> Grant {
        match self.request(now, in_flow(1, details)) {
            Ok(Enqueued::Granted(grant)) => grant,
            other => panic!("not granted: {other:?}"),
        }
    }

    fn granted_and_released(&mut self, now: u64, details: &Details) {
        let Grant { fence, claim, .. } = self.granted(now, details);
        self.at(now, |schedule, now, effects| {
            schedule.release_to_next(now, fence, 1, claim, effects);
        });
    }

    fn waits(&mut self, now: u64, cost: u64, details: &Details) -> WaiterId {
        self.waits_as(now, in_flow(cost, details))
    }

    fn waits_as(&mut self, now: u64, request: Request<'_>) -> WaiterId {
        match self.request(now, request) {
            Ok(Enqueued::Queued(id)) => id,
            other => panic!("not queued: {other:?}"),
        }
    }
}

/// A unit each 100 ns, of which three were granted at the start: one to the flow "a", which holds one place, and two to "b".
fn one_to_a_and_two_to_b() -> (Driven, [Grant; 3]) {
    let policy = MaxConcurrency::new(9).and(Throttle::every(nanos(100)).burst(3));
    let mut driven = Driven::new(policy);
    let flows = ["a", "b", "b"].map(|flow| of_flow(flow, 1));
    let grants = flows.map(|flow| driven.granted(0, &flow));
    (driven, grants)
}

struct Unwoken;

impl Wake for Unwoken {
    fn wake(self: Arc<Self>) {}
}

/// Its thread runs the timer for all waiters, and slept until its own deadline before.
#[test]
fn a_blocked_thread_whose_request_becomes_the_front_is_woken() {
    let (mut driven, [_, first, second]) = one_to_a_and_two_to_b();
    let (a, b) = (of_flow("a", 1), of_flow("b", 1));
    driven.waits(0, 1, &a);
    let waker = Waker::from(Arc::new(Unwoken));
    let blocking = Request {
        blocking: true,
        ..in_flow(1, &b)
    };
    let id = driven.at(0, |schedule, now, effects| {
        match schedule.request(now, &blocking, &mut Some(waker.clone()), effects) {
            Ok(Enqueued::Queued(id)) => id,
            other => panic!("not queued: {other:?}"),
        }
    });
    assert!(!driven.0.waiters.queue.is_front(id));
    let mut woken = false;
    for Grant { fence, claim, .. } in [first, second] {
        let mut effects = Effects::default();
        driven
            .0
            .release_to_next(at(1), fence, 1, claim, &mut effects);
        woken |= effects.first.iter().any(|woken| woken.will_wake(&waker));
    }
    assert!(driven.0.waiters.queue.is_front(id) && woken);
    assert_eq!(driven.0.wake_of(id), at(100));
}

#[test]
fn a_new_weight_changes_whose_turn_the_timer_waits_for() {
    let (mut driven, _) = one_to_a_and_two_to_b();
    driven.waits(0, 3, &of_flow("a", 1));
    driven.waits(0, 1, &of_flow("b", 1));
    assert_eq!(driven.0.next_wake(), at(300));
    driven.waits(0, 1, &of_flow("b", 4));
    assert_eq!(driven.0.next_wake(), at(100));
}

/// Its flow holds nothing, but the limiter does not rest.
#[test]
fn a_grant_of_a_rate_counts_while_units_are_in_flight() {
    let mut driven = Driven::new(MaxConcurrency::new(4));
    let _grant = driven.try_acquire(0, 1).unwrap();
    driven.at(0, |schedule, now, effects| {
        let throttle = Throttle::every(nanos(50));
        let plan = Plan::new(throttle.into(), Duration::ZERO).unwrap();
        schedule.set_plan(now, plan, UsageCarryOver::AsIs, effects);
    });
    let (a, b) = (of_flow("a", 1), of_flow("b", 1));
    driven.granted(0, &a);
    let second = driven.waits(0, 1, &a);
    let other = driven.waits(0, 1, &b);
    driven.advance(50);
    assert_eq!(
        (driven.answer(second), driven.answer(other)),
        (None, GRANTED)
    );
}

/// At 100, the first permit of "a" is reclaimed.
#[test]
fn a_late_timer_gives_a_reclaimed_place_to_the_flow_that_holds_less_then() {
    let mut driven = Driven::new(MaxConcurrency::new(2).ttl(nanos(100)));
    let (a, b) = (of_flow("a", 1), of_flow("b", 1));
    driven.granted(0, &a);
    driven.granted(50, &b);
    let until_120 = |details| Request {
        deadline: at(120),
        ..in_flow(1, details)
    };
    let [of_b, of_a] = [&b, &a].map(|details| driven.waits_as(50, until_120(details)));
    driven.run_due(200);
    assert_eq!(
        (driven.answer(of_a), driven.answer(of_b)),
        (GRANTED, FAILED)
    );
}

/// At 100, one place is free and "a" asks for two. At 110, "b" holds nothing, and has been granted less than "a".
#[test]
fn a_late_timer_lets_no_flow_pass_one_that_needs_another_place() {
    for newest_first in [false, true] {
        let options = Options {
            newest_first,
            ..Options::default()
        };
        let mut driven = Driven::with(MaxConcurrency::new(3).ttl(nanos(100)), options);
        let (a, b) = (of_flow("a", 1), of_flow("b", 1));
        driven.try_acquire(0, 1).unwrap();
        driven.granted_and_released(0, &a);
        driven.granted(10, &b);
        driven.granted_and_released(10, &a);
        driven.try_acquire(20, 1).unwrap();
        let until_115 = |cost, details| Request {
            deadline: at(115),
            ..in_flow(cost, details)
        };
        let of_a = driven.waits_as(20, until_115(2, &a));
        let of_b = driven.waits_as(20, until_115(1, &b));
        driven.run_due(200);
        let answers = (driven.answer(of_a), driven.answer(of_b));
        if newest_first {
            assert_eq!(answers, (FAILED, GRANTED));
        } else {
            assert_eq!(answers, (GRANTED, FAILED));
        }
    }
}

fn within(parent: &str, flow: &str) -> Details {
    let parent = FlowId::of_parent(parent);
    let mut details = CostDetails::default();
    details.set_flow(parent.with(flow), Some(parent));
    Some(Arc::new(details))
}

/// All places are taken, and so many requests may wait.
fn full(max_queue: usize) -> Driven {
    let options = Options {
        max_queue: Some(max_queue),
        overflow: Overflow::DropLongest,
        ..Options::default()
    };
    let mut driven = Driven::with(MaxConcurrency::new(1), options);
    driven.try_acquire(0, 1).unwrap();
    driven
}

#[test]
fn a_full_queue_drops_a_request_of_a_flow_that_is_longer_than_the_others() {
    let mut driven = full(4);
    let (a, b) = (of_flow("a", 1), of_flow("b", 1));
    driven.waits(0, 1, &None);
    let waiting = [(); 3].map(|()| driven.waits(0, 1, &a));
    driven.waits(0, 1, &b);
    assert_eq!(
        waiting.map(|id| driven.answer(id)),
        [None, None, FAILED],
        "the latest one"
    );
}

/// The requests without a flow are dropped as if they were a flow.
#[test]
fn a_full_queue_drops_the_latest_request_without_a_flow_if_most_have_none() {
    let mut driven = full(4);
    let (none, a, b) = (None, of_flow("a", 1), of_flow("b", 1));
    let waiting = [&none, &none, &a, &none].map(|flow| driven.waits(0, 1, flow));
    driven.waits(0, 1, &b);
    let answers = |driven: &Driven| waiting.map(|id| driven.answer(id));
    assert_eq!(answers(&driven), [None, None, None, FAILED]);
    let refused = driven.request(0, in_flow(1, &none));
    assert!(matches!(refused, Err(AcquireError::QueueFull { .. })));
    driven.waits(0, 1, &of_flow("c", 1));
    assert_eq!(answers(&driven), [None, FAILED, None, FAILED]);
}

#[test]
fn a_full_queue_drops_no_request_for_an_equally_long_flow_of_the_same_parent() {
    let mut driven = full(3);
    let [x, y, z] = ["x", "y", "z"].map(|flow| within("parent", flow));
    let waiting = [&x, &x, &y].map(|flow| driven.waits(0, 1, flow));
    let refused = driven.request(0, in_flow(1, &y));
    assert!(matches!(refused, Err(AcquireError::QueueFull { .. })));
    driven.waits(0, 1, &z);
    assert_eq!(waiting.map(|id| driven.answer(id)), [None, FAILED, None]);
}

#[test]
fn the_units_of_flows_that_wait_are_those_of_the_requests_that_stay() {
    let mut driven = full(9);
    let [a, b] = ["a", "b"].map(|flow| of_flow(flow, 1));
    let [first, second, third] = [&a, &a, &b].map(|flow| driven.waits(0, 1, flow));
    let mut ahead = Vec::new();
    for id in [second, third, first] {
        driven.at(0, |schedule, now, effects| {
            schedule.abandon(now, id, 1, effects);
        });
        ahead.push(driven.0.waiters.queue.units_ahead_of(Priority::LOW));
    }
    assert_eq!(ahead, [2, 1, 0]);
}

/// At 40, "b" and "c" hold a unit each and have been granted one each, and "a" three. Neither has saved up a claim while it did not
/// wait, so they go in the order of arrival.
#[test]
fn a_newcomer_is_behind_a_flow_that_came_earlier() {
    let mut driven = Driven::new(MaxConcurrency::new(9).and(Throttle::every(nanos(10))));
    let [a, b, c] = ["a", "b", "c"].map(|flow| of_flow(flow, 1));
    driven.granted(0, &c);
    driven.granted(10, &b);
    for now in [20, 30, 40] {
        driven.granted_and_released(now, &a);
    }
    driven.waits(40, 1, &b);
    let until = |deadline| Request {
        deadline: at(deadline),
        ..in_flow(1, &c)
    };
    let refused = driven.request(40, until(59));
    assert!(matches!(refused, Err(AcquireError::TimedOut { .. })));
    driven.waits_as(40, until(60));
}

/// The waiters in the order of their turns, if none leaves: of all, or of those before a newcomer.
fn foreseen(driven: &Driven, newcomer: Option<&Request<'_>>) -> Vec<WaiterId> {
    let mut turns = driven.0.waiters.queue.turns(newcomer);
    let limits = driven.0.outlook().limits();
    let mut ids = Vec::new();
    while let Some(turn) = turns.next() {
        ids.push(turn.id);
        turns.granted(&turn, limits.units_held_by(turn.costs));
    }
    ids
}

/// Without a flow, in one, or within a parent; and its weight.
fn any_flow() -> impl Strategy<Value = Details> {
    let flow = prop_oneof![
        2 => Just(None),
        3 => prop::sample::select(vec!["a", "b", "c"]).prop_map(|flow| Some((None, flow))),
        4 => (prop::sample::select(vec!["p", "q"]), prop::sample::select(vec!["x", "y", "z"]))
            .prop_map(|(parent, flow)| Some((Some(parent), flow))),
    ];
    flow.prop_map(|flow| match flow? {
        (None, flow) => of_flow(flow, 1 + u32::from(flow == "b")),
        (Some(parent), flow) => within(parent, flow),
    })
}

proptest! {
    #![proptest_config(crate::replay::cases(300))]

    /// No two are granted at one instant. Each holds its units.
    #[test]
    fn turns_come_as_they_are_foreseen(
        held in prop::collection::vec(any_flow(), 0..6),
        requests in prop::collection::vec((any_flow(), 1..4_u64, 4..7_u8), 1..20),
        newest_first in any::<bool>(),
    ) {
        let options = Options { newest_first, ..Options::default() };
        let policy = MaxConcurrency::new(1_000).and(Throttle::every(nanos(10)).burst(3));
        let mut driven = Driven::with(policy, options);
        let mut now = 0;
        for details in &held {
            now += 10;
            driven.granted(now, details);
        }
        while driven.try_acquire(now, 1).is_ok() {}
        for (details, cost, priority) in &requests {
            let newcomer = Request {
                priority: Priority::new(*priority).unwrap(),
                ..in_flow(*cost, details)
            };
            let Schedule { waiters, authority } = &mut driven.0;
            waiters.queue.expect(newcomer.costs, authority.in_flight());
            authority.reserve_front(at(now), waiters);
            let before = foreseen(&driven, Some(&newcomer));
            let id = driven.waits_as(now, newcomer);
            let turns = foreseen(&driven, None);
            prop_assert_eq!(turns.iter().position(|next| *next == id), Some(before.len()));
            prop_assert_eq!(&turns[..before.len()], before);
        }
        let turns = foreseen(&driven, None);
        prop_assert_eq!(turns.len(), requests.len());
        for id in turns {
            prop_assert_eq!(driven.answer(id), None);
            let next = driven.0.next_wake().nanos();
            driven.run_due(next);
            prop_assert_eq!(driven.answer(id), GRANTED);
        }
    }
}
