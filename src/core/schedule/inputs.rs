//! Inputs other than requests: a permit that is released, another policy, a pause, closing.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use super::Schedule;
use super::authority::Authority;
use crate::carry_over::UsageCarryOver;
use crate::core::arena::Index;
use crate::core::effects::Effects;
use crate::core::gate::Gate;
use crate::core::gate::lease::Lease;
use crate::core::gate::plan::Plan;
use crate::core::queue::WaiterId;
use crate::core::request::{Actual, Claim, Grant, WorkReport};
use crate::core::session::PolicyTerms;
use crate::core::suspension::{AllKeysHold, PauseScope};
use crate::event::EventKind;
use crate::permit_id::PermitId;
use crate::policy::Policy;
use crate::strategy::{Counts, Moment};

/// Ends of permits: released, or given up before they were taken.
impl Schedule {
    /// Gives up a queued request of `cost`, for its owner. The request leaves the queue, or its grant is refunded.
    pub(crate) fn abandon(&mut self, now: Moment, id: WaiterId, cost: u64, effects: &mut Effects) {
        self.catch_up(now, effects);
        let was_front = self.waiters.queue.is_front(id);
        if let Some(waker) = self.waiters.queue.remove(id) {
            self.waiters.untaken.free_slot(id);
            effects.discard(waker);
            if was_front {
                self.waiters.front_ready_at = now; // the front has changed: check again
                self.run_due(now, effects);
            }
        } else if let Some(Ok(grant)) = self.waiters.untaken.take(id) {
            self.waiters.untaken.take_explanation(grant.fence);
            if self.take_back(now, grant, cost, Actual::Nothing, None) {
                self.run_due(now, effects);
            }
        }
    }

    /// Releases a permit; nothing happens if it was reclaimed before. `false`, without a change: a request waits for it, and
    /// [`Schedule::release_to_next`] must be called.
    #[inline(always)]
    pub(crate) fn release(&mut self, fence: u64, cost: u64, claim: Claim) -> bool {
        match &mut self.authority {
            Authority::Local(gate) if self.waiters.leave_releases_to_gate() => {
                // A late release changes nothing, but it is reported to an observer by effects.
                gate.release(fence, cost, claim).is_some() || !self.waiters.options.observed
            }
            _ => false,
        }
    }

    /// [`Schedule::release_to_next`] in the common case: all places are out, and the front asks for as many as are released.
    /// Returns its waker. `None`, without a change, in any other case.
    #[inline(always)]
    pub(crate) fn pass_on(&mut self, cost: u64, claim: Claim) -> Option<Waker> {
        let is_something_due =
            self.next_wake() != Moment::NEVER || self.waiters.closed || self.waiters.dropping;
        if claim != Claim::PLACE || is_something_due || self.waiters.suspension.is_some() {
            return None;
        }
        let Self { waiters, authority } = self;
        let Authority::Local(gate) = authority else {
            return None;
        };
        let fence = gate.passed_on()?;
        let (id, waker) = waiters.queue.pop_plain(cost)?;
        gate.set_granted(fence);
        waiters.untaken.grant(id, Grant::of_place(fence));
        Some(waker)
    }

    /// [`Schedule::release`], and serves the waiters as far as the gate admits them.
    pub(crate) fn release_to_next(
        &mut self,
        now: Moment,
        fence: u64,
        cost: u64,
        claim: Claim,
        effects: &mut Effects,
    ) {
        self.catch_up(now, effects);
        let release = |gate: &mut Gate| gate.release(fence, cost, claim);
        if self.authority.end(fence, claim, release).is_some() {
            self.waiters.note_end(fence);
            self.run_due(now, effects);
        } else if self.waiters.options.observed {
            let id = PermitId::new(0, fence);
            effects.tell(EventKind::ReleasedLate { id, fence, cost });
        }
    }

    /// Records that a permit will never be released.
    pub(crate) fn forget(&mut self, fence: u64, claim: Claim) {
        self.authority.forget(fence, claim);
    }

    /// Releases units that permits held. The caller then serves the queue: see [`Schedule::release`].
    pub(crate) fn return_units(&mut self, units: u64) {
        self.authority.gate_mut().return_units(units);
    }

    /// Releases a permit of `cost` whose work really cost `actual`, with a report on it, if there is one. Returns whether it was live;
    /// a reclaimed permit changes nothing.
    pub(crate) fn settle(
        &mut self,
        now: Moment,
        grant: Grant,
        cost: u64,
        (actual, report): (Actual<'_>, Option<WorkReport>),
        effects: &mut Effects,
    ) -> bool {
        self.catch_up(now, effects);
        self.ending_permit(now, effects, |schedule| {
            schedule.take_back(now, grant, cost, actual, report)
        })
    }

    /// Settles the grant with the authority and with a spread upstream quota. Returns whether the grant was live.
    fn take_back(
        &mut self,
        now: Moment,
        grant: Grant,
        cost: u64,
        actual: Actual<'_>,
        report: Option<WorkReport>,
    ) -> bool {
        let settled = self.authority.settle(now, grant, cost, actual, report);
        let live = settled.is_some();
        if live {
            self.waiters.note_end(grant.fence);
        }
        let gate = self.authority.gate();
        let is_refund = match actual {
            Actual::Nothing => true,
            Actual::Cost(actual) => actual == 0 && !gate.limits().counts_by_unit(),
            Actual::Costs { .. } => false,
        };
        if live && is_refund {
            self.waiters.counts_mut().refunded += 1;
        }
        if let Some(suspension) = self.waiters.suspension.as_deref_mut().filter(|_| live) {
            let actual = actual.of(Counts::Cost, cost);
            suspension.settle(grant.fence, cost, actual, gate.granted());
        }
        live
    }

    /// Releases a permit of `cost` with a report on its work. Returns whether it was live.
    pub(crate) fn report(
        &mut self,
        now: Moment,
        grant: Grant,
        cost: u64,
        report: WorkReport,
        effects: &mut Effects,
    ) -> bool {
        self.catch_up(now, effects);
        self.ending_permit(now, effects, |schedule| {
            let report = |gate: &mut Gate| gate.report(now, grant, cost, report);
            let reported = schedule.authority.end(grant.fence, grant.claim, report);
            if reported.is_some() {
                schedule.waiters.note_end(grant.fence);
            }
            reported.is_some()
        })
    }

    /// Ends a permit, reports the limit of an adaptive concurrency if it has moved with that, and serves the waiters.
    fn ending_permit(
        &mut self,
        now: Moment,
        effects: &mut Effects,
        end: impl FnOnce(&mut Self) -> bool,
    ) -> bool {
        let gate = self.authority.gate();
        let reported = self
            .waiters
            .reported_limit(|| gate.limits().concurrency(now));
        let live = end(self);
        let present = self.authority.gate().limits().concurrency(now);
        self.waiters.tell_limit(reported, present, effects);
        self.reevaluate_front(now, effects);
        live
    }

    /// Gives a permit a TTL of its own; see [`Leases::set_own_ttl`](crate::core::gate::lease::Leases::set_own_ttl). A waiter may get its
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
        let live = self.authority.change_lease(now, (index, fence), |gate| {
            gate.set_own_ttl(index, fence, now, own, renews)
        });
        self.reevaluate_front(now, effects);
        live
    }

    /// Restarts the TTL of a permit. Returns whether it is live.
    pub(crate) fn renew(&mut self, now: Moment, index: Index, fence: u64) -> bool {
        self.authority
            .change_lease(now, (index, fence), |gate| gate.renew(index, fence, now))
    }

    /// The lease of a permit, while it is live.
    pub(crate) fn live_lease(
        &mut self,
        now: Moment,
        index: Index,
        fence: u64,
    ) -> Option<&mut Lease> {
        self.authority.gate_mut().live_lease(index, fence, now)
    }
}

/// What decides, and what holds requests back.
impl Schedule {
    /// Replaces the plan; see [`Gate::set_plan`](crate::core::gate::Gate::set_plan). Waiters whose cost the new plan can never
    /// admit are refused, in batches.
    pub(crate) fn set_plan(
        &mut self,
        now: Moment,
        plan: impl Into<Arc<Plan>>,
        carry: UsageCarryOver,
        effects: &mut Effects,
    ) {
        self.catch_up(now, effects);
        let former = self.authority.gate().limits().policy().clone();
        self.authority.gate_mut().set_plan(plan, now, carry);
        let policy = self.authority.gate().limits().policy();
        self.waiters.tell_policy(former.clone(), policy, effects);
        self.policy_changed(now, &former, effects);
    }

    /// Replaces the policy of limits in a store by a later revision.
    pub(crate) fn adopt(&mut self, now: Moment, terms: &Arc<PolicyTerms>, effects: &mut Effects) {
        self.catch_up(now, effects);
        let former = self.authority.gate().limits().policy().clone();
        if self.authority.adopt(now, terms) {
            let policy = self.authority.gate().limits().policy();
            if former != *policy {
                self.waiters.tell_policy(former.clone(), policy, effects);
            }
            self.policy_changed(now, &former, effects);
        }
    }

    /// Refuses or serves waiters under another policy.
    fn policy_changed(&mut self, now: Moment, former: &Policy, effects: &mut Effects) {
        let limits = self.authority.gate().limits();
        let only_places = former.only_places();
        self.waiters
            .queue
            .find_misfits(|costs| limits.fits(costs).is_ok());
        self.reevaluate_front(now, effects);
        if self.authority.gate().limits().policy().only_places() && !only_places {
            // A stream that holds no permits must not wait for a place.
            self.waiters
                .queue
                .take_wakers(None)
                .into_iter()
                .for_each(|waker| effects.wake(Some(waker)));
        }
    }

    /// Grants nothing until this moment, or until [`Schedule::resume`].
    pub(crate) fn pause(
        &mut self,
        now: Moment,
        scope: PauseScope,
        until: Moment,
        effects: &mut Effects,
    ) {
        self.catch_up(now, effects);
        if until > now {
            let held_for = until
                .known()
                .map_or(Duration::MAX, |until| until.duration_since(now));
            if self
                .waiters
                .suspension
                .get_or_insert_default()
                .pause(scope, until)
            {
                self.waiters.tell(effects, || EventKind::Paused {
                    paused_for: held_for,
                });
            }
            self.authority.note_hold(Some(held_for), effects);
        }
        self.reevaluate_front(now, effects);
    }

    pub(crate) fn resume(&mut self, now: Moment, scope: PauseScope, effects: &mut Effects) {
        self.catch_up(now, effects);
        self.authority.note_hold(None, effects);
        if let Some(suspension) = self.waiters.suspension.as_deref_mut() {
            if suspension.resume(scope) {
                self.waiters.tell_resume(now, now, effects);
            }
            self.reevaluate_front(now, effects);
        }
    }

    /// Records that an upstream has this many units remaining until its quota resets; if they are few, they are spread out.
    pub(crate) fn spread(&mut self, now: Moment, units: u64, until: Moment, effects: &mut Effects) {
        self.catch_up(now, effects);
        if units < self.waiters.options.spread_below {
            let granted = self.authority.gate().granted();
            self.waiters
                .suspension
                .get_or_insert_default()
                .spread(now, units, until, granted);
            self.reevaluate_front(now, effects);
        }
    }

    /// Charges units without a request.
    pub(crate) fn charge(&mut self, now: Moment, units: u64, effects: &mut Effects) {
        self.catch_up(now, effects);
        self.authority.charge(now, units);
        self.reevaluate_front(now, effects);
    }

    /// Refunds up to this many units, whenever they were charged.
    pub(crate) fn forgive(&mut self, now: Moment, units: u64, effects: &mut Effects) {
        self.catch_up(now, effects);
        self.authority.gate_mut().forgive(now, units);
        self.reevaluate_front(now, effects);
    }

    /// Resets all limits of time; permits in flight stay in flight.
    pub(crate) fn reset(&mut self, now: Moment, effects: &mut Effects) {
        self.catch_up(now, effects);
        self.authority.gate_mut().reset(now);
        self.reevaluate_front(now, effects);
    }

    /// Holds a new schedule back as all keys are held back.
    pub(crate) fn held_back(
        mut self,
        AllKeysHold {
            closed,
            paused_until,
        }: AllKeysHold,
    ) -> Self {
        if closed {
            self.waiters.close(false, &mut Effects::default()); // no observer has seen it open
        }
        if let Some(until) = paused_until {
            self.waiters
                .suspension
                .get_or_insert_default()
                .pause(PauseScope::AllKeys, until);
        }
        self
    }

    /// Refuses every later request. Those that wait are served if it `drains`, and refused if not.
    pub(crate) fn close(&mut self, now: Moment, drains: bool, effects: &mut Effects) {
        self.catch_up(now, effects);
        self.waiters.close(drains, effects);
        self.authority.note_hold(Some(Duration::MAX), effects);
        if !drains {
            self.run_due(now, effects);
        }
    }
}
