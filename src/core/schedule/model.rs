//! The schedule (gate and queue) against a naive reference that keeps every grant in a list and every rule as a sentence.

mod changes;
mod naive;

use std::collections::BTreeMap;
use std::panic::Location;
use std::task::Waker;
use std::time::Duration;

use proptest::prelude::*;

use self::naive::{Naive, Waiting};
use super::{Options, Outcome, Schedule};
use crate::core::arena::Index;
use crate::core::effects::Effects;
use crate::core::gate::Gate;
use crate::core::grant::Admission;
use crate::core::plan::Plan;
use crate::core::queue::AnswerKind;
use crate::core::request::Request;
use crate::error::{AcquireError, TryAcquireError};
use crate::overflow::Overflow;
use crate::policy::{Limit, Policy};
use crate::priority::Priority;
use crate::rate::Rate;
use crate::strategy::{Align, FixedWindow, MaxConcurrency, Moment, SlidingWindow, Throttle, TokenBucket};

#[derive(Debug, Clone)]
enum Step {
    Request {
        cost: u64,
        priority: u8,
        timeout: Option<u64>,
    },
    TryAcquire {
        cost: u64,
    },
    /// A waiter's slot is looked into, and a grant in it taken.
    Poll(prop::sample::Index),
    Abandon(prop::sample::Index),
    Release(prop::sample::Index),
    /// A permit is leaked, and its late release comes at the end.
    Leak(prop::sample::Index),
    Renew(prop::sample::Index),
    /// Time passes; the timer is late by as much.
    Pass {
        nanos: u64,
        late: u64,
    },
    Close,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0_u64..7, 0_u8..10, prop::option::weighted(0.3, 0_u64..120))
            .prop_map(|(cost, priority, timeout)| Step::Request { cost: cost.max(u64::from(priority > 0)), priority: priority / 2 * 2, timeout }),
        2 => (1_u64..5).prop_map(|cost| Step::TryAcquire { cost }),
        3 => any::<prop::sample::Index>().prop_map(Step::Poll),
        2 => any::<prop::sample::Index>().prop_map(Step::Abandon),
        4 => any::<prop::sample::Index>().prop_map(Step::Release),
        1 => any::<prop::sample::Index>().prop_map(Step::Leak),
        1 => any::<prop::sample::Index>().prop_map(Step::Renew),
        5 => (prop_oneof![0_u64..30, 0_u64..300], prop_oneof![3 => Just(0_u64), 1 => 0_u64..40])
            .prop_map(|(nanos, late)| Step::Pass { nanos, late }),
    ];
    (prop::collection::vec(step, 1..60), prop::option::weighted(0.2, 0_usize..60)).prop_map(|(mut steps, close)| {
        if let Some(at) = close {
            steps.insert(at.min(steps.len()), Step::Close);
        }
        steps
    })
}

fn policies() -> impl Strategy<Value = Policy> {
    let nanos = Duration::from_nanos;
    let limit = prop_oneof![
        (1_u64..50, 1_u64..6).prop_map(move |(interval, burst)| Limit::from(Throttle::every(nanos(interval)).burst(burst))),
        (1_u64..7, prop::option::of(1_u64..200)).prop_map(move |(limit, ttl)| {
            let concurrency = MaxConcurrency::new(limit);
            Limit::from(ttl.map_or(concurrency, |ttl| concurrency.ttl(nanos(ttl))))
        }),
        (1_u64..6, 1_u64..80, prop_oneof![Just(Align::Creation), Just(Align::FirstGrant), Just(Align::WallClock)])
            .prop_map(move |(limit, period, align)| Limit::from(FixedWindow::new(limit, nanos(period)).align(align))),
        (1_u64..6, 1_u64..80, 1_u64..7, any::<bool>(), prop::option::of(0_u64..7)).prop_map(
            move |(units, period, burst, interval, initial)| {
                let bucket = TokenBucket::new(Rate::new(units, nanos(period)), burst);
                let bucket = if interval { bucket.refill_each_period() } else { bucket };
                Limit::from(initial.map_or(bucket, |initial| bucket.initial(initial)))
            }
        ),
        (1_u64..6, 1_u64..80, any::<bool>()).prop_map(move |(limit, period, log)| {
            Limit::from(if log { SlidingWindow::log(limit, nanos(period)) } else { SlidingWindow::counter(limit, nanos(period)) })
        }),
    ];
    prop::collection::vec(limit, 1..4).prop_map(|limits| limits.into_iter().map(Policy::from).reduce(Policy::and).unwrap())
}

fn overflows() -> impl Strategy<Value = (usize, Overflow)> {
    let rule = prop_oneof![Just(Overflow::Reject), Just(Overflow::DropOldest), Just(Overflow::DropLowestPriority)];
    (prop_oneof![0_usize..4, Just(usize::MAX)], rule)
}

/// A permit that is out.
#[derive(Debug, Clone, Copy)]
struct Held {
    admission: Admission,
    cost: u64,
    grant: usize,
}

/// Drives both through the same steps and compares them after each.
struct Harness {
    schedule: Schedule,
    naive: Naive,
    now: u64,
    indexes: BTreeMap<usize, Index>,
    held: Vec<Held>,
    leaked: Vec<Held>,
    next_id: usize,
    max_queue: usize,
    overflow: Overflow,
    throttled: bool,
}

impl Harness {
    fn new(policy: &Policy, since_epoch: u64, (max_queue, overflow): (usize, Overflow)) -> Self {
        let gate = Gate::new(Plan::new(policy.clone(), Duration::from_nanos(since_epoch)).unwrap(), Moment::START, false);
        Self {
            schedule: Schedule::new(gate, Options { max_queue, overflow, ..Options::default() }),
            naive: Naive::new(policy, since_epoch),
            now: 0,
            indexes: BTreeMap::new(),
            held: Vec::new(),
            leaked: Vec::new(),
            next_id: 0,
            max_queue,
            overflow,
            throttled: policy.limits().iter().any(|limit| matches!(limit, Limit::Throttle(_) | Limit::TokenBucket(_))),
        }
    }

    fn moment(&self) -> Moment {
        Moment::from_nanos(self.now)
    }

    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        let pick = |index: prop::sample::Index, len: usize| (len > 0).then(|| index.index(len));
        match step {
            Step::Request { cost, priority, timeout } => self.request(cost, Priority::new(priority).unwrap(), timeout)?,
            Step::TryAcquire { cost } => self.try_acquire(cost)?,
            Step::Poll(index) => {
                if let Some(id) = pick(index, self.indexes.len()).and_then(|nth| self.indexes.keys().nth(nth).copied()) {
                    self.poll(id)?;
                }
            }
            Step::Abandon(index) => {
                if let Some(id) = pick(index, self.indexes.len()).and_then(|nth| self.indexes.keys().nth(nth).copied()) {
                    self.abandon(id);
                }
            }
            Step::Release(index) => {
                if let Some(nth) = pick(index, self.held.len()) {
                    let held = self.held.swap_remove(nth);
                    self.release(held);
                }
            }
            Step::Leak(index) => {
                if let Some(nth) = pick(index, self.held.len()) {
                    self.leaked.push(self.held.swap_remove(nth));
                }
            }
            Step::Renew(index) => {
                if let Some(nth) = pick(index, self.held.len()) {
                    self.renew(self.held[nth])?;
                }
            }
            Step::Pass { nanos, late } => self.pass(nanos, late)?,
            Step::Close => {
                self.effects(Schedule::close);
                self.naive.closed = true;
                self.naive.settle(self.now);
            }
        }
        self.compare()
    }

    fn effects<R>(&mut self, input: impl FnOnce(&mut Schedule, Moment, &mut Effects) -> R) -> R {
        let (now, mut effects) = (self.moment(), Effects::default());
        let result = input(&mut self.schedule, now, &mut effects);
        while std::mem::take(&mut effects).unfinished {
            self.schedule.run_due(now, &mut effects);
        }
        result
    }

    fn request(&mut self, cost: u64, priority: Priority, timeout: Option<u64>) -> Result<(), TestCaseError> {
        let (id, now) = (self.next_id, self.now);
        self.next_id += 1;
        let deadline = timeout.map_or(u64::MAX, |timeout| now + timeout);
        let request =
            Request { cost, priority, deadline: Moment::from_nanos(deadline), caller: Location::caller(), blocking: false };
        let outcome = self.effects(|schedule, now, effects| {
            match schedule.enqueue_behind(now, &request, &mut Some(Waker::noop().clone())) {
                Some(index) => Ok(Outcome::Queued(index)),
                None => schedule.request(now, &request, &mut Some(Waker::noop().clone()), effects),
            }
        });
        let max = self.naive.limits.iter().map(Limit::capacity).min().unwrap();
        let waiting = Waiting { id, cost, priority, deadline };
        match outcome {
            Err(AcquireError::Closed) => prop_assert!(self.naive.closed),
            Err(AcquireError::ZeroCost) => prop_assert_eq!(cost, 0),
            Err(AcquireError::ExceedsLimit { cost: told, max: most }) => prop_assert!(cost > max && (told, most) == (cost, max)),
            _ if self.naive.closed || cost == 0 || cost > max => prop_assert!(false, "accepted {:?}", outcome),
            Ok(Outcome::Admitted(admission)) if self.naive.queue.is_empty() && self.naive.admits_all(now, cost) => {
                let grant = self.naive.grant(now, cost);
                self.held.push(Held { admission, cost, grant });
            }
            Err(AcquireError::TimedOut { .. }) if !self.naive.could_be_served(now, waiting.clone(), deadline) => {}
            Err(AcquireError::TimedOut { .. }) if deadline == now && self.naive.queue.len() >= self.max_queue => {}
            outcome => {
                prop_assert!(!(self.naive.queue.is_empty() && self.naive.admits_all(now, cost)), "not admitted: {:?}", outcome);
                if self.naive.queue.len() >= self.max_queue {
                    let victim = match self.overflow {
                        Overflow::Reject | Overflow::Block { .. } => None,
                        Overflow::DropOldest => self.naive.queue.first(),
                        Overflow::DropLowestPriority => {
                            let lowest = self.naive.queue.iter().map(|waiting| waiting.priority).min();
                            let last = self.naive.queue.iter().rfind(|waiting| Some(waiting.priority) == lowest);
                            last.filter(|waiting| waiting.priority < priority)
                        }
                    };
                    match victim.map(|victim| victim.id) {
                        Some(victim) => self.naive.answer(victim, AnswerKind::Failed),
                        None => {
                            prop_assert!(matches!(outcome, Err(AcquireError::QueueFull)), "{:?}", outcome);
                            return Ok(());
                        }
                    }
                }
                self.naive.queue.push(waiting);
                self.naive.settle(now);
                match outcome {
                    Ok(Outcome::Queued(index)) => {
                        self.indexes.insert(id, index);
                        prop_assert_eq!(self.naive.answers.get(&id), None);
                    }
                    Ok(Outcome::Admitted(admission)) => {
                        prop_assert_eq!(self.naive.answers.get(&id), Some(&AnswerKind::Granted));
                        self.held.push(Held { admission, cost, grant: self.naive.granted_to[&id] });
                    }
                    Err(_) => prop_assert_eq!(self.naive.answers.get(&id), Some(&AnswerKind::Failed)),
                }
            }
        }
        Ok(())
    }

    fn try_acquire(&mut self, cost: u64) -> Result<(), TestCaseError> {
        let now = self.now;
        let told = self.schedule.check(self.moment(), cost).is_allowed();
        let answer = self.effects(|schedule, now, effects| {
            let in_place = schedule.admit_in_place(now, cost, Location::caller());
            in_place.map_or_else(|| schedule.try_acquire(now, cost, Location::caller(), effects), Ok)
        });
        prop_assert_eq!(told, answer.is_ok());
        match answer {
            Ok(admission) => {
                prop_assert!(!self.naive.closed && self.naive.queue.is_empty() && self.naive.admits_all(now, cost));
                let grant = self.naive.grant(now, cost);
                self.held.push(Held { admission, cost, grant });
            }
            Err(TryAcquireError::Denied(decision)) => {
                let alone = self.naive.queue.is_empty();
                prop_assert!(!(alone && self.naive.admits_all(now, cost)));
                prop_assert!(!decision.is_allowed());
                if !alone {
                    return Ok(());
                }
                let denier = self.naive.limits.iter().position(|limit| decision.denied_by() == Some(limit)).unwrap();
                prop_assert!(!self.naive.admits(denier, now, cost), "named {} which admits", denier);
                match decision.retry_after() {
                    Some(after) => {
                        let retry = now + after.as_nanos() as u64;
                        prop_assert!(!self.naive.admits_all(retry - 1, cost) && self.naive.admits_all(retry, cost));
                    }
                    None => prop_assert!(!self.naive.admits_all(now + 1_000_000, cost), "it does not take a release"),
                }
            }
            Err(error) => prop_assert!(self.naive.closed || matches!(error, TryAcquireError::ExceedsLimit { .. }), "{:?}", error),
        }
        Ok(())
    }

    fn poll(&mut self, id: usize) -> Result<(), TestCaseError> {
        let index = self.indexes[&id];
        match self.schedule.poll(index, Waker::noop()) {
            Err(_) => prop_assert_eq!(self.naive.answers.get(&id), None),
            Ok(Ok(admission)) => {
                prop_assert_eq!(self.naive.answers.get(&id), Some(&AnswerKind::Granted));
                let grant = self.naive.granted_to[&id];
                self.held.push(Held { admission, cost: self.naive.grants[grant].cost, grant });
                self.indexes.remove(&id);
            }
            Ok(Err(_)) => {
                prop_assert_eq!(self.naive.answers.get(&id), Some(&AnswerKind::Failed));
                self.indexes.remove(&id);
            }
        }
        Ok(())
    }

    fn abandon(&mut self, id: usize) {
        if let Some(&grant) = self.naive.granted_to.get(&id) {
            // What a throttle gives back for an older grant is bounded from below only; `throttle.rs` tests that alone.
            let latest = self.naive.grants.iter().map(|grant| grant.at).max();
            if self.throttled && latest != Some(self.naive.grants[grant].at) {
                return;
            }
            self.naive.refund(grant);
        }
        let index = self.indexes.remove(&id).unwrap();
        self.effects(|schedule, now, effects| schedule.abandon(now, index, effects));
        self.naive.queue.retain(|waiting| waiting.id != id);
        self.naive.settle(self.now);
    }

    fn release(&mut self, Held { admission, cost, grant }: Held) {
        self.give_back(admission, cost);
        (self.naive.grants[grant].held, self.naive.grants[grant].expires) = (false, u64::MAX);
        self.naive.settle(self.now);
    }

    fn give_back(&mut self, admission: Admission, cost: u64) {
        self.effects(|schedule, now, effects| {
            if !schedule.release(admission.fence, cost, admission.claim) {
                schedule.release_to_next(now, admission.fence, cost, admission.claim, effects);
            }
        });
    }

    fn renew(&mut self, Held { admission, grant, .. }: Held) -> Result<(), TestCaseError> {
        let Some(lease) = admission.claim.lease() else { return Ok(()) };
        let live = self.effects(|schedule, now, _| schedule.gate.renew(lease, admission.fence, now));
        let grant = &mut self.naive.grants[grant];
        prop_assert_eq!(live, grant.held);
        if live {
            let ttl = self.naive.limits.iter().filter_map(|limit| match limit {
                Limit::MaxConcurrency(concurrency) => concurrency.ttl,
                _ => None,
            });
            grant.expires = self.now + ttl.min().unwrap().as_nanos() as u64;
        }
        Ok(())
    }

    /// Lets time pass as the driver does: it sleeps until the next wake, and comes late.
    fn pass(&mut self, nanos: u64, late: u64) -> Result<(), TestCaseError> {
        let end = self.now + nanos;
        while self.schedule.next_wake() <= Moment::from_nanos(end) {
            let wake = self.schedule.next_wake().nanos();
            prop_assert!(wake > self.now, "woken at {} for what was due at {}", self.now, wake);
            let front = self.naive.front().map(|front| front.cost);
            prop_assert!(front.is_none_or(|cost| !self.naive.admits_all(wake - 1, cost)), "woken too late");
            self.now = (wake + late).min(end);
            self.effects(Schedule::run_due);
            self.naive.settle(self.now);
            self.compare()?;
        }
        self.now = end;
        let front = self.naive.front().map(|front| front.cost);
        prop_assert!(front.is_none_or(|cost| !self.naive.admits_all(end, cost)), "nobody wakes for the front");
        prop_assert!(self.naive.grants.iter().all(|grant| !grant.held || grant.expires > end), "nobody wakes for a reclaim");
        Ok(())
    }

    fn compare(&mut self) -> Result<(), TestCaseError> {
        for (id, index) in &self.indexes {
            prop_assert_eq!(self.schedule.queue.peek(*index), self.naive.answers.get(id).copied(), "request {}", id);
        }
        let snapshot = self.schedule.snapshot(self.moment());
        prop_assert_eq!(snapshot.queued as usize, self.naive.queue.len());
        prop_assert_eq!(snapshot.granted as usize, self.naive.grants.len());
        prop_assert_eq!(snapshot.refunded as usize, self.naive.grants.iter().filter(|grant| grant.refunded).count());
        if self.schedule.gate.holds_places() {
            let out: u64 = self.naive.grants.iter().filter(|grant| grant.held).map(|grant| grant.cost).sum();
            prop_assert_eq!(snapshot.in_flight, out);
        }
        Ok(())
    }

    /// Everything comes back: then the limiter is as good as new.
    fn finish(mut self) -> Result<(), TestCaseError> {
        for id in self.indexes.keys().copied().collect::<Vec<_>>() {
            let index = self.indexes.remove(&id).unwrap();
            self.effects(|schedule, now, effects| schedule.abandon(now, index, effects));
        }
        for Held { admission, cost, .. } in std::mem::take(&mut self.held).into_iter().chain(std::mem::take(&mut self.leaked)) {
            self.give_back(admission, cost);
        }
        let snapshot = self.schedule.snapshot(self.moment());
        prop_assert_eq!((snapshot.in_flight, snapshot.queued), (0, 0));
        let later = self.moment().plus(1_000_000);
        let max = self.naive.limits.iter().map(Limit::capacity).min().unwrap();
        prop_assert_eq!(self.schedule.check(later, max).is_allowed(), !self.naive.closed);
        prop_assert_eq!(self.schedule.next_wake(), Moment::NEVER);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12_000))]

    /// Invariants 1 (never over), 2 (never lost), 3 (in order), 4 (all or none), 5 (reclaim once) and 7 (retry-after is exact).
    #[test]
    fn the_schedule_agrees_with_a_naive_reference(
        policy in policies(), since_epoch in 0_u64..1_000, overflow in overflows(), steps in steps(),
    ) {
        let mut harness = Harness::new(&policy, since_epoch, overflow);
        for step in steps {
            harness.step(step)?;
        }
        harness.finish()?;
    }
}
