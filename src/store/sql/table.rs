//! A call on a database server, where reading a row and writing the decision take separate round trips; and the connections to the
//! server.
//!
//! A call first tries without a lock: it reads the row, decides, and writes the row if its version is still the same. This takes
//! two round trips, or one if there is nothing to write, and leaves nothing open. If another process has written meanwhile, the
//! call takes the row's lock, which always succeeds. The next calls take the lock, too, because they would probably also fail
//! without it.
//!
//! The row need not be read if it is [known](super::row_cache) from the last call. Then the call is decided as of an instant that
//! the server's clock has certainly reached, at most a round trip earlier. So it grants no more than the limit admits by then; but what it
//! charges also expires that much earlier. Leases count from an instant that the clock has certainly not passed, so that no lease ends
//! in the store before it ends for its holder.

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Mutex as AsyncMutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::super::{Decided, KeyState, Rules, StoreFuture};
use super::row_cache::{CachedRow, KeyRow, RowCache};
use crate::error::StoreError;
use crate::exchange::{Call, DeniedUntil, Reply, Scope};

/// The row of a key, as read from the server.
#[derive(Debug)]
pub(in crate::store) struct ReadRow {
    /// The clock of the server, in microseconds since 1970. For a locked row, it was read under the lock.
    pub(in crate::store) now: i64,
    /// `None` if the key has no row.
    pub(in crate::store) row: Option<KeyRow>,
}

/// A write of a row.
#[derive(Debug)]
pub(in crate::store) struct Write {
    pub(in crate::store) scope: Scope,
    /// The version that the row must have; `None` if there must be no row.
    pub(in crate::store) version: Option<i64>,
    /// The state as a message announced it, if no read has confirmed it. The write succeeds only if the row has this state, because
    /// any client can send such a message.
    #[cfg_attr(
        not(feature = "postgres"),
        allow(dead_code, reason = "MySQL sends no messages about rows")
    )]
    pub(in crate::store) from_notify: Option<KeyState>,
    /// The row after the write.
    pub(in crate::store) row: KeyRow,
    /// The holders whose turn it is.
    pub(in crate::store) turns: Vec<u64>,
    /// The holder whose turn is next.
    pub(in crate::store) next: Option<u64>,
    /// Whether the call waits for a release.
    #[cfg_attr(
        not(feature = "postgres"),
        allow(dead_code, reason = "MySQL sends no messages about rows")
    )]
    pub(in crate::store) awaits_release: bool,
    /// The row must not be written at or after this instant of the server, in microseconds since 1970.
    pub(in crate::store) valid_until: Option<i64>,
}

/// The parts of a store on a database server besides its connections.
#[derive(Debug)]
pub(in crate::store) struct SqlServer {
    pub(in crate::store) rules: Rules,
    pub(in crate::store) known: Arc<RowCache>,
    pub(in crate::store) creates_tables: bool,
    /// The longest time to make a connection, and to wait for an answer.
    pub(in crate::store) timeout: Duration,
    calls: AtomicU32,
    /// The id behind which the store's own purge continues.
    purge_after: AsyncMutex<Vec<u8>>,
}

/// A table of rows by key on a server.
pub(in crate::store) trait RowTable: Clone + Send + Sync + 'static {
    /// A transaction that holds the lock of a row.
    type Locked: Send;

    fn sql(&self) -> &SqlServer;

    /// Reads the row without a lock.
    fn read(&self, scope: &Scope) -> impl Future<Output = Result<ReadRow, StoreError>> + Send;

    /// Writes the row if it still has the expected version. Returns the clock of the server if the row was written.
    fn swap(&self, write: &Write) -> impl Future<Output = Result<Option<i64>, StoreError>> + Send;

    /// Locks the row, and reads it. If there is no row, one is inserted with this version.
    fn lock(
        &self,
        scope: &Scope,
        version: i64,
    ) -> impl Future<Output = Result<(Self::Locked, ReadRow), StoreError>> + Send;

    /// Performs the write, if there is one, and ends the transaction.
    fn unlock(
        &self,
        locked: Self::Locked,
        write: Option<&Write>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Called after the row was written.
    fn wrote(&self, _write: &Write) {}

    /// Deletes the expired rows among the next `rows` rows behind this id. Returns the id of the last of those rows, or an empty
    /// id at the end of the table.
    fn purge_some(
        &self,
        after: &[u8],
        rows: u32,
    ) -> impl Future<Output = Result<Vec<u8>, StoreError>> + Send;
}

impl SqlServer {
    pub(in crate::store) fn new(name: String, creates_tables: bool, timeout: Duration) -> Self {
        Self {
            rules: Rules::new(name),
            known: Arc::default(),
            creates_tables,
            timeout,
            calls: AtomicU32::new(0),
            purge_after: AsyncMutex::default(),
        }
    }

    pub(in crate::store) fn name(&self) -> &str {
        self.rules.store()
    }

    /// Makes a connection within the timeout. It may lead to another server than the last connection.
    pub(in crate::store) async fn connect<C>(
        &self,
        connects: impl Future<Output = Result<C, StoreError>>,
    ) -> Result<C, StoreError> {
        self.known.forget_clock();
        let connected = timeout(self.timeout, connects).await;
        connected.unwrap_or_else(|elapsed| Err(StoreError::unreachable(self.name(), elapsed)))
    }
}

/// Whether the caller of a call still waits.
#[derive(Debug, Clone)]
pub(in crate::store) struct CallAwaited(Weak<()>);

impl CallAwaited {
    /// The caller waits as long as `caller` is not dropped.
    pub(in crate::store) fn by(caller: &Arc<()>) -> Self {
        Self(Arc::downgrade(caller))
    }

    /// Stops this call if its caller has given up. The caller then makes another call, which settles the effects of this one. So
    /// this call must start no statement after the other call. The server may carry out the statements of both calls in any
    /// order: the second writer finds another version, and stops here.
    fn or_stop(&self, store: &str) -> Result<(), StoreError> {
        if self.0.strong_count() > 0 {
            return Ok(());
        }
        Err(StoreError::unanswered(store, "the caller has given up"))
    }
}

/// Does the work in a task, which goes on if the caller gives up.
pub(in crate::store) fn in_task<T: RowTable, R: Send + 'static, F>(
    table: &T,
    work: impl FnOnce(T, CallAwaited) -> F,
) -> StoreFuture<R>
where
    F: Future<Output = Result<R, StoreError>> + Send + 'static,
{
    let (store, caller) = (table.sql().name().to_owned(), Arc::new(()));
    let work = work(table.clone(), CallAwaited::by(&caller));
    Box::pin(async move {
        let _caller = caller;
        let ended = |error| Err(StoreError::unanswered(&store, error));
        runtime(&store)?.spawn(work).await.unwrap_or_else(ended)
    })
}

/// The caller's runtime.
pub(in crate::store) fn runtime(store: &str) -> Result<Handle, StoreError> {
    let missing = |_| StoreError::unreachable(store, "this needs a tokio runtime");
    Handle::try_current().map_err(missing)
}

/// Carries out a call, and purges now and then.
pub(in crate::store) async fn call<T: RowTable>(
    table: T,
    call: Call,
    awaited: CallAwaited,
) -> Result<Reply, StoreError> {
    /// The number of calls after which a purge looks for expired rows, among twice as many rows.
    const PURGED_EVERY: u32 = 256;
    let reply = carry_out(&table, call, &awaited).await;
    let calls = table.sql().calls.fetch_add(1, Ordering::Relaxed);
    if calls % PURGED_EVERY == PURGED_EVERY - 1 {
        tokio::spawn(async move {
            if let Ok(mut after) = table.sql().purge_after.try_lock()
                && let Ok(next) = table.purge_some(&after, 2 * PURGED_EVERY).await
            {
                *after = next;
            }
        });
    }
    reply
}

/// How many calls of a key lock the row at once after a call that found the row changed.
const LOCKS: u32 = 16;

/// Carries out a call. A caller that gives up leaves nothing open.
async fn carry_out<T: RowTable>(
    table: &T,
    mut call: Call,
    awaited: &CallAwaited,
) -> Result<Reply, StoreError> {
    let known = &table.sql().known;
    let last = known.take(&call.scope);
    let mut locks = last.as_ref().map_or(0, |last| last.locks);
    // The process that returns places is often the last writer, although other processes call for the row, too. The latest
    // message shows which process wrote last.
    if let Some(last) = last
        .as_ref()
        .filter(|last| locks == 0 && (!last.is_shared || last.from_notify || call.asks.is_empty()))
        && let Some(reply) = at_once(table, &mut call, last).await?
    {
        return Ok(reply);
    }
    let last = last.map(|last| last.row.version);
    if locks == 0 {
        let asked = Instant::now();
        let found = table.read(&call.scope).await?;
        known.note_clock(found.now, asked);
        let is_shared = found.is_not(last);
        let (reply, write) = decide(table, &call, found.now, found.row.as_ref())?;
        let Some(write) = write else {
            if let Some(row) = found.row {
                known.keep(call.scope, CachedRow::read(row, is_shared, locks));
            }
            return Ok(reply);
        };
        awaited.or_stop(table.sql().name())?;
        if swap(table, &write).await? {
            wrote(table, write, is_shared, locks);
            return Ok(reply);
        }
        locks = LOCKS;
    }
    let awaited = awaited.clone();
    in_task(table, |table, _| {
        under_lock(table, call, last, locks, awaited)
    })
    .await
}

/// Carries out the call under the lock of the row. `last` is the last known version of the row.
async fn under_lock<T: RowTable>(
    table: T,
    call: Call,
    last: Option<i64>,
    locks: u32,
    awaited: CallAwaited,
) -> Result<Reply, StoreError> {
    let or_stop = || awaited.or_stop(table.sql().name());
    or_stop()?;
    let version = table.sql().known.next_version();
    let (locked, found) = table.lock(&call.scope, version).await?;
    match or_stop().and_then(|()| decide(&table, &call, found.now, found.row.as_ref())) {
        Ok((reply, write)) => {
            // The call was in time when the lock was acquired, and no other call can come between.
            let write = write.map(|write| Write {
                valid_until: None,
                ..write
            });
            table.unlock(locked, write.as_ref()).await?;
            if let Some(write) = write {
                wrote(&table, write, found.is_not(last), locks - 1);
            }
            Ok(reply)
        }
        Err(error) => {
            table.unlock(locked, None).await?;
            Err(error)
        }
    }
}

/// Carries out the call in one round trip, if the row is still the `last` known one and the call changes it. `None` if nothing
/// was done.
async fn at_once<T: RowTable>(
    table: &T,
    call: &mut Call,
    last: &CachedRow,
) -> Result<Option<Reply>, StoreError> {
    let Some((earliest, latest)) = table.sql().known.bounds(Instant::now()) else {
        return Ok(None);
    };
    if call.ttl > 0 {
        call.ttl = call.ttl.saturating_add(1_000 * (latest - earliest) as u64);
    }
    let Ok((reply, Some(write))) = decide(table, call, earliest, Some(&last.row)) else {
        return Ok(None); // it is not granted by then, or the rules return an error
    };
    let from_notify = last.from_notify.then(|| last.row.state.clone());
    let write = Write {
        from_notify,
        ..write
    };
    if !swap(table, &write).await? {
        return Ok(None);
    }
    wrote(table, write, last.is_shared, 0);
    Ok(Some(reply))
}

/// [`RowTable::swap`], which also reads the clock. If the connection breaks, the version of the row shows whether the write was
/// carried out, because no other write sets that version.
async fn swap<T: RowTable>(table: &T, write: &Write) -> Result<bool, StoreError> {
    let asked = Instant::now();
    let now = match table.swap(write).await {
        Err(unanswered @ StoreError::Unanswered { .. }) => match table.read(&write.scope).await {
            Ok(found) if found.version() == Some(write.row.version) => Some(found.now),
            // If the server carries out this write later, it finds the version of the following write, and changes nothing.
            Ok(found) if found.version() == write.version => None,
            _ => return Err(unanswered),
        },
        known => known?,
    };
    if let Some(now) = now {
        table.sql().known.note_clock(now, asked);
    }
    Ok(now.is_some())
}

/// Decides the call as of this instant, in microseconds since 1970. Returns the reply, and the write, if there is anything to
/// write.
fn decide<T: RowTable>(
    table: &T,
    call: &Call,
    now: i64,
    row: Option<&KeyRow>,
) -> Result<(Reply, Option<Write>), StoreError> {
    let SqlServer { rules, known, .. } = table.sql();
    let now = u64::try_from(now).unwrap_or_default().saturating_mul(1_000);
    // A row that was inserted only for its lock has an empty state.
    let decided = rules.decide(now, row.map(|row| &row.state), call)?;
    let Decided {
        reply,
        state,
        turns,
        next,
    } = decided;
    let stop = reply.stop.as_ref().map(|stop| stop.until);
    let awaits_release = matches!(stop, Some(DeniedUntil::Release { .. }))
        && call.asks.iter().any(|asks| asks.waits);
    let write = state.map(|state| Write {
        scope: call.scope.clone(),
        version: row.map(|row| row.version),
        from_notify: None,
        row: KeyRow {
            version: known.next_version(),
            state,
        },
        turns,
        next,
        awaits_release,
        valid_until: call.valid_until.map(|until| until.div_ceil(1_000) as i64),
    });
    Ok((reply, write))
}

/// Notes that the row was written.
fn wrote<T: RowTable>(table: &T, write: Write, is_shared: bool, locks: u32) {
    table.wrote(&write);
    let row = CachedRow::read(write.row, is_shared, locks);
    table.sql().known.keep(write.scope, row);
}

impl ReadRow {
    fn version(&self) -> Option<i64> {
        self.row.as_ref().map(|row| row.version)
    }

    /// Whether another process has written the row since it had the `last` version.
    fn is_not(&self, last: Option<i64>) -> bool {
        last.is_some() && self.version() != last
    }
}

impl CachedRow {
    /// A row that this process has read or written.
    fn read(row: KeyRow, is_shared: bool, locks: u32) -> Self {
        Self {
            row,
            is_shared,
            from_notify: false,
            locks,
        }
    }
}

/// Connections that serve one caller at a time.
pub(in crate::store) struct Pool<C> {
    idle: Mutex<Vec<C>>,
    permits: Arc<Semaphore>,
}

/// A connection of one caller. It is closed unless it is put back.
pub(in crate::store) struct Taken<C> {
    pub(in crate::store) connection: C,
    /// Whether the connection has been used before. If so, the server may have closed it meanwhile.
    pub(in crate::store) was_idle: bool,
    _permit: Option<OwnedSemaphorePermit>,
}

impl<C> Pool<C> {
    /// A pool of at most `max` connections.
    pub(in crate::store) fn new(max: usize) -> Self {
        Self {
            idle: Mutex::default(),
            permits: Arc::new(Semaphore::new(max)),
        }
    }

    /// An idle connection, or a new one.
    pub(in crate::store) async fn take(
        &self,
        connect: impl Future<Output = Result<C, StoreError>>,
    ) -> Result<Taken<C>, StoreError> {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        let idle = self.idle.lock().pop();
        Ok(Taken {
            was_idle: idle.is_some(),
            connection: match idle {
                Some(connection) => connection,
                None => connect.await?,
            },
            _permit: permit.ok(), // the semaphore is never closed
        })
    }

    pub(in crate::store) fn put_back(&self, taken: Taken<C>) {
        self.idle.lock().push(taken.connection);
    }

    /// Closes the idle connections.
    #[cfg(feature = "mysql")]
    pub(in crate::store) fn clear(&self) {
        self.idle.lock().clear();
    }
}
