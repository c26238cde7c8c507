//! A store in MariaDB or MySQL.
//!
//! Statements are sent as text, several in a message. Bytes are written as literals of hexadecimal digits.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use mysql_async::prelude::{FromValue, Queryable as _};
use mysql_async::{Conn, Error, Opts, OptsBuilder};
use tokio::time::timeout;

use super::sql::row_cache::KeyRow;
use super::sql::table::{Pool, ReadRow, RowTable, SqlServer, Taken, Write, call, in_task};
use super::sql::{SPARED_MICROS, expires, hex_digits, must_create, page, read_state, rows};
use super::{KeyPage, Listeners, ReleaseListener, Store, StoreFuture};
use crate::error::StoreError;
use crate::exchange::{Call, Reply, Scope};
use crate::policy::Policy;

/// A store in MariaDB 10.3 or later, or MySQL 8. Clones share the store.
///
/// Time is that of the server's clock. A call takes one round trip if no other process has written the key since this process did,
/// or if the call changes nothing, such as a denial; otherwise two. A call of one round trip may be decided as of an instant one
/// round trip earlier: by the clocks of the callers, a span of a rate may be shorter by that. Its leases then end that much later
/// on the server. If several processes write a key at the same time, a call locks the row of the key. The cache of known keys takes
/// 64 MiB at most.
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
    #[cfg(feature = "mysql-tls")]
    root_certificates: Option<Vec<u8>>,
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
            #[cfg(feature = "mysql-tls")]
            root_certificates: None,
        }
    }

    setters! { const:
        /// Whether missing tables are created. Otherwise [`MysqlStore::schema`] must have been run.
        pub create_tables(creates_tables: bool) => creates_tables = creates_tables;

        /// The longest time to make a connection, and to wait for an answer: 5 seconds by default. After that, the connection is
        /// given up, and another one is made. Statements that were sent may still be carried out.
        pub timeout(timeout: Duration) => timeout = timeout;
    }

    /// Trusts the certificates of this PEM text, and not those of the system. The URL must have `require_ssl=true`.
    ///
    /// ```no_run
    /// use tollgate::store::MysqlStoreOptions;
    ///
    /// let authority = std::fs::read("ca.pem")?;
    /// let url = "mysql://limits@db.example/limits?require_ssl=true";
    /// let store = MysqlStoreOptions::new().root_certificates(authority).open(url)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "mysql-tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "mysql-tls")))]
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.root_certificates = Some(pem.into());
        self
    }

    /// A store at this URL, `mysql://user:password@host:port/database`. It does not connect yet.
    ///
    /// With `require_ssl=true` and the feature `mysql-tls`, connections use TLS, and the server's certificate and its host name are
    /// checked.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unreachable`] if the text is not such an address, if it requires TLS without the feature `mysql-tls`, or if there
    /// are no certificates to trust.
    pub fn open(self, url: &str) -> Result<MysqlStore, StoreError> {
        let opts = Opts::from_url(url).map_err(|error| StoreError::unreachable(NAME, error))?;
        let failed = |error: String| StoreError::unreachable(NAME, error);
        #[cfg(feature = "mysql-tls")]
        if let Some(ssl) = opts.ssl_opts().cloned() {
            super::tls::ensure_provider();
            let trusted = super::tls::trusted(self.root_certificates.as_deref()).map_err(failed)?;
            let trusted = trusted.into_iter().map(|root| root.to_vec().into());
            let ssl = ssl
                .with_root_certs(trusted.collect())
                .with_disable_built_in_roots(true);
            let opts = OptsBuilder::from_opts(opts).ssl_opts(Some(ssl));
            return Ok(self.open_with(opts.into()));
        } else if self.root_certificates.is_some() {
            let missing =
                "certificates are given, but TLS is not required: add require_ssl=true to the URL";
            return Err(failed(missing.to_owned()));
        }
        if opts.ssl_opts().is_some() {
            let missing = "require_ssl=true needs the feature mysql-tls of tollgate";
            return Err(failed(missing.to_owned()));
        }
        Ok(self.open_with(opts))
    }

    /// A store with these options of mysql_async. The store does not connect yet.
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
            server.listeners.reset(&scope.limiter, &scope.key);
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

const SCHEMA: &str = include_str!("mysql.sql");

/// Unlike `NOW`, `SYSDATE` is read when it is evaluated. `UNIX_TIMESTAMP` would end in 2038. The time zone is set to UTC, because
/// in other time zones an hour occurs twice a year.
const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))";

/// Gap locks between rows are not needed. On MariaDB, a transaction that is left open because its process was stopped ends by
/// itself: it holds the lock of a row.
const SETTINGS: &str = "SET SESSION time_zone = '+00:00', SESSION innodb_lock_wait_timeout = 10; \
                        SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
                        /*M!100300 SET SESSION idle_transaction_timeout = 5 */";

/// How often a transaction is retried after the server ended it because of a deadlock.
const MAX_DEADLOCKS: u32 = 20;

// Error numbers.
const NO_SUCH_TABLE: u16 = 1146;
const DEADLOCK: u16 = 1213;
/// The server is full or shutting down, or the wait for a lock took too long.
const DOWN: [u16; 6] = [1040, 1053, 1129, 1203, 1205, 1927];
/// A statement was interrupted.
const INTERRUPTED: [u16; 3] = [1053, 1317, 1927];

/// The server of a store, and the connections to it.
struct MysqlServer {
    sql: SqlServer,
    opts: Opts,
    connections: Pool<Conn>,
    listeners: Listeners,
}

/// The answer of the server.
struct QueryAnswer {
    /// The rows of all results.
    rows: Vec<mysql_async::Row>,
    /// The number of rows that the last statement changed.
    changed: u64,
}

impl MysqlServer {
    async fn connection(&self) -> Result<Taken<Conn>, StoreError> {
        let connect = self.sql.connect(self.connect());
        self.connections.take(connect).await
    }

    async fn connect(&self) -> Result<Conn, StoreError> {
        let failed = |error| self.not_done(error);
        let mut conn = Conn::new(self.opts.clone()).await.map_err(failed)?;
        conn.query_drop(SETTINGS).await.map_err(failed)?;
        let version = "SELECT max(version) FROM tollgate_schema";
        let found = match conn.query_first::<Option<i64>, _>(version).await {
            Err(Error::Server(error)) if error.code == NO_SUCH_TABLE => None,
            found => found.map_err(failed)?.flatten(),
        };
        if must_create(self.sql.name(), found, self.sql.creates_tables)? {
            conn.query_drop(SCHEMA).await.map_err(failed)?;
        }
        Ok(conn)
    }

    /// Runs statements. A connection that has not answered in time is broken.
    async fn run(&self, taken: &mut Taken<Conn>, sql: &str) -> Result<QueryAnswer, Error> {
        let answer = async {
            let mut result = taken.connection.query_iter(sql).await?;
            let mut rows = Vec::new();
            while !result.is_empty() {
                rows.extend(result.collect::<mysql_async::Row>().await?);
            }
            let changed = result.affected_rows();
            Ok(QueryAnswer { rows, changed })
        };
        timeout(self.sql.timeout, answer)
            .await
            .unwrap_or_else(|elapsed| Err(io::Error::from(elapsed).into()))
    }

    /// Runs statements that begin or form a transaction. They are run again after a deadlock, or if an idle connection has broken
    /// meanwhile.
    async fn begin(&self, sql: &str) -> Result<(Taken<Conn>, QueryAnswer), StoreError> {
        let mut deadlocks = 0;
        loop {
            let mut taken = self.connection().await?;
            match self.run(&mut taken, sql).await {
                Ok(answer) => return Ok((taken, answer)),
                // The other idle connections were also made before this one broke.
                Err(error) if taken.was_idle && error.is_fatal() => self.connections.clear(),
                Err(error) if is_deadlock(&error) && deadlocks < MAX_DEADLOCKS => {
                    deadlocks += 1;
                    self.connections.put_back(taken);
                }
                Err(error) => return Err(self.not_done(error)),
            }
        }
    }

    /// Runs a statement that changes nothing.
    async fn query(&self, sql: &str) -> Result<QueryAnswer, StoreError> {
        let (taken, answer) = self.begin(sql).await?;
        self.connections.put_back(taken);
        Ok(answer)
    }

    /// Runs a statement that changes something.
    async fn change(&self, sql: &str) -> Result<QueryAnswer, StoreError> {
        self.finish(self.connection().await?, sql).await
    }

    /// Runs a statement that changes something, after which the connection is free.
    async fn finish(&self, mut taken: Taken<Conn>, sql: &str) -> Result<QueryAnswer, StoreError> {
        let answer = self.run(&mut taken, sql).await;
        let answer = answer.map_err(|error| self.unknown(error))?;
        self.connections.put_back(taken);
        Ok(answer)
    }

    /// The error of statements that were not carried out.
    fn not_done(&self, error: Error) -> StoreError {
        match error {
            Error::Server(said) if !DOWN.contains(&said.code) => {
                StoreError::refused(self.sql.name(), said)
            }
            error => StoreError::unreachable(self.sql.name(), error),
        }
    }

    /// The error of statements that may have been carried out. An error in which the server reports that they were not is
    /// reliable.
    fn unknown(&self, error: Error) -> StoreError {
        match error {
            Error::Server(said) if !INTERRUPTED.contains(&said.code) => {
                self.not_done(Error::Server(said))
            }
            error => StoreError::unanswered(self.sql.name(), error),
        }
    }

    fn damaged(&self) -> StoreError {
        StoreError::damaged(self.sql.name(), "tollgate_keys")
    }
}

fn is_deadlock(error: &Error) -> bool {
    matches!(error, Error::Server(error) if error.code == DEADLOCK)
}

impl RowTable for Arc<MysqlServer> {
    type Locked = Taken<Conn>;

    fn sql(&self) -> &SqlServer {
        &self.sql
    }

    async fn read(&self, scope: &Scope) -> Result<ReadRow, StoreError> {
        let id = id(scope);
        let select = format!(
            "SELECT {NOW}, ver, expires, state FROM (SELECT 1) one LEFT JOIN tollgate_keys ON id = {id}"
        );
        let answer = self.query(&select).await?;
        let found = answer.rows.first().and_then(|row| {
            let now = value(row, 0)?;
            let row = read_row(row, 1);
            Some(ReadRow { now, row })
        });
        found.ok_or_else(|| self.damaged())
    }

    async fn swap(&self, write: &Write) -> Result<Option<i64>, StoreError> {
        let mut taken = self.connection().await?;
        let sql = format!("SELECT {NOW}; {}", write_sql(write));
        let answer = match self.run(&mut taken, &sql).await {
            Err(error) if is_deadlock(&error) => return Ok(None),
            answer => answer.map_err(|error| self.unknown(error))?,
        };
        self.connections.put_back(taken);
        if answer.changed != 1 {
            return Ok(None);
        }
        let now = answer.rows.first().and_then(|row| value(row, 0));
        let strange = || StoreError::unanswered(self.sql.name(), "the answer has no clock");
        now.map(Some).ok_or_else(strange)
    }

    /// If there is no row, one is inserted first, which locks it. Selecting a missing row would lock nothing.
    async fn lock(
        &self,
        scope: &Scope,
        version: i64,
    ) -> Result<(Self::Locked, ReadRow), StoreError> {
        let id = id(scope);
        let (limiter, key) = (hex(scope.limiter.as_bytes()), hex(&scope.key));
        let sql = format!(
            "START TRANSACTION; \
             INSERT INTO tollgate_keys (id, limiter, k, ver, expires, state) VALUES ({id}, {limiter}, {key}, {version}, 0, '') \
             ON DUPLICATE KEY UPDATE ver = tollgate_keys.ver; \
             SELECT ver, expires, state FROM tollgate_keys WHERE id = {id} FOR UPDATE; \
             SELECT {NOW}"
        );
        let (taken, answer) = self.begin(&sql).await?;
        let found = match &answer.rows[..] {
            [row, now] => value(now, 0).map(|now| ReadRow {
                now,
                row: read_row(row, 0),
            }),
            _ => None,
        };
        Ok((taken, found.ok_or_else(|| self.damaged())?))
    }

    async fn unlock(&self, locked: Self::Locked, write: Option<&Write>) -> Result<(), StoreError> {
        let sql = match write {
            None => "ROLLBACK".to_owned(),
            Some(write) => format!("{}; COMMIT", write_sql(write)),
        };
        self.finish(locked, &sql).await.map(drop)
    }

    fn wrote(&self, write: &Write) {
        let Scope { limiter, key } = &write.scope;
        self.listeners.turns(limiter, key, &write.turns, write.next);
    }

    async fn purge_some(&self, after: &[u8], rows: u32) -> Result<Vec<u8>, StoreError> {
        let from = hex(after);
        let next = self
            .query(&format!(
                "SELECT id FROM tollgate_keys WHERE id > {from} ORDER BY id LIMIT 1 OFFSET {rows}"
            ))
            .await?;
        let until: Option<Vec<u8>> = next.rows.first().and_then(|row| value(row, 0));
        let end = until
            .as_ref()
            .map(|until| format!("AND id <= {}", hex(until)))
            .unwrap_or_default();
        self.change(&format!(
            "DELETE FROM tollgate_keys WHERE id > {from} {end} AND expires <= {NOW} - {SPARED_MICROS} ORDER BY id"
        ))
        .await?;
        Ok(until.unwrap_or_default())
    }
}

/// The statement that writes a row. It changes no row if the version differs.
fn write_sql(write: &Write) -> String {
    let Write {
        scope,
        version,
        row: KeyRow {
            version: next_version,
            state,
        },
        valid_until,
        ..
    } = write;
    let (id, expires, state) = (id(scope), expires(state), hex(&state.bytes));
    let in_time = valid_until
        .map(|until| format!("AND {NOW} < {until}"))
        .unwrap_or_default();
    match version {
        Some(version) => format!(
            "UPDATE tollgate_keys SET ver = {next_version}, expires = {expires}, state = {state} \
             WHERE id = {id} AND ver = {version} {in_time}"
        ),
        None => {
            let (limiter, key) = (hex(scope.limiter.as_bytes()), hex(&scope.key));
            format!(
                "INSERT INTO tollgate_keys (id, limiter, k, ver, expires, state) \
                 SELECT {id}, {limiter}, {key}, {next_version}, {expires}, {state} FROM DUAL WHERE TRUE {in_time} \
                 ON DUPLICATE KEY UPDATE ver = tollgate_keys.ver"
            )
        }
    }
}

fn id(scope: &Scope) -> String {
    format!(
        "CONCAT(UNHEX(SHA2({}, 256)), UNHEX(SHA2({}, 256)))",
        hex(scope.limiter.as_bytes()),
        hex(&scope.key)
    )
}

/// A literal of bytes.
fn hex(bytes: &[u8]) -> String {
    format!("x'{}'", hex_digits(bytes))
}

/// The version, the expiry and the state from this column on; `None` if there is no row.
fn read_row(row: &mysql_async::Row, from: usize) -> Option<KeyRow> {
    Some(KeyRow {
        version: value(row, from)?,
        state: read_state(value(row, from + 1)?, value(row, from + 2)?),
    })
}

/// The value in this column. `None` if it is NULL, or of another type.
fn value<T: FromValue>(row: &mysql_async::Row, column: usize) -> Option<T> {
    row.get_opt(column)?.ok()
}
