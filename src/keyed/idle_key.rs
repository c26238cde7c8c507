//! One idle key, while its shard is locked.

use super::key_state::KeyState;
use crate::core::suspension::Hold;
use crate::error::TryAcquireError;
use crate::event::Attempt;
use crate::manager::{ClockOrigin, RequestOptions};
use crate::permit::Permit;
use crate::strategy::Moment;

/// An idle key, under the lock of its shard.
pub(super) struct IdleKey<'a> {
    pub(super) state: KeyState<'a>,
    /// What holds all keys back.
    pub(super) hold: Option<Hold>,
    pub(super) fences: Fences<'a>,
    /// How many requests of the idle keys of its shard were denied.
    pub(super) denied: &'a mut u64,
    pub(super) now: Moment,
    pub(super) origin: ClockOrigin,
}

/// Numbers the permits of the idle keys of a shard.
pub(super) struct Fences<'a> {
    pub(super) id_prefix: u64,
    pub(super) latest: &'a mut u64,
}

impl IdleKey<'_> {
    /// What an observer is told by, before the request is decided.
    #[cold]
    pub(super) fn attempt(&self, &RequestOptions { cost, caller, .. }: &RequestOptions) -> Attempt {
        Attempt { now: self.now, cost, requested_in: caller, bans: self.state.bans(self.now).collect() }
    }

    #[inline(never)]
    pub(super) fn try_acquire(&mut self, cost: u64) -> Result<Permit, TryAcquireError> {
        match self.state.fits(cost) {
            Err(misfit) => Err(misfit.into()),
            Ok(()) if self.hold.is_none() && self.state.admit(self.now, cost) => {
                Ok(self.fences.permit(cost, self.now, self.origin))
            }
            Ok(()) => {
                *self.denied += 1;
                Err(self.state.deny(self.hold, self.now, cost))
            }
        }
    }
}

impl Fences<'_> {
    #[inline(always)]
    pub(super) fn permit(&mut self, cost: u64, now: Moment, origin: ClockOrigin) -> Permit {
        *self.latest += 1;
        Permit::idle(self.id_prefix, *self.latest, cost, now, origin)
    }
}
