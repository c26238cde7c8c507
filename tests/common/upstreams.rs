//! The families of upstreams, and when their answers arrive.
#![allow(dead_code, unreachable_pub)] // each file uses its part

use std::time::{Duration, SystemTime};

use tollgate::http::{ResetFormat, UpstreamFamily};

/// Mon, 23 Nov 2026 01:00:00 GMT
pub const NOW: u64 = 1_795_395_600;

pub fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(NOW)
}

pub const FAMILIES: [UpstreamFamily; 17] = [
    UpstreamFamily::RetryAfter,
    UpstreamFamily::Draft10,
    UpstreamFamily::Draft7,
    UpstreamFamily::Draft6,
    UpstreamFamily::XRateLimit(ResetFormat::Seconds),
    UpstreamFamily::XRateLimit(ResetFormat::UnixSeconds),
    UpstreamFamily::XRateLimit(ResetFormat::UnixMillis),
    UpstreamFamily::XRateLimit(ResetFormat::GoDuration),
    UpstreamFamily::XRateLimit(ResetFormat::Rfc3339),
    UpstreamFamily::GitHub,
    UpstreamFamily::GitLab,
    UpstreamFamily::Twitter,
    UpstreamFamily::OpenAi,
    UpstreamFamily::AzureOpenAi,
    UpstreamFamily::Anthropic,
    UpstreamFamily::Discord,
    UpstreamFamily::Shopify,
];
