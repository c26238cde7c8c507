//! Questions that change nothing.

use std::sync::Arc;
use std::time::Duration;

use super::lock::Manager;
use crate::core::costs::Costs;
use crate::core::schedule::Schedule;
use crate::core::waiter::WaiterId;
use crate::decision::Decision;
use crate::snapshot::LimitStatus;

impl Manager {
    /// What each limit says.
    pub(crate) fn limits(self: &Arc<Self>) -> Vec<LimitStatus> {
        self.ask(Schedule::limits)
    }

    /// What [`Manager::try_acquire`] would answer.
    pub(crate) fn check(self: &Arc<Self>, costs: Costs<'_>) -> Decision {
        self.ask(|schedule, now| schedule.check(now, costs))
    }

    /// What [`Manager::try_acquire`] would answer to a request for one unit of each limit.
    pub(crate) fn check_one(self: &Arc<Self>) -> Decision {
        self.ask(|schedule, now| schedule.check(now, Costs::new(1, &schedule.one_of_each_unit())))
    }

    /// How long until the turn of a queued request; zero if it was answered. `None` when only a release or a resume helps.
    pub(crate) fn time_to_turn_of(self: &Arc<Self>, id: WaiterId) -> Option<Duration> {
        self.ask(|schedule, now| schedule.turn_of(now, id).known().map(|turn| turn.duration_since(now)))
    }
}
