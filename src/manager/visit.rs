//! One visit to the lock: take it, do what is due, give the schedule an input, unlock, and carry out what the schedule has decided.
//!
//! An input to the schedule leaves [`Effects`]: wakers to wake, events to report. The caller that gave the input unlocks and carries
//! them out. Where a batch was full, it takes the lock again for the rest.

use std::sync::Arc;
use std::task::Waker;

use tokio::runtime;
use tokio::time::Instant;

use crate::contain_panic::contain_panic;
use crate::core::effects::{Effects, MoreEffects};
use crate::core::queue::WaiterId;
use crate::core::request::{Grant, Refused};
use crate::core::schedule::{Enqueued, Outlook, Schedule};
use crate::manager::lock::state::Unapplied;
use crate::manager::parts::{Locked, Manager};
use crate::manager::time::{Driven, Next};
use crate::strategy::Moment;

/// One visit to the lock.
pub(super) struct Visit<'a> {
    manager: &'a Arc<Manager>,
    pub(super) state: Locked<'a>,
    pub(super) now: Moment,
    pub(super) unapplied: Unapplied,
}

impl Manager {
    pub(super) fn visit(self: &Arc<Self>) -> Visit<'_> {
        let mut state = self.lock();
        let now = state.now();
        Visit::new(self, state, now)
    }

    /// Gives the schedule an input that may make time matter, after all that is due is done.
    pub(crate) fn control<R>(
        self: &Arc<Self>,
        input: impl FnOnce(&mut Schedule, Moment, &mut Effects) -> R,
    ) -> R {
        self.visit().after_due().change(input)
    }

    /// Asks the schedule a question, after all due work is done. A question changes nothing, and allocates no state.
    pub(crate) fn ask<R>(self: &Arc<Self>, question: impl FnOnce(Outlook<'_>, Moment) -> R) -> R {
        if let Some(copy) = self.state.copy_of_word() {
            return question(copy.schedule.outlook(), copy.clock.latest());
        }
        let read = || self.common().time_source.now();
        let reading = self.state.word.decides_rate().then(read);
        if let Some((state, now)) = self.peek_at(reading) {
            return question(state.schedule.outlook(), now); // where a word decides, nothing is due
        }
        let visit = self.visit().after_due();
        question(visit.state.schedule.outlook(), visit.now)
    }

    /// Does what is due for a caller that blocks its thread, and returns until when the thread may sleep.
    pub(crate) fn run_due_on_blocked_thread(self: &Arc<Self>, id: WaiterId) -> Option<Instant> {
        self.visit().give(Schedule::run_due);
        let mut state = self.lock();
        let next = state.schedule.wake_of(id).known()?;
        state.clock.now(); // the latest reading may be of another clock
        Some(state.clock.instant(next))
    }
}

impl<'a> Visit<'a> {
    pub(super) fn new(manager: &'a Arc<Manager>, state: Locked<'a>, now: Moment) -> Self {
        Self {
            manager,
            state,
            now,
            unapplied: Unapplied::default(),
        }
    }

    pub(super) fn is_due(&self) -> bool {
        self.state.schedule.is_due(self.now)
    }

    /// The rest of a visit to which the time does not matter any more.
    #[inline(always)]
    pub(super) fn of(manager: &'a Arc<Manager>, state: Locked<'a>) -> Self {
        let now = state.clock.latest();
        Self::new(manager, state, now)
    }

    /// Does all due work: the timer may be late, or there may be no driver. That may take a while, so the clock is read again.
    /// Used for inputs that would otherwise take units that are due to waiters.
    #[inline]
    pub(super) fn after_due(self) -> Self {
        if self.is_due() { self.run_due() } else { self }
    }

    fn run_due(self) -> Self {
        let manager = self.manager;
        self.give(Schedule::run_due);
        manager.visit()
    }

    /// Gives the schedule an input, unlocks, and carries out what follows from it.
    #[inline]
    pub(super) fn give<R>(
        mut self,
        input: impl FnOnce(&mut Schedule, Moment, &mut Effects) -> R,
    ) -> R {
        let result = input(
            &mut self.state.schedule,
            self.now,
            &mut self.unapplied.effects,
        );
        self.end();
        result
    }

    /// [`Visit::give`] for an input that may make time matter where it did not before.
    pub(super) fn change<R>(
        self,
        input: impl FnOnce(&mut Schedule, Moment, &mut Effects) -> R,
    ) -> R {
        let manager = self.manager;
        let (result, unapplied) = self.change_later(input);
        unapplied.apply(manager);
        result
    }

    /// [`Visit::change`] while the caller holds another lock: the caller must apply the rest when it holds no lock.
    pub(super) fn change_later<R>(
        mut self,
        input: impl FnOnce(&mut Schedule, Moment, &mut Effects) -> R,
    ) -> (R, Unapplied) {
        let state = &mut self.state;
        let now = state.clock.now();
        let result = input(&mut state.schedule, now, &mut self.unapplied.effects);
        state.time_begins_to_matter(None, &mut self.unapplied.effects);
        // A future that is polled outside every runtime relies on the drivers of other waiters, so one is started here, too.
        if state.schedule.next_wake() != Moment::NEVER {
            self.unapplied.start_driver_in = state.ensure_driver_here().ok().flatten();
        }
        (result, self.leave())
    }

    /// The last step of a request that waits. Its driver may have ended with its runtime, or its task may have moved to another
    /// runtime.
    pub(super) fn await_turn(mut self, id: WaiterId, cost: u64) -> Result<Enqueued<()>, Refused> {
        let mut answer = Ok(Enqueued::Queued(id));
        if !id.is_blocking() {
            match self.state.ensure_driver_here() {
                Ok(start) => self.unapplied.start_driver_in = start,
                Err(error) => {
                    let now = self.state.now();
                    self.state
                        .schedule
                        .abandon(now, id, cost, &mut self.unapplied.effects);
                    answer = Err(error.into());
                }
            }
        }
        self.end();
        answer
    }

    /// Unlocks and carries out the effects, until all that is due is done.
    #[inline]
    pub(super) fn end(self) {
        let manager = self.manager;
        self.leave().apply(manager);
    }

    /// Unlocks.
    #[inline]
    pub(super) fn leave(mut self) -> Unapplied {
        if self.state.watchers.is_some() {
            self.state.wake_watchers(&mut self.unapplied.effects);
        }
        self.state.set_timers(&mut self.unapplied);
        self.unapplied
    }

    /// Unlocks after a grant in place. Such a grant changes no waiter's time, but the permit's own TTL may be the first to end.
    #[inline(always)]
    pub(super) fn end_after_grant(manager: &'a Arc<Manager>, state: Locked<'a>, grant: &Grant) {
        if grant.claim.lease().is_some() && state.schedule.next_wake() < state.armed {
            Self::of(manager, state).end();
        }
    }
}

impl Unapplied {
    /// Whether there is nothing to do. Unfinished effects are never empty.
    pub(super) fn is_empty(&self) -> bool {
        let Self {
            effects,
            wake_drivers,
            start_driver_in,
        } = self;
        effects.is_empty() && !wake_drivers && start_driver_in.is_none()
    }

    /// Applies it to the manager.
    pub(crate) fn apply(mut self, manager: &Arc<Manager>) {
        loop {
            if self.wake_drivers {
                manager.timer_host().wake(&**manager);
            }
            if let Some(runtime) = self.start_driver_in {
                manager.timer_host().start(manager, runtime);
            }
            if !carry_out(manager, &mut self.effects) {
                return;
            }
            let mut visit = manager.visit();
            visit
                .state
                .schedule
                .run_due(visit.now, &mut visit.unapplied.effects);
            self = visit.leave();
        }
    }
}

/// Reports the events, and then wakes the waiters, so that a log reads forward. Returns whether there is more to do.
#[inline(always)]
fn carry_out(manager: &Arc<Manager>, effects: &mut Effects) -> bool {
    let first = effects.first.take();
    match effects.more.take() {
        None => wake_all(first),
        Some(more) => carry_out_more(manager, first, *more),
    }
    std::mem::take(&mut effects.unfinished)
}

#[cold]
fn carry_out_more(manager: &Arc<Manager>, first: Option<Waker>, effects: MoreEffects) {
    for event in effects.events {
        manager.report(event);
    }
    wake_all(first.into_iter().chain(effects.wakers));
    for waker in effects.discarded {
        contain_panic(|| drop(waker));
    }
    if !effects.errands.is_empty() {
        manager.at_store().run_errands(effects.errands);
    }
}

/// Wakes all: a waker that panics does not keep another one from being woken.
fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    for waker in wakers {
        contain_panic(|| waker.wake());
    }
}

impl Driven for Manager {
    /// One visit to the lock decides everything, so that the driver does not contend with the waiters that it wakes. The end of
    /// its sleep is known before they run. If they make it due sooner, they call it again.
    fn run_due(self: Arc<Self>) -> Next {
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
            let next = state.schedule.next_wake().known();
            let next = next.map(|next| state.clock.instant(next));
            drop(state);
            if others_sleep_too_long {
                self.timer_host().wake(&*self);
            }
            if !carry_out(&self, &mut effects) {
                return Next::Sleep(next);
            }
        }
    }

    /// Waiters in other runtimes are woken, and start a driver when they are polled.
    fn driver_gone(&self, runtime: runtime::Id) {
        let mut state = self.lock();
        if !state.driver_left(runtime) {
            return;
        }
        let mut wakers = state.schedule.waiters.queue.take_wakers(None);
        wakers.extend(
            state
                .watchers
                .take()
                .into_iter()
                .flat_map(|watchers| watchers.take_all()),
        );
        drop(state);
        wake_all(wakers);
    }
}
