//! The limit `MaxConcurrency`.

use std::sync::Arc;
use std::time::Duration;

use super::counts::counts;
use super::description::{Fault, not_zero, span};
use super::{
    Adapt, AdaptState, Counts, Describe, Description, Guards, LimitReport, LimitRule, Moment,
    Sample,
};

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
#[must_use]
#[doc(alias("Bulkhead", "Semaphore"))]
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
    pub const fn new(limit: u64) -> Self {
        Self {
            limit,
            ttl: None,
            adapt: None,
            counts: Counts::Cost,
        }
    }

    setters! { const:
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
        pub ttl(ttl: Duration) => ttl = Some(ttl);

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
        pub adapt(adapt: Adapt) => adapt = Some(adapt);
    }

    pub(crate) const fn capacity(&self) -> u64 {
        match self.adapt {
            Some(adapt) => adapt.floor,
            None => self.limit,
        }
    }
}

getters!(MaxConcurrency {
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
    pub get_limit: limit -> u64,

    /// The TTL of a permit, if it has one. See [`MaxConcurrency::get_limit`].
    pub get_ttl: ttl -> Option<Duration>,

    /// How the limit adapts; `None`: it stays. See [`MaxConcurrency::get_limit`].
    pub get_adapt: adapt -> Option<Adapt>,
});

impl Describe for MaxConcurrency {
    type Rule = LimitRule;

    fn description(&self) -> Description {
        let (adapts, lease_ttl) = (self.adapt.is_some(), self.ttl);
        let capacity = if adapts { "floor" } else { "limit" };
        Description {
            lease_ttl,
            adapts,
            ..Description::new("concurrency", Guards::Capacity, capacity)
        }
    }

    fn window(&self, _capacity: u64) -> Option<Duration> {
        None
    }

    #[cfg(test)]
    fn samples() -> &'static [&'static str] {
        &[
            "8 concurrent",
            "8 concurrent ttl 30s",
            "20 concurrent gradient from 4 to 200",
            "20 concurrent aimd from 1 to 1000",
            "8 concurrent per request",
        ]
    }

    fn checked(&self, _since_epoch: Duration) -> Result<LimitRule, Fault> {
        let limit = not_zero(self.limit, Fault::ZeroLimit("limit"))?;
        self.ttl.map(|ttl| span("TTL", ttl)).transpose()?;
        self.adapt.map(|adapt| adapt.check()).transpose()?;
        Ok(LimitRule::Places(limit, self.adapt.map(Arc::new)))
    }
}

/// The state of a concurrency: its places. The TTL is not among it, because leases are not part of the state.
#[derive(Debug)]
pub(crate) struct Places {
    /// The units that may be in flight. Where they adapt, the adaptation says how many.
    pub(crate) limit: u64,
    /// The units in flight.
    pub(crate) in_use: u64,
    adaptation: Option<Box<(Arc<Adapt>, AdaptState)>>,
}

impl Places {
    pub(crate) fn new(limit: u64, adapt: Option<&Arc<Adapt>>) -> Self {
        let adaptation = adapt.map(|adapt| Box::new((Arc::clone(adapt), adapt.initial(limit))));
        let limit = adaptation
            .as_ref()
            .map_or(limit, |adaptation| adaptation.1.limit());
        Self {
            limit,
            in_use: 0,
            adaptation,
        }
    }

    /// A copy, whose limit stays as it is now.
    pub(crate) fn fixed(&self, now: Moment) -> Self {
        Self {
            limit: self.limit_at(now),
            in_use: self.in_use,
            adaptation: None,
        }
    }

    /// The units in flight after a grant of `cost`. `Err`, with [`Moment::NEVER`]: only a release helps.
    #[inline(always)]
    pub(crate) fn decide(&self, cost: u64) -> Result<u64, Moment> {
        match self.in_use.checked_add(cost) {
            Some(in_use) if in_use <= self.limit => Ok(in_use),
            _ => Err(Moment::NEVER),
        }
    }

    /// Makes a grant, after which this many units are in flight. An idle limit restarts here if that is due, because it is not
    /// observable before.
    #[inline(always)]
    pub(crate) fn proceed(&mut self, now: Moment, in_use: u64) {
        if let Some(adaptation) = &mut self.adaptation
            && self.in_use == 0
        {
            let (adapt, learnt) = &mut **adaptation;
            *learnt = adapt.while_idle(*learnt, now);
            self.limit = learnt.limit();
        }
        self.in_use = in_use;
    }

    /// `cost` units were released, refunded or reclaimed.
    #[inline(always)]
    pub(crate) fn release(&mut self, cost: u64) {
        debug_assert!(
            self.in_use >= cost,
            "{cost} units came back, {} were out",
            self.in_use
        );
        self.in_use = self.in_use.saturating_sub(cost);
    }

    /// A report changes the limit, if it adapts.
    pub(crate) fn learn(&mut self, now: Moment, sample: Sample) {
        if let Some(adaptation) = &mut self.adaptation {
            let (adapt, state) = &mut **adaptation;
            *state = adapt.update(*state, now, sample);
            self.limit = state.limit();
        }
    }

    /// The units that may be in flight at `now`.
    #[inline(always)]
    pub(crate) fn limit_at(&self, now: Moment) -> u64 {
        match self.adaptation.as_deref() {
            Some((adapt, learnt)) if self.in_use == 0 => adapt.while_idle(*learnt, now).limit(),
            _ => self.limit,
        }
    }

    /// When it is reset, if nothing is in flight and nothing more is admitted.
    pub(crate) fn reset_at(&self, now: Moment) -> Moment {
        self.adaptation
            .as_ref()
            .map_or(now, |adaptation| adaptation.0.reset_at(&adaptation.1, now))
    }

    /// See [`Strategy::report`](super::Strategy::report).
    #[inline(always)]
    pub(crate) fn report(&self, now: Moment, ahead: u64, cost: u64) -> LimitReport {
        let present = self.fixed(now);
        let denied_until = present.decide(cost).err();
        LimitReport {
            denied_until,
            remaining: present.limit.saturating_sub(present.in_use),
            ready_at: denied_until.filter(|_| ahead == 0).unwrap_or(now),
            reset_at: self.reset_at(now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_limit_and_cost_do_not_overflow() {
        let mut places = Places::new(u64::MAX, None);
        let in_use = places.decide(u64::MAX).unwrap();
        places.proceed(Moment::START, in_use);
        assert_eq!(places.decide(1), Err(Moment::NEVER));
        places.release(3);
        assert_eq!(places.report(Moment::START, 0, 1).remaining, 3);
    }

    /// When the places are released is not known; with others ahead, nothing is known at all.
    #[test]
    fn a_report_of_places_that_are_in_use_names_no_instant() {
        let mut places = Places::new(2, None);
        places.proceed(Moment::START, 2);
        let ready_at = |ahead| places.report(Moment::START, ahead, 1).ready_at;
        assert_eq!((ready_at(0), ready_at(1)), (Moment::NEVER, Moment::START));
    }
}
