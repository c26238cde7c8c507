//! A store in MariaDB or MySQL.

use std::sync::Arc;
use std::time::Duration;

use mysql_async::{Opts, OptsBuilder};

use super::listeners::Listeners;
use super::sql::pool::Pool;
use super::sql::table::{SqlServer, call, in_task};
use super::sql::{page, rows};
use super::{KeyPage, ReleaseListener, Store, StoreFuture};
use crate::error::StoreError;
use crate::exchange::{Call, Reply, Scope};
use crate::policy::Policy;
use server::{MysqlServer, NOW, SCHEMA, hex, id, value};

mod server;

/// A store in MariaDB 10.3 or later, or MySQL 8. Clones share the store.
///
/// Time is that of the server's clock. A call takes one round trip if no other process has written the key since this process
/// did, or if the call changes nothing, such as a denial; otherwise two. A call of one round trip may be decided as of an instant
/// one round trip earlier. Its leases then end that much later on the server. If several processes write a key at the same time,
/// a call locks the row of the key. The cache of known keys takes 64 MiB at most.
///
/// A store makes up to eight connections, and replaces those that break. Calls must be made in a tokio runtime with `enable_all`.
///
/// Waiters in this process are notified of released places; waiters in other processes poll.
///
/// For a token bucket or a throttle, a [settlement](crate::Permit::settle) below the charge refunds nothing, because past grants
/// are not kept. Each call rewrites a sliding log, with about twenty bytes for each entry.
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
    server: Arc<MysqlServer>,
}

/// Options for opening a [`MysqlStore`].
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
    /// The default options: missing tables are created, and the timeout is 5 seconds.
    pub const fn new() -> Self {
        Self {
            creates_tables: true,
            timeout: Duration::from_secs(5),
        }
    }

    setters! { const:
        /// Whether missing tables are created. Otherwise [`MysqlStore::schema`] must have been run.
        pub create_tables(creates_tables: bool) => creates_tables = creates_tables;

        /// The longest time to make a connection, and to wait for an answer: 5 seconds by default. After that, the connection is
        /// given up, and another one is made. Statements that were sent may still be carried out.
        pub timeout(timeout: Duration) => timeout = timeout;
    }

    /// A store at this URL, `mysql://user:password@host:port/database`. It does not connect yet.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unreachable`] if the text is not such an address.
    pub fn open(self, url: &str) -> Result<MysqlStore, StoreError> {
        match Opts::from_url(url) {
            Ok(opts) => Ok(self.open_with(opts)),
            Err(error) => Err(StoreError::unreachable(NAME, error)),
        }
    }

    /// A store with these options of mysql_async. The features of that crate provide TLS. The store does not connect yet.
    #[must_use]
    pub fn open_with(self, opts: Opts) -> MysqlStore {
        let name = format!(
            "{NAME} at {}:{}/{}",
            opts.ip_or_hostname(),
            opts.tcp_port(),
            opts.db_name().unwrap_or_default()
        );
        let server = MysqlServer {
            sql: SqlServer::new(name, self.creates_tables, self.timeout),
            // The number of changed rows then shows whether an update has changed a row.
            opts: OptsBuilder::from_opts(opts).client_found_rows(false).into(),
            connections: Pool::new(8),
            listeners: Listeners::default(),
        };
        MysqlStore {
            server: Arc::new(server),
        }
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

    /// The statements that create the tables. They change nothing if the tables exist.
    ///
    /// ```
    /// println!("{}", tollgate::store::MysqlStore::schema());
    /// ```
    #[must_use]
    pub const fn schema() -> &'static str {
        SCHEMA
    }
}

debug_fields! { MysqlStore, |store| name = store.server.sql.name() }

/// The ids of a limiter begin with the same 32 bytes.
fn ids(limiter: &str) -> String {
    let limiter = format!("UNHEX(SHA2({}, 256))", hex(limiter.as_bytes()));
    format!("id > {limiter} AND id <= CONCAT({limiter}, UNHEX(REPEAT('ff', 32)))")
}

impl Store for MysqlStore {
    fn name(&self) -> String {
        self.server.sql.name().to_owned()
    }

    fn supports(&self, policy: &Policy) -> Result<(), StoreError> {
        self.server.sql.rules.supports(policy)
    }

    fn call(&self, of: Call) -> StoreFuture<Reply> {
        // The statement runs in a task, because a connection whose answer was not awaited could not be used again.
        in_task(&self.server, |server, awaited| call(server, of, awaited))
    }

    /// Notifies the listener of releases in this process. Returns `false`, because the store does not see releases in other
    /// processes.
    fn listen(&self, limiter: &Arc<str>, listener: ReleaseListener) -> bool {
        self.server.listeners.add(limiter, listener);
        false
    }

    fn keys(&self, limiter: &Arc<str>, from: Option<Vec<u8>>, max: usize) -> StoreFuture<KeyPage> {
        let max = max.max(1);
        let from = from
            .map(|from| format!("AND id > {}", hex(&from)))
            .unwrap_or_default();
        let (ids, limit) = (ids(limiter), rows(max));
        let select = format!(
            "SELECT id, k FROM tollgate_keys WHERE {ids} {from} AND expires > {NOW} ORDER BY id LIMIT {limit}"
        );
        in_task(&self.server, async move |server, _| {
            let found = server.query(&select).await?.rows;
            let keys = found
                .iter()
                .map(|row| Some((value(row, 0)?, value(row, 1)?)));
            let keys = keys
                .collect::<Option<_>>()
                .ok_or_else(|| server.damaged())?;
            Ok(page(keys, max))
        })
    }

    fn reset(&self, scope: Scope) -> StoreFuture<()> {
        in_task(&self.server, async move |server, _| {
            let delete = format!("DELETE FROM tollgate_keys WHERE id = {}", id(&scope));
            server.change(&delete).await?;
            server.listeners.released(&scope.limiter, &scope.key);
            Ok(())
        })
    }

    fn purge(&self, limiter: &Arc<str>, max: usize) -> StoreFuture<u64> {
        let (ids, limit) = (ids(limiter), rows(max));
        let delete = format!(
            "DELETE FROM tollgate_keys WHERE {ids} AND expires <= {NOW} ORDER BY id LIMIT {limit}"
        );
        in_task(&self.server, async move |server, _| {
            Ok(server.change(&delete).await?.changed)
        })
    }
}
