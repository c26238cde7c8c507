//! Sinks at a limited rate.

use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_sink::Sink;
use pin_project::pin_project;
use thiserror::Error;

use crate::acquire::OwnedTicket;
use crate::error::AcquireError;
use crate::limiter::AnyLimiter;

/// Rate limits for any [`Sink`].
pub trait SinkLimitExt<Item>: Sink<Item> + Sized {
    /// Delays each item until the limiter grants one unit, and releases the permit at once. (A type that is both a stream and
    /// a sink can have both sides limited: [`throttled`](crate::StreamLimitExt::throttled) limits its stream.)
    ///
    /// The sink is ready when the inner sink is ready and the limiter has then granted a unit. So a blocked sink uses no unit.
    /// Flushing and closing go to the inner sink, without a permit.
    ///
    /// Use it for rates: no permit is held, so a [`MaxConcurrency`](crate::MaxConcurrency) bounds nothing here. While the policy has no
    /// other limit, each item is refused with [`AcquireError::NoRate`].
    ///
    /// # Cancel safety
    ///
    /// Dropping a future that sends loses no unit: a granted unit is kept for the next item. Dropping the sink leaves the
    /// limiter's queue.
    ///
    /// # Errors
    ///
    /// A [`SinkError`], if the limiter refused an item or the inner sink failed. After a refusal the item was not sent, and the
    /// sink can be used again.
    ///
    /// ```
    /// use std::time::Duration;
    /// use futures_util::{SinkExt as _, sink};
    /// use tollgate::{AcquireError, Limiter, SinkError, SinkLimitExt as _, Throttle};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(Throttle::every(Duration::from_millis(100)))?;
    /// let mut items = Box::pin(sink::drain().throttled_sink(&limiter));
    /// let start = tokio::time::Instant::now();
    /// for item in 0..5 {
    ///     items.send(item).await?;
    /// }
    /// assert_eq!(start.elapsed(), Duration::from_millis(400));
    ///
    /// limiter.close();
    /// assert_eq!(items.send(5).await.unwrap_err(), SinkError::Refused(AcquireError::Closed));
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    fn throttled_sink(self, limiter: &impl AnyLimiter) -> ThrottledSink<Self> {
        ThrottledSink {
            inner: self,
            ticket: limiter.handle().ticket(Location::caller()),
            granted: false,
        }
    }
}

impl<Item, S: Sink<Item>> SinkLimitExt<Item> for S {}

/// A sink at a limited rate. [`SinkLimitExt::throttled_sink`], which has an example, returns it.
#[pin_project]
#[derive(Debug)]
#[must_use = "sinks do nothing unless polled"]
pub struct ThrottledSink<S> {
    #[pin]
    inner: S,
    ticket: OwnedTicket,
    /// Whether a unit has been granted for the next item.
    granted: bool,
}

/// Why a [throttled sink](SinkLimitExt::throttled_sink), which has an example, did not take an item.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SinkError<E> {
    /// The limiter refused the item with an error of [`Limiter::acquire`](crate::Limiter::acquire), or with
    /// [`AcquireError::NoRate`] for a policy of only concurrency.
    #[error("the limiter refused the item")]
    Refused(#[source] AcquireError),
    /// The inner sink failed.
    #[error("the sink failed")]
    Sink(#[source] E),
    /// `start_send` was called before `poll_ready` had returned that the sink is ready.
    #[error("the sink was not ready for an item; call poll_ready first")]
    NotReady,
}

impl<S> ThrottledSink<S> {
    /// The inner sink.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns the inner sink.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<Item, S: Sink<Item>> Sink<Item> for ThrottledSink<S> {
    type Error = SinkError<S::Error>;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        let this = self.project();
        ready!(this.inner.poll_ready(cx)).map_err(SinkError::Sink)?;
        if !*this.granted {
            ready!(this.ticket.poll_spent(cx)).map_err(SinkError::Refused)?;
            *this.granted = true;
        }
        Poll::Ready(Ok(()))
    }

    fn start_send(self: Pin<&mut Self>, item: Item) -> Result<(), Self::Error> {
        let this = self.project();
        if !std::mem::take(this.granted) {
            return Err(SinkError::NotReady);
        }
        this.inner.start_send(item).map_err(SinkError::Sink)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.project().inner.poll_flush(cx).map_err(SinkError::Sink)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.project().inner.poll_close(cx).map_err(SinkError::Sink)
    }
}
