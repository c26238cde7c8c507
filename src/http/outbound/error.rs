//! The error of a request through an `OutboundLayer`.

use std::error::Error;

use thiserror::Error;

use crate::error::AcquireError;

/// Why a request had no answer. It prints as the error inside does.
///
/// ```
/// use std::io;
/// use tollgate::AcquireError;
/// use tollgate::http::OutboundError;
///
/// let error = OutboundError::<io::Error>::Acquire(AcquireError::Closed);
/// assert_eq!(error.to_string(), "the limiter is closed");
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OutboundError<E> {
    /// The limiter gave no permit, so the request was not sent, or not sent again.
    #[error(transparent)]
    Acquire(AcquireError),
    /// The inner service failed.
    #[error(transparent)]
    Service(E),
}

impl<E: Into<Box<dyn Error + Send + Sync>>> OutboundError<E> {
    /// The error inside, in a box: for services around this one whose inner errors must convert into one, where `E` is such a box itself.
    ///
    /// ```
    /// use tollgate::AcquireError;
    /// use tollgate::http::OutboundError;
    ///
    /// let boxed = OutboundError::Service::<Box<dyn std::error::Error + Send + Sync>>("reset".into()).into_boxed();
    /// assert_eq!(boxed.to_string(), "reset");
    /// ```
    pub fn into_boxed(self) -> Box<dyn Error + Send + Sync> {
        match self {
            Self::Acquire(error) => error.into(),
            Self::Service(error) => error.into(),
        }
    }
}
