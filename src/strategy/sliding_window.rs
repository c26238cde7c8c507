//! The limit `SlidingWindow`.

use std::time::Duration;

use super::counts::counts;
use super::description::{Fault, in_range, not_zero, span};
use super::usage::{carried_age, quotient};
use super::{
    Counts, Describe, Description, Guards, LimitReport, LimitRule, Moment, Ratio, StateWords,
    Strategy, Usage,
};

mod grants;
#[cfg(test)]
mod tests;

use grants::FEW;
pub(crate) use grants::Grants;

/// At most `limit` units in the last `period`, at every instant, not only in the windows of a grid.
///
/// ```text
/// limit 3 per 100 ms   |x    xx   .    x    .    xx   .    x       a unit leaves exactly one period after it was granted
///                      0         100       200      300 ms
/// ```
///
/// Only admitted units count. There are two methods:
///
/// | | [`SlidingWindow::log`] | [`SlidingWindow::counter`] |
/// |---|---|---|
/// | state | each grant | two counters |
/// | memory | 16 to 64 bytes for each instant with a grant, up to `limit` of them | 16 bytes |
/// | worst burst in any span of one `period` | `limit` | 2 × `limit` − 1 |
///
/// Use the counter above a limit of about a thousand, and for many keys.
///
/// **The log** is exact: a unit granted at `t` counts before `t + period` and no longer at that instant. Worst burst: `limit`
/// units in one instant, and then none for a period. The retry-after is when enough units have expired.
///
/// For `n` instants with a grant, a grant takes O(1) steps, and a denial or a check O(log n). The memory of expired instants is
/// freed by later grants, each of which frees 512 of them at most, so that no grant takes long. A refund takes up to about
/// 512 + `n` / 512 steps.
///
/// When more than the limit was charged ([`KeyedLimiter::penalize`](crate::KeyedLimiter::penalize),
/// [`Permit::settle`](crate::Permit::settle)), the log keeps no more than `limit` instants (64 at least): the oldest units, which
/// no request can use, expire together. Refunding a permit of these units then gives nothing back.
///
/// **The counter** keeps the units of the present and of the previous window of a grid, and assumes that the units of the
/// previous one came evenly, as [Cloudflare's](https://blog.cloudflare.com/counting-things-a-lot-of-different-things/) does:
///
/// ```text
/// previous × (part of the period that the present window still has to go) + present ≤ limit
/// ```
///
/// The arithmetic is exact, the assumption is not. Grants at the end of the previous window count too little: at worst the whole
/// limit comes in its last nanosecond, and all but one of the limit again during the next period. In any span of length `t` up to
/// a period it admits at most `limit × (1 + t / period)`, as a token bucket does, so never twice the limit. Grants at the start
/// count too much: up to `limit` units are denied that the log would admit. Measured with a limit of 100 and random arrivals
/// (Poisson) at 0.9 to 1.5 times the limit: the estimate is off by 1 to 2.8 % of the limit on average, and the fullest span of one
/// period held 117.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limiter, SlidingWindow};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(SlidingWindow::log(3, Duration::from_millis(100)))?;
/// let _first = limiter.acquire().await?;
/// tokio::time::advance(Duration::from_millis(50)).await;
/// let _two = limiter.acquire_many(2).await?;
/// assert_eq!(limiter.check(1).retry_after(), Some(Duration::from_millis(50))); // the first leaves
/// assert_eq!(limiter.check(2).retry_after(), Some(Duration::from_millis(100))); // and one of the two
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use]
pub struct SlidingWindow {
    pub(crate) limit: u64,
    pub(crate) period: Duration,
    pub(crate) method: SlidingMethod,
    pub(crate) counts: Counts,
}

counts!(SlidingWindow);

impl SlidingWindow {
    /// At most `limit` units (at least 1) in any span of one `period` (1 ns to 100 years; both checked when a limiter is built),
    /// exactly. The limit is also the largest cost of one request.
    ///
    /// See the [type's example](SlidingWindow#examples).
    pub const fn log(limit: u64, period: Duration) -> Self {
        Self {
            limit,
            period,
            method: SlidingMethod::Log,
            counts: Counts::Cost,
        }
    }

    /// About `limit` units (1 to 4,294,967,295) in any span of one `period` (1 ns to 100 years; both checked when a limiter is
    /// built), from two counters. The windows of its grid start with the limiter; a change of the period
    /// [moves them](crate::UsageCarryOver). The limit is also the largest cost of one request.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Limiter, SlidingWindow};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(SlidingWindow::counter(10, Duration::from_secs(1)))?;
    /// let _all = limiter.acquire_many(10).await?;
    /// tokio::time::advance(Duration::from_millis(1_300)).await;
    /// assert_eq!(limiter.check(1).remaining(), 3); // 7 of the 10 still count
    /// # Ok(())
    /// # }
    /// ```
    pub const fn counter(limit: u64, period: Duration) -> Self {
        Self {
            limit,
            period,
            method: SlidingMethod::Counter,
            counts: Counts::Cost,
        }
    }
}

getters!(SlidingWindow {
    /// The limit, in units.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tollgate::{SlidingMethod, SlidingWindow};
    ///
    /// let window = SlidingWindow::log(100, Duration::from_secs(60));
    /// assert_eq!((window.limit(), window.period()), (100, Duration::from_secs(60)));
    /// assert_eq!(window.method(), SlidingMethod::Log);
    /// assert_eq!(window.to_string(), "sliding log 100/min");
    /// ```
    pub limit: limit -> u64,

    /// The period. See [`SlidingWindow::limit`].
    pub period: period -> Duration,

    /// How it counts. See [`SlidingWindow::limit`].
    pub method: method -> SlidingMethod,

    pub(crate) capacity: limit -> u64,
});

impl Describe for SlidingWindow {
    type Rule = LimitRule;

    fn description(&self) -> Description {
        Description::new("sliding_window", Guards::Quota, "limit")
    }

    fn window(&self, _capacity: u64) -> Option<Duration> {
        Some(self.period)
    }

    /// Excludes the second window of a counter, because no client has to wait for it.
    fn until_reset(&self, reset_after: Duration, _capacity: u64) -> Duration {
        reset_after.min(self.period)
    }

    #[cfg(test)]
    fn samples() -> &'static [&'static str] {
        &[
            "sliding log 100/min",
            "sliding log 1/ns",
            "sliding counter 100/min",
            "sliding counter 1/ns",
            "sliding log 100/min per request",
        ]
    }

    fn checked(&self, _since_epoch: Duration) -> Result<LimitRule, Fault> {
        let limit = not_zero(self.limit, Fault::ZeroLimit("limit"))?;
        let period = span("period", self.period)?;
        match self.method {
            SlidingMethod::Log => Ok(LimitRule::Log(LogRule { limit, period })),
            SlidingMethod::Counter => {
                in_range("limit", limit, 1, u32::MAX.into())?;
                Ok(CounterRule { limit, period }.into())
            }
        }
    }
}

/// How a [`SlidingWindow`] counts. The type compares the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SlidingMethod {
    /// Stores each grant: [`SlidingWindow::log`].
    Log,
    /// Two counters and an estimate: [`SlidingWindow::counter`].
    Counter,
}

/// The parameters of a [`SlidingWindow::log`], checked.
///
/// It is not a [`Strategy`], because its state is neither `Copy` nor of a fixed size. Its functions are the
/// same.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogRule {
    pub(crate) limit: u64,
    /// Nanoseconds.
    pub(crate) period: u64,
}

impl LogRule {
    fn leaves(&self, granted: Moment) -> Moment {
        granted.plus(self.period)
    }

    #[inline(always)]
    fn none_left(&self, log: &Grants, now: Moment) -> bool {
        self.leaves(log.first()) > now
    }

    /// `Err`: the instant at which `cost` is admitted if no other request comes; never, if it is above the limit.
    pub(crate) fn decide(&self, log: &Grants, now: Moment, cost: u64) -> Result<(), Moment> {
        let Some(room) = self.limit.checked_sub(cost) else {
            return Err(Moment::NEVER);
        };
        // The entries need not be read if there is room even with the expired ones counted.
        let to_leave = log.used().saturating_sub(room);
        if to_leave == 0 {
            return Ok(());
        }
        let ready = self.left_at(log, now, to_leave);
        if ready <= now { Ok(()) } else { Err(ready) }
    }

    /// When the oldest `units` have expired. `now`, if they have already.
    fn left_at(&self, log: &Grants, now: Moment, units: u64) -> Moment {
        log.granted_at(units)
            .map_or(now, |granted| self.leaves(granted).max(now))
    }

    /// Logs a grant of `cost`, any number of units, whether or not it is admitted.
    pub(crate) fn charge(&self, log: &mut Grants, now: Moment, cost: u64) {
        if !self.none_left(log, now) {
            self.drop_expired(log, now, cost);
        }
        let cost = cost.min(u64::MAX - log.used());
        if cost == 0 {
            return;
        }
        log.push(now, cost);
        if log.used() > self.limit {
            self.join_beyond_limit(log);
        }
    }

    /// Drops expired entries of one chunk and leaves the rest to later calls, which bounds the time of each. It drops more only
    /// where all units, with `cost`, would be more than can be counted.
    fn drop_expired(&self, log: &mut Grants, now: Moment, cost: u64) {
        log.drop_some(now.minus(self.period));
        while log.used().checked_add(cost).is_none() && !self.none_left(log, now) {
            log.drop_some(now.minus(self.period));
        }
    }

    /// Bounds the number of entries by the limit. Where there are more, the entries without the oldest one have at least `limit`
    /// units. So no request is admitted when the oldest entry expires, only when units of the next one do, and the oldest may expire
    /// with the next. An expired entry is never joined: where [`LogRule::charge`] leaves some, it has dropped at least one.
    fn join_beyond_limit(&self, log: &mut Grants) {
        while log.len() as u64 > self.limit.max(FEW as u64) {
            log.join_oldest();
        }
    }

    /// The earliest instant at which `cost` can be admitted when `ahead` units go first: a lower bound, exact for `ahead` = 0.
    ///
    /// Number all units in order of their grants: a unit is admitted when the one `limit` places before it expires. Some of the
    /// units ahead may have to expire themselves, each a period after its grant.
    pub(crate) fn ready_at(&self, log: &Grants, now: Moment, ahead: u64, cost: u64) -> Moment {
        let limit = u128::from(self.limit.max(1));
        let last = (u128::from(ahead) + u128::from(cost)).max(1);
        let rounds = (last - 1) / limit;
        let to_leave = (u128::from(log.used()) + last - rounds * limit).saturating_sub(limit);
        let first = match u64::try_from(to_leave) {
            Ok(0) | Err(_) => now,
            Ok(units) => self.left_at(log, now, units),
        };
        first.plus(
            u64::try_from(rounds)
                .unwrap_or(u64::MAX)
                .saturating_mul(self.period),
        )
    }

    /// The remaining units: as many would be admitted now.
    pub(crate) fn remaining(&self, log: &Grants, now: Moment) -> u64 {
        self.limit.saturating_sub(self.used(log, now))
    }

    /// Units that count now, debts included.
    pub(crate) fn used(&self, log: &Grants, now: Moment) -> u64 {
        // Some units may have expired and are not dropped yet.
        let left = if self.none_left(log, now) {
            0
        } else {
            log.units_until(now.minus(self.period))
        };
        log.used() - left
    }

    /// The usage now.
    pub(crate) fn usage(&self, log: &Grants, now: Moment) -> Usage {
        Usage::of_units(self.used(log, now))
    }

    /// The log that takes over the grants of a log of other parameters, each as old as [`carried_age`] says.
    pub(crate) fn take_over(
        &self,
        now: Moment,
        former: &Self,
        log: &Grants,
        ratio: Ratio,
    ) -> Grants {
        let mut carried = Vec::new();
        // Starts with the latest grant, so that the usage is never less than its share after some units have expired.
        let (mut units, mut used) = (0, 0);
        for (granted, cost) in former.counting(log, now).into_iter().rev() {
            units += cost;
            let before = std::mem::replace(&mut used, ratio.of_whole(Usage::of_units(units)));
            if used > before {
                let age = carried_age(now.since(granted), former.period, self.period);
                carried.push((now.minus(age), used - before));
            }
        }
        let mut log = Grants::default();
        for (granted, units) in carried.into_iter().rev() {
            log.push(granted, units);
        }
        self.join_beyond_limit(&mut log);
        log
    }

    /// The answer to a caller that does not wait, when `ahead` units wait before it.
    pub(crate) fn report(&self, log: &Grants, now: Moment, ahead: u64, cost: u64) -> LimitReport {
        LimitReport {
            denied_until: self.decide(log, now, cost).err(),
            remaining: self.remaining(log, now),
            ready_at: self.ready_at(log, now, ahead, cost),
            reset_at: self.reset_at(log, now),
        }
    }

    /// When the log is empty, if nothing more is admitted.
    pub(crate) fn reset_at(&self, log: &Grants, now: Moment) -> Moment {
        log.last()
            .map_or(now, |granted| self.leaves(granted).max(now))
    }

    /// The grants that count now, oldest first: when, and how many units.
    pub(crate) fn counting(&self, log: &Grants, now: Moment) -> Vec<(Moment, u64)> {
        let mut grants = log.to_vec();
        grants.retain(|(granted, _)| self.leaves(*granted) > now);
        grants
    }
}

/// The parameters of a [`SlidingWindow::counter`], checked: the limit is at most [`u32::MAX`].
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

    /// How far into the window of `rolled` there is room for `cost`. `None`: not in this window.
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
        Some(self.period.saturating_sub(to_go)).filter(|elapsed| *elapsed < self.period)
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
