//! The limit `SlidingWindow`.

use std::time::Duration;

use super::counts::counts;
use super::description::{Fault, in_range, not_zero, span};
use super::{Counts, Describe, Description, Guards, LimitRule};

mod counter;
mod grants;
mod log;

pub(crate) use counter::CounterRule;
pub(crate) use grants::Grants;
pub(crate) use log::LogRule;

/// At most `limit` units in the last `period`, at every instant, not only in the windows of a grid.
///
/// ```text
/// limit 3 per 100 ms   |x    xx   .    x    .    xx   .    x       a unit leaves exactly one period after it was granted
///                      0         100       200      300 ms
/// ```
///
/// Only admitted units count. There are two methods:
///
/// | | [`SlidingWindow::log`] | [`SlidingWindow::counter`] |
/// |---|---|---|
/// | state | each grant | two counters |
/// | memory | 16 to 64 bytes for each instant with a grant, up to `limit` of them | 16 bytes |
/// | worst burst in any span of one `period` | `limit` | 2 × `limit` − 1 |
///
/// Use the counter above a limit of about a thousand, and for many keys.
///
/// **The log** is exact: a unit granted at `t` counts before `t + period` and no longer at that instant. Worst burst: `limit`
/// units in one instant, and then none for a period. The retry-after is when enough units have expired.
///
/// For `n` instants with a grant, a grant takes O(1) steps, and a denial or a check O(log n). The memory of expired instants is
/// freed by later grants, each of which frees 512 of them at most, so that no grant takes long. A refund takes up to about
/// 512 + `n` / 512 steps.
///
/// When more than the limit was charged ([`KeyedLimiter::penalize`](crate::KeyedLimiter::penalize),
/// [`Permit::settle`](crate::Permit::settle)), the log keeps no more than `limit` instants (64 at least): the oldest units, which
/// no request can use, expire together. Refunding a permit of these units then gives nothing back.
///
/// **The counter** keeps the units of the present and of the previous window of a grid, and assumes that the units of the
/// previous one came evenly, as [Cloudflare's](https://blog.cloudflare.com/counting-things-a-lot-of-different-things/) does:
///
/// ```text
/// previous × (part of the period that the present window still has to go) + present ≤ limit
/// ```
///
/// The arithmetic is exact, the assumption is not. Grants at the end of the previous window count too little: at worst the whole
/// limit comes in its last nanosecond, and all but one of the limit again during the next period. In any span of length `t` up to
/// a period it admits at most `limit × (1 + t / period)`, as a token bucket does, so never twice the limit. Grants at the start
/// count too much: up to `limit` units are denied that the log would admit. Measured with a limit of 100 and random arrivals
/// (Poisson) at 0.9 to 1.5 times the limit: the estimate is off by 1 to 2.8 % of the limit on average, and the fullest span of one
/// period held 117.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limiter, SlidingWindow};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(SlidingWindow::log(3, Duration::from_millis(100)))?;
/// let _first = limiter.acquire().await?;
/// tokio::time::advance(Duration::from_millis(50)).await;
/// let _two = limiter.acquire_many(2).await?;
/// assert_eq!(limiter.check(1).retry_after(), Some(Duration::from_millis(50))); // the first leaves
/// assert_eq!(limiter.check(2).retry_after(), Some(Duration::from_millis(100))); // and one of the two
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use]
pub struct SlidingWindow {
    pub(crate) limit: u64,
    pub(crate) period: Duration,
    pub(crate) method: SlidingMethod,
    pub(crate) counts: Counts,
}

counts!(SlidingWindow);

impl SlidingWindow {
    /// At most `limit` units (at least 1) in any span of one `period` (1 ns to 100 years; both checked when a limiter is built),
    /// exactly. The limit is also the largest cost of one request.
    ///
    /// See the [type's example](SlidingWindow#examples).
    #[doc(alias("per_hour", "per_minute", "per_second"))]
    pub const fn log(limit: u64, period: Duration) -> Self {
        Self {
            limit,
            period,
            method: SlidingMethod::Log,
            counts: Counts::Cost,
        }
    }

    /// About `limit` units (1 to 4,294,967,295) in any span of one `period` (1 ns to 100 years; both checked when a limiter is
    /// built), from two counters. The windows of its grid start with the limiter; a change of the period
    /// [moves them](crate::UsageCarryOver). The limit is also the largest cost of one request.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Limiter, SlidingWindow};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(SlidingWindow::counter(10, Duration::from_secs(1)))?;
    /// let _all = limiter.acquire_many(10).await?;
    /// tokio::time::advance(Duration::from_millis(1_300)).await;
    /// assert_eq!(limiter.check(1).remaining(), 3); // 7 of the 10 still count
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("per_hour", "per_minute", "per_second"))]
    pub const fn counter(limit: u64, period: Duration) -> Self {
        Self {
            limit,
            period,
            method: SlidingMethod::Counter,
            counts: Counts::Cost,
        }
    }
}

getters!(SlidingWindow {
    /// The limit, in units.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tollgate::{SlidingMethod, SlidingWindow};
    ///
    /// let window = SlidingWindow::log(100, Duration::from_secs(60));
    /// assert_eq!((window.limit(), window.period()), (100, Duration::from_secs(60)));
    /// assert_eq!(window.method(), SlidingMethod::Log);
    /// assert_eq!(window.to_string(), "sliding log 100/min");
    /// ```
    pub limit: limit -> u64,

    /// The period. See [`SlidingWindow::limit`].
    pub period: period -> Duration,

    /// How it counts. See [`SlidingWindow::limit`].
    pub method: method -> SlidingMethod,

    pub(crate) capacity: limit -> u64,
});

impl Describe for SlidingWindow {
    type Rule = LimitRule;

    fn description(&self) -> Description {
        Description::new("sliding_window", Guards::Quota, "limit")
    }

    fn window(&self, _capacity: u64) -> Option<Duration> {
        Some(self.period)
    }

    /// Excludes the second window of a counter, because no client has to wait for it.
    fn until_reset(&self, reset_after: Duration, _capacity: u64) -> Duration {
        reset_after.min(self.period)
    }

    #[cfg(test)]
    fn samples() -> &'static [&'static str] {
        &[
            "sliding log 100/min",
            "sliding log 1/ns",
            "sliding counter 100/min",
            "sliding counter 1/ns",
            "sliding log 100/min per request",
        ]
    }

    fn checked(&self, _since_epoch: Duration) -> Result<LimitRule, Fault> {
        let limit = not_zero(self.limit, Fault::ZeroLimit("limit"))?;
        let period = span("period", self.period)?;
        match self.method {
            SlidingMethod::Log => Ok(LimitRule::Log(LogRule { limit, period })),
            SlidingMethod::Counter => {
                in_range("limit", limit, 1, u32::MAX.into())?;
                Ok(CounterRule { limit, period }.into())
            }
        }
    }
}

/// How a [`SlidingWindow`] counts. The type compares the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SlidingMethod {
    /// Stores each grant: [`SlidingWindow::log`].
    Log,
    /// Two counters and an estimate: [`SlidingWindow::counter`].
    Counter,
}
