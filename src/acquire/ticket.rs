//! A request in progress, without and with its manager.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::coop;
use tokio::time::{Sleep, sleep};

use crate::contain_panic::contain_panic;
use crate::core::queue::WaiterId;
use crate::core::request::Refused;
use crate::core::schedule::Enqueued;
use crate::error::AcquireError;
use crate::event::EventKind;
use crate::manager::{Manager, RequestOptions, TimedGrant};
use crate::observe::{WaitEnd, WaitSpan};
use crate::permit::Permit;

/// One request in progress: not begun, queued, or done.
///
/// It holds no manager, so that its owner chooses how to hold one. Every call must pass the same manager. The owner's drop must
/// [give the request up](Ticket::give_up).
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(super) options: RequestOptions,
    pub(super) stage: TicketStage,
    /// The random delay before the request begins, while it lasts.
    delay: Option<Pin<Box<Sleep>>>,
    /// The data that observers keep while the request waits.
    wait: Option<WaitSpan>,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum TicketStage {
    New,
    Queued(WaiterId),
    Done,
}

impl Ticket {
    #[inline]
    pub(crate) fn new(options: RequestOptions) -> Self {
        Self {
            options,
            stage: TicketStage::New,
            delay: None,
            wait: None,
        }
    }

    /// A waiting request, with the data that observers keep about it.
    pub(super) fn queued_with(options: RequestOptions, id: WaiterId, wait: WaitSpan) -> Self {
        Self {
            stage: TicketStage::Queued(id),
            wait: Some(wait),
            ..Self::new(options)
        }
    }

    #[inline(always)]
    pub(crate) fn give_up(&mut self, manager: &Arc<Manager>) {
        if let TicketStage::Queued(id) = self.stage {
            self.stage = TicketStage::Done;
            manager.out_channel().abandon(id, self.options.cost);
            self.wait = None;
        }
    }

    /// The id of the request in the queue, while it waits.
    pub(super) fn queued(&self) -> Option<WaiterId> {
        match self.stage {
            TicketStage::Queued(id) => Some(id),
            _ => None,
        }
    }

    #[inline(always)]
    pub(super) fn poll_with(
        &mut self,
        manager: &Arc<Manager>,
        waker: &Waker,
    ) -> Poll<Result<Permit, AcquireError>> {
        let mut granted = TimedGrant::NOTHING;
        let enqueued = ready!(self.advance_after_delay(manager, waker, &mut granted));
        deliver(manager, self.options.cost, enqueued, granted)
    }

    /// [`Ticket::poll_with`], without making the permit. First waits for the jitter of the request. The request is not in the
    /// queue yet, so dropping it loses nothing.
    #[inline(always)]
    pub(super) fn advance_after_delay(
        &mut self,
        manager: &Arc<Manager>,
        waker: &Waker,
        granted: &mut TimedGrant,
    ) -> Poll<Result<Enqueued<()>, Refused>> {
        if let (TicketStage::New, Some(max)) = (self.stage, self.options.jitter())
            && let Err(error) = ready!(poll_delay(&mut self.delay, max, waker))
        {
            self.stage = TicketStage::Done;
            return Poll::Ready(Err(error.into()));
        }
        Poll::Ready(self.advance(manager, waker, granted))
    }

    /// Sends the request to the manager, or reads its answer.
    #[inline(always)]
    pub(super) fn advance(
        &mut self,
        manager: &Arc<Manager>,
        waker: &Waker,
        granted: &mut TimedGrant,
    ) -> Result<Enqueued<()>, Refused> {
        let options = &self.options;
        let enqueued = match self.stage {
            TicketStage::New => match begin(options, manager) {
                Ok(timeout) if options.costs().needs_lock() => manager
                    .in_channel()
                    .acquire_under_lock(options, timeout, waker, granted),
                Ok(timeout) => manager
                    .in_channel()
                    .acquire(options, timeout, waker, granted),
                Err(error) => Err(error.into()),
            },
            TicketStage::Queued(id) => manager.out_channel().poll(id, options.cost, waker, granted),
            TicketStage::Done => polled_after_completion(),
        };
        self.stage = match enqueued {
            Ok(Enqueued::Queued(id)) => {
                if let TicketStage::New = self.stage
                    && manager.is_observed()
                {
                    self.wait = manager.begin_wait(&self.options);
                }
                TicketStage::Queued(id)
            }
            _ => TicketStage::Done,
        };
        if let (Some(_), TicketStage::Done) = (&self.wait, self.stage) {
            self.end_wait(&enqueued, granted);
        }
        if let (Some(_), Ok(Enqueued::Granted(()))) = (&self.options.rare, &enqueued) {
            manager
                .release_channel()
                .limit_ttl(granted.grant, &self.options);
        }
        enqueued
    }

    /// Ends what observers keep about the wait.
    #[cold]
    fn end_wait(&mut self, answer: &Result<Enqueued<()>, Refused>, granted: &TimedGrant) {
        let end = match answer {
            Ok(_) => WaitEnd::Granted {
                fence: granted.grant.fence,
            },
            Err(refused) => WaitEnd::Refused(&refused.error),
        };
        if let Some(wait) = self.wait.take() {
            wait.end(end);
        }
    }
}

/// The timeout of a request, in nanoseconds, if its options are valid.
#[inline(always)]
fn begin(options: &RequestOptions, manager: &Arc<Manager>) -> Result<Option<u64>, AcquireError> {
    if options.rare.is_some() {
        manager.release_channel().check_ttl(options)?;
        options.check_weights()?;
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

/// Waits for a random time from 0 to `max`, from the first poll on. A poll after its end begins another delay.
fn poll_delay(
    delay: &mut Option<Pin<Box<Sleep>>>,
    max: Duration,
    waker: &Waker,
) -> Poll<Result<(), AcquireError>> {
    let Some(begun) = delay.take().or_else(|| start(random_up_to(max))) else {
        return Poll::Ready(Err(AcquireError::NoRuntime));
    };
    let sleep = delay.insert(begun);
    let mut polled = Poll::Ready(());
    // The timer panics if its runtime has ended; the delay is then over.
    contain_panic(|| polled = sleep.as_mut().poll(&mut Context::from_waker(waker)));
    if polled.is_ready() {
        *delay = None;
    }
    polled.map(Ok)
}

/// `None` if there is no runtime with timers.
fn start(delay: Duration) -> Option<Pin<Box<Sleep>>> {
    Handle::try_current().ok()?;
    let mut started = None;
    contain_panic(|| started = Some(Box::pin(sleep(delay))));
    started
}

/// A uniform random duration, to the nanosecond. Each `RandomState` has its own keys.
pub(crate) fn random_up_to(max: Duration) -> Duration {
    let nanos = u64::try_from(max.as_nanos()).unwrap_or(u64::MAX);
    let random = RandomState::new().hash_one(());
    Duration::from_nanos(((u128::from(random) * (u128::from(nanos) + 1)) >> 64) as u64)
}

/// A ticket with its manager, for one request after another.
#[derive(Debug)]
pub(crate) struct OwnedTicket {
    pub(super) manager: Arc<Manager>,
    pub(super) ticket: Ticket,
    /// Whether the policy had a rate at the latest check by [`OwnedTicket::poll_spent`].
    had_rate: bool,
}

impl OwnedTicket {
    pub(crate) fn new(manager: Arc<Manager>, options: RequestOptions) -> Self {
        Self {
            manager,
            ticket: Ticket::new(options),
            had_rate: false,
        }
    }

    /// What the next requests ask for.
    pub(crate) fn options_mut(&mut self) -> &mut RequestOptions {
        &mut self.ticket.options
    }

    /// Polls for the permit of the present request; the poll after its answer begins another request.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Permit, AcquireError>> {
        // A task that acquires in a loop must yield to other tasks.
        let progress = ready!(coop::poll_proceed(cx));
        let answer = ready!(self.ticket.poll_with(&self.manager, cx.waker()));
        progress.made_progress();
        self.ticket.stage = TicketStage::New;
        Poll::Ready(answer)
    }

    /// [`OwnedTicket::poll`] for a permit that is dropped at once. A rate makes no permit here. A policy without a rate refuses
    /// the request, because it bounds only permits that are held. Such a request takes no place and does not wait for one.
    #[inline]
    pub(crate) fn poll_spent(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), AcquireError>> {
        let Self {
            manager, ticket, ..
        } = self;
        if let TicketStage::New = ticket.stage {
            let progress = ready!(coop::poll_proceed(cx));
            if manager.in_channel().spend(ticket.options.cost) {
                progress.made_progress();
                return Poll::Ready(Ok(()));
            }
            if !self.had_rate {
                self.check_rate()?;
            }
        }
        match self.poll(cx) {
            Poll::Ready(Ok(permit)) if !permit.holds_place() => Poll::Ready(Ok(())),
            // The permit of a policy with a rate may also hold a place.
            Poll::Ready(permit) => Poll::Ready(permit.and_then(|_permit| self.check_rate())),
            // The policy may have been replaced while the request waits.
            Poll::Pending => {
                let Err(no_rate) = self.check_rate() else {
                    return Poll::Pending;
                };
                self.ticket.give_up(&self.manager);
                self.ticket.stage = TicketStage::New;
                Poll::Ready(Err(no_rate))
            }
        }
    }

    /// Refuses, if the present policy has no rate.
    fn check_rate(&mut self) -> Result<(), AcquireError> {
        let checked = self.manager.check_rate();
        self.had_rate = checked.is_ok();
        checked
    }

    /// Reports to the observers that the stream of this ticket has ended early, because the stream does not yield the error.
    #[cold]
    pub(crate) fn tell_stream_ended(&self, error: &AcquireError) {
        let requested_in = self.ticket.options.caller;
        self.manager.report_if_observed(|| EventKind::StreamEnded {
            error: error.clone(),
            requested_in,
        });
    }
}

impl Drop for OwnedTicket {
    fn drop(&mut self) {
        self.ticket.give_up(&self.manager);
    }
}
