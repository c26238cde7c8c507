//! The error of one limiter of a group.

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use crate::error::{AcquireError, RunError, TryAcquireError};

/// Which limiter of a group refused, and why. [`LimiterGroup`](super::LimiterGroup) has an example. The error converts into the
/// error of that limiter, without the index and the name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{} refused", display_member(*member, name.as_deref()))]
pub struct GroupError<E> {
    /// The index of the limiter in the [members](super::LimiterGroup::members), from 0.
    pub member: usize,
    /// The name of the limiter, if it has one.
    pub name: Option<Arc<str>>,
    /// Why the limiter refused.
    #[source]
    pub error: E,
}

macro_rules! of_the_member {
    ($($error:ident),*) => {$(
        /// Drops the index and the name of the limiter, for `?` in a function that returns the error of one limiter. To keep
        /// them, return the [`GroupError`], or match on its fields.
        impl From<GroupError<$error>> for $error {
            fn from(refused: GroupError<$error>) -> Self {
                refused.error
            }
        }

        impl GroupError<$error> {
            #[doc = concat!("[`", stringify!($error), "::retry_after`] of the limiter that refused; another one may need longer.")]
            #[must_use]
            pub const fn retry_after(&self) -> Option<Duration> {
                self.error.retry_after()
            }

            #[doc = concat!("Whether the limiter that refused was closed. See [`", stringify!($error), "::is_closed`].")]
            #[must_use]
            pub const fn is_closed(&self) -> bool {
                self.error.is_closed()
            }
        }
    )*};
}

of_the_member!(AcquireError, TryAcquireError, RunError);

impl<E> GroupError<E> {
    pub(super) fn map<F>(self, map: impl FnOnce(E) -> F) -> GroupError<F> {
        GroupError {
            member: self.member,
            name: self.name,
            error: map(self.error),
        }
    }
}

fn display_member(member: usize, name: Option<&str>) -> String {
    name.map_or_else(
        || format!("limiter {member} of the group"),
        |name| format!("the limiter `{name}`"),
    )
}
