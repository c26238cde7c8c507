//! What happens in limiters, as data.

use std::fmt;
use std::panic::Location;
use std::time::Duration;

use crate::decision::Decision;
use crate::error::{AcquireError, StoreError, WithSources};
use crate::flow::FlowId;
use crate::permit_id::PermitId;
use crate::policy::Policy;
use crate::priority::Priority;
use crate::strategy::Moment;

/// What has happened. See [`LimiterEvent`](crate::LimiterEvent) for a table and an example.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum EventKind {
    /// A request that had to wait was granted: its future was pending, or its thread blocked. The future may not have taken the
    /// permit yet; if it is dropped instead, the grant is [refunded](crate::LimiterSnapshot::refunded).
    #[non_exhaustive]
    GrantedAfterWait {
        /// The [id](crate::Permit::id) of the permit.
        id: PermitId,
        /// The [fence](crate::Permit::fence) of the permit.
        fence: u64,
        /// The units of the permit.
        cost: u64,
        /// The priority of the request.
        priority: Priority,
        /// The [flow](crate::PermitRequest::flow) of the request, if it has one.
        flow: Option<FlowId>,
        /// The time from the first poll of the request to its grant.
        waited: Duration,
        /// Where in the program the permit was requested.
        requested_in: &'static Location<'static>,
    },
    /// A request timed out, or failed at once because it would time out.
    #[non_exhaustive]
    TimedOut {
        /// The units of the request.
        cost: u64,
        /// The priority of the request.
        priority: Priority,
        /// The [flow](crate::PermitRequest::flow) of the request, if it has one.
        flow: Option<FlowId>,
        /// The time from the first poll of the request to its refusal; zero if the request failed at once.
        waited: Duration,
        /// As in [`AcquireError::TimedOut`].
        retry_after: Option<Duration>,
        /// Where in the program the request was made.
        requested_in: &'static Location<'static>,
    },
    /// A request was dropped from a full queue, or refused.
    #[non_exhaustive]
    Shed {
        /// The units of the request.
        cost: u64,
        /// The priority of the request.
        priority: Priority,
        /// The [flow](crate::PermitRequest::flow) of the request, if it has one.
        flow: Option<FlowId>,
        /// Why the request was shed.
        reason: ShedReason,
        /// Where in the program the request was made.
        requested_in: &'static Location<'static>,
    },
    /// A request that does not wait was denied. A request with an impossible cost, or to a closed limiter, fails with an error
    /// and causes no event, except where a layer [refuses](EventKind::Refused) it.
    #[non_exhaustive]
    Denied {
        /// The units of the request.
        cost: u64,
        /// The [flow](crate::PermitRequest::flow) of the request, if it has one.
        flow: Option<FlowId>,
        /// The decision that the caller received: [which limit denied](Decision::denied_by), and [when to
        /// retry](Decision::retry_after).
        decision: Decision,
        /// Where in the program the request was made.
        requested_in: &'static Location<'static>,
    },
    /// The denial that was reported just before has started a [ban](crate::Penalty::ban).
    ///
    /// For a shared limiter, the reply of the store shows the ban. If that reply is lost, or its callers have given up, no event
    /// is reported. If two processes are denied at the same instant of the store, both may report the ban. Where bans
    /// [escalate](crate::Penalty::escalate), a ban that began elsewhere is reported as new if it ends at the same instant as a
    /// shorter ban that began now, to the resolution of the store's clock.
    #[non_exhaustive]
    Banned {
        /// The index of the [`Penalty`](crate::Penalty), from 0, in the policy. During a [local
        /// fallback](crate::store::OnStoreDown::Local) of a shared limiter, it is an index in the policy of the fallback.
        limit_index: usize,
        /// How long the ban lasts from now on.
        banned_for: Duration,
        /// Where in the program the denied request was made.
        requested_in: &'static Location<'static>,
    },
    /// A permit was reclaimed: its TTL has passed.
    #[non_exhaustive]
    Reclaimed {
        /// The [id](crate::Permit::id) of the permit.
        id: PermitId,
        /// The [fence](crate::Permit::fence) of the permit.
        fence: u64,
        /// The units of the permit.
        cost: u64,
        /// The time from its grant to the end of its TTL, renewals included.
        held: Duration,
        /// Where in the program the permit was requested.
        acquired_in: &'static Location<'static>,
    },
    /// A permit was dropped after it was [reclaimed](EventKind::Reclaimed), so the drop changed nothing. A reclaimed permit
    /// without this event has leaked, or is still held.
    #[non_exhaustive]
    ReleasedLate {
        /// The [id](crate::Permit::id) of the permit.
        id: PermitId,
        /// The [fence](crate::Permit::fence) of the permit.
        fence: u64,
        /// The units of the permit.
        cost: u64,
    },
    /// An [adaptive](crate::Adapt) concurrency has moved its limit after a [report](crate::Permit::report). `from` is the `to` of
    /// the event before. A limit that restarts because it was idle is reported with the next report.
    #[non_exhaustive]
    LimitMoved {
        /// The former limit, in units in flight, as in [`LimiterSnapshot::concurrency`](crate::LimiterSnapshot::concurrency).
        from: u64,
        /// The new limit, in units in flight.
        to: u64,
    },
    /// The limiter is [paused](crate::Limiter::pause_for), also by an [upstream's signal](crate::Limiter::apply_upstream_signal),
    /// or the end of its pause has moved to a later time. Another pause that does not move the end causes no event. A key's own
    /// pause and one of [all keys](crate::KeyedLimiter::pause_for) are separate: the start and the end of each are reported as if
    /// there were no other.
    #[non_exhaustive]
    Paused {
        /// How long the pause lasts from now on; [`Duration::MAX`] until it is [resumed](crate::Limiter::resume).
        paused_for: Duration,
    },
    /// A pause has ended: by [`resume`](crate::Limiter::resume), or by itself. While no request waits, no timer runs for its end:
    /// the next call (a request, a check, a snapshot) detects and reports it. The end of the first of two pauses is reported in
    /// the same way.
    #[non_exhaustive]
    Resumed {
        /// How long ago the pause ended. Zero if a call ended it.
        ended_ago: Duration,
    },
    /// An upstream's answer had a malformed header field, which was ignored. A [signal](crate::UpstreamSignal::malformed)
    /// reported it.
    #[non_exhaustive]
    UpstreamMalformed {
        /// The name of the field, in lower case.
        field: &'static str,
    },
    /// The policy was replaced: by [`set_policy`](crate::Limiter::set_policy), by another
    /// [tier](crate::KeyedLimiterBuilder::tiers) of a key, or by a later [revision](crate::SharedLimiterBuilder::revision) in a
    /// store.
    #[non_exhaustive]
    PolicyChanged {
        /// The former policy.
        from: Policy,
        /// The present policy.
        to: Policy,
    },
    /// The limiter was [closed](crate::Limiter::close): waiting requests are refused after this event. Or it was [closed to new
    /// requests](crate::Limiter::close_to_new): waiting requests are still served.
    Closed,
    /// Calls to the store of a [shared limiter](crate::SharedLimiter), or to a [part](crate::store::Store::part_of) of it, have failed
    /// several times in a row. For a while, such calls fail at once, and requests follow the [rule](crate::store::OnStoreDown) of
    /// the limiter. Further parts that fail meanwhile are not reported.
    #[non_exhaustive]
    StoreDown {
        /// The error of the latest call.
        error: StoreError,
    },
    /// The store of a [shared limiter](crate::SharedLimiter), with all its parts, answers again.
    #[non_exhaustive]
    StoreUp {
        /// How long the store was down.
        down_for: Duration,
    },
    /// A keyed limiter forgot a key before it was reset: [`WhenFull::EvictSoonestReset`](crate::WhenFull::EvictSoonestReset).
    #[non_exhaustive]
    Evicted {
        /// The time until the key would have been reset.
        reset_after: Duration,
    },
    /// A keyed limiter refused a new key: [`WhenFull::Deny`](crate::WhenFull::Deny).
    TooManyKeys,
    /// A [throttled](crate::StreamLimitExt::throttled) stream has ended before its source, because the limiter refused an item:
    /// it was closed, its queue was full, or its policy no longer has a rate. The items of such a stream are not results, so
    /// behind other adapters only this event states why the stream ended. A
    /// [`try_throttled`](crate::StreamLimitExt::try_throttled) stream yields the error instead.
    #[non_exhaustive]
    StreamEnded {
        /// Why the item was refused: [`Throttled::error`](crate::Throttled::error).
        error: AcquireError,
        /// Where in the program the stream was throttled.
        requested_in: &'static Location<'static>,
    },
    /// An [HTTP layer](crate::layers::LimitLayer::shadow) in shadow mode let a request through that it would have refused. For a key that
    /// is unknown, as in [`EventKind::Refused`].
    #[non_exhaustive]
    WouldRefuse {
        /// The units of the request.
        cost: u64,
        /// The [flow](crate::PermitRequest::flow) of the request, if it has one.
        flow: Option<FlowId>,
        /// The status of the response that the client would have got: 429, 503, 403, 413 or 500.
        status: u16,
        /// Why it would have been refused, for operators of the server.
        error: String,
        /// Where in the program the layer was made.
        requested_in: &'static Location<'static>,
    },
    /// An [HTTP layer](crate::layers::LimitLayer) refused a request, and no other event reports it: its limiter was not asked, or
    /// could not decide.
    ///
    /// If the key is unknown, the event has no key. A layer that [chooses](crate::layers::LimitLayer::choose) its limiter by the
    /// key then has no limiter, so it reports no event.
    #[non_exhaustive]
    Refused {
        /// The units of the request.
        cost: u64,
        /// Why the request was refused.
        reason: RefusedReason,
        /// The reason in words, for operators of the server: what a request without a key lacks, which cost is too large, or the
        /// error of the store. The text may name the store, and is not meant for clients.
        error: String,
        /// Where in the program the layer was made.
        requested_in: &'static Location<'static>,
    },
}

impl EventKind {
    /// Completes the id of a permit. The core makes the id without the random part.
    pub(crate) fn complete_id(&mut self, id_prefix: u64) {
        if let Self::GrantedAfterWait { id, fence, .. }
        | Self::Reclaimed { id, fence, .. }
        | Self::ReleasedLate { id, fence, .. } = self
        {
            *id = PermitId::new(id_prefix, *fence);
        }
    }
}

/// One line for people: `denied by `100/min`; retry after 600ms`. A log that is searched by fields has them from the
/// `TracingObserver` of the module `telemetry`.
impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GrantedAfterWait { waited, .. } => write!(f, "granted after {waited:?}"),
            Self::TimedOut {
                waited,
                retry_after: Some(after),
                ..
            } => write!(f, "timed out after {waited:?}; retry after {after:?}"),
            Self::TimedOut { waited, .. } => write!(f, "timed out after {waited:?}"),
            Self::Shed { reason, .. } => write!(f, "shed: {}", reason.as_str()),
            Self::Denied { decision, .. } => decision.fmt(f),
            Self::Banned { banned_for, .. } => write!(f, "banned for {banned_for:?}"),
            Self::Reclaimed {
                id,
                held,
                acquired_in,
                ..
            } => write!(
                f,
                "reclaimed the permit {id} after {held:?}, acquired in {acquired_in}"
            ),
            Self::ReleasedLate { id, .. } => {
                write!(f, "the permit {id} was released after it was reclaimed")
            }
            Self::LimitMoved { from, to } => write!(f, "the limit has moved from {from} to {to}"),
            Self::Paused {
                paused_for: Duration::MAX,
            } => f.write_str("paused until it is resumed"),
            Self::Paused { paused_for } => write!(f, "paused for {paused_for:?}"),
            Self::Resumed { .. } => f.write_str("resumed"),
            Self::UpstreamMalformed { field } => {
                write!(f, "ignored a malformed field of an upstream: {field}")
            }
            Self::PolicyChanged { from, to } => {
                write!(f, "the policy has changed from `{from}` to `{to}`")
            }
            Self::Closed => f.write_str("closed"),
            Self::StoreDown { error } => {
                write!(f, "the store does not answer: {}", WithSources(error))
            }
            Self::StoreUp { down_for } => {
                write!(f, "the store answers again, after {down_for:?}")
            }
            Self::Evicted { reset_after } => {
                write!(f, "evicted a key, {reset_after:?} before its reset")
            }
            Self::TooManyKeys => f.write_str("refused a new key"),
            Self::StreamEnded { error, .. } => {
                write!(f, "a throttled stream ended early: {}", WithSources(error))
            }
            Self::WouldRefuse { status, error, .. } => {
                write!(f, "would refuse a request with {status}: {error}")
            }
            Self::Refused { error, .. } => write!(f, "refused a request: {error}"),
        }
    }
}

/// Reasons, each with its name in logs and metrics.
macro_rules! reasons {
    ($(#[$doc:meta])* $reason:ident { $($(#[$of_variant:meta])* $variant:ident = $name:literal,)* } $(#[$of_name:meta])*) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $reason { $($(#[$of_variant])* $variant,)* }

        impl $reason {
            $(#[$of_name])*
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

reasons! {
    /// Why a request was shed. [`EventKind::Shed`] carries it.
    ShedReason {
        /// The queue was full when the request arrived.
        QueueFull = "queue_full",
        /// The request waited in the queue and was dropped for another request, or together with all others: see
        /// [`Overflow`](crate::Overflow).
        Dropped = "dropped",
        /// The request arrived while the limiter accepted none: see [`Overflow::Block`](crate::Overflow::Block).
        Blocked = "blocked",
    }
    /// `queue_full`, `dropped` or `blocked`, for logs and metrics.
    ///
    /// ```
    /// assert_eq!(tollgate::ShedReason::QueueFull.as_str(), "queue_full");
    /// ```
}

reasons! {
    /// Why a layer refused a request that its limiter has not denied. [`EventKind::Refused`] carries it.
    RefusedReason {
        /// The client that sent the request is unknown.
        NoIdentity = "no_identity",
        /// The cost of the request is above a capacity, so that it could never be granted.
        ExceedsLimit = "exceeds_limit",
        /// The configuration does not let the limiter decide any request.
        Misconfigured = "misconfigured",
        /// The limiter is closed.
        Closed = "closed",
        /// The store of a shared limiter has not answered, or has refused the call.
        StoreFailed = "store_failed",
    }
    /// `no_identity`, `exceeds_limit`, `misconfigured`, `closed` or `store_failed`, for logs and metrics.
    ///
    /// ```
    /// assert_eq!(tollgate::RefusedReason::NoIdentity.as_str(), "no_identity");
    /// ```
}

/// A request that does not wait, as recorded before it is denied.
pub(crate) struct Attempt {
    pub(crate) now: Moment,
    pub(crate) cost: u64,
    pub(crate) flow: Option<FlowId>,
    pub(crate) requested_in: &'static Location<'static>,
    /// The end of the ban of each limit, if it has banned.
    pub(crate) bans: Vec<Option<Moment>>,
}

impl Attempt {
    /// The events of its denial: the denial, and then the bans that it started.
    pub(crate) fn denied(
        self,
        decision: &Decision,
        bans: impl Iterator<Item = Option<Moment>>,
    ) -> Vec<EventKind> {
        let Self {
            now,
            cost,
            flow,
            requested_in,
            ..
        } = self;
        let mut events = vec![EventKind::Denied {
            cost,
            flow,
            decision: decision.clone(),
            requested_in,
        }];
        for (limit_index, (before, after)) in self.bans.into_iter().zip(bans).enumerate() {
            if let (None, Some(until)) = (before, after) {
                events.push(EventKind::Banned {
                    limit_index,
                    banned_for: until.duration_since(now),
                    requested_in,
                });
            }
        }
        events
    }
}
