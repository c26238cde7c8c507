//! The client side: a layer that obeys a limiter and the limits that the upstream reports.

mod classify;
mod error;
mod retry;
mod service;

use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;

use super::admission::Admits;
use super::upstream::{UpstreamAnswer, UpstreamFamily, UpstreamReader};
use crate::error::{AcquireError, TryAcquireError};
use crate::limiter::{AnyLimiter, Limiter};
use crate::manager::RequestOptions;
use crate::strategy::{MAX_SPAN_NANOS, Outcome};
use crate::upstream::UpstreamSignal;

pub use classify::{ByStatus, OutboundClassifier};
pub use error::OutboundError;
pub use retry::{Cloned, NoRetry, OutboundRetry, Retry};
pub use service::{OutboundFuture, OutboundService};

/// A tower [`Layer`](tower_layer::Layer) for HTTP clients: each request waits for a permit, and the limits that the upstream
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
/// use tollgate::http::{OutboundLayer, UpstreamFamily, UpstreamReader};
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
/// use tollgate::http::OutboundLayer;
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
/// A `reqwest::Client` is a service with its own request and response types, which convert from and to the types of `http`:
///
/// ```ignore
/// let client = tower::service_fn(move |request: http::Request<reqwest::Body>| {
///     let client = client.clone();
///     async move { Ok::<_, reqwest::Error>(client.execute(request.try_into()?).await?.into()) }
/// });
/// let limited = OutboundLayer::by_host(per_host).layer(client); // its errors are OutboundError<reqwest::Error>
/// let (head, body) = limited.oneshot(request).await?.into_parts();
/// let response = reqwest::Response::from(http::Response::from_parts(head, reqwest::Body::wrap(body)));
/// ```
///
/// The example `reqwest_layer` has the whole program. Turn redirects off (`reqwest::redirect::Policy::none()`): the client would
/// follow them inside the service, without a permit for the host that they lead to. The layers of
/// `reqwest::ClientBuilder::connector_layer` see connections, not requests.
#[derive(Clone)]
#[must_use = "a layer does nothing until it wraps a service"]
pub struct OutboundLayer<C = ByStatus, R = NoRetry> {
    common: OutboundCommon,
    classifier: C,
    retry: R,
}

type LimiterOf = dyn Fn(&Parts) -> Result<Limiter, TryAcquireError> + Send + Sync;

type CostOf = dyn Fn(&Parts) -> u64 + Send + Sync;

/// The options of a layer that do not depend on the types of the inner service.
#[derive(Clone)]
struct OutboundCommon {
    limiter_of: Arc<LimiterOf>,
    reader_of: Arc<dyn Fn(&Parts) -> UpstreamReader + Send + Sync>,
    costs: Vec<(Arc<str>, Arc<CostOf>)>,
    options: RequestOptions,
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
    pub fn by_host(limiter: impl Admits<String> + Send + Sync + 'static) -> Self {
        Self::by_key(limiter, host_of)
    }

    /// Limits each key that the closure returns. To use a value of the body as the key, put it into the
    /// [extensions](http::Extensions). The key of a [`SharedLimiter`](crate::SharedLimiter) is a [`StoreKey`](super::StoreKey).
    ///
    /// ```
    /// use tollgate::http::OutboundLayer;
    /// use tollgate::{KeyedLimiter, MaxConcurrency};
    ///
    /// let per_path = KeyedLimiter::<String>::new(MaxConcurrency::new(8))?;
    /// let layer = OutboundLayer::by_key(per_path, |request| request.uri.path().to_owned());
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[track_caller]
    pub fn by_key<K>(
        limiter: impl Admits<K> + Send + Sync + 'static,
        key_of: impl Fn(&Parts) -> K + Send + Sync + 'static,
    ) -> Self {
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
        /// use tollgate::http::{OutboundLayer, UpstreamFamily, UpstreamReader};
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
    /// use tollgate::http::{OutboundLayer, UpstreamFamily, UpstreamReader};
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
        /// use tollgate::http::OutboundLayer;
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
    /// use tollgate::http::OutboundLayer;
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
        F: Fn(Result<&http::response::Parts, &E>) -> Outcome,
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
    /// the [timeout](Self::timeout).
    ///
    /// For other rules, see [`Retry`].
    pub fn retry(self, times: u32) -> OutboundLayer<C, Retry> {
        self.retry_with(times, Cloned)
    }

    /// Like [`retry`](Self::retry), with a closure that clones the body. If the closure returns `None`, the request is not
    /// retried.
    ///
    /// ```
    /// use tollgate::http::OutboundLayer;
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
            },
        }
    }
}

impl<C, F> OutboundLayer<C, Retry<F>> {
    /// Retries after 503, too. The upstream may have carried out such a request in part. Use this for upstreams that send 503
    /// only before they begin, or for requests that may be carried out twice.
    ///
    /// ```
    /// use tollgate::http::OutboundLayer;
    /// use tollgate::{Limiter, MaxConcurrency};
    ///
    /// let layer = OutboundLayer::new(Limiter::new(MaxConcurrency::new(8))?).retry(3).retry_unavailable();
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn retry_unavailable(mut self) -> Self {
        self.retry.unavailable = true;
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
