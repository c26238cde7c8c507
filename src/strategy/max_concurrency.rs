use std::time::Duration;

use super::check::{Fault, at_least_one, span};
use super::counts::counts;
use super::{Adapt, Counts, Moment, StateWords, Strategy, Usage};

/// At most `limit` units in flight at the same time, the sum of the permits' costs. With a TTL, a leaked permit is reclaimed.
///
/// ```text
/// limit 2              |a------|   c--------|
///                      |b----------|   d-------|           c waits for a or b to be released, d for the next release
/// .ttl(..)             |a (leaked) ........X c---|         X: reclaimed; a's late drop changes nothing
/// ```
///
/// Worst burst: `limit` units in one instant, and as many again when they are released. It bounds how much runs at once, not
/// how much starts in a second; combine it with a rate for both.
///
/// # Examples
///
/// ```
/// use tollgate::{Limiter, MaxConcurrency};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(MaxConcurrency::new(2))?;
/// let first = limiter.acquire().await?;
/// let _second = limiter.acquire().await?;
/// assert!(limiter.try_acquire().is_err());
/// drop(first);
/// assert!(limiter.try_acquire().is_ok());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MaxConcurrency {
    pub(crate) limit: u64,
    pub(crate) ttl: Option<Duration>,
    pub(crate) adapt: Option<Adapt>,
    pub(crate) counts: Counts,
}

counts!(MaxConcurrency);

impl MaxConcurrency {
    /// At most `limit` units in flight at the same time (at least 1; checked when a limiter is built). The limit is also the
    /// largest cost of one request.
    ///
    /// See the [type's example](MaxConcurrency#examples).
    #[must_use]
    pub const fn new(limit: u64) -> Self {
        Self { limit, ttl: None, adapt: None, counts: Counts::Cost }
    }

    /// Reclaims a permit that is not released `ttl` (1 ns to 100 years) after its grant, within one tick of tokio's timer (1 ms),
    /// whether or not a request waits. [`Permit::renew`](crate::Permit::renew) restarts the TTL;
    /// [`Permit::reclaimed`](crate::Permit::reclaimed) notifies the holder.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tollgate::{Limiter, MaxConcurrency};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(MaxConcurrency::new(1).ttl(Duration::from_secs(30)))?;
    /// std::mem::forget(limiter.acquire().await?); // leaked
    /// let start = tokio::time::Instant::now();
    /// let _permit = limiter.acquire().await?;
    /// assert_eq!(start.elapsed(), Duration::from_secs(30));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn ttl(self, ttl: Duration) -> Self {
        Self { ttl: Some(ttl), ..self }
    }

    /// Adapts the limit to the [reports](crate::Permit::report) of the work; see [`Adapt`]. It starts at the limit of this
    /// policy, or the nearest value between floor and ceiling.
    ///
    /// The largest cost of one request is the floor, since the limit may stay there.
    ///
    /// ```
    /// use tollgate::{Adapt, Limiter, MaxConcurrency};
    ///
    /// let limiter = Limiter::new(MaxConcurrency::new(20).adapt(Adapt::gradient().between(4, 200)))?;
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[must_use]
    pub const fn adapt(self, adapt: Adapt) -> Self {
        Self { adapt: Some(adapt), ..self }
    }

    /// The limit, in units.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tollgate::MaxConcurrency;
    ///
    /// let slots = MaxConcurrency::new(8).ttl(Duration::from_secs(30));
    /// assert_eq!((slots.get_limit(), slots.get_ttl()), (8, Some(Duration::from_secs(30))));
    /// assert_eq!(slots.get_adapt(), None);
    /// assert_eq!(slots.to_string(), "8 concurrent ttl 30s");
    /// ```
    #[must_use]
    pub const fn get_limit(&self) -> u64 {
        self.limit
    }

    /// The TTL of a permit, if it has one. See [`MaxConcurrency::get_limit`].
    #[must_use]
    pub const fn get_ttl(&self) -> Option<Duration> {
        self.ttl
    }

    /// How the limit adapts; `None`: it stays. See [`MaxConcurrency::get_limit`].
    #[must_use]
    pub const fn get_adapt(&self) -> Option<Adapt> {
        self.adapt
    }

    pub(crate) fn rule(&self) -> Result<ConcurrencyRule, Fault> {
        let limit = at_least_one("limit", self.limit)?;
        self.ttl.map(|ttl| span("TTL", ttl)).transpose()?;
        self.adapt.map(|adapt| adapt.check()).transpose()?;
        Ok(ConcurrencyRule { limit })
    }
}

/// The parameters of a [`MaxConcurrency`], checked. The TTL is not among them: leases are not part of the state.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConcurrencyRule {
    pub(crate) limit: u64,
}

/// Units out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ConcurrencyState {
    pub(crate) in_use: u64,
}

impl From<StateWords> for ConcurrencyState {
    fn from([in_use, _]: StateWords) -> Self {
        Self { in_use }
    }
}

impl From<ConcurrencyState> for StateWords {
    fn from(ConcurrencyState { in_use }: ConcurrencyState) -> Self {
        [in_use, 0]
    }
}

impl ConcurrencyState {
    /// The state after `cost` units were released, refunded or reclaimed.
    pub(crate) fn release(self, cost: u64) -> Self {
        debug_assert!(self.in_use >= cost, "{cost} units came back, {} were out", self.in_use);
        Self { in_use: self.in_use.saturating_sub(cost) }
    }
}

impl Strategy for ConcurrencyRule {
    type State = ConcurrencyState;

    fn initial(&self, _now: Moment) -> ConcurrencyState {
        ConcurrencyState::default()
    }

    fn charge(&self, state: ConcurrencyState, _now: Moment, cost: u64) -> ConcurrencyState {
        ConcurrencyState { in_use: state.in_use.saturating_add(cost) }
    }

    fn decide(&self, state: ConcurrencyState, _now: Moment, cost: u64) -> Result<ConcurrencyState, Moment> {
        match state.in_use.checked_add(cost) {
            Some(in_use) if in_use <= self.limit => Ok(ConcurrencyState { in_use }),
            _ => Err(Moment::NEVER),
        }
    }

    fn ready_at(&self, _state: ConcurrencyState, now: Moment, _ahead: u64, _cost: u64) -> Moment {
        now
    }

    fn remaining(&self, state: ConcurrencyState, _now: Moment) -> u64 {
        self.limit.saturating_sub(state.in_use)
    }

    fn usage(&self, state: ConcurrencyState, _now: Moment) -> Usage {
        Usage::of_units(state.in_use)
    }

    fn reset_at(&self, _state: ConcurrencyState, now: Moment) -> Moment {
        now
    }

    fn forgive(&self, state: ConcurrencyState, _now: Moment, _cost: u64) -> ConcurrencyState {
        state // units in flight stay in flight
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_limit_and_cost_do_not_overflow() {
        let rule = ConcurrencyRule { limit: u64::MAX };
        let Ok(state) = rule.decide(ConcurrencyState::default(), Moment::START, u64::MAX) else { panic!() };
        assert_eq!(rule.decide(state, Moment::START, 1), Err(Moment::NEVER));
        assert_eq!(rule.remaining(state.release(3), Moment::START), 3);
    }
}
