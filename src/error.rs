use std::convert::Infallible;
use std::time::Duration;

use thiserror::Error;
use uuid::Uuid;

use crate::decision::Decision;
use crate::policy::{Limit, Policy};
use crate::text::ParseError;

/// Why a limiter was not built, or a policy was not replaced: it has no limits, one of them is invalid, or its text is.
///
/// ```
/// # use std::time::Duration;
/// use tollgate::{ConfigError, FixedWindow, Limiter};
///
/// let error = Limiter::new(FixedWindow::new(0, Duration::from_secs(1))).unwrap_err();
/// assert!(matches!(error, ConfigError::ZeroLimit { .. }));
/// assert_eq!(error.to_string(), "`window 0/s` admits nothing; give it a limit of at least 1");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The text is not a policy. It prints as the [`ParseError`] does.
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// The policy has no limits: it was collected from nothing.
    #[error("the policy has no limits; give it at least one")]
    NoLimits,
    /// The limit (or burst) is zero, so it would never admit a request.
    #[error("`{limit}` admits nothing; give it a limit of at least 1")]
    ZeroLimit {
        /// The limit as given.
        limit: Limit,
    },
    /// The rate is zero, so a bucket would never refill and a penalty never fall.
    #[error("the rate of `{limit}` is zero; give it at least 1 unit")]
    ZeroRate {
        /// The limit as given.
        limit: Limit,
    },
    /// The interval, period or TTL is zero.
    #[error("`{limit}` has a duration of zero; give it at least 1 ns")]
    ZeroDuration {
        /// The limit as given.
        limit: Limit,
    },
    /// The `max_keys` of a keyed limiter is zero, so it would never admit a request.
    #[error("a keyed limiter with a max_keys of 0 admits nothing; set at least 1")]
    ZeroKeys,
    /// A number of the limit is outside its documented range.
    #[error("`{limit}` has a number out of range: {}", range_of(limit))]
    OutOfRange {
        /// The limit as given.
        limit: Limit,
    },
    /// The period, the TTL, or the interval times the burst is longer than a limit may span.
    #[error("`{limit}` spans more than {} years; shorten its duration or its burst", max.as_secs() / (365 * 24 * 3_600))]
    TooLong {
        /// The limit as given.
        limit: Limit,
        /// The longest span: 100 years of 365 days.
        max: Duration,
    },
}

/// For what always converts into a policy.
impl From<Infallible> for ConfigError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// The ranges that a number of this limit can miss.
fn range_of(limit: &Limit) -> String {
    match limit {
        Limit::SlidingWindow(_) => format!("a sliding counter holds at most {} units", u32::MAX),
        Limit::Penalty(_) => format!("threshold and ceiling are at most {}", u32::MAX),
        _ => "the floor is 1 to the ceiling, the backoff 1 to 999, the tolerance 1000 to 1000000, the smoothing 1 to 1000".into(),
    }
}

/// Why an `acquire` ended without a permit. See [`Limiter::acquire`](crate::Limiter::acquire) for an example.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// The limiter was closed, before the request or while it waited.
    #[error("the limiter is closed")]
    Closed,
    /// The request must wait, and the queue is full: see [`Overflow::Reject`](crate::Overflow::Reject).
    #[error("the limiter's queue is full; retry later, or raise max_queue")]
    QueueFull,
    /// The request waited, and a full queue dropped it in favour of another: see [`Overflow`](crate::Overflow).
    #[error("the limiter's full queue dropped the request in favour of another")]
    Shed,
    /// The queue overflowed, and the limiter blocks all requests: see [`Overflow::Block`](crate::Overflow::Block).
    #[error("the limiter's queue overflowed; it blocks until no request has come for {retry_after:?}")]
    Blocked {
        /// How long no request may come before the limiter accepts one again.
        retry_after: Duration,
    },
    /// The timeout of the request passed, or the wait is known to be longer than the timeout.
    #[error("no permit within the timeout{}", display_retry(*retry_after))]
    TimedOut {
        /// The earliest time, from now, at which a new request of this cost could be granted, as far as the limits that follow
        /// time can tell. `None` when only a release helps.
        retry_after: Option<Duration>,
    },
    /// The cost is above the smallest [capacity](crate::Limit::capacity) in the policy, so that no wait could help.
    #[error(
        "a cost of {cost} can never be admitted: the smallest burst or limit in the policy is {max}; split the request, or raise it"
    )]
    ExceedsLimit {
        /// The cost of the request.
        cost: u64,
        /// The largest cost that the policy admits.
        max: u64,
    },
    /// The cost is zero.
    #[error("a cost of 0 takes nothing; ask for at least 1")]
    ZeroCost,
    /// The timeout is out of range.
    #[error("a timeout of {timeout:?} is out of range; the longest is {max:?}, or set none")]
    TimeoutTooLong {
        /// The timeout of the request.
        timeout: Duration,
        /// The longest timeout: 100 years of 365 days.
        max: Duration,
    },
    /// The key is new, and the keyed limiter already holds [`max_keys`](crate::KeyedLimiterBuilder::max_keys) others.
    #[error("the limiter already holds {max} keys, its most; raise max_keys, or let it evict (when_full)")]
    TooManyKeys {
        /// The most keys.
        max: usize,
    },
    /// The policy of the key's [tier](crate::KeyedLimiterBuilder::tiers) is invalid.
    #[error("the policy of the key's tier is invalid")]
    Config(#[source] Box<ConfigError>),
    /// A [throttled](crate::StreamLimitExt::throttled) stream holds no permits, so a policy of nothing but
    /// [`MaxConcurrency`](crate::MaxConcurrency) would not slow it down.
    #[error(
        "`{policy}` bounds permits that are held, and a throttled stream holds none; use with_permits, map_permitted or for_each_permitted"
    )]
    NoRate {
        /// The policy of the limiter.
        policy: Policy,
    },
    /// The request must wait, and nothing would wake it: it was polled outside every tokio runtime with timers, and no such
    /// runtime serves the limiter. (Where a runtime lacks timers, tokio prints its own panic message first.)
    #[error(
        "the request must wait, and there is no tokio runtime with timers; call it in one (enable_time), or use blocking_acquire"
    )]
    NoRuntime,
}

fn display_retry(retry_after: Option<Duration>) -> String {
    retry_after.map(|after| format!("; a retry can succeed in {after:?} at the earliest")).unwrap_or_default()
}

/// Why a `try_acquire` took nothing. See [`Limiter::try_acquire`](crate::Limiter::try_acquire) for an example.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TryAcquireError {
    /// The request would have to wait. The [`Decision`] says which limit denied it and when to retry.
    #[error("{0}")]
    Denied(Decision),
    /// The limiter is closed.
    #[error("the limiter is closed")]
    Closed,
    /// The cost is above the smallest [capacity](crate::Limit::capacity) in the policy, so that no retry could help.
    #[error(
        "a cost of {cost} can never be admitted: the smallest burst or limit in the policy is {max}; split the request, or raise it"
    )]
    ExceedsLimit {
        /// The cost of the request.
        cost: u64,
        /// The largest cost that the policy admits.
        max: u64,
    },
    /// The key is new, and the keyed limiter already holds [`max_keys`](crate::KeyedLimiterBuilder::max_keys) others.
    #[error("the limiter already holds {max} keys, its most; raise max_keys, or let it evict (when_full)")]
    TooManyKeys {
        /// The most keys.
        max: usize,
    },
    /// The policy of the key's [tier](crate::KeyedLimiterBuilder::tiers) is invalid.
    #[error("the policy of the key's tier is invalid")]
    Config(#[source] Box<ConfigError>),
    /// The cost is zero.
    #[error("a cost of 0 takes nothing; ask for at least 1")]
    ZeroCost,
}

/// Why [`Limiter::run`](crate::Limiter::run), which has an example, did not complete the future.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RunError {
    /// There was no permit for the future, which was never polled.
    #[error("the future was not started: it got no permit")]
    Acquire(#[from] AcquireError),
    /// The permit was reclaimed because its TTL had passed, and the future was dropped before it completed.
    #[error("the future was dropped: its permit {id} was reclaimed when its TTL passed; raise the TTL, or renew the permit")]
    Reclaimed {
        /// The reclaimed permit.
        id: Uuid,
    },
}

/// A priority level out of range. See [`Priority::new`](crate::Priority::new) for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a priority of {level} is out of range; the highest is {max}")]
pub struct PriorityError {
    /// The level as given.
    pub level: u8,
    /// The highest level.
    pub max: u8,
}
