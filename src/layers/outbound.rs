//! The client side: a layer that obeys a limiter and the limits that the upstream reports, its service, and the future of a request
//! through it.

mod budget;
#[cfg(feature = "reqwest")]
mod client;
mod retry;

use std::error::Error;
use std::mem;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime};

use http::request::Parts;
use http::{Request, Response, StatusCode, response};
use http_body::Body;
use pin_project::pin_project;
use thiserror::Error;
use tower_layer::Layer;
use tower_service::Service;

use super::actual_cost::ActualCost;
use super::admission::{Admits, AsksLimiter as _, IntoLimiter};
use super::body::{HeldPermit, PermitBody, SettledBy, outcome_of};
use super::grpc;
use super::upstream::{UpstreamAnswer, UpstreamFamily, UpstreamReader};
use crate::acquire::AcquireOwned;
use crate::core::request::Actual;
use crate::error::{AcquireError, TryAcquireError};
use crate::limiter::{AnyLimiter, Limiter};
use crate::manager::RequestOptions;
use crate::permit::Permit;
use crate::strategy::{MAX_SPAN_NANOS, Outcome};
use crate::upstream::UpstreamSignal;

pub use budget::RetryBudget;
#[cfg(feature = "reqwest")]
pub use client::ReqwestClient;
pub use retry::{Cloned, NoRetry, OutboundRetry, Retry};

/// A tower [`Layer`] for HTTP clients: each request waits for a permit, and the limits that the upstream
/// reports hold back all users of the same limiter, or of the same key.
///
/// The permit is held until the body of the response has ended or is dropped, or [until its head](Self::until_head). When the
/// [TTL](crate::MaxConcurrency::ttl) of a permit passes, its request goes on: set a shorter timeout in the client.
///
/// - *Denials*: after a denial (429, 503, and those that the [family](UpstreamFamily) adds), the limiter is
///   [paused](Limiter::apply_upstream_signal) for the time in the response, at most the reader's
///   [`max_wait`](UpstreamReader::max_wait), or for a second if the response has no time.
/// - *Quotas*: the limiter is paused while a quota of requests is spent. With
///   [`spread_below`](crate::LimiterBuilder::spread_below), the last requests of a quota are spread until its reset. A spent
///   quota of another [unit](Self::cost_of) pauses the limiter only if a cost of that unit is given; such a quota is never
///   spread.
/// - *Malformed fields* are ignored; [observers](crate::EventKind::UpstreamMalformed) of the limiter get an event.
/// - *Adaptive concurrency*: each outcome is [reported](crate::Permit::report), classified by [status](ByStatus) or by your own
///   [closure](Self::classify); the round trip lasts until the permit is released. A timeout in a layer inside this one is an
///   overload; a timeout outside drops the call, and nothing is reported.
/// - *Retries*: only with [`retry`](Self::retry).
///
/// A gRPC denial has status 200 and a `grpc-status`. In the head, where servers and a [`LimitLayer`](super::LimitLayer) put it if
/// there is no message, 8 (`RESOURCE_EXHAUSTED`) is read as 429 and 14 (`UNAVAILABLE`) as 503. A `grpc-status` in the trailers is
/// not seen, and pauses nothing.
///
/// The services that one layer makes share its limiter. Dropping a response future loses nothing: the permit is released, or the
/// request leaves the queue.
///
/// # Examples
///
/// ```
/// use std::convert::Infallible;
/// use std::sync::{Arc, Mutex};
/// use std::time::Duration;
/// use http::{Request, Response};
/// use tollgate::layers::{OutboundLayer, UpstreamFamily, UpstreamReader};
/// use tollgate::{KeyedLimiter, MaxConcurrency};
/// use tower::{Layer, ServiceExt};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let per_host = KeyedLimiter::builder(MaxConcurrency::new(8)).spread_below(10).build()?;
/// let layer = OutboundLayer::by_host(per_host)
///     .upstream(UpstreamReader::new(UpstreamFamily::Draft10))
///     .timeout(Duration::from_secs(60))
///     .retry(2);
/// let answers = Arc::new(Mutex::new(vec![(200, "0"), (429, "30")]));
/// let client = tower::service_fn(move |_: Request<String>| {
///     let (status, retry_after) = answers.lock().unwrap().pop().unwrap();
///     let answer = Response::builder().status(status).header("retry-after", retry_after);
///     async move { Ok::<_, Infallible>(answer.body(String::new()).unwrap()) }
/// });
/// let client = layer.layer(client);
///
/// let start = tokio::time::Instant::now();
/// let response = client.oneshot(Request::get("https://example.org/").body(String::new())?).await;
/// assert_eq!((response.unwrap().status().as_u16(), start.elapsed()), (200, Duration::from_secs(30)));
/// # Ok(())
/// # }
/// ```
///
/// # Limits that many processes share
///
/// A [`SharedLimiter`](crate::SharedLimiter) limits all processes together: each host is one of its
/// [keys](crate::SharedLimiter::key).
///
/// ```
/// use tollgate::SharedLimiter;
/// use tollgate::layers::OutboundLayer;
/// use tollgate::store::MemoryStore;
///
/// let store = MemoryStore::new(); // or one that processes share
/// let per_host = SharedLimiter::new(store, "apis", "8 concurrent and 100/min")?;
/// let layer = OutboundLayer::by_host(per_host);
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
///
/// The response of an upstream holds back only the process that received it: another process is held back only after a denial of
/// its own. `spread_below` has no effect. A process forgets a key, with its [prefetched](crate::SharedLimiterBuilder::prefetch)
/// units, when no request or body of the key is left. A key that was paused, or denied by the store, is forgotten after the pause
/// or denial has ended and other keys have been paused or denied. The store forgets a key when the whole budget of the key is
/// restored.
///
/// # reqwest
///
/// With the feature `reqwest`, `layer.reqwest(client)` puts the layer around a `reqwest::Client`. The example `reqwest_layer` has the
/// whole program. The layers of `reqwest::ClientBuilder::connector_layer` see connections, not requests.
#[derive(Clone)]
#[must_use = "a layer does nothing until it wraps a service"]
pub struct OutboundLayer<C = ByStatus, R = NoRetry> {
    common: OutboundCommon,
    classifier: C,
    retry: R,
}

type LimiterOf = dyn Fn(&Parts) -> Result<Limiter, TryAcquireError> + Send + Sync;

type CostOf = dyn Fn(&Parts) -> u64 + Send + Sync;

type ActualOf = dyn Fn(&response::Parts) -> Option<ActualCost> + Send + Sync;

/// The options of a layer that do not depend on the types of the inner service.
#[derive(Clone)]
struct OutboundCommon {
    limiter_of: Arc<LimiterOf>,
    reader_of: Arc<dyn Fn(&Parts) -> UpstreamReader + Send + Sync>,
    costs: Vec<(Arc<str>, Arc<CostOf>)>,
    options: RequestOptions,
    cost: Option<Arc<CostOf>>,
    actual: Option<Arc<ActualOf>>,
    settles_later: bool,
    refunds_denied: bool,
    until_head: bool,
}

impl OutboundLayer {
    /// Uses one limiter for all requests: a [`Limiter`] or a [`SharedLimiter`](crate::SharedLimiter). See the
    /// [type's example](Self#examples).
    #[track_caller]
    pub fn new(limiter: impl AnyLimiter) -> Self {
        let limiter = limiter.handle();
        Self::of(Location::caller(), Arc::new(move |_| Ok(limiter.clone())))
    }

    /// Limits each host, as a key of a [`KeyedLimiter`](crate::KeyedLimiter) or a [`SharedLimiter`](crate::SharedLimiter). The
    /// key is the host of the URI, in lower case and without a trailing dot, with its port unless that is the default of the
    /// scheme; else the `Host` field in lower case; else the empty string. See the [type's example](Self#examples).
    #[track_caller]
    pub fn by_host<L>(limiter: L) -> Self
    where
        L: IntoLimiter<Limiter: Admits<String> + Send + Sync + 'static>,
    {
        Self::by_key(limiter, host_of)
    }

    /// Limits each key that the closure returns. To use a value of the body as the key, put it into the
    /// [extensions](http::Extensions). The key of a [`SharedLimiter`](crate::SharedLimiter) is a [`StoreKey`](super::StoreKey).
    ///
    /// ```
    /// use tollgate::layers::OutboundLayer;
    /// use tollgate::{KeyedLimiter, MaxConcurrency};
    ///
    /// let per_path = KeyedLimiter::<String>::new(MaxConcurrency::new(8))?;
    /// let layer = OutboundLayer::by_key(per_path, |request| request.uri.path().to_owned());
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[track_caller]
    pub fn by_key<K, L>(limiter: L, key_of: impl Fn(&Parts) -> K + Send + Sync + 'static) -> Self
    where
        L: IntoLimiter<Limiter: Admits<K> + Send + Sync + 'static>,
    {
        let limiter = limiter.into_limiter();
        Self::of(
            Location::caller(),
            Arc::new(move |parts| limiter.limiter_of(&key_of(parts))),
        )
    }

    fn of(caller: &'static Location<'static>, limiter_of: Arc<LimiterOf>) -> Self {
        let common = OutboundCommon {
            limiter_of,
            reader_of: Arc::new(|_| UpstreamReader::new(UpstreamFamily::RetryAfter)),
            costs: Vec::new(),
            options: RequestOptions::new(1, caller),
            cost: None,
            actual: None,
            settles_later: false,
            refunds_denied: false,
            until_head: false,
        };
        Self {
            common,
            classifier: ByStatus,
            retry: NoRetry,
        }
    }
}

impl<C, R> OutboundLayer<C, R> {
    /// Sets the reader of the responses. Defaults to one that reads only `Retry-After`. See the [type's example](Self#examples).
    pub fn upstream(self, reader: UpstreamReader) -> Self {
        self.upstream_by(move |_| reader)
    }

    setters! {
        /// Sets the reader for the response to each request, for hosts that send fields of different families.
        ///
        /// ```
        /// use tollgate::layers::{OutboundLayer, UpstreamFamily, UpstreamReader};
        /// use tollgate::{KeyedLimiter, MaxConcurrency};
        ///
        /// let layer = OutboundLayer::by_host(KeyedLimiter::new(MaxConcurrency::new(8))?).upstream_by(|request| {
        ///     UpstreamReader::new(match request.uri.host() {
        ///         Some("api.github.com") => UpstreamFamily::GitHub,
        ///         _ => UpstreamFamily::Draft10,
        ///     })
        /// });
        /// # Ok::<(), tollgate::ConfigError>(())
        /// ```
        pub upstream_by(reader_of: impl Fn(&Parts) -> UpstreamReader + Send + Sync + 'static) => common.reader_of = Arc::new(reader_of);
    }

    /// Sets how long a request may wait for each of its permits. With 0 it does not wait; a time above 100 years counts as 100
    /// years. Defaults to no timeout. A request that times out fails with [`OutboundError::Acquire`]. See the
    /// [type's example](Self#examples).
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        let longest = Duration::from_nanos(MAX_SPAN_NANOS);
        self.common.options.timeout = Some(if timeout.as_nanos() > longest.as_nanos() {
            longest
        } else {
            timeout
        });
        self
    }

    /// Sets the cost of each request by its head: 1 to the smallest [capacity](crate::Limit::capacity) of the limits. Defaults to 1. A
    /// request of cost 0 is sent without a permit.
    ///
    /// ```
    /// use tollgate::Limiter;
    /// use tollgate::layers::OutboundLayer;
    ///
    /// let layer = OutboundLayer::new(Limiter::new("1000/min")?).cost_by(|request| match request.uri.path() {
    ///     "/search" => 10,
    ///     "/status" => 0,
    ///     _ => 1,
    /// });
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn cost_by(mut self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.common.cost = Some(Arc::new(cost));
        self
    }

    /// Settles the permit of each request by what it has really cost, when the body of the response has ended or is dropped. The
    /// function gets the head of the response. `None` keeps the estimate, which is the [cost](Self::cost_by) of the request. See
    /// [`Permit::settle`] for what a limit refunds.
    ///
    /// ```
    /// use tollgate::Limiter;
    /// use tollgate::layers::{ActualCost, OutboundLayer};
    ///
    /// let layer = OutboundLayer::new(Limiter::new("100000 tokens/min")?)
    ///     .cost_of("tokens", |_| 1_000) // an estimate
    ///     .settle_by(|head| {
    ///         let tokens = head.headers.get("x-tokens-used")?.to_str().ok()?.parse().ok()?;
    ///         Some(ActualCost::of("tokens", tokens))
    ///     });
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    ///
    /// A [`KeyedLimiter`](crate::KeyedLimiter) of rates settles only if it was built with
    /// [`settle_permits`](crate::KeyedLimiterBuilder::settle_permits).
    pub fn settle_by(
        mut self,
        actual_of: impl Fn(&response::Parts) -> Option<ActualCost> + Send + Sync + 'static,
    ) -> Self {
        self.common.actual = Some(Arc::new(actual_of));
        self
    }

    setters! { const:
        /// Puts an [`ActualCost`] into the extensions of each response, for a cost that only the body tells. The permit is settled, and
        /// its place released, when the body has ended or is dropped and no clone of the cost is left. Set the cost before that. A cost
        /// that [`settle_by`](Self::settle_by) finds comes first.
        ///
        /// ```
        /// use http_body_util::BodyExt;
        /// use tollgate::Limiter;
        /// use tollgate::layers::{ActualCost, OutboundLayer};
        /// # use std::convert::Infallible;
        /// # use http::{Request, Response};
        /// # use tower::{Layer, ServiceExt, service_fn};
        ///
        /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
        /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
        /// # let model = service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new("350".to_owned())));
        /// # let request = Request::new(String::new());
        /// let limiter = Limiter::new("100000 tokens/min")?;
        /// let client = OutboundLayer::new(limiter.clone()).cost_of("tokens", |_| 1_000).settle_later().layer(model);
        ///
        /// let mut response = client.oneshot(request).await?;
        /// let cost: ActualCost = response.extensions_mut().remove().unwrap_or_default();
        /// let usage = response.into_body().collect().await?.to_bytes(); // here the text of a number
        /// cost.set_of("tokens", std::str::from_utf8(&usage)?.parse()?);
        /// drop(cost);
        /// assert_eq!(limiter.limits()[0].remaining, 100_000 - 350);
        /// # Ok(())
        /// # }
        /// ```
        pub settle_later() => common.settles_later = true;

        /// Refunds the permit of a request that the upstream has denied with 429 (or by a rule that the [family](UpstreamFamily)
        /// adds), if the upstream does not count such requests. By default they stay charged. A 503 stays charged: the upstream may
        /// have carried out such a request in part.
        ///
        /// ```
        /// use tollgate::Limiter;
        /// use tollgate::layers::OutboundLayer;
        ///
        /// let layer = OutboundLayer::new(Limiter::new("100/min")?).refund_denied();
        /// # Ok::<(), tollgate::ConfigError>(())
        /// ```
        pub refund_denied() => common.refunds_denied = true;
    }

    /// Sets the cost of a request in a unit that limits [count](crate::Counts::Unit).
    ///
    /// # Quotas of units
    ///
    /// While a quota of the upstream in that unit is spent, the limiter is paused. Unit names are
    /// [compared](UpstreamAnswer::signal_for) whole: Anthropic's `input-tokens` is `input_tokens`, and is not `tokens`. So a
    /// spent quota of OpenAI's `project-tokens` does not hold back a limiter that counts `tokens`, until a request is denied for
    /// it: without a `Retry-After`, a denial pauses the limiter until all spent quotas are reset, whatever they count. To heed a
    /// quota whose unit no limit counts, give the unit a cost of 0: `.cost_of("project-tokens", |_| 0)`.
    ///
    /// ```
    /// use tollgate::Limiter;
    /// use tollgate::layers::{OutboundLayer, UpstreamFamily, UpstreamReader};
    ///
    /// #[derive(Clone)]
    /// struct Tokens(u64); // the caller sets it
    ///
    /// let layer = OutboundLayer::new(Limiter::new("500/min per request and 100000 tokens/min")?)
    ///     .upstream(UpstreamReader::new(UpstreamFamily::OpenAi))
    ///     .cost_of("tokens", |request| request.extensions.get().map_or(1_000, |Tokens(count)| *count));
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn cost_of(
        mut self,
        unit: &str,
        cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static,
    ) -> Self {
        self.common.costs.push((unit.into(), Arc::new(cost)));
        self
    }

    setters! { const:
        /// Releases the permit when the head of the response has arrived, and not after its body.
        ///
        /// ```
        /// use tollgate::layers::OutboundLayer;
        /// use tollgate::{Limiter, Throttle};
        /// # use std::time::Duration;
        ///
        /// let layer = OutboundLayer::new(Limiter::new(Throttle::every(Duration::from_millis(100)))?).until_head();
        /// # Ok::<(), tollgate::ConfigError>(())
        /// ```
        pub until_head() => common.until_head = true;
    }

    /// Sets the outcome that is [reported](crate::Permit::report) for each call, for a [concurrency that adapts](crate::Adapt).
    /// Defaults to [`ByStatus`]. The closure must name the error type of the inner service.
    ///
    /// ```
    /// use std::io;
    /// use http::StatusCode;
    /// use http::response::Parts;
    /// use tollgate::layers::OutboundLayer;
    /// use tollgate::{Adapt, Limiter, MaxConcurrency, Outcome};
    ///
    /// let limiter = Limiter::new(MaxConcurrency::new(20).adapt(Adapt::gradient()))?;
    /// let layer = OutboundLayer::new(limiter).classify(|answer: Result<&Parts, &io::Error>| match answer {
    ///     Ok(head) if head.status == StatusCode::SERVICE_UNAVAILABLE => Outcome::Overloaded,
    ///     Ok(head) if head.status.is_success() => Outcome::Ok,
    ///     Err(error) if error.kind() == io::ErrorKind::TimedOut => Outcome::Overloaded,
    ///     _ => Outcome::Ignored,
    /// });
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn classify<E, F>(self, classify: F) -> OutboundLayer<F, R>
    where
        F: Fn(Result<&response::Parts, &E>) -> Outcome,
    {
        OutboundLayer {
            common: self.common,
            classifier: classify,
            retry: self.retry,
        }
    }

    /// Sends a request again, up to `times` times, if the upstream has denied it with 429 (or by a rule that the
    /// [family](UpstreamFamily) adds). The request waits for another permit, and so for the end of the pause. No other failure is
    /// retried. Defaults to 0. The body must be `Clone`. See the [type's example](Self#examples).
    ///
    /// If it is known at once that the request gets no permit, the denial is returned: for instance if the pause is longer than
    /// the [timeout](Self::timeout). It is also returned if the [budget](RetryBudget) of the layer and its clones cannot pay for the
    /// retry: to an upstream that denies all requests, about one of ten is sent again.
    ///
    /// For other rules, see [`Retry`].
    pub fn retry(self, times: u32) -> OutboundLayer<C, Retry> {
        self.retry_with(times, Cloned)
    }

    /// Like [`retry`](Self::retry), with a closure that clones the body. If the closure returns `None`, the request is not
    /// retried.
    ///
    /// ```
    /// use tollgate::layers::OutboundLayer;
    /// use tollgate::{Limiter, MaxConcurrency};
    ///
    /// struct Body(Option<String>); // or a stream
    ///
    /// let layer = OutboundLayer::new(Limiter::new(MaxConcurrency::new(8))?)
    ///     .retry_with(3, |body: &Body| body.0.clone().map(|text| Body(Some(text))));
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn retry_with<F>(self, times: u32, clone: F) -> OutboundLayer<C, Retry<F>> {
        let Self {
            common, classifier, ..
        } = self;
        OutboundLayer {
            common,
            classifier,
            retry: Retry {
                times,
                unavailable: false,
                clone,
                budget: RetryBudget::new(),
            },
        }
    }
}

impl<C, F> OutboundLayer<C, Retry<F>> {
    /// Retries after 503, too. The upstream may have carried out such a request in part. Use this for upstreams that send 503
    /// only before they begin, or for requests that may be carried out twice.
    ///
    /// ```
    /// use tollgate::layers::OutboundLayer;
    /// use tollgate::{Limiter, MaxConcurrency};
    ///
    /// let layer = OutboundLayer::new(Limiter::new(MaxConcurrency::new(8))?).retry(3).retry_unavailable();
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn retry_unavailable(mut self) -> Self {
        self.retry.unavailable = true;
        self
    }

    /// Sets the budget that pays for retries. Defaults to one of its own, which the clones of the layer share. See [`RetryBudget`] for
    /// an example.
    pub fn retry_budget(mut self, budget: RetryBudget) -> Self {
        self.retry.budget = budget;
        self
    }
}

impl OutboundCommon {
    /// The limiter for a request, and the options with which it is asked.
    fn plan(&self, parts: &Parts) -> Result<(Limiter, RequestOptions), AcquireError> {
        let limiter = (self.limiter_of)(parts).map_err(|error| match error {
            TryAcquireError::TooManyKeys { max } => AcquireError::TooManyKeys { max },
            TryAcquireError::Config(error) => AcquireError::Config(error),
            _ => AcquireError::Closed,
        })?;
        let mut options = self.options.clone();
        if let Some(cost) = &self.cost {
            options.cost = cost(parts);
        }
        for (unit, cost) in &self.costs {
            options.set_cost_of(unit, cost(parts));
        }
        Ok((limiter, options))
    }

    /// Applies the limits that the upstream reports to the limiter.
    fn heed(&self, answer: &UpstreamAnswer<'_>, limiter: &Limiter) {
        limiter.apply_upstream_signal(&answer.signal());
        // The rest of a quota in another unit must not be spread over requests.
        let pauses = self
            .costs
            .iter()
            .filter_map(|(unit, _)| answer.signal_for(unit).pause());
        pauses.for_each(|pause| limiter.pause_for(pause));
        // The signal above has reported the first malformed field.
        for field in answer.malformed().iter().skip(1) {
            limiter.apply_upstream_signal(&UpstreamSignal::new().malformed(field));
        }
    }

    /// What the permit is settled by, if it is settled. An answer to a request that is sent `again` is kept meanwhile, and its clone
    /// of the cost must not hold the place.
    fn settled_by(&self, head: &mut response::Parts, again: bool) -> Option<SettledBy> {
        let known = self.actual.as_ref().and_then(|actual_of| actual_of(head));
        if !self.settles_later {
            return known.map(SettledBy::AtEnd);
        }
        let actual = known.unwrap_or_default();
        head.extensions.insert(actual.clone());
        Some(if again {
            SettledBy::AtEnd(actual)
        } else {
            SettledBy::LastClone(actual)
        })
    }
}

fn host_of(parts: &Parts) -> String {
    let of_field = || {
        parts
            .headers
            .get(http::header::HOST)
            .and_then(|host| host.to_str().ok())
            .map(str::to_owned)
    };
    // `host` leaves out the user and the password. A port may have leading zeros, or be empty.
    let of_uri = parts.uri.authority().map(|authority| {
        let own_port = match parts.uri.scheme_str() {
            Some("http") => Some(80),
            Some("https") => Some(443),
            _ => None,
        };
        let host = authority.host();
        let host = host.strip_suffix('.').unwrap_or(host); // a trailing dot names the same host
        match authority.port_u16().filter(|port| Some(*port) != own_port) {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        }
    });
    let mut host = of_uri.or_else(of_field).unwrap_or_default();
    host.make_ascii_lowercase();
    host
}

debug_fields! { [C, R] OutboundLayer<C, R>, |layer| until_head = layer.common.until_head }

/// A service whose requests wait for a limiter. Made by an [`OutboundLayer`], which has an example.
///
/// The service is ready when the inner service is. What the inner service reserves when it is ready stays reserved while the
/// request waits for its permit.
#[derive(Debug)]
pub struct OutboundService<S, C = ByStatus, R = NoRetry> {
    inner: S,
    layer: Arc<OutboundLayer<C, R>>,
}

/// Not derived, because `C` and `R` need not be `Clone`.
impl<S: Clone, C, R> Clone for OutboundService<S, C, R> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            layer: Arc::clone(&self.layer),
        }
    }
}

impl<S, C: Clone, R: Clone> Layer<S> for OutboundLayer<C, R> {
    type Service = OutboundService<S, C, R>;

    fn layer(&self, inner: S) -> Self::Service {
        OutboundService {
            inner,
            layer: Arc::new(self.clone()),
        }
    }
}

impl<S, B, A, C, R> Service<Request<B>> for OutboundService<S, C, R>
where
    S: Service<Request<B>, Response = Response<A>> + Clone,
    A: Body,
    C: OutboundClassifier<S::Error>,
    R: OutboundRetry<B>,
{
    type Response = Response<PermitBody<A>>;
    type Error = OutboundError<S::Error>;
    type Future = OutboundFuture<S, B, A, C, R>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(OutboundError::Service)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let layer = Arc::clone(&self.layer);
        let (parts, body) = request.into_parts();
        let reader = (layer.common.reader_of)(&parts);
        let plan = layer.common.plan(&parts);
        if let Some(budget) = layer.retry.budget() {
            budget.note_request();
        }
        // The clone is not ready, so it stays here, and the ready service takes the call.
        let clone = self.inner.clone();
        OutboundFuture {
            stage: OutboundStage::Asking,
            inner: mem::replace(&mut self.inner, clone),
            reader,
            request: Some(Request::from_parts(parts, body)),
            retries: layer.retry.times(),
            plan,
            denied: None,
            layer,
        }
    }
}

/// The future of an [`OutboundService`].
///
/// # Cancel safety
///
/// Dropping the future drops the inner call and then releases the permit. A request that still waits leaves the queue.
#[pin_project]
#[must_use = "futures do nothing unless polled"]
pub struct OutboundFuture<S: Service<Request<B>>, B, A, C, R> {
    #[pin]
    stage: OutboundStage<S::Future>,
    inner: S,
    layer: Arc<OutboundLayer<C, R>>,
    reader: UpstreamReader,
    /// The request to send next.
    request: Option<Request<B>>,
    /// How many times the request may still be sent again.
    retries: u32,
    /// Which limiter is asked, and for what.
    plan: Result<(Limiter, RequestOptions), AcquireError>,
    /// The denial that is returned if there is no permit for a retry.
    denied: Option<Response<PermitBody<A>>>,
}

#[pin_project(project = OutboundStageNow)]
enum OutboundStage<F> {
    Asking,
    Acquiring(AcquireOwned),
    Readying(Option<Permit>),
    /// The call is dropped before its permit.
    Calling(#[pin] F, Option<Permit>),
    Done,
}

impl<S, B, A, C, R> Future for OutboundFuture<S, B, A, C, R>
where
    S: Service<Request<B>, Response = Response<A>>,
    A: Body,
    C: OutboundClassifier<S::Error>,
    R: OutboundRetry<B>,
{
    type Output = Result<Response<PermitBody<A>>, OutboundError<S::Error>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.stage.as_mut().project() {
                OutboundStageNow::Asking => match this.plan {
                    Ok((_, options)) if options.cost == 0 => {
                        drop(this.denied.take()); // others can use its connection
                        this.stage.set(OutboundStage::Readying(None));
                    }
                    Ok((limiter, options)) => {
                        let manager = Arc::clone(limiter.manager());
                        let acquire = AcquireOwned::new(manager, options.clone());
                        this.stage.set(OutboundStage::Acquiring(acquire));
                    }
                    Err(error) => {
                        this.stage.set(OutboundStage::Done);
                        return Poll::Ready(Err(OutboundError::Acquire(error.clone())));
                    }
                },
                OutboundStageNow::Acquiring(acquire) => {
                    let acquired = Pin::new(acquire).poll(cx);
                    let denied = this.denied.take(); // others can use its connection while this request waits
                    match ready!(acquired) {
                        Ok(permit) => this.stage.set(OutboundStage::Readying(Some(permit))),
                        Err(error) => {
                            this.stage.set(OutboundStage::Done);
                            let retry = &this.layer.retry;
                            if *this.retries < retry.times()
                                && let Some(budget) = retry.budget()
                            {
                                budget.give_back(); // the request is not sent again
                            }
                            return Poll::Ready(denied.ok_or(OutboundError::Acquire(error)));
                        }
                    }
                }
                OutboundStageNow::Readying(permit) => {
                    // The service is ready already, except before a retry.
                    let ready = ready!(this.inner.poll_ready(cx));
                    let (permit, request) = (permit.take(), this.request.take());
                    this.stage.set(OutboundStage::Done);
                    ready.map_err(OutboundError::Service)?;
                    let Some(request) = request else { continue };
                    let (head, body) = request.into_parts();
                    if *this.retries > 0 {
                        let copy = this.layer.retry.clone_body(&body);
                        *this.request = copy.map(|body| Request::from_parts(head.clone(), body));
                    }
                    let future = this.inner.call(Request::from_parts(head, body));
                    this.stage.set(OutboundStage::Calling(future, permit));
                }
                OutboundStageNow::Calling(future, permit) => {
                    let answer = ready!(future.poll(cx));
                    let mut permit = permit.take();
                    this.stage.set(OutboundStage::Done);
                    let (mut head, body) = match answer {
                        Ok(response) => response.into_parts(),
                        Err(error) => {
                            let outcome = this.layer.classifier.classify(Err(&error));
                            HeldPermit::new(&mut permit, None, || outcome).complete();
                            return Poll::Ready(Err(OutboundError::Service(error)));
                        }
                    };
                    let outcome = this.layer.classifier.classify(Ok(&head));
                    let status = grpc::http_status(head.status, &head.headers);
                    let answer = this.reader.read(status, &head.headers, SystemTime::now());
                    // The pause begins before the permit is released, so that no other request gets the permit.
                    if let Ok((limiter, _)) = this.plan {
                        this.layer.common.heed(&answer, limiter);
                    }
                    let is_limited = answer.is_limited();
                    let (common, retry) = (&this.layer.common, &this.layer.retry);
                    let again = is_limited
                        && retry.retries(status)
                        && this.request.is_some()
                        && retry.budget().is_none_or(RetryBudget::pay);
                    if let Some(budget) = retry.budget().filter(|_| outcome == Outcome::Ok) {
                        budget.note_success();
                    }
                    let is_refunded = is_limited
                        && common.refunds_denied
                        && status != StatusCode::SERVICE_UNAVAILABLE;
                    if is_refunded && let Some(permit) = permit.take() {
                        permit.end(Actual::Nothing, Some(outcome));
                    }
                    let settled_by = common.settled_by(&mut head, again);
                    let held = HeldPermit::new(&mut permit, settled_by, || outcome);
                    let until_head = again || common.until_head;
                    let body = PermitBody::of_answer(&head.headers, body, held, until_head);
                    let response = Response::from_parts(head, body);
                    if !again {
                        return Poll::Ready(Ok(response));
                    }
                    *this.retries -= 1;
                    *this.denied = Some(response);
                    this.stage.set(OutboundStage::Asking);
                }
                OutboundStageNow::Done => {
                    panic!("an outbound future was polled after it had completed")
                }
            }
        }
    }
}

debug_fields! {
    [S: Service<Request<B>>, B, A, C, R] OutboundFuture<S, B, A, C, R>,
    |future| plan = future.plan, retries = future.retries
}

/// Classifies the calls to an inner service with the error `E`: [`ByStatus`], or a closure for
/// [`OutboundLayer::classify`], which has an example.
pub trait OutboundClassifier<E> {
    /// The outcome to report for a response with this head, or for an error.
    fn classify(&self, answer: Result<&response::Parts, &E>) -> Outcome;
}

/// Classifies by the status. 408, 429, 503, 504 and 529 are [overloads](Outcome::Overloaded), and so is an error of the inner
/// service, usually a timeout or a failed connection. Other statuses from 400 on are [ignored](Outcome::Ignored), and the rest is
/// [`Outcome::Ok`]. A `grpc-status` in the head counts as the equivalent HTTP status: 14 (`UNAVAILABLE`) as 503.
///
/// ```
/// use http::Response;
/// use tollgate::Outcome;
/// use tollgate::layers::{ByStatus, OutboundClassifier};
///
/// let (head, ()) = Response::builder().status(503).body(()).unwrap().into_parts();
/// assert_eq!(ByStatus.classify(Ok::<_, &()>(&head)), Outcome::Overloaded);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ByStatus;

impl<E> OutboundClassifier<E> for ByStatus {
    fn classify(&self, answer: Result<&response::Parts, &E>) -> Outcome {
        outcome_of(
            answer
                .ok()
                .map(|head| grpc::http_status(head.status, &head.headers)),
        )
    }
}

impl<E, F: Fn(Result<&response::Parts, &E>) -> Outcome> OutboundClassifier<E> for F {
    fn classify(&self, answer: Result<&response::Parts, &E>) -> Outcome {
        self(answer)
    }
}

/// Why a request got no response. Its text is that of the inner error.
///
/// ```
/// use std::io;
/// use tollgate::AcquireError;
/// use tollgate::layers::OutboundError;
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
    /// use tollgate::layers::OutboundError;
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
