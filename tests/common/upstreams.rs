//! The families of upstreams with the fields that they send, and when their answers arrive.
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

/// All fields that are read for a family. Inputs of the fuzzers choose them by their position.
pub const FIELDS: [&str; 42] = [
    "retry-after",
    "retry-after-ms",
    "date",
    "age",
    "ratelimit",
    "ratelimit-policy",
    "ratelimit-limit",
    "ratelimit-remaining",
    "ratelimit-reset",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "x-ratelimit-resource",
    "x-ratelimit-bucket",
    "x-ratelimit-reset-after",
    "x-rate-limit-limit",
    "x-rate-limit-remaining",
    "x-rate-limit-reset",
    "x-ratelimit-limit-requests",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-requests",
    "x-ratelimit-limit-tokens",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-tokens",
    "x-ratelimit-limit-project-tokens",
    "x-ratelimit-remaining-project-tokens",
    "x-ratelimit-reset-project-tokens",
    "anthropic-ratelimit-requests-limit",
    "anthropic-ratelimit-requests-remaining",
    "anthropic-ratelimit-requests-reset",
    "anthropic-ratelimit-tokens-limit",
    "anthropic-ratelimit-tokens-remaining",
    "anthropic-ratelimit-tokens-reset",
    "anthropic-ratelimit-input-tokens-limit",
    "anthropic-ratelimit-input-tokens-remaining",
    "anthropic-ratelimit-input-tokens-reset",
    "anthropic-ratelimit-output-tokens-limit",
    "anthropic-ratelimit-output-tokens-remaining",
    "anthropic-ratelimit-output-tokens-reset",
    "anthropic-ratelimit-unified-status",
    "anthropic-ratelimit-unified-reset",
    "x-shopify-shop-api-call-limit",
];
