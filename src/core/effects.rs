use std::task::Waker;

use crate::core::lease::Lease;
use crate::core::request::{Caller, Request};
use crate::event::ShedReason;
use crate::priority::Priority;

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
    pub(crate) reclaimed: Vec<Lease>,
    pub(crate) shed: Vec<ShedRequest>,
}

/// A request that a full queue has dropped or turned away.
#[derive(Debug)]
pub(crate) struct ShedRequest {
    pub(crate) cost: u64,
    pub(crate) priority: Priority,
    pub(crate) caller: Caller,
    pub(crate) reason: ShedReason,
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

    pub(super) fn reclaim(&mut self, lease: Lease) {
        self.rest.get_or_insert_default().reclaimed.push(lease);
    }

    pub(super) fn shed(&mut self, &Request { costs, priority, caller, .. }: &Request<'_>, reason: ShedReason) {
        self.rest.get_or_insert_default().shed.push(ShedRequest { cost: costs.plain, priority, caller, reason });
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
