//! Carries out, outside the lock, what the schedule has decided under it.
//!
//! An input to the schedule leaves [`Effects`]: wakers to wake, events to report. The caller that gave the input
//! unlocks and carries the effects out here. Where a batch was full, it takes the lock again for the rest.

use std::sync::Arc;
use std::task::Waker;

use tokio::runtime::Handle;

use super::lock::{Locked, Manager};
use super::state::{State, TimerAction};
use super::word::Kind;
use crate::contain_panic::contain_panic;
use crate::core::effects::{Effects, Happening, Rest};
use crate::core::grant::Grant;
use crate::core::lease::Lease;
use crate::core::queue::Front;
use crate::core::schedule::Schedule;
use crate::event::{EventKind, LimiterEvent, permit_id};
use crate::observe::Observation;
use crate::strategy::Moment;

impl Manager {
    /// Gives the schedule an input, and carries out what follows from it.
    pub(super) fn with_schedule<R>(self: &Arc<Self>, input: impl FnOnce(&mut Schedule, Moment, &mut Effects) -> R) -> R {
        self.with_state(|state, now, effects| input(&mut state.schedule, now, effects))
    }

    pub(super) fn with_state<R>(self: &Arc<Self>, input: impl FnOnce(&mut State, Moment, &mut Effects) -> R) -> R {
        let mut state = self.lock();
        let now = state.now();
        let mut effects = Effects::default();
        let result = input(&mut state, now, &mut effects);
        self.unlock_and_apply(state, &mut effects);
        result
    }

    /// [`Manager::with_schedule`] for inputs that may make time matter where it did not before.
    pub(super) fn with_timer<R>(self: &Arc<Self>, input: impl FnOnce(&mut Schedule, Moment, &mut Effects) -> R) -> R {
        let (result, unapplied) = self.change(input);
        unapplied.apply(self);
        result
    }

    /// [`Manager::with_schedule`] after all that is due: for inputs that take from the waiters what is due to them.
    #[inline]
    pub(super) fn after_due<R>(self: &Arc<Self>, input: impl FnOnce(&mut Schedule, Moment, &mut Effects) -> R) -> R {
        let (mut state, now) = self.lock_and_advance();
        let mut effects = Effects::default();
        let result = input(&mut state.schedule, now, &mut effects);
        self.unlock_and_apply(state, &mut effects);
        result
    }

    /// [`Manager::with_timer`] after all that is due, as [`Manager::after_due`].
    pub(super) fn with_timer_after_due<R>(self: &Arc<Self>, input: impl FnOnce(&mut Schedule, Moment, &mut Effects) -> R) -> R {
        let (result, unapplied) = Self::change_state(self.lock_and_advance().0, input);
        unapplied.apply(self);
        result
    }

    /// [`Manager::with_timer`] while the caller holds another lock: it must [apply](Unapplied::apply) the rest when it holds none.
    /// Of what is due, only one batch is done before the input: the rest would run foreign code under that lock.
    pub(super) fn change<R>(self: &Arc<Self>, input: impl FnOnce(&mut Schedule, Moment, &mut Effects) -> R) -> (R, Unapplied) {
        Self::change_state(self.lock(), input)
    }

    fn change_state<R>(mut state: Locked<'_>, input: impl FnOnce(&mut Schedule, Moment, &mut Effects) -> R) -> (R, Unapplied) {
        let (now, mut effects) = (state.clock.now(), Effects::default());
        let result = input(&mut state.schedule, now, &mut effects);
        let waiting = state.time_begins_to_matter(None);
        // A future that is polled outside every runtime relies on the drivers of other waiters: this is one more.
        let is_awaited = state.schedule.next_wake() != Moment::NEVER;
        let driver = if is_awaited { state.ensure_driver_here().ok().flatten() } else { None };
        let timer_action = Self::unlock(state, &mut effects);
        (result, Unapplied { timer_action, effects, driver, waiting })
    }

    /// Does all that is due: the timer may be late, or there may be no driver. That may take a while, so the clock is read again.
    #[inline]
    pub(super) fn advance_if_due<'a>(self: &'a Arc<Self>, state: Locked<'a>, now: Moment) -> (Locked<'a>, Moment) {
        if state.schedule.next_wake() > now {
            return (state, now);
        }
        self.advance(state, now)
    }

    fn advance<'a>(self: &'a Arc<Self>, mut state: Locked<'a>, now: Moment) -> (Locked<'a>, Moment) {
        let mut effects = Effects::default();
        state.schedule.run_due(now, &mut effects);
        self.unlock_and_apply(state, &mut effects);
        self.lock_now()
    }

    /// The lock, after all that is due is done.
    pub(super) fn lock_and_advance(self: &Arc<Self>) -> (Locked<'_>, Moment) {
        let (state, now) = self.lock_now();
        if state.schedule.is_due(now) { self.advance(state, now) } else { (state, now) }
    }

    /// Asks the schedule something that changes nothing, after all that is due is done. It allocates no state.
    pub(super) fn ask<R>(self: &Arc<Self>, question: impl FnOnce(&Schedule, Moment) -> R) -> R {
        if let Some(copy) = self.state.copy_of_word() {
            return question(&copy.schedule, copy.clock.latest());
        }
        let now = match self.state.kind() {
            Kind::Places => None,
            Kind::Rate => self.moment(self.time_source().now()),
        };
        if let Some((state, now)) = self.look_at(now) {
            return question(&state.schedule, now); // where a word decides, nothing is due
        }
        let (state, now) = self.lock_and_advance();
        question(&state.schedule, now)
    }

    /// Unlocks and carries out the effects, until all that is due is done.
    #[inline]
    pub(super) fn unlock_and_apply<'a>(self: &'a Arc<Self>, state: Locked<'a>, effects: &mut Effects) {
        let timer_action = Self::unlock(state, effects);
        self.apply(timer_action, effects);
    }

    /// Unlocks. The caller must [apply](Manager::apply) the effects and the timer action when it holds no other lock.
    #[inline]
    pub(super) fn unlock(mut state: Locked<'_>, effects: &mut Effects) -> TimerAction {
        if state.watchers.is_some() {
            state.wake_watchers(effects);
        }
        state.timer_action()
    }

    pub(super) fn apply(self: &Arc<Self>, mut timer_action: TimerAction, effects: &mut Effects) {
        loop {
            match timer_action {
                TimerAction::Nothing => {}
                TimerAction::WakeDriver => self.timer_host().wake(&**self),
                TimerAction::StartDriver(handle) => self.timer_host().start(self, handle),
            }
            if !self.carry_out(effects) {
                return;
            }
            let mut state = self.lock();
            let now = state.now();
            state.schedule.run_due(now, effects);
            timer_action = Self::unlock(state, effects);
        }
    }

    /// Unlocks after a grant in place: it changes no waiter's time, but the permit's own TTL may be the first to end.
    #[inline(always)]
    pub(super) fn unlock_after_grant<'a>(self: &'a Arc<Self>, state: Locked<'a>, grant: &Grant) {
        if grant.claim.lease().is_some() && state.schedule.next_wake() < state.armed {
            self.unlock_and_apply(state, &mut Effects::default());
        }
    }

    /// Reports the events, and then wakes the waiters, so that a log reads forward. Returns whether there is more to
    /// do.
    #[inline(always)]
    pub(super) fn carry_out(self: &Arc<Self>, effects: &mut Effects) -> bool {
        if let Some(rest) = effects.rest.take() {
            let first = effects.first.take();
            self.carry_out_rest(first, *rest);
        } else if let Some(first) = effects.first.take() {
            contain_panic(|| first.wake());
        }
        std::mem::take(&mut effects.unfinished)
    }

    #[cold]
    fn carry_out_rest(self: &Arc<Self>, first: Option<Waker>, rest: Rest) {
        let Rest { wakers, discarded, events, sends_for_carrier, .. } = rest;
        events.into_iter().for_each(|happening| self.tell(happening));
        wake_all(first.into_iter().chain(wakers));
        discarded.into_iter().for_each(|waker| contain_panic(|| drop(waker)));
        if sends_for_carrier {
            self.start_carrier();
        }
    }

    /// Tells the observer, if there is one, of what has changed nothing.
    pub(crate) fn tell_if_observed(&self, kind: impl FnOnce() -> EventKind) {
        if self.common().observed {
            self.tell(Happening::Other(kind()));
        }
    }

    /// Tells the observer.
    fn tell(&self, happening: Happening) {
        let id = |fence| permit_id(self.id_prefix(), fence);
        let kind = match happening {
            Happening::GrantedAfterWait { fence, request: Front { id: waiter, cost, caller }, waited } => {
                let priority = waiter.priority();
                EventKind::GrantedAfterWait { id: id(fence), fence, cost, priority, waited, requested_in: caller }
            }
            Happening::Reclaimed(Lease { fence, cost, granted_at, expires_at, caller, .. }) => {
                let held = expires_at.duration_since(granted_at);
                EventKind::Reclaimed { id: id(fence), fence, cost, held, acquired_in: caller }
            }
            Happening::ReleasedLate { fence, cost } => EventKind::ReleasedLate { id: id(fence), fence, cost },
            Happening::Other(kind) => kind,
        };
        self.state.beside().observer.emit(&Observation::new(&LimiterEvent::new(self.name().cloned(), kind)));
    }
}

/// What follows from a change of the schedule and is not done yet.
pub(crate) struct Unapplied {
    timer_action: TimerAction,
    effects: Effects,
    /// Where a driver is to be started.
    driver: Option<Handle>,
    waiting: Vec<Waker>,
}

impl Unapplied {
    /// Whether there is nothing to do.
    pub(super) fn is_empty(&self) -> bool {
        let acts = !matches!(self.timer_action, TimerAction::Nothing) || self.driver.is_some();
        !acts && self.effects.is_empty() && !self.effects.unfinished && self.waiting.is_empty()
    }

    /// Applies it to the manager.
    pub(crate) fn apply(mut self, manager: &Arc<Manager>) {
        manager.apply(self.timer_action, &mut self.effects);
        if let Some(runtime) = self.driver {
            manager.timer_host().start(manager, runtime);
        }
        wake_all(self.waiting);
    }
}

/// Wakes all: a waker that panics does not keep another one from being woken.
pub(super) fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    wakers.into_iter().for_each(|waker| contain_panic(|| waker.wake()));
}
