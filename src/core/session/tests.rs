//! Tests of cases that the simulation and the tests of stores do not reach.

use std::num::NonZeroU64;
use std::panic::Location;
use std::task::Waker;
use std::time::Duration;

use super::*;
use crate::core::effects::Errand;
use crate::core::queue::{Options, WaiterId};
use crate::core::request::CostDetails;
use crate::core::schedule::{Enqueued, Schedule};
use crate::error::StoreError;
use crate::event::EventKind;
use crate::exchange::{Call, Scope};
use crate::flow::FlowId;
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
    StoreSession::new(scope, 0, Arc::new(terms(plan)), now, options)
}

fn terms(plan: Arc<Plan>) -> PolicyTerms {
    PolicyTerms {
        plan,
        revision: 0,
        ttl: NonZeroU64::MIN,
        polls_every: 1_000_000_000,
        hears_turns: true,
        prefetch: PrefetchOptions::default(),
    }
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

fn local_fallback(policy: &str) -> SessionOptions {
    let fallback = plan(policy);
    let on_down = OnStoreDown::Local(fallback.policy().clone());
    options(on_down, Some(fallback))
}

fn request(costs: Costs<'_>) -> Request<'_> {
    Request {
        costs,
        priority: Priority::NORMAL,
        deadline: Moment::NEVER,
        caller: Location::caller(),
        blocking: false,
    }
}

fn of_flow(flow: &str) -> Option<Arc<CostDetails>> {
    let mut details = CostDetails::default();
    details.set_flow(FlowId::of(flow), None);
    Some(Arc::new(details))
}

fn by_store(fence: u64) -> GrantByStore {
    GrantByStore {
        fence,
        number: fence,
        granted_at: 1,
        sent_at: Moment::START,
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
    let session = session(plan("1000/s"), now, local_fallback("throttle every 100ms"));
    let mut schedule = Schedule::of_store(session, Options::default());
    let mut effects = Effects::default();
    let request = request(Costs::plain(1));
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
    let costs = Costs::new(1, &details);
    for has_fallback in [false, true] {
        let options = local_fallback("1000 tokens/min");
        let mut session = session(Arc::clone(&plan), Moment::START, options);
        if has_fallback {
            session.begin_fallback(Moment::START);
        }
        let grant = session.record(Moment::START, costs, by_store(7), Location::caller());
        assert_ne!(session.grants.free_fence(7), 7);
        session.end(grant.fence, grant.claim, |gate| {
            gate.release(grant.fence, 1, grant.claim)
        });
        assert_eq!(session.grants.free_fence(7), 7);
    }
}

#[test]
fn a_charge_of_nothing_is_not_owed() {
    let options = options(OnStoreDown::Error, None);
    let mut session = session(plan("1000/s"), Moment::START, options);
    session.charge(Moment::START, 0);
    assert!(session.debts.is_empty());
    session.charge(Moment::START, 1);
    assert!(!session.debts.is_empty());
}

#[test]
fn random_times_differ_between_processes_and_between_calls() {
    let mut session = session(
        plan("1000/s"),
        Moment::START,
        options(OnStoreDown::Error, None),
    );
    let mut random = |holder, call| {
        session.options.holder = holder;
        session.calls.generation = call;
        session.random().below(u64::MAX)
    };
    for same in [6, 9] {
        for (one, other) in [(0, 1), (1, 2), (2, 3)] {
            assert_ne!(random(one, same), random(other, same), "processes");
            assert_ne!(random(same, one), random(same, other), "calls");
        }
    }
}

mod renewals {
    use super::*;

    fn lease(session: &mut StoreSession, now: Moment, fence: u64) -> Grant {
        session.record(now, Costs::plain(1), by_store(fence), Location::caller())
    }

    #[test]
    fn one_task_renews_all_leases_until_none_is_left() {
        let now = Moment::START;
        let mut session = session(plan("2 concurrent"), now, options(OnStoreDown::Error, None));
        assert!(!session.grants.begin_renewals(now));
        let grant = lease(&mut session, now, 1);
        assert!(session.grants.begin_renewals(now));
        assert!(!session.grants.begin_renewals(now));
        assert_eq!(session.renewals(now).len(), 1);
        assert!(!session.grants.begin_renewals(now));
        session.end(grant.fence, grant.claim, |gate| {
            gate.release(grant.fence, 1, grant.claim)
        });
        assert_eq!(session.renewals(now).len(), 0);
        lease(&mut session, now, 2);
        assert!(session.grants.begin_renewals(now));
        session.renewals_stopped();
        assert!(session.grants.begin_renewals(now));
    }

    #[test]
    fn a_lease_is_renewed_until_it_is_to_be_reclaimed() {
        let options = SessionOptions {
            max_hold: Some(100),
            ..options(OnStoreDown::Error, None)
        };
        let mut session = session(plan("2 concurrent"), Moment::START, options);
        lease(&mut session, Moment::START, 1);
        let renewals = |at| session.renewals(Moment::from_nanos(at)).len();
        assert_eq!([99, 100].map(renewals), [1, 0]);
    }
}

/// What a process decides by itself.
mod fallback {
    use super::*;
    use crate::core::suspension::PauseScope;

    const NOW: Moment = Moment::from_nanos(1_000 * MS);

    /// The store does not answer, and is not asked again soon.
    fn deciding(policy: &str, queue: Options) -> Schedule {
        let mut session = session(plan("1000/s"), NOW, local_fallback(policy));
        session.begin_fallback(NOW);
        session.back_off.asks_from = NOW.plus(10_000 * MS);
        Schedule::of_store(session, queue)
    }

    fn acquire(
        schedule: &mut Schedule,
        request: &Request<'_>,
        tries: bool,
    ) -> Result<Enqueued<Grant>, Refused> {
        let (mut waker, mut effects) = (Some(Waker::noop().clone()), Effects::default());
        if tries {
            schedule.try_at_store(NOW, request, &mut waker, &mut effects)
        } else {
            schedule.request(NOW, request, &mut waker, &mut effects)
        }
    }

    #[test]
    fn it_grants_nothing_during_a_pause() {
        let mut schedule = deciding("1000/s", Options::default());
        let (until, mut effects) = (NOW.plus(MS), Effects::default());
        schedule.pause(NOW, PauseScope::Limiter, until, &mut effects);
        let id = queued(&mut schedule, Costs::plain(1));
        schedule.run_due(NOW.plus(MS - 1), &mut effects);
        assert!(!is_granted(&mut schedule, id));
        schedule.run_due(until, &mut effects);
        assert!(is_granted(&mut schedule, id));
    }

    #[test]
    fn a_try_takes_no_room_in_a_full_queue() {
        let full = Options {
            max_queue: Some(1),
            ..Options::default()
        };
        let mut schedule = deciding("throttle every 100ms", full);
        let request = request(Costs::plain(1));
        for _ in 0..2 {
            acquire(&mut schedule, &request, false).unwrap();
        }
        let refused = acquire(&mut schedule, &request, true).unwrap_err();
        let AcquireError::TimedOut {
            retry_after: Some(after),
            ..
        } = refused.error
        else {
            panic!("{refused:?}");
        };
        assert_eq!(after, Duration::from_millis(200));
    }

    fn granted(schedule: &mut Schedule, costs: Costs<'_>) -> Grant {
        match acquire(schedule, &request(costs), false) {
            Ok(Enqueued::Granted(grant)) => grant,
            other => panic!("not granted: {other:?}"),
        }
    }

    fn queued(schedule: &mut Schedule, costs: Costs<'_>) -> WaiterId {
        match acquire(schedule, &request(costs), false) {
            Ok(Enqueued::Queued(id)) => id,
            other => panic!("not queued: {other:?}"),
        }
    }

    fn is_granted(schedule: &mut Schedule, id: WaiterId) -> bool {
        matches!(schedule.waiters.poll(id, Waker::noop()), Ok(Ok(_)))
    }

    #[test]
    fn a_large_request_at_the_front_is_not_passed_by_another_flow() {
        let mut schedule = deciding("4 concurrent", Options::default());
        let (a, b) = (of_flow("a"), of_flow("b"));
        granted(&mut schedule, Costs::new(3, &a));
        queued(&mut schedule, Costs::new(2, &a));
        queued(&mut schedule, Costs::new(1, &b));
    }

    #[test]
    fn the_front_of_a_pause_may_be_passed_by_another_flow() {
        let mut schedule = deciding("4 concurrent", Options::default());
        let (a, b) = (of_flow("a"), of_flow("b"));
        granted(&mut schedule, Costs::new(3, &a));
        let (until, mut effects) = (NOW.plus(MS), Effects::default());
        schedule.pause(NOW, PauseScope::Limiter, until, &mut effects);
        queued(&mut schedule, Costs::new(2, &a));
        let other = queued(&mut schedule, Costs::new(1, &b));
        schedule.run_due(until, &mut effects);
        assert!(is_granted(&mut schedule, other));
    }

    #[test]
    fn nothing_is_kept_of_a_flow_whose_permits_came_back() {
        let mut schedule = deciding("4 concurrent", Options::default());
        let Grant { fence, claim, .. } = granted(&mut schedule, Costs::new(1, &of_flow("a")));
        assert!(schedule.waiters.queue.has_flows());
        schedule.release_to_next(NOW, fence, 1, claim, &mut Effects::default());
        assert!(!schedule.waiters.queue.has_flows());
    }

    #[test]
    fn the_store_is_asked_as_soon_as_that_is_due() {
        let mut schedule = deciding("4 concurrent", Options::default());
        let is_decided_here = |at| {
            let mut effects = Effects::default();
            let step = schedule.session(at, &mut effects).unwrap();
            step.outlook().check_here(Costs::plain(1)).is_some()
        };
        let due = NOW.plus(10_000 * MS);
        assert_eq!([due.minus(1), due].map(is_decided_here), [true, false]);
    }

    #[test]
    fn denials_by_the_store_do_not_count_for_its_penalty() {
        let options = local_fallback("penalty 10 falling 1/s");
        let mut session = session(plan("1000/s"), NOW, options);
        session.begin_fallback(NOW);
        session.charge(NOW, 10);
        let scores =
            |session: &StoreSession| session.fallback_gate().unwrap().limits().statuses(NOW);
        let before = scores(&session);
        session.fallback.end();
        session.fallback.note_denial(NOW, Costs::plain(1));
        assert_eq!(scores(&session), before);
        session.begin_fallback(NOW);
        session.fallback.note_denial(NOW, Costs::plain(1));
        assert_ne!(scores(&session), before);
    }
}

/// One process, and what the store answers to its calls.
mod process {
    use super::*;
    use crate::core::suspension::PauseScope;
    use crate::exchange::{DeniedAsk, DeniedUntil, LimitReading, Reply};

    const NOW: Moment = Moment::from_nanos(1_000 * MS);

    struct Process(Schedule);

    impl Process {
        fn new(policy: &str, options: SessionOptions) -> Self {
            let session = session(plan(policy), NOW, options);
            Self(Schedule::of_store(session, Options::default()))
        }

        /// The store has denied a request of this cost for another 100 ms.
        fn denied(cost: u64) -> Self {
            let mut process = Self::new("1000/s", options(OnStoreDown::Deny, None));
            assert!(process.tries(NOW, cost).is_ok());
            let (_, generation) = process.call(NOW);
            process.answer(NOW, generation, Ok(denial(NOW)));
            process
        }

        fn step<R>(&mut self, now: Moment, input: impl FnOnce(&mut SessionStep<'_>) -> R) -> R {
            let mut effects = Effects::default();
            self.0
                .change_session(now, &mut effects, input)
                .expect("it has a store")
        }

        fn tries(&mut self, now: Moment, cost: u64) -> Result<Enqueued<Grant>, Refused> {
            let (mut waker, mut effects) = (Some(Waker::noop().clone()), Effects::default());
            let request = request(Costs::plain(cost));
            self.0.try_at_store(now, &request, &mut waker, &mut effects)
        }

        fn queued(&mut self, cost: u64, tries: bool) -> WaiterId {
            self.queued_costs(Costs::plain(cost), tries)
        }

        fn queued_costs(&mut self, costs: Costs<'_>, tries: bool) -> WaiterId {
            let (mut waker, mut effects) = (Some(Waker::noop().clone()), Effects::default());
            let request = request(costs);
            let enqueued = if tries {
                self.0.try_at_store(NOW, &request, &mut waker, &mut effects)
            } else {
                self.0.request(NOW, &request, &mut waker, &mut effects)
            };
            match enqueued {
                Ok(Enqueued::Queued(id)) => id,
                other => panic!("not queued: {other:?}"),
            }
        }

        /// The answer to a request, if it has one.
        fn is_granted(&mut self, id: WaiterId) -> Option<bool> {
            let answer = self.0.waiters.poll(id, Waker::noop()).ok()?;
            Some(answer.is_ok())
        }

        fn prefetches(&mut self) {
            self.step(NOW, |step| {
                step.session.prefetch = Prefetch::new(PrefetchOptions {
                    max: 100,
                    kept_for: 1_000 * MS,
                });
            });
        }

        /// Whether a try is denied without a call.
        fn denies(&mut self, now: Moment, cost: u64) -> bool {
            self.tries(now, cost).is_err()
        }

        fn trip(&mut self, now: Moment) -> Trip {
            self.step(now, |step| step.next_trip(0, 0))
        }

        fn call(&mut self, now: Moment) -> (Call, u64) {
            match self.trip(now) {
                Trip::Call { call, generation } => (*call, generation),
                other => panic!("{other:?}"),
            }
        }

        fn answer(&mut self, now: Moment, generation: u64, answer: CallAnswer) {
            self.step(now, |step| step.answered(generation, &answer));
        }
    }

    /// The clocks of the store and of the process are the same.
    fn reply(now: Moment, granted: u64, stop: Option<DeniedUntil>) -> Reply {
        let reading = LimitReading {
            remaining: 0,
            available_at: now.nanos(),
            reset_at: now.nanos(),
        };
        Reply {
            now: now.nanos(),
            granted,
            first_fence: 1,
            stop: stop.map(|until| DeniedAsk { limit: 0, until }),
            limits: vec![reading],
            lost: Vec::new(),
            reclaimed: 0,
        }
    }

    fn denial(now: Moment) -> Reply {
        let until = now.plus(100 * MS).nanos();
        reply(now, 0, Some(DeniedUntil::Instant(until)))
    }

    fn too_late() -> CallFailed {
        CallFailed {
            error: StoreError::TooLate {
                store: "tested".into(),
            },
            may_have_run: false,
        }
    }

    #[test]
    fn a_try_of_the_costs_that_the_store_denied_needs_no_call_until_the_end() {
        for (after, cost, denies) in [
            (0, 2, true),
            (99, 2, true),
            (100, 2, false),
            (101, 2, false),
            (99, 1, false),
            (99, 3, false),
        ] {
            let mut process = Process::denied(2);
            let at = NOW.plus(after * MS);
            assert_eq!(process.denies(at, cost), denies, "{cost} after {after} ms");
        }
    }

    #[test]
    fn a_denial_is_a_lower_bound_for_larger_costs_and_reported_for_the_same() {
        let mut process = Process::denied(2);
        let end = NOW.plus(100 * MS);
        for (cost, bound, reported) in [(1, NOW, NOW), (2, end, end), (3, end, NOW)] {
            let until = |step: &mut SessionStep<'_>| {
                [false, true]
                    .map(|reported| step.outlook().denied_until(Costs::plain(cost), reported))
            };
            assert_eq!(process.step(NOW, until), [bound, reported], "{cost}");
        }
    }

    #[test]
    fn no_denial_is_known_while_units_are_on_their_way_back() {
        let owes: [fn(&mut StoreSession); 2] = [
            |session| session.debts.returns.push(1),
            |session| session.decline_units([1].into(), 1),
        ];
        for owe in owes {
            let mut process = Process::denied(2);
            process.step(NOW, |step| owe(step.session));
            let (call, generation) = process.call(NOW);
            assert!(call.asks.is_empty());
            assert!(!process.denies(NOW, 2));
            process.answer(NOW, generation, Ok(reply(NOW, 0, None)));
            assert_eq!(process.call(NOW).0.asks.len(), 1);
        }
    }

    #[test]
    fn a_call_that_changes_nothing_ends_no_denial() {
        let mut process = Process::denied(2);
        process.step(NOW, |step| {
            let denial = step.session.denials.latest.as_mut().unwrap();
            denial.is_in_line = true;
        });
        let (call, generation) = process.call(NOW);
        assert!(call.waits_no_more && call.asks.is_empty());
        process.answer(NOW, generation, Ok(reply(NOW, 0, None)));
        assert!(process.denies(NOW, 2));
    }

    #[test]
    fn a_call_that_came_too_late_is_sent_again_at_once() {
        let mut process = Process::new("1000/s", options(OnStoreDown::Deny, None));
        assert!(process.tries(NOW, 1).is_ok());
        let (_, generation) = process.call(NOW);
        process.answer(NOW, generation, Err(too_late()));
        assert_eq!(process.call(NOW).0.asks.len(), 1);
    }

    #[test]
    fn a_small_request_behind_a_large_try_is_served_at_once_without_the_store() {
        let mut process = Process::new("1000/s", local_fallback("window 3/s"));
        let [fits, too_large] = [2, 2].map(|cost| process.queued(cost, true));
        let small = process.queued(1, false);
        let (_, generation) = process.call(NOW);
        let failed = CallFailed::unanswered("tested".into(), None);
        process.answer(NOW, generation, Err(failed));
        let granted = [fits, too_large, small].map(|id| process.is_granted(id));
        assert_eq!(granted, [Some(true), Some(false), Some(true)]);
    }

    #[test]
    fn a_try_that_came_during_a_call_is_denied_if_the_request_before_it_has_to_wait() {
        let down = || CallFailed::unanswered("tested".into(), None);
        for (options, answer, first) in [
            (options(OnStoreDown::Error, None), Ok(denial(NOW)), None),
            (
                local_fallback("throttle every 100ms"),
                Err(down()),
                Some(true),
            ),
        ] {
            let mut process = Process::new("1000/s", options);
            let [asked, waits] = [1, 1].map(|cost| process.queued(cost, false));
            let (_, generation) = process.call(NOW);
            let tries = process.queued(1, true);
            process.answer(NOW, generation, answer);
            let granted = [asked, waits, tries].map(|id| process.is_granted(id));
            assert_eq!(granted, [first, None, Some(false)]);
        }
    }

    #[test]
    fn the_store_is_asked_for_a_try_behind_a_denied_request_if_a_penalty_counts_it() {
        for (policy, asks) in [
            ("1000/s", false),
            ("1000/s and penalty 10 falling 1/s", true),
        ] {
            let mut process = Process::new(policy, options(OnStoreDown::Error, None));
            process.queued(2, false);
            let (_, generation) = process.call(NOW);
            process.queued(1, true);
            let mut answer = denial(NOW);
            answer.limits = vec![answer.limits[0]; plan(policy).policy().limits().len()];
            process.answer(NOW, generation, Ok(answer));
            assert_eq!(
                matches!(process.trip(NOW), Trip::Call { .. }),
                asks,
                "{policy}"
            );
        }
    }

    #[test]
    fn a_reply_is_awaited_until_the_deadline() {
        let mut process = Process::new("1000/s", options(OnStoreDown::Error, None));
        let id = process.queued(1, false);
        process.call(NOW);
        for (after, answer) in [(500 * MS - 1, None), (500 * MS, Some(false))] {
            process.0.run_due(NOW.plus(after), &mut Effects::default());
            assert_eq!(process.is_granted(id), answer);
        }
    }

    /// What is owed is sent again later, by a carrier that holds the limiter.
    #[test]
    fn a_request_is_served_in_time_while_something_is_owed() {
        let mut process = Process::new("1000/s", options(OnStoreDown::Error, None));
        process.step(NOW, |step| {
            step.session.back_off.settles_from = NOW.plus(10_000 * MS);
            step.session.decline_units([1].into(), 1);
        });
        let until = NOW.plus(100 * MS);
        let scope = PauseScope::Limiter;
        process.0.pause(NOW, scope, until, &mut Effects::default());
        process.queued(1, false);
        assert_eq!(process.0.next_wake(), until);
    }

    #[test]
    fn a_carrier_waits_while_more_of_those_that_were_granted_come_again() {
        for (come, granted, yields) in [(1, 3, true), (2, 3, false), (1, 2, false), (3, 4, false)] {
            let mut process = Process::new("1000/s", options(OnStoreDown::Error, None));
            for _ in 0..2 {
                process.queued(1, false);
            }
            let trip = process.step(NOW, |step| step.next_trip(come, granted));
            assert_eq!(matches!(trip, Trip::Yield(2)), yields, "{trip:?}");
            assert_eq!(matches!(trip, Trip::Call { .. }), !yields, "{trip:?}");
        }
    }

    #[test]
    fn prefetched_units_are_granted_to_those_that_wait() {
        let mut process = Process::new("1000/s", options(OnStoreDown::Error, None));
        process.prefetches();
        let until = NOW.plus(MS);
        let mut effects = Effects::default();
        process
            .0
            .pause(NOW, PauseScope::Limiter, until, &mut effects);
        let id = process.queued(1, false);
        process.step(NOW, |step| {
            step.session.prefetch.fill(NOW, 5, 1, NOW.nanos());
        });
        assert_eq!(process.is_granted(id), None);
        process.0.run_due(until, &mut effects);
        assert_eq!(process.is_granted(id), Some(true));
    }

    #[test]
    fn nothing_is_prefetched_for_a_closed_limiter() {
        for closes in [false, true] {
            let mut process = Process::new("1000/s", options(OnStoreDown::Error, None));
            process.prefetches();
            process.queued(1, false);
            if closes {
                process.0.close(NOW, true, &mut Effects::default());
            }
            let (call, _) = process.call(NOW);
            assert_eq!(call.asks.iter().any(|asks| asks.ahead), !closes);
        }
    }

    #[test]
    fn units_that_nobody_waits_for_are_left_when_they_would_be_granted_or_at_once_if_that_is_late()
    {
        for (wait, leaves_after) in [(50 * MS, 50 * MS), (50 * MS + 1, 0)] {
            let mut process = Process::denied(2);
            process.step(NOW, |step| {
                let denial = step.session.denials.latest.as_mut().unwrap();
                denial.is_in_line = true;
                denial.until = NOW.plus(wait);
                assert_eq!(step.outlook().call_at(), NOW.plus(leaves_after));
            });
        }
    }

    #[test]
    fn a_try_is_told_whether_the_store_is_down() {
        let mut process = Process::new("1000/s", options(OnStoreDown::Deny, None));
        let is_store_down = |process: &mut Process| {
            let (decision, _) =
                process.step(NOW, |step| step.outlook().latest_denial(Costs::plain(1)));
            decision.is_store_down()
        };
        assert!(!is_store_down(&mut process));
        process.step(NOW, |step| {
            step.session.back_off.asks_from = NOW.plus(1);
        });
        assert!(is_store_down(&mut process));
    }

    /// For a single request, the next one starts another carrier.
    #[test]
    fn a_carrier_waits_for_those_that_come_again_if_it_has_served_several_or_some_wait() {
        for (granted, waits, yields) in [(0, 0, false), (1, 0, false), (2, 0, true), (1, 1, true)] {
            let mut process = Process::new("1000/s", options(OnStoreDown::Error, None));
            for _ in 0..waits {
                process.queued(1, false);
            }
            let answer = Ok(reply(NOW, granted, None));
            let trip = process.step(NOW, |step| step.trip_after(&answer));
            assert_eq!(matches!(trip, Trip::Yield(0)), yields, "{trip:?}");
        }
    }

    #[test]
    fn the_calls_without_a_key_keep_the_revision_of_a_policy() {
        for (revision, key, keeps) in [(0, "", false), (1, "", true), (1, "alice", false)] {
            let mut process = Process::new("1000/s", options(OnStoreDown::Error, None));
            let call = process.step(NOW, |step| {
                step.session.scope.key = key.as_bytes().into();
                step.session.terms = Arc::new(PolicyTerms {
                    revision,
                    ..terms(plan("2000/s"))
                });
                step.session.peek(None)
            });
            assert_eq!((call.revision, call.keeps_policy), (revision, keeps));
        }
    }

    /// Its flow holds three units, and another flow none. Under a later policy, a former denial says nothing.
    #[test]
    fn the_request_that_was_denied_first_keeps_its_turn_if_it_is_large() {
        let (a, b) = (of_flow("a"), of_flow("b"));
        for (cost, adopts, keeps) in [(2, false, true), (1, false, false), (2, true, false)] {
            let mut process = Process::new("4 concurrent", options(OnStoreDown::Error, None));
            process.queued_costs(Costs::new(3, &a), false);
            let (_, generation) = process.call(NOW);
            process.answer(NOW, generation, Ok(reply(NOW, 1, None)));
            let id = process.queued_costs(Costs::new(cost, &a), false);
            let (_, generation) = process.call(NOW);
            if adopts {
                let later = Arc::new(PolicyTerms {
                    revision: 1,
                    ..terms(plan("5 concurrent"))
                });
                process.0.adopt(NOW, &later, &mut Effects::default());
            }
            process.answer(NOW, generation, Ok(denial(NOW)));
            process.queued_costs(Costs::new(1, &b), false);
            process.call(NOW.plus(100 * MS));
            let first = process.step(NOW, |step| {
                let call = step.session.calls.in_flight.as_ref().unwrap();
                call.asks.iter().next().map(|(id, ..)| id)
            });
            assert_eq!(first == Some(id), keeps, "{cost}");
        }
    }

    #[test]
    fn a_key_is_kept_while_its_requests_are_denied() {
        for (after, kept_for) in [(0, None), (5, Some(Duration::from_nanos(5)))] {
            let mut process = Process::new("1000/s", options(OnStoreDown::Error, None));
            process.queued(1, false);
            let (_, generation) = process.call(NOW);
            let until = DeniedUntil::Instant(NOW.plus(after).nanos());
            let answer = Ok(reply(NOW, 0, Some(until)));
            let mut effects = Effects::default();
            let answered = |step: &mut SessionStep<'_>| step.answered(generation, &answer);
            process.0.change_session(NOW, &mut effects, answered);
            let errands = effects.more.map(|more| more.errands).unwrap_or_default();
            let keeps = errands.iter().find_map(|errand| match errand {
                Errand::KeepDenied(time) => Some(*time),
                _ => None,
            });
            assert_eq!(keeps, kept_for);
        }
    }

    #[test]
    fn the_grants_of_a_call_have_the_fences_from_the_first_on_and_what_is_prefetched_the_next() {
        let mut process = Process::new("1000/s", options(OnStoreDown::Error, None));
        process.prefetches();
        let ids = [1, 1].map(|cost| process.queued(cost, false));
        let (_, generation) = process.call(NOW);
        let answer = Reply {
            first_fence: 10,
            ..reply(NOW, 4, None)
        };
        process.answer(NOW, generation, Ok(answer));
        let fences = ids.map(|id| {
            let answer = process.0.waiters.poll(id, Waker::noop());
            answer.unwrap().unwrap().fence
        });
        assert_eq!(fences, [10, 11]);
        let prefetched = process.step(NOW, |step| step.session.prefetch.take(NOW, 2));
        assert_eq!(prefetched, Some((12, NOW.nanos())));
    }

    #[test]
    fn prefetched_units_are_left_when_a_call_brings_no_more_of_them() {
        let mut process = Process::new("1000/s", options(OnStoreDown::Error, None));
        process.prefetches();
        process.step(NOW, |step| {
            step.session.prefetch.fill(NOW, 5, 1, NOW.nanos());
        });
        process.queued(7, false);
        let (_, generation) = process.call(NOW);
        process.answer(NOW, generation, Ok(reply(NOW, 1, None)));
        process.step(NOW, |step| {
            assert_eq!(step.session.prefetch.left(NOW), 5);
            assert!(step.session.debts.is_empty());
        });
    }

    /// The TTL of the leases is a nanosecond.
    #[test]
    fn a_place_whose_lease_expires_before_the_reply_comes_is_not_granted() {
        for (after, answer) in [(0, Some(true)), (1, None)] {
            let mut process = Process::new("1 concurrent", options(OnStoreDown::Error, None));
            let id = process.queued(1, false);
            let (_, generation) = process.call(NOW);
            process.answer(NOW.plus(after), generation, Ok(reply(NOW, 1, None)));
            assert_eq!(process.is_granted(id), answer);
        }
    }

    #[test]
    fn a_request_that_has_left_is_granted_nothing_without_the_store() {
        let mut process = Process::new("1000/s", options(OnStoreDown::Allow, None));
        let [stays, leaves] = [1, 1].map(|cost| process.queued(cost, false));
        let (_, generation) = process.call(NOW);
        process.0.waiters.queue.remove(leaves);
        let failed = CallFailed::unanswered("tested".into(), None);
        process.answer(NOW, generation, Err(failed));
        assert_eq!(process.is_granted(stays), Some(true));
        assert_eq!(process.step(NOW, |step| step.session.gate.granted()), 1);
    }

    #[test]
    fn settlements_of_a_failed_call_are_owed_again_unless_the_limits_were_reset() {
        for (settles, resets) in [(true, false), (true, true), (false, false)] {
            let mut process = Process::new("1000/s", options(OnStoreDown::Error, None));
            if settles {
                process.step(NOW, |step| step.session.decline_units([1].into(), 1));
            } else {
                process.queued(1, false);
            }
            let (_, generation) = process.call(NOW);
            process.step(NOW, |step| {
                if resets {
                    step.session.was_reset();
                }
                step.answered(generation, &Err(too_late()));
                let is_owed = settles && !resets;
                assert_eq!(!step.session.debts.is_empty(), is_owed);
                assert_eq!(step.session.debts.unsent_since.is_some(), is_owed);
            });
        }
    }

    #[test]
    fn places_that_a_failed_call_may_have_taken_are_returned() {
        for (policy, may_have_run, returns) in [
            ("1 concurrent", true, 1),
            ("1 concurrent", false, 0),
            ("1000/s", true, 0),
        ] {
            let mut process = Process::new(policy, options(OnStoreDown::Error, None));
            process.queued(1, false);
            let (_, generation) = process.call(NOW);
            let failed = CallFailed {
                may_have_run,
                ..too_late()
            };
            process.step(NOW, |step| {
                step.answered(generation, &Err(failed));
                assert_eq!(step.session.debts.unconfirmed.len(), returns, "{policy}");
            });
        }
    }

    #[test]
    fn an_error_other_than_that_the_store_is_down_is_reported() {
        let mut process = Process::new("1000/s", options(OnStoreDown::Allow, None));
        let id = process.queued(1, false);
        let (_, generation) = process.call(NOW);
        let failed = CallFailed {
            error: StoreError::Damaged {
                store: "tested".into(),
                at: "here".into(),
            },
            may_have_run: false,
        };
        process.answer(NOW, generation, Err(failed));
        assert_eq!(process.is_granted(id), Some(false));
    }

    #[test]
    fn a_peek_that_fails_delays_the_next_call_once() {
        let mut process = Process::new("1000/s", local_fallback("1000/s"));
        let mut asks_from = |at| {
            process.step(at, |step| {
                step.peek_failed(Costs::plain(1));
                step.session.back_off.asks_from
            })
        };
        let first = asks_from(NOW);
        assert!(first > NOW);
        assert_eq!(asks_from(NOW.plus(1)), first);
    }

    #[test]
    fn a_reset_waits_for_the_call_in_flight_and_for_no_later_one() {
        let mut process = Process::new("1000/s", options(OnStoreDown::Error, None));
        process.queued(1, false);
        let (_, first) = process.call(NOW);
        let awaits = |process: &mut Process, generation| {
            process.step(NOW, |step| step.session.awaits_reply(generation))
        };
        assert!(awaits(&mut process, first));
        process.answer(NOW, first, Ok(reply(NOW, 1, None)));
        assert!(!awaits(&mut process, first));
        process.queued(1, false);
        let (_, second) = process.call(NOW);
        assert!(awaits(&mut process, second) && !awaits(&mut process, first));
    }

    /// The first try takes no tokens, which the limit that bans counts.
    #[test]
    fn a_ban_is_reported_for_a_try_that_its_limit_counts() {
        let policy = plan("1000/s and penalty 10 falling 1/s ban 1m counting tokens");
        let Counts::Unit(tokens) = policy.policy().limits()[1].counts() else {
            panic!("it counts tokens");
        };
        let details = [0, 1].map(|count| {
            let mut details = CostDetails::default();
            details.set(tokens, count);
            Some(Arc::new(details))
        });
        let lines = [Location::caller(), Location::caller()];
        let observed = Options {
            observed: true,
            ..Options::default()
        };
        for (tries, banned_in) in [(1, None), (2, Some(lines[1]))] {
            let session = session(Arc::clone(&policy), NOW, options(OnStoreDown::Error, None));
            let mut process = Process(Schedule::of_store(session, observed));
            for (details, caller) in details.iter().zip(lines).take(tries) {
                let request = Request {
                    caller,
                    ..request(Costs::new(1, details))
                };
                let (mut waker, mut effects) = (Some(Waker::noop().clone()), Effects::default());
                let queued = process
                    .0
                    .try_at_store(NOW, &request, &mut waker, &mut effects);
                assert!(queued.is_ok());
            }
            let (_, generation) = process.call(NOW);
            let mut answer = denial(NOW);
            let begun = LimitReading {
                reset_at: NOW.plus(120_000 * MS).nanos(),
                ..answer.limits[0]
            };
            answer.limits.push(begun);
            let mut effects = Effects::default();
            let answered = |step: &mut SessionStep<'_>| step.answered(generation, &Ok(answer));
            process.0.change_session(NOW, &mut effects, answered);
            let events = effects.more.map(|more| more.events).unwrap_or_default();
            let reported = events.iter().find_map(|event| match event {
                EventKind::Banned { requested_in, .. } => Some(*requested_in),
                _ => None,
            });
            assert_eq!(reported, banned_in);
            process.step(NOW, |step| {
                assert_eq!(step.session.bans.is_empty(), banned_in.is_none());
            });
        }
    }
}
