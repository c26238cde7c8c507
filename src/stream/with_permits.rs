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
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Open,
    /// The next item is refused: that is known from the start.
    Refuses(Box<AcquireError>),
    Refused,
}

impl<S: Stream> WithPermits<S> {
    pub(crate) fn new(source: S, limiter: &Limiter, caller: Caller) -> Self {
        let ticket = PermitRequest::new(limiter.manager(), 1, caller).into_ticket();
        Self { source, item: None, ticket, exhausted: false, stage: Stage::Open }
    }

    fn is_refused(&self) -> bool {
        matches!(self.stage, Stage::Refused)
    }

    /// Reports that the limiter has refused an item, where the stream does not give the error out.
    pub(super) fn tell_end(&self, error: &AcquireError) {
        self.ticket.tell_stream_ended(error);
    }

    /// A stream whose first item is refused with this error.
    pub(super) fn refuse(&mut self, error: AcquireError) {
        self.stage = Stage::Refuses(Box::new(error));
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
        (self.source, self.item)
    }
}

impl Stage {
    #[cold]
    fn take_refusal(&mut self) -> Option<AcquireError> {
        match std::mem::replace(self, Self::Refused) {
            Self::Refuses(error) => Some(*error),
            Self::Open | Self::Refused => None,
        }
    }
}

impl<S: Stream> WithPermits<S> {
    /// Polls for an item, and for the permit that `ask` makes of its ticket; `join` makes what is given out.
    #[inline]
    pub(super) fn poll_item<P, R>(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        ask: impl FnOnce(&mut OwnedTicket, &mut Context<'_>) -> Poll<Result<P, AcquireError>>,
        join: impl FnOnce(S::Item, P) -> R,
    ) -> Poll<Option<Result<R, AcquireError>>> {
        let this = self.project();
        if this.item.is_none() && !*this.exhausted {
            *this.item = ready!(this.source.poll_next(cx));
            *this.exhausted = this.item.is_none();
        }
        if this.item.is_none() {
            return Poll::Ready(None);
        }
        let refusal = match &mut *this.stage {
            Stage::Open => match ready!(ask(this.ticket, cx)) {
                Ok(permit) => return Poll::Ready(this.item.take().map(|item| Ok(join(item, permit)))),
                Err(refusal) => Some(refusal),
            },
            stage => stage.take_refusal(),
        };
        *this.stage = Stage::Refused;
        Poll::Ready(refusal.map(Err))
    }
}

impl<S: Stream> Stream for WithPermits<S> {
    type Item = Result<(S::Item, Permit), AcquireError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_item(cx, OwnedTicket::poll, |item, permit| (item, permit))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        if self.is_refused() {
            return (0, Some(0));
        }
        let waiting = usize::from(self.item.is_some());
        if self.exhausted {
            return (waiting, Some(waiting));
        }
        let (lower, upper) = self.source.size_hint();
        // An item that is refused is the last: the lower bound assumes that the limiter refuses none. A size hint may.
        (lower.saturating_add(waiting), upper.and_then(|upper| upper.checked_add(waiting)))
    }
}

impl<S: Stream> FusedStream for WithPermits<S> {
    fn is_terminated(&self) -> bool {
        self.is_refused() || (self.exhausted && self.item.is_none())
    }
}

impl<S: Stream + fmt::Debug> fmt::Debug for WithPermits<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("WithPermits");
        debug.field("source", &self.source).field("item_waits", &self.item.is_some()).field("stage", &self.stage);
        debug.finish_non_exhaustive()
    }
}
