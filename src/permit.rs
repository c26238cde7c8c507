use std::fmt;
use std::sync::Arc;

use tokio::time::Instant;
use uuid::Uuid;

use crate::core::arena::Index;
use crate::core::grant::Claim;
use crate::event::permit_id;
use crate::manager::{Granted, Manager, registry};
use crate::strategy::Outcome;

/// The right to go on; dropping it **releases** it.
///
/// What that gives back depends on the policy. A place under a [`MaxConcurrency`](crate::MaxConcurrency) goes to the next who
/// waits, also when the holder panics. What a rate granted stays spent: its permit holds no place, and dropping it costs nothing.
///
/// # Reclaim
///
/// With a [TTL](crate::MaxConcurrency::ttl), a permit that is not released in time is *reclaimed*: its place goes to others
/// although its holder may still be at work. The holder can [await it](Permit::reclaimed), [poll it](Permit::is_live) or
/// [put it off](Permit::renew). Whatever is done with a reclaimed permit changes nothing. A downstream store that remembers the
/// highest [fence](Permit::fence) it has seen can refuse a holder who comes too late.
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
#[must_use = "a permit is released as soon as it is dropped"]
pub struct Permit {
    /// `None` once it was forgotten, and where it holds nothing: then its limiter is found by the seed, if at all.
    manager: Option<Arc<Manager>>,
    id_prefix: u64,
    fence: u64,
    cost: u64,
    claim: Claim,
    acquired_at: Option<Instant>,
}

impl Permit {
    /// Inlined into the caller: a permit is several words, and words that are written one by one and then read as a block, to
    /// be moved, stall the processor for longer than all the rest takes.
    #[inline(always)]
    pub(crate) fn new(manager: &Arc<Manager>, Granted { fence, claim, at }: Granted, cost: u64) -> Self {
        let holder = (claim != Claim::None || !manager.is_registered()).then(|| Arc::clone(manager));
        Self { manager: holder, id_prefix: manager.id_prefix(), fence, cost, claim, acquired_at: at }
    }

    /// A permit of a rate that holds nothing, nor knows its limiter.
    #[inline(always)]
    pub(crate) fn idle(id_prefix: u64, fence: u64, cost: u64, acquired_at: Instant) -> Self {
        Self { manager: None, id_prefix, fence, cost, claim: Claim::None, acquired_at: Some(acquired_at) }
    }

    /// A unique id: the limiter's random part and the [fence](Permit::fence), as a UUID of version 8. It costs nothing until
    /// asked for.
    ///
    /// ```
    /// # use tollgate::{Limiter, MaxConcurrency};
    /// let limiter = Limiter::new(MaxConcurrency::new(2))?;
    /// assert_ne!(limiter.try_acquire()?.id(), limiter.try_acquire()?.id());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn id(&self) -> Uuid {
        permit_id(self.id_prefix, self.fence)
    }

    /// A number, from 1, that rises with every grant of the limiter.
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

    /// The units that it was granted for.
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

    /// When it was granted, on tokio's clock: the instant of the decision. `None` where the policy has no need of the clock (a
    /// [`MaxConcurrency`](crate::MaxConcurrency) that neither has a TTL nor adapts) and the [builder](crate::LimiterBuilder::record_grant_time), which shows an
    /// example, was not asked for it.
    #[must_use]
    pub const fn acquired_at(&self) -> Option<Instant> {
        self.acquired_at
    }

    /// When it will be reclaimed, on tokio's clock; `None` without a TTL, or when it was reclaimed. See
    /// [`MaxConcurrency::ttl`](crate::MaxConcurrency::ttl).
    #[must_use]
    pub fn expires_at(&self) -> Option<Instant> {
        let (manager, lease) = self.leased()?;
        manager.expires_at(lease, self.fence)
    }

    /// Whether its TTL has not passed; always true without a TTL. See the [type's example](Permit#examples).
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.leased().is_none_or(|(manager, lease)| manager.is_live(lease, self.fence))
    }

    /// Completes when the permit is reclaimed, at once when it was; never without a TTL. It needs a tokio runtime with timers: its
    /// own, or one that serves the limiter already. See the [type's example](Permit#examples).
    ///
    /// # Cancel safety
    ///
    /// It can be dropped and called again at any time, and awaited from several places.
    pub async fn reclaimed(&self) {
        let Some((manager, lease)) = self.leased() else { return std::future::pending().await };
        manager.reclaimed(lease, self.fence).await;
    }

    /// Starts its TTL anew. Tells whether it is live: one whose TTL has passed is not revived. Does nothing without a TTL, and
    /// answers true. See the [type's example](Permit#examples).
    #[expect(clippy::must_use_candidate, reason = "a heartbeat may leave it to `reclaimed` to tell")]
    pub fn renew(&self) -> bool {
        self.leased().is_none_or(|(manager, lease)| manager.renew(lease, self.fence))
    }

    /// Gives it back and says what its work has cost in the end, where it was an estimate that it was acquired for: units that
    /// were not used are refunded, and units above the estimate are a debt that the next ones wait for. For work whose cost is
    /// known only afterwards, as bytes or model tokens are. Dropped instead, a permit keeps its estimate.
    ///
    /// It concerns the rates of the policy; a place comes back whole. What a refund gives back is what keeps the grants since
    /// within their limit: what the bucket or the window had refilled by then is not given twice. With a small burst under load that
    /// may be less than the difference. A debt is worked off at the limit's rate; in a [log](crate::SlidingWindow::log) it leaves
    /// after a period, however large.
    ///
    /// Tells whether it was live: of a permit whose TTL passed, nothing changes; nor of one of a
    /// [`KeyedLimiter`](crate::KeyedLimiter#permits) that does not know its limiter.
    ///
    /// ```
    /// use tollgate::{Limiter, Rate, TokenBucket};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let tokens = Limiter::new(TokenBucket::new(Rate::per_minute(1_000), 1_000))?;
    /// let permit = tokens.acquire_many(600).await?; // an estimate
    /// permit.settle(250);
    /// assert_eq!(tokens.check(1).remaining(), 750);
    ///
    /// tokens.acquire_many(700).await?.settle(900);
    /// assert_eq!(tokens.check(1).remaining(), 0);
    /// let retry_after = tokens.check(1).retry_after();
    /// assert_eq!(retry_after, Some(std::time::Duration::from_millis(9_060))); // a debt of 150, and one unit
    /// # Ok(())
    /// # }
    /// ```
    #[expect(clippy::must_use_candidate, reason = "whoever holds no lease need not ask")]
    pub fn settle(mut self, actual_cost: u64) -> bool {
        let granted = self.granted();
        self.take_limiter().is_some_and(|manager| manager.settle(granted, self.cost, actual_cost))
    }

    /// Gives it back and says how its work went: a [concurrency that moves](crate::Adapt) learns from that, and from the time since
    /// the grant. Dropped instead, a permit tells nothing, as with [`Outcome::Ignored`]. Tells whether it was live.
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
    #[expect(clippy::must_use_candidate, reason = "whoever holds no lease need not ask")]
    pub fn report(mut self, outcome: Outcome) -> bool {
        let granted = self.granted();
        self.take_limiter().is_some_and(|manager| manager.report(granted, self.cost, outcome))
    }

    /// Gives it back as if it had never been granted, because the work did not start: [settled](Permit::settle) at nothing.
    ///
    /// ```
    /// # use tollgate::{Limiter, Rate, TokenBucket};
    /// let limiter = Limiter::new(TokenBucket::new(Rate::per_minute(10), 10))?;
    /// limiter.try_acquire_many(4)?.refund();
    /// assert_eq!(limiter.check(1).remaining(), 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[expect(clippy::must_use_candidate, reason = "whoever holds no lease need not ask")]
    pub fn refund(self) -> bool {
        self.settle(0)
    }

    /// Gives it back now: the same as dropping it, in plain sight.
    pub fn release(self) {
        drop(self);
    }

    /// Never gives it back: the place is lost to all, or until its TTL has passed.
    ///
    /// ```
    /// # use tollgate::{Limiter, MaxConcurrency};
    /// let limiter = Limiter::new(MaxConcurrency::new(2))?;
    /// limiter.try_acquire()?.forget();
    /// assert_eq!(limiter.check(1).remaining(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn forget(mut self) {
        self.manager = None;
    }

    /// Its limiter, to which it then gives nothing back any more.
    fn take_limiter(&mut self) -> Option<Arc<Manager>> {
        self.manager.take().or_else(|| registry::find(self.id_prefix))
    }

    fn granted(&self) -> Granted {
        Granted { fence: self.fence, claim: self.claim, at: self.acquired_at }
    }

    fn leased(&self) -> Option<(&Arc<Manager>, Index)> {
        self.manager.as_ref().zip(self.claim.lease())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(manager) = &self.manager
            && self.claim != Claim::None
        {
            manager.release(self.fence, self.cost, self.claim);
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("id", &self.id())
            .field("fence", &self.fence)
            .field("cost", &self.cost)
            .finish_non_exhaustive()
    }
}
