//! Chooses the limiter of a user by the user's plan. There is one limiter for each plan, in the store that all instances share.

use std::fmt;
use std::time::Duration;

use common::store::AnyStore;
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ValueRef};
use tollgate::{ConfigError, Rate, SharedLimiter, SlidingWindow, TokenBucket};

use crate::users::User;

/// The largest quota that a log of all grants counts. Above it, a log takes too much memory.
const LONGEST_LOG: u64 = 1_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plan {
    Free,
    Pro,
    Enterprise,
}

impl Plan {
    pub(crate) const ALL: [Self; 3] = [Self::Free, Self::Pro, Self::Enterprise];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Pro => "pro",
            Self::Enterprise => "enterprise",
        }
    }

    pub(crate) const fn per_minute(self) -> u64 {
        match self {
            Self::Free => 100,
            Self::Pro => 3_000,
            Self::Enterprise => 20_000,
        }
    }

    /// What the plan allows in any span of a minute. In a minute of 3 s, that is a twentieth.
    pub(crate) fn quota(self, minute: Duration) -> SlidingWindow {
        match (self.per_minute() as f64 * minute.as_secs_f64() / 60.0).round() as u64 {
            units @ ..=LONGEST_LOG => SlidingWindow::log(units, minute),
            units => SlidingWindow::counter(units, minute),
        }
    }
}

/// The limit of each user at the expensive endpoint, whatever the plan.
pub(crate) const SEARCHES: TokenBucket = TokenBucket::new(Rate::per_second(2), 10);

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromSql for Plan {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let name = value.as_str()?;
        Self::ALL
            .into_iter()
            .find(|plan| plan.name() == name)
            .ok_or(FromSqlError::InvalidType)
    }
}

/// The limiters of the users, by plan, and of their searches.
pub(crate) struct Limiters {
    free: SharedLimiter,
    pro: SharedLimiter,
    enterprise: SharedLimiter,
    pub(crate) searches: SharedLimiter,
}

impl Limiters {
    /// Instances share the limits of one name. While the store is down, requests are answered with 503. That is the default, so no
    /// user gets more than the plan allows.
    pub(crate) fn new(store: &AnyStore, name: &str, minute: Duration) -> Result<Self, ConfigError> {
        let of = |plan: Plan| {
            SharedLimiter::new(store.clone(), format!("{name}/{plan}"), plan.quota(minute))
        };
        let searches = SharedLimiter::new(store.clone(), format!("{name}/search"), SEARCHES)?;
        Ok(Self {
            free: of(Plan::Free)?,
            pro: of(Plan::Pro)?,
            enterprise: of(Plan::Enterprise)?,
            searches,
        })
    }

    /// The limiter of a user, which the plan chooses. A user who changes the plan starts with a full quota.
    pub(crate) fn of(&self, user: &User) -> SharedLimiter {
        let limiter = match user.plan {
            Plan::Free => &self.free,
            Plan::Pro => &self.pro,
            Plan::Enterprise => &self.enterprise,
        };
        limiter.key(user.id.to_string())
    }
}
