mod charge;
mod control;
mod totals;

use std::fmt;
use std::future::Future;
use std::hash::Hash;
use std::panic::Location;
use std::sync::Arc;

use super::acquire::{KeyedAcquire, KeyedAcquireOwned};
use super::any_table::{AnyTable, with_table};
use super::request::KeyedPermitRequest;
use super::snapshot::KeySnapshot;
use crate::acquire::Run;
use crate::core::costs::Costs;
use crate::decision::Decision;
use crate::error::{AcquireError, TryAcquireError};
use crate::limiter::Limiter;
use crate::manager::RequestOptions;
use crate::permit::Permit;
use crate::snapshot::LimitStatus;

/// One limiter for each key: for each client, user or endpoint. Clones share the same limiters.
///
/// # Keys
///
/// The state of a key is created on its first request, and then the key is *known*. A key is forgotten when it is reset (its
/// whole budget is back), so no usage is lost. Each call checks a few other keys and forgets those that are reset: there is no
/// sweep, and no task or timer for a key without waiters. At most [`max_keys`](crate::KeyedLimiterBuilder::max_keys) keys are
/// known at once, whatever an attacker sends. Keys are hashed with a random seed for each limiter. (A
/// [`TokenBucket`](crate::TokenBucket) with an `initial` count below its burst starts with that count again when a forgotten key
/// returns.)
///
/// Each call takes a key or a borrowed form of it, as a `HashMap` does: `"alice"` where keys are of type `String`. A key is made of
/// it ([`to_owned`](ToOwned::to_owned)) when it becomes known, for a future or an observer that owns it, and for each call where
/// keys have [tiers](crate::KeyedLimiterBuilder::tiers).
///
/// A grant that its waiter never polls blocks the other waiters of its key, where a [`MaxConcurrency`](crate::MaxConcurrency) has no
/// [TTL](crate::MaxConcurrency::ttl): the place is held until the future is polled or dropped.
///
/// # Memory
///
/// An *idle* key of a policy of rates takes one or two words for each limit, and its own size: 22 bytes in all at a million keys
/// of 8 bytes with one [`Throttle`](crate::Throttle) or [`TokenBucket`](crate::TokenBucket). Keys other than numbers and addresses
/// of the standard library take 10 bytes more, for their hash.
///
/// A key is *active* while a request waits for it, while it has places in flight, or while its [`limiter`](KeyedLimiter::limiter)
/// is held. It is always active if its policy has a [log](crate::SlidingWindow::log) or a used
/// [`MaxConcurrency`](crate::MaxConcurrency). An active key takes about 480 bytes; 170 more with one waiter, 230 more with a permit
/// that has a TTL, 120 more if its limit adapts or is a log, and 60 to 190 more for each further limit of its policy. All of it
/// is freed when the key becomes idle or is forgotten.
///
/// Where the policy of a key is one [`MaxConcurrency`](crate::MaxConcurrency) that neither has a TTL nor adapts, an active key of 8
/// bytes takes at most 96 bytes in all, as long as it is only acquired, tried, released, checked and looked at in snapshots. It takes
/// the memory above from the first request that waits for it, and from any other call that changes it ([`KeyedLimiter::penalize`],
/// [`Permit::refund`](crate::Permit::refund), `pause_for`, a [group](crate::LimiterGroup), …). In a limiter with an
/// [observer](crate::KeyedLimiterBuilder::on_event), each active key takes it.
///
/// # The code of a key
///
/// `Hash`, `Clone` (or `ToOwned`) and `Drop` of a key type of your own run outside every lock of the limiter, and so do observers and
/// [tiers](crate::KeyedLimiterBuilder::tiers): they may use the limiter. A panic in them loses nothing.
///
/// Two calls run under a lock: a lookup compares keys whose hashes are equal with `Eq`, and
/// [`snapshots`](KeyedLimiter::snapshots) clones keys, as does [`set_policy`](KeyedLimiter::set_policy) where there is an observer
/// and idle keys become active. `Eq`, and `Clone` there, must neither use this limiter nor wait for a thread that does: that can
/// deadlock. A panic in them changes nothing, and other keys are served as before. (In `set_policy`, its key then has no observer.)
///
/// # Permits
///
/// The permits of a [`MaxConcurrency`](crate::MaxConcurrency) are like those of a [`Limiter`]. The permits of rates hold no place
/// and no handle of their limiter, so [settling](Permit::settle) them does nothing and returns `false`. To settle them, build
/// with [`settle_permits`](crate::KeyedLimiterBuilder::settle_permits), or use the key's own [`limiter`](KeyedLimiter::limiter),
/// which can also be paused and observed.
///
/// A refund needs to know the key, and what the grant found: keeping both would make every permit larger and every grant slower, for
/// the few that are settled. To correct an estimate without them, [`reward`](KeyedLimiter::reward) or
/// [`penalize`](KeyedLimiter::penalize) the key by the difference. (A reward refunds the latest usage of the key, whichever grant it
/// is of.)
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
    /// That of [`Limiter::acquire`].
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
    pub fn acquire<'a, Q>(&'a self, key: &'a Q) -> KeyedAcquire<'a, K, Q>
    where
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.acquire_many(key, 1)
    }

    /// [`KeyedLimiter::acquire`] for a cost of several units.
    ///
    /// # Errors
    ///
    /// Those of [`KeyedLimiter::acquire`] and of [`Limiter::acquire_many`].
    #[track_caller]
    pub fn acquire_many<'a, Q>(&'a self, key: &'a Q, cost: u64) -> KeyedAcquire<'a, K, Q>
    where
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
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
    pub fn acquire_owned<Q>(&self, key: &Q) -> KeyedAcquireOwned<K>
    where
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.request(key).acquire_owned()
    }

    /// Waits for a permit of one unit of the key, runs the future while it holds the permit, and releases it: see
    /// [`Limiter::run`]. The returned future has a key of its own, so that it can be spawned.
    ///
    /// # Cancel safety
    ///
    /// That of [`Limiter::run`].
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
    pub fn run<F: Future, Q>(&self, key: &Q, future: F) -> Run<F, KeyedAcquireOwned<K>>
    where
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
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
    /// Those of [`KeyedLimiter::acquire`]; [`AcquireError::NoRuntime`] only where [`Limiter::blocking_acquire`] says.
    ///
    /// ```
    /// use tollgate::{KeyedLimiter, MaxConcurrency};
    ///
    /// let per_user = KeyedLimiter::new(MaxConcurrency::new(1))?;
    /// let _permit = per_user.blocking_acquire(&7)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn blocking_acquire<Q>(&self, key: &Q) -> Result<Permit, AcquireError>
    where
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.request(key).blocking_acquire()
    }

    /// A request with a cost, a priority or a timeout. See [`KeyedPermitRequest`].
    #[track_caller]
    pub fn request<'a, Q>(&'a self, key: &'a Q) -> KeyedPermitRequest<'a, K, Q>
    where
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        KeyedPermitRequest { table: &self.table, key, options: RequestOptions::new(1, Location::caller()) }
    }

    /// Takes one unit of the key now, or nothing. See the [type's example](KeyedLimiter#examples).
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::try_acquire`]; [`TryAcquireError::TooManyKeys`], and [`TryAcquireError::Config`] where keys have tiers.
    #[inline]
    #[track_caller]
    pub fn try_acquire<Q>(&self, key: &Q) -> Result<Permit, TryAcquireError>
    where
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.try_acquire_many(key, 1)
    }

    /// [`KeyedLimiter::try_acquire`] for a cost of several units.
    ///
    /// # Errors
    ///
    /// Those of [`KeyedLimiter::try_acquire`] and of [`Limiter::try_acquire_many`].
    #[inline]
    #[track_caller]
    pub fn try_acquire_many<Q>(&self, key: &Q, cost: u64) -> Result<Permit, TryAcquireError>
    where
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        with_table!(&*self.table, |table| table.try_acquire(key, cost, Location::caller()))
    }

    /// What [`KeyedLimiter::try_acquire_many`] would answer, without taking anything. An unknown key stays unknown; it is denied
    /// if the table is full, or if the policy of its tier is invalid. See [`Limiter::check`].
    pub fn check<Q>(&self, key: &Q, cost: u64) -> Decision
    where
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        with_table!(&*self.table, |table| table.check(key, Costs::plain(cost)))
    }

    /// What each limit of the key says now; nothing if the policy of its tier is invalid. An unknown key stays unknown. See
    /// [`Limiter::limits`].
    #[must_use]
    pub fn limits<Q>(&self, key: &Q) -> Vec<LimitStatus>
    where
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        with_table!(&*self.table, |table| table.limits(key))
    }

    /// The key's own limiter, with everything that a [`Limiter`] can do. The key stays known as long as the limiter is held.
    /// Changes through it (a pause, a policy) last at least as long; but if keys have tiers, each call by the key restores the
    /// policy of its tier, and [`set_policy`](KeyedLimiter::set_policy) replaces that of all keys.
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
    pub fn limiter<Q>(&self, key: &Q) -> Result<Limiter, TryAcquireError>
    where
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        Ok(Limiter::from_manager(with_table!(&*self.table, |table| table.manager(key))?))
    }

    /// The numbers of a key; `None` when it is not known, and so has its whole budget.
    ///
    /// ```
    /// # use tollgate::{KeyedLimiter, Penalty, Rate};
    /// let per_client = KeyedLimiter::new(Penalty::new(3, Rate::per_minute(1)))?;
    /// (0..5).for_each(|_| drop(per_client.try_acquire(&"eve")));
    /// let eve = per_client.snapshot(&"eve").unwrap();
    /// assert_eq!((eve.used, eve.limit, eve.remaining), (5, 3, 0));
    /// assert_eq!(per_client.snapshot(&"bob"), None);
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[must_use]
    pub fn snapshot<Q>(&self, key: &Q) -> Option<KeySnapshot>
    where
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        with_table!(&*self.table, |table| table.snapshot(key))
    }

    /// The numbers of all known keys, in no order. It locks one part of the keys at a time and clones them: the numbers of one
    /// part are of one moment, those of different parts are not.
    ///
    /// ```
    /// # use tollgate::{KeyedLimiter, Penalty, Rate};
    /// let per_client = KeyedLimiter::new(Penalty::new(3, Rate::per_minute(1)))?;
    /// assert!(per_client.penalize(&"eve", 2));
    /// for (client, numbers) in per_client.snapshots() {
    ///     println!("{client:>8} {:>4} of {}", numbers.used, numbers.limit);
    /// }
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn snapshots(&self) -> impl Iterator<Item = (K, KeySnapshot)> + use<K> {
        let table = Arc::clone(&self.table);
        (0..).map_while(move |shard| with_table!(&*table, |table| table.snapshots(shard))).flatten()
    }

    /// The [name](crate::KeyedLimiterBuilder::name), if it has one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        with_table!(&*self.table, |table| table.name())
    }

    /// The most keys that are known at once: see [`KeyedLimiterBuilder::max_keys`](crate::KeyedLimiterBuilder::max_keys).
    #[must_use]
    pub fn max_keys(&self) -> usize {
        with_table!(&*self.table, |table| table.max_keys())
    }

    /// The number of known keys: those with usage, and some that are reset but not forgotten yet. See
    /// [`KeyedLimiterBuilder::max_keys`](crate::KeyedLimiterBuilder::max_keys).
    #[must_use]
    pub fn len(&self) -> usize {
        with_table!(&*self.table, |table| table.len())
    }

    /// Whether no key is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<K> Clone for KeyedLimiter<K> {
    fn clone(&self) -> Self {
        Self { table: Arc::clone(&self.table) }
    }
}

impl<K> fmt::Debug for KeyedLimiter<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (len, max_keys) =
            (with_table!(&*self.table, |table| table.len()), with_table!(&*self.table, |table| table.max_keys()));
        f.debug_struct("KeyedLimiter").field("len", &len).field("max_keys", &max_keys).finish_non_exhaustive()
    }
}
