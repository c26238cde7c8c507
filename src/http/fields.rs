//! Writes header fields that describe the limits of a server, and the body of a denial.

mod known;
mod merge;
mod problem;
mod text;
mod values;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::HeaderMap;
use http::header::RETRY_AFTER;
use thiserror::Error;

use merge::{
    GRPC_RETRY_PUSHBACK, RATELIMIT, RATELIMIT_POLICY, RATELIMIT_TRIPLE, X_RATELIMIT_TRIPLE,
    add_to_list, set_dictionary, set_retry_after, set_triple,
};
use text::FieldText;
use values::Tightness;

pub use problem::ProblemType;
pub use values::FieldValues;

pub(super) use known::KnownPolicies;
pub(super) use merge::set_retry_pushback;

use super::upstream::{Item, quota_and_window, quota_policy, service_limit};

/// The header fields in which a server states what its limits allow. Each value takes one allocation. Apart from that, only the
/// map allocates, and a value above 128 bytes (three limits or more) while it is written.
///
/// # Examples
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use tollgate::http::{FieldValues, ProblemType, RateLimitFields};
/// use tollgate::{Limiter, TryAcquireError};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let fields = RateLimitFields::new("api")?;
/// let limiter = Limiter::new("window 2/min")?;
/// let respond = || {
///     let (answer, limits) = limiter.request().try_acquire_explained();
///     let values = match &answer {
///         Ok(_) => FieldValues::granted(&limits),
///         Err(TryAcquireError::Denied(decision)) => FieldValues::denied(&limits, decision),
///         Err(_) => FieldValues::refused(&limits),
///     };
///     let mut headers = http::HeaderMap::new();
///     fields.write(&mut headers, &values, SystemTime::now());
///     headers
/// };
///
/// let granted = respond();
/// assert_eq!(granted["ratelimit-policy"], r#""api";q=2;w=60"#);
/// assert_eq!(granted["ratelimit"], r#""api";r=1;t=60"#);
/// let _second = respond();
/// tokio::time::advance(Duration::from_millis(500)).await;
/// let denied = respond();
/// assert_eq!(denied["ratelimit"], r#""api";r=0;t=60"#);
/// assert_eq!(denied["retry-after"], "60"); // 59.5, rounded up
/// # Ok(())
/// # }
/// ```
///
/// # Names
///
/// A policy of one limit has the name that was given here. In a larger policy, each limit also has a number, in the order of the
/// policy: `api-1`, `api-2`. Layers that write into the same response need different names.
///
/// # Numbers
///
/// Quotas, remaining units and seconds are integers of at most 15 digits; larger numbers become the largest such integer. Seconds
/// are rounded up.
///
/// - The quota of a limit is its [capacity](crate::LimitStatus::capacity). The window is the time in which the quota comes back:
///   the period, or the burst divided by the rate. A window below a second is left out, and so is the window of a concurrency or
///   a half-life.
/// - `t` is a time in seconds. For the limit that denied, which has `r=0`, it is the time until the request is admitted. For
///   another limit with nothing left, it is the time until a unit is [available](crate::LimitStatus::available_after). While
///   units remain, it is the time until the limit is reset:
///
///   | limit | is reset when |
///   |---|---|
///   | [`FixedWindow`](crate::FixedWindow) | the window ends |
///   | [`Throttle`](crate::Throttle), [`TokenBucket`](crate::TokenBucket) | the bucket is full |
///   | [`SlidingWindow::log`](crate::SlidingWindow::log) | the latest unit leaves |
///   | [`SlidingWindow::counter`](crate::SlidingWindow::counter) | the window after that of the latest unit ends |
///   | [`Penalty`](crate::Penalty) | the counter is zero |
///
///   A concurrency and a full limit have no `t`. For a penalty that bans, `t` may be the time until it
///   [forgives](crate::Penalty::forgive_after), if another limit denied and the counter takes longer to fall than that.
/// - `qu` is left out for costs and requests, and is `concurrent-requests` for a concurrency. For a limit that
///   [counts](crate::Counts) a named unit, `qu` is that name: name the unit `content-bytes` if it is that. A concurrency of a
///   named unit has `concurrent-` before the name.
///
/// # One limit
///
/// The styles with one limit describe the tightest limit: the one with the smallest share left. The limit that denied counts as
/// having nothing left. Among equal shares, the limit with the latest reset is the tightest. A concurrency is left out, because
/// it has no reset.
///
/// # Fields that are already set
///
/// An inner layer or the application may have set the same fields. Lists become one list, in one line, with the older members
/// first. A list that readers would ignore, because it is malformed or of another draft, is replaced. A style with one limit
/// keeps the limit that is already set if it is the tighter one. An existing `Retry-After` stays if it is later; an existing
/// `grpc-retry-pushback-ms` becomes at least as long. None of these fields belongs in a trailer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RateLimitFields {
    /// The name, escaped as between the quotes of a string.
    name: Arc<str>,
    pub(super) style: RateLimitStyle,
}

/// The header fields in which a server states what its limits allow. There is no standard yet: each client understands some of
/// them. See [`RateLimitFields`] for an example.
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
    /// As `XSeconds`, with the reset as an instant in seconds since the Unix epoch.
    XUnix,
    /// Only the `Retry-After` of a denial. A `Retry-After` of an inner layer stays as it is. Grants are not explained, which
    /// saves time.
    None,
}

/// Why a text cannot be the name of a policy in header fields. See [`RateLimitFields::new`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PolicyNameError {
    /// The name is empty.
    #[error("the name of a policy is empty")]
    Empty,
    /// The name is longer than 256 bytes.
    #[error("the name of a policy has {len} bytes; at most {max} are allowed")]
    TooLong {
        /// The length of the name in bytes.
        len: usize,
        /// The largest length that is allowed.
        max: usize,
    },
    /// The name has a character that is not printable ASCII. The value is the first such character.
    #[error("the name of a policy contains {0:?}; only printable ASCII is allowed")]
    Character(char),
}

impl RateLimitFields {
    const MAX_NAME: usize = 256;

    /// The fields of a policy with this name, 1 to 256 printable characters of ASCII, in the default
    /// [style](RateLimitStyle::Draft10). See the [type's example](Self#examples).
    ///
    /// # Errors
    ///
    /// The name is empty, too long, or has a control character or a character outside ASCII: a string of a header field has no
    /// such character (RFC 9651, section 3.3.3).
    ///
    /// ```
    /// use tollgate::http::{PolicyNameError, RateLimitFields};
    ///
    /// assert_eq!(RateLimitFields::new("tägliche").unwrap_err(), PolicyNameError::Character('ä'));
    /// ```
    pub fn new(name: &str) -> Result<Self, PolicyNameError> {
        if name.is_empty() {
            return Err(PolicyNameError::Empty);
        }
        if let Some(other) = name.chars().find(|char| !matches!(char, ' '..='~')) {
            return Err(PolicyNameError::Character(other));
        }
        if name.len() > Self::MAX_NAME {
            return Err(PolicyNameError::TooLong {
                len: name.len(),
                max: Self::MAX_NAME,
            });
        }
        // For these characters, a JSON string has the same two escapes.
        let name = name.replace('\\', r"\\").replace('"', r#"\""#);
        Ok(Self {
            name: name.into(),
            style: RateLimitStyle::default(),
        })
    }

    /// Sets the style of the fields.
    ///
    /// ```
    /// use std::time::SystemTime;
    /// use tollgate::Limiter;
    /// use tollgate::http::{FieldValues, RateLimitFields, RateLimitStyle};
    ///
    /// let fields = RateLimitFields::new("api")?.style(RateLimitStyle::Draft7);
    /// let limits = Limiter::new("window 100/min")?.limits();
    /// let mut headers = http::HeaderMap::new();
    /// fields.write(&mut headers, &FieldValues::granted(&limits), SystemTime::now());
    /// assert_eq!(headers["ratelimit"], "limit=100, remaining=100, reset=0");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn style(self, style: RateLimitStyle) -> Self {
        Self { style, ..self }
    }

    /// Writes the fields of a response that is sent at `now`. See the [type's example](Self#examples).
    pub fn write(&self, headers: &mut HeaderMap, values: &FieldValues<'_>, now: SystemTime) {
        self.write_at(headers, values, None, || now);
    }

    /// As [`RateLimitFields::write`], but the clock is read only for a field that has an instant.
    pub(super) fn write_at(
        &self,
        headers: &mut HeaderMap,
        values: &FieldValues<'_>,
        known: Option<&KnownPolicies>,
        now: impl Fn() -> SystemTime,
    ) {
        let now = || {
            now()
                .duration_since(SystemTime::UNIX_EPOCH)
                .unwrap_or_default()
        };
        let after = if values.is_denied() {
            values.retry_after_seconds()
        } else {
            // An inner layer or the application may have refused a request that was granted here.
            values
                .spent_for()
                .filter(|_| headers.contains_key(RETRY_AFTER))
        };
        if let Some(after) = after {
            let raised = set_retry_after(headers, after, now);
            if raised && headers.contains_key(&GRPC_RETRY_PUSHBACK) {
                set_retry_pushback(headers, Duration::from_secs(after));
            }
        }
        match self.style {
            RateLimitStyle::Draft10 => {
                let policies = || values.policies(&self.name).value();
                let known = known.and_then(|known| known.field(values, policies));
                let field = known.cloned().or_else(policies);
                let is_policy = |item: &Item<'_>| quota_policy(item).is_some();
                add_to_list(headers, &RATELIMIT_POLICY, is_policy, field);
                let is_state = |item: &Item<'_>| service_limit(item).is_some();
                let states = values.states(&self.name).value();
                add_to_list(headers, &RATELIMIT, is_state, states);
            }
            RateLimitStyle::Draft7 => {
                let is_policy = |item: &Item<'_>| quota_and_window(item).is_some();
                let windows = values.windows().value();
                add_to_list(headers, &RATELIMIT_POLICY, is_policy, windows);
                set_dictionary(headers, values.tightest());
            }
            RateLimitStyle::Draft6 => set_triple(headers, &RATELIMIT_TRIPLE, values.tightest()),
            RateLimitStyle::XSeconds => set_triple(headers, &X_RATELIMIT_TRIPLE, values.tightest()),
            RateLimitStyle::XUnix => {
                let tightest = values.tightest().map(|tightest| Tightness {
                    reset: values::whole_seconds(now()).saturating_add(tightest.reset),
                    ..tightest
                });
                set_triple(headers, &X_RATELIMIT_TRIPLE, tightest);
            }
            RateLimitStyle::None => {}
        }
    }

    /// The body of a denial: a JSON object in ASCII, of the type [`application/problem+json`](ProblemType::CONTENT_TYPE).
    /// `problem` is that of the [values](FieldValues::problem_type), or one that the server chose. If a limit denied,
    /// `violated-policies` has its name.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use tollgate::http::{FieldValues, RateLimitFields};
    /// use tollgate::{Limiter, TryAcquireError};
    ///
    /// let limiter = Limiter::new("8 concurrent and 1/min")?;
    /// let _permit = limiter.try_acquire()?;
    /// let (answer, limits) = limiter.request().try_acquire_explained();
    /// let Err(TryAcquireError::Denied(decision)) = answer else { panic!("the second in a minute") };
    ///
    /// let values = FieldValues::denied(&limits, &decision);
    /// let problem = values.problem_type();
    /// assert_eq!(problem.status(), 429);
    /// let body = RateLimitFields::new("api")?.problem(&values, problem);
    /// assert_eq!(
    ///     String::from_utf8(body)?,
    ///     r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded","status":429,"violated-policies":["api-2"]}"#
    /// );
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn problem(&self, values: &FieldValues<'_>, problem: ProblemType) -> Vec<u8> {
        let mut body = FieldText::new();
        body.put(b"{\"type\":\"");
        body.put(problem.uri().as_bytes());
        body.put(b"\",\"title\":\"");
        body.put(problem.title().as_bytes());
        body.put_number(b"\",\"status\":", problem.status().as_u16().into());
        body.put(b",\"violated-policies\":[");
        if let Some(index) = values.denied_by() {
            values.put_name(&mut body, &self.name, index);
        }
        body.put(b"]}");
        body.as_bytes().to_vec()
    }

    /// The quoted name of the limit that denied.
    pub(super) fn name_of_denier(&self, values: &FieldValues<'_>) -> Option<String> {
        let mut name = FieldText::new();
        values.put_name(&mut name, &self.name, values.denied_by()?);
        Some(String::from_utf8_lossy(name.as_bytes()).into_owned())
    }
}
