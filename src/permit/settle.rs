//! How a permit ends otherwise than by its drop: with what its work has cost, or with a report.

use super::Permit;
use crate::core::costs::{Actual, UnitCosts};
use crate::strategy::{Outcome, Unit};

impl Permit {
    /// Releases the permit and replaces the estimated cost that it was acquired for by the actual one. Units that were not used are
    /// refunded; units above the estimate are a debt, for which later requests wait. This is for work whose cost is known only
    /// afterwards, such as bytes or model tokens. A permit that is dropped instead keeps its estimate.
    ///
    /// Only the rates of the policy are settled; a place is released whole. A refund never lets the grants made since then exceed
    /// the limit: units that the bucket or window has refilled in the meantime are not given back again. With a small burst under
    /// load, that can be less than the difference. A throttle or a token bucket refunds at most what of its usage after the grant
    /// has not been refilled since. More is known, and refunded, with [`exact_refunds`](crate::LimiterBuilder::exact_refunds), in a
    /// policy of several limits, and in a keyed limiter: there the least usage that later grants have found is the bound, which is
    /// remembered of at least the 250 latest instants of grants. A debt is paid off at the rate of the limit; in a
    /// [log](crate::SlidingWindow::log) it expires after one period, however large it is.
    ///
    /// Returns whether the permit was live. A permit whose TTL has passed changes nothing. Neither does one that was granted
    /// [without a store](crate::store::OnStoreDown::Allow). A permit of a rate of a [`KeyedLimiter`](crate::KeyedLimiter#permits) has no
    /// handle of its limiter: `settle` changes nothing and returns `false`, unless the limiter was built with
    /// [`settle_permits`](crate::KeyedLimiterBuilder::settle_permits).
    ///
    /// Of a [shared limiter](crate::SharedLimiter), a store that does not keep past grants refunds nothing to a throttle or a token
    /// bucket: the SQL stores, and each store over [`Rules`](crate::store::Rules). They refund to windows and penalties, and charge
    /// debts to all limits. [`MemoryStore`](crate::store::MemoryStore) refunds to all, as a [`Limiter`](crate::Limiter) does.
    ///
    /// ```
    /// use tollgate::{Limiter, Rate, TokenBucket};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let tokens = Limiter::new(TokenBucket::new(Rate::per_minute(1_000), 1_000))?;
    /// let permit = tokens.acquire_many(600).await?; // an estimate
    /// assert!(permit.settle(250));
    /// assert_eq!(tokens.check(1).remaining(), 750);
    ///
    /// assert!(tokens.acquire_many(700).await?.settle(900));
    /// assert_eq!(tokens.check(1).remaining(), 0);
    /// let retry_after = tokens.check(1).retry_after();
    /// assert_eq!(retry_after, Some(std::time::Duration::from_millis(9_060))); // a debt of 150, and one unit
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "`false` says that nothing was settled: the permit was reclaimed, or has no handle of its limiter"]
    pub fn settle(self, actual_cost: u64) -> bool {
        self.settle_as(Actual::Cost(actual_cost))
    }

    /// [`Permit::settle`] for units that its limits [count](crate::Counts), which has an example: replaces the estimate of each unit
    /// that is given, and leaves that of the others and the plain cost. A unit that no limit counts changes nothing.
    ///
    /// ```
    /// # use tollgate::Limiter;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new("40000 input_tokens/min and 8000 output_tokens/min")?;
    /// let request = limiter.request().cost_of("input_tokens", 900).cost_of("output_tokens", 4_096);
    /// let permit = request.clone().acquire().await?;
    /// let (input, output) = (912, 350); // as the answer says
    /// assert!(permit.settle_costs([("input_tokens", input), ("output_tokens", output)]));
    /// assert_eq!(request.check().remaining(), 8_000 - output);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "`false` says that nothing was settled: the permit was reclaimed, or has no handle of its limiter"]
    pub fn settle_costs<'a>(self, actual: impl IntoIterator<Item = (&'a str, u64)>) -> bool {
        let mut units = UnitCosts::default();
        actual.into_iter().for_each(|(unit, cost)| units.set(Unit::new(unit), cost));
        self.settle_as(Actual::Units(&units))
    }

    fn settle_as(mut self, actual: Actual<'_>) -> bool {
        self.take_limiter().is_some_and(|manager| manager.settle(self.grant, self.cost, actual))
    }

    /// Releases the permit and reports how its work went. A [concurrency that adapts](crate::Adapt) learns from the outcome and
    /// from the time since the grant. Dropping the permit reports nothing, like [`Outcome::Ignored`]. Returns whether the permit
    /// was live.
    ///
    /// ```
    /// use tollgate::{Adapt, Limiter, MaxConcurrency, Outcome};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(MaxConcurrency::new(20).adapt(Adapt::aimd()))?;
    /// let permit = limiter.acquire().await?;
    /// permit.report(Outcome::Overloaded); // the server answered 503
    /// assert_eq!(limiter.snapshot().concurrency, Some(18));
    /// # Ok(())
    /// # }
    /// ```
    #[expect(clippy::must_use_candidate, reason = "a report that came too late changes nothing for its holder")]
    pub fn report(mut self, outcome: Outcome) -> bool {
        self.take_limiter().is_some_and(|manager| manager.report(self.grant, self.cost, outcome))
    }

    /// Whether it may hold a place. One that holds none has nothing to [report](Permit::report), and its limiter would have to be looked
    /// for.
    #[cfg(feature = "http")]
    pub(crate) fn may_hold_place(&self) -> bool {
        self.manager.is_some()
    }

    /// Undoes the grant, because the work did not start: [settles](Permit::settle) at a cost of 0, in every unit.
    ///
    /// ```
    /// # use tollgate::{Limiter, Rate, TokenBucket};
    /// let limiter = Limiter::new(TokenBucket::new(Rate::per_minute(10), 10))?;
    /// assert!(limiter.try_acquire_many(4)?.refund());
    /// assert_eq!(limiter.check(1).remaining(), 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use = "`false` says that nothing was refunded: the permit was reclaimed, or has no handle of its limiter"]
    pub fn refund(self) -> bool {
        self.settle_as(Actual::Nothing)
    }
}
