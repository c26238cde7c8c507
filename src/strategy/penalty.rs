use std::time::Duration;

use super::{Moment, Strategy, Verdict, Words};
use crate::rate::Rate;

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
    pub(crate) fall: Fall,
    pub(crate) ceiling: Option<u64>,
    pub(crate) ban: Option<Duration>,
    /// The longest ban; means nothing without one, as the next.
    pub(crate) longest: Option<Duration>,
    pub(crate) forgive_after: Option<Duration>,
    pub(crate) counts_denied: bool,
}

/// How the counter of a [`Penalty`] falls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Fall {
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
            fall: Fall::Steps(fall),
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
        Self { fall: Fall::HalfLife(half_life), ..self }
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

    /// The rule. Neither the threshold nor a number of the fall is zero.
    pub(crate) fn rule(&self) -> PenaltyRule {
        let (period, fall) = match self.fall {
            Fall::Steps(rate) => (rate.period(), FallRule::By(rate.units())),
            Fall::HalfLife(half_life) => (half_life, FallRule::Halving),
        };
        let nanos = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        let at_most = |units: u64| u32::try_from(units).unwrap_or(u32::MAX);
        PenaltyRule {
            threshold: at_most(self.threshold),
            ceiling: at_most(self.ceiling.unwrap_or(self.threshold.saturating_mul(2)).max(self.threshold)),
            period: nanos(period),
            fall,
            ban: self.ban.map(|first| {
                let longest = self.longest.unwrap_or(first).max(first);
                let forgive_after = self.forgive_after.unwrap_or(longest);
                Ban { first: nanos(first), longest: nanos(longest), forgive_after: nanos(forgive_after) }
            }),
            counts_denied: self.counts_denied,
        }
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
            Verdict::Granted(_) => state,
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
    /// What a rule with other parameters takes over: the counter, changed by `carry`, the instant of its steps, and the bans.
    pub(crate) fn hand_on(&self, state: PenaltyState, now: Moment, carry: impl FnOnce(u64) -> u64) -> PenaltyState {
        let settled = self.settled(state, now);
        PenaltyState { value: u32::try_from(carry(settled.value.into())).unwrap_or(u32::MAX), ..settled }
    }
}

impl Strategy for PenaltyRule {
    type State = PenaltyState;

    fn initial(&self, _now: Moment) -> PenaltyState {
        PenaltyState::default()
    }

    #[inline(always)]
    fn decide(&self, state: PenaltyState, now: Moment, cost: u64) -> Verdict<PenaltyState> {
        let settled = self.settled(state, now);
        if settled.at <= now && cost <= self.threshold.saturating_sub(settled.value).into() {
            Verdict::Granted(self.raised(settled, now, cost))
        } else {
            Verdict::WaitUntil(self.first(settled, now, cost))
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
    fn used(&self, state: PenaltyState, now: Moment) -> u64 {
        let settled = self.settled(state, now);
        if settled.at > now { settled.value.max(self.threshold).into() } else { settled.value.into() }
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

impl From<Words> for PenaltyState {
    fn from([at, rest]: Words) -> Self {
        Self { at: Moment::from_nanos(at), value: rest as u32, bans: (rest >> 32) as u16 }
    }
}

impl From<PenaltyState> for Words {
    fn from(PenaltyState { at, value, bans }: PenaltyState) -> Self {
        [at.nanos(), u64::from(bans) << 32 | u64::from(value)]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::strategy::Strategy as Generator;

    use super::super::{MAX_SPAN_NANOS, Strategy as _}; // both globs have a `Strategy`
    use super::*;

    const S: u64 = 1_000_000_000;

    impl PenaltyRule {
        fn value(&self, state: PenaltyState, now: Moment) -> u64 {
            self.settled(state, now).value.into()
        }
    }

    fn at(nanos: u64) -> Moment {
        Moment::from_nanos(nanos)
    }

    fn nanos(nanos: u64) -> Duration {
        Duration::from_nanos(nanos)
    }

    #[derive(Debug, Clone, Copy)]
    enum Touch {
        Attempt(u64),
        Charge(u64),
        Refund(u64),
    }

    /// The rule as a sweeper would have it, which looks at the counter at each nanosecond.
    #[derive(Debug, Clone, Default, PartialEq)]
    struct Naive {
        now: u64,
        value: u64,
        since_step: u64,
        banned: u64,
        bans: u32,
        quiet: u64,
    }

    impl Naive {
        fn tick(&mut self, rule: &PenaltyRule) {
            self.now += 1;
            if self.banned > 0 {
                self.banned -= 1;
                self.quiet = 0;
            } else if self.value > 0 {
                self.since_step += 1;
                if self.since_step == rule.period {
                    self.since_step = 0;
                    self.value = match rule.fall {
                        FallRule::By(units) => self.value.saturating_sub(units),
                        FallRule::Halving => self.value / 2,
                    };
                }
                self.quiet = 0;
            } else {
                self.quiet += 1;
            }
            self.forgive(rule);
        }

        fn forgive(&mut self, rule: &PenaltyRule) {
            if self.value == 0 && self.banned == 0 && rule.ban.is_none_or(|ban| self.quiet >= ban.forgive_after) {
                self.bans = 0;
            }
        }

        fn admits(&self, rule: &PenaltyRule, cost: u64) -> bool {
            self.banned == 0 && self.value + cost <= rule.threshold.into()
        }

        fn raise(&mut self, rule: &PenaltyRule, cost: u64) {
            if self.banned == 0 {
                if self.value == 0 {
                    self.since_step = 0;
                }
                self.value = (self.value + cost).min(rule.ceiling.into());
                self.quiet = 0;
            }
        }

        fn touch(&mut self, rule: &PenaltyRule, touch: Touch) -> bool {
            match touch {
                Touch::Charge(cost) => self.raise(rule, cost),
                Touch::Refund(cost) => self.value = self.value.saturating_sub(cost),
                Touch::Attempt(cost) if self.admits(rule, cost) => {
                    self.raise(rule, cost);
                    return true;
                }
                Touch::Attempt(cost) => match rule.ban {
                    Some(ban) if self.banned == 0 => {
                        self.bans += 1;
                        self.banned = (1..self.bans).fold(ban.first, |length, _| (length * 2).min(ban.longest));
                        (self.value, self.quiet) = (0, 0);
                    }
                    None if rule.counts_denied => self.raise(rule, cost),
                    _ => {}
                },
            }
            self.forgive(rule);
            false
        }

        /// Replays the list of all that happened.
        fn replay(rule: &PenaltyRule, touches: &[(u64, Touch)]) -> Vec<bool> {
            let mut naive = Self::default();
            let mut touched = |&(at, touch): &(u64, Touch)| {
                while naive.now < at {
                    naive.tick(rule);
                }
                naive.touch(rule, touch)
            };
            touches.iter().map(&mut touched).collect()
        }
    }

    fn rules() -> impl Generator<Value = PenaltyRule> {
        let ban = prop::option::of((1_u64..60, 1_u64..300, prop::option::of(0_u64..200)));
        (1_u64..12, 0_u64..30, 1_u64..60, prop::option::of(1_u64..6), ban, any::<bool>()).prop_map(
            |(threshold, ceiling, period, units, ban, counts_denied)| {
                let mut penalty = Penalty::new(threshold, Rate::new(units.unwrap_or(1), nanos(period)));
                if units.is_none() {
                    penalty = penalty.half_life(nanos(period));
                }
                if ceiling > 0 {
                    penalty = penalty.ceiling(ceiling);
                }
                if let Some((first, longest, forgive_after)) = ban {
                    penalty = penalty.escalate(nanos(longest)).ban(nanos(first));
                    if let Some(forgive_after) = forgive_after {
                        penalty = penalty.forgive_after(nanos(forgive_after));
                    }
                }
                if counts_denied { penalty.rule() } else { penalty.ignore_denied().rule() }
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3_000))]

        /// Invariants 1 and 7, against a sweeper that replays every attempt. Trap: steps lost by looking.
        #[test]
        fn agrees_with_a_sweeper_that_replays_every_attempt(
            rule in rules(), steps in prop::collection::vec((0_u64..120, 1_u64..12, 0_u8..10, any::<bool>()), 1..40),
        ) {
            let (mut state, mut now, mut naive) = (rule.initial(Moment::START), Moment::START, Naive::default());
            let (mut touches, mut admitted) = (Vec::new(), Vec::new());
            for (step, cost, what, retry) in steps {
                now = now.plus(step);
                while naive.now < now.nanos() {
                    naive.tick(&rule);
                }
                let mut outcome = false;
                let touch = match what {
                    0 => Touch::Charge(cost),
                    1 => Touch::Refund(cost),
                    _ => Touch::Attempt(cost.min(rule.threshold.into())),
                };
                match touch {
                    Touch::Charge(cost) => state = rule.charge(state, now, cost),
                    Touch::Refund(cost) => state = rule.forgive(state, now, cost),
                    Touch::Attempt(cost) => match rule.decide(state, now, cost) {
                        Verdict::Granted(next) => {
                            prop_assert_eq!(next, rule.charge(state, now, cost));
                            prop_assert_eq!(rule.ready_at(state, now, 0, cost), now);
                            (state, outcome) = (next, true);
                        }
                        _ => state = rule.deny(state, now, cost),
                    },
                }
                prop_assert_eq!(outcome, naive.touch(&rule, touch));
                touches.push((now.nanos(), touch));
                admitted.push(outcome);
                prop_assert_eq!(PenaltyState::from(Words::from(state)), state);
                prop_assert_eq!(rule.value(state, now), naive.value);
                let remaining = if naive.banned > 0 { 0 } else { u64::from(rule.threshold).saturating_sub(naive.value) };
                prop_assert_eq!(rule.remaining(state, now), remaining);

                // Denied one nanosecond before its retry-after, granted at it.
                let cost = cost.min(rule.threshold.into());
                if let Verdict::WaitUntil(until) = rule.decide(state, now, cost) {
                    prop_assert_eq!(until, rule.ready_at(state, now, 0, cost));
                    prop_assert_eq!(rule.decide(state, until.minus(1), cost), Verdict::WaitUntil(until));
                    prop_assert!(matches!(rule.decide(state, until, cost), Verdict::Granted(_)));
                    let mut later = naive.clone();
                    while !later.admits(&rule, cost) {
                        later.tick(&rule);
                    }
                    prop_assert_eq!(later.now, until.nanos());
                    if retry {
                        // Looked at on the way, at instants of no meaning.
                        state = rule.settled(state, at(now.nanos().midpoint(until.nanos())));
                        now = until;
                    }
                }
                let reset = rule.reset_at(state, now);
                prop_assert_eq!(rule.settled(state, reset), PenaltyState::default());
                prop_assert!(reset == now || rule.settled(state, reset.minus(1)) != PenaltyState::default());
            }
            prop_assert_eq!(Naive::replay(&rule, &touches), admitted);
        }

        #[test]
        fn nobody_is_ready_before_it_is_predicted(
            rule in rules(), ahead in 0_u64..40, cost in 1_u64..12,
            before in prop::collection::vec((0_u64..120, 1_u64..12), 0..12),
        ) {
            let (mut state, mut now, cost) = (rule.initial(Moment::START), Moment::START, cost.min(rule.threshold.into()));
            for (step, cost) in before {
                now = now.plus(step);
                state = if step % 3 == 0 { rule.deny(state, now, cost) } else { rule.charge(state, now, cost) };
            }
            let predicted = rule.ready_at(state, now, ahead, cost);
            for _ in 0..ahead {
                now = rule.ready_at(state, now, 0, 1);
                state = rule.charge(state, now, 1);
            }
            prop_assert!(predicted <= rule.ready_at(state, now, 0, cost));
        }
    }

    /// System S2: every attempt counts, up to a ceiling that sets the longest lock-out. Its slip: a sweep over all counters.
    #[test]
    fn who_keeps_on_asking_is_locked_out_for_as_long_as_the_ceiling_takes_to_fall_and_no_longer() {
        let rule = Penalty::new(10, Rate::new(2, Duration::from_secs(1))).ceiling(14).rule();
        let mut state = rule.initial(at(5));
        for _ in 0..10 {
            let Verdict::Granted(next) = rule.decide(state, at(5), 1) else { panic!() };
            state = next;
        }
        for _ in 0..1_000 {
            assert!(matches!(rule.decide(state, at(5), 1), Verdict::WaitUntil(_)));
            state = rule.deny(state, at(5), 1);
        }
        assert_eq!(rule.value(state, at(5)), 14);
        assert_eq!(rule.decide(state, at(5), 1), Verdict::WaitUntil(at(5 + 3 * S)), "14, 12, 10, 8");
        assert_eq!((rule.value(state, at(4 + S)), rule.value(state, at(5 + S))), (14, 12), "a whole step, and nobody swept");
        assert_eq!(rule.value(state, at(5 + 6 * S)), 2);
        assert_eq!(rule.settled(state, at(5 + 7 * S)), rule.initial(at(0)), "forgotten at zero");
    }

    /// Trap: a counter that is looked at more often than it steps never falls, or falls late.
    #[test]
    fn the_steps_stay_where_they_were_however_often_it_is_touched() {
        let rule = Penalty::new(100, Rate::new(1, nanos(100))).rule();
        let mut state = rule.charge(rule.initial(at(0)), at(30), 10);
        for now in 30..530 {
            state = rule.forgive(rule.charge(state, at(now), 3), at(now), 3);
            assert_eq!(rule.value(state, at(now)), 10 - (now - 30) / 100);
        }
        let rule = Penalty::new(100, Rate::new(1, nanos(100))).half_life(nanos(100)).rule();
        let state = rule.charge(rule.charge(rule.initial(at(0)), at(30), 9), at(129), 2);
        assert_eq!([129, 130, 230, 330, 430].map(|now| rule.value(state, at(now))), [11, 5, 2, 1, 0]);
    }

    #[test]
    fn bans_double_up_to_the_longest_and_are_forgiven_after_quiet() {
        let penalty = Penalty::new(2, Rate::new(1, nanos(10)));
        let rule = penalty.escalate(nanos(700)).ban(nanos(200)).forgive_after(nanos(50)).rule();
        let (mut state, mut now) = (rule.initial(at(0)), 0);
        for length in [200, 400, 700, 700] {
            state = rule.charge(state, at(now), 2);
            state = rule.deny(state, at(now), 1);
            assert_eq!(rule.decide(state, at(now), 1), Verdict::WaitUntil(at(now + length)));
            assert_eq!(rule.deny(state, at(now + length - 1), 1), state, "attempts do not make it longer");
            assert_eq!(rule.forgive(state, at(now + 1), 1), state, "nor does a reward make it shorter");
            assert_eq!(rule.charge(state, at(now + 1), 1), state);
            assert_eq!((rule.remaining(state, at(now + 1)), rule.value(state, at(now + 1))), (0, 0));
            now += length;
            assert_eq!((rule.remaining(state, at(now - 1)), rule.remaining(state, at(now))), (0, 2), "the counter starts anew");
        }
        // Quiet is counted from when the counter is at zero: here from the second step after one that comes in between.
        assert_eq!(rule.reset_at(state, at(now)), at(now + 50));
        state = rule.charge(state, at(now + 49), 2);
        assert_eq!(rule.reset_at(state, at(now + 49)), at(now + 49 + 20 + 50));
        let next_ban = |now| rule.reset_at(rule.deny(state, at(now), 2), at(now)).nanos() - now - 50;
        assert_eq!((next_ban(now + 49 + 69), next_ban(now + 49 + 70)), (700, 200));
    }

    #[test]
    fn the_order_of_the_builder_does_not_matter() {
        let penalty = Penalty::new(2, Rate::per_second(1));
        let [first, longest, quiet] = [1, 2, 3].map(Duration::from_secs);
        let one = penalty.ban(first).escalate(longest).forgive_after(quiet).ceiling(9).ignore_denied();
        let other = penalty.ignore_denied().ceiling(9).forgive_after(quiet).escalate(longest).ban(first);
        assert_eq!(one, other);
        assert!(penalty.escalate(longest).forgive_after(quiet).rule().ban.is_none());
        let ban = penalty.escalate(Duration::ZERO).ban(first).rule().ban.unwrap();
        assert_eq!((ban.longest, ban.forgive_after), (S, S), "no shorter than the first; forgiven after the longest");
    }

    #[test]
    fn the_ceiling_is_twice_the_threshold_unless_told_and_never_below_it() {
        let penalty = Penalty::new(10, Rate::per_second(1));
        assert_eq!((penalty.rule().ceiling, penalty.ceiling(3).rule().ceiling, penalty.ceiling(11).rule().ceiling), (20, 10, 11));
    }

    #[test]
    fn the_largest_parameters_do_not_overflow() {
        let (most, span) = (u64::from(u32::MAX), nanos(MAX_SPAN_NANOS));
        let slow = Penalty::new(most, Rate::new(1, span));
        for rule in [slow.rule(), slow.half_life(span).rule()] {
            let state = rule.charge(rule.initial(at(3)), at(3), u64::MAX);
            assert_eq!(rule.value(rule.deny(state, at(3), u64::MAX), at(3)), most);
            assert_eq!(rule.decide(state, at(3), 1), Verdict::WaitUntil(at(3 + MAX_SPAN_NANOS)));
            assert_eq!(rule.ready_at(state, at(3), u64::MAX, u64::MAX), Moment::NEVER);
            assert_eq!(rule.reset_at(state, at(3)), Moment::NEVER);
            assert!(rule.value(state, Moment::NEVER) >= most >> 5);
        }
        let fast = Penalty::new(most, Rate::new(u64::MAX, nanos(1))).rule();
        let state = fast.charge(fast.initial(at(3)), at(3), most);
        assert_eq!((fast.value(state, at(4)), fast.ready_at(state, at(3), u64::MAX, 1)), (0, at(5)));

        let rule = slow.ban(span).escalate(Duration::MAX).forgive_after(Duration::MAX).rule();
        let mut state = rule.charge(rule.initial(at(0)), at(0), most);
        let mut now = at(0);
        for _ in 0..70_000 {
            state = rule.deny(state, now, 1);
            now = rule.ready_at(state, now, 0, 1);
        }
        assert_eq!(now, Moment::NEVER);
        assert_eq!(rule.reset_at(state, now), Moment::NEVER);
        let state = PenaltyState { bans: u16::MAX, ..PenaltyState::default() };
        assert_eq!(rule.deny(state, at(0), 1), PenaltyState { at: Moment::NEVER, value: 0, bans: u16::MAX });
    }
}
