//! What is done to a limiter besides asking it: it is settled with, told how work went, given another policy, paused.

use std::sync::Arc;
use std::time::Duration;

use super::{Granted, Manager};
use crate::carry_over::UsageCarryOver;
use crate::core::grant::Admission;
use crate::core::plan::Plan;
use crate::core::schedule::Schedule;
use crate::error::ConfigError;
use crate::policy::Policy;
use crate::strategy::{Moment, Outcome};
use crate::upstream::UpstreamSignal;

impl Manager {
    /// A permit of `cost` comes back whose work took `actual` units. Tells whether it was live.
    pub(crate) fn settle(self: &Arc<Self>, granted: Granted, cost: u64, actual: u64) -> bool {
        let Granted { fence, claim, at } = granted;
        self.with_state(|state, now, effects| {
            let at = at.map_or(Moment::START, |at| state.clock.moment(at));
            state.schedule.settle(now, Admission { fence, at, claim }, cost, actual, effects)
        })
    }

    /// A permit of `cost` comes back, and its holder says how its work went. Tells whether it was live.
    pub(crate) fn report(self: &Arc<Self>, granted: Granted, cost: u64, outcome: Outcome) -> bool {
        let Granted { fence, claim, at } = granted;
        self.with_state(|state, now, effects| {
            let at = at.map_or(Moment::START, |at| state.clock.moment(at));
            state.schedule.report(now, Admission { fence, at, claim }, cost, outcome, effects)
        })
    }

    /// Goes by another policy from now on.
    pub(crate) fn set_policy(self: &Arc<Self>, policy: Policy, carry: UsageCarryOver) -> Result<(), ConfigError> {
        let plan = Plan::new(policy, self.since_epoch)?;
        self.with_timer(|schedule, now, effects| schedule.set_plan(now, plan, carry, effects));
        Ok(())
    }

    /// Grants nothing for so long; [`Duration::MAX`]: until it is resumed.
    pub(crate) fn pause_for(self: &Arc<Self>, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.with_timer(|schedule, now, effects| schedule.pause(now, now.plus(nanos), effects));
    }

    pub(crate) fn resume(self: &Arc<Self>) {
        self.with_timer(Schedule::resume);
    }

    pub(crate) fn apply_upstream_signal(self: &Arc<Self>, signal: &UpstreamSignal) {
        if let Some(pause) = signal.pause() {
            self.pause_for(pause);
        } else if let (Some(remaining), Some(reset_after)) = (signal.remaining, signal.reset_after) {
            let nanos = u64::try_from(reset_after.as_nanos()).unwrap_or(u64::MAX);
            self.with_timer(|schedule, now, effects| schedule.spread(now, remaining, now.plus(nanos), effects));
        }
    }
}
