//! The rules: the state of an adaptive limit, and how a report changes it.

use super::{Adapt, AdaptRule, Outcome};
use crate::strategy::Moment;

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
    pub(super) estimate: f64,
    /// Units that may be in flight: the estimate, or less during a probe.
    limit: u64,
    /// The initial limit.
    initial: u64,
    /// Permits up to this fence were granted before the last cut or probe, and their reports say nothing about the limit since.
    pub(super) skip: u64,
    /// Units whose reports are skipped before the first round of a probe.
    settling: u64,
    probing: bool,
    /// Since the last probe.
    rounds: u32,
    /// The number of probes in the mean of the baseline, up to [`PROBES_AVERAGED`].
    probes: u32,
    /// Nanoseconds; `None` before the first round, whose mean serves until the first probe.
    pub(super) baseline: Option<f64>,
    pub(super) round: Round,
    /// When the latest report came. A reset limit has had none.
    reported_at: Moment,
}

/// The present round so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Round {
    reports: u64,
    units: u64,
    pub(super) rtt_sum: f64,
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
