//! What a keyed limiter does with the manager of one key.

use std::sync::Arc;

use super::{Clock, Manager};
use crate::gate::Carry;
use crate::plan::Plan;
use crate::policy::Policy;
use crate::schedule::Schedule;
use crate::strategy::{Moment, Words};

/// A manager that nobody needs.
#[derive(Debug)]
pub(crate) struct Rest {
    pub(crate) policy: Policy,
    /// The states of all limits; `None` where one is more than words.
    pub(crate) states: Option<Vec<Words>>,
    /// When it is as good as new; [`Moment::NEVER`] where time does not make it so.
    pub(crate) reset_at: Moment,
    /// It is so now.
    pub(crate) is_new: bool,
    pub(crate) fence: u64,
    pub(crate) clock: Clock,
}

impl Manager {
    /// [`Manager::set_policy`] with its plan, if it goes by another one.
    pub(crate) fn go_by(self: &Arc<Self>, policy: &Policy, plan: &Plan) {
        if self.lock().schedule.gate().policy() != policy {
            self.act_timed(|schedule, now, effects| schedule.set_plan(now, plan.clone(), Carry::AsIs, effects));
        }
    }

    pub(crate) fn charge(self: &Arc<Self>, units: u64) {
        self.act_timed(|schedule, now, effects| schedule.charge(now, units, effects));
    }

    pub(crate) fn forgive(self: &Arc<Self>, units: u64) {
        self.act_timed(|schedule, now, effects| schedule.forgive(now, units, effects));
    }

    pub(crate) fn reset(self: &Arc<Self>) {
        self.act_timed(Schedule::reset);
    }

    /// The most units that stand against any of the limits.
    pub(crate) fn used(&self) -> u64 {
        let mut desk = self.lock();
        let now = desk.now().0;
        desk.schedule.gate().used(now)
    }

    /// All that it knows, when nobody waits and nothing is out.
    pub(crate) fn rest(&self) -> Option<Rest> {
        let mut desk = self.lock();
        let now = desk.clock.now().0;
        if !desk.schedule.rests(now) {
            return None;
        }
        let clock = desk.clock.clone();
        let gate = desk.schedule.gate();
        let (policy, fence) = (gate.policy().clone(), gate.granted());
        let reset_at = gate.reset_at(now);
        Some(Rest { policy, states: gate.states(), reset_at, is_new: reset_at <= now, fence, clock })
    }
}
