//! A store in an SQLite file, for the processes of one host.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;

use super::listeners::Listeners;
use super::sql::Policies;
use super::{KeyPage, ReleaseListener, Store, StoreFuture};
use crate::error::{Cause, StoreError};
use crate::exchange::{Call, Reply, Scope};
use crate::policy::Policy;
use worker::{Job, Settings, Worker};

mod worker;

/// A store in an SQLite file, for the processes of one host. It survives restarts. Clones share it.
///
/// Each store has a thread of its own with one connection, which carries out the calls in order; those that wait share a
/// transaction. Processes take turns by the file's lock (`BEGIN IMMEDIATE`, in WAL mode). The file must be on a local disk: network
/// file systems do not lock reliably. The clock is the host's.
///
/// Places that come back are told to waiters in this process; those of other processes poll.
///
/// Each call writes the state of its key anew: a few dozen bytes, and about ten for each live lease and each entry of a sliding
/// log. What [settles](crate::Permit::settle) below its charge gets nothing back from a token bucket or a throttle, whose past grants
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
    shared: Arc<Shared>,
}

struct Shared {
    path: PathBuf,
    jobs: mpsc::Sender<Job>,
    policies: Arc<Policies>,
    listeners: Arc<Listeners>,
}

/// How an [`SqliteStore`] is opened.
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
    /// At checkpoints. A process that ends or is killed loses nothing. After a power failure the last calls may be forgotten, and
    /// what they took is granted again.
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
    /// [`SqliteSynchronous::Normal`], a busy timeout of 5 seconds, and tables that are created where they are missing.
    pub const fn new() -> Self {
        Self { synchronous: SqliteSynchronous::Normal, busy_timeout: Duration::from_secs(5), creates_tables: true }
    }

    /// When SQLite waits for the disk.
    pub const fn synchronous(self, synchronous: SqliteSynchronous) -> Self {
        Self { synchronous, ..self }
    }

    /// How long a transaction waits for those of other processes, in whole milliseconds, up to 24 days. A call that has waited for
    /// longer is [`StoreError::Unreachable`].
    pub const fn busy_timeout(self, busy_timeout: Duration) -> Self {
        Self { busy_timeout, ..self }
    }

    /// Whether tables that are missing are created. Otherwise [`SqliteStore::schema`] must have been run.
    pub const fn create_tables(self, creates_tables: bool) -> Self {
        Self { creates_tables, ..self }
    }

    /// Opens the file, or creates it, and starts the store's thread. It blocks while the file is opened.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unreachable`] if the file cannot be opened, [`StoreError::Refused`] if it cannot be written or has no tables,
    /// [`StoreError::Damaged`] if it is no database, and [`StoreError::NewerSchema`].
    pub fn open(self, path: impl AsRef<Path>) -> Result<SqliteStore, StoreError> {
        let path = path.as_ref().to_path_buf();
        let (policies, listeners) = (Arc::new(Policies::default()), Arc::new(Listeners::default()));
        let (sender, jobs) = mpsc::channel();
        let synchronous = match self.synchronous {
            SqliteSynchronous::Normal => "NORMAL",
            SqliteSynchronous::Full => "FULL",
        };
        let Self { busy_timeout, creates_tables, .. } = self;
        let settings = Settings { synchronous, busy_timeout, creates_tables };
        let worker = Worker::open(&path, &settings, Arc::clone(&policies), Arc::clone(&listeners))?;
        thread::Builder::new()
            .name("tollgate-sqlite".to_owned())
            .spawn(move || worker.run(&jobs))
            .map_err(|error| StoreError::Unreachable { store: path.display().to_string(), source: Cause::new(error) })?;
        Ok(SqliteStore { shared: Arc::new(Shared { path, jobs: sender, policies, listeners }) })
    }
}

impl SqliteStore {
    /// Opens the file, or creates it, with the default [options](SqliteStoreOptions). It blocks while the file is opened.
    ///
    /// See the [type's example](SqliteStore#examples).
    ///
    /// # Errors
    ///
    /// Those of [`SqliteStoreOptions::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        SqliteStoreOptions::new().open(path)
    }

    /// The statements that create the tables. They change nothing where the tables exist.
    ///
    /// ```
    /// println!("{}", tollgate::store::SqliteStore::schema());
    /// ```
    #[must_use]
    pub const fn schema() -> &'static str {
        worker::SCHEMA
    }

    /// Has the thread do the job, also if the future is dropped.
    fn order<T: Send + 'static>(&self, job: impl FnOnce(worker::Answer<T>) -> Job) -> StoreFuture<T> {
        let (answer, answered) = oneshot::channel();
        let sent = self.shared.jobs.send(job(answer));
        let store = self.name();
        Box::pin(async move {
            match sent {
                Err(_) => Err(StoreError::Unreachable { store, source: Cause::new("its thread has ended") }),
                Ok(()) => answered.await.unwrap_or(Err(StoreError::Unanswered { store, after: None, source: None })),
            }
        })
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("SqliteStore").field("path", &self.shared.path).finish_non_exhaustive()
    }
}

impl Store for SqliteStore {
    fn name(&self) -> String {
        self.shared.path.display().to_string()
    }

    fn supports(&self, policy: &Policy) -> Result<(), StoreError> {
        super::shares(&self.name(), policy)?;
        self.shared.policies.rules(policy).map(drop)
    }

    fn call(&self, call: Call) -> StoreFuture<Reply> {
        self.order(|answer| Job::Call(Box::new(call), answer))
    }

    /// Tells of releases in this process, and returns `false`: those of other processes are not told.
    fn listen(&self, limiter: &Arc<str>, listener: ReleaseListener) -> bool {
        self.shared.listeners.add(limiter, listener);
        false
    }

    fn keys(&self, limiter: &Arc<str>, from: Option<Vec<u8>>, max: usize) -> StoreFuture<KeyPage> {
        self.order(|answer| Job::Keys(Arc::clone(limiter), from, max, answer))
    }

    fn reset(&self, scope: Scope) -> StoreFuture<()> {
        self.order(|answer| Job::Reset(scope, answer))
    }

    fn purge(&self, limiter: &Arc<str>, max: usize) -> StoreFuture<u64> {
        self.order(|answer| Job::Purge(Arc::clone(limiter), max, answer))
    }
}
