use std::time::Duration;

use super::check::{Fault, at_least_one, rate_units, span};
use super::usage::carried_age;
use super::{LimitRule, Moment, Ratio, Rule, StateWords, Strategy, Usage};
use crate::rate::Rate;

#[cfg(test)]
mod tests;

/// A counter that every attempt raises, a denied one too, and that time lowers; above a threshold it denies.
///
/// ```text
/// threshold 3          |xxx--  .       .       . x     .            two denied attempts raise it further
/// falls 1 each 80 ms   |5      4       3       2 3     2            to 5: there is room again at 2
///                      0       80      160     240     320 ms
/// .ban(200 ms)         |xxx-               |xx     .                the denied one is locked out; then all is new
///                      0                   200 ms
/// ```
///
/// An attempt is admitted when the counter with its cost is at most the threshold, and raises it by its cost. A denied attempt
/// (`try_acquire` and its kin; those who wait in the queue are not denied) raises it too, up to the ceiling: who keeps on asking
/// is kept out, for as long as the counter takes to fall from the ceiling. The counter falls a whole step at a time, counted
/// from the instant at which it rose from zero. Nothing sweeps: the steps that have passed are taken off when it is looked at,
/// none lost and none gained however often that is.
///
/// With a [ban](Penalty::ban), a denied attempt does not raise the counter but locks out for a time, which attempts do not make
/// longer; the counter is zero after it. [`Penalty::escalate`] doubles each further ban.
///
/// Worst burst: the threshold in one instant; in any span that holds `n` steps at most the threshold and `n` times what a step
/// takes off (half the threshold, rounded up, with [`Penalty::half_life`]). A ban that is shorter than the fall from the
/// threshold loosens that: the threshold again after each ban.
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
pub struct Penalty {
    pub(crate) threshold: u64,
    pub(crate) fall: Decay,
    pub(crate) ceiling: Option<u64>,
    pub(crate) ban: Option<Duration>,
    /// The longest ban; means nothing without one, as the next.
    pub(crate) longest: Option<Duration>,
    pub(crate) forgive_after: Option<Duration>,
    pub(crate) counts_denied: bool,
}

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
    /// not evenly in between. All is checked when a limiter is built. The threshold is also the largest cost of one request.
    ///
    /// See the [type's example](Penalty#examples).
    #[must_use]
    pub const fn new(threshold: u64, fall: Rate) -> Self {
        Self {
            threshold,
            fall: Decay::Steps(fall),
            ceiling: None,
            ban: None,
            longest: None,
            forgive_after: None,
            counts_denied: true,
        }
    }

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
    #[must_use]
    pub const fn half_life(self, half_life: Duration) -> Self {
        Self { fall: Decay::HalfLife(half_life), ..self }
    }

    /// The highest that denied attempts raise the counter (at most 4,294,967,295), and so the longest lock-out: the time that it
    /// takes to fall from here. Twice the threshold unless told; below the threshold counts as the threshold.
    ///
    /// See the [type's example](Penalty#examples).
    #[must_use]
    pub const fn ceiling(self, units: u64) -> Self {
        Self { ceiling: Some(units), ..self }
    }

    /// Locks out for `first` (1 ns to 100 years) at a denied attempt; after it the counter is zero.
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
    #[must_use]
    pub const fn ban(self, first: Duration) -> Self {
        Self { ban: Some(first), ..self }
    }

    /// Makes each further [ban](Penalty::ban) twice as long as the last, up to `longest` (shorter than the first counts as the
    /// first), until they are [forgiven](Penalty::forgive_after). All are of one length unless told. It means nothing without a ban.
    #[must_use]
    pub const fn escalate(self, longest: Duration) -> Self {
        Self { longest: Some(longest), ..self }
    }

    /// Forgets [bans](Penalty::ban) once the counter has been at zero, and nobody banned, for this long (0 to 100 years). The
    /// length of the longest ban unless told. It means nothing without a ban.
    #[must_use]
    pub const fn forgive_after(self, quiet: Duration) -> Self {
        Self { forgive_after: Some(quiet), ..self }
    }

    /// Raises the counter by admitted attempts only. A [ban](Penalty::ban) is imposed all the same.
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
    #[must_use]
    pub const fn ignore_denied(self) -> Self {
        Self { counts_denied: false, ..self }
    }

    pub(crate) fn rule(&self) -> Result<LimitRule, Fault> {
        Ok(LimitRule::Words(Rule::Penalty(self.checked()?)))
    }

    fn checked(&self) -> Result<PenaltyRule, Fault> {
        let (period, fall) = match self.fall {
            Decay::Steps(rate) => (rate.period(), FallRule::By(rate_units(rate.units())?)),
            Decay::HalfLife(half_life) => (half_life, FallRule::Halving),
        };
        let in_range = |units: u64| u32::try_from(units).map_err(|_| Fault::OutOfRange);
        let threshold = in_range(at_least_one(self.threshold)?)?;
        let ceiling = self.ceiling.map_or(Ok(threshold.saturating_mul(2)), in_range)?.max(threshold);
        let period = span(period)?;
        let (first, longest) = (self.ban.map(span).transpose()?, self.longest.map(span).transpose()?);
        // To be forgiven at once is the one span that may be zero.
        let forgive_after = self.forgive_after.map(|idle| if idle.is_zero() { Ok(0) } else { span(idle) }).transpose()?;
        let ban = first.map(|first| {
            let longest = longest.unwrap_or(first).max(first);
            Ban { first, longest, forgive_after: forgive_after.unwrap_or(longest) }
        });
        Ok(PenaltyRule { threshold, ceiling, period, fall, ban, counts_denied: self.counts_denied })
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
    counts_denied: bool,
}

/// What a step takes off.
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
    /// In the future: banned until then. Else: the latest whole step, or when the counter last rose from zero; while it is at
    /// zero, since when.
    at: Moment,
    value: u32,
    /// Bans that are not forgiven.
    bans: u16,
}

impl PenaltyRule {
    /// How many steps it takes from `value` to `target` or below.
    fn steps(&self, value: u32, target: u32) -> u64 {
        match self.fall {
            FallRule::By(units) => u64::from(value.saturating_sub(target)).div_ceil(units),
            // A value of 32 bits is zero after as many halvings.
            FallRule::Halving => (0_u32..32).find(|steps| value >> steps <= target).unwrap_or(32).into(),
        }
    }

    /// The state with all that time has done to it: bans that are over, steps, forgiveness. As good as new is the default.
    #[inline(always)]
    fn settled(&self, state: PenaltyState, now: Moment) -> PenaltyState {
        let PenaltyState { mut at, mut value, bans } = state;
        if at > now {
            return state;
        }
        if value > 0 {
            let passed = now.since(at) / self.period;
            let to_zero = self.steps(value, 0);
            if passed < to_zero {
                value = match self.fall {
                    FallRule::By(units) => value - (passed * units) as u32, // less than the value, or it were at zero
                    FallRule::Halving => value >> passed,
                };
                return PenaltyState { at: at.plus(passed * self.period), value, bans };
            }
            (at, value) = (at.plus(to_zero.saturating_mul(self.period)), 0);
        }
        match self.ban {
            Some(ban) if bans > 0 && now.since(at) < ban.forgive_after => PenaltyState { at, value, bans },
            _ => PenaltyState::default(),
        }
    }

    /// `settled` raised by `cost`, not beyond the ceiling.
    #[inline(always)]
    fn raised(&self, settled: PenaltyState, now: Moment, cost: u64) -> PenaltyState {
        let cost = u32::try_from(cost).unwrap_or(u32::MAX);
        if cost == 0 || settled.at > now {
            return settled;
        }
        let at = if settled.value == 0 { now } else { settled.at };
        PenaltyState { at, value: settled.value.saturating_add(cost).min(self.ceiling), ..settled }
    }

    /// The first instant at which `cost` fits, from `settled`.
    fn first(&self, settled: PenaltyState, now: Moment, cost: u64) -> Moment {
        if settled.at > now {
            return settled.at;
        }
        let room = self.threshold.saturating_sub(u32::try_from(cost).unwrap_or(u32::MAX));
        match self.steps(settled.value, room) {
            0 => now,
            steps => settled.at.plus(steps.saturating_mul(self.period)),
        }
    }

    /// Takes back an attempt of `cost` that was admitted at `at` and never used. Only before the first step or ban since: later
    /// nobody knows whose units have fallen, and what has fallen is not given twice.
    pub(crate) fn refund(&self, state: PenaltyState, now: Moment, at: Moment, cost: u64) -> PenaltyState {
        if self.settled(state, now).at > at { state } else { self.forgive(state, now, cost) }
    }

    /// The state after a denied attempt of `cost`: one that another limit has denied changes nothing, since of those none is
    /// charged.
    pub(crate) fn note_denial(&self, state: PenaltyState, now: Moment, cost: u64) -> PenaltyState {
        match self.decide(state, now, cost) {
            Ok(_) => state,
            _ => self.deny(state, now, cost),
        }
    }

    /// The state after an attempt of `cost` that this limit denied at `now`. When to retry is to be asked of it, for it may be
    /// later than the verdict said.
    fn deny(&self, state: PenaltyState, now: Moment, cost: u64) -> PenaltyState {
        let settled = self.settled(state, now);
        match self.ban {
            _ if settled.at > now => settled,
            Some(ban) => {
                let length = ban.first.saturating_mul(1_u64.checked_shl(settled.bans.into()).unwrap_or(u64::MAX));
                let at = now.plus(length.min(ban.longest));
                PenaltyState { at, value: 0, bans: settled.bans.saturating_add(1) }
            }
            None if self.counts_denied => self.raised(settled, now, cost),
            None => settled,
        }
    }
}

impl PenaltyRule {
    /// What a penalty of other parameters takes over: the counter, how much of a step has passed, and the bans.
    pub(crate) fn take_over(&self, now: Moment, former: &Self, state: PenaltyState, ratio: Ratio) -> PenaltyState {
        let PenaltyState { at, value, bans } = former.settled(state, now);
        let at = if value == 0 || at > now { at } else { now.minus(carried_age(now.since(at), former.period, self.period)) };
        let value = u32::try_from(ratio.of_whole(Usage::of_units(value.into()))).unwrap_or(u32::MAX);
        PenaltyState { at, value, bans }
    }
}

impl Strategy for PenaltyRule {
    type State = PenaltyState;

    fn initial(&self, _now: Moment) -> PenaltyState {
        PenaltyState::default()
    }

    #[inline(always)]
    fn decide(&self, state: PenaltyState, now: Moment, cost: u64) -> Result<PenaltyState, Moment> {
        let settled = self.settled(state, now);
        if settled.at <= now && cost <= self.threshold.saturating_sub(settled.value).into() {
            Ok(self.raised(settled, now, cost))
        } else {
            Err(self.first(settled, now, cost))
        }
    }

    fn charge(&self, state: PenaltyState, now: Moment, cost: u64) -> PenaltyState {
        self.raised(self.settled(state, now), now, cost)
    }

    fn ready_at(&self, state: PenaltyState, now: Moment, ahead: u64, cost: u64) -> Moment {
        let settled = self.settled(state, now);
        let alone = self.first(settled, now, cost);
        // Steps come no sooner than a period apart, and the more the counter holds the more they take off. So at best it is
        // filled to the threshold before each.
        let all = u128::from(settled.value) + u128::from(ahead) + u128::from(cost);
        let mut to_fall = all.saturating_sub(self.threshold.into());
        if to_fall == 0 {
            return alone;
        }
        let (mut steps, mut value) = (0, settled.value);
        let each = match self.fall {
            FallRule::By(units) => units,
            FallRule::Halving => {
                while value > self.threshold && to_fall > 0 {
                    to_fall = to_fall.saturating_sub(value.div_ceil(2).into());
                    value /= 2;
                    steps += 1;
                }
                self.threshold.div_ceil(2).into()
            }
        };
        let more = u64::try_from(to_fall.div_ceil(each.max(1).into())).unwrap_or(u64::MAX);
        let from = if settled.value == 0 { alone } else { settled.at };
        alone.max(from.plus(more.saturating_add(steps).saturating_mul(self.period)))
    }

    fn remaining(&self, state: PenaltyState, now: Moment) -> u64 {
        let settled = self.settled(state, now);
        if settled.at > now { 0 } else { self.threshold.saturating_sub(settled.value).into() }
    }

    /// The counter, or at least the threshold while banned.
    fn usage(&self, state: PenaltyState, now: Moment) -> Usage {
        let settled = self.settled(state, now);
        Usage::of_units(if settled.at > now { settled.value.max(self.threshold) } else { settled.value }.into())
    }

    /// Lowers the counter, not below zero. A ban stays.
    fn forgive(&self, state: PenaltyState, now: Moment, cost: u64) -> PenaltyState {
        let settled = self.settled(state, now);
        let value = settled.value.saturating_sub(u32::try_from(cost).unwrap_or(u32::MAX));
        if settled.at > now || settled.value == 0 || value > 0 {
            return PenaltyState { value, ..settled };
        }
        // At zero from now on.
        self.settled(PenaltyState { at: now, value, ..settled }, now)
    }

    fn reset_at(&self, state: PenaltyState, now: Moment) -> Moment {
        let settled = self.settled(state, now);
        if settled == PenaltyState::default() {
            return now;
        }
        let zero = settled.at.plus(self.steps(settled.value, 0).saturating_mul(self.period));
        let quiet = self.ban.filter(|_| settled.bans > 0).map_or(0, |ban| ban.forgive_after);
        zero.plus(quiet).max(now)
    }
}

impl From<StateWords> for PenaltyState {
    fn from([at, rest]: StateWords) -> Self {
        Self { at: Moment::from_nanos(at), value: rest as u32, bans: (rest >> 32) as u16 }
    }
}

impl From<PenaltyState> for StateWords {
    fn from(PenaltyState { at, value, bans }: PenaltyState) -> Self {
        [at.nanos(), u64::from(bans) << 32 | u64::from(value)]
    }
}
