//! Servers that one test starts for itself, and the network before them.

#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
pub(crate) mod ports;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
pub(crate) mod proxy;
#[cfg(feature = "redis")]
pub(crate) mod redis_cluster;
#[cfg(feature = "redis")]
pub(crate) mod redis_server;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
pub(crate) mod server;
