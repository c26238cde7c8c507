//! One idle key, while its shard is locked.

use super::idle_state::IdleState;
use crate::core::suspension::AllKeysHold;
use crate::error::TryAcquireError;
use crate::event::Attempt;
use crate::manager::{ClockOrigin, RequestOptions};
use crate::permit::Permit;
use crate::strategy::Moment;

/// An idle key, under the lock of its shard.
pub(super) struct IdleKey<'a> {
    pub(super) state: IdleState<'a>,
    /// The pause or the closing of all keys, if there is one.
    pub(super) hold: Option<AllKeysHold>,
    /// The random part of the ids of permits of idle keys.
    pub(super) id_prefix: u64,
    /// The fence of the latest grant to an idle key of its shard.
    pub(super) fence: &'a mut u64,
    /// How many requests of the idle keys of its shard were denied.
    pub(super) denied: &'a mut u64,
    pub(super) now: Moment,
    pub(super) origin: ClockOrigin,
}

impl IdleKey<'_> {
    /// The data for the observer's event, read before the request is decided.
    #[cold]
    pub(super) fn attempt(&self, &RequestOptions { cost, caller, .. }: &RequestOptions) -> Attempt {
        Attempt {
            now: self.now,
            cost,
            requested_in: caller,
            bans: self.state.bans(self.now).collect(),
        }
    }

    #[inline(never)]
    pub(super) fn try_acquire(&mut self, cost: u64) -> Result<Permit, TryAcquireError> {
        self.state.fits(cost)?;
        self.admit(cost).ok_or_else(|| {
            *self.denied += 1;
            self.state.deny(self.hold, self.now, cost)
        })
    }

    /// Grants the request, or changes nothing.
    #[inline(always)]
    pub(super) fn admit(&mut self, cost: u64) -> Option<Permit> {
        if self.hold.is_some() || !self.state.admit(self.now, cost) {
            return None;
        }
        *self.fence += 1;
        Some(Permit::idle(
            self.id_prefix,
            *self.fence,
            cost,
            self.now,
            self.origin,
        ))
    }
}
