//! The common cases are decided in a few steps. The model checks that the result is that of the long way.

use std::sync::Arc;

use super::*;
use crate::core::request::CostDetails;
use crate::flow::FlowId;
use crate::strategy::Adapt;

fn limits_of_one() -> [Policy; 2] {
    [
        MaxConcurrency::new(1).into(),
        Throttle::every(nanos(10)).into(),
    ]
}

fn pause_until(driven: &mut Driven, until: u64) {
    driven.at(0, |schedule, now, effects| {
        schedule.pause(now, PauseScope::Limiter, at(until), effects);
    });
}

fn behind(driven: &mut Driven, request: Request<'_>) -> Option<WaiterId> {
    let mut waker = Some(Waker::noop().clone());
    driven.0.enqueue_behind(&request, &mut waker)
}

#[test]
fn a_request_that_only_the_limits_decide_is_admitted_in_place() {
    for policy in limits_of_one() {
        let mut driven = Driven::new(policy.clone());
        let mut in_place = |cost| {
            let admitted = driven.0.admit_in_place(at(0), cost, Location::caller());
            admitted.map(|admitted| admitted.is_ok())
        };
        assert_eq!(
            [0, 1, 1, 2].map(&mut in_place),
            [None, Some(true), Some(false), None]
        );
        let mut driven = Driven::new(policy);
        pause_until(&mut driven, 5);
        let in_place = driven.0.admit_in_place(at(0), 1, Location::caller());
        assert!(in_place.is_none());
    }
}

#[test]
fn a_word_decides_while_only_the_limits_do() {
    for policy in limits_of_one() {
        let plan = Plan::new(policy, Duration::ZERO).unwrap();
        let gate = Gate::new(plan, at(0), false).prefer_line(at(0));
        let mut driven = Driven(Schedule::new(gate, Options::default()));
        assert!(driven.0.fits_word() && driven.0.opening(at(0)).is_some());
        driven.try_acquire(0, 1).unwrap();
        assert!(driven.0.fits_word());
        pause_until(&mut driven, 5);
        assert!(!driven.0.fits_word());
        driven.run_due(5);
        assert!(driven.0.fits_word());
        driven.queued(5, 1, None);
        assert!(!driven.0.fits_word());
    }
}

#[test]
fn a_request_without_a_turn_joins_those_that_wait() {
    for policy in limits_of_one() {
        let mut driven = Driven::new(policy);
        driven.try_acquire(0, 1).unwrap();
        assert_eq!(behind(&mut driven, request(1, None)), None, "none waits");
        driven.queued(0, 1, None);
        assert!(behind(&mut driven, request(1, None)).is_some());
        let urgent = Request {
            priority: Priority::HIGH,
            ..request(1, None)
        };
        let others = [urgent, request(1, Some(50)), request(2, None)];
        assert_eq!(others.map(|other| behind(&mut driven, other)), [None; 3]);
        assert_eq!(driven.0.waiters.queue.len(), 2);
    }
}

#[test]
fn a_place_is_passed_on_to_a_plain_request() {
    let mut explained = CostDetails::default();
    explained.ask_for_explanation();
    let explained = Some(Arc::new(explained));
    let mut driven = Driven::new(MaxConcurrency::new(1));
    let held = driven.try_acquire(0, 1).unwrap();
    assert!(driven.0.pass_on(1, held.claim).is_none(), "none waits");
    let plain = driven.queued(0, 1, None);
    let with_details = Request {
        costs: Costs::new(1, &explained),
        ..request(1, None)
    };
    driven.request(0, with_details).unwrap();
    assert!(driven.0.pass_on(2, held.claim).is_none(), "it asks for 1");
    assert!(driven.0.pass_on(1, held.claim).is_some());
    assert_eq!(driven.answer(plain), GRANTED);
    assert!(driven.0.pass_on(1, held.claim).is_none(), "it is explained");
    assert_eq!(driven.0.waiters.queue.len(), 1);
}

/// The first waiter has no slot: nobody else waited.
#[test]
fn a_place_is_granted_in_the_slot_of_a_waiter() {
    let mut driven = Driven::new(MaxConcurrency::new(1));
    let held = driven.try_acquire(0, 1).unwrap();
    let slots = [(); 2].map(|()| driven.queued(0, 1, None).slot());
    (0..2).for_each(|_| _ = driven.0.pass_on(1, held.claim));
    let fences = slots.map(|slot| driven.0.waiters.untaken.slots.take(slot?));
    assert_eq!(fences, [None, Some(3)]);
}

#[test]
fn the_lock_is_needed_for_a_flow_and_for_an_explanation() {
    let (mut in_flow, mut explained) = (CostDetails::default(), CostDetails::default());
    in_flow.set_flow(FlowId::of("a"), None);
    explained.ask_for_explanation();
    let needs_lock = |details| Costs::new(1, &details).needs_lock();
    assert!(!needs_lock(None) && !needs_lock(Some(Arc::default())));
    assert!(needs_lock(Some(Arc::new(in_flow))) && needs_lock(Some(Arc::new(explained))));
}

#[test]
fn reports_matter_only_to_a_limit_that_adapts() {
    let fixed = MaxConcurrency::new(1);
    let ignores_reports = |limit: MaxConcurrency| Driven::new(limit).0.ignores_reports();
    assert!(ignores_reports(fixed) && !ignores_reports(fixed.adapt(Adapt::aimd())));
}

#[test]
fn nothing_is_due_before_its_time() {
    let mut idle = Driven::new(MaxConcurrency::new(1));
    idle.try_acquire(0, 1).unwrap();
    assert!(!idle.0.is_due(at(1_000)) && !idle.0.reads_clock());
    assert!(!idle.0.outlook().leases_permits());

    let mut of_ttl = Driven::new(MaxConcurrency::new(1).ttl(nanos(100)));
    of_ttl.try_acquire(0, 1).unwrap();
    assert!(of_ttl.0.outlook().leases_permits());
    let mut of_turn = Driven::new(Throttle::every(nanos(100)));
    of_turn.try_acquire(0, 1).unwrap();
    of_turn.queued(0, 1, None);
    let mut of_deadline = Driven::new(MaxConcurrency::new(1));
    of_deadline.try_acquire(0, 1).unwrap();
    of_deadline.queued(0, 1, Some(100));
    let mut of_pause = Driven::new(MaxConcurrency::new(1));
    pause_until(&mut of_pause, 100);
    for driven in [of_ttl, of_turn, of_deadline, of_pause] {
        let Driven(schedule) = driven;
        assert!(schedule.reads_clock());
        assert!(!schedule.is_due(at(99)) && schedule.is_due(at(100)));
    }
}
