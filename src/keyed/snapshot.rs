//! The numbers of one key, at one instant.

use std::sync::Arc;
use std::time::Duration;

use super::idle_state::IdleState;
use crate::core::suspension::AllKeysHold;
use crate::decision::Decision;
use crate::manager::Manager;
use crate::strategy::Moment;

/// The numbers of one key at one instant. See [`KeyedLimiter::snapshot`](crate::KeyedLimiter::snapshot) for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeySnapshot {
    /// The usage in units, debts included: the highest usage of any limit. For a [`Penalty`](crate::Penalty), its counter, or at
    /// least its threshold while the key is banned.
    pub used: u64,
    /// The capacity of its tightest limit.
    pub limit: u64,
    /// The units that would be granted now.
    pub remaining: u64,
    /// How long until a unit would be granted, if no other request comes. `None` when one would be granted now, or when only a
    /// release helps.
    pub retry_after: Option<Duration>,
    /// How long until the key is reset, apart from permits in flight.
    pub reset_after: Duration,
    /// Units in flight.
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

    pub(super) fn of_idle(
        key_state: &IdleState<'_>,
        hold: Option<AllKeysHold>,
        now: Moment,
    ) -> Self {
        Self::new(key_state.used(now), &key_state.decide(hold, now, 1), 0, 0)
    }

    pub(super) fn of_active(manager: &Arc<Manager>) -> Self {
        manager.ask(|outlook, now| {
            let totals = outlook.totals();
            let used = outlook.limits().used(now);
            Self::new(
                used,
                &outlook.check_one(now),
                totals.in_flight,
                totals.queued,
            )
        })
    }
}
