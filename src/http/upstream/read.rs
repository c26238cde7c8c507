//! Reads the fields of one answer.

use std::time::Duration;

use http::header::GetAll;
use http::{HeaderMap, HeaderValue, StatusCode};

use super::answer::{Few, UpstreamAnswer, UpstreamQuota};
use super::family::{
    AGE, AnswerPart, DATE, Form, LIMIT, LIMIT_POLICY, REQUESTS, RETRY_AFTER, RETRY_AFTER_MILLIS,
    ResetFormat, SHOPIFY, UNIFIED_RESET, UNIFIED_STATUS,
};
use super::structured::{Bare, Item, dictionary, list, structured_lines};
use super::time::{
    decimal_seconds, decimal_whole, go_duration, http_date, millis, rfc3339, seconds, whole,
};

pub(super) struct AnswerReader<'h> {
    pub(super) form: Form,
    pub(super) status: StatusCode,
    pub(super) headers: &'h HeaderMap,
    /// When the answer arrived, since the Unix epoch.
    pub(super) now: Duration,
    /// When the answer was made by the clock of the upstream, since the Unix epoch. Its instants are measured against this.
    pub(super) sent: Duration,
    pub(super) answer: UpstreamAnswer<'h>,
}

impl<'h> AnswerReader<'h> {
    /// Reads the answer. No duration in it is longer than `max_wait`.
    pub(super) fn read(mut self, max_wait: Duration) -> UpstreamAnswer<'h> {
        let age = self.value(AGE, seconds).unwrap_or_default();
        let now = self.now;
        if let Some(date) = self.value(DATE, |text| http_date(text, now)) {
            self.sent = date.saturating_add(age);
        }
        let at_most = |wait: Option<Duration>| wait.map(|wait| wait.min(max_wait));
        self.answer.retry_after = at_most(self.retry_after());
        // What a cache has kept is about another moment: draft-10, section 5.4.
        if age.is_zero() {
            for part in self.form.parts {
                match part {
                    AnswerPart::Numbers(unit, fields) => self.numbers(unit, fields),
                    AnswerPart::Lists => self.lists(),
                    AnswerPart::Dictionary => self.dictionary(),
                    AnswerPart::Windows => self.windows(),
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
            403 if self.form.denies_by_403 => {
                self.answer.retry_after.is_some() || quotas.any(|quota| quota.remaining == Some(0))
            }
            status => self.form.overloaded_status == Some(status),
        }
    }

    /// Read for a status of 400 and above. After a redirect, or a success such as 202, the field is about something else.
    fn retry_after(&mut self) -> Option<Duration> {
        if self.status.as_u16() < 400 {
            return None;
        }
        let wait_millis = if self.form.has_retry_after_millis {
            self.value(RETRY_AFTER_MILLIS, millis)
        } else {
            None
        };
        let (now, sent) = (self.now, self.sent);
        let delay = if self.form.has_decimal_retry_after {
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
        let is_unknown = |text: &str| form.has_unknown && text == "-1";
        let count = |text: &'h str| {
            if is_unknown(text) {
                return Some((None, None));
            }
            let whole_part = || decimal_whole(text).filter(|_| form.has_decimal_counts);
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

    /// `RateLimit` and `RateLimit-Policy` of draft-10.
    fn lists(&mut self) {
        let mut quotas = Few::new();
        let read = self.lines(LIMIT, |line| {
            list(line, |item| {
                quotas.push(service_limit(&item)?);
                Some(())
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

    /// `RateLimit` and `RateLimit-Policy` of draft-07.
    fn dictionary(&mut self) {
        let mut counts = QuotaCounts::default();
        if !self.lines(LIMIT, |line| counts.read(line)) {
            return;
        }
        let window = self.window_of(counts.limit).unwrap_or_else(|| {
            self.answer.malformed.push(LIMIT_POLICY);
            None
        });
        self.answer.quotas.push(UpstreamQuota {
            unit: REQUESTS,
            limit: counts.limit,
            remaining: counts.remaining,
            reset_after: counts.reset.map(Duration::from_secs),
            window,
            ..Default::default()
        });
    }

    /// The window of the policy with this quota, by a `RateLimit-Policy` of the drafts -03 to -07. `None` if the field is malformed.
    fn window_of(&self, limit: Option<u64>) -> Option<Option<Duration>> {
        let mut window = None;
        structured_lines(self.headers.get_all(LIMIT_POLICY).iter(), |line| {
            list(line, |item| {
                let (quota, its_window) = quota_and_window(&item)?;
                if Some(quota) == limit {
                    window = its_window;
                }
                Some(())
            })
        })?;
        Some(window)
    }

    /// `RateLimit-Policy` of the drafts -03 to -06. A window that stands beside the limit itself is the nearer one. An upstream may send the
    /// policies of a later draft beside the fields of these: they say nothing here.
    fn windows(&mut self) {
        let limit = self.answer.quotas().first().and_then(|quota| quota.limit);
        let window = self.window_of(limit).flatten();
        for quota in self.answer.quotas.as_mut_slice() {
            quota.window = quota.window.or(window);
        }
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

    /// The quota of a subscription, when it is spent. Where use beyond it is paid for, answers that were not denied say `rejected`, too.
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

    /// Reads every line of a field. Returns whether there is something in it, and all is well formed.
    fn lines(&mut self, field: &'static str, read: impl FnMut(&'h str) -> Option<()>) -> bool {
        let found = structured_lines(self.headers.get_all(field).iter(), read);
        if found.is_none() {
            self.answer.malformed.push(field);
        }
        found == Some(true)
    }
}

/// The value of a field that is sent in one line, as UTF-8.
pub(in crate::http) fn only_line<'h>(lines: &GetAll<'h, HeaderValue>) -> Option<&'h str> {
    let mut lines = lines.iter();
    let line = lines.next()?.as_bytes().trim_ascii();
    let is_only = lines.next().is_none();
    str::from_utf8(line).ok().filter(|_| is_only)
}

/// The numbers of one quota, as far as they are known.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::http) struct QuotaCounts {
    pub(in crate::http) limit: Option<u64>,
    pub(in crate::http) remaining: Option<u64>,
    pub(in crate::http) reset: Option<u64>,
}

impl QuotaCounts {
    /// Reads a line of `RateLimit` of draft-07. Returns `None` if it is malformed.
    pub(in crate::http) fn read(&mut self, line: &str) -> Option<()> {
        dictionary(line, |key, item| {
            let number = match key {
                "limit" => &mut self.limit,
                "remaining" => &mut self.remaining,
                "reset" => &mut self.reset,
                _ => return Some(()),
            };
            *number = Some(item.value().count()?);
            Some(())
        })
    }
}

/// What an item of `RateLimit` of draft-10 says.
pub(in crate::http) fn service_limit<'h>(item: &Item<'h>) -> Option<UpstreamQuota<'h>> {
    Some(UpstreamQuota {
        unit: REQUESTS,
        remaining: Some(item.parameter("r")?.count()?),
        reset_after: seconds_in(item, "t")?,
        ..named(item)?
    })
}

/// What an item of `RateLimit-Policy` of draft-10 says.
pub(in crate::http) fn quota_policy<'h>(item: &Item<'h>) -> Option<UpstreamQuota<'h>> {
    let unit = item.optional("qu", |unit| match unit {
        Bare::String(unit) => Some(unit),
        _ => None,
    })?;
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
    let Bare::String(name) = item.value() else {
        return None;
    };
    Some(UpstreamQuota {
        name: Some(name),
        partition_key: item.optional("pk", |key| match key {
            Bare::Bytes(key) => Some(key),
            _ => None,
        })?,
        ..UpstreamQuota::default()
    })
}

/// What an item of `RateLimit-Policy` of draft-07 says: the quota and its window.
pub(in crate::http) fn quota_and_window(item: &Item<'_>) -> Option<(u64, Option<Duration>)> {
    Some((item.value().count()?, seconds_in(item, "w")?))
}

fn seconds_in(item: &Item<'_>, parameter: &str) -> Option<Option<Duration>> {
    item.optional(parameter, |value| value.count().map(Duration::from_secs))
}

/// The first number of `100, 100;w=60;name="a"`, and its window.
pub(in crate::http) fn first_count(text: &str) -> Option<(u64, Option<Duration>)> {
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
