use std::sync::Arc;

use crate::strategy::{FixedWindow, MaxConcurrency, Penalty, SlidingWindow, Throttle, TokenBucket};

/// One rule with its parameters: plain data, checked when a limiter is built.
///
/// It prints as a person would say it, `throttle every 100ms burst 5`, and parses from that. See [`Policy`] for an example and
/// for the [grammar](Policy#as-text).
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
///
/// # As text
///
/// A policy parses from what it prints, to the same value. With the feature `serde` it is that text in a configuration file.
///
/// | text | limit |
/// |---|---|
/// | `100/min` | [`TokenBucket`] with a burst of the rate's units |
/// | `20/s burst 40 interval initial 0` | the same, with options in any order |
/// | `8 concurrent`, `8 concurrent ttl 30s` | [`MaxConcurrency`] |
/// | `throttle every 100ms`, `every 100ms burst 5` | [`Throttle`] |
/// | `window 100/min` | [`FixedWindow`] |
/// | `window 100/min from first grant`, `window 100/min wall clock` | the same, with an [`Align`](crate::Align) |
/// | `sliding log 100/min`, `sliding counter 100/min` | [`SlidingWindow`] |
/// | `penalty 10 falling 1/s ceiling 20`, `penalty 10 half-life 30s` | [`Penalty`] |
/// | `penalty 10 falling 1/s ban 1m up to 1h forgive 2h ignoring denied` | the same, with bans |
/// | `20 concurrent gradient from 4 to 200 tolerance 1200`, `20 concurrent aimd` | [`MaxConcurrency::adapt`] |
/// | … `and` … | [`Policy::and`] |
///
/// Words are separated by whitespace and may have any case. A time is `10ns`, `500us`, `100ms`, `1.5s`, `2m`, `1h30m`, `1d`,
/// `1w`; a [`Rate`](crate::Rate) is a whole number, `/` and a time or a unit alone. A text may have up to 65,536 bytes; a longer
/// one is an [error](crate::ParseErrorKind::TextTooLong). Parsing takes time in proportion to the length of the text.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{MaxConcurrency, Policy, Rate, TokenBucket};
///
/// let policy: Policy = "8 concurrent ttl 30s and 100/min".parse()?;
/// let slots = MaxConcurrency::new(8).ttl(Duration::from_secs(30));
/// assert_eq!(policy, Policy::from(slots).and(TokenBucket::new(Rate::per_minute(100), 100)));
///
/// let error = "8 concurent".parse::<Policy>().unwrap_err();
/// assert!(error.to_string().starts_with("expected `concurrent` or"));
/// # Ok::<(), tollgate::ParseError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Policy {
    /// Shared: a policy is cheap to clone and to compare with its clone.
    limits: Arc<[Limit]>,
}

impl Policy {
    /// This policy and another one: the limits of both must admit. See the [type's example](Policy#examples).
    #[must_use]
    pub fn and(mut self, other: impl Into<Self>) -> Self {
        self.limits = self.limits.iter().chain(other.into().limits.iter()).copied().collect();
        self
    }

    /// So many limits at once. Adding them one by one with [`and`](Self::and) copies all of them each time.
    pub(crate) fn of(first: Limit, others: Vec<Limit>) -> Self {
        Self { limits: std::iter::once(first).chain(others).collect() }
    }

    /// The same, sharing nothing with this one.
    pub(crate) fn deep_clone(&self) -> Self {
        Self { limits: self.limits.iter().copied().collect() }
    }

    /// The limits, in the order they were combined; never empty. See the [type's example](Policy#examples).
    #[must_use]
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }
}

impl From<Limit> for Policy {
    fn from(limit: Limit) -> Self {
        Self { limits: Arc::new([limit]) }
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
