/// Whose fields an [`UpstreamReader`](super::UpstreamReader) reads. Names and meanings differ so much that it has to be said: a
/// field with the name `x-ratelimit-reset` has five meanings, and HTTP/2 takes away the case that would tell some names apart.
///
/// Each quota has a [unit](crate::http::UpstreamQuota::unit), by which it is told to a limiter: see
/// [`OutboundLayer::cost_of`](crate::http::OutboundLayer::cost_of). Where none is named here, it is `requests`.
///
/// With every family `Retry-After` is read too, and for an upstream that sends nothing else (Stripe) there is
/// [`RetryAfter`](Self::RetryAfter).
///
/// # Examples
///
/// ```
/// use tollgate::http::{ResetFormat, UpstreamFamily};
///
/// let family = match "api.github.com" {
///     "api.github.com" => UpstreamFamily::GitHub,
///     "api.openai.com" => UpstreamFamily::OpenAi,
///     _ => UpstreamFamily::XRateLimit(ResetFormat::Seconds),
/// };
/// assert_eq!(family, UpstreamFamily::GitHub);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum UpstreamFamily {
    /// `Retry-After` alone (RFC 9110, section 10.2.3).
    RetryAfter,
    /// The lists `RateLimit` and `RateLimit-Policy` of draft-ietf-httpapi-ratelimit-headers-08 to -10: Cloudflare,
    /// express-rate-limit, and [`RateLimitStyle::Draft10`](crate::http::RateLimitStyle::Draft10). The names of the two lists need
    /// not match.
    Draft10,
    /// The dictionary `RateLimit: limit=100, remaining=50, reset=5` of draft -07.
    Draft7,
    /// The fields `RateLimit-Limit`, `-Remaining` and `-Reset` (in seconds) of drafts -00 to -06. Each may be a list with the policies
    /// after the limit, as Envoy and limitador send it, or have the window as a parameter and no reset, as Docker Hub does:
    /// `100;w=21600`. Else the window is that of the policy with the same limit in `RateLimit-Policy: 100;w=60`.
    Draft6,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`. What the reset means differs from server to server: see its documentation.
    /// Counts may have a fraction, which is cut off: Reddit sends `599.0`, and a reset in [seconds](ResetFormat::Seconds).
    XRateLimit(ResetFormat),
    /// `x-ratelimit-*` with Unix seconds, and the quota's name in `x-ratelimit-resource`. A 403 whose quota is spent, or with a
    /// `Retry-After`, is a denial. See GitHub's "Rate limits for the REST API".
    GitHub,
    /// `RateLimit-*` with Unix seconds. See GitLab's "Rate limits".
    GitLab,
    /// `x-rate-limit-*`, with one more hyphen, and Unix seconds. See "Rate limits" of the API of X.
    Twitter,
    /// `x-ratelimit-*-requests`, `-tokens` and `-project-tokens` with resets such as `6m0s`, and `retry-after-ms`. See OpenAI's
    /// "Rate limits".
    OpenAi,
    /// The first two of those with seconds, where -1 is unknown, and `retry-after-ms`. See "Azure OpenAI quotas and limits".
    AzureOpenAi,
    /// `anthropic-ratelimit-requests-*`, `-tokens-*`, `-input-tokens-*` and `-output-tokens-*` with instants of RFC 3339. Status 529
    /// (overloaded) is a denial too. See Anthropic's "Rate limits". Of a subscription, `-unified-status: rejected` in an answer with 429
    /// is a quota named `unified` that is spent until `-unified-reset`, in Unix seconds; the other `-unified-*` are not read.
    Anthropic,
    /// `X-RateLimit-*` with decimals in `-Reset-After`, and the quota's name in `X-RateLimit-Bucket`. See Discord's "Rate Limits".
    Discord,
    /// `X-Shopify-Shop-Api-Call-Limit: 32/40`, which is what is used, and `Retry-After: 2.0`. See "Shopify API limits". There is no
    /// reset.
    Shopify,
}

/// What the value of an `X-RateLimit-Reset` means. See [`UpstreamFamily::XRateLimit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ResetFormat {
    /// Seconds from now; a fraction is allowed.
    Seconds,
    /// The instant, in seconds since the Unix epoch; a fraction is allowed.
    UnixSeconds,
    /// The instant, in milliseconds since the Unix epoch.
    UnixMillis,
    /// A duration as Go prints it: `6m0s`, `12ms`.
    GoDuration,
    /// The instant, as in RFC 3339: `2026-11-23T01:02:03Z`.
    Rfc3339,
}

/// The fields of one quota; an empty name is no field.
#[derive(Clone, Copy)]
pub(super) struct Triple {
    pub(super) unit: &'static str,
    pub(super) limit: &'static str,
    pub(super) remaining: &'static str,
    pub(super) reset: &'static str,
    pub(super) format: ResetFormat,
}

const fn triple(unit: &'static str, fields: [&'static str; 3], format: ResetFormat) -> Triple {
    let [limit, remaining, reset] = fields;
    Triple { unit, limit, remaining, reset, format }
}

const REQUESTS: &str = "requests";
const RATELIMIT: [&str; 3] = ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"];
const X_RATELIMIT: [&str; 3] = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
const X_RATE_LIMIT: [&str; 3] = ["x-rate-limit-limit", "x-rate-limit-remaining", "x-rate-limit-reset"];
const DISCORD: [&str; 3] = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset-after"];

macro_rules! by_unit {
    (openai $unit:literal, $format:expr) => {
        triple(
            $unit,
            [
                concat!("x-ratelimit-limit-", $unit),
                concat!("x-ratelimit-remaining-", $unit),
                concat!("x-ratelimit-reset-", $unit),
            ],
            $format,
        )
    };
    (anthropic $unit:literal) => {
        triple(
            $unit,
            [
                concat!("anthropic-ratelimit-", $unit, "-limit"),
                concat!("anthropic-ratelimit-", $unit, "-remaining"),
                concat!("anthropic-ratelimit-", $unit, "-reset"),
            ],
            ResetFormat::Rfc3339,
        )
    };
}

impl UpstreamFamily {
    /// The quotas that have a field for each number; none where the family has another form.
    pub(super) const fn triples(self) -> &'static [Triple] {
        use ResetFormat::{GoDuration, Rfc3339, Seconds, UnixMillis, UnixSeconds};
        match self {
            Self::RetryAfter | Self::Draft10 | Self::Draft7 | Self::Shopify => &[],
            Self::Draft6 => &const { [triple(REQUESTS, RATELIMIT, Seconds)] },
            Self::XRateLimit(Seconds) => &const { [triple(REQUESTS, X_RATELIMIT, Seconds)] },
            Self::XRateLimit(UnixSeconds) | Self::GitHub => &const { [triple(REQUESTS, X_RATELIMIT, UnixSeconds)] },
            Self::XRateLimit(UnixMillis) => &const { [triple(REQUESTS, X_RATELIMIT, UnixMillis)] },
            Self::XRateLimit(GoDuration) => &const { [triple(REQUESTS, X_RATELIMIT, GoDuration)] },
            Self::XRateLimit(Rfc3339) => &const { [triple(REQUESTS, X_RATELIMIT, Rfc3339)] },
            Self::GitLab => &const { [triple(REQUESTS, RATELIMIT, UnixSeconds)] },
            Self::Twitter => &const { [triple(REQUESTS, X_RATE_LIMIT, UnixSeconds)] },
            Self::Discord => &const { [triple(REQUESTS, DISCORD, Seconds)] },
            Self::OpenAi => {
                &const {
                    [
                        by_unit!(openai "requests", GoDuration),
                        by_unit!(openai "tokens", GoDuration),
                        by_unit!(openai "project-tokens", GoDuration),
                    ]
                }
            }
            Self::AzureOpenAi => &const { [by_unit!(openai "requests", Seconds), by_unit!(openai "tokens", Seconds)] },
            Self::Anthropic => {
                &const {
                    [
                        by_unit!(anthropic "requests"),
                        by_unit!(anthropic "tokens"),
                        by_unit!(anthropic "input-tokens"),
                        by_unit!(anthropic "output-tokens"),
                    ]
                }
            }
        }
    }

    /// The field with the name of the quota.
    pub(super) const fn name_field(self) -> Option<&'static str> {
        match self {
            Self::GitHub => Some("x-ratelimit-resource"),
            Self::Discord => Some("x-ratelimit-bucket"),
            _ => None,
        }
    }

    /// Whether -1 stands for an unknown number.
    pub(super) const fn has_unknown(self) -> bool {
        matches!(self, Self::AzureOpenAi)
    }

    pub(super) const fn has_retry_after_millis(self) -> bool {
        matches!(self, Self::OpenAi | Self::AzureOpenAi)
    }

    /// Whether limits and what remains may have a fraction, as Reddit sends it.
    pub(super) const fn has_decimal_counts(self) -> bool {
        matches!(self, Self::XRateLimit(_))
    }

    /// Whether `Retry-After` may have a fraction, which the standard does not allow.
    pub(super) const fn has_decimal_retry_after(self) -> bool {
        matches!(self, Self::Discord | Self::Shopify)
    }
}
