use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::decision::Decision;
use crate::error::{AcquireError, StoreError};
use crate::policy::Policy;
use crate::priority::Priority;
use crate::strategy::Moment;

/// What a limiter tells its [observers](crate::LimiterBuilder::on_event): which limiter it is, and what has happened.
///
/// | event | when | what it says |
/// |---|---|---|
/// | [`GrantedAfterWait`](EventKind::GrantedAfterWait) | a request that had to wait is granted | the permit, how long it waited, where it was requested |
/// | [`TimedOut`](EventKind::TimedOut) | a request times out, or fails at once because it would | how long it waited, when to retry |
/// | [`Shed`](EventKind::Shed) | a full queue drops or refuses a request | why |
/// | [`Denied`](EventKind::Denied) | `try_acquire` is denied | the [`Decision`]: which limit denied, when to retry |
/// | [`Banned`](EventKind::Banned) | a denied attempt starts a [ban](crate::Penalty::ban) | for how long |
/// | [`Reclaimed`](EventKind::Reclaimed) | the TTL of a permit has passed | the permit, how long it was held, where it was requested |
/// | [`ReleasedLate`](EventKind::ReleasedLate) | a permit is dropped after it was reclaimed: its holder was slow, and has not leaked it | the permit |
/// | [`LimitMoved`](EventKind::LimitMoved) | an [adaptive](crate::Adapt) concurrency finds another limit | from which to which |
/// | [`Paused`](EventKind::Paused) | a pause begins, or its end moves | for how long |
/// | [`Resumed`](EventKind::Resumed) | a pause ends, by a call or by itself | how long ago |
/// | [`UpstreamMalformed`](EventKind::UpstreamMalformed) | an upstream's answer had a field that was ignored | which |
/// | [`PolicyChanged`](EventKind::PolicyChanged) | the policy is replaced | from which to which |
/// | [`Closed`](EventKind::Closed) | the limiter is closed | |
/// | [`StoreDown`](EventKind::StoreDown) | calls to the store of a shared limiter are given up for a while | the error |
/// | [`StoreUp`](EventKind::StoreUp) | the store answers again | for how long it was down |
/// | [`Evicted`](EventKind::Evicted) | a keyed limiter forgets a key before it is reset | how long until then |
/// | [`TooManyKeys`](EventKind::TooManyKeys) | a keyed limiter refuses a new key | |
/// | [`StreamEnded`](EventKind::StreamEnded) | a `throttled` stream ends before its source | the error |
/// | [`Refused`](EventKind::Refused) | a [layer of HTTP](crate::http::LimitLayer) refuses a request that its limiter has not denied | why |
///
/// A grant without a wait is no event: where nobody has to know of it, it takes no lock. [`LimiterSnapshot`](crate::LimiterSnapshot)
/// counts it. Of a shared limiter, `acquire` waits for the store, too; a grant of `try_acquire` is no event. A ban that begins in the
/// store, and a policy that is [replaced there](crate::SharedLimiterBuilder::replace_policy), are told by the process whose request did
/// it.
///
/// # Order
///
/// What one call does is reported in the order in which it happened, cause before effect, before the waiters that it concerns are
/// woken and before the call returns. So the events of one thread's calls are in their order. Events of calls in different threads
/// are reported outside the lock that orders the calls, so they may be reported in another order, or at the same time.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{EventKind, Limiter, Throttle};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (events, seen) = std::sync::mpsc::channel();
/// let limiter = Limiter::builder(Throttle::every(Duration::from_secs(1)))
///     .name("mail")
///     .on_event(move |event| match &event.kind {
///         EventKind::GrantedAfterWait { waited, .. } => events.send(format!("{:?} waited {waited:?}", event.name())).unwrap(),
///         EventKind::Denied { decision, .. } => events.send(decision.to_string()).unwrap(),
///         _ => {}
///     })
///     .build()?;
/// for _ in 0..2 {
///     limiter.acquire().await?.release();
/// }
/// assert!(limiter.try_acquire().is_err());
/// assert_eq!(seen.recv()?, r#"Some("mail") waited 1s"#);
/// assert_eq!(seen.recv()?, "denied by `throttle every 1s`; retry after 1s");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct LimiterEvent {
    /// The [name](crate::LimiterBuilder::name) of the limiter, if it has one.
    pub limiter: Option<Arc<str>>,
    /// What has happened.
    pub kind: EventKind,
}

impl LimiterEvent {
    pub(crate) const fn new(limiter: Option<Arc<str>>, kind: EventKind) -> Self {
        Self { limiter, kind }
    }

    /// The [name](crate::LimiterBuilder::name) of the limiter, if it has one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.limiter.as_deref()
    }
}

/// What has happened. See [`LimiterEvent`] for a table and an example.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum EventKind {
    /// A request was granted that had to wait: its future was pending, or its thread blocked. The future may not have taken the
    /// permit yet; if it is dropped instead, the grant is [refunded](crate::LimiterSnapshot::refunded).
    #[non_exhaustive]
    GrantedAfterWait {
        /// The [id](crate::Permit::id) of the permit.
        id: Uuid,
        /// The [fence](crate::Permit::fence) of the permit.
        fence: u64,
        /// The units of the permit.
        cost: u64,
        /// The priority of the request.
        priority: Priority,
        /// From the first poll of the request to its grant.
        waited: Duration,
        /// Where in the program the permit was requested.
        requested_in: &'static Location<'static>,
    },
    /// A request timed out, or failed at once because it would have.
    #[non_exhaustive]
    TimedOut {
        /// The units of the request.
        cost: u64,
        /// The priority of the request.
        priority: Priority,
        /// From the first poll of the request to its refusal; zero if it failed at once.
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
        /// Why it was shed.
        reason: ShedReason,
        /// Where in the program the request was made.
        requested_in: &'static Location<'static>,
    },
    /// A request that does not wait was denied. One whose cost is refused in any case, or of a closed limiter, is an error and no
    /// event (but where a layer [refuses](EventKind::Refused) it).
    #[non_exhaustive]
    Denied {
        /// The units of the request.
        cost: u64,
        /// What the caller was told: [which limit denied](Decision::denied_by), and [when to retry](Decision::retry_after).
        decision: Decision,
        /// Where in the program the request was made.
        requested_in: &'static Location<'static>,
    },
    /// The denial that was reported just before has started a [ban](crate::Penalty::ban).
    ///
    /// Of a shared limiter, the reply of the store shows it, so nobody is told if that is lost, or its callers have left. Of two
    /// processes that are denied at the same instant of the store, both may tell it. Of bans that
    /// [escalate](crate::Penalty::escalate), one that began elsewhere looks new if it ends at the very instant, to the resolution of the
    /// store's clock, at which a shorter one would that began now.
    #[non_exhaustive]
    Banned {
        /// The index of the [`Penalty`](crate::Penalty), from 0, in the policy; where a shared limiter decides
        /// [alone](crate::store::OnStoreDown::Local), in the policy by which it does.
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
        id: Uuid,
        /// The [fence](crate::Permit::fence) of the permit.
        fence: u64,
        /// The units of the permit.
        cost: u64,
        /// From its grant to the end of its TTL, renewals included.
        held: Duration,
        /// Where in the program the permit was asked for.
        acquired_in: &'static Location<'static>,
    },
    /// A permit was dropped after it was [reclaimed](EventKind::Reclaimed), which changed nothing. So a permit that is reclaimed without
    /// this event after it has leaked, or is still held.
    #[non_exhaustive]
    ReleasedLate {
        /// The [id](crate::Permit::id) of the permit.
        id: Uuid,
        /// The [fence](crate::Permit::fence) of the permit.
        fence: u64,
        /// The units of the permit.
        cost: u64,
    },
    /// An [adaptive](crate::Adapt) concurrency has moved its limit after a [report](crate::Permit::report). `from` is the `to` of
    /// the event before. A limit that restarts because it was idle is reported with the next report.
    #[non_exhaustive]
    LimitMoved {
        /// The units that could be in flight at the same time, as in [`LimiterSnapshot::concurrency`](crate::LimiterSnapshot::concurrency).
        from: u64,
        /// The units that can be in flight at the same time now.
        to: u64,
    },
    /// The limiter is [paused](crate::Limiter::pause_for), also by an [upstream's signal](crate::Limiter::apply_upstream_signal), or
    /// its pause ends later than it would have. A further pause that does not move the end is no event. A key's own pause and one
    /// of [all keys](crate::KeyedLimiter::pause_for) are two: each is told as if there were no other, and so is its end.
    #[non_exhaustive]
    Paused {
        /// How long the pause lasts from now on; [`Duration::MAX`] until it is [resumed](crate::Limiter::resume).
        paused_for: Duration,
    },
    /// A pause has ended: by [`resume`](crate::Limiter::resume), or by itself. While no request waits, no timer runs for its end;
    /// it is then reported when the next call finds it out: a request, a check, a snapshot. So is the end of the first of two pauses.
    #[non_exhaustive]
    Resumed {
        /// How long ago it ended; zero by a call.
        ended_ago: Duration,
    },
    /// A [signal](crate::UpstreamSignal::malformed) says that an upstream's answer had a malformed header field, which was ignored.
    #[non_exhaustive]
    UpstreamMalformed {
        /// The name of the field, in lower case.
        field: &'static str,
    },
    /// The policy was replaced: [`set_policy`](crate::Limiter::set_policy), another [tier](crate::KeyedLimiterBuilder::tiers) of a key,
    /// or that of a key [in a store](crate::SharedLimiterBuilder::replace_policy).
    #[non_exhaustive]
    PolicyChanged {
        /// The former policy.
        from: Policy,
        /// The present policy.
        to: Policy,
    },
    /// The limiter was [closed](crate::Limiter::close): requests that wait are refused after this event. Or it was
    /// [closed to new requests](crate::Limiter::close_to_new): those that wait are still served.
    Closed,
    /// Calls to the store of a [shared limiter](crate::SharedLimiter) have failed several times in a row. For a while they fail at
    /// once, and what is asked of the limiter follows its [rule](crate::store::OnStoreDown).
    #[non_exhaustive]
    StoreDown {
        /// Of the latest call.
        error: StoreError,
    },
    /// The store of a [shared limiter](crate::SharedLimiter) answers again.
    #[non_exhaustive]
    StoreUp {
        /// For how long it was down.
        down_for: Duration,
    },
    /// A keyed limiter forgot a key before it was reset: [`WhenFull::EvictSoonestReset`](crate::WhenFull::EvictSoonestReset).
    #[non_exhaustive]
    Evicted {
        /// How long until it would have been reset.
        reset_after: Duration,
    },
    /// A keyed limiter refused a new key: [`WhenFull::Deny`](crate::WhenFull::Deny).
    TooManyKeys,
    /// A [throttled](crate::StreamLimitExt::throttled) stream has ended before its source, because the limiter refused an item: it was
    /// closed, its queue was full, or its policy no longer has a rate. The items of that stream are no results, so behind other adapters
    /// this event alone says why it ended. A [`try_throttled`](crate::StreamLimitExt::try_throttled) stream yields the error instead.
    #[non_exhaustive]
    StreamEnded {
        /// Why the item was refused: [`Throttled::error`](crate::Throttled::error).
        error: AcquireError,
        /// Where in the program the stream was throttled.
        requested_in: &'static Location<'static>,
    },
    /// A [layer of HTTP](crate::http::LimitLayer) refused a request of which no other event tells: its limiter was not asked, or
    /// could not decide.
    ///
    /// Where the key is unknown, an [`Observer`](crate::Observer) is told without one. A closure of
    /// [`KeyedLimiterBuilder::on_event`](crate::KeyedLimiterBuilder::on_event) is then not called, because it takes a key; and a layer that
    /// [chooses](crate::http::LimitLayer::choose) its limiter by the key then has none whose observers it could tell.
    #[non_exhaustive]
    Refused {
        /// The units of the request.
        cost: u64,
        /// Why it was refused.
        reason: RefusedReason,
        /// The same in words for those who run the server: what a request without a key lacks, which cost is too large, what the store
        /// has said. It may name the store, and is not meant for clients.
        error: String,
        /// Where in the program the layer was made.
        requested_in: &'static Location<'static>,
    },
}

/// Why a request was shed. [`EventKind::Shed`] carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ShedReason {
    /// The queue was full when the request arrived.
    QueueFull,
    /// It waited in the queue and was dropped for another request, or together with all others: see [`Overflow`](crate::Overflow).
    Dropped,
    /// It arrived while the limiter accepted no request: see [`Overflow::Block`](crate::Overflow::Block).
    Blocked,
}

impl ShedReason {
    /// `queue_full`, `dropped` or `blocked`, for logs and metrics.
    ///
    /// ```
    /// assert_eq!(tollgate::ShedReason::QueueFull.as_str(), "queue_full");
    /// ```
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::Dropped => "dropped",
            Self::Blocked => "blocked",
        }
    }
}

/// Why a layer refused a request that its limiter has not denied. [`EventKind::Refused`] carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusedReason {
    /// Who sends it is unknown.
    NoIdentity,
    /// Its cost is above a capacity, so that it could never be granted.
    ExceedsLimit,
    /// The limiter cannot be asked in this way, whatever is sent.
    Misconfigured,
    /// The limiter is closed.
    Closed,
    /// The store of a shared limiter has not answered, or has refused the call.
    StoreFailed,
}

impl RefusedReason {
    /// `no_identity`, `exceeds_limit`, `misconfigured`, `closed` or `store_failed`, for logs and metrics.
    ///
    /// ```
    /// assert_eq!(tollgate::RefusedReason::NoIdentity.as_str(), "no_identity");
    /// ```
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoIdentity => "no_identity",
            Self::ExceedsLimit => "exceeds_limit",
            Self::Misconfigured => "misconfigured",
            Self::Closed => "closed",
            Self::StoreFailed => "store_failed",
        }
    }
}

/// A request that does not wait, before it is denied.
pub(crate) struct Attempt {
    pub(crate) now: Moment,
    pub(crate) cost: u64,
    pub(crate) requested_in: &'static Location<'static>,
    /// For each limit: until when it bans, if it does.
    pub(crate) bans: Vec<Option<Moment>>,
}

impl Attempt {
    /// What its denial is told as, with the bans after it.
    pub(crate) fn denied(self, decision: &Decision, bans: impl Iterator<Item = Option<Moment>>) -> Vec<EventKind> {
        let Self { now, cost, requested_in, .. } = self;
        let begun = |(limit_index, (before, after)): (usize, (Option<Moment>, Option<Moment>))| match (before, after) {
            (None, Some(until)) => Some(EventKind::Banned { limit_index, banned_for: until.duration_since(now), requested_in }),
            _ => None,
        };
        let bans = self.bans.into_iter().zip(bans).enumerate().filter_map(begun);
        std::iter::once(EventKind::Denied { cost, decision: decision.clone(), requested_in }).chain(bans).collect()
    }
}

/// The id of a permit: the limiter's random part and the permit's fence.
pub(crate) fn permit_id(id_prefix: u64, fence: u64) -> Uuid {
    let bytes = (u128::from(id_prefix) << 64 | u128::from(fence)).to_be_bytes();
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}
