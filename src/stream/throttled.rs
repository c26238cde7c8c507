//! Streams at a limited rate.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::{FusedStream, Stream};
use pin_project::pin_project;

use super::WithPermits;
use crate::error::AcquireError;

/// A stream at a limited rate. [`StreamLimitExt::throttled`](crate::StreamLimitExt::throttled), which has an example, returns it.
#[pin_project]
#[derive(Debug)]
#[must_use = "streams do nothing unless polled"]
pub struct Throttled<S: Stream> {
    #[pin]
    items: WithPermits<S>,
    error: Option<AcquireError>,
}

/// A stream at a limited rate, whose items are results.
/// [`StreamLimitExt::try_throttled`](crate::StreamLimitExt::try_throttled), which has an example, returns it.
#[pin_project]
#[derive(Debug)]
#[must_use = "streams do nothing unless polled"]
pub struct TryThrottled<S: Stream> {
    #[pin]
    items: WithPermits<S>,
}

impl<S: Stream> TryThrottled<S> {
    pub(super) fn new(items: WithPermits<S>) -> Self {
        Self { items }
    }

    /// Returns the source, and the item that was taken from it and still waits. See [`WithPermits::into_inner`] for an example.
    pub fn into_inner(self) -> (S, Option<S::Item>) {
        self.items.into_inner()
    }
}

impl<S: Stream> Throttled<S> {
    pub(super) fn new(items: WithPermits<S>) -> Self {
        Self { items, error: None }
    }

    /// Why the stream ended early; `None` if it did not.
    ///
    /// ```
    /// use std::time::Duration;
    /// use futures_util::{StreamExt as _, stream};
    /// use tollgate::{AcquireError, Limiter, StreamLimitExt as _, Throttle};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(Throttle::every(Duration::from_secs(1)))?;
    /// let mut items = stream::iter(0..5).throttled(&limiter);
    /// assert_eq!(items.next().await, Some(0));
    /// limiter.close();
    /// assert_eq!(items.next().await, None);
    /// assert_eq!(items.error(), Some(&AcquireError::Closed));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn error(&self) -> Option<&AcquireError> {
        self.error.as_ref()
    }

    /// Returns the source, and the item that was taken from it and still waits. See [`WithPermits::into_inner`] for an example.
    pub fn into_inner(self) -> (S, Option<S::Item>) {
        self.items.into_inner()
    }
}

impl<S: Stream> Stream for TryThrottled<S> {
    type Item = Result<S::Item, AcquireError>;

    #[inline]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.project().items.poll_throttled(cx)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.items.size_hint()
    }
}

impl<S: Stream> Stream for Throttled<S> {
    type Item = S::Item;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut this = self.project();
        match ready!(this.items.as_mut().poll_throttled(cx)) {
            Some(Ok(item)) => Poll::Ready(Some(item)),
            Some(Err(error)) => {
                this.items.tell_end(&error);
                *this.error = Some(error);
                Poll::Ready(None)
            }
            None => Poll::Ready(None),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.items.size_hint()
    }
}

impl<S: Stream> FusedStream for TryThrottled<S> {
    fn is_terminated(&self) -> bool {
        self.items.is_terminated()
    }
}

impl<S: Stream> FusedStream for Throttled<S> {
    fn is_terminated(&self) -> bool {
        self.items.is_terminated()
    }
}
