//! What a keyed limiter does with the manager of one key.

use std::sync::Arc;

use super::apply::Unapplied;
use super::clock::Clock;
use super::lock::{Common, Manager};
use crate::carry_over::UsageCarryOver;
use crate::core::effects::Effects;
use crate::core::line::Content;
use crate::core::plan::Plan;
use crate::core::schedule::Schedule;
use crate::core::suspension::Scope;
use crate::policy::Policy;
use crate::snapshot::KeyTotals;
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
    /// With the fence of the latest grant, which is the number of grants.
    pub(crate) totals: KeyTotals,
    /// Whether grants held places.
    pub(crate) holds_places: bool,
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
            self.with_timer_after_due(|schedule, now, effects| {
                // Another call, or an observer of what was due, may have applied it meanwhile.
                if schedule.policy() != policy {
                    schedule.set_plan(now, Arc::clone(plan), UsageCarryOver::AsIs, effects);
                }
            });
        }
    }

    pub(crate) fn charge(self: &Arc<Self>, units: u64) {
        self.with_timer_after_due(|schedule, now, effects| schedule.charge(now, units, effects));
    }

    pub(crate) fn forgive(self: &Arc<Self>, units: u64) {
        self.with_timer_after_due(|schedule, now, effects| schedule.forgive(now, units, effects));
    }

    pub(crate) fn reset(self: &Arc<Self>) {
        self.with_timer_after_due(Schedule::reset);
    }

    /// The highest usage of any limit, in units.
    pub(crate) fn used(self: &Arc<Self>) -> u64 {
        self.ask(Schedule::used)
    }

    /// When it is reset, if no request waits and no permit is in flight. Call it where nobody else has a handle: then a word that
    /// has all its places stays so.
    pub(crate) fn rest(&self) -> Option<Rest> {
        if self.state.is_only_a_word() {
            return self.unused_word().map(|last| Rest { reset_at: Moment::START, is_new: true, last });
        }
        let mut state = self.lock();
        let now = state.clock.now();
        let gate = state.schedule.at_rest(now)?;
        let (reset_at, holds_places) = (gate.reset_at(now), gate.holds_places());
        let last = Last { totals: self.totals_of(&state.schedule), holds_places, clock: Some(state.clock.clone()) };
        Some(Rest { reset_at, is_new: reset_at <= now, last })
    }

    /// What is left of a manager that is only a word with all its places.
    pub(crate) fn unused_word(&self) -> Option<Last> {
        let totals = self.totals_of_word().filter(|totals| totals.in_flight == 0)?;
        Some(Last { totals, holds_places: true, clock: None })
    }

    /// What can be summed over keys, without what is due by now.
    pub(crate) fn totals(&self) -> KeyTotals {
        self.totals_of_word().unwrap_or_else(|| self.totals_of(&self.lock().schedule))
    }

    /// The same of a manager that is only a word of places.
    fn totals_of_word(&self) -> Option<KeyTotals> {
        let (Content::Places { units }, granted) = self.state.content_of_word()? else { return None };
        let in_flight = self.common().plan.plain_places()?.saturating_sub(units);
        Some(KeyTotals { in_flight, granted, denied: self.denied_by_word(), ..KeyTotals::default() })
    }

    fn totals_of(&self, schedule: &Schedule) -> KeyTotals {
        let totals = schedule.totals();
        KeyTotals { denied: totals.denied + self.denied_by_word(), ..totals }
    }

    /// The number of grants of places so far, if no request waits and no permit holds a place.
    pub(crate) fn drained_after(&self) -> Option<u64> {
        if self.state.is_only_a_word() {
            return self.unused_word().map(|last| last.totals.granted);
        }
        self.lock().schedule.drained_after()
    }

    /// Closes the manager, while the caller holds another lock. `None`: nothing is left to do.
    pub(crate) fn close_later(self: &Arc<Self>) -> Option<Unapplied> {
        self.change_later(Schedule::close)
    }

    /// [`Manager::close_later`] for new requests.
    pub(crate) fn close_to_new_later(self: &Arc<Self>) -> Option<Unapplied> {
        self.change_later(Schedule::close_to_new)
    }

    /// Pauses it as one of all keys.
    pub(crate) fn pause_later(self: &Arc<Self>, nanos: u64) -> Option<Unapplied> {
        self.change_later(|schedule, now, effects| schedule.pause(now, Scope::AllKeys, now.plus(nanos), effects))
    }

    /// Resumes it as one of all keys.
    pub(crate) fn resume_later(self: &Arc<Self>) -> Option<Unapplied> {
        if self.state.is_only_a_word() {
            return None;
        }
        self.change_later(|schedule, now, effects| schedule.resume(now, Scope::AllKeys, effects))
    }

    pub(crate) fn set_plan_later(self: &Arc<Self>, plan: &Arc<Plan>, carry: UsageCarryOver) -> Option<Unapplied> {
        self.change_later(|schedule, now, effects| schedule.set_plan(now, Arc::clone(plan), carry, effects))
    }

    fn change_later(self: &Arc<Self>, input: impl FnOnce(&mut Schedule, Moment, &mut Effects)) -> Option<Unapplied> {
        let ((), unapplied) = self.change(input);
        (!unapplied.is_empty()).then_some(unapplied)
    }

    /// Its whole state, if no request waits and no permit is in flight.
    pub(crate) fn at_rest(&self) -> Option<Resting> {
        let mut state = self.lock();
        let now = state.clock.now();
        let gate = state.schedule.at_rest(now)?;
        Some(Resting { policy: gate.policy().clone(), states: gate.states() })
    }
}
