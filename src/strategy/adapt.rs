//! How a concurrency limit adapts: the rules, their options, and the outcomes that holders report.

use std::time::Duration;

use super::check::{Fault, in_range, span};

mod state;
#[cfg(test)]
mod tests;

pub(crate) use state::{AdaptState, Sample};

/// The outcome of the work under a permit, reported by its holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The work was done. Its round trip counts, and the limit may rise.
    Ok,
    /// The work was refused or timed out for lack of capacity (HTTP 429 or 503, a full queue): the limit falls.
    Overloaded,
    /// The outcome says nothing about the load (a bad request, a cancelled caller): the same as no report.
    Ignored,
}

/// How a [`MaxConcurrency`](crate::MaxConcurrency) adapts its limit to the reports of the work, between a floor and a ceiling.
///
/// There are two rules. Both work in *rounds*: a round ends when as many units were reported as the limit allows at the same
/// time. While all places are in use, that takes about one round trip, so each step sees the effect of the step before. Neither
/// rule raises the limit while less than half of it is in use, because that says nothing about a higher limit.
///
/// ```text
/// aimd      limit |    /|    /|    /|       one more each round; at an overload a tenth less, once a round
///                 |  /  |  /  |  /  |
/// gradient  limit |      _____   ____       up until round trips grow longer than tolerated, then level;
///                 |   /       |_|           now and then a probe at a third of the limit measures the unloaded round trip
/// ```
///
/// # Reports
///
/// Only [`Permit::report`](crate::Permit::report) changes the limit: by the outcome, and by the *round trip*, the time from the
/// grant to the report. A permit that is dropped or settled reports nothing, and so do [`Limiter::run`](crate::Limiter::run),
/// [`throttled`](crate::StreamLimitExt::throttled) and [`for_each_permitted`](crate::StreamLimitExt::for_each_permitted), which
/// do not know how the work went: for a stream, use [`with_permits`](crate::StreamLimitExt::with_permits).
///
/// Round trips show the queue that this limiter causes at the server. If other clients fill the server's queue, the gradient rule
/// takes the longer round trip for the server's own; then only [`Outcome::Overloaded`] and the [timeout](Adapt::timeout) lower
/// the limit.
///
/// # Restart
///
/// A limit restarts from its initial value when nothing was reported for **ten minutes** and no permit is in flight. Measurements
/// that old say little about the server now; TCP restarts its window after a pause for the same reason (RFC 5681, section 4.1).
/// While a permit is in flight, the limit stays as it is. A [`KeyedLimiter`](crate::KeyedLimiter) drops a key with an adapted
/// limit by the same rule.
///
/// # Examples
///
/// ```
/// use tollgate::{Adapt, Limiter, MaxConcurrency};
///
/// let limiter = Limiter::new(MaxConcurrency::new(20).adapt(Adapt::gradient().between(4, 200)))?;
/// assert_eq!(limiter.snapshot().concurrency, Some(20));
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use]
pub struct Adapt {
    pub(crate) rule: AdaptRule,
    pub(crate) floor: u64,
    pub(crate) ceiling: u64,
    /// Per mille of the limit that an overload leaves.
    pub(crate) backoff: u32,
    pub(crate) timeout: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum AdaptRule {
    Aimd,
    /// Both per mille.
    Gradient {
        tolerance: u32,
        smoothing: u32,
    },
}

impl Adapt {
    /// Additive increase, multiplicative decrease: one more after each round without an overload, a tenth less at an overload. It
    /// needs reports of [`Outcome::Overloaded`] or a [timeout](Adapt::timeout), and then moves between the limit at which overloads
    /// begin and nine tenths of it.
    ///
    /// Chiu and Jain (1989, "Analysis of the increase and decrease algorithms for congestion avoidance") show that of the linear
    /// rules this one brings independent clients to a fair share. The numbers are those of `AIMDLimit` in Netflix's
    /// concurrency-limits. That rule adds one for each *report* and cuts at each overload, so the limit doubles in a round, and
    /// fifty calls refused at once leave almost nothing of it. Here, as in TCP, each happens once a round.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Adapt, MaxConcurrency};
    ///
    /// let limit = MaxConcurrency::new(10).adapt(Adapt::aimd().timeout(Duration::from_millis(250)));
    /// ```
    pub const fn aimd() -> Self {
        Self::new(AdaptRule::Aimd)
    }

    /// Compares the mean round trip of each round with a baseline, the round trip of the unloaded server. The limit is multiplied
    /// by `tolerance × baseline / mean` (at least 0.5, at most 1), √limit is added as a queue that probes for more, and the step is
    /// [smoothed](Adapt::smoothing). The rule needs no overloads to find the server's knee. It settles above the knee, at
    /// `tolerance × knee + √limit`: at 80 to 95 for a server that works on 50 calls at once, at 50 to 130 when the service times
    /// are exponential (both measured in the tests). At [`Outcome::Overloaded`] it backs off as [`Adapt::aimd`] does.
    ///
    /// It follows `Gradient2Limit` in Netflix's concurrency-limits, with the same tolerance and smoothing, and differs in these:
    ///
    /// - The baseline. Netflix's is an average of all round trips and so follows a queue that persists: a steady overload becomes
    ///   the norm, and the limit drifts up to where the server refuses. Here only rounds at low load count: those in which less
    ///   than half of the limit was in use, and a probe after every 32 rounds, for which the limit is lowered to
    ///   `limit / (2 × tolerance)`, below the knee (the idea of BBR's ProbeRTT and of Envoy's minimum-RTT window). Each probe moves
    ///   the baseline by a quarter: when the work itself becomes slower, the limit is lower than it could be for a few probes.
    /// - √limit in place of a constant 4 (as in Netflix's older `GradientLimit`): 4 are many for a server that handles 2, and few
    ///   for one that handles 1000.
    /// - A round trip counts as ten times the baseline at most, so that one stuck call does not change the baseline for long.
    /// - It steps once a round, not at each report.
    /// - It reacts to overloads. A server that refuses at once has short round trips.
    ///
    /// ```
    /// use tollgate::{Adapt, MaxConcurrency};
    ///
    /// let limit = MaxConcurrency::new(20).adapt(Adapt::gradient().tolerance(1200).between(4, 200));
    /// ```
    pub const fn gradient() -> Self {
        Self::new(AdaptRule::Gradient {
            tolerance: 1_500,
            smoothing: 200,
        })
    }

    const fn new(rule: AdaptRule) -> Self {
        Self {
            rule,
            floor: 1,
            ceiling: 1_000,
            backoff: 900,
            timeout: None,
        }
    }

    /// Keeps the limit in `floor..=ceiling` (at least 1; checked when a limiter is built). The default is 1 to 1000.
    ///
    /// Netflix's defaults are 20 and 200. A floor of 20 is too high for a small server, which then never recovers; with 1,
    /// something always goes through and reports. The ceiling is the highest load that the server may ever see, which only its
    /// owner knows.
    pub const fn between(self, floor: u64, ceiling: u64) -> Self {
        Self {
            floor,
            ceiling,
            ..self
        }
    }

    setters! { const:
        /// Per mille of the limit that an overload leaves (1 to 999). The limit falls by one at least. The default is 900.
        pub backoff(per_mille: u32) => backoff = per_mille;

        /// Counts a round trip longer than this (1 ns to 100 years) as [`Outcome::Overloaded`]. There is no timeout by default.
        pub timeout(timeout: Duration) => timeout = Some(timeout);
    }

    /// Per mille of the baseline that a mean round trip may take before the limit falls (1000 to 1,000,000). The default is 1500.
    /// A lower tolerance keeps the queue at the server shorter, a higher one tolerates more jitter. [`Adapt::aimd`] does not use
    /// it.
    pub const fn tolerance(mut self, per_mille: u32) -> Self {
        if let AdaptRule::Gradient { tolerance, .. } = &mut self.rule {
            *tolerance = per_mille;
        }
        self
    }

    /// Per mille of each step that is taken (1 to 1000). The default is 200. [`Adapt::aimd`] does not use it.
    pub const fn smoothing(mut self, per_mille: u32) -> Self {
        if let AdaptRule::Gradient { smoothing, .. } = &mut self.rule {
            *smoothing = per_mille;
        }
        self
    }

    /// Per mille of the baseline; `None` for [`Adapt::aimd`]. See [`Adapt::get_floor`].
    #[must_use]
    pub const fn get_tolerance(&self) -> Option<u32> {
        match self.rule {
            AdaptRule::Aimd => None,
            AdaptRule::Gradient { tolerance, .. } => Some(tolerance),
        }
    }

    /// Per mille of each step; `None` for [`Adapt::aimd`]. See [`Adapt::get_floor`].
    #[must_use]
    pub const fn get_smoothing(&self) -> Option<u32> {
        match self.rule {
            AdaptRule::Aimd => None,
            AdaptRule::Gradient { smoothing, .. } => Some(smoothing),
        }
    }

    /// Checks that every number is in its documented range. Outside of it, the rules neither panic nor leave the bounds.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        in_range("ceiling", self.ceiling, 1, u64::MAX)?;
        in_range("floor", self.floor, 1, self.ceiling)?;
        in_range("backoff", self.backoff.into(), 1, 999)?;
        if let AdaptRule::Gradient {
            tolerance,
            smoothing,
        } = self.rule
        {
            in_range("tolerance", tolerance.into(), 1_000, 1_000_000)?;
            in_range("smoothing", smoothing.into(), 1, 1_000)?;
        }
        self.timeout
            .map_or(Ok(()), |timeout| span("timeout", timeout).map(drop))
    }
}

getters!(Adapt {
    /// The floor, in units.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tollgate::Adapt;
    ///
    /// let adapt = Adapt::gradient().between(4, 200);
    /// assert_eq!((adapt.get_floor(), adapt.get_ceiling()), (4, 200));
    /// assert_eq!((adapt.get_backoff(), adapt.get_timeout()), (900, None));
    /// assert_eq!((adapt.get_tolerance(), adapt.get_smoothing()), (Some(1_500), Some(200)));
    /// assert_eq!(Adapt::aimd().get_tolerance(), None);
    /// ```
    pub get_floor: floor -> u64,

    /// The ceiling, in units. See [`Adapt::get_floor`].
    pub get_ceiling: ceiling -> u64,

    /// Per mille of the limit that an overload leaves. See [`Adapt::get_floor`].
    pub get_backoff: backoff -> u32,

    /// The round trip above which work counts as overloaded, if there is one. See [`Adapt::get_floor`].
    pub get_timeout: timeout -> Option<Duration>,
});
