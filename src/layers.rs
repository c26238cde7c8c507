//! Rate limits in HTTP: layers for tower, and the parts that they are built from. This module needs the feature `http`.
//!
//! | you want | use |
//! |---|---|
//! | limits in front of a tower service: an axum, hyper or tonic server | [`LimitLayer`] |
//! | limits for the requests of a client, which also follow the limits that upstreams report | [`OutboundLayer`] |
//! | the address of the client, also behind proxies, as the key of a [`KeyedLimiter`](crate::KeyedLimiter) | [`ClientIp`] |
//! | another key: a header, a token, anything in a request | [`HeaderKey`], any [`Identity`] |
//! | to report limits in header fields and in the body of a denial | [`RateLimitFields`] |
//! | to read the limits that an upstream reports | [`UpstreamReader`] |
//!
//! The layers are built from the other types, which can be used without a layer: [`ClientIp`], [`RateLimitFields`] and
//! [`UpstreamReader`] need no runtime and read no clock.
//!
//! # Quick start
//!
//! A server: each client has a hundred requests a minute on average, and eight at the same time. Further requests are answered with
//! 429, and every response shows what is left.
//!
//! ```
//! use std::net::SocketAddr;
//! use axum::{Router, extract::ConnectInfo, routing::get};
//! use tollgate::KeyedLimiter;
//! use tollgate::layers::{ClientIp, LimitLayer};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let client_ip = ClientIp::behind_networks(["10.0.0.0/8"])? // your proxies; or `ClientIp::peer()`
//!     .peer_from(|extensions| extensions.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0));
//! let per_client = LimitLayer::new(KeyedLimiter::new("8 concurrent and 100/min")?).by(client_ip);
//! let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(per_client);
//! // Serve it with `app.into_make_service_with_connect_info::<SocketAddr>()`; otherwise each request is answered with 403.
//! # Ok(())
//! # }
//! ```
//!
//! A client: at most eight requests to each host at the same time, and none while the host asks to wait. The layer wraps a
//! hyper client, a reqwest client, or any other tower service:
//!
//! ```
//! use std::time::Duration;
//! use hyper_util::{client::legacy::Client, rt::TokioExecutor};
//! use tollgate::KeyedLimiter;
//! use tollgate::layers::OutboundLayer;
//! use tower::Layer;
//!
//! # fn main() -> Result<(), tollgate::ConfigError> {
//! let per_host = OutboundLayer::by_host(KeyedLimiter::new("8 concurrent")?)
//!     .timeout(Duration::from_secs(30))
//!     .retry(2);
//! let client = per_host.layer(Client::builder(TokioExecutor::new()).build_http::<String>());
//! // client.clone().oneshot(request).await?
//! # Ok(())
//! # }
//! ```
//!
//! # The order of layers
//!
//! A request goes through the outermost layer first. If an inner layer refuses a request, the outer ones
//! [undo its charge](LimitLayer#stacked-layers). From the outside in:
//!
//! 1. A CORS layer, if browsers on pages of other origins must see the headers: it exposes them, and answers preflight requests, so
//!    that they are not counted.
//! 2. A [`Penalty`](crate::Penalty) by address, with [`penalize`](LimitLayer::penalize): a banned client reaches no other layer,
//!    and failed logins in inner layers are charged.
//! 3. The capacity of the server, for all clients together: a [`MaxConcurrency`](crate::MaxConcurrency), which may
//!    [adapt](crate::Adapt). This layer comes before authentication, which takes capacity, too.
//! 4. Authentication, which puts the user into the extensions of the request.
//! 5. A stricter limit for expensive routes.
//! 6. The limit of the user's plan, keyed [by](LimitLayer::by) that extension.
//!
//! In axum's `Router` the layer that is added last is the outermost; in tower's `ServiceBuilder` it is the layer that is added first. Give
//! each layer a [name](LimitLayer::name).
//!
//! # Further
//!
//! Telemetry for operators is in the module `telemetry`, with the features `tracing` and `metrics`. The repository has these examples:
//!
//! - `examples/api_server`: the layers in this order, in two processes that share the limits of the users.
//! - `examples/reqwest_layer.rs`: an [`OutboundLayer`] around reqwest.
//! - `examples/dashboard`: live charts of limiters.

mod actual_cost;
mod admission;
mod answer;
mod body;
mod client_ip;
mod fields;
mod grpc;
mod identity;
mod layer;
mod outbound;
mod service;
mod terms;
mod upstream;

pub use actual_cost::ActualCost;
pub use admission::{Admits, ChosenLimiter, IntoLimiter, StoreKey};
pub use answer::Refusal;
pub use body::{LimitBody, PermitBody};
pub use client_ip::{ClientIp, ClientIpError, ForwardedHeader, NoClientIp};
pub use fields::{FieldValues, PolicyNameError, ProblemType, RateLimitFields, RateLimitStyle};
pub use identity::{
    ClientAddress, FoundKey, HeaderKey, Identifies, Identity, KeyedBy, KeyedByAsync, NoIdentity,
    NoKey, OrShared,
};
pub use layer::LimitLayer;
#[cfg(feature = "reqwest")]
pub use outbound::ReqwestClient;
pub use outbound::{
    ByStatus, Cloned, NoRetry, OutboundClassifier, OutboundError, OutboundFuture, OutboundLayer,
    OutboundRetry, OutboundService, Retry, RetryBudget,
};
pub use service::{LimitFuture, LimitService};
pub use upstream::{ResetFormat, UpstreamAnswer, UpstreamFamily, UpstreamQuota, UpstreamReader};
