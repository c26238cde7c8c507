//! A tower layer that limits the requests to a service, and its options.

use std::hash::Hash;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response, StatusCode, response};

use super::actual_cost::ActualCost;
use super::admission::{Admits, AskTerms, ChosenLimiter, IntoLimiter};
use super::answer::Refusal;
use super::body::outcome_of;
use super::fields::{KnownPolicies, PolicyNameError, RateLimitFields, RateLimitStyle};
use super::identity::{FoundKey, Identity, KeyedBy, KeyedByAsync, NoKey, OrShared};
use super::terms::TermsByRequest;
use crate::priority::Priority;
use crate::strategy::{MAX_SPAN_NANOS, Outcome};

/// A tower layer that limits the requests to a service: an axum router, a route, or a group of routes. For each request, the
/// layer asks a [`Limiter`](crate::Limiter), a [`KeyedLimiter`](crate::KeyedLimiter), or a
/// [`SharedLimiter`](crate::SharedLimiter).
///
/// All services that a layer or its clones wrap share the limiter.
///
/// # Examples
///
/// ```
/// use std::net::SocketAddr;
/// use axum::Router;
/// use axum::extract::ConnectInfo;
/// use tollgate::layers::{ClientIp, LimitLayer};
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
/// # Stacked layers
///
/// Layers can be stacked; give each a [name](Self::name). A request is charged by all of them, or by none: if an inner layer refuses
/// it, the outer ones [refund](crate::Permit::refund) it, release its place, and report no outcome. For a moment, the outer layers
/// have one unit less than that. A [`KeyedLimiter`](crate::KeyedLimiter) of rates refunds only if it was built with
/// [`settle_permits`](crate::KeyedLimiterBuilder::settle_permits). A layer in between must pass the extensions of the response on,
/// as those of axum and tower do.
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
/// [`EventKind::Refused`](crate::EventKind::Refused) with the reason.
///
/// # A key
///
/// A [`KeyedLimiter`](crate::KeyedLimiter) needs an [identity](Self::by); a layer without one cannot be put around a service:
///
/// ```compile_fail,E0277
/// use tollgate::KeyedLimiter;
/// use tollgate::layers::LimitLayer;
///
/// let layer = LimitLayer::new(KeyedLimiter::<String>::new("100/min")?);
/// let app: axum::Router = axum::Router::new().layer(layer);
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[derive(Debug)]
#[must_use = "a layer limits nothing until it is put around a service"]
#[doc(alias = "RateLimitLayer")]
pub struct LimitLayer<L, I = NoKey> {
    pub(super) limiter: L,
    pub(super) identity: Arc<I>,
    pub(super) options: LayerOptions,
    pub(super) known_policies: KnownPolicies,
}

impl<L: Clone> LimitLayer<L> {
    /// A layer that refuses each request that the limiter does not admit at once. The requests of all clients are limited
    /// together, unless the layer has an [identity](Self::by). See the [type's example](Self#examples).
    ///
    /// If requests [wait](Self::wait), the builder of the limiter sets the bound of their queue.
    #[track_caller]
    #[expect(clippy::missing_panics_doc, reason = "the name is printable ASCII")]
    pub fn new(limiter: impl IntoLimiter<Limiter = L>) -> Self {
        let fields = RateLimitFields::new("default").expect("it is printable ASCII");
        let terms = AskTerms::new(Location::caller());
        Self {
            limiter: limiter.into_limiter(),
            identity: Arc::new(NoKey),
            options: LayerOptions {
                fields,
                terms,
                by_request: None,
                is_shadow: false,
                until_head: false,
                jitter: None,
                respond: None,
                classify: Arc::new(outcome_of),
                penalty: None,
                actual: None,
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
    /// use tollgate::layers::LimitLayer;
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
    /// Limits each key of an [`Identity`]. A request whose key is unknown is refused with 403, unless such
    /// requests [share a key](LimitLayer::or_shared). The body of the 403 states [what is missing](super::NoIdentity::detail). If
    /// every request lacks the address of its peer, the server does not [pass it on](super::Identity).
    ///
    /// If the key contains the plan of the client, the limiter can have [tiers](crate::KeyedLimiterBuilder::tiers):
    ///
    /// ```
    /// use axum::body::Body;
    /// use http::Request;
    /// use tollgate::layers::LimitLayer;
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
    /// use tollgate::layers::{HeaderKey, Identity, LimitLayer, NoIdentity};
    ///
    /// async fn account_of(token: String) -> Option<u64> {
    ///     // ask the database
    /// #   token.parse().ok()
    /// }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let layer = LimitLayer::new(KeyedLimiter::<u64>::new("100/min")?).by_async(|request: &Request<Body>| {
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
    pub fn by_async<B, G, F>(self, key_of: F) -> LimitLayer<L, KeyedByAsync<F>>
    where
        F: Fn(&Request<B>) -> G,
        G: Future<Output: FoundKey> + 'static,
    {
        self.identified(KeyedByAsync(key_of))
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
    /// use tollgate::layers::{ClientIp, LimitLayer};
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
    /// use tollgate::layers::LimitLayer;
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
    /// use tollgate::layers::{LimitLayer, RateLimitStyle};
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
        /// use tollgate::layers::LimitLayer;
        ///
        /// let limiter = Limiter::new("100/min")?;
        /// let cheap = LimitLayer::new(limiter.clone());
        /// let expensive = LimitLayer::new(limiter).cost(10); // around other routes
        /// # Ok::<(), tollgate::ConfigError>(())
        /// ```
        pub cost(units: u64) => options.terms.options.cost = units;

        /// Lets a request wait for its permit, at most this long; a time above 100 years counts as 100 years. A request that is
        /// known to wait longer is refused at once. Bound the [queue](crate::LimiterBuilder::max_queue), too, which has no bound
        /// by default: a request that finds the queue full is answered with 503. A [`Penalty`](crate::Penalty) does not count
        /// attempts that may wait: put it into a layer of its own that does not wait.
        ///
        /// ```
        /// use std::time::Duration;
        /// use tollgate::layers::LimitLayer;
        /// use tollgate::{Limiter, MaxConcurrency};
        ///
        /// let limiter = Limiter::builder(MaxConcurrency::new(8)).max_queue(100).build()?;
        /// let layer = LimitLayer::new(limiter).wait(Duration::from_millis(500));
        /// # Ok::<(), tollgate::ConfigError>(())
        /// ```
        pub wait(at_most: Duration) => options.terms.wait = Some(at_most.min(Duration::from_nanos(MAX_SPAN_NANOS)));

        /// Settles the permit of each request by what it has really cost, when its body has ended, or has been dropped because the
        /// client has gone. The function gets the head of the service's response. `None` keeps the estimate, which is the
        /// [cost](Self::cost_by) of the request. See [`Permit::settle`](crate::Permit::settle) for what a limit refunds.
        ///
        /// A handler that knows the cost puts an [`ActualCost`] into the extensions of its response. If it sends a stream, it keeps a
        /// clone, and sets the cost as the stream goes on:
        ///
        /// ```
        /// use axum::response::IntoResponse;
        /// use axum::routing::post;
        /// use axum::{Extension, Router};
        /// use tollgate::Limiter;
        /// use tollgate::layers::{ActualCost, LimitLayer};
        ///
        /// async fn complete(prompt: String) -> impl IntoResponse {
        ///     let answer = prompt.to_uppercase();
        ///     let cost = ActualCost::of("tokens", (prompt.len() + answer.len()) as u64);
        ///     (Extension(cost), answer)
        /// }
        ///
        /// let layer = LimitLayer::new(Limiter::new("100/min per request and 100000 tokens/min")?)
        ///     .cost_of("tokens", |_| 1_000) // an estimate
        ///     .settle_by(|head| head.extensions.get().cloned());
        /// let app: Router = Router::new().route("/complete", post(complete)).layer(layer);
        /// # Ok::<(), tollgate::ConfigError>(())
        /// ```
        ///
        /// A header of the response, of a service behind this one:
        ///
        /// ```
        /// # use tollgate::Limiter;
        /// # use tollgate::layers::{ActualCost, LimitLayer};
        /// let layer = LimitLayer::new(Limiter::new("100000/min")?).cost(1_000).settle_by(|head| {
        ///     let tokens = head.headers.get("x-tokens-used")?.to_str().ok()?.parse().ok()?;
        ///     Some(ActualCost::new(tokens))
        /// });
        /// # Ok::<(), tollgate::ConfigError>(())
        /// ```
        ///
        /// A [`KeyedLimiter`](crate::KeyedLimiter) of rates settles only if it was built with
        /// [`settle_permits`](crate::KeyedLimiterBuilder::settle_permits). If the client goes before the head of the response, the
        /// estimate stays charged.
        pub settle_by(actual_of: impl Fn(&response::Parts) -> Option<ActualCost> + Send + Sync + 'static) => options.actual = Some(Arc::new(actual_of));

        /// Decides and counts as without it, but serves each request: to try a limit before it is enforced. A request that would be
        /// refused goes to the service without a permit, and the observers of the limiter get an
        /// [`EventKind::WouldRefuse`](crate::EventKind::WouldRefuse); a `MetricsObserver` counts these. The decisions are those of a
        /// layer that enforces the limit: a request that would be refused takes no unit and no place, and one that would
        /// [wait](Self::wait) does wait, so leave that out to delay none. Responses have no fields, and
        /// [`on_refusal`](Self::on_refusal) is not called.
        ///
        /// ```
        /// use tollgate::Limiter;
        /// use tollgate::layers::LimitLayer;
        ///
        /// let layer = LimitLayer::new(Limiter::new("100/min")?).shadow();
        /// # Ok::<(), tollgate::ConfigError>(())
        /// ```
        pub shadow() => options.is_shadow = true;

        /// Releases the permit when the head of the response is ready, and not at the end of its body. Use it for long downloads
        /// that take no capacity.
        ///
        /// ```
        /// use tollgate::layers::LimitLayer;
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
        /// use tollgate::layers::LimitLayer;
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
        /// use tollgate::layers::{LimitLayer, Refusal};
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
        /// [ignored](Outcome::Ignored), and the rest is [`Outcome::Ok`]. A request that an inner
        /// layer refuses is refunded, and not reported.
        ///
        /// A gRPC response without a message, such as an error of a unary call or a refusal of an inner layer, has its
        /// `grpc-status` in the head. The function gets the equivalent HTTP status, such as 429 for `RESOURCE_EXHAUSTED`. A
        /// status in the trailers, after messages, is not seen.
        ///
        /// ```
        /// use http::StatusCode;
        /// use tollgate::layers::LimitLayer;
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
        /// use tollgate::layers::{ClientIp, LimitLayer};
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

/// By request.
impl<L, I> LimitLayer<L, I> {
    /// Sets the cost of each request by its head: 1 to the smallest capacity of the limits, as in [`cost`](Self::cost). A request
    /// of cost 0 is served without asking the limiter: it takes no permit, and its response has no fields.
    ///
    /// ```
    /// use http::Method;
    /// use tollgate::Limiter;
    /// use tollgate::layers::LimitLayer;
    ///
    /// let layer = LimitLayer::new(Limiter::new("1000/min")?).cost_by(|head| match (&head.method, head.uri.path()) {
    ///     (&Method::POST, "/search") => 10,
    ///     (_, "/health") => 0,
    ///     _ => 1,
    /// });
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn cost_by(mut self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.options.by_request().cost = Some(Arc::new(cost));
        self
    }

    /// Sets the cost of each request in a unit that limits [count](crate::Counts::Unit), by its head: 0 to the smallest capacity of
    /// these limits. [`settle_by`](Self::settle_by) has an example.
    pub fn cost_of(
        mut self,
        unit: &str,
        cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static,
    ) -> Self {
        let by_request = self.options.by_request();
        by_request.costs.push((unit.into(), Arc::new(cost)));
        self
    }

    /// Sets the [priority](crate::Priority) of each request by its head. Only requests that [wait](Self::wait) have a priority.
    /// Defaults to [`Priority::NORMAL`].
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::layers::LimitLayer;
    /// use tollgate::{Limiter, Priority};
    ///
    /// let layer = LimitLayer::new(Limiter::new("8 concurrent")?).wait(Duration::from_secs(1)).priority_by(|head| {
    ///     if head.uri.path().starts_with("/checkout") { Priority::HIGH } else { Priority::NORMAL }
    /// });
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn priority_by(
        mut self,
        priority: impl Fn(&Parts) -> Priority + Send + Sync + 'static,
    ) -> Self {
        self.options.by_request().priority = Some(Arc::new(priority));
        self
    }

    /// Makes each key of an identity a [flow](crate::PermitRequest::flow): while requests [wait](Self::wait), the keys share the
    /// limiter fairly, so that one that floods it does not keep the others out. Let a full queue
    /// [drop the longest](crate::Overflow::DropLongest). A request without a key has no flow. A closure gets the request without its
    /// body.
    ///
    /// This is for a limiter that all keys use together. The limits of a [key of its own](LimitLayer::by) need no flows.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::layers::{HeaderKey, LimitLayer};
    /// use tollgate::{Limiter, MaxConcurrency, Overflow};
    ///
    /// let limiter = Limiter::builder(MaxConcurrency::new(100)).max_queue(1_000).overflow(Overflow::DropLongest).build()?;
    /// let layer = LimitLayer::new(limiter).wait(Duration::from_secs(5)).fair_by(HeaderKey::bearer());
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn fair_by<J>(mut self, identity: J) -> Self
    where
        J: Identity<(), Key: Hash> + Send + Sync + 'static,
    {
        self.options.by_request().set_flow(identity);
        self
    }

    /// Sets the [weight](crate::PermitRequest::weight) of each request's [flow](Self::fair_by) by its head: 1 to 1,000,000.
    /// Defaults to 1. With any other weight, the request is answered with 500.
    ///
    /// ```
    /// use std::time::Duration;
    /// use http::Request;
    /// use tollgate::Limiter;
    /// use tollgate::layers::LimitLayer;
    ///
    /// #[derive(Clone)]
    /// struct User { id: u64, pays: bool } // a layer outside this one has put it into the request
    ///
    /// let layer = LimitLayer::new(Limiter::new("100 concurrent")?)
    ///     .wait(Duration::from_secs(5))
    ///     .fair_by(|request: &Request<()>| request.extensions().get().map(|user: &User| user.id))
    ///     .weight_by(|head| head.extensions.get().map_or(1, |user: &User| if user.pays { 3 } else { 1 }));
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn weight_by(mut self, weight: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.options.by_request().weight = Some(Arc::new(weight));
        self
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
type ActualOf = Arc<dyn Fn(&response::Parts) -> Option<ActualCost> + Send + Sync>;

/// The options of a layer: how it asks its limiter, and how it handles the answer.
#[derive(Clone)]
pub(super) struct LayerOptions {
    pub(super) fields: RateLimitFields,
    pub(super) terms: AskTerms,
    /// What is asked for by the head of a request.
    pub(super) by_request: Option<Box<TermsByRequest>>,
    pub(super) is_shadow: bool,
    pub(super) until_head: bool,
    pub(super) jitter: Option<Duration>,
    pub(super) respond: Option<Respond>,
    pub(super) classify: Classify,
    pub(super) penalty: Option<Charge>,
    pub(super) actual: Option<ActualOf>,
}

impl LayerOptions {
    fn by_request(&mut self) -> &mut TermsByRequest {
        self.by_request.get_or_insert_default()
    }
}

debug_fields! { LayerOptions, |options| fields = options.fields, wait = options.terms.wait }
