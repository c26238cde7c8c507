//! One limiter for each key.
//!
//! From the bottom up: [`key_state`] and [`idle`] (a key that is only its state), [`tier`] (the policy of some keys),
//! [`probing`] (a hash table), [`shard`] (some of the keys, under one lock), [`shards`] (the bound on the number of keys),
//! [`changes`] (of all keys), [`table`] (the operations on a key), [`any_table`], [`drain`], and above it what callers hold.

mod acquire;
mod admitted;
mod any_table;
mod builder;
mod changes;
mod drain;
mod event;
mod idle;
mod idle_key;
mod key_ref;
mod key_state;
mod limiter;
mod probing;
mod request;
mod shard;
mod shards;
mod shared;
mod snapshot;
mod table;
#[cfg(feature = "http")]
mod tell;
mod tier;
mod when_full;

pub use self::acquire::{KeyedAcquire, KeyedAcquireOwned};
pub use self::builder::KeyedLimiterBuilder;
pub use self::event::KeyedLimiterEvent;
pub use self::limiter::KeyedLimiter;
pub use self::request::KeyedPermitRequest;
pub use self::snapshot::KeySnapshot;
pub use self::when_full::WhenFull;
