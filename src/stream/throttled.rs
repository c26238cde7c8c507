use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::{FusedStream, Stream};
use pin_project::pin_project;

use super::WithPermits;
use crate::acquire::OwnedTicket;
use crate::error::AcquireError;

/// A stream at a limited rate. [`StreamLimitExt::throttled`](crate::StreamLimitExt::throttled), which has an example, returns it.
#[pin_project]
#[derive(Debug)]
#[must_use = "streams do nothing unless polled"]
pub struct Throttled<S: Stream> {
    #[pin]
    items: WithPermits<S>,
}

impl<S: Stream> Throttled<S> {
    pub(crate) fn new(items: WithPermits<S>) -> Self {
        Self { items }
    }

    /// Why the stream ended early; `None` if it has not. See [`WithPermits::into_inner`] for an example.
    #[must_use]
    pub const fn error(&self) -> Option<&AcquireError> {
        self.items.error()
    }

    /// Returns the source, and the item that was taken from it and still waits. See [`WithPermits::into_inner`] for an example.
    pub fn into_inner(self) -> (S, Option<S::Item>) {
        self.items.into_inner()
    }
}

impl<S: Stream> Stream for Throttled<S> {
    type Item = S::Item;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let item = ready!(self.project().items.poll_item(cx, OwnedTicket::poll_spent));
        Poll::Ready(item.map(|(item, ())| item))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.items.size_hint()
    }
}

impl<S: Stream> FusedStream for Throttled<S> {
    fn is_terminated(&self) -> bool {
        self.items.is_terminated()
    }
}
