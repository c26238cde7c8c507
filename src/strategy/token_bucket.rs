//! The limit `TokenBucket`.

use std::time::Duration;

use super::counts::counts;
use super::description::{Fault, TOO_SLOW, not_zero, span, time_to_bring};
use super::{Counts, Describe, Description, Guards, PaceRule};
use crate::rate::Rate;

/// A bucket of at most `burst` tokens that is refilled at a rate; every unit takes a token.
///
/// ```text
/// 1/100ms, burst 3     |xxx  .    x    .    .    xx   .    x        refilled continuously: a token every 100 ms, up to 3
///                      0        100                 300       400 ms
/// 2/300ms, burst 3, refill_each_period()
///                      |xxx                 |xx            |x        two are added at once each 300 ms, up to 3
///                      0                   300            600 ms
/// ```
///
/// Worst burst: `burst` units in one instant. Refilled continuously: at most `burst + rate × t` units in any span of length `t`,
/// as with a [`Throttle`](crate::Throttle) that has a burst. It is the same rule (see there for its source) with a rate instead
/// of an interval. With [`TokenBucket::refill_each_period`]: at most `burst + units × n` in any span that holds `n` refills, so
/// `burst + units` in an arbitrarily short span around a refill.
///
/// Tokens are counted in whole parts and never rounded: 7 a second are exactly 7,000,000,000 in a billion seconds.
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
#[must_use]
pub struct TokenBucket {
    pub(crate) rate: Rate,
    pub(crate) burst: u64,
    pub(crate) each_period: bool,
    pub(crate) initial: Option<u64>,
    pub(crate) counts: Counts,
}

counts!(TokenBucket);

per_period!(
    TokenBucket,
    full_at,
    "A full bucket of `units` that is refilled at as many"
);

impl TokenBucket {
    const fn full_at(rate: Rate) -> Self {
        Self::new(rate, rate.units())
    }

    /// A bucket of `burst` tokens (at least 1), full at first, refilled at `rate`, from one a century to 10⁹ a second and beyond;
    /// an empty bucket must be full after 100 years at most. All numbers are checked when a limiter is built. The burst is also
    /// the largest cost of one request.
    ///
    /// See the [type's example](TokenBucket#examples).
    pub const fn new(rate: Rate, burst: u64) -> Self {
        Self {
            rate,
            burst,
            each_period: false,
            initial: None,
            counts: Counts::Cost,
        }
    }

    setters! { const:
        /// Adds the units of the rate all at once at the end of each period, up to the burst, instead of evenly over it. Periods are
        /// counted from the limiter's creation, also for a keyed limiter's keys and after a change of policy.
        ///
        /// Tokens that were not used stay. After .NET's
        /// [`TokenBucketRateLimiter`](https://learn.microsoft.com/dotnet/api/system.threading.ratelimiting.tokenbucketratelimiteroptions)
        /// (`TokensPerPeriod`, `ReplenishmentPeriod`) and bucket4j's [`refillIntervally`](https://bucket4j.com/8.7.0/toc.html). For a
        /// quota that is reset each period, where unused units are lost, use a [`FixedWindow`](crate::FixedWindow).
        ///
        /// ```
        /// use std::time::Duration;
        /// use tollgate::{Limiter, Rate, TokenBucket};
        ///
        /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
        /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
        /// let limiter = Limiter::new(TokenBucket::new(Rate::per_second(5), 8).refill_each_period())?;
        /// assert!(limiter.try_acquire_many(8).is_ok());
        /// tokio::time::advance(Duration::from_millis(900)).await;
        /// assert_eq!(limiter.check(5).retry_after(), Some(Duration::from_millis(100)));
        /// assert_eq!(limiter.check(6).retry_after(), Some(Duration::from_millis(1_100)));
        /// # Ok(())
        /// # }
        /// ```
        pub refill_each_period() => each_period = true;

        /// The tokens in the bucket at first (0 to the burst; more counts as the burst). The default is a full bucket.
        ///
        /// A bucket of a key fills from the first request or check on that names the key, also if that one is denied.
        /// A [`KeyedLimiter`](crate::KeyedLimiter) and a [store](crate::store) forget a key with a full bucket only after the time that a
        /// new bucket takes to fill. The key then starts with the initial tokens again.
        ///
        /// With fewer initial tokens than the burst, a key that was only denied or checked is also kept for that time. Where callers
        /// can make up keys, such a bucket takes memory or a row for each of them; a full one takes none before the first grant.
        ///
        /// ```
        /// use tollgate::{Limiter, Rate, TokenBucket};
        ///
        /// let limiter = Limiter::new(TokenBucket::new(Rate::per_minute(1), 10).initial(2))?;
        /// assert_eq!(limiter.check(1).remaining(), 2);
        /// # Ok::<(), tollgate::ConfigError>(())
        /// ```
        pub initial(tokens: u64) => initial = Some(tokens);
    }
}

getters!(TokenBucket {
    /// The rate.
    ///
    /// ```
    /// use tollgate::{Rate, TokenBucket};
    ///
    /// let bucket = TokenBucket::new(Rate::per_second(50), 100).initial(20);
    /// assert_eq!((bucket.get_rate(), bucket.get_burst()), (Rate::per_second(50), 100));
    /// assert_eq!((bucket.get_initial(), bucket.get_refill_each_period()), (Some(20), false));
    /// assert_eq!(bucket.to_string(), "50/s burst 100 initial 20");
    /// ```
    pub get_rate: rate -> Rate,

    /// The most tokens in the bucket. See [`TokenBucket::get_rate`].
    pub get_burst: burst -> u64,

    /// The tokens in the bucket at first; `None`: it is full. See [`TokenBucket::get_rate`].
    pub get_initial: initial -> Option<u64>,

    /// Whether the units of the rate are [added all at once](TokenBucket::refill_each_period). See [`TokenBucket::get_rate`].
    pub get_refill_each_period: each_period -> bool,

    pub(crate) capacity: burst -> u64,
});

impl Describe for TokenBucket {
    type Rule = PaceRule;

    fn description(&self) -> Description {
        Description::new("token_bucket", Guards::Quota, "burst")
    }

    fn window(&self, capacity: u64) -> Option<Duration> {
        Some(time_to_bring(capacity, self.rate))
    }

    #[cfg(test)]
    fn samples() -> &'static [&'static str] {
        &[
            "20/s burst 40",
            "7/ns burst 1",
            "20/s burst 40 refilled each period",
            "20/s burst 40 initial 0",
            "100000 tokens/min",
        ]
    }

    fn checked(&self, _since_epoch: Duration) -> Result<PaceRule, Fault> {
        let units = not_zero(self.rate.units(), Fault::ZeroRate)?;
        let burst = not_zero(self.burst, Fault::ZeroLimit("burst"))?;
        let period = span("period", self.rate.period())?;
        let pace = if self.each_period {
            PaceRule::each_period
        } else {
            PaceRule::continuous
        };
        pace(units, period, burst, self.initial.unwrap_or(burst)).ok_or(TOO_SLOW)
    }
}
