//! How waiters are refused: at their deadline, when they can never be granted, when the queue is emptied or full.

use super::authority::Authority;
use super::outlook::Outlook;
use crate::core::effects::Effects;
use crate::core::queue::{WaiterId, Waiters};
use crate::core::request::{Costs, Refused, Request};
use crate::error::AcquireError;
use crate::event::ShedReason;
use crate::strategy::Moment;

/// A schedule at one instant, to refuse requests.
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
        let waiting = self.waiters.queue.waiting().take(MAX_CHECKED);
        for (id, costs, deadline) in waiting.filter(|waiter| gate.limits().fits(waiter.1).is_ok()) {
            if deadline < forecast.now() || !forecast.take(costs, deadline.min(now)) {
                if deadline >= now {
                    break; // it keeps waiting, and so do those behind it
                }
                late.push(id);
            }
        }
        drop(forecast);
        for id in late {
            self.refuse_expired(id);
        }
    }

    /// Refuses a waiter whose deadline has passed.
    fn refuse_expired(&mut self, id: WaiterId) {
        let by_unit = self.waiters.queue.unit_costs(id);
        let Some(request) = self.waiters.queue.request(id, &by_unit) else {
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
            let by_unit = self.waiters.queue.unit_costs(id);
            let costs = Costs::new(self.waiters.queue.cost(id), &by_unit);
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
        let by_unit = self.waiters.queue.unit_costs(id);
        let Some(request) = self.waiters.queue.request(id, &by_unit) else {
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
        let by_unit = self.waiters.queue.unit_costs(id);
        let costs = Costs::new(0, &by_unit);
        let refused = self.outlook().refusal(self.now, costs, error);
        self.waiters.refuse(id, refused, self.effects);
    }

    /// The units of the waiters that go before a new request like this one, after this waiter has left.
    fn units_before(&self, request: &Request<'_>) -> u64 {
        let ahead = self.waiters.queue.units_ahead_of(request.priority);
        ahead.saturating_sub(request.costs.plain)
    }
}
