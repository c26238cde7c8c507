//! Rate limits in HTTP. It needs the feature `http`.
//!
//! | you want | use |
//! |---|---|
//! | limits in front of a service of tower: a server of axum, hyper or tonic | [`LimitLayer`] |
//! | limits for the requests of a client, and to heed what upstreams say | [`OutboundLayer`] |
//! | the address of the client that asks, also behind proxies, as the key of a [`KeyedLimiter`](crate::KeyedLimiter) | [`ClientIp`] |
//! | another key: of a header, a token, anything in a request | [`HeaderKey`], any [`Identity`] |
//! | to say what limits allow, in header fields and in the body of a denial | [`RateLimitFields`] |
//! | to read what an upstream says of its limits | [`UpstreamReader`] |
//!
//! The layers are made of the others, which can be used without them: [`ClientIp`], [`RateLimitFields`] and [`UpstreamReader`] need no
//! runtime and read no clock. `use tollgate::http;` hides the crate `http`: name the types of this module instead.

mod admission;
mod answer;
mod body;
mod client_ip;
mod fields;
mod identity;
mod layer;
mod outbound;
mod outcome;
mod upstream;

pub use admission::{Admits, Chosen, StoreKey};
pub use answer::Refusal;
pub use body::{LimitBody, PermitBody};
pub use client_ip::{ClientIp, ClientIpError, ForwardedHeader, NoClientIp};
pub use fields::{FieldValues, PolicyNameError, ProblemType, RateLimitFields, RateLimitStyle};
pub use identity::{By, ByFuture, ClientAddress, Everyone, HeaderKey, Identifies, Identity, OrShared};
pub use layer::{LimitFuture, LimitLayer, LimitService};
pub use outbound::{
    ByStatus, Cloned, NoRetry, OutboundClassifier, OutboundError, OutboundFuture, OutboundLayer, OutboundRetry, OutboundService,
    Retry,
};
pub use upstream::{ResetFormat, UpstreamAnswer, UpstreamFamily, UpstreamQuota, UpstreamReader};
