use std::fmt;

use crate::strategy::{Align, FixedWindow, MaxConcurrency, Penalty, SlidingWindow, Throttle, TokenBucket};

/// One rule with its parameters: plain data, checked when a limiter is built.
///
/// It prints as a person would say it: `throttle every 100ms burst 5`. See [`Policy`] for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Limit {
    /// A pace: see [`Throttle`].
    Throttle(Throttle),
    /// A bound on what is out at once: see [`MaxConcurrency`].
    MaxConcurrency(MaxConcurrency),
    /// A quota for each window: see [`FixedWindow`].
    FixedWindow(FixedWindow),
    /// A bucket that is refilled at a rate: see [`TokenBucket`].
    TokenBucket(TokenBucket),
    /// A quota for any span of a period: see [`SlidingWindow`].
    SlidingWindow(SlidingWindow),
    /// A counter that attempts raise and time lowers: see [`Penalty`].
    Penalty(Penalty),
}

impl Limit {
    /// The largest cost that one request can have: the burst, the concurrency (its floor, where [it moves](crate::Adapt)), or the
    /// units of a window.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tollgate::{Limit, Throttle};
    ///
    /// assert_eq!(Limit::from(Throttle::every(Duration::from_secs(1)).burst(5)).capacity(), 5);
    /// ```
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        match self {
            Self::Throttle(throttle) => throttle.burst,
            Self::MaxConcurrency(concurrency) => match concurrency.adapt {
                Some(adapt) => adapt.floor,
                None => concurrency.limit,
            },
            Self::FixedWindow(window) => window.limit,
            Self::TokenBucket(bucket) => bucket.capacity(),
            Self::SlidingWindow(window) => window.limit,
            Self::Penalty(penalty) => penalty.threshold,
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Throttle(Throttle { interval, burst: 1 }) => write!(f, "throttle every {interval:?}"),
            Self::Throttle(Throttle { interval, burst }) => write!(f, "throttle every {interval:?} burst {burst}"),
            Self::MaxConcurrency(MaxConcurrency { limit, ttl: None, .. }) => write!(f, "{limit} concurrent"),
            Self::MaxConcurrency(MaxConcurrency { limit, ttl: Some(ttl), .. }) => write!(f, "{limit} concurrent ttl {ttl:?}"),
            Self::FixedWindow(FixedWindow { limit, period, align }) => {
                let from = match align {
                    Align::Creation => "",
                    Align::FirstGrant => " from the first grant",
                    Align::WallClock => " of the wall clock",
                };
                write!(f, "fixed window {limit} per {period:?}{from}")
            }
            Self::TokenBucket(TokenBucket { rate, burst, interval, initial }) => {
                let interval = if *interval { " interval" } else { "" };
                write!(f, "{rate} burst {burst}{interval}")?;
                initial.map_or(Ok(()), |initial| write!(f, " initial {initial}"))
            }
            Self::SlidingWindow(window) => write!(f, "sliding {window:?}"),
            Self::Penalty(penalty) => write!(f, "penalty {penalty:?}"),
        }
    }
}

/// The limits that must **all** admit a request: all are charged, or none is.
///
/// Of several TTLs the shortest holds for the whole permit. Data only: it compares, prints and clones, and holds no state. A limiter made from it does.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limiter, MaxConcurrency, Policy, Throttle};
///
/// let policy = Policy::from(MaxConcurrency::new(8)).and(Throttle::every(Duration::from_millis(100)));
/// assert_eq!(policy.to_string(), "8 concurrent and throttle every 100ms");
///
/// let limiter = Limiter::new(policy)?;
/// let _permit = limiter.try_acquire()?;
/// let denied = limiter.check(1);
/// assert_eq!(denied.denied_by().unwrap().to_string(), "throttle every 100ms");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Policy {
    limits: Vec<Limit>,
}

impl Policy {
    /// This policy and another one: the limits of both must admit. See the [type's example](Policy#examples).
    #[must_use]
    pub fn and(mut self, other: impl Into<Self>) -> Self {
        self.limits.extend(other.into().limits);
        self
    }

    /// The limits, in the order they were combined; never empty. See the [type's example](Policy#examples).
    #[must_use]
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, limit) in self.limits.iter().enumerate() {
            let and = if index == 0 { "" } else { " and " };
            write!(f, "{and}{limit}")?;
        }
        Ok(())
    }
}

impl From<Limit> for Policy {
    fn from(limit: Limit) -> Self {
        Self { limits: vec![limit] }
    }
}

macro_rules! a_policy_of_one {
    ($($limit:ident),*) => {$(
        impl From<$limit> for Limit {
            fn from(limit: $limit) -> Self {
                Self::$limit(limit)
            }
        }

        impl From<$limit> for Policy {
            fn from(limit: $limit) -> Self {
                Limit::from(limit).into()
            }
        }
    )*};
}

a_policy_of_one!(Throttle, MaxConcurrency, FixedWindow, TokenBucket, SlidingWindow, Penalty);
