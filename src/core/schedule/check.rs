//! The answers of the schedule to requests that do not wait, and its own numbers.

use super::{Refusal, Schedule, nanos};
use crate::core::effects::Effects;
use crate::core::grant::Grant;
use crate::core::request::Caller;
use crate::decision::Decision;
use crate::error::TryAcquireError;
use crate::priority::Priority;
use crate::snapshot::LimiterSnapshot;
use crate::strategy::Moment;

/// With more waiters than this, a retry-after is a lower bound. The public docs name the number.
const MAX_FORECAST: usize = 64;

impl Schedule {
    /// What [`Schedule::try_acquire`] would answer at the same moment; a denial counts as one, unless the caller then `waits`.
    pub(crate) fn would_acquire(
        &mut self,
        now: Moment,
        cost: u64,
        waits: bool,
        effects: &mut Effects,
    ) -> Result<(), TryAcquireError> {
        let unsuspended = |schedule: &Self| schedule.suspended().is_none_or(|suspension| suspension.ready_at(now, cost) <= now);
        let asked = self
            .check_in(now, cost, effects)
            .and_then(|()| if unsuspended(self) && self.gate.would_admit(now, cost) { Ok(()) } else { Err(Refusal::MustWait) });
        asked.map_err(|refusal| if waits { self.explain(now, cost, &refusal) } else { self.deny(now, cost, &refusal, effects) })
    }

    /// Grants `cost` now, or charges nothing.
    pub(crate) fn try_acquire(
        &mut self,
        now: Moment,
        cost: u64,
        caller: Caller,
        effects: &mut Effects,
    ) -> Result<Grant, TryAcquireError> {
        self.admit(now, cost, caller, effects).map_err(|refusal| self.deny(now, cost, &refusal, effects))
    }

    /// Denies a request that does not wait, which the gate has just [denied in place](Schedule::admit_in_place).
    pub(crate) fn deny_in_place(&mut self, now: Moment, cost: u64, effects: &mut Effects) -> TryAcquireError {
        self.deny(now, cost, &Refusal::MustWait, effects)
    }

    /// Denies a request that does not wait, while a word stays open. `None`, without a change: the request is admitted, or its cost is
    /// 0 or above the maximum.
    pub(crate) fn deny_behind_word(&mut self, now: Moment, cost: u64) -> Option<TryAcquireError> {
        let decision = self.gate.decide(now, 0, cost);
        if decision.is_allowed() || cost.wrapping_sub(1) >= self.gate.max_cost() {
            return None;
        }
        self.counts().denied += 1;
        Some(TryAcquireError::Denied(decision))
    }

    /// Denies a request that does not wait.
    fn deny(&mut self, now: Moment, cost: u64, refusal: &Refusal, effects: &mut Effects) -> TryAcquireError {
        if let Refusal::MustWait = refusal
            && self.gate.note_denial(now, cost)
        {
            self.reevaluate_front(now, effects); // a ban ends with a reset, which may be sooner than before
        }
        if matches!(refusal, Refusal::MustWait | Refusal::Blocked) {
            self.counts().denied += 1;
        }
        self.explain(now, cost, refusal)
    }

    fn explain(&self, now: Moment, cost: u64, refusal: &Refusal) -> TryAcquireError {
        match *refusal {
            Refusal::Closed => TryAcquireError::Closed,
            Refusal::ZeroCost => TryAcquireError::ZeroCost,
            Refusal::ExceedsLimit => TryAcquireError::exceeds(self.gate.tightest(), cost),
            Refusal::Blocked | Refusal::MustWait => TryAcquireError::Denied(self.check(now, cost)),
        }
    }

    /// The answer that `try_acquire` would give. A closed limiter denies, and a cost of zero is denied.
    pub(crate) fn check(&self, now: Moment, cost: u64) -> Decision {
        let only_gate_decides = self.queue.is_empty() && self.suspension.is_none() && !self.closed && cost > 0;
        if only_gate_decides { self.gate.decide(now, 0, cost) } else { self.check_held_back(now, cost) }
    }

    /// The largest cost that [`Schedule::check`] allows.
    pub(crate) fn available(&self, now: Moment) -> u64 {
        let decision = self.check(now, 1);
        if !decision.is_allowed() {
            return 0;
        }
        let left = self.suspended().map_or(u64::MAX, |suspension| suspension.units_left(now));
        decision.remaining().min(self.gate.max_cost()).min(left)
    }

    /// [`Schedule::check`], where not only the gate decides.
    fn check_held_back(&self, now: Moment, cost: u64) -> Decision {
        // The sum of huge costs saturates, so after some leave it may be 0 although requests wait.
        let ahead = self.queue.units_ahead_of(Priority::LOWEST).max(u64::from(!self.queue.is_empty()));
        let decision = self.gate.decide(now, ahead, cost.max(1));
        if self.closed || cost == 0 {
            return decision.refused();
        }
        let suspended_until = match self.suspended() {
            Some(suspension) => {
                let blocked = suspension.is_blocked(now); // each request restarts it
                let penalty = if blocked { nanos(self.options.overflow.penalty()) } else { 0 };
                suspension.ready_at(now, cost).max(now.plus(penalty))
            }
            None => now,
        };
        let decision = match suspended_until {
            until if until <= now => decision,
            until => decision.held_back(until, now),
        };
        if self.queue.is_empty() {
            return decision;
        }
        let decision = decision.behind_others();
        match self.turn_of_new_request(now, cost) {
            Some(turn) => decision.at_turn(turn, now),
            None => decision,
        }
    }

    /// When a new request behind all waiters would be granted `cost`, if no other came: exact, from a forecast of all grants
    /// before it. [`Moment::NEVER`] if only a release or a resume helps, or if it never happens. `None` if there are too many
    /// waiters to compute it.
    fn turn_of_new_request(&self, now: Moment, cost: u64) -> Option<Moment> {
        let max = self.gate.max_cost();
        if self.queue.len() > MAX_FORECAST {
            return None;
        }
        if cost > max {
            return Some(Moment::NEVER);
        }
        let mut forecast = self.gate.forecast(now, self.suspended(), std::iter::empty());
        for (_, cost, deadline) in self.queue.waiting().filter(|waiter| waiter.1 <= max && waiter.2 >= now) {
            if deadline < forecast.now() || forecast.take(cost, deadline) {
                continue;
            }
            if forecast.ready_at(cost) == Moment::NEVER {
                return Some(Moment::NEVER);
            }
        }
        Some(forecast.ready_at(cost))
    }

    /// The numbers of the limiter.
    pub(crate) fn snapshot(&self, now: Moment) -> LimiterSnapshot {
        let next = if self.queue.is_empty() {
            match self.gate.decide(now, 0, 1) {
                decision if decision.is_allowed() => Some(now),
                decision => decision.retry_after().map(|_| self.gate.ready_at(now, 0, 1)),
            }
        } else {
            self.front_ready_at.known()
        };
        let suspended_until =
            self.suspended().map_or(now, |suspension| suspension.ready_at(now, self.queue.front().map_or(1, |front| front.cost)));
        let next = next.and_then(|next| next.max(suspended_until).known());
        let counts = self.counts.as_deref().copied().unwrap_or_default();
        LimiterSnapshot {
            in_flight: self.gate.in_flight(),
            concurrency: self.gate.concurrency(now),
            queued: self.queue.len() as u64,
            granted: self.gate.granted(),
            denied: counts.denied,
            shed: counts.shed,
            timed_out: counts.timed_out,
            reclaimed: counts.reclaimed,
            refunded: counts.refunded,
            paused_for: self.suspended().and_then(|suspension| suspension.paused_for(now)),
            next_grant_in: next.filter(|_| !self.closed).map(|next| next.duration_since(now)),
        }
    }
}
