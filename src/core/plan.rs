//! A policy as the gates use it: checked once, each limit as its rule.

use std::time::Duration;

use crate::error::ConfigError;
use crate::policy::{Limit, Policy};
use crate::strategy::{
    Adapt, Align, ConcurrencyRule, Decay, LogRule, MAX_SPAN_NANOS, PaceRule, Penalty, Rule, SlidingMethod, WindowRule,
};

/// One limit, checked.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Compiled {
    /// Its state is two words.
    Rule(Rule),
    /// Every grant is remembered.
    Log(LogRule),
    /// What is out is counted. Where it adapts, its limit moves.
    Places(ConcurrencyRule, Option<Adapt>),
}

/// A policy, checked.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    policy: Policy,
    /// One for each limit of the policy, in its order.
    compiled: Vec<Compiled>,
    /// Nanoseconds after which a permit is reclaimed: the shortest TTL.
    ttl: Option<u64>,
    /// The largest cost that can ever be admitted.
    max_cost: u64,
}

impl Plan {
    /// `since_epoch` is the wall clock at [`Moment::START`](crate::strategy::Moment::START).
    pub(crate) fn new(policy: Policy, since_epoch: Duration) -> Result<Self, ConfigError> {
        let limits = policy.limits();
        let compiled = limits.iter().map(|limit| compile(limit, since_epoch)).collect::<Result<_, _>>()?;
        let ttl = limits.iter().filter_map(|limit| match limit {
            Limit::MaxConcurrency(concurrency) => concurrency.ttl,
            _ => None,
        });
        let ttl = ttl.min().map(|ttl| ttl.as_nanos() as u64);
        let max_cost = limits.iter().map(Limit::capacity).min().unwrap_or(0);
        Ok(Self { compiled, ttl, max_cost, policy })
    }

    pub(crate) fn limits(&self) -> &[Limit] {
        self.policy.limits()
    }

    pub(crate) fn compiled(&self) -> &[Compiled] {
        &self.compiled
    }

    pub(crate) fn ttl(&self) -> Option<u64> {
        self.ttl
    }

    pub(crate) fn max_cost(&self) -> u64 {
        self.max_cost
    }

    /// The rule of a policy of one limit, whose state is a word or two.
    #[inline(always)]
    pub(crate) fn only_rule(&self) -> Option<&Rule> {
        match &self.compiled[..] {
            [Compiled::Rule(rule)] => Some(rule),
            _ => None,
        }
    }

    /// How many words hold the state of all limits, next to each other. `None` where something must lie beside it.
    pub(crate) fn width(&self) -> Option<usize> {
        self.compiled.iter().map(|limit| if let Compiled::Rule(rule) = limit { Some(rule.width()) } else { None }).sum()
    }

    /// The rules, and where among those words the state of each begins.
    pub(crate) fn words(&self) -> impl Iterator<Item = (&Rule, usize)> {
        let rules = self.compiled.iter().filter_map(|limit| if let Compiled::Rule(rule) = limit { Some(rule) } else { None });
        rules.scan(0, |at, rule| {
            let begins = *at;
            *at += rule.width();
            Some((rule, begins))
        })
    }

    /// Whether a denial changes the state of any limit.
    pub(crate) fn counts_denials(&self) -> bool {
        self.compiled.iter().any(|limit| matches!(limit, Compiled::Rule(rule) if rule.counts_denials()))
    }

    /// The same, with a policy that shares nothing: each denial counts one more owner of it for a while, and threads that are
    /// kept apart otherwise would meet in that count.
    pub(crate) fn deep_clone(&self) -> Self {
        Self { policy: self.policy.deep_clone(), ..self.clone() }
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Whether permits hold a place that must come back.
    pub(crate) fn holds_places(&self) -> bool {
        self.compiled.iter().any(Compiled::counts_places)
    }

    /// Whether any limit asks what time it is.
    pub(crate) fn follows_time(&self) -> bool {
        self.ttl.is_some() || !self.compiled.iter().all(|limit| matches!(limit, Compiled::Places(_, None)))
    }
}

impl Compiled {
    fn counts_places(&self) -> bool {
        matches!(self, Self::Places(..))
    }
}

/// Nonsense in a limit is found here, so that the strategies need not look for it.
fn compile(limit: &Limit, since_epoch: Duration) -> Result<Compiled, ConfigError> {
    let limit = *limit;
    let rate = match limit {
        Limit::TokenBucket(bucket) => Some(bucket.rate),
        Limit::Penalty(Penalty { fall: Decay::Steps(rate), .. }) => Some(rate),
        _ => None,
    };
    if rate.is_some_and(|rate| rate.units() == 0) {
        return Err(ConfigError::ZeroRate { limit });
    }
    if limit.capacity() == 0 {
        return Err(ConfigError::ZeroLimit { limit });
    }
    let too_long = ConfigError::TooLong { limit, max: Duration::from_nanos(MAX_SPAN_NANOS) };
    let span = |duration: Duration| match u64::try_from(duration.as_nanos()) {
        Ok(0) => Err(ConfigError::ZeroDuration { limit }),
        Ok(nanos) if nanos <= MAX_SPAN_NANOS => Ok(nanos),
        _ => Err(too_long.clone()),
    };
    Ok(Compiled::Rule(match limit {
        Limit::Throttle(throttle) => {
            let interval = span(throttle.interval)?;
            Rule::Pace(PaceRule::continuous(1, interval, throttle.burst, throttle.burst).ok_or(too_long)?)
        }
        Limit::TokenBucket(bucket) => {
            let (units, period) = (bucket.rate.units(), span(bucket.rate.period())?);
            let capacity = limit.capacity();
            let initial = bucket.initial.unwrap_or(capacity);
            let rule = if bucket.each_period { PaceRule::each_period } else { PaceRule::continuous };
            Rule::Pace(rule(units, period, capacity, initial).ok_or(too_long)?)
        }
        Limit::MaxConcurrency(concurrency) => {
            if concurrency.limit == 0 {
                return Err(ConfigError::ZeroLimit { limit }); // also where it adapts, and its capacity is the floor
            }
            concurrency.ttl.map(span).transpose()?;
            concurrency.adapt.and_then(|adapt| adapt.timeout).map(span).transpose()?;
            if concurrency.adapt.is_some_and(|adapt| !adapt.is_valid()) {
                return Err(ConfigError::OutOfRange { limit });
            }
            return Ok(Compiled::Places(ConcurrencyRule { limit: concurrency.limit }, concurrency.adapt));
        }
        Limit::FixedWindow(window) => {
            let period = span(window.period)?;
            let phase = match window.align {
                Align::Creation => Some(0),
                Align::FirstGrant => None,
                Align::WallClock => Some((since_epoch.as_nanos() % u128::from(period)) as u64),
            };
            Rule::Window(WindowRule { limit: window.limit, period, phase })
        }
        Limit::SlidingWindow(window) => {
            span(window.period)?;
            match window.method {
                SlidingMethod::Log => return Ok(Compiled::Log(window.log_rule())),
                SlidingMethod::Counter if window.limit > u32::MAX.into() => return Err(ConfigError::OutOfRange { limit }),
                SlidingMethod::Counter => Rule::Counter(window.counter_rule()),
            }
        }
        Limit::Penalty(penalty) => {
            let fall = match penalty.fall {
                Decay::Steps(rate) => rate.period(),
                Decay::HalfLife(half_life) => half_life,
            };
            if penalty.threshold.max(penalty.ceiling.unwrap_or(0)) > u32::MAX.into() {
                return Err(ConfigError::OutOfRange { limit });
            }
            // To be forgiven at once is the one span that may be zero.
            let forgive_after = penalty.forgive_after.filter(|quiet| !quiet.is_zero());
            for duration in [Some(fall), penalty.ban, penalty.longest, forgive_after].into_iter().flatten() {
                span(duration)?;
            }
            Rule::Penalty(penalty.rule())
        }
    }))
}
