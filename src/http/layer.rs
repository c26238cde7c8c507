//! A layer of tower that limits what comes through it.

mod future;
mod options;
mod service;
mod settings;
mod shared;

use std::future::Future;
use std::panic::Location;
use std::sync::Arc;

use http::Request;
use tower_layer::Layer;

use options::Options;
use shared::Shared;

pub use future::LimitFuture;
pub use service::LimitService;

use super::admission::{Admits, Chosen};
use super::fields::KnownPolicies;
use super::identity::{By, ByFuture, Everyone, FoundKey, OrShared};

/// A layer of tower that limits the requests to a service: to a router of axum, a route, or a group of routes. It asks a
/// [`Limiter`](crate::Limiter), a [`KeyedLimiter`](crate::KeyedLimiter), or a [`SharedLimiter`](crate::SharedLimiter) for each request.
///
/// All services that a layer or its clones are put around share the limiter. Several layers may be stacked; give each a
/// [name](Self::name). A request that an inner one refuses has counted in the outer ones.
///
/// # Examples
///
/// ```
/// use std::net::SocketAddr;
/// use axum::Router;
/// use axum::extract::ConnectInfo;
/// use tollgate::http::{ClientIp, LimitLayer};
/// use tollgate::{KeyedLimiter, Limiter};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client_ip = ClientIp::behind_networks(["10.0.0.0/8"])?
///     .peer_from(|extensions| extensions.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0));
/// let per_client = LimitLayer::new(KeyedLimiter::new("100/min")?).by(client_ip).name("client")?;
/// let everyone = LimitLayer::new(Limiter::new("200 concurrent")?).name("server")?;
///
/// let app: Router = Router::new()/* .route(…) */.layer(everyone).layer(per_client);
/// // axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>())
/// # Ok(())
/// # }
/// ```
///
/// # What a client is told
///
/// Every answer, of a refusal or of the service, has the [fields](super::RateLimitFields) of the limits. They come from the decision that
/// granted or refused, and are never a second look. Where no limit decided there are none: when the key is unknown or there is no room
/// for it, the limiter is closed, or a store was not asked (also where the process then decides alone). In styles with one limit, a
/// concurrency alone has none.
///
/// A [`Refusal`](super::Refusal) is answered with 429 where a quota is used up (the places of a key are a quota, too), and with 503 where
/// there is no capacity, whoever asks; the body is `application/problem+json`, unless [`on_refusal`](Self::on_refusal) makes another.
///
/// A refused call of gRPC, a POST with the content type `application/grpc` or `application/grpc+…`, is answered in gRPC: with status 200 and
/// no message, and in the head with
///
/// - `grpc-status`, by [this table](super::Refusal::grpc_code): 8 (`RESOURCE_EXHAUSTED`) instead of 429, 14 (`UNAVAILABLE`) instead of 503;
/// - `grpc-message`, which names the problem, and the limit that denied: `Quota Exceeded: "api-2"`;
/// - as metadata the same fields as in plain HTTP, with `retry-after`, and also `grpc-retry-pushback-ms`: the wait in milliseconds, rounded
///   up, after which a client of gRPC with a retry policy for that status retries by itself
///   ([gRFC A6](https://github.com/grpc/proposal/blob/master/A6-client-retries.md#pushback)). Both are left out where the wait is unknown.
///
/// Calls of all four kinds, unary or streaming, are answered so. gRPC-Web (`application/grpc-web`) is answered in plain HTTP: it has a
/// framing of its own, and its clients derive a status of gRPC from that of HTTP. A layer inside one that translates gRPC-Web to gRPC sees,
/// and answers, calls of gRPC.
///
/// In a browser, a page of another origin reads these fields only if a CORS layer outside this one exposes them: `RateLimit`,
/// `RateLimit-Policy`, `Retry-After`. It also answers preflight requests, which are then not counted.
///
/// # How long a permit is held
///
/// Until the body of the answer has ended, or is dropped: a client that goes away, a handler that panics and a service that fails all
/// release it. (A page that was left has not gone away while the browser keeps it for the way back, in Chromium for up to a minute.)
/// [`until_head`](Self::until_head) releases it earlier. The body has ended when the server has taken its last frame, which it may be
/// sending still. A `String` is a single frame, so its permit is released before it has been sent: send large answers as streams. A
/// client that reads a stream slowly holds the permit for as long as the server lets it. An upgraded connection (a WebSocket) does not,
/// because its answer has no body: let its handler acquire one. A permit whose [TTL](crate::MaxConcurrency::ttl) passes ends no request:
/// another is let in beside it.
///
/// # A concurrency that adapts
///
/// The layer [reports](crate::Permit::report) how each call went, and how long it took until the end of the body. See
/// [`classify`](Self::classify). An answer that the client did not read to its end is not reported, unless it is an overload. A stream
/// that clients read slowly looks like a slow service: release its permit [at the head](Self::until_head). A timeout in a
/// layer inside this one is an overload; one outside drops the call, and nothing is reported.
///
/// # A store that is down
///
/// What becomes of a request then is the rule of the [`SharedLimiter`](crate::SharedLimiter#when-the-store-is-down), whose events say so.
///
/// # What operators see
///
/// The observers of the limiter are told what it denies, and also what it does not decide and the layer refuses: with 403, 413 or 500,
/// and with 503 where the limiter is closed or its store fails. That is [`EventKind::Refused`](crate::EventKind::Refused), with the reason.
///
/// # A key
///
/// A [`KeyedLimiter`](crate::KeyedLimiter) needs an [identity](Self::by); a layer without one cannot be put around a service:
///
/// ```compile_fail,E0277
/// use tollgate::KeyedLimiter;
/// use tollgate::http::LimitLayer;
///
/// let layer = LimitLayer::new(KeyedLimiter::<String>::new("100/min")?);
/// let app: axum::Router = axum::Router::new().layer(layer);
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[derive(Debug)]
#[must_use = "a layer limits nothing until it is put around a service"]
pub struct LimitLayer<L, I = Everyone> {
    limiter: L,
    identity: Arc<I>,
    options: Options,
}

impl<L: Clone> LimitLayer<L> {
    /// Refuses what the limiter does not admit at once. The requests of all clients are limited together, unless they have an
    /// [identity](Self::by). See the [type's example](Self#examples).
    ///
    /// The bound of the queue, where requests [wait](Self::wait), is that of the limiter's builder.
    #[track_caller]
    pub fn new(limiter: L) -> Self {
        Self { limiter, identity: Arc::new(Everyone), options: Options::new(Location::caller()) }
    }
}

impl<F> LimitLayer<Chosen<F>> {
    /// Asks the limiter that the function chooses for a key: a [`SharedLimiter`](crate::SharedLimiter) or a [`Limiter`](crate::Limiter).
    /// So keys of a shared limiter have tiers, each with the policy of its plan. (A [`KeyedLimiter`](crate::KeyedLimiter) has
    /// [tiers](crate::KeyedLimiterBuilder::tiers) itself.)
    ///
    /// The function is called for each request. It returns clones or [keys](crate::SharedLimiter::key) of limiters that it has: a new
    /// one would admit whatever comes.
    ///
    /// ```
    /// use axum::body::Body;
    /// use http::Request;
    /// use tollgate::SharedLimiter;
    /// use tollgate::http::LimitLayer;
    /// use tollgate::store::MemoryStore;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// #[derive(Clone)]
    /// struct User { id: u64, pays: bool } // a layer outside this one has put it into the request
    ///
    /// let store = MemoryStore::new(); // or one that processes share
    /// let free = SharedLimiter::new(store.clone(), "free", "100/min")?;
    /// let paid = SharedLimiter::new(store, "paid", "3000/min")?;
    /// let choose = move |user: &User| if user.pays { &paid } else { &free }.key(user.id.to_string());
    /// let layer = LimitLayer::choose(choose).by(|request: &Request<Body>| request.extensions().get::<User>().cloned());
    /// let app: axum::Router = axum::Router::new().layer(layer);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn choose<K, M: Admits<Everyone>>(limiter_of: F) -> Self
    where
        F: Fn(&K) -> M,
    {
        Self::new(Chosen(Arc::new(limiter_of)))
    }
}

impl<L> LimitLayer<L> {
    /// Limits each key of an [`Identity`](super::Identity). A request whose key is unknown is refused with 403, unless such requests
    /// [share a key](LimitLayer::or_shared). The body of the 403 says [what is missing](super::NoIdentity::detail): if that is the address
    /// of a peer in every request, the server does not [hand it on](super::Identity).
    ///
    /// Where the key has the plan of the client, the limiter has [tiers](crate::KeyedLimiterBuilder::tiers):
    ///
    /// ```
    /// use axum::body::Body;
    /// use http::Request;
    /// use tollgate::http::LimitLayer;
    /// use tollgate::{KeyedLimiter, Policy};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// #[derive(Clone, PartialEq, Eq, Hash)]
    /// struct User { id: u64, pays: bool } // a layer outside this one has put it into the request
    ///
    /// let (free, paid): (Policy, Policy) = ("100/min".parse()?, "3000/min".parse()?);
    /// let per_user = KeyedLimiter::builder(free.clone())
    ///     .tiers(move |user: &User| if user.pays { paid.clone() } else { free.clone() })
    ///     .build()?;
    /// let layer = LimitLayer::new(per_user).by(|request: &Request<Body>| request.extensions().get::<User>().cloned());
    /// let app: axum::Router = axum::Router::new().layer(layer);
    /// # Ok(())
    /// # }
    /// ```
    pub fn by<I>(self, identity: I) -> LimitLayer<L, By<I>> {
        self.identified(By(identity))
    }

    /// Limits each key that a future finds, in a database for instance. The future borrows nothing; while it runs, nothing is taken
    /// from the limiter. As [`by`](Self::by) otherwise.
    ///
    /// Nothing bounds the time of the lookup, which comes before all [waiting](Self::wait): if it hangs, so does the request. Bound it in
    /// the closure. A request whose lookup takes too long is then one whose key is unknown.
    ///
    /// ```
    /// use std::time::Duration;
    /// use axum::body::Body;
    /// use http::Request;
    /// use tokio::time::timeout;
    /// use tollgate::KeyedLimiter;
    /// use tollgate::http::{HeaderKey, Identity, LimitLayer, NoIdentity};
    ///
    /// async fn account_of(token: String) -> Option<u64> {
    ///     // ask the database
    /// #   token.parse().ok()
    /// }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let layer = LimitLayer::new(KeyedLimiter::<u64>::new("100/min")?).by_future(|request: &Request<Body>| {
    ///     let token = HeaderKey::bearer().identify(request);
    ///     async {
    ///         let account = timeout(Duration::from_millis(200), account_of(token?)).await;
    ///         account.ok().flatten().ok_or(NoIdentity::Unknown)
    ///     }
    /// });
    /// let app: axum::Router = axum::Router::new().layer(layer);
    /// # Ok(())
    /// # }
    /// ```
    pub fn by_future<B, G, F>(self, key_of: F) -> LimitLayer<L, ByFuture<F>>
    where
        F: Fn(&Request<B>) -> G,
        G: Future<Output: FoundKey> + 'static,
    {
        self.identified(ByFuture(key_of))
    }
}

impl<L, I> LimitLayer<L, I> {
    fn identified<J>(self, identity: J) -> LimitLayer<L, J> {
        LimitLayer { limiter: self.limiter, identity: Arc::new(identity), options: self.options }
    }

    /// Requests whose key is unknown share this one, and so one budget. By default they are refused.
    ///
    /// ```
    /// use std::net::{IpAddr, Ipv4Addr};
    /// use tollgate::KeyedLimiter;
    /// use tollgate::http::{ClientIp, LimitLayer};
    ///
    /// let unknown = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    /// let layer = LimitLayer::new(KeyedLimiter::<IpAddr>::new("100/min")?).by(ClientIp::peer()).or_shared(unknown);
    /// let app: axum::Router = axum::Router::new().layer(layer);
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn or_shared<K>(self, key: K) -> LimitLayer<L, OrShared<Arc<I>, K>> {
        LimitLayer { limiter: self.limiter, identity: Arc::new(OrShared { inner: self.identity, key }), options: self.options }
    }
}

impl<L: Clone, I> Clone for LimitLayer<L, I> {
    fn clone(&self) -> Self {
        Self { limiter: self.limiter.clone(), identity: Arc::clone(&self.identity), options: self.options.clone() }
    }
}

impl<S, L: Clone, I> Layer<S> for LimitLayer<L, I> {
    type Service = LimitService<S, L, I>;

    fn layer(&self, inner: S) -> LimitService<S, L, I> {
        let Self { limiter, identity, options } = self.clone();
        LimitService::new(inner, Arc::new(Shared { limiter, identity, options, known_policies: KnownPolicies::default() }))
    }
}
