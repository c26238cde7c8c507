use std::fmt;
use std::time::Duration;

use crate::policy::{Limit, Policy};
use crate::strategy::{LimitReport, Moment};

/// The answer of a non-blocking check.
///
/// With several limits, the numbers are those of the binding limit: the one that denied, or else the one with the fewest units
/// remaining.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{FixedWindow, Limiter};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(FixedWindow::new(2, Duration::from_secs(60)))?;
/// let _permit = limiter.try_acquire()?;
/// tokio::time::advance(Duration::from_secs(10)).await;
///
/// let decision = limiter.check(1);
/// assert!(decision.is_allowed());
/// assert_eq!((decision.limit(), decision.remaining()), (2, 1));
/// assert_eq!(decision.reset_after(), Duration::from_secs(50));
/// assert_eq!(limiter.check(2).retry_after(), Some(Duration::from_secs(50)));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Decision {
    pub(crate) allowed: bool,
    /// The index instead of the limit itself: decisions are returned in results, and a limit is large.
    pub(crate) policy: Policy,
    /// The limit that denied, or else has the fewest units remaining; for a closed limiter, the limit that would bind.
    pub(crate) binding: usize,
    pub(crate) limit: u64,
    pub(crate) remaining: u64,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) reset_after: Duration,
    /// The policy admits the cost, but a pause, a spread or the queue holds back all requests.
    pub(crate) paused: bool,
}

impl Decision {
    /// The decision of all limits together on a `cost` behind `ahead` waiting units; `asked` has the answer of each limit.
    #[inline(always)] // one caller
    pub(crate) fn summarize(
        policy: &Policy,
        asked: impl Iterator<Item = LimitReport>,
        now: Moment,
        ahead: u64,
        cost: u64,
    ) -> Self {
        let limits = policy.limits();
        let (mut remaining, mut ready_at, mut reset_at) = (u64::MAX, now, now);
        let (mut scarcest, mut slowest) = (0, 0);
        let mut denied: Option<(Moment, usize)> = None;
        // A tie goes to the first limit, so that the result does not depend on what else denies at the same instant.
        for (by, answer) in asked.enumerate() {
            if answer.remaining < remaining {
                (remaining, scarcest) = (answer.remaining, by);
            }
            if answer.ready_at > ready_at {
                (ready_at, slowest) = (answer.ready_at, by);
            }
            reset_at = reset_at.max(answer.reset_at);
            if let Some(until) = answer.denied_until
                && denied.is_none_or(|(latest, _)| until > latest)
            {
                denied = Some((until, by));
            }
        }
        let too_small = limits.iter().position(|limit| limit.capacity() < cost);
        let (allowed, until, by) = match (too_small, denied) {
            (Some(by), _) | (None, Some((Moment::NEVER, by))) => (false, Moment::NEVER, by),
            (None, None) if ahead == 0 => (true, now, scarcest),
            (None, Some((_, by))) if ahead == 0 => (false, ready_at, by),
            (None, _) => (false, ready_at, slowest),
        };
        Self {
            allowed,
            policy: policy.clone(),
            binding: by,
            limit: limits[by].capacity(),
            remaining,
            // Later than now, or unknown.
            retry_after: until.known().filter(|until| *until > now).map(|until| until.duration_since(now)),
            reset_after: reset_at.duration_since(now),
            paused: false,
        }
    }

    /// Whether the cost would be admitted now.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// The capacity of the binding limit: its burst, its units a window, or its concurrency (the present one, if it
    /// [adapts](crate::Adapt)).
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// The units that every limit would admit now, before this request. 0 while requests wait, because they go first.
    #[must_use]
    pub const fn remaining(&self) -> u64 {
        self.remaining
    }

    /// How long until the cost is admitted if no other request comes. Exact: the cost is denied one nanosecond before it. `None`
    /// when it is allowed now, when only a release helps (its time is unknown), or when it can never be admitted.
    ///
    /// Waiting requests go first. The value is exact for up to 64 of them; with more it is a lower bound: the cost is denied
    /// before it, and may be denied at it.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// How long until every limit is reset if nothing more is admitted. Permits in flight are ignored: when they are released is
    /// unknown.
    #[must_use]
    pub const fn reset_after(&self) -> Duration {
        self.reset_after
    }

    /// The limit that denied; of several, the one with the longest wait, where a wait for a release is the longest. `None` when
    /// it is allowed, or [paused](Decision::is_paused). On a closed limiter, and for a cost of zero, it is the limit that would
    /// bind.
    #[must_use]
    pub fn denied_by(&self) -> Option<&Limit> {
        if self.allowed || self.paused { None } else { Some(self.binding()) }
    }

    /// The index in the policy of the limit that [denied](Decision::denied_by), from 0; it distinguishes equal limits.
    #[must_use]
    pub fn denied_by_index(&self) -> Option<usize> {
        self.denied_by().map(|_| self.binding)
    }

    fn binding(&self) -> &Limit {
        &self.policy.limits()[self.binding]
    }

    /// Whether no limit denied it, but all requests are held back: the limiter was [paused](crate::Limiter::pause_for), an
    /// upstream's quota is spread out, or its queue [has overflowed](crate::Overflow::Block).
    #[must_use]
    pub const fn is_paused(&self) -> bool {
        self.paused
    }

    /// The same decision, denied for an unknown time.
    pub(crate) fn refused(self) -> Self {
        Self { allowed: false, retry_after: None, ..self }
    }

    /// The same decision, with all requests held back for this long; `None`: for an unknown time.
    pub(crate) fn held_back(self, suspended: Option<Duration>) -> Self {
        let policy = if self.allowed { Some(Duration::ZERO) } else { self.retry_after };
        let retry_after = policy.zip(suspended).map(|(policy, suspended)| policy.max(suspended));
        Self { allowed: false, paused: self.allowed, retry_after, ..self }
    }

    /// The same decision behind waiting requests.
    pub(crate) fn behind_others(self) -> Self {
        Self { allowed: false, remaining: 0, ..self }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { remaining, retry_after, .. } = self;
        let binding = self.binding();
        match (self.allowed, retry_after) {
            (true, _) => write!(f, "allowed: `{binding}` has {remaining} left"),
            (false, Some(after)) if self.paused => write!(f, "paused; retry after {after:?}"),
            (false, None) if self.paused => write!(f, "paused; no time to retry is known"),
            (false, Some(after)) => write!(f, "denied by `{binding}`; retry after {after:?}"),
            (false, None) => write!(f, "denied by `{binding}`; no time to retry is known"),
        }
    }
}
