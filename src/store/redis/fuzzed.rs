//! Any answer of a script, and any policy in the state of a key.

pub(in crate::store) use super::servers::fuzzed::slots;

use std::num::NonZeroU64;
use std::panic::Location;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use super::adoption::Adoption;
use super::script::{named, read_named};
use super::wire::read;
use crate::core::effects::Effects;
use crate::core::gate::plan::Plan;
use crate::core::request::{Costs, Request};
use crate::core::schedule::{Enqueued, Options, Schedule};
use crate::core::session::{
    CallFailed, PolicyTerms, PrefetchOptions, SessionOptions, StoreSession, Trip,
};
use crate::exchange::{Call, DeniedUntil, OnStoreDown, Reply, ReplyTerms, Scope};
use crate::policy::Policy;
use crate::priority::Priority;
use crate::strategy::Moment;

const MS: u64 = 1_000_000;

fn plan(policy: &str) -> Arc<Plan> {
    Arc::new(Plan::new(policy.parse().unwrap(), Duration::ZERO).unwrap())
}

/// An answer is refused, or is the same reply when it is written and read again. A session grants as many requests as a reply that a limiter
/// accepts, and goes on after any answer.
///
/// An input has the policy, what to do without a reply, the requests and their cost; the rest is the answer.
pub(in crate::store) fn answer(bytes: &[u8]) {
    const POLICIES: [&str; 4] = [
        "5 concurrent ttl 400ms",
        "sliding log 5/s",
        "2 concurrent and 7/s burst 3",
        "penalty 5 falling 10/s ban 1s",
    ];
    let Some((&[policy, on_down, requests, cost, form], bytes)) = bytes.split_first_chunk() else {
        return;
    };
    let policy = POLICIES[usize::from(policy) % POLICIES.len()];
    let on_down = match on_down % 4 {
        0 => OnStoreDown::Error,
        1 => OnStoreDown::Deny,
        2 => OnStoreDown::Allow,
        _ => OnStoreDown::Local("10/s".parse().unwrap()),
    };
    let cost = 1 + u64::from(cost) % 3;
    let (requests, is_packed, prefetches) =
        (1 + u64::from(requests) % 5, form & 1 == 0, form & 2 == 0);
    let now = Moment::from_nanos(1_000 * MS);
    let mut schedule = schedule(policy, on_down, prefetches && policy.starts_with("sliding"));
    let mut effects = Effects::default();
    let request = Request {
        costs: Costs::plain(cost),
        priority: Priority::NORMAL,
        deadline: Moment::NEVER,
        caller: Location::caller(),
        blocking: false,
    };
    let mut waiting = Vec::new();
    for _ in 0..requests {
        let waker = &mut Some(Waker::noop().clone());
        match schedule.request(now, &request, waker, &mut effects) {
            Ok(Enqueued::Queued(id)) => waiting.push(id),
            Ok(Enqueued::Granted(_)) => panic!("without a reply"),
            Err(_) => return, // it can never be granted
        }
    }
    let mut step = schedule.session(now, &mut effects).unwrap();
    let Trip::Call { call, generation } = step.next_trip(0, 0) else {
        panic!("no call")
    };

    let value = if is_packed {
        redis::Value::BulkString(bytes.to_vec())
    } else if let Ok(value) = redis::parse_redis_value(bytes) {
        value
    } else {
        return;
    };
    let reply = read(&value, &call, "fuzzed", "state");
    if let Ok(reply) = &reply {
        let again = redis::Value::BulkString(packed(reply, &call));
        assert_eq!(read(&again, &call, "fuzzed", "state").unwrap(), *reply);
    }
    let accepted = reply.and_then(|reply| {
        let checked = ReplyTerms::of(&call).check(&Ok(reply.clone()));
        checked.map_or_else(|_| Err(super::answer_error("fuzzed")), |()| Ok(reply))
    });
    let granted = accepted.as_ref().map(|reply| reply.granted).ok();
    let answer = accepted.map_err(|error| CallFailed {
        error,
        may_have_run: true,
    });
    schedule.change_session(now, &mut effects, |step| step.answered(generation, &answer));
    let mut held = Vec::new();
    waiting.retain(|id| match schedule.waiters.poll(*id, Waker::noop()) {
        Ok(Ok(grant)) => {
            held.push(grant);
            false
        }
        answer => answer.is_err(),
    });
    if let Some(granted) = granted {
        assert_eq!(held.len() as u64, granted.min(requests), "{answer:?}");
    }

    let mut now = now;
    for _ in 0..10 {
        now = schedule.next_wake().known().unwrap_or(now).max(now);
        schedule.run_due(now, &mut effects);
        if let Some(grant) = held.pop() {
            schedule.release_to_next(now, grant.fence, cost, grant.claim, &mut effects);
        }
        if let Some(id) = waiting.pop() {
            schedule.abandon(now, id, cost, &mut effects);
        }
        schedule.outlook().snapshot(now);
        let mut step = schedule.session(now, &mut effects).unwrap();
        if let Trip::Call { generation, .. } = step.next_trip(0, 0) {
            let failed = Err(CallFailed::unanswered("fuzzed".into(), None));
            schedule.change_session(now, &mut effects, |step| step.answered(generation, &failed));
        }
    }
}

fn schedule(policy: &str, on_down: OnStoreDown, prefetches: bool) -> Schedule {
    let fallback = match &on_down {
        OnStoreDown::Local(policy) => Some(plan(&policy.to_string())),
        _ => None,
    };
    let scope = Scope {
        limiter: "fuzzed".into(),
        key: Arc::default(),
    };
    let terms = PolicyTerms {
        plan: plan(policy),
        revision: 0,
        ttl: NonZeroU64::new(400 * MS).unwrap(),
        polls_every: 1_000 * MS,
        hears_turns: true,
        prefetch: PrefetchOptions {
            max: if prefetches { 3 } else { 0 },
            kept_for: 100 * MS,
        },
    };
    let options = SessionOptions {
        holder: 1,
        max_hold: None,
        deadline: 500 * MS,
        longest_back_off: 500 * MS,
        on_down,
        fallback,
        store: "fuzzed".into(),
    };
    let session = StoreSession::new(scope, 0, Arc::new(terms), Moment::START, options);
    Schedule::of_store(session, Options::default())
}

/// A reply, as a script writes it.
fn packed(reply: &Reply, call: &Call) -> Vec<u8> {
    let micros = |nanos: u64| (nanos / 1_000) as f64;
    let mut numbers = vec![
        micros(reply.now),
        reply.granted as f64,
        reply.first_fence as f64,
        reply.reclaimed as f64,
    ];
    let (limit, until, first_expiry) = reply.stop.map_or((0.0, -1.0, -1.0), |stop| {
        let (until, first_expiry) = match stop.until {
            DeniedUntil::Instant(at) => (micros(at), -1.0),
            DeniedUntil::Release { first_expiry } => (-2.0, micros(first_expiry)),
            DeniedUntil::Never => (-1.0, -1.0),
        };
        (stop.limit as f64 + 1.0, until, first_expiry)
    });
    numbers.extend([limit, until, first_expiry]);
    for reading in &reply.limits {
        let instants = [reading.available_at, reading.reset_at].map(micros);
        numbers.push(reading.remaining as f64);
        numbers.extend(instants);
    }
    assert!(reply.lost.is_empty() && call.renewals.is_empty());
    numbers.iter().flat_map(|it| it.to_le_bytes()).collect()
}

/// The text of a state is read as it is written. Of each policy that Redis can have, there is a script that replaces it.
pub(in crate::store) fn stored_policy(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (text, revision) = read_named(&text);
    let policy: Policy = "3 concurrent and sliding log 9/min and 20/s burst 8"
        .parse()
        .unwrap();
    match Adoption::from_stored((text, revision), (&policy, 7)) {
        Ok(adoption) => {
            let stored: Policy = text.parse().unwrap();
            let name = named(&stored, revision);
            assert_eq!(read_named(&name), (&*stored.to_string(), revision));
            let back = Adoption::new((&policy, 7), (&stored, revision)).unwrap();
            for script in [adoption.script, back.script] {
                assert!(!script.text.contains('@'), "a name without a value");
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
