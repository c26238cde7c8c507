//! Who sends a request: the key under which a [`LimitLayer`](super::LimitLayer) limits it.

mod client_address;
mod header;
mod kinds;

use http::Request;

pub use client_address::ClientAddress;
pub use header::HeaderKey;
pub use kinds::{By, ByFuture, Everyone, Identifies, OrShared};

pub(super) use kinds::{FindsKey, Identified};

/// Finds out who sends a request.
///
/// | who | identity |
/// |---|---|
/// | the address of the client | a [`ClientIp`](super::ClientIp), or [`ClientIp::peer_from`](super::ClientIp::peer_from) |
/// | a header, a bearer token | a [`HeaderKey`] |
/// | anything else in the request: its route (axum's `MatchedPath` in the extensions), a value that a layer outside has put into its extensions | a closure `Fn(&Request<B>) -> Option<K>` |
/// | two of these together | a pair of them |
///
/// A closure names the type of its parameter, as in `|request: &Request<Body>| …`.
///
/// **A client must not be able to choose its key**: it would have a new budget with each request. Verify what a header says before it
/// becomes a key, or limit addresses as well.
///
/// ```
/// use std::net::SocketAddr;
/// use http::{Method, Request};
/// use tollgate::http::{ClientIp, Identity};
///
/// let per_method = |request: &Request<()>| Some(request.method().clone());
/// let who = (ClientIp::peer(), per_method);
///
/// let mut request = Request::new(());
/// assert_eq!(who.identify(&request), None); // the server has not put the address of its peer into the extensions
/// request.extensions_mut().insert(SocketAddr::from(([192, 0, 2, 1], 4711)));
/// assert_eq!(who.identify(&request), Some(([192, 0, 2, 1].into(), Method::GET)));
/// ```
pub trait Identity<B> {
    /// The key of the limits.
    type Key;

    /// Who sends the request; `None` if that is unknown.
    fn identify(&self, request: &Request<B>) -> Option<Self::Key>;
}

impl<B, K, F: Fn(&Request<B>) -> Option<K>> Identity<B> for F {
    type Key = K;

    fn identify(&self, request: &Request<B>) -> Option<K> {
        self(request)
    }
}

/// Both must be known.
impl<B, One: Identity<B>, Other: Identity<B>> Identity<B> for (One, Other) {
    type Key = (One::Key, Other::Key);

    fn identify(&self, request: &Request<B>) -> Option<Self::Key> {
        Some((self.0.identify(request)?, self.1.identify(request)?))
    }
}
