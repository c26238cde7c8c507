//! The limit `Penalty`.

use std::time::Duration;

use super::check::{Fault, at_least_one, in_range, rate_units, span};
use super::counts::counts;
use super::{Counts, Describe, Description, Guards, LimitRule, Rule};
use crate::getters::getters;
use crate::rate::Rate;

mod rule;
#[cfg(test)]
mod tests;

pub(crate) use rule::PenaltyRule;
use rule::{Ban, FallRule};

/// Penalises or bans clients that keep retrying: a counter that each attempt raises, also a denied one, and that time lowers.
///
/// ```text
/// threshold 3          |xxx--  .       .       . x     .            two denied attempts raise it further
/// falls 1 each 80 ms   |5      4       3       2 3     2            to 5: room again at 2
///                      0       80      160     240     320 ms
/// .ban(200 ms)         |xxx-               |xx     .                the denied one is locked out; then the counter is zero
///                      0                   200 ms
/// ```
///
/// An attempt is admitted when the counter plus its cost is at most the threshold, and raises the counter by its cost. A denied
/// attempt raises it too, up to the ceiling (`try_acquire` and its variants are denied; a request that waits in the queue is not).
/// So a client that keeps retrying is kept out, at most for as long as the counter takes to fall from the ceiling. The counter
/// falls in whole steps, counted from the instant at which it rose from zero. There is no sweeper: steps that have passed are
/// applied at the next access, exactly.
///
/// With a [ban](Penalty::ban), a denied attempt does not raise the counter but starts a lock-out, which further attempts do not
/// prolong; after it the counter is zero. [`Penalty::escalate`] doubles each further ban.
///
/// Worst burst: the threshold in one instant. In any span that holds `n` steps: at most the threshold plus `n` times what a step
/// takes off (half the threshold, rounded up, with [`Penalty::half_life`]). With a ban that is shorter than the fall from the
/// threshold it is more: the threshold again after each ban.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limiter, Penalty, Rate};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(Penalty::new(3, Rate::per_second(1)).ceiling(5))?;
/// for _ in 0..3 {
///     assert!(limiter.try_acquire().is_ok());
/// }
/// for _ in 0..10 {
///     assert!(limiter.try_acquire().is_err());
/// }
/// assert_eq!(limiter.check(1).retry_after(), Some(Duration::from_secs(3))); // from 5, the ceiling, to 2
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use]
pub struct Penalty {
    pub(crate) threshold: u64,
    pub(crate) fall: Decay,
    pub(crate) ceiling: Option<u64>,
    pub(crate) ban: Option<Duration>,
    /// The longest ban. This and the next have no effect without a ban.
    pub(crate) longest: Option<Duration>,
    pub(crate) forgive_after: Option<Duration>,
    pub(crate) counts_denied: bool,
    pub(crate) counts: Counts,
}

counts!(Penalty);

/// How the counter of a [`Penalty`] falls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Decay {
    /// By the units of the rate, each period of it.
    Steps(Rate),
    /// To its half, rounded down.
    HalfLife(Duration),
}

impl Penalty {
    /// Denies above `threshold` (1 to 4,294,967,295); the counter falls by the units of `fall` at the end of each period of it,
    /// not evenly in between. All three numbers are checked when a limiter is built. The threshold is also the largest cost of
    /// one request.
    ///
    /// See the [type's example](Penalty#examples).
    pub const fn new(threshold: u64, fall: Rate) -> Self {
        Self::falling(threshold, Decay::Steps(fall))
    }

    pub(crate) const fn falling(threshold: u64, fall: Decay) -> Self {
        Self {
            threshold,
            fall,
            ceiling: None,
            ban: None,
            longest: None,
            forgive_after: None,
            counts_denied: true,
            counts: Counts::Cost,
        }
    }

    /// Halves the counter after each `half_life`, rounded down so that it reaches zero, instead of lowering it by a fixed amount.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Limiter, Penalty, Rate};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(Penalty::new(8, Rate::per_second(1)).half_life(Duration::from_secs(10)))?;
    /// assert!(limiter.try_acquire_many(8).is_ok());
    /// tokio::time::advance(Duration::from_secs(20)).await;
    /// assert_eq!(limiter.check(1).remaining(), 6); // 8, 4, 2
    /// # Ok(())
    /// # }
    /// ```
    pub const fn half_life(self, half_life: Duration) -> Self {
        Self {
            fall: Decay::HalfLife(half_life),
            ..self
        }
    }

    /// The highest value to which denied attempts raise the counter (at most 4,294,967,295). The longest lock-out is the time that
    /// the counter takes to fall from there. Defaults to twice the threshold; a lower value than the threshold counts as the
    /// threshold.
    ///
    /// See the [type's example](Penalty#examples).
    pub const fn ceiling(self, units: u64) -> Self {
        Self {
            ceiling: Some(units),
            ..self
        }
    }

    /// Locks out for `first` (1 ns to 100 years) at a denied attempt. After the ban the counter is zero.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Limiter, Penalty, Rate};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let minute = Duration::from_secs(60);
    /// let limiter = Limiter::new(Penalty::new(3, Rate::per_second(1)).ban(minute).escalate(60 * minute))?;
    /// let attempt = || limiter.try_acquire_many(3).is_ok();
    /// assert!(attempt() && !attempt());
    /// assert_eq!(limiter.check(1).retry_after(), Some(minute));
    /// tokio::time::advance(minute).await;
    /// assert!(attempt() && !attempt());
    /// assert_eq!(limiter.check(1).retry_after(), Some(2 * minute));
    /// # Ok(())
    /// # }
    /// ```
    pub const fn ban(self, first: Duration) -> Self {
        Self {
            ban: Some(first),
            ..self
        }
    }

    /// Makes each further [ban](Penalty::ban) twice as long as the last, up to `longest` (1 ns to 100 years; a shorter one than the
    /// first counts as the first), until bans are [forgiven](Penalty::forgive_after). By default all bans have the same length. It
    /// has no effect without a ban.
    pub const fn escalate(self, longest: Duration) -> Self {
        Self {
            longest: Some(longest),
            ..self
        }
    }

    /// Forgets [bans](Penalty::ban) once the counter has been at zero without a ban for this long (0 to 100 years). Defaults to the
    /// length of the longest ban. It has no effect without a ban.
    pub const fn forgive_after(self, idle: Duration) -> Self {
        Self {
            forgive_after: Some(idle),
            ..self
        }
    }

    /// Raises the counter by admitted attempts only. A denied attempt still starts a [ban](Penalty::ban).
    ///
    /// ```
    /// use tollgate::{Limiter, Penalty, Rate};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(Penalty::new(1, Rate::per_second(1)).ignore_denied())?;
    /// assert!(limiter.try_acquire().is_ok());
    /// assert!(limiter.try_acquire().is_err());
    /// assert_eq!(limiter.check(1).retry_after(), Some(std::time::Duration::from_secs(1)));
    /// # Ok(())
    /// # }
    /// ```
    pub const fn ignore_denied(self) -> Self {
        Self {
            counts_denied: false,
            ..self
        }
    }

    /// The rate at which the counter falls; `None` if it has a [half-life](Penalty::half_life). See [`Penalty::get_threshold`].
    #[must_use]
    pub const fn get_fall(&self) -> Option<Rate> {
        match self.fall {
            Decay::Steps(rate) => Some(rate),
            Decay::HalfLife(_) => None,
        }
    }

    /// The [half-life](Penalty::half_life) of the counter; `None` if it falls at a rate. See [`Penalty::get_threshold`].
    #[must_use]
    pub const fn get_half_life(&self) -> Option<Duration> {
        match self.fall {
            Decay::Steps(_) => None,
            Decay::HalfLife(time) => Some(time),
        }
    }

    /// Whether denied attempts [leave the counter as it is](Penalty::ignore_denied). See [`Penalty::get_threshold`].
    #[must_use]
    pub const fn get_ignore_denied(&self) -> bool {
        !self.counts_denied
    }

    /// How long the counter takes from this value to zero, at most.
    fn time_to_fall(&self, value: u64) -> Duration {
        let (period, count) = match self.fall {
            Decay::Steps(rate) => (rate.period(), value.div_ceil(rate.units().max(1))),
            Decay::HalfLife(time) => (time, u64::from(u64::BITS - value.leading_zeros())),
        };
        period.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX))
    }

    fn rule(&self) -> Result<PenaltyRule, Fault> {
        let (period, fall) = match self.fall {
            Decay::Steps(rate) => (
                span("period", rate.period())?,
                FallRule::By(rate_units(rate.units())?),
            ),
            Decay::HalfLife(half_life) => (span("half-life", half_life)?, FallRule::Halving),
        };
        let units = |number, units: u64, min| {
            in_range(number, units, min, u32::MAX.into()).map(|units| units as u32)
        };
        let threshold = units("threshold", at_least_one("threshold", self.threshold)?, 1)?;
        let ceiling = self
            .ceiling
            .map_or(Ok(threshold.saturating_mul(2)), |ceiling| {
                units("ceiling", ceiling, 0)
            })?
            .max(threshold);
        let time = |number, time: Option<Duration>| time.map(|time| span(number, time)).transpose();
        let (first, longest) = (time("ban", self.ban)?, time("longest ban", self.longest)?);
        // This span may be zero: bans are forgiven at once.
        let forgive_after = match self.forgive_after {
            Some(Duration::ZERO) => Some(0),
            idle => time("time to forgive bans", idle)?,
        };
        let ban = first.map(|first| {
            let longest = longest.unwrap_or(first).max(first);
            Ban {
                first,
                longest,
                forgive_after: forgive_after.unwrap_or(longest),
            }
        });
        Ok(PenaltyRule {
            threshold,
            ceiling,
            period,
            fall,
            ban,
            counts_denied: self.counts_denied,
        })
    }
}

getters!(Penalty {
    /// The threshold, in units.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tollgate::{Penalty, Rate};
    ///
    /// let minute = Duration::from_secs(60);
    /// let penalty = Penalty::new(10, Rate::per_second(1)).ban(minute);
    /// assert_eq!((penalty.get_threshold(), penalty.get_fall()), (10, Some(Rate::per_second(1))));
    /// assert_eq!((penalty.get_ceiling(), penalty.get_ban()), (None, Some(minute)));
    /// assert_eq!(penalty.half_life(minute).get_half_life(), Some(minute));
    /// assert_eq!(penalty.to_string(), "penalty 10 falling 1/s ban 1m");
    /// ```
    pub get_threshold: threshold -> u64,

    /// The ceiling as set, in units; `None`: twice the threshold. See [`Penalty::get_threshold`].
    pub get_ceiling: ceiling -> Option<u64>,

    /// The length of the first ban; `None` without bans. See [`Penalty::get_threshold`].
    pub get_ban: ban -> Option<Duration>,

    /// The longest ban as [set](Penalty::escalate); `None`: all have the same length. See [`Penalty::get_threshold`].
    pub get_escalate: longest -> Option<Duration>,

    /// After how long bans are forgotten, as [set](Penalty::forgive_after); `None`: after the longest ban. See
    /// [`Penalty::get_threshold`].
    pub get_forgive_after: forgive_after -> Option<Duration>,

    pub(crate) capacity: threshold -> u64,
});

impl Describe for Penalty {
    fn description(&self) -> Description {
        Description {
            bans: self.ban.is_some(),
            ..Description::new("penalty", Guards::Conduct, "threshold")
        }
    }

    fn window(&self, capacity: u64) -> Option<Duration> {
        Some(self.get_fall()?.time_of(capacity))
    }

    /// Excludes the time until it forgives bans, because no client has to wait for it.
    fn until_reset(&self, reset_after: Duration, capacity: u64) -> Duration {
        let is_to_forgive = reset_after > self.time_to_fall(capacity);
        let forgiven_after = self
            .forgive_after
            .or(self.ban.max(self.longest))
            .filter(|_| is_to_forgive);
        reset_after.saturating_sub(forgiven_after.unwrap_or_default())
    }

    #[cfg(test)]
    fn samples() -> &'static [&'static str] {
        &[
            "penalty 10 falling 1/s",
            "penalty 1 falling 1/ns",
            "penalty 10 half-life 30s",
            "penalty 10 falling 1/s ceiling 20",
            "penalty 10 falling 1/s ban 1m",
            "penalty 10 falling 1/s ban 1m up to 1h forgive 2h",
            "penalty 10 falling 1/s up to 1h",
            "penalty 10 falling 1/s forgive 2h",
            "penalty 10 falling 1/s ignoring denied",
            "penalty 10 falling 1/s per request",
        ]
    }

    fn checked(&self, _since_epoch: Duration) -> Result<LimitRule, Fault> {
        Ok(Rule::Penalty(self.rule()?).into())
    }
}
