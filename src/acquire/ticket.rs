//! A request in progress, without and with its manager.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use tokio::task::coop;

use super::jitter::Delay;
use crate::core::refused::Refused;
use crate::core::schedule::Enqueued;
use crate::core::waiter::WaiterId;
use crate::error::AcquireError;
use crate::event::EventKind;
use crate::manager::{Manager, RequestOptions, TimedGrant};
use crate::observe::{WaitEnd, WaitSpan};
use crate::permit::Permit;
use crate::snapshot::LimitStatus;

/// One request in progress: not begun, queued, or done.
///
/// It holds no manager, so that its owner chooses how to hold one: every call must be given the same manager. The owner's drop must
/// [give the request up](Ticket::give_up).
#[derive(Debug)]
pub(crate) struct Ticket {
    options: RequestOptions,
    stage: Stage,
    delay: Delay,
    /// What observers keep while it waits.
    wait: Option<WaitSpan>,
}

/// An answer, with what each limit said at that instant.
pub(super) type Explained = (Result<Permit, AcquireError>, Vec<LimitStatus>);

#[derive(Debug, Clone, Copy)]
enum Stage {
    New,
    Queued(WaiterId),
    Done,
}

impl Ticket {
    #[inline]
    pub(crate) fn new(options: RequestOptions) -> Self {
        Self { options, stage: Stage::New, delay: Delay::default(), wait: None }
    }

    /// A request that waits, and that observers keep something of.
    pub(super) fn queued_with(options: RequestOptions, id: WaiterId, wait: WaitSpan) -> Self {
        Self { options, stage: Stage::Queued(id), delay: Delay::default(), wait: Some(wait) }
    }

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

    /// [`Ticket::poll`] for a request that asked for an explanation, with what the limits said at the grant or refusal.
    pub(super) fn poll_explained(&mut self, manager: &Arc<Manager>, cx: &mut Context<'_>) -> Poll<Explained> {
        let progress = ready!(coop::poll_proceed(cx));
        let mut granted = TimedGrant::NOTHING;
        let explained = match ready!(self.advance_after_delay(manager, cx.waker(), &mut granted)) {
            Ok(Enqueued::Queued(_)) => return Poll::Pending,
            Ok(Enqueued::Granted(())) => {
                let limits = manager.take_explanation(granted.grant.fence);
                (Ok(Permit::new(manager, granted, self.options.cost)), limits)
            }
            Err(refused) => (Err(refused.error), refused.limits),
        };
        progress.made_progress();
        Poll::Ready(explained)
    }

    /// Resets an answered ticket, for the same request again.
    pub(crate) fn start_over(&mut self) {
        self.stage = Stage::New;
    }

    #[inline(always)]
    pub(crate) fn give_up(&mut self, manager: &Arc<Manager>) {
        if let Stage::Queued(id) = self.stage {
            self.stage = Stage::Done;
            manager.abandon(id, self.options.cost);
            self.wait = None;
        }
    }

    /// Where the request waits.
    pub(super) fn queued(&self) -> Option<WaiterId> {
        match self.stage {
            Stage::Queued(id) => Some(id),
            _ => None,
        }
    }

    #[inline(always)]
    pub(super) fn poll_with(&mut self, manager: &Arc<Manager>, waker: &Waker) -> Poll<Result<Permit, AcquireError>> {
        let mut granted = TimedGrant::NOTHING;
        let enqueued = ready!(self.advance_after_delay(manager, waker, &mut granted));
        deliver(manager, self.options.cost, enqueued, granted)
    }

    pub(super) fn cost(&self) -> u64 {
        self.options.cost
    }

    /// [`Ticket::poll_with`], but that the permit is not made yet.
    #[inline(always)]
    pub(super) fn advance_after_delay(
        &mut self,
        manager: &Arc<Manager>,
        waker: &Waker,
        granted: &mut TimedGrant,
    ) -> Poll<Result<Enqueued<()>, Refused>> {
        ready!(self.poll_delay(waker))?;
        Poll::Ready(self.advance(manager, waker, granted))
    }

    /// Waits until the request may ask. It has not entered the queue, so dropping it loses nothing.
    #[inline(always)]
    fn poll_delay(&mut self, waker: &Waker) -> Poll<Result<(), AcquireError>> {
        match (self.stage, self.options.jitter()) {
            (Stage::New, Some(max)) => self.delay.poll(max, waker).map_err(|error| {
                self.stage = Stage::Done;
                error
            }),
            _ => Poll::Ready(Ok(())),
        }
    }

    /// Asks, or looks for the answer.
    #[inline(always)]
    fn advance(&mut self, manager: &Arc<Manager>, waker: &Waker, granted: &mut TimedGrant) -> Result<Enqueued<()>, Refused> {
        let options = &self.options;
        let enqueued = match self.stage {
            Stage::New => match begin(options, manager) {
                Ok(timeout) if options.costs().explained() => manager.acquire_explained(options, timeout, waker, granted),
                Ok(timeout) => manager.acquire(options.cost, timeout, || options.clone(), waker, granted),
                Err(error) => Err(error.into()),
            },
            Stage::Queued(id) => manager.poll(id, options.cost, waker, granted),
            Stage::Done => polled_after_completion(),
        };
        self.stage = match enqueued {
            Ok(Enqueued::Queued(id)) => {
                if let Stage::New = self.stage
                    && manager.tells_waits()
                {
                    self.wait = manager.begin_wait(&self.options);
                }
                Stage::Queued(id)
            }
            _ => Stage::Done,
        };
        if let (Some(_), Stage::Done) = (&self.wait, self.stage) {
            self.end_wait(&enqueued, granted);
        }
        if let (Some(_), Ok(Enqueued::Granted(()))) = (&self.options.rare, &enqueued) {
            manager.limit_ttl(granted.grant, &self.options);
        }
        enqueued
    }
}

impl Ticket {
    #[cold]
    fn end_wait(&mut self, answer: &Result<Enqueued<()>, Refused>, granted: &TimedGrant) {
        let end = match answer {
            Ok(_) => WaitEnd::Granted { fence: granted.grant.fence },
            Err(refused) => WaitEnd::Refused(&refused.error),
        };
        self.wait.take().into_iter().for_each(|wait| wait.end(end));
    }
}

/// The timeout of a request, in nanoseconds, if its options are valid.
#[inline(always)]
fn begin(options: &RequestOptions, manager: &Arc<Manager>) -> Result<Option<u64>, AcquireError> {
    if options.rare.is_some() {
        manager.check_ttl(options)?;
    }
    options.checked_timeout()
}

#[cold]
pub(super) fn polled_after_completion() -> ! {
    panic!("an acquire future was polled after it had completed")
}

/// The answer to a request of `cost`.
#[inline(always)]
pub(super) fn deliver(
    manager: &Arc<Manager>,
    cost: u64,
    enqueued: Result<Enqueued<()>, Refused>,
    granted: TimedGrant,
) -> Poll<Result<Permit, AcquireError>> {
    match enqueued {
        Ok(Enqueued::Granted(())) => Poll::Ready(Ok(Permit::new(manager, granted, cost))),
        Ok(Enqueued::Queued(_)) => Poll::Pending,
        Err(refused) => Poll::Ready(Err(refused.error)),
    }
}

/// A ticket with its manager, for one request after another.
#[derive(Debug)]
pub(crate) struct OwnedTicket {
    manager: Arc<Manager>,
    ticket: Ticket,
}

impl OwnedTicket {
    pub(crate) fn new(manager: Arc<Manager>, options: RequestOptions) -> Self {
        Self { manager, ticket: Ticket::new(options) }
    }

    /// Polls for the permit of the present request; the poll after its answer begins another one.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Permit, AcquireError>> {
        let answer = ready!(self.ticket.poll(&self.manager, cx));
        self.ticket.start_over();
        Poll::Ready(answer)
    }

    /// [`OwnedTicket::poll`] for a permit that is dropped at once. A rate makes no permit here. A policy without a rate refuses, because
    /// it bounds only permits that are held.
    #[inline]
    pub(crate) fn poll_spent(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), AcquireError>> {
        let Self { manager, ticket } = self;
        if let Stage::New = ticket.stage
            && ticket.options.only_cost()
        {
            let progress = ready!(coop::poll_proceed(cx));
            if manager.spend(ticket.options.cost) {
                progress.made_progress();
                return Poll::Ready(Ok(()));
            }
        }
        match self.poll(cx) {
            Poll::Ready(Ok(permit)) if !permit.holds_place() => Poll::Ready(Ok(())),
            // Also the permit of a policy with a rate may hold a place.
            Poll::Ready(permit) => Poll::Ready(permit.and_then(|_permit| self.manager.check_rate())),
            // The policy may have been replaced while the request waits.
            Poll::Pending => {
                let Err(no_rate) = self.manager.check_rate() else { return Poll::Pending };
                self.ticket.give_up(&self.manager);
                self.ticket.start_over();
                Poll::Ready(Err(no_rate))
            }
        }
    }

    /// Refuses, if the present policy has no rate.
    pub(crate) fn check_rate(&self) -> Result<(), AcquireError> {
        self.manager.check_rate()
    }

    /// Reports that the stream of this ticket has ended early.
    #[cold]
    pub(crate) fn tell_stream_ended(&self, error: &AcquireError) {
        let requested_in = self.ticket.options.caller;
        self.manager.tell_if_observed(|| EventKind::StreamEnded { error: error.clone(), requested_in });
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
