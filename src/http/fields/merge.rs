//! Puts fields beside those that an inner layer or the application has set.

use std::time::Duration;

use http::header::{Entry, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};

use super::text::{Text, put_number};
use super::values::Tightness;
use crate::http::upstream::{Item, Malformed, count_of, dictionary, first_count, http_date, list, seconds, structured_lines};

pub(super) static RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(super) static RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// How long a client of gRPC waits before it retries (gRFC A6, "Pushback").
pub(super) static GRPC_RETRY_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// The fields of a style with one limit: its limit, what remains, and its reset.
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

/// What is added to a list.
pub(super) trait Members {
    fn text(&self) -> &[u8];

    fn value(&self) -> Option<HeaderValue>;
}

impl Members for Text {
    fn text(&self) -> &[u8] {
        self.as_bytes()
    }

    fn value(&self) -> Option<HeaderValue> {
        self.value()
    }
}

impl Members for HeaderValue {
    fn text(&self) -> &[u8] {
        self.as_bytes()
    }

    fn value(&self) -> Option<HeaderValue> {
        Some(self.clone())
    }
}

/// Adds members to a list, in one line: not every client reads a second one. A list that is malformed, or has a member that
/// `check` refuses, is replaced: a reader would ignore all of it, the new members too.
pub(super) fn add_to_list<T>(
    headers: &mut HeaderMap,
    field: &'static HeaderName,
    check: impl for<'h> Fn(&Item<'h>) -> Result<T, Malformed>,
    members: &impl Members,
) {
    if members.text().is_empty() {
        return;
    }
    // A map with 32,768 fields is full, and stays as it is.
    let Ok(entry) = headers.try_entry(field) else { return };
    match entry {
        Entry::Vacant(vacant) => {
            if let Some(value) = members.value() {
                let _full = vacant.try_insert(value);
            }
        }
        Entry::Occupied(mut occupied) => {
            let keeps = structured_lines(occupied.iter(), |line| list(line, |item| check(&item).map(|_| ()))) == Ok(true);
            let mut text = Text::new();
            for line in occupied.iter().filter(|_| keeps) {
                text.put_comma();
                text.put(line.as_bytes().trim_ascii());
            }
            text.put_comma();
            text.put(members.text());
            if let Some(value) = text.value() {
                occupied.insert(value);
            }
        }
    }
}

/// The dictionary of draft-07, unless a tighter one is there.
pub(super) fn set_dictionary(headers: &mut HeaderMap, tightest: Tightness) {
    let (mut limit, mut remaining, mut reset) = (None, None, None);
    let read = structured_lines(headers.get_all(&RATELIMIT).iter(), |line| {
        dictionary(line, |key, item| {
            match key {
                b"limit" => limit = Some(count_of(&item)?),
                b"remaining" => remaining = Some(count_of(&item)?),
                b"reset" => reset = Some(count_of(&item)?),
                _ => {}
            }
            Ok(())
        })
    });
    if read.is_ok() && is_tighter(limit, remaining, reset, tightest) {
        return;
    }
    let mut dictionary = Text::new();
    dictionary.put(b"limit=");
    put_number(&mut dictionary, tightest.limit);
    dictionary.put(b", remaining=");
    put_number(&mut dictionary, tightest.remaining);
    dictionary.put(b", reset=");
    put_number(&mut dictionary, tightest.reset);
    insert(headers, &RATELIMIT, &dictionary);
}

/// Three fields, unless those of a tighter limit are there.
pub(super) fn set_triple(headers: &mut HeaderMap, fields: &'static [HeaderName; 3], tightest: Tightness) {
    let line = |field: &HeaderName| {
        let mut lines = headers.get_all(field).iter();
        lines.next().filter(|_| lines.next().is_none()).map(|line| line.as_bytes().trim_ascii())
    };
    let [limit, remaining, reset] = fields;
    let count = |field| line(field).and_then(first_count).and_then(|(count, _)| count);
    let (limit, remaining) = (count(limit), count(remaining));
    let reset = line(reset).and_then(seconds).map(|reset| reset.as_secs());
    if is_tighter(limit, remaining, reset, tightest) {
        return;
    }
    let numbers = [tightest.limit, tightest.remaining, tightest.reset];
    for (field, number) in fields.iter().zip(numbers) {
        insert_number(headers, field, number);
    }
}

fn is_tighter(limit: Option<u64>, remaining: Option<u64>, reset: Option<u64>, than: Tightness) -> bool {
    let (Some(limit), Some(remaining), Some(reset)) = (limit, remaining, reset) else { return false };
    Tightness { limit, remaining, reset }.is_tighter_than(&than)
}

/// `Retry-After`, unless a later one is there. `now` is since the Unix epoch. Returns whether it replaces an earlier one.
pub(super) fn set_retry_after(headers: &mut HeaderMap, after: u64, now: impl Fn() -> Duration) -> bool {
    let later = |line: &HeaderValue| {
        let text = line.as_bytes().trim_ascii();
        let delay = seconds(text).or_else(|| {
            let now = now();
            Some(http_date(text, now)?.saturating_sub(now))
        });
        delay.is_some_and(|delay| delay >= Duration::from_secs(after))
    };
    let mut lines = headers.get_all(RETRY_AFTER).iter();
    let first = lines.next();
    // A second line makes the first worthless.
    if first.is_some_and(later) && lines.next().is_none() {
        return false;
    }
    let replaces = first.is_some();
    insert_number(headers, &RETRY_AFTER, after);
    replaces
}

/// `grpc-retry-pushback-ms`, rounded up, unless a later one is there, or one that is no such number, which asks the client not to retry.
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
    let mut text = Text::new();
    put_number(&mut text, number);
    insert(headers, field, &text);
}

fn insert(headers: &mut HeaderMap, field: &'static HeaderName, text: &Text) {
    if let Some(value) = text.value() {
        // A map with 32,768 fields is full, and stays as it is.
        let _full = headers.try_insert(field, value);
    }
}
