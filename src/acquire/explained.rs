use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::ticket::Ticket;
use crate::error::AcquireError;
use crate::manager::{Manager, RequestOptions};
use crate::permit::Permit;
use crate::snapshot::LimitStatus;

/// A future that waits for a permit, and for what the limits said when it was granted or refused.
/// [`PermitRequest::acquire_explained`](crate::PermitRequest::acquire_explained), which has an example, returns it.
///
/// It borrows nothing. Its cancel safety, and what happens while it is not polled, are those of [`Acquire`](crate::Acquire).
#[must_use = "futures do nothing unless polled"]
pub struct AcquireExplained {
    manager: Arc<Manager>,
    ticket: Ticket,
}

impl AcquireExplained {
    pub(crate) fn new(manager: Arc<Manager>, mut options: RequestOptions) -> Self {
        options.ask_for_explanation();
        Self { manager, ticket: Ticket::new(options) }
    }
}

impl Future for AcquireExplained {
    type Output = (Result<Permit, AcquireError>, Vec<LimitStatus>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { manager, ticket } = &mut *self;
        ticket.poll_explained(manager, cx)
    }
}

impl Drop for AcquireExplained {
    fn drop(&mut self) {
        self.ticket.give_up(&self.manager);
    }
}

impl fmt::Debug for AcquireExplained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquireExplained").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}
