//! Why an identity found no key, and what a closure or a future returns for one.

use http::HeaderName;
use thiserror::Error;

use crate::http::{ForwardedHeader, NoClientIp};

/// Why the client that sends a request is unknown. [`Refusal::NoIdentity`](crate::http::Refusal::NoIdentity) carries it, and
/// [observers](crate::EventKind::Refused) get it in words.
///
/// It prints for operators of the server; [`detail`](Self::detail) is for clients.
///
/// ```
/// use http::{HeaderName, Request};
/// use tollgate::http::{HeaderKey, Identity, NoIdentity};
///
/// let key = HeaderKey::new(HeaderName::from_static("x-api-key"));
/// let unknown = key.identify(&Request::new(())).unwrap_err();
/// assert_eq!(unknown, NoIdentity::NoHeader(HeaderName::from_static("x-api-key")));
/// assert_eq!(unknown.detail(), "the request has no header x-api-key");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NoIdentity {
    /// There is no address that the client could not have forged.
    #[error(transparent)]
    ClientIp(#[from] NoClientIp),
    /// The request does not have this header.
    #[error("the request has no header {0}")]
    NoHeader(HeaderName),
    /// The value of this header is not a valid key: see [`HeaderKey`](crate::http::HeaderKey).
    #[error("the header {0} of the request has no usable value")]
    UnusableHeader(HeaderName),
    /// A closure or a future has returned `None`, which does not say why.
    #[error("the closure or the future of the layer has found no key")]
    Unknown,
}

impl NoIdentity {
    /// What the request lacks, in a plain sentence that its client may read: it says nothing of how the server is set up. It needs no
    /// escapes in JSON.
    ///
    /// ```
    /// use tollgate::http::{NoClientIp, NoIdentity};
    ///
    /// assert_eq!(NoIdentity::from(NoClientIp::NoPeer).detail(), "the request has no address of a peer");
    /// ```
    #[must_use]
    pub fn detail(&self) -> String {
        let of_header = |header: &ForwardedHeader, what: &str| {
            format!("the header {header} of the request {what}")
        };
        match self {
            Self::ClientIp(NoClientIp::NoPeer) => "the request has no address of a peer".to_owned(),
            Self::ClientIp(NoClientIp::NoHeader { header }) => {
                format!("the request has no header {header}")
            }
            Self::ClientIp(NoClientIp::Malformed { header, .. }) => {
                of_header(header, "has an element that is no address")
            }
            Self::ClientIp(NoClientIp::Hidden { header, .. }) => {
                of_header(header, "does not tell the address of the client")
            }
            Self::ClientIp(NoClientIp::TooFewHops { header, .. }) => {
                of_header(header, "has too few elements")
            }
            Self::NoHeader(_) | Self::UnusableHeader(_) => self.to_string(),
            Self::Unknown => "the client that sends the request is unknown".to_owned(),
        }
    }
}

/// What a closure or a future returns for a request: `Option<K>`, or `Result<K, NoIdentity>`, which says why the key is unknown.
/// See [`LimitLayer::by_future`](crate::http::LimitLayer::by_future) for an example.
pub trait FoundKey {
    /// The key of the limits.
    type Key;

    /// The key.
    ///
    /// # Errors
    ///
    /// Why the key is unknown. For `None` it is [`NoIdentity::Unknown`].
    fn found(self) -> Result<Self::Key, NoIdentity>;
}

impl<K> FoundKey for Option<K> {
    type Key = K;

    fn found(self) -> Result<K, NoIdentity> {
        self.ok_or(NoIdentity::Unknown)
    }
}

impl<K> FoundKey for Result<K, NoIdentity> {
    type Key = K;

    fn found(self) -> Self {
        self
    }
}
