//! A connection to PostgreSQL with the statements of a store.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_core::Stream;
use futures_util::future::{try_join, try_join3, try_join4};
use futures_util::stream::{StreamExt as _, poll_fn};
use tokio::task::AbortHandle;
use tokio::time::error::Elapsed;
use tokio::time::timeout;
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Config, Error, Socket, Statement};

use super::super::sql::table::{Found, Write};
use super::super::sql::{SCHEMA_VERSION, expires, hex_digits, read_state};
use crate::exchange::Scope;
use crate::store::KeyState;

pub(super) const SCHEMA: &str = include_str!("../postgres.sql");

/// Two processes that create tables at the same time get in each other's way, in spite of `IF NOT EXISTS`.
const SCHEMA_LOCK: &str = "SELECT pg_advisory_xact_lock(7166201905337)";

/// A transaction that is left open, because its process was stopped, ends by itself: it holds the lock of a row.
const SETTINGS: &str = "SET idle_in_transaction_session_timeout = '5s'; SET lock_timeout = '10s'";

/// Where releases are announced.
pub(super) const CHANNEL: &str = "tollgate";

/// A longer message is not taken by PostgreSQL.
const MAX_MESSAGE: usize = 7_999;

pub(super) type Messages = Pin<Box<dyn Stream<Item = Result<AsyncMessage, Error>> + Send>>;
pub(super) type Connecting = Pin<Box<dyn Future<Output = Result<(Client, Messages), Error>> + Send>>;
pub(super) type Connector = Box<dyn Fn() -> Connecting + Send + Sync>;

pub(super) fn connector<T>(config: Config, tls: T) -> Connector
where
    T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
    T::Stream: Send,
    T::TlsConnect: Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    Box::new(move || {
        let (config, tls) = (config.clone(), tls.clone());
        Box::pin(async move {
            let (client, mut connection) = config.connect(tls).await?;
            Ok((client, Box::pin(poll_fn(move |context| connection.poll_message(context))) as Messages))
        })
    })
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) client: Client,
    /// Reads the messages. The connection ends with it.
    reader: AbortHandle,
    timeout: Duration,
    /// Since when nothing was answered, although something was asked. Whoever asked may have given up.
    silent_since: Mutex<Option<Instant>>,
    read: Statement,
    update: Statement,
    insert: Statement,
    claim: Statement,
    lock: Statement,
    now: Statement,
}

/// Why there is no connection.
pub(super) enum Refusal {
    Failed(Error),
    NoAnswer(Elapsed),
    NewerSchema(i64),
    NoTables,
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

const ID: &str = "sha256($1) || sha256($2)";
const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::int8";
/// A row if something was `done`, with the clock, and a message, if one is given.
const DONE: &str = "SELECT now, CASE WHEN $7::text IS NULL THEN '' ELSE pg_notify('tollgate', $7)::text END FROM done";

impl Connection {
    /// Its messages are read by a task in this runtime. It is given up if it does not answer for as long as the timeout.
    pub(super) async fn open(connector: &Connector, creates_tables: bool, timeout: Duration) -> Result<Self, Refusal> {
        let (client, mut messages) = connector().await?;
        let reader = tokio::spawn(async move { while let Some(Ok(_)) = messages.next().await {} }).abort_handle();
        client.batch_execute(SETTINGS).await?;
        let exists = client.query_one("SELECT to_regclass('tollgate_schema') IS NOT NULL", &[]).await?;
        match exists.get(0) {
            false if creates_tables => client.batch_execute(&format!("{SCHEMA_LOCK}; {SCHEMA}")).await?,
            false => return Err(Refusal::NoTables),
            true => {
                let found = client.query_one("SELECT coalesce(max(version), 0) FROM tollgate_schema", &[]).await?.get(0);
                if found > SCHEMA_VERSION {
                    return Err(Refusal::NewerSchema(found));
                }
            }
        }
        let in_time = format!("($6::int8 IS NULL OR {NOW} < $6)");
        let sql = [
            format!("SELECT {NOW}, ver, expires, state FROM (SELECT 1) one LEFT JOIN tollgate_keys ON id = {ID}"),
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
        let [read, update, insert, claim, lock, now] = sql.each_ref().map(|sql| client.prepare(sql));
        let (read, update, insert) = try_join3(read, update, insert).await?;
        let (claim, lock, now) = try_join3(claim, lock, now).await?;
        let silent_since = Mutex::default();
        Ok(Self { client, reader, timeout, silent_since, read, update, insert, claim, lock, now })
    }

    fn silent_since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.silent_since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it has ended, or is to be given up: it does not answer.
    pub(super) fn is_dead(&self) -> bool {
        let is_dead = self.client.is_closed() || self.silent_since().is_some_and(|since| since.elapsed() > self.timeout);
        if is_dead {
            self.reader.abort();
        }
        is_dead
    }

    /// Awaits an answer. A connection is given up that has not answered in time, and one to a server that only reads: another server
    /// may have its place by now.
    async fn answered<T>(&self, question: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        self.silent_since().get_or_insert_with(Instant::now);
        let mut question = pin!(question);
        match timeout(self.timeout, &mut question).await {
            Ok(answer) => {
                *self.silent_since() = None;
                if answer.as_ref().is_err_and(|error| error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION)) {
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

    pub(super) async fn query(&self, sql: &str, values: &[&(dyn ToSql + Sync)]) -> Result<Vec<tokio_postgres::Row>, Error> {
        self.answered(self.client.query(sql, values)).await
    }

    /// Returns how many rows it has changed.
    pub(super) async fn execute(&self, sql: &str, values: &[&(dyn ToSql + Sync)]) -> Result<u64, Error> {
        self.answered(self.client.execute(sql, values)).await
    }

    pub(super) async fn read(&self, scope: &Scope) -> Result<Found, Error> {
        let (limiter, key) = (scope.limiter.as_bytes(), &scope.key[..]);
        let row = self.answered(self.client.query_one(&self.read, &[&limiter, &key])).await?;
        let version: Option<i64> = row.try_get(1)?;
        let found = match version {
            None => None,
            Some(version) => Some((version, read_state(row.try_get(2)?, row.try_get(3)?))),
        };
        Ok(Found { now: row.try_get(0)?, row: found })
    }

    /// Returns the clock if the row had the version.
    pub(super) async fn write(&self, write: &Write) -> Result<Option<i64>, Error> {
        let Write { scope, version, told, next_version, row, valid_until, released } = write;
        let message = if *released { message(scope, Some((*next_version, row))) } else { None };
        let (limiter, key) = (scope.limiter.as_bytes(), &scope.key[..]);
        let (expires, state) = (expires(row), &row.bytes);
        let of: [&(dyn ToSql + Sync); 7] = [&limiter, &key, next_version, &expires, state, valid_until, &message];
        let done = match version {
            Some(version) => {
                let [limiter, key, next_version, expires, state, valid_until, message] = of;
                let (told, told_expires) = (told.as_ref().map(|told| &told.bytes), told.as_ref().map(self::expires));
                let of = [limiter, key, next_version, expires, state, valid_until, message, version, &told, &told_expires];
                self.answered(self.client.query_opt(&self.update, &of)).await?
            }
            None => self.answered(self.client.query_opt(&self.insert, &of)).await?,
        };
        done.map(|done| done.try_get(0)).transpose()
    }

    /// Deletes the row, and announces that.
    pub(super) async fn reset(&self, scope: &Scope) -> Result<(), Error> {
        let delete = format!("DELETE FROM tollgate_keys WHERE id = {ID}");
        self.execute(&delete, &[&scope.limiter.as_bytes(), &&scope.key[..]]).await?;
        if let Some(message) = message(scope, None) {
            self.execute("SELECT pg_notify('tollgate', $1)", &[&message]).await?;
        }
        Ok(())
    }

    /// Begins a transaction, and locks the row, which is made if there is none. All of it is sent at once. `None`: the row that there was
    /// has been deleted meanwhile.
    pub(super) async fn lock(&self, scope: &Scope, version: i64) -> Result<Option<Found>, Error> {
        let (limiter, key) = (scope.limiter.as_bytes(), &scope.key[..]);
        let id: [&(dyn ToSql + Sync); 2] = [&limiter, &key];
        let claimed: [&(dyn ToSql + Sync); 3] = [&limiter, &key, &version];
        let locks = try_join4(
            self.client.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED"),
            self.client.execute(&self.claim, &claimed),
            self.client.query_opt(&self.lock, &id),
            // Written beside FOR UPDATE, the clock would be read before the lock is waited for.
            self.client.query_one(&self.now, &[]),
        );
        let (_, _, row, now) = self.answered(locks).await?;
        let Some(row) = row else { return Ok(None) };
        let found = (row.try_get(0)?, read_state(row.try_get(1)?, row.try_get(2)?));
        Ok(Some(Found { now: now.try_get(0)?, row: Some(found) }))
    }

    /// Writes the locked row, and ends the transaction.
    pub(super) async fn unlock(&self, write: Option<&Write>) -> Result<(), Error> {
        match write {
            None => self.answered(self.client.batch_execute("ROLLBACK")).await,
            Some(write) => self.answered(try_join(self.write(write), self.client.batch_execute("COMMIT"))).await.map(drop),
        }
    }
}

/// What is told of a release.
#[derive(Debug, PartialEq)]
pub(super) struct Message {
    pub(super) scope: Scope,
    /// What was written, with its version.
    pub(super) written: Option<(i64, KeyState)>,
}

/// The limiter and the key in hexadecimal digits, and the row, where it is not long; nothing, if those are too long.
fn message(scope: &Scope, written: Option<(i64, &KeyState)>) -> Option<String> {
    /// A longer row is read as fast as it is told.
    const MOST_BYTES: usize = 1_000;
    let mut message = format!("{}/{}", hex_digits(scope.limiter.as_bytes()), hex_digits(&scope.key));
    if let Some((version, row)) = written.filter(|(_, row)| row.bytes.len() <= MOST_BYTES && message.len() < MAX_MESSAGE / 2) {
        message += &format!("/{version}/{}/{}", expires(row), hex_digits(&row.bytes));
    }
    (message.len() <= MAX_MESSAGE).then_some(message)
}

/// Reads a message of this crate. Anybody may have sent it.
pub(super) fn read_message(message: &str) -> Option<Message> {
    let mut parts = message.split('/');
    let (limiter, key) = (String::from_utf8(unhex(parts.next()?)?).ok()?, unhex(parts.next()?)?);
    let mut written = || {
        let (version, expires) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some((version, read_state(expires, unhex(parts.next()?)?)))
    };
    Some(Message { written: written(), scope: Scope { limiter: limiter.into(), key: key.into() } })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.chars().map(|digit| digit.to_digit(16)).collect::<Option<Vec<_>>>()?;
    digits.chunks(2).map(|pair| Some((16 * pair[0] + pair.get(1)?) as u8)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_as_it_was_meant() {
        let scope = |key: &[u8]| Scope { limiter: "api/ü".into(), key: key.into() };
        let row = |length| KeyState { bytes: vec![7; length], expires_at: 5_000 };
        let said = |scope: &Scope, written: Option<(i64, &KeyState)>| read_message(&message(scope, written)?);
        let of = |scope: Scope, written| Some(Message { scope, written });
        assert_eq!(said(&scope(b"/"), None), of(scope(b"/"), None));
        assert_eq!(said(&scope(b""), Some((8, &row(1_000)))), of(scope(b""), Some((8, row(1_000)))));
        assert_eq!(said(&scope(b"a"), Some((8, &row(1_001)))), of(scope(b"a"), None));
        assert_eq!(said(&scope(&[1; 3_000]), Some((8, &row(1)))), of(scope(&[1; 3_000]), None));
        assert_eq!(said(&scope(&[1; 4_000]), None), None);
        for other in ["", "61", "61/6", "x/61", "61/zz"] {
            assert!(read_message(other).is_none_or(|message| message.written.is_none()), "{other}");
        }
    }
}
