//! Writes header fields that describe the limits of a server, and the body of a denial. Merges the fields with those that an inner
//! layer or the application has set.

mod text;
mod values;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use thiserror::Error;

use text::{FieldText, ProblemText};
use values::Tightness;

pub use values::{FieldValues, ProblemType};

pub(super) use values::KnownPolicies;

use super::upstream::{
    Item, UpstreamQuota, first_count, http_date, list, only_line, quota_and_window, quota_policy,
    read_counts, seconds, service_limit, structured_lines,
};

/// The header fields in which a server states what its limits allow. Each value takes one allocation. Apart from that, only the
/// map allocates, and a value above 128 bytes (three limits or more) while it is written.
///
/// # Examples
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use tollgate::layers::{FieldValues, ProblemType, RateLimitFields};
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
    /// use tollgate::layers::{PolicyNameError, RateLimitFields};
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
    /// use tollgate::layers::{FieldValues, RateLimitFields, RateLimitStyle};
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
                add_to_list(headers, &RATELIMIT_POLICY, field, |item| {
                    quota_policy(item).is_some()
                });
                let states = values.states(&self.name).value();
                add_to_list(headers, &RATELIMIT, states, |item| {
                    service_limit(item).is_some()
                });
            }
            RateLimitStyle::Draft7 => {
                let windows = values.windows().value();
                add_to_list(headers, &RATELIMIT_POLICY, windows, |item| {
                    quota_and_window(item).is_some()
                });
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
    /// use tollgate::layers::{FieldValues, RateLimitFields};
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
        let mut body = ProblemText::new();
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

static RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
static RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// How long a client of gRPC waits before it retries (gRFC A6, "Pushback").
static GRPC_RETRY_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// The fields of a style with one limit: limit, remaining units, and reset.
static RATELIMIT_TRIPLE: [HeaderName; 3] = [
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
];
static X_RATELIMIT_TRIPLE: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
];

/// Adds members to a list, in one line, because not every client reads a second line. A list that is malformed, or has a member
/// that `check` refuses, is replaced: a reader would ignore the whole list, with the new members.
fn add_to_list(
    headers: &mut HeaderMap,
    field: &'static HeaderName,
    members: Option<HeaderValue>,
    check: impl Fn(&Item<'_>) -> bool,
) {
    let Some(members) = members else { return };
    // Most responses have no such list. A map with 32,768 fields is full, and stays as it is.
    if let Ok(true) = headers.try_append(field, members) {
        join_lines(headers, field, check);
    }
}

/// Joins the last line of a list with those before it.
#[cold]
fn join_lines(
    headers: &mut HeaderMap,
    field: &'static HeaderName,
    check: impl Fn(&Item<'_>) -> bool,
) {
    let lines = || headers.get_all(field).iter();
    let earlier = lines().count().saturating_sub(1);
    let keeps = structured_lines(lines().take(earlier), |line| {
        list(line, |item| check(&item).then_some(()))
    }) == Some(true);
    let mut text = FieldText::new();
    for line in lines().skip(if keeps { 0 } else { earlier }) {
        text.put_comma();
        text.put(line.as_bytes().trim_ascii());
    }
    if let Some(value) = text.value() {
        headers.insert(field, value);
    }
}

/// Sets the dictionary of draft-07, unless a tighter one is set.
fn set_dictionary(headers: &mut HeaderMap, tightest: Option<Tightness>) {
    let Some(tightest) = tightest else { return };
    let mut there = UpstreamQuota::default();
    let lines = headers.get_all(&RATELIMIT);
    let read = structured_lines(lines.iter(), |line| read_counts(line, &mut there));
    if read.is_some() && is_tighter(there, tightest) {
        return;
    }
    let mut dictionary = FieldText::new();
    dictionary.put_number(b"limit=", tightest.limit);
    dictionary.put_number(b", remaining=", tightest.remaining);
    dictionary.put_number(b", reset=", tightest.reset);
    insert(headers, &RATELIMIT, &dictionary);
}

/// Sets the three fields, unless those of a tighter limit are set.
fn set_triple(
    headers: &mut HeaderMap,
    fields: &'static [HeaderName; 3],
    tightest: Option<Tightness>,
) {
    let Some(tightest) = tightest else { return };
    let line = |field| only_line(&headers.get_all(field));
    let count = |field| Some(first_count(line(field)?)?.0);
    let [limit, remaining, reset] = fields;
    let there = UpstreamQuota {
        limit: count(limit),
        remaining: count(remaining),
        reset_after: line(reset).and_then(seconds),
        ..Default::default()
    };
    if is_tighter(there, tightest) {
        return;
    }
    insert_number(headers, limit, tightest.limit);
    insert_number(headers, remaining, tightest.remaining);
    insert_number(headers, reset, tightest.reset);
}

fn is_tighter(there: UpstreamQuota<'_>, than: Tightness) -> bool {
    let numbers = there.limit.zip(there.remaining).zip(there.reset_after);
    numbers.is_some_and(|((limit, remaining), reset)| {
        Tightness {
            limit,
            remaining,
            reset: reset.as_secs(),
        }
        .compare(&than)
        .is_lt()
    })
}

/// Sets `Retry-After`, unless a later one is set. `now` is since the Unix epoch. Returns whether an earlier one was replaced.
fn set_retry_after(headers: &mut HeaderMap, after: u64, now: impl Fn() -> Duration) -> bool {
    let is_later = |text: &str| {
        let delay = seconds(text).or_else(|| {
            let now = now();
            Some(http_date(text, now)?.saturating_sub(now))
        });
        delay.is_some_and(|delay| delay >= Duration::from_secs(after))
    };
    let lines = headers.get_all(RETRY_AFTER);
    // A reader ignores a field that is sent in two lines.
    if only_line(&lines).is_some_and(is_later) {
        return false;
    }
    let replaces = lines.iter().next().is_some();
    insert_number(headers, &RETRY_AFTER, after);
    replaces
}

/// Sets `grpc-retry-pushback-ms`, rounded up. A later value stays, and so does a value that is no such number, which asks the
/// client not to retry.
pub(super) fn set_retry_pushback(headers: &mut HeaderMap, after: Duration) {
    let millis = after.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128);
    let is_earlier = |line: &HeaderValue| {
        let there = line.to_str().ok().and_then(|text| text.parse::<i32>().ok());
        there.is_some_and(|there| there >= 0 && (there as u128) < millis)
    };
    if headers.get(&GRPC_RETRY_PUSHBACK).is_none_or(is_earlier) {
        insert_number(headers, &GRPC_RETRY_PUSHBACK, millis as u64);
    }
}

fn insert_number(headers: &mut HeaderMap, field: &'static HeaderName, number: u64) {
    let mut text = FieldText::new();
    text.put_number(b"", number);
    insert(headers, field, &text);
}

fn insert(headers: &mut HeaderMap, field: &'static HeaderName, text: &FieldText) {
    if let Some(value) = text.value() {
        // A map with 32,768 fields is full, and stays as it is.
        let _full = headers.try_insert(field, value);
    }
}
