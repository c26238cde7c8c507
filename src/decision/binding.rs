use std::time::Duration;

use crate::policy::{Limit, Policy};
use crate::rate::Rate;
use crate::strategy::Counts::Cost;
use crate::strategy::{Align, Decay, FixedWindow, MaxConcurrency, Penalty, SlidingMethod, SlidingWindow, Throttle, TokenBucket};

/// A limit of a policy.
///
/// A plain one is copied without the options that it does not use. To share the policy takes two atomic writes, and to copy the
/// largest limit takes a call: either is a sixth of the time of a denial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Binding {
    Throttle { interval: Duration, burst: u64 },
    FixedWindow { limit: u64, period: Duration, align: Align },
    SlidingWindow { limit: u64, period: Duration, method: SlidingMethod },
    TokenBucket { rate: Rate, burst: u64, each_period: bool },
    MaxConcurrency { limit: u64, ttl: Option<Duration> },
    Penalty { threshold: u64, fall: Decay, counts_denied: bool },
    OfPolicy(Policy),
}

const _: () = assert!(size_of::<Binding>() <= 40);

impl Binding {
    /// Uses the limit at this index of the policy.
    #[inline(always)]
    pub(super) fn with<R>(policy: &Policy, index: usize, make: impl Fn(Self) -> R) -> R {
        match policy.limits()[index] {
            Limit::Throttle(Throttle { interval, burst, counts: Cost }) => make(Self::Throttle { interval, burst }),
            Limit::FixedWindow(FixedWindow { limit, period, align, counts: Cost }) => {
                make(Self::FixedWindow { limit, period, align })
            }
            Limit::SlidingWindow(SlidingWindow { limit, period, method, counts: Cost }) => {
                make(Self::SlidingWindow { limit, period, method })
            }
            Limit::TokenBucket(TokenBucket { rate, burst, each_period, initial: None, counts: Cost }) => {
                make(Self::TokenBucket { rate, burst, each_period })
            }
            Limit::MaxConcurrency(MaxConcurrency { limit, ttl, adapt: None, counts: Cost }) => {
                make(Self::MaxConcurrency { limit, ttl })
            }
            Limit::Penalty(Penalty {
                threshold,
                fall,
                counts_denied,
                ceiling: None,
                ban: None,
                longest: None,
                forgive_after: None,
                counts: Cost,
            }) => make(Self::Penalty { threshold, fall, counts_denied }),
            _ => make(Self::OfPolicy(policy.clone())),
        }
    }

    /// The limit, which is at this index of its policy.
    pub(super) fn limit(&self, index: usize) -> Limit {
        match *self {
            Self::Throttle { interval, burst } => Throttle { interval, burst, counts: Cost }.into(),
            Self::FixedWindow { limit, period, align } => FixedWindow { limit, period, align, counts: Cost }.into(),
            Self::SlidingWindow { limit, period, method } => SlidingWindow { limit, period, method, counts: Cost }.into(),
            Self::TokenBucket { rate, burst, each_period } => {
                TokenBucket { rate, burst, each_period, initial: None, counts: Cost }.into()
            }
            Self::MaxConcurrency { limit, ttl } => MaxConcurrency { limit, ttl, adapt: None, counts: Cost }.into(),
            Self::Penalty { threshold, fall, counts_denied } => Penalty {
                threshold,
                fall,
                counts_denied,
                ceiling: None,
                ban: None,
                longest: None,
                forgive_after: None,
                counts: Cost,
            }
            .into(),
            Self::OfPolicy(ref policy) => policy.limits()[index],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_names_each_limit_with_all_its_options() {
        for text in [
            "throttle every 100ms burst 5",
            "window 100/min wall clock",
            "sliding log 100/min",
            "sliding counter 100/min",
            "20/s burst 40 refilled each period",
            "20/s burst 40 initial 0",
            "8 concurrent ttl 30s",
            "20 concurrent gradient from 4 to 200",
            "penalty 10 falling 1/s ignoring denied",
            "penalty 10 half-life 30s",
            "penalty 10 falling 1/s ceiling 20",
            "penalty 10 falling 1/s ban 1m",
            "penalty 10 falling 1/s up to 1h",
            "penalty 10 falling 1/s forgive 2h",
            "100000 tokens/min",
            "8 concurrent per request",
            "throttle every 100ms counting tokens",
            "window 100 bytes/min",
            "sliding log 100/min per request",
            "penalty 10 falling 1/s per request",
        ] {
            let policy: Policy = format!("3 concurrent and {text}").parse().unwrap();
            for (index, limit) in policy.limits().iter().enumerate() {
                assert_eq!(Binding::with(&policy, index, |binding| binding.limit(index)), *limit);
            }
        }
    }
}
