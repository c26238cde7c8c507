//! Bans that begin where a shared limiter denies: in the store, or in this process while it decides alone.

use std::time::Duration;

use super::Gate;
use crate::core::costs::Costs;
use crate::exchange::Reply;
use crate::strategy::{LimitRule, Moment};

/// A ban that a denied attempt has started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BegunBan {
    pub(crate) limit_index: usize,
    /// In nanoseconds.
    pub(crate) length: u64,
}

impl BegunBan {
    pub(crate) fn banned_for(self) -> Duration {
        Duration::from_nanos(self.length)
    }
}

impl Gate {
    /// The bans that begin with a call in which each limit was asked by an attempt that was denied.
    pub(crate) fn bans_begun_in_store(&self, reply: &Reply) -> impl Iterator<Item = BegunBan> {
        let now = Moment::from_nanos(reply.now);
        self.plan.rules().iter().zip(&reply.limits).enumerate().filter_map(move |(limit_index, (rule, reading))| {
            let LimitRule::Words(rule) = rule else { return None };
            let length = rule.ban_begun(now, reading.remaining, Moment::from_nanos(reading.reset_at))?;
            Some(BegunBan { limit_index, length })
        })
    }

    /// Records that a request that does not wait was denied. Returns the bans that begin with it.
    pub(super) fn note_denial_and_bans(&mut self, now: Moment, costs: Costs<'_>) -> Vec<BegunBan> {
        if !self.plan.counts_denials() {
            return Vec::new();
        }
        let before: Vec<_> = self.bans(now).collect();
        self.note_denial(now, costs);
        let begun = |(limit_index, bans): (usize, (Option<Moment>, Option<Moment>))| match bans {
            (None, Some(until)) => Some(BegunBan { limit_index, length: until.since(now) }),
            _ => None,
        };
        before.into_iter().zip(self.bans(now)).enumerate().filter_map(begun).collect()
    }
}
