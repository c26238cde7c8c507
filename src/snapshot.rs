//! The numbers that a limiter reports: for one limiter, summed over keys, and for each limit.

use std::fmt;
use std::time::Duration;

use crate::flow::FlowId;
use crate::policy::Limit;
use crate::strategy::{LimitReport, Moment};

/// The numbers of a limiter at one instant. Counts are since it was built. They print in one line, without the counts that are 0.
///
/// # Examples
///
/// ```
/// use tollgate::{Limiter, MaxConcurrency};
///
/// let limiter = Limiter::new(MaxConcurrency::new(2))?;
/// let _permit = limiter.try_acquire()?;
/// let now = limiter.snapshot();
/// assert_eq!((now.in_flight, now.queued, now.granted, now.denied), (1, 0, 1, 0));
/// assert_eq!(now.to_string(), "1 of 2 in flight, 0 queued, 1 granted");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimiterSnapshot {
    /// Units in flight. 0 without a [`MaxConcurrency`](crate::MaxConcurrency), since permits of other limits hold no place.
    pub in_flight: u64,
    /// The present maximum of units in flight: an [adaptive](crate::Adapt) limit changes it. `None` where the policy has no such
    /// limit.
    pub concurrency: Option<u64>,
    /// Requests that wait.
    pub queued: u64,
    /// Grants, including refunded ones.
    pub granted: u64,
    /// `try_acquire` calls that were denied.
    pub denied: u64,
    /// Requests that a full queue dropped or turned away.
    pub shed: u64,
    /// Requests that timed out, or that failed at once because they could not be granted within their timeout.
    pub timed_out: u64,
    /// Permits reclaimed because their TTL passed.
    pub reclaimed: u64,
    /// Grants that were undone: the `acquire` future was dropped before it took its permit, or the permit was
    /// [refunded](crate::Permit::refund).
    pub refunded: u64,
    /// How long the limiter stays [paused](crate::Limiter::pause_for). `None` when it is not paused, [`Duration::MAX`] when it is
    /// paused until it is resumed.
    pub paused_for: Option<Duration>,
    /// How long until the next request is granted: the front of the queue, or a new one of cost 1 when none waits. `None` when
    /// only a release helps, or the limiter is closed.
    pub next_grant_in: Option<Duration>,
}

impl fmt::Display for LimiterSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        put_places(f, self.in_flight, self.concurrency, self.queued)?;
        let Self {
            granted,
            denied,
            shed,
            timed_out,
            reclaimed,
            refunded,
            ..
        } = *self;
        put_counts(f, [granted, denied, shed, timed_out, reclaimed, refunded])?;
        match self.paused_for {
            Some(Duration::MAX) => f.write_str("; paused until it is resumed"),
            Some(paused_for) => write!(f, "; paused for {paused_for:?}"),
            None => Ok(()),
        }
    }
}

/// Prints `3 of 8 in flight, 2 queued`.
fn put_places(
    f: &mut fmt::Formatter<'_>,
    in_flight: u64,
    concurrency: Option<u64>,
    queued: u64,
) -> fmt::Result {
    match concurrency {
        Some(concurrency) => write!(f, "{in_flight} of {concurrency} in flight")?,
        None => write!(f, "{in_flight} in flight")?,
    }
    write!(f, ", {queued} queued")
}

/// Prints the counts that are not 0.
fn put_counts(f: &mut fmt::Formatter<'_>, counts: [u64; 6]) -> fmt::Result {
    let names = [
        "granted",
        "denied",
        "shed",
        "timed out",
        "reclaimed",
        "refunded",
    ];
    let mut counts = counts
        .into_iter()
        .zip(names)
        .filter(|(count, _)| *count > 0);
    counts.try_for_each(|(count, name)| write!(f, ", {count} {name}"))
}

/// What a [flow](crate::PermitRequest::flow) has at one instant. [`Limiter::flows`](crate::Limiter::flows), which has an example,
/// lists the longest ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlowStatus {
    /// The flow.
    pub id: FlowId,
    /// The [parent](crate::PermitRequest::flow_within) of the flow, if it has one.
    pub parent: Option<FlowId>,
    /// The [weight](crate::PermitRequest::weight) of the flow: that of its latest request.
    pub weight: u64,
    /// Requests of the flow that wait.
    pub queued: u64,
    /// Units that the permits of the flow hold. 0 without a [`MaxConcurrency`](crate::MaxConcurrency), since permits of other limits
    /// hold no place.
    pub in_flight: u64,
}

/// `flow 6d6f: 3 queued, 2 in flight, weight 1`.
impl fmt::Display for FlowStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "flow {}", self.id)?;
        if let Some(parent) = self.parent {
            write!(f, " of {parent}")?;
        }
        let Self {
            queued,
            in_flight,
            weight,
            ..
        } = self;
        write!(
            f,
            ": {queued} queued, {in_flight} in flight, weight {weight}"
        )
    }
}

/// Sums over the keys of a limiter: [`KeyedLimiter::totals`](crate::KeyedLimiter::totals), which has an example, and
/// [`SharedLimiter::totals`](crate::SharedLimiter::totals). Counts begin when the limiter is built, and only rise: the counts of
/// a forgotten key stay in the sums.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyTotals {
    /// Units in flight. 0 without a [`MaxConcurrency`](crate::MaxConcurrency), since permits of other limits hold no place.
    pub in_flight: u64,
    /// Requests that wait.
    pub queued: u64,
    /// Grants, including refunded ones. A grant after a wait counts once.
    pub granted: u64,
    /// `try_acquire` calls that were denied. Denials of new keys for which the table had no room are not counted.
    pub denied: u64,
    /// Requests that a full queue dropped or turned away.
    pub shed: u64,
    /// Requests that timed out, or that failed at once because they could not be granted within their timeout.
    pub timed_out: u64,
    /// Permits reclaimed because their TTL passed.
    pub reclaimed: u64,
    /// Grants that were undone, as in [`LimiterSnapshot::refunded`].
    pub refunded: u64,
}

impl fmt::Display for KeyTotals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        put_places(f, self.in_flight, None, self.queued)?;
        let Self {
            granted,
            denied,
            shed,
            timed_out,
            reclaimed,
            refunded,
            ..
        } = *self;
        put_counts(f, [granted, denied, shed, timed_out, reclaimed, refunded])
    }
}

impl KeyTotals {
    /// `granted` wraps, because a sum may subtract an initial count before it adds the grants.
    pub(crate) fn add(&mut self, other: Self) {
        self.in_flight = self.in_flight.saturating_add(other.in_flight);
        self.queued += other.queued;
        self.granted = self.granted.wrapping_add(other.granted);
        self.denied += other.denied;
        self.shed += other.shed;
        self.timed_out += other.timed_out;
        self.reclaimed += other.reclaimed;
        self.refunded += other.refunded;
    }
}

/// The status of one limit of a policy at one instant. [`Limiter::limits`](crate::Limiter::limits), which has an example, lists
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitStatus {
    /// The limit.
    pub limit: Limit,
    /// The capacity of the limit, in the units that it counts. For a concurrency that [adapts](crate::Adapt), the present
    /// capacity.
    pub capacity: u64,
    /// The units that the limit would admit now. Waiting requests go before a new one, whatever remains.
    pub remaining: u64,
    /// How long until the limit admits a unit if nothing more is admitted. Zero while some remain. Zero for a concurrency,
    /// because the time of a release is unknown.
    pub available_after: Duration,
    /// How long until the limit is reset if nothing more is admitted. Zero for a concurrency, as above.
    pub reset_after: Duration,
}

/// `100/min: 42 of 100 remain, all in 34.8s`.
impl fmt::Display for LimitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            limit,
            capacity,
            remaining,
            reset_after,
            ..
        } = self;
        write!(f, "{limit}: {remaining} of {capacity} remain")?;
        if *reset_after > Duration::ZERO {
            write!(f, ", all in {reset_after:?}")?;
        }
        Ok(())
    }
}

impl LimitStatus {
    /// The status after the limit has got units back.
    #[cfg(feature = "http")]
    pub(crate) fn refund(&mut self, units: u64) {
        self.remaining = self.remaining.saturating_add(units).min(self.capacity);
        if self.remaining > 0 {
            self.available_after = Duration::ZERO;
        }
        if self.remaining == self.capacity {
            self.reset_after = Duration::ZERO;
        }
    }

    /// `report` must be for a cost of 1.
    pub(crate) fn new(limit: Limit, capacity: u64, report: LimitReport, now: Moment) -> Self {
        let LimitReport {
            remaining,
            ready_at,
            reset_at,
            ..
        } = report;
        let available_at = if limit.counts_places() { now } else { ready_at };
        let (available_after, reset_after) = (
            available_at.duration_since(now),
            reset_at.duration_since(now),
        );
        Self {
            limit,
            capacity,
            remaining,
            available_after,
            reset_after,
        }
    }
}
