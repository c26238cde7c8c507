//! Rate limits in HTTP. It needs the feature `http`.
//!
//! A [`LimitLayer`] puts limits in front of a service of tower. Its parts can be used alone, too:
//!
//! A server finds the address of the client that asks with [`ClientIp`], also behind proxies, as the key of a
//! [`KeyedLimiter`](crate::KeyedLimiter). It says in header fields what its limits allow: [`RateLimitFields`] writes them, and the body of
//! a denial. A client reads them with an [`UpstreamReader`] and slows its own limiter down; an [`OutboundLayer`] around a service of
//! tower does all of that. The other parts read no clock and need no runtime.

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
