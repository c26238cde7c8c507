use std::time::Duration;

/// The numbers of a limiter at one instant. Counts are since it was built.
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
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimiterSnapshot {
    /// Units out that must come back: 0 where the policy has no [`MaxConcurrency`](crate::MaxConcurrency), since permits of
    /// the other limits hold no place.
    pub in_flight: u64,
    /// Units that may be out at once: `None` where the policy has no such limit. It [moves](crate::Adapt) where that was asked.
    pub concurrency: Option<u64>,
    /// Requests that wait.
    pub queued: u64,
    /// Requests granted, refunded ones included.
    pub granted: u64,
    /// `try_acquire` calls that were denied.
    pub denied: u64,
    /// Requests that a full queue dropped or turned away.
    pub shed: u64,
    /// Requests that timed out, or that failed at once because they would have.
    pub timed_out: u64,
    /// Permits reclaimed because their TTL passed.
    pub reclaimed: u64,
    /// Grants that went back as if they had never been given: nobody took them, because the `acquire` was dropped, or they were
    /// [refunded](crate::Permit::refund).
    pub refunded: u64,
    /// For how long it is [paused](crate::Limiter::pause_for): `None` when it is not, [`Duration::MAX`] until it is resumed.
    pub paused_for: Option<Duration>,
    /// How long until the next request is granted: the front of the queue, or where nobody waits a new one of cost 1. `None`
    /// when that takes a release, or the limiter is closed.
    pub next_grant_in: Option<Duration>,
}
