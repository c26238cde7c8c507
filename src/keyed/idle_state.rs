//! An idle key and the words of its state.

use std::num::NonZeroU64;
use std::sync::Arc;

use crate::core::gate::Gate;
use crate::core::gate::plan::Plan;
use crate::core::request::Costs;
use crate::core::suspension::AllKeysHold;
use crate::decision::Decision;
use crate::error::{AcquireError, TryAcquireError};
use crate::event::Attempt;
use crate::manager::{ClockOrigin, RequestOptions};
use crate::permit::Permit;
use crate::policy::Limit;
use crate::snapshot::LimitStatus;
use crate::strategy::{Moment, Rule, StateWords, Strategy};

/// The most words that the state of an idle key has.
pub(super) const MAX_WORDS: usize = 4;

/// A word of the state of an idle key. A word is never zero, so that a free slot of a table takes no more memory than a key.
///
/// So one number cannot be stored, and the next number is stored in its place. The number is an instant some centuries away, or
/// nearly 2⁶⁴ units or parts. The state is then stricter by a nanosecond, a unit or a part.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeyWord(NonZeroU64);

impl KeyWord {
    /// The number that cannot be stored. It is even, so the next number differs from it in one bit.
    const MISSING: u64 = u64::MAX - 3;
    pub(super) const ZERO: Self = Self::new(0);

    #[inline(always)]
    pub(super) const fn new(number: u64) -> Self {
        match NonZeroU64::new(number ^ Self::MISSING) {
            Some(word) => Self(word),
            None => Self(NonZeroU64::MIN),
        }
    }

    #[inline(always)]
    pub(super) const fn get(self) -> u64 {
        self.0.get() ^ Self::MISSING
    }
}

/// The state of one key: a word or two for each limit, next to each other.
///
/// It is a [`Gate`] without the parts that few keys need: leases, counts and refund bounds.
pub(super) struct IdleState<'a> {
    pub(super) plan: &'a Arc<Plan>,
    pub(super) words: &'a mut [KeyWord],
}

impl IdleState<'_> {
    /// Replaces the states, one for each limit.
    pub(super) fn restore(&mut self, states: impl Iterator<Item = StateWords>) {
        for ((rule, at), state) in self.plan.words().zip(states) {
            store(self.words, rule, at, state);
        }
    }

    /// Checks whether the cost can ever be admitted. No limit here counts by unit, because a key with such a limit has a gate.
    pub(super) fn fits(&self, cost: u64) -> Result<(), AcquireError> {
        self.plan.fits(Costs::plain(cost))
    }

    /// Charges all limits or none. Returns whether it charged them.
    #[inline(always)]
    pub(super) fn admit(&mut self, now: Moment, cost: u64) -> bool {
        if let Some(rule) = self.plan.only_rule() {
            if let Some(decided) = rule.decide_in_a_word(self.words[0].get(), now, cost) {
                return decided
                    .map(|next| self.words[0] = KeyWord::new(next))
                    .is_ok();
            }
            let Ok(next) = rule.decide(load(self.words, rule, 0), now, cost) else {
                return false;
            };
            store(self.words, rule, 0, next);
            return true;
        }
        self.admit_all(now, cost)
    }

    /// Charges one limit after the other. If one denies, restores all of them.
    fn admit_all(&mut self, now: Moment, cost: u64) -> bool {
        let mut before = [KeyWord::ZERO; MAX_WORDS];
        before[..self.words.len()].copy_from_slice(self.words);
        for (rule, at) in self.plan.words() {
            let Ok(next) = rule.decide(load(self.words, rule, at), now, cost) else {
                self.words.copy_from_slice(&before[..self.words.len()]);
                return false;
            };
            store(self.words, rule, at, next);
        }
        true
    }

    /// Records the denial of a request that does not wait, and returns it.
    #[cold]
    pub(super) fn deny(
        &mut self,
        hold: Option<AllKeysHold>,
        now: Moment,
        cost: u64,
    ) -> TryAcquireError {
        if self.plan.counts_denials() {
            self.change(|rule, state| rule.note_denial(state, now, cost));
        }
        TryAcquireError::Denied(self.decide(hold, now, cost))
    }

    /// For each limit, the end of its ban, if the limit bans.
    pub(super) fn bans(&self, now: Moment) -> impl Iterator<Item = Option<Moment>> {
        self.states()
            .map(move |(rule, state)| rule.banned_until(state, now))
    }

    /// The decision. It takes `hold` into account.
    pub(super) fn decide(&self, hold: Option<AllKeysHold>, now: Moment, cost: u64) -> Decision {
        let decision = self.decide_alone(now, cost);
        match hold {
            None => decision,
            Some(hold) => hold.decide(decision, now),
        }
    }

    #[inline(always)]
    fn decide_alone(&self, now: Moment, cost: u64) -> Decision {
        let (policy, misfit) = (self.plan.policy(), self.plan.misfit(cost));
        let capacity = |by: usize| policy.limits()[by].capacity();
        if let Some(rule) = self.plan.only_rule() {
            let report = rule.report(load(self.words, rule, 0), now, 0, cost);
            return Decision::summarize(policy, misfit, std::iter::once(report), now, 0, capacity);
        }
        let reports = self
            .states()
            .map(|(rule, state)| rule.report(state, now, 0, cost));
        Decision::summarize(policy, misfit, reports, now, 0, capacity)
    }

    /// The status of each limit.
    pub(super) fn limits(&self, now: Moment) -> Vec<LimitStatus> {
        let status = |((rule, state), limit): ((&Rule, StateWords), &Limit)| {
            LimitStatus::new(*limit, limit.capacity(), rule.report(state, now, 0, 1), now)
        };
        self.states().zip(self.plan.limits()).map(status).collect()
    }

    /// The highest usage of any limit, in units.
    pub(super) fn used(&self, now: Moment) -> u64 {
        self.states()
            .map(|(rule, state)| rule.usage(state, now).round_up())
            .max()
            .unwrap_or(0)
    }

    /// When the key equals a new one and can be forgotten.
    pub(super) fn reset_at(&self, now: Moment) -> Moment {
        self.states()
            .map(|(rule, state)| rule.forgettable_at(state, now))
            .max()
            .unwrap_or(now)
    }

    /// A gate with the state of the key, after `fence` grants.
    pub(super) fn gate(&self, fence: u64, now: Moment) -> Gate {
        Gate::resume(
            Arc::clone(self.plan),
            self.states().map(|(_, state)| state),
            fence,
            now,
        )
    }

    fn states(&self) -> impl Iterator<Item = (&Rule, StateWords)> {
        self.plan
            .words()
            .map(|(rule, at)| (rule, load(self.words, rule, at)))
    }

    /// Changes the state of each limit.
    pub(super) fn change(&mut self, change: impl Fn(&Rule, StateWords) -> StateWords) {
        for (rule, at) in self.plan.words() {
            let state = change(rule, load(self.words, rule, at));
            store(self.words, rule, at, state);
        }
    }
}

/// An idle key, under the lock of its shard.
pub(super) struct IdleKey<'a> {
    pub(super) state: IdleState<'a>,
    /// The pause or the closing of all keys, if there is one.
    pub(super) hold: Option<AllKeysHold>,
    /// The random part of the ids of permits of idle keys.
    pub(super) id_prefix: u64,
    /// The fence of the latest grant to an idle key of its shard.
    pub(super) fence: &'a mut u64,
    /// The number of denied requests of the idle keys of its shard.
    pub(super) denied: &'a mut u64,
    pub(super) now: Moment,
    pub(super) origin: ClockOrigin,
}

impl IdleKey<'_> {
    /// The data for the events of the request, read before the decision.
    #[cold]
    pub(super) fn attempt(&self, &RequestOptions { cost, caller, .. }: &RequestOptions) -> Attempt {
        Attempt {
            now: self.now,
            cost,
            requested_in: caller,
            bans: self.state.bans(self.now).collect(),
        }
    }

    #[inline(never)]
    pub(super) fn try_acquire(&mut self, cost: u64) -> Result<Permit, TryAcquireError> {
        self.state
            .fits(cost)
            .map_err(TryAcquireError::without_decision)?;
        self.admit(cost).ok_or_else(|| {
            *self.denied += 1;
            self.state.deny(self.hold, self.now, cost)
        })
    }

    /// Grants the request or changes nothing.
    #[inline(always)]
    pub(super) fn admit(&mut self, cost: u64) -> Option<Permit> {
        if self.hold.is_some() || !self.state.admit(self.now, cost) {
            return None;
        }
        *self.fence += 1;
        Some(Permit::idle(
            self.id_prefix,
            *self.fence,
            cost,
            self.now,
            self.origin,
        ))
    }
}

#[inline(always)]
fn load(words: &[KeyWord], rule: &Rule, at: usize) -> StateWords {
    [
        words[at].get(),
        if rule.width() == 2 {
            words[at + 1].get()
        } else {
            0
        },
    ]
}

/// In one word only a debt of more than a century overflows. It is then stored as the highest number.
#[inline(always)]
fn store(words: &mut [KeyWord], rule: &Rule, at: usize, [low, high]: StateWords) {
    if rule.width() == 2 {
        words[at..at + 2].copy_from_slice(&[KeyWord::new(low), KeyWord::new(high)]);
    } else {
        words[at] = KeyWord::new(if high == 0 { low } else { u64::MAX });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_keeps_every_number_but_one_for_which_it_keeps_the_next() {
        for number in [
            0,
            1,
            2,
            u64::MAX / 2,
            u64::MAX - 5,
            u64::MAX - 4,
            u64::MAX - 2,
            u64::MAX - 1,
            u64::MAX,
        ] {
            assert_eq!(KeyWord::new(number).get(), number);
        }
        assert_eq!(KeyWord::new(u64::MAX - 3).get(), u64::MAX - 2);
        assert_eq!(size_of::<Option<(u64, [KeyWord; 1])>>(), 16);
    }
}
