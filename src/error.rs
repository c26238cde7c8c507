use std::time::Duration;

use thiserror::Error;
use uuid::Uuid;

use crate::decision::Decision;
use crate::policy::Limit;

/// Why a limiter could not be built: a limit in the policy makes no sense.
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
    /// The limit (or burst) is zero: nothing would ever be admitted.
    #[error("`{limit}` admits nothing; give it a limit of at least 1")]
    ZeroLimit {
        /// The limit as given.
        limit: Limit,
    },
    /// The rate is zero: the bucket would never be refilled, the counter never fall.
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
    /// A keyed limiter may know no key: nothing would ever be admitted.
    #[error("a keyed limiter that may know no key admits nothing; give it a max_keys of at least 1")]
    ZeroKeys,
    /// A number of the limit is out of its documented range.
    #[error("a number of `{limit}` is out of range; its documentation has the ranges")]
    OutOfRange {
        /// The limit as given.
        limit: Limit,
    },
    /// The interval times the burst, the period or the TTL is longer than can be counted.
    #[error("`{limit}` spans more than {} years; shorten its duration or its burst", max.as_secs() / (365 * 24 * 3_600))]
    TooLong {
        /// The limit as given.
        limit: Limit,
        /// The longest span.
        max: Duration,
    },
}

/// Why an `acquire` ended without a permit. See [`Limiter::acquire`](crate::Limiter::acquire) for an example.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// The limiter was closed, before or while this request waited.
    #[error("the limiter is closed")]
    Closed,
    /// The request must wait, the queue is full and its overflow rule is to turn newcomers away.
    #[error("the limiter's queue is full; try later, or raise max_queue")]
    QueueFull,
    /// The request waited and was dropped from a full queue in favour of another.
    #[error("the request was dropped from the limiter's full queue in favour of another")]
    Shed,
    /// The queue has overflowed and accepts nobody until it was quiet for this long: see
    /// [`Overflow::Block`](crate::Overflow::Block).
    #[error("the limiter's queue has overflowed; it accepts nobody until no request has come for {retry_after:?}")]
    Blocked {
        /// How long it must be quiet.
        retry_after: Duration,
    },
    /// The request's time was up, or the wait is known to be longer than its timeout.
    #[error("no permit came within the timeout{}", display_retry(*retry_after))]
    TimedOut {
        /// The earliest that a new request of this cost could be admitted, as far as the limits of time know; `None` when none of
        /// them stands in the way, and it takes a release.
        retry_after: Option<Duration>,
    },
    /// The cost is above what a limit of the policy can ever admit.
    #[error("a cost of {cost} can never be met: the policy admits at most {max} at once; split the request or raise the limit")]
    ExceedsLimit {
        /// The cost asked for.
        cost: u64,
        /// The largest cost that the policy admits.
        max: u64,
    },
    /// The cost is zero: such a request takes nothing and needs no permit.
    #[error("a cost of 0 takes nothing; ask for at least 1")]
    ZeroCost,
    /// The timeout is longer than can be counted.
    #[error("a timeout of {timeout:?} is out of range; the longest is {max:?}, or set none")]
    TimeoutTooLong {
        /// The timeout asked for.
        timeout: Duration,
        /// The longest timeout.
        max: Duration,
    },
    /// The key is new, and the limiter knows as many keys as it may, none of which can go.
    #[error("the limiter knows {max} live keys, its most; raise max_keys, or let it evict")]
    TooManyKeys {
        /// The most keys.
        max: usize,
    },
    /// The policy of the key's tier makes no sense.
    #[error("the key's tier has no sound policy: {0}")]
    Config(Box<ConfigError>),
    /// The request must wait, and nothing can serve it: it runs outside any tokio runtime with timers, and none has served
    /// this limiter before that still lives. (Where a runtime lacks timers, tokio's own panic message is printed first.)
    #[error(
        "the request must wait, and there is no tokio runtime with timers; call it in one (enable_time), or use blocking_acquire"
    )]
    NoRuntime,
}

fn display_retry(retry_after: Option<Duration>) -> String {
    retry_after.map(|after| format!("; the limit admits it in {after:?} at the earliest")).unwrap_or_default()
}

/// Why a `try_acquire` took nothing. See [`Limiter::try_acquire`](crate::Limiter::try_acquire) for an example.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TryAcquireError {
    /// A limit denied it for now.
    #[error("{0}")]
    Denied(Decision),
    /// The limiter was closed.
    #[error("the limiter is closed")]
    Closed,
    /// The cost is above what a limit of the policy can ever admit.
    #[error("a cost of {cost} can never be met: the policy admits at most {max} at once; split the request or raise the limit")]
    ExceedsLimit {
        /// The cost asked for.
        cost: u64,
        /// The largest cost that the policy admits.
        max: u64,
    },
    /// The key is new, and the limiter knows as many keys as it may, none of which can go.
    #[error("the limiter knows {max} live keys, its most; raise max_keys, or let it evict")]
    TooManyKeys {
        /// The most keys.
        max: usize,
    },
    /// The policy of the key's tier makes no sense.
    #[error("the key's tier has no sound policy: {0}")]
    Config(Box<ConfigError>),
    /// The cost is zero: such a request takes nothing and needs no permit.
    #[error("a cost of 0 takes nothing; ask for at least 1")]
    ZeroCost,
}

/// Why [`Limiter::run`](crate::Limiter::run), which shows an example, did not bring the future to its end.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RunError {
    /// No permit was got; the future was never polled.
    #[error("the work was not started: {0}")]
    Acquire(#[from] AcquireError),
    /// The permit's TTL passed and it was reclaimed; the future was dropped where it stood.
    #[error("the work was dropped: its permit {id} was reclaimed when its TTL passed; renew it, or raise the TTL")]
    Reclaimed {
        /// The permit that was reclaimed.
        id: Uuid,
    },
}

/// A priority level that does not exist. See [`Priority::new`](crate::Priority::new) for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a priority of {level} is out of range; the highest is {max}")]
pub struct PriorityError {
    /// The level asked for.
    pub level: u8,
    /// The highest level.
    pub max: u8,
}
