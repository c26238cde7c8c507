use super::{CounterRule, Moment, PaceRule, PenaltyRule, StateWords, Strategy, Verdict, WindowRule};

/// The rule of any limit of time whose state is two words: in a gate, and for each of a million keys.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Rule {
    Pace(PaceRule),
    Window(WindowRule),
    Counter(CounterRule),
    Penalty(PenaltyRule),
}

/// Asks the rule within a question.
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
    /// How many words its state needs where it is kept among millions.
    pub(crate) fn width(&self) -> usize {
        match self {
            Self::Pace(rule) if rule.fits_a_word() => 1,
            _ => 2,
        }
    }

    /// Takes back what was charged at `at` and never used, as far as that is known not to let anything over the limit. A pace
    /// knows it from a [`RefundBound`](super::RefundBound), which is not here.
    pub(crate) fn refund(&self, state: StateWords, now: Moment, at: Moment, cost: u64) -> StateWords {
        match self {
            Self::Pace(_) => state,
            Self::Window(rule) => rule.refund(state.into(), at, cost).into(),
            Self::Counter(rule) => rule.refund(state.into(), at, cost).into(),
            Self::Penalty(rule) => rule.refund(state.into(), now, at, cost).into(),
        }
    }

    /// The state after somebody who does not wait was denied `cost`, by this limit or another one.
    pub(crate) fn note_denial(&self, state: StateWords, now: Moment, cost: u64) -> StateWords {
        match self {
            Self::Penalty(rule) => rule.note_denial(state.into(), now, cost).into(),
            _ => state,
        }
    }

    /// Whether a denial changes its state.
    pub(crate) fn counts_denials(&self) -> bool {
        matches!(self, Self::Penalty(_))
    }
}

impl Strategy for Rule {
    type State = StateWords;

    fn initial(&self, now: Moment) -> StateWords {
        with_rule!(self, |rule| rule.initial(now).into())
    }

    #[inline(always)]
    fn decide(&self, state: StateWords, now: Moment, cost: u64) -> Verdict<StateWords> {
        with_rule!(self, |rule| match rule.decide(state.into(), now, cost) {
            Verdict::Granted(state) => Verdict::Granted(state.into()),
            Verdict::WaitUntil(at) => Verdict::WaitUntil(at),
            Verdict::WaitForRelease => Verdict::WaitForRelease,
        })
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

    fn used(&self, state: StateWords, now: Moment) -> u64 {
        with_rule!(self, |rule| rule.used(state.into(), now))
    }

    fn reset_at(&self, state: StateWords, now: Moment) -> Moment {
        with_rule!(self, |rule| rule.reset_at(state.into(), now))
    }

    fn forgive(&self, state: StateWords, now: Moment, cost: u64) -> StateWords {
        with_rule!(self, |rule| rule.forgive(state.into(), now, cost).into())
    }
}
