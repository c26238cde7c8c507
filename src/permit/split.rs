//! Splitting and merging of permits.

use std::sync::Arc;

use thiserror::Error;

use super::Permit;
use crate::core::request::Claim;
use crate::strategy::Moment;

/// Why a permit was not [split](Permit::split), which has an example. The permit is unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SplitError {
    /// Each part must have at least one unit.
    #[error(
        "cannot split {units} units off a permit of {cost}; split off at least 1, and fewer than the permit has"
    )]
    OutOfRange {
        /// The units that were to be split off.
        units: u64,
        /// The units of the permit.
        cost: u64,
    },
    /// The permit is of a rate and holds no place: its parts would release nothing.
    #[error(
        "the permit holds no place that could be split: its policy has no limit of concurrency"
    )]
    NoPlace,
    /// The permit has a [TTL](crate::MaxConcurrency::ttl), and is reclaimed as a whole.
    #[error("a permit with a TTL is reclaimed whole, and cannot be split; acquire several permits")]
    HasTtl,
    /// A limit of the policy [counts](crate::Counts) requests or a named unit, so the share of each part does not follow from the
    /// cost.
    #[error(
        "a permit whose policy counts requests or named units cannot be split; acquire several permits"
    )]
    CountsByUnit,
}

/// Why two permits were not [merged](Permit::merge), which has an example. The error contains the other permit.
#[derive(Debug, Error)]
#[error("{kind}")]
pub struct MergeError {
    /// Why the permits were not merged.
    pub kind: MergeErrorKind,
    /// The permit that was to be added. Dropping it releases it.
    pub permit: Permit,
}

/// Why two permits were not [merged](Permit::merge), which has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MergeErrorKind {
    /// The permits are of different limiters, or of different keys.
    #[error("permits of different limiters or keys cannot be merged")]
    OtherLimiter,
    /// The permits were granted to two requests, and the time of a grant matters: the policy has a rate or adapts, or the limiter
    /// [records the time](crate::LimiterBuilder::record_grant_time). A merged permit would be settled or reported by the time of
    /// the wrong grant.
    #[error(
        "permits of different grants cannot be merged where the time of a grant matters: with a rate, or a limit that adapts"
    )]
    OtherGrant,
    /// One of the permits is of a kind that cannot be split.
    #[error(transparent)]
    Indivisible(SplitError),
}

impl Permit {
    /// Splits `units` off into a permit of their own: 1 to one less than the [cost](Permit::cost). Each part releases its own
    /// units, and can be settled, refunded, reported, split and [merged](Permit::merge) by itself. Both parts are of the same
    /// grant, so they have the same [id](Permit::id), [fence](Permit::fence) and time.
    ///
    /// # Errors
    ///
    /// A [`SplitError`] for a number outside this range, and for a permit that cannot be split: of rates only, with a TTL, or of
    /// a policy that counts requests or named units. The permit then stays as it is.
    ///
    /// ```
    /// use tollgate::{Limiter, MaxConcurrency};
    ///
    /// let limiter = Limiter::new(MaxConcurrency::new(8))?;
    /// let mut permit = limiter.try_acquire_many(5)?;
    /// let part = permit.split(2)?;
    /// assert_eq!((permit.cost(), part.cost()), (3, 2));
    /// drop(permit);
    /// assert_eq!(limiter.available(), 6);
    /// drop(part);
    /// assert_eq!(limiter.available(), 8);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn split(&mut self, units: u64) -> Result<Self, SplitError> {
        self.check_divisible()?;
        let cost = self.cost;
        if units == 0 || units >= cost {
            return Err(SplitError::OutOfRange { units, cost });
        }
        self.cost -= units;
        Ok(Self {
            manager: self.manager.clone(),
            cost: units,
            ..*self
        })
    }

    /// Adds the units of `other` to this permit. The two may be parts of one permit. They may also be of two requests if no limit
    /// of the policy needs the time of a grant, so that the policy is of plain [`MaxConcurrency`](crate::MaxConcurrency). The
    /// permit keeps its own [id](Permit::id) and [fence](Permit::fence).
    ///
    /// # Errors
    ///
    /// A [`MergeError`] with the other permit, if the two are of different limiters or keys, of different grants whose time
    /// matters, or of a kind that cannot be [split](Permit::split). Nothing has changed then.
    ///
    /// ```
    /// use tollgate::{Limiter, MaxConcurrency, MergeErrorKind};
    ///
    /// let limiter = Limiter::new(MaxConcurrency::new(8))?;
    /// let mut permit = limiter.try_acquire_many(2)?;
    /// permit.merge(limiter.try_acquire_many(3)?)?;
    /// assert_eq!(permit.cost(), 5);
    ///
    /// let other = Limiter::new(MaxConcurrency::new(1))?;
    /// let error = permit.merge(other.try_acquire()?).unwrap_err();
    /// assert_eq!((error.kind, error.permit.cost()), (MergeErrorKind::OtherLimiter, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn merge(&mut self, mut other: Self) -> Result<(), MergeError> {
        if let Err(kind) = self.check_mergeable(&other) {
            return Err(MergeError {
                kind,
                permit: other,
            });
        }
        self.cost = self.cost.saturating_add(other.cost);
        other.manager = None; // its drop releases nothing
        Ok(())
    }

    /// Checks that the permit holds a place by the plain cost. Only such a place is divisible: other units are recorded for the
    /// whole grant, under its fence or its lease.
    fn check_divisible(&self) -> Result<(), SplitError> {
        match self.grant.claim {
            Claim::PLACE => Ok(()),
            claim if claim.lease().is_some() => Err(SplitError::HasTtl),
            claim if claim.names_units() => Err(SplitError::CountsByUnit),
            _ => Err(SplitError::NoPlace),
        }
    }

    fn check_mergeable(&self, other: &Self) -> Result<(), MergeErrorKind> {
        self.check_divisible()
            .and_then(|()| other.check_divisible())
            .map_err(MergeErrorKind::Indivisible)?;
        if !self
            .manager
            .iter()
            .zip(&other.manager)
            .any(|(manager, other)| Arc::ptr_eq(manager, other))
        {
            return Err(MergeErrorKind::OtherLimiter);
        }
        // The bound of a refund depends on the later grants, and a sample is timed from the grant.
        let is_timeless = self.grant.at == Moment::NEVER && other.grant.at == Moment::NEVER;
        if self.grant.fence == other.grant.fence || is_timeless {
            Ok(())
        } else {
            Err(MergeErrorKind::OtherGrant)
        }
    }
}
