//! What a keyed limiter does with the manager of one key.

use std::sync::Arc;

use super::clock::Clock;
use super::lock::Manager;
use crate::carry_over::UsageCarryOver;
use crate::core::plan::Plan;
use crate::core::schedule::Schedule;
use crate::policy::Policy;
use crate::strategy::{Moment, StateWords};

/// When a manager without permits and waiters is reset.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rest {
    /// Reset at this moment; [`Moment::NEVER`] if time does not reset it.
    pub(crate) reset_at: Moment,
    /// Reset now.
    pub(crate) is_new: bool,
}

/// The whole state of a manager without permits and waiters.
#[derive(Debug)]
pub(crate) struct Resting {
    pub(crate) policy: Policy,
    /// The states of all limits; `None` where one does not fit into words.
    pub(crate) states: Option<Vec<StateWords>>,
    pub(crate) fence: u64,
    pub(crate) clock: Clock,
}

impl Manager {
    /// [`Manager::set_policy`] with its plan, if the present plan is another one.
    pub(crate) fn apply_policy(self: &Arc<Self>, policy: &Policy, plan: &Arc<Plan>) {
        if self.lock().schedule.policy() != policy {
            self.with_timer(|schedule, now, effects| schedule.set_plan(now, Arc::clone(plan), UsageCarryOver::AsIs, effects));
        }
    }

    pub(crate) fn charge(self: &Arc<Self>, units: u64) {
        self.with_timer(|schedule, now, effects| schedule.charge(now, units, effects));
    }

    pub(crate) fn forgive(self: &Arc<Self>, units: u64) {
        self.with_timer(|schedule, now, effects| schedule.forgive(now, units, effects));
    }

    pub(crate) fn reset(self: &Arc<Self>) {
        self.with_timer(Schedule::reset);
    }

    /// The highest usage of any limit, in units.
    pub(crate) fn used(&self) -> u64 {
        let mut state = self.lock();
        let now = state.now();
        state.schedule.used(now)
    }

    /// When it is reset, if no request waits and no permit is in flight.
    pub(crate) fn rests_until(&self) -> Option<Rest> {
        let mut state = self.lock();
        let now = state.clock.now();
        let reset_at = state.schedule.at_rest(now)?.reset_at(now);
        Some(Rest { reset_at, is_new: reset_at <= now })
    }

    /// Its whole state, if no request waits and no permit is in flight.
    pub(crate) fn at_rest(&self) -> Option<Resting> {
        let mut state = self.lock();
        let now = state.clock.now();
        let clock = state.clock.clone();
        let gate = state.schedule.at_rest(now)?;
        Some(Resting { policy: gate.policy().clone(), states: gate.states(), fence: gate.granted(), clock })
    }
}
