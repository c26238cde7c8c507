//! The identity of a client, the key under which a [`LimitLayer`](super::LimitLayer) limits it, and how a layer asks for that key:
//! not at all, at once, or by a future.

use std::future::Pending;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::header::{AUTHORIZATION, HeaderName, HeaderValue};
use http::{Extensions, Request};
use thiserror::Error;

use super::client_ip::{ClientIp, ForwardedHeader, NoClientIp};

/// Finds the client that sends a request.
///
/// | client | identity |
/// |---|---|
/// | the address of the client | a [`ClientIp`], or [`ClientIp::peer_from`] |
/// | a header, a bearer token | a [`HeaderKey`] |
/// | anything else in the request: its route (axum's `MatchedPath` in the extensions), a value that a layer outside has put into its extensions | a closure `Fn(&Request<B>) -> Option<K>`, or `-> Result<K, NoIdentity>` |
/// | two of these together | a pair of them |
///
/// A closure names the type of its parameter, as in `|request: &Request<Body>| …`.
///
/// **The address of the peer** is known only to the server, which must put it into the extensions of each request. Axum does so
/// if it serves `router.into_make_service_with_connect_info::<SocketAddr>()`, and
/// [`ClientIp::peer_from`](super::ClientIp::peer_from) reads it from there. If either is missing, every request is answered with
/// 403, and the body states `the request has no address of a peer`. The observers of the limiter get
/// [`EventKind::Refused`](crate::EventKind::Refused), which names the remedy and which a `TracingObserver` logs.
///
/// **A client must not be able to choose its key**: it could take a new budget with each request. Verify the value of a header
/// before you use it as a key, or limit addresses as well.
///
/// ```
/// use std::net::SocketAddr;
/// use http::{Method, Request};
/// use tollgate::layers::{ClientIp, Identity, NoClientIp};
///
/// let per_method = |request: &Request<()>| Some(request.method().clone());
/// let who = (ClientIp::peer(), per_method);
///
/// let mut request = Request::new(());
/// assert_eq!(who.identify(&request), Err(NoClientIp::NoPeer.into())); // the server has not put it into the extensions
/// request.extensions_mut().insert(SocketAddr::from(([192, 0, 2, 1], 4711)));
/// assert_eq!(who.identify(&request), Ok(([192, 0, 2, 1].into(), Method::GET)));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not identify the sender of a request",
    note = "take a `ClientIp`, a `HeaderKey`, a tuple of them, or a closure such as `|request: &Request<Body>| Some(key)`; a future needs `by_async`"
)]
pub trait Identity<B> {
    /// The key of the limits.
    type Key;

    /// The key of the client that sends the request.
    ///
    /// # Errors
    ///
    /// [`NoIdentity`], the reason why the client is unknown.
    fn identify(&self, request: &Request<B>) -> Result<Self::Key, NoIdentity>;
}

impl<B, R: FoundKey, F: Fn(&Request<B>) -> R> Identity<B> for F {
    type Key = R::Key;

    fn identify(&self, request: &Request<B>) -> Result<R::Key, NoIdentity> {
        self(request).found()
    }
}

/// Both identities must find a key. If neither does, the error of the first is returned.
impl<B, One: Identity<B>, Other: Identity<B>> Identity<B> for (One, Other) {
    type Key = (One::Key, Other::Key);

    fn identify(&self, request: &Request<B>) -> Result<Self::Key, NoIdentity> {
        Ok((self.0.identify(request)?, self.1.identify(request)?))
    }
}

/// Why the client that sends a request is unknown. [`Refusal::NoIdentity`](crate::layers::Refusal::NoIdentity) carries it, and
/// [observers](crate::EventKind::Refused) get its text.
///
/// The `Display` text is for operators of the server; the text of [`detail`](Self::detail) is for clients.
///
/// ```
/// use http::{HeaderName, Request};
/// use tollgate::layers::{HeaderKey, Identity, NoIdentity};
///
/// let key = HeaderKey::new(HeaderName::from_static("x-api-key"));
/// let unknown = key.identify(&Request::new(())).unwrap_err();
/// assert_eq!(unknown, NoIdentity::NoHeader(HeaderName::from_static("x-api-key")));
/// assert_eq!(unknown.detail(), "the request has no header x-api-key");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NoIdentity {
    /// The request has no trustworthy address of the client.
    #[error(transparent)]
    ClientIp(#[from] NoClientIp),
    /// The request does not have this header.
    #[error("the request has no header {0}")]
    NoHeader(HeaderName),
    /// The value of this header is not a valid key: see [`HeaderKey`].
    #[error("the header {0} of the request has no usable value")]
    UnusableHeader(HeaderName),
    /// A closure or a future has returned `None`, which gives no reason.
    #[error("the closure or the future of the layer found no key")]
    Unknown,
}

impl NoIdentity {
    /// What the request lacks, as a plain sentence for its client. The text reveals nothing about the setup of the server, and
    /// needs no escapes in JSON.
    ///
    /// ```
    /// use tollgate::layers::{NoClientIp, NoIdentity};
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

/// What a closure or a future returns for a request: `Option<K>`, or `Result<K, NoIdentity>`, which gives the reason if the key
/// is unknown. See [`LimitLayer::by_async`](crate::layers::LimitLayer::by_async) for an example.
#[diagnostic::on_unimplemented(
    message = "a closure that identifies a client returns an `Option` or a `Result`, not `{Self}`",
    note = "give a closure that returns a future to `by_async`"
)]
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

/// The address of the client, with the peer of the connection from an extension of the request. See [`ClientIp::peer_from`].
#[derive(Clone)]
pub struct ClientAddress<F> {
    client_ip: ClientIp,
    peer_of: F,
}

impl ClientIp {
    /// An [`Identity`] that reads the peer of the connection from an extension of the request, for instance axum's. A
    /// [`ClientIp`] by itself reads the extension [`SocketAddr`]. If the server does not set the extension,
    /// [no client is known](Identity).
    ///
    /// ```
    /// use std::net::SocketAddr;
    /// use axum::extract::ConnectInfo;
    /// use tollgate::layers::{ClientIp, Identity};
    ///
    /// let client_ip = ClientIp::behind_networks(["10.0.0.0/8"])?
    ///     .peer_from(|extensions| extensions.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0));
    ///
    /// let mut request = http::Request::new(());
    /// request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([192, 0, 2, 1], 4711))));
    /// assert_eq!(client_ip.identify(&request), Ok([192, 0, 2, 1].into()));
    /// # Ok::<(), tollgate::layers::ClientIpError>(())
    /// ```
    pub fn peer_from<F: Fn(&Extensions) -> Option<SocketAddr>>(
        self,
        peer_of: F,
    ) -> ClientAddress<F> {
        ClientAddress {
            client_ip: self,
            peer_of,
        }
    }

    #[inline(always)]
    fn of<B>(&self, peer: Option<SocketAddr>, request: &Request<B>) -> Result<IpAddr, NoIdentity> {
        Ok(self.find(peer.map(|peer| peer.ip()), request.headers())?)
    }
}

/// The peer is the extension [`SocketAddr`] of the request. Without a trustworthy address, the client is unknown.
impl<B> Identity<B> for ClientIp {
    type Key = IpAddr;

    #[inline(always)]
    fn identify(&self, request: &Request<B>) -> Result<IpAddr, NoIdentity> {
        self.of(request.extensions().get().copied(), request)
    }
}

impl<B, F: Fn(&Extensions) -> Option<SocketAddr>> Identity<B> for ClientAddress<F> {
    type Key = IpAddr;

    #[inline(always)]
    fn identify(&self, request: &Request<B>) -> Result<IpAddr, NoIdentity> {
        self.client_ip
            .of((self.peer_of)(request.extensions()), request)
    }
}

debug_fields! { [F] ClientAddress<F>, |address| client_ip = address.client_ip }

/// The value of a header, or a bearer token, as a key. The key is unknown if the header is missing or comes in several lines, or
/// if the value is empty, longer than [`max_len`](Self::max_len), or not printable ASCII.
///
/// The value is not verified: see [`Identity`]. A store that processes share gets the value as it is, so hash a secret in a
/// closure instead.
///
/// ```
/// use http::{HeaderName, Request};
/// use tollgate::layers::{HeaderKey, Identity};
///
/// let key = HeaderKey::new(HeaderName::from_static("x-api-key"));
/// let request = Request::builder().header("X-Api-Key", "k-17").body(())?;
/// assert_eq!(key.identify(&request)?, "k-17");
///
/// let request = Request::builder().header("Authorization", "Bearer t-18").body(())?;
/// assert_eq!(HeaderKey::bearer().identify(&request)?, "t-18");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderKey {
    name: HeaderName,
    is_bearer: bool,
    max_len: usize,
}

impl HeaderKey {
    /// The value of this header. See the [type's example](Self).
    #[must_use]
    pub const fn new(name: HeaderName) -> Self {
        Self {
            name,
            is_bearer: false,
            max_len: 256,
        }
    }

    /// The token of `Authorization: Bearer …` (RFC 6750, section 2.1). If clients renew their tokens, use a key that stays the
    /// same: a client would have a new budget with each token.
    #[must_use]
    pub const fn bearer() -> Self {
        Self {
            name: AUTHORIZATION,
            is_bearer: true,
            max_len: 256,
        }
    }

    /// Sets the length of the longest key in bytes. Defaults to 256; with 0 no key is known. This bounds the memory that a
    /// limiter takes for its keys. Signed tokens (JWT) are often longer: verify the token in a closure and use its subject as the
    /// key.
    ///
    /// ```
    /// use http::Request;
    /// use tollgate::layers::{HeaderKey, Identity};
    ///
    /// let request = Request::builder().header("Authorization", "Bearer 12345").body(())?;
    /// assert!(HeaderKey::bearer().max_len(4).identify(&request).is_err());
    /// # Ok::<(), http::Error>(())
    /// ```
    #[must_use]
    pub fn max_len(self, bytes: usize) -> Self {
        Self {
            max_len: bytes,
            ..self
        }
    }

    fn value_of<'a>(&self, line: &'a HeaderValue) -> Option<&'a str> {
        let line = line.to_str().ok()?.trim_ascii();
        let value = if self.is_bearer {
            let (scheme, token) = line.split_once(' ')?;
            Some(token.trim_ascii_start()).filter(|_| scheme.eq_ignore_ascii_case("bearer"))?
        } else {
            line
        };
        // `to_str` lets tabs pass.
        let is_usable = (1..=self.max_len).contains(&value.len()) && !value.contains('\t');
        is_usable.then_some(value)
    }
}

impl<B> Identity<B> for HeaderKey {
    type Key = String;

    fn identify(&self, request: &Request<B>) -> Result<String, NoIdentity> {
        let mut lines = request.headers().get_all(&self.name).iter();
        let line = lines
            .next()
            .ok_or_else(|| NoIdentity::NoHeader(self.name.clone()))?;
        let value = if lines.next().is_none() {
            self.value_of(line)
        } else {
            None
        };
        value
            .map(str::to_owned)
            .ok_or_else(|| NoIdentity::UnusableHeader(self.name.clone()))
    }
}

/// No identity: one limit for all requests together. Limiters without keys take it in place of a key.
/// [`LimitLayer::new`](crate::layers::LimitLayer::new) uses it.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct NoKey;

/// Limits each key of an [`Identity`]. Made by [`LimitLayer::by`](crate::layers::LimitLayer::by).
#[derive(Clone)]
pub struct KeyedBy<I>(pub(super) I);

/// Limits each key that a future finds. Made by [`LimitLayer::by_async`](crate::layers::LimitLayer::by_async).
#[derive(Clone)]
pub struct KeyedByAsync<F>(pub(super) F);

/// Gives one key to all requests whose key is unknown. Made by [`LimitLayer::or_shared`](crate::layers::LimitLayer::or_shared).
#[derive(Clone)]
pub struct OrShared<I, K> {
    pub(super) inner: I,
    pub(super) key: K,
}

/// A key, or the future that finds it.
#[derive(Debug)]
pub enum Identified<K, F> {
    Now(Result<K, NoIdentity>),
    Later(F),
}

/// How a [`LimitLayer`](crate::layers::LimitLayer) finds the key of a request. Implement [`Identity`] instead: only [`NoKey`],
/// [`KeyedBy`], [`KeyedByAsync`] and [`OrShared`] implement this trait.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not find the key of a request",
    note = "give `by` a `ClientIp`, a `HeaderKey`, a tuple of them, or a closure such as `|request: &Request<Body>| Some(key)`; a future needs `by_async`"
)]
pub trait Identifies<B>: FindsKey<B, SealedKey = Self::Key> {
    /// The key of the limits.
    type Key;
}

#[diagnostic::do_not_recommend]
impl<B, I: FindsKey<B>> Identifies<B> for I {
    type Key = I::SealedKey;
}

/// Seals [`Identifies`]: the module of this trait is private.
pub trait FindsKey<B> {
    /// Whether there are several keys.
    const HAS_KEYS: bool = true;

    type SealedKey;
    type Future: Future<Output: FoundKey<Key = Self::SealedKey>>;

    fn key_of(&self, request: &Request<B>) -> Identified<Self::SealedKey, Self::Future>;

    /// The key that all requests with an unknown key share.
    fn shared_key(&self) -> Option<Self::SealedKey> {
        None
    }
}

impl<B> FindsKey<B> for NoKey {
    const HAS_KEYS: bool = false;

    type SealedKey = Self;
    type Future = Pending<Option<Self>>;

    fn key_of(&self, _: &Request<B>) -> Identified<Self, Self::Future> {
        Identified::Now(Ok(Self))
    }
}

impl<B, I: Identity<B>> FindsKey<B> for KeyedBy<I> {
    type SealedKey = I::Key;
    type Future = Pending<Option<I::Key>>;

    #[inline(always)]
    fn key_of(&self, request: &Request<B>) -> Identified<I::Key, Self::Future> {
        Identified::Now(self.0.identify(request))
    }
}

impl<B, R: FoundKey, G: Future<Output = R>, F: Fn(&Request<B>) -> G> FindsKey<B>
    for KeyedByAsync<F>
{
    type SealedKey = R::Key;
    type Future = G;

    fn key_of(&self, request: &Request<B>) -> Identified<R::Key, G> {
        Identified::Later((self.0)(request))
    }
}

impl<B, K: Clone, I: FindsKey<B, SealedKey = K>> FindsKey<B> for OrShared<Arc<I>, K> {
    type SealedKey = K;
    type Future = I::Future;

    fn key_of(&self, request: &Request<B>) -> Identified<K, I::Future> {
        self.inner.key_of(request)
    }

    fn shared_key(&self) -> Option<K> {
        Some(self.key.clone())
    }
}

debug_fields! { [I] KeyedBy<I> }

debug_fields! { [F] KeyedByAsync<F> }

debug_fields! { [I: std::fmt::Debug, K] OrShared<I, K>, |shared| inner = shared.inner }
