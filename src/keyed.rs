//! One limiter for each key.
//!
//! From the bottom up: [`idle_state`] (the state of an idle key), [`idle`] (a key in a table), [`tier`] (the policy of some
//! keys), [`probing`] (a hash table), [`shard`] (some of the keys, under one lock), [`shards`] (the bound on the number of keys),
//! [`table`] (the operations on a key), [`limiter`] (the handle that callers hold).

mod builder;
mod idle;
mod idle_state;
mod limiter;
mod probing;
mod shard;
mod shards;
mod shared;
mod snapshot;
mod table;
mod tier;

pub use self::builder::KeyedLimiterBuilder;
pub use self::limiter::{KeyedAcquire, KeyedAcquireOwned, KeyedLimiter};
pub use self::shards::WhenFull;
pub use self::snapshot::KeySnapshot;
