//! What lies under a manager's lock: the schedule, its clock, and the drivers.

use std::task::Waker;

use tokio::runtime::{self, Handle};

use super::carried::Leader;
use super::clock::Clock;
use super::guard::BehindWord;
use super::runtimes::Runtimes;
use super::time_source::Reading;
use super::timers;
use super::watchers::{Awaited, Watchers};
use crate::core::effects::Effects;
use crate::core::line::{Content, Opening};
use crate::core::schedule::Schedule;
use crate::core::waiter::WaiterId;
use crate::error::AcquireError;
use crate::strategy::Moment;

#[derive(Debug)]
pub(super) struct State {
    pub(super) schedule: Schedule,
    pub(super) clock: Clock,
    runtimes: Runtimes,
    /// Every driver wakes by then at the latest. [`Moment::NEVER`] when there is none.
    pub(super) armed: Moment,
    /// Whether time has mattered since the queue was last seen empty. Until then, a waiter may rely on a driver in another
    /// runtime. From then on, every waiter has a driver in its own runtime, because another runtime may exist without being
    /// polled.
    time_matters: bool,
    /// Allocated for the first watcher: each of a million keys may have a manager.
    pub(super) watchers: Option<Box<Watchers>>,
    pub(super) leader: Option<Box<Leader>>,
}

/// What must be done so that a driver wakes at the next instant that matters.
pub(super) enum TimerAction {
    Nothing,
    WakeDriver,
    StartDriver(Handle),
}

impl State {
    pub(super) fn new(schedule: Schedule, clock: Clock) -> Self {
        Self {
            time_matters: schedule.follows_time(),
            schedule,
            clock,
            runtimes: Runtimes::NONE,
            armed: Moment::NEVER,
            watchers: None,
            leader: None,
        }
    }

    /// The present moment. If it does not matter, the clock is not read: that costs more than the rest of a grant.
    #[inline(always)]
    pub(super) fn now(&mut self) -> Moment {
        if self.schedule.reads_clock() { self.clock.now() } else { self.clock.latest() }
    }

    /// The present moment for a new request, with a reading of the clock that may have been taken just before the lock. If time does
    /// not matter to what is decided, the clock is not read.
    #[inline(always)]
    pub(super) fn now_since(&mut self, reading: Option<Reading>) -> Moment {
        match reading {
            Some(reading) if self.schedule.follows_time() => self.clock.now_since(reading),
            _ if self.schedule.follows_time() => self.clock.now(),
            _ => self.clock.latest(),
        }
    }

    pub(super) fn timer_action(&mut self) -> TimerAction {
        let next = self.schedule.next_wake();
        if next >= self.armed {
            // There is nothing to wake for, so the timer stops. The timer for a lease that was released in time keeps running, and so
            // does that for the deadline of a call to a store: stopping and starting it for each would cost more than the rest,
            // and it fires once at most.
            let is_short_lived = self.schedule.leases_permits() || self.schedule.asks_a_store();
            if next == Moment::NEVER && self.armed != Moment::NEVER && !is_short_lived {
                self.armed = Moment::NEVER;
                return TimerAction::WakeDriver;
            }
            return TimerAction::Nothing;
        }
        if !self.runtimes.has_driver() {
            // Outside every runtime no driver can be started; the next caller does what is due by then.
            return self.ensure_driver_here().ok().flatten().map_or(TimerAction::Nothing, TimerAction::StartDriver);
        }
        self.armed = next;
        TimerAction::WakeDriver
    }

    /// Returns the wakers of all waiters but the `newcomer`, if time matters now and did not before. These waiters may rely on a
    /// driver in a runtime that nothing polls. When they are polled, they start a driver in their own runtime.
    pub(super) fn time_begins_to_matter(&mut self, newcomer: Option<WaiterId>) -> Vec<Waker> {
        if self.time_matters || !self.schedule.follows_time() {
            return Vec::new();
        }
        self.time_matters = true;
        self.schedule.take_wakers(newcomer)
    }

    /// If time does not matter now, requests that join an empty queue may rely on any driver again.
    pub(super) fn forget_time_if_queue_is_empty(&mut self) {
        if !self.schedule.has_waiters() {
            self.time_matters = self.schedule.follows_time();
        }
    }

    /// Whether a request that joins the queue can rely on the present drivers, and none of them has to wake sooner.
    #[inline]
    pub(super) fn has_driver(&self, blocking: bool) -> bool {
        (blocking || self.runtimes.has_driver() && (!self.time_matters || self.knows_runtime()))
            && self.schedule.next_wake() >= self.armed
    }

    /// Whether the caller's runtime has a driver.
    fn knows_runtime(&self) -> bool {
        Handle::try_current().is_ok_and(|handle| self.runtimes.knows(handle.id()))
    }

    /// Makes sure that a driver serves the caller; returns the runtime in which one is to be started.
    ///
    /// While time does not matter, a driver in any runtime will do. Otherwise the caller's runtime gets one.
    pub(super) fn ensure_driver_here(&mut self) -> Result<Option<Handle>, AcquireError> {
        if self.runtimes.has_driver() && !self.time_matters {
            return Ok(None);
        }
        match Handle::try_current() {
            Ok(handle) if !self.runtimes.knows(handle.id()) => {
                self.runtimes.enter(handle.id());
                Ok(Some(handle))
            }
            _ if !self.runtimes.has_driver() => Err(AcquireError::NoRuntime),
            _ => Ok(None),
        }
    }

    /// Whether a release may be the one that [`Manager::drained`](super::lock::Manager::drained) awaits.
    #[inline(always)]
    pub(super) fn awaits_drain(&self) -> bool {
        self.watchers.as_ref().is_some_and(|watchers| watchers.await_drain())
    }

    /// Wakes the tasks that await a reclaim, a drain or a close that has happened.
    #[cold]
    pub(super) fn wake_watchers(&mut self, effects: &mut Effects) {
        let Some(watchers) = &mut self.watchers else { return };
        let reclaimed = effects.rest.iter().flat_map(|rest| &rest.reclaimed).map(|fence| Awaited::Reclaim(*fence));
        let drained = self.schedule.is_drained().then_some(Awaited::Drain);
        let closed_to_new = self.schedule.is_closed().then_some(Awaited::CloseToNew);
        let closed = self.schedule.refuses_waiters().then_some(Awaited::Close);
        let happened: Vec<Awaited> = reclaimed.chain(drained).chain(closed_to_new).chain(closed).collect();
        for awaited in happened {
            while let Some(waker) = watchers.take(awaited) {
                effects.wake(Some(waker));
            }
        }
        self.drop_unused_watchers();
    }

    /// As long as there are watchers, each unlock looks whether what they await has happened.
    pub(super) fn drop_unused_watchers(&mut self) {
        self.watchers.take_if(|watchers| watchers.is_empty());
    }

    /// Lets a request that was just `queued` carry its own call, if the schedule has said so. Returns whether it must poll now.
    pub(super) fn let_lead(&mut self, queued: Option<WaiterId>, effects: &mut Effects) -> bool {
        let Some(id) = self.schedule.take_lead() else { return false };
        let leads = queued == Some(id) && !id.is_blocking() && self.leader.is_none() && timers::runtime_here().is_some();
        if leads {
            self.leader = Some(Box::new(Leader { id, carried: None }));
        } else {
            effects.send_for_carrier();
        }
        leads
    }

    /// What this request carries, if it leads.
    pub(super) fn take_leader(&mut self, id: WaiterId) -> Option<Box<Leader>> {
        self.leader.take_if(|leader| leader.id == id)
    }

    /// A driver has ended. Returns whether it was the last.
    pub(super) fn driver_left(&mut self, runtime: runtime::Id) -> bool {
        self.runtimes.leave(runtime);
        let was_last = !self.runtimes.has_driver();
        if was_last {
            self.armed = Moment::NEVER;
        }
        was_last
    }

    /// Records when every driver wakes. Returns whether other drivers would sleep too long and must be woken.
    pub(super) fn rearm(&mut self) -> bool {
        let next = self.schedule.next_wake();
        let sooner = next < self.armed && self.runtimes.drivers() > 1;
        self.armed = next;
        sooner
    }
}

impl BehindWord for State {
    #[inline(always)]
    fn take_over(&mut self, content: Content, fence: u64, latest: Option<u64>) {
        self.schedule.take_over(content, fence);
        if let Some(latest) = latest {
            self.clock.was_read(Moment::from_nanos(latest));
        }
    }

    fn put_back(&mut self, units: u64) {
        self.schedule.return_units(units);
    }

    #[inline(always)]
    fn may_hand_over(&self) -> bool {
        self.schedule.fits_word()
    }

    fn hand_over(&mut self) -> Option<(Opening, u64)> {
        if self.awaits_drain() {
            return None; // a place that comes back to an open word wakes nobody
        }
        let (opening, fence) = self.schedule.opening(self.clock.latest())?;
        let fits = matches!(opening, Opening::Places { .. }) || self.clock.is_the_only_one();
        fits.then_some((opening, fence))
    }
}
