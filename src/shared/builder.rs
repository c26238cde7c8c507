use std::num::NonZeroU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use uuid::Uuid;

use super::SharedLimiter;
use super::keys::{Keys, SharedBy};
use crate::builder::queue_options;
use crate::core::dialogue::{Ahead, OnDown};
use crate::core::plan::Plan;
use crate::core::schedule::Options;
use crate::error::{ConfigError, StoreError};
use crate::event::LimiterEvent;
use crate::exchange::OnStoreDown;
use crate::manager::{SharedDriver, StoreLink, nonzero_nanos};
use crate::observe::{Observer, Observers};
use crate::overflow::Overflow;
use crate::policy::{Limit, Policy};
use crate::store::Store;
use crate::strategy::Counts;

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
    replaces_policy: bool,
    /// Units taken ahead, and how long they are kept.
    prefetch: Option<(u64, Duration)>,
    observer: Observers,
}

impl SharedLimiterBuilder {
    pub(super) fn new(store: Arc<dyn Store>, name: Arc<str>, policy: Result<Policy, ConfigError>) -> Self {
        Self {
            store,
            name,
            policy,
            options: Options::default(),
            deadline: Duration::from_secs(1),
            lease: Duration::from_secs(30),
            max_hold: None,
            poll_every: Duration::from_millis(100),
            probe_every: Duration::from_secs(1),
            on_store_down: OnStoreDown::Error,
            replaces_policy: false,
            prefetch: None,
            observer: Observers::NONE,
        }
    }

    /// Sets how long a call to the store may take, 1 ns to 100 years. Defaults to a second. After it, what was asked follows
    /// [the rule](Self::on_store_down). A call may be carried out by the store all the same: then its units count as used, and its
    /// places come back. A store may give it up earlier: Redis does so after 500 ms, unless its builder has another timeout.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets what becomes of requests while the store does not answer. Defaults to [`OnStoreDown::Error`]. See [`OnStoreDown`] for an
    /// example.
    pub fn on_store_down(mut self, rule: OnStoreDown) -> Self {
        self.on_store_down = rule;
        self
    }

    /// Sets the TTL of leases where the policy sets none: 1 ns to 100 years, 30 seconds by default. A live permit renews its lease
    /// by itself, so this is how long the places of a process that dies are missing.
    pub fn lease(mut self, ttl: Duration) -> Self {
        self.lease = ttl;
        self
    }

    /// Sets how long a permit may be held at most, 1 ns to 100 years, although its holder lives. Defaults to no bound: then a
    /// permit that is leaked in a process that lives on is never reclaimed.
    pub fn max_hold(mut self, max: Duration) -> Self {
        self.max_hold = Some(max);
        self
    }

    /// Sets how often the store is asked for a place that is awaited, where it tells nobody of releases: every 1 ns to 100 years, 100 ms
    /// by default. Each time it is from half to one and a half times as long. Where the store [tells](crate::store::Store::listen),
    /// messages may be lost: then it is asked a tenth as often.
    pub fn poll_every(mut self, interval: Duration) -> Self {
        self.poll_every = interval;
        self
    }

    /// Sets how often a store that did not answer is asked again, while requests come: 1 ms to 100 years (a shorter time counts as 1 ms),
    /// a second by default.
    ///
    /// When the store answers again, requests of each key are decided by the store again after this time at the latest. So this is how
    /// long [`OnStoreDown::Local`] may go on. A call that was under way when the store came back and gets no reply delays that until its
    /// [deadline](Self::deadline).
    ///
    /// Of one limiter, one call at a time asks, for all keys. A pause is 100 ms at most at first, and grows to a third of this time.
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
    pub fn probe_every(mut self, interval: Duration) -> Self {
        self.probe_every = interval;
        self
    }

    /// Takes units of rates ahead, `max_units` at most, each for `kept_for` at most. Defaults to none.
    ///
    /// A call then asks for more than is waited for: twice what was used since the last call. The store charges these units at once, and
    /// the process grants them without another call, so that a hot key is not bound by round trips. What is not used in time goes back,
    /// as far as a refund [can be proved](crate::Permit::settle). The store never charges more than the limits admit, for all processes
    /// together. But a unit may be used up to `kept_for` after it was charged: as seen from outside, a span of any length may hold what
    /// the limits admit in that span and `kept_for`.
    ///
    /// Such a grant is not [explained](crate::SharedPermitRequest::try_acquire_explained): a layer of HTTP writes no fields then.
    ///
    /// At most 2^32 units, for 1 ns to 100 years. It is for policies that have no [`MaxConcurrency`](crate::MaxConcurrency) and
    /// count the plain cost: for any other, [`build`](Self::build) fails.
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

    /// Goes on with this policy where the store has another one for a key, whose usage is dropped. Processes with the other policy get
    /// [an error](crate::store::StoreError::PolicyDiffers) from then on. Requests replace it, and renewals; a
    /// [check](SharedLimiter::check) does not, and gets that error before. An observer is told of each key whose policy is
    /// [replaced](crate::EventKind::PolicyChanged), which takes one call more.
    pub fn replace_policy(mut self) -> Self {
        self.replaces_policy = true;
        self
    }

    queue_options!();

    /// As for [one process](crate::LimiterBuilder::on_event). The events of a key have `name/key` as the name of their limiter.
    pub fn on_event(mut self, observer: impl Fn(&LimiterEvent) + Send + Sync + 'static) -> Self {
        self.observer = self.observer.and_call(observer);
        self
    }

    /// As for [one process](crate::LimiterBuilder::observer). The observer is told the key, and the name of the limiter without it.
    ///
    /// Each request whose units are in the store waits for a reply, and so begins a wait.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observer = self.observer.and(observer);
        self
    }

    /// Builds the limiter. It calls no store yet.
    ///
    /// Where the store [tells](crate::store::Store::listen) of releases and the current runtime has threads of its own, a task of that
    /// runtime listens, which saves its waiters a switch of threads; otherwise a thread listens.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] when a limit of the policy is invalid, or its text is, or a limit of [`OnStoreDown::Local`];
    /// [`ConfigError::ZeroOption`] when an option that is a duration is zero;
    /// [`ConfigError::Store`] when the store cannot keep the policy, or the local one has a TTL.
    pub fn build(self) -> Result<SharedLimiter, ConfigError> {
        let Self {
            store,
            name,
            policy,
            options,
            deadline,
            lease,
            max_hold,
            poll_every,
            probe_every,
            on_store_down,
            replaces_policy,
            prefetch,
            observer,
        } = self;
        let kept_for = prefetch.map(|(_, kept_for)| kept_for);
        let durations = [
            ("deadline", Some(deadline)),
            ("lease", Some(lease)),
            ("max_hold", max_hold),
            ("poll_every", Some(poll_every)),
            ("probe_every", Some(probe_every)),
            ("prefetch", kept_for),
        ];
        if let Some((option, _)) = durations.into_iter().find(|(_, duration)| *duration == Some(Duration::ZERO)) {
            return Err(ConfigError::ZeroOption { option });
        }
        let ahead = prefetch.map(|(max, kept_for)| Ahead { max, kept_for: nonzero_nanos(kept_for).get() });
        let plan = Arc::new(Plan::new(policy?, Duration::ZERO)?);
        store.supports(plan.policy()).map_err(|error| ConfigError::Store(Box::new(error)))?;
        if let Some(limit) =
            plan.limits().iter().find(|limit| ahead.is_some() && (limit.counts_places() || limit.counts() != Counts::Cost))
        {
            let reason = "prefetch takes units of the plain cost ahead, and no places";
            let unsupported = StoreError::Unsupported { store: store.name(), limit: limit.to_string(), reason };
            return Err(ConfigError::Store(Box::new(unsupported)));
        }
        let on_down = on_down(on_store_down, &*store)?;
        let ttl = plan.ttl().unwrap_or(nonzero_nanos(lease));
        let options = Arc::new(Options { observed: observer.is_some(), ..options });
        let keys = Arc::new(Keys { managers: Mutex::default() });
        // When the store is back, the breaker may have just begun a pause, the key that probes then may have just been refused, and
        // another key may be refused just before that probe succeeds.
        let longest_pause = probe_every.max(Duration::from_millis(1)) / 3;
        let link = Arc::new(StoreLink::new(store, name, deadline, longest_pause, observer, Arc::clone(&keys) as _));
        let listener = crate::store::ReleaseListener::new(&keys, Keys::released);
        let tells = plan.holds_places() && link.store.listen(&link.name, listener);
        let shared = Arc::new(SharedBy {
            link,
            plan,
            options,
            holder: Uuid::new_v4().as_u64_pair().0,
            ttl,
            max_hold: max_hold.map(|max| nonzero_nanos(max).get()),
            polls_every: nonzero_nanos(poll_every.saturating_mul(if tells { 10 } else { 1 })).get(),
            longest_back_off: nonzero_nanos(longest_pause).get(),
            deadline: nonzero_nanos(deadline).min(NonZeroU64::MAX).get(),
            on_down,
            replaces_policy,
            ahead,
            keys,
            driver: SharedDriver::new(false),
        });
        Ok(SharedLimiter::of_key(shared, Arc::default()))
    }
}

/// The rule with its policy checked.
fn on_down(rule: OnStoreDown, store: &dyn Store) -> Result<OnDown, ConfigError> {
    let policy = match rule {
        OnStoreDown::Error => return Ok(OnDown::Error),
        OnStoreDown::Deny => return Ok(OnDown::Deny),
        OnStoreDown::Allow => return Ok(OnDown::Allow),
        OnStoreDown::Local(policy) => policy,
    };
    let plan = Plan::new(policy, Duration::ZERO)?;
    let has_ttl = |limit: &&Limit| matches!(limit, Limit::MaxConcurrency(places) if places.get_ttl().is_some());
    if let Some(limit) = plan.limits().iter().find(has_ttl) {
        let reason = "a permit that is granted without the store has no TTL: it holds its place until it is dropped";
        let unsupported = StoreError::Unsupported { store: store.name(), limit: limit.to_string(), reason };
        return Err(ConfigError::Store(Box::new(unsupported)));
    }
    Ok(OnDown::Local(Arc::new(plan)))
}
