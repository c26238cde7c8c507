//! The identity of a client: the key under which a [`LimitLayer`](super::LimitLayer) limits it.

mod client_address;
mod header;
mod kinds;
mod no_identity;

use http::Request;

pub use client_address::ClientAddress;
pub use header::HeaderKey;
pub use kinds::{Identifies, KeyedBy, KeyedByFuture, NoKey, OrShared};
pub use no_identity::{FoundKey, NoIdentity};

pub(super) use kinds::Identified;

/// Finds the client that sends a request.
///
/// | client | identity |
/// |---|---|
/// | the address of the client | a [`ClientIp`](super::ClientIp), or [`ClientIp::peer_from`](super::ClientIp::peer_from) |
/// | a header, a bearer token | a [`HeaderKey`] |
/// | anything else in the request: its route (axum's `MatchedPath` in the extensions), a value that a layer outside has put into its extensions | a closure `Fn(&Request<B>) -> Option<K>`, or `-> Result<K, NoIdentity>` |
/// | two of these together | a pair of them |
///
/// A closure names the type of its parameter, as in `|request: &Request<Body>| …`.
///
/// **The address of the peer** is known only to the server, which must put it into the extensions of each request. Axum does so
/// if it serves `router.into_make_service_with_connect_info::<SocketAddr>()`, and
/// [`ClientIp::peer_from`](super::ClientIp::peer_from) takes it from there. Where either is missing, every request is answered
/// with 403: its body says `the request has no address of a peer`, and the observers of the limiter learn what to do about it
/// ([`EventKind::Refused`](crate::EventKind::Refused), which a `TracingObserver` logs).
///
/// **A client must not be able to choose its key**: it would have a new budget with each request. Verify what a header says before it
/// becomes a key, or limit addresses as well.
///
/// ```
/// use std::net::SocketAddr;
/// use http::{Method, Request};
/// use tollgate::http::{ClientIp, Identity, NoClientIp};
///
/// let per_method = |request: &Request<()>| Some(request.method().clone());
/// let who = (ClientIp::peer(), per_method);
///
/// let mut request = Request::new(());
/// assert_eq!(who.identify(&request), Err(NoClientIp::NoPeer.into())); // the server has not put it into the extensions
/// request.extensions_mut().insert(SocketAddr::from(([192, 0, 2, 1], 4711)));
/// assert_eq!(who.identify(&request), Ok(([192, 0, 2, 1].into(), Method::GET)));
/// ```
pub trait Identity<B> {
    /// The key of the limits.
    type Key;

    /// The key of the client that sends the request.
    ///
    /// # Errors
    ///
    /// [`NoIdentity`], which says why the client is unknown.
    fn identify(&self, request: &Request<B>) -> Result<Self::Key, NoIdentity>;
}

impl<B, R: FoundKey, F: Fn(&Request<B>) -> R> Identity<B> for F {
    type Key = R::Key;

    fn identify(&self, request: &Request<B>) -> Result<R::Key, NoIdentity> {
        self(request).found()
    }
}

/// Both identities must find a key. If neither does, the error is that of the first.
impl<B, One: Identity<B>, Other: Identity<B>> Identity<B> for (One, Other) {
    type Key = (One::Key, Other::Key);

    fn identify(&self, request: &Request<B>) -> Result<Self::Key, NoIdentity> {
        Ok((self.0.identify(request)?, self.1.identify(request)?))
    }
}
