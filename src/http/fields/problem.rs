//! The problem types of a denial (RFC 9457).

use http::{HeaderValue, StatusCode};

use crate::policy::Limit;
use crate::strategy::Guards;

/// Why a request was denied: a problem type of draft-ietf-httpapi-ratelimit-headers-10, section 4. The body of a response names
/// it (RFC 9457). See [`RateLimitFields::problem`](super::RateLimitFields::problem) for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProblemType {
    /// A quota of the client, or one that it shares, is used up: status 429.
    QuotaExceeded,
    /// The server has no capacity at present for such a request from any client: status 503.
    ReducedCapacity,
    /// The client is penalised or banned for its behaviour: status 429.
    AbnormalUsage,
}

impl ProblemType {
    /// The media type of a body that [`RateLimitFields::problem`](super::RateLimitFields::problem) returns, which has an example.
    pub const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/problem+json");

    /// The status of a response with this problem, 429 or 503.
    ///
    /// ```
    /// use tollgate::http::ProblemType;
    ///
    /// assert_eq!(ProblemType::QuotaExceeded.status(), 429);
    /// assert_eq!(ProblemType::ReducedCapacity.status(), 503);
    /// ```
    #[must_use]
    pub const fn status(self) -> StatusCode {
        match self {
            Self::QuotaExceeded | Self::AbnormalUsage => StatusCode::TOO_MANY_REQUESTS,
            Self::ReducedCapacity => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    pub(in crate::http) fn of_denial(denied_by: Option<Limit>) -> Self {
        match denied_by.map(|limit| limit.description().guards) {
            Some(Guards::Conduct) => Self::AbnormalUsage,
            Some(Guards::Quota | Guards::Capacity) => Self::QuotaExceeded,
            None => Self::ReducedCapacity,
        }
    }

    /// The URI of the type.
    ///
    /// ```
    /// use tollgate::http::ProblemType;
    ///
    /// assert_eq!(ProblemType::QuotaExceeded.uri(), "https://iana.org/assignments/http-problem-types#quota-exceeded");
    /// ```
    #[must_use]
    pub const fn uri(self) -> &'static str {
        match self {
            Self::QuotaExceeded => "https://iana.org/assignments/http-problem-types#quota-exceeded",
            Self::ReducedCapacity => {
                "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
            }
            Self::AbnormalUsage => {
                "https://iana.org/assignments/http-problem-types#abnormal-usage-detected"
            }
        }
    }

    /// The title of the type in the registry, for people to read.
    ///
    /// ```
    /// use tollgate::http::ProblemType;
    ///
    /// assert_eq!(ProblemType::QuotaExceeded.title(), "Quota Exceeded");
    /// ```
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::QuotaExceeded => "Quota Exceeded",
            Self::ReducedCapacity => "Temporary Reduced Capacity",
            Self::AbnormalUsage => "Abnormal Usage Detected",
        }
    }
}
