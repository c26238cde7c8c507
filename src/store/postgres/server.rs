//! The server of a store, and the connections to it with the statements of the store and the messages about released places.

#[cfg(any(test, fuzzing))]
pub(in crate::store) mod fuzzed;

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_core::Stream;
use futures_util::future::{select, try_join, try_join3, try_join4};
use futures_util::stream::StreamExt as _;
use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Error, Row, Statement};

use super::super::serve::{ASK_AFTER, ServedListeners};
use super::super::sql::row_cache::{KeyRow, RowCache};
use super::super::sql::table::{Pool, ReadRow, RowTable, SqlServer, Taken, Write, in_task};
use super::super::sql::{SPARED_MICROS, expires, hex_digits, must_create, read_state};
use crate::error::StoreError;
use crate::exchange::Scope;
use crate::store::Release;

pub(super) const SCHEMA: &str = include_str!("../postgres.sql");

/// Two processes that create tables at the same time conflict, in spite of `IF NOT EXISTS`.
const SCHEMA_LOCK: &str = "SELECT pg_advisory_xact_lock(7166201905337)";

/// A transaction that is left open because its process was stopped ends by itself: it holds the lock of a row.
const SETTINGS: &str = "SET idle_in_transaction_session_timeout = '5s'; SET lock_timeout = '10s'";

pub(super) type Messages = Pin<Box<dyn Stream<Item = Result<AsyncMessage, Error>> + Send>>;
/// Makes a connection. Returns its client, and the messages, which must be read.
type Connecting = Pin<Box<dyn Future<Output = Result<(Client, Messages), Error>> + Send>>;
pub(super) type Connector = Arc<dyn Fn() -> Connecting + Send + Sync>;

#[derive(Debug)]
pub(super) struct PostgresConnection {
    pub(super) client: Client,
    /// The task that reads the messages. The connection ends with it.
    reader: AbortHandle,
    timeout: Duration,
    /// Since when a statement has waited for an answer. Its caller may have given up.
    silent_since: Mutex<Option<Instant>>,
    read: Statement,
    update: Statement,
    insert: Statement,
    claim: Statement,
    lock: Statement,
    now: Statement,
}

pub(super) const ID: &str = "sha256($1) || sha256($2)";
const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::int8";
/// Returns the clock if a row was written, and then sends the message, if one is given.
const DONE: &str = "SELECT now, CASE WHEN $7::text IS NULL THEN '' ELSE pg_notify('tollgate', $7)::text END FROM done";

impl PostgresConnection {
    /// Opens a connection. A task in this runtime reads its messages.
    pub(super) async fn open(sql: &SqlServer, connector: &Connector) -> Result<Self, StoreError> {
        let failed = not_done(sql.name());
        let (client, mut messages) = connector().await.map_err(&failed)?;
        let reads = async move { while let Some(Ok(_)) = messages.next().await {} };
        let reader = tokio::spawn(reads).abort_handle();
        client.batch_execute(SETTINGS).await.map_err(&failed)?;
        let version = "SELECT max(version) FROM tollgate_schema";
        let found = match client.query_one(version, &[]).await {
            Err(error) if error.code() == Some(&SqlState::UNDEFINED_TABLE) => None,
            found => found.map_err(&failed)?.get(0),
        };
        if must_create(sql.name(), found, sql.creates_tables)? {
            let schema = format!("{SCHEMA_LOCK}; {SCHEMA}");
            client.batch_execute(&schema).await.map_err(&failed)?;
        }
        let prepared = Self::prepare(client, reader, sql.timeout).await;
        prepared.map_err(failed)
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
            silent_since: Mutex::default(),
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

    /// Awaits an answer. The connection is given up if it has not answered in time, or if its server is read-only, because
    /// another server may have taken its place.
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
    ) -> Result<Vec<Row>, Error> {
        self.answered(self.client.query(sql, values)).await
    }

    /// Runs a statement. Returns how many rows it changed.
    pub(super) async fn execute(
        &self,
        sql: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, Error> {
        self.answered(self.client.execute(sql, values)).await
    }

    /// Writes the row if it has the expected version. Returns the clock if it was written.
    pub(super) async fn write(&self, write: &Write) -> Result<Option<i64>, Error> {
        let KeyRow { version, state } = &write.row;
        let turns = Some((&write.turns[..], write.next));
        let is_news = !write.turns.is_empty() || write.awaits_release;
        let message = is_news
            .then(|| message(&write.scope, turns, Some(&write.row)))
            .flatten();
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

    /// Begins a transaction, and locks the row, which is inserted if it is missing. All statements are sent at once. `None` if
    /// the row was deleted after the second statement had found it.
    pub(super) async fn lock(&self, scope: &Scope, version: i64) -> Result<Option<ReadRow>, Error> {
        let (limiter, key) = (scope.limiter.as_bytes(), &scope.key[..]);
        let id: [&(dyn ToSql + Sync); 2] = [&limiter, &key];
        let claimed: [&(dyn ToSql + Sync); 3] = [&limiter, &key, &version];
        let locks = try_join4(
            self.client
                .batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED"),
            self.client.execute(&self.claim, &claimed),
            self.client.query_opt(&self.lock, &id),
            // In the statement with FOR UPDATE, the clock would be read before the lock is acquired.
            self.client.query_one(&self.now, &[]),
        );
        let (_, _, row, now) = self.answered(locks).await?;
        let Some(row) = row else { return Ok(None) };
        Ok(Some(ReadRow {
            now: now.try_get(0)?,
            row: Some(key_row(row.try_get(0)?, &row, 1)?),
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

/// The channel on which releases are announced.
const CHANNEL: &str = "tollgate";

pub(super) struct PostgresServer {
    pub(super) sql: SqlServer,
    pub(super) connector: Connector,
    /// For statements that are transactions of their own.
    connections: Arc<AsyncMutex<Vec<Arc<PostgresConnection>>>>,
    /// Whether another connection is being made.
    grows: AtomicBool,
    /// For transactions that hold a lock. Each has a connection of its own.
    transactions: Pool<PostgresConnection>,
    pub(super) served: Arc<ServedListeners>,
}

impl PostgresServer {
    pub(super) fn new(sql: SqlServer, connector: Connector) -> Self {
        Self {
            sql,
            connector,
            connections: Arc::default(),
            grows: AtomicBool::new(false),
            transactions: Pool::new(4),
            served: Arc::default(),
        }
    }

    /// A connection for a single statement: the one with the fewest statements under way.
    pub(super) async fn connection(
        self: &Arc<Self>,
    ) -> Result<Arc<PostgresConnection>, StoreError> {
        /// How many statements may be under way on each connection before another one is made.
        const BUSY: usize = 8;
        const MAX: usize = 4;
        let mut connections = Arc::clone(&self.connections).lock_owned().await;
        connections.retain(|connection| !connection.is_dead());
        let idlest = connections
            .iter()
            .min_by_key(|connection| Arc::strong_count(connection))
            .map(Arc::clone);
        let Some(idlest) = idlest else {
            let this = Arc::clone(self);
            let connects = async move {
                let new = Arc::new(this.connect().await?);
                connections.push(Arc::clone(&new));
                Ok(new)
            };
            // The connection is made in a task, because callers may give up before it is made.
            return in_task(self, |_, _| connects).await;
        };
        if Arc::strong_count(&idlest) > BUSY
            && connections.len() < MAX
            && !self.grows.swap(true, Ordering::Relaxed)
        {
            tokio::spawn(Arc::clone(self).grow());
        }
        Ok(idlest)
    }

    async fn grow(self: Arc<Self>) {
        match self.connect().await {
            Ok(connection) => self.connections.lock().await.push(Arc::new(connection)),
            Err(_) => sleep(Duration::from_secs(1)).await, // the others go on
        }
        self.grows.store(false, Ordering::Relaxed);
    }

    /// Makes a connection. An attempt that takes longer than the timeout is given up.
    async fn connect(&self) -> Result<PostgresConnection, StoreError> {
        let opens = PostgresConnection::open(&self.sql, &self.connector);
        self.sql.connect(opens).await
    }

    /// Runs a statement that changes nothing, and runs it once more if the connection has broken in the meantime.
    pub(super) async fn ask<T, F>(
        self: &Arc<Self>,
        question: impl Fn(Arc<PostgresConnection>) -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let connection = self.connection().await?;
        let mut answer = question(Arc::clone(&connection)).await;
        if answer.is_err() && connection.client.is_closed() {
            answer = question(self.connection().await?).await;
        }
        answer.map_err(not_done(self.sql.name()))
    }
}

impl RowTable for Arc<PostgresServer> {
    /// A connection with a transaction. The connection is not used again unless the transaction has ended.
    type Locked = Taken<PostgresConnection>;

    fn sql(&self) -> &SqlServer {
        &self.sql
    }

    async fn read(&self, scope: &Scope) -> Result<ReadRow, StoreError> {
        let id: [&(dyn ToSql + Sync); 2] = [&scope.limiter.as_bytes(), &&scope.key[..]];
        let read = async |connection: Arc<PostgresConnection>| {
            let reads = connection.client.query_one(&connection.read, &id);
            let row = connection.answered(reads).await?;
            let now = row.try_get(0)?;
            let found: Option<i64> = row.try_get(1)?;
            let row = found.map(|version| key_row(version, &row, 2)).transpose()?;
            Ok(ReadRow { now, row })
        };
        self.ask(read).await
    }

    async fn swap(&self, write: &Write) -> Result<Option<i64>, StoreError> {
        let written = self.connection().await?.write(write).await;
        match written {
            // This error occurs under a stricter isolation level than the default.
            Err(error) if error.code() == Some(&SqlState::T_R_SERIALIZATION_FAILURE) => Ok(None),
            written => written.map_err(unknown(self.sql.name())),
        }
    }

    async fn lock(
        &self,
        scope: &Scope,
        version: i64,
    ) -> Result<(Self::Locked, ReadRow), StoreError> {
        loop {
            let taken = self.transactions.take(self.connect()).await?;
            match taken.connection.lock(scope, version).await {
                // The idle connection has broken meanwhile.
                Err(_) if taken.was_idle && taken.connection.client.is_closed() => {}
                Err(error) => return Err(not_done(self.sql.name())(error)),
                Ok(Some(found)) => return Ok((taken, found)),
                Ok(None) => {
                    let ended = taken.connection.unlock(None).await;
                    ended.map_err(not_done(self.sql.name()))?;
                    self.transactions.put_back(taken);
                }
            }
        }
    }

    async fn unlock(&self, locked: Self::Locked, write: Option<&Write>) -> Result<(), StoreError> {
        let ended = locked.connection.unlock(write).await;
        ended.map_err(unknown(self.sql.name()))?;
        self.transactions.put_back(locked);
        Ok(())
    }

    async fn purge_some(&self, after: &[u8], rows: u32) -> Result<Vec<u8>, StoreError> {
        let connection = self.connection().await?;
        let next = "SELECT id FROM tollgate_keys WHERE id > $1 ORDER BY id OFFSET $2 LIMIT 1";
        // Rows that are locked are in use. No call waits here with a lock, so there is no deadlock.
        let delete = "DELETE FROM tollgate_keys WHERE id IN (SELECT id FROM tollgate_keys WHERE id > $1 AND ($2::bytea IS NULL OR id <= $2) \
                      AND expires <= (extract(epoch FROM clock_timestamp()) * 1000000)::int8 - $3 FOR UPDATE SKIP LOCKED)";
        let purges = async {
            let next = connection.query(next, &[&after, &i64::from(rows)]).await?;
            let until: Option<Vec<u8>> = next.first().map(|row| row.get(0));
            connection
                .execute(delete, &[&after, &until, &SPARED_MICROS])
                .await?;
            Ok(until.unwrap_or_default())
        };
        purges.await.map_err(not_done(self.sql.name()))
    }
}

/// Reads a row of this version, with its expiry and state from column `from` on.
fn key_row(version: i64, row: &Row, from: usize) -> Result<KeyRow, Error> {
    let state = read_state(row.try_get(from)?, row.try_get(from + 1)?);
    Ok(KeyRow { version, state })
}

/// The error of statements that were not carried out.
pub(super) fn not_done(store: &str) -> impl Fn(Error) -> StoreError {
    |error| {
        let is_down = error.code().is_none_or(|code| {
            says_down(code)
                || *code == SqlState::TOO_MANY_CONNECTIONS
                || *code == SqlState::LOCK_NOT_AVAILABLE
        });
        if is_down {
            StoreError::unreachable(store, error)
        } else {
            StoreError::refused(store, error)
        }
    }
}

/// The error of statements that may have been carried out. An error in which the server reports that they were not is reliable.
pub(super) fn unknown(store: &str) -> impl Fn(Error) -> StoreError {
    |error| match error.code() {
        Some(code) if !says_down(code) => not_done(store)(error),
        _ => StoreError::unanswered(store, error),
    }
}

/// Whether the server reports that it is shutting down or starting up: the class 57, "operator intervention".
fn says_down(code: &SqlState) -> bool {
    code.code().starts_with("57P")
}

/// Passes messages on until the connection breaks, does not answer within `limit`, or no listener is left.
pub(super) async fn follow(
    connector: Connector,
    limit: Duration,
    known: Arc<RowCache>,
    served: Arc<ServedListeners>,
) {
    let Ok(Ok((client, mut messages))) = timeout(limit, connector()).await else {
        return;
    };
    let listens = pin!(async {
        let mut sql = format!("LISTEN {CHANNEL}");
        // This checks the connection, which can be dead without a sign of it.
        while let Ok(Ok(())) = timeout(limit, client.batch_execute(&sql)).await {
            if !sql.is_empty() {
                served
                    .listeners
                    .each(None, |listener| listener.released(Release::Unknown));
                sql.clear();
            }
            sleep(ASK_AFTER).await;
            if served.listeners.limiters().is_empty() {
                return;
            }
        }
    });
    let passes_on = pin!(async {
        while let Some(Ok(message)) = messages.next().await {
            if let AsyncMessage::Notification(said) = message
                && said.channel() == CHANNEL
                && let Some((scope, turns, written)) = read_message(said.payload())
            {
                if let Some(row) = written {
                    known.hear(&scope, row);
                }
                let (Scope { limiter, key }, listeners) = (&scope, &served.listeners);
                match turns {
                    None => listeners.reset(limiter, key),
                    Some((turns, next)) => listeners.turns(limiter, key, &turns, next),
                }
            }
        }
    });
    select(listens, passes_on).await;
}

/// The longest message that PostgreSQL accepts.
const MAX_MESSAGE: usize = 7_999;

/// The holders whose turn it is, and the one whose turn is next. `None` if the key was reset.
type Turns<T> = Option<(T, Option<u64>)>;

/// The message to other processes about the turns of this key, or about its reset: in hexadecimal digits, the limiter, the key and,
/// unless it was reset, the next holder or 0 and the holders whose turn it is; then the row that was written, unless it is long.
/// `None` if limiter and key are too long, or if the message would have neither a turn nor a row.
///
/// Without a turn, it tells the process that will release a place which row it has to change then, so that it need not read the row.
pub(super) fn message(
    scope: &Scope,
    turns: Turns<&[u64]>,
    written: Option<&KeyRow>,
) -> Option<String> {
    /// A longer row is as fast to read as to send.
    const MOST_BYTES: usize = 1_000;
    let limiter = hex_digits(scope.limiter.as_bytes());
    let mut has_news = true;
    let turns = turns.map_or_else(Vec::new, |(turns, next)| {
        has_news = !turns.is_empty();
        let holders = [&[next.unwrap_or(0)], turns].concat();
        holders
            .iter()
            .flat_map(|holder| holder.to_be_bytes())
            .collect()
    });
    let mut message = format!(
        "{limiter}/{}/{}",
        hex_digits(&scope.key),
        hex_digits(&turns)
    );
    if let Some(KeyRow { version, state }) = written
        && state.bytes.len() <= MOST_BYTES
        && message.len() < MAX_MESSAGE / 2
    {
        has_news = true;
        let (expires, state) = (expires(state), hex_digits(&state.bytes));
        message += &format!("/{version}/{expires}/{state}");
    }
    (has_news && message.len() <= MAX_MESSAGE).then_some(message)
}

/// The key, the turns unless it was reset, and the written row of a message. Any client of the database may have sent it.
fn read_message(message: &str) -> Option<(Scope, Turns<Vec<u64>>, Option<KeyRow>)> {
    let mut parts = message.split('/');
    let limiter = String::from_utf8(unhex(parts.next()?)?).ok()?;
    let key = unhex(parts.next()?)?;
    let turns = unhex(parts.next()?)?;
    let mut turns = turns
        .as_chunks()
        .0
        .iter()
        .map(|bytes| u64::from_be_bytes(*bytes));
    let next = turns.next();
    let turns = next.map(|next| (turns.collect(), Some(next).filter(|next| *next > 0)));
    let mut written = || {
        let (version, expires) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let state = read_state(expires, unhex(parts.next()?)?);
        Some(KeyRow { version, state })
    };
    let written = written();
    let scope = Scope {
        limiter: limiter.into(),
        key: key.into(),
    };
    Some((scope, turns, written))
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text
        .chars()
        .map(|digit| digit.to_digit(16))
        .collect::<Option<Vec<_>>>()?;
    digits
        .chunks(2)
        .map(|pair| Some((16 * pair[0] + pair.get(1)?) as u8))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::KeyState;

    #[test]
    fn a_message_is_read_as_it_was_meant() {
        let scope = |key: &[u8]| Scope {
            limiter: "api/ü".into(),
            key: key.into(),
        };
        let row = |length| KeyRow {
            version: 8,
            state: KeyState {
                bytes: vec![7; length],
                expires_at: 5_000,
            },
        };
        let said = |scope: &Scope, written: Option<&KeyRow>| {
            read_message(&message(scope, Some((&[7, 9], Some(3))), written)?)
        };
        let of = |scope: Scope, written| Some((scope, Some((vec![7, 9], Some(3))), written));
        assert_eq!(said(&scope(b"/"), None), of(scope(b"/"), None));
        assert_eq!(
            said(&scope(b""), Some(&row(1_000))),
            of(scope(b""), Some(row(1_000)))
        );
        assert_eq!(said(&scope(b"a"), Some(&row(1_001))), of(scope(b"a"), None));
        assert_eq!(
            said(&scope(&[1; 3_000]), Some(&row(1))),
            of(scope(&[1; 3_000]), None)
        );
        assert_eq!(said(&scope(&[1; 4_000]), None), None);
        assert_eq!(
            read_message("61/62/"),
            Some((
                Scope {
                    limiter: "a".into(),
                    key: b"b".as_slice().into()
                },
                None,
                None
            ))
        );
        let of_no_turn = |row: KeyRow| message(&scope(b"b"), Some((&[], None)), Some(&row));
        assert_eq!(of_no_turn(row(1_001)), None);
        assert_eq!(
            read_message(&of_no_turn(row(1)).unwrap()),
            Some((scope(b"b"), Some((vec![], None)), Some(row(1))))
        );
        for other in ["", "61", "61/6", "x/61", "61/zz", "61/62/6z"] {
            assert!(
                read_message(other).is_none_or(|(_, _, written)| written.is_none()),
                "{other}"
            );
        }
    }
}
