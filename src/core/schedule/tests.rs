use std::panic::Location;
use std::task::Waker;
use std::time::Duration;

use super::*;
use crate::core::queue::AnswerKind;
use crate::policy::Policy;
use crate::strategy::{MaxConcurrency, SlidingWindow, Throttle};

fn at(nanos: u64) -> Moment {
    Moment::from_nanos(nanos)
}

fn nanos(nanos: u64) -> Duration {
    Duration::from_nanos(nanos)
}

fn request(cost: u64, deadline: Option<u64>) -> Request {
    let deadline = deadline.map_or(Moment::NEVER, at);
    Request { cost, priority: Priority::NORMAL, deadline, caller: Location::caller(), blocking: false }
}

/// A schedule whose effects are carried out at once.
struct Driven(Schedule);

impl Driven {
    fn new(policy: impl Into<Policy>) -> Self {
        Self::with(policy, Options::default())
    }

    fn with(policy: impl Into<Policy>, options: Options) -> Self {
        let plan = Plan::new(policy.into(), Duration::ZERO).unwrap();
        Self(Schedule::new(Gate::new(plan, Moment::START, false), options))
    }

    fn at<R>(&mut self, now: u64, input: impl FnOnce(&mut Schedule, Moment, &mut Effects) -> R) -> R {
        let mut effects = Effects::default();
        let result = input(&mut self.0, at(now), &mut effects);
        while std::mem::take(&mut effects).unfinished {
            self.0.run_due(at(now), &mut effects);
        }
        result
    }

    fn try_acquire(&mut self, now: u64, cost: u64) -> Result<Admission, TryAcquireError> {
        self.at(now, |schedule, now, effects| schedule.try_acquire(now, cost, Location::caller(), effects))
    }

    fn request(&mut self, now: u64, request: Request) -> Result<Outcome, AcquireError> {
        self.at(now, |schedule, now, effects| schedule.request(now, &request, &mut Some(Waker::noop().clone()), effects))
    }

    fn queued(&mut self, now: u64, cost: u64, deadline: Option<u64>) -> Index {
        match self.request(now, request(cost, deadline)) {
            Ok(Outcome::Queued(index)) => index,
            other => panic!("not queued: {other:?}"),
        }
    }

    fn run_due(&mut self, now: u64) {
        self.at(now, Schedule::run_due);
    }

    fn answer(&self, index: Index) -> Option<AnswerKind> {
        self.0.queue.peek(index)
    }

    fn retry_after(&self, now: u64, cost: u64) -> Option<u64> {
        self.0.check(at(now), cost).retry_after().map(|after| after.as_nanos() as u64)
    }
}

const GRANTED: Option<AnswerKind> = Some(AnswerKind::Granted);

mod spreading {
    use super::*;

    /// Four units are left of an upstream's quota until 100.
    fn spread() -> Driven {
        let mut driven = Driven::with(SlidingWindow::log(100, nanos(10)), Options { spread_below: 10, ..Options::default() });
        driven.at(0, |schedule, now, effects| schedule.spread(now, 4, at(100), effects));
        driven
    }

    /// A fixed bug: the unit was lost, and its pace was waited out.
    #[test]
    fn a_refunded_grant_is_given_back_to_the_spreading() {
        let mut driven = spread();
        let grant = driven.try_acquire(0, 1).unwrap();
        assert_eq!(driven.retry_after(0, 1), Some(25));
        assert!(driven.at(0, |schedule, now, effects| schedule.settle(now, grant, 1, 0, effects)));
        assert_eq!(driven.retry_after(0, 4), None, "all four are left");
        assert!(driven.try_acquire(0, 4).is_ok());
    }

    #[test]
    fn units_that_were_not_used_are_given_back_to_the_spreading() {
        let mut driven = spread();
        let grant = driven.try_acquire(0, 3).unwrap();
        driven.at(10, |schedule, now, effects| schedule.settle(now, grant, 3, 1, effects));
        assert_eq!(driven.retry_after(10, 3), Some(15), "the pace of the one that was used");
        assert_eq!(driven.retry_after(10, 4), Some(90), "one is gone");
    }

    #[test]
    fn a_grant_that_is_dropped_untaken_is_given_back_to_the_spreading() {
        let mut driven = spread();
        driven.try_acquire(0, 1).unwrap();
        let (first, second) = (driven.queued(0, 3, None), driven.queued(0, 3, None));
        driven.run_due(25);
        assert_eq!((driven.answer(first), driven.answer(second)), (GRANTED, None));
        driven.at(30, |schedule, now, effects| schedule.abandon(now, first, effects));
        assert_eq!(driven.answer(second), GRANTED);
    }

    #[test]
    fn a_grant_from_before_the_news_of_a_quota_is_not_given_back() {
        let mut driven = Driven::with(SlidingWindow::log(100, nanos(10)), Options { spread_below: 10, ..Options::default() });
        let grant = driven.try_acquire(0, 2).unwrap();
        driven.at(0, |schedule, now, effects| schedule.spread(now, 4, at(100), effects));
        driven.at(0, |schedule, now, effects| schedule.settle(now, grant, 2, 0, effects));
        assert_eq!(driven.retry_after(0, 5), Some(100), "the four did not include them");
    }

    #[test]
    fn what_is_given_back_is_bounded_by_the_latest_news() {
        let mut driven = spread();
        let grant = driven.try_acquire(0, 1).unwrap();
        driven.at(0, |schedule, now, effects| schedule.spread(now, 3, at(100), effects));
        driven.at(0, |schedule, now, effects| schedule.settle(now, grant, 1, 0, effects));
        assert_eq!(driven.retry_after(0, 4), Some(100));
        assert!(driven.try_acquire(0, 3).is_ok());
    }
}

/// A fixed bug: a reclaimed grant in a slot that nobody polls kept `drained` waiting.
#[test]
fn a_grant_that_was_reclaimed_in_its_slot_is_not_out() {
    let mut driven = Driven::new(MaxConcurrency::new(1).ttl(nanos(100)));
    let held = driven.try_acquire(0, 1).unwrap();
    let untaken = driven.queued(0, 1, None);
    driven.at(10, |schedule, now, effects| {
        assert!(schedule.release(held.fence, 1, held.claim));
        schedule.run_due(now, effects);
    });
    driven.at(10, Schedule::close);
    assert_eq!(driven.answer(untaken), GRANTED);
    assert!(!driven.0.is_drained());
    driven.run_due(110);
    assert!(driven.0.is_drained());
    assert!(driven.0.poll(untaken, Waker::noop()).is_ok());
    assert!(driven.0.is_drained());
}

/// The permit of a rate is out until it is taken.
#[test]
fn an_untaken_grant_of_a_rate_is_waited_for() {
    let mut driven = Driven::new(Throttle::every(nanos(10)));
    driven.try_acquire(0, 1).unwrap();
    let untaken = driven.queued(0, 1, None);
    driven.run_due(10);
    driven.at(10, Schedule::close);
    assert!(!driven.0.is_drained());
    driven.at(10, |schedule, now, effects| schedule.abandon(now, untaken, effects));
    assert!(driven.0.is_drained());
}

/// A fixed bug: the entry decided, and entries are used again in any order.
#[test]
fn equal_deadlines_are_refused_in_the_order_of_the_queue() {
    let mut driven = Driven::new(MaxConcurrency::new(1));
    driven.try_acquire(0, 1).unwrap();
    let (first, second) = (driven.queued(0, 1, None), driven.queued(0, 1, None));
    for index in [second, first] {
        driven.at(0, |schedule, now, effects| schedule.abandon(now, index, effects)); // the entries are used again, last first
    }
    let mut expected: Vec<_> = (0..3).map(|_| driven.queued(0, 1, Some(1_000))).collect();
    let urgent = Request { priority: Priority::HIGH, ..request(1, Some(1_000)) };
    let Ok(Outcome::Queued(urgent)) = driven.request(0, urgent) else { panic!("it must wait") };
    expected.insert(0, urgent);
    let mut refused = Vec::new();
    while let Some((index, ..)) = driven.0.queue.expired(at(1_000)) {
        driven.0.queue.refuse(index, AcquireError::Closed);
        refused.push(index);
    }
    assert_eq!(refused, expected);
}

/// A fixed bug: all were refused under one hold of the lock.
#[test]
fn a_new_plan_refuses_impossible_waiters_in_batches() {
    let mut driven = Driven::new(MaxConcurrency::new(5));
    let held = driven.try_acquire(0, 5).unwrap();
    let costs = std::iter::repeat_n([1, 1, 5], 1_000).flatten();
    let waiting: Vec<_> = costs.map(|cost| (driven.queued(0, cost, None), cost)).collect();
    let (urgent, low) =
        (Request { priority: Priority::HIGH, ..request(5, None) }, Request { priority: Priority::LOW, ..request(5, None) });
    let Ok(Outcome::Queued(urgent)) = driven.request(0, urgent) else { panic!("it must wait") };
    let Ok(Outcome::Queued(low)) = driven.request(0, low) else { panic!("it must wait") };

    let plan = Plan::new(MaxConcurrency::new(4).into(), Duration::ZERO).unwrap();
    let mut effects = Effects::default();
    driven.0.set_plan(at(0), plan, UsageCarryOver::AsIs, &mut effects);
    let mut batches = 1;
    let mut before = 3_002;
    while std::mem::take(&mut effects).unfinished {
        assert!(before - driven.0.queue.len() <= 64);
        assert!(driven.0.queue.front().is_some_and(|front| front.cost <= 4), "none blocks the front");
        if batches == 3 {
            // The next one to be looked at leaves meanwhile.
            let next = driven.0.queue.next_in_sweep().unwrap();
            let (index, cost) = *waiting.iter().find(|(index, _)| *index == next).unwrap();
            assert_eq!((cost, driven.answer(index)), (1, None));
            driven.0.queue.refuse(index, AcquireError::Closed);
        }
        before = driven.0.queue.len();
        driven.0.run_due(at(0), &mut effects);
        batches += 1;
    }
    assert!(batches > 1_000 / 64);
    assert!(waiting.iter().all(|(index, cost)| *cost == 1 || driven.answer(*index) == Some(AnswerKind::Failed)));
    assert_eq!(driven.0.queue.len(), 1_999, "and one that left by itself");
    assert_eq!([urgent, low].map(|index| driven.answer(index)), [Some(AnswerKind::Failed); 2]);
    assert!(driven.0.release(held.fence, 5, held.claim));
    driven.run_due(0);
    assert_eq!(driven.0.queue.len(), 1_995);
}
