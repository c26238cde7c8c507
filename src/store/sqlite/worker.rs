//! The thread of an SQLite store.

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, ErrorCode, OptionalExtension, Transaction, TransactionBehavior, params};
use tokio::sync::oneshot;

use super::super::KeyPage;
use super::super::listeners::Listeners;
use super::super::sql::{Policies, SCHEMA_VERSION, SPARED_MICROS, expires, micros, read_state, rows};
use crate::error::{Cause, StoreError};
use crate::exchange::{Call, Reply, Scope};

pub(super) const SCHEMA: &str = include_str!("../sqlite.sql");

/// The most jobs that share a transaction, for which other processes wait.
const MAX_TOGETHER: usize = 128;

/// Expired rows are looked for after so many calls: more are deleted than the calls can have made.
const PURGED_EVERY: usize = 256;

pub(super) type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

/// How the file is opened.
pub(super) struct Settings {
    /// As SQLite names it.
    pub(super) synchronous: &'static str,
    pub(super) busy_timeout: Duration,
    pub(super) creates_tables: bool,
}

/// What the thread is to do.
pub(super) enum Job {
    Call(Box<Call>, Answer<Reply>),
    Keys(Arc<str>, Option<Vec<u8>>, usize, Answer<KeyPage>),
    Reset(Scope, Answer<()>),
    Purge(Arc<str>, usize, Answer<u64>),
}

/// What a job has come to. It is told after the commit.
enum Done {
    Call(Result<Reply, StoreError>, bool),
    Keys(KeyPage),
    Reset,
    Purge(u64),
}

pub(super) struct Worker {
    store: String,
    connection: Connection,
    policies: Arc<Policies>,
    listeners: Arc<Listeners>,
    /// Calls since the last purge.
    calls: usize,
}

/// Why a transaction failed.
enum Failed {
    /// Nothing of it was carried out.
    Undone(rusqlite::Error),
    /// It is not known whether it was carried out.
    Unknown(rusqlite::Error),
}

impl From<rusqlite::Error> for Failed {
    fn from(error: rusqlite::Error) -> Self {
        Self::Undone(error)
    }
}

impl Worker {
    pub(super) fn open(
        path: &Path,
        options: &Settings,
        policies: Arc<Policies>,
        listeners: Arc<Listeners>,
    ) -> Result<Self, StoreError> {
        let store = path.display().to_string();
        let until = Instant::now() + options.busy_timeout;
        // To change to WAL, a connection must be alone, and SQLite does not always wait for that.
        let mut connection = loop {
            match connect(path, options) {
                Err(error) if is_busy(&error) && Instant::now() < until => thread::sleep(Duration::from_millis(5)),
                Err(error) => return Err(not_done(store, error)),
                Ok(connection) => break connection,
            }
        };
        let failed = |error| not_done(store.clone(), error);
        let found = match version(&connection).map_err(failed)? {
            None if options.creates_tables => {
                let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
                transaction.execute_batch(SCHEMA).and_then(|()| transaction.commit()).map_err(failed)?;
                SCHEMA_VERSION
            }
            None => return Err(StoreError::Refused { store, source: Cause::new("it has no tables; run SqliteStore::schema()") }),
            Some(found) => found,
        };
        if found > SCHEMA_VERSION {
            return Err(StoreError::NewerSchema { store, found, known: SCHEMA_VERSION });
        }
        Ok(Self { store, connection, policies, listeners, calls: 0 })
    }

    /// Does what comes, until all senders are gone.
    pub(super) fn run(mut self, jobs: &mpsc::Receiver<Job>) {
        while let Ok(first) = jobs.recv() {
            let mut together = vec![first];
            together.extend(jobs.try_iter().take(MAX_TOGETHER - 1));
            self.carry_out(together);
        }
    }

    /// Carries out jobs in one transaction. If that fails on account of one of them, each is tried alone.
    fn carry_out(&mut self, jobs: Vec<Job>) {
        let failed = match self.transact(&jobs) {
            Ok(done) => return jobs.into_iter().zip(done).for_each(|(job, done)| self.answer(job, done)),
            Err(Failed::Undone(error)) if jobs.len() > 1 && !is_busy(&error) => {
                return jobs.into_iter().for_each(|job| self.carry_out(vec![job]));
            }
            Err(Failed::Undone(error)) => not_done(self.store.clone(), error),
            Err(Failed::Unknown(error)) => {
                StoreError::Unanswered { store: self.store.clone(), after: None, source: Some(Cause::new(error)) }
            }
        };
        for job in jobs {
            refuse(job, failed.clone());
        }
    }

    fn transact(&mut self, jobs: &[Job]) -> Result<Vec<Done>, Failed> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let done = jobs.iter().map(|job| step(&self.store, &self.policies, &transaction, job)).collect::<Result<_, _>>()?;
        self.calls += jobs.iter().filter(|job| matches!(job, Job::Call(..))).count();
        if self.calls >= PURGED_EVERY {
            self.calls = 0;
            purge(&transaction, None, micros(now()) - SPARED_MICROS, 2 * PURGED_EVERY)?;
        }
        transaction.commit().map_err(|error| match error.sqlite_error_code() {
            Some(ErrorCode::SystemIoFailure) => Failed::Unknown(error),
            _ => Failed::Undone(error),
        })?;
        Ok(done)
    }

    /// Nobody may await the answer any more.
    fn answer(&self, job: Job, done: Done) {
        match (job, done) {
            (Job::Call(call, answer), Done::Call(reply, released)) => {
                if released {
                    self.listeners.released(&call.scope.limiter, &call.scope.key);
                }
                answer.send(reply).ok();
            }
            (Job::Reset(scope, answer), Done::Reset) => {
                self.listeners.released(&scope.limiter, &scope.key);
                answer.send(Ok(())).ok();
            }
            (Job::Keys(.., answer), Done::Keys(page)) => drop(answer.send(Ok(page))),
            (Job::Purge(.., answer), Done::Purge(purged)) => drop(answer.send(Ok(purged))),
            _ => {} // each job is done as what it is
        }
    }
}

fn connect(path: &Path, options: &Settings) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(options.busy_timeout.min(Duration::from_millis(i32::MAX as u64)))?;
    connection.query_row("PRAGMA journal_mode = WAL", (), |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", options.synchronous)?;
    Ok(connection)
}

/// The version of the tables, if there are any.
fn version(connection: &Connection) -> rusqlite::Result<Option<i64>> {
    let exists = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'tollgate_schema'";
    match connection.query_row(exists, (), |_| Ok(())).optional()? {
        None => Ok(None),
        Some(()) => connection.query_row("SELECT max(version) FROM tollgate_schema", (), |row| row.get(0)),
    }
}

fn step(store: &str, policies: &Policies, transaction: &Transaction<'_>, job: &Job) -> rusqlite::Result<Done> {
    Ok(match job {
        Job::Call(call, _) => call_step(store, policies, transaction, call)?,
        Job::Keys(limiter, from, max, _) => Done::Keys(keys(transaction, limiter, from.as_deref(), *max)?),
        Job::Reset(scope, _) => {
            let mut statement = transaction.prepare_cached("DELETE FROM tollgate_keys WHERE limiter = ?1 AND k = ?2")?;
            statement.execute(params![scope.limiter.as_bytes(), &scope.key[..]])?;
            Done::Reset
        }
        Job::Purge(limiter, max, _) => Done::Purge(purge(transaction, Some(limiter), micros(now()), *max)?),
    })
}

fn call_step(store: &str, policies: &Policies, transaction: &Transaction<'_>, call: &Call) -> rusqlite::Result<Done> {
    let (limiter, key) = (call.scope.limiter.as_bytes(), &call.scope.key[..]);
    let mut select = transaction.prepare_cached("SELECT expires, state FROM tollgate_keys WHERE limiter = ?1 AND k = ?2")?;
    let row = select.query_row(params![limiter, key], |row| Ok(read_state(row.get(0)?, row.get(1)?))).optional()?;
    let decided = policies.rules(&call.policy).and_then(|rules| rules.decide(store, now(), row.as_ref(), call));
    let decided = match decided {
        Err(error) => return Ok(Done::Call(Err(error), false)),
        Ok(decided) => decided,
    };
    if let Some(state) = decided.state {
        let mut replace = transaction.prepare_cached(
            "INSERT INTO tollgate_keys (limiter, k, expires, state) VALUES (?1, ?2, ?3, ?4) \
             ON CONFLICT (limiter, k) DO UPDATE SET expires = excluded.expires, state = excluded.state",
        )?;
        replace.execute(params![limiter, key, expires(&state), state.bytes])?;
    }
    Ok(Done::Call(Ok(decided.reply), decided.released))
}

fn keys(transaction: &Transaction<'_>, limiter: &str, from: Option<&[u8]>, max: usize) -> rusqlite::Result<KeyPage> {
    let max = max.max(1);
    // The next page begins behind the last key. No key is below the empty one.
    let mut select = transaction.prepare_cached(
        "SELECT k FROM tollgate_keys WHERE limiter = ?1 AND k >= ?2 AND (k > ?2 OR ?3) AND expires > ?4 ORDER BY k LIMIT ?5",
    )?;
    let of = params![limiter.as_bytes(), from.unwrap_or_default(), from.is_none(), micros(now()), rows(max)];
    let keys = select.query_map(of, |row| row.get::<_, Vec<u8>>(0))?.collect::<rusqlite::Result<Vec<_>>>()?;
    let next = if keys.len() == max { keys.last().cloned() } else { None };
    Ok(KeyPage { keys: keys.into_iter().map(Into::into).collect(), next })
}

/// Deletes rows that have expired by that instant.
fn purge(transaction: &Transaction<'_>, limiter: Option<&str>, by: i64, max: usize) -> rusqlite::Result<u64> {
    let mut delete = transaction.prepare_cached(
        "DELETE FROM tollgate_keys WHERE (limiter, k) IN (SELECT limiter, k FROM tollgate_keys WHERE expires <= ?1 \
         AND (?2 IS NULL OR limiter = ?2) LIMIT ?3)",
    )?;
    Ok(delete.execute(params![by, limiter.map(str::as_bytes), rows(max)])? as u64)
}

/// The clock of the host, in nanoseconds since 1970.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// The error of a transaction that was not carried out.
fn not_done(store: String, error: rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => StoreError::Damaged { at: "the file".to_owned(), store },
        Some(ErrorCode::CannotOpen | ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::SystemIoFailure) => {
            StoreError::Unreachable { store, source: Cause::new(error) }
        }
        _ => StoreError::Refused { store, source: Cause::new(error) },
    }
}

fn refuse(job: Job, error: StoreError) {
    match job {
        Job::Call(_, answer) => drop(answer.send(Err(error))),
        Job::Keys(.., answer) => drop(answer.send(Err(error))),
        Job::Reset(_, answer) => drop(answer.send(Err(error))),
        Job::Purge(.., answer) => drop(answer.send(Err(error))),
    }
}
