//! The stores of shared limiters, by their addresses.

use std::error::Error;

use tollgate::store::{MemoryStore, Store};
use tollgate::{Policy, SharedLimiter, SharedLimiterBuilder};

/// Starts to build a limiter in a store: `memory`, a URL of a server, or else the path of an SQLite file. Returns what the store is
/// called, too.
pub fn limiter(address: &str, name: &str, policy: &Policy) -> Result<(String, SharedLimiterBuilder), Box<dyn Error>> {
    match address.split_once("://").map_or(address, |(scheme, _)| scheme) {
        "memory" => Ok(in_store(MemoryStore::new(), name, policy)),
        #[cfg(feature = "redis")]
        "redis" | "valkey" => Ok(in_store(tollgate::store::RedisStore::connect(address)?, name, policy)),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => Ok(in_store(tollgate::store::PostgresStore::open(address)?, name, policy)),
        #[cfg(feature = "mysql")]
        "mysql" => Ok(in_store(tollgate::store::MysqlStore::open(address)?, name, policy)),
        scheme if scheme != address => {
            Err(format!("this build has no store for {scheme}://; add the feature `redis`, `postgres` or `mysql`").into())
        }
        #[cfg(feature = "sqlite")]
        path => Ok(in_store(tollgate::store::SqliteStore::open(path)?, name, policy)),
        #[cfg(not(feature = "sqlite"))]
        path => Err(format!("for a store in the file {path}, add `--features sqlite`").into()),
    }
}

fn in_store(store: impl Store, name: &str, policy: &Policy) -> (String, SharedLimiterBuilder) {
    (store.name(), SharedLimiter::builder(store, name, policy.clone()))
}
