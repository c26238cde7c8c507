//! Reads the header fields in which an upstream states its limits.

mod family;
mod structured;
mod time;

use std::cmp::Reverse;
use std::time::{Duration, SystemTime};

use http::header::GetAll;
use http::{HeaderMap, HeaderValue, StatusCode};

use family::{
    AGE, AnswerPart, DATE, Form, LIMIT, LIMIT_POLICY, Quirk, REQUESTS, RETRY_AFTER,
    RETRY_AFTER_MILLIS, SHOPIFY, UNIFIED_RESET, UNIFIED_STATUS,
};
use structured::{Bare, dictionary};
use time::{decimal_seconds, decimal_whole, go_duration, millis, rfc3339};

pub use family::{ResetFormat, UpstreamFamily};

pub(super) use structured::{Item, list, structured_lines};
pub(super) use time::{http_date, seconds, whole};

use crate::upstream::UpstreamSignal;

const MAX_QUOTAS: usize = 8;
/// The largest number of fields of a family.
const MAX_MALFORMED: usize = 17;

/// Reads the limits of an upstream from its answers: `Retry-After`, and the fields of one [family](UpstreamFamily). The reader
/// reads no clock, and allocates only while it checks a partition key or a string with escapes.
///
/// Reading never fails: a malformed field is ignored, and [named](UpstreamAnswer::malformed). No returned duration is longer than
/// [`max_wait`](Self::max_wait). An instant is measured against the `Date` of the answer, if there is one, so that the clocks
/// need not agree. In an answer with an `Age` above 0, quotas are ignored, because the answer is from a cache.
///
/// # Examples
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use http::{HeaderMap, HeaderValue, StatusCode};
/// use tollgate::layers::{UpstreamFamily, UpstreamReader};
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

    /// The longest duration that the reader returns, from zero on; longer durations are reduced to it. It bounds how long a
    /// faulty or hostile upstream can stop its clients.
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use http::{HeaderMap, HeaderValue, StatusCode};
    /// use tollgate::layers::{UpstreamFamily, UpstreamReader};
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
    /// `Retry-After` is read if the status is 400 or above. It is a number of whole seconds or a date. A negative number, a
    /// fraction (except from Discord and Shopify, which send fractions) or a field that was sent twice is malformed.
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

/// The limits that the answer of an upstream states. [`UpstreamReader::read`], which has an example, returns it. It borrows names
/// from the header fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpstreamAnswer<'h> {
    limited: bool,
    retry_after: Option<Duration>,
    quotas: Few<UpstreamQuota<'h>, MAX_QUOTAS>,
    malformed: Few<&'static str, MAX_MALFORMED>,
}

/// One quota of an upstream. A value that the answer does not state is `None`. See [`UpstreamAnswer::quotas`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct UpstreamQuota<'h> {
    /// The name of the quota, if it has one. In a name from lists of draft-10, `"` and `\` have a `\` before them.
    pub name: Option<&'h str>,
    /// The partition that the quota belongs to, such as that of one caller, in base64; from lists of draft-10.
    pub partition_key: Option<&'h str>,
    /// The unit that the quota counts: `requests`, `tokens`, `project-tokens`, `input-tokens`, `output-tokens`, or a name that
    /// the upstream gave, such as `concurrent-requests`.
    pub unit: &'h str,
    /// The whole quota, in units.
    pub limit: Option<u64>,
    /// The units that are left of the quota.
    pub remaining: Option<u64>,
    /// How long until more units are available, at most the reader's [`max_wait`](UpstreamReader::max_wait).
    pub reset_after: Option<Duration>,
    /// The window of the quota, which is not capped.
    pub window: Option<Duration>,
}

getters!(UpstreamAnswer<'_> {
    /// Whether a limit of the upstream denied the request: status 429 or 503, or a further sign of the
    /// [family](UpstreamFamily).
    pub is_limited: limited -> bool,

    /// How long to wait before the next request, at most the reader's [`max_wait`](UpstreamReader::max_wait). It takes
    /// precedence over the resets of quotas.
    pub retry_after: retry_after -> Option<Duration>,
});

impl<'h> UpstreamAnswer<'h> {
    /// The quotas, in the order in which they were read; at most the first eight of a list.
    #[must_use]
    pub fn quotas(&self) -> &[UpstreamQuota<'h>] {
        self.quotas.as_slice()
    }

    /// The names, in lower case, of the ignored fields: those that were malformed, or sent several times where one is allowed.
    #[must_use]
    pub fn malformed(&self) -> &[&'static str] {
        self.malformed.as_slice()
    }

    /// A signal to a limiter whose limits count requests: [`signal_for("requests")`](Self::signal_for).
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use http::{HeaderMap, HeaderValue, StatusCode};
    /// use tollgate::UpstreamSignal;
    /// use tollgate::layers::{UpstreamFamily, UpstreamReader};
    ///
    /// let mut fields = HeaderMap::new();
    /// fields.insert("ratelimit", HeaderValue::from_static(r#""burst";r=3;t=1, "daily";r=0;t=600"#));
    /// let reader = UpstreamReader::new(UpstreamFamily::Draft10);
    /// let answer = reader.read(StatusCode::OK, &fields, SystemTime::now());
    /// assert_eq!(answer.signal(), UpstreamSignal::new().remaining(0).reset_after(Duration::from_secs(600)));
    /// ```
    pub fn signal(&self) -> UpstreamSignal {
        self.signal_for("requests")
    }

    /// A signal to a limiter that counts this unit. Case, and `_` or `-`, make no difference: the quota `input-tokens` matches
    /// `input_tokens`. If several quotas count this unit, the signal is about the one with the fewest units left, and among
    /// equals the one with the latest reset.
    ///
    /// The signal names the first malformed field.
    ///
    /// After a denial without a [`retry_after`](Self::retry_after), the limiter pauses until the last reset of the quotas that are spent,
    /// whatever they count. If no quota is spent, it pauses until the last reset of those for which the answer does not say what remains. If
    /// there is no such quota either, it pauses for one second. With a `retry_after`, the reset of a quota that is spent is left out,
    /// because the limiter would wait for the later of the two.
    pub fn signal_for(&self, unit: &str) -> UpstreamSignal {
        let quotas = self.quotas().iter();
        let least = |quota: &&UpstreamQuota<'_>| {
            (
                quota.remaining.unwrap_or(u64::MAX),
                Reverse(quota.reset_after),
            )
        };
        let quota = quotas
            .clone()
            .filter(|quota| is_same(quota.unit, unit))
            .min_by_key(least);
        let last_reset = |remaining| {
            quotas
                .clone()
                .filter(|quota| quota.remaining == remaining)
                .filter_map(|quota| quota.reset_after)
                .max()
        };
        let denied = self.limited.then(|| {
            last_reset(Some(0))
                .or_else(|| last_reset(None))
                .unwrap_or(UpstreamSignal::UNKNOWN)
        });
        let is_overruled =
            |quota: &&UpstreamQuota<'_>| self.retry_after.is_some() && quota.remaining == Some(0);
        UpstreamSignal {
            limited: self.limited,
            retry_after: self.retry_after.or(denied),
            remaining: quota.and_then(|quota| quota.remaining),
            reset_after: quota
                .filter(|quota| !is_overruled(quota))
                .and_then(|quota| quota.reset_after),
            malformed: self.malformed().first().copied(),
        }
    }
}

/// Whether two names mean the same unit. Upstreams write hyphens where most programs have underscores.
fn is_same(one: &str, other: &str) -> bool {
    let plain = |byte: u8| {
        if byte == b'_' {
            b'-'
        } else {
            byte.to_ascii_lowercase()
        }
    };
    one.bytes().map(plain).eq(other.bytes().map(plain))
}

/// Reads the fields of one answer.
struct AnswerReader<'h> {
    form: Form,
    status: StatusCode,
    headers: &'h HeaderMap,
    /// When the answer arrived, since the Unix epoch.
    now: Duration,
    /// When the upstream made the answer, by its own clock, since the Unix epoch. Instants in the answer are measured against
    /// this one.
    sent: Duration,
    answer: UpstreamAnswer<'h>,
}

impl<'h> AnswerReader<'h> {
    /// Reads the answer. No duration in it is longer than `max_wait`.
    fn read(mut self, max_wait: Duration) -> UpstreamAnswer<'h> {
        let age = self.value(AGE, seconds).unwrap_or_default();
        let now = self.now;
        if let Some(date) = self.value(DATE, |text| http_date(text, now)) {
            self.sent = date.saturating_add(age);
        }
        let at_most = |wait: Option<Duration>| wait.map(|wait| wait.min(max_wait));
        self.answer.retry_after = at_most(self.retry_after());
        // Quotas from a cache are those of an earlier moment: draft-10, section 5.4.
        if age.is_zero() {
            for part in self.form.parts {
                match part {
                    AnswerPart::Numbers(unit, fields) => self.numbers(unit, fields),
                    AnswerPart::Lists => self.lists(),
                    AnswerPart::Dictionary => self.dictionary(),
                    // An upstream may send the policies of a later draft in this field. They are ignored.
                    AnswerPart::Windows => _ = self.windows(),
                    AnswerPart::UsedOfLimit => self.used_of_limit(),
                    AnswerPart::Unified => self.unified(),
                }
            }
        }
        for quota in self.answer.quotas.as_mut_slice() {
            quota.reset_after = at_most(quota.reset_after);
        }
        self.answer.limited = self.is_limited();
        self.answer
    }

    fn is_limited(&self) -> bool {
        let mut quotas = self.answer.quotas().iter();
        match self.status.as_u16() {
            429 | 503 => true,
            403 if self.form.has(Quirk::DeniesBySpent403) => {
                self.answer.retry_after.is_some() || quotas.any(|quota| quota.remaining == Some(0))
            }
            status => self.form.has(Quirk::DeniesBy(status)),
        }
    }

    /// Reads `Retry-After` for a status of 400 and above. With a redirect, or a success such as 202, the field has another
    /// meaning.
    fn retry_after(&mut self) -> Option<Duration> {
        if self.status.as_u16() < 400 {
            return None;
        }
        let wait_millis = if self.form.has(Quirk::RetryAfterMillis) {
            self.value(RETRY_AFTER_MILLIS, millis)
        } else {
            None
        };
        let (now, sent) = (self.now, self.sent);
        let delay = if self.form.has(Quirk::DecimalRetryAfter) {
            decimal_seconds
        } else {
            seconds
        };
        let wait = self.value(RETRY_AFTER, |text| {
            delay(text).or_else(|| Some(http_date(text, now)?.saturating_sub(sent)))
        });
        wait_millis.or(wait)
    }

    fn numbers(&mut self, unit: &'static str, fields: &[&'static str; 3]) {
        let (form, sent) = (self.form, self.sent);
        let is_unknown = |text: &str| form.has(Quirk::UnknownNumbers) && text == "-1";
        let count = |text: &'h str| {
            if is_unknown(text) {
                return Some((None, None));
            }
            let whole_part = || decimal_whole(text).filter(|_| form.has(Quirk::DecimalCounts));
            first_count(text)
                .or_else(|| Some((whole_part()?, None)))
                .map(|(count, window)| (Some(count), window))
        };
        let [limit, remaining, reset] = *fields;
        let limit = self.value(limit, count);
        let remaining = self.value(remaining, count);
        let reset = self.value(reset, |text| {
            if is_unknown(text) {
                return Some(None);
            }
            let instant = match form.reset {
                ResetFormat::Seconds => return decimal_seconds(text).map(Some),
                ResetFormat::GoDuration => return go_duration(text).map(Some),
                ResetFormat::UnixSeconds => decimal_seconds(text)?,
                ResetFormat::UnixMillis => millis(text)?,
                ResetFormat::Rfc3339 => rfc3339(text)?,
            };
            Some(Some(instant.saturating_sub(sent)))
        });
        if limit.is_none() && remaining.is_none() && reset.is_none() {
            return;
        }
        let (limit, window) = limit.unwrap_or_default();
        let quota = UpstreamQuota {
            name: form.name_field.and_then(|field| self.value(field, Some)),
            unit,
            limit,
            remaining: remaining.and_then(|(remaining, _)| remaining),
            reset_after: reset.flatten(),
            window,
            partition_key: None,
        };
        self.answer.quotas.push(quota);
    }

    /// Reads `RateLimit` and `RateLimit-Policy` of draft-10.
    fn lists(&mut self) {
        let mut quotas = Few::new();
        let read = self.lines(LIMIT, |line| {
            list(line, |item| {
                service_limit(&item).map(|quota| quotas.push(quota))
            })
        });
        if !read {
            return;
        }
        let mut described = quotas;
        let read = self.lines(LIMIT_POLICY, |line| {
            list(line, |item| {
                let policy = quota_policy(&item)?;
                let is_described = |quota: &&mut UpstreamQuota<'_>| {
                    let keys = quota.partition_key.zip(policy.partition_key);
                    quota.name == policy.name && keys.is_none_or(|(one, other)| one == other)
                };
                for quota in described.as_mut_slice().iter_mut().filter(is_described) {
                    quota.limit = policy.limit;
                    quota.unit = policy.unit;
                    quota.window = policy.window;
                }
                Some(())
            })
        });
        self.answer.quotas = if read { described } else { quotas };
    }

    /// Reads `RateLimit` and `RateLimit-Policy` of draft-07.
    fn dictionary(&mut self) {
        let mut quota = UpstreamQuota {
            unit: REQUESTS,
            ..Default::default()
        };
        if !self.lines(LIMIT, |line| read_counts(line, &mut quota)) {
            return;
        }
        self.answer.quotas.push(quota);
        if !self.windows() {
            self.answer.malformed.push(LIMIT_POLICY);
        }
    }

    /// Reads `RateLimit-Policy` of the drafts -03 to -07: the window of the policy with the limit of the quota. A window beside
    /// the limit itself takes precedence. Returns whether the field is well formed; a malformed field changes nothing.
    fn windows(&mut self) -> bool {
        let limit = self.answer.quotas().first().and_then(|quota| quota.limit);
        let mut window = None;
        let read = structured_lines(self.headers.get_all(LIMIT_POLICY).iter(), |line| {
            list(line, |item| {
                let (quota, its_window) = quota_and_window(&item)?;
                if Some(quota) == limit {
                    window = its_window;
                }
                Some(())
            })
        });
        let window = window.filter(|_| read.is_some());
        for quota in self.answer.quotas.as_mut_slice() {
            quota.window = quota.window.or(window);
        }
        read.is_some()
    }

    fn used_of_limit(&mut self) {
        let counts = self.value(SHOPIFY, |text| {
            let (used, limit) = text.split_once('/')?;
            Some((whole(used)?, whole(limit)?))
        });
        if let Some((used, limit)) = counts {
            self.answer.quotas.push(UpstreamQuota {
                unit: REQUESTS,
                limit: Some(limit),
                remaining: Some(limit.saturating_sub(used)),
                ..Default::default()
            });
        }
    }

    /// Reads the quota of a subscription, when it is spent. If the client pays for use beyond the quota, answers that are no
    /// denials have `rejected`, too.
    fn unified(&mut self) {
        let is_spent = self.value(UNIFIED_STATUS, Some) == Some("rejected");
        if self.status != StatusCode::TOO_MANY_REQUESTS || !is_spent {
            return;
        }
        let reset = self.value(UNIFIED_RESET, seconds);
        self.answer.quotas.push(UpstreamQuota {
            name: Some("unified"),
            unit: REQUESTS,
            remaining: Some(0),
            reset_after: reset.map(|instant| instant.saturating_sub(self.sent)),
            ..Default::default()
        });
    }

    /// The value of a field that may be sent once.
    fn value<T>(
        &mut self,
        field: &'static str,
        read: impl FnOnce(&'h str) -> Option<T>,
    ) -> Option<T> {
        let lines = self.headers.get_all(field);
        lines.iter().next()?;
        let value = only_line(&lines).and_then(read);
        if value.is_none() {
            self.answer.malformed.push(field);
        }
        value
    }

    /// Reads every line of a field. Returns whether the field has content and is well formed.
    fn lines(&mut self, field: &'static str, read: impl FnMut(&'h str) -> Option<()>) -> bool {
        let found = structured_lines(self.headers.get_all(field).iter(), read);
        if found.is_none() {
            self.answer.malformed.push(field);
        }
        found == Some(true)
    }
}

/// The value of a field that is sent in one line, as UTF-8.
pub(super) fn only_line<'h>(lines: &GetAll<'h, HeaderValue>) -> Option<&'h str> {
    let mut lines = lines.iter();
    let line = lines.next()?.as_bytes().trim_ascii();
    let is_only = lines.next().is_none();
    str::from_utf8(line).ok().filter(|_| is_only)
}

/// Reads a line of `RateLimit` of draft-07 into the quota that it is about. Returns `None` if it is malformed.
pub(super) fn read_counts(line: &str, quota: &mut UpstreamQuota<'_>) -> Option<()> {
    dictionary(line, |key, item| {
        let count = item.value().count();
        match key {
            "limit" => quota.limit = Some(count?),
            "remaining" => quota.remaining = Some(count?),
            "reset" => quota.reset_after = Some(Duration::from_secs(count?)),
            _ => {}
        }
        Some(())
    })
}

/// Reads an item of `RateLimit` of draft-10.
pub(super) fn service_limit<'h>(item: &Item<'h>) -> Option<UpstreamQuota<'h>> {
    Some(UpstreamQuota {
        unit: REQUESTS,
        remaining: Some(item.parameter("r")?.count()?),
        reset_after: seconds_in(item, "t")?,
        ..named(item)?
    })
}

/// Reads an item of `RateLimit-Policy` of draft-10.
pub(super) fn quota_policy<'h>(item: &Item<'h>) -> Option<UpstreamQuota<'h>> {
    let unit = item.optional("qu", Bare::string)?;
    let window = seconds_in(item, "w")?;
    Some(UpstreamQuota {
        unit: unit.unwrap_or(REQUESTS),
        limit: Some(item.parameter("q")?.count()?),
        window,
        ..named(item)?
    })
    .filter(|_| window != Some(Duration::ZERO))
}

fn named<'h>(item: &Item<'h>) -> Option<UpstreamQuota<'h>> {
    Some(UpstreamQuota {
        name: Some(item.value().string()?),
        partition_key: item.optional("pk", Bare::bytes)?,
        ..UpstreamQuota::default()
    })
}

/// Reads an item of `RateLimit-Policy` of draft-07: the quota and its window.
pub(super) fn quota_and_window(item: &Item<'_>) -> Option<(u64, Option<Duration>)> {
    Some((item.value().count()?, seconds_in(item, "w")?))
}

fn seconds_in(item: &Item<'_>, parameter: &str) -> Option<Option<Duration>> {
    item.optional(parameter, |value| value.count().map(Duration::from_secs))
}

/// The first number of `100, 100;w=60;name="a"`, and its window.
pub(super) fn first_count(text: &str) -> Option<(u64, Option<Duration>)> {
    let (mut first, mut window) = (None, None);
    list(text, |item| {
        let (count, its_window) = quota_and_window(&item)?;
        if *first.get_or_insert(count) == count && window.is_none() {
            window = its_window;
        }
        Some(())
    })?;
    Some((first?, window))
}

/// A list of at most `N` items, without an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Few<T, const N: usize> {
    items: [T; N],
    len: usize,
}

impl<T: Copy + Default, const N: usize> Few<T, N> {
    fn new() -> Self {
        Self {
            items: [T::default(); N],
            len: 0,
        }
    }

    /// Adds an item, or drops it if there is no room.
    fn push(&mut self, item: T) {
        if self.len < N {
            self.items[self.len] = item;
            self.len += 1;
        }
    }

    fn as_slice(&self) -> &[T] {
        &self.items[..self.len]
    }

    fn as_mut_slice(&mut self) -> &mut [T] {
        &mut self.items[..self.len]
    }
}
