//! A policy as a gate uses it: checked, each limit as its rule.

use std::num::NonZeroU64;
use std::time::Duration;

use crate::core::request::Costs;
use crate::decision::Decision;
use crate::error::{AcquireError, ConfigError};
use crate::exchange::Reply;
use crate::policy::{Limit, Policy};
use crate::strategy::{Counts, Fault, LimitReport, LimitRule, MAX_SPAN_NANOS, Moment, Rule};

/// A policy, checked.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    policy: Policy,
    /// One for each limit of the policy, in the same order.
    rules: Vec<LimitRule>,
    /// A copy of the rules, each with the index of the first word of its state, which a table of keys reads for each decision;
    /// empty if a state does not fit into words, or the limits count by unit.
    words: Vec<(Rule, usize)>,
    /// Nanoseconds after which a permit is reclaimed: the shortest TTL.
    ttl: Option<NonZeroU64>,
    /// The largest plain cost that can ever be admitted.
    max_cost: u64,
    /// Whether a limit counts anything but the plain cost.
    by_unit: bool,
}

/// A ban that a denied attempt has started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BegunBan {
    pub(crate) limit_index: usize,
    /// In nanoseconds.
    pub(crate) length: u64,
}

impl Policy {
    /// Checks whether a limiter can have this policy, as [`Limiter::new`](crate::Limiter::new) and
    /// [`Limiter::set_policy`](crate::Limiter::set_policy) do. So a reload of several limiters can check all policies before it
    /// sets one.
    ///
    /// A store may be unable to keep a valid policy. A [`SharedLimiter`](crate::SharedLimiter) then refuses it.
    ///
    /// # Errors
    ///
    /// The [`ConfigError`] that `Limiter::new` would return: a number or a duration of a limit is out of range, or there is no limit.
    ///
    /// ```
    /// use tollgate::{ConfigError, Limiter, Policy};
    ///
    /// fn reload(limiters: &[Limiter; 2], texts: [&str; 2]) -> Result<(), ConfigError> {
    ///     let policies: [Policy; 2] = [texts[0].parse()?, texts[1].parse()?];
    ///     policies.iter().try_for_each(Policy::validate)?;
    ///     for (limiter, policy) in limiters.iter().zip(policies) {
    ///         limiter.set_policy(policy)?; // it is valid
    ///     }
    ///     Ok(())
    /// }
    ///
    /// let limiters = [Limiter::new("10/s")?, Limiter::new("4 concurrent")?];
    /// assert!(reload(&limiters, ["20/s", "0 concurrent"]).is_err());
    /// assert_eq!(limiters[0].policy().to_string(), "10/s"); // unchanged
    /// reload(&limiters, ["20/s", "8 concurrent"])?;
    /// assert_eq!(limiters[1].policy().to_string(), "8 concurrent");
    /// # Ok::<(), ConfigError>(())
    /// ```
    pub fn validate(&self) -> Result<(), ConfigError> {
        Plan::new(self.clone(), Duration::ZERO).map(drop)
    }
}

impl Plan {
    /// `since_epoch` is the wall clock at [`Moment::START`](crate::strategy::Moment::START).
    pub(crate) fn new(policy: Policy, since_epoch: Duration) -> Result<Self, ConfigError> {
        let limits = policy.limits();
        if limits.is_empty() {
            return Err(ConfigError::NoLimits);
        }
        let by_unit = limits.iter().any(|limit| limit.counts() != Counts::Cost);
        let plain = limits.iter().filter(|limit| limit.counts() == Counts::Cost);
        let max_cost = plain.map(Limit::capacity).min().unwrap_or(u64::MAX);
        let rules = limits
            .iter()
            .map(|limit| rule_of(limit, since_epoch))
            .collect::<Result<Vec<_>, _>>()?;
        let mut width = 0;
        let words = rules.iter().map(LimitRule::words).map(|rule| {
            let begins = width;
            width += rule?.width();
            Some((rule?, begins))
        });
        let words = if by_unit {
            None
        } else {
            words.collect::<Option<_>>()
        };
        let words = words.unwrap_or_default();
        let ttl = limits
            .iter()
            .filter_map(|limit| limit.description().lease_ttl);
        let ttl = ttl
            .min()
            .and_then(|ttl| NonZeroU64::new(ttl.as_nanos() as u64));
        Ok(Self {
            rules,
            words,
            ttl,
            max_cost,
            by_unit,
            policy,
        })
    }

    pub(crate) fn limits(&self) -> &[Limit] {
        self.policy.limits()
    }

    pub(crate) fn rules(&self) -> &[LimitRule] {
        &self.rules
    }

    /// The index of the first limit that never admits this plain cost, if there is one and all count the plain cost.
    #[inline(always)]
    pub(crate) fn misfit(&self, cost: u64) -> Option<usize> {
        if cost > self.max_cost {
            self.limits()
                .iter()
                .position(|limit| limit.capacity() < cost)
        } else {
            None
        }
    }

    /// Whether the costs can ever be admitted.
    #[inline]
    pub(crate) fn fits(&self, costs: Costs<'_>) -> Result<(), AcquireError> {
        let fits_plain = costs.plain.wrapping_sub(1) < self.max_cost;
        if fits_plain && !self.by_unit {
            Ok(())
        } else {
            self.fits_by_unit(costs)
        }
    }

    #[cold]
    fn fits_by_unit(&self, costs: Costs<'_>) -> Result<(), AcquireError> {
        if costs.plain == 0 {
            return Err(AcquireError::ZeroCost);
        }
        let exceeds = |limit: &Limit, cost| AcquireError::ExceedsLimit {
            cost,
            max: limit.capacity(),
            limit: Box::new(*limit),
        };
        let is_tightest =
            |limit: &&Limit| limit.counts() == Counts::Cost && limit.capacity() == self.max_cost;
        if costs.plain > self.max_cost
            && let Some(tightest) = self.limits().iter().find(is_tightest)
        {
            return Err(exceeds(tightest, costs.plain));
        }
        self.limits().iter().try_for_each(|limit| {
            match (costs.of(limit.counts()), limit.counts()) {
                (Some(cost), _) if cost > limit.capacity() => Err(exceeds(limit, cost)),
                (None, Counts::Unit(unit)) => Err(AcquireError::MissingCost {
                    unit,
                    limit: Box::new(*limit),
                }),
                _ => Ok(()),
            }
        })
    }

    /// The rule of a policy of one limit with a state of a word or two.
    #[inline(always)]
    pub(crate) fn only_rule(&self) -> Option<&Rule> {
        match &self.words[..] {
            [(rule, _)] => Some(rule),
            _ => None,
        }
    }

    /// How many words the states of all limits take. `None` if a state does not fit into words, or the limits count by unit.
    pub(crate) fn width(&self) -> Option<usize> {
        let (last, begins) = self.words.last()?;
        Some(begins + last.width())
    }

    /// The rules, each with the index of the first word of its state; none if a state does not fit into words.
    pub(crate) fn words(&self) -> impl Iterator<Item = (&Rule, usize)> {
        self.words.iter().map(|(rule, begins)| (rule, *begins))
    }

    /// Whether a denial changes the state of any limit.
    pub(crate) fn counts_denials(&self) -> bool {
        self.rules
            .iter()
            .any(|rule| matches!(rule, LimitRule::Words(rule) if rule.penalty().is_some()))
    }

    /// A copy that shares no memory with this one. Each denial clones the policy for a while; with a shared one, threads that
    /// use different shards would contend for its reference count.
    pub(crate) fn deep_clone(&self) -> Self {
        let rules = self.rules.iter().map(LimitRule::deep_clone).collect();
        Self {
            policy: self.policy.deep_clone(),
            rules,
            words: self.words.clone(),
            ..*self
        }
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The bans that begin with a denied attempt at the store that has asked each limit.
    pub(crate) fn bans_begun(&self, reply: &Reply) -> impl Iterator<Item = BegunBan> {
        let now = Moment::from_nanos(reply.now);
        self.rules.iter().zip(&reply.limits).enumerate().filter_map(
            move |(limit_index, (rule, reading))| {
                let LimitRule::Words(rule) = rule else {
                    return None;
                };
                let length = rule.penalty()?.ban_begun(
                    now,
                    reading.remaining,
                    Moment::from_nanos(reading.reset_at),
                )?;
                Some(BegunBan {
                    limit_index,
                    length,
                })
            },
        )
    }

    /// The denial of a request that is refused without a look at its limits.
    pub(crate) fn refused_decision(&self, now: Moment) -> Decision {
        let report = LimitReport {
            denied_until: Some(Moment::NEVER),
            remaining: 0,
            ready_at: now,
            reset_at: now,
        };
        let capacity = self.limits()[0].capacity();
        Decision::of_one(&self.policy, false, report, now, 0, capacity)
    }

    /// Whether permits hold a place.
    pub(crate) fn holds_places(&self) -> bool {
        self.rules
            .iter()
            .any(|rule| matches!(rule, LimitRule::Places(..)))
    }

    /// Whether a limit learns from the reports on work.
    pub(crate) fn adapts(&self) -> bool {
        self.rules
            .iter()
            .any(|rule| matches!(rule, LimitRule::Places(_, Some(_))))
    }

    /// The places of a policy that is a concurrency and nothing more: it neither leases nor adapts.
    pub(crate) fn plain_places(&self) -> Option<u64> {
        match self.rules[..] {
            [LimitRule::Places(limit, None)] if self.ttl.is_none() && !self.by_unit => Some(limit),
            _ => None,
        }
    }

    /// Whether any limit needs the time.
    pub(crate) fn follows_time(&self) -> bool {
        self.ttl.is_some()
            || !self
                .rules
                .iter()
                .all(|limit| matches!(limit, LimitRule::Places(_, None)))
    }
}

getters!(Plan {
    pub(crate) ttl: ttl -> Option<NonZeroU64>,

    pub(crate) max_cost: max_cost -> u64,

    /// Whether a limit counts anything but the plain cost.
    pub(crate) counts_by_unit: by_unit -> bool,
});

/// Each limit checks itself; the error for a fault names the limit.
fn rule_of(limit: &Limit, since_epoch: Duration) -> Result<LimitRule, ConfigError> {
    let counts_invalid = matches!(limit.counts(), Counts::Unit(unit) if !unit.is_valid());
    let rule = if counts_invalid {
        Err(Fault::InvalidUnit)
    } else {
        limit.checked(since_epoch)
    };
    rule.map_err(|fault| refused(Box::new(*limit), fault))
}

fn refused(limit: Box<Limit>, fault: Fault) -> ConfigError {
    match fault {
        Fault::ZeroLimit(number) => ConfigError::ZeroLimit { limit, number },
        Fault::ZeroRate => ConfigError::ZeroRate { limit },
        Fault::ZeroDuration(number) => ConfigError::ZeroDuration { limit, number },
        Fault::OutOfRange {
            number,
            given,
            min,
            max,
        } => ConfigError::OutOfRange {
            limit,
            number,
            given,
            range: min..=max,
        },
        Fault::InvalidUnit => ConfigError::InvalidUnit { limit },
        Fault::TooLong(number) => ConfigError::TooLong {
            limit,
            number,
            max: Duration::from_nanos(MAX_SPAN_NANOS),
        },
    }
}
