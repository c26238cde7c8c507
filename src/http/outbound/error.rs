//! The error of a request through an `OutboundLayer`.

use std::error::Error;

use thiserror::Error;

use crate::error::AcquireError;

/// Why a request got no response. Its text is that of the inner error.
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
    /// The inner error in a box. Use it if `E` is such a box itself, and a service around this one requires an error that
    /// converts into a box.
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
