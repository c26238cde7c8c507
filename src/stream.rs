//! Streams whose items wait for permits.

mod for_each_permitted;
mod throttled;
mod with_permits;

use std::panic::Location;

use futures_core::Stream;

pub use for_each_permitted::ForEachPermitted;
pub use throttled::Throttled;
pub use with_permits::WithPermits;

use crate::limiter::Limiter;

/// Limits for any [`Stream`].
///
/// An item is taken from the source **before** a permit is asked for, so an idle source spends nothing; at most one item waits.
/// Neither the stream nor its items need be `Unpin`.
///
/// When the limiter refuses (it was closed, or its bounded queue overflowed) the stream ends early: `error` tells why, and
/// `into_inner` gives the source back together with the item that was waiting.
pub trait StreamLimitExt: Stream + Sized {
    /// The same items in the same order, each when the limiter grants one unit. The permit is released at once, so this suits
    /// rates; to hold it while the item is worked on, use [`StreamLimitExt::with_permits`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the stream, or a future that polls it, costs nobody anything. An item that was taken and waits stays in the
    /// stream, and [`Throttled::into_inner`] gives it back.
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
    fn throttled(self, limiter: &Limiter) -> Throttled<Self> {
        Throttled::new(WithPermits::new(self, limiter, Location::caller()))
    }

    /// Each item together with a permit of one unit, to be held while it is worked on.
    ///
    /// # Cancel safety
    ///
    /// As with [`StreamLimitExt::throttled`].
    ///
    /// # Examples
    ///
    /// ```
    /// use futures_util::{StreamExt as _, stream};
    /// use tollgate::{Limiter, MaxConcurrency, StreamLimitExt as _};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(MaxConcurrency::new(2))?;
    /// let mut items = stream::iter(["a", "b", "c"]).with_permits(&limiter);
    /// while let Some((item, permit)) = items.next().await {
    ///     tokio::spawn(async move {
    ///         println!("{item}");
    ///         drop(permit);
    ///     });
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    fn with_permits(self, limiter: &Limiter) -> WithPermits<Self> {
        WithPermits::new(self, limiter, Location::caller())
    }

    /// Runs `work` on every item, concurrently, holding a permit of one unit for each future: as many at once, and started as
    /// fast, as the limiter allows. They run in the task that awaits this. A permit that is reclaimed meanwhile does not stop
    /// its future; where it should, call [`Limiter::run`] in it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops all that run and gives their permits back. Not polling it stops them.
    ///
    /// # Errors
    ///
    /// [`AcquireError`](crate::AcquireError) when the limiter refused an item: no further one is taken, those that run are
    /// brought to their end first, and [`ForEachPermitted::into_inner`] gives the item back.
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
    fn for_each_permitted<W, F>(self, limiter: &Limiter, work: W) -> ForEachPermitted<Self, W, F>
    where
        W: FnMut(Self::Item) -> F,
        F: Future<Output = ()>,
    {
        ForEachPermitted::new(WithPermits::new(self, limiter, Location::caller()), work)
    }
}

impl<S: Stream> StreamLimitExt for S {}
