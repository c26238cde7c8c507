//! Tests of cases that the simulation and the tests of stores do not reach.

use std::num::NonZeroU64;
use std::panic::Location;
use std::task::Waker;
use std::time::Duration;

use super::*;
use crate::core::effects::Errand;
use crate::core::queue::Options;
use crate::core::request::CostDetails;
use crate::core::schedule::{Enqueued, Schedule};
use crate::error::StoreError;
use crate::exchange::{Call, Scope};
use crate::priority::Priority;

const MS: u64 = 1_000_000;

fn plan(text: &str) -> Arc<Plan> {
    Arc::new(Plan::new(text.parse().unwrap(), Duration::ZERO).unwrap())
}

fn session(plan: Arc<Plan>, now: Moment, options: SessionOptions) -> StoreSession {
    let scope = Scope {
        limiter: "tested".into(),
        key: Arc::default(),
    };
    let terms = PolicyTerms {
        plan,
        revision: 0,
        ttl: NonZeroU64::MIN,
        polls_every: 1_000_000_000,
        hears_turns: true,
        prefetch: PrefetchOptions::default(),
    };
    StoreSession::new(scope, 0, Arc::new(terms), now, options)
}

fn options(on_down: OnStoreDown, fallback: Option<Arc<Plan>>) -> SessionOptions {
    SessionOptions {
        holder: 1,
        max_hold: None,
        deadline: 500 * MS,
        longest_back_off: 500 * MS,
        on_down,
        fallback,
        store: "tested".into(),
    }
}

/// The call of the carrier that was started.
fn carried(schedule: &mut Schedule, now: Moment, effects: &mut Effects) -> (Call, u64) {
    let errands = effects.more.take().unwrap().errands;
    assert!(matches!(errands[..], [Errand::Carry]));
    match schedule.session(now, effects).unwrap().next_trip(0, 0) {
        Trip::Call { call, generation } => (*call, generation),
        other => panic!("{other:?}"),
    }
}

/// While a call finds out whether the store answers again, the front has its turn all the same.
#[test]
fn a_call_in_flight_delays_no_decision() {
    let now = Moment::from_nanos(1_000 * MS);
    let fallback = plan("throttle every 100ms");
    let on_down = OnStoreDown::Local(fallback.policy().clone());
    let options = options(on_down, Some(fallback));
    let session = session(plan("1000/s"), now, options);
    let mut schedule = Schedule::of_store(session, Options::default());
    let mut effects = Effects::default();
    let request = Request {
        costs: Costs::plain(1),
        priority: Priority::NORMAL,
        deadline: Moment::NEVER,
        caller: Location::caller(),
        blocking: false,
    };
    let waker = || Some(Waker::noop().clone());
    let ids = [(); 2].map(
        |()| match schedule.request(now, &request, &mut waker(), &mut effects) {
            Ok(Enqueued::Queued(id)) => id,
            other => panic!("{other:?}"),
        },
    );
    let (call, generation) = carried(&mut schedule, now, &mut effects);
    assert_eq!(call.asks[0].count, 2);
    let answer = Err(CallFailed {
        error: StoreError::Unanswered {
            store: String::new(),
            after: None,
            source: None,
        },
        may_have_run: true,
    });
    schedule.change_session(now, &mut effects, |step| {
        step.answered(generation, &answer);
    });
    let mut step = schedule.session(now, &mut effects).unwrap();
    let retry = step.trip_after(&answer);
    assert!(matches!(retry, Trip::WaitUntil(_)), "{retry:?}");
    effects.more = None;
    let is_granted = |schedule: &mut Schedule, id| {
        let answer = schedule.waiters.poll(id, Waker::noop());
        answer.is_ok_and(|answer| answer.is_ok())
    };
    assert!(is_granted(&mut schedule, ids[0]));
    let turn = now.plus(100 * MS);
    effects = Effects::default();
    let mut probe_at = now;
    while effects.more.is_none() {
        probe_at = probe_at.plus(MS);
        assert!(probe_at < turn);
        schedule.run_due(probe_at, &mut effects);
    }
    let (probe, _) = carried(&mut schedule, probe_at, &mut effects);
    assert!(probe.asks.is_empty(), "nothing is asked for");
    assert_eq!(schedule.next_wake(), turn);
    schedule.run_due(turn, &mut effects);
    assert!(is_granted(&mut schedule, ids[1]));
}

/// A fixed bug: what was recorded of a rate that counts named units was kept for ever.
#[test]
fn nothing_is_kept_of_a_permit_that_came_back() {
    let plan = plan("1000 tokens/min");
    let details = Some(Arc::new(CostDetails::one_of_each(plan.policy())));
    let mut session = session(plan, Moment::START, options(OnStoreDown::Error, None));
    let by_store = GrantByStore {
        fence: 7,
        number: 0,
        granted_at: 1,
        sent_at: Moment::START,
    };
    let costs = Costs::new(1, &details);
    let grant = session.record(Moment::START, costs, by_store, Location::caller());
    assert_ne!(session.grants.free_fence(7), 7);
    session.end(grant.fence, grant.claim, |gate| {
        gate.release(grant.fence, 1, grant.claim)
    });
    assert_eq!(session.grants.free_fence(7), 7);
}
