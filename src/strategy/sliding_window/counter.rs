//! The rule of a sliding window with two counters.

use super::super::usage::{carried_age, quotient};
use super::super::{Moment, Ratio, StateWords, Strategy, Usage};

#[cfg(test)]
mod tests;

/// The parameters of a [`SlidingWindow::counter`](super::SlidingWindow::counter), checked: the limit is at most [`u32::MAX`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct CounterRule {
    pub(crate) limit: u64,
    /// Nanoseconds.
    pub(crate) period: u64,
}

/// The units of the latest window with a charge and of the one before it. The other windows lie whole periods from it: the grid
/// starts at [`Moment::START`] and moves only in [`CounterRule::take_over`]. A debt beyond [`u32::MAX`] is cut off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CounterState {
    /// When the latest window with a charge started.
    starts: Moment,
    current: u32,
    previous: u32,
}

impl CounterState {
    fn plus(self, cost: u64) -> Self {
        Self {
            current: self
                .current
                .saturating_add(u32::try_from(cost).unwrap_or(u32::MAX)),
            ..self
        }
    }
}

impl CounterRule {
    /// The state of the window at `now`.
    #[inline(always)]
    fn rolled(&self, state: CounterState, now: Moment) -> CounterState {
        let passed = now.since(state.starts);
        if passed < self.period {
            return state;
        }
        let elapsed = passed % self.period;
        let previous = if passed - elapsed == self.period {
            state.current
        } else {
            0
        };
        CounterState {
            starts: now.minus(elapsed),
            current: 0,
            previous,
        }
    }

    /// The state of the window after that of `state`.
    fn next(&self, state: CounterState) -> CounterState {
        CounterState {
            starts: state.starts.plus(self.period),
            current: 0,
            previous: state.current,
        }
    }

    /// The usage, in units times nanoseconds.
    #[inline(always)]
    fn weight(&self, rolled: CounterState, now: Moment) -> u128 {
        self.previous_weight(rolled, now) + u128::from(rolled.current) * u128::from(self.period)
    }

    #[inline(always)]
    fn previous_weight(&self, rolled: CounterState, now: Moment) -> u128 {
        let to_go = self.period.saturating_sub(now.since(rolled.starts));
        u128::from(rolled.previous) * u128::from(to_go)
    }

    /// Whether the units of the previous window that still weigh fit beside the present ones and `cost`.
    #[inline(always)]
    fn has_room(&self, rolled: CounterState, now: Moment, cost: u64) -> bool {
        let left = self
            .limit
            .checked_sub(rolled.current.into())
            .and_then(|left| left.checked_sub(cost));
        left.is_some_and(|left| {
            self.previous_weight(rolled, now) <= u128::from(left) * u128::from(self.period)
        })
    }

    /// How far into the window of `rolled` there is room for `cost`, its end included. `None`: not in this window.
    fn elapsed(&self, rolled: CounterState, cost: u64) -> Option<u64> {
        let units = self
            .limit
            .checked_sub(rolled.current.into())?
            .checked_sub(cost)?;
        let room = u128::from(units) * u128::from(self.period);
        // The longest part of the previous window that may weigh; rounded down, for an instant rounded up.
        let to_go = if rolled.previous == 0 {
            u64::MAX
        } else {
            quotient(room, rolled.previous.into())
        };
        Some(self.period.saturating_sub(to_go))
    }

    /// The first instant with room. The weight only falls while nothing is granted, across windows too.
    fn first(&self, rolled: CounterState, now: Moment, cost: u64) -> Moment {
        let next = self.next(rolled);
        [rolled, next]
            .into_iter()
            .find_map(|state| Some(state.starts.plus(self.elapsed(state, cost)?)))
            .unwrap_or_else(|| self.next(next).starts)
            .max(now)
    }
}

impl Strategy for CounterRule {
    type State = CounterState;

    #[inline(always)]
    fn decide(&self, state: CounterState, now: Moment, cost: u64) -> Result<CounterState, Moment> {
        let rolled = self.rolled(state, now);
        if self.has_room(rolled, now, cost) {
            Ok(rolled.plus(cost))
        } else {
            Err(self.first(rolled, now, cost))
        }
    }

    fn charge(&self, state: CounterState, now: Moment, cost: u64) -> CounterState {
        self.rolled(state, now).plus(cost)
    }

    fn ready_at(&self, state: CounterState, now: Moment, ahead: u64, cost: u64) -> Moment {
        let rolled = self.rolled(state, now);
        let alone = self.first(rolled, now, cost);
        // No window of the grid holds more than the limit, whatever the one before it holds.
        let here = self.limit.saturating_sub(rolled.current.into());
        let beyond = (u128::from(ahead) + u128::from(cost)).saturating_sub(here.into());
        let windows = u64::try_from(beyond.div_ceil(self.limit.max(1).into())).unwrap_or(u64::MAX);
        alone.max(rolled.starts.plus(windows.saturating_mul(self.period)))
    }

    fn remaining(&self, state: CounterState, now: Moment) -> u64 {
        let whole = u128::from(self.limit) * u128::from(self.period);
        let room = whole.saturating_sub(self.weight(self.rolled(state, now), now));
        quotient(room, self.period)
    }

    fn usage(&self, state: CounterState, now: Moment) -> Usage {
        Usage {
            parts: self.weight(self.rolled(state, now), now),
            parts_per_unit: self.period,
        }
    }

    /// The latest units first.
    fn forgive(&self, state: CounterState, now: Moment, cost: u64) -> CounterState {
        let rolled = self.rolled(state, now);
        let cost = u32::try_from(cost).unwrap_or(u32::MAX);
        let current = rolled.current.saturating_sub(cost);
        let left = cost - (rolled.current - current);
        CounterState {
            current,
            previous: rolled.previous.saturating_sub(left),
            ..rolled
        }
    }

    fn reset_at(&self, state: CounterState, now: Moment) -> Moment {
        match self.rolled(state, now) {
            CounterState {
                current: 0,
                previous: 0,
                ..
            } => now,
            CounterState {
                starts, current: 0, ..
            } => starts.plus(self.period),
            CounterState { starts, .. } => starts.plus(self.period).plus(self.period),
        }
    }

    /// Only while the window of the grant still counts. Exact: as if the grant had never been made.
    fn refund(&self, state: CounterState, _now: Moment, at: Moment, cost: u64) -> CounterState {
        let cost = u32::try_from(cost).unwrap_or(u32::MAX);
        if at >= state.starts {
            CounterState {
                current: state.current.saturating_sub(cost),
                ..state
            }
        } else if state.starts.since(at) <= self.period {
            CounterState {
                previous: state.previous.saturating_sub(cost),
                ..state
            }
        } else {
            state
        }
    }

    /// The state that takes over both counts of a counter of other parameters. The present window stays as old as [`carried_age`]
    /// says, and so the grid moves.
    ///
    /// Call the elapsed part of the window its phase: the previous count weighs `1 − phase`. The phase never rises here, so the
    /// usage is never less than in the old counter. The bound of the docs holds across any number of changes, with the shortest
    /// of the periods as `period`. In a span that is shorter than that, no whole window passes, because the phase rises by at most
    /// `dt / period`. So the grants of the span lie in one window, which holds `limit` units at most, or in two. If they lie in
    /// two, with `a` units in the first window and `b` in the second, the last grant required `a × (1 − phase) + b ≤ limit`. As
    /// `a ≤ limit`, that is `a + b ≤ limit × (1 + phase)`, and the phase, which was 0 within the span, is at most `t / period`.
    fn take_over(
        &self,
        now: Moment,
        former: &Self,
        state: CounterState,
        ratio: Ratio,
    ) -> CounterState {
        let rolled = former.rolled(state, now);
        let age = carried_age(now.since(rolled.starts), former.period, self.period);
        let of = |units: u32| {
            u32::try_from(ratio.of_whole(Usage::of_units(units.into()))).unwrap_or(u32::MAX)
        };
        CounterState {
            starts: now.minus(age),
            current: of(rolled.current),
            previous: of(rolled.previous),
        }
    }
}

impl From<StateWords> for CounterState {
    fn from([starts, units]: StateWords) -> Self {
        Self {
            starts: Moment::from_nanos(starts),
            current: units as u32,
            previous: (units >> 32) as u32,
        }
    }
}

impl From<CounterState> for StateWords {
    fn from(
        CounterState {
            starts,
            current,
            previous,
        }: CounterState,
    ) -> Self {
        [
            starts.nanos(),
            u64::from(previous) << 32 | u64::from(current),
        ]
    }
}
