//! The server of a store, and the connections to it.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::select;
use futures_util::stream::StreamExt as _;
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, Error};

use super::super::serve::{ASK_AFTER, ServedListeners};
use super::super::sql::SPARED_MICROS;
use super::super::sql::pool::{Pool, Taken};
use super::super::sql::row_cache::RowCache;
use super::super::sql::table::{ReadRow, RowTable, SqlServer, Write, in_task};
use super::connection::{Connector, PostgresConnection, not_done, unknown};
use super::messages::{Message, read_message};
use crate::error::StoreError;
use crate::exchange::Scope;
use crate::store::ReleaseListener;

/// Where releases are announced.
const CHANNEL: &str = "tollgate";

pub(super) struct PostgresServer {
    pub(super) sql: SqlServer,
    pub(super) connector: Connector,
    /// For statements that are transactions of their own.
    connections: Arc<Mutex<Vec<Arc<PostgresConnection>>>>,
    /// Whether another connection is being made.
    grows: AtomicBool,
    /// For transactions that hold a lock, which have a connection of their own each.
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
        /// As many statements follow one another without a wait before another connection is made.
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

    /// A connection that does not answer for as long as the timeout is given up.
    async fn connect(&self) -> Result<PostgresConnection, StoreError> {
        self.sql.known.forget_clock();
        let opened = timeout(
            self.sql.timeout,
            PostgresConnection::open(&self.sql, &self.connector),
        )
        .await;
        opened.unwrap_or_else(|elapsed| Err(StoreError::unreachable(self.sql.name(), elapsed)))
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
        match question(Arc::clone(&connection)).await {
            Err(_) if connection.client.is_closed() => question(self.connection().await?)
                .await
                .map_err(not_done(self.sql.name())),
            answer => answer.map_err(not_done(self.sql.name())),
        }
    }
}

impl RowTable for Arc<PostgresServer> {
    /// A connection with a transaction. It is not used again unless the transaction has ended.
    type Locked = Taken<PostgresConnection>;

    fn sql(&self) -> &SqlServer {
        &self.sql
    }

    async fn read(&self, scope: &Scope) -> Result<ReadRow, StoreError> {
        self.ask(|connection| async move { connection.read(scope).await })
            .await
    }

    async fn swap(&self, write: &Write) -> Result<Option<i64>, StoreError> {
        let written = self.connection().await?.write(write).await;
        match written {
            // Under a stricter isolation level than the default.
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
                // It has broken in the meantime.
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
        // A connection can be dead without a sign of it.
        while let Ok(Ok(())) = timeout(limit, client.batch_execute(&sql)).await {
            if !sql.is_empty() {
                served.listeners.each(None, ReleaseListener::hears_again);
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
                && let Some(Message { scope, written }) = read_message(said.payload())
            {
                if let Some(row) = written {
                    known.hear(&scope, row);
                }
                served.listeners.released(&scope.limiter, &scope.key);
            }
        }
    });
    select(listens, passes_on).await;
}
