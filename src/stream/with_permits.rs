//! Streams whose items have permits.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::{FusedStream, Stream};
use futures_util::stream::{Fuse, StreamExt as _};
use pin_project::pin_project;

use crate::acquire::OwnedTicket;
use crate::error::AcquireError;
use crate::permit::Permit;

/// A stream of items with permits. [`StreamLimitExt::with_permits`](crate::StreamLimitExt::with_permits), which has an example,
/// returns it.
#[pin_project]
#[must_use = "streams do nothing unless polled"]
pub struct WithPermits<S: Stream> {
    #[pin]
    source: Fuse<S>,
    /// The item that was taken from the source and waits for its permit.
    item: Option<S::Item>,
    ticket: OwnedTicket,
    /// Whether the limiter has refused the item, which ends the stream.
    refused: bool,
}

impl<S: Stream> WithPermits<S> {
    pub(super) fn new(source: S, ticket: OwnedTicket) -> Self {
        Self {
            source: source.fuse(),
            item: None,
            ticket,
            refused: false,
        }
    }

    /// Reports to the observers that the limiter has refused an item, for a stream that does not yield the error.
    pub(super) fn tell_end(&self, error: &AcquireError) {
        self.ticket.tell_stream_ended(error);
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
    /// let (first, _permit) = items.next().await.unwrap()?;
    /// limiter.close();
    /// assert_eq!(items.next().await.unwrap().unwrap_err(), AcquireError::Closed);
    /// assert!(items.next().await.is_none());
    /// let (rest, waiting) = items.into_inner();
    /// assert_eq!((first, waiting, rest.collect::<Vec<_>>().await), (1, Some(2), vec![3]));
    /// # Ok(())
    /// # }
    /// ```
    pub fn into_inner(self) -> (S, Option<S::Item>) {
        (self.source.into_inner(), self.item)
    }

    /// Polls for an item, and for its permit by `ask`. `join` makes the output of both.
    #[inline]
    pub(super) fn poll_item<P, R>(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        ask: impl FnOnce(&mut OwnedTicket, &mut Context<'_>) -> Poll<Result<P, AcquireError>>,
        join: impl FnOnce(S::Item, P) -> R,
    ) -> Poll<Option<Result<R, AcquireError>>> {
        let this = self.project();
        if *this.refused {
            return Poll::Ready(None);
        }
        if this.item.is_none() {
            *this.item = ready!(this.source.poll_next(cx));
        }
        if this.item.is_none() {
            return Poll::Ready(None);
        }
        let asked = ready!(ask(this.ticket, cx));
        *this.refused = asked.is_err();
        Poll::Ready(match asked {
            Ok(permit) => this.item.take().map(|item| Ok(join(item, permit))),
            Err(refusal) => Some(Err(refusal)),
        })
    }

    /// Polls for an item whose permit is released at once.
    #[inline]
    pub(super) fn poll_throttled(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<S::Item, AcquireError>>> {
        self.poll_item(cx, OwnedTicket::poll_spent, |item, ()| item)
    }
}

impl<S: Stream> Stream for WithPermits<S> {
    type Item = Result<(S::Item, Permit), AcquireError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_item(cx, OwnedTicket::poll, |item, permit| (item, permit))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        if self.refused {
            return (0, Some(0));
        }
        let waiting = usize::from(self.item.is_some());
        let (lower, upper) = self.source.size_hint();
        // A refused item ends the stream early. The lower bound assumes that no item is refused; a size hint need not be exact.
        (
            lower.saturating_add(waiting),
            upper.and_then(|upper| upper.checked_add(waiting)),
        )
    }
}

impl<S: Stream> FusedStream for WithPermits<S> {
    fn is_terminated(&self) -> bool {
        self.refused || (self.source.is_done() && self.item.is_none())
    }
}

// A derived impl would require the items to be `Debug`.
debug_fields! {
    [S: Stream + fmt::Debug] WithPermits<S>,
    |items| source = items.source.get_ref(), item_waits = items.item.is_some(), refused = items.refused
}
