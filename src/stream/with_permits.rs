use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::{FusedStream, Stream};
use pin_project::pin_project;

use crate::acquire::{OwnedTicket, PermitRequest};
use crate::core::request::Caller;
use crate::error::AcquireError;
use crate::limiter::Limiter;
use crate::permit::Permit;

/// A stream of items with permits. [`StreamLimitExt::with_permits`](crate::StreamLimitExt::with_permits), which has an example,
/// returns it.
#[pin_project]
#[must_use = "streams do nothing unless polled"]
pub struct WithPermits<S: Stream> {
    #[pin]
    source: S,
    /// The item that was taken from the source and waits for its permit.
    item: Option<S::Item>,
    ticket: OwnedTicket,
    exhausted: bool,
    error: Option<AcquireError>,
}

impl<S: Stream> WithPermits<S> {
    pub(crate) fn new(source: S, limiter: &Limiter, caller: Caller) -> Self {
        let ticket = PermitRequest::new(limiter.manager(), 1, caller).into_ticket();
        Self { source, item: None, ticket, exhausted: false, error: None }
    }

    /// Why the stream ended early; `None` if it has not. See [`WithPermits::into_inner`] for an example.
    #[must_use]
    pub const fn error(&self) -> Option<&AcquireError> {
        self.error.as_ref()
    }

    /// Returns the source, and the item that was taken from it and still waits for its permit.
    ///
    /// ```
    /// use futures_util::{StreamExt as _, stream};
    /// use tollgate::{AcquireError, Limiter, MaxConcurrency, StreamLimitExt as _};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(MaxConcurrency::new(1))?;
    /// let mut items = stream::iter(1..=3).with_permits(&limiter);
    /// let (first, _permit) = items.next().await.unwrap();
    /// limiter.close();
    /// assert!(items.next().await.is_none());
    /// assert_eq!(items.error(), Some(&AcquireError::Closed));
    /// let (rest, waiting) = items.into_inner();
    /// assert_eq!((first, waiting, rest.collect::<Vec<_>>().await), (1, Some(2), vec![3]));
    /// # Ok(())
    /// # }
    /// ```
    pub fn into_inner(self) -> (S, Option<S::Item>) {
        (self.source, self.item)
    }
}

impl<S: Stream> WithPermits<S> {
    /// Polls for an item, and for the permit that `ask` makes of its ticket.
    #[inline]
    pub(super) fn poll_item<P>(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        ask: impl FnOnce(&mut OwnedTicket, &mut Context<'_>) -> Poll<Result<P, AcquireError>>,
    ) -> Poll<Option<(S::Item, P)>> {
        let this = self.project();
        if this.item.is_none() && !*this.exhausted {
            *this.item = ready!(this.source.poll_next(cx));
            *this.exhausted = this.item.is_none();
        }
        if this.item.is_none() || this.error.is_some() {
            return Poll::Ready(None);
        }
        match ready!(ask(this.ticket, cx)) {
            Ok(permit) => Poll::Ready(this.item.take().map(|item| (item, permit))),
            Err(error) => {
                *this.error = Some(error);
                Poll::Ready(None)
            }
        }
    }
}

impl<S: Stream> Stream for WithPermits<S> {
    type Item = (S::Item, Permit);

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_item(cx, OwnedTicket::poll)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        if self.error.is_some() {
            return (0, Some(0));
        }
        let waiting = usize::from(self.item.is_some());
        if self.exhausted {
            return (waiting, Some(waiting));
        }
        let (lower, upper) = self.source.size_hint();
        // The lower bound assumes that the limiter refuses no item; a size hint may.
        (lower.saturating_add(waiting), upper.and_then(|upper| upper.checked_add(waiting)))
    }
}

impl<S: Stream> FusedStream for WithPermits<S> {
    fn is_terminated(&self) -> bool {
        self.error.is_some() || (self.exhausted && self.item.is_none())
    }
}

impl<S: Stream + fmt::Debug> fmt::Debug for WithPermits<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("WithPermits");
        debug.field("source", &self.source).field("item_waits", &self.item.is_some()).field("error", &self.error);
        debug.finish_non_exhaustive()
    }
}
