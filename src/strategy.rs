//! One limit a file. Each is a set of parameters, a small `Copy` state, and pure functions from (parameters, state, now, cost)
//! to a verdict. Nothing here reads a clock, knows a runtime, or allocates, so the same functions serve under a gate's mutex,
//! in a table of keys, and as the oracle of a shared store.

mod adapt;
mod fixed_window;
mod max_concurrency;
mod moment;
mod pace;
mod penalty;
mod rule;
mod sliding_window;
mod throttle;
mod token_bucket;

pub use adapt::{Adapt, Outcome};
pub use fixed_window::{Align, FixedWindow};
pub use max_concurrency::MaxConcurrency;
pub use penalty::Penalty;
pub use sliding_window::{SlidingMethod, SlidingWindow};
pub use throttle::Throttle;
pub use token_bucket::TokenBucket;

pub(crate) use adapt::{AdaptRule, AdaptState, Sample};
pub(crate) use fixed_window::WindowRule;
pub(crate) use max_concurrency::{ConcurrencyRule, ConcurrencyState};
pub(crate) use moment::Moment;
pub(crate) use pace::{PaceRule, PaceState, RefundBound};
pub(crate) use penalty::{Decay, PenaltyRule};
pub(crate) use rule::Rule;
pub(crate) use sliding_window::{CounterRule, Log, LogRule};

/// The longest time that a limit may span (an interval times its burst, a window, a TTL): 100 years of 365 days.
///
/// 64 bits of nanoseconds hold 584 years, so no sum of a present instant and a span overflows.
pub(crate) const MAX_SPAN_NANOS: u64 = 100 * 365 * 24 * 3_600 * 1_000_000_000;

/// The state of a limit as plain words, for where it is kept among millions.
pub(crate) type StateWords = [u64; 2];

/// What a limit says to a cost at an instant, given its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict<S> {
    /// Admitted; the state after the charge.
    Granted(S),
    /// Denied: not before this instant, which is exact when nobody else comes.
    WaitUntil(Moment),
    /// Denied until somebody releases.
    WaitForRelease,
}

impl<S> Verdict<S> {
    /// The state after the charge, or until when to wait: [`Moment::NEVER`] where it takes a release.
    #[inline(always)]
    pub(crate) fn wait(self) -> Result<S, Moment> {
        match self {
            Self::Granted(state) => Ok(state),
            Self::WaitUntil(at) => Err(at),
            Self::WaitForRelease => Err(Moment::NEVER),
        }
    }
}

/// What one limit answers to all that a caller can ask who does not wait.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LimitReport {
    /// `None` where it admits; [`Moment::NEVER`] where that takes a release.
    pub(crate) denied_until: Option<Moment>,
    pub(crate) remaining: u64,
    pub(crate) ready_at: Moment,
    pub(crate) reset_at: Moment,
}

/// The rule of one limit. `cost` is at least 1 and at most what the limit holds when new; `now` never steps back.
pub(crate) trait Strategy {
    type State: Copy + std::fmt::Debug + From<StateWords> + Into<StateWords>;

    /// The state when new.
    fn initial(&self, now: Moment) -> Self::State;

    /// Would `cost` be admitted now, and with which state afterwards?
    fn decide(&self, state: Self::State, now: Moment, cost: u64) -> Verdict<Self::State>;

    /// The state after `cost`, any number of units, was charged whether or not it is admitted: those who come later wait for it.
    fn charge(&self, state: Self::State, now: Moment, cost: u64) -> Self::State;

    /// The earliest instant at which `cost` can be admitted when `ahead` units go first. A lower bound; exact for `ahead` = 0
    /// when nobody else comes. A limit that waits for releases cannot tell and answers `now`.
    fn ready_at(&self, state: Self::State, now: Moment, ahead: u64, cost: u64) -> Moment;

    /// Units that would be admitted now.
    fn remaining(&self, state: Self::State, now: Moment) -> u64;

    /// Units that stand against it now, debts and all; a part of one counts as one.
    fn used(&self, state: Self::State, now: Moment) -> u64;

    /// When the limit is as good as new, if nothing more is admitted. A limit that waits for releases answers `now`.
    fn reset_at(&self, state: Self::State, now: Moment) -> Moment;

    /// The state after up to `cost` units are let off, whenever they were charged: what whoever owns the limit may do.
    fn forgive(&self, state: Self::State, now: Moment, cost: u64) -> Self::State;

    /// All that a caller who does not wait is told, when `ahead` units wait before him.
    fn report(&self, state: Self::State, now: Moment, ahead: u64, cost: u64) -> LimitReport {
        LimitReport {
            denied_until: self.decide(state, now, cost).wait().err(),
            remaining: self.remaining(state, now),
            ready_at: self.ready_at(state, now, ahead, cost),
            reset_at: self.reset_at(state, now),
        }
    }
}
