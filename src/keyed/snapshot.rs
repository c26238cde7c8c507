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
    /// Units that stand against it, debts and all: the most of any of its limits. The counter of a [`Penalty`](crate::Penalty), or
    /// at least its threshold while it is banned.
    pub used: u64,
    /// The units that its binding limit admits at once.
    pub limit: u64,
    /// The units that it would be granted now.
    pub remaining: u64,
    /// How long until it is granted a unit, if nobody else comes: `None` when it would be now, or when that takes a release.
    pub retry_after: Option<Duration>,
    /// How long until it is as good as new, what is out aside.
    pub reset_after: Duration,
    /// Units out that must come back.
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
