//! The limit `FixedWindow`.

use std::time::Duration;

use super::counts::counts;
use super::description::{Fault, not_zero, span};
use super::usage::{carried_age, quotient};
use super::{
    Counts, Describe, Description, Guards, Moment, Ratio, Slope, StateWords, Strategy, Usage,
};
use crate::rate::Rate;

/// At most `limit` units in each window. A released permit gives nothing back.
///
/// ```text
/// limit 3, Creation    |xxx      |x  xx    |  xxx    |       windows from the limiter's creation
/// FirstGrant           |   xxx      |    x  xx     |         a window opens with the first grant after the last one ended
/// WallClock            |..|xxx      |x  xx    |              windows on multiples of the period since 1970-01-01T00:00:00 UTC
/// ```
///
/// Worst burst: **twice** the limit around a boundary, as with every fixed window: `limit` units at the end of one window and
/// `limit` at the start of the next. If that is too much, use a [`SlidingWindow`](crate::SlidingWindow), or a
/// [`Throttle`](crate::Throttle) with a burst, which admits at most `burst + t / interval` in any span of length `t`.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{FixedWindow, Limiter};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(FixedWindow::new(5, Duration::from_secs(1)))?;
/// let start = tokio::time::Instant::now();
/// for _ in 0..10 {
///     let _permit = limiter.acquire().await?; // five now and five in the next window
/// }
/// assert_eq!(start.elapsed(), Duration::from_secs(1));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use]
pub struct FixedWindow {
    pub(crate) limit: u64,
    pub(crate) period: Duration,
    pub(crate) align: Align,
    pub(crate) counts: Counts,
}

counts!(FixedWindow);

per_period!(FixedWindow, of_rate, "At most `units` in each window of");

impl FixedWindow {
    const fn of_rate(rate: Rate) -> Self {
        Self::new(rate.units(), rate.period())
    }

    /// At most `limit` units (at least 1) in each window of `period` (1 ns to 100 years; both checked when a limiter is built).
    /// The limit is also the largest cost of one request. By default windows start with the limiter: see [`FixedWindow::align`].
    ///
    /// See the [type's example](FixedWindow#examples).
    pub const fn new(limit: u64, period: Duration) -> Self {
        Self {
            limit,
            period,
            align: Align::Creation,
            counts: Counts::Cost,
        }
    }

    /// Where windows start.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tollgate::{Align, FixedWindow, Limiter};
    ///
    /// let per_minute = FixedWindow::new(100, Duration::from_secs(60)).align(Align::WallClock);
    /// assert!(Limiter::new(per_minute)?.try_acquire().is_ok());
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub const fn align(self, align: Align) -> Self {
        Self { align, ..self }
    }
}

getters!(FixedWindow {
    /// The limit, in units.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tollgate::{Align, FixedWindow};
    ///
    /// let window = FixedWindow::new(100, Duration::from_secs(60)).align(Align::WallClock);
    /// assert_eq!((window.get_limit(), window.get_period()), (100, Duration::from_secs(60)));
    /// assert_eq!(window.get_align(), Align::WallClock);
    /// assert_eq!(window.to_string(), "window 100/min wall clock");
    /// ```
    pub get_limit: limit -> u64,

    /// The length of a window. See [`FixedWindow::get_limit`].
    pub get_period: period -> Duration,

    /// Where windows start. See [`FixedWindow::get_limit`].
    pub get_align: align -> Align,

    pub(crate) capacity: limit -> u64,
});

impl Describe for FixedWindow {
    type Rule = WindowRule;

    fn description(&self) -> Description {
        Description::new("fixed_window", Guards::Quota, "limit")
    }

    fn window(&self, _capacity: u64) -> Option<Duration> {
        Some(self.period)
    }

    #[cfg(test)]
    fn samples() -> &'static [&'static str] {
        &[
            "window 100/min",
            "window 1/ns",
            "window 100/min from first grant",
            "window 100/min wall clock",
            "window 100 bytes/min",
        ]
    }

    fn checked(&self, since_epoch: Duration) -> Result<WindowRule, Fault> {
        let limit = not_zero(self.limit, Fault::ZeroLimit("limit"))?;
        let period = span("period", self.period)?;
        let phase = match self.align {
            Align::Creation => Some(0),
            Align::FirstGrant => None,
            Align::WallClock => Some((since_epoch.as_nanos() % u128::from(period)) as u64),
        };
        Ok(WindowRule {
            limit,
            period,
            phase,
        })
    }
}

/// Where the windows of a [`FixedWindow`] start. See [`FixedWindow::align`] for an example.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Align {
    /// On a grid that starts when the limiter is built.
    #[default]
    Creation,
    /// With the first grant after the last window ended.
    FirstGrant,
    /// On multiples of the period since the Unix epoch. Many APIs count their "per minute" like that.
    ///
    /// The system clock is read once, when the limiter is built. Windows are computed from that and never counted by a ticker, so
    /// they do not drift. A later step of the system clock does not move them.
    WallClock,
}

/// The parameters of a [`FixedWindow`], checked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WindowRule {
    pub(crate) limit: u64,
    /// Nanoseconds.
    pub(crate) period: u64,
    /// Nanoseconds from the last grid line to the limiter's creation; `None`: windows open with a grant.
    pub(crate) phase: Option<u64>,
}

/// The latest window with a grant: when it ends, and the units granted in it. Units above the limit are a debt that the next
/// windows start with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct WindowState {
    ends: Moment,
    used: u64,
}

impl WindowRule {
    /// The window that a grant at `now` falls into.
    #[inline(always)]
    fn current(&self, state: WindowState, now: Moment) -> WindowState {
        if now < state.ends {
            state
        } else {
            self.next(state, now)
        }
    }

    fn next(&self, state: WindowState, now: Moment) -> WindowState {
        if state.used > self.limit {
            let passed = now.since(state.ends) / self.period + 1;
            let used = state.used.saturating_sub(self.limit.saturating_mul(passed));
            if used > 0 {
                return WindowState {
                    ends: state.ends.plus(self.period.saturating_mul(passed)),
                    used,
                };
            }
        }
        let into_window = self.phase.map_or(0, |phase| {
            (u128::from(now.nanos()) + u128::from(phase)) % u128::from(self.period)
        });
        WindowState {
            ends: now.plus(self.period - into_window as u64),
            used: 0,
        }
    }

    /// `window` without `cost` of its units. An empty window that a grant has opened is forgotten: the next grant opens another.
    fn lowered(&self, window: WindowState, cost: u64) -> WindowState {
        let used = window.used.saturating_sub(cost);
        if used == 0 && self.phase.is_none() {
            WindowState::default()
        } else {
            WindowState { used, ..window }
        }
    }

    /// When the `units`-th unit after those of `window` can be admitted, if each window is filled.
    fn when(&self, window: WindowState, now: Moment, units: u128) -> Moment {
        let total = u128::from(window.used) + units;
        match quotient(total - 1, self.limit) {
            0 => now,
            windows => window.ends.plus((windows - 1).saturating_mul(self.period)),
        }
    }
}

impl Strategy for WindowRule {
    type State = WindowState;

    fn decide(&self, state: WindowState, now: Moment, cost: u64) -> Result<WindowState, Moment> {
        let window = self.current(state, now);
        if cost <= self.limit.saturating_sub(window.used) {
            Ok(WindowState {
                used: window.used + cost,
                ..window
            })
        } else {
            Err(self.when(window, now, cost.into()))
        }
    }

    fn charge(&self, state: WindowState, now: Moment, cost: u64) -> WindowState {
        if cost == 0 {
            return state; // a cost of 0 opens no window
        }
        let window = self.current(state, now);
        WindowState {
            used: window.used.saturating_add(cost),
            ..window
        }
    }

    fn ready_at(&self, state: WindowState, now: Moment, ahead: u64, cost: u64) -> Moment {
        self.when(
            self.current(state, now),
            now,
            u128::from(ahead) + u128::from(cost),
        )
    }

    fn remaining(&self, state: WindowState, now: Moment) -> u64 {
        self.limit.saturating_sub(self.current(state, now).used)
    }

    fn usage(&self, state: WindowState, now: Moment) -> Usage {
        Usage::of_units(self.current(state, now).used)
    }

    fn reset_at(&self, state: WindowState, now: Moment) -> Moment {
        self.when(self.current(state, now), now, self.limit.into())
    }

    fn forgive(&self, state: WindowState, now: Moment, cost: u64) -> WindowState {
        let window = self.current(state, now);
        self.lowered(window, cost)
    }

    /// Only while the window of the grant is still the latest.
    fn refund(&self, state: WindowState, _now: Moment, at: Moment, cost: u64) -> WindowState {
        if at < state.ends.minus(self.period) || at >= state.ends {
            return state;
        }
        self.lowered(state, cost)
    }

    /// The state that takes over from a window of other parameters. Where both open with a grant, the window stays as old as
    /// [`carried_age`] says.
    fn take_over(
        &self,
        now: Moment,
        former: &Self,
        state: WindowState,
        ratio: Ratio,
    ) -> WindowState {
        let window = former.current(state, now);
        let usage = Usage::of_units(window.used);
        if self.phase.is_some() || former.phase.is_some() || window.used == 0 {
            return self.with_usage(now, usage, ratio);
        }
        let age = carried_age(
            former.period - window.ends.since(now),
            former.period,
            self.period,
        );
        WindowState {
            ends: now.plus(self.period - age),
            used: ratio.of_whole(usage),
        }
    }

    /// The present window as a line; `None` if none is open.
    fn slope(&self, state: WindowState, now: Moment) -> Option<Slope> {
        let holds_for = state
            .ends
            .nanos()
            .checked_sub(now.nanos())?
            .checked_sub(1)?;
        Some(Slope {
            parts_per_nano: 0,
            parts_per_unit: 1,
            tolerance: self.limit,
            used: state.used,
            holds_for,
        })
    }

    /// The state in which this many units of the present window are used.
    fn with_used(&self, state: WindowState, _base: Moment, used: u64) -> WindowState {
        WindowState { used, ..state }
    }
}

impl From<StateWords> for WindowState {
    fn from([ends, used]: StateWords) -> Self {
        Self {
            ends: Moment::from_nanos(ends),
            used,
        }
    }
}

impl From<WindowState> for StateWords {
    fn from(WindowState { ends, used }: WindowState) -> Self {
        [ends.nanos(), used]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Strategy as _; // both globs have a `Strategy`
    use super::*;

    const S: u64 = 1_000_000_000;

    fn at(nanos: u64) -> Moment {
        Moment::from_nanos(nanos)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        /// Invariants 1 and 7, for all three alignments, against a list of every grant.
        #[test]
        fn no_window_holds_more_than_its_limit_and_retry_after_is_exact(
            limit in 1_u64..6, period in 1_u64..500, phase in prop::option::of(0_u64..500),
            steps in prop::collection::vec((0_u64..700, 1_u64..6), 1..60),
        ) {
            let rule = WindowRule { limit, period, phase: phase.map(|phase| phase % period) };
            let (mut state, mut now) = (WindowState::default(), Moment::START);
            let mut windows: Vec<(u64, u64)> = Vec::new(); // naive: (start + period, units)
            for (step, cost) in steps {
                now = now.plus(step);
                let cost = cost.min(limit);
                if let Err(until) = rule.decide(state, now, cost) {
                    prop_assert_eq!(until, rule.ready_at(state, now, 0, cost));
                    prop_assert!(matches!(rule.decide(state, until.minus(1), cost), Err(again) if again == until));
                    now = until;
                }
                let Ok(next) = rule.decide(state, now, cost) else { panic!("denied at its retry-after") };
                state = next;
                let ends = match rule.phase {
                    Some(phase) => ((now.nanos() + phase) / period + 1) * period - phase,
                    None => windows.last().filter(|last| now.nanos() < last.0).map_or(now.nanos() + period, |last| last.0),
                };
                match windows.last_mut().filter(|last| last.0 == ends) {
                    Some(last) => last.1 += cost,
                    None => windows.push((ends, cost)),
                }
                prop_assert!(windows.iter().all(|&(_, units)| units <= limit));
                prop_assert_eq!(rule.remaining(state, now), limit - windows.last().unwrap().1);
            }
        }
    }

    #[test]
    fn a_refund_counts_only_in_its_own_window() {
        let rule = WindowRule {
            limit: 2,
            period: S,
            phase: Some(0),
        };
        let Ok(first) = rule.decide(WindowState::default(), at(1), 2) else {
            panic!()
        };
        assert_eq!(
            rule.remaining(rule.refund(first, at(1), at(1), 2), at(2)),
            2
        );
        let Ok(second) = rule.decide(first, at(S), 2) else {
            panic!()
        };
        assert_eq!(rule.refund(second, at(S), at(1), 2), second);
    }

    #[test]
    fn a_window_whose_first_grant_is_refunded_was_never_opened() {
        let rule = WindowRule {
            limit: 1,
            period: S,
            phase: None,
        };
        let Ok(first) = rule.decide(WindowState::default(), at(5), 1) else {
            panic!()
        };
        let Ok(second) = rule.decide(rule.refund(first, at(5), at(5), 1), at(7), 1) else {
            panic!()
        };
        assert_eq!(rule.decide(second, at(8), 1), Err(at(7 + S)));
    }

    fn granted(rule: &WindowRule, state: WindowState, now: u64, cost: u64) -> WindowState {
        rule.decide(state, at(now), cost).unwrap()
    }

    #[test]
    fn a_reward_takes_units_off_the_present_window() {
        for phase in [None, Some(0)] {
            let rule = WindowRule {
                limit: 5,
                period: S,
                phase,
            };
            let state = granted(&rule, WindowState::default(), 7, 4);
            let left = |now| rule.remaining(rule.forgive(state, at(now), 3), at(now));
            assert_eq!((left(8), left(S + 7)), (4, 5));
        }
    }

    #[test]
    fn a_window_opens_with_the_first_grant_after_a_debt_is_paid() {
        let rule = WindowRule {
            limit: 2,
            period: S,
            phase: None,
        };
        let state = rule.charge(WindowState::default(), at(1), 5);
        assert_eq!(rule.remaining(state, at(2 * S + 1)), 1);
        let state = granted(&rule, state, 3 * S + 8, 2);
        assert_eq!(rule.decide(state, at(3 * S + 9), 1), Err(at(4 * S + 8)));
    }

    #[test]
    fn a_window_that_a_grant_opened_stays_as_old_under_another_policy() {
        let rule = |period, phase| WindowRule {
            limit: 9,
            period,
            phase,
        };
        let (former, ratio) = (rule(S, None), Ratio { new: 9, old: 9 });
        let state = granted(&former, WindowState::default(), 5, 4);
        let now = at(5 + S / 4);
        let taken_over = |new: WindowRule| new.take_over(now, &former, state, ratio);
        let opened = |new: WindowRule, ends| {
            assert_eq!(
                taken_over(new),
                WindowState {
                    ends: at(ends),
                    used: 4
                }
            );
        };
        opened(rule(10 * S, None), 5 + 10 * S); // a quarter of a second old
        opened(rule(S / 10, None), 5 + S / 4 + S / 10 * 3 / 4); // a quarter of its period old
        opened(rule(10 * S, Some(0)), 10 * S);

        let on_a_grid = rule(S, Some(0));
        let state = granted(&on_a_grid, WindowState::default(), 5, 4);
        let taken_over = former.take_over(now, &on_a_grid, state, ratio);
        assert_eq!(taken_over.ends, now.plus(S));
        let unused = former.take_over(now, &former, WindowState::default(), ratio);
        assert_eq!(unused, WindowState::default());
    }

    #[test]
    fn the_largest_parameters_do_not_overflow() {
        let rule = WindowRule {
            limit: u64::MAX,
            period: crate::strategy::MAX_SPAN_NANOS,
            phase: Some(crate::strategy::MAX_SPAN_NANOS - 1),
        };
        let Ok(state) = rule.decide(WindowState::default(), at(3), u64::MAX) else {
            panic!()
        };
        assert_eq!(
            rule.ready_at(state, at(3), u64::MAX, u64::MAX),
            at(3)
                .plus(crate::strategy::MAX_SPAN_NANOS - 2)
                .plus(crate::strategy::MAX_SPAN_NANOS)
        );
    }
}
