//! A rate: a number of units per period.

use std::time::Duration;

/// A number of units per period.
///
/// A rate keeps both numbers as given: `Rate::per_second(60)` and `Rate::per_minute(3_600)` are equally fast, but not equal.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::Rate;
///
/// const LIMIT: Rate = Rate::per_second(50);
/// assert_eq!((LIMIT.units(), LIMIT.period()), (50, Duration::from_secs(1)));
/// assert_eq!(LIMIT.to_string(), "50/s");
/// assert_eq!("50/s".parse(), Ok(LIMIT));
/// assert_eq!("100/min".parse(), Ok(Rate::per_minute(100)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rate {
    units: u64,
    period: Duration,
}

impl Rate {
    /// `units` (at least 1) per `period` (1 ns to 100 years). Both are checked when a limiter is built.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tollgate::Rate;
    ///
    /// assert_eq!(Rate::new(3, Duration::from_millis(250)).to_string(), "3/250ms");
    /// ```
    #[must_use]
    pub const fn new(units: u64, period: Duration) -> Self {
        Self { units, period }
    }

    /// `units` (at least 1) per second. See the [type's example](Rate#examples).
    #[must_use]
    pub const fn per_second(units: u64) -> Self {
        Self::new(units, Duration::from_secs(1))
    }

    /// `units` (at least 1) per minute. See the [type's example](Rate#examples).
    #[must_use]
    pub const fn per_minute(units: u64) -> Self {
        Self::new(units, Duration::from_secs(60))
    }

    /// `units` (at least 1) per hour. See the [type's example](Rate#examples).
    #[must_use]
    pub const fn per_hour(units: u64) -> Self {
        Self::new(units, Duration::from_secs(3_600))
    }

    /// `units` (at least 1) per day of 24 hours. See the [type's example](Rate#examples).
    #[must_use]
    pub const fn per_day(units: u64) -> Self {
        Self::new(units, Duration::from_secs(24 * 3_600))
    }
}

getters!(Rate {
    /// The units per period. See the [type's example](Rate#examples).
    pub units: units -> u64,

    /// The period. See the [type's example](Rate#examples).
    pub period: period -> Duration,
});
