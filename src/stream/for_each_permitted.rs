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

/// Concurrent work under permits: what [`StreamLimitExt::for_each_permitted`](crate::StreamLimitExt::for_each_permitted), with an
/// example, returns.
#[pin_project]
#[must_use = "it does nothing unless awaited"]
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

    /// The source, and the item that was taken from it and waited; what still runs is dropped. Await `&mut` of it (pinned, or
    /// over a source that is `Unpin`) to have it afterwards. See [`WithPermits::into_inner`].
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
            // Those that run come first: what they give back may be what the next item waits for.
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

/// A future and the permit that it holds until it completes.
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
