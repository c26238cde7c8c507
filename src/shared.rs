//! Limits that many processes share.

mod ask;
mod builder;
mod keys;
mod request;
#[cfg(feature = "http")]
mod tell;
mod totals;

use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use keys::SharedBy;

pub use ask::TryAcquireShared;
pub use builder::SharedLimiterBuilder;
pub use request::SharedPermitRequest;

use crate::acquire::{Acquire, AcquireOwned, Run};
use crate::decision::Decision;
use crate::error::{ConfigError, StoreError};
use crate::exchange::{check_next_page, check_purged};
use crate::limiter::{Handle, Limiter};
use crate::manager::Manager;
use crate::policy::Policy;
use crate::snapshot::{LimitStatus, LimiterSnapshot};
use crate::store::{KeyPage, Store};
use crate::upstream::UpstreamSignal;

/// Limits that many processes share, through a [store](crate::store). Clones share its state.
///
/// It is a [`Limiter`] whose limits are elsewhere: requests queue in this process, in the same order and with the same
/// priorities and timeouts, and their permits are the same. What a [`Limiter`] decides, the store decides here, in one
/// atomic step for a whole policy, by its own clock. So `try_acquire` and `check` are async.
///
/// # Round trips
///
/// One call for each key and process is under way at most. Requests that come meanwhile go together into the next one, and the store
/// grants as many of them as it can: the busier a key, the fewer calls a grant takes. What the store has denied is not asked again
/// before the instant that it named. A request that awaits a reply is in the queue, also one of [`SharedLimiter::try_acquire`]: with a
/// [`max_queue`](SharedLimiterBuilder::max_queue) of 0 none is granted. Neither is one whose timeout is shorter than a call takes.
///
/// # Places
///
/// A permit of a [`MaxConcurrency`](crate::MaxConcurrency) is a lease, which the limiter renews three times within its TTL as long as the
/// permit lives. So a process that dies gives its places back within one TTL, and a long job keeps its own. A lease that was lost all
/// the same (the store was away for longer, or the machine stood still) is [reclaimed](crate::Permit::reclaimed). The holder counts the
/// TTL from the instant at which the call was sent, so it ends for the holder before it ends for the store, whatever their clocks
/// show. [`Permit::renew`](crate::Permit::renew) and [`renew_for`](crate::Permit::renew_for) only say whether the permit is live;
/// [`max_hold`](SharedLimiterBuilder::max_hold) bounds how long it may be held. [`Permit::fence`](crate::Permit::fence) rises with
/// every grant of a key, over all processes.
///
/// # When the store is down
///
/// A call has a [deadline](SharedLimiterBuilder::deadline). After two failures in a row no calls are made for a while, and then one at a
/// time, until the store answers. [`OnStoreDown`](crate::store::OnStoreDown) says what becomes of requests meanwhile: among others,
/// a policy of this process alone. No call whose fate is unknown is made again: its units count as used, and its places are given
/// back.
///
/// # Examples
///
/// ```
/// use tollgate::SharedLimiter;
/// use tollgate::store::MemoryStore;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryStore::new(); // or one that processes share
/// let api = SharedLimiter::new(store, "api", "2 concurrent and 100/min")?;
/// let permit = api.acquire().await?;
/// let alice = api.key("alice"); // has limits of its own
/// let _other = alice.try_acquire().await?;
/// assert_eq!(alice.check(1).await?.remaining(), 1);
/// drop(permit);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SharedLimiter {
    manager: Arc<Manager>,
    key: Arc<[u8]>,
    shared: Arc<SharedBy>,
}

impl SharedLimiter {
    /// Builds a limiter with the default options: a store, the name that the limiter has there, and a limit, a tuple of limits, a
    /// [`Policy`], or its [text](Policy#as-text). It calls no store yet.
    ///
    /// Processes share a limiter if they share its store and its name, and must have the same policy.
    ///
    /// # Errors
    ///
    /// As [`SharedLimiterBuilder::build`].
    pub fn new(
        store: impl Store,
        name: impl Into<String>,
        policy: impl TryInto<Policy, Error: Into<ConfigError>>,
    ) -> Result<Self, ConfigError> {
        Self::builder(store, name, policy).build()
    }

    /// Starts to build a limiter with options. See [`SharedLimiterBuilder`].
    pub fn builder(
        store: impl Store,
        name: impl Into<String>,
        policy: impl TryInto<Policy, Error: Into<ConfigError>>,
    ) -> SharedLimiterBuilder {
        SharedLimiterBuilder::new(Arc::new(store), name.into().into(), policy.try_into().map_err(Into::into))
    }

    fn of_key(shared: Arc<SharedBy>, key: Arc<[u8]>) -> Self {
        let manager = shared.keys.manager(&key, || shared.open(&key));
        Self { manager, key, shared }
    }

    /// The handle of one key, which has limits of its own: any bytes. In one process, all handles of a key share one queue.
    ///
    /// The limiter without a key is that of the empty key.
    #[must_use]
    pub fn key(&self, key: impl AsRef<[u8]>) -> Self {
        Self::of_key(Arc::clone(&self.shared), key.as_ref().into())
    }

    /// The name that the limiter has in its store.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.link.name
    }

    /// The key; empty for a limiter without keys.
    #[must_use]
    pub fn key_bytes(&self) -> &[u8] {
        &self.key
    }

    /// The policy.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.shared.plan.policy().clone()
    }

    /// Waits until the store grants one unit, and returns the permit. As [`Limiter::acquire`](crate::Limiter::acquire), but for
    /// one error more.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing: a request that waits leaves the queue, and what the store has granted goes back.
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::acquire`](crate::Limiter::acquire), and [`AcquireError::Store`](crate::AcquireError::Store).
    #[track_caller]
    pub fn acquire(&self) -> Acquire<'_> {
        self.acquire_many(1)
    }

    /// [`SharedLimiter::acquire`] for `cost` units.
    ///
    /// # Errors
    ///
    /// Those of [`SharedLimiter::acquire`]; [`AcquireError::ExceedsLimit`](crate::AcquireError::ExceedsLimit);
    /// [`AcquireError::ZeroCost`](crate::AcquireError::ZeroCost).
    #[track_caller]
    pub fn acquire_many(&self, cost: u64) -> Acquire<'_> {
        self.request_of(cost).acquire()
    }

    /// [`SharedLimiter::acquire`] as a future that borrows nothing.
    ///
    /// # Errors
    ///
    /// Those of [`SharedLimiter::acquire`].
    #[track_caller]
    pub fn acquire_owned(&self) -> AcquireOwned {
        self.request().acquire_owned()
    }

    /// Starts a request with a cost, costs by unit, a priority or a timeout.
    #[track_caller]
    pub fn request(&self) -> SharedPermitRequest<'_> {
        self.request_of(1)
    }

    #[track_caller]
    fn request_of(&self, cost: u64) -> SharedPermitRequest<'_> {
        SharedPermitRequest::new(self, cost, Location::caller())
    }

    /// Takes one unit now, or nothing. It waits for the reply of the store, but not for its turn; several such requests share a call.
    ///
    /// # Errors
    ///
    /// [`TryAcquireError::Denied`](crate::TryAcquireError::Denied) with the [`Decision`] of the store;
    /// [`TryAcquireError::Store`](crate::TryAcquireError::Store); those of [`Limiter::try_acquire`](crate::Limiter::try_acquire).
    #[track_caller]
    pub fn try_acquire(&self) -> TryAcquireShared {
        self.try_acquire_many(1)
    }

    /// [`SharedLimiter::try_acquire`] for `cost` units.
    ///
    /// # Errors
    ///
    /// Those of [`SharedLimiter::try_acquire`].
    #[track_caller]
    pub fn try_acquire_many(&self, cost: u64) -> TryAcquireShared {
        self.request_of(cost).try_acquire()
    }

    /// What [`SharedLimiter::try_acquire_many`] would answer now; it takes nothing. It asks the store for nothing while this process is
    /// [paused](Self::pause_for), [closed](Self::close) (then it is denied), or decides [alone](crate::store::OnStoreDown::Local).
    ///
    /// # Errors
    ///
    /// A [`StoreError`].
    pub async fn check(&self, cost: u64) -> Result<Decision, StoreError> {
        self.request_of(cost).check().await
    }

    /// Waits for a permit, and runs the future while it holds it. As [`Limiter::run`](crate::Limiter::run).
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::run`](crate::Limiter::run), and [`AcquireError::Store`](crate::AcquireError::Store).
    #[track_caller]
    pub fn run<F: Future>(&self, future: F) -> Run<F> {
        self.request().run(future)
    }

    /// What each limit says now.
    ///
    /// # Errors
    ///
    /// A [`StoreError`].
    pub async fn limits(&self) -> Result<Vec<LimitStatus>, StoreError> {
        self.manager.limits_in_store().await
    }

    /// The numbers of the key in this process: what it has in flight, its queue, and its counts since it was last taken into use.
    /// [`totals`](Self::totals) has those of all keys.
    #[must_use]
    pub fn snapshot(&self) -> LimiterSnapshot {
        self.manager.snapshot()
    }

    /// Whether calls to the store are made. `false`: they have failed, and are given up for a while; what is asked follows
    /// [the rule](SharedLimiterBuilder::on_store_down). An observer is told when it changes.
    #[must_use]
    pub fn store_is_up(&self) -> bool {
        self.shared.link.is_up()
    }

    /// Grants nothing in this process for `duration`, and asks the store for nothing. As [`Limiter::pause_for`]; a request of which the
    /// store is being asked when it begins may still be granted. It lasts while nobody uses the key, too, as long as there is a handle
    /// of the limiter or of another key.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::SharedLimiter;
    /// use tollgate::store::MemoryStore;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let api = SharedLimiter::new(MemoryStore::new(), "api", "2 concurrent and 100/min")?;
    /// api.pause_for(Duration::from_secs(30));
    /// let start = tokio::time::Instant::now();
    /// let _permit = api.acquire().await?;
    /// assert_eq!(start.elapsed(), Duration::from_secs(30));
    /// # Ok(())
    /// # }
    /// ```
    pub fn pause_for(&self, duration: Duration) {
        self.manager.pause_for(duration);
    }

    /// Charges the key `units`, whether or not its limits admit them, as [`KeyedLimiter::penalize`](crate::KeyedLimiter::penalize): a
    /// [`Penalty`](crate::Penalty) is raised up to its ceiling, and a [`MaxConcurrency`](crate::MaxConcurrency) is not charged. The store
    /// is told in the background, at the latest with the next request of this process. A call that it refuses is repeated for up
    /// to two minutes; one that it does not answer is not, and its units may be charged or lost.
    ///
    /// ```
    /// use tollgate::store::MemoryStore;
    /// use tollgate::{Penalty, Rate, SharedLimiter};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let clients = SharedLimiter::new(MemoryStore::new(), "logins", Penalty::new(10, Rate::per_second(1)))?;
    /// clients.key("eve").penalize(10); // a wrong password
    /// assert!(clients.key("eve").try_acquire().await.is_err());
    /// assert!(clients.key("bob").try_acquire().await.is_ok());
    /// # Ok(())
    /// # }
    /// ```
    pub fn penalize(&self, units: u64) {
        self.manager.charge(units);
    }

    /// Ends a [pause](Self::pause_for) of this process now.
    pub fn resume(&self) {
        self.manager.resume();
    }

    /// [Pauses](Self::pause_for) as an upstream's response asks for. As [`Limiter::apply_upstream_signal`], but a quota that is nearly
    /// spent is not spread.
    pub fn apply_upstream_signal(&self, signal: &UpstreamSignal) {
        self.manager.apply_upstream_signal(signal);
    }

    /// Refuses all requests of this key in this process from now on, the waiting ones first; other keys stay open. Permits in flight stay
    /// valid. It lasts as a [pause](Self::pause_for) does.
    pub fn close(&self) {
        self.manager.close();
    }

    /// As [`close`](Self::close), but requests that wait are served.
    pub fn close_to_new(&self) {
        self.manager.close_to_new();
    }

    /// Whether it was closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.manager.is_closed()
    }

    /// Completes when no request waits in this process, and it holds no place.
    pub async fn drained(&self) {
        self.manager.drained().await;
    }

    /// About `max` keys that the store has of this limiter, in any order: the first ones, or those from [`KeyPage::next`] on.
    ///
    /// # Errors
    ///
    /// A [`StoreError`].
    pub async fn keys(&self, from: Option<Vec<u8>>, max: usize) -> Result<KeyPage, StoreError> {
        let link = &self.shared.link;
        let asked = from.clone();
        let ask = || link.store.keys(&link.name, asked, max);
        let check = |page: &KeyPage| check_next_page(from.as_deref(), page.next.as_deref());
        link.within_deadline(ask, check).await.map_err(|failed| failed.error)
    }

    /// Makes the limits of this key as new, and reclaims all its leases. Nobody is stopped for it. What this process has
    /// [charged](Self::penalize) or [settled](crate::Permit::settle) before is dropped with the usage, also if the store was not told of it
    /// yet; permits from before the reset give nothing back. A call under way that tells of such charges is awaited first, for one
    /// deadline at most.
    ///
    /// Fences then begin anew at the microseconds since 1970, as of a key that is not known. So the fence of a grant within a few
    /// microseconds after the reset may be one that another process was given before it.
    ///
    /// Another process may yet tell of what it has charged before, and grant units that it has
    /// [taken ahead](SharedLimiterBuilder::prefetch). If it was denied before, it keeps to that until the instant which the store named
    /// then, while it uses the key, or for a minute.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the store may have done it or not. What was charged before is told to the store then.
    ///
    /// # Errors
    ///
    /// A [`StoreError`].
    pub async fn reset(&self) -> Result<(), StoreError> {
        self.manager.reset_in_store(self.shared.scope(&self.key)).await
    }

    /// Drops at most `max` keys of this limiter that have expired, where the store does not do so by itself. Returns how many.
    ///
    /// # Errors
    ///
    /// A [`StoreError`].
    pub async fn purge(&self, max: usize) -> Result<u64, StoreError> {
        let link = &self.shared.link;
        let ask = || link.store.purge(&link.name, max);
        link.within_deadline(ask, |purged| check_purged(*purged, max)).await.map_err(|failed| failed.error)
    }
}

impl Handle for SharedLimiter {
    fn handle(&self) -> Limiter {
        Limiter::from_manager(Arc::clone(&self.manager))
    }
}

impl fmt::Debug for SharedLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedLimiter")
            .field("name", &self.name())
            .field("key", &format_args!("{}", self.key.escape_ascii()))
            .field("policy", &format_args!("{}", self.shared.plan.policy()))
            .finish_non_exhaustive()
    }
}
