//! A store in an SQLite file, for the processes of one host.

use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rusqlite::{
    Connection, ErrorCode, OptionalExtension, Transaction, TransactionBehavior, params,
};
use tokio::sync::oneshot;

use super::sql::{SPARED_MICROS, expires, must_create, page, read_state, rows};
use super::{Decided, KeyPage, Listeners, ReleaseListener, Rules, Store, StoreFuture};
use crate::error::StoreError;
use crate::exchange::{Call, Reply, Scope};
use crate::policy::Policy;

const SCHEMA: &str = include_str!("sqlite.sql");

/// A store in an SQLite file, for the processes of one host. The limits survive restarts. Clones share the store.
///
/// Each store has a thread of its own with one connection. The thread carries out the calls in order; waiting calls share a
/// transaction. Processes take turns by the file's lock (`BEGIN IMMEDIATE`, in WAL mode). The file must be on a local disk:
/// network file systems do not lock reliably. The clock is the host's. If the file is removed or replaced, each process opens the
/// new one at its next call, so the limits begin anew for all of them (on Unix; elsewhere an open file cannot be removed).
///
/// Waiters in this process are notified of released places; waiters in other processes poll.
///
/// Each call rewrites the state of its key: a few dozen bytes, and about ten for each live lease and each entry of a sliding log.
/// For a token bucket or a throttle, a [settlement](crate::Permit::settle) below the charge refunds nothing, because past grants
/// are not kept.
///
/// # Examples
///
/// ```
/// use tollgate::store::{SqliteStore, Store};
///
/// # let folder = std::env::temp_dir().join(format!("tollgate-doc-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// let store = SqliteStore::open(folder.join("limits.db"))?;
/// store.supports(&"8 concurrent ttl 30s and 100/min".parse()?)?;
/// # drop(store);
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct SqliteStore {
    shared: Arc<SqliteShared>,
}

struct SqliteShared {
    jobs: mpsc::Sender<Job>,
    rules: Rules,
    listeners: Listeners,
}

/// Options for opening an [`SqliteStore`].
///
/// ```
/// use std::time::Duration;
/// use tollgate::store::{SqliteStore, SqliteStoreOptions, SqliteSynchronous};
///
/// # let folder = std::env::temp_dir().join(format!("tollgate-doc-options-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// let options = SqliteStoreOptions::new().synchronous(SqliteSynchronous::Full).busy_timeout(Duration::from_secs(1));
/// let store = options.open(folder.join("limits.db"))?;
/// # drop(store);
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct SqliteStoreOptions {
    synchronous: SqliteSynchronous,
    busy_timeout: Duration,
    creates_tables: bool,
}

/// When SQLite waits for the disk. See [`SqliteStoreOptions`] for an example.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SqliteSynchronous {
    /// At checkpoints. A process that ends or is killed loses nothing. After a power failure the last calls may be lost, and
    /// their units are granted again.
    #[default]
    Normal,
    /// At each transaction: a call that was answered survives a power failure.
    Full,
}

impl Default for SqliteStoreOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl SqliteStoreOptions {
    /// [`SqliteSynchronous::Normal`], a busy timeout of 5 seconds, and missing tables are created.
    pub const fn new() -> Self {
        Self {
            synchronous: SqliteSynchronous::Normal,
            busy_timeout: Duration::from_secs(5),
            creates_tables: true,
        }
    }

    setters! { const:
        /// When SQLite waits for the disk.
        pub synchronous(synchronous: SqliteSynchronous) => synchronous = synchronous;

        /// How long a transaction waits for transactions of other processes, in whole milliseconds, up to 24 days. A call that
        /// would wait longer fails with [`StoreError::Unreachable`], whose source says that the database is locked. With a time above
        /// the [deadline](crate::SharedLimiterBuilder::deadline) of the limiter, a request fails earlier, with
        /// [`StoreError::Unanswered`], which does not say why.
        pub busy_timeout(busy_timeout: Duration) => busy_timeout = busy_timeout;

        /// Whether missing tables are created. Otherwise [`SqliteStore::schema`] must have been run.
        pub create_tables(creates_tables: bool) => creates_tables = creates_tables;
    }

    /// Opens the file, or creates it, and starts the store's thread. This blocks while the file is opened.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unreachable`] if the file cannot be opened, [`StoreError::Refused`] if it cannot be written, has no tables or
    /// is not a database, and [`StoreError::NewerSchema`].
    pub fn open(self, path: impl AsRef<Path>) -> Result<SqliteStore, StoreError> {
        let name = path.as_ref().display().to_string();
        let worker = Worker::open(path.as_ref(), self)?;
        let (jobs, receiver) = mpsc::channel();
        let thread = thread::Builder::new().name("tollgate-sqlite".to_owned());
        let spawned = thread.spawn(move || worker.run(&receiver));
        spawned.map_err(|error| StoreError::unreachable(&name, error))?;
        Ok(SqliteStore {
            shared: Arc::new(SqliteShared {
                jobs,
                rules: Rules::new(name),
                listeners: Listeners::default(),
            }),
        })
    }
}

impl SqliteStore {
    /// Opens the file, or creates it, with the default [options](SqliteStoreOptions). This blocks while the file is opened.
    ///
    /// See the [type's example](SqliteStore#examples).
    ///
    /// # Errors
    ///
    /// Those of [`SqliteStoreOptions::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        SqliteStoreOptions::new().open(path)
    }

    /// The statements that create the tables. They change nothing if the tables exist.
    ///
    /// ```
    /// println!("{}", tollgate::store::SqliteStore::schema());
    /// ```
    #[must_use]
    pub const fn schema() -> &'static str {
        SCHEMA
    }

    /// Sends the step to the thread, which runs it even if the future is dropped. `committed` is called after the commit.
    fn order<T: Send + 'static>(
        &self,
        mut step: impl FnMut(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
        committed: impl FnOnce(&T) + Send + 'static,
    ) -> StoreFuture<T> {
        let (answer, answered) = oneshot::channel();
        let (mut result, mut end) = (None, Some((committed, answer)));
        let sent = self.shared.jobs.send(Box::new(move |stage| {
            match stage {
                JobStage::Step(transaction) => result = Some(step(transaction)?),
                JobStage::End(ended) => {
                    if let Some(result) = ended.map(|()| result.take()).transpose()
                        && let Some((committed, answer)) = end.take()
                    {
                        result.as_ref().map(committed).ok();
                        answer.send(result).ok(); // the caller may no longer wait for it
                    }
                }
            }
            Ok(())
        }));
        let store = self.name();
        Box::pin(async move {
            sent.map_err(|_| StoreError::unreachable(&store, "its thread has ended"))?;
            let ended = |error| Err(StoreError::unanswered(&store, error));
            answered.await.unwrap_or_else(ended)
        })
    }
}

debug_fields! { SqliteStore, |store| path = store.shared.rules.store() }

impl Store for SqliteStore {
    fn name(&self) -> String {
        self.shared.rules.store().to_owned()
    }

    fn supports(&self, policy: &Policy) -> Result<(), StoreError> {
        self.shared.rules.supports(policy)
    }

    fn call(&self, call: Call) -> StoreFuture<Reply> {
        let (deciding, telling) = (Arc::clone(&self.shared), Arc::clone(&self.shared));
        let scope = call.scope.clone();
        let decided = self.order(
            move |transaction| decide(transaction, &deciding.rules, &call),
            move |decided| {
                if let Ok(Decided { turns, next, .. }) = decided {
                    telling
                        .listeners
                        .turns(&scope.limiter, &scope.key, turns, *next);
                }
            },
        );
        Box::pin(async move { decided.await?.map(|decided| decided.reply) })
    }

    /// Notifies the listener of releases in this process. Returns `false`, because the store does not see releases in other
    /// processes.
    fn listen(&self, limiter: &Arc<str>, listener: ReleaseListener) -> bool {
        self.shared.listeners.add(limiter, listener);
        false
    }

    fn keys(&self, limiter: &Arc<str>, from: Option<Vec<u8>>, max: usize) -> StoreFuture<KeyPage> {
        let limiter = Arc::clone(limiter);
        let step = move |transaction: &Transaction<'_>| {
            select_keys(transaction, &limiter, from.as_deref(), max)
        };
        self.order(step, |_| ())
    }

    fn reset(&self, scope: Scope) -> StoreFuture<()> {
        let (shared, of) = (Arc::clone(&self.shared), scope.clone());
        self.order(
            move |transaction| {
                let delete = "DELETE FROM tollgate_keys WHERE limiter = ?1 AND k = ?2";
                let mut statement = transaction.prepare_cached(delete)?;
                statement
                    .execute(params![of.limiter.as_bytes(), &of.key[..]])
                    .map(drop)
            },
            move |()| shared.listeners.reset(&scope.limiter, &scope.key),
        )
    }

    fn purge(&self, limiter: &Arc<str>, max: usize) -> StoreFuture<u64> {
        let limiter = Arc::clone(limiter);
        let step = move |transaction: &Transaction<'_>| {
            delete_expired(transaction, Some(&limiter), now_micros(), max)
        };
        self.order(step, |_| ())
    }
}

/// The most jobs that share a transaction. Other processes wait for the transaction.
const MAX_TOGETHER: usize = 128;

/// The number of jobs after which a purge looks for expired rows. A purge deletes more rows than so many jobs can make.
const PURGED_EVERY: usize = 256;

/// A job of the thread.
type Job = Box<dyn FnMut(JobStage<'_>) -> rusqlite::Result<()> + Send>;

/// The stage for which the thread calls a job.
enum JobStage<'a> {
    /// The job does its step in this transaction. If the transaction fails, the job may do the step again in another one.
    Step(&'a Transaction<'a>),
    /// The transaction has ended.
    End(Result<(), StoreError>),
}

struct Worker {
    store: String,
    path: PathBuf,
    options: SqliteStoreOptions,
    connection: Connection,
    /// The file that the connection has open.
    file: Option<FileId>,
    /// Jobs since the last purge.
    jobs: usize,
}

impl Worker {
    fn open(path: &Path, options: SqliteStoreOptions) -> Result<Self, StoreError> {
        let store = path.display().to_string();
        let failed = |error| not_done(&store, error);
        // Known before the file is opened: if it is replaced in between, it is opened once more than necessary. The other way round, the
        // new file would be taken for the one that is open.
        let file = file_id(path).or_else(|| {
            Connection::open(path).ok()?; // creates it
            file_id(path)
        });
        let until = Instant::now() + options.busy_timeout;
        // The change to WAL needs a connection to be the only one, and SQLite does not always wait for that.
        let mut connection = loop {
            match connect(path, &options) {
                Err(error) if is_busy(&error) && Instant::now() < until => {
                    thread::sleep(Duration::from_millis(5));
                }
                connected => break connected.map_err(failed)?,
            }
        };
        let found = version(&connection).map_err(failed)?;
        if must_create(&store, found, options.creates_tables)? {
            let created = connection
                .transaction_with_behavior(TransactionBehavior::Immediate)
                .and_then(|transaction| {
                    transaction.execute_batch(SCHEMA)?;
                    transaction.commit()
                });
            created.map_err(failed)?;
        }
        Ok(Self {
            store,
            path: path.to_owned(),
            options,
            connection,
            file,
            jobs: 0,
        })
    }

    /// Opens the file again if it was removed or replaced. A process that kept the old file would have limits of its own.
    fn follow_file(&mut self) -> Result<(), StoreError> {
        if self.file.is_some() && file_id(&self.path) != self.file {
            *self = Self::open(&self.path, self.options.clone())?;
        }
        Ok(())
    }

    /// Runs jobs until all senders are gone.
    fn run(mut self, jobs: &mpsc::Receiver<Job>) {
        while let Ok(first) = jobs.recv() {
            let mut together = vec![first];
            together.extend(jobs.try_iter().take(MAX_TOGETHER - 1));
            self.carry_out(together);
        }
    }

    /// Carries out jobs in one transaction. If that fails because of one job, each job is tried alone.
    fn carry_out(&mut self, mut jobs: Vec<Job>) {
        if let Err(error) = self.follow_file() {
            return end(jobs, &Err(error));
        }
        let mut commits = false;
        let ended = self.steps(&mut jobs).and_then(|transaction| {
            commits = true;
            transaction.commit()
        });
        let ended = match ended {
            Ok(()) => Ok(()),
            Err(error)
                if commits && error.sqlite_error_code() == Some(ErrorCode::SystemIoFailure) =>
            {
                Err(StoreError::unanswered(&self.store, error))
            }
            Err(error) if jobs.len() > 1 && !is_busy(&error) => {
                return jobs.into_iter().for_each(|job| self.carry_out(vec![job]));
            }
            Err(error) => Err(not_done(&self.store, error)),
        };
        end(jobs, &ended);
    }

    /// Does the jobs in a transaction, and at intervals a purge.
    fn steps(&mut self, jobs: &mut [Job]) -> rusqlite::Result<Transaction<'_>> {
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        for job in &mut *jobs {
            job(JobStage::Step(&transaction))?;
        }
        self.jobs += jobs.len();
        if self.jobs >= PURGED_EVERY {
            self.jobs = 0;
            let by = now_micros() - SPARED_MICROS;
            delete_expired(&transaction, None, by, 2 * PURGED_EVERY)?;
        }
        Ok(transaction)
    }
}

fn end(jobs: Vec<Job>, ended: &Result<(), StoreError>) {
    for mut job in jobs {
        job(JobStage::End(ended.clone())).ok();
    }
}

/// The device and the inode of a file.
type FileId = (u64, u64);

/// `None` for a database in memory.
#[cfg(unix)]
fn file_id(path: &Path) -> Option<FileId> {
    use std::os::unix::fs::MetadataExt;

    let file = path.metadata().ok()?;
    Some((file.dev(), file.ino()))
}

/// `None`: an open file cannot be removed.
#[cfg(not(unix))]
fn file_id(_: &Path) -> Option<FileId> {
    None
}

fn connect(path: &Path, options: &SqliteStoreOptions) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(
        options
            .busy_timeout
            .min(Duration::from_millis(i32::MAX as u64)),
    )?;
    connection.query_row("PRAGMA journal_mode = WAL", (), |_| Ok(()))?;
    let synchronous = match options.synchronous {
        SqliteSynchronous::Normal => "NORMAL",
        SqliteSynchronous::Full => "FULL",
    };
    connection.pragma_update(None, "synchronous", synchronous)?;
    Ok(connection)
}

/// The version of the tables, if there are any.
fn version(connection: &Connection) -> rusqlite::Result<Option<i64>> {
    let exists = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'tollgate_schema'";
    match connection.query_row(exists, (), |_| Ok(())).optional()? {
        None => Ok(None),
        Some(()) => connection.query_row("SELECT max(version) FROM tollgate_schema", (), |row| {
            row.get(0)
        }),
    }
}

/// Decides the call, and writes the state of its key.
fn decide(
    transaction: &Transaction<'_>,
    rules: &Rules,
    call: &Call,
) -> rusqlite::Result<Result<Decided, StoreError>> {
    let (limiter, key) = (call.scope.limiter.as_bytes(), &call.scope.key[..]);
    let mut select = transaction
        .prepare_cached("SELECT expires, state FROM tollgate_keys WHERE limiter = ?1 AND k = ?2")?;
    let row = select
        .query_row(params![limiter, key], |row| {
            Ok(read_state(row.get(0)?, row.get(1)?))
        })
        .optional()?;
    let decided = rules.decide(now(), row.as_ref(), call);
    if let Ok(Decided {
        state: Some(state), ..
    }) = &decided
    {
        let mut replace = transaction.prepare_cached(
            "INSERT INTO tollgate_keys (limiter, k, expires, state) VALUES (?1, ?2, ?3, ?4) \
             ON CONFLICT (limiter, k) DO UPDATE SET expires = excluded.expires, state = excluded.state",
        )?;
        replace.execute(params![limiter, key, expires(state), state.bytes])?;
    }
    Ok(decided)
}

fn select_keys(
    transaction: &Transaction<'_>,
    limiter: &str,
    from: Option<&[u8]>,
    max: usize,
) -> rusqlite::Result<KeyPage> {
    let max = max.max(1);
    // The next page begins after the last key. No key is below the empty one.
    let mut select = transaction.prepare_cached(
        "SELECT k, k FROM tollgate_keys WHERE limiter = ?1 AND k >= ?2 AND (k > ?2 OR ?3) AND expires > ?4 ORDER BY k LIMIT ?5",
    )?;
    let of = params![
        limiter.as_bytes(),
        from.unwrap_or_default(),
        from.is_none(),
        now_micros(),
        rows(max)
    ];
    let keys = select.query_map(of, |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(page(keys.collect::<rusqlite::Result<_>>()?, max))
}

/// Deletes rows that have expired by that instant.
fn delete_expired(
    transaction: &Transaction<'_>,
    limiter: Option<&str>,
    by: i64,
    max: usize,
) -> rusqlite::Result<u64> {
    let mut delete = transaction.prepare_cached(
        "DELETE FROM tollgate_keys WHERE (limiter, k) IN (SELECT limiter, k FROM tollgate_keys WHERE expires <= ?1 \
         AND (?2 IS NULL OR limiter = ?2) LIMIT ?3)",
    )?;
    Ok(delete.execute(params![by, limiter.map(str::as_bytes), rows(max)])? as u64)
}

/// The clock of the host, in nanoseconds since 1970.
fn now() -> u64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// The clock of the host, in microseconds since 1970.
fn now_micros() -> i64 {
    (now() / 1_000) as i64 // far below 2^63
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
    )
}

/// The error of a transaction that was not carried out.
fn not_done(store: &str, error: rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(
            ErrorCode::CannotOpen
            | ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::SystemIoFailure,
        ) => StoreError::unreachable(store, error),
        _ => StoreError::refused(store, error),
    }
}
