use std::sync::Arc;

use super::block::Ahead;
use crate::core::plan::Plan;
use crate::exchange::Scope;

/// How a schedule talks to its store. All times are nanoseconds.
#[derive(Debug, Clone)]
pub(crate) struct Terms {
    pub(crate) scope: Scope,
    /// A random number of this process and limiter.
    pub(crate) holder: u64,
    /// Of the first lease. It is random for a key that is used anew: a call of its former use may reach the store late, and must not give
    /// back the lease of another.
    pub(crate) first_number: u64,
    /// Of leases; 0 if the policy has none.
    pub(crate) ttl: u64,
    /// How long a reply is awaited.
    pub(crate) deadline: u64,
    /// How often the store is asked again while a place is awaited, without a message of a release.
    pub(crate) polls_every: u64,
    /// After a failed call, the longest time until the store is asked again.
    pub(crate) longest_back_off: u64,
    pub(crate) on_down: OnDown,
    pub(crate) replaces_policy: bool,
    /// Of the store, for errors.
    pub(crate) store: Arc<str>,
    /// Where units of rates are taken ahead.
    pub(crate) ahead: Option<Ahead>,
}

/// What is done with requests while the store does not answer: [`OnStoreDown`](crate::exchange::OnStoreDown), with a checked policy.
#[derive(Debug, Clone)]
pub(crate) enum OnDown {
    Error,
    Deny,
    Allow,
    Local(Arc<Plan>),
}
