//! A store of any kind by its address.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tollgate::Policy;
use tollgate::store::{
    Call, Cause, KeyPage, MemoryStore, ReleaseListener, Reply, Scope, Store, StoreError,
    StoreFuture,
};

/// A store of any kind, which can be cut off to see what happens then. Clones share it.
#[derive(Debug, Clone)]
pub struct AnyStore {
    store: Arc<dyn Store>,
    is_cut: Arc<AtomicBool>,
}

impl AnyStore {
    /// `memory`, a URL of a server, or else the path of an SQLite file.
    pub fn open(address: &str) -> Result<Self, Box<dyn Error>> {
        let store: Arc<dyn Store> = match address
            .split_once("://")
            .map_or(address, |(scheme, _)| scheme)
        {
            "memory" => Arc::new(MemoryStore::new()),
            #[cfg(feature = "redis")]
            "redis" | "valkey" => Arc::new(tollgate::store::RedisStore::connect(address)?),
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => Arc::new(tollgate::store::PostgresStore::open(address)?),
            #[cfg(feature = "mysql")]
            "mysql" => Arc::new(tollgate::store::MysqlStore::open(address)?),
            scheme if scheme != address => {
                return Err(
                    format!("this build has no store for {scheme}://; add the feature `redis`, `postgres` or `mysql`").into()
                );
            }
            #[cfg(feature = "sqlite")]
            path => Arc::new(tollgate::store::SqliteStore::open(path)?),
            #[cfg(not(feature = "sqlite"))]
            path => {
                return Err(
                    format!("for a store in the file {path}, add `--features sqlite`").into(),
                );
            }
        };
        Ok(Self {
            store,
            is_cut: Arc::default(),
        })
    }

    /// Cuts the store off, or connects it again. A store that is cut off does not answer.
    pub fn cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::Relaxed);
    }
}

impl Store for AnyStore {
    fn name(&self) -> String {
        self.store.name()
    }

    fn supports(&self, policy: &Policy) -> Result<(), StoreError> {
        self.store.supports(policy)
    }

    fn call(&self, call: Call) -> StoreFuture<Reply> {
        if self.is_cut.load(Ordering::Relaxed) {
            let error = StoreError::Unreachable {
                store: self.name(),
                source: Cause::new("it is cut off"),
            };
            return Box::pin(async { Err(error) });
        }
        self.store.call(call)
    }

    fn listen(&self, limiter: &Arc<str>, listener: ReleaseListener) -> bool {
        self.store.listen(limiter, listener)
    }

    fn keys(&self, limiter: &Arc<str>, from: Option<Vec<u8>>, max: usize) -> StoreFuture<KeyPage> {
        self.store.keys(limiter, from, max)
    }

    fn reset(&self, scope: Scope) -> StoreFuture<()> {
        self.store.reset(scope)
    }

    fn purge(&self, limiter: &Arc<str>, max: usize) -> StoreFuture<u64> {
        self.store.purge(limiter, max)
    }
}
