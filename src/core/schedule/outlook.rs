//! What a schedule answers besides grants: to questions, which change nothing, and to requests that it refuses.

use std::sync::Arc;
use std::time::Duration;

use super::authority::Authority;
use crate::core::effects::Effects;
use crate::core::gate::Gate;
use crate::core::gate::forecast::ForecastStep;
use crate::core::gate::limits::Limits;
use crate::core::queue::{WaiterId, Waiters};
use crate::core::request::{CostDetails, Costs, Refused, RefusedRequest, Request};
use crate::decision::Decision;
use crate::error::AcquireError;
use crate::event::ShedReason;
use crate::snapshot::{FlowStatus, KeyTotals, LimiterSnapshot};
use crate::strategy::Moment;

/// With more waiters than this, a retry-after is a lower bound. The public docs name the number.
const MAX_FORECAST: usize = 64;
/// Behind more waiters than this, a timeout may be accepted that cannot be met. The public docs name the number.
pub(super) const MAX_AHEAD: usize = 256;

/// The state of a schedule, to look at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outlook<'a> {
    pub(super) waiters: &'a Waiters,
    pub(super) authority: &'a Authority,
}

impl<'a> Outlook<'a> {
    fn gate(self) -> &'a Gate {
        self.authority.gate()
    }

    /// The policy, with the state of each limit.
    pub(crate) fn limits(self) -> &'a Limits {
        self.gate().limits()
    }

    /// See [`Authority::has_timeouts`].
    pub(crate) fn has_timeouts(self) -> bool {
        self.authority.has_timeouts()
    }

    /// Whether permits have a TTL.
    pub(crate) fn leases_permits(self) -> bool {
        self.gate().leases_permits()
    }

    /// The units that a permit was granted, if they are recorded.
    pub(crate) fn cost_details(self, fence: u64) -> Option<&'a Arc<CostDetails>> {
        let (gate, fallback) = self.authority.gates();
        let recorded = gate.cost_details(fence);
        recorded.or_else(|| fallback?.cost_details(fence))
    }

    /// Whether no request waits, and no permit holds a place.
    pub(crate) fn is_drained(self) -> bool {
        let is_answered =
            self.waiters.queue.is_empty() && !self.waiters.untaken.has_placeless_grant();
        let (gate, fallback) = self.authority.gates();
        is_answered && !gate.is_in_flight() && !fallback.is_some_and(Gate::is_in_flight)
    }

    /// The number of grants of places so far, if it [is drained](Self::is_drained).
    pub(crate) fn drained_after(self) -> Option<u64> {
        let gate = self.gate();
        self.is_drained().then(|| {
            if gate.holds_places() {
                gate.granted()
            } else {
                0
            }
        })
    }

    pub(crate) fn is_paused(self, now: Moment) -> bool {
        self.waiters
            .suspension()
            .is_some_and(|suspension| suspension.paused_for(now).is_some())
    }

    /// One of each unit that a limit counts.
    pub(super) fn one_of_each_unit(self) -> Option<Arc<CostDetails>> {
        let limits = self.limits();
        limits
            .counts_by_unit()
            .then(|| Arc::new(CostDetails::one_of_each(limits.policy())))
    }

    /// The gate, if no request waits, no permit is in flight and nothing else holds requests of this key back: then the gate is
    /// the whole state. A pause of all keys does not count: their table records it.
    pub(crate) fn at_rest(self, now: Moment) -> Option<&'a Gate> {
        let is_unsuspended = self
            .waiters
            .suspension()
            .is_none_or(|suspension| suspension.is_over_but_for_all_keys(now));
        (is_unsuspended && self.is_drained()).then(|| self.gate())
    }

    /// The numbers that can be summed over keys.
    pub(crate) fn totals(self) -> KeyTotals {
        KeyTotals {
            in_flight: self.authority.in_flight(),
            queued: self.waiters.queue.len() as u64,
            granted: self.gate().granted(),
            ..self.waiters.counts()
        }
    }

    /// What some flows have: those with the most requests.
    pub(crate) fn flows(self, max: usize) -> Vec<FlowStatus> {
        self.waiters.queue.flow_statuses(max)
    }

    /// The numbers of the limiter.
    pub(crate) fn snapshot(self, now: Moment) -> LimiterSnapshot {
        let Self { waiters, .. } = self;
        let next = if waiters.queue.is_empty() {
            let details = self.one_of_each_unit();
            let one = Costs::new(1, &details);
            match self.limits().decide(now, 0, one) {
                decision if decision.is_allowed() => Some(now),
                decision => decision
                    .retry_after()
                    .map(|_| self.limits().ready_at(now, 0, one)),
            }
        } else {
            waiters.front_ready_at.known()
        };
        let cost = waiters.queue.front().map_or(1, |front| front.cost);
        let next = next.and_then(|next| next.max(waiters.resumes_at(now, cost)).known());
        let totals = self.totals();
        LimiterSnapshot {
            in_flight: totals.in_flight,
            concurrency: self.limits().concurrency(now),
            queued: totals.queued,
            granted: totals.granted,
            denied: totals.denied,
            shed: totals.shed,
            timed_out: totals.timed_out,
            reclaimed: totals.reclaimed,
            refunded: totals.refunded,
            paused_for: waiters
                .suspension()
                .and_then(|suspension| suspension.paused_for(now)),
            next_grant_in: next
                .filter(|_| !waiters.closed || !waiters.queue.is_empty())
                .map(|next| next.duration_since(now)),
        }
    }
}

/// How a request would be answered.
impl Outlook<'_> {
    /// The answer that `try_acquire` would give. A closed limiter denies, and a cost of zero is denied.
    #[inline]
    pub(crate) fn check(self, now: Moment, costs: Costs<'_>) -> Decision {
        if self.waiters.leaves_all_to_limits() && costs.plain > 0 {
            self.limits().decide(now, 0, costs)
        } else {
            self.check_held_back(now, costs)
        }
    }

    /// [`Outlook::check`] of a request for one unit of each limit.
    pub(crate) fn check_one(self, now: Moment) -> Decision {
        self.check(now, Costs::new(1, &self.one_of_each_unit()))
    }

    /// [`Outlook::check`], where not only the gate decides.
    fn check_held_back(self, now: Moment, costs: Costs<'_>) -> Decision {
        let Self { waiters, .. } = self;
        let ahead = waiters.queue.units_ahead();
        if waiters.closed || costs.plain == 0 {
            let costs = Costs {
                plain: costs.plain.max(1),
                ..costs
            };
            return self.limits().decide(now, ahead, costs).refused();
        }
        let suspended_until = match waiters.suspension() {
            Some(suspension) => {
                let blocked = suspension.is_blocked(now); // each request restarts it
                let penalty = if blocked {
                    nanos(waiters.options.overflow.penalty())
                } else {
                    0
                };
                suspension.ready_at(now, costs.plain).max(now.plus(penalty))
            }
            None => now,
        };
        let decision = self
            .gate()
            .limits()
            .decide_held_back(suspended_until, now, ahead, costs);
        if waiters.queue.is_empty() {
            return decision;
        }
        decision.behind_others(self.turn_before(None, now, costs), now)
    }

    /// The largest cost that [`Outlook::check`] allows.
    pub(crate) fn available(self, now: Moment) -> u64 {
        if !self.check(now, Costs::plain(1)).is_allowed() {
            return 0;
        }
        let left = self
            .waiters
            .suspension()
            .map_or(u64::MAX, |suspension| suspension.units_left(now));
        self.limits().available(now).min(left)
    }

    /// When a request behind `ahead` waiting units could be admitted, at the earliest.
    pub(super) fn retry_after(self, now: Moment, ahead: u64, costs: Costs<'_>) -> Option<Duration> {
        let ready = self.ready_at(now, ahead, costs, true);
        (ready > now).then(|| ready.duration_since(now))
    }

    /// See [`Limits::ready_at`](crate::core::gate::limits::Limits::ready_at). A pause without an end is ignored. `reported`: the
    /// instant is for a caller, not for a lower bound. A store's denials of other costs are then ignored.
    pub(super) fn ready_at(
        self,
        now: Moment,
        ahead: u64,
        costs: Costs<'_>,
        reported: bool,
    ) -> Moment {
        let Self { waiters, authority } = self;
        let resumes_at = waiters.resumes_at(now, costs.plain);
        let ready_at = self.limits().ready_at(now, ahead, costs);
        ready_at
            .max(resumes_at.known().unwrap_or(now))
            .max(authority.denied_until(now, costs, reported, waiters))
    }

    /// A refusal for this reason, with the status of each limit if the request asked for it.
    pub(super) fn refusal(self, now: Moment, costs: Costs<'_>, error: AcquireError) -> Refused {
        let limits = if costs.explained() {
            let denial = self.authority.known_denial(now, 0, costs, self.waiters);
            denial.1
        } else {
            Vec::new()
        };
        Box::new(RefusedRequest { error, limits })
    }
}

/// Turns in the queue.
impl Outlook<'_> {
    /// When a waiter will be granted, if no other request goes before it. [`Moment::NEVER`] if only a release or a resume helps; `now`
    /// if it was answered.
    pub(crate) fn turn_of(self, now: Moment, id: WaiterId) -> Moment {
        let details = self.waiters.queue.cost_details(id);
        let Some(Request { costs, .. }) = self.waiters.queue.request(id, &details) else {
            return now;
        };
        self.turn_before(Some(id), now, costs)
            .unwrap_or_else(|| self.ready_at(now, 0, costs, false))
    }

    /// When a request in the place of this waiter, or else behind all waiters, would be granted, if no other came: exact, from a
    /// forecast of all grants before it. [`Moment::NEVER`] if only a release or a resume helps, or if it never happens. `None` if too
    /// many waiters are ahead to compute it.
    fn turn_before(
        self,
        waiter: Option<WaiterId>,
        now: Moment,
        costs: Costs<'_>,
    ) -> Option<Moment> {
        let limits = self.limits();
        if limits.fits(costs).is_err() {
            return Some(Moment::NEVER);
        }
        let mut forecast = limits.forecast(now, self.waiters.suspension(), std::iter::empty());
        let mut turns = self.waiters.queue.turns(None);
        for _ in 0..=MAX_FORECAST {
            let Some(turn) = turns.next().filter(|turn| Some(turn.id) != waiter) else {
                return Some(forecast.ready_at(costs));
            };
            if limits.fits(turn.costs).is_err() || turn.deadline < forecast.now() {
                turns.left(&turn);
            } else if forecast.take(turn.costs, turn.deadline) {
                turns.granted(&turn, limits.units_held_by(turn.costs));
            } else if forecast.ready_at(turn.costs) == Moment::NEVER {
                return Some(Moment::NEVER);
            } else {
                turns.left(&turn);
            }
        }
        None
    }

    /// The earliest turn of a new request that must wait, if no other request comes and no waiter gives up before its deadline.
    /// Exact behind up to [`MAX_AHEAD`] waiters, if it waits for no release, no resume and no store; otherwise a lower bound.
    ///
    /// Whether a waiter that needs a release or a resume is granted before its deadline is not known. So it is assumed to leave if its
    /// deadline is not after that of the new request, and to be granted otherwise. After a release, any flow may be next, so only those
    /// in the flow of the new request are before it then.
    pub(super) fn earliest_turn(self, now: Moment, request: &Request<'_>) -> Moment {
        let &Request {
            costs, deadline, ..
        } = request;
        let queue = &self.waiters.queue;
        let victim = if self.waiters.has_room() {
            None
        } else {
            queue.victim(self.waiters.options.overflow, request)
        };
        let dropped = victim.map_or(0, |victim| queue.cost(victim));
        let surely_ahead = queue.units_surely_ahead_of(request).saturating_sub(dropped);
        let bound = self.ready_at(now, surely_ahead, costs, false);
        let Authority::Local(gate) = self.authority else {
            return bound;
        };
        if bound > deadline && !queue.has_deadlines() {
            return bound;
        }
        let mut forecast =
            gate.limits()
                .forecast(now, self.waiters.suspension(), std::iter::empty());
        let mut waits_for_release = false;
        let mut turns = queue.turns(Some(request));
        for _ in 0..MAX_AHEAD {
            let Some(turn) = turns.next() else {
                break;
            };
            let leaves_at = turn.deadline;
            let is_out = Some(turn.id) == victim || leaves_at < forecast.now();
            if is_out || gate.limits().fits(turn.costs).is_err() {
                turns.left(&turn);
                continue;
            }
            if forecast.ready_at(turn.costs) == Moment::NEVER {
                waits_for_release = true;
                forecast.assume_releases(turn.costs);
            }
            let may_leave = leaves_at <= deadline || !turns.is_surely_before_newcomer(&turn);
            if !(waits_for_release && may_leave) && forecast.take(turn.costs, leaves_at) {
                turns.granted(&turn, gate.limits().units_held_by(turn.costs));
            } else {
                turns.left(&turn);
            }
        }
        forecast.assume_releases(costs);
        match forecast.ready_at(costs) {
            turn if turn > deadline => turn,
            turn => turn.max(bound),
        }
    }
}

/// A schedule at one instant, to refuse requests: at their deadline, when they can never be granted, when the queue is emptied or
/// full.
pub(super) struct Refusals<'a> {
    pub(super) now: Moment,
    pub(super) authority: &'a mut Authority,
    pub(super) waiters: &'a mut Waiters,
    pub(super) effects: &'a mut Effects,
}

impl Refusals<'_> {
    fn outlook(&self) -> Outlook<'_> {
        Outlook {
            waiters: self.waiters,
            authority: self.authority,
        }
    }

    /// Refuses the waiters whose deadline has passed. Each may have held back those behind it.
    #[cold]
    pub(super) fn refuse_all_expired(&mut self) {
        let now = self.now;
        while !self.effects.is_full()
            && let Some(id) = self.waiters.queue.expired(now)
        {
            self.refuse_expired(id);
            if self.waiters.front_ready_at <= now {
                self.authority.serve(now, self.waiters, self.effects);
            }
        }
    }

    /// Refuses waiters whose deadline passed before `now` and before their turn. A [forecast](crate::core::gate::forecast) finds what
    /// an undelayed timer would have done since.
    ///
    /// It checks a bounded number of waiters, so that the lock is not held for long. Those behind them are decided as of `now`.
    #[cold]
    pub(super) fn refuse_late(&mut self, due_from: Moment) {
        const MAX_CHECKED: usize = 256;
        let now = self.now;
        let gate = self.authority.gate();
        let suspension = self.waiters.suspension();
        let mut forecast = gate
            .limits()
            .forecast(due_from, suspension, gate.reclaims());
        let mut late = Vec::new();
        let mut turns = self.waiters.queue.turns(None);
        let mut checked = 0;
        while checked < MAX_CHECKED
            && let Some(turn) = turns.next()
        {
            checked += 1;
            if gate.limits().fits(turn.costs).is_err() {
                turns.left(&turn);
                continue;
            }
            let step = if turn.deadline < forecast.now() {
                ForecastStep::Refused
            } else {
                forecast.step(turn.costs, turn.deadline.min(now))
            };
            match step {
                ForecastStep::Admitted => {
                    turns.granted(&turn, gate.limits().units_held_by(turn.costs));
                }
                ForecastStep::Refused if turn.deadline >= now => break, // it keeps waiting, and so do those behind it
                ForecastStep::Refused => {
                    late.push(turn.id);
                    turns.left(&turn);
                }
                ForecastStep::ReclaimDue => {
                    if forecast.has_room_for_one(turn.costs) {
                        turns.reserve(&turn);
                    }
                    forecast.reclaim(|fence, units| turns.release(fence, units));
                    checked -= 1;
                }
            }
        }
        drop((forecast, turns));
        for id in late {
            self.refuse_expired(id);
        }
    }

    /// Refuses a waiter whose deadline has passed.
    fn refuse_expired(&mut self, id: WaiterId) {
        let details = self.waiters.queue.cost_details(id);
        let Some(request) = self.waiters.queue.request(id, &details) else {
            return;
        };
        let ahead = self.units_before(&request);
        let turn = self
            .outlook()
            .ready_at(self.now, ahead, request.costs, true);
        let refused = self.time_out(ahead, turn, &request, Some(id));
        if self.waiters.queue.is_front(id) {
            self.waiters.front_ready_at = self.now;
        }
        self.waiters.refuse(id, refused, self.effects);
    }

    /// The error of a request that times out, or would: it states when an equal new request could be admitted. `id`: that of a
    /// request that has waited.
    pub(super) fn time_out(
        &mut self,
        ahead: u64,
        turn: Moment,
        request: &Request<'_>,
        id: Option<WaiterId>,
    ) -> Refused {
        let Self { now, authority, .. } = self;
        let costs = request.costs;
        let retry_after = (turn > *now).then(|| turn.duration_since(*now));
        self.waiters
            .note_timeout(*now, request, id, retry_after, self.effects);
        let denial = || authority.known_denial(*now, ahead, costs, self.waiters);
        let error = AcquireError::TimedOut {
            retry_after,
            decision: costs.explained().then(|| Box::new(denial().0)),
        };
        self.outlook().refusal(self.now, costs, error)
    }

    /// Refuses waiters whose cost the plan can never admit. It runs before the front is served: either the batch is full, and the
    /// front is not served, or none of them is left.
    #[cold]
    pub(super) fn refuse_impossible(&mut self) {
        while !self.effects.is_full()
            && let Some(id) = self.waiters.queue.next_misfit()
        {
            let details = self.waiters.queue.cost_details(id);
            let costs = Costs::new(self.waiters.queue.cost(id), &details);
            if let Err(error) = self.authority.gate().limits().fits(costs) {
                self.refuse_waiter(id, error);
            }
        }
    }

    /// Refuses all waiters: the limiter is closed, or its queue has overflowed.
    pub(super) fn refuse_all(&mut self) {
        while !self.effects.is_full()
            && let Some(front) = self.waiters.queue.front()
        {
            if self.waiters.refuses_waiters() {
                self.refuse_waiter(front.id, AcquireError::Closed);
            } else {
                self.drop_waiter(front.id);
            }
        }
        self.waiters.note_emptied(self.now);
        self.effects.unfinished = self.effects.is_full();
    }

    /// Drops a waiter from a full queue.
    pub(super) fn drop_waiter(&mut self, id: WaiterId) {
        let details = self.waiters.queue.cost_details(id);
        let Some(request) = self.waiters.queue.request(id, &details) else {
            return;
        };
        self.waiters
            .shed(&request, ShedReason::Dropped, self.effects);
        // It is still among the waiters, and in an overflow all of them are dropped.
        let ahead = if self.waiters.dropping {
            0
        } else {
            self.units_before(&request)
        };
        let retry_after = self.outlook().retry_after(self.now, ahead, request.costs);
        self.refuse_waiter(id, AcquireError::Shed { retry_after });
    }

    /// Refuses a waiter for this reason.
    fn refuse_waiter(&mut self, id: WaiterId, error: AcquireError) {
        let details = self.waiters.queue.cost_details(id);
        let costs = Costs::new(0, &details);
        let refused = self.outlook().refusal(self.now, costs, error);
        self.waiters.refuse(id, refused, self.effects);
    }

    /// The units of the waiters that go before a new request like this one, after this waiter has left.
    fn units_before(&self, request: &Request<'_>) -> u64 {
        let ahead = self.waiters.queue.units_ahead_of(request.priority);
        ahead.saturating_sub(request.costs.plain)
    }
}

pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
