//! The limit `Throttle`.

use std::time::Duration;

use super::counts::counts;
use super::description::{Fault, TOO_SLOW, not_zero, span, time_to_bring};
use super::{Counts, Describe, Description, Guards, PaceRule};
use crate::rate::Rate;

/// At most one grant per interval; with a burst, `burst` at once and then one per interval.
///
/// The rule is the generic cell rate algorithm (GCRA, ITU-T I.371, "virtual scheduling"). One number holds the *theoretical
/// arrival time*: when the next unit would come if all units so far had come at the rate. A cost of `n` moves it by `n` intervals,
/// and is admitted when the result lies at most `burst` intervals ahead of now.
///
/// ```text
/// every 100 ms         |x    .    x    .    .    .    x    .    x        one per interval; idle time earns nothing
///                      0        100                 300       400 ms
/// .burst(3)            |xxx  .    x    .    x    .    .    .    xx       three at once, then the pace
/// ```
///
/// Worst burst: `burst` units in one instant. In any span of length `t`: at most `burst + t / interval` units. Without a burst,
/// any two grants are at least one interval apart, measured when they are decided; a timer that fires late delays all later
/// grants, and the rate falls. tokio's timer ticks each millisecond, so a throttle of 1 ms without a burst delivers about half its
/// rate. A burst lets it catch up, by at most the burst.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limiter, Throttle};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(Throttle::every(Duration::from_millis(100)))?;
/// let start = tokio::time::Instant::now();
/// for _ in 0..4 {
///     let _permit = limiter.acquire().await?;
/// }
/// assert_eq!(start.elapsed(), Duration::from_millis(300)); // the first at once
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use]
#[doc(alias("Gcra", "LeakyBucket"))]
pub struct Throttle {
    pub(crate) interval: Duration,
    pub(crate) burst: u64,
    pub(crate) counts: Counts,
}

counts!(Throttle);

per_period!(
    Throttle,
    at,
    "Evenly spaced grants without a burst, `units`"
);

impl Throttle {
    /// One grant per `interval` (1 ns to 100 years; checked when a limiter is built), the first at once.
    ///
    /// See the [type's example](Throttle#examples).
    pub const fn every(interval: Duration) -> Self {
        Self {
            interval,
            burst: 1,
            counts: Counts::Cost,
        }
    }

    /// One grant per unit of the rate, the first at once: the period divided by the units is the interval. It is rounded up to a
    /// whole nanosecond, so the rate is never exceeded.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Rate, Throttle};
    ///
    /// assert_eq!(Throttle::at(Rate::per_minute(100)), Throttle::every(Duration::from_millis(600)));
    /// assert_eq!(Throttle::per_second(3).get_interval(), Duration::from_nanos(333_333_334));
    /// ```
    pub const fn at(rate: Rate) -> Self {
        let (nanos, units) = (rate.period().as_nanos(), rate.units() as u128);
        // A rate of no units has no interval: 0 is an error when a limiter is built.
        let nanos = match units {
            0 => 0,
            units => nanos.div_ceil(units),
        };
        let second = 1_000_000_000;
        Self::every(Duration::new(
            (nanos / second) as u64,
            (nanos % second) as u32,
        ))
    }

    /// Admits up to `units` at once (at least 1; `units` × interval at most 100 years). The burst is also the largest cost of one
    /// request. The default is 1.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tollgate::{Limiter, Throttle};
    ///
    /// let limiter = Limiter::new(Throttle::every(Duration::from_secs(60)).burst(2))?;
    /// assert!(limiter.try_acquire_many(2).is_ok());
    /// assert!(limiter.try_acquire().is_err());
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub const fn burst(self, units: u64) -> Self {
        Self {
            burst: units,
            ..self
        }
    }
}

getters!(Throttle {
    /// The interval. The names of getters begin with `get_`, as those of [`std::process::Command`] do, because setters have the short
    /// names.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tollgate::Throttle;
    ///
    /// let throttle = Throttle::every(Duration::from_millis(100)).burst(5);
    /// assert_eq!((throttle.get_interval(), throttle.get_burst()), (Duration::from_millis(100), 5));
    /// assert_eq!(throttle.to_string(), "throttle every 100ms burst 5");
    /// ```
    pub get_interval: interval -> Duration,

    /// The burst, in units. See [`Throttle::get_interval`].
    pub get_burst: burst -> u64,

    pub(crate) capacity: burst -> u64,
});

impl Describe for Throttle {
    type Rule = PaceRule;

    fn description(&self) -> Description {
        Description::new("throttle", Guards::Quota, "burst")
    }

    fn window(&self, capacity: u64) -> Option<Duration> {
        Some(time_to_bring(capacity, Rate::new(1, self.interval)))
    }

    #[cfg(test)]
    fn samples() -> &'static [&'static str] {
        &[
            "throttle every 100ms",
            "throttle every 1ns",
            "throttle every 100ms burst 5",
            "throttle every 100ms counting tokens",
        ]
    }

    fn checked(&self, _since_epoch: Duration) -> Result<PaceRule, Fault> {
        let burst = not_zero(self.burst, Fault::ZeroLimit("burst"))?;
        let interval = span("interval", self.interval)?;
        PaceRule::continuous(1, interval, burst, burst).ok_or(TOO_SLOW)
    }
}
