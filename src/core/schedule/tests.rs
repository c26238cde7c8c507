//! Tests of the schedule that name their case. Random ones are in the model.

mod flows;
mod known_waits;
mod of_store;
mod retry_after;
mod shortcuts;

use std::panic::Location;
use std::task::Waker;
use std::time::Duration;

use super::*;
use crate::carry_over::UsageCarryOver;
use crate::core::effects::BATCH;
use crate::core::gate::plan::Plan;
use crate::core::queue::untaken_answers::AnswerKind;
use crate::core::request::{Actual, Costs};
use crate::core::suspension::PauseScope;
use crate::error::TryAcquireError;
use crate::policy::Policy;
use crate::priority::Priority;
use crate::strategy::{FixedWindow, MaxConcurrency, SlidingWindow, Throttle};

fn at(nanos: u64) -> Moment {
    Moment::from_nanos(nanos)
}

fn nanos(nanos: u64) -> Duration {
    Duration::from_nanos(nanos)
}

fn request(cost: u64, deadline: Option<u64>) -> Request<'static> {
    let deadline = deadline.map_or(Moment::NEVER, at);
    Request {
        costs: Costs::plain(cost),
        priority: Priority::NORMAL,
        deadline,
        caller: Location::caller(),
        blocking: false,
    }
}

/// A schedule whose effects are carried out at once.
struct Driven(Schedule);

impl Driven {
    fn new(policy: impl Into<Policy>) -> Self {
        Self::with(policy, Options::default())
    }

    fn with(policy: impl Into<Policy>, options: Options) -> Self {
        let plan = Plan::new(policy.into(), Duration::ZERO).unwrap();
        Self(Schedule::new(
            Gate::new(plan, Moment::START, false),
            options,
        ))
    }

    fn at<R>(
        &mut self,
        now: u64,
        input: impl FnOnce(&mut Schedule, Moment, &mut Effects) -> R,
    ) -> R {
        let mut effects = Effects::default();
        let result = input(&mut self.0, at(now), &mut effects);
        while std::mem::take(&mut effects).unfinished {
            self.0.run_due(at(now), &mut effects);
        }
        result
    }

    fn try_acquire(&mut self, now: u64, cost: u64) -> Result<Grant, TryAcquireError> {
        self.at(now, |schedule, now, effects| {
            schedule.try_acquire(now, Costs::plain(cost), Location::caller(), effects)
        })
    }

    fn request(&mut self, now: u64, request: Request<'_>) -> Result<Enqueued<Grant>, AcquireError> {
        let mut waker = Some(Waker::noop().clone());
        let outcome = self.at(now, |schedule, now, effects| {
            schedule.request(now, &request, &mut waker, effects)
        });
        outcome.map_err(|refused| refused.error)
    }

    fn queued(&mut self, now: u64, cost: u64, deadline: Option<u64>) -> WaiterId {
        match self.request(now, request(cost, deadline)) {
            Ok(Enqueued::Queued(id)) => id,
            other => panic!("not queued: {other:?}"),
        }
    }

    /// Queued before the requests that wait already, which may so miss deadlines that they could meet.
    fn queued_first(&mut self, now: u64, cost: u64, deadline: Option<u64>) -> WaiterId {
        match self.request(
            now,
            Request {
                priority: Priority::HIGHEST,
                ..request(cost, deadline)
            },
        ) {
            Ok(Enqueued::Queued(id)) => id,
            other => panic!("not queued: {other:?}"),
        }
    }

    fn run_due(&mut self, now: u64) {
        self.at(now, Schedule::run_due);
    }

    /// Lets time pass as a punctual driver does.
    fn advance(&mut self, now: u64) {
        while self.0.next_wake() <= at(now) {
            self.run_due(self.0.next_wake().nanos());
        }
    }

    fn answer(&self, id: WaiterId) -> Option<AnswerKind> {
        self.0.waiters.untaken.peek(id)
    }

    fn retry_after(&self, now: u64, cost: u64) -> Option<u64> {
        self.0
            .outlook()
            .check(at(now), Costs::plain(cost))
            .retry_after()
            .map(|after| after.as_nanos() as u64)
    }
}

const GRANTED: Option<AnswerKind> = Some(AnswerKind::Granted);
const FAILED: Option<AnswerKind> = Some(AnswerKind::Failed);

mod spreading {
    use super::*;

    /// Four units are left of an upstream's quota until 100.
    fn spread() -> Driven {
        let mut driven = Driven::with(
            SlidingWindow::log(100, nanos(10)),
            Options {
                spread_below: 10,
                ..Options::default()
            },
        );
        driven.at(0, |schedule, now, effects| {
            schedule.spread(now, 4, at(100), effects);
        });
        driven
    }

    /// A fixed bug: the unit was lost, and the next grant waited for its pace.
    #[test]
    fn a_refunded_grant_is_given_back_to_the_spreading() {
        let mut driven = spread();
        let grant = driven.try_acquire(0, 1).unwrap();
        assert_eq!(driven.retry_after(0, 1), Some(25));
        assert!(driven.at(0, |schedule, now, effects| schedule.settle(
            now,
            grant,
            1,
            (Actual::Cost(0), None),
            effects
        )));
        assert_eq!(driven.retry_after(0, 4), None, "all four are left");
        assert!(driven.try_acquire(0, 4).is_ok());
    }

    #[test]
    fn units_that_were_not_used_are_given_back_to_the_spreading() {
        let mut driven = spread();
        let grant = driven.try_acquire(0, 3).unwrap();
        driven.at(10, |schedule, now, effects| {
            schedule.settle(now, grant, 3, (Actual::Cost(1), None), effects)
        });
        assert_eq!(
            driven.retry_after(10, 3),
            Some(15),
            "the pace of the one that was used"
        );
        assert_eq!(driven.retry_after(10, 4), Some(90), "one is gone");
    }

    #[test]
    fn a_grant_that_is_dropped_untaken_is_given_back_to_the_spreading() {
        let mut driven = spread();
        driven.try_acquire(0, 1).unwrap();
        let (first, second) = (driven.queued(0, 3, None), driven.queued(0, 3, None));
        driven.run_due(25);
        assert_eq!(
            (driven.answer(first), driven.answer(second)),
            (GRANTED, None)
        );
        driven.at(30, |schedule, now, effects| {
            schedule.abandon(now, first, 3, effects);
        });
        assert_eq!(driven.answer(second), GRANTED);
    }

    #[test]
    fn a_grant_from_before_the_news_of_a_quota_is_not_given_back() {
        let mut driven = Driven::with(
            SlidingWindow::log(100, nanos(10)),
            Options {
                spread_below: 10,
                ..Options::default()
            },
        );
        let grant = driven.try_acquire(0, 2).unwrap();
        driven.at(0, |schedule, now, effects| {
            schedule.spread(now, 4, at(100), effects);
        });
        driven.at(0, |schedule, now, effects| {
            schedule.settle(now, grant, 2, (Actual::Cost(0), None), effects)
        });
        assert_eq!(
            driven.retry_after(0, 5),
            Some(100),
            "the four did not include them"
        );
    }

    #[test]
    fn a_refund_is_bounded_by_the_latest_quota_of_the_upstream() {
        let mut driven = spread();
        let grant = driven.try_acquire(0, 1).unwrap();
        driven.at(0, |schedule, now, effects| {
            schedule.spread(now, 3, at(100), effects);
        });
        driven.at(0, |schedule, now, effects| {
            schedule.settle(now, grant, 1, (Actual::Cost(0), None), effects)
        });
        assert_eq!(driven.retry_after(0, 4), Some(100));
        assert!(driven.try_acquire(0, 3).is_ok());
    }
}

/// A fixed bug: a reclaimed grant in a slot that was never polled kept `drained` waiting.
#[test]
fn a_grant_that_was_reclaimed_in_its_slot_is_not_out() {
    let mut driven = Driven::new(MaxConcurrency::new(1).ttl(nanos(100)));
    let held = driven.try_acquire(0, 1).unwrap();
    let untaken = driven.queued(0, 1, None);
    driven.at(10, |schedule, now, effects| {
        schedule.release_to_next(now, held.fence, 1, held.claim, effects);
    });
    driven.at(10, |schedule, now, effects| {
        schedule.close(now, false, effects);
    });
    assert_eq!(driven.answer(untaken), GRANTED);
    assert!(!driven.0.outlook().is_drained());
    driven.run_due(110);
    assert!(driven.0.outlook().is_drained());
    assert!(driven.0.waiters.poll(untaken, Waker::noop()).is_ok());
    assert!(driven.0.outlook().is_drained());
}

/// The permit of a rate counts as in flight until it is taken.
#[test]
fn an_untaken_grant_of_a_rate_is_waited_for() {
    let mut driven = Driven::new(Throttle::every(nanos(10)));
    driven.try_acquire(0, 1).unwrap();
    let untaken = driven.queued(0, 1, None);
    driven.run_due(10);
    driven.at(10, |schedule, now, effects| {
        schedule.close(now, false, effects);
    });
    assert!(!driven.0.outlook().is_drained());
    driven.at(10, |schedule, now, effects| {
        schedule.abandon(now, untaken, 1, effects);
    });
    assert!(driven.0.outlook().is_drained());
}

#[test]
fn a_request_without_time_to_wait_is_refused_in_its_own_call() {
    let mut driven = Driven::new(MaxConcurrency::new(1));
    driven.try_acquire(5, 1).unwrap();
    for ahead in 0..2 {
        let refused = driven.request(5, request(1, Some(5))).unwrap_err();
        assert!(matches!(refused, AcquireError::TimedOut { .. }), "{ahead}");
        driven.queued(5, 1, None);
    }
}

/// A fixed bug: the index of the entry decided, and entries are reused in any order.
#[test]
fn equal_deadlines_are_refused_in_the_order_of_the_queue() {
    let mut driven = Driven::new(MaxConcurrency::new(1));
    driven.try_acquire(0, 1).unwrap();
    let (first, second) = (driven.queued(0, 1, None), driven.queued(0, 1, None));
    for id in [second, first] {
        driven.at(0, |schedule, now, effects| {
            schedule.abandon(now, id, 1, effects);
        }); // the entries are used again, last first
    }
    let mut expected: Vec<_> = (0..3).map(|_| driven.queued(0, 1, Some(1_000))).collect();
    let urgent = Request {
        priority: Priority::HIGH,
        ..request(1, Some(1_000))
    };
    let Ok(Enqueued::Queued(urgent)) = driven.request(0, urgent) else {
        panic!("it must wait")
    };
    expected.insert(0, urgent);
    let mut refused = Vec::new();
    while let Some(id) = driven.0.waiters.queue.expired(at(1_000)) {
        driven
            .0
            .waiters
            .refuse(id, AcquireError::Closed.into(), &mut Effects::default());
        refused.push(id);
    }
    assert_eq!(refused, expected);
}

/// A fixed bug: the expired permits beyond the first batch got the TTL of the new plan.
#[test]
fn a_new_plan_revives_no_expired_permit() {
    for ttl in [None, Some(1_000), Some(1)] {
        let mut driven = Driven::new(MaxConcurrency::new(100).ttl(nanos(100)));
        for now in [0, 1] {
            for _ in 0..5 * BATCH {
                driven.try_acquire(now, 1).unwrap();
            }
        }
        driven.try_acquire(100, 1).unwrap();
        let limit = MaxConcurrency::new(100);
        let plan = Plan::new(
            ttl.map_or(limit, |ttl| limit.ttl(nanos(ttl))).into(),
            Duration::ZERO,
        )
        .unwrap();
        driven.at(101, |schedule, now, effects| {
            schedule.set_plan(now, plan, UsageCarryOver::AsIs, effects);
        });
        let live = u64::from(ttl != Some(1));
        assert_eq!(
            driven.0.outlook().snapshot(at(101)).in_flight,
            live,
            "with {ttl:?}"
        );
    }
}

/// A fixed bug: all were refused under one hold of the lock.
#[test]
fn a_new_plan_refuses_impossible_waiters_in_batches() {
    let mut driven = Driven::new(MaxConcurrency::new(5));
    let held = driven.try_acquire(0, 5).unwrap();
    let costs = std::iter::repeat_n([1, 1, 5], 1_000).flatten();
    let waiting: Vec<_> = costs
        .map(|cost| (driven.queued(0, cost, None), cost))
        .collect();
    let (urgent, low) = (
        Request {
            priority: Priority::HIGH,
            ..request(5, None)
        },
        Request {
            priority: Priority::LOW,
            ..request(5, None)
        },
    );
    let Ok(Enqueued::Queued(urgent)) = driven.request(0, urgent) else {
        panic!("it must wait")
    };
    let Ok(Enqueued::Queued(low)) = driven.request(0, low) else {
        panic!("it must wait")
    };

    let plan = Plan::new(MaxConcurrency::new(4).into(), Duration::ZERO).unwrap();
    let mut effects = Effects::default();
    driven
        .0
        .set_plan(at(0), plan, UsageCarryOver::AsIs, &mut effects);
    let (mut batches, mut before, mut has_left) = (1, 3_002, false);
    while std::mem::take(&mut effects).unfinished {
        assert!(before - driven.0.waiters.queue.len() <= BATCH);
        assert!(
            driven
                .0
                .waiters
                .queue
                .front()
                .is_some_and(|front| front.cost <= 4),
            "none blocks the front"
        );
        if !has_left {
            // A waiter that is to be refused leaves meanwhile.
            let (id, _) = *waiting.iter().rfind(|(_, cost)| *cost == 5).unwrap();
            assert_eq!(driven.answer(id), None);
            driven
                .0
                .waiters
                .refuse(id, AcquireError::Closed.into(), &mut Effects::default());
            has_left = true;
        }
        before = driven.0.waiters.queue.len();
        driven.0.run_due(at(0), &mut effects);
        batches += 1;
    }
    assert!(batches > 1_000 / BATCH);
    assert!(
        waiting
            .iter()
            .all(|(id, cost)| *cost == 1 || driven.answer(*id) == Some(AnswerKind::Failed))
    );
    assert_eq!(driven.0.waiters.queue.len(), 2_000);
    assert_eq!(
        [urgent, low].map(|id| driven.answer(id)),
        [Some(AnswerKind::Failed); 2]
    );
    driven.at(0, |schedule, now, effects| {
        schedule.release_to_next(now, held.fence, 5, held.claim, effects);
    });
    assert_eq!(driven.0.waiters.queue.len(), 1_996);
}

/// What is due is done in the order of time, however late the timer is.
mod late {
    use super::*;

    #[test]
    fn a_release_serves_none_whose_time_was_up_before() {
        let mut driven = Driven::new(MaxConcurrency::new(1));
        let held = driven.try_acquire(0, 1).unwrap();
        let (first, second) = (driven.queued(0, 1, Some(20)), driven.queued(0, 1, None));
        driven.at(200, |schedule, now, effects| {
            schedule.release_to_next(now, held.fence, 1, held.claim, effects);
        });
        assert_eq!(
            (driven.answer(first), driven.answer(second)),
            (FAILED, GRANTED)
        );
    }

    #[test]
    fn a_new_policy_serves_none_whose_time_was_up_before() {
        let mut driven = Driven::new(MaxConcurrency::new(1));
        driven.try_acquire(0, 1).unwrap();
        let waiting = driven.queued(0, 1, Some(20));
        let plan = Plan::new(MaxConcurrency::new(2).into(), Duration::ZERO).unwrap();
        driven.at(200, |schedule, now, effects| {
            schedule.set_plan(now, plan, UsageCarryOver::AsIs, effects);
        });
        assert_eq!(driven.answer(waiting), FAILED);
    }

    #[test]
    fn a_turn_that_came_in_time_is_granted_late_and_charged_when_it_is_given() {
        let mut driven = Driven::new(SlidingWindow::log(1, nanos(100)));
        driven.try_acquire(0, 1).unwrap();
        let second = driven.queued(0, 1, Some(160));
        let first = driven.queued_first(0, 1, Some(150));
        driven.run_due(199);
        assert_eq!(
            (driven.answer(first), driven.answer(second)),
            (GRANTED, FAILED)
        );
        assert_eq!(
            driven.retry_after(199, 1),
            Some(100),
            "no other is granted within a period"
        );
    }

    /// A fixed bug: what was due was decided from the turn of the front on, although the front was to be refused before that.
    #[test]
    fn a_turn_that_came_when_the_front_was_refused_is_granted_late() {
        let mut driven = Driven::new(SlidingWindow::log(3, nanos(100)));
        driven.try_acquire(0, 3).unwrap();
        let second = driven.queued(0, 1, Some(130));
        let front = driven.queued_first(0, 3, Some(120));
        driven.at(50, |schedule, now, effects| {
            schedule.charge(now, 1, effects);
        }); // the turn of the front is now at 150
        driven.run_due(160);
        assert_eq!(
            (driven.answer(front), driven.answer(second)),
            (FAILED, GRANTED)
        );
    }

    #[test]
    fn a_place_that_was_reclaimed_in_time_goes_to_the_waiter_of_that_time() {
        let mut driven = Driven::new(MaxConcurrency::new(1).ttl(nanos(100)));
        driven.try_acquire(0, 1).unwrap();
        let waiting: Vec<_> = [90, 100, 101, 102]
            .map(|deadline| driven.queued(0, 1, Some(deadline)))
            .into();
        driven.run_due(500);
        let answers: Vec<_> = waiting.into_iter().map(|id| driven.answer(id)).collect();
        assert_eq!(answers, [FAILED, GRANTED, FAILED, FAILED]);
    }

    #[test]
    fn a_pace_makes_only_those_late_grants_that_it_admits_now() {
        let mut driven = Driven::new(Throttle::every(nanos(10)));
        driven.try_acquire(0, 1).unwrap();
        let waiting: Vec<_> = [15, 25, 35, 1_000]
            .map(|deadline| driven.queued(0, 1, Some(deadline)))
            .into();
        driven.run_due(50);
        let answers: Vec<_> = waiting.iter().map(|id| driven.answer(*id)).collect();
        assert_eq!(answers, [GRANTED, FAILED, FAILED, None]);
        assert_eq!(driven.0.next_wake(), at(60));
        let mut driven = Driven::new(Throttle::every(nanos(10)).burst(3));
        driven.try_acquire(0, 3).unwrap();
        let (third, last) = (
            driven.queued(0, 1, Some(25)),
            driven.queued(0, 1, Some(1_000)),
        );
        let first = [15, 25].map(|deadline| driven.queued_first(0, 1, Some(deadline)));
        driven.run_due(50);
        assert_eq!(first.map(|id| driven.answer(id)), [GRANTED; 2]);
        assert_eq!(
            (driven.answer(third), driven.answer(last)),
            (FAILED, GRANTED)
        );
    }

    /// A grant in time is not taken for a late one when it comes with a later batch.
    #[test]
    fn more_than_a_batch_is_decided_as_of_one_instant() {
        let mut driven = Driven::new(MaxConcurrency::new(200).ttl(nanos(100)));
        driven.try_acquire(0, 200).unwrap();
        let waiting: Vec<_> = (0..200)
            .map(|nth| driven.queued(0, 1, Some(if nth % 2 == 0 { 120 } else { 99 + nth % 3 })))
            .collect();
        driven.run_due(150);
        for (nth, id) in waiting.into_iter().enumerate() {
            assert_eq!(
                driven.answer(id),
                if nth % 2 == 1 && nth % 3 == 0 {
                    FAILED
                } else {
                    GRANTED
                },
                "{nth}"
            );
        }
    }

    /// The last place is reclaimed after its deadline.
    #[test]
    fn a_request_for_very_many_places_is_refused_as_of_its_deadline() {
        let mut driven = Driven::new(MaxConcurrency::new(300).ttl(nanos(1_000)));
        (0..299).for_each(|now| _ = driven.try_acquire(now, 1).unwrap());
        driven.try_acquire(500, 1).unwrap();
        let first = driven.queued(500, 300, Some(1_499));
        let second = driven.queued(500, 1, None);
        driven.run_due(2_000);
        assert_eq!(
            (driven.answer(first), driven.answer(second)),
            (FAILED, GRANTED)
        );
    }

    /// A fixed bug: a request was refused at once for those ahead of it that would have left before its own time was up.
    #[test]
    fn waiters_that_may_leave_in_time_do_not_lengthen_a_known_wait() {
        let mut driven =
            Driven::new(Policy::from(MaxConcurrency::new(2)).and(FixedWindow::new(2, nanos(100))));
        let held = driven.try_acquire(0, 2).unwrap();
        let ahead: Vec<_> = (0..80)
            .map(|nth| driven.queued(0, 2, Some(100 + nth / 2)))
            .collect();
        let waiting = driven.queued(0, 2, Some(150));
        let known = driven.request(0, request(2, Some(99)));
        assert!(
            matches!(known, Err(AcquireError::TimedOut { .. })),
            "no window opens before: {known:?}"
        );
        driven.queued(0, 2, None);
        let known = driven.request(0, request(2, Some(199)));
        assert!(
            matches!(known, Err(AcquireError::TimedOut { .. })),
            "one stays: {known:?}"
        );
        for id in ahead {
            driven.at(0, |schedule, now, effects| {
                schedule.abandon(now, id, 1, effects);
            });
        }
        driven.at(1, |schedule, now, effects| {
            schedule.release_to_next(now, held.fence, 2, held.claim, effects);
        });
        driven.run_due(100);
        assert_eq!(driven.answer(waiting), GRANTED);
    }
}

#[test]
fn a_limiter_is_paused_until_its_pause_ends() {
    let mut driven = Driven::new(MaxConcurrency::new(1));
    let is_paused = |driven: &Driven, now| driven.0.outlook().is_paused(at(now));
    assert!(!is_paused(&driven, 0));
    driven.at(0, |schedule, now, effects| {
        schedule.pause(now, PauseScope::Limiter, at(100), effects);
    });
    assert!(is_paused(&driven, 99) && !is_paused(&driven, 100));
}

#[test]
fn units_that_are_returned_are_free_again() {
    let mut driven = Driven::new(MaxConcurrency::new(2));
    driven.try_acquire(0, 2).unwrap();
    driven.0.return_units(1);
    assert!(driven.try_acquire(0, 2).is_err());
    driven.try_acquire(0, 1).unwrap();
}

/// Without an observer, nothing is kept or reported for one; what is kept for an observer goes with the waiters.
#[test]
fn arrivals_are_known_only_while_observed_requests_wait() {
    for observed in [false, true] {
        let mut driven = Driven::with(
            MaxConcurrency::new(1),
            Options {
                observed,
                ..Options::default()
            },
        );
        let held = driven.try_acquire(0, 1).unwrap();
        let [granted, abandoned, _expired] =
            [None, None, Some(9)].map(|deadline| driven.queued(1, 1, deadline));
        assert_eq!(driven.0.waiters.queue.knows_arrivals(), observed);
        let events = driven.at(5, |schedule, now, effects| {
            assert!(
                schedule
                    .try_acquire(now, Costs::plain(1), Location::caller(), effects)
                    .is_err()
            );
            schedule.release_to_next(now, held.fence, 1, held.claim, effects);
            effects.event_count()
        });
        assert_eq!(events, if observed { 2 } else { 0 });
        assert!(driven.0.waiters.poll(granted, Waker::noop()).is_ok());
        driven.run_due(9);
        driven.at(9, |schedule, now, effects| {
            schedule.abandon(now, abandoned, 1, effects);
        });
        assert!(driven.0.waiters.queue.is_empty() && !driven.0.waiters.queue.knows_arrivals());
    }
}
