use std::time::Duration;

#[cfg(test)]
mod tests;

/// Reports that make a round at least, so that one odd round trip is not taken for the server's (Netflix's `WindowedLimit`
/// asks for as many).
const ROUND_MIN: u64 = 10;

/// Rounds of the gradient rule between two looks at the unloaded round trip. A look costs about four rounds at a third of the
/// limit. Measured in the tests: at least 96 % of the server's throughput is left, and a start at four times the knee is mended
/// after 5 s of round trips of 10 ms.
const LOOK_EVERY: u32 = 32;

/// The baseline is the mean of the first looks up to this many, then an exponential average with this one's share: a hiccup
/// during one look moves it by a quarter.
const LOOKS: u32 = 4;

/// The least that the gradient rule takes of the limit in one step, before smoothing (as Netflix does: outliers shed no more).
const GRADIENT_MIN: f64 = 0.5;

/// What the work of a permit met, told by its holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Done. Its round-trip time counts, and the limit may rise.
    Ok,
    /// Turned away or timed out for want of capacity (HTTP 429 or 503, a full queue): the limit falls.
    Overloaded,
    /// Tells nothing of the load (a bad request, a cancelled caller): as if it had never been.
    Ignored,
}

/// How a [`MaxConcurrency`](crate::MaxConcurrency) moves its limit, between a floor and a ceiling, by what the work reports.
///
/// Two rules. Both count in *rounds* of as many reports as the limit, at least 10 in the second: about one round trip when all
/// places are taken, so that each step sees what the last one did, and no clock is needed. Neither raises the limit while less
/// than half of it is used, for then nothing is learnt about more.
///
/// ```text
/// aimd      limit |    /|    /|    /|       a step up each round; at an overload a tenth off, once a round
///                 |  /  |  /  |  /  |
/// gradient  limit |      _____   ____       up until round trips grow longer than tolerated, then level;
///                 |   /       |_|           now and then a look at a third of the limit: how long when unloaded?
/// ```
///
/// They see the queue that this limiter makes at the server. When others fill it, the gradient rule takes the longer round trip
/// for the server's own; only [`Outcome::Overloaded`] and the [timeout](Adapt::timeout) tell then.
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
    /// Additive increase, multiplicative decrease: one more for each round without overload, a tenth less at an overload. It
    /// needs reports of [`Outcome::Overloaded`] or a [timeout](Adapt::timeout), and swings between the limit at which they begin
    /// and nine tenths of it.
    ///
    /// Chiu and Jain (1989, "Analysis of the increase and decrease algorithms for congestion avoidance") show that of the linear
    /// rules this one brings independent clients to a fair share. The numbers are of `AIMDLimit` in Netflix's
    /// concurrency-limits, which differs: it adds one for each *report* and cuts at each overload. That doubles the limit in a
    /// round, and fifty calls turned away at once leave nothing of it; here, as in TCP, each happens once a round.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Adapt, MaxConcurrency};
    ///
    /// let limit = MaxConcurrency::new(10).adapt(Adapt::aimd().timeout(Duration::from_millis(250)));
    /// ```
    #[must_use]
    pub const fn aimd() -> Self {
        Self::new(AdaptRule::Aimd)
    }

    /// Compares each round's mean round-trip time with a baseline, that of the unloaded server: the limit is multiplied by
    /// `tolerance × baseline / mean` (0.5 at least, 1 at most), √limit is added for a queue that probes for more, and the step is
    /// [smoothed](Adapt::smoothing). It finds the server's knee from latency alone and settles above it, at
    /// `tolerance × knee + √limit`: 80 to 95 for a server that works on 50 at once, 50 to 130 when its service times are
    /// exponential (as the tests hold). At [`Outcome::Overloaded`] it backs off as [`Adapt::aimd`] does.
    ///
    /// After `Gradient2Limit` in Netflix's concurrency-limits, with its tolerance and smoothing. Where it differs:
    ///
    /// - The baseline. Netflix's is an average of all round trips, and so follows a queue that stays: a steady overload becomes
    ///   the norm, and the limit drifts up to where the server refuses. Here only rounds at low load count: those in which
    ///   callers used less than half, and each 32nd, for which the limit is lowered to `limit / (2 × tolerance)`, below the knee
    ///   it has found (the idea of BBR's ProbeRTT and of Envoy's minimum-RTT window).
    /// - √limit for a constant 4 (as in Netflix's older `GradientLimit`): 4 are much for a server that bears 2, and few for 1000.
    /// - It steps once a round, not at each report: the round trips of those already out are not held against the new limit.
    /// - Netflix's ignores drops; here they count, for a server that refuses at once has short round trips.
    ///
    /// ```
    /// use tollgate::{Adapt, MaxConcurrency};
    ///
    /// let limit = MaxConcurrency::new(20).adapt(Adapt::gradient().tolerance(1200).between(4, 200));
    /// ```
    #[must_use]
    pub const fn gradient() -> Self {
        Self::new(AdaptRule::Gradient { tolerance: 1_500, smoothing: 200 })
    }

    const fn new(rule: AdaptRule) -> Self {
        Self { rule, floor: 1, ceiling: 1_000, backoff: 900, timeout: None }
    }

    /// The limit stays in `floor..=ceiling` (1 at least; checked when a limiter is built): 1 to 1000 unless told.
    ///
    /// Netflix's defaults are 20 and 200. A floor of 20 is too many for a small server, which then never recovers; with 1,
    /// something always goes through and reports. A ceiling is for what the server must never see, which only you know.
    #[must_use]
    pub const fn between(self, floor: u64, ceiling: u64) -> Self {
        Self { floor, ceiling, ..self }
    }

    /// Per mille of the limit that an overload leaves (1 to 999), and one less at least: 900 unless told.
    #[must_use]
    pub const fn backoff(self, per_mille: u32) -> Self {
        Self { backoff: per_mille, ..self }
    }

    /// A round trip longer than this (1 ns to 100 years) counts as [`Outcome::Overloaded`]; none unless told.
    #[must_use]
    pub const fn timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    /// Per mille of the baseline that a mean round trip may take before the limit falls (1000 to 1,000,000): 1500 unless told.
    /// Less keeps the queue at the server shorter, more bears more jitter. [`Adapt::aimd`] has no use for it.
    #[must_use]
    pub const fn tolerance(self, per_mille: u32) -> Self {
        match self.rule {
            AdaptRule::Aimd => self,
            AdaptRule::Gradient { smoothing, .. } => {
                Self { rule: AdaptRule::Gradient { tolerance: per_mille, smoothing }, ..self }
            }
        }
    }

    /// Per mille of each step that is taken (1 to 1000): 200 unless told. [`Adapt::aimd`] has no use for it.
    #[must_use]
    pub const fn smoothing(self, per_mille: u32) -> Self {
        match self.rule {
            AdaptRule::Aimd => self,
            AdaptRule::Gradient { tolerance, .. } => {
                Self { rule: AdaptRule::Gradient { tolerance, smoothing: per_mille }, ..self }
            }
        }
    }
}

/// One report.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    /// The time since the grant, where it is known.
    pub(crate) rtt_nanos: Option<u64>,
    /// Units out when this one came back, its own included.
    pub(crate) in_flight: u64,
    pub(crate) outcome: Outcome,
}

/// Floats, for this is a heuristic: nothing is promised of the limit but its bounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct AdaptState {
    /// What the rule has found; finite, within the bounds.
    found: f64,
    /// What is offered: less while the gradient rule looks.
    offered: u64,
    /// Reports to pass over: they were out when the limit last changed by much, and tell of before.
    settle: u64,
    looking: bool,
    rounds: u32,
    /// Looks that the baseline is the mean of, up to [`LOOKS`].
    looks: u32,
    /// Nanoseconds; `None` before the first round, whose mean serves until the first look.
    baseline: Option<f64>,
    round: Round,
}

/// The round so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Round {
    count: u64,
    rtt_sum: f64,
    peak: u64,
}

impl Adapt {
    /// Whether every number is in its documented range. Out of it, nothing below panics or leaves the bounds.
    pub(crate) const fn is_valid(&self) -> bool {
        let rule = match self.rule {
            AdaptRule::Aimd => true,
            AdaptRule::Gradient { tolerance, smoothing } => {
                1_000 <= tolerance && tolerance <= 1_000_000 && 1 <= smoothing && smoothing <= 1_000
            }
        };
        rule && 1 <= self.floor && self.floor <= self.ceiling && 1 <= self.backoff && self.backoff <= 999
    }

    /// The state when new: `limit`, or the nearest within the bounds.
    pub(crate) fn initial(&self, limit: u64) -> AdaptState {
        let offered = self.bounded(limit);
        AdaptState {
            found: offered as f64,
            offered,
            settle: 0,
            looking: false,
            rounds: 0,
            looks: 0,
            baseline: None,
            round: Round::default(),
        }
    }

    /// Units that may be out now.
    pub(crate) fn limit(state: &AdaptState) -> u64 {
        state.offered
    }

    /// The state after one report.
    pub(crate) fn update(&self, state: AdaptState, sample: Sample) -> AdaptState {
        let late = |rtt_nanos: u64| self.timeout.is_some_and(|timeout| u128::from(rtt_nanos) > timeout.as_nanos());
        let rtt_nanos = match (sample.outcome, sample.rtt_nanos) {
            (Outcome::Ignored, _) | (Outcome::Ok, None) => return state,
            (Outcome::Ok, Some(rtt_nanos)) => rtt_nanos,
            (Outcome::Overloaded, rtt_nanos) => rtt_nanos.unwrap_or(0),
        };
        match sample.outcome {
            Outcome::Ignored => state,
            Outcome::Ok | Outcome::Overloaded if state.settle > 0 => AdaptState { settle: state.settle - 1, ..state },
            Outcome::Ok if !late(rtt_nanos) => match self.rule {
                AdaptRule::Aimd => self.increase(state, sample),
                AdaptRule::Gradient { tolerance, smoothing } => {
                    let tolerance = f64::from(tolerance.clamp(1_000, 1_000_000)) / 1e3;
                    self.follow(state, sample, rtt_nanos, tolerance, f64::from(smoothing.min(1_000)) / 1e3)
                }
            },
            Outcome::Ok | Outcome::Overloaded => {
                let left = (state.found * f64::from(self.backoff.min(999)) / 1e3).min(state.found - 1.0);
                self.anew(self.found(AdaptState { looking: false, ..state }, left), sample)
            }
        }
    }

    /// One more for a round, in parts for each report of it.
    fn increase(&self, state: AdaptState, sample: Sample) -> AdaptState {
        if sample.in_flight < state.offered.div_ceil(2) {
            return state;
        }
        self.found(state, state.found + 1.0 / state.found)
    }

    /// A report of the gradient rule: at the end of a round, a step.
    fn follow(&self, state: AdaptState, sample: Sample, rtt_nanos: u64, tolerance: f64, smoothing: f64) -> AdaptState {
        let round = Round {
            count: state.round.count + 1,
            rtt_sum: state.round.rtt_sum + rtt_nanos.max(1) as f64,
            peak: state.round.peak.max(sample.in_flight),
        };
        if round.count < state.offered.max(ROUND_MIN) {
            return AdaptState { round, ..state };
        }
        let mean = round.rtt_sum / round.count as f64;
        let state = AdaptState { round: Round::default(), ..state };
        let baseline = state.baseline.unwrap_or(mean);

        let idle = round.peak < state.offered.div_ceil(2);
        if state.looking || idle {
            let looks = (state.looks + 1).min(LOOKS);
            let baseline = Some(baseline + (mean - baseline) / f64::from(looks));
            let learnt = AdaptState { baseline, looks, looking: false, rounds: 0, ..state };
            return if state.looking { self.anew(self.found(learnt, state.found), sample) } else { learnt };
        }
        let gradient = (tolerance * baseline / mean).clamp(GRADIENT_MIN, 1.0);
        let aim = state.found * gradient + state.found.sqrt();
        let state = AdaptState { baseline: Some(baseline), rounds: state.rounds + 1, ..state };
        let state = self.found(state, state.found + (aim - state.found) * smoothing);
        if state.rounds < LOOK_EVERY { state } else { self.look(state, sample, tolerance) }
    }

    /// Offers less than the knee: the limit settles at little more than `tolerance` times it.
    fn look(&self, state: AdaptState, sample: Sample, tolerance: f64) -> AdaptState {
        let offered = self.bounded((state.found / (2.0 * tolerance)) as u64);
        let state = self.anew(AdaptState { offered, looking: true, rounds: 0, ..state }, sample);
        // Where round trips vary, some of those out before the look come back after many of its own, and they are the long ones.
        // After two rounds more, e⁻² of them are left when the times are exponential.
        AdaptState { settle: state.settle.saturating_add(offered.saturating_mul(2)), ..state }
    }

    /// The state with another limit found, and offered.
    fn found(&self, state: AdaptState, limit: f64) -> AdaptState {
        let found = limit.clamp(self.bounded(0) as f64, self.bounded(u64::MAX) as f64);
        AdaptState { found, offered: self.bounded(found as u64), ..state }
    }

    /// Begins a round with what is granted from now on.
    fn anew(&self, state: AdaptState, sample: Sample) -> AdaptState {
        AdaptState { settle: sample.in_flight.min(self.bounded(u64::MAX)).saturating_sub(1), round: Round::default(), ..state }
    }

    /// At least 1, and the floor when it lies above the ceiling.
    fn bounded(&self, limit: u64) -> u64 {
        limit.min(self.ceiling).max(self.floor).max(1)
    }
}
