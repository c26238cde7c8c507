//! A policy as a gate uses it: checked, each limit as its rule.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use crate::error::ConfigError;
use crate::policy::{Limit, Policy};
use crate::strategy::{Fault, LimitRule, MAX_SPAN_NANOS, Rule};

/// A policy, checked.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    policy: Policy,
    /// One for each limit of the policy, in the same order.
    rules: Vec<LimitRule>,
    /// A copy of the rules, each with the index of the first word of its state, which a table of keys reads for each decision;
    /// empty if a state does not fit into words.
    words: Vec<(Rule, usize)>,
    /// Nanoseconds after which a permit is reclaimed: the shortest TTL.
    ttl: Option<NonZeroU64>,
    /// The largest cost that can ever be admitted.
    max_cost: u64,
    /// The index of the limit that admits no more.
    tightest: usize,
}

impl Plan {
    /// `since_epoch` is the wall clock at [`Moment::START`](crate::strategy::Moment::START).
    pub(crate) fn new(policy: Policy, since_epoch: Duration) -> Result<Self, ConfigError> {
        let limits = policy.limits();
        let capacities = limits.iter().map(Limit::capacity).enumerate();
        let Some((tightest, max_cost)) = capacities.min_by_key(|(_, capacity)| *capacity) else {
            return Err(ConfigError::NoLimits);
        };
        let rules = limits.iter().map(|limit| rule_of(limit, since_epoch)).collect::<Result<Vec<_>, _>>()?;
        let mut width = 0;
        let words = rules.iter().map(LimitRule::words).map(|rule| {
            let begins = width;
            width += rule?.width();
            Some((rule?, begins))
        });
        let words = words.collect::<Option<_>>().unwrap_or_default();
        let ttl = limits.iter().filter_map(|limit| match limit {
            Limit::MaxConcurrency(concurrency) => concurrency.ttl,
            _ => None,
        });
        let ttl = ttl.min().and_then(|ttl| NonZeroU64::new(ttl.as_nanos() as u64));
        Ok(Self { rules, words, ttl, max_cost, tightest, policy })
    }

    pub(crate) fn limits(&self) -> &[Limit] {
        self.policy.limits()
    }

    pub(crate) fn rules(&self) -> &[LimitRule] {
        &self.rules
    }

    pub(crate) fn ttl(&self) -> Option<NonZeroU64> {
        self.ttl
    }

    pub(crate) fn max_cost(&self) -> u64 {
        self.max_cost
    }

    /// The limit that admits no larger cost; of several, the first.
    #[cold]
    pub(crate) fn tightest(&self) -> Limit {
        self.limits()[self.tightest]
    }

    /// The rule of a policy of one limit with a state of a word or two.
    #[inline(always)]
    pub(crate) fn only_rule(&self) -> Option<&Rule> {
        match &self.words[..] {
            [(rule, _)] => Some(rule),
            _ => None,
        }
    }

    /// How many words the states of all limits take. `None` if a state does not fit into words.
    pub(crate) fn width(&self) -> Option<usize> {
        self.rules.iter().map(|rule| rule.words().map(|rule| rule.width())).sum()
    }

    /// The rules, each with the index of the first word of its state; none if a state does not fit into words.
    pub(crate) fn words(&self) -> impl Iterator<Item = (&Rule, usize)> {
        self.words.iter().map(|(rule, begins)| (rule, *begins))
    }

    /// Whether a denial changes the state of any limit.
    pub(crate) fn counts_denials(&self) -> bool {
        self.rules.iter().any(|rule| matches!(rule, LimitRule::Words(rule) if rule.counts_denials()))
    }

    /// A copy that shares no memory with this one. Each denial clones the policy for a while; with a shared one, threads that
    /// use different shards would contend for its reference count.
    pub(crate) fn deep_clone(&self) -> Self {
        let rules = self.rules.iter().map(LimitRule::deep_clone).collect();
        Self { policy: self.policy.deep_clone(), rules, words: self.words.clone(), ..*self }
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Whether permits hold a place.
    pub(crate) fn holds_places(&self) -> bool {
        self.rules.iter().any(|rule| matches!(rule, LimitRule::Places(..)))
    }

    /// The places of a policy that is a concurrency and nothing more: it neither leases nor adapts.
    pub(crate) fn plain_places(&self) -> Option<u64> {
        match self.rules[..] {
            [LimitRule::Places(rule, None)] if self.ttl.is_none() => Some(rule.limit),
            _ => None,
        }
    }

    /// Whether any limit needs the time.
    pub(crate) fn follows_time(&self) -> bool {
        self.ttl.is_some() || !self.rules.iter().all(|limit| matches!(limit, LimitRule::Places(_, None)))
    }
}

/// Each limit checks itself; a fault becomes an error that names the limit.
fn rule_of(limit: &Limit, since_epoch: Duration) -> Result<LimitRule, ConfigError> {
    let rule = match limit {
        Limit::Throttle(throttle) => throttle.rule(),
        Limit::MaxConcurrency(concurrency) => {
            concurrency.rule().map(|rule| LimitRule::Places(rule, concurrency.adapt.map(Arc::new)))
        }
        Limit::FixedWindow(window) => window.rule(since_epoch).map(|rule| Rule::Window(rule).into()),
        Limit::TokenBucket(bucket) => bucket.rule(),
        Limit::SlidingWindow(window) => window.rule(),
        Limit::Penalty(penalty) => penalty.rule(),
    };
    rule.map_err(|fault| refused(Box::new(*limit), fault))
}

fn refused(limit: Box<Limit>, fault: Fault) -> ConfigError {
    match fault {
        Fault::ZeroLimit(number) => ConfigError::ZeroLimit { limit, number },
        Fault::ZeroRate => ConfigError::ZeroRate { limit },
        Fault::ZeroDuration(number) => ConfigError::ZeroDuration { limit, number },
        Fault::OutOfRange { number, given, min, max } => ConfigError::OutOfRange { limit, number, given, range: min..=max },
        Fault::TooLong(number) => ConfigError::TooLong { limit, number, max: Duration::from_nanos(MAX_SPAN_NANOS) },
    }
}
