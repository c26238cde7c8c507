use std::task::Waker;
use std::time::Duration;

use crate::core::lease::Lease;
use crate::core::queue::Front;
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
    pub(crate) rest: Option<Box<Rest>>,
    /// There is more to do; call [`run_due`](crate::core::schedule::Schedule::run_due) again.
    pub(crate) unfinished: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Rest {
    pub(crate) wakers: Vec<Waker>,
    /// To be dropped, not woken.
    pub(crate) discarded: Vec<Waker>,
    /// The fences of the permits that were reclaimed.
    pub(crate) reclaimed: Vec<u64>,
    /// Somebody is to carry calls to the store.
    pub(crate) sends_for_carrier: bool,
    /// What the observer is told, in order.
    pub(crate) events: Vec<Happening>,
}

/// What an observer is told. The manager adds what only it knows: its name, and the random part of permit ids.
#[derive(Debug)]
pub(crate) enum Happening {
    GrantedAfterWait { fence: u64, request: Front, waited: Duration },
    Reclaimed(Lease),
    ReleasedLate { fence: u64, cost: u64 },
    Other(EventKind),
}

impl Effects {
    #[inline(always)]
    pub(crate) fn wake(&mut self, waker: Option<Waker>) {
        if self.first.is_none() {
            self.first = waker;
        } else if waker.is_some() {
            let wakers = &mut self.rest.get_or_insert_default().wakers;
            if wakers.is_empty() {
                wakers.reserve(MANY); // a second one is seldom the last
            }
            wakers.extend(waker);
        }
    }

    pub(super) fn reclaim(&mut self, lease: &Lease) {
        self.rest.get_or_insert_default().reclaimed.push(lease.fence);
    }

    pub(crate) fn send_for_carrier(&mut self) {
        self.rest.get_or_insert_default().sends_for_carrier = true;
    }

    pub(super) fn tell(&mut self, happening: Happening) {
        self.rest.get_or_insert_default().events.push(happening);
    }

    /// Puts events before those that came after the first `told` ones.
    pub(super) fn tell_before(&mut self, told: usize, events: Vec<EventKind>) {
        let all = &mut self.rest.get_or_insert_default().events;
        all.splice(told..told, events.into_iter().map(Happening::Other));
    }

    /// The number of events so far.
    pub(super) fn told(&self) -> usize {
        self.rest.as_ref().map_or(0, |rest| rest.events.len())
    }

    pub(crate) fn discard(&mut self, waker: Option<Waker>) {
        if waker.is_some() {
            self.rest.get_or_insert_default().discarded.extend(waker);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none() && self.rest.is_none()
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.rest.as_ref().is_some_and(|rest| rest.wakers.len() + rest.reclaimed.len() + 1 >= BATCH)
    }
}
