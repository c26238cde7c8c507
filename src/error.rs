//! The errors of the crate.

use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use crate::decision::Decision;
use crate::permit_id::PermitId;
use crate::policy::{Limit, Policy};
use crate::strategy::Unit;
use crate::text::ParseError;

/// Why a limiter was not built, or a policy was not replaced: the policy has no limits, or a limit or the text is invalid.
///
/// ```
/// # use std::time::Duration;
/// use tollgate::{ConfigError, FixedWindow, Limiter};
///
/// let error = Limiter::new(FixedWindow::new(0, Duration::from_secs(1))).unwrap_err();
/// assert!(matches!(error, ConfigError::ZeroLimit { .. }));
/// assert_eq!(error.to_string(), "`window 0/s` admits nothing: its limit is 0; set at least 1");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The text is not a policy. This error displays as the [`ParseError`] does.
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// The policy has no limits: it was collected from an empty iterator.
    #[error("the policy has no limits; give it at least one")]
    NoLimits,
    /// A limit, burst or threshold is zero, so it would never admit a request.
    #[error("`{limit}` admits nothing: its {number} is 0; set at least 1")]
    ZeroLimit {
        /// The limit as given.
        limit: Box<Limit>,
        /// What is zero: `limit`, `burst` or `threshold`.
        number: &'static str,
    },
    /// The rate is zero, so a bucket would never refill and a penalty never fall.
    #[error("the rate of `{limit}` is zero; give it at least 1 unit")]
    ZeroRate {
        /// The limit as given.
        limit: Box<Limit>,
    },
    /// A duration of the limit is zero.
    #[error("the {number} of `{limit}` is zero; set at least 1 ns")]
    ZeroDuration {
        /// The limit as given.
        limit: Box<Limit>,
        /// What is zero: `interval`, `period`, `TTL`, `timeout`, `half-life`, `ban` or `longest ban`.
        number: &'static str,
    },
    /// An option of a [shared limiter](crate::SharedLimiterBuilder) that is a duration is zero.
    #[error("the {option} of a shared limiter is zero; set at least 1 ns")]
    ZeroOption {
        /// The method of the builder: `deadline`, `lease`, `max_hold`, `poll_every`, `probe_every` or `prefetch`.
        option: &'static str,
    },
    /// The `max_keys` of a keyed limiter is zero, so it would never admit a request.
    #[error("a keyed limiter with a max_keys of 0 admits nothing; set at least 1")]
    ZeroKeys,
    /// The keys of a keyed limiter have [tiers](crate::KeyedLimiterBuilder::tiers), which choose the policy of each key at each
    /// call. So the policy cannot be set.
    #[error("the keys have tiers: return another policy from there")]
    HasTiers,
    /// A number of the limit is outside its documented range.
    #[error("the {number} of `{limit}` is {given}; set {} to {}", range.start(), range.end())]
    OutOfRange {
        /// The limit as given.
        limit: Box<Limit>,
        /// The name of the number: `floor`, `ceiling`, `backoff`, `tolerance`, `smoothing`, `limit` or `threshold`.
        number: &'static str,
        /// The number as given.
        given: u64,
        /// The range that is allowed.
        range: RangeInclusive<u64>,
    },
    /// The limit counts a named unit whose name is not valid.
    #[error(
        "`{limit}` counts no unit: name it with 1 to 31 letters, digits, `_` or `-`, a letter first"
    )]
    InvalidUnit {
        /// The limit as given. A long name is cut off.
        limit: Box<Limit>,
    },
    /// A duration of the limit, or the time to refill its burst, is longer than a limit may span.
    #[error("the {number} of `{limit}` is longer than {} years; shorten it", max.as_secs() / (365 * 24 * 3_600))]
    TooLong {
        /// The limit as given.
        limit: Box<Limit>,
        /// What is too long: a duration as in [`ConfigError::ZeroDuration`], `time to forgive bans` or `time to refill the burst`.
        number: &'static str,
        /// The longest span: 100 years of 365 days.
        max: Duration,
    },
    /// The store of a [shared limiter](crate::SharedLimiter) cannot keep the policy.
    #[error("the store of the limiter cannot keep its policy")]
    Store(#[source] Box<StoreError>),
}

/// The error type of a conversion into a policy that cannot fail.
impl From<Infallible> for ConfigError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// Defines an error of a request: its own variants, and those that every kind of request has.
macro_rules! request_error {
    ($(#[$attribute:meta])* $name:ident { $($own:tt)* }) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, PartialEq, Eq, Error)]
        #[non_exhaustive]
        pub enum $name {
            $($own)*
            /// The cost is above the smallest [capacity](crate::Limit::capacity) in the policy, so neither waiting nor a retry can
            /// help. The cost of a named unit is compared only with the limits that count it.
            #[error(
                "a cost of {cost} can never be admitted: the {number} of `{limit}` is {max}; split the request, or raise the {number}",
                number = limit.description().name_of_capacity
            )]
            ExceedsLimit {
                /// The cost of the request, in the units that the limit counts.
                cost: u64,
                /// The largest cost that the policy admits.
                max: u64,
                /// The first limit with this capacity.
                limit: Box<Limit>,
            },
            /// A limit counts a unit, and the request does not [state](crate::PermitRequest::cost_of) how many it takes.
            #[error("`{limit}` counts {unit}, and the request does not say how many it takes: add .cost_of(\"{unit}\", …), or 0")]
            MissingCost {
                /// The unit.
                unit: Unit,
                /// The limit that counts it.
                limit: Box<Limit>,
            },
            /// The cost is zero.
            #[error("a cost of 0 takes nothing; ask for at least 1")]
            ZeroCost,
            /// The request gives its permit a [TTL](crate::PermitRequest::ttl), and the policy gives permits no TTL.
            #[error("the request has a TTL of {ttl:?}, and permits of `{policy}` have none to shorten; add one with MaxConcurrency::ttl")]
            NoTtl {
                /// The TTL of the request.
                ttl: Duration,
                /// The policy of the limiter.
                policy: Policy,
            },
            /// The weight of a [flow](crate::PermitRequest::weight), or of its [parent](crate::PermitRequest::parent_weight), is out of
            /// range.
            #[error("a flow's weight of {weight} is out of range; set 1 to {max}")]
            WeightOutOfRange {
                /// The weight of the request.
                weight: u64,
                /// The largest weight: 1,000,000.
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
            /// The store that holds the limits did not answer, or refused the call.
            ///
            /// This error displays as the [`StoreError`] does, and has the same source.
            #[error(transparent)]
            Store(Box<StoreError>),
        }

        impl $name {
            /// Whether the limiter was closed: no further request will be granted. See [`retry_after`](Self::retry_after).
            #[must_use]
            pub const fn is_closed(&self) -> bool {
                matches!(self, Self::Closed)
            }
        }
    };
}

request_error! {
    /// Why an `acquire` ended without a permit. See [`Limiter::acquire`](crate::Limiter::acquire) for an example.
    AcquireError {
        /// The limiter was closed, before the request or while it waited.
        #[error("the limiter is closed")]
        Closed,
        /// The request must wait, and the queue is full: see [`Overflow::Reject`](crate::Overflow::Reject).
        #[error("the limiter's queue is full; raise max_queue, or retry {}", retry_after.map_or_else(|| "later".to_owned(), |after| format!("after {after:?}")))]
        QueueFull {
            /// As in [`AcquireError::TimedOut`], behind the requests that wait.
            retry_after: Option<Duration>,
        },
        /// The request waited, and a full queue dropped it in favour of another: see [`Overflow`](crate::Overflow).
        #[error("the limiter's full queue dropped the request in favour of another{}", display_retry(*retry_after))]
        Shed {
            /// As in [`AcquireError::TimedOut`], behind the requests that wait.
            retry_after: Option<Duration>,
        },
        /// The queue overflowed, and the limiter blocks all requests: see [`Overflow::Block`](crate::Overflow::Block).
        #[error("the limiter's queue overflowed; it blocks until no request has come for {retry_after:?}")]
        Blocked {
            /// How long no request may come before the limiter accepts one again.
            retry_after: Duration,
        },
        /// The timeout of the request passed, or the wait is known to be longer than the timeout.
        #[error("no permit within the timeout{}", display_retry(*retry_after))]
        TimedOut {
            /// The time from now after which a new request of this cost could be granted, as far as the limits that follow
            /// time can tell. `None` if only a release helps. Waiting requests go first: if some give up, a grant is
            /// possible sooner.
            retry_after: Option<Duration>,
            /// The limiter's decision at that time on a new request of this cost, behind the waiting requests. `None` unless the
            /// request asked for an [explanation](crate::PermitRequest::acquire_explained).
            decision: Option<Box<Decision>>,
        },
        /// The timeout is out of range.
        #[error("a timeout of {timeout:?} is out of range; the longest is {max:?}, or set none")]
        TimeoutTooLong {
            /// The timeout of the request.
            timeout: Duration,
            /// The longest timeout: 100 years of 365 days.
            max: Duration,
        },
        /// A [throttled](crate::StreamLimitExt::throttled) stream holds no permits, so a policy of nothing but
        /// [`MaxConcurrency`](crate::MaxConcurrency) would not slow it down. A [sink](crate::SinkLimitExt::throttled_sink) holds
        /// none either.
        #[error("`{policy}` bounds permits that are held, and a throttled stream holds none; use with_permits, map_permitted or for_each_permitted")]
        NoRate {
            /// The policy of the limiter.
            policy: Policy,
        },
        /// The request must wait, and nothing would wake it: the request was polled outside every tokio runtime with timers, and
        /// no such runtime serves the limiter.
        ///
        /// A tokio runtime without timers can only be detected by a panic. The limiter catches the panic, but the panic hook runs,
        /// once in each such runtime for all limiters. Where panics abort, the process ends.
        #[error("the request must wait, and there is no tokio runtime with timers; call it in one (enable_time), or use blocking_acquire")]
        NoRuntime,
    }
}

request_error! {
    /// Why a `try_acquire` got no permit. See [`Limiter::try_acquire`](crate::Limiter::try_acquire) for an example.
    TryAcquireError {
        /// The request would have to wait. The [`Decision`] states which limit denied it and when to retry.
        #[error("{0}")]
        Denied(Decision),
        /// The limiter is closed.
        #[error("the limiter is closed")]
        Closed,
        /// The store that holds the limits was not called: the queue was full, or no request would have waited for the reply.
        #[error("the store of the limiter was not asked")]
        NotAsked(#[source] Box<AcquireError>),
    }
}

fn display_retry(retry_after: Option<Duration>) -> String {
    retry_after
        .map(|after| format!("; retry after {after:?}"))
        .unwrap_or_default()
}

/// Why [`Limiter::run`](crate::Limiter::run), which has an example, did not complete the future.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RunError {
    /// The future got no permit, and was never polled.
    #[error("the future was not started: it got no permit")]
    Acquire(#[from] AcquireError),
    /// The permit was reclaimed because its TTL had passed, and the future was dropped before it completed.
    #[error(
        "the future was dropped: its permit {id} was reclaimed when its TTL passed; raise the TTL, or renew the permit"
    )]
    Reclaimed {
        /// The reclaimed permit.
        id: PermitId,
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

impl AcquireError {
    /// The time from now after which a new request could be granted, behind the requests that wait: earlier if some of them give up.
    /// `None` if that time is unknown, or no request would be granted. It is `None` for a [store](Self::Store) that does not answer,
    /// too, although a retry may then succeed.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Limiter, Throttle};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(Throttle::every(Duration::from_secs(5)))?;
    /// let _permit = limiter.acquire().await?;
    /// let error = limiter.request().timeout(Duration::from_secs(1)).acquire().await.unwrap_err();
    /// assert_eq!(error.retry_after(), Some(Duration::from_secs(5)));
    /// assert!(!error.is_closed());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Blocked { retry_after } => Some(*retry_after),
            Self::TimedOut { retry_after, .. }
            | Self::QueueFull { retry_after }
            | Self::Shed { retry_after } => *retry_after,
            _ => None,
        }
    }
}

impl TryAcquireError {
    /// The error of a request that was not decided.
    pub(crate) fn without_decision(error: AcquireError) -> Self {
        match error {
            AcquireError::Closed => Self::Closed,
            AcquireError::ExceedsLimit { cost, max, limit } => {
                Self::ExceedsLimit { cost, max, limit }
            }
            AcquireError::TooManyKeys { max } => Self::TooManyKeys { max },
            AcquireError::Config(error) => Self::Config(error),
            AcquireError::MissingCost { unit, limit } => Self::MissingCost { unit, limit },
            AcquireError::ZeroCost => Self::ZeroCost,
            AcquireError::NoTtl { ttl, policy } => Self::NoTtl { ttl, policy },
            AcquireError::WeightOutOfRange { weight, max } => {
                Self::WeightOutOfRange { weight, max }
            }
            AcquireError::Store(error) => Self::Store(error),
            error => Self::NotAsked(Box::new(error)),
        }
    }

    /// The [`retry_after`](Decision::retry_after) of a denial; `None` for any other error.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Limiter, Throttle};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(Throttle::every(Duration::from_secs(5)))?;
    /// let _permit = limiter.try_acquire()?;
    /// assert_eq!(limiter.try_acquire().unwrap_err().retry_after(), Some(Duration::from_secs(5)));
    /// limiter.close();
    /// assert!(limiter.try_acquire().unwrap_err().is_closed());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Denied(decision) => decision.retry_after(),
            _ => None,
        }
    }
}

impl RunError {
    /// [`AcquireError::retry_after`] of a future that got no permit; `None` after a reclaim.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Acquire(error) => error.retry_after(),
            Self::Reclaimed { .. } => None,
        }
    }

    /// Whether the limiter was closed before the future got a permit. See [`AcquireError::is_closed`].
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        matches!(self, Self::Acquire(AcquireError::Closed))
    }
}

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
    /// The store has a policy of a higher [revision](crate::SharedLimiterBuilder::revision) for the key, or another one of the same
    /// revision. A limiter adopts a policy of a higher revision, so its requests fail only in the second case.
    #[error(
        "the store has the limiter {limiter:?} with the policy `{stored}` (revision {stored_revision}), not `{given}` (revision {given_revision}): to change the policy of all processes, give the new one a higher revision; to have both, use another name"
    )]
    PolicyDiffers {
        /// The name of the limiter.
        limiter: Arc<str>,
        /// The policy that the store has, as text.
        stored: String,
        /// The revision of that policy.
        stored_revision: u64,
        /// The policy of the call, as text.
        given: String,
        /// The revision of that policy.
        given_revision: u64,
    },
    /// The store has a policy that this version of the crate cannot apply. Nothing is granted for the key meanwhile.
    #[error(
        "the store has the limiter {limiter:?} with the policy `{stored}` (revision {stored_revision}), which version {} of tollgate in this process, with the policy `{given}` (revision {given_revision}), cannot apply: update this process, or give its policy a higher revision than that one once all keys have expired", env!("CARGO_PKG_VERSION")
    )]
    UnknownPolicy {
        /// The name of the limiter.
        limiter: Arc<str>,
        /// The policy that the store has, as text.
        stored: String,
        /// The revision of that policy.
        stored_revision: u64,
        /// The policy of this process, as text.
        given: String,
        /// The revision of that policy.
        given_revision: u64,
        /// Why it cannot be applied.
        source: Box<Self>,
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

/// The error of a client library behind a [`StoreError`]: its `source()`. Two causes are equal if they display the same text. `{:?}`
/// prints that text with its own sources; `{:#?}` prints the error of the library.
#[derive(Clone, Error)]
#[error(transparent)]
pub struct Cause(Arc<dyn Error + Send + Sync>);

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            self.0.fmt(f)
        } else {
            write!(f, "{}", WithSources(&*self.0))
        }
    }
}

/// Prints an error and its sources, each after a colon.
pub(crate) struct WithSources<'a>(pub(crate) &'a dyn Error);

impl fmt::Display for WithSources<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(error) = source {
            write!(f, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}

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
