//! A limiter that is polled for permits, for hand-written futures.

use std::panic::Location;
use std::task::{Context, Poll};

use super::Limiter;
use crate::acquire::OwnedTicket;
use crate::core::request::Caller;
use crate::error::AcquireError;
use crate::permit::Permit;

/// A limiter that is polled for permits, for hand-written futures and for `poll_ready` of a service or a sink, like tokio-util's
/// `PollSemaphore`.
///
/// One request waits at a time. It keeps its position in the queue between polls, until the `PollLimiter` is dropped. A permit
/// that was granted but not polled for then goes to the next request. A clone makes a request of its own.
///
/// # Examples
///
/// ```
/// use std::future::poll_fn;
/// use tollgate::{Limiter, MaxConcurrency, PollLimiter};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut limiter = PollLimiter::new(Limiter::new(MaxConcurrency::new(1))?);
/// let permit = poll_fn(|cx| limiter.poll_acquire(cx)).await?;
/// assert_eq!(limiter.limiter().snapshot().in_flight, 1);
/// drop(permit);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct PollLimiter {
    limiter: Limiter,
    ticket: OwnedTicket,
    caller: Caller,
}

impl PollLimiter {
    /// Makes a `PollLimiter` whose requests have a cost of one unit.
    #[must_use]
    #[track_caller]
    pub fn new(limiter: Limiter) -> Self {
        Self::with_caller(limiter, Location::caller())
    }

    fn with_caller(limiter: Limiter, caller: Caller) -> Self {
        let ticket = limiter.ticket(caller);
        Self {
            limiter,
            ticket,
            caller,
        }
    }

    /// Polls for a permit of one unit. If the request must wait, the task of the latest poll is woken when it is answered. The
    /// poll after an answer makes a new request.
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::acquire`].
    pub fn poll_acquire(&mut self, cx: &mut Context<'_>) -> Poll<Result<Permit, AcquireError>> {
        self.ticket.poll(cx)
    }

    /// The limiter.
    #[must_use]
    pub const fn limiter(&self) -> &Limiter {
        &self.limiter
    }
}

impl Clone for PollLimiter {
    fn clone(&self) -> Self {
        Self::with_caller(self.limiter.clone(), self.caller)
    }
}
