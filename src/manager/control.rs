//! Operations on a whole limiter: policy change, pause, close, snapshot.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::lock::Manager;
use crate::carry_over::UsageCarryOver;
use crate::core::plan::Plan;
use crate::core::schedule::Schedule;
use crate::core::suspension::Scope;
use crate::error::{AcquireError, ConfigError};
use crate::event::EventKind;
use crate::policy::Policy;
use crate::snapshot::LimiterSnapshot;
use crate::upstream::UpstreamSignal;

impl Manager {
    /// The present policy.
    pub(crate) fn policy(self: &Arc<Self>) -> Policy {
        self.ask(|schedule, _| schedule.policy().clone())
    }

    /// Refuses a request that holds no permit, if the present policy bounds nothing but held permits.
    pub(crate) fn check_rate(self: &Arc<Self>) -> Result<(), AcquireError> {
        self.ask(|schedule, _| match schedule.policy() {
            policy if policy.only_places() => Err(AcquireError::NoRate { policy: policy.clone() }),
            _ => Ok(()),
        })
    }

    /// Replaces the policy; queued requests keep their position.
    pub(crate) fn set_policy(self: &Arc<Self>, policy: Policy, carry: UsageCarryOver) -> Result<(), ConfigError> {
        let plan = Plan::new(policy, self.since_epoch())?;
        self.with_timer_after_due(|schedule, now, effects| schedule.set_plan(now, plan, carry, effects));
        Ok(())
    }

    /// The largest cost that a request that does not wait would get now.
    pub(crate) fn available(self: &Arc<Self>) -> u64 {
        self.ask(Schedule::available)
    }

    /// Grants nothing for this long; [`Duration::MAX`]: until it is resumed.
    pub(crate) fn pause_for(self: &Arc<Self>, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.with_timer_after_due(|schedule, now, effects| schedule.pause(now, Scope::Limiter, now.plus(nanos), effects));
        if let Some(link) = self.store_link().filter(|_| !duration.is_zero()) {
            link.kept.keep_paused(self, duration);
        }
    }

    pub(crate) fn resume(self: &Arc<Self>) {
        self.with_timer_after_due(|schedule, now, effects| schedule.resume(now, Scope::Limiter, effects));
        if let Some(link) = self.store_link() {
            link.kept.forget(&**self, || self.is_closed_or_paused());
        }
    }

    fn is_closed_or_paused(&self) -> bool {
        let (state, now) = self.lock_now();
        state.schedule.is_closed() || state.schedule.is_paused(now)
    }

    pub(crate) fn apply_upstream_signal(self: &Arc<Self>, signal: &UpstreamSignal) {
        if let Some(field) = signal.malformed {
            self.tell_if_observed(|| EventKind::UpstreamMalformed { field });
        }
        if let Some(pause) = signal.pause() {
            self.pause_for(pause);
        } else if let (Some(remaining), Some(reset_after)) = (signal.remaining, signal.reset_after) {
            let nanos = u64::try_from(reset_after.as_nanos()).unwrap_or(u64::MAX);
            self.with_timer_after_due(|schedule, now, effects| schedule.spread(now, remaining, now.plus(nanos), effects));
        }
    }

    pub(crate) fn close(self: &Arc<Self>) {
        self.after_due(Schedule::close);
        self.store_link().iter().for_each(|link| link.kept.keep_closed(self));
    }

    pub(crate) fn close_to_new(self: &Arc<Self>) {
        self.after_due(Schedule::close_to_new);
        self.store_link().iter().for_each(|link| link.kept.keep_closed(self));
    }

    pub(crate) fn is_closed(&self) -> bool {
        !self.state.is_only_a_word() && self.lock().schedule.is_closed()
    }

    pub(crate) fn snapshot(self: &Arc<Self>) -> LimiterSnapshot {
        let mut snapshot = self.ask(Schedule::snapshot);
        snapshot.denied += self.denied_by_word();
        snapshot
    }

    /// How many requests were denied while there was no state that counts them.
    pub(super) fn denied_by_word(&self) -> u64 {
        u64::from(self.denied.load(Relaxed))
    }
}
