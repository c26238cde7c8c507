//! The limit that a decision names, in few bytes.

use std::time::Duration;

use crate::policy::{Limit, Policy};
use crate::rate::Rate;
use crate::strategy::Counts::Cost;
use crate::strategy::{
    Align, Decay, FixedWindow, MaxConcurrency, Penalty, SlidingMethod, SlidingWindow, Throttle,
    TokenBucket,
};

/// A limit of a policy.
///
/// A plain one is copied without the options that it does not use. Sharing the policy takes two atomic writes, and copying the
/// largest limit takes a call. Each is a sixth of the time of a denial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Binding {
    Throttle {
        interval: Duration,
        burst: u64,
    },
    FixedWindow {
        limit: u64,
        period: Duration,
        align: Align,
    },
    SlidingWindow {
        limit: u64,
        period: Duration,
        method: SlidingMethod,
    },
    TokenBucket {
        rate: Rate,
        burst: u64,
        each_period: bool,
    },
    MaxConcurrency {
        limit: u64,
        ttl: Option<Duration>,
    },
    Penalty {
        threshold: u64,
        fall: Decay,
        counts_denied: bool,
    },
    OfPolicy(Policy),
}

const _: () = assert!(size_of::<Binding>() <= 40);

impl Binding {
    /// Uses the limit at this index of the policy.
    #[inline(always)]
    pub(super) fn with<R>(policy: &Policy, index: usize, make: impl Fn(Self) -> R) -> R {
        match policy.limits()[index] {
            Limit::Throttle(Throttle {
                interval,
                burst,
                counts: Cost,
            }) => make(Self::Throttle { interval, burst }),
            Limit::FixedWindow(FixedWindow {
                limit,
                period,
                align,
                counts: Cost,
            }) => make(Self::FixedWindow {
                limit,
                period,
                align,
            }),
            Limit::SlidingWindow(SlidingWindow {
                limit,
                period,
                method,
                counts: Cost,
            }) => make(Self::SlidingWindow {
                limit,
                period,
                method,
            }),
            Limit::TokenBucket(TokenBucket {
                rate,
                burst,
                each_period,
                initial: None,
                counts: Cost,
            }) => make(Self::TokenBucket {
                rate,
                burst,
                each_period,
            }),
            Limit::MaxConcurrency(MaxConcurrency {
                limit,
                ttl,
                adapt: None,
                counts: Cost,
            }) => make(Self::MaxConcurrency { limit, ttl }),
            Limit::Penalty(Penalty {
                threshold,
                fall,
                counts_denied,
                ceiling: None,
                ban: None,
                longest: None,
                forgive_after: None,
                counts: Cost,
            }) => make(Self::Penalty {
                threshold,
                fall,
                counts_denied,
            }),
            Limit::Throttle(_)
            | Limit::FixedWindow(_)
            | Limit::SlidingWindow(_)
            | Limit::TokenBucket(_)
            | Limit::MaxConcurrency(_)
            | Limit::Penalty(_) => make(Self::OfPolicy(policy.clone())),
        }
    }

    /// The limit, which is at this index of its policy.
    pub(super) fn limit(&self, index: usize) -> Limit {
        match *self {
            Self::Throttle { interval, burst } => Throttle::every(interval).burst(burst).into(),
            Self::FixedWindow {
                limit,
                period,
                align,
            } => FixedWindow::new(limit, period).align(align).into(),
            Self::SlidingWindow {
                limit,
                period,
                method,
            } => SlidingWindow {
                method,
                ..SlidingWindow::log(limit, period)
            }
            .into(),
            Self::TokenBucket {
                rate,
                burst,
                each_period,
            } => TokenBucket {
                each_period,
                ..TokenBucket::new(rate, burst)
            }
            .into(),
            Self::MaxConcurrency { limit, ttl } => MaxConcurrency {
                ttl,
                ..MaxConcurrency::new(limit)
            }
            .into(),
            Self::Penalty {
                threshold,
                fall,
                counts_denied,
            } => Penalty {
                counts_denied,
                ..Penalty::falling(threshold, fall)
            }
            .into(),
            Self::OfPolicy(ref policy) => policy.limits()[index],
        }
    }
}

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
