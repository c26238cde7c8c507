//! Many processes on one key of a store, in virtual time. It is for `examples/simulation`, and no part of the public API.

use std::time::Duration;

use crate::core::schedule::simulation as pure;
use crate::core::session::PrefetchOptions;
use crate::error::ConfigError;
use crate::policy::Policy;

/// What is simulated: four callers in each process, each of which asks for one unit after the other.
#[derive(Debug, Clone)]
pub struct Setting {
    /// The policy. It must count the plain cost, or requests.
    pub policy: Policy,
    /// The number of processes.
    pub processes: usize,
    /// As [`prefetch`](crate::SharedLimiterBuilder::prefetch). Not for places.
    pub prefetch: Option<(u64, Duration)>,
    /// Whether two of a hundred messages are lost, every fifth process dies, every seventh is cut off for a part of each second,
    /// and some callers give up.
    pub faults: bool,
    /// Whether one in ten processes fails: half of these die, and the others stand still for three of every six seconds.
    pub failing: bool,
    /// How long the simulation runs, in virtual time.
    pub length: Duration,
    /// Runs with the same seed are the same.
    pub seed: u64,
}

/// The result of a simulation.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// When the store granted what was used, since the start, in order.
    pub grants: Vec<Duration>,
    /// The number of grants to each process that does not [fail](Setting::failing).
    pub of_each: Vec<u64>,
    /// The number of calls to the store.
    pub calls: u64,
    /// The most places that were held at the same time.
    pub most_places: u64,
}

/// Runs the simulation, and passes the time of each event to `tell`.
///
/// # Errors
///
/// Those of [`Limiter::new`](crate::Limiter::new).
///
/// # Panics
///
/// If the policy does not admit a request of one unit.
pub fn run(setting: &Setting, mut tell: impl FnMut(Duration)) -> Result<Outcome, ConfigError> {
    let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let mut simulation = pure::Simulation::new(pure::Setting {
        policy: setting.policy.clone(),
        processes: setting.processes,
        callers: 4,
        lost: if setting.faults { 20 } else { 0 },
        faults: setting.faults,
        failing: setting.failing,
        prefetch: setting.prefetch.map(|(max, kept_for)| PrefetchOptions {
            max,
            kept_for: nanos(kept_for).max(1),
        }),
        until: nanos(setting.length),
        seed: setting.seed,
    })?;
    simulation.run(|at| tell(Duration::from_nanos(at)));
    simulation.grants.sort_unstable();
    Ok(Outcome {
        grants: simulation
            .grants
            .iter()
            .copied()
            .map(Duration::from_nanos)
            .collect(),
        of_each: simulation.granted_of_each().collect(),
        calls: simulation.calls,
        most_places: simulation.most_places,
    })
}
