//! The futures of a request that waits.

use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use tokio::task::coop;

use super::ticket::{OwnedTicket, Ticket, deliver, polled_after_completion};
use crate::core::queue::WaiterId;
use crate::core::request::{Caller, Refused};
use crate::core::schedule::Enqueued;
use crate::error::AcquireError;
use crate::manager::{Manager, RequestOptions, TimedGrant};
use crate::permit::Permit;
use crate::snapshot::LimitStatus;

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
/// `select!` in a loop, say, or beside a task that hangs) may already hold a permit, and then keeps other requests waiting. Drop
/// the future, or set a [TTL](crate::MaxConcurrency::ttl): when it has passed, the permit is reclaimed, and the future gets a
/// permit that is no longer [live](Permit::is_live).
#[must_use = "futures do nothing unless polled"]
pub struct Acquire<'a> {
    manager: &'a Arc<Manager>,
    progress: Progress,
}

/// One request in progress. It is kept to two words, because every waiting task holds one.
#[derive(Debug)]
enum Progress {
    New {
        cost: u32,
        caller: Caller,
    },
    Queued {
        cost: u32,
        id: WaiterId,
    },
    Done,
    /// A request with a larger cost or other options. The `Arc` has one owner. It is used instead of a `Box` because its drop is
    /// less code, and stays inline.
    Boxed(Arc<Ticket>),
}

impl Progress {
    #[inline]
    fn new(options: RequestOptions) -> Self {
        match u32::try_from(options.cost) {
            Ok(cost) if options.only_cost() => Self::New {
                cost,
                caller: options.caller,
            },
            _ => Self::Boxed(Arc::new(Ticket::new(options))),
        }
    }

    /// Each call must pass the same manager. The code is not shared with [`OwnedTicket::poll`], because a closure takes 40 more
    /// instructions.
    #[inline(always)]
    fn poll(
        &mut self,
        manager: &Arc<Manager>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Permit, AcquireError>> {
        // A task that acquires in a loop must yield to other tasks.
        let progress = ready!(coop::poll_proceed(cx));
        let polled = self.poll_with(manager, cx.waker());
        if polled.is_ready() {
            progress.made_progress();
        }
        polled
    }

    /// Stores the waiting request. If observers keep data about the wait, the request is boxed.
    #[cold]
    #[inline(never)]
    fn begin_wait(&mut self, manager: &Arc<Manager>, options: RequestOptions, id: WaiterId) {
        if let Some(wait) = manager.begin_wait(&options) {
            *self = Self::Boxed(Arc::new(Ticket::queued_with(options, id, wait)));
        }
    }

    /// Gives the request up, because its future is dropped.
    #[inline]
    fn give_up(&mut self, manager: &Arc<Manager>) {
        if let Self::Queued { .. } | Self::Boxed(_) = self {
            self.give_up_unanswered(manager);
        }
    }

    /// Not inlined, so that the drop of an answered future can be inlined.
    #[inline(never)]
    fn give_up_unanswered(&mut self, manager: &Arc<Manager>) {
        match *self {
            Self::Queued { cost, id } => manager.out_channel().abandon(id, cost.into()),
            Self::Boxed(ref mut ticket) => unshared(ticket).give_up(manager),
            Self::New { .. } | Self::Done => {}
        }
    }

    #[inline(always)]
    fn poll_with(
        &mut self,
        manager: &Arc<Manager>,
        waker: &Waker,
    ) -> Poll<Result<Permit, AcquireError>> {
        let mut granted = TimedGrant::NOTHING;
        let (plain_cost, asks);
        let enqueued = match *self {
            Self::New { cost, caller } => {
                plain_cost = cost;
                asks = Some(caller);
                manager.in_channel().acquire(
                    cost.into(),
                    None,
                    || RequestOptions::new(cost.into(), caller),
                    waker,
                    &mut granted,
                )
            }
            Self::Queued { cost, id } => {
                plain_cost = cost;
                asks = None;
                manager
                    .out_channel()
                    .poll(id, cost.into(), waker, &mut granted)
            }
            Self::Done => polled_after_completion(),
            Self::Boxed(ref mut ticket) => {
                let ticket = unshared(ticket);
                let enqueued = ready!(advance_boxed(ticket, manager, waker, &mut granted));
                return deliver(manager, ticket.options.cost, enqueued, granted);
            }
        };
        mem::forget(mem::replace(self, Self::Done)); // a future without a ticket has nothing to drop
        match enqueued {
            Ok(Enqueued::Granted(())) => {
                Poll::Ready(Ok(Permit::new(manager, granted, plain_cost.into())))
            }
            Ok(Enqueued::Queued(id)) => {
                *self = Self::Queued {
                    cost: plain_cost,
                    id,
                };
                if let Some(caller) = asks
                    && manager.is_observed()
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
fn advance_boxed(
    ticket: &mut Ticket,
    manager: &Arc<Manager>,
    waker: &Waker,
    granted: &mut TimedGrant,
) -> Poll<Result<Enqueued<()>, Refused>> {
    ticket.advance_after_delay(manager, waker, granted)
}

/// An [`Acquire`] that borrows nothing, so that it can be spawned, or kept in a struct.
/// [`Limiter::acquire_owned`](crate::Limiter::acquire_owned), which has an example, returns it.
///
/// It is `Unpin`. Its cancel safety, and what happens while it is not polled, are those of [`Acquire`].
#[must_use = "futures do nothing unless polled"]
pub struct AcquireOwned {
    manager: Arc<Manager>,
    progress: Progress,
}

/// Implements a future over a [`Progress`]. One future borrows its manager, the other holds a handle of it.
macro_rules! acquire_future {
    ($future:ident $(<$lifetime:lifetime>)?, $manager:ty) => {
        impl $(<$lifetime>)? $future $(<$lifetime>)? {
            #[inline]
            pub(crate) fn new(manager: $manager, options: RequestOptions) -> Self {
                let progress = Progress::new(options);
                Self { manager, progress }
            }
        }

        impl $(<$lifetime>)? Future for $future $(<$lifetime>)? {
            type Output = Result<Permit, AcquireError>;

            #[inline(always)]
            fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
                let Self { manager, progress } = &mut *self;
                progress.poll(manager, cx)
            }
        }

        impl $(<$lifetime>)? Drop for $future $(<$lifetime>)? {
            #[inline]
            fn drop(&mut self) {
                let Self { manager, progress } = self;
                progress.give_up(manager);
            }
        }

        debug_fields!($([$lifetime])? $future $(<$lifetime>)?, |acquire| progress = acquire.progress);
    };
}

acquire_future!(Acquire<'a>, &'a Arc<Manager>);
acquire_future!(AcquireOwned, Arc<Manager>);

/// A future that waits for a permit, and returns it with the status of each limit at the grant or the refusal.
/// [`PermitRequest::acquire_explained`](crate::PermitRequest::acquire_explained), which has an example, returns it.
///
/// It borrows nothing. Its cancel safety, and what happens while it is not polled, are those of [`Acquire`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct AcquireExplained(OwnedTicket);

impl AcquireExplained {
    pub(crate) fn new(manager: Arc<Manager>, mut options: RequestOptions) -> Self {
        options.ask_for_explanation();
        Self(OwnedTicket::new(manager, options))
    }
}

impl Future for AcquireExplained {
    type Output = (Result<Permit, AcquireError>, Vec<LimitStatus>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let OwnedTicket {
            manager, ticket, ..
        } = &mut self.0;
        // A task that acquires in a loop must yield to other tasks.
        let progress = ready!(coop::poll_proceed(cx));
        let mut granted = TimedGrant::NOTHING;
        let answer = ready!(ticket.advance_after_delay(manager, cx.waker(), &mut granted));
        let explained = match answer {
            Ok(Enqueued::Queued(_)) => return Poll::Pending,
            Ok(Enqueued::Granted(())) => {
                let limits = manager.out_channel().take_explanation(granted.grant.fence);
                let permit = Permit::new(manager, granted, ticket.options.cost);
                (Ok(permit), limits)
            }
            Err(refused) => (Err(refused.error), refused.limits),
        };
        progress.made_progress();
        Poll::Ready(explained)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The `peers` benchmark measures this as "heap per waiter, its future in a box", together with the waiter's entry in the
    /// queue.
    #[test]
    fn a_future_takes_24_bytes() {
        assert_eq!(size_of::<Acquire<'_>>(), 24);
    }
}
