use std::sync::Arc;

use crate::core::gate::Gate;
use crate::core::plan::Plan;
use crate::decision::Decision;
use crate::strategy::{Moment, Rule, StateWords, Strategy};

/// The most limits that a key has.
pub(super) const MAX_WORDS: usize = 4;

/// The state of one key: a word or two for each limit, next to each other.
///
/// It is a [`Gate`] without what few keys need: leases, counts, refund bounds.
pub(super) struct KeyState<'a> {
    pub(super) plan: &'a Arc<Plan>,
    pub(super) words: &'a mut [u64],
}

impl KeyState<'_> {
    /// As new.
    pub(super) fn fill(&mut self, now: Moment) {
        for (rule, at) in self.plan.words() {
            store(self.words, rule, at, rule.initial(now));
        }
    }

    /// Sets other states, one for each limit.
    pub(super) fn restore(&mut self, states: impl Iterator<Item = StateWords>) {
        for ((rule, at), state) in self.plan.words().zip(states) {
            store(self.words, rule, at, state);
        }
    }

    /// Charges all limits, or none.
    #[inline(always)]
    pub(super) fn admit(&mut self, now: Moment, cost: u64) -> bool {
        if let Some(rule) = self.plan.only_rule() {
            let Ok(next) = rule.decide(load(self.words, rule, 0), now, cost) else { return false };
            store(self.words, rule, 0, next);
            return true;
        }
        self.admit_all(now, cost)
    }

    /// Charges one limit after the other, and when one denies, none.
    fn admit_all(&mut self, now: Moment, cost: u64) -> bool {
        let mut before = [0; MAX_WORDS];
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

    /// Charges all limits, whether or not they admit it.
    pub(super) fn charge(&mut self, now: Moment, cost: u64) {
        self.change(|rule, state| rule.charge(state, now, cost));
    }

    pub(super) fn forgive(&mut self, now: Moment, cost: u64) {
        self.change(|rule, state| rule.forgive(state, now, cost));
    }

    /// Records that a request was denied `cost`.
    pub(super) fn note_denial(&mut self, now: Moment, cost: u64) {
        if self.plan.counts_denials() {
            self.change(|rule, state| rule.note_denial(state, now, cost));
        }
    }

    pub(super) fn decide(&self, now: Moment, cost: u64) -> Decision {
        let asked = self.states().map(|(rule, state)| rule.report(state, now, 0, cost));
        Decision::summarize(self.plan.policy(), asked, now, 0, cost)
    }

    /// The highest usage of any limit, in units.
    pub(super) fn used(&self, now: Moment) -> u64 {
        self.states().map(|(rule, state)| rule.used(state, now)).max().unwrap_or(0)
    }

    /// When the key can be forgotten, because it equals a new one.
    pub(super) fn reset_at(&self, now: Moment) -> Moment {
        self.states().map(|(rule, state)| rule.forgettable_at(state, now)).max().unwrap_or(now)
    }

    /// The key as a gate, after `fence` grants.
    pub(super) fn gate(&self, fence: u64, now: Moment) -> Gate {
        Gate::resume(Arc::clone(self.plan), self.states().map(|(_, state)| state), fence, now)
    }

    fn states(&self) -> impl Iterator<Item = (&Rule, StateWords)> {
        self.plan.words().map(|(rule, at)| (rule, load(self.words, rule, at)))
    }

    fn change(&mut self, change: impl Fn(&Rule, StateWords) -> StateWords) {
        for (rule, at) in self.plan.words() {
            let state = change(rule, load(self.words, rule, at));
            store(self.words, rule, at, state);
        }
    }
}

#[inline(always)]
fn load(words: &[u64], rule: &Rule, at: usize) -> StateWords {
    [words[at], if rule.width() == 2 { words[at + 1] } else { 0 }]
}

/// In one word, only a debt of more than a century overflows: it saturates.
#[inline(always)]
fn store(words: &mut [u64], rule: &Rule, at: usize, state: StateWords) {
    if rule.width() == 2 {
        words[at..at + 2].copy_from_slice(&state);
    } else {
        words[at] = if state[1] == 0 { state[0] } else { u64::MAX };
    }
}
