//! What can be set on every layer.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};

use super::LimitLayer;
use crate::http::answer::Refusal;
use crate::http::fields::{PolicyNameError, RateLimitFields, RateLimitStyle};
use crate::strategy::{MAX_SPAN_NANOS, Outcome};

impl<L, I> LimitLayer<L, I> {
    /// Gives the limits a name in the fields, by default `default`. Layers that are stacked need different names, and
    /// one [style](Self::style). The tiers of one layer share its name: a client sees only the quota of its own tier.
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

    /// In which fields the limits are told. With [`RateLimitStyle::None`] there is only a `Retry-After`, and a decision is faster.
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
        self
    }

    /// What each request takes: 1 to the smallest [capacity](crate::Limit::capacity) of the limits. Defaults to 1. With 0, every request
    /// is answered with 500, and with more than the capacity with 413.
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
    pub fn cost(mut self, units: u64) -> Self {
        self.options.cost = units;
        self
    }

    /// Lets a request wait for its permit, at most this long; a time above 100 years counts as 100 years. One that is known to
    /// wait longer is refused at once. Bound the [queue](crate::LimiterBuilder::max_queue), too, which by default is not: a request
    /// that finds it full is answered with 503. A [`Penalty`](crate::Penalty) counts no attempt that may wait: it belongs into a layer of its own, without this.
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
    pub fn wait(mut self, at_most: Duration) -> Self {
        self.options.wait = Some(at_most.min(Duration::from_nanos(MAX_SPAN_NANOS)));
        self
    }

    /// Releases the permit when the head of the answer is there, and not at the end of its body: for long downloads that take no
    /// capacity.
    ///
    /// ```
    /// use tollgate::http::LimitLayer;
    /// use tollgate::{Limiter, MaxConcurrency};
    ///
    /// let layer = LimitLayer::new(Limiter::new(MaxConcurrency::new(8))?).until_head();
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn until_head(mut self) -> Self {
        self.options.until_head = true;
        self
    }

    /// Adds a random time of 0 to `max`, any duration, to each `Retry-After`, so that refused clients do not all come back at once.
    /// Defaults to none.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::Limiter;
    /// use tollgate::http::LimitLayer;
    ///
    /// let layer = LimitLayer::new(Limiter::new("100/min")?).retry_jitter(Duration::from_secs(5));
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn retry_jitter(mut self, max: Duration) -> Self {
        self.options.jitter = Some(max);
        self
    }

    /// Answers refusals by a function of your own. The layer adds its fields to the answer. To log a refusal, or to add something to the
    /// default answer, begin with [`Refusal::response`].
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
    /// The function answers calls of gRPC too, which without it are [answered in gRPC](LimitLayer#what-a-client-is-told). In front of a server
    /// of gRPC, begin with [`Refusal::grpc_response`], or answer with a status of tonic's:
    ///
    /// ```ignore
    /// let layer = layer.on_refusal(|refusal| tonic::Status::new(refusal.grpc_code().into(), refusal.to_string()).into_http());
    /// ```
    pub fn on_refusal(mut self, respond: impl Fn(&Refusal) -> Response<Bytes> + Send + Sync + 'static) -> Self {
        self.options.respond = Some(Arc::new(respond));
        self
    }

    /// Says how a call went, by the status of its answer, to a concurrency that [adapts](crate::Adapt); `None`: the service failed
    /// with an error.
    ///
    /// By default 408, 429, 503, 504 and an error are [overloads](Outcome::Overloaded). Other statuses from 400 on say
    /// [nothing](Outcome::Ignored) about the load, and the rest is [`Outcome::Ok`]. The 429 of a layer further in is an overload, too:
    /// where that layer limits clients, say that it is ignored.
    ///
    /// An answer of gRPC without a message, such as an error of a unary call or a refusal of a layer further in, has its `grpc-status` in the
    /// head; the function gets the status of HTTP for which it stands, such as 429 for `RESOURCE_EXHAUSTED`. A status that follows messages,
    /// in the trailers, is not seen.
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
    pub fn classify(mut self, outcome_of: impl Fn(Option<StatusCode>) -> Outcome + Send + Sync + 'static) -> Self {
        self.options.classify = Arc::new(outcome_of);
        self
    }

    /// Charges the key so many units, by the status of the service's answer; 0 charges nothing. For gRPC it is the status as in
    /// [`classify`](Self::classify). See
    /// [`KeyedLimiter::penalize`](crate::KeyedLimiter::penalize), and [`SharedLimiter::penalize`](crate::SharedLimiter::penalize), by which all
    /// processes know of it. What the layer itself refuses is not charged: a [`Penalty`](crate::Penalty) counts denied attempts by itself.
    ///
    /// Requests that are under way are not stopped: with a [`MaxConcurrency`](crate::MaxConcurrency) in the policy no client can try a
    /// thousand passwords at once. The fields of an answer that is charged say what was left before.
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
    pub fn penalize(mut self, units_for: impl Fn(StatusCode) -> u64 + Send + Sync + 'static) -> Self {
        self.options.penalty = Some(Arc::new(units_for));
        self
    }
}
