//! Reads the header fields in which an upstream states its limits.

mod answer;
mod family;
mod structured;
mod time;

use std::time::{Duration, SystemTime};

use http::header::GetAll;
use http::{HeaderMap, HeaderValue, StatusCode};

use answer::Few;
use family::{
    AGE, AnswerPart, DATE, Form, LIMIT, LIMIT_POLICY, Quirk, REQUESTS, RETRY_AFTER,
    RETRY_AFTER_MILLIS, SHOPIFY, UNIFIED_RESET, UNIFIED_STATUS,
};
use structured::{Bare, dictionary};
use time::{decimal_seconds, decimal_whole, go_duration, millis, rfc3339};

pub use answer::{UpstreamAnswer, UpstreamQuota};
pub use family::{ResetFormat, UpstreamFamily};

pub(super) use structured::{Item, list, structured_lines};
pub(super) use time::{http_date, seconds, whole};

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

    /// The longest duration that the reader returns, from zero on; longer durations are reduced to it. It bounds how long a
    /// faulty or hostile upstream can stop its clients.
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
                    AnswerPart::Windows => {
                        // An upstream may send the policies of a later draft in this field. They are ignored.
                        self.windows();
                    }
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
            name: form.name_field().and_then(|field| self.value(field, Some)),
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
