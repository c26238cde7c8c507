//! What a keyed limiter does with the manager of one key.

use std::sync::Arc;

use super::visit::Unapplied;
use crate::carry_over::UsageCarryOver;
use crate::core::effects::Effects;
use crate::core::gate::plan::Plan;
use crate::core::schedule::Schedule;
use crate::manager::parts::{Manager, PerPlan};
use crate::manager::time::clock::Clock;
use crate::policy::Policy;
use crate::snapshot::KeyTotals;
use crate::strategy::{Moment, StateWords};

/// A manager without permits and waiters.
#[derive(Debug)]
pub(crate) struct AtRest {
    /// When it is reset; [`Moment::NEVER`] if time does not reset it.
    pub(crate) reset_at: Moment,
    /// Whether it is reset now.
    pub(crate) is_new: bool,
    pub(crate) last: FinalTotals,
}

/// What outlives a manager.
#[derive(Debug)]
pub(crate) struct FinalTotals {
    /// These include the fence of the latest grant, which is the number of grants.
    pub(crate) totals: KeyTotals,
    /// Whether grants held places.
    pub(crate) holds_places: bool,
    /// `None` if it was never read.
    pub(crate) clock: Option<Clock>,
}

manager_view!(
    "The manager of a key that is active.",
    ActiveKey,
    active_key
);

impl ActiveKey<'_> {
    /// [`Manager::set_policy`] with a plan, if the present policy is another one.
    pub(crate) fn apply_plan(self, plan: &Arc<Plan>) {
        let policy = plan.policy();
        let begins_with_it =
            |common: &PerPlan| Arc::ptr_eq(&common.plan, plan) || common.plan.policy() == policy;
        if self.is_only_a_word() && begins_with_it(self.0.common()) {
            return;
        }
        if self.0.lock().schedule.outlook().limits().policy() != policy {
            self.0.control(|schedule, now, effects| {
                // Another call, or an observer of what was due, may have applied it meanwhile.
                if schedule.outlook().limits().policy() != policy {
                    schedule.set_plan(now, Arc::clone(plan), UsageCarryOver::AsIs, effects);
                }
            });
        }
    }

    /// Whether no call has needed the state so far.
    pub(crate) fn is_only_a_word(self) -> bool {
        self.0.state.is_only_a_word()
    }

    /// When it is reset, if no request waits and no permit is in flight. Call it where no other handle exists: then a word that
    /// has all its places stays so.
    pub(crate) fn rest(self) -> Option<AtRest> {
        if self.is_only_a_word() {
            return self.unused_word().map(|last| AtRest {
                reset_at: Moment::START,
                is_new: true,
                last,
            });
        }
        let mut state = self.0.lock();
        let now = state.clock.now();
        let gate = state.schedule.outlook().at_rest(now)?;
        let (reset_at, holds_places) = (gate.limits().reset_at(now), gate.holds_places());
        let last = FinalTotals {
            totals: self.0.totals_of(&state.schedule),
            holds_places,
            clock: Some(state.clock.clone()),
        };
        Some(AtRest {
            reset_at,
            is_new: reset_at <= now,
            last,
        })
    }

    /// The last totals of a manager that is only a word with all its places.
    pub(crate) fn unused_word(self) -> Option<FinalTotals> {
        let totals = self.0.totals_of_word()?;
        (totals.in_flight == 0).then_some(FinalTotals {
            totals,
            holds_places: true,
            clock: None,
        })
    }

    /// The number of grants of places so far, if no request waits and no permit holds a place.
    pub(crate) fn drained_after(self) -> Option<u64> {
        if self.is_only_a_word() {
            return self.unused_word().map(|last| last.totals.granted);
        }
        self.0.lock().schedule.outlook().drained_after()
    }

    /// Gives the schedule an input while the caller holds another lock. `None` if nothing is left to do. Only one batch of due
    /// work runs before the input. Running all of it would call foreign code under that lock.
    pub(crate) fn change_later(
        self,
        input: impl FnOnce(&mut Schedule, Moment, &mut Effects),
    ) -> Option<Unapplied> {
        let ((), unapplied) = self.0.visit().change_later(input);
        (!unapplied.is_empty()).then_some(unapplied)
    }

    /// Its whole state, if no request waits and no permit is in flight: the policy, and the states of all limits. `None` also if one
    /// does not fit into words.
    pub(crate) fn at_rest(self) -> Option<(Policy, Vec<StateWords>)> {
        let mut state = self.0.lock();
        let now = state.clock.now();
        let limits = state.schedule.outlook().at_rest(now)?.limits();
        Some((limits.policy().clone(), limits.states()?))
    }
}
