//! Limits that many processes share.

mod builder;
mod keys;
mod policy;

use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

pub use builder::SharedLimiterBuilder;

use crate::acquire::{
    Acquire, AcquireExplained, AcquireOwned, PermitRequest, Run, TryAcquireShared, blocking_acquire,
};
use crate::core::schedule::{Options, Schedule};
use crate::core::session::{SessionOptions, StoreSession};
use crate::decision::Decision;
use crate::error::{AcquireError, ConfigError, StoreError, TryAcquireError};
use crate::exchange::{Scope, check_next_page, check_purged};
use crate::limiter::{Handle, Limiter};
use crate::manager::{
    Awaited, Clock, FollowsStore as _, Manager, PerLimiter, PerPlan, SharedDriver, StoreLink,
    TimeSource, TimerHost,
};
use crate::permit::Permit;
use crate::policy::Policy;
use crate::snapshot::{FlowStatus, KeyTotals, LimitStatus, LimiterSnapshot};
use crate::store::{KeyPage, Store};
use crate::strategy::Moment;
use crate::upstream::UpstreamSignal;
use keys::Keys;
use policy::PolicyInForce;

/// Limits that many processes share, through a [store](crate::store). Clones share its state.
///
/// A shared limiter is a [`Limiter`] whose limits are kept in the store. Requests queue in this process, in the same order and
/// with the same priorities, timeouts and permits. The store decides a whole policy in one atomic step, by its own clock, so
/// `try_acquire` and `check` are async.
///
/// # Round trips
///
/// Each key has at most one call under way in a process. Requests that come meanwhile share the next call, and the store grants
/// as many of them as it can: the busier a key, the fewer calls a grant takes. A denied request does not ask again before the
/// instant that the store gave. A request that awaits a reply is in the queue, also one of [`SharedLimiter::try_acquire`]. So no
/// request is granted with a [`max_queue`](SharedLimiterBuilder::max_queue) of 0, nor with a timeout shorter than a call.
///
/// # Places
///
/// A permit of a [`MaxConcurrency`](crate::MaxConcurrency) is a lease, which the limiter renews three times within its TTL as
/// long as the permit exists. So the places of a process that dies come back within one TTL, and a long job keeps its place. A
/// lease can still be lost: the store did not answer for longer, or the machine stood still. The permit is then
/// [reclaimed](Permit::reclaimed). The holder counts the TTL from the instant at which the call was sent, so the lease ends for
/// the holder before it ends for the store, whatever their clocks show. [`Permit::renew`] and [`renew_for`](Permit::renew_for)
/// only report whether the permit is live; [`max_hold`](SharedLimiterBuilder::max_hold) bounds how long it may be held.
/// [`Permit::fence`] rises with every grant of a key, over all processes.
///
/// # Fair shares
///
/// While processes wait for the same key, the store records what each of them waits for. The next unit goes to the process that
/// holds the fewest places; among equals, to the one that was granted the fewest units since it began to wait; among these, to
/// the one that came first. A process counts as one however many requests wait in it, and is a limiter as it was built: clones
/// and handles belong to it, and a second limiter of the same name is another one.
///
/// | | who gets the next unit |
/// |---|---|
/// | places | Processes that all want more hold equal numbers of places, whether their permits are long or short |
/// | units of rates | Processes that all want more are granted equal numbers of units |
/// | costs | Units are shared, not grants: at nine times the cost, a process gets a ninth of the grants. The first process in this order is not passed, however much its request costs |
/// | a process that asks rarely | It holds the fewest places or was granted the fewest units, so one of the next units is its own. Nobody saves up: a process that comes, or comes back after 2.5 s, counts as one that was granted the fewest of those present |
/// | requests within a process | They are granted in the order of its queue, by priority and arrival. The store knows no priorities: those of one process do not pass another process |
/// | [`try_acquire`](Self::try_acquire) | It takes nothing that is set aside for others, and a denial says when a unit of its own is there. Nothing is set aside for it, but what it takes counts |
/// | [prefetched](SharedLimiterBuilder::prefetch) units | They count as granted when they are charged. None are set aside for a prefetch |
/// | more than 64 processes | The store records 64 of them. If more wait for a rate, it names an instant to each of the others in turn; for places, they ask at random times |
///
/// A denied process asks again when its own units are there: at the instant that the store named for it, or when the store [reports
/// its turn](crate::store::Release::Turn). A process that does not come within 20 ms, because it is slow or dead, is passed over until
/// it asks again. A process that returns a place may take it again for 10 ms, so that short permits are not handed over each time.
/// Where turns are not reported, these times are 2 and 5 times [`poll_every`](SharedLimiterBuilder::poll_every): with a policy
/// without places, and in `SqliteStore` and `MysqlStore`, where processes that wait for a place poll. As measured (`BENCHMARKS.md`,
/// W12), up to 11 % of the time of places is then unused, against 4 %, and a grant of an only place takes 30 calls, against 3.
///
/// # Deployments
///
/// Processes come and go without any setting: a new process shares from its first request on, and while old and new processes run
/// side by side, each has an equal share.
///
/// - **A process that stops.** After [`close_to_new`](Self::close_to_new), [`drained`](Self::drained) completes when its requests
///   and permits have ended. What they return and [settle](Permit::settle) is sent in the background, so let the runtime run for
///   a [`deadline`](SharedLimiterBuilder::deadline) longer. Others can then take its places at once. Requests that are refused or
///   dropped leave the order of turns.
/// - **A process that is killed.** Its places come back when its leases expire, within one TTL: that of the policy, or
///   [`lease`](SharedLimiterBuilder::lease), 30 s by default. Its turn passes to the next process within 30 ms. Its units of
///   rates stay used, and what it had not sent is lost.
/// - **A store that restarts or is replaced.** [`faults`](crate::store::faults) says what callers see.
///
/// # Settings of the server
///
/// The limits are as reliable as the data and the clock of the server: what it loses in a crash is granted again.
///
/// | server | settings |
/// |---|---|
/// | any | Let the time service adjust the clock slowly. If the clock steps back, the limits stand still until it has caught up; if it jumps ahead, units come and leases end too early. The clocks of the processes do not matter |
/// | Redis, Valkey | `maxmemory-policy noeviction`, because a key that is evicted begins anew. Without persistence a restart loses all usage; with `appendonly yes`, `appendfsync everysec` loses about the last second, `always` nothing that was answered. A replica that takes over may have missed the last grants. A store makes a connection for each runtime, and one for messages |
/// | PostgreSQL | With `synchronous_commit = off` a crash of the server loses the last grants, with `fsync = off` a crash of its machine may damage the tables. A store makes up to nine connections: see `max_connections`. A `statement_timeout` below the [`deadline`](SharedLimiterBuilder::deadline) makes slow calls fail. No pooler in transaction mode: connections keep prepared statements, settings and `LISTEN` |
/// | MariaDB, MySQL | With `innodb_flush_log_at_trx_commit` other than 1, a crash loses about the last second. `binlog_format` must not be `STATEMENT`, because the store sets the isolation level `READ COMMITTED`. A store makes up to eight connections: see `max_connections`. Any `wait_timeout` will do: idle connections that the server has closed are replaced |
/// | SQLite | None: the store sets WAL mode. Its options are `synchronous` and `busy_timeout`. The file must be on a local disk |
///
/// # Changing the policy
///
/// The store has one policy for each limiter. To change it with a new version of a program:
///
/// 1. Give the new policy a higher [revision](SharedLimiterBuilder::revision) than the present one, which is 0 if none was set:
///    `SharedLimiter::builder(store, "api", "50/s").revision(1)`.
/// 2. Deploy as usual. From the call of the first new process on, the new policy applies to the keys that it calls for, and the other
///    processes follow: at their next call for such a key, and otherwise within half a second. No request fails, and at no time is
///    more granted than the larger of the two policies admits.
/// 3. To go back, deploy the former policy with a revision that is higher again. A process that is started with an earlier revision
///    adopts the policy of the store.
///
/// At run time, [`set_policy`](Self::set_policy) does the same without a deployment. Usage and permits in flight are
/// [carried over](Self::set_policy).
///
/// # When the store is down
///
/// A call has a [deadline](SharedLimiterBuilder::deadline). After two failures in a row the limiter makes no calls for a while,
/// and then one at a time, until the store answers. [`OnStoreDown`](crate::store::OnStoreDown) is the rule for requests in the
/// meantime. One rule is a local fallback: a policy that this process applies by itself. A call with an unknown outcome is not
/// repeated: its units count as used, and its places are given back. [`faults`](crate::store::faults) lists each fault, and what
/// may be lost.
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
    /// Builds a limiter with the default options, from a store, the name of the limiter in the store, and a limit, a tuple of
    /// limits, a [`Policy`], or its [text](Policy#as-text). Does not call the store yet.
    ///
    /// Processes share a limiter if they share its store and its name. They must have the same policy, or policies of different
    /// [revisions](SharedLimiterBuilder::revision).
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

    fn of_key(shared: Arc<SharedBy>, key: Arc<[u8]>) -> Self {
        let manager = shared.keys.manager(&key, || shared.open(&key));
        Self {
            manager,
            key,
            shared,
        }
    }

    /// The handle of one key (any bytes), which has limits of its own. In one process, all handles of a key share one queue.
    ///
    /// A limiter without a key is the handle of the empty key.
    #[must_use]
    pub fn key(&self, key: impl AsRef<[u8]>) -> Self {
        Self::of_key(Arc::clone(&self.shared), key.as_ref().into())
    }

    /// The name of the limiter in its store.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.link.name
    }

    /// The key; empty for a limiter without keys.
    #[must_use]
    pub fn key_bytes(&self) -> &[u8] {
        &self.key
    }

    /// The policy that applies in this process: that of the builder, or a later [revision](SharedLimiterBuilder::revision).
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.shared.policy.terms().plan.policy().clone()
    }

    /// The revision of the [policy](Self::policy).
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.shared.policy.terms().revision
    }

    /// Replaces the policy of the limiter in all processes, and returns its new revision, which is higher than that of any policy
    /// before.
    ///
    /// When the future completes, the policy applies in this process, and in the store to this key, and to each other key at its next
    /// call. The other processes follow at their next call for one of these keys, and within half a second if they call the store
    /// or have requests that wait. A process that is built later follows, too, while it calls the store, unless its own
    /// [revision](SharedLimiterBuilder::revision) is higher. The store keeps the policy until no process has called for 30 days.
    ///
    /// Requests that wait keep their position; a request whose cost the new policy never admits fails with
    /// [`AcquireError::ExceedsLimit`]. Usage is carried over as [`Limiter::set_policy`] does, so that at no time more is granted than
    /// the larger policy admits. Redis rounds it up to whole units, and starts a window of another period anew with them. Permits in
    /// flight keep their places. Units that were granted before the change are not refunded after it. An observer gets an
    /// [event](crate::EventKind::PolicyChanged) for each key that the process uses.
    ///
    /// A local fallback and prefetched units are of one process: the change does not affect a policy of
    /// [`OnStoreDown::Local`](crate::store::OnStoreDown::Local), and nothing is prefetched under a policy that counts places or named
    /// units.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the policy may or may not have been replaced in the store.
    ///
    /// # Errors
    ///
    /// [`StoreError::Policy`] if the policy is invalid, [`StoreError::Unsupported`] if the store cannot keep it, and the other errors
    /// of a call. After [`StoreError::Unanswered`], the policy may have been replaced.
    ///
    /// ```
    /// use tollgate::SharedLimiter;
    /// use tollgate::store::MemoryStore;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = MemoryStore::new();
    /// let [one, other] = [store.clone(), store].map(|store| SharedLimiter::new(store, "api", "5/min"));
    /// let (one, other) = (one?, other?);
    /// for _ in 0..4 {
    ///     one.try_acquire().await?;
    /// }
    /// assert_eq!(one.set_policy("8/min").await?, 1);
    /// assert_eq!(other.check(1).await?.remaining(), 4); // of 8, 4 are used
    /// assert_eq!(other.policy().to_string(), "8/min");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn set_policy(
        &self,
        policy: impl TryInto<Policy, Error: Into<ConfigError>>,
    ) -> Result<u64, StoreError> {
        let policy = policy
            .try_into()
            .map_err(|error| StoreError::Policy(error.into()))?;
        let SharedBy {
            link,
            policy: in_force,
            ..
        } = &*self.shared;
        let mut revision = in_force.terms().revision;
        loop {
            revision = revision.saturating_add(1);
            let terms = in_force.check(policy.clone(), revision)?;
            match link.call(in_force.call(&terms)).await {
                Ok(_) => {
                    in_force.adopt(terms);
                    // Other processes that use this key follow at their next call for it.
                    let _replaced = self.limits().await;
                    return Ok(revision);
                }
                Err(failed) => match failed.error {
                    StoreError::PolicyDiffers {
                        stored_revision, ..
                    }
                    | StoreError::UnknownPolicy {
                        stored_revision, ..
                    } if stored_revision >= revision => {
                        revision = stored_revision;
                    }
                    error => return Err(error),
                },
            }
        }
    }

    /// Waits until the store grants one unit, and returns the permit. Like [`Limiter::acquire`](crate::Limiter::acquire), with
    /// one more error.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing: a request that waits leaves the queue, and units that the store has granted are returned
    /// to it.
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::acquire`](crate::Limiter::acquire), and [`AcquireError::Store`].
    #[track_caller]
    pub fn acquire(&self) -> Acquire<'_> {
        self.acquire_many(1)
    }

    /// [`SharedLimiter::acquire`] for `cost` units.
    ///
    /// # Errors
    ///
    /// Those of [`SharedLimiter::acquire`]; [`AcquireError::ExceedsLimit`];
    /// [`AcquireError::ZeroCost`].
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

    /// [`SharedLimiter::acquire`] for a thread outside the runtime: blocks the thread until it has the permit, like
    /// [`Limiter::blocking_acquire`](crate::Limiter::blocking_acquire). The store is called in the background.
    ///
    /// # Panics
    ///
    /// In a task, like the blocking functions of tokio: use `acquire` there, or `tokio::task::spawn_blocking`.
    ///
    /// # Errors
    ///
    /// Those of [`SharedLimiter::acquire`]; [`AcquireError::NoRuntime`] only in the case that
    /// [`Limiter::blocking_acquire`](crate::Limiter::blocking_acquire) describes.
    ///
    /// ```
    /// use tollgate::SharedLimiter;
    /// use tollgate::store::MemoryStore;
    ///
    /// let limiter = SharedLimiter::new(MemoryStore::new(), "api", "1000/s burst 1")?;
    /// for _ in 0..3 {
    ///     let _permit = limiter.blocking_acquire()?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn blocking_acquire(&self) -> Result<Permit, AcquireError> {
        self.request().blocking_acquire()
    }

    /// Starts a request with a cost, costs by unit, a priority or a timeout. There is no `reserve`, as there is in a
    /// [`Limiter`](crate::Limiter::reserve): when its turn comes, depends on what other processes ask for meanwhile.
    #[track_caller]
    pub fn request(&self) -> PermitRequest<&Self> {
        self.request_of(1)
    }

    #[track_caller]
    fn request_of(&self, cost: u64) -> PermitRequest<&Self> {
        PermitRequest::new(self, cost, Location::caller())
    }

    /// Takes one unit now, or nothing. Waits for the reply of the store, but not until the limits admit it. Several such requests
    /// share a call.
    ///
    /// # Errors
    ///
    /// [`TryAcquireError::Denied`] with the [`Decision`] of the store;
    /// [`TryAcquireError::Store`]; those of [`Limiter::try_acquire`](crate::Limiter::try_acquire).
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

    /// The decision that [`SharedLimiter::try_acquire_many`] would make now; takes nothing. Does not call the store while this
    /// process is [paused](Self::pause_for), [closed](Self::close) (which denies), or uses its [local
    /// fallback](crate::store::OnStoreDown::Local).
    ///
    /// # Errors
    ///
    /// A [`StoreError`].
    pub async fn check(&self, cost: u64) -> Result<Decision, StoreError> {
        self.request_of(cost).check().await
    }

    /// Waits for a permit, and runs the future while it holds the permit. Like [`Limiter::run`](crate::Limiter::run).
    ///
    /// # Errors
    ///
    /// Those of [`Limiter::run`](crate::Limiter::run), and [`AcquireError::Store`].
    #[track_caller]
    pub fn run<F: Future>(&self, future: F) -> Run<F> {
        self.request().run(future)
    }

    /// The status of each limit now.
    ///
    /// # Errors
    ///
    /// A [`StoreError`].
    pub async fn limits(&self) -> Result<Vec<LimitStatus>, StoreError> {
        self.manager.at_store().limits().await
    }

    /// The numbers of the key in this process: its units in flight, its queue, and its counts since the process last began to use
    /// it. [`totals`](Self::totals) sums over all keys.
    #[must_use]
    pub fn snapshot(&self) -> LimiterSnapshot {
        self.manager.snapshot()
    }

    /// What the flows of the key have in this process. See [`Limiter::flows`].
    #[must_use]
    pub fn flows(&self, max: usize) -> Vec<FlowStatus> {
        self.manager.flows(max)
    }

    /// Sums over all keys that this process uses or has used: grants, denials, units in flight and more. Does not call the store.
    /// Takes time in proportion to the keys in use.
    ///
    /// ```
    /// use tollgate::SharedLimiter;
    /// use tollgate::store::MemoryStore;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let api = SharedLimiter::new(MemoryStore::new(), "api", "2 concurrent")?;
    /// api.key("alice").acquire().await?.release();
    /// let _held = api.key("bob").acquire().await?;
    /// assert_eq!((api.totals().granted, api.totals().in_flight), (2, 1));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn totals(&self) -> KeyTotals {
        self.shared.keys.totals(|| *self.shared.link.counted.lock())
    }

    /// Whether this process calls the store. `false` after calls to it, or to a [part](Store::part_of) of it, have failed: no such
    /// call is made for a while, and requests follow [the rule](SharedLimiterBuilder::on_store_down). An observer gets an event when
    /// the value changes.
    #[must_use]
    pub fn store_is_up(&self) -> bool {
        self.shared.link.is_up()
    }

    /// Grants nothing in this process for `duration`, and asks the store for nothing, like [`Limiter::pause_for`]. A request
    /// whose call to the store is under way when the pause begins may still be granted. The pause lasts even while the key is not
    /// in use, as long as there is a handle of the limiter or of another key.
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

    /// [`SharedLimiter::pause_for`] until an instant of tokio's clock. An instant that has passed changes nothing.
    pub fn pause_until(&self, instant: Instant) {
        self.pause_for(instant.saturating_duration_since(Instant::now()));
    }

    /// Charges the key `units`, whether or not its limits admit them, like
    /// [`KeyedLimiter::penalize`](crate::KeyedLimiter::penalize): a [`Penalty`](crate::Penalty) is raised up to its ceiling, and
    /// a [`MaxConcurrency`](crate::MaxConcurrency) is not charged. The charge is sent to the store in the background, at the
    /// latest with the next request of this process. A call that the store refuses is repeated for up to two minutes. A call
    /// without an answer is not repeated, and its units may be charged or lost.
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

    /// [Pauses](Self::pause_for) as an upstream's response asks for, like [`Limiter::apply_upstream_signal`]. A quota that is
    /// nearly spent is not spread.
    pub fn apply_upstream_signal(&self, signal: &UpstreamSignal) {
        self.manager.apply_upstream_signal(signal);
    }

    /// Refuses all waiting and all later requests of this key in this process; other keys stay open. Permits in flight stay
    /// valid. The closing lasts as a [pause](Self::pause_for) does.
    pub fn close(&self) {
        self.manager.close(false);
    }

    /// Like [`close`](Self::close), but waiting requests are served.
    pub fn close_to_new(&self) {
        self.manager.close(true);
    }

    /// Whether the key was closed in this process.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.manager.is_closed()
    }

    /// Completes when no request for the key waits in this process and this process holds no place of the key.
    pub async fn drained(&self) {
        self.manager.watch(Awaited::Drain).await;
    }

    /// A page of about `max` keys of this limiter in the store, in any order: the first page, or the one that [`KeyPage::next`]
    /// refers to.
    ///
    /// # Errors
    ///
    /// A [`StoreError`].
    pub async fn keys(&self, from: Option<Vec<u8>>, max: usize) -> Result<KeyPage, StoreError> {
        let link = &self.shared.link;
        let asked = from.clone();
        let ask = || link.store.keys(&link.name, asked, max);
        let check = |page: &KeyPage| check_next_page(from.as_deref(), page.next.as_deref());
        link.within_deadline(PART_OF_LISTINGS, ask, check)
            .await
            .map_err(|failed| failed.error)
    }

    /// Resets the limits of this key, and reclaims all its leases. Current holders are not interrupted. Units that this process
    /// has [charged](Self::penalize) or [settled](Permit::settle) before are dropped with the usage, also if they were not sent
    /// to the store yet. Permits from before the reset give nothing back. If a call with such charges is under way, the reset
    /// first awaits its reply, for one deadline at most.
    ///
    /// Fences then begin again at the microseconds since 1970, as for an unknown key. So a grant within a few microseconds after
    /// the reset may get a fence that another process got before the reset.
    ///
    /// Another process may still send charges from before the reset, and grant units that it has
    /// [prefetched](SharedLimiterBuilder::prefetch). If the store denied a request of another process before the reset, that
    /// process does not ask again until the instant that the store gave, or for a minute if it no longer uses the key.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the store may or may not have reset the key, and earlier charges are sent to the store.
    ///
    /// # Errors
    ///
    /// A [`StoreError`].
    pub async fn reset(&self) -> Result<(), StoreError> {
        self.manager
            .at_store()
            .reset(self.shared.scope(&self.key))
            .await
    }

    /// Drops at most `max` expired keys of this limiter, for stores that do not do so by themselves. Returns the number of
    /// dropped keys.
    ///
    /// # Errors
    ///
    /// A [`StoreError`].
    pub async fn purge(&self, max: usize) -> Result<u64, StoreError> {
        let link = &self.shared.link;
        let ask = || link.store.purge(&link.name, max);
        link.within_deadline(PART_OF_LISTINGS, ask, |purged| check_purged(*purged, max))
            .await
            .map_err(|failed| failed.error)
    }
}

/// A request of a [`SharedLimiter`].
impl<'a> PermitRequest<&'a SharedLimiter> {
    /// Waits for the permit. See [`SharedLimiter::acquire`].
    ///
    /// # Errors
    ///
    /// Those of [`SharedLimiter::acquire`], and [`AcquireError::TimedOut`].
    pub fn acquire(self) -> Acquire<'a> {
        Acquire::new(&self.target.manager, self.options)
    }

    /// [`PermitRequest::acquire`] as a future that borrows nothing.
    ///
    /// # Errors
    ///
    /// Those of [`PermitRequest::acquire`].
    pub fn acquire_owned(self) -> AcquireOwned {
        AcquireOwned::new(Arc::clone(&self.target.manager), self.options)
    }

    /// Blocks the thread until it has the permit. See [`SharedLimiter::blocking_acquire`].
    ///
    /// # Panics
    ///
    /// In a task, like the blocking functions of tokio: use `acquire` there, or `tokio::task::spawn_blocking`.
    ///
    /// # Errors
    ///
    /// Those of [`SharedLimiter::blocking_acquire`], and [`AcquireError::TimedOut`].
    #[track_caller]
    pub fn blocking_acquire(self) -> Result<Permit, AcquireError> {
        blocking_acquire(&self.target.manager, self.options)
    }

    /// Waits for the permit, and runs the future while it holds the permit. See [`SharedLimiter::run`].
    ///
    /// # Errors
    ///
    /// Those of [`SharedLimiter::run`].
    pub fn run<F: Future>(self, future: F) -> Run<F> {
        Run::new(self.acquire_owned(), future)
    }

    /// Takes the cost of the request now, or nothing. See [`SharedLimiter::try_acquire`]. A priority and a timeout have no
    /// effect.
    ///
    /// # Errors
    ///
    /// Those of [`SharedLimiter::try_acquire`].
    pub fn try_acquire(self) -> TryAcquireShared {
        TryAcquireShared::new(Arc::clone(&self.target.manager), self.options)
    }

    /// [`PermitRequest::acquire`], with the status of each limit from the reply that granted the permit, or from the latest
    /// denial before the request was refused. A permit of [prefetched](SharedLimiterBuilder::prefetch) units, or one that was
    /// granted without the store, comes without a status.
    ///
    /// # Errors
    ///
    /// Those of [`PermitRequest::acquire`].
    pub fn acquire_explained(self) -> AcquireExplained {
        AcquireExplained::new(Arc::clone(&self.target.manager), self.options)
    }

    /// [`PermitRequest::try_acquire`], with the status of each limit at the grant or the denial. There is no status if the store
    /// was not asked, because it does not answer or the units were [prefetched](SharedLimiterBuilder::prefetch).
    ///
    /// ```
    /// use tollgate::SharedLimiter;
    /// use tollgate::store::MemoryStore;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = SharedLimiter::new(MemoryStore::new(), "api", "5/min burst 5")?;
    /// let (answer, limits) = limiter.request().cost(3).try_acquire_explained().await;
    /// assert_eq!((answer.is_ok(), limits[0].capacity, limits[0].remaining), (true, 5, 2));
    /// let (answer, limits) = limiter.request().cost(3).try_acquire_explained().await;
    /// assert_eq!((answer.is_ok(), limits[0].remaining), (false, 2));
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_acquire_explained(
        self,
    ) -> impl Future<Output = (Result<Permit, TryAcquireError>, Vec<LimitStatus>)> + Send + use<>
    {
        self.try_acquire().explained()
    }

    /// The decision that [`PermitRequest::try_acquire`] would make now; takes nothing.
    ///
    /// # Errors
    ///
    /// A [`StoreError`].
    pub async fn check(self) -> Result<Decision, StoreError> {
        self.target.manager.at_store().check(&self.options).await
    }
}

/// [`SharedLimiter::acquire`], so that a request can be awaited itself.
impl<'a> IntoFuture for PermitRequest<&'a SharedLimiter> {
    type Output = Result<Permit, AcquireError>;
    type IntoFuture = Acquire<'a>;

    fn into_future(self) -> Acquire<'a> {
        self.acquire()
    }
}

impl Handle for SharedLimiter {
    fn handle(&self) -> Limiter {
        Limiter::from_manager(Arc::clone(&self.manager))
    }
}

debug_fields! {
    SharedLimiter,
    |limiter| name = limiter.name(), key = format_args!("{}", limiter.key.escape_ascii()), policy = format_args!("{}", limiter.policy())
}

/// The [part](Store::part_of) of the store that listings and purges count as calls to.
const PART_OF_LISTINGS: u64 = 0;

/// The data that the handles of all keys share.
#[derive(Debug)]
struct SharedBy {
    link: Arc<StoreLink>,
    options: Arc<Options>,
    session: SessionOptions,
    policy: Arc<PolicyInForce>,
    keys: Arc<Keys>,
    driver: Arc<SharedDriver<Manager>>,
}

impl SharedBy {
    fn open(&self, key: &Arc<[u8]>) -> Arc<Manager> {
        let (link, terms) = (&self.link, self.policy.terms());
        let clock = Clock::new(TimeSource::TOKIO);
        let timer_host = TimerHost::SharedDriver(Arc::clone(&self.driver));
        let origin = Arc::new(PerLimiter {
            name: Some(self.name_of(key)),
            since_epoch: Duration::ZERO,
            timer_host,
            store_link: Some(Arc::clone(link)),
        });
        let id_prefix = Uuid::new_v4().as_u64_pair().0;
        let common = PerPlan::new(
            Arc::clone(&terms.plan),
            Arc::clone(&self.options),
            origin,
            id_prefix,
            clock.clone(),
        );
        let session = StoreSession::new(
            self.scope(key),
            id_prefix >> 16,
            terms,
            Moment::START,
            self.session.clone(),
        );
        let observed_key = Some(key).filter(|key| !key.is_empty());
        let schedule = Schedule::of_store(session, Arc::clone(&self.options));
        let observer = link.observer.of_key(observed_key);
        Manager::open(Arc::new(common), 0, schedule, clock, observer)
    }

    /// The name of a key in errors of a group.
    fn name_of(&self, key: &[u8]) -> Arc<str> {
        let name = &self.link.name;
        if key.is_empty() {
            Arc::clone(name)
        } else {
            format!("{name}/{}", key.escape_ascii()).into()
        }
    }

    fn scope(&self, key: &Arc<[u8]>) -> Scope {
        Scope {
            limiter: Arc::clone(&self.link.name),
            key: Arc::clone(key),
        }
    }
}

impl Drop for SharedBy {
    fn drop(&mut self) {
        self.link.kept.end();
    }
}
