//! The styles of header fields that `RateLimitFields` can write.

/// The header fields in which a server says what its limits allow. There is no standard yet: each client knows some of them. See
/// [`RateLimitFields`](super::RateLimitFields) for an example.
///
/// With every style, a denial whose wait is known has a `Retry-After` (RFC 9110, section 10.2.3), and a reset is the
/// [`t`](super::RateLimitFields#numbers) of draft-10.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RateLimitStyle {
    /// draft-ietf-httpapi-ratelimit-headers-10 (September 2025): every limit is an item of two lists.
    ///
    /// ```text
    /// RateLimit-Policy: "api";q=100;w=60
    /// RateLimit: "api";r=42;t=30
    /// ```
    #[default]
    Draft10,
    /// draft -07: a dictionary about the [tightest](super::RateLimitFields#one-limit) limit, and a list of all windows.
    ///
    /// ```text
    /// RateLimit-Policy: 100;w=60
    /// RateLimit: limit=100, remaining=42, reset=30
    /// ```
    Draft7,
    /// drafts -00 to -06: three fields about the tightest limit.
    ///
    /// ```text
    /// RateLimit-Limit: 100
    /// RateLimit-Remaining: 42
    /// RateLimit-Reset: 30
    /// ```
    Draft6,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset` about the tightest limit, the reset in seconds.
    XSeconds,
    /// The same, with the reset as the instant in seconds since the Unix epoch.
    XUnix,
    /// Only the `Retry-After` of a denial. That of an inner layer stays as it is. Grants are not explained, which saves time.
    None,
}
