//! Streams and sinks whose items wait for permits.

mod map_permitted;
mod throttled;
mod throttled_sink;
mod with_permits;

use std::panic::Location;

use futures_core::Stream;

pub use map_permitted::{ForEachPermitted, MapPermitted};
pub use throttled::{Throttled, TryThrottled};
pub use throttled_sink::{SinkError, SinkLimitExt, ThrottledSink};
pub use with_permits::WithPermits;

use crate::limiter::AnyLimiter;

/// Rate limits and concurrency limits for any [`Stream`]: its items wait for permits of one unit each.
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
    /// [`AcquireError::NoRate`](crate::AcquireError::NoRate) instead.
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
    fn throttled(self, limiter: &impl AnyLimiter) -> Throttled<Self> {
        if let Err(no_rate) = limiter.handle().manager().check_rate() {
            panic!("{no_rate}");
        }
        Throttled::new(self.with_permits(limiter))
    }

    /// Delays items as [`StreamLimitExt::throttled`] does, and yields an error as the last item if the limiter refuses one.
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::acquire`](crate::Limiter::acquire), as the last item, and
    /// [`AcquireError::NoRate`](crate::AcquireError::NoRate) if the policy has only limits of concurrency, from the start or
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
    fn try_throttled(self, limiter: &impl AnyLimiter) -> TryThrottled<Self> {
        TryThrottled::new(self.with_permits(limiter))
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
    fn with_permits(self, limiter: &impl AnyLimiter) -> WithPermits<Self> {
        WithPermits::new(self, limiter.handle().ticket(Location::caller()))
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
    /// An [`AcquireError`](crate::AcquireError) when the limiter refuses an item. The method then takes no further item,
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
        limiter: &impl AnyLimiter,
        work: W,
    ) -> ForEachPermitted<Self, W, F>
    where
        W: FnMut(Self::Item) -> F,
        F: Future<Output = ()>,
    {
        ForEachPermitted::new(self.map_permitted_unordered(limiter, work))
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
    fn map_permitted<W, F>(self, limiter: &impl AnyLimiter, work: W) -> MapPermitted<Self, W, F>
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
    /// When the limiter refuses an item of the source, the last item of the stream is an [`AcquireError`](crate::AcquireError),
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
        limiter: &impl AnyLimiter,
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
