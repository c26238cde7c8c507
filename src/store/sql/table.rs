//! A call on a database server, where a row cannot be decided on in one flight.
//!
//! First without a lock: read the row, decide, and write if its version is still the same. That takes two flights, one if nothing
//! is to be written, and leaves nothing open. When somebody else has written meanwhile, the call takes the row's lock, which always
//! gets on; so do the next calls, because they would fail too.

use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::runtime::Handle;
use tokio::sync::Mutex;

use super::super::StoreFuture;
use super::{Decided, Policies, Row};
use crate::error::{Cause, StoreError};
use crate::exchange::{Call, Reply, Scope};

/// What is in the row of a key.
#[derive(Debug)]
pub(in crate::store) struct Found {
    /// The clock of the server, in microseconds since 1970. Of a locked row it was read under the lock.
    pub(in crate::store) now: i64,
    /// The row with its version.
    pub(in crate::store) row: Option<(i64, Row)>,
}

/// What is to be written.
#[derive(Debug)]
pub(in crate::store) struct Write {
    pub(in crate::store) scope: Scope,
    /// The version that the row must have; `None`: there must be none.
    pub(in crate::store) version: Option<i64>,
    pub(in crate::store) row: Row,
    /// Whether places came back.
    pub(in crate::store) released: bool,
    /// It must not be written at or after this instant of the server, in microseconds since 1970.
    pub(in crate::store) valid_until: Option<i64>,
}

/// A table of rows by key on a server.
pub(in crate::store) trait Table: Send + Sync {
    /// A transaction that holds the lock of a row.
    type Locked: Send;

    fn name(&self) -> &str;

    /// Reads the row without a lock.
    fn read(&self, scope: &Scope) -> impl Future<Output = Result<Found, StoreError>> + Send;

    /// Writes the row if it still has that version. Returns whether it had.
    fn swap(&self, write: Write) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Locks the row, and reads it.
    fn lock(&self, scope: &Scope) -> impl Future<Output = Result<(Self::Locked, Found), StoreError>> + Send;

    /// Writes the row, if it is to be written, and ends the transaction.
    fn unlock(&self, locked: Self::Locked, write: Option<Write>) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// How many calls take the lock at once because one before them was too late.
#[derive(Debug, Default)]
pub(in crate::store) struct Contention(AtomicU32);

impl Contention {
    const CALLS: u32 = 16;

    fn note(&self) {
        self.0.store(Self::CALLS, Ordering::Relaxed);
    }

    fn is_expected(&self) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |calls| calls.checked_sub(1)).is_ok()
    }
}

/// Expired rows are looked for after so many calls, among twice as many rows.
pub(in crate::store) const PURGED_EVERY: u32 = 256;

/// Where the store's own purge goes on.
#[derive(Debug, Default)]
pub(in crate::store) struct Purge {
    calls: AtomicU32,
    pub(in crate::store) after: Mutex<Vec<u8>>,
}

impl Purge {
    pub(in crate::store) fn is_due(&self) -> bool {
        self.calls.fetch_add(1, Ordering::Relaxed) % PURGED_EVERY == PURGED_EVERY - 1
    }
}

/// Does the work in a task, which a caller that gives up does not stop.
pub(in crate::store) fn in_task<T, F>(store: &str, work: F) -> StoreFuture<T>
where
    T: Send + 'static,
    F: Future<Output = Result<T, StoreError>> + Send + 'static,
{
    let store = store.to_owned();
    Box::pin(async move {
        let Ok(runtime) = Handle::try_current() else {
            return Err(StoreError::Unreachable { store, source: Cause::new("this needs a tokio runtime") });
        };
        let ended = |error| Err(StoreError::Unanswered { store, after: None, source: Some(Cause::new(error)) });
        runtime.spawn(work).await.unwrap_or_else(ended)
    })
}

/// A row that was deleted and made anew must not have a version that it had before.
pub(in crate::store) fn first_version() -> i64 {
    (uuid::Uuid::new_v4().as_u64_pair().1 >> 2) as i64
}

/// Carries out a call.
pub(in crate::store) async fn carry_out<T: Table>(
    table: &T,
    policies: &Policies,
    contention: &Contention,
    call: &Call,
) -> Result<Reply, StoreError> {
    let rules = policies.rules(&call.policy)?;
    let decide = |found: &Found| {
        let now = u64::try_from(found.now).unwrap_or_default().saturating_mul(1_000);
        // A row that was made to be locked is empty.
        let row = found.row.as_ref().map(|(_, row)| row).filter(|row| !row.state.is_empty());
        rules.decide(table.name(), now, row, call)
    };
    if !contention.is_expected() {
        let found = table.read(&call.scope).await?;
        let Decided { reply, row, released } = decide(&found)?;
        let Some(row) = row else { return Ok(reply) };
        if table.swap(write(call, &found, row, released)).await? {
            return Ok(reply);
        }
        contention.note();
    }
    let (locked, found) = table.lock(&call.scope).await?;
    match decide(&found) {
        Ok(Decided { reply, row, released }) => {
            // It was in time when the lock was got, and nobody can come between.
            let write = row.map(|row| Write { valid_until: None, ..write(call, &found, row, released) });
            table.unlock(locked, write).await?;
            Ok(reply)
        }
        Err(error) => {
            table.unlock(locked, None).await?;
            Err(error)
        }
    }
}

fn write(call: &Call, found: &Found, row: Row, released: bool) -> Write {
    let version = found.row.as_ref().map(|(version, _)| *version);
    let valid_until = call.valid_until.map(|until| until.div_ceil(1_000) as i64);
    Write { scope: call.scope.clone(), version, row, released, valid_until }
}
