//! Drives a schedule and the reference through the same steps, and applies the rules after each.

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
use super::inputs::{Setup, Step};
use super::limits::Bound;
use super::reference::{Reference, Waiting};
use super::rules;
use crate::carry_over::UsageCarryOver;
use crate::core::arena::Index;
use crate::core::effects::Effects;
use crate::core::gate::Gate;
use crate::core::grant::Grant;
use crate::core::plan::Plan;
use crate::core::queue::AnswerKind;
use crate::core::request::Request;
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

/// A queued request in its owner's hands.
#[derive(Debug)]
pub(super) struct Ticket {
    index: Index,
    cost: u64,
    pub(super) alarm: Arc<Alarm>,
    /// Until when the owner's thread sleeps, if it is blocked.
    sleeps_until: Option<Moment>,
}

/// A permit with its holder.
#[derive(Debug, Clone, Copy)]
struct Held {
    grant: Grant,
    cost: u64,
}

pub(super) struct Harness {
    pub(super) schedule: Schedule,
    pub(super) reference: Reference,
    pub(super) has_runtime: bool,
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
        let gate = Gate::new(Plan::new(setup.policy.clone(), since_epoch).unwrap(), Moment::START, false);
        let mut harness = Self {
            schedule: Schedule::new(gate, setup.options),
            reference: Reference::new(&setup.policy, setup.since_epoch, setup.options),
            has_runtime: setup.has_runtime,
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

    /// What the schedule has answered to a request.
    pub(super) fn answer(&self, id: usize) -> Option<AnswerKind> {
        match self.in_place {
            Some((request, answer)) if request == id => Some(answer),
            _ => self.schedule.queue.peek(self.tickets.get(&id)?.index),
        }
    }

    fn read_concurrency(&mut self) {
        self.reference.concurrency = self.schedule.snapshot(self.moment()).concurrency;
    }

    pub(super) fn step(&mut self, step: Step) -> TestCaseResult {
        let (now, was_due) = (self.reference.now, self.is_due());
        match step {
            Step::Request { cost, priority, timeout, blocking } => {
                let deadline = timeout.map_or(u64::MAX, |timeout| now + timeout);
                let priority = Priority::new(priority).unwrap();
                self.request(Waiting { id: self.requests, cost, priority, deadline }, blocking || !self.has_runtime)?;
            }
            Step::TryAcquire { cost } => self.try_acquire(cost)?,
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
            Step::Settle(pick, actual) => {
                if let Some(held) = self.picked_permit(pick) {
                    self.settle(held, actual)?;
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
            Step::SetPolicy { policy, in_proportion } => self.set_policy(policy, in_proportion)?,
            Step::Reset => {
                self.input(Schedule::reset);
                self.reference.reset();
            }
            Step::Charge(units) => {
                self.input(|schedule, now, effects| schedule.charge(now, units, effects));
                self.reference.limits.iter_mut().for_each(|limit| limit.charge(now, units, None));
            }
            Step::Forgive(units) => {
                self.input(|schedule, now, effects| schedule.forgive(now, units, effects));
                self.reference.limits.iter_mut().for_each(|limit| limit.forgive(now, units));
            }
            Step::Pause(nanos) => {
                let until = nanos.map_or(u64::MAX, |nanos| now + nanos);
                self.input(|schedule, now, effects| schedule.pause(now, Moment::from_nanos(until), effects));
                self.reference.pause(until);
            }
            Step::Resume => {
                self.input(Schedule::resume);
                self.reference.resume();
            }
            Step::Spread { units, nanos } => {
                self.input(|schedule, now, effects| schedule.spread(now, units, now.plus(nanos), effects));
                self.reference.spread(units, now + nanos);
            }
            Step::Pass { nanos, late } => return self.pass(nanos, late),
            Step::Close => {
                self.input(Schedule::close);
                self.reference.closed = true;
            }
        }
        // Not every input does what is due; one that is refused at once does not.
        if was_due && self.is_due() { Ok(()) } else { self.catch_up() }
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

    /// An input that first does what is due, in the reference as well; the effect of the input itself follows there.
    fn input<R>(&mut self, input: impl FnOnce(&mut Schedule, Moment, &mut Effects) -> R) -> R {
        let was_due = self.is_due();
        let result = self.raw_input(input);
        if was_due {
            self.decide_what_was_due();
        }
        result
    }

    fn raw_input<R>(&mut self, input: impl FnOnce(&mut Schedule, Moment, &mut Effects) -> R) -> R {
        let (now, mut effects) = (self.moment(), Effects::default());
        let result = input(&mut self.schedule, now, &mut effects);
        loop {
            let Effects { first, rest, unfinished } = std::mem::take(&mut effects);
            first.into_iter().chain(rest.into_iter().flat_map(|rest| rest.wakers)).for_each(Waker::wake);
            if !unfinished {
                return result;
            }
            self.schedule.run_due(now, &mut effects);
        }
    }

    /// As the manager does before a new request: what is due may take several batches, and all of it may change the answer.
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
        rules::an_adapting_limit_keeps_its_bounds(&self.reference, self.reference.concurrency)?;
        if self.reference.closed {
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
        let (least, most) = (self.reference.refused_in_time(Bound::Least), self.reference.refused_in_time(Bound::Most));
        for id in self.reference.waiting.iter().map(|waiting| waiting.id).collect::<Vec<_>>() {
            let is_refused = match (least.contains(&id), most.contains(&id)) {
                (true, true) => true,
                (false, false) => false,
                _ => self.answer(id) == Some(AnswerKind::Failed),
            };
            if is_refused {
                self.reference.time_out(id);
            }
        }
        self.reference.reclaim();
    }

    fn grant(&mut self) -> TestCaseResult {
        while let Some(front) = self.reference.front().filter(|front| self.answer(front.id) == Some(AnswerKind::Granted)) {
            rules::never_over(&self.reference, front.cost)?;
            self.reference.grant_to(front);
        }
        rules::never_lost(&self.reference)
    }

    /// [`Harness::decide`] before an input: an answer of the schedule may be due to the input, and proves nothing.
    fn decide_what_was_due(&mut self) {
        self.refuse_late();
        loop {
            while let Some(front) = self.reference.front() {
                let may = self.reference.may_admit(self.reference.now, front.cost);
                let must = self.reference.must_admit(self.reference.now, front.cost);
                if !(must || may && self.answer(front.id) == Some(AnswerKind::Granted)) {
                    break;
                }
                self.reference.grant_to(front);
            }
            let Some(expired) = self.reference.expired() else { break };
            self.reference.time_out(expired.id);
        }
        self.reference.done_until = self.reference.now;
    }

    fn request(&mut self, newcomer: Waiting, blocking: bool) -> TestCaseResult {
        let Waiting { id, cost, priority, deadline } = newcomer;
        self.requests += 1;
        let alarm = Arc::new(Alarm::default());
        let mut waker = Some(Waker::from(Arc::clone(&alarm)));
        let deadline = Moment::from_nanos(deadline);
        let request = Request { cost, priority, deadline, caller: Location::caller(), blocking };
        self.advance_if_due();
        let outcome = self.raw_input(|schedule, now, effects| {
            let behind = schedule.enqueue_behind(now, &request, &mut waker);
            behind.map_or_else(|| schedule.request(now, &request, &mut waker, effects), |index| Ok(Enqueued::Queued(index)))
        });
        let max = self.reference.max_cost();
        let refusal = match cost {
            _ if self.reference.closed => Some(AcquireError::Closed),
            0 => Some(AcquireError::ZeroCost),
            cost if cost > max => Some(AcquireError::ExceedsLimit { cost, max }),
            _ => None,
        };
        if let Some(refusal) = refusal {
            prop_assert_eq!(outcome.err(), Some(refusal));
            return Ok(());
        }
        self.decide_what_was_due();
        if self.reference.is_blocked() {
            self.reference.block();
            self.reference.shed += 1;
            let retry_after = self.reference.overflow.penalty();
            prop_assert_eq!(outcome.err(), Some(AcquireError::Blocked { retry_after }));
            return Ok(());
        }
        let timed_out = matches!(outcome, Err(AcquireError::TimedOut { .. }));
        let is_alone = self.reference.waiting.is_empty();
        if !(is_alone && self.reference.must_admit(self.reference.now, cost)) && timed_out {
            let has_no_room = newcomer.deadline <= self.reference.now && self.reference.waiting.len() >= self.reference.max_queue;
            if !has_no_room && newcomer.deadline > self.reference.now {
                rules::no_request_is_refused_at_once_that_could_be_served(&self.reference, newcomer)?;
            }
            if has_no_room || !self.reference.could_be_served(newcomer) {
                self.reference.timed_out += 1;
                return Ok(());
            }
        }
        let is_admitted =
            matches!(outcome, Ok(Enqueued::Granted(_))) && is_alone && self.reference.may_admit(self.reference.now, cost);
        if !is_admitted && !self.reference.make_room(priority) {
            let refusal = match self.reference.overflow {
                Overflow::Block { penalty } => AcquireError::Blocked { retry_after: penalty },
                _ => AcquireError::QueueFull,
            };
            prop_assert_eq!(outcome.err(), Some(refusal));
            return Ok(());
        }
        self.reference.waiting.push(newcomer);
        match outcome {
            Ok(Enqueued::Queued(index)) => {
                let sleeps_until = blocking.then_some(Moment::NEVER);
                alarm.0.store(blocking, Ordering::Relaxed); // the thread checks before it sleeps
                self.tickets.insert(id, Ticket { index, cost, alarm, sleeps_until });
            }
            Ok(Enqueued::Granted(grant)) => {
                self.in_place = Some((id, AnswerKind::Granted));
                self.decide()?;
                self.take(id, grant, cost)?;
            }
            Err(error) => {
                self.in_place = Some((id, AnswerKind::Failed));
                self.decide()?;
                self.fail(id, &error)?;
            }
        }
        Ok(())
    }

    /// The owner of a request receives its permit.
    fn take(&mut self, id: usize, grant: Grant, cost: u64) -> TestCaseResult {
        prop_assert_eq!(self.reference.answers.remove(&id), Some(Ok(grant.fence)));
        self.held.push(Held { grant, cost });
        Ok(())
    }

    /// The owner of a request receives its refusal.
    fn fail(&mut self, id: usize, error: &AcquireError) -> TestCaseResult {
        let expected = self.reference.answers.remove(&id);
        let is_expected = matches!(&expected, Some(Err(kind)) if std::mem::discriminant(kind) == std::mem::discriminant(error));
        prop_assert!(is_expected, "request {} failed with {:?}, not {:?}", id, error, expected);
        Ok(())
    }

    fn try_acquire(&mut self, cost: u64) -> TestCaseResult {
        self.advance_if_due();
        let told = self.schedule.check(self.moment(), cost);
        let answer = self.raw_input(|schedule, now, effects| {
            let in_place = schedule.admit_in_place(now, cost, Location::caller());
            in_place.map_or_else(|| schedule.try_acquire(now, cost, Location::caller(), effects), Ok)
        });
        prop_assert!(told.is_allowed() == answer.is_ok(), "{:?}, but {:?}", told, answer);
        let is_denied = self.denied(cost, answer.as_ref().err(), false, Some(told.remaining()))?;
        if !is_denied && let Ok(grant) = answer {
            prop_assert!(self.reference.waiting.is_empty(), "it overtook the waiters");
            rules::never_over(&self.reference, cost)?;
            prop_assert_eq!(self.reference.grant(cost), grant.fence);
            self.held.push(Held { grant, cost });
        }
        Ok(())
    }

    fn ask(&mut self, cost: u64, waits: bool) -> TestCaseResult {
        self.advance_if_due();
        let answer = self.raw_input(|schedule, now, effects| schedule.would_acquire(now, cost, waits, effects));
        if !self.denied(cost, answer.as_ref().err(), waits, None)? {
            prop_assert!(self.reference.waiting.is_empty() && answer.is_ok());
            rules::never_over(&self.reference, cost)?;
        }
        Ok(())
    }

    /// Checks a denial of a request that does not wait. Returns whether it is expected.
    fn denied(
        &mut self,
        cost: u64,
        error: Option<&TryAcquireError>,
        waits: bool,
        remaining: Option<u64>,
    ) -> Result<bool, TestCaseError> {
        let max = self.reference.max_cost();
        let refusal = match cost {
            _ if self.reference.closed => Some(TryAcquireError::Closed),
            0 => Some(TryAcquireError::ZeroCost),
            cost if cost > max => Some(TryAcquireError::ExceedsLimit { cost, max }),
            _ => None,
        };
        if refusal.is_some() {
            prop_assert_eq!(error, refusal.as_ref());
            return Ok(true);
        }
        self.decide_what_was_due();
        let (now, is_blocked) = (self.reference.now, self.reference.is_blocked());
        if is_blocked {
            self.reference.block();
        }
        let is_alone = self.reference.waiting.is_empty();
        let Some(error) = error else {
            prop_assert!(!is_blocked);
            return Ok(false);
        };
        prop_assert!(!(is_alone && self.reference.must_admit(now, cost)), "{:?}, although it is admitted", error);
        let TryAcquireError::Denied(decision) = error else {
            prop_assert!(false, "{:?}", error);
            return Ok(true);
        };
        if !waits {
            self.reference.denied += 1;
            if !is_blocked {
                self.reference.note_denial(cost);
            }
        }
        rules::all_or_none(self, cost, decision, remaining)?;
        if is_alone {
            rules::retry_after_is_exact(&self.reference, cost, decision.retry_after())?;
            rules::what_remains_would_be_admitted(&self.reference, decision.remaining())?;
        } else {
            rules::retry_after_is_exact_behind_others(&self.reference, cost, decision.retry_after())?;
            rules::nothing_remains_while_a_request_waits(decision.remaining())?;
        }
        Ok(true)
    }

    fn poll(&mut self, id: usize) -> TestCaseResult {
        let ticket = &self.tickets[&id];
        let waker = Waker::from(Arc::clone(&ticket.alarm));
        let (index, cost) = (ticket.index, ticket.cost);
        let answer = self.schedule.poll(index, &waker);
        match answer {
            Err(was_woken) => {
                if was_woken {
                    drop(self.schedule.replace_waker(index, waker));
                }
                prop_assert!(!self.reference.answers.contains_key(&id), "request {} has an answer", id);
            }
            Ok(answer) => {
                self.tickets.remove(&id);
                match answer {
                    Ok(grant) => self.take(id, grant, cost)?,
                    Err(error) => self.fail(id, &error)?,
                }
            }
        }
        Ok(())
    }

    fn abandon(&mut self, id: usize) {
        if self.is_due() {
            self.raw_input(Schedule::run_due); // otherwise the answer could not be matched to the request
            self.decide_what_was_due();
        }
        let Ticket { index, .. } = self.tickets.remove(&id).unwrap();
        self.raw_input(|schedule, now, effects| schedule.abandon(now, index, effects));
        if let Some(Ok(fence)) = self.reference.answers.remove(&id) {
            self.reference.settle(fence, 0);
        }
        self.reference.waiting.retain(|waiting| waiting.id != id);
    }

    fn release(&mut self, Held { grant, cost }: Held) -> TestCaseResult {
        let before = self.snapshot_if_nothing_is_due();
        let is_awaited = self.reference.closed || !self.reference.waiting.is_empty();
        if is_awaited {
            self.input(|schedule, now, effects| {
                assert!(!schedule.release(grant.fence, cost, grant.claim));
                schedule.release_to_next(now, grant.fence, cost, grant.claim, effects);
            });
        } else {
            prop_assert!(self.schedule.release(grant.fence, cost, grant.claim));
        }
        let is_live = self.reference.give_back(grant.fence);
        self.a_reclaimed_permit_changes_nothing(is_live, before)
    }

    fn settle(&mut self, Held { grant, cost }: Held, actual: u64) -> TestCaseResult {
        let before = self.snapshot_if_nothing_is_due();
        let told = self.input(|schedule, now, effects| schedule.settle(now, grant, cost, actual, effects));
        let is_live = self.reference.settle(grant.fence, actual);
        prop_assert_eq!(told, is_live);
        self.a_reclaimed_permit_changes_nothing(is_live, before)
    }

    fn report(&mut self, Held { grant, cost }: Held, outcome: Outcome) -> TestCaseResult {
        let before = self.snapshot_if_nothing_is_due();
        let told = self.input(|schedule, now, effects| {
            let rtt_nanos = now.since(grant.at);
            schedule.report(now, grant, cost, Some(rtt_nanos), outcome, effects)
        });
        let is_live = self.reference.give_back(grant.fence);
        prop_assert_eq!(told, is_live);
        self.a_reclaimed_permit_changes_nothing(is_live, before)
    }

    fn renew(&mut self, grant: Grant) -> TestCaseResult {
        let has_lease = self.reference.grants[&grant.fence].leased.is_some();
        prop_assert_eq!(grant.claim.lease().is_some(), has_lease);
        if let Some(lease) = grant.claim.lease() {
            let told = self.schedule.renew(self.moment(), lease, grant.fence);
            prop_assert_eq!(told, self.reference.renew(grant.fence));
        }
        Ok(())
    }

    fn set_policy(&mut self, policy: Policy, in_proportion: bool) -> TestCaseResult {
        let carry = if in_proportion { UsageCarryOver::InProportion } else { UsageCarryOver::AsIs };
        let plan = Plan::new(policy.clone(), self.since_epoch).unwrap();
        self.input(|schedule, now, effects| schedule.set_plan(now, plan, carry, effects));
        self.reference.set_policy(&policy, in_proportion);
        Ok(())
    }

    fn snapshot_if_nothing_is_due(&self) -> Option<LimiterSnapshot> {
        (!self.is_due()).then(|| self.schedule.snapshot(self.moment()))
    }

    /// A reclaimed permit changes nothing: its place was released already.
    fn a_reclaimed_permit_changes_nothing(&self, is_live: bool, before: Option<LimiterSnapshot>) -> TestCaseResult {
        let after = self.schedule.snapshot(self.moment());
        prop_assert!(is_live || before.is_none_or(|before| before == after), "it was {before:?} and is {after:?}");
        Ok(())
    }

    /// When a blocked thread wakes, at the latest.
    pub(super) fn next_alarm(&self) -> Moment {
        let waiting = self.tickets.iter().filter(|(id, _)| !self.reference.answers.contains_key(id));
        waiting.filter_map(|(_, ticket)| ticket.sleeps_until).min().unwrap_or(Moment::NEVER)
    }

    /// A blocked thread that was woken and finds no answer does what is due, and sleeps until time matters next to it.
    fn blocked_threads_look(&mut self) -> TestCaseResult {
        let woken = |ticket: &Ticket| ticket.sleeps_until.is_some() && ticket.alarm.is_woken();
        while let Some(id) =
            self.tickets.iter().find(|(id, ticket)| woken(ticket) && self.answer(**id).is_none()).map(|(id, _)| *id)
        {
            self.tickets[&id].alarm.0.store(false, Ordering::Relaxed);
            self.poll(id)?;
            self.raw_input(Schedule::run_due);
            let ticket = self.tickets.get_mut(&id).unwrap();
            ticket.sleeps_until = Some(self.schedule.wake_of(ticket.index));
        }
        Ok(())
    }

    /// Time passes, and the driver (or the blocked thread that runs the timer) wakes when it matters next, or some time later.
    fn pass(&mut self, nanos: u64, late: u64) -> TestCaseResult {
        let end = self.reference.now + nanos;
        if self.has_runtime && self.is_due() || self.next_alarm() <= self.moment() {
            self.wake_at((self.reference.now + late).min(end))?; // it is still late
        }
        loop {
            let wake = if self.has_runtime { self.schedule.next_wake() } else { self.next_alarm() };
            if wake > Moment::from_nanos(end) {
                break;
            }
            rules::the_timer_is_not_late(&self.reference, wake.nanos())?;
            self.reference.done_until = wake.nanos();
            if wake.nanos() + late > end {
                self.reference.now = end; // the next input comes before the timer
                return Ok(());
            }
            self.wake_at(wake.nanos() + late)?;
        }
        if self.has_runtime {
            rules::the_timer_is_not_late(&self.reference, end + 1)?;
        }
        self.reference.now = end;
        Ok(())
    }

    fn wake_at(&mut self, now: u64) -> TestCaseResult {
        self.reference.now = now;
        let now = Moment::from_nanos(now);
        for ticket in self.tickets.values_mut().filter(|ticket| ticket.sleeps_until.is_some_and(|until| until <= now)) {
            ticket.alarm.0.store(true, Ordering::Relaxed);
        }
        self.run_due()
    }

    /// Everything is released and time passes: all waiters are served, and then the limiter is reset.
    pub(super) fn finish(mut self) -> TestCaseResult {
        self.step(Step::Resume)?;
        loop {
            self.run_due()?;
            for held in std::mem::take(&mut self.held).into_iter().chain(std::mem::take(&mut self.leaked)) {
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
                let wake = if self.has_runtime { self.schedule.next_wake() } else { self.next_alarm() };
                prop_assert!(wake != Moment::NEVER, "stranded");
                self.pass(wake.nanos().saturating_sub(self.reference.now), 0)?;
            }
        }
        self.reference.now += rules::LONG;
        self.run_due()?;
        rules::all_comes_back(&mut self)
    }
}

fn picked(pick: Pick, len: usize) -> Option<usize> {
    (len > 0).then(|| pick.index(len))
}
