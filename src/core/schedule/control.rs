//! What changes for those that wait, besides a release: a permit that is settled, another policy, a pause, the end.

use std::sync::Arc;

use super::Schedule;
use crate::carry_over::UsageCarryOver;
use crate::core::effects::Effects;
use crate::core::grant::Admission;
use crate::core::plan::Plan;
use crate::strategy::{Moment, Outcome as WorkOutcome};

impl Schedule {
    /// A permit of `cost` comes back whose work took `actual` units. Tells whether it was live: of one that was reclaimed before,
    /// nothing changes.
    pub(crate) fn settle(&mut self, now: Moment, admission: Admission, cost: u64, actual: u64, effects: &mut Effects) -> bool {
        self.catch_up(now, effects);
        let live = self.take_back(now, admission, cost, actual);
        self.reevaluate_front(now, effects);
        live
    }

    /// The gate, and an upstream's quota that is spread out, are settled with. Tells whether the grant was live.
    pub(super) fn take_back(&mut self, now: Moment, admission: Admission, cost: u64, actual: u64) -> bool {
        let live = self.gate.settle(now, admission, cost, actual).is_some();
        self.refunded += u64::from(live && actual == 0);
        if let Some(suspension) = self.suspension.as_mut().filter(|_| live) {
            suspension.settle(admission.fence, cost, actual, self.gate.granted());
        }
        live
    }

    /// A permit of `cost` comes back, and its holder says how its work went. Tells whether it was live.
    pub(crate) fn report(
        &mut self,
        now: Moment,
        admission: Admission,
        cost: u64,
        rtt_nanos: Option<u64>,
        outcome: WorkOutcome,
        effects: &mut Effects,
    ) -> bool {
        self.catch_up(now, effects);
        let live = self.gate.report(now, admission, cost, rtt_nanos, outcome).is_some();
        self.reevaluate_front(now, effects);
        live
    }

    /// Replaces the plan: see [`Gate::set_plan`]. Waiters that ask for more than the new one ever admits are refused, in batches
    /// and wherever one comes to the front before.
    pub(crate) fn set_plan(&mut self, now: Moment, plan: impl Into<Arc<Plan>>, carry: UsageCarryOver, effects: &mut Effects) {
        self.catch_up(now, effects);
        let former_max = self.gate.max_cost();
        self.gate.set_plan(plan, now, carry);
        if self.gate.max_cost() < former_max {
            self.queue.sweep();
        }
        self.reevaluate_front(now, effects);
    }

    /// Grants nothing until then, or until [`Schedule::resume`].
    pub(crate) fn pause(&mut self, now: Moment, until: Moment, effects: &mut Effects) {
        self.catch_up(now, effects);
        self.suspension.get_or_insert_default().pause(until);
        self.reevaluate_front(now, effects);
    }

    pub(crate) fn resume(&mut self, now: Moment, effects: &mut Effects) {
        self.catch_up(now, effects);
        if let Some(suspension) = &mut self.suspension {
            suspension.resume();
            self.reevaluate_front(now, effects);
        }
    }

    /// An upstream has so many units left until its quota is new: if they are few, they are spread out.
    pub(crate) fn spread(&mut self, now: Moment, units: u64, until: Moment, effects: &mut Effects) {
        self.catch_up(now, effects);
        if units < self.spread_below {
            self.suspension.get_or_insert_default().spread(now, units, until, self.gate.granted());
            self.reevaluate_front(now, effects);
        }
    }

    /// Charges units that nobody asked for.
    pub(crate) fn charge(&mut self, now: Moment, units: u64, effects: &mut Effects) {
        self.catch_up(now, effects);
        self.gate.charge(now, units);
        self.reevaluate_front(now, effects);
    }

    /// Lets off up to so many units, whenever they were charged.
    pub(crate) fn forgive(&mut self, now: Moment, units: u64, effects: &mut Effects) {
        self.catch_up(now, effects);
        self.gate.forgive(now, units);
        self.reevaluate_front(now, effects);
    }

    /// Makes all limits of time as good as new; what is out stays out.
    pub(crate) fn reset(&mut self, now: Moment, effects: &mut Effects) {
        self.catch_up(now, effects);
        self.gate.reset(now);
        self.reevaluate_front(now, effects);
    }

    /// Refuses every request from now on, the waiters first.
    pub(crate) fn close(&mut self, now: Moment, effects: &mut Effects) {
        self.catch_up(now, effects);
        self.closed = true;
        self.run_due(now, effects);
    }
}
