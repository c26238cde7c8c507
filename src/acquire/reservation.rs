use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use super::ticket::Ticket;
use crate::error::AcquireError;
use crate::manager::{Manager, RequestOptions};
use crate::permit::Permit;

/// A turn that is taken now, and used later: [`Limiter::reserve`](crate::Limiter::reserve) returns it.
///
/// It is a request that has joined the queue already, where an [`Acquire`](crate::Acquire) joins it at its first poll. So later
/// requests go behind it (unless their priority is higher), and it knows its turn. Await it for the permit. To cancel it, drop it:
/// what it would have taken goes to the next request.
///
/// A permit that was granted counts as in use, whether or not it was taken: see [`Acquire`](crate::Acquire#when-it-is-not-polled).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limiter, Throttle};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(Throttle::every(Duration::from_secs(60)))?;
/// let first = limiter.reserve()?;
/// let second = limiter.reserve()?;
/// let third = limiter.reserve()?;
/// assert_eq!((first.ready_in(), third.ready_in()), (Some(Duration::ZERO), Some(Duration::from_secs(120))));
///
/// drop(second); // too late for it
/// assert_eq!(third.ready_in(), Some(Duration::from_secs(60)));
/// let start = tokio::time::Instant::now();
/// let _permits = (first.await?, third.await?);
/// assert_eq!(start.elapsed(), Duration::from_secs(60));
/// # Ok(())
/// # }
/// ```
#[must_use = "a reservation is cancelled when it is dropped"]
pub struct Reservation {
    manager: Arc<Manager>,
    ticket: Ticket,
    /// A permit that was granted at once.
    granted: Option<Permit>,
}

impl Reservation {
    pub(crate) fn new(manager: Arc<Manager>, options: RequestOptions) -> Result<Self, AcquireError> {
        let mut ticket = Ticket::new(options);
        let granted = match ticket.poll_with(&manager, Waker::noop()) {
            Poll::Ready(answer) => Some(answer?),
            Poll::Pending => None,
        };
        Ok(Self { manager, ticket, granted })
    }

    /// How long until its turn, as far as is known now: zero when the permit was granted. `None` when only a release or a resume
    /// helps, whose time is unknown.
    ///
    /// It is exact if no request with a higher priority comes and none leaves, with up to 64 requests ahead; with more it is a lower
    /// bound. See the [type's example](Reservation#examples).
    #[must_use]
    pub fn ready_in(&self) -> Option<Duration> {
        let waiting = self.ticket.queued().filter(|_| self.granted.is_none());
        waiting.map_or(Some(Duration::ZERO), |id| self.manager.time_to_turn_of(id))
    }
}

impl Future for Reservation {
    type Output = Result<Permit, AcquireError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { manager, ticket, granted } = &mut *self;
        match granted.take() {
            Some(permit) => Poll::Ready(Ok(permit)),
            None => Poll::Ready(ready!(ticket.poll(manager, cx))),
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.ticket.give_up(&self.manager);
        if let Some(permit) = self.granted.take() {
            _ = permit.refund();
        }
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("ready_in", &self.ready_in()).finish_non_exhaustive()
    }
}
