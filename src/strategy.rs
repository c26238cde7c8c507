//! The limits, one in each file: its data, its checks, its rule, its state. A rule holds the checked parameters and decides with
//! pure functions from (state, now, cost) to a verdict. All states except a log's are small and `Copy`. Nothing here reads a clock
//! or knows a runtime, so the same functions serve in a gate and in a table of keys.
//!
//! A verdict is a [`Result`]: `Ok` holds the state after the charge, and `Err` the instant until which the cost must wait.

mod adapt;
mod counts;
mod description;
mod fixed_window;
mod max_concurrency;
mod moment;
mod pace;
mod penalty;
mod rule;
mod sliding_window;
mod throttle;
mod token_bucket;
mod usage;

pub use adapt::{Adapt, Outcome};
pub use counts::{Counts, Unit};
pub use fixed_window::{Align, FixedWindow};
pub use max_concurrency::MaxConcurrency;
pub use penalty::Penalty;
pub use sliding_window::{SlidingMethod, SlidingWindow};
pub use throttle::Throttle;
pub use token_bucket::TokenBucket;

pub(crate) use adapt::{AdaptRule, AdaptState, Sample};
pub(crate) use description::{Describe, Description, Fault, Guards};
pub(crate) use fixed_window::WindowRule;
pub(crate) use max_concurrency::Places;
pub(crate) use moment::Moment;
pub(crate) use pace::{PaceRule, RefundBound, gcd};
pub(crate) use penalty::{Decay, PenaltyRule};
pub(crate) use rule::{LimitRule, Rule};
pub(crate) use sliding_window::{CounterRule, Grants, LogRule};
pub(crate) use usage::{Ratio, Usage};

/// The longest time that a limit may span (an interval times its burst, a window, a TTL): 100 years of 365 days.
///
/// A [`Moment`] reaches 584 years, so the sum of a span and an instant is exact in the first 484 years of a limiter.
pub(crate) const MAX_SPAN_NANOS: u64 = 100 * 365 * 24 * 3_600 * 1_000_000_000;

/// The state of a limit as plain words, as a table of keys stores it.
pub(crate) type StateWords = [u64; 2];

/// A rate at an instant, as a line: some parts are used, and parts are refilled at a constant rate. All numbers except the time
/// count parts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slope {
    pub(crate) parts_per_nano: u64,
    pub(crate) parts_per_unit: u64,
    /// The most that may be used at the same time.
    pub(crate) tolerance: u64,
    pub(crate) used: u64,
    /// How long the line is valid from that instant on, in nanoseconds.
    pub(crate) holds_for: u64,
}

/// The answer of one limit to a caller that does not wait.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LimitReport {
    /// `None` if the limit admits the request; [`Moment::NEVER`] if only a release helps.
    pub(crate) denied_until: Option<Moment>,
    pub(crate) remaining: u64,
    pub(crate) ready_at: Moment,
    pub(crate) reset_at: Moment,
}

/// The rule of one limit. `cost` is at least 1 and at most the capacity; `now` never steps back.
pub(crate) trait Strategy {
    type State: Copy + std::fmt::Debug + From<StateWords> + Into<StateWords>;

    /// The reset state.
    fn initial(&self, _now: Moment) -> Self::State {
        StateWords::default().into()
    }

    /// Whether `cost` is admitted now. `Ok`: yes, with this state afterwards. `Err`: not before this instant, which is exact if
    /// no other request comes, or [`Moment::NEVER`] if only a release helps.
    fn decide(&self, state: Self::State, now: Moment, cost: u64) -> Result<Self::State, Moment>;

    /// The state after `cost`, any number of units, was charged whether or not it is admitted: later requests wait for it.
    fn charge(&self, state: Self::State, now: Moment, cost: u64) -> Self::State;

    /// The earliest instant at which `cost` can be admitted when `ahead` units go first: a lower bound, and exact for `ahead` = 0
    /// if no other request comes. A limit that waits for releases answers `now`.
    fn ready_at(&self, state: Self::State, now: Moment, ahead: u64, cost: u64) -> Moment;

    /// How many units would be admitted now.
    fn remaining(&self, state: Self::State, now: Moment) -> u64;

    /// The usage now, debts included.
    fn usage(&self, state: Self::State, now: Moment) -> Usage;

    /// The state of a limit that starts with the usage of another one, instead of its own initial usage.
    fn with_usage(&self, now: Moment, usage: Usage, ratio: Ratio) -> Self::State {
        self.charge(StateWords::default().into(), now, ratio.of_whole(usage))
    }

    /// The state of a limit that starts with the usage of another limit of its kind. The rule may take over more than the number of
    /// units, for example when they were granted.
    fn take_over(
        &self,
        now: Moment,
        former: &Self,
        state: Self::State,
        ratio: Ratio,
    ) -> Self::State {
        self.with_usage(now, former.usage(state, now), ratio)
    }

    /// When the limit is reset, if nothing more is admitted. A limit that waits for releases answers `now`.
    fn reset_at(&self, state: Self::State, now: Moment) -> Moment;

    /// When a key in this state can be forgotten, if nothing more is admitted.
    fn forgettable_at(&self, state: Self::State, now: Moment) -> Moment {
        self.reset_at(state, now)
    }

    /// The state after up to `cost` units are refunded, whenever they were charged.
    fn forgive(&self, state: Self::State, now: Moment, cost: u64) -> Self::State;

    /// Refunds units that were charged at `at` and never used, as far as the state proves that the limit then still holds. The
    /// state of a pace cannot prove it; a [`RefundBound`] does.
    fn refund(&self, state: Self::State, _now: Moment, _at: Moment, _cost: u64) -> Self::State {
        state
    }

    /// The state after a request that does not wait was denied `cost`, by this limit or another one.
    fn note_denial(&self, state: Self::State, _now: Moment, _cost: u64) -> Self::State {
        state
    }

    /// The usage as a [`Slope`], if it falls at a constant rate at present and its numbers are not too large.
    fn slope(&self, _state: Self::State, _now: Moment) -> Option<Slope> {
        None
    }

    /// The state in which `used` parts of a [`Slope`] are used at `base`.
    fn with_used(&self, state: Self::State, _base: Moment, _used: u64) -> Self::State {
        state
    }

    /// The end of the ban, if there is one.
    fn banned_until(&self, _state: Self::State, _now: Moment) -> Option<Moment> {
        None
    }

    /// The report for a caller that does not wait, when `ahead` units wait before it.
    fn report(&self, state: Self::State, now: Moment, ahead: u64, cost: u64) -> LimitReport {
        let denied_until = self.decide(state, now, cost).err();
        LimitReport {
            denied_until,
            remaining: self.remaining(state, now),
            ready_at: if ahead == 0 {
                denied_until.unwrap_or(now)
            } else {
                self.ready_at(state, now, ahead, cost)
            },
            reset_at: self.reset_at(state, now),
        }
    }
}
