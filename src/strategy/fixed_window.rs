//! The limit `FixedWindow`.

use std::time::Duration;

use super::check::{Fault, at_least_one, span};
use super::counts::counts;
use super::{Counts, Describe, Description, Guards, LimitRule, Rule};
use crate::getters::getters;

mod rule;

pub(crate) use rule::WindowRule;

/// At most `limit` units in each window. A released permit gives nothing back.
///
/// ```text
/// limit 3, Creation    |xxx      |x  xx    |  xxx    |       windows from the limiter's creation
/// FirstGrant           |   xxx      |    x  xx     |         a window opens with the first grant after the last one ended
/// WallClock            |..|xxx      |x  xx    |              windows on multiples of the period since 1970-01-01T00:00:00 UTC
/// ```
///
/// Worst burst: **twice** the limit around a boundary, as with every fixed window: `limit` units at the end of one window and
/// `limit` at the start of the next. If that is too much, use a [`SlidingWindow`](crate::SlidingWindow), or a
/// [`Throttle`](crate::Throttle) with a burst, which admits at most `burst + t / interval` in any span of length `t`.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{FixedWindow, Limiter};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(FixedWindow::new(5, Duration::from_secs(1)))?;
/// let start = tokio::time::Instant::now();
/// for _ in 0..10 {
///     let _permit = limiter.acquire().await?; // five now and five in the next window
/// }
/// assert_eq!(start.elapsed(), Duration::from_secs(1));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use]
pub struct FixedWindow {
    pub(crate) limit: u64,
    pub(crate) period: Duration,
    pub(crate) align: Align,
    pub(crate) counts: Counts,
}

counts!(FixedWindow);

impl FixedWindow {
    /// At most `limit` units (at least 1) in each window of `period` (1 ns to 100 years; both checked when a limiter is built).
    /// The limit is also the largest cost of one request. By default windows start with the limiter: see [`FixedWindow::align`].
    ///
    /// See the [type's example](FixedWindow#examples).
    pub const fn new(limit: u64, period: Duration) -> Self {
        Self {
            limit,
            period,
            align: Align::Creation,
            counts: Counts::Cost,
        }
    }

    /// Where windows start.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tollgate::{Align, FixedWindow, Limiter};
    ///
    /// let per_minute = FixedWindow::new(100, Duration::from_secs(60)).align(Align::WallClock);
    /// assert!(Limiter::new(per_minute)?.try_acquire().is_ok());
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub const fn align(self, align: Align) -> Self {
        Self { align, ..self }
    }

    fn rule(&self, since_epoch: Duration) -> Result<WindowRule, Fault> {
        let (limit, period) = (
            at_least_one("limit", self.limit)?,
            span("period", self.period)?,
        );
        let phase = match self.align {
            Align::Creation => Some(0),
            Align::FirstGrant => None,
            Align::WallClock => Some((since_epoch.as_nanos() % u128::from(period)) as u64),
        };
        Ok(WindowRule {
            limit,
            period,
            phase,
        })
    }
}

getters!(FixedWindow {
    /// The limit, in units.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tollgate::{Align, FixedWindow};
    ///
    /// let window = FixedWindow::new(100, Duration::from_secs(60)).align(Align::WallClock);
    /// assert_eq!((window.get_limit(), window.get_period()), (100, Duration::from_secs(60)));
    /// assert_eq!(window.get_align(), Align::WallClock);
    /// assert_eq!(window.to_string(), "window 100/min wall clock");
    /// ```
    pub get_limit: limit -> u64,

    /// The length of a window. See [`FixedWindow::get_limit`].
    pub get_period: period -> Duration,

    /// Where windows start. See [`FixedWindow::get_limit`].
    pub get_align: align -> Align,

    pub(crate) capacity: limit -> u64,
});

impl Describe for FixedWindow {
    fn description(&self) -> Description {
        Description::new("fixed_window", Guards::Quota, "limit")
    }

    fn window(&self, _capacity: u64) -> Option<Duration> {
        Some(self.period)
    }

    #[cfg(test)]
    fn samples() -> &'static [&'static str] {
        &[
            "window 100/min",
            "window 1/ns",
            "window 100/min from first grant",
            "window 100/min wall clock",
            "window 100 bytes/min",
        ]
    }

    fn checked(&self, since_epoch: Duration) -> Result<LimitRule, Fault> {
        Ok(Rule::Window(self.rule(since_epoch)?).into())
    }
}

/// Where the windows of a [`FixedWindow`] start. See [`FixedWindow::align`] for an example.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Align {
    /// On a grid that starts when the limiter is built.
    #[default]
    Creation,
    /// With the first grant after the last window ended.
    FirstGrant,
    /// On multiples of the period since the Unix epoch. Many APIs count their "per minute" like that.
    ///
    /// The system clock is read once, when the limiter is built. Windows are computed from that and never counted by a ticker, so
    /// they do not drift. A later step of the system clock does not move them.
    WallClock,
}
