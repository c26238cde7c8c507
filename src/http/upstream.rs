//! What an upstream says about its limits in header fields.

mod answer;
mod family;
mod read;
mod structured;
mod time;

use std::time::{Duration, SystemTime};

use http::{HeaderMap, StatusCode};

use answer::Few;
use read::AnswerReader;

pub use answer::{UpstreamAnswer, UpstreamQuota};
pub use family::{ResetFormat, UpstreamFamily};

pub(super) use read::{
    QuotaCounts, first_count, only_line, quota_and_window, quota_policy, service_limit,
};
pub(super) use structured::{Item, list, structured_lines};
pub(super) use time::{http_date, seconds};

/// Reads what the answers of an upstream say about its limits: `Retry-After`, and the fields of one
/// [family](UpstreamFamily). It reads no clock, and allocates only while it checks a partition key or a string with escapes.
///
/// It never fails: what is malformed is ignored, and [named](UpstreamAnswer::malformed). No duration that it returns is longer than
/// [`max_wait`](Self::max_wait). An instant is measured against the `Date` of the answer, if there is one, so that the clocks
/// need not agree. Quotas in an answer with an `Age` above 0 are ignored: it is from a cache.
///
/// # Examples
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use http::{HeaderMap, HeaderValue, StatusCode};
/// use tollgate::http::{UpstreamFamily, UpstreamReader};
///
/// let reader = UpstreamReader::new(UpstreamFamily::OpenAi);
/// let mut fields = HeaderMap::new();
/// fields.insert("x-ratelimit-limit-tokens", HeaderValue::from_static("150000"));
/// fields.insert("x-ratelimit-remaining-tokens", HeaderValue::from_static("149984"));
/// fields.insert("x-ratelimit-reset-tokens", HeaderValue::from_static("6m0s"));
/// let answer = reader.read(StatusCode::OK, &fields, SystemTime::now());
///
/// assert!(!answer.is_limited());
/// let [tokens] = answer.quotas() else { panic!("one quota") };
/// assert_eq!((tokens.unit, tokens.limit, tokens.remaining), ("tokens", Some(150_000), Some(149_984)));
/// assert_eq!(tokens.reset_after, Some(Duration::from_secs(360)));
/// // limiter.apply_upstream_signal(&answer.signal_for("tokens"));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpstreamReader {
    family: UpstreamFamily,
    max_wait: Duration,
}

impl UpstreamReader {
    /// A reader with a [`max_wait`](Self::max_wait) of one hour. See the [type's example](Self#examples).
    #[must_use]
    pub const fn new(family: UpstreamFamily) -> Self {
        Self {
            family,
            max_wait: Duration::from_secs(3_600),
        }
    }

    /// The longest duration that it returns, from zero on; longer ones are cut down to it. It bounds how long a faulty or hostile
    /// upstream can silence its clients.
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use http::{HeaderMap, HeaderValue, StatusCode};
    /// use tollgate::http::{UpstreamFamily, UpstreamReader};
    ///
    /// let reader = UpstreamReader::new(UpstreamFamily::RetryAfter).max_wait(Duration::from_secs(60));
    /// let mut fields = HeaderMap::new();
    /// fields.insert("retry-after", HeaderValue::from_static("1000000"));
    /// let answer = reader.read(StatusCode::TOO_MANY_REQUESTS, &fields, SystemTime::now());
    /// assert_eq!(answer.retry_after(), Some(Duration::from_secs(60)));
    /// ```
    #[must_use]
    pub const fn max_wait(self, longest: Duration) -> Self {
        Self {
            max_wait: longest,
            ..self
        }
    }

    /// Reads one answer, which arrived at `now`. See the [type's example](Self#examples).
    ///
    /// `Retry-After` is read after a status of 400 and above, where it is in whole seconds or a date; what is negative, has a
    /// fraction (but for Discord and Shopify, which send some), or was sent twice is malformed.
    #[must_use]
    pub fn read<'h>(
        &self,
        status: StatusCode,
        headers: &'h HeaderMap,
        now: SystemTime,
    ) -> UpstreamAnswer<'h> {
        let now = now
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let reader = AnswerReader {
            form: self.family.form(),
            status,
            headers,
            now,
            sent: now,
            answer: UpstreamAnswer {
                limited: false,
                retry_after: None,
                quotas: Few::new(),
                malformed: Few::new(),
            },
        };
        reader.read(self.max_wait)
    }
}
