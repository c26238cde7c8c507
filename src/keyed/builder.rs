//! The builder of a keyed limiter.

#[cfg(feature = "quanta")]
mod fast_clock;

use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use foldhash::SharedSeed;
use foldhash::quality::SeedableRandomState;
use uuid::Uuid;

use super::key::{KeptHash, is_plain};
use super::limiter::KeyedLimiter;
use super::shard::Shard;
use super::shards::{Shards, WhenFull};
use super::shared::{KeyedShared, TierOf, Tiers};
use super::table::{AnyTable, KeyTable};
use crate::builder::{shared_options, since_epoch};
use crate::core::gate::plan::Plan;
use crate::core::schedule::Options;
use crate::error::ConfigError;
use crate::manager::{Clock, PerLimiter, PerPlan, SharedDriver, TimeSource, TimerHost};
use crate::observe::{
    FormatKey, KeyedObservers, LimiterEvent, Observer, Observers, format_by_debug, format_nothing,
};
use crate::overflow::Overflow;
use crate::policy::Policy;

/// The number of keys that a shard is sized for. They fill its table of 2,068 slots well, and leave room for random variation (up
/// to 1,654 keys). Moving so few keys to a larger table takes some tens of microseconds.
const KEYS_PER_SHARD: usize = 1_536;
/// The least number of shards if there are enough keys to fill them: two threads seldom use the same one.
const FEW_SHARDS: usize = 16;
const MIN_KEYS_PER_SHARD: usize = 32;
const DEFAULT_MAX_KEYS: usize = 1_000_000;

/// The options of a keyed limiter. [`KeyedLimiter::builder`] returns it.
///
/// # Examples
///
/// ```
/// use tollgate::{KeyedLimiter, Policy, Rate, TokenBucket};
///
/// #[derive(Clone, PartialEq, Eq, Hash)]
/// struct User { id: u64, pays: bool }
///
/// let (free, paid) = (Policy::from(TokenBucket::new(Rate::per_minute(100), 100)), Policy::from(TokenBucket::new(Rate::per_minute(3_000), 3_000)));
/// let per_user = KeyedLimiter::builder(free.clone())
///     .max_keys(100_000)
///     .tiers(move |user: &User| if user.pays { paid.clone() } else { free.clone() })
///     .build()?;
/// assert_eq!(per_user.check(&User { id: 1, pays: true }, 1).limit(), 3_000);
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[must_use = "a builder does nothing until it builds"]
pub struct KeyedLimiterBuilder<K> {
    policy: Result<Policy, ConfigError>,
    name: Option<Arc<str>>,
    max_keys: usize,
    when_full: WhenFull,
    tier_of: Option<TierOf<K>>,
    settles: bool,
    precise_timer: bool,
    options: Options,
    time_source: TimeSource,
    observers: Observers,
    format_key: FormatKey,
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static> KeyedLimiter<K> {
    /// Makes a keyed limiter with the default options. The policy has the forms that [`Limiter::new`](crate::Limiter::new) takes.
    /// See the [type's example](KeyedLimiter#examples).
    ///
    /// # Errors
    ///
    /// [`ConfigError`] when a limit of the policy, which the error names, or the policy text is invalid.
    pub fn new(
        policy: impl TryInto<Policy, Error: Into<ConfigError>>,
    ) -> Result<Self, ConfigError> {
        Self::builder(policy).build()
    }

    /// Starts a keyed limiter with options. See [`KeyedLimiterBuilder`]. [`build`](KeyedLimiterBuilder::build) reports an invalid
    /// policy.
    pub fn builder(
        policy: impl TryInto<Policy, Error: Into<ConfigError>>,
    ) -> KeyedLimiterBuilder<K> {
        KeyedLimiterBuilder {
            policy: policy.try_into().map_err(Into::into),
            name: None,
            max_keys: DEFAULT_MAX_KEYS,
            when_full: WhenFull::Deny,
            tier_of: None,
            settles: false,
            precise_timer: false,
            options: Options::default(),
            time_source: TimeSource::TOKIO,
            observers: Observers::NONE,
            format_key: format_nothing,
        }
    }
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static> KeyedLimiterBuilder<K> {
    shared_options!();

    setters! {
        /// Sets the maximum number of known keys (at least 1). Defaults to a million. A reset key counts until a call checks it. For
        /// each key that it allows, a limiter takes 0.7 bytes from the start, at most 33 MB in all.
        ///
        /// See the [type's example](KeyedLimiterBuilder#examples).
        pub max_keys(keys: usize) => max_keys = keys;

        /// Sets what happens to a new key when there is no room for it. Defaults to [`WhenFull::Deny`].
        ///
        /// ```
        /// use tollgate::{KeyedLimiter, Rate, TokenBucket, TryAcquireError, WhenFull};
        ///
        /// let builder = || KeyedLimiter::builder(TokenBucket::new(Rate::per_minute(2), 2)).max_keys(1);
        /// let full = builder().build()?;
        /// assert!(full.try_acquire(&"alice").is_ok());
        /// assert_eq!(full.try_acquire(&"bob").unwrap_err(), TryAcquireError::TooManyKeys { max: 1 });
        ///
        /// let evicting = builder().when_full(WhenFull::EvictSoonestReset).build()?;
        /// assert!(evicting.try_acquire(&"alice").is_ok() && evicting.try_acquire(&"bob").is_ok());
        /// assert_eq!(evicting.snapshot(&"alice"), None);
        /// # Ok::<(), tollgate::ConfigError>(())
        /// ```
        pub when_full(when_full: WhenFull) => when_full = when_full;

        /// Gives each key the policy that `tier_of` returns. Each call of the limiter calls `tier_of`, outside every lock, so its
        /// result may change while the key is known: usage carries over, as with
        /// [`Limiter::set_policy`](crate::Limiter::set_policy). Policies are cheap to clone and to compare with their clone;
        /// policies that are built on each call are compared limit by limit. Each call clones its key, or makes an owned key from
        /// the borrowed form.
        ///
        /// Usage is not carried over between a [`MaxConcurrency`](crate::MaxConcurrency) and other limits. A key whose tier flips
        /// between two policies of different kinds gets a full budget each time.
        ///
        /// The builder's own policy then serves only [`check`](KeyedLimiter::check), which names a limit of that policy when the
        /// policy of a tier is invalid. Requests and [`limiter`](KeyedLimiter::limiter) then fail with
        /// [`Config`](crate::TryAcquireError::Config). With more than 64 different policies, keys of the others are always
        /// [active](KeyedLimiter#memory).
        ///
        /// See the [type's example](KeyedLimiterBuilder#examples).
        pub tiers(tier_of: impl Fn(&K) -> Policy + Send + Sync + 'static) => tier_of = Some(Box::new(tier_of));

        /// Gives every permit a handle of its limiter, so that the permit can be [settled](crate::Permit::settle). Every key is
        /// then always [active](KeyedLimiter#memory), which takes about 570 bytes.
        ///
        /// ```
        /// # use tollgate::{KeyedLimiter, Rate, TokenBucket};
        /// let tokens = KeyedLimiter::builder(TokenBucket::new(Rate::per_minute(1_000), 1_000)).settle_permits().build()?;
        /// assert!(tokens.try_acquire_many(&"alice", 600)?.settle(250));
        /// assert_eq!(tokens.check(&"alice", 1).remaining(), 750);
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        pub settle_permits() => settles = true;
    }

    /// Calls `observer` for each event of each key. Equivalent to [`observer`](Self::observer), except that a closure needs no
    /// argument type here.
    ///
    /// ```
    /// use tollgate::{EventKind, KeyedLimiter, Rate, TokenBucket};
    ///
    /// let (events, seen) = std::sync::mpsc::channel();
    /// let limiter = KeyedLimiter::builder(TokenBucket::new(Rate::per_minute(1), 1))
    ///     .max_keys(1)
    ///     .on_event(move |event| {
    ///         if let (EventKind::TooManyKeys, Some(key)) = (event.kind, event.key_as::<&str>()) {
    ///             events.send(*key).unwrap();
    ///         }
    ///     })
    ///     .build()?;
    /// assert!(limiter.try_acquire(&"alice").is_ok() && limiter.try_acquire(&"bob").is_err());
    /// assert_eq!(seen.try_recv(), Ok("bob"));
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn on_event(self, observer: impl Fn(&LimiterEvent<'_>) + Send + Sync + 'static) -> Self
    where
        K: fmt::Debug,
    {
        self.observer(observer)
    }

    /// Adds an observer of the events and the waiting requests of each key, as
    /// [`LimiterBuilder::observer`](crate::LimiterBuilder::observer) does. [`Observer`] and [`ObservedKey`](crate::ObservedKey)
    /// have examples.
    ///
    /// Keys must be `Debug`, so that an observer can format them without knowing their type.
    pub fn observer(mut self, observer: impl Observer) -> Self
    where
        K: fmt::Debug,
    {
        self.observers = self.observers.and(observer);
        self.format_key = format_by_debug::<K>;
        self
    }

    /// Builds the limiter. It starts no task.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] when a limit of the policy, which the error names, or the policy text is invalid;
    /// [`ConfigError::ZeroKeys`].
    pub fn build(self) -> Result<KeyedLimiter<K>, ConfigError> {
        if self.max_keys == 0 {
            return Err(ConfigError::ZeroKeys);
        }
        let since_epoch = since_epoch();
        let plan = Plan::new(self.policy.clone()?, since_epoch)?;
        let width = plan.width().filter(|_| !self.settles);
        // The table is as narrow as the policy allows. The policies of tiers are not known yet, so a key with a tier gets three
        // words and the number of its tier.
        let table = match (is_plain::<K>(), self.tier_of.is_some(), width.unwrap_or(0)) {
            (true, false, 0..=1) => AnyTable::Plain1(self.table(plan, since_epoch)),
            (true, false, 2) => AnyTable::Plain2(self.table(plan, since_epoch)),
            (true, ..) => AnyTable::Plain4(self.table(plan, since_epoch)),
            (false, false, 0..=1) => AnyTable::Hashed1(self.table(plan, since_epoch)),
            (false, false, 2) => AnyTable::Hashed2(self.table(plan, since_epoch)),
            (false, ..) => AnyTable::Hashed4(self.table(plan, since_epoch)),
        };
        Ok(KeyedLimiter {
            table: Arc::new(table),
        })
    }

    /// The table, with `W` words for an idle key.
    fn table<const W: usize, H: KeptHash>(
        self,
        plan: Plan,
        since_epoch: Duration,
    ) -> KeyTable<K, W, H> {
        let tiered = self.tier_of.is_some();
        let words = if self.settles {
            0 // every permit has a handle of its limiter, so no key is idle
        } else {
            W - usize::from(tiered)
        };
        let decides_at_once = !tiered && plan.width().is_some_and(|width| width <= words);
        let observed = self.observers.is_some();
        let observers = KeyedObservers {
            name: self.name.clone(),
            observers: self.observers,
            format: self.format_key,
        };
        let shared = KeyedShared {
            decides_at_once: decides_at_once.into(),
            time_source: self.time_source,
            numbers: AtomicU64::new(0),
            tier_of: self.tier_of,
            observed,
            observers: Arc::new(observers),
        };
        let options = Options {
            observed,
            ..self.options
        };
        let origin = PerLimiter {
            name: self.name,
            since_epoch,
            timer_host: TimerHost::SharedDriver(SharedDriver::new(self.precise_timer)),
            store_link: None,
        };
        let (id_prefix, hash_seed) = Uuid::new_v4().as_u64_pair();
        let common = PerPlan::new(
            Arc::new(plan),
            Arc::new(options),
            Arc::new(origin),
            id_prefix,
            Clock::new(self.time_source),
        );
        let hasher = SeedableRandomState::with_seed(hash_seed, SharedSeed::global_random());
        let few = (self.max_keys / MIN_KEYS_PER_SHARD).clamp(1, FEW_SHARDS);
        let number = self.max_keys.div_ceil(KEYS_PER_SHARD).clamp(few, 1 << 15);
        let at_once = decides_at_once.then(|| Arc::new(common.plan.deep_clone()));
        let shards = (0..number).map(|_| {
            let common = common.with_plan(Arc::new(common.plan.deep_clone()));
            let (clock, id_prefix) = (common.clock(), common.id_prefix(shared.next_number()));
            Shard::new(
                clock,
                id_prefix,
                Tiers::new(common, tiered, words),
                hasher.clone(),
                at_once.clone(),
            )
        });
        let shards = Shards::new(shards, hasher.clone(), self.max_keys, self.when_full);
        KeyTable::new(shared, shards)
    }
}

debug_fields! { [K] KeyedLimiterBuilder<K>, |builder| policy = builder.policy, max_keys = builder.max_keys }
