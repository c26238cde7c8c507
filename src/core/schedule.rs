//! A queue in front of an [authority], as one deterministic state machine.
//!
//! Every input that depends on time takes `now`. Actions outside (wakers to wake, reclaims to report) are collected in
//! [`Effects`]; [`Schedule::next_wake`] returns when time matters next, and [`Schedule::run_due`] then does what is due. The
//! caller that holds the lock carries the effects out after unlocking. So a test can drive the schedule without a runtime.

mod authority;
mod inputs;
#[cfg(any(test, fuzzing))]
pub(crate) mod model;
mod outlook;
#[cfg(any(test, fuzzing, feature = "_simulation"))]
pub(crate) mod simulation;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::task::Waker;

use crate::core::effects::Effects;
use crate::core::gate::Gate;
use crate::core::queue::{WaiterId, Waiters};
use crate::core::request::{Caller, Costs, Grant, Refused, Request};
use crate::core::session::{SessionStep, StoreSession};
use crate::core::word::packed_rate::{WordContents, WordValue};
use crate::error::{AcquireError, TryAcquireError};
use crate::event::{Attempt, EventKind, ShedReason};
use crate::overflow::Overflow;
use crate::permit_id::PermitId;
use crate::strategy::Moment;

use authority::Authority;
use outlook::{Refusals, nanos};

pub(crate) use crate::core::queue::Options;
pub(crate) use outlook::Outlook;

/// Why a request is not admitted in place.
enum NotAdmitted {
    /// The limiter is closed, or can never admit the request.
    Never(AcquireError),
    Blocked,
    MustWait,
}

/// The outcome of a request. `G` is the record of a grant, or `()` where that is passed another way.
#[derive(Debug)]
pub(crate) enum Enqueued<G> {
    Granted(G),
    Queued(WaiterId),
}

#[derive(Debug)]
pub(crate) struct Schedule {
    authority: Authority,
    pub(crate) waiters: Waiters,
}

impl Schedule {
    pub(crate) fn new(gate: Gate, options: impl Into<Arc<Options>>) -> Self {
        Self {
            authority: Authority::Local(gate),
            waiters: Waiters::new(options.into()),
        }
    }

    /// A schedule of limits in a store.
    pub(crate) fn of_store(session: StoreSession, options: impl Into<Arc<Options>>) -> Self {
        Self {
            authority: Authority::Store(Box::new(session)),
            waiters: Waiters::new(options.into()),
        }
    }

    /// A view for questions, which change nothing.
    pub(crate) fn outlook(&self) -> Outlook<'_> {
        Outlook {
            waiters: &self.waiters,
            authority: &self.authority,
        }
    }
}

/// Time.
impl Schedule {
    /// Whether `now` matters to decisions. If not, any value will do.
    pub(crate) fn follows_time(&self) -> bool {
        self.authority.gate().follows_time()
            || self.waiters.queue.has_deadlines()
            || self.waiters.suspension.is_some()
    }

    /// Whether a report on the work of a place without a TTL changes nothing.
    pub(crate) fn ignores_reports(&self) -> bool {
        match &self.authority {
            Authority::Local(gate) => !gate.limits().plan().adapts(),
            Authority::Store(_) => false,
        }
    }

    /// Whether `now` matters to the inputs: to decisions, or to what is reported to an observer.
    pub(crate) fn reads_clock(&self) -> bool {
        self.follows_time() || self.waiters.queue.knows_arrivals()
    }

    /// When time matters next: the front's turn, the first TTL, the first deadline.
    #[inline(always)]
    pub(crate) fn next_wake(&self) -> Moment {
        self.waiters
            .front_ready_at
            .min(self.authority.gate().next_expiry())
            .min(self.waiters.queue.next_deadline())
    }

    /// When time matters next to a caller that blocks its thread for a queued request and runs the timer there.
    pub(crate) fn wake_of(&self, id: WaiterId) -> Moment {
        if self.waiters.queue.is_front(id) {
            self.next_wake()
        } else {
            self.waiters.queue.deadline(id)
        }
    }
}

/// What is done when time has passed, or when something has changed for the waiters.
impl Schedule {
    /// Serves the front of the queue again, after something has changed for it.
    pub(super) fn reevaluate_front(&mut self, now: Moment, effects: &mut Effects) {
        if !self.waiters.queue.is_empty() {
            self.waiters.front_ready_at = now;
        }
        self.run_due(now, effects);
    }

    /// Does due work before an input is handled, because the input must not change its result. The work may not be done yet: the
    /// timer may be late, no runtime with a driver may be left, and no timer runs for the end of a pause while no request waits.
    #[inline]
    pub(crate) fn catch_up(&mut self, now: Moment, effects: &mut Effects) {
        if self.is_due(now) {
            self.run_due(now, effects);
        } else if self.waiters.chooses_front() {
            self.authority.reserve_front(now, &mut self.waiters);
        }
    }

    /// Whether [`Schedule::run_due`] has something to do.
    #[inline]
    pub(crate) fn is_due(&self, now: Moment) -> bool {
        self.next_wake() <= now || self.waiters.has_ended_suspension(now)
    }

    /// Does what is due, in the order of time; at one instant, permits are reclaimed first, then the front is served, then
    /// waiters at their deadline are refused, so that a grant wins a tie with a deadline.
    ///
    /// A timer may be late, by any time. Whether a waiter is granted or refused is decided as of the instant at which it was due
    /// ([`Refusals::refuse_late`]); but a grant is charged at `now`, when it is made. If it were charged at the instant at which
    /// it was due, several grants that were due one after another would be made at once, and a window that starts now would hold
    /// more than its limit. Charged at `now`, each is admitted like any other grant, so no limit is exceeded. The price: of
    /// several late grants, the rate may admit only the first. The other waiters then wait for the rate, or are refused if their
    /// deadline has passed.
    pub(crate) fn run_due(&mut self, now: Moment, effects: &mut Effects) {
        if self.waiters.may_be_late(now) {
            // Since the last input, nothing has happened except what is due from this instant on.
            let due_from = self.next_wake();
            self.refusals(now, effects).refuse_late(due_from);
        }
        if self.waiters.suspension.is_some() {
            self.waiters.end_suspension(now, effects);
        }
        if self.waiters.chooses_front() {
            self.authority.reserve_front(now, &mut self.waiters);
        }
        while let Some(lease) = (!effects.is_full())
            .then(|| self.authority.reclaim_one(now))
            .flatten()
        {
            self.waiters.counts_mut().reclaimed += 1;
            self.waiters.note_end(lease.fence);
            effects.reclaim(&lease);
            if self.waiters.options.observed {
                effects.tell(EventKind::Reclaimed {
                    id: PermitId::new(0, lease.fence),
                    fence: lease.fence,
                    cost: lease.cost,
                    held: lease.expires_at.duration_since(lease.granted_at),
                    acquired_in: lease.caller,
                });
            }
        }
        if self.waiters.is_emptying() {
            self.refusals(now, effects).refuse_all();
            if self.waiters.queue.is_empty() {
                self.authority.serve(now, &mut self.waiters, effects); // returned leases go to the store
            }
            return;
        }
        if self.waiters.queue.has_misfits() {
            self.refusals(now, effects).refuse_impossible();
        }
        self.authority.serve(now, &mut self.waiters, effects);
        if self.waiters.queue.next_deadline() <= now {
            self.refusals(now, effects).refuse_all_expired();
        }
        effects.unfinished = effects.is_full() || self.waiters.queue.has_misfits();
    }

    fn refusals<'a>(&'a mut self, now: Moment, effects: &'a mut Effects) -> Refusals<'a> {
        let Self { waiters, authority } = self;
        Refusals {
            now,
            authority,
            waiters,
            effects,
        }
    }
}

/// A word outside the lock may hold the state instead.
impl Schedule {
    /// Whether a word may decide: the policy fits, no request waits, and nothing else holds requests back.
    #[inline(always)]
    pub(crate) fn fits_word(&self) -> bool {
        self.authority.gate().fits_word() && self.waiters.leaves_all_to_limits()
    }

    /// The contents for a word, and the fence of the latest grant. `None` if the present numbers do not fit. The schedule must
    /// [fit a word](Self::fits_word).
    pub(crate) fn opening(&mut self, now: Moment) -> Option<(WordContents, u64)> {
        let gate = self.authority.gate_mut();
        Some((gate.opening(now)?, gate.granted()))
    }

    /// Takes over what a word held.
    #[inline(always)]
    pub(crate) fn take_over(&mut self, content: WordValue, fence: u64) {
        self.authority.gate_mut().take_over(content, fence);
    }
}

/// Requests that may wait.
impl Schedule {
    /// The common and fastest case: no request waits, nothing is due, and only the gate decides. `Err`: it does not admit the request
    /// now. `None`: nothing has changed, and the decision needs more steps, with effects.
    #[inline(always)]
    pub(crate) fn admit_in_place(
        &mut self,
        now: Moment,
        cost: u64,
        caller: Caller,
    ) -> Option<Result<Grant, Moment>> {
        let Authority::Local(gate) = &mut self.authority else {
            return None;
        };
        let undecided = !self.waiters.leaves_all_to_limits()
            || cost.wrapping_sub(1) >= gate.limits().max_cost_in_place();
        if undecided || gate.next_expiry() <= now {
            return None;
        }
        Some(gate.admit_plain(now, cost, caller))
    }

    /// The common case of a wait: other requests wait already and go first, and nothing is due. `None`: call [`Schedule::request`], with
    /// effects. Takes the `waker` if the request is queued.
    #[inline(always)]
    pub(crate) fn enqueue_behind(
        &mut self,
        request: &Request<'_>,
        waker: &mut Option<Waker>,
    ) -> Option<WaiterId> {
        let Self { waiters, authority } = self;
        let is_plain = request.costs.details.is_none()
            && request.deadline == Moment::NEVER
            && !waiters.options.observed;
        let waits = !waiters.queue.is_empty()
            && !waiters.closed
            && waiters.suspension.is_none()
            && !waiters.queue.has_flows()
            && !waiters.queue.would_be_front(request);
        if !is_plain || !waits || !waiters.has_room() {
            return None;
        }
        let bare_place = authority.admits_behind(request.costs, waiters)?;
        Some(waiters.push(request, waker.take()?, bare_place))
    }

    /// Handles a request that can wait. `waker` is taken if the request is queued, and woken when its slot has an answer.
    pub(crate) fn request(
        &mut self,
        now: Moment,
        request: &Request<'_>,
        waker: &mut Option<Waker>,
        effects: &mut Effects,
    ) -> Result<Enqueued<Grant>, Refused> {
        let &Request {
            costs,
            priority,
            deadline,
            caller,
            ..
        } = request;
        let refused = match self.admit(now, costs, caller, effects) {
            Ok(grant) => return Ok(Enqueued::Granted(grant)),
            Err(NotAdmitted::MustWait) => None,
            Err(NotAdmitted::Never(error)) => Some(error),
            Err(NotAdmitted::Blocked) => {
                self.waiters.shed(request, ShedReason::Blocked, effects);
                let retry_after = self.waiters.options.overflow.penalty();
                Some(AcquireError::Blocked { retry_after })
            }
        };
        if let Some(error) = refused {
            return Err(self.outlook().refusal(now, costs, error));
        }
        if self.waiters.queue.has_flows() || costs.details.is_some() {
            let in_flight = self.authority.in_flight();
            self.waiters.queue.expect(costs, in_flight);
            if self.waiters.chooses_front() {
                self.authority.reserve_front(now, &mut self.waiters);
            }
        }
        // A request that need not wait takes no room in a full queue.
        if !self.waiters.has_room()
            && !self.waiters.queue.is_empty()
            && self.waiters.queue.would_be_front(request)
            && let Some(grant) =
                self.authority
                    .admit(now, costs, caller, &mut self.waiters, effects)
        {
            self.note_served_at_once(costs);
            self.reevaluate_front(now, effects); // the grant may have delayed the turn of the front
            return Ok(Enqueued::Granted(grant));
        }
        if deadline != Moment::NEVER {
            let turn = self.outlook().earliest_turn(now, request);
            // No waiter is dropped for a request that will not stay.
            let passes_by = deadline <= now && !self.waiters.has_room();
            if passes_by || turn > deadline {
                let ahead = self.waiters.queue.units_ahead_of(priority);
                let ready_at = || self.outlook().ready_at(now, ahead, costs, true);
                let turn = self.authority.reported_turn(turn, ready_at);
                let mut refusals = self.refusals(now, effects);
                return Err(refusals.time_out(ahead, turn, request, None));
            }
        }
        self.make_room(now, request, effects)
            .map_err(|error| self.outlook().refusal(now, costs, error))?;
        let waker = waker.take().unwrap_or_else(|| Waker::noop().clone());
        let bare_place = self.authority.gate().grants_bare_places() && costs.details.is_none();
        let id = self.waiters.push(request, waker, bare_place);
        // Behind others, nothing is decided before they are served; but the request may have changed the weight of its flow.
        let may_be_next = self.waiters.queue.is_front(id)
            || self.waiters.front_ready_at <= now
            || self.waiters.queue.has_flows();
        if may_be_next || deadline <= now {
            self.run_due(now, effects);
            if let Ok(answer) = self.waiters.poll(id, Waker::noop()) {
                return answer.map(Enqueued::Granted);
            }
        }
        self.waiters.note_arrival(now, id);
        Ok(Enqueued::Queued(id))
    }

    /// Grants in place, if no request waits and the authority admits this one.
    fn admit(
        &mut self,
        now: Moment,
        costs: Costs<'_>,
        caller: Caller,
        effects: &mut Effects,
    ) -> Result<Grant, NotAdmitted> {
        self.precheck(now, costs, effects)?;
        let admitted = self
            .authority
            .admit(now, costs, caller, &mut self.waiters, effects);
        if admitted.is_some() && (self.waiters.queue.has_flows() || costs.details.is_some()) {
            self.note_served_at_once(costs);
        }
        admitted.ok_or(NotAdmitted::MustWait)
    }

    /// Records what a flow was granted without a wait.
    #[cold]
    fn note_served_at_once(&mut self, costs: Costs<'_>) {
        let in_flight = self.authority.in_flight();
        if self.waiters.queue.has_flows() || in_flight > 0 {
            self.waiters.queue.note_served_at_once(costs);
            self.waiters.queue.set_in_flight(in_flight);
        }
    }

    /// The checks that come before the authority decides.
    fn precheck(
        &mut self,
        now: Moment,
        costs: Costs<'_>,
        effects: &mut Effects,
    ) -> Result<(), NotAdmitted> {
        if self.waiters.closed {
            return Err(NotAdmitted::Never(AcquireError::Closed));
        }
        self.authority
            .gate()
            .limits()
            .fits(costs)
            .map_err(NotAdmitted::Never)?;
        self.catch_up(now, effects);
        let penalty = self.waiters.options.overflow.penalty();
        if let Some(suspension) = self.waiters.suspension.as_deref_mut()
            && suspension.is_blocked(now)
        {
            suspension.block(now, nanos(penalty));
            return Err(NotAdmitted::Blocked);
        }
        if !self.waiters.queue.is_empty() {
            return Err(NotAdmitted::MustWait); // no barging
        }
        Ok(())
    }

    /// Makes room for a new request in a full queue, or refuses it.
    fn make_room(
        &mut self,
        now: Moment,
        request: &Request<'_>,
        effects: &mut Effects,
    ) -> Result<(), AcquireError> {
        let &Request {
            costs, priority, ..
        } = request;
        if self.waiters.has_room() {
            return Ok(());
        }
        let overflow = self.waiters.options.overflow;
        if let Overflow::Block { penalty } = overflow {
            self.waiters
                .suspension
                .get_or_insert_default()
                .block(now, nanos(penalty));
            self.waiters.dropping = true;
            self.waiters.shed(request, ShedReason::Blocked, effects);
            self.run_due(now, effects);
            return Err(AcquireError::Blocked {
                retry_after: penalty,
            });
        }
        let Some(victim) = self.waiters.queue.victim(overflow, request) else {
            self.waiters.shed(request, ShedReason::QueueFull, effects);
            let ahead = self.waiters.queue.units_ahead_of(priority);
            return Err(AcquireError::QueueFull {
                retry_after: self.outlook().retry_after(now, ahead, costs),
            });
        };
        self.refusals(now, effects).drop_waiter(victim);
        self.waiters.front_ready_at = now; // the front may have changed: check again
        Ok(())
    }
}

/// Requests that do not wait.
impl Schedule {
    /// Grants `cost` now, or charges nothing.
    pub(crate) fn try_acquire(
        &mut self,
        now: Moment,
        costs: Costs<'_>,
        caller: Caller,
        effects: &mut Effects,
    ) -> Result<Grant, TryAcquireError> {
        self.admit(now, costs, caller, effects)
            .map_err(|refusal| self.refuse(now, costs, refusal, caller, effects))
    }

    /// What [`Schedule::try_acquire`] would answer at the same moment; a denial is counted, unless the caller then `waits`.
    pub(crate) fn would_acquire(
        &mut self,
        now: Moment,
        costs: Costs<'_>,
        waits: bool,
        caller: Caller,
        effects: &mut Effects,
    ) -> Result<(), TryAcquireError> {
        let refusal = match self.precheck(now, costs, effects) {
            Ok(()) => {
                let is_held_back = self.waiters.resumes_at(now, costs.plain) > now;
                let limits = self.authority.gate().limits();
                if !is_held_back && limits.denied_until(now, costs).is_none() {
                    return Ok(());
                }
                NotAdmitted::MustWait
            }
            Err(refusal) => refusal,
        };
        if waits && matches!(refusal, NotAdmitted::MustWait | NotAdmitted::Blocked) {
            return Err(TryAcquireError::Denied(self.outlook().check(now, costs)));
        }
        Err(self.refuse(now, costs, refusal, caller, effects))
    }

    /// Denies a request that does not wait, while a word stays open. `None`, without a change: the request would be admitted, its cost
    /// is 0 or above the maximum, or there is an observer.
    pub(crate) fn deny_behind_word(&mut self, now: Moment, cost: u64) -> Option<TryAcquireError> {
        let gate = self.authority.gate();
        let decision = gate.limits().decide_plain(now, 0, cost);
        if decision.is_allowed()
            || cost.wrapping_sub(1) >= gate.limits().max_cost_in_place()
            || self.waiters.options.observed
        {
            return None;
        }
        self.waiters.counts_mut().denied += 1;
        Some(TryAcquireError::Denied(decision))
    }

    /// Answers a request that does not wait and is not admitted.
    fn refuse(
        &mut self,
        now: Moment,
        costs: Costs<'_>,
        refusal: NotAdmitted,
        caller: Caller,
        effects: &mut Effects,
    ) -> TryAcquireError {
        match refusal {
            NotAdmitted::Never(error) => TryAcquireError::without_decision(error),
            NotAdmitted::Blocked | NotAdmitted::MustWait => {
                let blocked = matches!(refusal, NotAdmitted::Blocked);
                if self.waiters.options.observed {
                    self.deny_and_tell(now, costs, blocked, caller, effects)
                } else {
                    self.deny(now, costs, blocked, effects)
                }
            }
        }
    }

    #[cold]
    fn deny_and_tell(
        &mut self,
        now: Moment,
        costs: Costs<'_>,
        blocked: bool,
        caller: Caller,
        effects: &mut Effects,
    ) -> TryAcquireError {
        let attempt = Attempt {
            now,
            cost: costs.plain,
            flow: costs.flow_id(),
            requested_in: caller,
            bans: self.authority.gate().limits().bans(now).collect(),
        };
        let earlier = effects.event_count();
        let denial = self.deny(now, costs, blocked, effects);
        if let TryAcquireError::Denied(decision) = &denial {
            let bans = self.authority.gate().limits().bans(now);
            effects.tell_before(earlier, attempt.denied(decision, bans)); // what the denial caused comes after it
        }
        denial
    }

    /// Denies a request that does not wait, and which the limits have just denied; `blocked`: they were not asked. The denial is
    /// not reported to observers.
    fn deny(
        &mut self,
        now: Moment,
        costs: Costs<'_>,
        blocked: bool,
        effects: &mut Effects,
    ) -> TryAcquireError {
        let limits = self.authority.gate_mut().limits_mut();
        if !blocked && limits.note_denial(now, costs) {
            self.reevaluate_front(now, effects); // a ban ends with a reset, which may be sooner than before
        }
        self.waiters.counts_mut().denied += 1;
        TryAcquireError::Denied(self.outlook().check(now, costs))
    }

    /// Denies a request that [`Schedule::admit_in_place`] did not admit, while nothing is observed. Only the limits decide, and as no
    /// request waits, the denial has no effects.
    #[inline(never)] // inlined, it would be copied just after it was made
    pub(crate) fn deny_in_place(&mut self, now: Moment, cost: u64) -> TryAcquireError {
        debug_assert!(self.waiters.leaves_all_to_limits() && cost > 0);
        let limits = self.authority.gate_mut().limits_mut();
        limits.note_denial(now, Costs::plain(cost));
        self.waiters.counts_mut().denied += 1;
        TryAcquireError::Denied(limits.decide_plain(now, 0, cost))
    }
}

/// Limits in a store.
impl Schedule {
    /// The session, to give it an input that changes nothing for the waiters. `None` if this process holds the limits.
    pub(crate) fn session<'a>(
        &'a mut self,
        now: Moment,
        effects: &'a mut Effects,
    ) -> Option<SessionStep<'a>> {
        let Authority::Store(session) = &mut self.authority else {
            return None;
        };
        Some(session.step(now, &mut self.waiters, effects))
    }

    /// Gives the session an input, and then does what it has changed for the waiters.
    pub(crate) fn change_session<R>(
        &mut self,
        now: Moment,
        effects: &mut Effects,
        input: impl FnOnce(&mut SessionStep<'_>) -> R,
    ) -> Option<R> {
        let result = input(&mut self.session(now, effects)?);
        self.reevaluate_front(now, effects);
        Some(result)
    }

    /// [`Schedule::try_acquire`] of limits in a store: the next call grants or denies the request. A denial is a timeout.
    pub(crate) fn try_at_store(
        &mut self,
        now: Moment,
        request: &Request<'_>,
        waker: &mut Option<Waker>,
        effects: &mut Effects,
    ) -> Result<Enqueued<Grant>, Refused> {
        if let Err(NotAdmitted::Never(error)) = self.precheck(now, request.costs, effects) {
            return Err(error.into());
        }
        if let Some(mut session) = self.session(now, effects)
            && let Some(grant) = session.try_acquire(request)?
        {
            return Ok(Enqueued::Granted(grant));
        }
        let enqueued = self.request(now, request, waker, effects)?;
        if let Enqueued::Queued(id) = enqueued {
            // The store may be asked for it now, although it would not be asked for a request that waits.
            self.waiters.queue.add_try(id);
            self.reevaluate_front(now, effects);
        }
        Ok(enqueued)
    }
}
