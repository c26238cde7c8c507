//! A store in Redis.

mod connections;
mod error;
mod names;
mod releases;
mod script;
#[cfg(test)]
mod tests;
mod wire;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::{Client, Cmd, IntoConnectionInfo, RedisError, Script, Value};

use super::{KeyPage, ReleaseListener, Store, StoreFuture};
use crate::core::plan::Plan;
use crate::error::{Cause, StoreError};
use crate::exchange::{Call, Reply, Scope};
use crate::policy::Policy;
use connections::{Connections, Failure};
use names::{NAME, Names};
use releases::Releases;
use script::{MAX_LIMITS, PolicyScript};

/// More policies than this at once are assembled again and again.
const MAX_SCRIPTS: usize = 256;

/// A store in Redis or Valkey, from version 5 on. Clones share it.
///
/// It makes no connection before its first call. It then makes one for each tokio runtime that calls, and makes it anew when it has
/// broken or has not answered in time. Calls outside a runtime fail. It never sends a call twice, except where the server did not know
/// the script, and so has not run it. After the server was restarted, the first call of a runtime may fail with
/// [`Unanswered`](StoreError::Unanswered): it finds out that the connection is broken.
///
/// A call is one script on the server, by the server's clock. The script is assembled from the limits of a policy, with their numbers
/// in it. What is kept for a key of a limiter are at most three keys of Redis, and one more for each sliding log:
/// `prefix:{limiter:key}`, where the braces hold them together in a cluster. All of them expire when they have nothing to say any
/// more. A denial writes nothing, unless a [`Penalty`](crate::Penalty) counts it.
///
/// # What is exact
///
/// The server counts microseconds. An instant in between is rounded up, so that nobody is admitted early. All counts are exact. Numbers
/// that are not below 2^52 (of a rate: the burst times the nanoseconds of its period, by their common divisors) are
/// [`Unsupported`](StoreError::Unsupported), and so are policies of more than 16 limits.
///
/// | limit | there | time for a call |
/// |---|---|---|
/// | [`Throttle`](crate::Throttle), [`TokenBucket`](crate::TokenBucket) | any rate, without drift | constant |
/// | the same, [refilled each period](crate::TokenBucket::refill_each_period) | periods in whole microseconds, counted from 1970 | constant |
/// | [`FixedWindow`](crate::FixedWindow) | periods in whole microseconds; [`Align::Creation`](crate::Align::Creation) is the wall clock | constant |
/// | [`SlidingWindow::log`](crate::SlidingWindow::log) | any period | by the grants that expire, or that a denial waits for |
/// | [`SlidingWindow::counter`](crate::SlidingWindow::counter) | periods in whole microseconds, below 200 days; the grid counts from 1970 | constant |
/// | [`Penalty`](crate::Penalty) | periods and bans in whole microseconds | constant |
/// | [`MaxConcurrency`](crate::MaxConcurrency) | any, unless it [adapts](crate::Adapt), which is unsupported | by the leases that come and go |
///
/// A rate refunds only what the time since the grant cannot have refilled of that cost alone. A debt is cut off at 2^52 parts of a unit,
/// that of a counter at 4,294,967,295 units. Where two limits stop a request until the same microsecond, the first is named.
///
/// A lease that expires when no call comes is not counted as [reclaimed](crate::store::Reply::reclaimed) if nothing else of its key
/// is kept.
///
/// # Server
///
/// A store speaks to one server. Of a Redis Cluster, that is one node: the keys of other nodes are [`Refused`](StoreError::Refused). The
/// names and the scripts are fit for a cluster, all keys of a call being in one slot.
///
/// A limiter trusts what the server keeps. So a server should neither evict keys with an expiry (`maxmemory-policy noeviction`), nor
/// lose writes when it fails: an asynchronous replica that takes over may have missed grants, which are then granted again. A clock
/// that steps back stands still for each key that is in use.
///
/// # Examples
///
/// ```no_run
/// use std::time::Duration;
/// use tollgate::store::{RedisStore, Store};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = RedisStore::connect("redis://127.0.0.1/")?;
/// store.supports(&"8 concurrent ttl 30s and 100/min".parse()?)?;
///
/// let for_shop = RedisStore::builder("redis://127.0.0.1/").prefix("shop").timeout(Duration::from_millis(200)).build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct RedisStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    connections: Connections,
    names: Names,
    releases: Releases,
    scripts: Mutex<Scripts>,
}

#[derive(Debug, Default)]
struct Scripts {
    by_policy: HashMap<Policy, Arc<Prepared>>,
    /// Most calls are of one policy, and it is quickly compared with its clone.
    latest: Option<(Policy, Arc<Prepared>)>,
}

#[derive(Debug)]
struct Prepared {
    script: PolicyScript,
    /// By this, the server knows the script.
    hash: String,
}

/// The options of a [`RedisStore`]. See there for an example.
#[must_use = "build() makes the store"]
pub struct RedisStoreBuilder {
    client: Result<Client, RedisError>,
    prefix: String,
    timeout: Duration,
}

/// Without the client, which has the password.
impl fmt::Debug for RedisStoreBuilder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { prefix, timeout, .. } = self;
        formatter.debug_struct("RedisStoreBuilder").field("prefix", prefix).field("timeout", timeout).finish_non_exhaustive()
    }
}

impl RedisStoreBuilder {
    fn new(client: Result<Client, RedisError>) -> Self {
        Self { client, prefix: "tollgate".to_owned(), timeout: Duration::from_millis(500) }
    }

    /// What the names of all keys and channels begin with: any text. The default is `tollgate`.
    pub fn prefix(self, prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into(), ..self }
    }

    /// How long a call may take, with the connection if there is none yet. The default is 500 ms.
    ///
    /// After that, it fails with [`StoreError::Unanswered`] if it was sent; the server may still carry it out.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// The store. It makes no connection yet.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unreachable`] if the text is no address of a Redis server.
    pub fn build(self) -> Result<RedisStore, StoreError> {
        let client = self.client.map_err(|error| error::of_connecting(NAME, error))?;
        let (connections, names) = (Connections::new(client, self.timeout), Names::new(&self.prefix));
        let shared = Shared { connections, names, releases: Releases::default(), scripts: Mutex::default() };
        Ok(RedisStore { shared: Arc::new(shared) })
    }
}

impl RedisStore {
    /// A store at this address, such as `redis://user:password@host:6379/0` or `unix:///run/redis.sock`. It makes no connection yet.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unreachable`] if the text is no address of a Redis server.
    pub fn connect(address: impl IntoConnectionInfo) -> Result<Self, StoreError> {
        Self::builder(address).build()
    }

    /// A store at this address, with options. See the [type's example](RedisStore#examples).
    pub fn builder(address: impl IntoConnectionInfo) -> RedisStoreBuilder {
        RedisStoreBuilder::new(Client::open(address))
    }

    /// A store where this client of the crate [`redis`](https://docs.rs/redis) 1 connects to, for instance with TLS.
    ///
    /// ```
    /// use tollgate::store::RedisStore;
    ///
    /// let client = redis::Client::open("redis://127.0.0.1/")?;
    /// let store = RedisStore::with_client(client).prefix("shop").build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_client(client: Client) -> RedisStoreBuilder {
        RedisStoreBuilder::new(Ok(client))
    }
}

impl Scripts {
    fn find(&mut self, policy: &Policy) -> Option<Arc<Prepared>> {
        if let Some((_, prepared)) = self.latest.as_ref().filter(|(latest, _)| latest == policy) {
            return Some(Arc::clone(prepared));
        }
        let prepared = self.by_policy.get(policy)?;
        self.latest = Some((policy.clone(), Arc::clone(prepared)));
        Some(Arc::clone(prepared))
    }
}

impl Shared {
    fn prepared(&self, policy: &Policy) -> Result<Arc<Prepared>, StoreError> {
        let lock = || self.scripts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(prepared) = lock().find(policy) {
            return Ok(prepared);
        }
        super::shares(NAME, policy)?;
        Plan::new(policy.clone(), Duration::ZERO).map_err(StoreError::Policy)?;
        let script = PolicyScript::new(policy)?;
        let hash = Script::new(&script.text).get_hash().to_owned();
        let prepared = Arc::new(Prepared { script, hash });
        let mut scripts = lock();
        if scripts.by_policy.len() == MAX_SCRIPTS {
            scripts.by_policy.clear();
        }
        scripts.by_policy.insert(policy.clone(), Arc::clone(&prepared));
        Ok(prepared)
    }

    async fn call(&self, call: Call) -> Result<Reply, StoreError> {
        let prepared = self.prepared(&call.policy)?;
        let keys = wire::keys(&call, &prepared.script, &self.names);
        let mut cmd = Cmd::with_capacity(8 + keys.len(), 256 + 16 * (call.returns.len() + call.asks.len()));
        cmd.arg("EVALSHA").arg(&prepared.hash).arg(keys.len()).arg(&keys);
        wire::write_arguments(&mut cmd, &call, &prepared.script, &self.names);
        let by = self.connections.deadline();
        let answer = match self.connections.send(&cmd, by).await {
            // It never ran, so that it may be sent again.
            Err(Failure::Client(error)) if error::is_unknown_script(&error) => {
                let mut load = redis::cmd("SCRIPT");
                self.understood(self.connections.send(load.arg("LOAD").arg(&prepared.script.text), by).await, &keys[0])?;
                self.understood(self.connections.send(&cmd, by).await, &keys[0])?
            }
            answer => self.understood(answer, &keys[0])?,
        };
        let store = &self.connections.store;
        match wire::read(&answer, &call) {
            Some(answer) => wire::refusal(answer, &call, store, &keys[0]),
            None => Err(self.strange_answer()),
        }
    }

    /// A proxy, or another kind of server.
    fn strange_answer(&self) -> StoreError {
        let source = Some(Cause::new("the answer is none of a limiter's script"));
        StoreError::Unanswered { store: self.connections.store.clone(), after: None, source }
    }

    async fn send(&self, cmd: &Cmd, at: &str) -> Result<Value, StoreError> {
        self.understood(self.connections.send(cmd, self.connections.deadline()).await, at)
    }

    fn understood(&self, answer: Result<Value, Failure>, at: &str) -> Result<Value, StoreError> {
        answer.map_err(|failure| match failure {
            Failure::Known(error) => error,
            Failure::Client(error) => error::of_call(&self.connections.store, at, error),
        })
    }

    async fn keys(&self, limiter: &str, from: Option<Vec<u8>>, max: usize) -> Result<KeyPage, StoreError> {
        /// As many keys of any kind are looked at in one command.
        const STEP: usize = 1_000;
        /// As many commands are sent for a page, which may then be empty.
        const STEPS: usize = 100;
        let pattern = self.names.pattern(limiter);
        let mut page = KeyPage { keys: Vec::new(), next: Some(from.unwrap_or_else(|| b"0".to_vec())) };
        for _ in 0..STEPS {
            let Some(cursor) = page.next.take_if(|_| page.keys.is_empty() || page.keys.len() < max) else { break };
            let mut cmd = redis::cmd("SCAN");
            cmd.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(STEP);
            let answer = self.send(&cmd, &pattern).await?;
            let Ok((next, names)) = redis::from_redis_value::<(Vec<u8>, Vec<Vec<u8>>)>(answer) else {
                return Err(self.strange_answer());
            };
            page.keys.extend(names.iter().filter_map(|name| self.names.key_of(limiter, name)));
            page.next = (next != b"0").then_some(next);
        }
        Ok(page)
    }

    async fn reset(&self, scope: Scope) -> Result<(), StoreError> {
        let state = self.names.state(&scope);
        let mut cmd = redis::cmd("DEL");
        cmd.arg(&state).arg(names::leases(&state)).arg(names::costs(&state));
        for number in 0..MAX_LIMITS {
            cmd.arg(names::log(&state, number));
        }
        self.send(&cmd, &state).await?;
        let mut message = redis::cmd("PUBLISH");
        message.arg(self.names.channel(&scope.limiter)).arg(&scope.key[..]);
        self.send(&message, &state).await.map(drop)
    }
}

impl Store for RedisStore {
    fn name(&self) -> String {
        self.shared.connections.store.clone()
    }

    fn supports(&self, policy: &Policy) -> Result<(), StoreError> {
        self.shared.prepared(policy).map(drop)
    }

    fn answers_within(&self) -> Option<Duration> {
        Some(self.shared.connections.timeout)
    }

    fn call(&self, call: Call) -> StoreFuture<Reply> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move { shared.call(call).await })
    }

    fn listen(&self, limiter: &Arc<str>, listener: ReleaseListener) -> bool {
        let Shared { connections, names, releases, .. } = &*self.shared;
        releases.listen(&connections.client, names.channel(limiter), listener)
    }

    fn keys(&self, limiter: &Arc<str>, from: Option<Vec<u8>>, max: usize) -> StoreFuture<KeyPage> {
        let (shared, limiter) = (Arc::clone(&self.shared), Arc::clone(limiter));
        Box::pin(async move { shared.keys(&limiter, from, max).await })
    }

    fn reset(&self, scope: Scope) -> StoreFuture<()> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move { shared.reset(scope).await })
    }

    /// Keys expire by themselves.
    fn purge(&self, _: &Arc<str>, _: usize) -> StoreFuture<u64> {
        Box::pin(std::future::ready(Ok(0)))
    }
}
