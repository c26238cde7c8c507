//! What a keyed limiter does with the manager of one key.

use std::sync::Arc;

use super::clock::Clock;
use super::lock::{Common, Manager};
use crate::carry_over::UsageCarryOver;
use crate::core::line::Content;
use crate::core::plan::Plan;
use crate::core::schedule::Schedule;
use crate::policy::Policy;
use crate::strategy::{Moment, StateWords};

/// A manager without permits and waiters.
#[derive(Debug)]
pub(crate) struct Rest {
    /// When it is reset; [`Moment::NEVER`] if time does not reset it.
    pub(crate) reset_at: Moment,
    /// Reset now.
    pub(crate) is_new: bool,
    pub(crate) last: Last,
}

/// What outlives a manager.
#[derive(Debug)]
pub(crate) struct Last {
    /// Of the latest grant.
    pub(crate) fence: u64,
    /// `None` if it was never read.
    pub(crate) clock: Option<Clock>,
}

/// The whole state of a manager without permits and waiters.
#[derive(Debug)]
pub(crate) struct Resting {
    pub(crate) policy: Policy,
    /// The states of all limits; `None` where one does not fit into words.
    pub(crate) states: Option<Vec<StateWords>>,
}

impl Manager {
    /// [`Manager::set_policy`] with its plan, if the present plan is another one.
    pub(crate) fn apply_policy(self: &Arc<Self>, policy: &Policy, plan: &Arc<Plan>) {
        let begins_with_it = |common: &Common| Arc::ptr_eq(&common.plan, plan) || common.plan.policy() == policy;
        if self.state.is_only_a_word() && begins_with_it(self.common()) {
            return;
        }
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
    pub(crate) fn used(self: &Arc<Self>) -> u64 {
        self.ask(Schedule::used)
    }

    /// When it is reset, if no request waits and no permit is in flight. Call it where nobody else has a handle: then a word that
    /// has all its places stays so.
    pub(crate) fn rest(&self) -> Option<Rest> {
        if let Some((content, fence)) = self.state.content_of_word() {
            let rests = self.common().plan.plain_places().map(|units| Content::Places { units }) == Some(content);
            return rests.then_some(Rest { reset_at: Moment::START, is_new: true, last: Last { fence, clock: None } });
        }
        let mut state = self.lock();
        let now = state.clock.now();
        let gate = state.schedule.at_rest(now)?;
        let (reset_at, fence) = (gate.reset_at(now), gate.granted());
        Some(Rest { reset_at, is_new: reset_at <= now, last: Last { fence, clock: Some(state.clock.clone()) } })
    }

    /// Its whole state, if no request waits and no permit is in flight.
    pub(crate) fn at_rest(&self) -> Option<Resting> {
        let mut state = self.lock();
        let now = state.clock.now();
        let gate = state.schedule.at_rest(now)?;
        Some(Resting { policy: gate.policy().clone(), states: gate.states() })
    }
}
