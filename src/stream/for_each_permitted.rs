use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::{FusedStream, Stream};
use futures_util::stream::FuturesUnordered;
use pin_project::pin_project;

use super::WithPermits;
use crate::error::AcquireError;
use crate::permit::Permit;

/// Concurrent work under permits. [`StreamLimitExt::for_each_permitted`](crate::StreamLimitExt::for_each_permitted), which has an
/// example, returns it.
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct ForEachPermitted<S: Stream, W, F> {
    #[pin]
    items: WithPermits<S>,
    work: W,
    running: FuturesUnordered<Permitted<F>>,
}

impl<S: Stream, W, F> ForEachPermitted<S, W, F> {
    pub(crate) fn new(items: WithPermits<S>, work: W) -> Self {
        Self { items, work, running: FuturesUnordered::new() }
    }

    /// Returns the source, and the item that was taken from it and still waits for a permit. Futures that still run are dropped.
    ///
    /// To call it after an error, await `&mut` of the future (pin it, or use a source that is `Unpin`). See
    /// [`WithPermits::into_inner`] for an example.
    pub fn into_inner(self) -> (S, Option<S::Item>) {
        self.items.into_inner()
    }
}

impl<S, W, F> Future for ForEachPermitted<S, W, F>
where
    S: Stream,
    W: FnMut(S::Item) -> F,
    F: Future<Output = ()>,
{
    type Output = Result<(), AcquireError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            // Before the next item, which may wait for a permit that one of these releases.
            while let Poll::Ready(Some(())) = Pin::new(&mut *this.running).poll_next(cx) {}
            if this.items.is_terminated() {
                return if this.running.is_empty() {
                    Poll::Ready(this.items.error().cloned().map_or(Ok(()), Err))
                } else {
                    Poll::Pending
                };
            }
            if let Some((item, permit)) = ready!(this.items.as_mut().poll_next(cx)) {
                this.running.push(Permitted { work: (this.work)(item), permit: Some(permit) });
            }
        }
    }
}

impl<S: Stream + fmt::Debug, W, F> fmt::Debug for ForEachPermitted<S, W, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let running = self.running.len();
        f.debug_struct("ForEachPermitted").field("items", &self.items).field("running", &running).finish_non_exhaustive()
    }
}

/// A future with its permit, which is released when the future completes.
#[pin_project]
struct Permitted<F> {
    #[pin]
    work: F,
    permit: Option<Permit>,
}

impl<F: Future<Output = ()>> Future for Permitted<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        ready!(this.work.poll(cx));
        *this.permit = None;
        Poll::Ready(())
    }
}
