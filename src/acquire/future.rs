use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use tokio::task::coop;

use super::ticket::{Ticket, deliver, polled_after_completion};
use crate::core::refused::Refused;
use crate::core::request::Caller;
use crate::core::schedule::Enqueued;
use crate::core::waiter::WaiterId;
use crate::error::AcquireError;
use crate::manager::{Manager, RequestOptions, TimedGrant};
use crate::permit::Permit;

/// A future that waits for a permit. [`Limiter::acquire`](crate::Limiter::acquire), which has an example, returns it.
///
/// # Cancel safety
///
/// Dropping it loses nothing, at any time: a request that waits leaves the queue, and a permit that was granted but not taken yet
/// goes to the next request.
///
/// # When it is not polled
///
/// A permit is in use from its grant on, not from the poll that takes it. A future that is kept but not polled any more (in a
/// `select!` in a loop, say, or beside a task that hangs) may have been granted one, and then keeps others waiting. Drop the
/// future, or set a [TTL](crate::MaxConcurrency::ttl): after that the permit is reclaimed, and the future gets a permit that is
/// no longer [live](Permit::is_live).
#[must_use = "futures do nothing unless polled"]
pub struct Acquire<'a> {
    manager: &'a Arc<Manager>,
    progress: Progress,
}

/// One request in progress. What most requests need fits into two words, because every task that waits holds one.
#[derive(Debug)]
pub(super) enum Progress {
    New {
        cost: u32,
        caller: Caller,
    },
    Queued {
        cost: u32,
        id: WaiterId,
    },
    Done,
    /// It has a larger cost, or other options. It is not shared: to drop an `Arc` takes less code than to drop a box, and stays inline.
    Apart(Arc<Ticket>),
}

impl<'a> Acquire<'a> {
    #[inline]
    pub(crate) fn new(manager: &'a Arc<Manager>, options: RequestOptions) -> Self {
        Self { manager, progress: Progress::new(options) }
    }
}

impl Progress {
    #[inline]
    pub(super) fn new(options: RequestOptions) -> Self {
        match u32::try_from(options.cost) {
            Ok(cost) if options.only_cost() => Self::New { cost, caller: options.caller },
            _ => Self::Apart(Arc::new(Ticket::new(options))),
        }
    }

    /// Each call must be given the same manager. Not shared with [`Ticket::poll`]: a closure takes 40 instructions more.
    #[inline(always)]
    pub(super) fn poll(&mut self, manager: &Arc<Manager>, cx: &mut Context<'_>) -> Poll<Result<Permit, AcquireError>> {
        // A task that acquires in a loop must let its neighbours have a turn.
        let progress = ready!(coop::poll_proceed(cx));
        let polled = self.poll_with(manager, cx.waker());
        if polled.is_ready() {
            progress.made_progress();
        }
        polled
    }

    /// It waits. If observers keep something of that, it takes more room.
    #[cold]
    #[inline(never)]
    fn begin_wait(&mut self, manager: &Arc<Manager>, options: RequestOptions, id: WaiterId) {
        if let Some(wait) = manager.begin_wait(&options) {
            *self = Self::Apart(Arc::new(Ticket::queued_with(options, id, wait)));
        }
    }

    /// The future is dropped.
    #[inline]
    pub(super) fn give_up(&mut self, manager: &Arc<Manager>) {
        if let Self::Queued { .. } | Self::Apart(_) = self {
            self.give_up_unanswered(manager);
        }
    }

    /// Not inlined, so that the drop of an answered future is.
    #[inline(never)]
    fn give_up_unanswered(&mut self, manager: &Arc<Manager>) {
        match *self {
            Self::Queued { cost, id } => manager.abandon(id, cost.into()),
            Self::Apart(ref mut ticket) => unshared(ticket).give_up(manager),
            Self::New { .. } | Self::Done => {}
        }
    }

    #[inline(always)]
    fn poll_with(&mut self, manager: &Arc<Manager>, waker: &Waker) -> Poll<Result<Permit, AcquireError>> {
        let mut granted = TimedGrant::NOTHING;
        let (plain_cost, asks);
        let enqueued = match *self {
            Self::New { cost, caller } => {
                (plain_cost, asks) = (cost, Some(caller));
                manager.acquire(cost.into(), None, || RequestOptions::new(cost.into(), caller), waker, &mut granted)
            }
            Self::Queued { cost, id } => {
                (plain_cost, asks) = (cost, None);
                manager.poll(id, cost.into(), waker, &mut granted)
            }
            Self::Done => polled_after_completion(),
            Self::Apart(ref mut ticket) => {
                let ticket = unshared(ticket);
                let enqueued = ready!(advance_apart(ticket, manager, waker, &mut granted));
                return deliver(manager, ticket.cost(), enqueued, granted);
            }
        };
        mem::forget(mem::replace(self, Self::Done)); // it was no ticket, so there is nothing to drop
        match enqueued {
            Ok(Enqueued::Granted(())) => Poll::Ready(Ok(Permit::new(manager, granted, plain_cost.into()))),
            Ok(Enqueued::Queued(id)) => {
                *self = Self::Queued { cost: plain_cost, id };
                if let Some(caller) = asks
                    && manager.tells_waits()
                {
                    self.begin_wait(manager, RequestOptions::new(plain_cost.into(), caller), id);
                }
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(error.error)),
        }
    }
}

fn unshared(ticket: &mut Arc<Ticket>) -> &mut Ticket {
    Arc::get_mut(ticket).expect("a ticket is not shared")
}

#[inline(never)]
fn advance_apart(
    ticket: &mut Ticket,
    manager: &Arc<Manager>,
    waker: &Waker,
    granted: &mut TimedGrant,
) -> Poll<Result<Enqueued<()>, Refused>> {
    ticket.advance_after_delay(manager, waker, granted)
}

impl Future for Acquire<'_> {
    type Output = Result<Permit, AcquireError>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { manager, progress } = &mut *self;
        progress.poll(manager, cx)
    }
}

impl Drop for Acquire<'_> {
    #[inline]
    fn drop(&mut self) {
        let Self { manager, progress } = self;
        progress.give_up(manager);
    }
}

impl fmt::Debug for Acquire<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").field("progress", &self.progress).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the `peers` benchmark measures as "heap per waiter, its future in a box", but for the waiter in its line.
    #[test]
    fn a_future_takes_24_bytes() {
        assert_eq!(size_of::<Acquire<'_>>(), 24);
    }
}
