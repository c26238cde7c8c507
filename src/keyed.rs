//! One limiter for each key.
//!
//! From the bottom up: [`key`] (a key, idle or active), [`shared`] (the policies of keys, and other data that keys share),
//! [`probing`] (a hash table), [`shard`] (some of the keys, under one lock), [`shards`] (the bound on the number of keys),
//! [`table`] (the operations on a key), [`limiter`] (the handle that callers hold).

mod builder;
mod key;
mod limiter;
mod probing;
mod shard;
mod shards;
mod shared;
mod table;

pub use self::builder::KeyedLimiterBuilder;
pub use self::key::KeySnapshot;
pub use self::limiter::{KeyedAcquire, KeyedAcquireOwned, KeyedLimiter};
pub use self::shards::WhenFull;
