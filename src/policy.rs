//! A policy as data, and the list of all limits.

use std::sync::Arc;
use std::time::Duration;

use crate::strategy::{
    Counts, Describe as _, Description, Fault, FixedWindow, Guards, LimitRule, MaxConcurrency,
    Penalty, SlidingWindow, Throttle, TokenBucket,
};

/// Passes the list of all limits to a macro: `all_limits!(then, arguments)`. A parser tries the limits in this order, and an
/// error lists the choices in this order.
macro_rules! all_limits {
    ($then:ident $(, $($arguments:tt)*)?) => {
        $then! {
            [TokenBucket MaxConcurrency Throttle FixedWindow SlidingWindow Penalty]
            $($($arguments)*)?
        }
    };
}

/// Evaluates one expression for each kind of [`Limit`].
macro_rules! with_limit {
    ([$($kind:ident)*] $value:expr, |$limit:ident| $answer:expr) => {
        match $value { $($crate::policy::Limit::$kind($limit) => $answer),* }
    };
    ($value:expr, |$limit:ident| $answer:expr) => {
        $crate::policy::all_limits!(with_limit, $value, |$limit| $answer)
    };
}

pub(crate) use {all_limits, with_limit};

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::{lacking, samples};

/// One limit of a [`Policy`], with its parameters. It is plain data: the parameters are checked when a limiter is built.
///
/// A limit prints as text, such as `throttle every 100ms burst 5`, and parses from it. See [`Policy`] for an example and for the
/// [grammar](Policy#as-text).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Limit {
    /// One grant per interval (GCRA): see [`Throttle`].
    Throttle(Throttle),
    /// A bound on permits in flight (a semaphore): see [`MaxConcurrency`].
    MaxConcurrency(MaxConcurrency),
    /// A quota per window: see [`FixedWindow`].
    FixedWindow(FixedWindow),
    /// A bucket that refills at a rate: see [`TokenBucket`].
    TokenBucket(TokenBucket),
    /// A quota for every span of a period: see [`SlidingWindow`].
    SlidingWindow(SlidingWindow),
    /// A counter that every attempt raises and time lowers: see [`Penalty`].
    Penalty(Penalty),
}

impl Limit {
    /// The largest cost that one request may have, in units: the burst, the concurrency (its floor, if it
    /// [adapts](crate::Adapt)), the units per window, or the threshold of a penalty.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tollgate::{Limit, Throttle};
    ///
    /// assert_eq!(Limit::from(Throttle::every(Duration::from_secs(1)).burst(5)).capacity(), 5);
    /// ```
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        with_limit!(self, |limit| limit.capacity())
    }

    /// What the limit counts. See [`Counts`] for an example.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        with_limit!(self, |limit| limit.get_counts())
    }

    #[cfg(any(test, fuzzing))]
    pub(crate) const fn counting(mut self, counts: Counts) -> Self {
        with_limit!(&mut self, |limit| limit.counts = counts);
        self
    }

    pub(crate) fn description(&self) -> Description {
        with_limit!(self, |limit| limit.description())
    }

    /// See [`Describe::checked`](crate::strategy::Describe::checked).
    #[expect(
        clippy::useless_conversion,
        reason = "some limits return this type itself"
    )]
    pub(crate) fn checked(&self, since_epoch: Duration) -> Result<LimitRule, Fault> {
        with_limit!(self, |limit| limit.checked(since_epoch).map(Into::into))
    }

    /// How long its capacity takes to come back, in nanoseconds: whole microseconds, rounded up. 0 for a concurrency.
    pub(crate) fn round_nanos(&self) -> u64 {
        const UNKNOWN: Duration = Duration::from_secs(1); // it falls by halves
        if self.counts_places() {
            return 0;
        }
        let round = with_limit!(self, |limit| limit.window(self.capacity())).unwrap_or(UNKNOWN);
        u64::try_from(round.as_nanos().div_ceil(1_000) * 1_000).unwrap_or(u64::MAX)
    }

    /// Whether the limit counts units in flight.
    pub(crate) fn counts_places(&self) -> bool {
        self.description().guards == Guards::Capacity
    }
}

/// One limit or several, which must **all** admit a request. A grant charges all of them; a denial charges none.
///
/// A policy is plain data without state, and is cheap to compare, print, parse and clone. The limiter that is built from it holds
/// the state. When several limits have a TTL, the shortest counts.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limiter, MaxConcurrency, Policy, Throttle};
///
/// let (slots, pace) = (MaxConcurrency::new(8), Throttle::every(Duration::from_millis(100)));
/// let policy = slots.and(pace);
/// assert_eq!(policy.to_string(), "8 concurrent and throttle every 100ms");
/// assert_eq!(policy, Policy::from((slots, pace)));
///
/// let limiter = Limiter::new(policy)?; // or Limiter::new((slots, pace)), or Limiter::new("8 concurrent and …")
/// let _permit = limiter.try_acquire()?;
/// let denied = limiter.check(1);
/// assert_eq!(denied.denied_by().unwrap().to_string(), "throttle every 100ms");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # As text
///
/// A policy prints as text, which parses to an equal policy. With the feature `serde` a policy is the same text in configuration
/// files.
///
/// | text | limit |
/// |---|---|
/// | `100/min` | [`TokenBucket`] with a burst of the rate's units: 199 in its first minute, see [below](#a-rate-and-a-hard-quota) |
/// | `20/s burst 40 refilled each period initial 0` | the same, with options in any order |
/// | `8 concurrent`, `8 concurrent ttl 30s` | [`MaxConcurrency`] |
/// | `throttle every 100ms`, `throttle 10/s`, `every 100ms burst 5` | [`Throttle`] |
/// | `window 100/min` | [`FixedWindow`] |
/// | `window 100/min from first grant`, `window 100/min wall clock` | the same, with an [`Align`](crate::Align) |
/// | `sliding log 100/min`, `sliding counter 100/min` | [`SlidingWindow`] |
/// | `penalty 10 falling 1/s ceiling 20`, `penalty 10 half-life 30s` | [`Penalty`] |
/// | `penalty 10 falling 1/s ban 1m up to 1h forgive 2h ignoring denied` | the same, with bans |
/// | `20 concurrent gradient from 4 to 200 tolerance 1200`, `20 concurrent aimd` | [`MaxConcurrency::adapt`] |
/// | `8 concurrent per request`, `100/min per request` | a limit that [counts](crate::Counts) requests |
/// | `100000 tokens/min`, `window 5000 bytes/s`, `8 concurrent counting megabytes` | a limit that counts a named unit |
/// | … `and` … | [`Policy::and`] |
///
/// Whitespace separates words; upper and lower case are the same. A duration is `10ns`, `500us`, `100ms`, `1.5s`, `2m`, `1h30m`,
/// `1d` or `1w`. A [`Rate`](crate::Rate) is a whole number, `/`, and a duration or its unit alone: `3/250ms`, `100/min`. A text has
/// at most 65,536 bytes; a longer one is an [error](crate::ParseErrorKind::TextTooLong). Parsing takes time in proportion to the
/// length of the text.
///
/// Other unambiguous spellings parse too, and print as above: `10 per second`, `100 requests a minute` (which counts the cost of
/// requests, like `calls`, `queries`, `units` and `permits`; any other name is a named unit), `10r/s`, `100 rpm`, `rate 10/s`,
/// `100/hr`, `5 sec`, `1 hour 30 minutes`, `100_000/min` and, in whole numbers, `100,000/min`. For ambiguous ones the error
/// suggests a spelling: `0.5/s` (whose burst is unknown), `100/month`, `1,5s`.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{MaxConcurrency, Policy, Rate, TokenBucket};
///
/// let policy: Policy = "8 concurrent ttl 30s and 100/min".parse()?;
/// let slots = MaxConcurrency::new(8).ttl(Duration::from_secs(30));
/// assert_eq!(policy, slots.and(TokenBucket::new(Rate::per_minute(100), 100)));
///
/// let error = "8 concurent".parse::<Policy>().unwrap_err();
/// assert!(error.to_string().starts_with("expected `/`, `per` or `concurrent`, found `concurent`; did you mean `concurrent`?"));
/// # Ok::<(), tollgate::ParseError>(())
/// ```
///
/// ## A rate and a hard quota
///
/// `100/min` is a full bucket of 100 units, into which one unit comes back every 600 ms. A client that has been idle gets 100 units at
/// once and 99 more within the minute. `window 100/min` admits 200 around the boundary of two windows. For a quota of 100 in every span
/// of a minute write `sliding log 100/min`; for an even rate without a burst, `100/min burst 1`.
///
/// ```
/// use std::time::Duration;
/// use tokio::time::{advance, pause};
/// use tollgate::Limiter;
///
/// async fn granted_in_the_first_minute(policy: &str) -> Result<u32, tollgate::ConfigError> {
///     let limiter = Limiter::new(policy)?;
///     let mut granted = 0;
///     for _ in 0..600 {
///         while limiter.try_acquire().is_ok() {
///             granted += 1;
///         }
///         advance(Duration::from_millis(100)).await;
///     }
///     Ok(granted)
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tollgate::ConfigError> {
/// pause(); // tokio's clock
/// assert_eq!(granted_in_the_first_minute("100/min").await?, 199);
/// assert_eq!(granted_in_the_first_minute("100/min burst 1").await?, 100);
/// assert_eq!(granted_in_the_first_minute("sliding log 100/min").await?, 100);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[doc(alias = "Quota")]
pub struct Policy {
    /// Shared, so that a policy is cheap to clone, and to compare with its clone.
    limits: Arc<[Limit]>,
}

impl Policy {
    /// Whether the policy bounds only permits in flight.
    pub(crate) fn only_places(&self) -> bool {
        self.limits.iter().all(Limit::counts_places)
    }

    /// Combines two policies: the limits of both must admit a request. See the [type's example](Policy#examples).
    ///
    /// Each call copies all limits so far. To combine many, collect them.
    #[must_use]
    pub fn and(self, other: impl Into<Self>) -> Self {
        self.limits
            .iter()
            .chain(other.into().limits.iter())
            .copied()
            .collect()
    }

    /// An equal policy that shares no memory with this one.
    pub(crate) fn deep_clone(&self) -> Self {
        Self {
            limits: self.limits.iter().copied().collect(),
        }
    }

    /// The limits, in the order in which they were combined. A limiter refuses a policy without limits. See the [type's
    /// example](Policy#examples).
    #[must_use]
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }
}

/// A policy of the limits in their order. A policy without limits prints nothing, adds nothing to another, and is refused with
/// [`ConfigError::NoLimits`](crate::ConfigError::NoLimits) when a limiter is built from it.
///
/// ```
/// use tollgate::{ConfigError, Limiter, ParseError, Policy};
///
/// let lines = "8 concurrent\n100/min\n5000/day";
/// let policy = lines.lines().map(str::parse).collect::<Result<Policy, ParseError>>()?;
/// assert_eq!(policy, "8 concurrent and 100/min and 5000/day".parse()?);
///
/// let none = Policy::from_iter([]);
/// assert_eq!(Limiter::new(none).unwrap_err(), ConfigError::NoLimits);
/// # Ok::<(), ParseError>(())
/// ```
impl FromIterator<Limit> for Policy {
    fn from_iter<I: IntoIterator<Item = Limit>>(limits: I) -> Self {
        Self {
            limits: limits.into_iter().collect(),
        }
    }
}

impl From<Limit> for Policy {
    fn from(limit: Limit) -> Self {
        Self {
            limits: Arc::new([limit]),
        }
    }
}

macro_rules! policies_of_one_limit {
    ([$($limit:ident)*]) => {$(
        and!($limit);

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

/// Defines `and` for a limit, which begins a policy.
macro_rules! and {
    ($limit:ident) => {
        impl $limit {
            /// Returns a policy of this limit and another limit or policy: all must admit a request.
            ///
            /// ```
            /// # use std::time::Duration;
            /// use tollgate::{MaxConcurrency, Throttle};
            ///
            /// let policy = MaxConcurrency::new(8).and(Throttle::every(Duration::from_millis(100)));
            /// assert_eq!(policy.to_string(), "8 concurrent and throttle every 100ms");
            /// ```
            #[must_use]
            pub fn and(self, other: impl Into<Policy>) -> Policy {
                Policy::from(self).and(other)
            }
        }
    };
}

and!(Limit);
all_limits!(policies_of_one_limit);

macro_rules! policies_of_several {
    ($(($($part:ident),*)),*) => {$(
        /// Makes a policy of the limits of all parts, in their order. See the [type's example](Policy#examples).
        impl<$($part: Into<Policy>),*> From<($($part),*)> for Policy {
            #[expect(non_snake_case, reason = "a part is named by its type")]
            fn from(($($part),*): ($($part),*)) -> Self {
                [$($part.into()),*].iter().flat_map(Self::limits).copied().collect()
            }
        }
    )*};
}

policies_of_several!((A, B), (A, B, C), (A, B, C, D));
