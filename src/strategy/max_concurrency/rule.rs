//! The rule of a concurrency.

use super::super::{Moment, StateWords, Strategy, Usage};

/// The parameters of a [`MaxConcurrency`](super::MaxConcurrency), checked. The TTL is not among them: leases are not part of the state.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConcurrencyRule {
    pub(crate) limit: u64,
}

/// The units in flight.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ConcurrencyState {
    pub(crate) in_use: u64,
}

impl From<StateWords> for ConcurrencyState {
    fn from([in_use, _]: StateWords) -> Self {
        Self { in_use }
    }
}

impl From<ConcurrencyState> for StateWords {
    fn from(ConcurrencyState { in_use }: ConcurrencyState) -> Self {
        [in_use, 0]
    }
}

impl ConcurrencyState {
    /// The state after `cost` units were released, refunded or reclaimed.
    pub(crate) fn release(self, cost: u64) -> Self {
        debug_assert!(
            self.in_use >= cost,
            "{cost} units came back, {} were out",
            self.in_use
        );
        Self {
            in_use: self.in_use.saturating_sub(cost),
        }
    }
}

impl Strategy for ConcurrencyRule {
    type State = ConcurrencyState;

    fn initial(&self, _now: Moment) -> ConcurrencyState {
        ConcurrencyState::default()
    }

    fn charge(&self, state: ConcurrencyState, _now: Moment, cost: u64) -> ConcurrencyState {
        ConcurrencyState {
            in_use: state.in_use.saturating_add(cost),
        }
    }

    fn decide(
        &self,
        state: ConcurrencyState,
        _now: Moment,
        cost: u64,
    ) -> Result<ConcurrencyState, Moment> {
        match state.in_use.checked_add(cost) {
            Some(in_use) if in_use <= self.limit => Ok(ConcurrencyState { in_use }),
            _ => Err(Moment::NEVER),
        }
    }

    fn ready_at(&self, _state: ConcurrencyState, now: Moment, _ahead: u64, _cost: u64) -> Moment {
        now
    }

    fn remaining(&self, state: ConcurrencyState, _now: Moment) -> u64 {
        self.limit.saturating_sub(state.in_use)
    }

    fn usage(&self, state: ConcurrencyState, _now: Moment) -> Usage {
        Usage::of_units(state.in_use)
    }

    fn reset_at(&self, _state: ConcurrencyState, now: Moment) -> Moment {
        now
    }

    fn forgive(&self, state: ConcurrencyState, _now: Moment, _cost: u64) -> ConcurrencyState {
        state // units in flight stay in flight
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_limit_and_cost_do_not_overflow() {
        let rule = ConcurrencyRule { limit: u64::MAX };
        let Ok(state) = rule.decide(ConcurrencyState::default(), Moment::START, u64::MAX) else {
            panic!()
        };
        assert_eq!(rule.decide(state, Moment::START, 1), Err(Moment::NEVER));
        assert_eq!(rule.remaining(state.release(3), Moment::START), 3);
    }
}
