use crate::rate::Rate;

/// A bucket of at most `burst` tokens that is refilled at a rate; every unit takes a token.
///
/// ```text
/// 1/100ms, burst 3     |xxx  .    x    .    .    xx   .    x        refilled continuously: a token every 100 ms, up to 3
///                      0        100                 300       400 ms
/// 3/300ms .interval()  |x         xx   .    |xxx           |        all three at once each 300 ms; what was not used is thrown away
/// ```
///
/// Worst burst: `burst` units in one instant. Refilled continuously: at most `burst + rate × t` units in any span of length `t`,
/// as with a [`Throttle`](crate::Throttle) that has a burst, of which this is the same rule (see there for its source) with a
/// rate instead of an interval. With [`TokenBucket::interval`]: twice the burst around a refill, as with every fixed window.
///
/// Tokens are counted in whole parts, so that nothing is rounded: 7 a second are exactly 7,000,000,000 in a billion seconds.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limiter, Rate, TokenBucket};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(TokenBucket::new(Rate::per_second(50), 100))?;
/// let start = tokio::time::Instant::now();
/// let _burst = limiter.acquire_many(100).await?; // the bucket is full at first
/// let _next = limiter.acquire().await?;
/// assert_eq!(start.elapsed(), Duration::from_millis(20));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TokenBucket {
    pub(crate) rate: Rate,
    pub(crate) burst: u64,
    pub(crate) interval: bool,
    pub(crate) initial: Option<u64>,
}

impl TokenBucket {
    /// A bucket of `burst` tokens (at least 1), full at first, refilled at `rate`, from one a century to 10⁹ a second and beyond;
    /// an empty bucket must be full after 100 years at most. All is checked when a limiter is built. The burst is also the
    /// largest cost of one request.
    ///
    /// See the [type's example](TokenBucket#examples).
    #[must_use]
    pub const fn new(rate: Rate, burst: u64) -> Self {
        Self { rate, burst, interval: false, initial: None }
    }

    /// Refills all at once, each period of the rate from the limiter's creation on: the bucket then holds the units of the rate,
    /// the burst at most, and tokens that were not used are thrown away.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Limiter, Rate, TokenBucket};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(TokenBucket::new(Rate::per_second(5), 5).interval())?;
    /// tokio::time::advance(Duration::from_millis(900)).await;
    /// assert!(limiter.try_acquire_many(5).is_ok());
    /// assert_eq!(limiter.check(5).retry_after(), Some(Duration::from_millis(100)));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn interval(self) -> Self {
        Self { interval: true, ..self }
    }

    /// The tokens in the bucket at first (0 to the burst; more counts as the burst); it is full unless told.
    ///
    /// ```
    /// use tollgate::{Limiter, Rate, TokenBucket};
    ///
    /// let limiter = Limiter::new(TokenBucket::new(Rate::per_minute(1), 10).initial(2))?;
    /// assert_eq!(limiter.check(1).remaining(), 2);
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[must_use]
    pub const fn initial(self, tokens: u64) -> Self {
        Self { initial: Some(tokens), ..self }
    }

    /// The most units that it ever admits at once.
    pub(crate) const fn capacity(&self) -> u64 {
        if self.interval && self.rate.units() < self.burst { self.rate.units() } else { self.burst }
    }
}
