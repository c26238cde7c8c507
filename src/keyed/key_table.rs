//! The operations of a table, for any width.

use std::sync::Arc;

use super::shard::Look;
use super::snapshot::KeySnapshot;
use crate::carry_over::UsageCarryOver;
use crate::core::costs::Costs;
use crate::core::request::Caller;
use crate::decision::Decision;
use crate::error::{AcquireError, ConfigError, TryAcquireError};
use crate::manager::{Manager, RequestOptions};
use crate::permit::Permit;
use crate::policy::Policy;

/// A [`Table`](super::table::Table) of any width.
pub(super) trait KeyTable<K>: Send + Sync {
    fn try_acquire(&self, key: &K, cost: u64, caller: Caller) -> Result<Permit, TryAcquireError>;
    /// A permit, or the manager to wait at.
    fn try_request(&self, key: &K, options: &RequestOptions) -> Result<Permit, TryAcquireError>;
    fn admit(&self, key: &K, options: &RequestOptions) -> Result<Admitted, AcquireError>;
    /// The key's manager; the key becomes active.
    fn manager(&self, key: &K) -> Result<Arc<Manager>, Denial>;
    fn check(&self, key: &K, costs: Costs<'_>) -> Decision;
    fn penalize(&self, key: &K, units: u64) -> bool;
    fn reward(&self, key: &K, units: u64);
    fn reset(&self, key: &K) -> bool;
    fn snapshot(&self, key: &K) -> Option<KeySnapshot>;
    /// The keys of one shard; `None` when there is no such.
    fn snapshots(&self, shard: usize) -> Option<Vec<(K, KeySnapshot)>>;
    /// Pauses all keys for so many nanoseconds.
    fn pause(&self, nanos: u64);
    fn resume(&self);
    /// The policy of all keys that have no own tier.
    fn policy(&self) -> Policy;
    fn set_policy(&self, policy: Policy, carry: UsageCarryOver) -> Result<(), ConfigError>;
    fn close(&self);
    fn is_closed(&self) -> bool;
    /// The number of shards.
    fn shards(&self) -> usize;
    /// Which keys of this shard are in use.
    fn look(&self, shard: usize) -> Look;
    fn len(&self) -> usize;
    fn max_keys(&self) -> usize;
}

/// How far a request that is ready to wait came in the table.
pub(super) enum Admitted {
    Granted(Permit),
    /// The key is active: its manager decides.
    ToManager(Arc<Manager>),
}

/// Why a key cannot be served at all.
pub(super) enum Denial {
    Closed,
    TooManyKeys { max: usize },
    Config(ConfigError),
}

impl From<Denial> for TryAcquireError {
    fn from(denial: Denial) -> Self {
        match denial {
            Denial::Closed => Self::Closed,
            Denial::TooManyKeys { max } => Self::TooManyKeys { max },
            Denial::Config(error) => Self::Config(error.into()),
        }
    }
}

impl From<Denial> for AcquireError {
    fn from(denial: Denial) -> Self {
        match denial {
            Denial::Closed => Self::Closed,
            Denial::TooManyKeys { max } => Self::TooManyKeys { max },
            Denial::Config(error) => Self::Config(error.into()),
        }
    }
}
