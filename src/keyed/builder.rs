#[cfg(feature = "quanta")]
mod fast_clock;

use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use foldhash::SharedSeed;
use foldhash::quality::SeedableRandomState;
use uuid::Uuid;

use super::any_table::AnyTable;
use super::event::{KeyedLimiterEvent, KeyedObserver, OnKeyedEvent};
use super::idle::{KeptHash, is_plain};
use super::key_state::MAX_WORDS;
use super::limiter::KeyedLimiter;
use super::shard::Shard;
use super::shards::Shards;
use super::shared::{Numbers, Shared};
use super::table::Table;
use super::tier::{TierOf, Tiers};
use super::when_full::WhenFull;
use crate::builder::shared_options;
use crate::core::plan::Plan;
use crate::core::schedule::Options;
use crate::error::ConfigError;
use crate::manager::{Clock, Common, Origin, SharedDriver, TimeSource, TimerHost};
use crate::observe::{FormatKey, Observer, Observers, format_by_debug, format_nothing};
use crate::overflow::Overflow;
use crate::policy::Policy;

/// Keys that a shard is made for. With these its table of 2,068 slots is well filled, and has room (for 1,654) for random
/// variation. Moving so few keys to a larger table takes some tens of microseconds.
const KEYS_PER_SHARD: usize = 1_536;
/// Enough shards that two threads seldom meet in one, if there are enough keys to fill them.
const FEW_SHARDS: usize = 16;
const MIN_KEYS_PER_SHARD: usize = 32;
const DEFAULT_MAX_KEYS: usize = 1_000_000;

/// The options of a keyed limiter: what [`KeyedLimiter::builder`] returns.
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
    /// A keyed limiter with the default options, from what [`Limiter::new`](crate::Limiter::new) takes. See the
    /// [type's example](KeyedLimiter#examples).
    ///
    /// # Errors
    ///
    /// [`ConfigError`] when a limit of the policy is invalid, with the limit, or when its text is.
    pub fn new(policy: impl TryInto<Policy, Error: Into<ConfigError>>) -> Result<Self, ConfigError> {
        Self::builder(policy).build()
    }

    /// A keyed limiter with options of its own. See [`KeyedLimiterBuilder`]. An invalid policy is an error of
    /// [`build`](KeyedLimiterBuilder::build).
    pub fn builder(policy: impl TryInto<Policy, Error: Into<ConfigError>>) -> KeyedLimiterBuilder<K> {
        KeyedLimiterBuilder::new(policy.try_into().map_err(Into::into))
    }
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static> KeyedLimiterBuilder<K> {
    fn new(policy: Result<Policy, ConfigError>) -> Self {
        let (options, time_source, when_full) = (Options::default(), TimeSource::TOKIO, WhenFull::Deny);
        Self {
            policy,
            name: None,
            max_keys: DEFAULT_MAX_KEYS,
            when_full,
            tier_of: None,
            settles: false,
            precise_timer: false,
            options,
            time_source,
            observers: Observers::NONE,
            format_key: format_nothing,
        }
    }

    shared_options!();

    /// Sets how many keys are known at most (at least 1). Defaults to a million. A reset key counts until a call checks it.
    ///
    /// See the [type's example](KeyedLimiterBuilder#examples).
    pub fn max_keys(mut self, keys: usize) -> Self {
        self.max_keys = keys;
        self
    }

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
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.when_full = when_full;
        self
    }

    /// Gives each key the policy that `tier_of` returns. It is called at each call, outside every lock, so its answer may change
    /// while the key is known: usage carries over, as with [`Limiter::set_policy`](crate::Limiter::set_policy). Policies are
    /// cheap to clone and to compare with their clone; policies that are built on each call are compared limit by limit. Each
    /// call clones its key, or makes one of the borrowed form.
    ///
    /// Usage is not carried over between a [`MaxConcurrency`](crate::MaxConcurrency) and other limits. A key whose tier flips
    /// between two policies of different kinds gets a full budget each time.
    ///
    /// The builder's own policy then serves only [`check`](KeyedLimiter::check), which names its limit when the policy of a tier
    /// is invalid; the other calls then get [`Config`](crate::TryAcquireError::Config). With more than 64 different policies,
    /// keys of the further ones are always [active](KeyedLimiter#memory).
    ///
    /// See the [type's example](KeyedLimiterBuilder#examples).
    pub fn tiers(mut self, tier_of: impl Fn(&K) -> Policy + Send + Sync + 'static) -> Self {
        self.tier_of = Some(Box::new(tier_of));
        self
    }

    /// Gives every permit a handle of its limiter, so that it can be [settled](crate::Permit::settle). Every key is then always
    /// [active](KeyedLimiter#memory), which takes about 480 bytes.
    ///
    /// ```
    /// # use tollgate::{KeyedLimiter, Rate, TokenBucket};
    /// let tokens = KeyedLimiter::builder(TokenBucket::new(Rate::per_minute(1_000), 1_000)).settle_permits().build()?;
    /// assert!(tokens.try_acquire_many(&"alice", 600)?.settle(250));
    /// assert_eq!(tokens.check(&"alice", 1).remaining(), 750);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn settle_permits(mut self) -> Self {
        self.settles = true;
        self
    }

    /// Calls `observer` for each event, under the terms of [`LimiterBuilder::on_event`](crate::LimiterBuilder::on_event).
    ///
    /// ```
    /// use tollgate::{KeyedLimiterEvent, KeyedLimiter, Rate, TokenBucket};
    ///
    /// let (events, seen) = std::sync::mpsc::channel();
    /// let limiter = KeyedLimiter::builder(TokenBucket::new(Rate::per_minute(1), 1))
    ///     .max_keys(1)
    ///     .on_event(move |event| {
    ///         if let KeyedLimiterEvent::TooManyKeys { key, .. } = event {
    ///             events.send(*key).unwrap();
    ///         }
    ///     })
    ///     .build()?;
    /// assert!(limiter.try_acquire(&"alice").is_ok() && limiter.try_acquire(&"bob").is_err());
    /// assert_eq!(seen.try_recv(), Ok("bob"));
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn on_event(mut self, observer: impl Fn(KeyedLimiterEvent<'_, K>) + Send + Sync + 'static) -> Self {
        self.observers = self.observers.and(OnKeyedEvent::new(observer));
        self
    }

    /// Tells `observer` of each event of each key, and of requests that wait, under the terms of
    /// [`LimiterBuilder::on_event`](crate::LimiterBuilder::on_event). [`Observer`] and [`ObservedKey`](crate::ObservedKey) have examples.
    ///
    /// It may be called several times, and beside [`on_event`](Self::on_event), which keys that are not `Debug` need.
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
    /// [`ConfigError`] when a limit of the policy is invalid, with the limit, or when its text is. [`ConfigError::ZeroKeys`].
    pub fn build(self) -> Result<KeyedLimiter<K>, ConfigError> {
        let Self {
            policy,
            name,
            max_keys,
            when_full,
            tier_of,
            settles,
            precise_timer,
            options,
            time_source,
            observers,
            format_key,
        } = self;
        if max_keys == 0 {
            return Err(ConfigError::ZeroKeys);
        }
        let policy = policy?;
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let plan = Plan::new(policy.clone(), since_epoch)?;
        let (id_prefix, hash_seed) = Uuid::new_v4().as_u64_pair();
        let (width, tiered) = (plan.width().filter(|_| !settles), tier_of.is_some());
        let shared = Shared {
            decides_at_once: (!tiered && width.is_some_and(|width| width <= MAX_WORDS)).into(),
            time_source,
            numbers: Numbers::default(),
            tier_of,
            name: name.clone(),
            observer: observers.is_some().then(|| Arc::new(KeyedObserver { observers, format: format_key })),
        };
        let options = Arc::new(Options { observed: shared.observer.is_some(), ..options });
        let origin =
            Arc::new(Origin { name, since_epoch, timer_host: TimerHost::SharedDriver(SharedDriver::new(precise_timer)) });
        let common = Common::new(Arc::new(plan), options, origin, id_prefix, Clock::new(time_source));
        let hasher = SeedableRandomState::with_seed(hash_seed, SharedSeed::global_random());
        let parts = Parts { shared, policy, common, settles, hasher, max_keys, when_full };
        // As narrow as the policy allows; tiers, which are not known yet, get three words beside their number.
        let table = match (is_plain::<K>(), tiered, width.unwrap_or(0)) {
            (true, false, 0..=1) => AnyTable::Plain1(parts.table()),
            (true, false, 2) => AnyTable::Plain2(parts.table()),
            (true, ..) => AnyTable::Plain4(parts.table()),
            (false, false, 0..=1) => AnyTable::Hashed1(parts.table()),
            (false, false, 2) => AnyTable::Hashed2(parts.table()),
            (false, ..) => AnyTable::Hashed4(parts.table()),
        };
        Ok(KeyedLimiter { table: Arc::new(table) })
    }
}

/// The parts of a table of any width.
struct Parts<K> {
    shared: Shared<K>,
    policy: Policy,
    common: Common,
    settles: bool,
    hasher: SeedableRandomState,
    max_keys: usize,
    when_full: WhenFull,
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static> Parts<K> {
    fn table<const W: usize, H: KeptHash>(self) -> Table<K, W, H> {
        let Self { shared, policy, common, settles, hasher, max_keys, when_full } = self;
        let tiered = shared.tier_of.is_some();
        let words = match (settles, tiered) {
            (true, _) => 0, // every permit has a handle of its limiter, so no key is idle
            (false, true) => W - 1,
            (false, false) => W,
        };
        let few = (max_keys / MIN_KEYS_PER_SHARD).clamp(1, FEW_SHARDS);
        let number = max_keys.div_ceil(KEYS_PER_SHARD).clamp(few, 1 << 15);
        let at_once = shared.decides_at_once.load(Relaxed).then(|| Arc::new(common.plan.deep_clone()));
        let shards = (0..number).map(|_| {
            let common = common.with_plan(Arc::new(common.plan.deep_clone()));
            let (clock, id_prefix) = (common.clock(), common.id_prefix(shared.numbers.next()));
            Shard::new(clock, id_prefix, Tiers::new(policy.clone(), common, tiered, words), hasher.clone(), at_once.clone())
        });
        let shards = Shards::new(shards, hasher.clone(), max_keys, when_full);
        Table::new(shared, shards)
    }
}

impl<K> fmt::Debug for KeyedLimiterBuilder<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedLimiterBuilder")
            .field("policy", &self.policy)
            .field("max_keys", &self.max_keys)
            .finish_non_exhaustive()
    }
}
