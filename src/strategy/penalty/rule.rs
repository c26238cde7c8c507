//! The rule of a penalty: how its counter rises, falls and bans.

use super::super::usage::carried_age;
use super::super::{Moment, Ratio, StateWords, Strategy, Usage};

/// The parameters of a [`Penalty`](super::Penalty), checked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PenaltyRule {
    pub(super) threshold: u32,
    /// At least the threshold.
    pub(super) ceiling: u32,
    /// Nanoseconds from step to step.
    pub(super) period: u64,
    pub(super) fall: FallRule,
    pub(super) ban: Option<Ban>,
    pub(super) counts_denied: bool,
}

/// How much a step takes off.
#[derive(Debug, Clone, Copy)]
pub(super) enum FallRule {
    By(u64),
    Halving,
}

/// In nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ban {
    pub(super) first: u64,
    pub(super) longest: u64,
    pub(super) forgive_after: u64,
}

/// The counter and when it last moved by itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PenaltyState {
    /// A future instant is the end of a ban. A past instant is the latest step of the counter, or when it rose from zero. For a
    /// counter at zero, it is when the counter became zero.
    pub(super) at: Moment,
    pub(super) value: u32,
    /// Bans that are not yet forgiven.
    pub(super) bans: u16,
}

impl PenaltyRule {
    /// The steps from `value` to `target` or below.
    pub(super) fn steps(&self, value: u32, target: u32) -> u64 {
        match self.fall {
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
    pub(super) fn settled(&self, state: PenaltyState, now: Moment) -> PenaltyState {
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
        let cost = u32::try_from(cost).unwrap_or(u32::MAX);
        if cost == 0 || settled.at > now {
            return settled;
        }
        let at = if settled.value == 0 { now } else { settled.at };
        PenaltyState {
            at,
            value: settled.value.saturating_add(cost).min(self.ceiling),
            ..settled
        }
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

    /// Refunds an attempt of `cost` that was admitted at `at` and never used, if no step or ban came since. After a step, its
    /// units may be among those that were taken off already.
    pub(crate) fn refund(
        &self,
        state: PenaltyState,
        now: Moment,
        at: Moment,
        cost: u64,
    ) -> PenaltyState {
        if self.settled(state, now).at > at {
            state
        } else {
            self.forgive(state, now, cost)
        }
    }

    /// The state after a denied attempt of `cost`. If another limit denied it and this one would admit it, nothing changes.
    pub(crate) fn note_denial(&self, state: PenaltyState, now: Moment, cost: u64) -> PenaltyState {
        match self.decide(state, now, cost) {
            Ok(_) => state,
            _ => self.deny(state, now, cost),
        }
    }

    /// The end of the ban, if there is one.
    pub(crate) fn banned_until(&self, state: PenaltyState, now: Moment) -> Option<Moment> {
        Some(state.at).filter(|at| self.ban.is_some() && *at > now)
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

    /// The state after an attempt of `cost` that this limit denied at `now`. The retry-after must be computed from this state: it
    /// may be later than before.
    pub(super) fn deny(&self, state: PenaltyState, now: Moment, cost: u64) -> PenaltyState {
        let settled = self.settled(state, now);
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
            None if self.counts_denied => self.raised(settled, now, cost),
            None => settled,
        }
    }
}

impl PenaltyRule {
    /// The state that a penalty of other parameters takes over: the counter, the elapsed part of a step, and the bans.
    pub(crate) fn take_over(
        &self,
        now: Moment,
        former: &Self,
        state: PenaltyState,
        ratio: Ratio,
    ) -> PenaltyState {
        let PenaltyState { at, value, bans } = former.settled(state, now);
        let at = if value == 0 || at > now {
            at
        } else {
            now.minus(carried_age(now.since(at), former.period, self.period))
        };
        let value =
            u32::try_from(ratio.of_whole(Usage::of_units(value.into()))).unwrap_or(u32::MAX);
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
                while value > self.threshold && to_fall > 0 {
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

    /// Lowers the counter, not below zero. A ban stays.
    fn forgive(&self, state: PenaltyState, now: Moment, cost: u64) -> PenaltyState {
        let settled = self.settled(state, now);
        let value = settled
            .value
            .saturating_sub(u32::try_from(cost).unwrap_or(u32::MAX));
        if settled.at > now || settled.value == 0 || value > 0 {
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
