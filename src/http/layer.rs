//! A tower layer that limits the requests to a service, its service, and the future of a request through it.

use std::mem;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{Method, Request, Response, StatusCode};
use pin_project::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::admission::{Admission, Admits, Answer, AskTerms, ChosenLimiter};
use super::answer::Refusal;
use super::body::{HeldPermit, LimitBody, PermitBody, outcome_of};
use super::fields::{
    FieldValues, KnownPolicies, PolicyNameError, RateLimitFields, RateLimitStyle,
    set_retry_pushback,
};
use super::grpc;
use super::identity::{
    FoundKey, Identified, Identifies, KeyedBy, KeyedByFuture, NoIdentity, NoKey, OrShared,
};
use crate::acquire::random_up_to;
use crate::event::EventKind;
use crate::permit::Permit;
use crate::snapshot::LimitStatus;
use crate::strategy::{MAX_SPAN_NANOS, Outcome};

/// A tower layer that limits the requests to a service: an axum router, a route, or a group of routes. For each request, the
/// layer asks a [`Limiter`](crate::Limiter), a [`KeyedLimiter`](crate::KeyedLimiter), or a
/// [`SharedLimiter`](crate::SharedLimiter).
///
/// All services that a layer or its clones wrap share the limiter. Layers can be stacked; give each a [name](Self::name). The
/// outer layers count a request even if an inner layer refuses it.
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
/// # What a client sees
///
/// Every response, of the service or to a refused request, has the [fields](super::RateLimitFields) of the limits. The fields
/// come from the decision that granted or refused the request; the limits are not read again. There are no fields if no limit
/// decided: the key is unknown, the limiter has no room for the key, the limiter is closed, or the store was not asked (also in a
/// local fallback). In styles that show one limit, a policy that limits only concurrency has no fields.
///
/// A [`Refusal`] is answered with 429 if a quota is used up (the places of a key are a quota, too), and with 503 if there is no
/// capacity for any client. The body is `application/problem+json`, unless [`on_refusal`](Self::on_refusal) makes another.
///
/// A refused gRPC call, a POST with the content type `application/grpc` or `application/grpc+…`, gets a gRPC response: status
/// 200, no message, and in the head
///
/// - `grpc-status`, by [this table](super::Refusal::grpc_code): 8 (`RESOURCE_EXHAUSTED`) instead of 429, 14 (`UNAVAILABLE`)
///   instead of 503;
/// - `grpc-message`, which names the problem and the limit that denied: `Quota Exceeded: "api-2"`;
/// - the fields of plain HTTP as metadata, with `retry-after`, and also `grpc-retry-pushback-ms`, the wait in milliseconds,
///   rounded up: a gRPC client with a retry policy for that status retries after it
///   ([gRFC A6](https://github.com/grpc/proposal/blob/master/A6-client-retries.md#pushback)). Both are left out if the wait is
///   unknown.
///
/// This holds for unary and streaming calls. gRPC-Web (`application/grpc-web`) is answered in plain HTTP: it has its own framing,
/// and its clients derive the gRPC status from the HTTP status. Inside a layer that translates gRPC-Web to gRPC, this layer sees
/// and answers gRPC calls.
///
/// In a browser, a page of another origin can read these fields only if a CORS layer outside this one exposes them: `RateLimit`,
/// `RateLimit-Policy`, `Retry-After`. The CORS layer also answers preflight requests, so that they are not counted.
///
/// # How long a permit is held
///
/// A permit is held until the body of the response has ended or is dropped. It is also released if the client disconnects, the
/// handler panics, or the service fails. (A browser may keep a page that the user has left, and its connections, for the back
/// button: Chromium does so for up to a minute.) [`until_head`](Self::until_head) releases the permit earlier. The body has ended
/// when the server has taken its last frame, which may not be sent yet. A `String` is a single frame, so its permit is released
/// before the text is sent: send large responses as streams. A client that reads a stream slowly holds the permit for as long as
/// the server lets it. An upgraded connection (a WebSocket) holds no permit, because its response has no body: let its handler
/// acquire one. When the [TTL](crate::MaxConcurrency::ttl) of a permit passes, its request goes on, and another request is
/// admitted beside it.
///
/// # A concurrency that adapts
///
/// The layer [reports](crate::Permit::report) the outcome of each call, and its duration up to the end of the body. See
/// [`classify`](Self::classify). A response that the client did not read to its end is not reported, unless it is an overload. A
/// stream that clients read slowly looks like a slow service: release its permit [at the head](Self::until_head). A timeout in a
/// layer inside this one is an overload; a timeout outside drops the call, and nothing is reported.
///
/// # A store that is down
///
/// Requests follow the rule of the [`SharedLimiter`](crate::SharedLimiter#when-the-store-is-down), whose events report the
/// outage.
///
/// # What operators see
///
/// The observers of the limiter get its denials. For a request that the layer refuses without a decision of the limiter (with
/// 403, 413 or 500, or with 503 because the limiter is closed or its store fails), they get
/// [`EventKind::Refused`] with the reason.
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
pub struct LimitLayer<L, I = NoKey> {
    limiter: L,
    identity: Arc<I>,
    options: LayerOptions,
    known_policies: KnownPolicies,
}

impl<L: Clone> LimitLayer<L> {
    /// A layer that refuses each request that the limiter does not admit at once. The requests of all clients are limited
    /// together, unless the layer has an [identity](Self::by). See the [type's example](Self#examples).
    ///
    /// If requests [wait](Self::wait), the builder of the limiter sets the bound of their queue.
    #[track_caller]
    #[expect(clippy::missing_panics_doc, reason = "the name is printable ASCII")]
    pub fn new(limiter: L) -> Self {
        let fields = RateLimitFields::new("default").expect("it is printable ASCII");
        let terms = AskTerms {
            cost: 1,
            wait: None,
            is_explained: true,
            caller: Location::caller(),
        };
        Self {
            limiter,
            identity: Arc::new(NoKey),
            options: LayerOptions {
                fields,
                terms,
                until_head: false,
                jitter: None,
                respond: None,
                classify: Arc::new(outcome_of),
                penalty: None,
            },
            known_policies: KnownPolicies::default(),
        }
    }
}

impl<F> LimitLayer<ChosenLimiter<F>> {
    /// Asks the limiter that the function chooses for a key: a [`SharedLimiter`](crate::SharedLimiter) or a
    /// [`Limiter`](crate::Limiter). This gives the keys of a shared limiter tiers, each with the policy of a plan. (A
    /// [`KeyedLimiter`](crate::KeyedLimiter) has [tiers](crate::KeyedLimiterBuilder::tiers) of its own.)
    ///
    /// The function is called for each request. It must return clones or [keys](crate::SharedLimiter::key) of existing limiters:
    /// a new limiter for each request would admit every request.
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
    pub fn choose<K, M: Admits<NoKey>>(limiter_of: F) -> Self
    where
        F: Fn(&K) -> M,
    {
        Self::new(ChosenLimiter(Arc::new(limiter_of)))
    }
}

impl<L> LimitLayer<L> {
    /// Limits each key of an [`Identity`](super::Identity). A request whose key is unknown is refused with 403, unless such
    /// requests [share a key](LimitLayer::or_shared). The body of the 403 states [what is missing](super::NoIdentity::detail). If
    /// every request lacks the address of its peer, the server does not [pass it on](super::Identity).
    ///
    /// If the key contains the plan of the client, the limiter can have [tiers](crate::KeyedLimiterBuilder::tiers):
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
    pub fn by<I>(self, identity: I) -> LimitLayer<L, KeyedBy<I>> {
        self.identified(KeyedBy(identity))
    }

    /// Limits each key that a future finds, for instance in a database. The future borrows nothing. While it runs, nothing is
    /// taken from the limiter. Otherwise, this is like [`by`](Self::by).
    ///
    /// The lookup comes before any [waiting](Self::wait), and its time is not bounded: if it hangs, so does the request. Bound
    /// the time in the closure, as here. If the lookup takes too long, the key of the request is unknown.
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
    pub fn by_future<B, G, F>(self, key_of: F) -> LimitLayer<L, KeyedByFuture<F>>
    where
        F: Fn(&Request<B>) -> G,
        G: Future<Output: FoundKey> + 'static,
    {
        self.identified(KeyedByFuture(key_of))
    }
}

impl<L, I> LimitLayer<L, I> {
    fn identified<J>(self, identity: J) -> LimitLayer<L, J> {
        LimitLayer {
            limiter: self.limiter,
            identity: Arc::new(identity),
            options: self.options,
            known_policies: self.known_policies,
        }
    }

    /// Gives this key to all requests whose key is unknown, so that they share one budget. By default they are refused.
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
        let inner = Arc::clone(&self.identity);
        self.identified(OrShared { inner, key })
    }

    /// Sets the name of the limits in the fields. Defaults to `default`. Stacked layers need different names and the same
    /// [style](Self::style). The tiers of a layer share its name: a client sees only the quota of its own tier.
    ///
    /// ```
    /// use tollgate::Limiter;
    /// use tollgate::http::LimitLayer;
    ///
    /// let layer = LimitLayer::new(Limiter::new("100/min")?).name("api")?; // RateLimit: "api";r=99;t=1
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`RateLimitFields::new`].
    pub fn name(mut self, name: &str) -> Result<Self, PolicyNameError> {
        self.options.fields = RateLimitFields::new(name)?.style(self.options.fields.style);
        Ok(self)
    }

    /// Sets the header fields in which clients see the limits. With [`RateLimitStyle::None`] there is only a `Retry-After`, and a
    /// decision is faster.
    ///
    /// ```
    /// use tollgate::Limiter;
    /// use tollgate::http::{LimitLayer, RateLimitStyle};
    ///
    /// let layer = LimitLayer::new(Limiter::new("100/min")?).style(RateLimitStyle::XSeconds); // X-RateLimit-Remaining: 99
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn style(mut self, style: RateLimitStyle) -> Self {
        self.options.fields = self.options.fields.style(style);
        self.options.terms.is_explained = style != RateLimitStyle::None;
        self
    }

    setters! {
        /// Sets the cost of each request: 1 to the smallest [capacity](crate::Limit::capacity) of the limits. Defaults to 1. With
        /// a cost of 0, every request is answered with 500; with a cost above the capacity, with 413.
        ///
        /// ```
        /// use tollgate::Limiter;
        /// use tollgate::http::LimitLayer;
        ///
        /// let limiter = Limiter::new("100/min")?;
        /// let cheap = LimitLayer::new(limiter.clone());
        /// let dear = LimitLayer::new(limiter).cost(10); // around other routes
        /// # Ok::<(), tollgate::ConfigError>(())
        /// ```
        pub cost(units: u64) => options.terms.cost = units;

        /// Lets a request wait for its permit, at most this long; a time above 100 years counts as 100 years. A request that is
        /// known to wait longer is refused at once. Bound the [queue](crate::LimiterBuilder::max_queue), too, which has no bound
        /// by default: a request that finds the queue full is answered with 503. A [`Penalty`](crate::Penalty) does not count
        /// attempts that may wait: put it into a layer of its own that does not wait.
        ///
        /// ```
        /// use std::time::Duration;
        /// use tollgate::http::LimitLayer;
        /// use tollgate::{Limiter, MaxConcurrency};
        ///
        /// let limiter = Limiter::builder(MaxConcurrency::new(8)).max_queue(100).build()?;
        /// let layer = LimitLayer::new(limiter).wait(Duration::from_millis(500));
        /// # Ok::<(), tollgate::ConfigError>(())
        /// ```
        pub wait(at_most: Duration) => options.terms.wait = Some(at_most.min(Duration::from_nanos(MAX_SPAN_NANOS)));

        /// Releases the permit when the head of the response is ready, and not at the end of its body. Use it for long downloads
        /// that take no capacity.
        ///
        /// ```
        /// use tollgate::http::LimitLayer;
        /// use tollgate::{Limiter, MaxConcurrency};
        ///
        /// let layer = LimitLayer::new(Limiter::new(MaxConcurrency::new(8))?).until_head();
        /// # Ok::<(), tollgate::ConfigError>(())
        /// ```
        pub until_head() => options.until_head = true;

        /// Adds a random time of 0 to `max` (any duration) to each `Retry-After`, so that refused clients do not all come back at
        /// once. Defaults to none.
        ///
        /// ```
        /// use std::time::Duration;
        /// use tollgate::Limiter;
        /// use tollgate::http::LimitLayer;
        ///
        /// let layer = LimitLayer::new(Limiter::new("100/min")?).retry_jitter(Duration::from_secs(5));
        /// # Ok::<(), tollgate::ConfigError>(())
        /// ```
        pub retry_jitter(max: Duration) => options.jitter = Some(max);

        /// Sets the function that answers refusals. The layer adds its fields to the response. To log a refusal, or to add
        /// something to the default response, start from [`Refusal::response`].
        ///
        /// ```
        /// use bytes::Bytes;
        /// use http::{Response, StatusCode};
        /// use tollgate::Limiter;
        /// use tollgate::http::{LimitLayer, Refusal};
        ///
        /// let layer = LimitLayer::new(Limiter::new("100/min")?).on_refusal(|refusal| {
        ///     let text = match refusal {
        ///         Refusal::Denied { decision, .. } => format!("slow down: {decision}"),
        ///         _ => refusal.to_string(),
        ///     };
        ///     let mut response = Response::new(Bytes::from(text));
        ///     *response.status_mut() = refusal.status();
        ///     response
        /// });
        /// # Ok::<(), tollgate::ConfigError>(())
        /// ```
        ///
        /// The function also answers gRPC calls, which by default get a [gRPC response](LimitLayer#what-a-client-sees). In front
        /// of a gRPC server, start from [`Refusal::grpc_response`], or return a status of tonic:
        ///
        /// ```ignore
        /// let layer = layer.on_refusal(|refusal| tonic::Status::new(refusal.grpc_code().into(), refusal.to_string()).into_http());
        /// ```
        pub on_refusal(respond: impl Fn(&Refusal) -> Response<Bytes> + Send + Sync + 'static) => options.respond = Some(Arc::new(respond));

        /// Sets the outcome of a call by the status of its response, for a concurrency that [adapts](crate::Adapt). The function
        /// gets `None` if the service failed with an error.
        ///
        /// By default, 408, 429, 503, 504, 529 and an error are [overloads](Outcome::Overloaded). Other statuses from 400 on are
        /// [ignored](Outcome::Ignored), and the rest is [`Outcome::Ok`]. The 429 of an inner layer is an overload, too: if that
        /// layer limits clients, return [`Outcome::Ignored`] for 429.
        ///
        /// A gRPC response without a message, such as an error of a unary call or a refusal of an inner layer, has its
        /// `grpc-status` in the head. The function gets the equivalent HTTP status, such as 429 for `RESOURCE_EXHAUSTED`. A
        /// status in the trailers, after messages, is not seen.
        ///
        /// ```
        /// use http::StatusCode;
        /// use tollgate::http::LimitLayer;
        /// use tollgate::{Adapt, Limiter, MaxConcurrency, Outcome};
        ///
        /// let limiter = Limiter::new(MaxConcurrency::new(20).adapt(Adapt::gradient()))?;
        /// let layer = LimitLayer::new(limiter).classify(|status| match status {
        ///     Some(StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE) | None => Outcome::Overloaded,
        ///     Some(_) => Outcome::Ok,
        /// });
        /// # Ok::<(), tollgate::ConfigError>(())
        /// ```
        pub classify(outcome_of: impl Fn(Option<StatusCode>) -> Outcome + Send + Sync + 'static) => options.classify = Arc::new(outcome_of);

        /// Charges the key with the units that the function returns for the status of the service's response; 0 charges nothing.
        /// For gRPC, the function gets the same status as in [`classify`](Self::classify). See
        /// [`KeyedLimiter::penalize`](crate::KeyedLimiter::penalize), and
        /// [`SharedLimiter::penalize`](crate::SharedLimiter::penalize), which charges the key for all processes. Requests that
        /// the layer itself refuses are not charged: a [`Penalty`](crate::Penalty) counts denied attempts by itself.
        ///
        /// Requests in flight are not stopped: add a [`MaxConcurrency`](crate::MaxConcurrency) to the policy, so that no client
        /// can try a thousand passwords at once. The fields of a charged response show what was left before the charge.
        ///
        /// ```
        /// use std::net::IpAddr;
        /// use http::StatusCode;
        /// use tollgate::http::{ClientIp, LimitLayer};
        /// use tollgate::{KeyedLimiter, MaxConcurrency, Penalty, Rate};
        ///
        /// let policy = Penalty::new(100, Rate::per_second(10)).and(MaxConcurrency::new(4));
        /// let limiter = KeyedLimiter::<IpAddr>::new(policy)?;
        /// let layer = LimitLayer::new(limiter).by(ClientIp::peer()).penalize(|status| match status {
        ///     StatusCode::UNAUTHORIZED => 20, // guesses passwords
        ///     StatusCode::NOT_FOUND => 5,     // looks for holes
        ///     _ => 0,
        /// });
        /// # Ok::<(), tollgate::ConfigError>(())
        /// ```
        pub penalize(units_for: impl Fn(StatusCode) -> u64 + Send + Sync + 'static) => options.penalty = Some(Arc::new(units_for));
    }
}

/// A clone may get another name, so it does not keep the text of the policies.
impl<L: Clone, I> Clone for LimitLayer<L, I> {
    fn clone(&self) -> Self {
        Self {
            limiter: self.limiter.clone(),
            identity: Arc::clone(&self.identity),
            options: self.options.clone(),
            known_policies: KnownPolicies::default(),
        }
    }
}

type Respond = Arc<dyn Fn(&Refusal) -> Response<Bytes> + Send + Sync>;
type Classify = Arc<dyn Fn(Option<StatusCode>) -> Outcome + Send + Sync>;
type Charge = Arc<dyn Fn(StatusCode) -> u64 + Send + Sync>;

/// The options of a layer: how it asks its limiter, and how it handles the answer.
#[derive(Clone)]
struct LayerOptions {
    fields: RateLimitFields,
    terms: AskTerms,
    until_head: bool,
    jitter: Option<Duration>,
    respond: Option<Respond>,
    classify: Classify,
    penalty: Option<Charge>,
}

debug_fields! { LayerOptions, |options| fields = options.fields, wait = options.terms.wait }

/// The service that a [`LimitLayer`] makes. See the layer for an example. Clones share the limiter.
///
/// The service is ready when the inner service is: the limiter is asked for each request, and never makes the service pending.
/// After a request that is refused at once, the inner service is still ready for the next request. A request that is decided
/// later keeps the ready inner service, and what that has reserved, until the decision.
#[derive(Debug)]
pub struct LimitService<S, L, I> {
    inner: S,
    layer: Arc<LimitLayer<L, I>>,
}

impl<S, L: Clone, I> Layer<S> for LimitLayer<L, I> {
    type Service = LimitService<S, L, I>;

    fn layer(&self, inner: S) -> LimitService<S, L, I> {
        let layer = Arc::new(self.clone());
        LimitService { inner, layer }
    }
}

impl<S: Clone, L, I> Clone for LimitService<S, L, I> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            layer: Arc::clone(&self.layer),
        }
    }
}

impl<S, B, R, L, I> Service<Request<B>> for LimitService<S, L, I>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    R: http_body::Body,
    I: Identifies<B>,
    L: Admits<I::Key>,
{
    type Response = Response<LimitBody<R>>;
    type Error = S::Error;
    type Future = LimitFuture<S, B, L, I>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    /// Clones the service only if the key or the answer of the limiter must be awaited.
    fn call(&mut self, request: Request<B>) -> LimitFuture<S, B, L, I> {
        let layer = Arc::clone(&self.layer);
        let mut key = None;
        let stage = match layer.identity.key_of(&request) {
            Identified::Later(finding) => {
                LimitStage::Identifying(finding, Some((self.take_ready(), request)))
            }
            Identified::Now(found) => match layer.ask(found, &mut key) {
                Admission::Later(asking) => {
                    LimitStage::Asking(asking, Some((self.take_ready(), request)))
                }
                // This arm returns directly: a stage that is made in a shared `let` is moved once more.
                Admission::Now(Ok(granted)) => {
                    let stage = LimitStage::Calling(self.inner.call(request), Some(granted));
                    return LimitFuture { stage, key, layer };
                }
                Admission::Now(Err(refusal)) => {
                    LimitStage::Refused(refusal, AnswerForm::to(&request))
                }
            },
        };
        LimitFuture { stage, key, layer }
    }
}

impl<S: Clone, L, I> LimitService<S, L, I> {
    /// Takes the ready service and leaves its clone, which need not be ready.
    fn take_ready(&mut self) -> S {
        let clone = self.inner.clone();
        mem::replace(&mut self.inner, clone)
    }
}

/// The future of a [`LimitService`]. See [`LimitLayer`] for an example.
///
/// # Cancel safety
///
/// If the future is dropped while it waits, the request leaves the queue, and no limit is charged. If it is dropped later, it
/// releases its permit; units of a rate stay spent.
#[pin_project]
pub struct LimitFuture<S: Service<Request<B>>, B, L, I: Identifies<B>> {
    #[pin]
    stage: LimitStage<S, B, I::Future, S::Future>,
    key: Option<I::Key>,
    layer: Arc<LimitLayer<L, I>>,
}

/// A ready service and the request that it will get. They are taken once.
type Call<S, B> = Option<(S, Request<B>)>;

#[pin_project(project = LimitStageProjection)]
enum LimitStage<S, B, F, G> {
    Identifying(#[pin] F, Call<S, B>),
    Asking(Pin<Box<dyn Future<Output = Answer> + Send>>, Call<S, B>),
    Calling(#[pin] G, Option<Granted>),
    Refused(Box<Refusal>, AnswerForm),
    Done,
}

impl<S, B, R, L, I> Future for LimitFuture<S, B, L, I>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: http_body::Body,
    I: Identifies<B>,
    L: Admits<I::Key>,
{
    type Output = Result<Response<LimitBody<R>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let layer = &**this.layer;
        loop {
            let next = match this.stage.as_mut().project() {
                LimitStageProjection::Identifying(finding, call) => {
                    let found = ready!(finding.poll(cx)).found();
                    match layer.ask(found, this.key) {
                        Admission::Later(asking) => LimitStage::Asking(asking, call.take()),
                        Admission::Now(answer) => LimitStage::answered(answer, call.take()),
                    }
                }
                LimitStageProjection::Asking(asking, call) => {
                    LimitStage::answered(ready!(asking.as_mut().poll(cx)), call.take())
                }
                LimitStageProjection::Calling(call, granted) => {
                    let result = ready!(call.poll(cx));
                    let granted = granted.take();
                    this.stage.set(LimitStage::Done);
                    let Some(granted) = granted else { continue };
                    return Poll::Ready(layer.end(result, granted, this.key.as_ref()));
                }
                LimitStageProjection::Refused(refusal, form) => {
                    if I::HAS_KEYS {
                        refusal.set_by_key();
                    }
                    let response = layer.refuse(refusal, this.key.as_ref(), *form);
                    this.stage.set(LimitStage::Done);
                    return Poll::Ready(Ok(response));
                }
                LimitStageProjection::Done => {
                    panic!("a LimitFuture was polled after it had completed")
                }
            };
            this.stage.set(next);
        }
    }
}

impl<S: Service<Request<B>>, B, F> LimitStage<S, B, F, S::Future> {
    fn answered(answer: Result<Granted, Box<Refusal>>, call: Call<S, B>) -> Self {
        match (answer, call) {
            (Ok(granted), Some((mut service, request))) => {
                Self::Calling(service.call(request), Some(granted))
            }
            (Err(refusal), Some((_, request))) => Self::Refused(refusal, AnswerForm::to(&request)),
            (_, None) => Self::Done,
        }
    }
}

debug_fields! {
    [S: Service<Request<B>>, B, L, I: Identifies<B>] LimitFuture<S, B, L, I>,
    |future| stage = match future.stage {
        LimitStage::Identifying(..) => "identifying",
        LimitStage::Asking(..) => "asking",
        LimitStage::Calling(..) => "calling",
        LimitStage::Refused(..) => "refused",
        LimitStage::Done => "done",
    }
}

/// A permit, and the state of the limits when they granted it.
type Granted = (Permit, Vec<LimitStatus>);

/// How a refusal is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AnswerForm {
    Plain,
    /// The response to a HEAD request, which has no body.
    Head,
    Grpc,
}

impl AnswerForm {
    fn to<B>(request: &Request<B>) -> Self {
        match *request.method() {
            Method::HEAD => Self::Head,
            Method::POST if grpc::is_message(request.headers()) => Self::Grpc,
            _ => Self::Plain,
        }
    }
}

impl<L, I> LimitLayer<L, I> {
    /// Asks the limiter for the key that was found, or for the shared key if the key is unknown. Stores that key in `key`.
    #[inline]
    fn ask<B>(&self, found: Result<I::Key, NoIdentity>, key: &mut Option<I::Key>) -> Admission
    where
        I: Identifies<B>,
        L: Admits<I::Key>,
    {
        match found.or_else(|unknown| self.identity.shared_key().ok_or(unknown)) {
            Ok(found) => self.limiter.ask(key.insert(found), self.options.terms),
            Err(unknown) => Admission::Now(Err(Box::new(Refusal::NoIdentity(unknown)))),
        }
    }

    /// Handles the result of the service: charges the key, writes the fields, and hands the permit to the body.
    fn end<K, R, E>(
        &self,
        result: Result<Response<R>, E>,
        (permit, limits): Granted,
        key: Option<&K>,
    ) -> Result<Response<LimitBody<R>>, E>
    where
        L: Admits<K>,
        R: http_body::Body,
    {
        let options = &self.options;
        let answered = result.as_ref().ok();
        let status =
            answered.map(|response| grpc::http_status(response.status(), response.headers()));
        let mut held = HeldPermit::new(Some(permit), (options.classify)(status));
        let mut response = result.inspect_err(|_| held.complete())?;
        if let (Some(penalty), Some(key), Some(status)) = (&options.penalty, key, status)
            && let units @ 1.. = penalty(status)
        {
            self.limiter.penalize(key, units);
        }
        // If the store was not asked, no limit has a state.
        if !limits.is_empty() {
            let values = FieldValues::granted(&limits).cost(options.terms.cost);
            let (headers, known) = (response.headers_mut(), Some(&self.known_policies));
            options
                .fields
                .write_at(headers, &values, known, SystemTime::now);
        }
        let (head, body) = response.into_parts();
        let body = PermitBody::of_answer(&head.headers, body, held, options.until_head);
        Ok(Response::from_parts(head, LimitBody::of_service(body)))
    }

    fn refuse<K, R>(
        &self,
        refusal: &Refusal,
        key: Option<&K>,
        form: AnswerForm,
    ) -> Response<LimitBody<R>>
    where
        L: Admits<K>,
    {
        let options = &self.options;
        if let Some(reason) = refusal.reason() {
            let event = || EventKind::Refused {
                cost: options.terms.cost,
                reason,
                error: refusal.in_words(),
                requested_in: options.terms.caller,
            };
            self.limiter.tell(key, event);
        }
        let mut response = match &options.respond {
            Some(respond) => respond(refusal),
            None if form == AnswerForm::Grpc => refusal.grpc_response(&options.fields),
            None => refusal.response(&options.fields),
        };
        let jitter = options.jitter.map_or(Duration::ZERO, random_up_to);
        let (headers, known) = (response.headers_mut(), Some(&self.known_policies));
        let values = refusal.values().jitter(jitter);
        options
            .fields
            .write_at(headers, &values, known, SystemTime::now);
        match (form, refusal.retry_after()) {
            (AnswerForm::Head, _) => {
                // Over HTTP/2, no other layer removes the body of a response to HEAD.
                let len = mem::take(response.body_mut()).len();
                let _full = response
                    .headers_mut()
                    .try_insert(CONTENT_LENGTH, len.into());
            }
            (AnswerForm::Grpc, Some(wait)) => {
                set_retry_pushback(response.headers_mut(), wait.saturating_add(jitter));
            }
            _ => {}
        }
        response.map(LimitBody::of_refusal)
    }
}
