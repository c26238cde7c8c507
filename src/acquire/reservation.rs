//! A turn that is taken before it is awaited.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use super::ticket::{OwnedTicket, polled_after_completion};
use crate::error::AcquireError;
use crate::manager::{Manager, RequestOptions};
use crate::permit::Permit;

/// A place in the queue that is taken now, and used later: [`Limiter::reserve`](crate::Limiter::reserve) returns it.
///
/// A reservation has joined the queue already; an [`Acquire`](crate::Acquire) joins it at its first poll. So later requests queue
/// behind the reservation (unless their priority is higher), and its turn is known. Await it for the permit. To cancel it, drop
/// it: its units go to the next request.
///
/// A permit counts as in use from its grant on, also before the reservation is awaited: see
/// [`Acquire`](crate::Acquire#when-it-is-not-polled).
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
    waiting: Option<OwnedTicket>,
    /// A permit that was granted at once.
    granted: Option<Permit>,
}

impl Reservation {
    pub(crate) fn new(
        manager: Arc<Manager>,
        options: RequestOptions,
    ) -> Result<Self, AcquireError> {
        let mut waiting = OwnedTicket::new(manager, options);
        let OwnedTicket {
            manager, ticket, ..
        } = &mut waiting;
        match ticket.poll_with(manager, Waker::noop()) {
            Poll::Ready(answer) => answer.map(Self::granted),
            Poll::Pending => Ok(Self {
                waiting: Some(waiting),
                granted: None,
            }),
        }
    }

    pub(crate) fn granted(permit: Permit) -> Self {
        Self {
            waiting: None,
            granted: Some(permit),
        }
    }

    /// Restarts the TTL of its permit, so that the permit is live when it is delivered. Returns whether it has a live permit.
    pub(crate) fn renew(&self) -> bool {
        self.granted.as_ref().is_some_and(Permit::renew)
    }

    /// The permit of a reservation that was made by [`Reservation::granted`].
    pub(crate) fn keep(mut self) -> Permit {
        self.granted.take().expect("it is kept once")
    }

    /// The time until its turn, as far as is known now. Zero if the permit was granted. `None` if the turn waits for a release or
    /// a resume, because their time is unknown.
    ///
    /// It is exact if no request with a higher priority comes and none leaves, with up to 64 requests ahead; with more it is a lower
    /// bound. See the [type's example](Reservation#examples).
    #[must_use]
    pub fn ready_in(&self) -> Option<Duration> {
        let waiting = self
            .waiting
            .as_ref()
            .and_then(|waiting| Some((&waiting.manager, waiting.ticket.queued()?)));
        waiting.map_or(Some(Duration::ZERO), |(manager, id)| {
            manager.ask(|outlook, now| {
                let turn = outlook.turn_of(now, id).known()?;
                Some(turn.duration_since(now))
            })
        })
    }
}

impl Future for Reservation {
    type Output = Result<Permit, AcquireError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(permit) = self.granted.take() {
            return Poll::Ready(Ok(permit));
        }
        let Some(waiting) = &mut self.waiting else {
            polled_after_completion()
        };
        let answer = ready!(waiting.poll(cx));
        self.waiting = None;
        Poll::Ready(answer)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(permit) = self.granted.take() {
            _ = permit.refund();
        }
    }
}

debug_fields! { Reservation, |reservation| ready_in = reservation.ready_in() }
