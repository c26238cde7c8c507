//! Reads the fields of one answer.

use std::time::Duration;

use http::{HeaderMap, HeaderValue, StatusCode};

use super::answer::{Few, UpstreamAnswer, UpstreamQuota};
use super::family::{ResetFormat, Triple, UpstreamFamily};
use super::structured::{Bare, Item, Malformed, dictionary, list};
use super::time::{decimal_seconds, decimal_whole, go_duration, http_date, millis, rfc3339, seconds};

const RETRY_AFTER: &str = "retry-after";
const RETRY_AFTER_MILLIS: &str = "retry-after-ms";
const RATELIMIT: &str = "ratelimit";
const RATELIMIT_POLICY: &str = "ratelimit-policy";
const SHOPIFY: &str = "x-shopify-shop-api-call-limit";
const UNIFIED_STATUS: &str = "anthropic-ratelimit-unified-status";
const UNIFIED_RESET: &str = "anthropic-ratelimit-unified-reset";
const REQUESTS: &str = "requests";

pub(super) struct Reading<'h> {
    pub(super) family: UpstreamFamily,
    pub(super) status: StatusCode,
    pub(super) headers: &'h HeaderMap,
    /// Since the Unix epoch, like [`Reading::sent`].
    pub(super) now: Duration,
    /// When the answer was made by the clock of the upstream, against which its instants are measured.
    pub(super) sent: Duration,
    pub(super) max_wait: Duration,
    pub(super) answer: UpstreamAnswer<'h>,
}

impl<'h> Reading<'h> {
    pub(super) fn new(
        family: UpstreamFamily,
        max_wait: Duration,
        status: StatusCode,
        headers: &'h HeaderMap,
        now: Duration,
    ) -> Self {
        let answer = UpstreamAnswer { limited: false, retry_after: None, quotas: Few::new(), malformed: Few::new() };
        Self { family, status, headers, now, sent: now, max_wait, answer }
    }

    pub(super) fn read(mut self) -> UpstreamAnswer<'h> {
        let age = self.value("age", seconds).unwrap_or_default();
        let now = self.now;
        if let Some(date) = self.value("date", |text| http_date(text, now)) {
            self.sent = date.saturating_add(age);
        }
        self.answer.retry_after = self.retry_after();
        // What a cache has kept is about another moment: draft-10, section 5.4.
        if age.is_zero() {
            match self.family {
                UpstreamFamily::Draft10 => self.lists(),
                UpstreamFamily::Draft7 => self.dictionary(),
                UpstreamFamily::Shopify => self.shopify(),
                family => family.triples().iter().for_each(|triple| self.triple(triple)),
            }
            if self.family == UpstreamFamily::Draft6 {
                self.windows();
            }
            if self.family == UpstreamFamily::Anthropic {
                self.unified();
            }
        }
        self.answer.limited = self.is_limited();
        self.answer
    }

    fn is_limited(&self) -> bool {
        let spent = || self.answer.quotas().iter().any(|quota| quota.remaining == Some(0));
        match (self.status.as_u16(), self.family) {
            (429 | 503, _) | (529, UpstreamFamily::Anthropic) => true,
            (403, UpstreamFamily::GitHub) => self.answer.retry_after.is_some() || spent(),
            _ => false,
        }
    }

    /// Of an error. After a redirect, or a success such as 202, the field is about something else.
    fn retry_after(&mut self) -> Option<Duration> {
        if self.status.as_u16() < 400 {
            return None;
        }
        let millis = if self.family.has_retry_after_millis() { self.value(RETRY_AFTER_MILLIS, millis) } else { None };
        let (now, sent, decimal) = (self.now, self.sent, self.family.has_decimal_retry_after());
        let seconds = self.value(RETRY_AFTER, |text| {
            let delay = if decimal { decimal_seconds(text) } else { seconds(text) };
            delay.or_else(|| Some(http_date(text, now)?.saturating_sub(sent)))
        });
        millis.or(seconds).map(|wait| wait.min(self.max_wait))
    }

    fn triple(&mut self, triple: &Triple) {
        let (has_unknown, has_decimals) = (self.family.has_unknown(), self.family.has_decimal_counts());
        let count = |text: &'h [u8]| match text {
            b"-1" if has_unknown => Some((None, None)),
            _ => first_count(text).or_else(|| Some((Some(decimal_whole(text).filter(|_| has_decimals)?), None))),
        };
        let limit = self.value(triple.limit, count);
        let remaining = self.value(triple.remaining, count);
        let sent = self.sent;
        let reset = self.value(triple.reset, |text| match triple.format {
            _ if has_unknown && text == b"-1" => Some(None),
            ResetFormat::Seconds => decimal_seconds(text).map(Some),
            ResetFormat::GoDuration => go_duration(text).map(Some),
            ResetFormat::UnixSeconds => decimal_seconds(text).map(|instant| Some(instant.saturating_sub(sent))),
            ResetFormat::UnixMillis => millis(text).map(|instant| Some(instant.saturating_sub(sent))),
            ResetFormat::Rfc3339 => rfc3339(text).map(|instant| Some(instant.saturating_sub(sent))),
        });
        if limit.is_none() && remaining.is_none() && reset.is_none() {
            return;
        }
        let name = self.family.name_field().and_then(|field| self.value(field, |text| std::str::from_utf8(text).ok()));
        let (limit, window) = limit.unwrap_or_default();
        let remaining = remaining.and_then(|(remaining, _)| remaining);
        let reset_after = reset.flatten().map(|wait| wait.min(self.max_wait));
        self.answer.quotas.push(UpstreamQuota {
            name,
            unit: triple.unit,
            limit,
            remaining,
            reset_after,
            window,
            ..UpstreamQuota::default()
        });
    }

    /// `RateLimit` and `RateLimit-Policy` of draft-10.
    fn lists(&mut self) {
        let mut quotas = Few::new();
        let max_wait = self.max_wait;
        let read = self.lines(RATELIMIT, |line| {
            list(line, |item| {
                let quota = service_limit(&item)?;
                quotas.push(UpstreamQuota { reset_after: quota.reset_after.map(|wait| wait.min(max_wait)), ..quota });
                Ok(())
            })
        });
        if !read {
            return;
        }
        let mut described = quotas;
        let read = self.lines(RATELIMIT_POLICY, |line| {
            list(line, |item| {
                let policy = quota_policy(&item)?;
                let is_described = |quota: &&mut UpstreamQuota<'_>| {
                    let keys = quota.partition_key.zip(policy.partition_key);
                    quota.name == policy.name && keys.is_none_or(|(one, other)| one == other)
                };
                for quota in described.as_mut_slice().iter_mut().filter(is_described) {
                    (quota.limit, quota.unit, quota.window) = (policy.limit, policy.unit, policy.window);
                }
                Ok(())
            })
        });
        self.answer.quotas = if read { described } else { quotas };
    }

    /// `RateLimit` and `RateLimit-Policy` of draft-07.
    fn dictionary(&mut self) {
        let (mut limit, mut remaining, mut reset) = (None, None, None);
        let read = self.lines(RATELIMIT, |line| {
            dictionary(line, |key, item| {
                let slot = match key {
                    b"limit" => &mut limit,
                    b"remaining" => &mut remaining,
                    b"reset" => &mut reset,
                    _ => return Ok(()),
                };
                *slot = Some(count_of(&item)?);
                Ok(())
            })
        });
        if !read {
            return;
        }
        let window = self.window_of(limit).unwrap_or_else(|Malformed| {
            self.answer.malformed.push(RATELIMIT_POLICY);
            None
        });
        let reset_after = reset.map(|wait| Duration::from_secs(wait).min(self.max_wait));
        self.answer.quotas.push(UpstreamQuota { unit: REQUESTS, limit, remaining, reset_after, window, ..Default::default() });
    }

    /// The window of the policy with this quota, by a `RateLimit-Policy` of the drafts -03 to -07.
    fn window_of(&self, limit: Option<u64>) -> Result<Option<Duration>, Malformed> {
        let mut window = None;
        let described = structured_lines(self.headers.get_all(RATELIMIT_POLICY).iter(), |line| {
            list(line, |item| {
                let (quota, its_window) = quota_and_window(&item)?;
                if Some(quota) == limit {
                    window = its_window;
                }
                Ok(())
            })
        })?;
        Ok(window.filter(|_| described))
    }

    /// `RateLimit-Policy` of the drafts -03 to -06. A window that stands beside the limit itself is the nearer one. An upstream may send the
    /// policies of a later draft beside the fields of these: they say nothing here.
    fn windows(&mut self) {
        let limit = self.answer.quotas().first().and_then(|quota| quota.limit);
        let window = self.window_of(limit).unwrap_or(None);
        for quota in self.answer.quotas.as_mut_slice() {
            quota.window = quota.window.or(window);
        }
    }

    fn shopify(&mut self) {
        let counts = self.value(SHOPIFY, |text| {
            let (used, limit) = text.split_at(text.iter().position(|byte| *byte == b'/')?);
            Some((seconds(used)?.as_secs(), seconds(&limit[1..])?.as_secs()))
        });
        if let Some((used, limit)) = counts {
            let remaining = Some(limit.saturating_sub(used));
            self.answer.quotas.push(UpstreamQuota { unit: REQUESTS, limit: Some(limit), remaining, ..Default::default() });
        }
    }

    /// The quota of a subscription, when it is spent. Where use beyond it is paid for, answers that were not denied say `rejected`, too.
    fn unified(&mut self) {
        let is_spent = self.value(UNIFIED_STATUS, Some) == Some(b"rejected");
        if self.status != StatusCode::TOO_MANY_REQUESTS || !is_spent {
            return;
        }
        let (sent, max_wait) = (self.sent, self.max_wait);
        let reset_after = self.value(UNIFIED_RESET, seconds).map(|instant| instant.saturating_sub(sent).min(max_wait));
        let (name, remaining) = (Some("unified"), Some(0));
        self.answer.quotas.push(UpstreamQuota { name, unit: REQUESTS, remaining, reset_after, ..Default::default() });
    }

    /// The value of a field that may be sent once.
    fn value<T>(&mut self, field: &'static str, read: impl FnOnce(&'h [u8]) -> Option<T>) -> Option<T> {
        let mut lines = self.headers.get_all(field).iter();
        let value = lines.next()?;
        let value = if lines.next().is_some() { None } else { read(value.as_bytes().trim_ascii()) };
        if value.is_none() {
            self.answer.malformed.push(field);
        }
        value
    }

    /// Reads every line of a field. Returns whether there is something in it, and all is well formed.
    fn lines(&mut self, field: &'static str, read: impl FnMut(&'h [u8]) -> Result<(), Malformed>) -> bool {
        match structured_lines(self.headers.get_all(field).iter(), read) {
            Ok(found) => found,
            Err(Malformed) => {
                self.answer.malformed.push(field);
                false
            }
        }
    }
}

/// Reads every line of a structured field. Returns whether there is something in it.
pub(in crate::http) fn structured_lines<'h>(
    lines: impl Iterator<Item = &'h HeaderValue>,
    mut read: impl FnMut(&'h [u8]) -> Result<(), Malformed>,
) -> Result<bool, Malformed> {
    let (mut full, mut empty) = (0, 0);
    for line in lines.map(|line| line.as_bytes().trim_ascii()) {
        if line.is_empty() {
            empty += 1;
        } else {
            full += 1;
            read(line)?;
        }
    }
    if empty > 0 && full + empty > 1 { Err(Malformed) } else { Ok(full > 0) }
}

/// What an item of `RateLimit` of draft-10 says.
pub(in crate::http) fn service_limit<'h>(item: &Item<'h>) -> Result<UpstreamQuota<'h>, Malformed> {
    let remaining = item.count("r")?.ok_or(Malformed)?;
    let reset_after = item.count("t")?.map(Duration::from_secs);
    Ok(UpstreamQuota { unit: REQUESTS, remaining: Some(remaining), reset_after, ..named(item)? })
}

/// What an item of `RateLimit-Policy` of draft-10 says.
pub(in crate::http) fn quota_policy<'h>(item: &Item<'h>) -> Result<UpstreamQuota<'h>, Malformed> {
    let limit = item.count("q")?.ok_or(Malformed)?;
    let unit = match item.parameter("qu") {
        None => REQUESTS,
        Some(Bare::String(unit)) => unit,
        Some(_) => return Err(Malformed),
    };
    match item.count("w")? {
        Some(0) => Err(Malformed),
        window => Ok(UpstreamQuota { unit, limit: Some(limit), window: window.map(Duration::from_secs), ..named(item)? }),
    }
}

fn named<'h>(item: &Item<'h>) -> Result<UpstreamQuota<'h>, Malformed> {
    let Bare::String(name) = item.value else { return Err(Malformed) };
    let partition_key = match item.parameter("pk") {
        None => None,
        Some(Bare::Bytes(key)) => Some(key),
        Some(_) => return Err(Malformed),
    };
    Ok(UpstreamQuota { name: Some(name), partition_key, ..UpstreamQuota::default() })
}

/// What an item of `RateLimit-Policy` of draft-07 says: the quota and its window.
pub(in crate::http) fn quota_and_window(item: &Item<'_>) -> Result<(u64, Option<Duration>), Malformed> {
    Ok((count_of(item)?, item.count("w")?.map(Duration::from_secs)))
}

pub(in crate::http) fn count_of(item: &Item<'_>) -> Result<u64, Malformed> {
    let Bare::Integer(count) = item.value else { return Err(Malformed) };
    u64::try_from(count).map_err(|_| Malformed)
}

/// The first number of `100, 100;w=60;name="a"`, and its window.
pub(in crate::http) fn first_count(text: &[u8]) -> Option<(Option<u64>, Option<Duration>)> {
    let (mut first, mut window) = (None, None);
    let read = list(text, |item| {
        let (count, its_window) = quota_and_window(&item)?;
        if *first.get_or_insert(count) == count && window.is_none() {
            window = its_window;
        }
        Ok(())
    });
    read.ok().and(first).map(|first| (Some(first), window))
}
