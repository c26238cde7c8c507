//! Requests that are refused at once because they would wait longer than they may.

use std::sync::Arc;

use super::*;
use crate::core::request::CostDetails;
use crate::core::schedule::outlook::MAX_AHEAD;
use crate::flow::FlowId;

fn is_refused(outcome: &Result<Enqueued<Grant>, AcquireError>) -> bool {
    matches!(outcome, Err(AcquireError::TimedOut { .. }))
}

fn of_flow(flow: Option<&str>) -> Option<Arc<CostDetails>> {
    let mut details = CostDetails::default();
    details.set_flow(FlowId::of(flow?), None);
    Some(Arc::new(details))
}

/// The second waiter leaves at 20, before its turn. So the newcomer has the turn at 30.
#[test]
fn waiters_that_leave_before_their_turn_are_not_waited_for() {
    let mut driven = Driven::new(Throttle::every(nanos(10)));
    driven.try_acquire(0, 1).unwrap();
    driven.queued(0, 1, None);
    let leaves = driven.queued(0, 1, Some(20));
    driven.at(0, |schedule, now, effects| schedule.charge(now, 1, effects)); // the turns are at 20 and 30 now
    assert!(is_refused(&driven.request(0, request(1, Some(29)))));
    let waiting = driven.queued(0, 1, Some(30));
    driven.advance(100);
    assert_eq!(
        (driven.answer(leaves), driven.answer(waiting)),
        (FAILED, GRANTED)
    );
}

#[test]
fn a_large_cost_that_takes_a_whole_window_is_waited_for() {
    let mut driven = Driven::new(FixedWindow::new(10, nanos(100)));
    driven.try_acquire(0, 10).unwrap();
    driven.queued(0, 7, Some(100));
    driven.queued(0, 7, Some(200));
    assert!(
        is_refused(&driven.request(0, request(4, Some(299)))),
        "3 units are left of the window at 200"
    );
    driven.queued(0, 4, Some(300));
}

/// Two units are left of the window at 200, but the request does not fit.
#[test]
fn a_wait_is_known_exactly_although_all_units_ahead_would_fit() {
    let mut driven = Driven::new(FixedWindow::new(10, nanos(100)));
    driven.try_acquire(0, 10).unwrap();
    (0..2).for_each(|_| _ = driven.queued(0, 7, None));
    assert!(is_refused(&driven.request(0, request(4, Some(200)))));
    assert!(is_refused(&driven.request(0, request(4, Some(299)))));
    driven.queued(0, 4, Some(300));
}

#[test]
fn a_waiter_whose_turn_is_at_its_deadline_is_waited_for() {
    let mut driven = Driven::new(FixedWindow::new(2, nanos(100)));
    driven.try_acquire(0, 2).unwrap();
    driven.queued(0, 1, None);
    driven.queued(0, 1, Some(100));
    assert_eq!(driven.retry_after(0, 1), Some(200));
    assert!(is_refused(&driven.request(0, request(1, Some(199)))));
    driven.queued(0, 1, Some(200));
}

#[test]
fn requests_that_go_first_are_waited_for_and_others_are_not() {
    let mut driven = Driven::new(Throttle::every(nanos(10)));
    driven.try_acquire(0, 1).unwrap();
    for priority in [0, 9] {
        let priority = Priority::new(priority).unwrap();
        driven
            .request(
                0,
                Request {
                    priority,
                    ..request(1, Some(30))
                },
            )
            .unwrap();
    }
    assert!(is_refused(&driven.request(0, request(1, Some(19)))));
    assert!(driven.request(0, request(1, Some(20))).is_ok());
}

/// The first two have a place for certain, and the rate decides when. The third waits for a release.
#[test]
fn a_wait_is_known_as_far_as_places_are_free() {
    let driven = || {
        let mut driven =
            Driven::new(Policy::from(MaxConcurrency::new(3)).and(Throttle::every(nanos(10))));
        driven.try_acquire(0, 1).unwrap();
        for deadline in [10, 20] {
            driven.queued(0, 1, Some(deadline));
        }
        driven
    };
    assert!(is_refused(&driven().request(0, request(1, Some(29)))));
    let mut beyond = driven();
    beyond.queued(0, 1, Some(35)); // granted at 30 if a place is released by then
    assert!(is_refused(&beyond.request(0, request(1, Some(29)))));
    beyond.queued(0, 1, Some(36)); // granted at 35 if one is released just then
    beyond.queued(0, 1, None);
    assert!(
        is_refused(&beyond.request(0, request(1, Some(39)))),
        "the one without a deadline stays"
    );
    beyond.queued(0, 1, Some(40));
}

/// A place may be released at any time, or a pause be ended; then a waiter may leave that would have been granted before.
#[test]
fn a_wait_that_a_release_or_a_resume_may_end_is_not_known() {
    let window = FixedWindow::new(1, nanos(100));
    let mut driven = Driven::new(Policy::from(MaxConcurrency::new(1)).and(window));
    let held = driven.try_acquire(0, 1).unwrap();
    let ahead = driven.queued(0, 1, Some(150));
    let waiting = driven.queued(0, 1, Some(170));
    driven.advance(160);
    driven.at(160, |schedule, now, effects| {
        schedule.release_to_next(now, held.fence, 1, held.claim, effects);
    });
    assert_eq!(
        (driven.answer(ahead), driven.answer(waiting)),
        (FAILED, GRANTED)
    );

    let mut driven = Driven::new(window);
    driven.at(0, |schedule, now, effects| {
        schedule.pause(now, PauseScope::Limiter, Moment::NEVER, effects);
    });
    let ahead = driven.queued(0, 1, Some(50));
    let waiting = driven.queued(0, 1, Some(70));
    driven.advance(60);
    driven.at(60, |schedule, now, effects| {
        schedule.resume(now, PauseScope::Limiter, effects);
    });
    assert_eq!(
        (driven.answer(ahead), driven.answer(waiting)),
        (FAILED, GRANTED)
    );
}

const LOOKED_AT: u64 = MAX_AHEAD as u64;

#[test]
fn behind_a_long_queue_a_wait_is_known_as_far_as_it_is_computed() {
    let behind = |waiting: u64| {
        let mut driven = Driven::new(Throttle::every(nanos(10)));
        driven.try_acquire(0, 1).unwrap();
        for nth in 1..=waiting {
            driven.queued(0, 1, Some(10 * nth));
        }
        driven
    };
    let mut driven = behind(LOOKED_AT);
    assert!(is_refused(
        &driven.request(0, request(1, Some(10 * LOOKED_AT + 9)))
    ));
    driven.queued(0, 1, Some(10 * LOOKED_AT + 10));
    let mut driven = behind(LOOKED_AT + 1);
    assert!(is_refused(
        &driven.request(0, request(1, Some(10 * LOOKED_AT + 9)))
    ));
    driven.queued(0, 1, Some(10 * LOOKED_AT + 19)); // too late by 1, and not known to be
}

/// A fixed bug: the request was refused because of a waiter that is dropped for it.
#[test]
fn a_waiter_that_a_full_queue_drops_is_not_waited_for() {
    for overflow in [Overflow::DropOldest, Overflow::Leak] {
        for leaves_at in [Some(400), None] {
            let policy = Throttle::every(nanos(100)).burst(5);
            let mut driven = Driven::with(
                policy,
                Options {
                    max_queue: Some(1),
                    overflow,
                    ..Options::default()
                },
            );
            driven.try_acquire(0, 5).unwrap();
            let dropped = driven.queued(0, 4, leaves_at);
            let waiting = driven.queued(0, 3, Some(450));
            driven.advance(300);
            assert_eq!(
                (driven.answer(dropped), driven.answer(waiting)),
                (FAILED, GRANTED)
            );
        }
    }
}

/// Only a resume ends it for the larger request.
#[test]
fn the_quota_of_an_upstream_that_never_resets_is_waited_for() {
    for leaves_at in [Some(10), None] {
        let options = Options {
            spread_below: 20,
            ..Options::default()
        };
        let mut driven = Driven::with(Throttle::every(nanos(1)).burst(5), options);
        driven.at(0, |schedule, now, effects| {
            schedule.spread(now, 3, Moment::NEVER, effects);
        });
        driven.queued(0, 5, leaves_at);
        driven.queued(0, 1, Some(20));
    }
}

/// Those before it would have to be granted first.
#[test]
fn a_request_that_waited_in_vain_learns_when_an_equal_one_could_be_granted() {
    let mut driven = Driven::new(Throttle::every(nanos(10)));
    driven.at(0, |schedule, now, effects| {
        schedule.pause(now, PauseScope::Limiter, Moment::NEVER, effects);
    });
    (0..2).for_each(|_| _ = driven.queued(0, 1, None));
    let id = driven.queued(0, 1, Some(50));
    driven.run_due(50);
    let answer = driven.0.waiters.poll(id, Waker::noop()).unwrap();
    assert_eq!(answer.unwrap_err().error.retry_after(), Some(nanos(20)));
}

/// The waiter leaves before its turn.
#[test]
fn a_refused_request_learns_its_turn() {
    let mut driven = Driven::new(Throttle::every(nanos(100)).burst(5));
    driven.try_acquire(0, 5).unwrap();
    driven.queued(0, 5, Some(700));
    driven.at(0, |schedule, now, effects| schedule.charge(now, 5, effects));
    for deadline in [300, 900] {
        let refused = driven.request(0, request(5, Some(deadline))).unwrap_err();
        assert_eq!(refused.retry_after(), Some(nanos(1_000)), "{deadline}");
    }
}

/// Behind more waiters than are looked at one by one.
#[test]
fn a_request_is_refused_behind_a_long_queue() {
    for leaves_at in [None, Some(u64::MAX - 1)] {
        let mut driven = Driven::new(Throttle::every(nanos(10)));
        driven.try_acquire(0, 1).unwrap();
        let ahead = 2 * LOOKED_AT;
        (1..ahead).for_each(|_| _ = driven.queued(0, 1, None));
        driven.queued(0, 1, leaves_at);
        let turn = (ahead + 1) * 10;
        for deadline in [10 * LOOKED_AT + 10, turn - 1] {
            assert!(is_refused(&driven.request(0, request(1, Some(deadline)))));
        }
        driven.queued(0, 1, Some(turn));
    }
}

/// Against a naive sum. All places are taken, so that nobody knows when they are granted.
#[test]
fn the_units_that_are_surely_ahead_are_those_of_waiters_that_go_first_and_stay() {
    for newest_first in [false, true] {
        let options = Options {
            newest_first,
            ..Options::default()
        };
        for flows in [&[None][..], &[None, Some("a"), Some("b")]] {
            let mut driven = Driven::with(MaxConcurrency::new(1), options);
            driven.try_acquire(0, 1).unwrap();
            let of = |priority, deadline| Request {
                priority: Priority::new(priority).unwrap(),
                ..request(1, deadline)
            };
            let mut waiting = Vec::new();
            for number in 0..60_u64 {
                let flow = flows[number as usize % flows.len()];
                let priority = [5, 0, 9, 5, 5][number as usize % 5];
                let deadline = (number % 4 != 0).then_some(100 + number);
                let details = of_flow(flow);
                let request = Request {
                    costs: Costs::new(1, &details),
                    ..of(priority, deadline)
                };
                driven.request(0, request).unwrap();
                waiting.push((flow, priority, deadline.unwrap_or(u64::MAX)));
            }
            for (flow, priority, deadline) in [None, Some("a"), Some("b"), Some("new")]
                .into_iter()
                .flat_map(|flow| [0, 5, 9].map(|priority| (flow, priority)))
                .flat_map(|(flow, priority)| [1, 130, 1_000].map(|at| (flow, priority, at)))
            {
                let details = of_flow(flow);
                let newcomer = Request {
                    costs: Costs::new(1, &details),
                    ..of(priority, Some(deadline))
                };
                let is_ahead = |(other, level, leaves_at): &&(Option<&str>, u8, u64)| {
                    let goes_first = *level > priority
                        || *level == priority
                            && !newest_first
                            && (flows.len() == 1 || *other == flow);
                    goes_first && *leaves_at > deadline
                };
                assert_eq!(
                    driven.0.waiters.queue.units_surely_ahead_of(&newcomer),
                    waiting.iter().filter(is_ahead).count() as u64,
                    "{newest_first} {flows:?} {flow:?} {priority} {deadline}"
                );
            }
        }
    }
}

/// A place may be released at any time. Then a request of another flow may be next, and it takes the unit of the window.
#[test]
fn only_a_waiter_in_the_flow_of_a_newcomer_is_before_it_after_a_release() {
    for (flow, refused) in [(None, false), (Some("b"), false), (Some("a"), true)] {
        let window = FixedWindow::new(2, nanos(1_000));
        let mut driven = Driven::new(Policy::from(MaxConcurrency::new(1)).and(window));
        driven.try_acquire(0, 1).unwrap();
        let [first, newcomer] = [Some("a"), flow].map(of_flow);
        let in_flow = |details, deadline| Request {
            costs: Costs::new(1, details),
            ..request(1, deadline)
        };
        driven.request(0, in_flow(&first, None)).unwrap();
        let outcome = driven.request(0, in_flow(&newcomer, Some(500)));
        assert_eq!(is_refused(&outcome), refused, "{flow:?}");
    }
}

/// Many have deadlines, so only the latest of them are looked at.
#[test]
fn the_units_of_the_latest_deadlines_are_surely_ahead() {
    let mut driven = Driven::new(MaxConcurrency::new(1));
    driven.try_acquire(0, 1).unwrap();
    (0..3).for_each(|_| _ = driven.queued(0, 1, None));
    let timed: Vec<_> = (100..200).map(|at| driven.queued(0, 1, Some(at))).collect();
    let ahead = |driven: &Driven, deadline| {
        let queue = &driven.0.waiters.queue;
        queue.units_surely_ahead_of(&request(1, Some(deadline)))
    };
    assert_eq!(
        [99, 163, 164, 198, 199].map(|deadline| ahead(&driven, deadline)),
        [103, 39, 38, 4, 3]
    );
    for id in &timed[..20] {
        driven.at(0, |schedule, now, effects| {
            schedule.abandon(now, *id, 1, effects);
        });
    }
    assert_eq!(
        [99, 183, 184, 198, 199].map(|deadline| ahead(&driven, deadline)),
        [83, 19, 18, 4, 3]
    );
}

/// The newcomer has no claim from before it came: it goes after the flow that came before it, and before the one that was served.
#[test]
fn the_first_request_without_a_flow_is_behind_a_flow_that_came_earlier() {
    let in_flow = |flow: &str| {
        let mut details = CostDetails::default();
        details.set_flow(FlowId::of(flow), None);
        Some(Arc::new(details))
    };
    let (a, b) = (in_flow("a"), in_flow("b"));
    let mut driven = Driven::new(Throttle::every(nanos(10)));
    let come = |driven: &mut Driven, now, details| {
        let request = Request {
            costs: Costs::new(1, details),
            ..request(1, None)
        };
        driven.request(now, request).unwrap();
    };
    (0..4).for_each(|_| come(&mut driven, 0, &a));
    driven.advance(20);
    come(&mut driven, 20, &b);
    assert!(is_refused(&driven.request(20, request(1, Some(39)))));
    driven.queued(20, 1, Some(40));
}
