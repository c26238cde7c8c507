//! The handle of a keyed limiter: requests, snapshots, and changes to one key or to all keys.
//!
//! A change to all keys visits one shard after the other, each under its own lock, so that no call waits for all shards.

use std::hash::Hash;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::task::coop;
use tokio::time::Instant;

use super::key::{KeyRef, KeySnapshot};
use super::shard::Change;
use super::table::{Admitted, AnyTable, with_table};
use crate::acquire::{
    AcquireExplained, AcquireOwned, PermitRequest, Reservation, Run, blocking_acquire, check_clock,
};
use crate::carry_over::UsageCarryOver;
use crate::core::request::Costs;
use crate::decision::Decision;
use crate::error::{AcquireError, ConfigError, TryAcquireError};
use crate::limiter::Limiter;
use crate::manager::{Awaited, RequestOptions};
use crate::observe::KeyedObservers;
use crate::permit::Permit;
use crate::policy::Policy;
use crate::snapshot::{KeyTotals, LimitStatus};

/// One limiter for each key: for each client, user or endpoint. Clones share the same limiters.
///
/// # Keys
///
/// The state of a key is created on its first request, and then the key is *known*. A key is forgotten when it is reset (its
/// whole budget is back), so no usage is lost. Each call checks a few other keys and forgets those that are reset: there is no
/// sweep, and no task or timer for a key without waiters. At most [`max_keys`](crate::KeyedLimiterBuilder::max_keys) keys are
/// known at once, even under an attack. Keys are hashed with a random seed for each limiter. (A
/// [`TokenBucket`](crate::TokenBucket) with an `initial` count below its burst starts with that count again when a forgotten key
/// returns.)
///
/// Each call takes a key or a borrowed form of it, as a `HashMap` does: `"alice"` where keys are of type `String`. An owned key
/// is made of the borrowed form ([`to_owned`](ToOwned::to_owned)) when the key becomes known, for a future or an observer that
/// owns it, and for each call where keys have [tiers](crate::KeyedLimiterBuilder::tiers).
///
/// If a [`MaxConcurrency`](crate::MaxConcurrency) has no [TTL](crate::MaxConcurrency::ttl), a granted future that is not polled
/// blocks the other waiters of its key: it holds the place until it is polled or dropped.
///
/// # Memory
///
/// An *idle* key of a policy of rates takes one or two words for each limit, besides the key itself: 22 bytes in all at a million
/// keys of 8 bytes with one [`Throttle`](crate::Throttle) or [`TokenBucket`](crate::TokenBucket). Keys other than numbers and
/// addresses of the standard library take 10 bytes more, for their hash.
///
/// A key is *active* while a request waits for it, while it has places in flight, or while its [`limiter`](KeyedLimiter::limiter)
/// is held. It is always active if its policy has a [log](crate::SlidingWindow::log) or a used
/// [`MaxConcurrency`](crate::MaxConcurrency). An active key takes about 540 bytes; 160 more with one waiter, 230 more with a permit
/// that has a TTL, 120 more if its limit adapts or is a log, and 60 to 190 more for each further limit of its policy. All of it
/// is freed when the key becomes idle or is forgotten.
///
/// An active key of 8 bytes takes at most 96 bytes in all if its policy is one [`MaxConcurrency`](crate::MaxConcurrency) that
/// neither has a TTL nor adapts, and if callers only acquire, try, release and check it, and read its snapshots. It takes the
/// memory above from the first request that waits for it, and from any other call that changes it ([`KeyedLimiter::penalize`],
/// [`Permit::refund`](crate::Permit::refund), `pause_for`, a [group](crate::LimiterGroup), …). In a limiter with an
/// [observer](crate::KeyedLimiterBuilder::observer), each active key takes the memory above.
///
/// # Code of the key type
///
/// `Hash`, `Clone` (or `ToOwned`) and `Drop` of your own key type run outside every lock of the limiter, and so do observers and
/// [tiers](crate::KeyedLimiterBuilder::tiers). They may use the limiter, and a panic in them loses nothing.
///
/// `Eq` and some calls of `Clone` run under a lock. A lookup compares keys with equal hashes by `Eq`.
/// [`snapshots`](KeyedLimiter::snapshots) clones keys, as does [`set_policy`](KeyedLimiter::set_policy) when there is an observer
/// and idle keys become active. These calls must neither use this limiter nor wait for a thread that does, or they can deadlock.
/// A panic in them changes nothing, and other keys are served as before. (After a panic in `set_policy`, the cloned key has no
/// observer.)
///
/// # Permits
///
/// The permits of a [`MaxConcurrency`](crate::MaxConcurrency) are like those of a [`Limiter`]. The permits of rates hold no place
/// and no handle of their limiter, so [settling](Permit::settle) them does nothing and returns `false`. To settle them, build
/// with [`settle_permits`](crate::KeyedLimiterBuilder::settle_permits), or use the key's own [`limiter`](KeyedLimiter::limiter),
/// which can also be paused and observed.
///
/// A refund needs the key and its usage right before the grant. Keeping both would make every permit larger and every grant
/// slower, although few permits are settled. To correct an estimate without them, [`reward`](KeyedLimiter::reward) or
/// [`penalize`](KeyedLimiter::penalize) the key by the difference. (A reward refunds the latest usage of the key, regardless of
/// which grant caused it.)
///
/// # Closing
///
/// After [`KeyedLimiter::close`] all requests of all keys get [`AcquireError::Closed`], including waiting ones. Permits in flight
/// stay valid; [`KeyedLimiter::drained`] waits for them. After [`KeyedLimiter::close_to_new`] the waiting requests are still served.
///
/// # Examples
///
/// ```
/// use std::net::IpAddr;
/// use tollgate::{KeyedLimiter, Rate, TokenBucket};
///
/// let per_client = KeyedLimiter::<IpAddr>::new(TokenBucket::new(Rate::per_minute(2), 2))?;
/// let [alice, bob] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
/// assert!(per_client.try_acquire(&alice).is_ok() && per_client.try_acquire(&alice).is_ok());
/// assert!(per_client.try_acquire(&alice).is_err());
/// assert!(per_client.try_acquire(&bob).is_ok());
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
pub struct KeyedLimiter<K> {
    pub(super) table: Arc<AnyTable<K>>,
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static> KeyedLimiter<K> {
    /// Waits until every limit of the key's policy admits one unit, in the [order](Limiter#order) of arrival at this key.
    ///
    /// # Cancel safety
    ///
    /// As for [`Limiter::acquire`].
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::acquire`]; [`AcquireError::TooManyKeys`], and [`AcquireError::Config`] where keys have tiers.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{KeyedLimiter, Throttle};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let per_host = KeyedLimiter::new(Throttle::every(Duration::from_millis(100)))?;
    /// let start = tokio::time::Instant::now();
    /// for host in ["a", "b", "a", "b"] {
    ///     let _permit = per_host.acquire(&host).await?;
    /// }
    /// assert_eq!(start.elapsed(), Duration::from_millis(100));
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn acquire<'a, Q: Hash + Eq + ToOwned<Owned = K> + ?Sized>(
        &'a self,
        key: &'a Q,
    ) -> KeyedAcquire<'a, K, Q> {
        self.acquire_many(key, 1)
    }

    /// [`KeyedLimiter::acquire`] for a cost of several units.
    ///
    /// # Errors
    ///
    /// Those of [`KeyedLimiter::acquire`] and of [`Limiter::acquire_many`].
    #[track_caller]
    pub fn acquire_many<'a, Q: Hash + Eq + ToOwned<Owned = K> + ?Sized>(
        &'a self,
        key: &'a Q,
        cost: u64,
    ) -> KeyedAcquire<'a, K, Q> {
        self.request(key).cost(cost).acquire()
    }

    /// [`KeyedLimiter::acquire`] as a future that borrows nothing, with a key of its own: it can be spawned, or kept in a struct.
    ///
    /// # Errors
    ///
    /// Those of [`KeyedLimiter::acquire`].
    ///
    /// ```
    /// use tollgate::{KeyedLimiter, MaxConcurrency};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let per_host = KeyedLimiter::<String>::new(MaxConcurrency::new(2))?;
    /// let _permit = tokio::spawn(per_host.acquire_owned("example.org")).await??;
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn acquire_owned<Q: Hash + Eq + ToOwned<Owned = K> + ?Sized>(
        &self,
        key: &Q,
    ) -> KeyedAcquireOwned<K> {
        self.request(key).acquire_owned()
    }

    /// Waits for a permit of one unit of the key, runs the future while it holds the permit, and releases it: see
    /// [`Limiter::run`]. The returned future has a key of its own, so that it can be spawned.
    ///
    /// # Cancel safety
    ///
    /// As for [`Limiter::run`].
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::run`], with those of [`KeyedLimiter::acquire`].
    ///
    /// ```
    /// use tollgate::{KeyedLimiter, MaxConcurrency};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let per_user = KeyedLimiter::new(MaxConcurrency::new(2))?;
    /// assert_eq!(tokio::spawn(per_user.run(&7, async { 6 * 7 })).await??, 42);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn run<F: Future, Q: Hash + Eq + ToOwned<Owned = K> + ?Sized>(
        &self,
        key: &Q,
        future: F,
    ) -> Run<F, KeyedAcquireOwned<K>> {
        self.request(key).run(future)
    }

    /// [`KeyedLimiter::acquire`] for a thread outside every runtime: see [`Limiter::blocking_acquire`].
    ///
    /// # Panics
    ///
    /// In a task, like the blocking functions of tokio: use `acquire` there, or `tokio::task::spawn_blocking`.
    ///
    /// # Errors
    ///
    /// Those of [`KeyedLimiter::acquire`]; [`AcquireError::NoRuntime`] only in the case that [`Limiter::blocking_acquire`]
    /// describes.
    ///
    /// ```
    /// use tollgate::{KeyedLimiter, MaxConcurrency};
    ///
    /// let per_user = KeyedLimiter::new(MaxConcurrency::new(1))?;
    /// let _permit = per_user.blocking_acquire(&7)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn blocking_acquire<Q: Hash + Eq + ToOwned<Owned = K> + ?Sized>(
        &self,
        key: &Q,
    ) -> Result<Permit, AcquireError> {
        self.request(key).blocking_acquire()
    }

    /// A request with a cost, a priority or a timeout. See [`PermitRequest`](PermitRequest#examples).
    #[track_caller]
    pub fn request<'a, Q: Hash + Eq + ToOwned<Owned = K> + ?Sized>(
        &'a self,
        key: &'a Q,
    ) -> PermitRequest<(&'a Self, &'a Q)> {
        PermitRequest::new((self, key), 1, Location::caller())
    }

    /// Takes one unit of the key now, or nothing. See the [type's example](KeyedLimiter#examples).
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::try_acquire`]; [`TryAcquireError::TooManyKeys`], and [`TryAcquireError::Config`] where keys have tiers.
    #[inline]
    #[track_caller]
    pub fn try_acquire<Q: Hash + Eq + ToOwned<Owned = K> + ?Sized>(
        &self,
        key: &Q,
    ) -> Result<Permit, TryAcquireError> {
        self.try_acquire_many(key, 1)
    }

    /// [`KeyedLimiter::try_acquire`] for a cost of several units.
    ///
    /// # Errors
    ///
    /// Those of [`KeyedLimiter::try_acquire`] and of [`Limiter::try_acquire_many`].
    #[inline]
    #[track_caller]
    pub fn try_acquire_many<Q: Hash + Eq + ToOwned<Owned = K> + ?Sized>(
        &self,
        key: &Q,
        cost: u64,
    ) -> Result<Permit, TryAcquireError> {
        with_table!(&*self.table, |table| table.try_acquire(
            key,
            cost,
            Location::caller()
        ))
    }

    /// The decision that [`KeyedLimiter::try_acquire_many`] would make now; takes nothing. An unknown key stays unknown. The
    /// decision is a denial if the table is full, or if the policy of the key's tier is invalid. See [`Limiter::check`].
    pub fn check<Q: Hash + Eq + ToOwned<Owned = K> + ?Sized>(
        &self,
        key: &Q,
        cost: u64,
    ) -> Decision {
        with_table!(&*self.table, |table| table.check(key, Costs::plain(cost)))
    }

    /// The status of each limit of the key; empty if the policy of its tier is invalid. An unknown key stays unknown. See
    /// [`Limiter::limits`].
    #[must_use]
    pub fn limits<Q: Hash + Eq + ToOwned<Owned = K> + ?Sized>(&self, key: &Q) -> Vec<LimitStatus> {
        with_table!(&*self.table, |table| table.limits(key))
    }

    /// The key's own limiter, with all methods of a [`Limiter`]. The key stays known as long as the limiter is held. Changes
    /// through this limiter (a pause, a policy) last at least as long, with two exceptions for the policy: if keys have tiers,
    /// each call with the key restores the policy of its tier, and [`set_policy`](KeyedLimiter::set_policy) replaces the policy
    /// of all keys.
    ///
    /// # Errors
    ///
    /// [`TryAcquireError::TooManyKeys`], or [`TryAcquireError::Config`] where keys have tiers.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{KeyedLimiter, Rate, TokenBucket};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let per_model = KeyedLimiter::new(TokenBucket::new(Rate::per_minute(100_000), 10_000))?;
    /// let tokens = per_model.limiter(&"small")?;
    /// assert!(tokens.acquire_many(800).await?.settle(350));
    /// assert_eq!(per_model.check(&"small", 1).remaining(), 9_650);
    ///
    /// tokens.pause_for(Duration::from_secs(5));
    /// assert!(per_model.check(&"small", 1).is_paused());
    /// # Ok(())
    /// # }
    /// ```
    pub fn limiter<Q: Hash + Eq + ToOwned<Owned = K> + ?Sized>(
        &self,
        key: &Q,
    ) -> Result<Limiter, TryAcquireError> {
        with_table!(&*self.table, |table| table.manager(key))
            .map(Limiter::from_manager)
            .map_err(TryAcquireError::without_decision)
    }

    /// The numbers of a key. `None` when the key is not known: its whole budget is then available.
    ///
    /// ```
    /// # use tollgate::{KeyedLimiter, Penalty, Rate};
    /// let per_client = KeyedLimiter::new(Penalty::new(3, Rate::per_minute(1)))?;
    /// (0..5).for_each(|_| drop(per_client.try_acquire(&"eve")));
    /// let eve = per_client.snapshot(&"eve").unwrap();
    /// assert_eq!((eve.used, eve.limit, eve.remaining), (5, 3, 0));
    /// assert!(eve.to_string().starts_with("5 of 3 used, 0 in flight, 0 queued; retry after "));
    /// assert_eq!(per_client.snapshot(&"bob"), None);
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[must_use]
    pub fn snapshot<Q: Hash + Eq + ToOwned<Owned = K> + ?Sized>(
        &self,
        key: &Q,
    ) -> Option<KeySnapshot> {
        with_table!(&*self.table, |table| table.snapshot(key))
    }

    /// The numbers of all known keys, in no order. The iterator locks one part of the keys at a time and clones its keys. The
    /// numbers of one part are of the same moment; those of different parts are not.
    ///
    /// ```
    /// # use tollgate::{KeyedLimiter, Penalty, Rate};
    /// let per_client = KeyedLimiter::new(Penalty::new(3, Rate::per_minute(1)))?;
    /// assert!(per_client.penalize(&"eve", 2));
    /// for (client, numbers) in per_client.snapshots() {
    ///     println!("{client}: {numbers}");
    /// }
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn snapshots(&self) -> impl Iterator<Item = (K, KeySnapshot)> + use<K> {
        let table = Arc::clone(&self.table);
        (0..)
            .map_while(move |shard| with_table!(&*table, |table| table.snapshots(shard)))
            .flatten()
    }

    /// Sums over all keys, also over those that were forgotten: grants, denials, units in flight and more.
    ///
    /// The method locks one part of the keys at a time. Each [active](KeyedLimiter#memory) key takes up to a microsecond; idle
    /// keys take no time. The numbers of one part are of the same moment; those of different parts are not. A permit whose TTL
    /// has passed is reclaimed by a timer or by the next call for its key, and counts as in flight until then.
    ///
    /// ```
    /// use tollgate::{KeyedLimiter, Rate, TokenBucket, WhenFull};
    ///
    /// let builder = KeyedLimiter::builder(TokenBucket::new(Rate::per_minute(1), 1)).max_keys(1);
    /// let per_client = builder.when_full(WhenFull::EvictSoonestReset).build()?;
    /// for client in ["alice", "alice", "bob"] {
    ///     let _ = per_client.try_acquire(&client);
    /// }
    /// let totals = per_client.totals();
    /// assert_eq!((per_client.len(), totals.granted, totals.denied), (1, 2, 1));
    /// assert_eq!(totals.to_string(), "0 in flight, 0 queued, 2 granted, 1 denied");
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[must_use]
    pub fn totals(&self) -> KeyTotals {
        with_table!(&*self.table, |table| table.totals())
    }

    /// The [name](crate::KeyedLimiterBuilder::name), if it has one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.observers().name.as_deref()
    }

    #[inline]
    pub(crate) fn try_request<Q: Hash + Eq + ToOwned<Owned = K> + ?Sized>(
        &self,
        key: &Q,
        options: &RequestOptions,
        limits: Option<&mut Vec<LimitStatus>>,
    ) -> Result<Permit, TryAcquireError> {
        with_table!(&*self.table, |table| table
            .try_request(key, options, limits))
    }

    pub(crate) fn observers(&self) -> &KeyedObservers {
        with_table!(&*self.table, |table| &table.shared.observers)
    }

    /// The maximum number of known keys: see [`KeyedLimiterBuilder::max_keys`](crate::KeyedLimiterBuilder::max_keys).
    #[must_use]
    pub fn max_keys(&self) -> usize {
        with_table!(&*self.table, |table| table.shards.max_keys)
    }

    /// The number of known keys: those with usage, and some that are reset but not forgotten yet. See
    /// [`KeyedLimiterBuilder::max_keys`](crate::KeyedLimiterBuilder::max_keys).
    #[must_use]
    pub fn len(&self) -> usize {
        with_table!(&*self.table, |table| table.shards.len())
    }

    /// Whether no key is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Charges the key `units`, whether or not its limits admit them: later requests wait until these are paid off. A
    /// [`Penalty`](crate::Penalty) is raised up to its ceiling, and bans only at a denied attempt; a
    /// [`MaxConcurrency`](crate::MaxConcurrency) is not charged. Returns whether the key is known now; a full table may have no
    /// room for it.
    ///
    /// ```
    /// # use tollgate::{KeyedLimiter, Penalty, Rate};
    /// let per_client = KeyedLimiter::new(Penalty::new(10, Rate::per_second(1)))?;
    /// assert!(per_client.penalize(&"eve", 10)); // a wrong password
    /// assert!(per_client.try_acquire(&"eve").is_err());
    /// per_client.reward(&"eve", 10); // it was a typo
    /// assert!(per_client.try_acquire(&"eve").is_ok());
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[must_use = "`false` means that the key was not charged, because there is no room for it"]
    pub fn penalize<Q: Hash + Eq + ToOwned<Owned = K> + ?Sized>(
        &self,
        key: &Q,
        units: u64,
    ) -> bool {
        with_table!(&*self.table, |table| table.penalize(key, units))
    }

    /// Refunds up to `units` of recent usage, the latest first. Permits in flight keep their places, and a ban stays
    /// ([`reset`](Self::reset) ends it). See [`KeyedLimiter::penalize`].
    pub fn reward<Q: Hash + Eq + ToOwned<Owned = K> + ?Sized>(&self, key: &Q, units: u64) {
        with_table!(&*self.table, |table| table.reward(key, units));
    }

    /// Resets the key: its whole budget is back. Permits in flight keep their places, and waiting requests their position.
    /// Returns whether the key was known.
    ///
    /// ```
    /// # use tollgate::{KeyedLimiter, Rate, TokenBucket};
    /// let per_client = KeyedLimiter::new(TokenBucket::new(Rate::per_minute(1), 1))?;
    /// assert!(per_client.try_acquire(&"eve").is_ok() && per_client.try_acquire(&"eve").is_err());
    /// assert!(per_client.reset(&"eve") && per_client.try_acquire(&"eve").is_ok());
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[doc(alias("forget", "remove"))]
    pub fn reset<Q: Hash + Eq + ToOwned<Owned = K> + ?Sized>(&self, key: &Q) -> bool {
        with_table!(&*self.table, |table| table.reset(key))
    }

    /// Replaces the policy of all keys, known and new ones, while they are in use. See [`KeyedLimiter::set_policy_with`].
    ///
    /// # Errors
    ///
    /// [`ConfigError`] when a limit of the policy or the policy text is invalid; [`ConfigError::HasTiers`]. On an error nothing
    /// changes.
    pub fn set_policy(
        &self,
        policy: impl TryInto<Policy, Error: Into<ConfigError>>,
    ) -> Result<(), ConfigError> {
        self.set_policy_with(policy, UsageCarryOver::AsIs)
    }

    /// Replaces the policy of all keys, known and new ones, while they are in use. For each key, queued requests keep their
    /// position and usage carries over, by the rules of [`Limiter::set_policy_with`](crate::Limiter::set_policy_with). A policy
    /// that was set on a key's own [`limiter`](KeyedLimiter::limiter) is replaced, too.
    ///
    /// The change takes about half a microsecond for each known key. Other calls go on meanwhile, because one part of the keys at
    /// a time is locked: 1,536 keys on average in a full limiter. A concurrent call uses the former policy or the new one.
    ///
    /// The size of an idle key is fixed when the limiter is built: one, two or four words, as the limits of the first policy
    /// need. If the limits of a later policy need more, all keys with usage become [active](KeyedLimiter#memory), which takes two
    /// microseconds for each.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] when a limit of the policy or the policy text is invalid. [`ConfigError::HasTiers`] where keys have
    /// [tiers](crate::KeyedLimiterBuilder::tiers): the tier function gives the policy of each key, and its result may change at
    /// any time. In both cases nothing changes.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{FixedWindow, KeyedLimiter, UsageCarryOver};
    ///
    /// let per_minute = |units| FixedWindow::new(units, Duration::from_secs(60));
    /// let per_user = KeyedLimiter::<u64>::new(per_minute(100))?;
    /// let _used = per_user.try_acquire_many(&7, 60)?;
    /// per_user.set_policy(per_minute(200))?;
    /// assert_eq!((per_user.check(&7, 1).remaining(), per_user.check(&8, 1).remaining()), (140, 200));
    /// per_user.set_policy_with(per_minute(20), UsageCarryOver::InProportion)?;
    /// assert_eq!((per_user.check(&7, 1).remaining(), per_user.check(&8, 1).remaining()), (14, 20));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_policy_with(
        &self,
        policy: impl TryInto<Policy, Error: Into<ConfigError>>,
        carry: UsageCarryOver,
    ) -> Result<(), ConfigError> {
        let policy = policy.try_into().map_err(Into::into)?;
        with_table!(&*self.table, |table| table.set_policy(policy, carry))
    }

    /// The present policy: the one that the limiter was built with, or that [`KeyedLimiter::set_policy`] set last. With
    /// [tiers](crate::KeyedLimiterBuilder::tiers), the policy of the builder.
    ///
    /// ```
    /// use tollgate::{KeyedLimiter, MaxConcurrency};
    ///
    /// let per_user = KeyedLimiter::<u64>::new(MaxConcurrency::new(8))?;
    /// per_user.set_policy("8 concurrent and 100/min")?;
    /// assert_eq!(per_user.policy().to_string(), "8 concurrent and 100/min");
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[must_use]
    pub fn policy(&self) -> Policy {
        with_table!(&*self.table, |table| table
            .shards
            .get(0)
            .tiers
            .own()
            .plan
            .policy()
            .clone())
    }

    /// Grants nothing for `duration`, for all keys, known and new ones: requests wait, in order, and
    /// [`try_acquire`](KeyedLimiter::try_acquire) is denied.
    ///
    /// Zero changes nothing; [`Duration::MAX`] lasts until [`KeyedLimiter::resume`]. Of several pauses, the one that ends last
    /// counts. Permits in flight stay valid, and their TTLs run on.
    ///
    /// To pause a single key, pause its own [`limiter`](KeyedLimiter::limiter). A key is served when neither the key nor the
    /// keyed limiter is paused; resuming one of them does not end the pause of the other. Keys that are idle when the pause
    /// begins take no more memory. A key with permits in flight becomes as large as any [active](KeyedLimiter#memory) key.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{KeyedLimiter, Rate, TokenBucket};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let per_user = KeyedLimiter::<u64>::new(TokenBucket::new(Rate::per_second(10), 10))?;
    /// per_user.pause_for(Duration::from_secs(30));
    /// assert!(per_user.check(&7, 1).is_paused());
    /// let start = tokio::time::Instant::now();
    /// let _permit = per_user.acquire(&8).await?;
    /// assert_eq!(start.elapsed(), Duration::from_secs(30));
    /// # Ok(())
    /// # }
    /// ```
    pub fn pause_for(&self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        if nanos > 0 {
            with_table!(&*self.table, |table| table.change(Change::Pause(nanos)));
        }
    }

    /// Grants nothing before `instant` on tokio's clock, for all keys. An instant that has passed changes nothing. See
    /// [`KeyedLimiter::pause_for`].
    pub fn pause_until(&self, instant: Instant) {
        self.pause_for(instant.saturating_duration_since(Instant::now()));
    }

    /// Ends the pauses of all keys now. A pause of a key's own [`limiter`](KeyedLimiter::limiter) continues.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::{KeyedLimiter, MaxConcurrency};
    /// let per_user = KeyedLimiter::<u64>::new(MaxConcurrency::new(8))?;
    /// per_user.pause_for(Duration::MAX);
    /// assert!(per_user.try_acquire(&7).is_err());
    /// per_user.resume();
    /// assert!(per_user.try_acquire(&7).is_ok());
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn resume(&self) {
        with_table!(&*self.table, |table| table.change(Change::Resume));
    }

    /// Refuses all waiting and all later requests, of all keys, with [`AcquireError::Closed`]. An unknown key stays unknown.
    /// Permits in flight stay valid. See [`KeyedLimiter::drained`] for an example.
    pub fn close(&self) {
        with_table!(&*self.table, |table| table
            .change(Change::Close { drains: false }));
    }

    /// Refuses all later requests, of all keys, with [`AcquireError::Closed`], and serves the waiting ones, which
    /// [`KeyedLimiter::close`] can still refuse. An unknown key stays unknown. [`KeyedLimiter::drained`] returns when all waiting
    /// requests are served and their permits are back.
    ///
    /// ```
    /// use tollgate::{AcquireError, KeyedLimiter, MaxConcurrency};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let per_user = KeyedLimiter::<u64>::new(MaxConcurrency::new(1))?;
    /// let permit = per_user.acquire(&7).await?;
    /// let waiting = tokio::spawn(per_user.acquire_owned(&7));
    /// tokio::task::yield_now().await;
    /// per_user.close_to_new();
    /// assert_eq!(per_user.acquire(&8).await.unwrap_err(), AcquireError::Closed);
    /// drop(permit);
    /// drop(waiting.await??); // served
    /// per_user.drained().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn close_to_new(&self) {
        with_table!(&*self.table, |table| table
            .change(Change::Close { drains: true }));
    }

    /// Whether [`KeyedLimiter::close`] or [`KeyedLimiter::close_to_new`] was called on this handle or on a clone, and has reached all
    /// keys. See [`KeyedLimiter::drained`] for an example.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        // A change reaches this shard last.
        with_table!(&*self.table, |table| table.shards.get(0).is_closed())
    }

    /// Waits for an instant at which no request of any key waits and every permit that holds a place was released or reclaimed.
    /// Returns at once if nothing is in use. After [`KeyedLimiter::close`] the limiter stays drained. While it is open, new
    /// requests may come at any time, also before the caller continues.
    ///
    /// Only permits of a [`MaxConcurrency`](crate::MaxConcurrency) hold a place; the method does not wait for permits of other
    /// limits.
    ///
    /// The wait slows no grant or release. It waits for one key in use after the other, and then looks at all keys twice, to
    /// check that no place was granted in between. So while the limiter is open and places are granted all the time, it may miss
    /// a drained instant that is shorter than such a look.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped and the method called again at any time.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{AcquireError, KeyedLimiter, MaxConcurrency};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let per_user = KeyedLimiter::<u64>::new(MaxConcurrency::new(2))?;
    /// let permit = per_user.acquire(&7).await?;
    /// tokio::spawn(async move { permit.release() });
    /// per_user.close();
    /// assert!(per_user.is_closed());
    /// assert_eq!(per_user.acquire(&8).await.unwrap_err(), AcquireError::Closed);
    /// per_user.drained().await;
    /// assert!(per_user.snapshots().all(|(_, user)| user.in_flight == 0));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn drained(&self) {
        // Grants and releases keep no count for this method, because they have no information on whether a task awaits the drain.
        // The task looks at one shard after the other, and waits for the keys that are in use. It sees different shards at
        // different moments. So it must find each shard drained twice, one round apart, with no grant between. Then all shards
        // were drained when the second round began.
        let table = &*self.table;
        let shards = with_table!(table, |table| table.shards.count());
        let mut marks = vec![None; shards];
        let mut unchanged = 0; // consecutive latest looks that found no change since the round before
        for shard in (0..shards).cycle() {
            let look = with_table!(table, |table| table.shards.get(shard).look());
            if look.in_use.is_empty() {
                let before = marks[shard].replace(look.mark);
                unchanged = if before == Some(look.mark) {
                    unchanged + 1
                } else {
                    0
                };
                if unchanged == shards {
                    return;
                }
            } else {
                unchanged = 0;
                marks[shard] = None;
                for manager in look.in_use {
                    manager.watch(Awaited::Drain).await;
                }
            }
            if look.asked > 0 || shard + 1 == shards {
                coop::consume_budget().await; // other tasks must have a turn
            }
        }
    }
}

impl<K> Clone for KeyedLimiter<K> {
    fn clone(&self) -> Self {
        Self {
            table: Arc::clone(&self.table),
        }
    }
}

debug_fields! {
    [K] KeyedLimiter<K>,
    |limiter| len = with_table!(&*limiter.table, |table| table.shards.len()), max_keys = with_table!(&*limiter.table, |table| table.shards.max_keys)
}

/// A request for a key of a [`KeyedLimiter`].
impl<'a, K: Hash + Eq + Clone + Send + Sync + 'static, Q: Hash + Eq + ToOwned<Owned = K> + ?Sized>
    PermitRequest<(&'a KeyedLimiter<K>, &'a Q)>
{
    /// Waits for the permit. See [`KeyedLimiter::acquire`](crate::KeyedLimiter::acquire).
    ///
    /// # Errors
    ///
    /// Those of [`KeyedLimiter::acquire`](crate::KeyedLimiter::acquire) and of [`PermitRequest::acquire`](crate::PermitRequest::acquire).
    pub fn acquire(self) -> KeyedAcquire<'a, K, Q> {
        let (limiter, key) = self.target;
        KeyedAcquire {
            table: &limiter.table,
            key,
            stage: KeyedStage::New(self.options),
        }
    }

    /// [`PermitRequest::acquire`] as a future that borrows nothing. See
    /// [`KeyedLimiter::acquire_owned`](crate::KeyedLimiter::acquire_owned).
    ///
    /// # Errors
    ///
    /// Those of [`PermitRequest::acquire`].
    pub fn acquire_owned(self) -> KeyedAcquireOwned<K> {
        let (limiter, key) = self.target;
        KeyedAcquireOwned {
            table: Arc::clone(&limiter.table),
            key: key.to_owned(),
            stage: KeyedStage::New(self.options),
        }
    }

    /// Waits for the permit, and runs the future while it holds it. See [`KeyedLimiter::run`](crate::KeyedLimiter::run).
    ///
    /// # Errors
    ///
    /// Those of [`KeyedLimiter::run`](crate::KeyedLimiter::run) and of [`PermitRequest::acquire`].
    pub fn run<F: Future>(self, future: F) -> Run<F, KeyedAcquireOwned<K>> {
        Run::new(self.acquire_owned(), future)
    }

    /// Takes the cost of the request now, or nothing. See [`PermitRequest::try_acquire`](crate::PermitRequest::try_acquire).
    ///
    /// # Errors
    ///
    /// Those of [`PermitRequest::try_acquire`](crate::PermitRequest::try_acquire), and those of
    /// [`KeyedLimiter::try_acquire`](crate::KeyedLimiter::try_acquire).
    pub fn try_acquire(self) -> Result<Permit, TryAcquireError> {
        let (limiter, key) = self.target;
        limiter.try_request(key, &self.options, None)
    }

    /// [`PermitRequest::try_acquire`], with the status of each limit of the key right after the decision. See
    /// [`PermitRequest::try_acquire_explained`](crate::PermitRequest::try_acquire_explained).
    ///
    /// ```
    /// # use tollgate::KeyedLimiter;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// let per_user = KeyedLimiter::new("10/min and 100/h").unwrap();
    /// let (answer, limits) = per_user.request(&"alice").cost(3).try_acquire_explained();
    /// assert_eq!((answer.is_ok(), limits[0].remaining, limits[1].remaining), (true, 7, 97));
    /// # }
    /// ```
    pub fn try_acquire_explained(self) -> (Result<Permit, TryAcquireError>, Vec<LimitStatus>) {
        let (limiter, key) = self.target;
        let mut limits = Vec::new();
        let answer = limiter.try_request(key, &self.options, Some(&mut limits));
        (answer, limits)
    }

    /// [`PermitRequest::acquire_owned`], with the status of each limit of the key when the permit was granted, or the request
    /// refused. See [`PermitRequest::acquire_explained`](crate::PermitRequest::acquire_explained). There are no limits if the key
    /// was not admitted.
    ///
    /// # Errors
    ///
    /// Those of [`PermitRequest::acquire`].
    pub fn acquire_explained(
        self,
    ) -> impl Future<Output = (Result<Permit, AcquireError>, Vec<LimitStatus>)> + use<K, Q> {
        let (limiter, key) = self.target;
        let (table, key, options) = (Arc::clone(&limiter.table), key.to_owned(), self.options);
        async move {
            // A task that acquires in a loop must yield to other tasks.
            coop::consume_budget().await;
            let mut limits = Vec::new();
            match with_table!(&*table, |table| table.admit(
                &key,
                &options,
                Some(&mut limits)
            )) {
                Ok(Admitted::Granted(permit)) => (Ok(permit), limits),
                Ok(Admitted::ToManager(manager)) => AcquireExplained::new(manager, options).await,
                Err(error) => (Err(error), limits),
            }
        }
    }

    /// Joins the queue of the key now. See [`Limiter::reserve`](crate::Limiter::reserve). A reservation that was granted at once
    /// cannot be refunded if the permits of the key have [no handle of their limiter](crate::KeyedLimiter#permits).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::{KeyedLimiter, Throttle};
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let per_host = KeyedLimiter::new(Throttle::every(Duration::from_secs(1)))?;
    /// let (first, second) = (per_host.request(&"a").reserve()?, per_host.request(&"a").reserve()?);
    /// assert_eq!((first.ready_in(), second.ready_in()), (Some(Duration::ZERO), Some(Duration::from_secs(1))));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`PermitRequest::acquire`] that are known at once.
    pub fn reserve(self) -> Result<Reservation, AcquireError> {
        let (limiter, key) = self.target;
        match with_table!(&*limiter.table, |table| table.admit(
            key,
            &self.options,
            None
        ))? {
            Admitted::Granted(permit) => Ok(Reservation::granted(permit)),
            Admitted::ToManager(manager) => Reservation::new(manager, self.options),
        }
    }

    /// The decision that [`PermitRequest::try_acquire`] would make now; takes nothing. See
    /// [`KeyedLimiter::check`](crate::KeyedLimiter::check).
    pub fn check(self) -> Decision {
        let (limiter, key) = self.target;
        with_table!(&*limiter.table, |table| table
            .check(key, self.options.costs()))
    }

    /// Blocks the thread until it has the permit. See [`KeyedLimiter::blocking_acquire`](crate::KeyedLimiter::blocking_acquire).
    ///
    /// # Panics
    ///
    /// In a task, like the blocking functions of tokio: use `acquire` there, or `tokio::task::spawn_blocking`.
    ///
    /// # Errors
    ///
    /// Those of [`PermitRequest::acquire`]; [`AcquireError::NoRuntime`] only in the case that
    /// [`Limiter::blocking_acquire`](crate::Limiter::blocking_acquire) describes.
    #[track_caller]
    pub fn blocking_acquire(self) -> Result<Permit, AcquireError> {
        check_clock()?;
        let (limiter, key) = self.target;
        match with_table!(&*limiter.table, |table| table.admit(
            key,
            &self.options,
            None
        ))? {
            Admitted::Granted(permit) => Ok(permit),
            Admitted::ToManager(manager) => blocking_acquire(&manager, self.options),
        }
    }
}

/// [`PermitRequest::acquire`], so that a request can be awaited itself.
impl<'a, K: Hash + Eq + Clone + Send + Sync + 'static, Q: Hash + Eq + ToOwned<Owned = K> + ?Sized>
    IntoFuture for PermitRequest<(&'a KeyedLimiter<K>, &'a Q)>
{
    type Output = Result<Permit, AcquireError>;
    type IntoFuture = KeyedAcquire<'a, K, Q>;

    fn into_future(self) -> KeyedAcquire<'a, K, Q> {
        self.acquire()
    }
}

/// A future that waits for a permit of a key. [`KeyedLimiter::acquire`](crate::KeyedLimiter::acquire), which has an example, returns
/// it.
///
/// Its cancel safety, and what happens while it is not polled, are those of [`Acquire`](crate::Acquire).
#[must_use = "futures do nothing unless polled"]
pub struct KeyedAcquire<'a, K, Q: ?Sized = K> {
    table: &'a Arc<AnyTable<K>>,
    key: &'a Q,
    stage: KeyedStage,
}

/// A [`KeyedAcquire`] that borrows nothing: it has a key of its own.
/// [`KeyedLimiter::acquire_owned`](crate::KeyedLimiter::acquire_owned), which has an example, returns it.
#[must_use = "futures do nothing unless polled"]
pub struct KeyedAcquireOwned<K> {
    table: Arc<AnyTable<K>>,
    key: K,
    stage: KeyedStage,
}

#[derive(Debug)]
enum KeyedStage {
    New(RequestOptions),
    /// The request waits at the key's manager.
    Waiting(AcquireOwned),
    Done,
}

impl KeyedStage {
    fn poll<K: Hash + Eq + Clone + Send + Sync + 'static>(
        &mut self,
        table: &AnyTable<K>,
        key: &(impl KeyRef<K> + ?Sized),
        cx: &mut Context<'_>,
    ) -> Poll<Result<Permit, AcquireError>> {
        if let Self::New(options) = self {
            // A task that acquires in a loop must yield to other tasks.
            ready!(coop::poll_proceed(cx)).made_progress();
            let options = options.clone();
            *self = Self::Done;
            match with_table!(table, |table| table.admit(key, &options, None))? {
                Admitted::Granted(permit) => return Poll::Ready(Ok(permit)),
                Admitted::ToManager(manager) => {
                    *self = Self::Waiting(AcquireOwned::new(manager, options));
                }
            }
        }
        let Self::Waiting(acquire) = self else {
            panic!("an acquire future was polled after it had completed")
        };
        let answer = ready!(Pin::new(acquire).poll(cx));
        *self = Self::Done;
        Poll::Ready(answer)
    }
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static, Q: Hash + Eq + ToOwned<Owned = K> + ?Sized>
    Future for KeyedAcquire<'_, K, Q>
{
    type Output = Result<Permit, AcquireError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { table, key, stage } = &mut *self;
        stage.poll(table, *key, cx)
    }
}

/// The key is never pinned.
impl<K> Unpin for KeyedAcquireOwned<K> {}

impl<K: Hash + Eq + Clone + Send + Sync + 'static> Future for KeyedAcquireOwned<K> {
    type Output = Result<Permit, AcquireError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { table, key, stage } = &mut *self;
        stage.poll(table, key, cx)
    }
}

debug_fields! { [K, Q: ?Sized] KeyedAcquire<'_, K, Q>, |acquire| stage = acquire.stage }

debug_fields! { [K] KeyedAcquireOwned<K>, |acquire| stage = acquire.stage }
