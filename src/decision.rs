//! The result of a non-blocking check: whether a cost is admitted, and when to retry.

use std::fmt;
use std::time::Duration;

use crate::policy::{Limit, Policy};
use crate::rate::Rate;
use crate::strategy::Counts::Cost;
use crate::strategy::{
    Align, Decay, FixedWindow, LimitReport, MaxConcurrency, Moment, Penalty, SlidingMethod,
    SlidingWindow, Throttle, TokenBucket,
};

/// The result of a non-blocking check: whether a cost is admitted, and when to retry.
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
    /// The policy admits the cost, but a pause, a spread or the queue holds back all requests.
    paused: bool,
    /// The limiter is paused because its store does not answer.
    store_down: bool,
    /// The index in the policy of the binding limit: the one that denied, or else the one with the fewest units remaining. For a
    /// closed limiter, the limit that would bind if it were open.
    pub(crate) binding_index: u32,
    binding: Binding,
    pub(crate) limit: u64,
    pub(crate) remaining: u64,
    retry_after: Wait,
    /// In nanoseconds.
    reset_after: u64,
}

/// A wait in nanoseconds; [`Wait::UNKNOWN`] if there is none or it is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Wait(u64);

impl Wait {
    const UNKNOWN: Self = Self(u64::MAX);

    /// From `now` on.
    fn until(moment: Moment, now: Moment) -> Self {
        moment
            .known()
            .map_or(Self::UNKNOWN, |moment| Self(moment.since(now)))
    }
}

/// What the limits say together: the index of the one that binds, and the numbers of the decision.
struct Verdict {
    by: usize,
    allowed: bool,
    remaining: u64,
    until: Moment,
    reset_at: Moment,
}

impl Verdict {
    #[inline(always)]
    fn decision(self, policy: &Policy, now: Moment, limit: u64) -> Decision {
        let retry_after = if self.until > now {
            Wait::until(self.until, now)
        } else {
            Wait::UNKNOWN
        };
        // Each branch of `Binding::with` makes the decision. Moving a finished binding would copy it just after its fields were
        // written, which stalls the processor.
        Binding::with(policy, self.by, |binding| Decision {
            allowed: self.allowed,
            paused: false,
            store_down: false,
            binding_index: self.by as u32,
            binding,
            limit,
            remaining: self.remaining,
            retry_after,
            reset_after: self.reset_at.since(now),
        })
    }
}

getters!(Decision {
    /// Whether the cost would be admitted now.
    pub is_allowed: allowed -> bool,

    /// The capacity of the binding limit: its burst, its units a window, or its concurrency (the present one, if it
    /// [adapts](crate::Adapt)).
    pub limit: limit -> u64,

    /// The units that every limit would admit now, before this request. 0 while requests wait, because they go first.
    pub remaining: remaining -> u64,

    /// Whether no limit denied the request, but all requests are held back: the limiter was [paused](crate::Limiter::pause_for),
    /// an upstream's quota is spread out, the queue [has overflowed](crate::Overflow::Block), or the store [does not
    /// answer](crate::store::OnStoreDown::Deny). [`is_store_down`](Self::is_store_down) distinguishes the last case from the
    /// others.
    pub is_paused: paused -> bool,

    /// Whether the limiter is [paused](Self::is_paused) because its store does not answer and its rule for that is [to
    /// deny](crate::store::OnStoreDown::Deny).
    pub is_store_down: store_down -> bool,
});

impl Decision {
    /// The decision of all limits together on a request behind `ahead` waiting units. `asked` has the report of each limit,
    /// `misfit` is the index of a limit that never admits the cost, and `capacity` returns the present capacity of the limit at
    /// an index.
    #[inline(always)] // a policy of one limit gets its own compiled copy
    pub(crate) fn summarize(
        policy: &Policy,
        misfit: Option<usize>,
        asked: impl Iterator<Item = LimitReport>,
        now: Moment,
        ahead: u64,
        capacity: impl FnOnce(usize) -> u64,
    ) -> Self {
        let (mut remaining, mut ready_at, mut reset_at) = (u64::MAX, now, now);
        let (mut scarcest, mut slowest) = (0, 0);
        let mut denied: Option<(Moment, usize)> = None;
        // A tie goes to the first limit, so that the result does not depend on which other limits deny at the same instant.
        for (by, answer) in asked.enumerate() {
            if answer.remaining < remaining {
                remaining = answer.remaining;
                scarcest = by;
            }
            if answer.ready_at > ready_at {
                ready_at = answer.ready_at;
                slowest = by;
            }
            reset_at = reset_at.max(answer.reset_at);
            if let Some(until) = answer.denied_until
                && denied.is_none_or(|(latest, _)| until > latest)
            {
                denied = Some((until, by));
            }
        }
        let (allowed, until, by) = match (misfit, denied) {
            (Some(by), _) | (None, Some((Moment::NEVER, by))) => (false, Moment::NEVER, by),
            (None, None) if ahead == 0 => (true, now, scarcest),
            (None, Some((_, by))) if ahead == 0 => (false, ready_at, by),
            _ => (false, ready_at, slowest),
        };
        let verdict = Verdict {
            by,
            allowed,
            remaining,
            until,
            reset_at,
        };
        verdict.decision(policy, now, capacity(by))
    }

    /// [`Decision::summarize`] of one limit, with the present capacity `limit`. It never admits the cost if this is a `misfit`.
    #[inline(always)]
    pub(crate) fn of_one(
        policy: &Policy,
        misfit: bool,
        report: LimitReport,
        now: Moment,
        ahead: u64,
        limit: u64,
    ) -> Self {
        let (allowed, until) = match report.denied_until {
            _ if misfit => (false, Moment::NEVER),
            None if ahead == 0 => (true, now),
            Some(Moment::NEVER) => (false, Moment::NEVER),
            _ => (false, report.ready_at),
        };
        let verdict = Verdict {
            by: 0,
            allowed,
            remaining: report.remaining,
            until,
            reset_at: report.reset_at,
        };
        verdict.decision(policy, now, limit)
    }

    /// How long until the cost is admitted if no other request comes. Exact: the cost is denied one nanosecond before it. `None`
    /// when the cost is admitted now, when only a release helps (its time is unknown), or when the cost can never be admitted.
    ///
    /// Waiting requests go first. The value is exact for up to 64 of them; with more it is a lower bound: the cost is denied
    /// before it, and may be denied at it.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self.retry_after {
            Wait::UNKNOWN => None,
            Wait(nanos) => Some(Duration::from_nanos(nanos)),
        }
    }

    /// How long until every limit is reset if nothing more is admitted. Permits in flight are ignored, because the time of their
    /// release is unknown.
    #[must_use]
    pub const fn reset_after(&self) -> Duration {
        Duration::from_nanos(self.reset_after)
    }

    /// The limit that denied. If several denied, the one with the longest wait, where a wait for a release is the longest. `None`
    /// when the cost is admitted, or the limiter is [paused](Decision::is_paused). On a closed limiter, and for a cost of zero,
    /// the limit that would bind.
    #[must_use]
    #[inline]
    pub fn denied_by(&self) -> Option<Limit> {
        (!self.allowed && !self.paused).then(|| self.binding())
    }

    /// The index in the policy of the limit that [denied](Decision::denied_by), from 0; it distinguishes equal limits.
    #[must_use]
    pub fn denied_by_index(&self) -> Option<usize> {
        (!self.allowed && !self.paused).then_some(self.binding_index as usize)
    }

    #[inline(always)]
    fn binding(&self) -> Limit {
        self.binding.limit(self.binding_index as usize)
    }

    /// The same decision, denied for an unknown time.
    pub(crate) fn refused(self) -> Self {
        Self {
            allowed: false,
            retry_after: Wait::UNKNOWN,
            ..self
        }
    }

    /// The same decision, with all requests held back until `until`, which is later than `now`.
    pub(crate) fn held_back(self, until: Moment, now: Moment) -> Self {
        let policy = if self.allowed {
            Wait(0)
        } else {
            self.retry_after
        };
        Self {
            allowed: false,
            paused: self.allowed,
            retry_after: policy.max(Wait::until(until, now)),
            ..self
        }
    }

    /// The same decision, denied only by a pause.
    pub(crate) fn paused(self, until: Moment, now: Moment) -> Self {
        Self {
            allowed: false,
            paused: true,
            retry_after: Wait::until(until, now),
            ..self
        }
    }

    /// The same decision of a limiter that is paused because its store does not answer.
    pub(crate) fn without_store(self) -> Self {
        Self {
            store_down: true,
            ..self
        }
    }

    /// The same decision behind waiting requests. `turn` is the instant at which a request after them is granted, if it is known.
    pub(crate) fn behind_others(self, turn: Option<Moment>, now: Moment) -> Self {
        Self {
            allowed: false,
            remaining: 0,
            retry_after: turn.map_or(self.retry_after, |turn| Wait::until(turn, now)),
            ..self
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (remaining, retry_after) = (self.remaining, self.retry_after());
        let binding = self.binding();
        match (self.allowed, retry_after) {
            (true, _) => write!(f, "allowed: `{binding}` has {remaining} left"),
            (false, None) if self.store_down => {
                write!(f, "the store does not answer; no time to retry is known")
            }
            (false, Some(after)) if self.paused => write!(f, "paused; retry after {after:?}"),
            (false, None) if self.paused => write!(f, "paused; no time to retry is known"),
            (false, Some(after)) => write!(f, "denied by `{binding}`; retry after {after:?}"),
            (false, None) => write!(f, "denied by `{binding}`; no time to retry is known"),
        }
    }
}

/// Defines [`Binding`] from the list of plain limits: the copied fields, and the options that must not be set.
macro_rules! binding {
    ($($limit:ident { $($field:ident: $type:ty),* } without [$($option:ident),*],)*) => {
        /// A limit of a policy.
        ///
        /// A plain limit is copied without the options that it does not use. Sharing the policy takes two atomic writes, and
        /// copying the largest limit takes a call. Each of these takes a sixth of the time of a denial.
        #[derive(Debug, Clone, PartialEq, Eq)]
        enum Binding {
            $($limit { $($field: $type),* },)*
            OfPolicy(Policy),
        }

        impl Binding {
            /// Calls `make` with the limit at this index of the policy.
            #[inline(always)]
            fn with<R>(policy: &Policy, index: usize, make: impl Fn(Self) -> R) -> R {
                match policy.limits()[index] {
                    $(Limit::$limit($limit { $($field,)* $($option: None,)* counts: Cost }) => {
                        make(Self::$limit { $($field),* })
                    })*
                    $(Limit::$limit(_))|* => make(Self::OfPolicy(policy.clone())),
                }
            }

            /// The limit. `index` is its index in the policy.
            // Inlined, so that a caller that only asks for the kind of the limit builds none.
            #[inline(always)]
            fn limit(&self, index: usize) -> Limit {
                match *self {
                    $(Self::$limit { $($field),* } => {
                        Limit::$limit($limit { $($field,)* $($option: None,)* counts: Cost })
                    })*
                    Self::OfPolicy(ref policy) => policy.limits()[index],
                }
            }
        }
    };
}

binding! {
    Throttle { interval: Duration, burst: u64 } without [],
    FixedWindow { limit: u64, period: Duration, align: Align } without [],
    SlidingWindow { limit: u64, period: Duration, method: SlidingMethod } without [],
    TokenBucket { rate: Rate, burst: u64, each_period: bool } without [initial],
    MaxConcurrency { limit: u64, ttl: Option<Duration> } without [adapt],
    Penalty { threshold: u64, fall: Decay, ignores_denied: bool } without [ceiling, ban, longest, forgive_after],
}

const _: () = assert!(size_of::<Binding>() <= 40);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::samples;

    #[test]
    fn a_decision_names_each_limit_with_all_its_options() {
        let two = "3 concurrent and 7/s".parse::<Policy>().unwrap();
        for limit in samples().into_iter().flat_map(|(_, limits)| limits) {
            let policy = two.clone().and(limit);
            for (index, limit) in policy.limits().iter().enumerate() {
                assert_eq!(
                    Binding::with(&policy, index, |binding| binding.limit(index)),
                    *limit
                );
            }
        }
    }
}
