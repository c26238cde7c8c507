//! The rule of any limit: one type that dispatches to the rule of each kind.

use std::sync::Arc;

use super::{
    Adapt, CounterRule, LimitReport, LogRule, Moment, PaceRule, PenaltyRule, Ratio, Slope,
    StateWords, Strategy, Usage, WindowRule,
};

/// The rule of any limit. The states of many keys share the larger ones.
#[derive(Debug, Clone)]
pub(crate) enum LimitRule {
    Pace(Arc<PaceRule>),
    /// Another rule whose state is two words.
    Words(Arc<Rule>),
    /// Its state is a list of grants.
    Log(LogRule),
    /// The rule counts the units in flight. Its limit may adapt.
    Places(u64, Option<Arc<Adapt>>),
}

impl LimitRule {
    /// The rule, if its state is two words.
    pub(crate) fn words(&self) -> Option<Rule> {
        match self {
            Self::Pace(rule) => Some(Rule::Pace(**rule)),
            Self::Words(rule) => Some(**rule),
            Self::Log(_) | Self::Places(..) => None,
        }
    }

    /// A copy that shares no memory with this one.
    pub(crate) fn deep_clone(&self) -> Self {
        match self {
            Self::Pace(rule) => Self::Pace(Arc::new(**rule)),
            Self::Words(rule) => Self::Words(Arc::new(**rule)),
            Self::Log(rule) => Self::Log(*rule),
            Self::Places(limit, adapt) => {
                Self::Places(*limit, adapt.as_deref().copied().map(Arc::new))
            }
        }
    }
}

impl From<PaceRule> for LimitRule {
    fn from(rule: PaceRule) -> Self {
        Self::Pace(Arc::new(rule))
    }
}

macro_rules! in_words {
    ($($kind:ident: $rule:ident),*) => {$(
        impl From<$rule> for LimitRule {
            fn from(rule: $rule) -> Self {
                Self::Words(Arc::new(Rule::$kind(rule)))
            }
        }
    )*};
}

in_words!(Window: WindowRule, Counter: CounterRule, Penalty: PenaltyRule);

/// The rule of a limit whose state is two words at most, in a gate or in a table of keys.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Rule {
    Pace(PaceRule),
    Window(WindowRule),
    Counter(CounterRule),
    Penalty(PenaltyRule),
}

impl Rule {
    /// How many words its state takes in a table of keys.
    pub(crate) fn width(&self) -> usize {
        match self {
            Self::Pace(rule) if rule.fits_a_word() => 1,
            Self::Pace(_) | Self::Window(_) | Self::Counter(_) | Self::Penalty(_) => 2,
        }
    }

    /// [`Strategy::decide`] in 64 bits, if the state takes one word in a table of keys. See [`PaceRule::decide_in_a_word`].
    #[inline(always)]
    pub(crate) fn decide_in_a_word(
        &self,
        state: u64,
        now: Moment,
        cost: u64,
    ) -> Option<Result<u64, ()>> {
        match self {
            Self::Pace(rule) if rule.fits_a_word() => rule.decide_in_a_word(state, now, cost),
            Self::Pace(_) | Self::Window(_) | Self::Counter(_) | Self::Penalty(_) => None,
        }
    }

    /// The penalty, if it is one: denials change the state of no other rule.
    pub(crate) fn penalty(&self) -> Option<&PenaltyRule> {
        match self {
            Self::Penalty(rule) => Some(rule),
            Self::Pace(_) | Self::Window(_) | Self::Counter(_) => None,
        }
    }
}

/// Calls a method of the rule inside.
macro_rules! with_rule {
    ($rule:expr, |$within:ident| $answer:expr) => {
        match $rule {
            Rule::Pace($within) => $answer,
            Rule::Window($within) => $answer,
            Rule::Counter($within) => $answer,
            Rule::Penalty($within) => $answer,
        }
    };
}

/// Forwards methods to the rule inside.
macro_rules! forward {
    ($($(#[$attribute:meta])* fn $name:ident($($argument:ident: $type:ty),*) -> $answer:ty;)*) => {$(
        $(#[$attribute])*
        fn $name(&self, $($argument: $type),*) -> $answer {
            with_rule!(self, |rule| rule.$name($($argument.into()),*).into())
        }
    )*};
}

impl Strategy for Rule {
    type State = StateWords;

    forward! {
        fn initial(now: Moment) -> StateWords;
        fn charge(state: StateWords, now: Moment, cost: u64) -> StateWords;
        fn ready_at(state: StateWords, now: Moment, ahead: u64, cost: u64) -> Moment;
        fn remaining(state: StateWords, now: Moment) -> u64;
        fn usage(state: StateWords, now: Moment) -> Usage;
        fn with_usage(now: Moment, usage: Usage, ratio: Ratio) -> StateWords;
        fn slope(state: StateWords, now: Moment) -> Option<Slope>;
        fn with_used(state: StateWords, base: Moment, used: u64) -> StateWords;
        fn reset_at(state: StateWords, now: Moment) -> Moment;
        fn forgettable_at(state: StateWords, now: Moment) -> Moment;
        fn forgive(state: StateWords, now: Moment, cost: u64) -> StateWords;
        fn refund(state: StateWords, now: Moment, at: Moment, cost: u64) -> StateWords;
        #[inline(always)]
        fn note_denial(state: StateWords, now: Moment, cost: u64) -> StateWords;
        fn banned_until(state: StateWords, now: Moment) -> Option<Moment>;
        #[inline(always)] // one distinction of the rule instead of four
        fn report(state: StateWords, now: Moment, ahead: u64, cost: u64) -> LimitReport;
    }

    #[inline(always)]
    fn decide(&self, state: StateWords, now: Moment, cost: u64) -> Result<StateWords, Moment> {
        with_rule!(self, |rule| rule
            .decide(state.into(), now, cost)
            .map(Into::into))
    }

    fn take_over(&self, now: Moment, former: &Self, state: StateWords, ratio: Ratio) -> StateWords {
        match (self, former) {
            (Self::Window(rule), Self::Window(former)) => {
                rule.take_over(now, former, state.into(), ratio).into()
            }
            (Self::Counter(rule), Self::Counter(former)) => {
                rule.take_over(now, former, state.into(), ratio).into()
            }
            (Self::Penalty(rule), Self::Penalty(former)) => {
                rule.take_over(now, former, state.into(), ratio).into()
            }
            (Self::Pace(_) | Self::Window(_) | Self::Counter(_) | Self::Penalty(_), _) => {
                self.with_usage(now, former.usage(state, now), ratio)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_with_large_numbers_takes_two_words_and_is_not_decided_in_one() {
        let pace = |units| Rule::Pace(PaceRule::continuous(units, 1, units, units).unwrap());
        let decided = |rule: Rule| rule.decide_in_a_word(0, Moment::START, 1).is_some();
        let (narrow, wide) = (pace(1), pace(1_000));
        assert!(narrow.width() == 1 && decided(narrow));
        assert!(wide.width() == 2 && !decided(wide));
    }
}
