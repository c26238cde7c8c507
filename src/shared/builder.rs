//! The builder of a shared limiter.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::keys::Keys;
use super::policy::{PolicyInForce, TermOptions, is_never_prefetched};
use super::{SharedBy, SharedLimiter};
use crate::builder::queue_options;
use crate::core::gate::plan::Plan;
use crate::core::schedule::Options;
use crate::core::session::SessionOptions;
use crate::error::{ConfigError, StoreError};
use crate::exchange::OnStoreDown;
use crate::manager::{SharedDriver, StoreLink, nonzero_nanos};
use crate::observe::{FormatKey, KeyedObservers, LimiterEvent, Observer, Observers};
use crate::overflow::Overflow;
use crate::policy::{Limit, Policy};
use crate::store::Store;

/// Builds a [`SharedLimiter`] with options. [`SharedLimiter::builder`] returns it.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::SharedLimiter;
/// use tollgate::store::{MemoryStore, OnStoreDown};
///
/// let limiter = SharedLimiter::builder(MemoryStore::new(), "search", "8 concurrent and 100/s")
///     .deadline(Duration::from_millis(200))
///     .on_store_down(OnStoreDown::Allow)
///     .build()?;
/// assert_eq!(limiter.name(), "search");
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[derive(Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct SharedLimiterBuilder {
    store: Arc<dyn Store>,
    name: Arc<str>,
    policy: Result<Policy, ConfigError>,
    options: Options,
    deadline: Duration,
    lease: Duration,
    max_hold: Option<Duration>,
    poll_every: Duration,
    probe_every: Duration,
    on_store_down: OnStoreDown,
    revision: u64,
    /// The maximum number of prefetched units, and how long they are kept.
    prefetch: Option<(u64, Duration)>,
    observer: Observers,
}

impl SharedLimiter {
    /// Starts to build a limiter with options. See [`SharedLimiterBuilder`].
    pub fn builder(
        store: impl Store,
        name: impl Into<String>,
        policy: impl TryInto<Policy, Error: Into<ConfigError>>,
    ) -> SharedLimiterBuilder {
        SharedLimiterBuilder {
            store: Arc::new(store),
            name: name.into().into(),
            policy: policy.try_into().map_err(Into::into),
            options: Options::default(),
            deadline: Duration::from_secs(1),
            lease: Duration::from_secs(30),
            max_hold: None,
            poll_every: Duration::from_millis(20),
            probe_every: Duration::from_secs(1),
            on_store_down: OnStoreDown::Error,
            revision: 0,
            prefetch: None,
            observer: Observers::NONE,
        }
    }
}

impl SharedLimiterBuilder {
    setters! {
        /// Sets how long a call to the store may take, 1 ns to 100 years. Defaults to a second. After the deadline, the requests
        /// of the call follow [the rule](Self::on_store_down). The store may still carry out the call. Its units then count as
        /// used, and its places are given back. A store may give up a call earlier: Redis does so after 500 ms, unless its
        /// builder has another timeout.
        pub deadline(deadline: Duration) => deadline = deadline;

        /// Sets how requests are answered while the store does not answer. Defaults to [`OnStoreDown::Error`]. See [`OnStoreDown`] for
        /// an example.
        pub on_store_down(rule: OnStoreDown) => on_store_down = rule;

        /// Sets the TTL of leases where the policy sets none: 1 ns to 100 years, 30 seconds by default. The lease of a live
        /// permit is renewed automatically, so the TTL is the time for which the places of a process that dies are missing.
        pub lease(ttl: Duration) => lease = ttl;

        /// Sets the maximum time for which a permit may be held, 1 ns to 100 years, even by a live holder. Defaults to no bound:
        /// a permit that is leaked in a running process is then never reclaimed.
        pub max_hold(max: Duration) => max_hold = Some(max);

        /// Sets the interval at which waiting requests ask the store for a place, if the store does not announce releases: 1 ns
        /// to 100 years, 20 ms by default. Each interval is randomised to 0.5 to 1.5 times its length. If the store [announces
        /// releases](crate::store::Store::listen), requests still ask, a fiftieth as often, because messages may be lost.
        pub poll_every(interval: Duration) => poll_every = interval;

        /// Sets how often a store that did not answer is asked again, while requests come: 1 ms to 100 years (a shorter time counts as 1 ms),
        /// a second by default.
        ///
        /// When the store answers again, it decides the requests of each key again after this time at the latest, so
        /// [`OnStoreDown::Local`] applies no longer than that. A call that was under way when the store came back and gets no
        /// reply extends the time until its [deadline](Self::deadline).
        ///
        /// A limiter probes with one call at a time, for all keys. The pause between probes is at first at most 100 ms, and grows
        /// to a third of this time.
        ///
        /// ```
        /// use std::time::Duration;
        /// use tollgate::SharedLimiter;
        /// use tollgate::store::{MemoryStore, OnStoreDown};
        ///
        /// let limiter = SharedLimiter::builder(MemoryStore::new(), "search", "100/s")
        ///     .on_store_down(OnStoreDown::Local("25/s".parse()?))
        ///     .probe_every(Duration::from_millis(250))
        ///     .build()?;
        /// # assert!(limiter.store_is_up());
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        pub probe_every(interval: Duration) => probe_every = interval;
    }

    /// Prefetches units of rates: at most `max_units`, each kept for at most `kept_for`. Defaults to no prefetch.
    ///
    /// A call then requests more units than are waited for: twice the units used since the last call. The store charges these
    /// units at once, and the process grants them without another call, so that a hot key is not bound by round trips. Prefetched
    /// units that are not used in time are refunded, as far as a refund [can be proved](crate::Permit::settle). The store never
    /// charges more than the limits admit, for all processes together. But a unit may be used up to `kept_for` after it was
    /// charged. So a span of time may contain as many uses as the limits admit in that span plus `kept_for`.
    ///
    /// A grant of prefetched units has [no status of its limits](crate::PermitRequest::try_acquire_explained), so a layer of HTTP
    /// writes no fields.
    ///
    /// At most 2^32 units, for 1 ns to 100 years. The policy must have no [`MaxConcurrency`](crate::MaxConcurrency) and must
    /// count the plain cost: otherwise [`build`](Self::build) fails.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::SharedLimiter;
    /// use tollgate::store::MemoryStore;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = SharedLimiter::builder(MemoryStore::new(), "hits", "100000/s")
    ///     .prefetch(1_000, Duration::from_millis(20))
    ///     .build()?;
    /// for _ in 0..50 {
    ///     let _permit = limiter.acquire().await?; // the store was called a few times
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn prefetch(mut self, max_units: u64, kept_for: Duration) -> Self {
        const MOST: u64 = 1 << 32; // each unit takes a fence
        self.prefetch = Some((max_units.min(MOST), kept_for));
        self
    }

    setters! {
        /// Sets the revision of the policy, 0 to 2^64 - 1. Defaults to 0. To change the policy, deploy the program with another policy
        /// and a higher revision.
        ///
        /// Of two policies for one limiter, the one of the higher revision applies in all processes. A process with a lower revision
        /// adopts the policy that it finds in the store, and one with a higher revision replaces the policy there, as
        /// [`SharedLimiter::set_policy`] does. So processes of both versions may run at the same time, in any order, and a process
        /// that is started with an old version changes nothing. Two policies of the same revision are
        /// [an error](crate::store::StoreError::PolicyDiffers) for the requests of the second one.
        ///
        /// The store keeps a policy with a revision for the empty key, which is then [listed](SharedLimiter::keys) although it was not
        /// used.
        ///
        /// A policy that was set at run time by [`SharedLimiter::set_policy`] has a revision, too: one more than the highest before.
        ///
        /// ```
        /// use tollgate::SharedLimiter;
        /// use tollgate::store::MemoryStore;
        ///
        /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
        /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
        /// let store = MemoryStore::new();
        /// let new = SharedLimiter::builder(store.clone(), "api", "100/s").revision(2).build()?;
        /// let old = SharedLimiter::builder(store, "api", "500/s").revision(1).build()?;
        /// new.acquire().await?;
        /// old.acquire().await?;
        /// assert_eq!((old.policy().to_string(), old.revision()), ("100/s".to_owned(), 2));
        /// # Ok(())
        /// # }
        /// ```
        pub revision(revision: u64) => revision = revision;
    }

    queue_options!();

    /// Calls `observer` for each event. Equivalent to [`observer`](Self::observer), except that a closure needs no argument type
    /// here.
    pub fn on_event(self, observer: impl Fn(&LimiterEvent<'_>) + Send + Sync + 'static) -> Self {
        self.observer(observer)
    }

    /// Adds an observer of the events and the waiting requests of each key, as
    /// [`LimiterBuilder::observer`](crate::LimiterBuilder::observer) does. An event of the empty key has no key.
    ///
    /// Each request whose units are in the store waits for a reply, so it begins a wait.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observer = self.observer.and(observer);
        self
    }

    /// Builds the limiter. Does not call the store yet.
    ///
    /// If the store [announces releases](crate::store::Store::listen) and the current runtime has threads of its own, a task of
    /// that runtime listens, which saves its waiters a switch of threads. Otherwise a thread listens.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] when a limit of the policy, the policy text or a limit of [`OnStoreDown::Local`] is invalid;
    /// [`ConfigError::ZeroOption`] when an option that is a duration is zero; [`ConfigError::Store`] when the store cannot keep
    /// the policy, or the local policy has a TTL.
    pub fn build(self) -> Result<SharedLimiter, ConfigError> {
        let Self {
            store,
            name,
            observer,
            ..
        } = self;
        let kept_for = self.prefetch.map(|(_, kept_for)| kept_for);
        let durations = [
            ("deadline", Some(self.deadline)),
            ("lease", Some(self.lease)),
            ("max_hold", self.max_hold),
            ("poll_every", Some(self.poll_every)),
            ("probe_every", Some(self.probe_every)),
            ("prefetch", kept_for),
        ];
        if let Some((option, _)) = durations
            .into_iter()
            .find(|(_, duration)| *duration == Some(Duration::ZERO))
        {
            return Err(ConfigError::ZeroOption { option });
        }
        let plan = Arc::new(Plan::new(self.policy?, Duration::ZERO)?);
        store
            .supports(plan.policy())
            .map_err(|error| ConfigError::Store(Box::new(error)))?;
        if self.prefetch.is_some() {
            let unfit = is_never_prefetched;
            let reason = "prefetch is for units of the plain cost, not for places";
            check_limits(&*store, &plan, unfit, reason)?;
        }
        let fallback = fallback(&self.on_store_down, &*store)?;
        let options = Arc::new(Options {
            observed: observer.is_some(),
            ..self.options
        });
        // When the store is back, the breaker may have just begun a pause, the key that probes then may have just been refused, and
        // another key may be refused just before that probe succeeds.
        let longest_pause = self.probe_every.max(Duration::from_millis(1)) / 3;
        let observer = Arc::new(KeyedObservers {
            name: Some(Arc::clone(&name)),
            observers: observer,
            format: FORMAT_KEY,
        });
        let keys = Arc::<Keys>::default();
        let holder = Uuid::new_v4().as_u64_pair().0;
        let options_of_terms = TermOptions {
            holder,
            lease: self.lease,
            poll_every: self.poll_every,
            prefetch: self.prefetch,
        };
        let policy = Arc::new(PolicyInForce::new(
            Arc::clone(&store),
            Arc::clone(&name),
            options_of_terms,
            Arc::clone(&keys),
            (plan, self.revision),
        ));
        let session = SessionOptions {
            holder,
            max_hold: self.max_hold.map(|max| nonzero_nanos(max).get()),
            deadline: nonzero_nanos(self.deadline).get(),
            longest_back_off: nonzero_nanos(longest_pause).get(),
            on_down: self.on_store_down,
            fallback,
            store: store.name().into(),
        };
        let link = Arc::new(StoreLink::new(
            store,
            name,
            self.deadline,
            longest_pause,
            observer,
            Arc::clone(&policy) as _,
        ));
        let shared = Arc::new(SharedBy {
            link,
            options,
            session,
            policy,
            keys,
            driver: SharedDriver::new(false),
        });
        Ok(SharedLimiter::of_key(shared, Arc::default()))
    }
}

/// Formats a key as text with escapes.
const FORMAT_KEY: FormatKey = |key, f| {
    let bytes: &[u8] = key.downcast_ref::<Arc<[u8]>>().map_or(&[], |key| key);
    write!(f, "\"{}\"", bytes.escape_ascii())
};

/// The checked plan of the local fallback, if the rule has one.
fn fallback(rule: &OnStoreDown, store: &dyn Store) -> Result<Option<Arc<Plan>>, ConfigError> {
    let OnStoreDown::Local(policy) = rule else {
        return Ok(None);
    };
    let plan = Plan::new(policy.clone(), Duration::ZERO)?;
    let has_ttl = |limit: &Limit| limit.description().lease_ttl.is_some();
    let reason = "a permit that is granted without the store has no TTL: it holds its place until it is dropped";
    check_limits(store, &plan, has_ttl, reason)?;
    Ok(Some(Arc::new(plan)))
}

/// Fails with the first `unsupported` limit, if there is one.
fn check_limits(
    store: &dyn Store,
    plan: &Plan,
    unsupported: impl Fn(&Limit) -> bool,
    reason: &'static str,
) -> Result<(), ConfigError> {
    let Some(limit) = plan.limits().iter().find(|limit| unsupported(limit)) else {
        return Ok(());
    };
    Err(ConfigError::Store(Box::new(StoreError::Unsupported {
        store: store.name(),
        limit: limit.to_string(),
        reason,
    })))
}
