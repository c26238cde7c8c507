//! The *out* channel: how an answer reaches its waiter.
//!
//! The manager puts the answer into a slot of the waiter's own and wakes the waiter; only the waiter takes the answer out. A place
//! is taken without the lock, any other answer under it: see [`answers`](crate::core::answers).

use std::sync::Arc;
use std::task::Waker;

use super::answer::TimedGrant;
use super::clock::ClockOrigin;
use super::lock::{Locked, Manager};
use crate::core::effects::Effects;
use crate::core::grant::Grant;
use crate::core::refused::Refused;
use crate::core::schedule::Enqueued;
use crate::core::waiter::WaiterId;
use crate::snapshot::LimitStatus;

impl Manager {
    /// Takes the answer to a queued request of `cost`, if there is one; then the id is spent.
    #[inline(always)]
    pub(crate) fn poll(
        self: &Arc<Self>,
        id: WaiterId,
        cost: u64,
        waker: &Waker,
        granted: &mut TimedGrant,
    ) -> Result<Enqueued<()>, Refused> {
        let fence = self.state.beside().answers.get().and_then(|answers| answers.take(id.slot()?));
        let Some(fence) = fence else { return self.poll_under_lock(id, cost, waker, granted) };
        granted.fill_in(Grant::of_place(fence), ClockOrigin::NONE);
        Ok(Enqueued::Granted(()))
    }

    /// The rest of [`Manager::poll`], where the slot holds no place.
    #[inline(never)]
    pub(super) fn poll_under_lock(
        self: &Arc<Self>,
        id: WaiterId,
        cost: u64,
        waker: &Waker,
        granted: &mut TimedGrant,
    ) -> Result<Enqueued<()>, Refused> {
        let mut state = self.lock();
        if state.leader.is_some()
            && let Some(leader) = state.take_leader(id)
        {
            return self.poll_leader(state, leader, cost, waker, granted);
        }
        self.poll_locked(state, id, cost, waker, granted)
    }

    /// The same, under the lock.
    #[inline(always)]
    pub(super) fn poll_locked<'a>(
        self: &'a Arc<Self>,
        mut state: Locked<'a>,
        id: WaiterId,
        cost: u64,
        waker: &Waker,
        granted: &mut TimedGrant,
    ) -> Result<Enqueued<()>, Refused> {
        let own = &self.state.beside().answers;
        if own.get().is_none()
            && let Some(answers) = state.schedule.answers()
        {
            _ = own.set(Arc::clone(answers));
        }
        match state.schedule.poll(id, waker) {
            Ok(Ok(grant)) => {
                granted.fill_in(grant, state.clock.origin());
                self.unlock_after_answer(state, id);
                Ok(Enqueued::Granted(()))
            }
            Ok(Err(error)) => {
                self.unlock_after_answer(state, id);
                Err(error)
            }
            Err(false) => self.ensure_driver(state, id, cost, &mut Effects::default()),
            Err(true) => {
                drop(state);
                self.replace_waker(id, cost, waker, granted)
            }
        }
    }

    /// The rest of [`Manager::poll`], where the task has another waker than the one in the slot. Cloning the new waker and
    /// dropping the old one run foreign code, so both happen outside the lock.
    #[cold]
    fn replace_waker(
        self: &Arc<Self>,
        id: WaiterId,
        cost: u64,
        waker: &Waker,
        granted: &mut TimedGrant,
    ) -> Result<Enqueued<()>, Refused> {
        let waker_of_slot = waker.clone();
        let mut state = self.lock();
        match state.schedule.replace_waker(id, waker_of_slot) {
            Ok(replaced) => {
                let waiting = self.ensure_driver(state, id, cost, &mut Effects::default());
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

    /// The answer was taken: no time moves and no waiter is to be woken; only [`Manager::drained`] can have become true.
    #[inline(always)]
    fn unlock_after_answer(self: &Arc<Self>, state: Locked<'_>, id: WaiterId) {
        if state.watchers.is_some() || state.leader.is_some() {
            self.unlock_watched(state, id);
        }
    }

    #[cold]
    fn unlock_watched(self: &Arc<Self>, mut state: Locked<'_>, id: WaiterId) {
        let leader = state.take_leader(id);
        self.unlock_and_apply(state, &mut Effects::default());
        if let Some(leader) = leader {
            self.hand_over(*leader);
        }
    }

    /// What each limit said at the grant of this fence, for a request that asked for it. It is taken once.
    pub(crate) fn take_explanation(self: &Arc<Self>, fence: u64) -> Vec<LimitStatus> {
        self.with_schedule(|schedule, _, _| schedule.take_explanation(fence))
    }

    /// The owner of a queued request of `cost` gives it up.
    pub(crate) fn abandon(self: &Arc<Self>, id: WaiterId, cost: u64) {
        let leader = self.with_state(|state, now, effects| {
            state.schedule.abandon(now, id, cost, effects);
            state.take_leader(id)
        });
        if let Some(leader) = leader {
            self.hand_over(*leader);
        }
    }
}
