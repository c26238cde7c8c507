//! Streams and sinks whose items wait for permits.

use std::fmt;
use std::hash::Hash;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::{FusedStream, Stream};
use futures_sink::Sink;
use futures_util::future::Either;
use futures_util::stream::{Fuse, FuturesOrdered, FuturesUnordered, StreamExt as _};
use pin_project::pin_project;
use thiserror::Error;

use crate::acquire::OwnedTicket;
use crate::error::AcquireError;
use crate::flow::FlowId;
use crate::limiter::AnyLimiter;
use crate::permit::Permit;

/// `flow_setters!(|this| this.options_mut())`, in the `impl` of a stream or a sink: defines methods that set the flow of its requests.
macro_rules! flow_setters {
    (|$this:ident| $options:expr) => {
        /// Sets the flow of the requests: see [`PermitRequest::flow`](crate::PermitRequest::flow).
        pub fn flow(self, flow: impl Hash) -> Self {
            let mut $this = self;
            $options.set_flow(FlowId::of(flow), None);
            $this
        }

        /// Sets the flow of the requests, within a parent: see [`PermitRequest::flow_within`](crate::PermitRequest::flow_within).
        pub fn flow_within(self, parent: impl Hash, flow: impl Hash) -> Self {
            let mut $this = self;
            let parent = FlowId::of_parent(parent);
            let flow = parent.with(flow);
            $options.set_flow(flow, Some(parent));
            $this
        }

        /// Sets the weight of the flow: see [`PermitRequest::weight`](crate::PermitRequest::weight).
        pub fn weight(self, weight: u64) -> Self {
            let mut $this = self;
            $options.set_weight(weight);
            $this
        }

        /// Sets the weight of the parent: see [`PermitRequest::parent_weight`](crate::PermitRequest::parent_weight).
        pub fn parent_weight(self, weight: u64) -> Self {
            let mut $this = self;
            $options.set_parent_weight(weight);
            $this
        }
    };
}

/// `cost_setter!(|this| this.items)`, in the `impl` of a stream: defines the method that sets the cost of each item.
macro_rules! cost_setter {
    (|$this:ident| $items:expr) => {
        /// Sets the cost of each item: 1 to the smallest [capacity](crate::Limit::capacity) of the limits. Defaults to 1. See
        /// [`WithPermits::cost_by`] for an example.
        pub fn cost_by(self, cost: impl Fn(&S::Item) -> u64 + Send + Sync + 'static) -> Self {
            let mut $this = self;
            $items.cost = Some(Box::new(cost));
            $this
        }
    };
}

/// Rate limits and concurrency limits for any [`Stream`]: its items wait for permits, of one unit each or of a [cost of their
/// own](WithPermits::cost_by).
///
/// Items keep their order. The stream takes an item from its source **before** it requests a permit, so an idle source uses no
/// permit. At most one item waits at a time (backpressure: the source is not polled meanwhile). Neither the source nor its items
/// need be `Unpin`.
///
/// When the limiter refuses a permit (it was closed, or its [bounded queue](crate::LimiterBuilder::max_queue) is full), the
/// stream yields the error as its last item, so the error cannot be missed: `try_next().await?` takes one item, and `try_collect`
/// or `try_for_each` takes all. `into_inner` then returns the source and the item that was waiting. Only the items of
/// [`throttled`](StreamLimitExt::throttled) are not results: that stream ends, and its `error` returns the reason.
pub trait StreamLimitExt: Stream + Sized {
    /// Delays each item until the limiter grants one unit, and releases the permit at once.
    ///
    /// Use it for rates. A [`MaxConcurrency`](crate::MaxConcurrency) bounds nothing here, because no permit is held. For
    /// concurrency use [`StreamLimitExt::with_permits`], [`StreamLimitExt::map_permitted`] or
    /// [`StreamLimitExt::for_each_permitted`].
    ///
    /// The stream ends early when the limiter refuses an item: it is closed, its bounded queue is full, or its policy was
    /// replaced by one without a rate. [`Throttled::error`] returns the reason, and the observers of the limiter get an
    /// [`EventKind::StreamEnded`](crate::EventKind::StreamEnded). If that can happen, use [`StreamLimitExt::try_throttled`],
    /// which yields the error as an item. Items as results take about a tenth longer.
    ///
    /// # Panics
    ///
    /// If the policy has only limits of concurrency, which would not slow the stream. `try_throttled` yields
    /// [`AcquireError::NoRate`] instead.
    ///
    /// # Cancel safety
    ///
    /// Dropping a future that polls the stream loses nothing: an item that waits stays in the stream, and
    /// [`Throttled::into_inner`] returns it. Dropping the stream leaves the limiter's queue.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use futures_util::{StreamExt as _, stream};
    /// use tollgate::{Limiter, StreamLimitExt as _, Throttle};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(Throttle::every(Duration::from_millis(100)))?;
    /// let start = tokio::time::Instant::now();
    /// let items: Vec<_> = stream::iter(0..5).throttled(&limiter).collect().await;
    /// assert_eq!(items, [0, 1, 2, 3, 4]);
    /// assert_eq!(start.elapsed(), Duration::from_millis(400));
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    fn throttled(self, limiter: impl AnyLimiter) -> Throttled<Self> {
        if let Err(no_rate) = limiter.handle().manager().check_rate() {
            panic!("{no_rate}");
        }
        Throttled {
            items: self.with_permits(limiter),
            error: None,
        }
    }

    /// Delays items as [`StreamLimitExt::throttled`] does, and yields an error as the last item if the limiter refuses one.
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::acquire`](crate::Limiter::acquire), as the last item, and
    /// [`AcquireError::NoRate`] if the policy has only limits of concurrency, from the start or
    /// because it was replaced.
    ///
    /// ```
    /// use std::time::Duration;
    /// use futures_util::{TryStreamExt as _, stream};
    /// use tollgate::{Limiter, MaxConcurrency, StreamLimitExt as _, Throttle};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(Throttle::every(Duration::from_millis(100)))?;
    /// let mut items = stream::iter(["a", "b"]).try_throttled(&limiter);
    /// while let Some(item) = items.try_next().await? {
    ///     println!("{item}");
    /// }
    ///
    /// let places = Limiter::new(MaxConcurrency::new(3))?;
    /// let items = stream::iter(["a", "b"]).try_throttled(&places);
    /// assert!(items.try_collect::<Vec<_>>().await.unwrap_err().to_string().contains("use with_permits"));
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    fn try_throttled(self, limiter: impl AnyLimiter) -> TryThrottled<Self> {
        TryThrottled {
            items: self.with_permits(limiter),
        }
    }

    /// Pairs each item with a permit of one unit. Hold the permit while you work on the item.
    ///
    /// # Cancel safety
    ///
    /// As for [`StreamLimitExt::throttled`].
    ///
    /// # Examples
    ///
    /// ```
    /// use futures_util::{TryStreamExt as _, stream};
    /// use tollgate::{Limiter, MaxConcurrency, StreamLimitExt as _};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(MaxConcurrency::new(2))?;
    /// let mut items = stream::iter(["a", "b", "c"]).with_permits(&limiter);
    /// while let Some((item, permit)) = items.try_next().await? {
    ///     tokio::spawn(async move {
    ///         println!("{item}");
    ///         drop(permit);
    ///     });
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    fn with_permits(self, limiter: impl AnyLimiter) -> WithPermits<Self> {
        WithPermits {
            source: self.fuse(),
            item: None,
            cost: None,
            ticket: limiter.handle().ticket(Location::caller()),
            refused: false,
        }
    }

    /// Runs `work` on every item concurrently, and holds a permit of one unit for each future. The limiter bounds how many run at
    /// the same time, and how fast they start.
    ///
    /// All futures run in the task that awaits this one. A future whose permit is reclaimed runs on; to stop it, call
    /// [`Limiter::run`](crate::Limiter::run) inside `work`.
    ///
    /// # Cancel safety
    ///
    /// Dropping the returned future drops the running ones and releases their permits. While the returned future is not polled,
    /// none of them makes progress.
    ///
    /// # Errors
    ///
    /// An [`AcquireError`] when the limiter refuses an item. The method then takes no further item,
    /// completes the running futures, and returns the error; [`ForEachPermitted::into_inner`] returns the item.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use futures_util::stream;
    /// use tollgate::{Limiter, MaxConcurrency, StreamLimitExt as _};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(MaxConcurrency::new(3))?;
    /// let start = tokio::time::Instant::now();
    /// let second = Duration::from_secs(1);
    /// stream::iter(0..9).for_each_permitted(&limiter, |_| tokio::time::sleep(second)).await?;
    /// assert_eq!(start.elapsed(), 3 * second);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    fn for_each_permitted<W, F>(
        self,
        limiter: impl AnyLimiter,
        work: W,
    ) -> ForEachPermitted<Self, W, F>
    where
        W: FnMut(Self::Item) -> F,
        F: Future<Output = ()>,
    {
        ForEachPermitted {
            outputs: self.map_permitted_unordered(limiter, work),
        }
    }

    /// Runs `work` on every item as [`StreamLimitExt::for_each_permitted`] does, and gives out the outputs in the order of the items.
    ///
    /// A complete output waits in memory for the earlier ones; its permit is already released. Otherwise see
    /// [`StreamLimitExt::map_permitted_unordered`].
    ///
    /// ```
    /// use std::time::Duration;
    /// use futures_util::{TryStreamExt as _, stream};
    /// use tollgate::{Limiter, MaxConcurrency, StreamLimitExt as _};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(MaxConcurrency::new(2))?;
    /// let slept = |millis| async move {
    ///     tokio::time::sleep(Duration::from_millis(millis)).await;
    ///     millis
    /// };
    /// let outputs = stream::iter([30, 10, 40]).map_permitted(&limiter, slept);
    /// assert_eq!(outputs.try_collect::<Vec<_>>().await?, [30, 10, 40]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    fn map_permitted<W, F>(self, limiter: impl AnyLimiter, work: W) -> MapPermitted<Self, W, F>
    where
        W: FnMut(Self::Item) -> F,
        F: Future,
    {
        MapPermitted::new(self.with_permits(limiter), work, true)
    }

    /// Runs `work` on every item as [`StreamLimitExt::for_each_permitted`] does, and gives out the outputs as they are complete.
    ///
    /// The work makes progress only while the stream is polled. Each poll starts work for all items that are ready and that the
    /// limiter admits, however many outputs have been taken.
    ///
    /// # Cancel safety
    ///
    /// Dropping a future that polls the stream loses nothing. Dropping the stream drops the running work and releases its
    /// permits.
    ///
    /// # Errors
    ///
    /// When the limiter refuses an item of the source, the last item of the stream is an [`AcquireError`],
    /// after the outputs of all running work; [`MapPermitted::into_inner`] returns the refused item.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use futures_util::{TryStreamExt as _, stream};
    /// use tollgate::{Limiter, MaxConcurrency, StreamLimitExt as _};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(MaxConcurrency::new(2))?;
    /// let slept = |millis| async move {
    ///     tokio::time::sleep(Duration::from_millis(millis)).await;
    ///     millis
    /// };
    /// let outputs = stream::iter([30, 10, 40]).map_permitted_unordered(&limiter, slept);
    /// assert_eq!(outputs.try_collect::<Vec<_>>().await?, [10, 30, 40]);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    fn map_permitted_unordered<W, F>(
        self,
        limiter: impl AnyLimiter,
        work: W,
    ) -> MapPermitted<Self, W, F>
    where
        W: FnMut(Self::Item) -> F,
        F: Future,
    {
        MapPermitted::new(self.with_permits(limiter), work, false)
    }
}

impl<S: Stream> StreamLimitExt for S {}

/// A stream of items with permits. [`StreamLimitExt::with_permits`], which has an example,
/// returns it.
///
/// Like every stream and sink here, it can be one of several that share a limiter fairly:
///
/// ```
/// use std::time::Duration;
/// use futures_util::{StreamExt as _, stream};
/// use tollgate::{Limiter, StreamLimitExt as _, Throttle};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(Throttle::every(Duration::from_millis(10)))?;
/// let start = tokio::time::Instant::now();
/// let end_of = |tenant, items, weight| {
///     let items = stream::iter(0..items).throttled(&limiter).flow(tenant).weight(weight);
///     async move { items.map(|_| start.elapsed()).collect::<Vec<_>>().await.pop() }
/// };
/// let (paying, free) = tokio::join!(end_of("paying", 75, 3), end_of("free", 25, 1));
/// assert!(paying.unwrap().abs_diff(free.unwrap()) <= Duration::from_millis(40)); // both need 100 units in all
/// # Ok(())
/// # }
/// ```
#[pin_project]
#[must_use = "streams do nothing unless polled"]
pub struct WithPermits<S: Stream> {
    #[pin]
    source: Fuse<S>,
    /// The item that was taken from the source and waits for its permit.
    item: Option<S::Item>,
    /// The cost of an item, if it is not 1.
    cost: Option<ItemCost<S::Item>>,
    ticket: OwnedTicket,
    /// Whether the limiter has refused the item, which ends the stream.
    refused: bool,
}

type ItemCost<I> = Box<dyn Fn(&I) -> u64 + Send + Sync>;

impl<S: Stream> WithPermits<S> {
    flow_setters!(|this| this.ticket.options_mut());

    /// Sets the cost of each item: 1 to the smallest [capacity](crate::Limit::capacity) of the limits. Defaults to 1. An item of
    /// another cost is refused, as one of [`acquire_many`](crate::Limiter::acquire_many), which ends the stream; but one of cost 0
    /// passes a [throttled](StreamLimitExt::throttled) stream at once.
    ///
    /// Chunks of bytes at a megabyte a second:
    ///
    /// ```
    /// use std::time::Duration;
    /// use futures_util::{StreamExt as _, stream};
    /// use tollgate::{Limiter, Rate, StreamLimitExt as _, TokenBucket};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let bytes = Limiter::new(TokenBucket::new(Rate::per_second(1_000_000), 64_000))?; // chunks of at most 64 kB
    /// let chunks = stream::iter((0..40).map(|_| vec![0; 50_000])).throttled(&bytes).cost_by(|chunk| chunk.len() as u64);
    /// let start = tokio::time::Instant::now();
    /// assert_eq!(chunks.count().await, 40);
    /// assert_eq!(start.elapsed(), Duration::from_millis(2_000 - 64));
    /// # Ok(())
    /// # }
    /// ```
    pub fn cost_by(mut self, cost: impl Fn(&S::Item) -> u64 + Send + Sync + 'static) -> Self {
        self.cost = Some(Box::new(cost));
        self
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
    fn poll_item<P, R>(
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
            let Some(item) = ready!(this.source.poll_next(cx)) else {
                return Poll::Ready(None);
            };
            if let Some(cost) = this.cost {
                this.ticket.options_mut().cost = cost(&item);
            }
            *this.item = Some(item);
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
    fn poll_throttled(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<S::Item, AcquireError>>> {
        let ask = |ticket: &mut OwnedTicket, cx: &mut Context<'_>| match ticket.options_mut().cost {
            0 => Poll::Ready(Ok(())),
            _ => ticket.poll_spent(cx),
        };
        self.poll_item(cx, ask, |item, ()| item)
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

/// A stream at a limited rate. [`StreamLimitExt::throttled`], which has an example, returns it.
#[pin_project]
#[derive(Debug)]
#[must_use = "streams do nothing unless polled"]
pub struct Throttled<S: Stream> {
    #[pin]
    items: WithPermits<S>,
    error: Option<AcquireError>,
}

/// A stream at a limited rate, whose items are results.
/// [`StreamLimitExt::try_throttled`], which has an example, returns it.
#[pin_project]
#[derive(Debug)]
#[must_use = "streams do nothing unless polled"]
pub struct TryThrottled<S: Stream> {
    #[pin]
    items: WithPermits<S>,
}

impl<S: Stream> TryThrottled<S> {
    flow_setters!(|this| this.items.ticket.options_mut());
    cost_setter!(|this| this.items);

    /// Returns the source, and the item that was taken from it and still waits. See [`WithPermits::into_inner`] for an example.
    pub fn into_inner(self) -> (S, Option<S::Item>) {
        self.items.into_inner()
    }
}

impl<S: Stream> Throttled<S> {
    flow_setters!(|this| this.items.ticket.options_mut());
    cost_setter!(|this| this.items);

    /// Why the stream ended early; `None` if it did not.
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
        self.project().items.poll_throttled(cx)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.items.size_hint()
    }
}

impl<S: Stream> Stream for Throttled<S> {
    type Item = S::Item;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut this = self.project();
        match ready!(this.items.as_mut().poll_throttled(cx)) {
            Some(Ok(item)) => Poll::Ready(Some(item)),
            Some(Err(error)) => {
                this.items.ticket.tell_stream_ended(&error);
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

/// The outputs of concurrent work under permits. [`StreamLimitExt::map_permitted`] and
/// [`StreamLimitExt::map_permitted_unordered`], which have examples, return it.
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
    flow_setters!(|this| this.items.ticket.options_mut());
    cost_setter!(|this| this.items);

    fn new(items: WithPermits<S>, work: W, in_order: bool) -> Self {
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

/// Concurrent work under permits. [`StreamLimitExt::for_each_permitted`], which has an
/// example, returns it.
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct ForEachPermitted<S: Stream, W, F: Future> {
    #[pin]
    outputs: MapPermitted<S, W, F>,
}

impl<S: Stream, W, F: Future> ForEachPermitted<S, W, F> {
    flow_setters!(|this| this.outputs.items.ticket.options_mut());
    cost_setter!(|this| this.outputs.items);

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
    fn throttled_sink(self, limiter: impl AnyLimiter) -> ThrottledSink<Self> {
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
    flow_setters!(|this| this.ticket.options_mut());

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
