//! A call on a database server, where a row cannot be decided on in one flight.
//!
//! First without a lock: read the row, decide, and write if its version is still the same. That takes two flights, one if nothing
//! is to be written, and leaves nothing open. When somebody else has written meanwhile, the call takes the row's lock, which always
//! gets on; so do the next calls, because they would fail too.
//!
//! The row need not be read if it is [known](super::known) since the last call. Then the call is decided as of an instant that the
//! server's clock has surely reached, at most a flight before: what is granted by it is never too much. Leases count from an instant
//! that the clock has surely not passed, so that none ends in the store before it ends for its holder.

#[cfg(test)]
mod tests;

use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use tokio::runtime::Handle;
use tokio::sync::Mutex;

use super::super::rules::PolicyRules;
use super::super::{Decided, KeyState, StoreFuture};
use super::Policies;
use super::known::{Bounds, Known, KnownRow};
use crate::error::{Cause, StoreError};
use crate::exchange::{Call, Reply, Scope};

/// What is in the row of a key.
#[derive(Debug)]
pub(in crate::store) struct Found {
    /// The clock of the server, in microseconds since 1970. Of a locked row it was read under the lock.
    pub(in crate::store) now: i64,
    /// The row with its version.
    pub(in crate::store) row: Option<(i64, KeyState)>,
}

/// What is to be written.
#[derive(Debug)]
pub(in crate::store) struct Write {
    pub(in crate::store) scope: Scope,
    /// The version that the row must have; `None`: there must be none.
    pub(in crate::store) version: Option<i64>,
    /// The row that it must be: anybody could have told of one.
    pub(in crate::store) told: Option<KeyState>,
    /// The version that it has afterwards.
    pub(in crate::store) next_version: i64,
    pub(in crate::store) row: KeyState,
    /// Whether places came back.
    pub(in crate::store) released: bool,
    /// It must not be written at or after this instant of the server, in microseconds since 1970.
    pub(in crate::store) valid_until: Option<i64>,
}

/// A table of rows by key on a server.
pub(in crate::store) trait Table: Clone + Send + Sync + 'static {
    /// A transaction that holds the lock of a row.
    type Locked: Send;

    fn name(&self) -> &str;

    fn policies(&self) -> &Policies;

    fn known(&self) -> &Known;

    /// Reads the row without a lock.
    fn read(&self, scope: &Scope) -> impl Future<Output = Result<Found, StoreError>> + Send;

    /// Writes the row if it still has that version. Returns the clock of the server if it had.
    fn swap(&self, write: &Write) -> impl Future<Output = Result<Option<i64>, StoreError>> + Send;

    /// Locks the row, and reads it. If there is none, it is made with this version.
    fn lock(&self, scope: &Scope, version: i64) -> impl Future<Output = Result<(Self::Locked, Found), StoreError>> + Send;

    /// Writes the row, if it is to be written, and ends the transaction.
    fn unlock(&self, locked: Self::Locked, write: Option<&Write>) -> impl Future<Output = Result<(), StoreError>> + Send;
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

/// Whoever awaits a call.
#[derive(Debug, Default)]
pub(in crate::store) struct Caller(Arc<()>);

/// Whether the caller is there still.
#[derive(Debug, Clone)]
pub(in crate::store) struct Awaited(Weak<()>);

impl Caller {
    pub(in crate::store) fn awaits(&self) -> Awaited {
        Awaited(Arc::downgrade(&self.0))
    }
}

impl Awaited {
    /// A caller that has given up makes another call, which tells of this one what it must. So nothing of this one may be begun after
    /// it, in whichever order the server carries out what is on its way: who writes second finds another version, and stops here.
    fn or_stop(&self, store: &str) -> Result<(), StoreError> {
        let gave_up = || StoreError::Unanswered { store: store.to_owned(), after: None, source: None };
        if self.0.strong_count() > 0 { Ok(()) } else { Err(gave_up()) }
    }
}

/// Does the work in a task, which a caller that gives up does not stop.
pub(in crate::store) fn in_task<T, F>(store: &str, work: impl FnOnce(Awaited) -> F) -> StoreFuture<T>
where
    T: Send + 'static,
    F: Future<Output = Result<T, StoreError>> + Send + 'static,
{
    let (store, caller) = (store.to_owned(), Caller::default());
    let work = work(caller.awaits());
    Box::pin(async move {
        let _caller = caller;
        let ended = |error| Err(StoreError::Unanswered { store: store.clone(), after: None, source: Some(Cause::new(error)) });
        runtime(&store)?.spawn(work).await.unwrap_or_else(ended)
    })
}

/// The caller's runtime.
pub(in crate::store) fn runtime(store: &str) -> Result<Handle, StoreError> {
    let missing = |_| StoreError::Unreachable { store: store.to_owned(), source: Cause::new("this needs a tokio runtime") };
    Handle::try_current().map_err(missing)
}

/// How many calls of a key lock the row at once, because one before them was too late.
const LOCKS: u32 = 16;

/// Carries out a call. A caller that gives it up leaves nothing open.
pub(in crate::store) async fn carry_out<T: Table>(table: &T, mut call: Call, awaited: &Awaited) -> Result<Reply, StoreError> {
    let (rules, known) = (table.policies().rules(&call.policy)?, table.known());
    let last = known.take(&call.scope);
    let mut locks = last.as_ref().map_or(0, |last| last.locks);
    // Whoever gives back has often written last, although others ask for it, too. Who has just told of the row has written last.
    if let Some(last) = last.as_ref().filter(|last| locks == 0 && (!last.is_shared || last.is_told || call.asks.is_empty()))
        && let Some(reply) = at_once(table, &rules, &mut call, last).await?
    {
        return Ok(reply);
    }
    let last = last.map(|last| last.version);
    if locks == 0 {
        let asked = Instant::now();
        let found = table.read(&call.scope).await?;
        known.note_clock(found.now, asked);
        let is_shared = found.is_not(last);
        let Decided { reply, state: row, released } = decide(table, &rules, &found, &call)?;
        let Some(row) = row else {
            if let Some((version, row)) = found.row {
                known.keep(call.scope, KnownRow { version, row, is_shared, is_told: false, locks });
            }
            return Ok(reply);
        };
        let write = Write { released, ..write(known, &call, found.version(), row) };
        awaited.or_stop(table.name())?;
        let asked = Instant::now();
        if let Some(now) = swap(table, &write).await? {
            known.note_clock(now, asked);
            write.known(known, is_shared, locks);
            return Ok(reply);
        }
        locks = LOCKS;
    }
    let (process, awaited) = (table.clone(), awaited.clone());
    in_task(table.name(), |_| under_lock(process, rules, call, last, locks, awaited)).await
}

/// Carries the call out under the lock of the row, whose version was the `last` one.
async fn under_lock<T: Table>(
    table: T,
    rules: Arc<PolicyRules>,
    call: Call,
    last: Option<i64>,
    locks: u32,
    awaited: Awaited,
) -> Result<Reply, StoreError> {
    let known = table.known();
    awaited.or_stop(table.name())?;
    let (locked, found) = table.lock(&call.scope, known.next_version()).await?;
    match awaited.or_stop(table.name()).and_then(|()| decide(&table, &rules, &found, &call)) {
        Ok(Decided { reply, state: row, released }) => {
            // It was in time when the lock was got, and nobody can come between.
            let write = row.map(|row| Write { released, valid_until: None, ..write(known, &call, found.version(), row) });
            table.unlock(locked, write.as_ref()).await?;
            if let Some(write) = write {
                write.known(known, found.is_not(last), locks - 1);
            }
            Ok(reply)
        }
        Err(error) => {
            table.unlock(locked, None).await?;
            Err(error)
        }
    }
}

/// Carries the call out in one flight, if the row is still as it was `last` known, and is to be written. `None`: nothing has happened.
async fn at_once<T: Table>(
    table: &T,
    rules: &PolicyRules,
    call: &mut Call,
    last: &KnownRow,
) -> Result<Option<Reply>, StoreError> {
    let (known, asked) = (table.known(), Instant::now());
    let Some(Bounds { earliest, latest }) = known.bounds(asked) else { return Ok(None) };
    if call.ttl > 0 {
        call.ttl = call.ttl.saturating_add(1_000 * (latest - earliest) as u64);
    }
    let Ok(Decided { reply, state: Some(row), released }) = rules.decide(table.name(), nanos(earliest), Some(&last.row), call)
    else {
        return Ok(None); // it is not granted by then, or there is something wrong with it
    };
    let told = last.is_told.then(|| last.row.clone());
    let write = Write { released, told, ..write(known, call, Some(last.version), row) };
    let Some(now) = swap(table, &write).await? else { return Ok(None) };
    known.note_clock(now, asked);
    write.known(known, last.is_shared, 0);
    Ok(Some(reply))
}

/// [`Table::swap`]. If the connection breaks, the row says what has become of it, because no other write makes it have that version.
async fn swap<T: Table>(table: &T, write: &Write) -> Result<Option<i64>, StoreError> {
    let unanswered = match table.swap(write).await {
        Err(unanswered @ StoreError::Unanswered { .. }) => unanswered,
        known => return known,
    };
    match table.read(&write.scope).await {
        Ok(found) if found.version() == Some(write.next_version) => Ok(Some(found.now)),
        Ok(found) if found.version() == write.version => Ok(None), // were it carried out later, another write would come first
        _ => Err(unanswered),
    }
}

fn decide<T: Table>(table: &T, rules: &PolicyRules, found: &Found, call: &Call) -> Result<Decided, StoreError> {
    // The state of a row that was made to be locked is empty.
    rules.decide(table.name(), nanos(found.now), found.row.as_ref().map(|(_, row)| row), call)
}

/// Microseconds as nanoseconds.
fn nanos(micros: i64) -> u64 {
    u64::try_from(micros).unwrap_or_default().saturating_mul(1_000)
}

fn write(known: &Known, call: &Call, version: Option<i64>, row: KeyState) -> Write {
    let valid_until = call.valid_until.map(|until| until.div_ceil(1_000) as i64);
    Write {
        scope: call.scope.clone(),
        version,
        told: None,
        next_version: known.next_version(),
        row,
        released: false,
        valid_until,
    }
}

impl Found {
    fn version(&self) -> Option<i64> {
        self.row.as_ref().map(|(version, _)| *version)
    }

    /// Whether somebody else has written it since its version was the `last` one.
    fn is_not(&self, last: Option<i64>) -> bool {
        last.is_some() && self.version() != last
    }
}

impl Write {
    /// It was written.
    fn known(self, known: &Known, is_shared: bool, locks: u32) {
        let Self { scope, next_version: version, row, .. } = self;
        known.keep(scope, KnownRow { version, row, is_shared, is_told: false, locks });
    }
}
