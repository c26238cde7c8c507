//! Concurrent work on the items of a stream, with and without its outputs.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::{FusedStream, Stream};
use futures_util::stream::{FuturesOrdered, FuturesUnordered};
use pin_project::pin_project;

use super::WithPermits;
use crate::debug_fields::debug_fields;
use crate::error::AcquireError;
use crate::permit::Permit;

/// The outputs of concurrent work under permits. [`StreamLimitExt::map_permitted`](crate::StreamLimitExt::map_permitted) and
/// [`StreamLimitExt::map_permitted_unordered`](crate::StreamLimitExt::map_permitted_unordered), which have examples, return it.
#[pin_project]
#[must_use = "streams do nothing unless polled"]
pub struct MapPermitted<S: Stream, W, F: Future> {
    #[pin]
    items: WithPermits<S>,
    work: W,
    running: Running<Permitted<F>>,
    /// The error that is yielded after the outputs of the work that runs.
    error: Option<AcquireError>,
}

enum Running<F: Future> {
    InOrder(FuturesOrdered<F>),
    Unordered(FuturesUnordered<F>),
}

impl<S: Stream, W, F: Future> MapPermitted<S, W, F> {
    pub(super) fn in_order(items: WithPermits<S>, work: W) -> Self {
        Self::new(items, work, Running::InOrder(FuturesOrdered::new()))
    }

    pub(super) fn unordered(items: WithPermits<S>, work: W) -> Self {
        Self::new(items, work, Running::Unordered(FuturesUnordered::new()))
    }

    fn new(items: WithPermits<S>, work: W, running: Running<Permitted<F>>) -> Self {
        Self {
            items,
            work,
            running,
            error: None,
        }
    }

    /// Returns the source, and the item that was taken from it and still waits for a permit. Work that still runs is dropped. See
    /// [`WithPermits::into_inner`] for an example.
    pub fn into_inner(self) -> (S, Option<S::Item>) {
        self.items.into_inner()
    }
}

impl<F: Future> Running<F> {
    fn push(&mut self, work: F) {
        match self {
            Self::Unordered(running) => running.push(work),
            Self::InOrder(running) => running.push_back(work),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Unordered(running) => running.len(),
            Self::InOrder(running) => running.len(),
        }
    }

    /// `None` if nothing runs.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<F::Output>> {
        match self {
            Self::Unordered(running) => Pin::new(running).poll_next(cx),
            Self::InOrder(running) => Pin::new(running).poll_next(cx),
        }
    }
}

impl<S, W, F> Stream for MapPermitted<S, W, F>
where
    S: Stream,
    W: FnMut(S::Item) -> F,
    F: Future,
{
    type Item = Result<F::Output, AcquireError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut this = self.project();
        loop {
            // Outputs come before the next item, which may wait for a permit that one of them releases.
            if let Poll::Ready(Some(output)) = this.running.poll_next(cx) {
                return Poll::Ready(Some(Ok(output)));
            }
            if this.items.is_terminated() {
                return if this.running.len() == 0 {
                    Poll::Ready(this.error.take().map(Err))
                } else {
                    Poll::Pending
                };
            }
            match ready!(this.items.as_mut().poll_next(cx)) {
                Some(Ok((item, permit))) => this.running.push(Permitted {
                    work: (this.work)(item),
                    _permit: permit,
                }),
                Some(Err(error)) => *this.error = Some(error),
                None => {}
            }
        }
    }
}

impl<S, W, F> FusedStream for MapPermitted<S, W, F>
where
    S: Stream,
    W: FnMut(S::Item) -> F,
    F: Future,
{
    fn is_terminated(&self) -> bool {
        self.items.is_terminated() && self.running.len() == 0 && self.error.is_none()
    }
}

debug_fields!(
    [S: Stream + fmt::Debug, W, F: Future] MapPermitted<S, W, F>,
    |outputs| items = outputs.items, running = outputs.running.len()
);

/// A future with its permit. When the future completes, [`Running`] drops it, and then its permit.
#[pin_project]
struct Permitted<F> {
    #[pin]
    work: F,
    _permit: Permit,
}

impl<F: Future> Future for Permitted<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.project().work.poll(cx)
    }
}

/// Concurrent work under permits. [`StreamLimitExt::for_each_permitted`](crate::StreamLimitExt::for_each_permitted), which has an
/// example, returns it.
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct ForEachPermitted<S: Stream, W, F: Future> {
    #[pin]
    outputs: MapPermitted<S, W, F>,
}

impl<S: Stream, W, F: Future> ForEachPermitted<S, W, F> {
    pub(super) fn new(outputs: MapPermitted<S, W, F>) -> Self {
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

debug_fields!(
    [S: Stream + fmt::Debug, W, F: Future] ForEachPermitted<S, W, F>,
    |future| outputs = future.outputs
);
