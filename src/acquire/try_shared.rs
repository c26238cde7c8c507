//! A request that a store answers, and that does not wait.

use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use tokio::task::coop;

use super::ticket::{OwnedTicket, TicketStage, polled_after_completion};
use crate::core::request::{Refused, RefusedRequest};
use crate::core::schedule::Enqueued;
use crate::error::{AcquireError, TryAcquireError};
use crate::manager::{FromGrant, Manager, RequestOptions, TimedGrant};
use crate::permit::Permit;
use crate::snapshot::LimitStatus;

/// A request to a store that does not wait for its turn, only for the reply.
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

    /// Polls for the answer; a denial has the status of each limit, if the request asked for it.
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

    /// Sends the request to the manager, or reads its answer.
    fn advance(&mut self, waker: &Waker) -> Poll<Result<Permit, Refused>> {
        let OwnedTicket {
            manager, ticket, ..
        } = &mut self.0;
        let (cost, mut granted) = (ticket.options.cost, TimedGrant::NOTHING);
        let mut answer = match mem::replace(&mut ticket.stage, TicketStage::Done) {
            TicketStage::New => {
                let store = manager.at_store();
                store.try_acquire(&ticket.options, waker, &mut granted)
            }
            TicketStage::Queued(id) => Ok(Enqueued::Queued(id)),
            TicketStage::Done => polled_after_completion(),
        };
        if let Ok(Enqueued::Queued(id)) = answer {
            ticket.stage = TicketStage::Queued(id);
            answer = manager.out_channel().poll(id, cost, waker, &mut granted);
            if let Ok(Enqueued::Queued(_)) = answer {
                return Poll::Pending;
            }
            ticket.stage = TicketStage::Done;
        }
        Poll::Ready(answer.map(|_granted| Permit::held(manager, granted, cost)))
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
