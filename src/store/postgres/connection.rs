//! A connection to PostgreSQL with the statements of a store.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_core::Stream;
use futures_util::future::{try_join, try_join3, try_join4};
use futures_util::stream::StreamExt as _;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Error, Statement};

use super::super::sql::row_cache::KeyRow;
use super::super::sql::table::{ReadRow, SqlServer, Write};
use super::super::sql::{expires, must_create, read_state};
use super::messages::message;
use crate::error::StoreError;
use crate::exchange::Scope;
use crate::lock::Lock;

pub(super) const SCHEMA: &str = include_str!("../postgres.sql");

/// Two processes that create tables at the same time get in each other's way, in spite of `IF NOT EXISTS`.
const SCHEMA_LOCK: &str = "SELECT pg_advisory_xact_lock(7166201905337)";

/// A transaction that is left open, because its process was stopped, ends by itself: it holds the lock of a row.
const SETTINGS: &str = "SET idle_in_transaction_session_timeout = '5s'; SET lock_timeout = '10s'";

pub(super) type Messages = Pin<Box<dyn Stream<Item = Result<AsyncMessage, Error>> + Send>>;
/// Makes a connection: its client, and the messages, which must be read.
type Connecting = Pin<Box<dyn Future<Output = Result<(Client, Messages), Error>> + Send>>;
pub(super) type Connector = Arc<dyn Fn() -> Connecting + Send + Sync>;

#[derive(Debug)]
pub(super) struct PostgresConnection {
    pub(super) client: Client,
    /// Reads the messages. The connection ends with it.
    reader: AbortHandle,
    timeout: Duration,
    /// Since when a statement has had no answer. Its caller may have given up.
    silent_since: Lock<Option<Instant>>,
    read: Statement,
    update: Statement,
    insert: Statement,
    claim: Statement,
    lock: Statement,
    now: Statement,
}

const ID: &str = "sha256($1) || sha256($2)";
const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::int8";
/// A row if something was `done`, with the clock, and a message, if one is given.
const DONE: &str = "SELECT now, CASE WHEN $7::text IS NULL THEN '' ELSE pg_notify('tollgate', $7)::text END FROM done";

impl PostgresConnection {
    /// Its messages are read by a task in this runtime.
    pub(super) async fn open(sql: &SqlServer, connector: &Connector) -> Result<Self, StoreError> {
        let connects = async {
            let (client, mut messages) = connector().await?;
            let reads = async move { while let Some(Ok(_)) = messages.next().await {} };
            let reader = tokio::spawn(reads).abort_handle();
            client.batch_execute(SETTINGS).await?;
            let version = "SELECT max(version) FROM tollgate_schema";
            let found = match client.query_one(version, &[]).await {
                Err(error) if error.code() == Some(&SqlState::UNDEFINED_TABLE) => None,
                found => found?.get(0),
            };
            Ok((client, reader, found))
        };
        let connected = connects.await.map_err(not_done(sql.name()));
        let (client, reader, found) = connected?;
        let creates = must_create(sql.name(), found, sql.creates_tables)?;
        let prepares = async {
            if creates {
                let schema = format!("{SCHEMA_LOCK}; {SCHEMA}");
                client.batch_execute(&schema).await?;
            }
            Self::prepare(client, reader, sql.timeout).await
        };
        prepares.await.map_err(not_done(sql.name()))
    }

    async fn prepare(
        client: Client,
        reader: AbortHandle,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let in_time = format!("($6::int8 IS NULL OR {NOW} < $6)");
        let sql = [
            format!(
                "SELECT {NOW}, ver, expires, state FROM (SELECT 1) one LEFT JOIN tollgate_keys ON id = {ID}"
            ),
            format!(
                "WITH done AS (UPDATE tollgate_keys SET ver = $3, expires = $4, state = $5 WHERE id = {ID} AND ver = $8 \
                 AND ($9::bytea IS NULL OR (state = $9 AND expires = $10)) AND {in_time} RETURNING {NOW} AS now) {DONE}"
            ),
            format!(
                "WITH done AS (INSERT INTO tollgate_keys (id, limiter, k, ver, expires, state) \
                 SELECT {ID}, $1, $2, $3::int8, $4::int8, $5::bytea WHERE {in_time} ON CONFLICT (id) DO NOTHING RETURNING {NOW} AS now) {DONE}"
            ),
            format!(
                "INSERT INTO tollgate_keys (id, limiter, k, ver, expires, state) VALUES ({ID}, $1, $2, $3, 0, '') \
                 ON CONFLICT (id) DO NOTHING"
            ),
            format!("SELECT ver, expires, state FROM tollgate_keys WHERE id = {ID} FOR UPDATE"),
            format!("SELECT {NOW}"),
        ];
        let [read, update, insert, claim, lock, now] =
            sql.each_ref().map(|sql| client.prepare(sql));
        let (read, update, insert) = try_join3(read, update, insert).await?;
        let (claim, lock, now) = try_join3(claim, lock, now).await?;
        Ok(Self {
            client,
            reader,
            timeout,
            silent_since: Lock::default(),
            read,
            update,
            insert,
            claim,
            lock,
            now,
        })
    }

    /// Whether the connection has ended, or does not answer and must be given up.
    pub(super) fn is_dead(&self) -> bool {
        let is_dead = self.client.is_closed()
            || self
                .silent_since
                .lock()
                .is_some_and(|since| since.elapsed() > self.timeout);
        if is_dead {
            self.reader.abort();
        }
        is_dead
    }

    /// Awaits an answer. A connection is given up that has not answered in time, and one to a server that only reads: another server
    /// may have its place by now.
    async fn answered<T>(
        &self,
        question: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        self.silent_since.lock().get_or_insert_with(Instant::now);
        let mut question = pin!(question);
        match timeout(self.timeout, &mut question).await {
            Ok(answer) => {
                *self.silent_since.lock() = None;
                if answer
                    .as_ref()
                    .is_err_and(|error| error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION))
                {
                    self.reader.abort();
                }
                answer
            }
            Err(_) => {
                self.reader.abort();
                question.await // it fails, because the connection has ended
            }
        }
    }

    pub(super) async fn query(
        &self,
        sql: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<tokio_postgres::Row>, Error> {
        self.answered(self.client.query(sql, values)).await
    }

    /// Returns how many rows it has changed.
    pub(super) async fn execute(
        &self,
        sql: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, Error> {
        self.answered(self.client.execute(sql, values)).await
    }

    pub(super) async fn read(&self, scope: &Scope) -> Result<ReadRow, Error> {
        let id: [&(dyn ToSql + Sync); 2] = [&scope.limiter.as_bytes(), &&scope.key[..]];
        let reads = self.client.query_one(&self.read, &id);
        let row = self.answered(reads).await?;
        let now = row.try_get(0)?;
        let found = match row.try_get::<_, Option<i64>>(1)? {
            None => None,
            Some(version) => Some(KeyRow {
                version,
                state: read_state(row.try_get(2)?, row.try_get(3)?),
            }),
        };
        Ok(ReadRow { now, row: found })
    }

    /// Returns the clock if the row had the version.
    pub(super) async fn write(&self, write: &Write) -> Result<Option<i64>, Error> {
        let KeyRow { version, state } = &write.row;
        let message = message(&write.scope, Some(&write.row)).filter(|_| write.released);
        let (limiter, key) = (write.scope.limiter.as_bytes(), &write.scope.key[..]);
        let from_notify = write.from_notify.as_ref();
        let announced = from_notify.map(|state| &state.bytes);
        let announced_expires = from_notify.map(expires);
        let expires = expires(state);
        let mut values: Vec<&(dyn ToSql + Sync)> = vec![
            &limiter,
            &key,
            version,
            &expires,
            &state.bytes,
            &write.valid_until,
            &message,
        ];
        let statement = match &write.version {
            Some(former) => {
                values.extend([
                    former as &(dyn ToSql + Sync),
                    &announced,
                    &announced_expires,
                ]);
                &self.update
            }
            None => &self.insert,
        };
        let done = self
            .answered(self.client.query_opt(statement, &values))
            .await?;
        done.map(|done| done.try_get(0)).transpose()
    }

    /// Deletes the row, and announces that.
    pub(super) async fn reset(&self, scope: &Scope) -> Result<(), Error> {
        let delete = format!("DELETE FROM tollgate_keys WHERE id = {ID}");
        self.execute(&delete, &[&scope.limiter.as_bytes(), &&scope.key[..]])
            .await?;
        if let Some(message) = message(scope, None) {
            self.execute("SELECT pg_notify('tollgate', $1)", &[&message])
                .await?;
        }
        Ok(())
    }

    /// Begins a transaction, and locks the row, which is made if there is none. All of it is sent at once. `None`: the row that there was
    /// has been deleted meanwhile.
    pub(super) async fn lock(&self, scope: &Scope, version: i64) -> Result<Option<ReadRow>, Error> {
        let (limiter, key) = (scope.limiter.as_bytes(), &scope.key[..]);
        let id: [&(dyn ToSql + Sync); 2] = [&limiter, &key];
        let claimed: [&(dyn ToSql + Sync); 3] = [&limiter, &key, &version];
        let locks = try_join4(
            self.client
                .batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED"),
            self.client.execute(&self.claim, &claimed),
            self.client.query_opt(&self.lock, &id),
            // Written beside FOR UPDATE, the clock would be read before the lock is waited for.
            self.client.query_one(&self.now, &[]),
        );
        let (_, _, row, now) = self.answered(locks).await?;
        let Some(row) = row else { return Ok(None) };
        let found = KeyRow {
            version: row.try_get(0)?,
            state: read_state(row.try_get(1)?, row.try_get(2)?),
        };
        Ok(Some(ReadRow {
            now: now.try_get(0)?,
            row: Some(found),
        }))
    }

    /// Writes the locked row, and ends the transaction.
    pub(super) async fn unlock(&self, write: Option<&Write>) -> Result<(), Error> {
        match write {
            None => self.answered(self.client.batch_execute("ROLLBACK")).await,
            Some(write) => {
                let commits = self.client.batch_execute("COMMIT");
                let done = self.answered(try_join(self.write(write), commits)).await;
                done.map(drop)
            }
        }
    }
}

/// The error of something that was not carried out.
pub(super) fn not_done(store: &str) -> impl Fn(Error) -> StoreError {
    |error| {
        let is_down = error.as_db_error().is_none_or(|error| {
            let code = error.code();
            says_down(code)
                || [
                    &SqlState::TOO_MANY_CONNECTIONS,
                    &SqlState::LOCK_NOT_AVAILABLE,
                ]
                .contains(&code)
        });
        if is_down {
            StoreError::unreachable(store, error)
        } else {
            StoreError::refused(store, error)
        }
    }
}

/// The error of something that may have been carried out. If the server says that it was not, that is reliable.
pub(super) fn unknown(store: &str) -> impl Fn(Error) -> StoreError {
    |error| match error.as_db_error() {
        Some(said) if !says_down(said.code()) => not_done(store)(error),
        _ => StoreError::unanswered(store, error),
    }
}

/// The class 57, "operator intervention": shutting down, starting up.
fn says_down(code: &SqlState) -> bool {
    code.code().starts_with("57P")
}
