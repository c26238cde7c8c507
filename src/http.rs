//! Rate limits in HTTP. It needs the feature `http`.
//!
//! A server finds the address of the client that asks with [`ClientIp`], also behind proxies, as the key of a
//! [`KeyedLimiter`](crate::KeyedLimiter). It says in header fields what its limits allow: [`RateLimitFields`] writes them, and the body of
//! a denial. A client reads them with an [`UpstreamReader`] and slows its own limiter down. None of these reads a clock or needs a
//! runtime.

mod body;
mod client_ip;
mod fields;
mod upstream;

pub use body::PermitBody;
pub use client_ip::{ClientIp, ClientIpError, ForwardedHeader, NoClientIp};
pub use fields::{FieldValues, PolicyNameError, ProblemType, RateLimitFields, RateLimitStyle};
pub use upstream::{ResetFormat, UpstreamAnswer, UpstreamFamily, UpstreamQuota, UpstreamReader};
