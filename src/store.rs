//! Stores, in which processes share their limits.
//!
//! A [`Store`] executes each [`Call`] as one atomic step on the state of one key, and answers with a [`Reply`]. The calls of a
//! limiter, and its handling of the replies, are the same for every store.
//!
//! | store | where the limits are | feature |
//! |---|---|---|
//! | [`MemoryStore`] | in this process, for tests | |
//! | `MysqlStore` | in MariaDB or MySQL | `mysql` |
//! | `PostgresStore` | in PostgreSQL | `postgres` |
//! | `RedisStore` | in Redis, Valkey or Redis Cluster | `redis` |
//! | `SqliteStore` | in a file, for the processes of one host | `sqlite` |
//! | [your own](Store#a-store-of-your-own) | in any engine that keeps bytes | |
//!
//! [`faults`] says what callers see when a store or the network to it fails, and what may be lost. [`SharedLimiter`] says which
//! [settings of Redis and of the databases](crate::SharedLimiter#settings-of-the-server) matter.
//!
//! [`SharedLimiter`]: crate::SharedLimiter

pub(crate) mod background;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
// Documentation only.
#[cfg(doc)]
#[doc = include_str!("../docs/faults.md")]
pub mod faults {}
#[cfg(all(any(test, fuzzing), feature = "postgres", feature = "redis"))]
pub(crate) mod fuzzed;
mod memory;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
mod rules;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod serve;
#[cfg(feature = "_sql")]
mod sql;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(test)]
mod tests;
#[cfg(feature = "_tls")]
mod tls;

use std::any::Any;
#[cfg(any(feature = "redis", feature = "_sql"))]
use std::error::Error;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use crate::core::gate::plan::Plan;
use crate::policy::{Limit, Policy};
use crate::text::ParseError;

#[cfg(feature = "redis")]
pub use self::redis::{RedisStore, RedisStoreBuilder};
pub use crate::error::{Cause, ReplyFault, StoreError};
pub use crate::exchange::{
    Asks, Call, DeniedAsk, DeniedUntil, LimitReading, OnStoreDown, Reply, Scope, Settlement,
};
pub use memory::MemoryStore;
#[cfg(feature = "mysql")]
pub use mysql::{MysqlStore, MysqlStoreOptions};
#[cfg(feature = "postgres")]
pub use postgres::{PostgresStore, PostgresStoreOptions};
pub use rules::{Decided, KeyState, Rules};
#[cfg(feature = "sqlite")]
pub use sqlite::{SqliteStore, SqliteStoreOptions, SqliteSynchronous};

/// The future that a [`Store`] returns.
pub type StoreFuture<T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>;

/// A place for limits that many processes share.
///
/// # A store of your own
///
/// Any engine is suitable if it keeps bytes and can order its writers. [`Rules`] decides as the SQL stores of this crate do.
///
/// 1. Keep a [`KeyState`] for each [`Scope`]: some bytes, and when they can be deleted.
/// 2. [`call`](Store::call) reads the state of the key, has it [decided](Rules::decide), and writes the [next
///   one](Decided::state), if there is one, also for a call that grants nothing. No other write may come in between: take the
///   engine's lock of the key first, or write only if the state is still the same (compare-and-swap), and otherwise begin again.
///   Read the clock after the lock is taken, if possible on the server.
/// 3. A call whose future is dropped must leave nothing locked. If the call holds a lock across an `.await`, do the work in a
///   task of its own.
/// 4. [`Unanswered`](StoreError::Unanswered) is the error if it is unknown whether the state was written; any other error means
///   that it was not. After [`Unreachable`](StoreError::Unreachable), `Unanswered` and [`Refused`](StoreError::Refused) a limiter
///   follows its [rule](OnStoreDown). It checks each [reply](Reply#what-a-reply-must-satisfy). A wrong reply becomes the error
///   [`BadReply`](StoreError::BadReply), which is treated as `Unanswered`.
/// 5. If the engine has messages, send the [turns](Decided::turns) after the state was written, and [pass them
///   on](Store::listen). Without messages, requests that wait for a place poll.
/// 6. Test the store with the same claims as the stores of this crate: with the feature `conformance`, a module of tests needs
///   only `tollgate::store::conformance::tests!(MapStore::new());`.
///
/// A store over a table in memory, whose lock stands for a transaction:
///
/// ```
#[doc = include_str!("../tests/integration/support/map_store.rs")]
/// ```
pub trait Store: std::fmt::Debug + Send + Sync + 'static {
    /// The name of the store in messages, without any password.
    fn name(&self) -> String;

    /// Whether the store can keep this policy.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unsupported`] with the limit.
    fn supports(&self, policy: &Policy) -> Result<(), StoreError>;

    /// Carries out the call in one atomic step, by the clock of the store. Dropping the future does not undo the call.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`]. Only [`StoreError::Unanswered`] and [`StoreError::BadReply`] leave open whether the call was carried out. A
    /// call without [`valid_until`](Call::valid_until) is never [too late](StoreError::TooLate).
    fn call(&self, call: Call) -> StoreFuture<Reply>;

    /// The time within which a [call](Store::call) always ends, with a reply or an error. `None`, the default: the limiter sets a
    /// timer for each call.
    fn answers_within(&self) -> Option<Duration> {
        None
    }

    /// The number of the part of the store that has this key, where the parts fail apart from each other: of the node of a cluster.
    /// While a part does not answer, calls for its keys fail at once, and those for keys of the other parts are made. 0, the default,
    /// if the store has one part. Listings and purges count as calls to part 0.
    fn part_of(&self, scope: &Scope) -> u64 {
        let _ = scope;
        0
    }

    /// Notifies the listener, until it [is closed](ReleaseListener::is_closed), of the [turns](Decided::turns) of this limiter's
    /// keys. Messages may be lost, so waiters also poll from time to time. Returns whether the store reports the turns of all
    /// processes. If not, waiters poll fifty times as often.
    fn listen(&self, limiter: &Arc<str>, listener: ReleaseListener) -> bool {
        let _ = (limiter, listener);
        false
    }

    /// Returns about `max` keys of this limiter, in any order: the first ones, or those from [`KeyPage::next`] on. A key may be
    /// listed twice, and keys that are added or removed meanwhile may be missed. No page is followed by itself: `next` differs
    /// from `from`.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`].
    fn keys(&self, limiter: &Arc<str>, from: Option<Vec<u8>>, max: usize) -> StoreFuture<KeyPage>;

    /// Resets this key: its limits are as before the first call, and its leases are reclaimed.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`].
    fn reset(&self, scope: Scope) -> StoreFuture<()>;

    /// Drops at most `max` keys of this limiter that have expired, where the store does not do so by itself. Returns how many.
    ///
    /// # Errors
    ///
    /// Any [`StoreError`].
    fn purge(&self, limiter: &Arc<str>, max: usize) -> StoreFuture<u64>;
}

/// Some keys of a limiter: see [`Store::keys`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyPage {
    /// The keys.
    pub keys: Vec<Arc<[u8]>>,
    /// Where the next page begins; `None` if there are no more keys.
    pub next: Option<Vec<u8>>,
}

/// A message to a [listener](ReleaseListener).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Release<'a> {
    /// It is the turn of a holder to take places of a key.
    Turn {
        /// The key.
        key: &'a [u8],
        /// The [holder](Call::holder).
        holder: u64,
        /// The holder whose turn is next. It asks a while later, in case the first one does not.
        next: Option<u64>,
    },
    /// All places of this key are free.
    Reset(&'a [u8]),
    /// Messages may have been missed.
    Unknown,
}

type ReleaseCallback = dyn Fn(Release<'_>) + Send + Sync;

/// Receives the messages of a store: see [`Store::listen`].
#[derive(Clone)]
pub struct ReleaseListener {
    /// The limiter that listens.
    target: Weak<dyn Any + Send + Sync>,
    /// Does nothing if the target is gone.
    released: Arc<ReleaseCallback>,
}

impl ReleaseListener {
    /// Calls `released` with the target and each message. The calls end when the target has no owner any more.
    ///
    /// ```
    /// use std::sync::{Arc, Mutex};
    /// use tollgate::store::{Release, ReleaseListener};
    ///
    /// let heard = Arc::new(Mutex::new(0));
    /// let listener = ReleaseListener::new(&heard, |heard, release| {
    ///     *heard.lock().unwrap() += usize::from(release == Release::Turn { key: b"alice", holder: 7, next: None });
    /// });
    /// listener.released(Release::Turn { key: b"alice", holder: 7, next: None });
    /// listener.released(Release::Unknown);
    /// assert_eq!(*heard.lock().unwrap(), 1);
    /// drop(heard);
    /// assert!(listener.is_closed());
    /// ```
    pub fn new<T: Send + Sync + 'static>(
        target: &Arc<T>,
        released: impl Fn(&T, Release<'_>) + Send + Sync + 'static,
    ) -> Self {
        let target = Arc::downgrade(target);
        let listening = Weak::clone(&target);
        let released = move |release: Release<'_>| {
            if let Some(target) = listening.upgrade() {
                released(&target, release);
            }
        };
        Self {
            target,
            released: Arc::new(released),
        }
    }

    /// Passes a message on to the limiter. After a connection for messages was made again, pass on [`Release::Unknown`]. See
    /// [`new`](Self::new) for an example.
    pub fn released(&self, release: Release<'_>) {
        (self.released)(release);
    }

    /// Whether the limiter has stopped listening. A store that keeps a listener checks this at least once a minute.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.target.strong_count() == 0
    }
}

debug_fields! { ReleaseListener, |listener| is_closed = listener.is_closed() }

/// The listeners of a store for releases in this process, each with its limiter.
#[derive(Debug, Default)]
struct Listeners(Mutex<Vec<(Arc<str>, ReleaseListener)>>);

impl Listeners {
    fn add(&self, limiter: &Arc<str>, listener: ReleaseListener) {
        self.0.lock().push((Arc::clone(limiter), listener));
    }

    /// The listeners that are not closed. Closed listeners are removed.
    fn open(&self) -> Vec<(Arc<str>, ReleaseListener)> {
        let mut listeners = self.0.lock();
        listeners.retain(|(_, listener)| !listener.is_closed());
        listeners.clone()
    }

    /// The limiters that have a listener, each once.
    #[cfg(any(feature = "postgres", feature = "redis"))]
    fn limiters(&self) -> std::collections::BTreeSet<Arc<str>> {
        self.open()
            .into_iter()
            .map(|(limiter, _)| limiter)
            .collect()
    }

    /// Calls the listeners of this limiter, or of all limiters, outside the lock, because a listener is foreign code.
    fn each(&self, limiter: Option<&str>, call: impl Fn(&ReleaseListener)) {
        for (of, listener) in self.open() {
            if limiter.is_none_or(|limiter| *of == *limiter) {
                call(&listener);
            }
        }
    }

    /// Notifies the listeners of this limiter that all places of the key are free.
    fn reset(&self, limiter: &str, key: &[u8]) {
        self.each(Some(limiter), |listener| {
            listener.released(Release::Reset(key));
        });
    }

    /// Notifies the listeners of this limiter of turns.
    fn turns(&self, limiter: &str, key: &[u8], turns: &[u64], next: Option<u64>) {
        for &holder in turns {
            self.each(Some(limiter), |listener| {
                listener.released(Release::Turn { key, holder, next });
            });
        }
    }
}

/// Refuses a policy that no store can keep: a concurrency that adapts follows the work of one process.
fn check_supported(store: &str, policy: &Policy) -> Result<(), StoreError> {
    let adapts = |limit: &&Limit| limit.description().adapts;
    policy.limits().iter().find(adapts).map_or(Ok(()), |limit| {
        let reason = "a concurrency that adapts learns from the work of one process; set a limit without adapt";
        Err(StoreError::Unsupported { store: store.to_owned(), limit: limit.to_string(), reason })
    })
}

/// Reads the text of a policy that a store has.
pub(crate) fn read_policy(text: &str) -> Result<Policy, StoreError> {
    text.parse()
        .map_err(|error: ParseError| StoreError::Policy(error.into()))
}

fn plan(policy: &Policy) -> Result<Arc<Plan>, StoreError> {
    Plan::new(policy.clone(), Duration::ZERO)
        .map(Arc::new)
        .map_err(StoreError::Policy)
}

impl StoreError {
    /// The policy of the call differs from the stored one, which has this text and revision.
    fn policy_differs(call: &Call, stored: String, stored_revision: u64) -> Self {
        Self::PolicyDiffers {
            limiter: Arc::clone(&call.scope.limiter),
            stored,
            stored_revision,
            given: call.policy.to_string(),
            given_revision: call.revision,
        }
    }

    /// This process cannot apply the policy of [`PolicyDiffers`](Self::PolicyDiffers). Other errors stay as they are.
    pub(crate) fn unknown_policy(self, source: Self) -> Self {
        let Self::PolicyDiffers {
            limiter,
            stored,
            stored_revision,
            given,
            given_revision,
        } = self
        else {
            return self;
        };
        let source = Box::new(source);
        Self::UnknownPolicy {
            limiter,
            stored,
            stored_revision,
            given,
            given_revision,
            source,
        }
    }

    fn too_late(store: &str) -> Self {
        Self::TooLate {
            store: store.to_owned(),
        }
    }

    fn damaged(store: &str, at: &str) -> Self {
        Self::Damaged {
            store: store.to_owned(),
            at: at.to_owned(),
        }
    }
}

#[cfg(any(feature = "redis", feature = "_sql"))]
impl StoreError {
    fn unreachable(store: &str, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Unreachable {
            store: store.to_owned(),
            source: Cause::new(source),
        }
    }

    fn refused(store: &str, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Refused {
            store: store.to_owned(),
            source: Cause::new(source),
        }
    }

    fn unanswered(store: &str, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Unanswered {
            store: store.to_owned(),
            after: None,
            source: Some(Cause::new(source)),
        }
    }
}
