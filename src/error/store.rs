//! What can go wrong with a store that processes share.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use super::ConfigError;

/// Why a call to a [`Store`](crate::store::Store) brought no reply.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The store could not be reached: its address is wrong, or it is down. The call was not carried out.
    #[error("the store {store} cannot be reached")]
    Unreachable {
        /// The store, without any password.
        store: String,
        /// What its client says.
        source: Cause,
    },
    /// There was no reply within the deadline, or the connection broke. Whether the call was carried out is unknown.
    #[error("the store {store} has not answered{}", after.map(|after| format!(" within {after:?}")).unwrap_or_default())]
    Unanswered {
        /// The store, without any password.
        store: String,
        /// The deadline, where it has passed.
        after: Option<Duration>,
        /// What its client says, where it says something.
        source: Option<Cause>,
    },
    /// The store has refused the call, which was not carried out: a wrong password, a missing right, a read-only replica.
    #[error("the store {store} refuses the call")]
    Refused {
        /// The store, without any password.
        store: String,
        /// What the store says.
        source: Cause,
    },
    /// The call came to the store after nobody awaited its reply any more, and was not carried out.
    #[error("the call came to the store {store} too late, and was not carried out; raise the deadline if this happens often")]
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
    /// What the store holds for the key is not what a limiter has written.
    #[error("the store {store} holds something else at {at:?}, or it is damaged; reset the key")]
    Damaged {
        /// The store, without any password.
        store: String,
        /// Where it is.
        at: String,
    },
    /// The tables of the store are of a later version of this crate.
    #[error("the tables of the store {store} have version {found}; this version of tollgate knows {known}: update it")]
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
        /// Why not.
        reason: &'static str,
    },
}

impl StoreError {
    /// Whether it says that the store is down, or will refuse other calls, too.
    #[must_use]
    pub const fn is_down(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Unanswered { .. } | Self::Refused { .. } | Self::NewerSchema { .. })
    }
}

/// The error of a client library behind a [`StoreError`]: its `source()`. Two are equal if they print the same.
#[derive(Clone)]
pub struct Cause(Arc<dyn Error + Send + Sync>);

impl Cause {
    /// From the error of any library.
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

impl fmt::Debug for Cause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl Error for Cause {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}
