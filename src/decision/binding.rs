//! A compact form of the limit that a decision names.

use std::time::Duration;

use crate::policy::{Limit, Policy};
use crate::rate::Rate;
use crate::strategy::Counts::Cost;
use crate::strategy::{
    Align, Decay, FixedWindow, MaxConcurrency, Penalty, SlidingMethod, SlidingWindow, Throttle,
    TokenBucket,
};

/// Defines [`Binding`] from the list of plain limits: the copied fields, and the options that must not be set.
macro_rules! binding {
    ($($limit:ident { $($field:ident: $type:ty),* } without [$($option:ident),*],)*) => {
        /// A limit of a policy.
        ///
        /// A plain limit is copied without the options that it does not use. Sharing the policy takes two atomic writes, and
        /// copying the largest limit takes a call. Each of these takes a sixth of the time of a denial.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub(super) enum Binding {
            $($limit { $($field: $type),* },)*
            OfPolicy(Policy),
        }

        impl Binding {
            /// Calls `make` with the limit at this index of the policy.
            #[inline(always)]
            pub(super) fn with<R>(policy: &Policy, index: usize, make: impl Fn(Self) -> R) -> R {
                match policy.limits()[index] {
                    $(Limit::$limit($limit { $($field,)* $($option: None,)* counts: Cost }) => {
                        make(Self::$limit { $($field),* })
                    })*
                    $(Limit::$limit(_))|* => make(Self::OfPolicy(policy.clone())),
                }
            }

            /// The limit. `index` is its index in the policy.
            pub(super) fn limit(&self, index: usize) -> Limit {
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
