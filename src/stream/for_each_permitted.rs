use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use pin_project::pin_project;

use super::MapPermitted;
use crate::error::AcquireError;

/// Concurrent work under permits. [`StreamLimitExt::for_each_permitted`](crate::StreamLimitExt::for_each_permitted), which has an
/// example, returns it.
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct ForEachPermitted<S: Stream, W, F: Future> {
    #[pin]
    outputs: MapPermitted<S, W, F>,
}

impl<S: Stream, W, F: Future> ForEachPermitted<S, W, F> {
    pub(crate) fn new(outputs: MapPermitted<S, W, F>) -> Self {
        Self { outputs }
    }

    /// Returns the source, and the item that was taken from it and still waits for a permit. Futures that still run are dropped.
    ///
    /// To call it after an error, await `&mut` of the future (pin it, or use a source that is `Unpin`). See
    /// [`WithPermits::into_inner`](crate::WithPermits::into_inner) for an example.
    pub fn into_inner(self) -> (S, Option<S::Item>) {
        self.outputs.into_inner()
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
        let mut outputs = self.project().outputs;
        loop {
            match ready!(outputs.as_mut().poll_next(cx)) {
                Some(Ok(())) => {}
                Some(Err(error)) => return Poll::Ready(Err(error)),
                None => return Poll::Ready(Ok(())),
            }
        }
    }
}

impl<S: Stream + fmt::Debug, W, F: Future> fmt::Debug for ForEachPermitted<S, W, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForEachPermitted").field("outputs", &self.outputs).finish()
    }
}
