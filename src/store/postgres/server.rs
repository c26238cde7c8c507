//! The server of a store, and the connections to it.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as StdMutex, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::{Either, select};
use futures_util::stream::StreamExt as _;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, Error};

use super::super::listeners::Listeners;
use super::super::sql::known::Known;
use super::super::sql::table::{Found, PURGED_EVERY, Purge, Table, Write, in_task};
use super::super::sql::{Policies, SCHEMA_VERSION, SPARED_MICROS};
use super::connection::{CHANNEL, Connection, Connector, Message, Refusal, read_message};
use crate::error::{Cause, StoreError};
use crate::exchange::Scope;

/// How often a connection that listens is asked whether it lives.
const ASKED_EVERY: Duration = Duration::from_secs(5);

pub(super) struct Server {
    pub(super) name: String,
    pub(super) connector: Connector,
    pub(super) creates_tables: bool,
    /// For a connection, and for an answer.
    pub(super) timeout: Duration,
    /// For statements that are transactions of their own.
    pub(super) connections: Arc<Mutex<Vec<Arc<Connection>>>>,
    /// Whether one more is being made.
    pub(super) grows: AtomicBool,
    /// For transactions that hold a lock, which have a connection of their own each.
    pub(super) idle: StdMutex<Vec<Connection>>,
    pub(super) transactions: Arc<Semaphore>,
    pub(super) policies: Policies,
    pub(super) known: Known,
    pub(super) listeners: Listeners,
    pub(super) purge: Purge,
}

impl Server {
    /// A connection for a single statement: of those that there are, the one with the fewest under way.
    pub(super) async fn connection(self: &Arc<Self>) -> Result<Arc<Connection>, StoreError> {
        /// As many statements follow one another without a wait before another connection is made.
        const BUSY: usize = 8;
        const MAX: usize = 4;
        let mut connections = Arc::clone(&self.connections).lock_owned().await;
        connections.retain(|connection| !connection.is_dead());
        let idlest = connections.iter().min_by_key(|connection| Arc::strong_count(connection)).map(Arc::clone);
        let Some(idlest) = idlest else {
            let this = Arc::clone(self);
            let connects = async move {
                let new = Arc::new(this.connect().await?);
                connections.push(Arc::clone(&new));
                Ok(new)
            };
            // Callers may be more impatient than that takes.
            return in_task(&self.name, |_| connects).await;
        };
        if Arc::strong_count(&idlest) > BUSY && connections.len() < MAX && !self.grows.swap(true, Ordering::Relaxed) {
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

    async fn connect(&self) -> Result<Connection, StoreError> {
        let store = self.name.clone();
        self.known.forget_clock();
        let opening = Connection::open(&self.connector, self.creates_tables, self.timeout);
        let opened = timeout(self.timeout, opening).await.unwrap_or_else(|elapsed| Err(Refusal::NoAnswer(elapsed)));
        opened.map_err(|refusal| match refusal {
            Refusal::Failed(error) => self.not_done(error),
            Refusal::NoAnswer(elapsed) => StoreError::Unreachable { store, source: Cause::new(elapsed) },
            Refusal::NewerSchema(found) => StoreError::NewerSchema { store, found, known: SCHEMA_VERSION },
            Refusal::NoTables => {
                StoreError::Refused { store, source: Cause::new("it has no tables; run PostgresStore::schema()") }
            }
        })
    }

    /// The error of something that was not carried out.
    fn not_done(&self, error: Error) -> StoreError {
        let store = self.name.clone();
        let is_down = error.as_db_error().is_none_or(|error| {
            let code = error.code();
            // Of the class 57, "operator intervention": shutting down, starting up.
            code.code().starts_with("57P") || [&SqlState::TOO_MANY_CONNECTIONS, &SqlState::LOCK_NOT_AVAILABLE].contains(&code)
        });
        let source = Cause::new(error);
        if is_down { StoreError::Unreachable { store, source } } else { StoreError::Refused { store, source } }
    }

    /// The error of something that may have been carried out. The server has not if it says so.
    pub(super) fn unknown(&self, error: Error) -> StoreError {
        match error.as_db_error() {
            Some(said) if !said.code().code().starts_with("57P") => self.not_done(error),
            _ => StoreError::Unanswered { store: self.name.clone(), after: None, source: Some(Cause::new(error)) },
        }
    }

    /// Asks something that changes nothing: once more, if the connection has broken in the meantime.
    pub(super) async fn ask<T, F>(self: &Arc<Self>, question: impl Fn(Arc<Connection>) -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let connection = self.connection().await?;
        match question(Arc::clone(&connection)).await {
            Err(_) if connection.client.is_closed() => {
                question(self.connection().await?).await.map_err(|error| self.not_done(error))
            }
            answer => answer.map_err(|error| self.not_done(error)),
        }
    }

    /// Deletes what has expired among the next rows of the table.
    pub(super) async fn purge_some(self: &Arc<Self>) -> Result<(), StoreError> {
        let Ok(mut after) = self.purge.after.try_lock() else { return Ok(()) };
        let connection = self.connection().await?;
        let next = "SELECT id FROM tollgate_keys WHERE id > $1 ORDER BY id OFFSET $2 LIMIT 1";
        let among = i64::from(2 * PURGED_EVERY);
        let next = connection.query(next, &[&*after, &among]).await.map_err(|error| self.not_done(error))?;
        let until: Option<Vec<u8>> = next.first().map(|row| row.get(0));
        // Rows that are locked are in use. Nobody waits here with a lock, so that nobody waits for each other.
        let delete = "DELETE FROM tollgate_keys WHERE id IN (SELECT id FROM tollgate_keys WHERE id > $1 AND ($2::bytea IS NULL OR id <= $2) \
                      AND expires <= (extract(epoch FROM clock_timestamp()) * 1000000)::int8 - $3 FOR UPDATE SKIP LOCKED)";
        connection.execute(delete, &[&*after, &until, &SPARED_MICROS]).await.map_err(|error| self.not_done(error))?;
        *after = until.unwrap_or_default();
        Ok(())
    }

    /// Passes on what is announced, as long as anybody listens.
    pub(super) async fn listen(server: Weak<Self>) {
        while let Some(this) = server.upgrade() {
            let limit = this.timeout;
            let Ok(Ok((client, mut messages))) = timeout(limit, (this.connector)()).await else {
                drop(this);
                sleep(Duration::from_secs(1)).await;
                continue;
            };
            drop(this);
            let mut listens = JoinSet::new();
            let of = Weak::clone(&server);
            listens.spawn(async move {
                let mut sql = format!("LISTEN {CHANNEL}");
                // A connection can be dead without a sign of it.
                while let Ok(Ok(())) = timeout(limit, client.batch_execute(&sql)).await {
                    if !sql.is_empty()
                        && let Some(server) = of.upgrade()
                    {
                        server.listeners.hear_again();
                    }
                    sql.clear();
                    sleep(ASKED_EVERY).await;
                }
            });
            loop {
                let ended = pin!(listens.join_next());
                let message = timeout(Duration::from_secs(30), select(messages.next(), ended)).await;
                let Some(this) = server.upgrade() else { return };
                match message.map(|message| if let Either::Left((message, _)) = message { message } else { None }) {
                    Ok(Some(Ok(AsyncMessage::Notification(said)))) if said.channel() == CHANNEL => {
                        if let Some(Message { scope, written }) = read_message(said.payload()) {
                            if let Some((version, row)) = written {
                                this.known.hear(&scope, version, row);
                            }
                            this.listeners.released(&scope.limiter, &scope.key);
                        }
                    }
                    Ok(Some(Ok(_))) => {}
                    Ok(Some(Err(_)) | None) => break,
                    Err(_) if !this.listeners.are_served() => return,
                    Err(_) => {}
                }
            }
            sleep(Duration::from_millis(100)).await;
        }
    }
}

/// A connection with a transaction. It is not used again unless the transaction has ended.
pub(super) struct Locked(Connection, OwnedSemaphorePermit);

impl Table for Arc<Server> {
    type Locked = Locked;

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
        self.ask(|connection| async move { connection.read(scope).await }).await
    }

    async fn swap(&self, write: &Write) -> Result<Option<i64>, StoreError> {
        let written = self.connection().await?.write(write).await;
        match written {
            // Under a stricter isolation level than the default.
            Err(error) if error.code() == Some(&SqlState::T_R_SERIALIZATION_FAILURE) => Ok(None),
            written => written.map_err(|error| self.unknown(error)),
        }
    }

    async fn lock(&self, scope: &Scope, version: i64) -> Result<(Locked, Found), StoreError> {
        let permit = Arc::clone(&self.transactions).acquire_owned().await;
        let Ok(permit) = permit else {
            return Err(StoreError::Unreachable { store: self.name.clone(), source: Cause::new("the store is closed") });
        };
        loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let was_idle = idle.is_some();
            let connection = match idle {
                Some(connection) => connection,
                None => self.connect().await?,
            };
            match connection.lock(scope, version).await {
                Err(_) if was_idle && connection.client.is_closed() => {} // it has broken in the meantime
                Err(error) => return Err(self.not_done(error)),
                Ok(Some(found)) => return Ok((Locked(connection, permit), found)),
                Ok(None) => {
                    connection.unlock(None).await.map_err(|error| self.not_done(error))?;
                    self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
                }
            }
        }
    }

    async fn unlock(&self, locked: Locked, write: Option<&Write>) -> Result<(), StoreError> {
        let Locked(connection, permit) = locked;
        connection.unlock(write).await.map_err(|error| self.unknown(error))?;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        drop(permit);
        Ok(())
    }
}
