//! What a decision causes outside the lock, as data.

use std::task::Waker;
use std::time::Duration;

use crate::core::gate::lease::Lease;
use crate::event::EventKind;

/// How many waiters are answered, or leases reclaimed, before the lock is released and they are woken.
///
/// It is smaller in the unit tests, so that their short queues take several batches.
pub(super) const BATCH: usize = if cfg!(test) { 4 } else { 64 };

/// How many wakers there is memory for at once, where there are several.
const MANY: usize = 16;

/// What must be done outside the lock. Waking and dropping a waker run foreign code, so neither happens under a lock.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// Usually one: a release serves the next waiter.
    pub(crate) first: Option<Waker>,
    /// Rare effects, boxed so that the common case moves and drops only a pointer.
    pub(crate) more: Option<Box<MoreEffects>>,
    /// There is more to do; call [`run_due`](crate::core::schedule::Schedule::run_due) again.
    pub(crate) unfinished: bool,
}

#[derive(Debug, Default)]
pub(crate) struct MoreEffects {
    pub(crate) wakers: Vec<Waker>,
    /// To be dropped, not woken.
    pub(crate) discarded: Vec<Waker>,
    /// The fences of the permits that were reclaimed.
    pub(crate) reclaimed: Vec<u64>,
    pub(crate) errands: Vec<Errand>,
    /// The events for the observer, in order. Ids of permits lack their [random part](EventKind::complete_id).
    pub(crate) events: Vec<EventKind>,
}

/// Work with the store of a limiter, for a task of its own.
#[derive(Debug)]
pub(crate) enum Errand {
    /// Start a carrier, which does what the session [says](crate::core::session::SessionStep::next_trip), one trip after another.
    Carry,
    /// Begin to renew the leases.
    RenewLeases,
    /// Keep the key for this long, if few are kept: until then its requests are denied without a call.
    KeepDenied(Duration),
    /// Keep the key for this long: it is paused or closed in this process.
    KeepHeldBack(Duration),
    /// Keep the key no longer, if it is neither paused nor closed.
    EndKeep,
}

impl Effects {
    #[inline(always)]
    pub(crate) fn wake(&mut self, waker: Option<Waker>) {
        if self.first.is_none() {
            self.first = waker;
        } else if waker.is_some() {
            let wakers = &mut self.more.get_or_insert_default().wakers;
            if wakers.is_empty() {
                wakers.reserve(MANY); // a second one is seldom the last
            }
            wakers.extend(waker);
        }
    }

    pub(super) fn reclaim(&mut self, lease: &Lease) {
        self.more
            .get_or_insert_default()
            .reclaimed
            .push(lease.fence);
    }

    pub(crate) fn run_errand(&mut self, errand: Errand) {
        self.more.get_or_insert_default().errands.push(errand);
    }

    pub(super) fn tell(&mut self, event: EventKind) {
        self.more.get_or_insert_default().events.push(event);
    }

    /// Puts events before those that came after the first `earlier` ones.
    pub(super) fn tell_before(&mut self, earlier: usize, events: Vec<EventKind>) {
        let all = &mut self.more.get_or_insert_default().events;
        all.splice(earlier..earlier, events);
    }

    /// The number of events so far.
    pub(super) fn event_count(&self) -> usize {
        self.more.as_ref().map_or(0, |more| more.events.len())
    }

    pub(crate) fn discard(&mut self, waker: Waker) {
        self.more.get_or_insert_default().discarded.push(waker);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none() && self.more.is_none()
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.more
            .as_ref()
            .is_some_and(|more| more.wakers.len() + more.reclaimed.len() + 1 >= BATCH)
    }
}
