//! A store in Redis.

mod adoption;
mod connections;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzzed;
mod messages;
mod names;
mod script;
mod servers;
#[cfg(test)]
mod tests;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use redis::{Client, Cmd, IntoConnectionInfo, RedisError, Value};
use tokio::time::Instant;

use super::rules::PolicyCache;
use super::serve::ServedListeners;
use super::{KeyPage, ReleaseListener, Store, StoreFuture};
use crate::error::StoreError;
use crate::exchange::{Call, Reply, Scope};
use crate::policy::Policy;
use adoption::Adoption;
use connections::{answer_error, connect_error};
use messages::follow;
use names::{NAME, Names};
use script::{MAX_LIMITS, PolicyScript};
use servers::Servers;

/// A store in Redis or Valkey, from version 5 on. Clones share the store.
///
/// With the feature `redis-tls`, an address of `rediss://` connects with TLS. The server's certificate and its host name are checked
/// by the certificates of the system, or by [given ones](RedisStoreBuilder::root_certificates).
///
/// The store makes no connection before its first call. It then makes one for each tokio runtime that calls, and replaces a
/// connection that has broken or has not answered in time. Calls outside a runtime fail. A call is never sent twice, unless the
/// server did not know the script, and so has not run it. After a restart of the server, the first call of a runtime may fail
/// with [`Unanswered`](StoreError::Unanswered), because that call detects the broken connection.
///
/// A call is one script on the server, by the server's clock. The script is assembled from the limits of a policy, with their
/// numbers in it. A key of a limiter takes at most three keys of Redis, and one more for each sliding log. Their names begin with
/// `prefix:{limiter:key}`, where the braces keep them together in a cluster. All of them expire when their state no longer
/// matters. A denial writes nothing, unless a [`Penalty`](crate::Penalty) counts it.
///
/// # What is exact
///
/// The server counts microseconds. An instant in between is rounded up, so that no request is admitted early. All counts are exact. Numbers
/// that are not below 2^52 (of a rate: the burst times the nanoseconds of its period, by their common divisors) are
/// [`Unsupported`](StoreError::Unsupported), and so are policies of more than 16 limits.
///
/// | limit | supported | time for a call |
/// |---|---|---|
/// | [`Throttle`](crate::Throttle), [`TokenBucket`](crate::TokenBucket) | any rate, without drift | constant |
/// | the same, [refilled each period](crate::TokenBucket::refill_each_period) | periods in whole microseconds, counted from 1970 | constant |
/// | [`FixedWindow`](crate::FixedWindow) | periods in whole microseconds; [`Align::Creation`](crate::Align::Creation) is the wall clock | constant |
/// | [`SlidingWindow::log`](crate::SlidingWindow::log) | any period | grows with the grants that expire, or that a denial waits for |
/// | [`SlidingWindow::counter`](crate::SlidingWindow::counter) | periods in whole microseconds, below 200 days; the grid counts from 1970 | constant |
/// | [`Penalty`](crate::Penalty) | periods and bans in whole microseconds | constant |
/// | [`MaxConcurrency`](crate::MaxConcurrency) | any, unless it [adapts](crate::Adapt), which is unsupported | grows with the leases that are granted and returned |
///
/// A rate refunds only the part of a cost that cannot have been refilled since the grant. A debt is cut off at 2^52 parts of a
/// unit, and for a counter at 4,294,967,295 units. If two limits stop a request until the same microsecond, the first is
/// reported.
///
/// A lease that expires when no call comes is not counted as [reclaimed](crate::store::Reply::reclaimed) if nothing else of its key
/// is kept.
///
/// # Server
///
/// A limiter relies on the data of the server. So the server should not evict keys with an expiry (`maxmemory-policy
/// noeviction`), nor lose writes when it fails: an asynchronous replica that takes over may have missed grants, which are then
/// granted again. If the server's clock steps back, time stands still for each key in use until the clock has caught up. More
/// settings are on the page of [`SharedLimiter`](crate::SharedLimiter#settings-of-the-server).
///
/// # Clusters
///
/// A store from [`cluster`](RedisStore::cluster) asks a node which nodes there are, and sends each call to the node that has the
/// key. All keys of a call are in one slot, so each key of a limiter is on one node, and the keys of a limiter are spread over all of
/// them. A store from [`connect`](RedisStore::connect) stays at its server, and in a cluster its calls for keys of other nodes fail
/// with [`Refused`](StoreError::Refused).
///
/// - When slots move to another node, calls follow them (`MOVED`, `ASK`). While only a part of a key's data has moved, no node carries out a
///   call for it. The call waits until its [timeout](RedisStoreBuilder::timeout), and then fails with
///   [`Unreachable`](StoreError::Unreachable).
/// - When a master dies, calls for its keys fail until the cluster has promoted a replica: after `cluster-node-timeout`, and a second or
///   two. Grants that had not reached the replica may be granted again. Calls for keys of other nodes are not affected if
///   `cluster-require-full-coverage` is `no`. With `yes`, the default of Redis, the whole cluster refuses calls meanwhile.
/// - A node that does not answer delays no calls for keys of other nodes.
/// - The nodes pass messages of released places on to each other. A process listens at one node, and at another one when that
///   one has died.
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
    shared: Arc<RedisShared>,
}

#[derive(Debug)]
struct RedisShared {
    servers: Arc<Servers>,
    names: Names,
    listeners: Arc<ServedListeners>,
    scripts: PolicyCache<(Policy, u64), PolicyScript>,
    /// By the text and the revision of the former policy, and by those of the new one.
    adoptions: PolicyCache<(String, u64, Policy, u64), Adoption>,
}

/// The options of a [`RedisStore`], which has an example.
#[must_use = "build() makes the store"]
pub struct RedisStoreBuilder {
    clients: Result<Vec<Client>, RedisError>,
    is_cluster: bool,
    prefix: String,
    timeout: Duration,
}

// The clients are left out, because they have the password.
debug_fields! { RedisStoreBuilder, |builder| prefix = builder.prefix, timeout = builder.timeout }

impl RedisStoreBuilder {
    fn new(clients: Result<Vec<Client>, RedisError>, is_cluster: bool) -> Self {
        Self {
            clients,
            is_cluster,
            prefix: "tollgate".to_owned(),
            timeout: Duration::from_millis(500),
        }
    }

    setters! {
        /// The prefix of the names of all keys and channels: any text. The default is `tollgate`.
        pub prefix(prefix: impl Into<String>) => prefix = prefix.into();

        /// How long a call may take, including the time to connect. The default is 500 ms.
        ///
        /// After that, a call that was sent fails with [`StoreError::Unanswered`]; the server may still carry it out.
        pub timeout(timeout: Duration) => timeout = timeout;
    }

    /// Trusts the certificates of this PEM text, and not those of the system. The address must be `rediss://`.
    ///
    /// ```no_run
    /// use tollgate::store::RedisStore;
    ///
    /// let authority = std::fs::read("ca.pem")?;
    /// let store = RedisStore::builder("rediss://limits.example/").root_certificates(authority).build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "redis-tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis-tls")))]
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        let pem = pem.into();
        self.clients = self.clients.and_then(|clients| {
            super::tls::trusted(Some(&pem)).map_err(|reason| {
                let kind = redis::ErrorKind::InvalidClientConfig;
                RedisError::from((kind, "no certificate to trust", reason))
            })?;
            let certificates = redis::TlsCertificates {
                client_tls: None,
                root_cert: Some(pem),
            };
            let with_tls = |client: Client| {
                let info = client.get_connection_info().clone();
                Client::build_with_tls(info, certificates.clone())
            };
            clients.into_iter().map(with_tls).collect()
        });
        self
    }

    /// Makes the store. It makes no connection yet.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unreachable`] if a text is not the address of a Redis server, if it is `rediss://` without the feature `redis-tls`,
    /// if there are no certificates to trust, or if a cluster has no address.
    pub fn build(self) -> Result<RedisStore, StoreError> {
        let mut clients = self.clients.map_err(|error| connect_error(NAME, error))?;
        #[cfg(feature = "redis-tls")]
        super::tls::ensure_provider();
        let servers = match clients.pop() {
            Some(client) if !self.is_cluster => Servers::one(client, self.timeout),
            Some(client) => {
                clients.push(client);
                Servers::cluster(clients, self.timeout)
            }
            None => return Err(StoreError::unreachable(NAME, "no address is given")),
        };
        let shared = RedisShared {
            servers: Arc::new(servers),
            names: Names::new(&self.prefix),
            listeners: Arc::default(),
            scripts: PolicyCache::default(),
            adoptions: PolicyCache::default(),
        };
        Ok(RedisStore {
            shared: Arc::new(shared),
        })
    }
}

impl RedisStore {
    /// A store at this address, such as `redis://user:password@host:6379/0`, `rediss://host/` with TLS, or `unix:///run/redis.sock`. It
    /// makes no connection yet.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unreachable`] if the text is not the address of a Redis server.
    pub fn connect(address: impl IntoConnectionInfo) -> Result<Self, StoreError> {
        Self::builder(address).build()
    }

    /// A store at this address, with options. See the [type's example](RedisStore#examples).
    pub fn builder(address: impl IntoConnectionInfo) -> RedisStoreBuilder {
        RedisStoreBuilder::new(Client::open(address).map(|client| vec![client]), false)
    }

    /// A store that uses this client of the crate [`redis`](https://docs.rs/redis) 1, for instance with a client certificate.
    ///
    /// ```
    /// use tollgate::store::RedisStore;
    ///
    /// let client = redis::Client::open("redis://127.0.0.1/")?;
    /// let store = RedisStore::with_client(client).prefix("shop").build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_client(client: Client) -> RedisStoreBuilder {
        RedisStoreBuilder::new(Ok(vec![client]), false)
    }

    /// A store in a Redis Cluster, of which these addresses are some nodes. One that answers is enough: the store asks it for the
    /// other ones, and sends each call to the node that has its key. See [clusters](RedisStore#clusters).
    ///
    /// User, password and TLS of the first address are also those for the nodes whose addresses are not given.
    ///
    /// ```
    /// use tollgate::store::RedisStore;
    ///
    /// let store = RedisStore::cluster(["redis://10.0.0.1/", "redis://10.0.0.2/"]).prefix("shop").build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cluster(
        addresses: impl IntoIterator<Item = impl IntoConnectionInfo>,
    ) -> RedisStoreBuilder {
        RedisStoreBuilder::new(addresses.into_iter().map(Client::open).collect(), true)
    }
}

impl RedisShared {
    fn script(&self, policy: &Policy, revision: u64) -> Result<Arc<PolicyScript>, StoreError> {
        self.scripts.get((policy.clone(), revision), || {
            super::check_supported(NAME, policy)?;
            super::plan(policy)?;
            PolicyScript::new(policy, revision)
        })
    }

    /// Replaces the policy of the key by that of the call, if its revision is higher than that of the one that differs.
    async fn adopt(
        &self,
        call: &Call,
        state: &str,
        differs: StoreError,
        by: Instant,
    ) -> Result<(), StoreError> {
        let StoreError::PolicyDiffers {
            stored,
            stored_revision,
            ..
        } = &differs
        else {
            return Err(differs);
        };
        let (former_revision, new) = (*stored_revision, (&call.policy, call.revision));
        if former_revision >= call.revision {
            return Err(differs);
        }
        let key = (
            stored.clone(),
            former_revision,
            call.policy.clone(),
            call.revision,
        );
        let former = (&**stored, former_revision);
        let adoption = self
            .adoptions
            .get(key, || Adoption::from_stored(former, new));
        let adoption = adoption.map_err(|source| differs.unknown_policy(source))?;
        let keys = names::all(state.to_owned(), adoption.logs);
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(&adoption.script.hash).arg(keys.len()).arg(&keys);
        let script = Some(&*adoption.script.text);
        match self.servers.send(&cmd, state, script, by).await? {
            Value::Int(0 | 1) => Ok(()),
            Value::Int(3) => Err(StoreError::damaged(&self.servers.store, state)),
            _ => Err(answer_error(&self.servers.store)),
        }
    }
}

impl Store for RedisStore {
    fn name(&self) -> String {
        self.shared.servers.store.clone()
    }

    fn supports(&self, policy: &Policy) -> Result<(), StoreError> {
        self.shared.script(policy, 0).map(drop)
    }

    fn answers_within(&self) -> Option<Duration> {
        Some(self.shared.servers.timeout)
    }

    fn part_of(&self, scope: &Scope) -> u64 {
        let shared = &self.shared;
        shared.servers.part_of(|| shared.names.state(scope))
    }

    fn call(&self, call: Call) -> StoreFuture<Reply> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let script = shared.script(&call.policy, call.revision)?;
            let keys = wire::keys(&call, &script, &shared.names);
            let mut cmd = Cmd::with_capacity(
                8 + keys.len(),
                256 + 16 * (call.returns.len() + call.asks.len()),
            );
            cmd.arg("EVALSHA")
                .arg(&script.script.hash)
                .arg(keys.len())
                .arg(&keys);
            wire::write_arguments(&mut cmd, &call, &script, &shared.names);
            let (servers, state) = (&shared.servers, &keys[0]);
            let by = servers.deadline();
            loop {
                let text = Some(&*script.script.text);
                let answer = servers.send(&cmd, state, text, by).await?;
                match wire::read(&answer, &call, &servers.store, state) {
                    // It has not run, so it may be sent again.
                    Err(differs @ StoreError::PolicyDiffers { .. }) => {
                        shared.adopt(&call, state, differs, by).await?;
                    }
                    reply => return reply,
                }
            }
        })
    }

    fn listen(&self, limiter: &Arc<str>, listener: ReleaseListener) -> bool {
        let shared = &self.shared;
        let (servers, names) = (Arc::clone(&shared.servers), shared.names.clone());
        shared.listeners.add(limiter, listener, move |served| {
            follow(Arc::clone(&servers), names.clone(), served)
        })
    }

    fn keys(&self, limiter: &Arc<str>, from: Option<Vec<u8>>, max: usize) -> StoreFuture<KeyPage> {
        let (shared, limiter) = (Arc::clone(&self.shared), Arc::clone(limiter));
        Box::pin(async move {
            /// How many keys of any kind one command scans.
            const STEP: usize = 1_000;
            /// The most commands that are sent for a page. After that many, the page may be empty.
            const STEPS: usize = 100;
            let pattern = shared.names.pattern(&limiter);
            let mut page = KeyPage {
                keys: Vec::new(),
                next: Some(from.unwrap_or_default()),
            };
            for _ in 0..STEPS {
                let Some(from) = page
                    .next
                    .take_if(|_| page.keys.is_empty() || page.keys.len() < max)
                else {
                    break;
                };
                let (names, next) = shared.servers.scan(&from, &pattern, STEP).await?;
                page.keys.extend(
                    names
                        .iter()
                        .filter_map(|name| shared.names.key_of(&limiter, name)),
                );
                page.next = next;
            }
            Ok(page)
        })
    }

    fn reset(&self, scope: Scope) -> StoreFuture<()> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let state = shared.names.state(&scope);
            let mut cmd = redis::cmd("DEL");
            cmd.arg(names::all(state.clone(), MAX_LIMITS));
            let by = shared.servers.deadline();
            shared.servers.send(&cmd, &state, None, by).await?;
            let mut message = redis::cmd("PUBLISH");
            message
                .arg(shared.names.channel(&scope.limiter))
                .arg([&names::OF_A_RESET[..], &scope.key[..]].concat());
            let sent = shared.servers.send(&message, &state, None, by).await;
            sent.map(drop)
        })
    }

    /// Keys expire by themselves.
    fn purge(&self, _: &Arc<str>, _: usize) -> StoreFuture<u64> {
        Box::pin(std::future::ready(Ok(0)))
    }
}
