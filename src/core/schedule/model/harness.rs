//! Drives a schedule and the reference through the same steps, and applies the rules after each.

mod permits;
mod requests;
mod time;

use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::Index as Pick;
use proptest::test_runner::TestCaseResult;

use super::super::{Enqueued, Schedule};
use super::costs::{Cost, Settled};
use super::inputs::{Setup, Step};
use super::limits::Bound;
use super::reference::{Reference, Waiting};
use super::rules;
use crate::carry_over::UsageCarryOver;
use crate::core::effects::{BATCH, Effects};
use crate::core::gate::Gate;
use crate::core::gate::plan::Plan;
use crate::core::queue::WaiterId;
use crate::core::queue::untaken_answers::AnswerKind;
use crate::core::request::{Costs, Grant, Request};
use crate::core::suspension::PauseScope;
use crate::error::{AcquireError, TryAcquireError};
use crate::overflow::Overflow;
use crate::policy::Policy;
use crate::priority::Priority;
use crate::snapshot::LimiterSnapshot;
use crate::strategy::{Moment, Outcome};

/// A waker that records whether it was woken.
#[derive(Debug, Default)]
pub(super) struct Alarm(AtomicBool);

impl Alarm {
    pub(super) fn is_woken(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A queued request, as its owner holds it.
#[derive(Debug)]
pub(super) struct Ticket {
    waiter: WaiterId,
    cost: Cost,
    pub(super) alarm: Arc<Alarm>,
    /// Until when the owner's thread sleeps, if it is blocked.
    sleeps_until: Option<Moment>,
}

/// A permit with its holder.
#[derive(Debug, Clone, Copy)]
struct Held {
    grant: Grant,
    cost: Cost,
}

pub(super) struct Harness {
    pub(super) schedule: Schedule,
    pub(super) reference: Reference,
    pub(super) has_runtime: bool,
    has_flows: bool,
    since_epoch: Duration,
    /// By request.
    pub(super) tickets: BTreeMap<usize, Ticket>,
    held: Vec<Held>,
    leaked: Vec<Held>,
    requests: usize,
    /// The answer to a request that has no ticket.
    in_place: Option<(usize, AnswerKind)>,
}

impl Harness {
    pub(super) fn new(setup: &Setup) -> Self {
        let since_epoch = Duration::from_nanos(setup.since_epoch);
        let gate = Gate::new(
            Plan::new(setup.policy.clone(), since_epoch).unwrap(),
            Moment::START,
            false,
        );
        let gate = if setup.prefers_line {
            gate.prefer_line(Moment::START)
        } else {
            gate
        };
        let mut harness = Self {
            schedule: Schedule::new(gate, setup.options),
            reference: Reference::new(
                &setup.policy,
                setup.since_epoch,
                setup.options,
                setup.prefers_line,
            ),
            has_runtime: setup.has_runtime,
            has_flows: setup.has_flows,
            since_epoch,
            tickets: BTreeMap::new(),
            held: Vec::new(),
            leaked: Vec::new(),
            requests: 0,
            in_place: None,
        };
        harness.read_concurrency();
        harness
    }

    pub(super) fn moment(&self) -> Moment {
        Moment::from_nanos(self.reference.now)
    }

    /// The answer of the schedule to a request.
    pub(super) fn answer(&self, id: usize) -> Option<AnswerKind> {
        match self.in_place {
            Some((request, answer)) if request == id => Some(answer),
            _ => self
                .schedule
                .waiters
                .untaken
                .peek(self.tickets.get(&id)?.waiter),
        }
    }

    fn read_concurrency(&mut self) {
        self.reference.concurrency = self
            .schedule
            .authority
            .gate()
            .limits()
            .concurrencies(self.moment())
            .collect();
    }

    pub(super) fn step(&mut self, step: Step) -> TestCaseResult {
        let result = self.try_step(step);
        if self.reference.order_is_unclear {
            return Ok(());
        }
        result
    }

    fn try_step(&mut self, step: Step) -> TestCaseResult {
        if self.reference.order_is_unclear {
            return Ok(());
        }
        self.reference.reserve();
        let (now, was_due) = (self.reference.now, self.is_due());
        match step {
            Step::Request {
                cost,
                priority,
                timeout,
                blocking,
            } => {
                let deadline = timeout.map_or(u64::MAX, |timeout| now + timeout);
                let priority = Priority::new(priority).unwrap();
                let cost = self.with_flow(cost);
                self.request(
                    Waiting {
                        id: self.requests,
                        cost,
                        priority,
                        deadline,
                    },
                    blocking || !self.has_runtime,
                )?;
            }
            Step::TryAcquire { cost } => self.try_acquire(self.with_flow(cost))?,
            Step::InWord(requests) => return self.in_word(&requests),
            Step::Ask { cost, waits } => self.ask(cost, waits)?,
            Step::Poll(pick) => {
                if let Some(id) = self.picked_request(pick) {
                    self.poll(id)?;
                }
            }
            Step::Abandon(pick) => {
                if let Some(id) = self.picked_request(pick) {
                    self.abandon(id);
                }
            }
            Step::Release(pick) => {
                if let Some(held) = self.picked_permit(pick) {
                    self.release(held)?;
                }
            }
            Step::Settle(pick, actual, outcome) => {
                if let Some(held) = self.picked_permit(pick) {
                    self.settle(held, actual, outcome)?;
                }
            }
            Step::Report(pick, outcome) => {
                if let Some(held) = self.picked_permit(pick) {
                    self.report(held, outcome)?;
                }
            }
            Step::Leak(pick) => {
                let permit = self.picked_permit(pick);
                self.leaked.extend(permit);
            }
            Step::Renew(pick) => {
                if let Some(nth) = picked(pick, self.held.len()) {
                    self.renew(self.held[nth].grant)?;
                }
            }
            Step::SetOwnTtl { pick, ttl, renews } => {
                if let Some(nth) = picked(pick, self.held.len()) {
                    self.set_own_ttl(self.held[nth].grant, ttl, renews)?;
                }
            }
            Step::SetPolicy {
                policy,
                in_proportion,
            } => self.set_policy(policy, in_proportion)?,
            Step::Reset => {
                self.do_what_is_due();
                self.input(Schedule::reset);
                self.reference.reset();
            }
            Step::Charge(units) => {
                self.input(|schedule, now, effects| schedule.charge(now, units, effects));
                self.reference
                    .unnamed_limits()
                    .for_each(|limit| limit.charge(now, units, None));
            }
            Step::Forgive(units) => {
                self.do_what_is_due();
                self.input(|schedule, now, effects| schedule.forgive(now, units, effects));
                self.reference
                    .unnamed_limits()
                    .for_each(|limit| limit.forgive(now, units));
            }
            Step::Pause(nanos) => {
                let until = nanos.map_or(u64::MAX, |nanos| now + nanos);
                self.input(|schedule, now, effects| {
                    schedule.pause(now, PauseScope::Limiter, Moment::from_nanos(until), effects);
                });
                self.reference.pause(until);
            }
            Step::Resume => {
                self.input(|schedule, now, effects| {
                    schedule.resume(now, PauseScope::Limiter, effects);
                });
                self.reference.resume();
            }
            Step::Spread { units, nanos } => {
                self.input(|schedule, now, effects| {
                    schedule.spread(now, units, now.plus(nanos), effects);
                });
                self.reference.spread(units, now + nanos);
            }
            Step::Pass { nanos, late } => return self.pass(nanos, late),
            Step::Close => {
                self.input(|schedule, now, effects| schedule.close(now, false, effects));
                self.reference.closed = true;
                self.reference.draining = false;
            }
            Step::CloseToNew => {
                self.input(|schedule, now, effects| schedule.close(now, true, effects));
                self.reference.draining |= !self.reference.closed;
                self.reference.closed = true;
            }
        }
        // Not every input does what is due; one that is refused at once does not.
        if was_due && self.is_due() {
            Ok(())
        } else {
            self.catch_up()
        }
    }

    fn with_flow(&self, cost: Cost) -> Cost {
        Cost {
            flow: cost.flow.filter(|_| self.has_flows),
            ..cost
        }
    }

    /// Whether the timer is late, or none runs.
    fn is_due(&self) -> bool {
        self.schedule.next_wake() <= self.moment()
    }

    fn picked_request(&self, pick: Pick) -> Option<usize> {
        picked(pick, self.tickets.len()).and_then(|nth| self.tickets.keys().nth(nth).copied())
    }

    fn picked_permit(&mut self, pick: Pick) -> Option<Held> {
        picked(pick, self.held.len()).map(|nth| self.held.swap_remove(nth))
    }

    /// An input that first does what is due, also in the reference. The caller then applies the input itself to the reference.
    fn input<R>(&mut self, input: impl FnOnce(&mut Schedule, Moment, &mut Effects) -> R) -> R {
        if self.is_due() && self.takes_batches() {
            self.raw_input(Schedule::run_due);
            self.decide_what_was_due();
        }
        self.input_amid_due(input)
    }

    /// An input that does the first batch of what is due before, and the rest after it.
    fn input_amid_due<R>(
        &mut self,
        input: impl FnOnce(&mut Schedule, Moment, &mut Effects) -> R,
    ) -> R {
        let was_due = self.is_due();
        let result = self.raw_input(input);
        if was_due {
            self.decide_what_was_due();
        }
        result
    }

    /// Whether what is due may take several batches. The manager does all of it before an input that takes anything from the
    /// waiters. Less than that is left to the schedule here, as when many keys are changed at once.
    fn takes_batches(&self) -> bool {
        let out = self
            .reference
            .grants
            .values()
            .filter(|grant| grant.is_out)
            .count();
        out + self.reference.waiting.len() >= BATCH
    }

    fn raw_input<R>(&mut self, input: impl FnOnce(&mut Schedule, Moment, &mut Effects) -> R) -> R {
        let (now, mut effects) = (self.moment(), Effects::default());
        let result = input(&mut self.schedule, now, &mut effects);
        loop {
            let Effects {
                first,
                more,
                unfinished,
            } = std::mem::take(&mut effects);
            first
                .into_iter()
                .chain(more.into_iter().flat_map(|more| more.wakers))
                .for_each(Waker::wake);
            if !unfinished {
                return result;
            }
            self.schedule.run_due(now, &mut effects);
        }
    }

    /// Does what is due, as if the timer were not late. An input that lowers the usage at the same instant also grants. If the
    /// reference knows the usage only within bounds, it cannot distinguish these grants from those that were due before.
    fn do_what_is_due(&mut self) {
        self.input(Schedule::run_due);
    }

    /// Does all that is due, as the manager does before a new request: that may take several batches, and all of it may change
    /// the answer.
    fn advance_if_due(&mut self) {
        if self.is_due() {
            self.raw_input(Schedule::run_due);
        }
    }

    fn run_due(&mut self) -> TestCaseResult {
        self.raw_input(Schedule::run_due);
        rules::a_suspension_that_has_ended_leaves_nothing_behind(self)?;
        self.catch_up()
    }

    /// The reference carries out the last input, with the same result as the schedule.
    fn catch_up(&mut self) -> TestCaseResult {
        self.decide()?;
        rules::in_order(self)?;
        rules::everybody_with_an_answer_was_woken(self)?;
        rules::what_is_counted_agrees(self)?;
        rules::drained_means_that_nothing_is_out(self)?;
        rules::no_waiter_is_stranded(self)?;
        self.in_place = None;
        self.blocked_threads_look()?;
        rules::a_blocked_thread_keeps_the_time(self)
    }

    /// A late refusal counts as of the deadline. Then reclaims come first, then grants, then refusals, each of which may make
    /// room for a grant.
    fn decide(&mut self) -> TestCaseResult {
        self.refuse_late();
        self.read_concurrency();
        self.reclaim();
        rules::an_adapting_limit_keeps_its_bounds(
            &self.reference,
            self.schedule.outlook().snapshot(self.moment()).concurrency,
        )?;
        if self.reference.refuses_waiters() {
            self.reference.refuse_all(&AcquireError::Closed);
        }
        self.grant()?;
        while let Some(expired) = self.reference.expired() {
            rules::a_grant_wins_a_tie_with_a_deadline(&self.reference, expired)?;
            self.reference.time_out(expired.id);
            self.grant()?;
        }
        self.reference.done_until = self.reference.now;
        Ok(())
    }

    fn refuse_late(&mut self) {
        let (least, most) = (
            self.reference.refused_in_time(Bound::Least),
            self.reference.refused_in_time(Bound::Most),
        );
        for id in self
            .reference
            .waiting
            .iter()
            .map(|waiting| waiting.id)
            .collect::<Vec<_>>()
        {
            let is_refused = match (least.contains(&id), most.contains(&id)) {
                (true, true) => true,
                (false, false) => false,
                _ => self.answer(id) == Some(AnswerKind::Failed),
            };
            if is_refused {
                self.reference.time_out(id);
            }
        }
    }

    /// Does what is due at this instant before any grant.
    fn reclaim(&mut self) {
        self.reference.reserve();
        self.reference.reclaim();
    }

    fn grant(&mut self) -> TestCaseResult {
        while let Some(front) = self
            .reference
            .front()
            .filter(|front| self.answer(front.id) == Some(AnswerKind::Granted))
        {
            rules::never_over(&self.reference, front.cost)?;
            self.reference.grant_to(front);
        }
        self.reference.reserve();
        rules::never_lost(&self.reference)
    }

    /// [`Harness::decide`] before an input: an answer of the schedule may be due to the input, and proves nothing.
    fn decide_what_was_due(&mut self) {
        self.refuse_late();
        self.reclaim();
        loop {
            while let Some(front) = self.reference.front() {
                let may = self.reference.may_admit(self.reference.now, front.cost);
                let must = self.reference.must_admit(self.reference.now, front.cost);
                if !(must || may && self.answer(front.id) == Some(AnswerKind::Granted)) {
                    break;
                }
                self.reference.grant_to(front);
            }
            self.reference.reserve();
            let Some(expired) = self.reference.expired() else {
                break;
            };
            self.reference.time_out(expired.id);
        }
        self.reference.done_until = self.reference.now;
    }

    fn set_policy(&mut self, policy: Policy, in_proportion: bool) -> TestCaseResult {
        let carry = if in_proportion {
            UsageCarryOver::InProportion
        } else {
            UsageCarryOver::AsIs
        };
        let plan = Plan::new(policy.clone(), self.since_epoch).unwrap();
        self.input(|schedule, now, effects| schedule.set_plan(now, plan, carry, effects));
        self.reference.set_policy(&policy, in_proportion);
        Ok(())
    }

    /// Everything is released and time passes: all waiters are served, and then the limiter is reset.
    pub(super) fn finish(mut self) -> TestCaseResult {
        let result = self.try_finish();
        if self.reference.order_is_unclear {
            return Ok(());
        }
        result
    }

    fn try_finish(&mut self) -> TestCaseResult {
        self.try_step(Step::Resume)?;
        loop {
            self.run_due()?;
            for held in std::mem::take(&mut self.held)
                .into_iter()
                .chain(std::mem::take(&mut self.leaked))
            {
                self.release(held)?;
                self.catch_up()?;
            }
            for id in self.tickets.keys().copied().collect::<Vec<_>>() {
                self.poll(id)?;
            }
            if self.held.is_empty() {
                if self.reference.waiting.is_empty() {
                    break;
                }
                let wake = if self.has_runtime {
                    self.schedule.next_wake()
                } else {
                    self.next_alarm()
                };
                prop_assert!(wake != Moment::NEVER, "stranded");
                self.pass(wake.nanos().saturating_sub(self.reference.now), 0)?;
            }
        }
        self.reference.now += rules::LONG;
        self.run_due()?;
        rules::all_comes_back(self)
    }
}

fn picked(pick: Pick, len: usize) -> Option<usize> {
    (len > 0).then(|| pick.index(len))
}
