//! The answers of the schedule to requests that do not wait, and its own numbers.

use std::sync::Arc;

use super::{Counts, Refusal, Schedule, nanos};
use crate::core::costs::{Costs, UnitCosts};
use crate::core::effects::Effects;
use crate::core::gate::Gate;
use crate::core::grant::Grant;
use crate::core::refused::{Refused, RefusedRequest};
use crate::core::request::{Caller, Request};
use crate::core::waiter::WaiterId;
use crate::decision::Decision;
use crate::error::{AcquireError, TryAcquireError};
use crate::event::Attempt;
use crate::priority::Priority;
use crate::snapshot::{KeyTotals, LimitStatus, LimiterSnapshot};
use crate::strategy::Moment;

/// With more waiters than this, a retry-after is a lower bound. The public docs name the number.
const MAX_FORECAST: usize = 64;
/// Behind more waiters than this, a timeout may be accepted that cannot be met. The public docs name the number.
pub(super) const MAX_AHEAD: usize = 256;

impl Schedule {
    /// What [`Schedule::try_acquire`] would answer at the same moment; a denial counts as one, unless the caller then `waits`.
    pub(crate) fn would_acquire(
        &mut self,
        now: Moment,
        costs: Costs<'_>,
        waits: bool,
        caller: Caller,
        effects: &mut Effects,
    ) -> Result<(), TryAcquireError> {
        let unsuspended =
            |schedule: &Self| schedule.suspended().is_none_or(|suspension| suspension.ready_at(now, costs.plain) <= now);
        let asked = self
            .check_in(now, costs, effects)
            .and_then(|()| if unsuspended(self) && self.gate.would_admit(now, costs) { Ok(()) } else { Err(Refusal::MustWait) });
        match asked {
            Err(Refusal::MustWait | Refusal::Blocked) if waits => Err(TryAcquireError::Denied(self.check(now, costs))),
            asked => asked.map_err(|refusal| self.refuse(now, costs, refusal, caller, effects)),
        }
    }

    /// Grants `cost` now, or charges nothing.
    pub(crate) fn try_acquire(
        &mut self,
        now: Moment,
        costs: Costs<'_>,
        caller: Caller,
        effects: &mut Effects,
    ) -> Result<Grant, TryAcquireError> {
        self.admit(now, costs, caller, effects).map_err(|refusal| self.refuse(now, costs, refusal, caller, effects))
    }

    /// Denies a request that does not wait, which the gate has just [denied in place](Schedule::admit_in_place), and of which
    /// nobody is told.
    pub(crate) fn deny_in_place(&mut self, now: Moment, cost: u64, effects: &mut Effects) -> TryAcquireError {
        self.deny(now, Costs::plain(cost), effects)
    }

    /// Denies a request that does not wait, while a word stays open. `None`, without a change: the request is admitted, its cost is
    /// 0 or above the maximum, or an observer is to be told.
    pub(crate) fn deny_behind_word(&mut self, now: Moment, cost: u64) -> Option<TryAcquireError> {
        let decision = self.gate.decide_plain(now, 0, cost);
        if decision.is_allowed() || cost.wrapping_sub(1) >= self.gate.max_cost_in_place() || self.is_observed() {
            return None;
        }
        self.counts().denied += 1;
        Some(TryAcquireError::Denied(decision))
    }

    /// Answers a request that does not wait and is not admitted.
    fn refuse(
        &mut self,
        now: Moment,
        costs: Costs<'_>,
        refusal: Refusal,
        caller: Caller,
        effects: &mut Effects,
    ) -> TryAcquireError {
        match refusal {
            Refusal::Closed => TryAcquireError::Closed,
            Refusal::Misfit(misfit) => misfit.into(),
            refusal if self.is_observed() => self.deny_and_tell(now, costs, &refusal, caller, effects),
            refusal => self.deny_untold(now, costs, &refusal, effects),
        }
    }

    #[cold]
    fn deny_and_tell(
        &mut self,
        now: Moment,
        costs: Costs<'_>,
        refusal: &Refusal,
        caller: Caller,
        effects: &mut Effects,
    ) -> TryAcquireError {
        let attempt = Attempt { now, cost: costs.plain, requested_in: caller, bans: self.gate.bans(now).collect() };
        let told = effects.told();
        let denial = self.deny_untold(now, costs, refusal, effects);
        if let TryAcquireError::Denied(decision) = &denial {
            effects.tell_before(told, attempt.denied(decision, self.gate.bans(now))); // what the denial caused comes after it
        }
        denial
    }

    fn deny_untold(&mut self, now: Moment, costs: Costs<'_>, refusal: &Refusal, effects: &mut Effects) -> TryAcquireError {
        if let Refusal::Blocked = refusal {
            self.counts().denied += 1;
            return TryAcquireError::Denied(self.check(now, costs));
        }
        self.deny(now, costs, effects)
    }

    /// Denies a request that does not wait.
    fn deny(&mut self, now: Moment, costs: Costs<'_>, effects: &mut Effects) -> TryAcquireError {
        if self.gate.note_denial(now, costs) {
            self.reevaluate_front(now, effects); // a ban ends with a reset, which may be sooner than before
        }
        self.counts().denied += 1;
        TryAcquireError::Denied(self.check(now, costs))
    }

    /// The answer that `try_acquire` would give. A closed limiter denies, and a cost of zero is denied.
    pub(crate) fn check(&self, now: Moment, costs: Costs<'_>) -> Decision {
        let only_gate_decides = self.queue.is_empty() && self.suspension.is_none() && !self.closed && costs.plain > 0;
        if only_gate_decides { self.gate.decide(now, 0, costs) } else { self.check_held_back(now, costs) }
    }

    /// What each limit says.
    pub(crate) fn limits(&self, now: Moment) -> Vec<LimitStatus> {
        self.gate.statuses(now)
    }

    /// Keeps what each limit says after a grant, if the request asked for it.
    pub(super) fn explain(&mut self, now: Moment, costs: Costs<'_>, fence: u64) {
        if costs.explained() {
            self.queue.explain(fence, self.gate.statuses(now));
        }
    }

    /// A refusal for this reason, with what each limit says if the request asked for it.
    pub(super) fn refusal(&self, now: Moment, costs: Costs<'_>, error: AcquireError) -> Refused {
        let limits = if costs.explained() { self.known_limits(now, costs) } else { Vec::new() };
        Box::new(RefusedRequest { error, limits })
    }

    /// What is decided on a request that cannot wait any longer, behind as many waiting units.
    pub(super) fn decide_late(&self, now: Moment, ahead: u64, costs: Costs<'_>) -> Decision {
        match self.dialogue {
            None => self.decide_behind(&self.gate, now, ahead, costs),
            Some(_) if self.is_alone() => self.decide_locally(now, ahead, costs),
            Some(_) => self.latest_denial(now, costs).decision,
        }
    }

    /// What this gate says to a request behind as many waiting units.
    pub(super) fn decide_behind(&self, gate: &Gate, now: Moment, ahead: u64, costs: Costs<'_>) -> Decision {
        let resumed_at = self.suspended().map_or(now, |suspension| suspension.ready_at(now, costs.plain));
        let decision = decide_until(gate, resumed_at, now, ahead, costs);
        if ahead > 0 { decision.behind_others() } else { decision }
    }

    /// Of limits in a store, it is what the latest denial said.
    fn known_limits(&self, now: Moment, costs: Costs<'_>) -> Vec<LimitStatus> {
        if self.dialogue.is_none() {
            self.limits(now)
        } else if self.is_alone() {
            Vec::new() // as at once: the store was not asked
        } else {
            self.latest_denial(now, costs).limits
        }
    }

    /// Refuses a waiter for this reason.
    pub(super) fn refuse_waiter(&mut self, now: Moment, id: WaiterId, error: AcquireError, effects: &mut Effects) {
        let by_unit = self.queue.unit_costs(id);
        let refused = self.refusal(now, Costs::new(0, &by_unit), error);
        effects.wake(self.queue.refuse(id, refused));
    }

    /// What each limit said at the grant of this fence. It is taken once.
    pub(crate) fn take_explanation(&mut self, fence: u64) -> Vec<LimitStatus> {
        self.queue.take_explanation(fence).unwrap_or_default()
    }

    /// The largest cost that [`Schedule::check`] allows.
    pub(crate) fn available(&self, now: Moment) -> u64 {
        if !self.check(now, Costs::plain(1)).is_allowed() {
            return 0;
        }
        let left = self.suspended().map_or(u64::MAX, |suspension| suspension.units_left(now));
        self.gate.available(now).min(left)
    }

    /// [`Schedule::check`], where not only the gate decides.
    fn check_held_back(&self, now: Moment, costs: Costs<'_>) -> Decision {
        // The sum of huge costs saturates, so after some leave it may be 0 although requests wait.
        let ahead = self.queue.units_ahead_of(Priority::LOWEST).max(u64::from(!self.queue.is_empty()));
        if self.closed || costs.plain == 0 {
            return self.gate.decide(now, ahead, Costs { plain: costs.plain.max(1), ..costs }).refused();
        }
        let suspended_until = match self.suspended() {
            Some(suspension) => {
                let blocked = suspension.is_blocked(now); // each request restarts it
                let penalty = if blocked { nanos(self.options.overflow.penalty()) } else { 0 };
                suspension.ready_at(now, costs.plain).max(now.plus(penalty))
            }
            None => now,
        };
        let decision = decide_until(&self.gate, suspended_until, now, ahead, costs);
        if self.queue.is_empty() {
            return decision;
        }
        let decision = decision.behind_others();
        match self.turn_before(None, now, costs) {
            Some(turn) => decision.at_turn(turn, now),
            None => decision,
        }
    }

    /// When a waiter will be granted, if no other request goes before it. [`Moment::NEVER`] if only a release or a resume helps; `now`
    /// if it was answered.
    pub(crate) fn turn_of(&self, now: Moment, id: WaiterId) -> Moment {
        let by_unit = self.queue.unit_costs(id);
        let Some(Request { costs, .. }) = self.queue.request(id, &by_unit) else { return now };
        self.turn_before(Some(id), now, costs).unwrap_or_else(|| self.ready_at(now, 0, costs))
    }

    /// When a request in the place of this waiter, or else behind all waiters, would be granted, if no other came: exact, from a
    /// forecast of all grants before it. [`Moment::NEVER`] if only a release or a resume helps, or if it never happens. `None` if too
    /// many waiters are ahead to compute it.
    fn turn_before(&self, waiter: Option<WaiterId>, now: Moment, costs: Costs<'_>) -> Option<Moment> {
        let ahead = || self.queue.waiting().take_while(|ahead| Some(ahead.0) != waiter);
        if ahead().nth(MAX_FORECAST).is_some() {
            return None;
        }
        if self.gate.fits(costs).is_err() {
            return Some(Moment::NEVER);
        }
        let mut forecast = self.gate.forecast(now, self.suspended(), std::iter::empty());
        for (_, costs, deadline) in ahead().filter(|waiter| self.gate.fits(waiter.1).is_ok() && waiter.2 >= now) {
            if deadline < forecast.now() || forecast.take(costs, deadline) {
                continue;
            }
            if forecast.ready_at(costs) == Moment::NEVER {
                return Some(Moment::NEVER);
            }
        }
        Some(forecast.ready_at(costs))
    }

    /// The earliest turn of a new request that must wait, if no other request comes and no waiter gives up before its deadline.
    /// Exact behind up to [`MAX_AHEAD`] waiters, if it waits for no release, no resume and no store; otherwise a lower bound.
    ///
    /// Whether a waiter that needs a release or a resume is granted before its deadline is not known. So it is assumed to leave if its
    /// deadline is not after that of the new request, and to be granted otherwise.
    pub(super) fn earliest_turn(&self, now: Moment, request: &Request<'_>) -> Moment {
        let &Request { costs, priority, deadline, .. } = request;
        let victim = if self.has_room() { None } else { self.queue.victim(self.options.overflow, priority) };
        let dropped = victim.map_or(0, |victim| self.queue.cost(victim));
        let surely_ahead = self.queue.units_surely_ahead_of(priority, deadline).saturating_sub(dropped);
        let bound = self.ready_at(now, surely_ahead, costs);
        if self.dialogue.is_some() || bound > deadline && !self.queue.has_deadlines() {
            return bound;
        }
        let mut forecast = self.gate.forecast(now, self.suspended(), std::iter::empty());
        let mut waits_for_release = false;
        for (id, costs, leaves_at) in self.queue.waiting_ahead_of(priority).take(MAX_AHEAD) {
            if Some(id) == victim || self.gate.fits(costs).is_err() || leaves_at < forecast.now() {
                continue;
            }
            if forecast.ready_at(costs) == Moment::NEVER {
                waits_for_release = true;
                forecast.assume_releases(costs);
            }
            if !(waits_for_release && leaves_at <= deadline) {
                forecast.take(costs, leaves_at);
            }
        }
        forecast.assume_releases(costs);
        match forecast.ready_at(costs) {
            turn if turn > deadline => turn,
            turn => turn.max(bound),
        }
    }

    /// One of each unit that a limit counts.
    pub(crate) fn one_of_each_unit(&self) -> Option<Arc<UnitCosts>> {
        self.gate.counts_by_unit().then(|| Arc::new(UnitCosts::one_of_each(self.policy())))
    }

    /// The gate, if no request waits, no permit is in flight and nothing else holds requests of this key back: then the gate is
    /// the whole state. A pause of all keys is known to their table.
    pub(crate) fn at_rest(&self, now: Moment) -> Option<&Gate> {
        let unsuspended = self.suspended().is_none_or(|suspension| suspension.is_over_but_for_all_keys(now));
        let rests = unsuspended && self.queue.is_empty() && self.undelivered == 0 && !self.gate.is_in_flight();
        rests.then_some(&self.gate)
    }

    /// What of the numbers can be summed.
    pub(crate) fn totals(&self) -> KeyTotals {
        let Counts { denied, shed, timed_out, reclaimed, refunded, .. } = self.counts.as_deref().copied().unwrap_or_default();
        let (in_flight, queued) = (self.gate.in_flight() + self.in_flight_locally(), self.queue.len() as u64);
        KeyTotals { in_flight, queued, granted: self.gate.granted(), denied, shed, timed_out, reclaimed, refunded }
    }

    /// The numbers of the limiter.
    pub(crate) fn snapshot(&self, now: Moment) -> LimiterSnapshot {
        let next = if self.queue.is_empty() {
            let by_unit = self.one_of_each_unit();
            let one = Costs::new(1, &by_unit);
            match self.gate.decide(now, 0, one) {
                decision if decision.is_allowed() => Some(now),
                decision => decision.retry_after().map(|_| self.gate.ready_at(now, 0, one)),
            }
        } else {
            self.front_ready_at.known()
        };
        let suspended_until =
            self.suspended().map_or(now, |suspension| suspension.ready_at(now, self.queue.front().map_or(1, |front| front.cost)));
        let next = next.and_then(|next| next.max(suspended_until).known());
        let KeyTotals { in_flight, queued, granted, denied, shed, timed_out, reclaimed, refunded } = self.totals();
        LimiterSnapshot {
            in_flight,
            concurrency: self.gate.concurrency(now),
            queued,
            granted,
            denied,
            shed,
            timed_out,
            reclaimed,
            refunded,
            paused_for: self.suspended().and_then(|suspension| suspension.paused_for(now)),
            next_grant_in: next.filter(|_| !self.closed || !self.queue.is_empty()).map(|next| next.duration_since(now)),
        }
    }
}

/// What this gate says to a request behind as many waiting units, with all requests held back until then.
fn decide_until(gate: &Gate, until: Moment, now: Moment, ahead: u64, costs: Costs<'_>) -> Decision {
    let decision = gate.decide(now, ahead, costs);
    if until <= now {
        return decision;
    }
    // It waits for those ahead, and they for the end of the pause.
    let limits_admit = gate.decide(now, 0, costs).is_allowed() && gate.ready_at(now, ahead, costs) <= now;
    if limits_admit { decision.paused(until, now) } else { decision.held_back(until, now) }
}
