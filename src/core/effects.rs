use std::task::Waker;

use crate::contain_panic::contain_panic;
use crate::core::lease::Lease;
use crate::core::request::Request;
use crate::event::ShedReason;

/// How many waiters are answered, or leases reclaimed, before the lock is let go of and they are woken.
const BATCH: usize = 64;

/// What is to be done outside the lock. Wakers run other people's code, when woken and when dropped: never under a lock.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// Most often there is one: a release hands over to the next.
    first: Option<Waker>,
    /// What is rare, so that the common case carries and drops but a pointer.
    rest: Option<Box<Rest>>,
    /// The batch was full: call [`run_due`](crate::core::schedule::Schedule::run_due) again.
    unfinished: bool,
}

#[derive(Debug, Default)]
struct Rest {
    wakers: Vec<Waker>,
    discarded: Vec<Waker>,
    reclaimed: Vec<Lease>,
    shed: Vec<(Request, ShedReason)>,
}

/// What there is to tell of.
pub(crate) enum Notice<'a> {
    Reclaimed(&'a Lease),
    Shed(&'a Request, ShedReason),
}

impl Effects {
    #[inline]
    pub(super) fn wake(&mut self, waker: Option<Waker>) {
        if self.first.is_none() {
            self.first = waker;
        } else if waker.is_some() {
            self.rest.get_or_insert_default().wakers.extend(waker);
        }
    }

    pub(super) fn reclaim(&mut self, lease: Lease) {
        self.rest.get_or_insert_default().reclaimed.push(lease);
    }

    pub(super) fn shed(&mut self, request: &Request, reason: ShedReason) {
        self.rest.get_or_insert_default().shed.push((*request, reason));
    }

    /// There is more to do when the batch is full.
    pub(super) fn pause_if_full(&mut self) {
        self.unfinished = self.is_full();
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

    /// Tells of the leases that were reclaimed and the requests that were shed, and then wakes everybody, so that a log reads forward. Says whether there is
    /// more to do.
    #[inline(always)]
    pub(crate) fn apply(&mut self, emit: impl Fn(Notice<'_>)) -> bool {
        if self.rest.is_some() {
            self.apply_rest(emit);
        } else if let Some(first) = self.first.take() {
            contain_panic(|| first.wake());
        }
        std::mem::take(&mut self.unfinished)
    }

    #[cold]
    fn apply_rest(&mut self, emit: impl Fn(Notice<'_>)) {
        let Rest { wakers, discarded, reclaimed, shed } = *std::mem::take(&mut self.rest).unwrap_or_default();
        reclaimed.iter().map(Notice::Reclaimed).for_each(&emit);
        shed.iter().map(|(request, reason)| Notice::Shed(request, *reason)).for_each(&emit);
        for waker in self.first.take().into_iter().chain(wakers) {
            contain_panic(|| waker.wake()); // or the others would stay asleep
        }
        drop(discarded);
    }
}
