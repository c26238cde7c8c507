//! The errors of calls to a store.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use super::ConfigError;

/// Why a call to a [`Store`](crate::store::Store) has no reply.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The store could not be reached: its address is wrong, or it is down. The call was not carried out.
    #[error("the store {store} cannot be reached")]
    Unreachable {
        /// The store, without any password.
        store: String,
        /// The error of the client library.
        source: Cause,
    },
    /// There was no reply within the deadline, or the connection broke. Whether the call was carried out is unknown.
    #[error("the store {store} has not answered{}", after.map(|after| format!(" within {after:?}")).unwrap_or_default())]
    Unanswered {
        /// The store, without any password.
        store: String,
        /// The deadline, if it has passed.
        after: Option<Duration>,
        /// The error of the client library, if there is one.
        source: Option<Cause>,
    },
    /// The store has sent a reply that breaks a rule of [`Reply`](crate::store::Reply). This is a fault of the store. Whether the
    /// call was carried out is unknown.
    #[error(
        "the store {store} has sent a reply that is wrong, which is a fault of the store: {fault}"
    )]
    BadReply {
        /// The store, without any password.
        store: String,
        /// What is wrong with the reply.
        fault: ReplyFault,
    },
    /// The store has refused the call, which was not carried out: a wrong password, a missing right, a read-only replica.
    #[error("the store {store} refuses the call")]
    Refused {
        /// The store, without any password.
        store: String,
        /// The error that the store returned.
        source: Cause,
    },
    /// The call reached the store after its caller had given up, and was not carried out.
    #[error(
        "the call came to the store {store} too late, and was not carried out; raise the deadline if this happens often"
    )]
    TooLate {
        /// The store, without any password.
        store: String,
    },
    /// The store holds this limiter with another policy.
    #[error(
        "the store has the limiter {limiter:?} with the policy `{stored}`, not `{given}`; use that one, another name, or replace_policy"
    )]
    PolicyDiffers {
        /// The name of the limiter.
        limiter: Arc<str>,
        /// The policy that the store has, as text.
        stored: String,
        /// The policy of the call, as text.
        given: String,
    },
    /// The data that the store holds for the key was not written by a limiter, or is damaged.
    #[error("the store {store} holds something else at {at:?}, or it is damaged; reset the key")]
    Damaged {
        /// The store, without any password.
        store: String,
        /// The place of the data in the store.
        at: String,
    },
    /// The tables of the store were made by a later version of this crate.
    #[error(
        "the tables of the store {store} have version {found}; this version of tollgate knows {known}: update it"
    )]
    NewerSchema {
        /// The store, without any password.
        store: String,
        /// The version of the tables.
        found: i64,
        /// The version that this crate knows.
        known: i64,
    },
    /// The policy is invalid.
    #[error("the policy is invalid")]
    Policy(#[source] ConfigError),
    /// The store cannot keep this policy.
    #[error("the store {store} cannot keep `{limit}`: {reason}")]
    Unsupported {
        /// The store, without any password.
        store: String,
        /// The limit, as text.
        limit: String,
        /// Why the store cannot keep it.
        reason: &'static str,
    },
}

impl StoreError {
    /// Whether the store is down, will also refuse other calls, or cannot be relied on. Requests then follow [the
    /// rule](crate::store::OnStoreDown) of the limiter.
    #[must_use]
    pub const fn is_down(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. }
                | Self::Unanswered { .. }
                | Self::BadReply { .. }
                | Self::Refused { .. }
                | Self::NewerSchema { .. }
        )
    }

    /// Whether the call may have been carried out despite this error.
    pub(crate) const fn may_have_run(&self) -> bool {
        matches!(self, Self::Unanswered { .. } | Self::BadReply { .. })
    }
}

/// What is wrong with a reply of a store: see [`StoreError::BadReply`]. Instants are nanoseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ReplyFault {
    /// The instant of the call is outside the range of a store's clock.
    #[error("its instant is {now}; the clock of a store shows 1 to 2^64 - 2")]
    Instant {
        /// The instant.
        now: u64,
    },
    /// The reply grants more asks than the call had.
    #[error("it grants {granted} of {asked} asks")]
    GrantsTooMany {
        /// How many asks were granted.
        granted: u64,
        /// How many asks the call had.
        asked: u64,
    },
    /// The fences of the grants are 0, or too high to rise further.
    #[error(
        "its first fence is {first_fence}; those of {granted} grants must lie between 1 and 2^63"
    )]
    Fence {
        /// The fence of the first grant.
        first_fence: u64,
        /// How many asks were granted.
        granted: u64,
    },
    /// Not all asks were granted, and the reply does not state why.
    #[error("it grants {granted} of {asked} asks, and does not say what stops the next one")]
    NoStop {
        /// How many asks were granted.
        granted: u64,
        /// How many asks the call had.
        asked: u64,
    },
    /// All asks were granted, and the reply states what stops the next one.
    #[error("it grants all {asked} asks, and says that limit {limit} stops one")]
    StopsNothing {
        /// The index of the limit that stops an ask, according to the reply.
        limit: usize,
        /// How many asks the call had.
        asked: u64,
    },
    /// The limit that stops an ask is not in the policy.
    #[error("it says that limit {limit} stops an ask; the policy has {limits}, counted from 0")]
    UnknownLimit {
        /// The index of the limit.
        limit: usize,
        /// How many limits the policy has.
        limits: usize,
    },
    /// An ask is stopped until an instant that has already passed.
    #[error("it says that an ask is stopped until {until}; that is not after its instant, {now}")]
    StopIsOver {
        /// When the ask is no longer stopped, or the first lease expires, according to the reply.
        until: u64,
        /// The instant of the call.
        now: u64,
    },
    /// The number of readings differs from the number of limits.
    #[error("it has {found} readings of limits; the policy has {limits} limits")]
    Readings {
        /// How many readings the reply has.
        found: usize,
        /// How many limits the policy has.
        limits: usize,
    },
    /// According to the reply, a limit admits more than its capacity.
    #[error("it says that limit {limit} admits {remaining} units; its capacity is {capacity}")]
    Remaining {
        /// The index of the limit.
        limit: usize,
        /// The units that the limit admits, according to the reply.
        remaining: u64,
        /// The most units that the limit admits.
        capacity: u64,
    },
    /// The reply reports a lost lease that the call did not renew.
    #[error("it says that lease {number} was lost; the call did not renew it")]
    NotRenewed {
        /// The number of the lease.
        number: u64,
    },
    /// The reply states that the call came too late, but the call may come at any time.
    #[error("it says that the call came too late; the call may come at any time")]
    NeverTooLate,
    /// The next page of keys is the same page.
    #[error("it says that a page of keys is followed by itself")]
    PageRepeats,
    /// The reply reports more purged keys than the call allowed.
    #[error("it says that {purged} keys were purged, of {max} at most")]
    PurgedTooMany {
        /// How many keys were purged, according to the reply.
        purged: u64,
        /// The most keys that the call allowed to be purged.
        max: usize,
    },
}

/// The error of a client library behind a [`StoreError`]: its `source()`. Two causes are equal if they display the same text.
#[derive(Debug, Clone, Error)]
#[error(transparent)]
pub struct Cause(Arc<dyn Error + Send + Sync>);

impl Cause {
    /// Wraps the error of any library.
    ///
    /// ```
    /// use tollgate::store::Cause;
    ///
    /// let cause = Cause::new(std::io::Error::other("the cable is cut"));
    /// assert_eq!(cause.to_string(), "the cable is cut");
    /// ```
    pub fn new(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(Arc::from(error.into()))
    }
}

impl PartialEq for Cause {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Eq for Cause {}
