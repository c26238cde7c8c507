//! A permit: the guard that a caller holds, and how it is split and merged.

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::time::Instant;

use crate::core::arena::Index;
use crate::core::request::{Actual, Claim, CostDetails, Grant};
use crate::manager::{ClockOrigin, FromGrant, Manager, TimedGrant, Watch, nonzero_nanos};
use crate::permit_id::PermitId;
use crate::strategy::{Moment, Outcome, Unit};

/// A granted permit; dropping it **releases** it.
///
/// The effect of the release depends on the policy. A place of a [`MaxConcurrency`](crate::MaxConcurrency) goes to the next
/// waiter, also when the holder panics. The units of a rate stay spent: a permit of a rate holds no place, and dropping it costs
/// nothing.
///
/// # Reclaim
///
/// With a [TTL](crate::MaxConcurrency::ttl), a permit that is not released in time is *reclaimed*: its place goes to others,
/// although its holder may still be at work. The holder can [await the reclaim](Permit::reclaimed), [check](Permit::is_live) for
/// it, or [postpone it](Permit::renew). No call on a reclaimed permit has an effect. A downstream store that keeps the highest
/// [fence](Permit::fence) of all calls can refuse a late holder.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limiter, MaxConcurrency};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(MaxConcurrency::new(1).ttl(Duration::from_secs(10)))?;
/// let permit = limiter.acquire().await?;
/// tokio::time::sleep(Duration::from_secs(6)).await;
/// assert!(permit.renew());
/// tokio::time::sleep(Duration::from_secs(6)).await;
/// assert!(permit.is_live());
/// permit.reclaimed().await;
/// assert!(!permit.is_live() && !permit.renew());
/// # Ok(())
/// # }
/// ```
///
/// # Mistakes that the compiler catches
///
/// The compiler warns (`unused_must_use`) about a permit that is not bound to a name and so is released at once, about a future
/// that is not awaited, and about a renewal whose result is not used:
///
/// ```compile_fail
/// # #![deny(unused_must_use)]
/// # use tollgate::{Limiter, MaxConcurrency};
/// # let limiter = Limiter::new(MaxConcurrency::new(8))?;
/// limiter.try_acquire()?; // `let _ = …` is not caught
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// ```compile_fail
/// # #![deny(unused_must_use)]
/// # use tollgate::{Limiter, MaxConcurrency};
/// # let limiter = Limiter::new(MaxConcurrency::new(8))?;
/// limiter.acquire();
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
///
/// ```compile_fail
/// # #![deny(unused_must_use)]
/// # use tollgate::{Limiter, MaxConcurrency};
/// # let limiter = Limiter::new(MaxConcurrency::new(8))?;
/// let permit = limiter.try_acquire()?;
/// permit.renew();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A permit that was released cannot be used, nor released again:
///
/// ```compile_fail,E0382
/// # use tollgate::{Limiter, MaxConcurrency};
/// # let limiter = Limiter::new(MaxConcurrency::new(8))?;
/// let permit = limiter.try_acquire()?;
/// permit.release();
/// permit.release();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a permit is released as soon as it is dropped"]
pub struct Permit {
    // In another order, the compiler may move words as a block that were written one by one, which stalls the processor for longer than
    // a call takes. So the fields that a drop does not read stand together, and `origin` is not beside `at`, as it is in a
    // `TimedGrant`.
    /// `None` after `forget`, and for a permit that holds nothing. If the limiter of such a permit can be found, it is found by
    /// `id_prefix`.
    manager: Option<Arc<Manager>>,
    cost: u64,
    /// The origin of the clock that `at` was read from.
    origin: ClockOrigin,
    /// Set only while `manager` is `None`.
    id_prefix: u64,
    /// As in the [`Grant`], as are the next two.
    at: Moment,
    fence: u64,
    claim: Claim,
}

impl Permit {
    /// Splits `units` off into a permit of their own: 1 to one less than the [cost](Permit::cost). Each part releases its own
    /// units, and can be settled, refunded, reported, split and [merged](Permit::merge) by itself. Both parts are of the same
    /// grant, so they have the same [id](Permit::id), [fence](Permit::fence) and time.
    ///
    /// # Errors
    ///
    /// A [`SplitError`] for a number outside this range, and for a permit that cannot be split: of rates only, with a TTL, or of
    /// a policy that counts requests or named units. The permit then stays as it is.
    ///
    /// ```
    /// use tollgate::{Limiter, MaxConcurrency};
    ///
    /// let limiter = Limiter::new(MaxConcurrency::new(8))?;
    /// let mut permit = limiter.try_acquire_many(5)?;
    /// let part = permit.split(2)?;
    /// assert_eq!((permit.cost(), part.cost()), (3, 2));
    /// drop(permit);
    /// assert_eq!(limiter.available(), 6);
    /// drop(part);
    /// assert_eq!(limiter.available(), 8);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn split(&mut self, units: u64) -> Result<Self, SplitError> {
        self.check_divisible()?;
        let cost = self.cost;
        if units == 0 || units >= cost {
            return Err(SplitError::OutOfRange { units, cost });
        }
        self.cost -= units;
        Ok(Self {
            manager: self.manager.clone(),
            cost: units,
            ..*self
        })
    }

    /// Adds the units of `other` to this permit. The two may be parts of one permit. They may also be of two requests if no limit
    /// of the policy needs the time of a grant, so that the policy is of plain [`MaxConcurrency`](crate::MaxConcurrency). The
    /// permit keeps its own [id](Permit::id) and [fence](Permit::fence).
    ///
    /// # Errors
    ///
    /// A [`MergeError`] with the other permit, if the two are of different limiters or keys, of different grants whose time
    /// matters, or of a kind that cannot be [split](Permit::split). Nothing has changed then.
    ///
    /// ```
    /// use tollgate::{Limiter, MaxConcurrency, MergeErrorKind};
    ///
    /// let limiter = Limiter::new(MaxConcurrency::new(8))?;
    /// let mut permit = limiter.try_acquire_many(2)?;
    /// permit.merge(limiter.try_acquire_many(3)?)?;
    /// assert_eq!(permit.cost(), 5);
    ///
    /// let other = Limiter::new(MaxConcurrency::new(1))?;
    /// let error = permit.merge(other.try_acquire()?).unwrap_err();
    /// assert_eq!((error.kind, error.permit.cost()), (MergeErrorKind::OtherLimiter, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn merge(&mut self, mut other: Self) -> Result<(), MergeError> {
        if let Err(kind) = self.check_mergeable(&other) {
            return Err(MergeError {
                kind,
                permit: other,
            });
        }
        self.cost = self.cost.saturating_add(other.cost);
        other.manager = None; // its drop releases nothing
        Ok(())
    }

    /// Checks that the permit holds a place by the plain cost. Only such a place is divisible: other units are recorded for the
    /// whole grant, under its fence or its lease.
    fn check_divisible(&self) -> Result<(), SplitError> {
        match self.claim {
            Claim::PLACE => Ok(()),
            claim if claim.lease().is_some() => Err(SplitError::HasTtl),
            claim if claim.names_units() => Err(SplitError::CountsByUnit),
            _ => Err(SplitError::NoPlace),
        }
    }

    fn check_mergeable(&self, other: &Self) -> Result<(), MergeErrorKind> {
        self.check_divisible()
            .and_then(|()| other.check_divisible())
            .map_err(MergeErrorKind::Indivisible)?;
        if !self
            .manager
            .iter()
            .zip(&other.manager)
            .any(|(manager, other)| Arc::ptr_eq(manager, other))
        {
            return Err(MergeErrorKind::OtherLimiter);
        }
        // The bound of a refund depends on the later grants, and a sample is timed from the grant.
        let is_timeless = self.at == Moment::NEVER && other.at == Moment::NEVER;
        if self.fence == other.fence || is_timeless {
            Ok(())
        } else {
            Err(MergeErrorKind::OtherGrant)
        }
    }
}

impl Permit {
    /// Inlined into the caller, so that the words of the permit are written where it stays.
    #[inline(always)]
    pub(crate) fn new(manager: &Arc<Manager>, granted: TimedGrant, cost: u64) -> Self {
        if granted.grant.claim.holds() || !manager.is_registered() {
            return Self::of(Some(Arc::clone(manager)), 0, granted, cost);
        }
        Self::spent(manager.id_prefix(), granted, cost)
    }

    #[inline(always)]
    fn of(
        manager: Option<Arc<Manager>>,
        id_prefix: u64,
        TimedGrant { grant, origin }: TimedGrant,
        cost: u64,
    ) -> Self {
        let Grant { fence, claim, at } = grant;
        Self {
            manager,
            cost,
            id_prefix,
            origin,
            at,
            fence,
            claim,
        }
    }

    /// A permit of a rate. The permit holds no place and no handle of its limiter.
    #[inline(always)]
    pub(crate) fn idle(
        id_prefix: u64,
        fence: u64,
        cost: u64,
        at: Moment,
        origin: ClockOrigin,
    ) -> Self {
        Self::spent(
            id_prefix,
            TimedGrant {
                grant: Grant {
                    fence,
                    claim: Claim::NONE,
                    at,
                },
                origin,
            },
            cost,
        )
    }

    /// A unique id of the grant, as a UUID of version 8: a random part, which the permits of a limiter share, and the
    /// [fence](Permit::fence). It is computed on each call.
    ///
    /// ```
    /// # use tollgate::{Limiter, MaxConcurrency};
    /// let limiter = Limiter::new(MaxConcurrency::new(2))?;
    /// assert_ne!(limiter.try_acquire()?.id(), limiter.try_acquire()?.id());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn id(&self) -> PermitId {
        let id_prefix = self
            .manager
            .as_ref()
            .map_or(self.id_prefix, |manager| manager.id_prefix());
        PermitId::new(id_prefix, self.fence)
    }

    /// A number, from 1 on, that rises with every grant of the limiter.
    ///
    /// ```
    /// # use tollgate::{Limiter, MaxConcurrency};
    /// let limiter = Limiter::new(MaxConcurrency::new(2))?;
    /// let (first, second) = (limiter.try_acquire()?, limiter.try_acquire()?);
    /// assert!(first.fence() < second.fence());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn fence(&self) -> u64 {
        self.fence
    }

    /// The units that the permit was granted for. For a part of a [split](Permit::split) permit, the units of that part.
    ///
    /// ```
    /// # use tollgate::{Limiter, MaxConcurrency};
    /// let limiter = Limiter::new(MaxConcurrency::new(8))?;
    /// assert_eq!(limiter.try_acquire_many(3)?.cost(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub const fn cost(&self) -> u64 {
        self.cost
    }

    /// The amount granted of a unit that the request [named](crate::PermitRequest::cost_of), if the limits count by unit; `None`
    /// after the permit was reclaimed.
    ///
    /// ```
    /// # use tollgate::Limiter;
    /// let limiter = Limiter::new("8 concurrent per request and 100000 tokens/min")?;
    /// let permit = limiter.request().cost_of("tokens", 1_200).try_acquire()?;
    /// assert_eq!((permit.cost_of("tokens"), permit.cost_of("images")), (Some(1_200), None));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn cost_of(&self, unit: &str) -> Option<u64> {
        self.manager
            .as_ref()?
            .release_channel()
            .cost_details(self.fence)?
            .get(Unit::new(unit))
    }

    /// The instant of the grant, on tokio's clock. (With `fast_clock()` it is on the system's clock, which is the same unless
    /// tokio's clock was paused.) If two threads make grants at the same time, the grant with the higher fence may have the
    /// earlier instant. The difference is at most the time between reading the clock and the grant.
    ///
    /// `None` where the policy needs no clock (a [`MaxConcurrency`](crate::MaxConcurrency) that neither has a TTL nor adapts), unless
    /// the limiter [records it](crate::LimiterBuilder::record_grant_time), which has an example.
    #[must_use]
    pub fn acquired_at(&self) -> Option<Instant> {
        self.origin.instant(self.at)
    }

    /// When the permit will be reclaimed, on tokio's clock; `None` without a TTL, or after the reclaim. See
    /// [`MaxConcurrency::ttl`](crate::MaxConcurrency::ttl).
    #[must_use]
    pub fn expires_at(&self) -> Option<Instant> {
        let (manager, lease) = self.leased()?;
        manager.release_channel().expires_at(lease, self.fence)
    }

    /// Whether the TTL has not passed yet; always true without a TTL. See the [type's example](Permit#examples).
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.leased()
            .is_none_or(|(manager, lease)| manager.release_channel().is_live(lease, self.fence))
    }

    /// Completes when the permit is reclaimed: at once if it was already, and never without a TTL. The future needs a tokio
    /// runtime with timers: the caller's, or one that already runs a driver of the limiter. See the [type's
    /// example](Permit#examples).
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped and the method called again at any time. Several tasks can await it.
    pub async fn reclaimed(&self) {
        match self.watch_reclaim() {
            Some(reclaimed) => reclaimed.await,
            None => std::future::pending().await,
        }
    }

    /// A future that completes when the permit is reclaimed. `None` if the permit has no TTL.
    pub(crate) fn watch_reclaim(&self) -> Option<Watch> {
        self.leased()
            .map(|(manager, lease)| manager.reclaimed(lease, self.fence))
    }

    /// Restarts the TTL. Returns whether the permit is live: a permit whose TTL has passed is not revived. Without a TTL, does
    /// nothing and returns `true`. See the [type's example](Permit#examples).
    #[must_use = "`false` means that the permit was reclaimed, and others may hold its place"]
    pub fn renew(&self) -> bool {
        self.leased()
            .is_none_or(|(manager, lease)| manager.release_channel().renew(lease, self.fence))
    }

    /// Restarts the TTL as `ttl`: 1 ns (0 counts as 1) to the [TTL of the policy](crate::MaxConcurrency::ttl), which caps it.
    /// Later [renewals](Permit::renew) restart it at the same length. Otherwise like [`Permit::renew`].
    ///
    /// ```
    /// use std::time::Duration;
    /// use tokio::time::Instant;
    /// use tollgate::{Limiter, MaxConcurrency};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(MaxConcurrency::new(8).ttl(Duration::from_secs(60)))?;
    /// let permit = limiter.acquire().await?;
    /// assert!(permit.renew_for(Duration::from_secs(5)));
    /// assert_eq!(permit.expires_at(), Some(Instant::now() + Duration::from_secs(5)));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "`false` means that the permit was reclaimed, and others may hold its place"]
    pub fn renew_for(&self, ttl: Duration) -> bool {
        self.leased().is_none_or(|(manager, lease)| {
            manager
                .release_channel()
                .set_own_ttl(lease, self.fence, nonzero_nanos(ttl), true)
        })
    }

    /// Releases the permit; equivalent to `drop(permit)`.
    pub fn release(self) {
        drop(self);
    }

    /// Never releases the permit: its place is lost for good, or until its TTL has passed.
    ///
    /// ```
    /// # use tollgate::{Limiter, MaxConcurrency};
    /// let limiter = Limiter::new(MaxConcurrency::new(2))?;
    /// limiter.try_acquire()?.forget();
    /// assert_eq!(limiter.check(1).remaining(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn forget(mut self) {
        if let Some(manager) = self.manager.take() {
            manager.release_channel().forget(self.grant());
        }
    }

    /// Releases the permit and replaces its estimated cost by the actual one. Units that were not used are refunded; units above
    /// the estimate become a debt, for which later requests wait. Use it for work whose cost is known only afterwards, such as
    /// bytes or model tokens. If a permit is dropped instead, its estimate stays charged.
    ///
    /// Only the rates of the policy are settled; a place is released whole. A refund never lets the grants since that of the
    /// permit exceed the limit: units that the bucket or window has refilled in the meantime are not given back again. With a
    /// small burst under load, the refund can be less than the difference. A throttle or a token bucket refunds at most the part
    /// of its usage after the grant that has not been refilled since. The bound is higher with
    /// [`exact_refunds`](crate::LimiterBuilder::exact_refunds), in a policy of several limits, and in a keyed limiter. In these
    /// cases the bound is the lowest usage right before any later grant. It is kept for at least the 250 latest instants of
    /// grants. A debt is paid off at the rate of the limit; in a [log](crate::SlidingWindow::log) it expires after one period,
    /// however large it is.
    ///
    /// Returns whether the permit was live. Settling changes nothing for a permit whose TTL has passed, or that was granted
    /// [without a store](crate::store::OnStoreDown::Allow). A permit of a rate of a [`KeyedLimiter`](crate::KeyedLimiter#permits)
    /// has no handle of its limiter: `settle` changes nothing and returns `false`, unless the limiter was built with
    /// [`settle_permits`](crate::KeyedLimiterBuilder::settle_permits).
    ///
    /// For a [shared limiter](crate::SharedLimiter), a store that does not keep past grants refunds nothing to a throttle or a
    /// token bucket. Such stores are the SQL stores, and each store over [`Rules`](crate::store::Rules). They refund to windows
    /// and penalties, and charge debts to all limits. [`MemoryStore`](crate::store::MemoryStore) refunds to all, as a
    /// [`Limiter`](crate::Limiter) does.
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
    #[must_use = "`false` means that nothing was settled: the permit was reclaimed, or has no handle of its limiter"]
    pub fn settle(self, actual_cost: u64) -> bool {
        self.settle_as(Actual::Cost(actual_cost))
    }

    /// [`Permit::settle`] for units that its limits count. Replaces the estimate of each given unit; the estimates of other units
    /// and the plain cost stay. A unit that no limit counts has no effect. [`Counts`](crate::Counts) has an example.
    ///
    /// ```
    /// # use tollgate::Limiter;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new("40000 input_tokens/min and 8000 output_tokens/min")?;
    /// let request = limiter.request().cost_of("input_tokens", 900).cost_of("output_tokens", 4_096);
    /// let permit = request.clone().acquire().await?;
    /// let (input, output) = (912, 350); // from the response
    /// assert!(permit.settle_costs([("input_tokens", input), ("output_tokens", output)]));
    /// assert_eq!(request.check().remaining(), 8_000 - output);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "`false` means that nothing was settled: the permit was reclaimed, or has no handle of its limiter"]
    pub fn settle_costs<'a>(self, actual: impl IntoIterator<Item = (&'a str, u64)>) -> bool {
        let mut units = CostDetails::default();
        actual
            .into_iter()
            .for_each(|(unit, cost)| units.set(Unit::new(unit), cost));
        self.settle_as(Actual::Costs {
            plain: None,
            units: &units,
        })
    }

    fn settle_as(self, actual: Actual<'_>) -> bool {
        self.end(actual, None)
    }

    /// [Settles](Permit::settle), and [reports](Permit::report) the outcome, if it is known.
    pub(crate) fn end(mut self, actual: Actual<'_>, outcome: Option<Outcome>) -> bool {
        self.take_limiter().is_some_and(|manager| {
            manager
                .release_channel()
                .settle(self.grant(), self.cost, actual, outcome)
        })
    }

    /// Releases the permit and reports how its work went. A [concurrency that adapts](crate::Adapt) takes the outcome and the
    /// time since the grant as a sample. Dropping the permit reports nothing, like [`Outcome::Ignored`]. Returns whether the
    /// permit was live.
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
    #[expect(
        clippy::must_use_candidate,
        reason = "a report that came too late changes nothing for its holder"
    )]
    pub fn report(mut self, outcome: Outcome) -> bool {
        self.take_limiter().is_some_and(|manager| {
            manager
                .release_channel()
                .report(self.grant(), self.cost, outcome)
        })
    }

    /// Whether the permit may hold a place. A permit without a place has nothing to [report](Permit::report), so the search for
    /// its limiter is saved.
    #[cfg(feature = "http")]
    pub(crate) fn may_hold_place(&self) -> bool {
        self.manager.is_some()
    }

    /// Undoes the grant of a permit whose work did not start: [settles](Permit::settle) at a cost of 0, in every unit.
    ///
    /// ```
    /// # use tollgate::{Limiter, Rate, TokenBucket};
    /// let limiter = Limiter::new(TokenBucket::new(Rate::per_minute(10), 10))?;
    /// assert!(limiter.try_acquire_many(4)?.refund());
    /// assert_eq!(limiter.check(1).remaining(), 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use = "`false` means that nothing was refunded: the permit was reclaimed, or has no handle of its limiter"]
    pub fn refund(self) -> bool {
        self.settle_as(Actual::Nothing)
    }

    /// Whether the permit is counted as in flight.
    pub(crate) fn holds_place(&self) -> bool {
        self.claim.holds_place()
    }

    fn grant(&self) -> Grant {
        let &Self {
            fence, claim, at, ..
        } = self;
        Grant { fence, claim, at }
    }

    /// Takes the limiter out, so that the drop releases nothing.
    fn take_limiter(&mut self) -> Option<Arc<Manager>> {
        self.manager
            .take()
            .or_else(|| Manager::find(self.id_prefix))
    }

    fn leased(&self) -> Option<(&Arc<Manager>, Index)> {
        self.manager.as_ref().zip(self.claim.lease())
    }
}

impl FromGrant for Permit {
    #[inline(always)]
    fn held(manager: &Arc<Manager>, granted: TimedGrant, cost: u64) -> Self {
        Self::new(manager, granted, cost)
    }

    #[inline(always)]
    fn spent(id_prefix: u64, granted: TimedGrant, cost: u64) -> Self {
        Self::of(None, id_prefix, granted, cost)
    }
}

impl Drop for Permit {
    /// The check is inlined into the caller: most permits of rates hold nothing. It passes values on, not references to fields, because
    /// a caller that passes a reference must keep the permit in one block of memory, and moves it as one.
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(manager) = self.manager.take() {
            release(manager, self.fence, self.cost, self.claim);
        }
    }
}

/// Not inlined, so that the drop adds little code to each caller.
#[inline(never)]
fn release(manager: Arc<Manager>, fence: u64, cost: u64, claim: Claim) {
    manager.release(fence, cost, claim);
}

debug_fields! { Permit, |permit| id = permit.id(), fence = permit.fence, cost = permit.cost }

/// Why a permit was not [split](Permit::split), which has an example. The permit is unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SplitError {
    /// Each part must have at least one unit.
    #[error(
        "cannot split {units} units off a permit of {cost}; split off at least 1, and fewer than the permit has"
    )]
    OutOfRange {
        /// The units that were to be split off.
        units: u64,
        /// The units of the permit.
        cost: u64,
    },
    /// The permit is of a rate and holds no place: its parts would release nothing.
    #[error(
        "the permit holds no place that could be split: its policy has no limit of concurrency"
    )]
    NoPlace,
    /// The permit has a [TTL](crate::MaxConcurrency::ttl), and is reclaimed as a whole.
    #[error("a permit with a TTL is reclaimed whole, and cannot be split; acquire several permits")]
    HasTtl,
    /// A limit of the policy [counts](crate::Counts) requests or a named unit, so the share of each part does not follow from the
    /// cost; or the permit is of a [flow](crate::PermitRequest::flow), for which it is recorded as a whole.
    #[error(
        "a permit of a flow, or whose policy counts requests or named units, cannot be split; acquire several permits"
    )]
    CountsByUnit,
}

/// Why two permits were not [merged](Permit::merge), which has an example. The error contains the other permit.
#[derive(Debug, Error)]
#[error("{kind}")]
pub struct MergeError {
    /// Why the permits were not merged.
    pub kind: MergeErrorKind,
    /// The permit that was to be added. Dropping it releases it.
    pub permit: Permit,
}

/// Why two permits were not [merged](Permit::merge), which has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MergeErrorKind {
    /// The permits are of different limiters, or of different keys.
    #[error("permits of different limiters or keys cannot be merged")]
    OtherLimiter,
    /// The permits were granted to two requests, and the time of a grant matters: the policy has a rate or adapts, or the limiter
    /// [records the time](crate::LimiterBuilder::record_grant_time). A merged permit would be settled or reported by the time of
    /// the wrong grant.
    #[error(
        "permits of different grants cannot be merged where the time of a grant matters: with a rate, or a limit that adapts"
    )]
    OtherGrant,
    /// One of the permits is of a kind that cannot be split.
    #[error(transparent)]
    Indivisible(SplitError),
}
