//! The rule of any limit: one type that dispatches to the rule of each kind.

use std::sync::Arc;

use super::{
    Adapt, ConcurrencyRule, CounterRule, LimitReport, LogRule, Moment, PaceRule, PenaltyRule,
    Ratio, StateWords, Strategy, Usage, WindowRule,
};

/// The rule of any limit. The states of many keys share the larger ones.
#[derive(Debug, Clone)]
pub(crate) enum LimitRule {
    Pace(Arc<PaceRule>),
    /// Another rule whose state is two words.
    Words(Arc<Rule>),
    /// Its state is a list of grants.
    Log(LogRule),
    /// It counts the units in flight. Its limit may adapt.
    Places(ConcurrencyRule, Option<Arc<Adapt>>),
}

impl LimitRule {
    /// The rule, where its state is two words.
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
            Self::Places(rule, adapt) => {
                Self::Places(*rule, adapt.as_deref().copied().map(Arc::new))
            }
        }
    }
}

impl From<Rule> for LimitRule {
    fn from(rule: Rule) -> Self {
        match rule {
            Rule::Pace(rule) => Self::Pace(Arc::new(rule)),
            rule => Self::Words(Arc::new(rule)),
        }
    }
}

/// The rule of a limit whose state is two words at most, in a gate or in a table of keys.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Rule {
    Pace(PaceRule),
    Window(WindowRule),
    Counter(CounterRule),
    Penalty(PenaltyRule),
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

impl Rule {
    /// How many words its state takes in a table of keys.
    pub(crate) fn width(&self) -> usize {
        match self {
            Self::Pace(rule) if rule.fits_a_word() => 1,
            Self::Pace(_) | Self::Window(_) | Self::Counter(_) | Self::Penalty(_) => 2,
        }
    }

    /// [`Strategy::decide`] in 64 bits, where the state takes one word in a table of keys. See [`PaceRule::decide_in_a_word`].
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

    /// Refunds units that were charged at `at` and never used, as far as the state proves that the limit then still holds. The
    /// state of a pace cannot prove it; a [`RefundBound`](super::RefundBound) does.
    pub(crate) fn refund(
        &self,
        state: StateWords,
        now: Moment,
        at: Moment,
        cost: u64,
    ) -> StateWords {
        match self {
            Self::Pace(_) => state,
            Self::Window(rule) => rule.refund(state.into(), at, cost).into(),
            Self::Counter(rule) => rule.refund(state.into(), at, cost).into(),
            Self::Penalty(rule) => rule.refund(state.into(), now, at, cost).into(),
        }
    }

    /// The state after a request that does not wait was denied `cost`, by this limit or another one.
    #[inline(always)]
    pub(crate) fn note_denial(&self, state: StateWords, now: Moment, cost: u64) -> StateWords {
        match self {
            Self::Penalty(rule) => rule.note_denial(state.into(), now, cost).into(),
            Self::Pace(_) | Self::Window(_) | Self::Counter(_) => state,
        }
    }

    /// The end of the ban, if there is one.
    pub(crate) fn banned_until(&self, state: StateWords, now: Moment) -> Option<Moment> {
        match self {
            Self::Penalty(rule) => rule.banned_until(state.into(), now),
            Self::Pace(_) | Self::Window(_) | Self::Counter(_) => None,
        }
    }

    /// See [`PenaltyRule::ban_begun`].
    pub(crate) fn ban_begun(&self, now: Moment, remaining: u64, reset_at: Moment) -> Option<u64> {
        match self {
            Self::Penalty(rule) => rule.ban_begun(now, remaining, reset_at),
            Self::Pace(_) | Self::Window(_) | Self::Counter(_) => None,
        }
    }

    /// Whether a denial changes its state.
    pub(crate) fn counts_denials(&self) -> bool {
        match self {
            Self::Penalty(_) => true,
            Self::Pace(_) | Self::Window(_) | Self::Counter(_) => false,
        }
    }

    /// The state of a limit that starts with the usage of another one. From a limit of its own kind it takes over more than a
    /// number of units.
    pub(crate) fn take_over(
        &self,
        now: Moment,
        former: &Self,
        state: StateWords,
        ratio: Ratio,
    ) -> StateWords {
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

    /// When a key in this state can be forgotten, if nothing more is admitted: when it is reset, or
    /// [later](PaceRule::forgettable_at).
    pub(crate) fn forgettable_at(&self, state: StateWords, now: Moment) -> Moment {
        match self {
            Self::Pace(rule) => rule.forgettable_at(state.into(), now),
            Self::Window(_) | Self::Counter(_) | Self::Penalty(_) => self.reset_at(state, now),
        }
    }
}

impl Strategy for Rule {
    type State = StateWords;

    fn initial(&self, now: Moment) -> StateWords {
        with_rule!(self, |rule| rule.initial(now).into())
    }

    #[inline(always)]
    fn decide(&self, state: StateWords, now: Moment, cost: u64) -> Result<StateWords, Moment> {
        with_rule!(self, |rule| rule
            .decide(state.into(), now, cost)
            .map(Into::into))
    }

    fn charge(&self, state: StateWords, now: Moment, cost: u64) -> StateWords {
        with_rule!(self, |rule| rule.charge(state.into(), now, cost).into())
    }

    fn ready_at(&self, state: StateWords, now: Moment, ahead: u64, cost: u64) -> Moment {
        with_rule!(self, |rule| rule.ready_at(state.into(), now, ahead, cost))
    }

    fn remaining(&self, state: StateWords, now: Moment) -> u64 {
        with_rule!(self, |rule| rule.remaining(state.into(), now))
    }

    fn usage(&self, state: StateWords, now: Moment) -> Usage {
        with_rule!(self, |rule| rule.usage(state.into(), now))
    }

    fn with_usage(&self, now: Moment, usage: Usage, ratio: Ratio) -> StateWords {
        with_rule!(self, |rule| rule.with_usage(now, usage, ratio).into())
    }

    fn reset_at(&self, state: StateWords, now: Moment) -> Moment {
        with_rule!(self, |rule| rule.reset_at(state.into(), now))
    }

    fn forgive(&self, state: StateWords, now: Moment, cost: u64) -> StateWords {
        with_rule!(self, |rule| rule.forgive(state.into(), now, cost).into())
    }

    /// One distinction of the rule instead of four.
    #[inline(always)]
    fn report(&self, state: StateWords, now: Moment, ahead: u64, cost: u64) -> LimitReport {
        with_rule!(self, |rule| rule.report(state.into(), now, ahead, cost))
    }
}
