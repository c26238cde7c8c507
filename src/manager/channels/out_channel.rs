//! The *out* channel: how an answer reaches its waiter.
//!
//! The manager puts the answer into the waiter's own slot and wakes the waiter; only the waiter takes the answer out. It takes a
//! place without the lock, and any other answer under it: see [`answers`](crate::core::queue::answers).

use std::sync::Arc;
use std::task::Waker;

use crate::core::queue::WaiterId;
use crate::core::request::{Claim, Grant, Refused};
use crate::core::schedule::Enqueued;
use crate::manager::parts::{Locked, Manager};
use crate::manager::time::clock::ClockOrigin;
use crate::manager::visit::Visit;
use crate::snapshot::LimitStatus;
use crate::strategy::Moment;

manager_view!("How answers leave.", OutChannel, out_channel);

impl<'a> OutChannel<'a> {
    /// Takes the answer to a queued request of `cost`, if there is one. The id is invalid after that.
    #[inline(always)]
    pub(crate) fn poll(
        self,
        id: WaiterId,
        cost: u64,
        waker: &Waker,
        granted: &mut TimedGrant,
    ) -> Result<Enqueued<()>, Refused> {
        let Some(TimedGrant { grant, origin }) = self.take_place(id) else {
            return self.poll_under_lock(id, cost, waker, granted);
        };
        granted.fill_in(grant, origin);
        Ok(Enqueued::Granted(()))
    }

    /// Takes the answer to a queued request, if it is a place that was granted by its slot. The id is invalid after that.
    #[inline(always)]
    pub(crate) fn take_place(self, id: WaiterId) -> Option<TimedGrant> {
        let answers = self.0.state.outside_lock().answers.get()?;
        answers.take(id.slot()?).map(TimedGrant::of_place)
    }

    /// [`OutChannel::poll`] after [`OutChannel::take_place`] has taken nothing.
    #[inline(never)]
    pub(crate) fn poll_under_lock(
        self,
        id: WaiterId,
        cost: u64,
        waker: &Waker,
        granted: &mut TimedGrant,
    ) -> Result<Enqueued<()>, Refused> {
        let mut state = self.0.lock();
        let own = &self.0.state.outside_lock().answers;
        if own.get().is_none()
            && let Some(answers) = &state.schedule.waiters.untaken.slots.answers
        {
            _ = own.set(Arc::clone(answers));
        }
        match state.schedule.waiters.poll(id, waker) {
            Ok(Ok(grant)) => {
                granted.fill_in(grant, state.clock.origin());
                self.unlock_after_answer(state);
                Ok(Enqueued::Granted(()))
            }
            Ok(Err(error)) => {
                self.unlock_after_answer(state);
                Err(error)
            }
            Err(false) => Visit::of(self.0, state).await_turn(id, cost),
            Err(true) => {
                drop(state);
                self.replace_waker(id, cost, waker, granted)
            }
        }
    }

    /// The slow path of [`OutChannel::poll`], where the task has another waker than the one in the slot. Cloning the new waker and
    /// dropping the old one run foreign code, so both happen outside the lock.
    #[cold]
    fn replace_waker(
        self,
        id: WaiterId,
        cost: u64,
        waker: &Waker,
        granted: &mut TimedGrant,
    ) -> Result<Enqueued<()>, Refused> {
        let waker_of_slot = waker.clone();
        let mut state = self.0.lock();
        let queue = &mut state.schedule.waiters.queue;
        match queue.replace_waker(id, waker_of_slot) {
            Ok(replaced) => {
                let waiting = Visit::of(self.0, state).await_turn(id, cost);
                drop(replaced);
                waiting
            }
            Err(unneeded) => {
                drop(state);
                drop(unneeded);
                self.poll(id, cost, waker, granted) // it was answered meanwhile
            }
        }
    }

    /// Unlocks after an answer was taken. No time has passed and no waiter needs to be woken; only the drain may be complete now.
    #[inline(always)]
    fn unlock_after_answer(self, state: Locked<'a>) {
        if state.watchers.is_some() {
            Visit::of(self.0, state).end();
        }
    }

    /// Takes the status of each limit at the grant of this fence, if its request asked for it.
    pub(crate) fn take_explanation(self, fence: u64) -> Vec<LimitStatus> {
        self.0.visit().give(|schedule, _, _| {
            let untaken = &mut schedule.waiters.untaken;
            untaken.take_explanation(fence).unwrap_or_default()
        })
    }

    /// Gives up a queued request of `cost`, for its owner.
    pub(crate) fn abandon(self, id: WaiterId, cost: u64) {
        self.0
            .visit()
            .give(|schedule, now, effects| schedule.abandon(now, id, cost, effects));
    }
}

/// A permit that is made of a grant. It is made in place, because copying the grant would stall until its fields are written.
pub(crate) trait FromGrant {
    /// Makes the permit of a grant that may hold a place.
    fn held(manager: &Arc<Manager>, granted: TimedGrant, cost: u64) -> Self;

    /// Makes the permit of a grant by a rate of a registered manager. The permit holds nothing.
    fn spent(id_prefix: u64, granted: TimedGrant, cost: u64) -> Self;
}

/// A grant, and the origin of the clock that its time was read from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimedGrant {
    pub(crate) grant: Grant,
    pub(crate) origin: ClockOrigin,
}

impl TimedGrant {
    pub(crate) const NOTHING: Self = Self {
        grant: Grant::NOTHING,
        origin: ClockOrigin::NONE,
    };

    /// A grant of a place by the word. No clock was read.
    #[inline(always)]
    pub(in crate::manager) fn of_place(fence: u64) -> Self {
        Self {
            grant: Grant::of_place(fence),
            origin: ClockOrigin::NONE,
        }
    }

    /// Fills in a grant that is [nothing](TimedGrant::NOTHING) so far, word by word: see `Permit::new`.
    #[inline(always)]
    pub(in crate::manager) fn fill_in(&mut self, grant: Grant, origin: ClockOrigin) {
        self.grant.fence = grant.fence;
        if grant.claim != Claim::NONE {
            self.grant.claim = grant.claim;
        }
        if grant.at != Moment::NEVER {
            self.grant.at = grant.at;
            self.origin = origin;
        }
    }
}
