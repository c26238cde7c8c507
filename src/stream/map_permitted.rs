//! Concurrent work on the items of a stream, with and without its outputs.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::{FusedStream, Stream};
use futures_util::future::Either;
use futures_util::stream::{FuturesOrdered, FuturesUnordered};
use pin_project::pin_project;

use super::WithPermits;
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
    running: Running<F>,
    /// The error that is yielded after the outputs of the running work.
    error: Option<AcquireError>,
}

type Running<F> = Either<FuturesOrdered<Permitted<F>>, FuturesUnordered<Permitted<F>>>;

impl<S: Stream, W, F: Future> MapPermitted<S, W, F> {
    pub(super) fn new(items: WithPermits<S>, work: W, in_order: bool) -> Self {
        let running = if in_order {
            Either::Left(FuturesOrdered::new())
        } else {
            Either::Right(FuturesUnordered::new())
        };
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

fn count<F: Future>(running: &Running<F>) -> usize {
    match running {
        Either::Left(running) => running.len(),
        Either::Right(running) => running.len(),
    }
}

impl<S: Stream, W: FnMut(S::Item) -> F, F: Future> Stream for MapPermitted<S, W, F> {
    type Item = Result<F::Output, AcquireError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut this = self.project();
        loop {
            // Outputs come before the next item, which may wait for a permit that one of them releases.
            let output = Pin::new(&mut *this.running).poll_next(cx);
            if let Poll::Ready(Some(output)) = output {
                return Poll::Ready(Some(Ok(output)));
            }
            if this.items.is_terminated() {
                return output.map(|_nothing_runs| this.error.take().map(Err));
            }
            match ready!(this.items.as_mut().poll_next(cx)) {
                Some(Ok((item, permit))) => {
                    let work = (this.work)(item);
                    let permitted = Permitted {
                        work,
                        _permit: permit,
                    };
                    match this.running {
                        Either::Left(running) => running.push_back(permitted),
                        Either::Right(running) => running.push(permitted),
                    }
                }
                Some(Err(error)) => *this.error = Some(error),
                None => {}
            }
        }
    }
}

impl<S: Stream, W: FnMut(S::Item) -> F, F: Future> FusedStream for MapPermitted<S, W, F> {
    fn is_terminated(&self) -> bool {
        self.items.is_terminated() && count(&self.running) == 0 && self.error.is_none()
    }
}

debug_fields! {
    [S: Stream + fmt::Debug, W, F: Future] MapPermitted<S, W, F>,
    |outputs| items = outputs.items, running = count(&outputs.running)
}

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

impl<S: Stream, W: FnMut(S::Item) -> F, F: Future<Output = ()>> Future
    for ForEachPermitted<S, W, F>
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

debug_fields! { [S: Stream + fmt::Debug, W, F: Future] ForEachPermitted<S, W, F>, |future| outputs = future.outputs }
