//! The futures that callers await: a request that waits, work under a permit, a turn taken before it is awaited, and a request to a
//! store that does not wait for its turn.

use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use pin_project::pin_project;
use tokio::task::coop;

use super::ticket::{OwnedTicket, Ticket, TicketStage, deliver, polled_after_completion};
use crate::core::queue::WaiterId;
use crate::core::request::{Caller, Refused, RefusedRequest};
use crate::core::schedule::Enqueued;
use crate::error::{AcquireError, RunError, TryAcquireError};
use crate::manager::{Manager, RequestOptions, TimedGrant, Watch};
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
                // This permit is made of values in registers. One that is copied from `granted` stalls until that is written.
                if let Some(taken) = manager.in_channel().take_place(cost.into()) {
                    mem::forget(mem::replace(self, Self::Done));
                    return Poll::Ready(Ok(Permit::new(manager, taken, cost.into())));
                }
                plain_cost = cost;
                asks = Some(caller);
                manager
                    .in_channel()
                    .acquire_plain(cost.into(), caller, waker, &mut granted)
            }
            Self::Queued { cost, id } => {
                if let Some(taken) = manager.out_channel().take_place(id) {
                    mem::forget(mem::replace(self, Self::Done));
                    return Poll::Ready(Ok(Permit::new(manager, taken, cost.into())));
                }
                plain_cost = cost;
                asks = None;
                manager
                    .out_channel()
                    .poll_under_lock(id, cost.into(), waker, &mut granted)
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

/// A future that runs under a permit: [`Limiter::run`](crate::Limiter::run), which has an example, returns it.
/// [`KeyedLimiter::run`](crate::KeyedLimiter::run) returns one whose permit is acquired by key.
///
/// # Cancel safety
///
/// Dropping it drops the future inside, and then releases the permit or leaves the queue.
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct Run<F, A = AcquireOwned> {
    /// Dropped before the permit, so that the place is free only when the work is really over.
    #[pin]
    work: Option<F>,
    held: Option<UnderPermit>,
    #[pin]
    acquire: A,
}

struct UnderPermit {
    /// Completes when the permit is reclaimed. `None` if the permit has no TTL.
    reclaimed: Option<Watch>,
    permit: Permit,
}

impl<F, A> Run<F, A> {
    pub(crate) fn new(acquire: A, work: F) -> Self {
        Self {
            work: Some(work),
            held: None,
            acquire,
        }
    }
}

impl UnderPermit {
    /// Whether the permit is still live. If it is, the task is woken when it is reclaimed.
    fn poll_live(&mut self, cx: &mut Context<'_>) -> bool {
        self.reclaimed
            .as_mut()
            .is_none_or(|reclaimed| Pin::new(reclaimed).poll(cx).is_pending())
    }
}

impl<F: Future, A: Future<Output = Result<Permit, AcquireError>>> Future for Run<F, A> {
    type Output = Result<F::Output, RunError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let mut outcome = None;
        if this.held.is_none() {
            match ready!(this.acquire.poll(cx)) {
                // If its TTL passed between the grant and this poll, the future is not polled.
                Ok(permit) if !permit.is_live() => {
                    outcome = Some(Err(RunError::Reclaimed { id: permit.id() }));
                }
                Ok(permit) => {
                    *this.held = Some(UnderPermit {
                        reclaimed: permit.watch_reclaim(),
                        permit,
                    });
                }
                Err(error) => outcome = Some(Err(error.into())),
            }
        }
        if let (Some(work), Some(held)) = (this.work.as_mut().as_pin_mut(), &mut *this.held) {
            match work.poll(cx) {
                Poll::Ready(output) => outcome = Some(Ok(output)),
                Poll::Pending if held.poll_live(cx) => return Poll::Pending,
                Poll::Pending => {
                    outcome = Some(Err(RunError::Reclaimed {
                        id: held.permit.id(),
                    }));
                }
            }
        }
        this.work.set(None);
        *this.held = None;
        Poll::Ready(outcome.expect("a run future was polled after it had completed"))
    }
}

debug_fields! {
    [F, A: std::fmt::Debug] Run<F, A>,
    |run| acquire = run.acquire, permit = run.held.as_ref().map(|held| &held.permit)
}

/// A place in the queue that is taken now, and used later: [`Limiter::reserve`](crate::Limiter::reserve) returns it.
///
/// A reservation has joined the queue already; an [`Acquire`] joins it at its first poll. So later requests queue
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
    /// It is exact if no request comes that goes before it, and none leaves, with up to 64 requests ahead; with more it is a lower
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

/// A request to a store. It waits for the reply, but not for its turn.
/// [`SharedLimiter::try_acquire`](crate::SharedLimiter::try_acquire) returns it.
///
/// # Cancel safety
///
/// Dropping it loses nothing: units that the store has granted are returned to it.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct TryAcquireShared(OwnedTicket);

impl TryAcquireShared {
    pub(crate) fn new(manager: Arc<Manager>, options: RequestOptions) -> Self {
        Self(OwnedTicket::new(manager, options))
    }

    /// The answer, with the status of each limit at that instant.
    pub(crate) async fn explained(mut self) -> (Result<Permit, TryAcquireError>, Vec<LimitStatus>) {
        self.0.ticket.options.ask_for_explanation();
        match poll_fn(|cx| self.poll_refusable(cx)).await {
            Ok(permit) => {
                let channel = self.0.manager.out_channel();
                let limits = channel.take_explanation(permit.fence());
                (Ok(permit), limits)
            }
            Err((error, limits)) => (Err(error), limits),
        }
    }

    /// Polls for the answer. A denial has the status of each limit, if the request asked for it.
    fn poll_refusable(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Permit, (TryAcquireError, Vec<LimitStatus>)>> {
        // A task that is denied in a loop must yield to other tasks. The loop may await nothing else.
        let progress = ready!(coop::poll_proceed(cx));
        let answer = ready!(self.advance(cx.waker()));
        progress.made_progress();
        Poll::Ready(answer.map_err(|refused| refusal(*refused)))
    }

    /// Sends the request to the manager, and reads its answer.
    fn advance(&mut self, waker: &Waker) -> Poll<Result<Permit, Refused>> {
        let OwnedTicket {
            manager, ticket, ..
        } = &mut self.0;
        let (cost, mut granted) = (ticket.options.cost, TimedGrant::NOTHING);
        if let TicketStage::New = ticket.stage {
            let store = manager.at_store();
            let tried = store.try_acquire(&ticket.options, waker, &mut granted);
            let Ok(Enqueued::Queued(id)) = tried else {
                ticket.stage = TicketStage::Done;
                return Poll::Ready(tried.map(|_granted| Permit::new(manager, granted, cost)));
            };
            ticket.stage = TicketStage::Queued(id);
        }
        match ticket.advance(manager, waker, &mut granted) {
            Ok(Enqueued::Queued(_)) => Poll::Pending,
            answer => Poll::Ready(answer.map(|_granted| Permit::new(manager, granted, cost))),
        }
    }
}

/// The error of a refused request, with the status of each limit if it is a denial.
fn refusal(
    RefusedRequest { error, limits }: RefusedRequest,
) -> (TryAcquireError, Vec<LimitStatus>) {
    match error {
        AcquireError::TimedOut {
            decision: Some(decision),
            ..
        } => (TryAcquireError::Denied(*decision), limits),
        error => (TryAcquireError::without_decision(error), Vec::new()),
    }
}

impl Future for TryAcquireShared {
    type Output = Result<Permit, TryAcquireError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(self.poll_refusable(cx));
        Poll::Ready(answer.map_err(|(error, _)| error))
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
