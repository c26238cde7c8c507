//! A request to a store that does not wait for its turn.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use tokio::task::coop;

use super::ticket::{OwnedTicket, TicketStage};
use crate::core::request::{Refused, RefusedRequest};
use crate::core::schedule::Enqueued;
use crate::error::{AcquireError, TryAcquireError};
use crate::manager::{Manager, RequestOptions, TimedGrant};
use crate::permit::Permit;
use crate::snapshot::LimitStatus;

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
