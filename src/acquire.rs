use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker, ready};
use std::thread::{self, Thread};
use std::time::Duration;

use tokio::task::coop;
use tokio::time::Instant;

use crate::core::arena::Index;
use crate::core::request::Caller;
use crate::error::AcquireError;
use crate::manager::{Enqueued, Granted, Manager, Order};
use crate::permit::Permit;
use crate::priority::Priority;

/// One request on its way: not begun, queued under a key, or done.
///
/// It holds no manager, so that its owner chooses how to: every call must be given the same one. The owner's drop must
/// [give it up](Ticket::give_up).
#[derive(Debug)]
pub(crate) struct Ticket {
    order: Order,
    stage: Stage,
}

#[derive(Debug, Clone, Copy)]
enum Stage {
    New,
    Queued(Index),
    Done,
}

impl Ticket {
    #[inline]
    pub(crate) fn new(order: Order) -> Self {
        Self { order, stage: Stage::New }
    }

    /// Ready again and again once [`Ticket::renew`]ed.
    #[inline(always)]
    pub(crate) fn poll(&mut self, manager: &Arc<Manager>, cx: &mut Context<'_>) -> Poll<Result<Permit, AcquireError>> {
        // A task that acquires in a loop must let its neighbours have a turn.
        let progress = ready!(coop::poll_proceed(cx));
        let polled = self.poll_with(manager, cx.waker());
        if polled.is_ready() {
            progress.made_progress();
        }
        polled
    }

    /// The same request once more, after it was answered.
    pub(crate) fn renew(&mut self) {
        self.stage = Stage::New;
    }

    #[inline(always)]
    pub(crate) fn give_up(&mut self, manager: &Arc<Manager>) {
        if let Stage::Queued(index) = self.stage {
            self.stage = Stage::Done;
            manager.abandon(index);
        }
    }

    #[inline(always)]
    fn poll_with(&mut self, manager: &Arc<Manager>, waker: &Waker) -> Poll<Result<Permit, AcquireError>> {
        let mut granted = Granted::NOTHING;
        let enqueued = match self.stage {
            Stage::New => manager.acquire(&self.order, waker, &mut granted),
            Stage::Queued(index) => manager.poll(index, &self.order, waker, &mut granted),
            Stage::Done => panic!("an acquire future was polled after it had completed"),
        };
        self.stage = Stage::Done;
        match enqueued {
            Ok(Enqueued::Granted) => Poll::Ready(Ok(Permit::new(manager, granted, self.order.cost))),
            Ok(Enqueued::Queued(index)) => {
                self.stage = Stage::Queued(index);
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(*error)),
        }
    }
}

/// A ticket with its manager, for one request after another.
#[derive(Debug)]
pub(crate) struct OwnedTicket {
    manager: Arc<Manager>,
    ticket: Ticket,
}

impl OwnedTicket {
    pub(crate) fn new(manager: Arc<Manager>, order: Order) -> Self {
        Self { manager, ticket: Ticket::new(order) }
    }

    /// A permit for the present request; the next poll begins another one.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Permit, AcquireError>> {
        let answer = ready!(self.ticket.poll(&self.manager, cx));
        self.ticket.renew();
        Poll::Ready(answer)
    }
}

/// The permit of one request.
impl Future for OwnedTicket {
    type Output = Result<Permit, AcquireError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { manager, ticket } = &mut *self;
        ticket.poll(manager, cx)
    }
}

impl Drop for OwnedTicket {
    fn drop(&mut self) {
        self.ticket.give_up(&self.manager);
    }
}

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
    pub(crate) fn new(manager: &'a Arc<Manager>, order: Order) -> Self {
        Self { manager, ticket: Ticket::new(order) }
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

/// A request with more than a cost: what [`Limiter::request`](crate::Limiter::request) returns.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{AcquireError, Limiter, MaxConcurrency, Priority, Throttle};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(Throttle::every(Duration::from_secs(60)).burst(3))?;
/// let timeout = Duration::from_secs(5);
/// let _permit = limiter.request().cost(3).priority(Priority::HIGH).timeout(timeout).acquire().await?;
///
/// // The next one is a minute off: that is said at once, not after five seconds.
/// let error = limiter.request().timeout(timeout).acquire().await.unwrap_err();
/// assert_eq!(error, AcquireError::TimedOut { retry_after: Some(Duration::from_secs(60)) });
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy)]
#[must_use = "a request does nothing until `acquire` is called"]
pub struct PermitRequest<'a> {
    manager: &'a Arc<Manager>,
    order: Order,
}

/// The setters that [`PermitRequest`] and [`KeyedPermitRequest`](crate::KeyedPermitRequest) share.
macro_rules! request_setters {
    () => {
        /// Sets how many units the request takes: 1 to the smallest [capacity](crate::Limit::capacity) in the policy. Defaults
        /// to 1. Any other number is an error of `acquire`. See the [example](crate::PermitRequest#examples).
        pub fn cost(mut self, units: u64) -> Self {
            self.order.cost = units;
            self
        }

        /// Sets the priority of the request in the queue. Defaults to [`Priority::NORMAL`]. See [`Priority`] for an example.
        pub fn priority(mut self, priority: Priority) -> Self {
            self.order.priority = priority;
            self
        }

        /// Sets how long the request may wait, from the first poll on: 0 (it does not wait) to 100 years. Defaults to no timeout.
        ///
        /// A request that is known to wait longer fails at once. One that can be granted at the very end of its timeout is
        /// granted. See the [example](crate::PermitRequest#examples).
        pub fn timeout(mut self, timeout: Duration) -> Self {
            self.order.timeout = Some(timeout);
            self
        }
    };
}

pub(crate) use request_setters;

impl<'a> PermitRequest<'a> {
    #[inline]
    pub(crate) fn new(manager: &'a Arc<Manager>, cost: u64, caller: Caller) -> Self {
        Self { manager, order: Order::new(cost, caller) }
    }

    request_setters!();

    /// Waits for the permit. See [`Limiter::acquire`](crate::Limiter::acquire).
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::acquire`](crate::Limiter::acquire), and [`AcquireError::TimedOut`] or
    /// [`AcquireError::TimeoutTooLong`].
    #[inline]
    pub fn acquire(self) -> Acquire<'a> {
        Acquire::new(self.manager, self.order)
    }

    pub(crate) fn into_ticket(self) -> OwnedTicket {
        OwnedTicket::new(Arc::clone(self.manager), self.order)
    }

    /// Blocks the thread until it has the permit. See [`Limiter::blocking_acquire`](crate::Limiter::blocking_acquire).
    ///
    /// # Errors
    ///
    /// Those of [`PermitRequest::acquire`], but [`AcquireError::NoRuntime`].
    pub fn blocking_acquire(self) -> Result<Permit, AcquireError> {
        struct Unpark(Thread);
        impl Wake for Unpark {
            fn wake(self: Arc<Self>) {
                self.0.unpark();
            }
        }
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut acquire = Acquire::new(self.manager, Order { blocking: true, ..self.order });
        loop {
            if let Poll::Ready(answer) = acquire.ticket.poll_with(self.manager, &waker) {
                return answer;
            }
            let Stage::Queued(index) = acquire.ticket.stage else { continue };
            // An answer that comes in between has left its token: the park returns at once.
            match self.manager.run_due_on_blocked_thread(index) {
                Some(at) => thread::park_timeout(at.saturating_duration_since(Instant::now())),
                None => thread::park(),
            }
        }
    }
}
