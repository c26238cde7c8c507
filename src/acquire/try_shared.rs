//! A request that a store answers, and that does not wait.

use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use tokio::task::coop;

use super::ticket::{OwnedTicket, TicketStage, polled_after_completion};
use crate::core::request::RefusedRequest;
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
pub struct TryAcquireShared {
    ticket: OwnedTicket,
    /// The status of each limit at a denial.
    limits: Vec<LimitStatus>,
}

impl TryAcquireShared {
    pub(crate) fn new(manager: Arc<Manager>, options: RequestOptions) -> Self {
        Self {
            ticket: OwnedTicket::new(manager, options),
            limits: Vec::new(),
        }
    }

    /// The answer, with the status of each limit at that instant.
    pub(crate) async fn explained(mut self) -> (Result<Permit, TryAcquireError>, Vec<LimitStatus>) {
        self.ticket.ticket.options.ask_for_explanation();
        let answer = (&mut self).await;
        let limits = match &answer {
            Ok(permit) => self
                .ticket
                .manager
                .out_channel()
                .take_explanation(permit.fence()),
            Err(_) => mem::take(&mut self.limits),
        };
        (answer, limits)
    }

    fn refused(&mut self, refused: RefusedRequest) -> TryAcquireError {
        let RefusedRequest { error, limits } = refused;
        match error {
            AcquireError::TimedOut {
                decision: Some(decision),
                ..
            } => {
                self.limits = limits;
                TryAcquireError::Denied(*decision)
            }
            error => TryAcquireError::without_decision(error),
        }
    }

    /// Sends the request to the manager, or reads its answer.
    fn advance(&mut self, waker: &Waker) -> Poll<Result<Permit, TryAcquireError>> {
        let OwnedTicket {
            manager, ticket, ..
        } = &mut self.ticket;
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
        Poll::Ready(match answer {
            Ok(_) => Ok(Permit::held(manager, granted, cost)),
            Err(refused) => Err(self.refused(*refused)),
        })
    }
}

impl Future for TryAcquireShared {
    type Output = Result<Permit, TryAcquireError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // A task that is denied in a loop must yield to other tasks. The loop may await nothing else.
        let progress = ready!(coop::poll_proceed(cx));
        let answer = ready!(self.advance(cx.waker()));
        progress.made_progress();
        Poll::Ready(answer)
    }
}
