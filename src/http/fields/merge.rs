//! Merges fields with those that an inner layer or the application has set.

use std::time::Duration;

use http::header::{Entry, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};

use super::text::FieldText;
use super::values::Tightness;
use crate::http::upstream::{
    Item, UpstreamQuota, first_count, http_date, list, only_line, read_counts, seconds,
    structured_lines,
};

pub(super) static RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(super) static RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// How long a client of gRPC waits before it retries (gRFC A6, "Pushback").
pub(super) static GRPC_RETRY_PUSHBACK: HeaderName =
    HeaderName::from_static("grpc-retry-pushback-ms");

/// The fields of a style with one limit: limit, remaining units, and reset.
pub(super) static RATELIMIT_TRIPLE: [HeaderName; 3] = [
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
];
pub(super) static X_RATELIMIT_TRIPLE: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
];

/// Adds members to a list, in one line, because not every client reads a second line. A list that is malformed, or has a member
/// that `check` refuses, is replaced: a reader would ignore the whole list, with the new members.
pub(super) fn add_to_list(
    headers: &mut HeaderMap,
    field: &'static HeaderName,
    check: impl Fn(&Item<'_>) -> bool,
    members: Option<HeaderValue>,
) {
    let Some(members) = members else { return };
    match headers.try_entry(field) {
        Ok(Entry::Vacant(vacant)) => {
            let _full = vacant.try_insert(members);
        }
        Ok(Entry::Occupied(mut occupied)) => {
            let keeps = structured_lines(occupied.iter(), |line| {
                list(line, |item| check(&item).then_some(()))
            }) == Some(true);
            let mut text = FieldText::new();
            for line in occupied.iter().filter(|_| keeps).chain([&members]) {
                text.put_comma();
                text.put(line.as_bytes().trim_ascii());
            }
            if let Some(value) = text.value() {
                occupied.insert(value);
            }
        }
        // A map with 32,768 fields is full, and stays as it is.
        Err(_full) => {}
    }
}

/// Sets the dictionary of draft-07, unless a tighter one is set.
pub(super) fn set_dictionary(headers: &mut HeaderMap, tightest: Option<Tightness>) {
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
pub(super) fn set_triple(
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
pub(super) fn set_retry_after(
    headers: &mut HeaderMap,
    after: u64,
    now: impl Fn() -> Duration,
) -> bool {
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
pub(in crate::http) fn set_retry_pushback(headers: &mut HeaderMap, after: Duration) {
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
