//! The families of upstreams, each with the fields that are read for it.

/// Defines an enum with a list of its values. A variant may hold another such enum.
macro_rules! listed {
    (
        $(#[$attribute:meta])*
        pub enum $name:ident { $($(#[$doc:meta])* $variant:ident $(($inner:ident))?,)* }
    ) => {
        $(#[$attribute])*
        pub enum $name { $($(#[$doc])* $variant $(($inner))?,)* }

        impl $name {
            /// All values, in the order of the variants: for a list of choices, or for a test of each.
            pub fn all() -> impl Iterator<Item = Self> {
                let mut all = Vec::new();
                $(all.extend(listed!(@values $name::$variant $(, $inner)?));)*
                all.into_iter()
            }
        }
    };
    (@values $value:path) => { [$value] };
    (@values $value:path, $inner:ident) => { $inner::all().map($value) };
}

listed! {
    /// The upstream whose fields an [`UpstreamReader`](super::UpstreamReader) reads. It must be set, because names and meanings
    /// differ. The field `x-ratelimit-reset` has five meanings, and names that differ only in case are the same in HTTP/2, which
    /// writes them in lower case.
    ///
    /// Each quota has a [unit](crate::layers::UpstreamQuota::unit), which selects the limiters that it applies to: see
    /// [`OutboundLayer::cost_of`](crate::layers::OutboundLayer::cost_of). It is `requests` unless the family names another one.
    ///
    /// Every family reads `Retry-After`, too. [`RetryAfter`](Self::RetryAfter) is for an upstream that sends nothing else
    /// (Stripe).
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::layers::{ResetFormat, UpstreamFamily};
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
        /// Only `Retry-After` (RFC 9110, section 10.2.3).
        RetryAfter,
        /// The lists `RateLimit` and `RateLimit-Policy` of draft-ietf-httpapi-ratelimit-headers-08 to -10: Cloudflare,
        /// express-rate-limit, and [`RateLimitStyle::Draft10`](crate::layers::RateLimitStyle::Draft10). The names of the two lists need
        /// not match.
        Draft10,
        /// The dictionary `RateLimit: limit=100, remaining=50, reset=5` of draft -07.
        Draft7,
        /// The fields `RateLimit-Limit`, `-Remaining` and `-Reset` (in seconds) of drafts -00 to -06. Each field may be a list
        /// with the policies after the limit, as Envoy and limitador send it, or have the window as a parameter and no reset, as
        /// Docker Hub sends it: `100;w=21600`. Otherwise the window is that of the policy with the same limit in
        /// `RateLimit-Policy: 100;w=60`.
        Draft6,
        /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`. The meaning of the reset differs between servers: see the
        /// documentation of the server. Counts may have a fraction, which is cut off: Reddit sends `599.0`, and a reset in
        /// [seconds](ResetFormat::Seconds).
        XRateLimit(ResetFormat),
        /// `x-ratelimit-*` with Unix seconds, and the quota's name in `x-ratelimit-resource`. A 403 is a denial if its quota is
        /// spent, or if it has a `Retry-After`. See GitHub's "Rate limits for the REST API".
        GitHub,
        /// `RateLimit-*` with Unix seconds. See GitLab's "Rate limits".
        GitLab,
        /// `x-rate-limit-*`, with one more hyphen, and Unix seconds. See "Rate limits" of the API of X.
        Twitter,
        /// `x-ratelimit-*-requests`, `-tokens` and `-project-tokens` with resets such as `6m0s`, and `retry-after-ms`. See OpenAI's
        /// "Rate limits".
        OpenAi,
        /// `x-ratelimit-*-requests` and `-tokens` with resets in seconds, where -1 is unknown, and `retry-after-ms`. See "Azure OpenAI quotas and limits".
        AzureOpenAi,
        /// `anthropic-ratelimit-requests-*`, `-tokens-*`, `-input-tokens-*` and `-output-tokens-*` with instants of RFC 3339. Status 529
        /// (overloaded) is a denial too. See Anthropic's "Rate limits". A subscription has one quota, with the name `unified`. It is read when
        /// it is spent: from an answer with 429 and `-unified-status: rejected`, with the reset in `-unified-reset`, in Unix seconds. The other
        /// `-unified-*` are not read.
        Anthropic,
        /// `X-RateLimit-*` with decimals in `-Reset-After`, and the quota's name in `X-RateLimit-Bucket`. See Discord's "Rate Limits".
        Discord,
        /// `X-Shopify-Shop-Api-Call-Limit: 32/40` (units used of the limit), and `Retry-After: 2.0`. See "Shopify API limits".
        /// There is no reset.
        Shopify,
    }
}

listed! {
    /// The meaning of the value of an `X-RateLimit-Reset`. See [`UpstreamFamily::XRateLimit`].
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
        /// The instant, as RFC 3339 writes it: `2026-11-23T01:02:03Z`.
        Rfc3339,
    }
}

/// The fields that are read for a family, and how.
#[derive(Debug, Clone, Copy)]
pub(super) struct Form {
    /// The meaning of the reset of [`AnswerPart::Numbers`].
    pub(super) reset: ResetFormat,
    pub(super) parts: &'static [AnswerPart],
    /// The field whose value is the name of the quotas.
    pub(super) name_field: Option<&'static str>,
    quirks: &'static [Quirk],
}

/// A rule that only some families have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Quirk {
    /// The value -1 means that the number is unknown.
    UnknownNumbers,
    /// The limit and the remaining units may have a fraction, as Reddit sends it.
    DecimalCounts,
    RetryAfterMillis,
    /// `Retry-After` may have a fraction, which the standard does not allow.
    DecimalRetryAfter,
    /// An answer with this status is a denial, besides 429 and 503.
    DeniesBy(u16),
    /// A 403 is a denial if a quota is spent, or if it has a `Retry-After`.
    DeniesBySpent403,
}

/// A group of fields in the answers of a family.
#[derive(Debug, Clone, Copy)]
pub(super) enum AnswerPart {
    /// One quota of this unit: a field each for the limit, the remaining units and the reset.
    Numbers(&'static str, [&'static str; 3]),
    /// `RateLimit` and `RateLimit-Policy` of draft-10.
    Lists,
    /// `RateLimit` and `RateLimit-Policy` of draft-07.
    Dictionary,
    /// `RateLimit-Policy` of the drafts -03 to -06, beside the numbers.
    Windows,
    /// `32/40` in the field of Shopify.
    UsedOfLimit,
    /// The quota of a subscription of Anthropic.
    Unified,
}

pub(super) const AGE: &str = "age";
pub(super) const DATE: &str = "date";
pub(super) const RETRY_AFTER: &str = "retry-after";
pub(super) const RETRY_AFTER_MILLIS: &str = "retry-after-ms";
pub(super) const LIMIT: &str = "ratelimit";
pub(super) const LIMIT_POLICY: &str = "ratelimit-policy";
pub(super) const SHOPIFY: &str = "x-shopify-shop-api-call-limit";
pub(super) const UNIFIED_STATUS: &str = "anthropic-ratelimit-unified-status";
pub(super) const UNIFIED_RESET: &str = "anthropic-ratelimit-unified-reset";
pub(super) const REQUESTS: &str = "requests";

/// [`AnswerPart::Numbers`] with the text before and after `limit`, `remaining` and `reset` in the names of the fields.
macro_rules! numbers {
    ($unit:literal, $before:literal, $after:literal) => {
        AnswerPart::Numbers(
            $unit,
            [
                concat!($before, "limit", $after),
                concat!($before, "remaining", $after),
                concat!($before, "reset", $after),
            ],
        )
    };
}

const RATELIMIT: AnswerPart = numbers!("requests", "ratelimit-", "");
const X_RATELIMIT: AnswerPart = numbers!("requests", "x-ratelimit-", "");
const OPENAI_REQUESTS: AnswerPart = numbers!("requests", "x-ratelimit-", "-requests");
const OPENAI_TOKENS: AnswerPart = numbers!("tokens", "x-ratelimit-", "-tokens");
const OPENAI_PROJECT_TOKENS: AnswerPart =
    numbers!("project-tokens", "x-ratelimit-", "-project-tokens");
const X_RATE_LIMIT: AnswerPart = numbers!("requests", "x-rate-limit-", "");
const ANTHROPIC: &[AnswerPart] = &[
    numbers!("requests", "anthropic-ratelimit-requests-", ""),
    numbers!("tokens", "anthropic-ratelimit-tokens-", ""),
    numbers!("input-tokens", "anthropic-ratelimit-input-tokens-", ""),
    numbers!("output-tokens", "anthropic-ratelimit-output-tokens-", ""),
    AnswerPart::Unified,
];
const DISCORD: AnswerPart = AnswerPart::Numbers(
    REQUESTS,
    [
        "x-ratelimit-limit",
        "x-ratelimit-remaining",
        "x-ratelimit-reset-after",
    ],
);

impl UpstreamFamily {
    pub(super) fn form(self) -> Form {
        use Quirk::{
            DecimalCounts, DecimalRetryAfter, DeniesBy, DeniesBySpent403, RetryAfterMillis,
            UnknownNumbers,
        };
        use ResetFormat::{GoDuration, Rfc3339, Seconds, UnixSeconds};
        let form = |reset, parts, quirks| Form {
            reset,
            parts,
            name_field: None,
            quirks,
        };
        match self {
            Self::RetryAfter => form(Seconds, &[], &[]),
            Self::Draft10 => form(Seconds, &[AnswerPart::Lists], &[]),
            Self::Draft7 => form(Seconds, &[AnswerPart::Dictionary], &[]),
            Self::Draft6 => form(Seconds, &[RATELIMIT, AnswerPart::Windows], &[]),
            Self::XRateLimit(reset) => form(reset, &[X_RATELIMIT], &[DecimalCounts]),
            Self::GitHub => Form {
                name_field: Some("x-ratelimit-resource"),
                ..form(UnixSeconds, &[X_RATELIMIT], &[DeniesBySpent403])
            },
            Self::GitLab => form(UnixSeconds, &[RATELIMIT], &[]),
            Self::Twitter => form(UnixSeconds, &[X_RATE_LIMIT], &[]),
            Self::OpenAi => form(
                GoDuration,
                &[OPENAI_REQUESTS, OPENAI_TOKENS, OPENAI_PROJECT_TOKENS],
                &[RetryAfterMillis],
            ),
            Self::AzureOpenAi => form(
                Seconds,
                &[OPENAI_REQUESTS, OPENAI_TOKENS],
                &[RetryAfterMillis, UnknownNumbers],
            ),
            Self::Anthropic => form(Rfc3339, ANTHROPIC, &[DeniesBy(529)]),
            Self::Discord => Form {
                name_field: Some("x-ratelimit-bucket"),
                ..form(Seconds, &[DISCORD], &[DecimalRetryAfter])
            },
            Self::Shopify => form(Seconds, &[AnswerPart::UsedOfLimit], &[DecimalRetryAfter]),
        }
    }

    /// The names, in lower case, of all fields that are read for this family. Useful for a proxy that passes them on, or for a
    /// log.
    ///
    /// ```
    /// use tollgate::layers::UpstreamFamily;
    ///
    /// let fields: Vec<_> = UpstreamFamily::Shopify.fields().collect();
    /// assert_eq!(fields, ["age", "date", "retry-after", "x-shopify-shop-api-call-limit"]);
    /// ```
    pub fn fields(self) -> impl Iterator<Item = &'static str> {
        let form = self.form();
        let millis = form
            .has(Quirk::RetryAfterMillis)
            .then_some(RETRY_AFTER_MILLIS);
        let common = [AGE, DATE, RETRY_AFTER].into_iter().chain(millis);
        let parts = form.parts.iter().flat_map(AnswerPart::fields).copied();
        common.chain(parts).chain(form.name_field)
    }
}

impl Form {
    pub(super) fn has(&self, quirk: Quirk) -> bool {
        self.quirks.contains(&quirk)
    }
}

impl AnswerPart {
    fn fields(&self) -> &[&'static str] {
        match self {
            Self::Numbers(_, fields) => fields,
            Self::Lists | Self::Dictionary => &[LIMIT, LIMIT_POLICY],
            Self::Windows => &[LIMIT_POLICY],
            Self::UsedOfLimit => &[SHOPIFY],
            Self::Unified => &[UNIFIED_STATUS, UNIFIED_RESET],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::MAX_MALFORMED;
    use super::*;

    #[test]
    fn an_answer_can_name_all_fields_of_every_family() {
        for family in UpstreamFamily::all() {
            assert!(family.fields().count() <= MAX_MALFORMED, "{family:?}");
        }
    }
}
