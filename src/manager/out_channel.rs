//! The *out* channel: how an answer reaches its waiter.
//!
//! Each waiter has a slot of its own under the manager's lock. The manager puts the answer into the slot and wakes the waiter;
//! only the waiter takes the answer out.

use std::sync::{Arc, MutexGuard};
use std::task::Waker;

use super::answer::{Refused, TimedGrant};
use super::lock::Manager;
use super::request_options::RequestOptions;
use super::state::State;
use crate::core::effects::Effects;
use crate::core::schedule::Enqueued;
use crate::core::waiter::WaiterId;

impl Manager {
    /// Takes the answer to a queued request, if there is one; then the id is spent.
    #[inline(never)]
    pub(crate) fn poll(
        self: &Arc<Self>,
        id: WaiterId,
        options: &RequestOptions,
        waker: &Waker,
        granted: &mut TimedGrant,
    ) -> Result<Enqueued<()>, Refused> {
        let mut state = self.lock();
        match state.schedule.poll(id, waker) {
            Ok(Ok(grant)) => {
                granted.fill_in(grant, state.clock.origin());
                self.unlock_after_answer(state);
                Ok(Enqueued::Granted(()))
            }
            Ok(Err(error)) => {
                self.unlock_after_answer(state);
                Err(error.into())
            }
            Err(false) => self.ensure_driver(state, id, options, &mut Effects::default()),
            Err(true) => {
                drop(state);
                self.replace_waker(id, options, waker, granted)
            }
        }
    }

    /// The rest of [`Manager::poll`], where the task has another waker than the one in the slot. Cloning the new waker and
    /// dropping the old one run foreign code, so both happen outside the lock.
    #[cold]
    fn replace_waker(
        self: &Arc<Self>,
        id: WaiterId,
        options: &RequestOptions,
        waker: &Waker,
        granted: &mut TimedGrant,
    ) -> Result<Enqueued<()>, Refused> {
        let waker_of_slot = waker.clone();
        let mut state = self.lock();
        match state.schedule.replace_waker(id, waker_of_slot) {
            Ok(replaced) => {
                let waiting = self.ensure_driver(state, id, options, &mut Effects::default());
                drop(replaced);
                waiting
            }
            Err(unneeded) => {
                drop(state);
                drop(unneeded);
                self.poll(id, options, waker, granted) // it was answered meanwhile
            }
        }
    }

    /// The answer was taken: no time moves and no waiter is to be woken; only [`Manager::drained`] can have become true.
    #[inline(always)]
    fn unlock_after_answer(self: &Arc<Self>, state: MutexGuard<'_, State>) {
        if state.watchers.is_some() {
            self.unlock_and_apply(state, &mut Effects::default());
        }
    }

    /// The owner of a queued request of `cost` gives it up.
    pub(crate) fn abandon(self: &Arc<Self>, id: WaiterId, cost: u64) {
        self.with_schedule(|schedule, now, effects| schedule.abandon(now, id, cost, effects));
    }
}
