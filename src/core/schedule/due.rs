//! What is done when time has passed, or when something has changed for the waiters.

use super::Schedule;
use crate::core::costs::Costs;
use crate::core::effects::{Effects, Happening};
use crate::core::grant::Grant;
use crate::core::queue::Front;
use crate::core::suspension::Suspension;
use crate::core::waiter::WaiterId;
use crate::error::AcquireError;
use crate::event::ShedReason;
use crate::strategy::Moment;

impl Schedule {
    /// Something has changed for the front of the queue.
    pub(super) fn reevaluate_front(&mut self, now: Moment, effects: &mut Effects) {
        if !self.queue.is_empty() {
            self.front_ready_at = now;
        }
        self.run_due(now, effects);
    }

    /// Does what was due before an input, which must not change how that ends: the timer may be late, or no runtime with a driver
    /// may be left. No timer runs for the end of a pause while no request waits.
    #[inline]
    pub(super) fn catch_up(&mut self, now: Moment, effects: &mut Effects) {
        if self.is_due(now) {
            self.run_due(now, effects);
        }
    }

    /// Whether [`Schedule::run_due`] has something to do.
    #[inline]
    pub(crate) fn is_due(&self, now: Moment) -> bool {
        let is_over = |suspension: &Suspension| suspension.is_over(now) || suspension.has_paused(now);
        self.next_wake() <= now || self.suspension.as_deref().is_some_and(is_over)
    }

    /// Does what is due, in the order of time; at one instant, permits are reclaimed first, then the front is served, then
    /// waiters at their deadline are refused, so that a grant wins a tie with a deadline.
    ///
    /// A timer may be late, by any time. Whether a waiter is granted or refused is decided as of the instant at which it was due
    /// ([`Schedule::refuse_late`]); but a grant is charged at `now`, when it is made. If it were charged at the instant at which
    /// it was due, several grants that were due one after another would be made at once, and a window that starts now would hold
    /// more than its limit. Charged at `now`, each is admitted like any other grant, so no limit is exceeded. The price: of
    /// several late grants, the rate may admit only the first. The other waiters then wait for the rate, or are refused if their
    /// deadline has passed.
    pub(crate) fn run_due(&mut self, now: Moment, effects: &mut Effects) {
        if !self.serving && self.queue.next_deadline() < now && !self.refuses_waiters() && !self.dropping {
            self.refuse_late(now, effects);
        }
        if self.suspension.is_some() {
            self.end_suspension(now, effects);
        }
        while let Some(lease) = (!effects.is_full()).then(|| self.gate.reclaim_one(now)).flatten() {
            self.counts().reclaimed += 1;
            effects.reclaim(&lease);
            if self.is_observed() {
                effects.tell(Happening::Reclaimed(lease));
            }
        }
        if self.refuses_waiters() || self.dropping {
            self.refuse_all(now, effects);
            if self.dialogue.is_some() && self.queue.is_empty() {
                self.serve_by_store(now, effects); // what came back is to be told
            }
            return;
        }
        if !self.queue.is_swept() {
            self.refuse_impossible(now, effects);
        }
        self.serve(now, effects);
        if self.queue.next_deadline() <= now {
            self.refuse_all_expired(now, effects);
        }
        effects.unfinished = effects.is_full() || !self.queue.is_swept();
    }

    /// Ends what has ended by itself.
    #[cold]
    fn end_suspension(&mut self, now: Moment, effects: &mut Effects) {
        let Some(suspension) = &mut self.suspension else { return };
        let ended = suspension.end_pauses(now);
        if suspension.is_over(now) {
            self.suspension = None;
        }
        for ended in ended.into_iter().flatten() {
            self.tell_resume(now, ended, effects);
        }
    }

    /// Refuses those whose time is up; each may have held back those behind it.
    #[cold]
    fn refuse_all_expired(&mut self, now: Moment, effects: &mut Effects) {
        while let Some(id) = self.queue.expired(now).filter(|_| !effects.is_full()) {
            self.refuse_expired(now, id, effects);
            if self.front_ready_at <= now {
                self.serve(now, effects);
            }
        }
    }

    /// Refuses waiters whose deadline passed before `now` and before their turn. A [forecast](crate::core::forecast) finds what
    /// an undelayed timer would have done since.
    ///
    /// It checks a bounded number of waiters, so that the lock is not held for long. Those behind them are decided as of `now`.
    #[cold]
    fn refuse_late(&mut self, now: Moment, effects: &mut Effects) {
        const MAX_CHECKED: usize = 256;
        // Since the last input, nothing has happened except what is due from this instant on.
        let mut forecast = self.gate.forecast(self.next_wake(), self.suspended(), self.gate.reclaims());
        let mut late = Vec::new();
        for (id, costs, deadline) in self.queue.waiting().take(MAX_CHECKED).filter(|waiter| self.gate.fits(waiter.1).is_ok()) {
            if deadline < forecast.now() || !forecast.take(costs, deadline.min(now)) {
                if deadline >= now {
                    break; // it keeps waiting, and so do those behind it
                }
                late.push(id);
            }
        }
        drop(forecast);
        for id in late {
            self.refuse_expired(now, id, effects);
        }
    }

    /// Grants to the waiters, in order, as far as the gate admits. Only the front is checked: requests behind it wait, however
    /// small their cost, because otherwise a large one would starve.
    #[inline(always)]
    fn serve(&mut self, now: Moment, effects: &mut Effects) {
        if self.dialogue.is_some() {
            return self.serve_by_store(now, effects);
        }
        let before = std::mem::replace(&mut self.front_ready_at, Moment::NEVER);
        self.serving = false;
        let mut moved = false;
        while let Some(front) = self.queue.front() {
            if effects.is_full() {
                (self.front_ready_at, self.serving) = (now, true);
                return;
            }
            let admitted = if front.id.names_units() {
                self.admit_named(now, front)
            } else {
                self.admit_front(now, Costs::plain(front.cost), front.caller)
            };
            match admitted {
                Ok(grant) => {
                    self.undelivered += u32::from(!grant.claim.holds_place());
                    moved = true;
                    if self.queue.knows_arrivals() {
                        self.tell_grant(now, front, grant.fence, effects);
                    }
                    effects.wake(self.queue.grant(front.id, grant));
                }
                Err(until) => {
                    self.front_ready_at = until;
                    if front.id.is_blocking() && (moved || before != until) {
                        // Its thread runs the timer for all, and must learn when to wake.
                        effects.wake(self.queue.take_waker(front.id));
                    }
                    return;
                }
            }
        }
    }

    /// Admits the front, which names units.
    #[cold]
    fn admit_named(&mut self, now: Moment, front: Front) -> Result<Grant, Moment> {
        let by_unit = self.queue.unit_costs(front.id);
        let costs = Costs::new(front.cost, &by_unit);
        let grant = self.admit_front(now, costs, front.caller)?;
        self.explain(now, costs, grant.fence);
        Ok(grant)
    }

    /// Refuses a waiter whose deadline has passed.
    fn refuse_expired(&mut self, now: Moment, id: WaiterId, effects: &mut Effects) {
        let by_unit = self.queue.unit_costs(id);
        let Some(request) = self.queue.request(id, &by_unit) else { return };
        let others = self.queue.units_ahead_of(request.priority).saturating_sub(request.costs.plain);
        let turn = self.reported_ready_at(now, others, request.costs);
        let refused = self.time_out(now, others, turn, &request, Some(id), effects);
        if self.queue.is_front(id) {
            self.front_ready_at = now;
        }
        effects.wake(self.queue.refuse(id, refused));
    }

    /// Refuses waiters whose cost the plan can never admit. It runs before the front is served, and checks more waiters than a
    /// batch can serve, so none of them comes to the front.
    #[cold]
    fn refuse_impossible(&mut self, now: Moment, effects: &mut Effects) {
        /// Waiters checked before the lock is released.
        const STEPS: usize = if cfg!(test) { 7 } else { 1_024 };
        let mut steps = STEPS;
        while !effects.is_full()
            && let Some((id, misfit)) = self.queue.next_misfit(|costs| self.gate.fits(costs), &mut steps)
        {
            self.refuse_waiter(now, id, misfit.into(), effects);
        }
    }

    /// Refuses all waiters: the limiter is closed, or its queue has overflowed.
    fn refuse_all(&mut self, now: Moment, effects: &mut Effects) {
        while let Some(front) = self.queue.front().filter(|_| !effects.is_full()) {
            if self.refuses_waiters() {
                self.asks_no_more(front.id);
                self.refuse_waiter(now, front.id, AcquireError::Closed, effects);
            } else {
                self.drop_waiter(now, front.id, effects);
            }
        }
        self.dropping = !self.queue.is_empty();
        self.front_ready_at = if self.dropping { now } else { Moment::NEVER };
        effects.unfinished = effects.is_full();
    }

    /// Drops a waiter from a full queue.
    pub(super) fn drop_waiter(&mut self, now: Moment, id: WaiterId, effects: &mut Effects) {
        let by_unit = self.queue.unit_costs(id);
        let Some(request) = self.queue.request(id, &by_unit) else { return };
        self.shed(&request, ShedReason::Dropped, effects);
        self.asks_no_more(id);
        // It is still among the waiters, and of an overflow all of them are dropped.
        let ahead =
            if self.dropping { 0 } else { self.queue.units_ahead_of(request.priority).saturating_sub(request.costs.plain) };
        let retry_after = self.retry_after(now, ahead, request.costs);
        self.refuse_waiter(now, id, AcquireError::Shed { retry_after }, effects);
    }
}
