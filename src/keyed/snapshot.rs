use std::sync::Arc;
use std::time::Duration;

use super::key_state::KeyState;
use crate::decision::Decision;
use crate::manager::Manager;
use crate::strategy::Moment;

/// The numbers of one key at one instant. See [`KeyedLimiter::snapshot`](crate::KeyedLimiter::snapshot) for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeySnapshot {
    /// The units used, debts included: the most of any of its limits. For a [`Penalty`](crate::Penalty) its counter, or at least its
    /// threshold while the key is banned.
    pub used: u64,
    /// The units that its tightest limit admits at once.
    pub limit: u64,
    /// The units that would be granted now.
    pub remaining: u64,
    /// How long until a unit would be granted, if no other request comes. `None` when one would be granted now, or when that takes a
    /// release.
    pub retry_after: Option<Duration>,
    /// How long until the key is as good as new, apart from places out.
    pub reset_after: Duration,
    /// Units of permits that must be released.
    pub in_flight: u64,
    /// Requests that wait.
    pub queued: u64,
}

impl KeySnapshot {
    fn new(used: u64, decision: &Decision, in_flight: u64, queued: u64) -> Self {
        Self {
            used,
            limit: decision.limit(),
            remaining: decision.remaining(),
            retry_after: decision.retry_after(),
            reset_after: decision.reset_after(),
            in_flight,
            queued,
        }
    }

    pub(super) fn of_idle(key_state: &KeyState<'_>, now: Moment) -> Self {
        Self::new(key_state.used(now), &key_state.decide(now, 1), 0, 0)
    }

    pub(super) fn of_active(manager: &Arc<Manager>) -> Self {
        let numbers = manager.snapshot();
        Self::new(manager.used(), &manager.check(1), numbers.in_flight, numbers.queued)
    }
}
