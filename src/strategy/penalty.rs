//! The limit `Penalty`.

use std::time::Duration;

use super::counts::counts;
use super::description::{Fault, in_range, not_zero, span, time_to_bring};
use super::usage::carried_age;
use super::{Counts, Describe, Description, Guards, Moment, Ratio, StateWords, Strategy, Usage};
use crate::rate::Rate;

#[cfg(test)]
mod tests;

/// Penalises or bans clients that keep retrying: a counter that each attempt raises, also a denied one, and that time lowers.
///
/// ```text
/// threshold 3          |xxx--  .       .       . x     .            two denied attempts raise it further
/// falls 1 each 80 ms   |5      4       3       2 3     2            to 5: room again at 2
///                      0       80      160     240     320 ms
/// .ban(200 ms)         |xxx-               |xx     .                the denied one is locked out; then the counter is zero
///                      0                   200 ms
/// ```
///
/// An attempt is admitted when the counter plus its cost is at most the threshold, and raises the counter by its cost. A denied
/// attempt raises it too, up to the ceiling (`try_acquire` and its variants are denied; a request that waits in the queue is not).
/// So a client that keeps retrying is kept out, at most for as long as the counter takes to fall from the ceiling. The counter
/// falls in whole steps, counted from the instant at which it rose from zero. There is no sweeper: steps that have passed are
/// applied at the next access, exactly.
///
/// With a [ban](Penalty::ban), a denied attempt does not raise the counter but starts a lock-out, which further attempts do not
/// prolong; after it the counter is zero. [`Penalty::escalate`] doubles each further ban.
///
/// Worst burst: the threshold in one instant. In any span that holds `n` steps: at most the threshold plus `n` times what a step
/// takes off (half the threshold, rounded up, with [`Penalty::half_life`]). With a ban that is shorter than the fall from the
/// threshold it is more: the threshold again after each ban.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limiter, Penalty, Rate};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(Penalty::new(3, Rate::per_second(1)).ceiling(5))?;
/// for _ in 0..3 {
///     assert!(limiter.try_acquire().is_ok());
/// }
/// for _ in 0..10 {
///     assert!(limiter.try_acquire().is_err());
/// }
/// assert_eq!(limiter.check(1).retry_after(), Some(Duration::from_secs(3))); // from 5, the ceiling, to 2
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use]
pub struct Penalty {
    pub(crate) threshold: u64,
    pub(crate) fall: Decay,
    pub(crate) ceiling: Option<u64>,
    pub(crate) ban: Option<Duration>,
    /// The longest ban. This and the next have no effect without a ban.
    pub(crate) longest: Option<Duration>,
    pub(crate) forgive_after: Option<Duration>,
    pub(crate) ignores_denied: bool,
    pub(crate) counts: Counts,
}

counts!(Penalty);

/// How the counter of a [`Penalty`] falls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Decay {
    /// By the units of the rate, each period of it.
    Steps(Rate),
    /// To its half, rounded down.
    HalfLife(Duration),
}

impl Penalty {
    /// Denies above `threshold` (1 to 4,294,967,295); the counter falls by the units of `fall` at the end of each period of it,
    /// not evenly in between. All three numbers are checked when a limiter is built. The threshold is also the largest cost of
    /// one request.
    ///
    /// See the [type's example](Penalty#examples).
    pub const fn new(threshold: u64, fall: Rate) -> Self {
        Self::falling(threshold, Decay::Steps(fall))
    }

    pub(crate) const fn falling(threshold: u64, fall: Decay) -> Self {
        Self {
            threshold,
            fall,
            ceiling: None,
            ban: None,
            longest: None,
            forgive_after: None,
            ignores_denied: false,
            counts: Counts::Cost,
        }
    }

    setters! { const:
        /// Halves the counter after each `half_life`, rounded down so that it reaches zero, instead of lowering it by a fixed amount.
        ///
        /// ```
        /// use std::time::Duration;
        /// use tollgate::{Limiter, Penalty, Rate};
        ///
        /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
        /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
        /// let limiter = Limiter::new(Penalty::new(8, Rate::per_second(1)).half_life(Duration::from_secs(10)))?;
        /// assert!(limiter.try_acquire_many(8).is_ok());
        /// tokio::time::advance(Duration::from_secs(20)).await;
        /// assert_eq!(limiter.check(1).remaining(), 6); // 8, 4, 2
        /// # Ok(())
        /// # }
        /// ```
        pub half_life(half_life: Duration) => fall = Decay::HalfLife(half_life);

        /// The highest value to which denied attempts raise the counter (at most 4,294,967,295). The longest lock-out is the time that
        /// the counter takes to fall from there. Defaults to twice the threshold; a lower value than the threshold counts as the
        /// threshold.
        ///
        /// See the [type's example](Penalty#examples).
        pub ceiling(units: u64) => ceiling = Some(units);

        /// Locks out for `first` (1 ns to 100 years) at a denied attempt. After the ban the counter is zero.
        ///
        /// ```
        /// use std::time::Duration;
        /// use tollgate::{Limiter, Penalty, Rate};
        ///
        /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
        /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
        /// let minute = Duration::from_secs(60);
        /// let limiter = Limiter::new(Penalty::new(3, Rate::per_second(1)).ban(minute).escalate(60 * minute))?;
        /// let attempt = || limiter.try_acquire_many(3).is_ok();
        /// assert!(attempt() && !attempt());
        /// assert_eq!(limiter.check(1).retry_after(), Some(minute));
        /// tokio::time::advance(minute).await;
        /// assert!(attempt() && !attempt());
        /// assert_eq!(limiter.check(1).retry_after(), Some(2 * minute));
        /// # Ok(())
        /// # }
        /// ```
        pub ban(first: Duration) => ban = Some(first);

        /// Makes each further [ban](Penalty::ban) twice as long as the last, up to `longest` (1 ns to 100 years; a shorter one than the
        /// first counts as the first), until bans are [forgiven](Penalty::forgive_after). By default all bans have the same length. It
        /// has no effect without a ban.
        pub escalate(longest: Duration) => longest = Some(longest);

        /// Forgets [bans](Penalty::ban) once the counter has been at zero without a ban for this long (0 to 100 years). Defaults to the
        /// length of the longest ban. It has no effect without a ban.
        pub forgive_after(idle: Duration) => forgive_after = Some(idle);

        /// Raises the counter by admitted attempts only. A denied attempt still starts a [ban](Penalty::ban).
        ///
        /// ```
        /// use tollgate::{Limiter, Penalty, Rate};
        ///
        /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
        /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
        /// let limiter = Limiter::new(Penalty::new(1, Rate::per_second(1)).ignore_denied())?;
        /// assert!(limiter.try_acquire().is_ok());
        /// assert!(limiter.try_acquire().is_err());
        /// assert_eq!(limiter.check(1).retry_after(), Some(std::time::Duration::from_secs(1)));
        /// # Ok(())
        /// # }
        /// ```
        pub ignore_denied() => ignores_denied = true;
    }

    /// The rate at which the counter falls; `None` if it has a [half-life](Penalty::half_life). See [`Penalty::get_threshold`].
    #[must_use]
    pub const fn get_fall(&self) -> Option<Rate> {
        match self.fall {
            Decay::Steps(rate) => Some(rate),
            Decay::HalfLife(_) => None,
        }
    }

    /// The [half-life](Penalty::half_life) of the counter; `None` if it falls at a rate. See [`Penalty::get_threshold`].
    #[must_use]
    pub const fn get_half_life(&self) -> Option<Duration> {
        match self.fall {
            Decay::Steps(_) => None,
            Decay::HalfLife(time) => Some(time),
        }
    }

    /// How long the counter takes from this value to zero, at most.
    fn time_to_fall(&self, value: u64) -> Duration {
        let (period, count) = match self.fall {
            Decay::Steps(rate) => (rate.period(), value.div_ceil(rate.units().max(1))),
            Decay::HalfLife(time) => (time, u64::from(u64::BITS - value.leading_zeros())),
        };
        period.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX))
    }
}

getters!(Penalty {
    /// The threshold, in units.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tollgate::{Penalty, Rate};
    ///
    /// let minute = Duration::from_secs(60);
    /// let penalty = Penalty::new(10, Rate::per_second(1)).ban(minute);
    /// assert_eq!((penalty.get_threshold(), penalty.get_fall()), (10, Some(Rate::per_second(1))));
    /// assert_eq!((penalty.get_ceiling(), penalty.get_ban()), (None, Some(minute)));
    /// assert_eq!(penalty.half_life(minute).get_half_life(), Some(minute));
    /// assert_eq!(penalty.to_string(), "penalty 10 falling 1/s ban 1m");
    /// ```
    pub get_threshold: threshold -> u64,

    /// The ceiling as set, in units; `None`: twice the threshold. See [`Penalty::get_threshold`].
    pub get_ceiling: ceiling -> Option<u64>,

    /// The length of the first ban; `None` without bans. See [`Penalty::get_threshold`].
    pub get_ban: ban -> Option<Duration>,

    /// The longest ban as [set](Penalty::escalate); `None`: all have the same length. See [`Penalty::get_threshold`].
    pub get_escalate: longest -> Option<Duration>,

    /// After how long bans are forgotten, as [set](Penalty::forgive_after); `None`: after the longest ban. See
    /// [`Penalty::get_threshold`].
    pub get_forgive_after: forgive_after -> Option<Duration>,

    /// Whether denied attempts [leave the counter as it is](Penalty::ignore_denied). See [`Penalty::get_threshold`].
    pub get_ignore_denied: ignores_denied -> bool,

    pub(crate) capacity: threshold -> u64,
});

impl Describe for Penalty {
    type Rule = PenaltyRule;

    fn description(&self) -> Description {
        Description {
            bans: self.ban.is_some(),
            ..Description::new("penalty", Guards::Conduct, "threshold")
        }
    }

    fn window(&self, capacity: u64) -> Option<Duration> {
        Some(time_to_bring(capacity, self.get_fall()?))
    }

    /// Excludes the time until it forgives bans, because no client has to wait for it.
    fn until_reset(&self, reset_after: Duration, capacity: u64) -> Duration {
        let is_to_forgive = reset_after > self.time_to_fall(capacity);
        let forgiven_after = self
            .forgive_after
            .or(self.ban.max(self.longest))
            .filter(|_| is_to_forgive);
        reset_after.saturating_sub(forgiven_after.unwrap_or_default())
    }

    #[cfg(test)]
    fn samples() -> &'static [&'static str] {
        &[
            "penalty 10 falling 1/s",
            "penalty 1 falling 1/ns",
            "penalty 10 half-life 30s",
            "penalty 10 falling 1/s ceiling 20",
            "penalty 10 falling 1/s ban 1m",
            "penalty 10 falling 1/s ban 1m up to 1h forgive 2h",
            "penalty 10 falling 1/s up to 1h",
            "penalty 10 falling 1/s forgive 2h",
            "penalty 10 falling 1/s ignoring denied",
            "penalty 10 falling 1/s per request",
        ]
    }

    fn checked(&self, _since_epoch: Duration) -> Result<PenaltyRule, Fault> {
        let (period, fall) = match self.fall {
            Decay::Steps(rate) => (
                span("period", rate.period())?,
                FallRule::By(not_zero(rate.units(), Fault::ZeroRate)?),
            ),
            Decay::HalfLife(half_life) => (span("half-life", half_life)?, FallRule::Halving),
        };
        let units = |number, units: u64, min| {
            in_range(number, units, min, u32::MAX.into()).map(|units| units as u32)
        };
        let threshold = not_zero(self.threshold, Fault::ZeroLimit("threshold"))?;
        let threshold = units("threshold", threshold, 1)?;
        let ceiling = self
            .ceiling
            .map_or(Ok(threshold.saturating_mul(2)), |ceiling| {
                units("ceiling", ceiling, 0)
            })?
            .max(threshold);
        let time = |number, time: Option<Duration>| time.map(|time| span(number, time)).transpose();
        let (first, longest) = (time("ban", self.ban)?, time("longest ban", self.longest)?);
        // This span may be zero: bans are forgiven at once.
        let forgive_after = match self.forgive_after {
            Some(Duration::ZERO) => Some(0),
            idle => time("time to forgive bans", idle)?,
        };
        let ban = first.map(|first| {
            let longest = longest.unwrap_or(first).max(first);
            Ban {
                first,
                longest,
                forgive_after: forgive_after.unwrap_or(longest),
            }
        });
        Ok(PenaltyRule {
            threshold,
            ceiling,
            period,
            fall,
            ban,
            ignores_denied: self.ignores_denied,
        })
    }
}

/// The parameters of a [`Penalty`], checked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PenaltyRule {
    threshold: u32,
    /// At least the threshold.
    ceiling: u32,
    /// Nanoseconds from step to step.
    period: u64,
    fall: FallRule,
    ban: Option<Ban>,
    ignores_denied: bool,
}

/// How much a step takes off.
#[derive(Debug, Clone, Copy)]
enum FallRule {
    By(u64),
    Halving,
}

/// In nanoseconds.
#[derive(Debug, Clone, Copy)]
struct Ban {
    first: u64,
    longest: u64,
    forgive_after: u64,
}

/// The counter and when it last moved by itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PenaltyState {
    /// A future instant is the end of a ban. A past instant is the latest step of the counter, or when it rose from zero. For a
    /// counter at zero, it is when the counter became zero.
    at: Moment,
    value: u32,
    /// Bans that are not yet forgiven.
    bans: u16,
}

impl PenaltyRule {
    /// The steps from `value` to `target` or below.
    fn steps(&self, value: u32, target: u32) -> u64 {
        match self.fall {
            FallRule::By(1) => value.saturating_sub(target).into(), // spares most penalties the division
            FallRule::By(units) => u64::from(value.saturating_sub(target)).div_ceil(units),
            // A value of 32 bits is zero after as many halvings.
            FallRule::Halving => (0_u32..32)
                .find(|steps| value >> steps <= target)
                .unwrap_or(32)
                .into(),
        }
    }

    /// The state at `now`: past bans, steps and forgiveness applied. A reset state is the default.
    #[inline(always)]
    fn settled(&self, state: PenaltyState, now: Moment) -> PenaltyState {
        let PenaltyState {
            mut at,
            mut value,
            bans,
        } = state;
        if at > now {
            return state;
        }
        if value > 0 {
            let since = now.since(at);
            if since < self.period {
                return state; // spares most decisions two divisions
            }
            let passed = since / self.period;
            let to_zero = self.steps(value, 0);
            if passed < to_zero {
                value = match self.fall {
                    FallRule::By(units) => value - (passed * units) as u32, // less than the value, since `passed` is less than the steps to zero
                    FallRule::Halving => value >> passed,
                };
                return PenaltyState {
                    at: at.plus(passed * self.period),
                    value,
                    bans,
                };
            }
            at = at.plus(to_zero.saturating_mul(self.period));
            value = 0;
        }
        match self.ban {
            Some(ban) if bans > 0 && now.since(at) < ban.forgive_after => {
                PenaltyState { at, value, bans }
            }
            _ => PenaltyState::default(),
        }
    }

    /// `settled` raised by `cost`, not beyond the ceiling.
    #[inline(always)]
    fn raised(&self, settled: PenaltyState, now: Moment, cost: u64) -> PenaltyState {
        if settled.at > now {
            return settled;
        }
        let cost = u32::try_from(cost).unwrap_or(u32::MAX);
        let value = settled.value.saturating_add(cost).min(self.ceiling);
        settled.with_value(now, value)
    }

    /// Whether `cost` fits into `settled`.
    #[inline(always)]
    fn admits(&self, settled: PenaltyState, now: Moment, cost: u64) -> bool {
        settled.at <= now && cost <= self.threshold.saturating_sub(settled.value).into()
    }

    /// The first instant at which `cost` fits, from `settled`.
    fn first(&self, settled: PenaltyState, now: Moment, cost: u64) -> Moment {
        if settled.at > now {
            return settled.at;
        }
        let room = self
            .threshold
            .saturating_sub(u32::try_from(cost).unwrap_or(u32::MAX));
        match self.steps(settled.value, room) {
            0 => now,
            steps => settled.at.plus(steps.saturating_mul(self.period)),
        }
    }

    /// The length of the ban that begins at `now`, in nanoseconds, derived from `remaining` and `reset_at` after this limit or
    /// another denied an attempt. If nothing remains, this limit denied the attempt, and so bans. A ban that began earlier is
    /// recognised by its end, unless its end is as far away, to the nanosecond, as the end of a shorter new ban.
    pub(crate) fn ban_begun(&self, now: Moment, remaining: u64, reset_at: Moment) -> Option<u64> {
        let ban = self.ban.filter(|_| remaining == 0)?;
        let length = reset_at.minus(ban.forgive_after).since(now);
        let is_doubled = length.is_multiple_of(ban.first)
            && (length / ban.first).is_power_of_two()
            && length < ban.longest;
        (is_doubled || length == ban.longest).then_some(length)
    }

    /// `settled` after an attempt of `cost` that this limit denied at `now`. The retry-after must be computed from this state: it
    /// may be later than before.
    fn denied(&self, settled: PenaltyState, now: Moment, cost: u64) -> PenaltyState {
        match self.ban {
            _ if settled.at > now => settled,
            Some(ban) => {
                let length = ban
                    .first
                    .saturating_mul(1_u64.checked_shl(settled.bans.into()).unwrap_or(u64::MAX));
                let at = now.plus(length.min(ban.longest));
                PenaltyState {
                    at,
                    value: 0,
                    bans: settled.bans.saturating_add(1),
                }
            }
            None if self.ignores_denied => settled,
            None => self.raised(settled, now, cost),
        }
    }
}

impl Strategy for PenaltyRule {
    type State = PenaltyState;

    #[inline(always)]
    fn decide(&self, state: PenaltyState, now: Moment, cost: u64) -> Result<PenaltyState, Moment> {
        let settled = self.settled(state, now);
        if self.admits(settled, now, cost) {
            Ok(settled.with_value(now, settled.value + cost as u32)) // the ceiling is not below the threshold
        } else {
            Err(self.first(settled, now, cost))
        }
    }

    fn charge(&self, state: PenaltyState, now: Moment, cost: u64) -> PenaltyState {
        let settled = self.settled(state, now);
        if cost == 0 {
            return settled; // a former policy may have carried over more than the ceiling, which stays
        }
        self.raised(settled, now, cost)
    }

    fn ready_at(&self, state: PenaltyState, now: Moment, ahead: u64, cost: u64) -> Moment {
        let settled = self.settled(state, now);
        let alone = self.first(settled, now, cost);
        // Steps are a period apart, and take off more the higher the counter is. So at best the counter is at the threshold
        // before each step.
        let all = u128::from(settled.value) + u128::from(ahead) + u128::from(cost);
        let mut to_fall = all.saturating_sub(self.threshold.into());
        if to_fall == 0 {
            return alone;
        }
        let (mut steps, mut value) = (0, settled.value);
        let each = match self.fall {
            FallRule::By(units) => units,
            FallRule::Halving => {
                while value > self.threshold {
                    to_fall = to_fall.saturating_sub(value.div_ceil(2).into());
                    value /= 2;
                    steps += 1;
                }
                self.threshold.div_ceil(2).into()
            }
        };
        let more = u64::try_from(to_fall.div_ceil(each.max(1).into())).unwrap_or(u64::MAX);
        let from = if settled.value == 0 {
            alone
        } else {
            settled.at
        };
        alone.max(from.plus(more.saturating_add(steps).saturating_mul(self.period)))
    }

    fn remaining(&self, state: PenaltyState, now: Moment) -> u64 {
        let settled = self.settled(state, now);
        if settled.at > now {
            0
        } else {
            self.threshold.saturating_sub(settled.value).into()
        }
    }

    /// The counter, or at least the threshold while banned.
    fn usage(&self, state: PenaltyState, now: Moment) -> Usage {
        let settled = self.settled(state, now);
        Usage::of_units(
            if settled.at > now {
                settled.value.max(self.threshold)
            } else {
                settled.value
            }
            .into(),
        )
    }

    /// Lowers the counter, not below zero. A ban stays: during it, the counter is zero.
    fn forgive(&self, state: PenaltyState, now: Moment, cost: u64) -> PenaltyState {
        let settled = self.settled(state, now);
        let value = settled
            .value
            .saturating_sub(u32::try_from(cost).unwrap_or(u32::MAX));
        if settled.value == 0 || value > 0 {
            return PenaltyState { value, ..settled };
        }
        // The counter is zero from now on.
        self.settled(
            PenaltyState {
                at: now,
                value,
                ..settled
            },
            now,
        )
    }

    fn reset_at(&self, state: PenaltyState, now: Moment) -> Moment {
        let settled = self.settled(state, now);
        if settled == PenaltyState::default() {
            return now;
        }
        let zero = settled
            .at
            .plus(self.steps(settled.value, 0).saturating_mul(self.period));
        let forgive_after = self
            .ban
            .filter(|_| settled.bans > 0)
            .map_or(0, |ban| ban.forgive_after);
        zero.plus(forgive_after).max(now)
    }

    /// Refunds an attempt of `cost` that was admitted at `at` and never used, if no step or ban came since. After a step, its
    /// units may be among those that were taken off already.
    fn refund(&self, state: PenaltyState, now: Moment, at: Moment, cost: u64) -> PenaltyState {
        if self.settled(state, now).at > at {
            state
        } else {
            self.forgive(state, now, cost)
        }
    }

    /// The state after a denied attempt of `cost`. If another limit denied it and this one would admit it, nothing changes.
    fn note_denial(&self, state: PenaltyState, now: Moment, cost: u64) -> PenaltyState {
        let settled = self.settled(state, now);
        if self.admits(settled, now, cost) {
            state
        } else {
            self.denied(settled, now, cost)
        }
    }

    /// The end of the ban, if there is one.
    fn banned_until(&self, state: PenaltyState, now: Moment) -> Option<Moment> {
        Some(state.at).filter(|at| self.ban.is_some() && *at > now)
    }

    /// The state that takes over from a penalty of other parameters: the counter, the elapsed part of a step, and the bans.
    fn take_over(
        &self,
        now: Moment,
        former: &Self,
        state: PenaltyState,
        ratio: Ratio,
    ) -> PenaltyState {
        let PenaltyState { at, value, bans } = former.settled(state, now);
        let at = if value == 0 {
            at
        } else {
            now.minus(carried_age(now.since(at), former.period, self.period))
        };
        let value =
            u32::try_from(ratio.of_whole(Usage::of_units(value.into()))).unwrap_or(u32::MAX);
        PenaltyState { at, value, bans }
    }
}

impl PenaltyState {
    /// Not less than the value so far. The steps count from where it leaves zero.
    #[inline(always)]
    fn with_value(self, now: Moment, value: u32) -> Self {
        if value == self.value {
            return self;
        }
        let at = if self.value == 0 { now } else { self.at };
        Self { at, value, ..self }
    }
}

impl From<StateWords> for PenaltyState {
    fn from([at, rest]: StateWords) -> Self {
        Self {
            at: Moment::from_nanos(at),
            value: rest as u32,
            bans: (rest >> 32) as u16,
        }
    }
}

impl From<PenaltyState> for StateWords {
    fn from(PenaltyState { at, value, bans }: PenaltyState) -> Self {
        [at.nanos(), u64::from(bans) << 32 | u64::from(value)]
    }
}
