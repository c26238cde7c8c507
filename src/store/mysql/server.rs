//! The server of a store, and the connections to it.
//!
//! Statements are sent as text, several in a message, with all that is not a number in hexadecimal digits.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Error, Opts, Value};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::super::KeyState;
use super::super::listeners::Listeners;
use super::super::sql::known::Known;
use super::super::sql::table::{Found, PURGED_EVERY, Purge, Table, Write};
use super::super::sql::{Policies, SCHEMA_VERSION, SPARED_MICROS, expires, hex_digits, read_state};
use crate::error::{Cause, StoreError};
use crate::exchange::Scope;

pub(super) const SCHEMA: &str = include_str!("../mysql.sql");

/// Unlike `NOW`, `SYSDATE` is read when it is evaluated. `UNIX_TIMESTAMP` would end in 2038. The time zone is set to UTC: in another
/// one, an hour comes twice a year.
pub(super) const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))";

/// Locks of gaps between rows are of no use here. A transaction that is left open, because its process was stopped, ends by itself
/// on MariaDB: it holds the lock of a row.
const SETTINGS: &str = "SET SESSION time_zone = '+00:00', SESSION innodb_lock_wait_timeout = 10; \
                        SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
                        /*M!100300 SET SESSION idle_transaction_timeout = 5 */";

/// How often a transaction is tried that the server ends because of a deadlock.
const MAX_DEADLOCKS: u32 = 20;

// Numbers of errors.
const NO_SUCH_TABLE: u16 = 1146;
const DEADLOCK: u16 = 1213;
/// The server is full or going down, or a lock was waited for too long.
const DOWN: [u16; 6] = [1040, 1053, 1129, 1203, 1205, 1927];
/// A statement was interrupted.
const INTERRUPTED: [u16; 3] = [1053, 1317, 1927];

pub(super) struct Server {
    pub(super) name: String,
    pub(super) opts: Opts,
    pub(super) creates_tables: bool,
    /// For a connection, and for an answer.
    pub(super) timeout: Duration,
    pub(super) idle: Mutex<Vec<Conn>>,
    pub(super) connections: Arc<Semaphore>,
    pub(super) policies: Policies,
    pub(super) known: Known,
    pub(super) listeners: Listeners,
    pub(super) purge: Purge,
}

/// What the server says.
pub(super) struct Answer {
    /// Of all results.
    pub(super) rows: Vec<mysql_async::Row>,
    /// The rows that the last statement has changed.
    pub(super) changed: u64,
}

/// A connection that nobody else uses.
pub(super) struct Connection {
    conn: Conn,
    /// Whether it has been used before: the server may have closed it.
    was_idle: bool,
    timeout: Duration,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    /// One that has not answered in time is broken.
    async fn run(&mut self, sql: &str) -> Result<Answer, Error> {
        let answer = async {
            let mut result = self.conn.query_iter(sql).await?;
            let mut rows = Vec::new();
            while !result.is_empty() {
                rows.extend(result.collect::<mysql_async::Row>().await?);
            }
            Ok(Answer { rows, changed: result.affected_rows() })
        };
        timeout(self.timeout, answer).await.unwrap_or_else(|elapsed| Err(io::Error::from(elapsed).into()))
    }
}

impl Server {
    async fn connection(&self) -> Result<Connection, StoreError> {
        let permit = Arc::clone(&self.connections).acquire_owned().await;
        let permit = permit.map_err(|error| self.unreachable(error))?;
        let idle = self.idle().pop();
        let was_idle = idle.is_some();
        let conn = match idle {
            Some(conn) => conn,
            None => {
                let connecting = timeout(self.timeout, self.connect()).await;
                connecting.map_err(|error| self.unreachable(error))??
            }
        };
        Ok(Connection { conn, was_idle, timeout: self.timeout, _permit: permit })
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Conn>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put_back(&self, connection: Connection) {
        self.idle().push(connection.conn);
    }

    async fn connect(&self) -> Result<Conn, StoreError> {
        self.known.forget_clock();
        let mut conn = Conn::new(self.opts.clone()).await.map_err(|error| self.not_done(error))?;
        conn.query_drop(SETTINGS).await.map_err(|error| self.not_done(error))?;
        let found = match conn.query_first::<Option<i64>, _>("SELECT max(version) FROM tollgate_schema").await {
            Err(Error::Server(error)) if error.code == NO_SUCH_TABLE && self.creates_tables => None,
            found => found.map_err(|error| self.not_done(error))?.flatten(),
        };
        match found {
            Some(found) if found > SCHEMA_VERSION => {
                Err(StoreError::NewerSchema { store: self.name.clone(), found, known: SCHEMA_VERSION })
            }
            None if self.creates_tables => conn.query_drop(SCHEMA).await.map(|()| conn).map_err(|error| self.not_done(error)),
            _ => Ok(conn),
        }
    }

    /// Runs what begins or is a transaction, and may be run again if the connection has broken in the meantime, or in a deadlock.
    async fn begin(&self, sql: &str) -> Result<(Connection, Answer), StoreError> {
        let mut deadlocks = 0;
        loop {
            let mut connection = self.connection().await?;
            match connection.run(sql).await {
                Ok(answer) => return Ok((connection, answer)),
                // The others that are idle are from before, too.
                Err(error) if connection.was_idle && error.is_fatal() => self.idle().clear(),
                Err(error) if is_deadlock(&error) && deadlocks < MAX_DEADLOCKS => {
                    deadlocks += 1;
                    self.put_back(connection);
                }
                Err(error) => return Err(self.not_done(error)),
            }
        }
    }

    /// Asks something that changes nothing.
    pub(super) async fn ask(&self, sql: &str) -> Result<Answer, StoreError> {
        let (connection, answer) = self.begin(sql).await?;
        self.put_back(connection);
        Ok(answer)
    }

    /// Has the server do something.
    pub(super) async fn tell(&self, sql: &str) -> Result<Answer, StoreError> {
        let mut connection = self.connection().await?;
        let answer = connection.run(sql).await.map_err(|error| self.unknown(error))?;
        self.put_back(connection);
        Ok(answer)
    }

    /// Deletes what has expired among the next rows of the table.
    pub(super) async fn purge_some(&self) -> Result<(), StoreError> {
        let Ok(mut after) = self.purge.after.try_lock() else { return Ok(()) };
        let (from, among) = (hex(&after), 2 * PURGED_EVERY);
        let next =
            self.ask(&format!("SELECT id FROM tollgate_keys WHERE id > {from} ORDER BY id LIMIT 1 OFFSET {among}")).await?;
        let until = next.rows.first().and_then(|row| bytes(row, 0));
        let end = until.as_ref().map(|until| format!("AND id <= {}", hex(until))).unwrap_or_default();
        self.tell(&format!(
            "DELETE FROM tollgate_keys WHERE id > {from} {end} AND expires <= {NOW} - {SPARED_MICROS} ORDER BY id"
        ))
        .await?;
        *after = until.unwrap_or_default();
        Ok(())
    }

    /// The error of something that was not carried out.
    fn not_done(&self, error: Error) -> StoreError {
        match error {
            Error::Server(said) if !DOWN.contains(&said.code) => {
                StoreError::Refused { store: self.name.clone(), source: Cause::new(said) }
            }
            error => self.unreachable(error),
        }
    }

    fn unreachable(&self, error: impl std::error::Error + Send + Sync + 'static) -> StoreError {
        StoreError::Unreachable { store: self.name.clone(), source: Cause::new(error) }
    }

    /// The error of something that may have been carried out. The server has not if it says so.
    fn unknown(&self, error: Error) -> StoreError {
        match error {
            Error::Server(said) if !INTERRUPTED.contains(&said.code) => self.not_done(Error::Server(said)),
            error => StoreError::Unanswered { store: self.name.clone(), after: None, source: Some(Cause::new(error)) },
        }
    }

    fn tell_listeners(&self, write: &Write) {
        if write.released {
            self.listeners.released(&write.scope.limiter, &write.scope.key);
        }
    }

    pub(super) fn damaged(&self, at: &str) -> StoreError {
        StoreError::Damaged { store: self.name.clone(), at: at.to_owned() }
    }
}

fn is_deadlock(error: &Error) -> bool {
    matches!(error, Error::Server(error) if error.code == DEADLOCK)
}

impl Table for Arc<Server> {
    type Locked = Connection;

    fn name(&self) -> &str {
        &self.name
    }

    fn policies(&self) -> &Policies {
        &self.policies
    }

    fn known(&self) -> &Known {
        &self.known
    }

    async fn read(&self, scope: &Scope) -> Result<Found, StoreError> {
        let id = id(scope);
        let select = format!("SELECT {NOW}, ver, expires, state FROM (SELECT 1) one LEFT JOIN tollgate_keys ON id = {id}");
        let answer = self.ask(&select).await?;
        let found = answer.rows.first().and_then(|row| Some(Found { now: number(row, 0)?, row: read_row(row, 1) }));
        found.ok_or_else(|| self.damaged("tollgate_keys"))
    }

    async fn swap(&self, write: &Write) -> Result<Option<i64>, StoreError> {
        let mut connection = self.connection().await?;
        let answer = match connection.run(&format!("SELECT {NOW}; {}", write_sql(write))).await {
            Err(error) if is_deadlock(&error) => return Ok(None),
            answer => answer.map_err(|error| self.unknown(error))?,
        };
        self.put_back(connection);
        if answer.changed != 1 {
            return Ok(None);
        }
        self.tell_listeners(write);
        let unanswered = StoreError::Unanswered { store: self.name.clone(), after: None, source: None };
        answer.rows.first().and_then(|row| number(row, 0)).map(Some).ok_or(unanswered)
    }

    /// The row is made first, if there is none, which locks it. To look for it first would lock nothing.
    async fn lock(&self, scope: &Scope, version: i64) -> Result<(Connection, Found), StoreError> {
        let id = id(scope);
        let (limiter, key) = (hex(scope.limiter.as_bytes()), hex(&scope.key));
        let (connection, answer) = self
            .begin(&format!(
                "START TRANSACTION; \
                 INSERT INTO tollgate_keys (id, limiter, k, ver, expires, state) VALUES ({id}, {limiter}, {key}, {version}, 0, '') \
                 ON DUPLICATE KEY UPDATE ver = tollgate_keys.ver; \
                 SELECT ver, expires, state FROM tollgate_keys WHERE id = {id} FOR UPDATE; \
                 SELECT {NOW}"
            ))
            .await?;
        let found = match &answer.rows[..] {
            [row, now] => number(now, 0).map(|now| Found { now, row: read_row(row, 0) }),
            _ => None,
        };
        Ok((connection, found.ok_or_else(|| self.damaged("tollgate_keys"))?))
    }

    async fn unlock(&self, mut connection: Connection, write: Option<&Write>) -> Result<(), StoreError> {
        let Some(write) = write else {
            connection.run("ROLLBACK").await.map_err(|error| self.unknown(error))?;
            self.put_back(connection);
            return Ok(());
        };
        connection.run(&format!("{}; COMMIT", write_sql(write))).await.map_err(|error| self.unknown(error))?;
        self.put_back(connection);
        self.tell_listeners(write);
        Ok(())
    }
}

/// It changes one row, or none if that has not the version.
fn write_sql(write: &Write) -> String {
    let Write { scope, version, next_version, row, valid_until, .. } = write;
    let (id, expires, state) = (id(scope), expires(row), hex(&row.bytes));
    let in_time = valid_until.map(|until| format!("AND {NOW} < {until}")).unwrap_or_default();
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

pub(super) fn id(scope: &Scope) -> String {
    format!("CONCAT(UNHEX(SHA2({}, 256)), UNHEX(SHA2({}, 256)))", hex(scope.limiter.as_bytes()), hex(&scope.key))
}

/// A literal of bytes.
pub(super) fn hex(bytes: &[u8]) -> String {
    format!("x'{}'", hex_digits(bytes))
}

/// The version, the expiry and the state from this column on; `None` if there is no row.
fn read_row(row: &mysql_async::Row, from: usize) -> Option<(i64, KeyState)> {
    Some((number(row, from)?, read_state(number(row, from + 1)?, bytes(row, from + 2)?)))
}

fn number(row: &mysql_async::Row, column: usize) -> Option<i64> {
    row.get_opt(column)?.ok()
}

pub(super) fn bytes(row: &mysql_async::Row, column: usize) -> Option<Vec<u8>> {
    match row.as_ref(column)? {
        Value::Bytes(bytes) => Some(bytes.clone()),
        _ => None,
    }
}
