//! What a driver or a blocked thread does when time has passed.

use std::sync::Arc;

use tokio::runtime;
use tokio::time::Instant;

use super::apply::wake_all;
use super::driven::Driven;
use super::lock::Manager;
use crate::core::effects::Effects;
use crate::core::schedule::Schedule;
use crate::core::waiter::WaiterId;

impl Driven for Manager {
    /// One visit to the lock decides all, so that the driver does not lock against the waiters that it wakes: until when it may
    /// sleep is known before they run. What they change calls it again.
    fn run_due(self: Arc<Self>) -> Option<Instant> {
        let mut effects = Effects::default();
        loop {
            let mut state = self.lock();
            // Read where time does not matter, too: the latest reading may be of another clock, by which this driver must not sleep.
            let now = state.clock.now();
            state.schedule.run_due(now, &mut effects);
            if state.watchers.is_some() {
                state.wake_watchers(&mut effects);
            }
            let others_sleep_too_long = state.rearm();
            let next = state.schedule.next_wake().known().map(|next| state.clock.instant(next));
            drop(state);
            if others_sleep_too_long {
                self.timer_host().wake(&*self);
            }
            if !self.carry_out(&mut effects) {
                return next;
            }
        }
    }

    /// Waiters in other runtimes are woken, and start a driver when they are polled.
    fn driver_gone(&self, runtime: runtime::Id) {
        let mut state = self.lock();
        if !state.driver_left(runtime) {
            return;
        }
        let mut wakers = state.schedule.take_wakers(None);
        wakers.extend(state.watchers.take().into_iter().flat_map(|watchers| watchers.take_all()));
        drop(state);
        wake_all(wakers);
    }
}

impl Manager {
    /// Does what is due for a caller that blocks its thread, and returns until when the thread may sleep.
    pub(crate) fn run_due_on_blocked_thread(self: &Arc<Self>, id: WaiterId) -> Option<Instant> {
        self.with_schedule(Schedule::run_due);
        let mut state = self.lock();
        state.schedule.wake_of(id).known().map(|next| state.clock.instant_here(next))
    }
}
