use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::{FusedStream, Stream};
use pin_project::pin_project;

use super::WithPermits;
use crate::error::AcquireError;

/// Paced items: what [`StreamLimitExt::throttled`](crate::StreamLimitExt::throttled), with an example, returns.
#[pin_project]
#[derive(Debug)]
#[must_use = "a stream does nothing unless polled"]
pub struct Throttled<S: Stream> {
    #[pin]
    items: WithPermits<S>,
}

impl<S: Stream> Throttled<S> {
    pub(crate) fn new(items: WithPermits<S>) -> Self {
        Self { items }
    }

    /// Why the stream ended early, if it did. See [`WithPermits::into_inner`], which is the same here.
    #[must_use]
    pub const fn error(&self) -> Option<&AcquireError> {
        self.items.error()
    }

    /// The source, and the item that was taken from it and waited. See [`WithPermits::into_inner`].
    pub fn into_inner(self) -> (S, Option<S::Item>) {
        self.items.into_inner()
    }
}

impl<S: Stream> Stream for Throttled<S> {
    type Item = S::Item;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(ready!(self.project().items.poll_next(cx)).map(|(item, _permit)| item))
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
