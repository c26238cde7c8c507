//! How a concurrency limit adapts: the rules, their options, the outcomes that holders report, and the state that a report changes.

use std::time::Duration;

use super::Moment;
use super::description::{Fault, in_range, span};

#[cfg(test)]
mod tests;

/// Reports that make a round of the gradient rule at least, so that the mean is not that of one odd round trip (Netflix's
/// `WindowedLimit` asks for as many).
const ROUND_MIN: u64 = 10;

/// Rounds of the gradient rule between two probes. A probe takes about four rounds at a third of the limit. Measured in the tests: at least 96 % of the
/// server's throughput remains, and a start at four times the knee is corrected within 5 s of round trips of 10 ms.
const PROBE_EVERY: u32 = 32;

/// The baseline is the mean of the first probes up to this number, then an exponential average with a weight of one over this
/// number: a hiccup during one probe moves it by a quarter.
const PROBES_AVERAGED: u32 = 4;

/// The smallest share of the limit that one step of the gradient rule leaves, before smoothing (as in Netflix's: it bounds the
/// cost of an outlier).
const GRADIENT_MIN: f64 = 0.5;

/// A round trip counts as at most this many times the baseline: if one that took an hour became the baseline, the limit would
/// rise to its ceiling.
const OUTLIER: f64 = 10.0;

/// Nanoseconds without a report after which an idle limit restarts: ten minutes, so that each burst of a regular job finds what
/// the last one learnt, and so that unused keys do not stay for long.
const RESTART_AFTER: u64 = 600 * 1_000_000_000;

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

/// One report.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) outcome: Outcome,
    /// The time since the grant. `None` where the grant and the report were not read from one clock.
    pub(crate) rtt_nanos: Option<u64>,
    pub(crate) cost: u64,
    /// Units in flight at the report, those of its permit included.
    pub(crate) in_flight: u64,
    pub(crate) fence: u64,
    /// The fence of the latest grant.
    pub(crate) latest_fence: u64,
}

/// The state is in floats, because the rules are heuristics: nothing is promised of the limit but its bounds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct AdaptState {
    /// The limit that the rule has found; finite, within the bounds.
    estimate: f64,
    /// Units that may be in flight: the estimate, or less during a probe.
    limit: u64,
    /// The initial limit.
    initial: u64,
    /// Permits up to this fence were granted before the last cut or probe, and their reports say nothing about the limit since.
    skip: u64,
    /// Units whose reports are skipped before the first round of a probe.
    settling: u64,
    probing: bool,
    /// Since the last probe.
    rounds: u32,
    /// The number of probes in the mean of the baseline, up to [`PROBES_AVERAGED`].
    probes: u32,
    /// Nanoseconds; `None` before the first round, whose mean serves until the first probe.
    baseline: Option<f64>,
    round: Round,
    /// When the latest report came. A reset limit has had none.
    reported_at: Moment,
}

/// The present round so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Round {
    reports: u64,
    units: u64,
    rtt_sum: f64,
    peak: u64,
}

impl AdaptState {
    /// Units that may be in flight.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }
}

impl Adapt {
    /// The reset state: `limit`, or the nearest within the bounds.
    pub(crate) fn initial(&self, limit: u64) -> AdaptState {
        let limit = self.bounded(limit);
        AdaptState {
            estimate: limit as f64,
            limit,
            initial: limit,
            ..AdaptState::default()
        }
    }

    /// When the state is reset, if nothing is in flight and nothing is reported until then.
    pub(crate) fn reset_at(&self, state: &AdaptState, now: Moment) -> Moment {
        if *state == self.initial(state.initial) {
            now
        } else {
            state.reported_at.plus(RESTART_AFTER)
        }
    }

    /// The state at `now`, while nothing is in flight.
    pub(crate) fn while_idle(&self, state: AdaptState, now: Moment) -> AdaptState {
        if self.reset_at(&state, now) <= now {
            self.initial(state.initial)
        } else {
            state
        }
    }

    /// The state after one report.
    pub(crate) fn update(&self, state: AdaptState, now: Moment, sample: Sample) -> AdaptState {
        let late = |rtt_nanos: u64| {
            self.timeout
                .is_some_and(|timeout| u128::from(rtt_nanos) > timeout.as_nanos())
        };
        let next = match (sample.outcome, sample.rtt_nanos) {
            (Outcome::Ignored, _) | (Outcome::Ok, None) => return state,
            _ if sample.fence <= state.skip => return state,
            (Outcome::Ok, Some(rtt_nanos)) if !late(rtt_nanos) => match self.rule {
                AdaptRule::Aimd => self.increase(state, sample),
                AdaptRule::Gradient {
                    tolerance,
                    smoothing,
                } => {
                    let tolerance = f64::from(tolerance.clamp(1_000, 1_000_000)) / 1e3;
                    self.step(
                        state,
                        sample,
                        rtt_nanos,
                        tolerance,
                        f64::from(smoothing.min(1_000)) / 1e3,
                    )
                }
            },
            (Outcome::Ok | Outcome::Overloaded, _) => {
                let left = (state.estimate * f64::from(self.backoff.min(999)) / 1e3)
                    .min(state.estimate - 1.0);
                restart(
                    self.with_estimate(
                        AdaptState {
                            probing: false,
                            ..state
                        },
                        left,
                    ),
                    sample,
                )
            }
        };
        if next == self.initial(state.initial) {
            next
        } else {
            AdaptState {
                reported_at: now,
                ..next
            }
        }
    }

    /// One more for a round, in parts for each unit of it.
    fn increase(&self, state: AdaptState, sample: Sample) -> AdaptState {
        if sample.in_flight < state.limit.div_ceil(2) {
            return state;
        }
        self.with_estimate(
            state,
            state.estimate + (sample.cost as f64 / state.estimate).min(1.0),
        )
    }

    /// A report under the gradient rule: at the end of a round, a step.
    fn step(
        &self,
        state: AdaptState,
        sample: Sample,
        rtt_nanos: u64,
        tolerance: f64,
        smoothing: f64,
    ) -> AdaptState {
        if state.settling > 0 {
            return AdaptState {
                settling: state.settling.saturating_sub(sample.cost),
                ..state
            };
        }
        let longest = state
            .baseline
            .map_or(f64::INFINITY, |baseline| OUTLIER * baseline);
        let round = Round {
            reports: state.round.reports + 1,
            units: state.round.units.saturating_add(sample.cost),
            rtt_sum: state.round.rtt_sum + (rtt_nanos.max(1) as f64).min(longest),
            peak: state.round.peak.max(sample.in_flight),
        };
        if round.units < state.limit || round.reports < ROUND_MIN {
            return AdaptState { round, ..state };
        }
        let mean = round.rtt_sum / round.reports as f64;
        let state = AdaptState {
            round: Round::default(),
            ..state
        };
        let baseline = state.baseline.unwrap_or(mean);

        let low_load = round.peak < state.limit.div_ceil(2);
        if state.probing || low_load {
            let probes = (state.probes + 1).min(PROBES_AVERAGED);
            let baseline = Some(baseline + (mean - baseline) / f64::from(probes));
            let learnt = AdaptState {
                baseline,
                probes,
                probing: false,
                rounds: 0,
                ..state
            };
            return if state.probing {
                restart(self.with_estimate(learnt, state.estimate), sample)
            } else {
                learnt
            };
        }
        let gradient = (tolerance * baseline / mean).clamp(GRADIENT_MIN, 1.0);
        let aim = state.estimate * gradient + state.estimate.sqrt();
        let state = AdaptState {
            baseline: Some(baseline),
            rounds: state.rounds + 1,
            ..state
        };
        let state = self.with_estimate(state, state.estimate + (aim - state.estimate) * smoothing);
        if state.rounds < PROBE_EVERY {
            state
        } else {
            self.probe(state, sample, tolerance)
        }
    }

    /// Lowers the limit below the knee: the estimate settles at little more than `tolerance` times the knee.
    fn probe(&self, state: AdaptState, sample: Sample, tolerance: f64) -> AdaptState {
        let limit = self.bounded((state.estimate / (2.0 * tolerance)) as u64);
        // Where round trips vary, the first to report are the short ones. After two rounds, e⁻² of the bias is left when the
        // times are exponential.
        AdaptState {
            settling: limit.saturating_mul(2),
            ..restart(
                AdaptState {
                    limit,
                    probing: true,
                    rounds: 0,
                    ..state
                },
                sample,
            )
        }
    }

    /// The state with another estimate, which is the limit too.
    fn with_estimate(&self, state: AdaptState, estimate: f64) -> AdaptState {
        let estimate = estimate.clamp(self.bounded(0) as f64, self.bounded(u64::MAX) as f64);
        AdaptState {
            estimate,
            limit: self.bounded(estimate as u64),
            ..state
        }
    }

    /// At least 1, and the floor when it lies above the ceiling.
    fn bounded(&self, limit: u64) -> u64 {
        limit.min(self.ceiling).max(self.floor).max(1)
    }
}

/// Begins a round with the grants from now on.
fn restart(state: AdaptState, sample: Sample) -> AdaptState {
    AdaptState {
        skip: sample.latest_fence,
        settling: 0,
        round: Round::default(),
        ..state
    }
}
