//! What HTTP servers need around a limiter.
//!
//! [`ClientIp`] finds the address of the client that asks, also behind proxies, as the key of a
//! [`KeyedLimiter`](crate::KeyedLimiter).

mod client_ip;

pub use client_ip::{ClientIp, ClientIpError, ForwardedHeader, NoClientIp};
