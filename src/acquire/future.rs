use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::ticket::Ticket;
use crate::error::AcquireError;
use crate::manager::{Manager, RequestOptions};
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
    ticket: Ticket,
}

impl<'a> Acquire<'a> {
    #[inline]
    pub(crate) fn new(manager: &'a Arc<Manager>, options: RequestOptions) -> Self {
        Self { manager, ticket: Ticket::new(options) }
    }
}

impl Future for Acquire<'_> {
    type Output = Result<Permit, AcquireError>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let manager = self.manager;
        self.ticket.poll(manager, cx)
    }
}

impl Drop for Acquire<'_> {
    #[inline]
    fn drop(&mut self) {
        self.ticket.give_up(self.manager);
    }
}

impl fmt::Debug for Acquire<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}
