//! Inputs that affect waiters besides a release: a settled permit, another policy, a pause, closing.

use std::num::NonZeroU64;
use std::sync::Arc;

use super::Schedule;
use crate::carry_over::UsageCarryOver;
use crate::core::arena::Index;
use crate::core::costs::Actual;
use crate::core::effects::Effects;
use crate::core::grant::Grant;
use crate::core::plan::Plan;
use crate::core::suspension::{Hold, Scope};
use crate::strategy::{Counts, Moment, Outcome};

impl Schedule {
    /// Releases a permit of `cost` whose work really cost `actual`. Returns whether it was live; a reclaimed permit changes nothing.
    pub(crate) fn settle(&mut self, now: Moment, grant: Grant, cost: u64, actual: Actual<'_>, effects: &mut Effects) -> bool {
        self.catch_up(now, effects);
        let live = self.take_back(now, grant, cost, actual);
        self.reevaluate_front(now, effects);
        live
    }

    /// Settles the grant with the gate and with a spread upstream quota. Returns whether the grant was live.
    pub(super) fn take_back(&mut self, now: Moment, grant: Grant, cost: u64, actual: Actual<'_>) -> bool {
        let live = self.gate.settle(now, grant, cost, actual).is_some();
        let is_refund = match actual {
            Actual::Nothing => true,
            Actual::Cost(actual) => actual == 0 && !self.gate.counts_by_unit(),
            Actual::Units(_) => false,
        };
        if live && is_refund {
            self.counts().refunded += 1;
        }
        if let Some(suspension) = self.suspension.as_mut().filter(|_| live) {
            suspension.settle(grant.fence, cost, actual.of(Counts::Cost, cost), self.gate.granted());
        }
        live
    }

    /// Releases a permit of `cost` with a report on its work. Returns whether it was live.
    pub(crate) fn report(
        &mut self,
        now: Moment,
        grant: Grant,
        cost: u64,
        rtt_nanos: Option<u64>,
        outcome: Outcome,
        effects: &mut Effects,
    ) -> bool {
        self.catch_up(now, effects);
        let known = self.known_limit(now);
        let live = self.gate.report(now, grant, cost, rtt_nanos, outcome).is_some();
        self.tell_limit(now, known, effects);
        self.reevaluate_front(now, effects);
        live
    }

    /// Gives a permit a TTL of its own; see [`Leases::set_own_ttl`](crate::core::lease::Leases::set_own_ttl). A waiter may get its
    /// place sooner.
    pub(crate) fn set_own_ttl(
        &mut self,
        now: Moment,
        (index, fence): (Index, u64),
        own: NonZeroU64,
        renews: bool,
        effects: &mut Effects,
    ) -> bool {
        self.catch_up(now, effects);
        let live = self.gate.set_own_ttl(index, fence, now, own, renews);
        self.reevaluate_front(now, effects);
        live
    }

    /// Replaces the plan; see [`Gate::set_plan`](crate::core::gate::Gate::set_plan). Waiters whose cost the new plan can never
    /// admit are refused, in batches.
    pub(crate) fn set_plan(&mut self, now: Moment, plan: impl Into<Arc<Plan>>, carry: UsageCarryOver, effects: &mut Effects) {
        self.catch_up(now, effects);
        let (former_max, counted_by_unit) = (self.gate.max_cost(), self.gate.counts_by_unit());
        let former = self.policy().clone();
        let only_places = former.only_places();
        self.gate.set_plan(plan, now, carry);
        self.tell_policy(former, effects);
        if self.gate.max_cost() < former_max || counted_by_unit || self.gate.counts_by_unit() {
            self.queue.sweep();
        }
        self.reevaluate_front(now, effects);
        if self.policy().only_places() && !only_places {
            // A stream that holds no permits must not wait for a place.
            self.queue.take_wakers(None).into_iter().for_each(|waker| effects.wake(Some(waker)));
        }
    }

    /// Grants nothing until this moment, or until [`Schedule::resume`].
    pub(crate) fn pause(&mut self, now: Moment, scope: Scope, until: Moment, effects: &mut Effects) {
        self.catch_up(now, effects);
        if until > now && self.suspension.get_or_insert_default().pause(scope, until) {
            self.tell_pause(now, until, effects);
        }
        self.reevaluate_front(now, effects);
    }

    pub(crate) fn resume(&mut self, now: Moment, scope: Scope, effects: &mut Effects) {
        self.catch_up(now, effects);
        if let Some(suspension) = &mut self.suspension {
            if suspension.resume(scope) {
                self.tell_resume(now, now, effects);
            }
            self.reevaluate_front(now, effects);
        }
    }

    pub(crate) fn is_paused(&self, now: Moment) -> bool {
        self.suspended().is_some_and(|suspension| suspension.paused_for(now).is_some())
    }

    /// An upstream has this many units remaining until its quota resets; if they are few, they are spread out.
    pub(crate) fn spread(&mut self, now: Moment, units: u64, until: Moment, effects: &mut Effects) {
        self.catch_up(now, effects);
        if units < self.options.spread_below {
            self.suspension.get_or_insert_default().spread(now, units, until, self.gate.granted());
            self.reevaluate_front(now, effects);
        }
    }

    /// Charges units without a request.
    pub(crate) fn charge(&mut self, now: Moment, units: u64, effects: &mut Effects) {
        self.catch_up(now, effects);
        self.gate.charge(now, units);
        self.reevaluate_front(now, effects);
    }

    /// Refunds up to this many units, whenever they were charged.
    pub(crate) fn forgive(&mut self, now: Moment, units: u64, effects: &mut Effects) {
        self.catch_up(now, effects);
        self.gate.forgive(now, units);
        self.reevaluate_front(now, effects);
    }

    /// Resets all limits of time; permits in flight stay in flight.
    pub(crate) fn reset(&mut self, now: Moment, effects: &mut Effects) {
        self.catch_up(now, effects);
        self.gate.reset(now);
        self.reevaluate_front(now, effects);
    }

    /// A new schedule, held back like all keys.
    pub(crate) fn held_back(mut self, Hold { closed, paused_until }: Hold) -> Self {
        self.closed = closed;
        if let Some(until) = paused_until {
            self.suspension.get_or_insert_default().pause(Scope::AllKeys, until);
        }
        self
    }

    /// Refuses every request from now on, the waiters first.
    pub(crate) fn close(&mut self, now: Moment, effects: &mut Effects) {
        self.catch_up(now, effects);
        self.serves_the_rest = false;
        if !std::mem::replace(&mut self.closed, true) {
            self.tell_close(effects);
        }
        self.run_due(now, effects);
    }

    /// Refuses every later request. Those that wait are served.
    pub(crate) fn close_to_new(&mut self, now: Moment, effects: &mut Effects) {
        self.catch_up(now, effects);
        if !std::mem::replace(&mut self.closed, true) {
            self.serves_the_rest = true;
            self.tell_close(effects);
        }
    }
}
