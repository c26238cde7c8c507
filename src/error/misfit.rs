//! Requests that can never be admitted.

use std::time::Duration;

use super::{AcquireError, TryAcquireError};
use crate::policy::{Limit, Policy};
use crate::strategy::Unit;

/// Why a request can never be admitted, apart from the time.
#[derive(Debug)]
pub(crate) enum Misfit {
    ZeroCost,
    Exceeds { limit: Box<Limit>, cost: u64 },
    Missing { limit: Box<Limit>, unit: Unit },
    NoTtl { ttl: Duration, policy: Policy },
}

macro_rules! from_misfit {
    ($($error:ident),*) => {$(
        impl From<Misfit> for $error {
            #[cold]
            fn from(misfit: Misfit) -> Self {
                match misfit {
                    Misfit::ZeroCost => Self::ZeroCost,
                    Misfit::Exceeds { limit, cost } => Self::ExceedsLimit { cost, max: limit.capacity(), limit },
                    Misfit::Missing { limit, unit } => Self::MissingCost { unit, limit },
                    Misfit::NoTtl { ttl, policy } => Self::NoTtl { ttl, policy },
                }
            }
        }
    )*};
}

from_misfit!(AcquireError, TryAcquireError);
