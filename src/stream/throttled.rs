use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::{FusedStream, Stream};
use pin_project::pin_project;

use super::WithPermits;
use crate::acquire::OwnedTicket;
use crate::error::AcquireError;
use crate::limiter::Limiter;

/// A stream at a limited rate. [`StreamLimitExt::throttled`](crate::StreamLimitExt::throttled), which has an example, returns it.
#[pin_project]
#[must_use = "streams do nothing unless polled"]
pub struct Throttled<S: Stream> {
    #[pin]
    items: TryThrottled<S>,
    error: Option<AcquireError>,
}

/// A stream at a limited rate, whose items are results.
/// [`StreamLimitExt::try_throttled`](crate::StreamLimitExt::try_throttled), which has an example, returns it.
#[pin_project]
#[must_use = "streams do nothing unless polled"]
pub struct TryThrottled<S: Stream> {
    #[pin]
    items: WithPermits<S>,
}

impl<S: Stream> TryThrottled<S> {
    pub(crate) fn new(mut items: WithPermits<S>, limiter: &Limiter) -> Self {
        if let Err(error) = limiter.manager().check_rate() {
            items.refuse(error);
        }
        Self { items }
    }

    /// Returns the source, and the item that was taken from it and still waits. See [`WithPermits::into_inner`] for an example.
    pub fn into_inner(self) -> (S, Option<S::Item>) {
        self.items.into_inner()
    }
}

impl<S: Stream> Throttled<S> {
    pub(crate) fn new(items: TryThrottled<S>) -> Self {
        Self { items, error: None }
    }

    /// Why the stream ended early; `None` if it has not.
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
        self.project().items.poll_item(cx, OwnedTicket::poll_spent, |item, ()| item)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.items.size_hint()
    }
}

impl<S: Stream> Stream for Throttled<S> {
    type Item = S::Item;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut this = self.project();
        match ready!(this.items.as_mut().poll_next(cx)) {
            Some(Ok(item)) => Poll::Ready(Some(item)),
            Some(Err(error)) => {
                this.items.as_ref().get_ref().items.tell_end(&error);
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

impl<S: Stream + fmt::Debug> fmt::Debug for TryThrottled<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TryThrottled").field("items", &self.items).finish()
    }
}

impl<S: Stream + fmt::Debug> fmt::Debug for Throttled<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Throttled").field("items", &self.items.items).field("error", &self.error).finish()
    }
}
