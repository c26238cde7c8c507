//! Limits in a store: what it has denied, and what joins the waiters without a further check.

use std::num::NonZeroU64;
use std::sync::Arc;

use super::*;
use crate::core::session::{PolicyTerms, PrefetchOptions, SessionOptions, StoreSession, Trip};
use crate::exchange::{DeniedAsk, DeniedUntil, LimitReading, OnStoreDown, Reply, Scope};

const SECOND: u64 = 1_000_000_000;

fn terms(revision: u64) -> Arc<PolicyTerms> {
    let policy = "10/s".parse().unwrap();
    Arc::new(PolicyTerms {
        plan: Arc::new(Plan::new(policy, Duration::ZERO).unwrap()),
        revision,
        ttl: NonZeroU64::new(SECOND).unwrap(),
        polls_every: SECOND,
        hears_turns: true,
        prefetch: PrefetchOptions::default(),
    })
}

impl Driven {
    fn of_store() -> Self {
        let options = SessionOptions {
            holder: 1,
            max_hold: None,
            deadline: SECOND,
            longest_back_off: SECOND,
            on_down: OnStoreDown::Error,
            fallback: None,
            store: "tested".into(),
        };
        let scope = Scope {
            limiter: "tested".into(),
            key: Arc::default(),
        };
        let session = StoreSession::new(scope, 0, terms(1), at(0), options);
        Self(Schedule::of_store(session, Options::default()))
    }

    /// A request of 10 waits, which the store has denied for three seconds.
    fn denied_by_store() -> Self {
        let mut driven = Self::of_store();
        driven.queued(0, 10, None);
        driven.at(0, |schedule, now, effects| {
            let trip = schedule.session(now, effects).unwrap().next_trip(0, 0);
            let Trip::Call { generation, .. } = trip else {
                panic!("{trip:?}");
            };
            let reading = LimitReading {
                remaining: 0,
                available_at: 3 * SECOND,
                reset_at: 3 * SECOND,
            };
            let denied = DeniedAsk {
                limit: 0,
                until: DeniedUntil::Instant(3 * SECOND),
            };
            let answer = Ok(Reply {
                now: 0,
                granted: 0,
                first_fence: 0,
                stop: Some(denied),
                limits: vec![reading],
                lost: Vec::new(),
                reclaimed: 0,
            });
            schedule.change_session(now, effects, |step| step.answered(generation, &answer));
        });
        driven
    }
}

/// By the policy alone, the next ten units come after those of the waiter.
#[test]
fn a_denial_of_the_store_is_waited_for_until_a_later_policy() {
    let mut driven = Driven::denied_by_store();
    for (revision, seconds) in [(0, 3), (1, 3), (2, 1)] {
        driven.at(0, |schedule, now, effects| {
            schedule.adopt(now, &terms(revision), effects);
        });
        let refused = driven.request(0, request(10, Some(0))).unwrap_err();
        assert_eq!(refused.retry_after(), Some(Duration::from_secs(seconds)));
    }
}

#[test]
fn a_request_joins_those_that_wait_for_the_store_if_it_may_ever_be_granted() {
    let mut driven = Driven::denied_by_store();
    let mut behind = |cost| {
        let mut waker = Some(Waker::noop().clone());
        let id = driven.0.enqueue_behind(&request(cost, None), &mut waker);
        id.is_some()
    };
    assert_eq!([1, 10, 11].map(&mut behind), [true, true, false]);
}
