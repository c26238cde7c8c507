//! A store in MariaDB or MySQL.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mysql_async::{Opts, OptsBuilder};
use tokio::sync::Semaphore;

use super::listeners::Listeners;
use super::sql::known::Known;
use super::sql::table::{Awaited, Purge, carry_out, in_task};
use super::sql::{Policies, rows};
use super::{KeyPage, ReleaseListener, Store, StoreFuture};
use crate::error::{Cause, StoreError};
use crate::exchange::{Call, Reply, Scope};
use crate::policy::Policy;
use server::{NOW, SCHEMA, Server, bytes, hex, id};

mod server;

/// A store in MariaDB 10.3 or later, or MySQL 8. Clones share it.
///
/// The clock of the server counts. A call takes one round trip if no other process has written the key since this one did, or if it
/// changes nothing, such as a denial; otherwise two. What takes one may be decided as of an instant that is a round trip earlier, and
/// its leases end so much later in the server. Where several processes write a key at the same time, a call locks its row. What is
/// known of keys takes 64 MiB at most.
///
/// Up to eight connections are made, and anew when they break. Calls must be made in a tokio runtime with `enable_all`.
///
/// Places that come back are told to waiters in this process; those of other processes poll.
///
/// What [settles](crate::Permit::settle) below its charge gets nothing back from a token bucket or a throttle, whose past grants are
/// not kept. A sliding log is written anew by each call, in about twenty bytes an entry.
///
/// # Examples
///
/// ```no_run
/// use tollgate::store::MysqlStore;
///
/// let store = MysqlStore::open("mysql://limits@db.example/limits")?;
/// # Ok::<(), tollgate::store::StoreError>(())
/// ```
#[derive(Clone)]
pub struct MysqlStore {
    server: Arc<Server>,
}

/// How a [`MysqlStore`] is opened.
///
/// ```no_run
/// use tollgate::store::MysqlStoreOptions;
///
/// let store = MysqlStoreOptions::new().create_tables(false).open("mysql://limits@db.example/limits")?;
/// # Ok::<(), tollgate::store::StoreError>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct MysqlStoreOptions {
    creates_tables: bool,
    timeout: Duration,
}

impl Default for MysqlStoreOptions {
    fn default() -> Self {
        Self::new()
    }
}

const NAME: &str = "MySQL";

impl MysqlStoreOptions {
    /// Tables that are missing are created.
    pub const fn new() -> Self {
        Self { creates_tables: true, timeout: Duration::from_secs(5) }
    }

    /// Whether tables that are missing are created. Otherwise [`MysqlStore::schema`] must have been run.
    pub const fn create_tables(self, creates_tables: bool) -> Self {
        Self { creates_tables, ..self }
    }

    /// How long the making of a connection may take, and how long an answer: 5 seconds by default. After that, the connection is given
    /// up, and another one is made. What was sent may still be carried out.
    pub const fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// A store at this URL, `mysql://user:password@host:port/database`. It does not connect yet.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unreachable`] if that is no address.
    pub fn open(self, url: &str) -> Result<MysqlStore, StoreError> {
        match Opts::from_url(url) {
            Ok(opts) => Ok(self.open_with(opts)),
            Err(error) => Err(StoreError::Unreachable { store: NAME.to_owned(), source: Cause::new(error) }),
        }
    }

    /// A store with these options of mysql_async. Its features have TLS. It does not connect yet.
    #[must_use]
    pub fn open_with(self, opts: Opts) -> MysqlStore {
        let name = format!("{NAME} at {}:{}/{}", opts.ip_or_hostname(), opts.tcp_port(), opts.db_name().unwrap_or_default());
        let server = Server {
            name,
            // Whether an update has changed a row is told by the number of rows that changed.
            opts: OptsBuilder::from_opts(opts).client_found_rows(false).into(),
            creates_tables: self.creates_tables,
            timeout: self.timeout,
            idle: Mutex::default(),
            connections: Arc::new(Semaphore::new(8)),
            policies: Policies::default(),
            known: Known::default(),
            listeners: Listeners::default(),
            purge: Purge::default(),
        };
        MysqlStore { server: Arc::new(server) }
    }
}

impl MysqlStore {
    /// A store at this URL, with the default [options](MysqlStoreOptions). It does not connect yet.
    ///
    /// See the [type's example](MysqlStore#examples).
    ///
    /// # Errors
    ///
    /// Those of [`MysqlStoreOptions::open`].
    pub fn open(url: &str) -> Result<Self, StoreError> {
        MysqlStoreOptions::new().open(url)
    }

    /// The statements that create the tables. They change nothing where the tables exist.
    ///
    /// ```
    /// println!("{}", tollgate::store::MysqlStore::schema());
    /// ```
    #[must_use]
    pub const fn schema() -> &'static str {
        SCHEMA
    }

    fn order<T: Send + 'static, F>(&self, work: impl FnOnce(Arc<Server>, Awaited) -> F) -> StoreFuture<T>
    where
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        in_task(&self.server.name, |awaited| work(Arc::clone(&self.server), awaited))
    }
}

impl fmt::Debug for MysqlStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("MysqlStore").field("name", &self.server.name).finish_non_exhaustive()
    }
}

/// The ids of a limiter begin with the same 32 bytes.
fn ids(limiter: &str) -> String {
    let limiter = format!("UNHEX(SHA2({}, 256))", hex(limiter.as_bytes()));
    format!("id > {limiter} AND id <= CONCAT({limiter}, UNHEX(REPEAT('ff', 32)))")
}

impl Store for MysqlStore {
    fn name(&self) -> String {
        self.server.name.clone()
    }

    fn supports(&self, policy: &Policy) -> Result<(), StoreError> {
        super::shares(&self.server.name, policy)?;
        self.server.policies.rules(policy).map(drop)
    }

    fn call(&self, call: Call) -> StoreFuture<Reply> {
        // In a task: a connection whose answer nobody awaits could not be used again.
        self.order(async move |server, awaited| {
            let reply = carry_out(&server, call, &awaited).await;
            if server.purge.is_due() {
                let server = Arc::clone(&server);
                tokio::spawn(async move { server.purge_some().await.ok() });
            }
            reply
        })
    }

    /// Tells of releases in this process, and returns `false`: those of other processes are not told.
    fn listen(&self, limiter: &Arc<str>, listener: ReleaseListener) -> bool {
        self.server.listeners.add(limiter, listener);
        false
    }

    fn keys(&self, limiter: &Arc<str>, from: Option<Vec<u8>>, max: usize) -> StoreFuture<KeyPage> {
        let max = max.max(1);
        let from = from.map(|from| format!("AND id > {}", hex(&from))).unwrap_or_default();
        let (ids, limit) = (ids(limiter), rows(max));
        let select = format!("SELECT id, k FROM tollgate_keys WHERE {ids} {from} AND expires > {NOW} ORDER BY id LIMIT {limit}");
        self.order(async move |server, _| {
            let found = server.ask(&select).await?.rows;
            let keys = found.iter().map(|row| bytes(row, 1).map(Arc::from)).collect::<Option<Vec<_>>>();
            let next = if found.len() == max { found.last().and_then(|row| bytes(row, 0)) } else { None };
            let keys = keys.ok_or_else(|| server.damaged("tollgate_keys"))?;
            Ok(KeyPage { keys, next })
        })
    }

    fn reset(&self, scope: Scope) -> StoreFuture<()> {
        self.order(async move |server, _| {
            server.tell(&format!("DELETE FROM tollgate_keys WHERE id = {}", id(&scope))).await?;
            server.listeners.released(&scope.limiter, &scope.key);
            Ok(())
        })
    }

    fn purge(&self, limiter: &Arc<str>, max: usize) -> StoreFuture<u64> {
        let (ids, limit) = (ids(limiter), rows(max));
        let delete = format!("DELETE FROM tollgate_keys WHERE {ids} AND expires <= {NOW} ORDER BY id LIMIT {limit}");
        self.order(async move |server, _| Ok(server.tell(&delete).await?.changed))
    }
}
