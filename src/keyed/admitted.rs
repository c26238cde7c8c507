//! How a table answers.

use std::sync::Arc;

use crate::error::{AcquireError, ConfigError, TryAcquireError};
use crate::manager::Manager;
use crate::permit::Permit;

/// How far a request that is ready to wait came in the table.
pub(super) enum Admitted {
    Granted(Permit),
    /// The key is active: its manager decides.
    ToManager(Arc<Manager>),
}

/// Why a key cannot be served at all.
pub(super) enum Denial {
    Closed,
    TooManyKeys { max: usize },
    Config(ConfigError),
}

impl From<Denial> for TryAcquireError {
    fn from(denial: Denial) -> Self {
        match denial {
            Denial::Closed => Self::Closed,
            Denial::TooManyKeys { max } => Self::TooManyKeys { max },
            Denial::Config(error) => Self::Config(error.into()),
        }
    }
}

impl From<Denial> for AcquireError {
    fn from(denial: Denial) -> Self {
        match denial {
            Denial::Closed => Self::Closed,
            Denial::TooManyKeys { max } => Self::TooManyKeys { max },
            Denial::Config(error) => Self::Config(error.into()),
        }
    }
}
