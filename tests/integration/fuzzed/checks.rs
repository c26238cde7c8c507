//! Properties that hold for any bytes from outside: policies, header fields and messages.

#[path = "../common/upstreams.rs"]
#[allow(clippy::duplicate_mod, reason = "the fuzzers compile this file alone")]
mod upstreams;

use std::net::IpAddr;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tollgate::layers::{
    ClientIp, FieldValues, ForwardedHeader, NoClientIp, RateLimitFields, RateLimitStyle,
    ResetFormat, UpstreamFamily, UpstreamReader,
};
use tollgate::{Limiter, Policy, TryAcquireError};
use upstreams::{FIELDS, now};

/// The inputs of a corpus, each on a line, as `escape_ascii` writes them.
pub(crate) fn inputs(corpus: &str) -> impl Iterator<Item = Vec<u8>> {
    fn byte(rest: &mut std::str::Bytes<'_>) -> Option<u8> {
        let first = rest.next()?;
        if first != b'\\' {
            return Some(first);
        }
        Some(match rest.next()? {
            b't' => b'\t',
            b'n' => b'\n',
            b'r' => b'\r',
            b'x' => {
                let digits = String::from_iter([rest.next()?, rest.next()?].map(char::from));
                u8::from_str_radix(&digits, 16).ok()?
            }
            escaped => escaped,
        })
    }
    corpus.lines().map(|line| {
        let mut rest = line.bytes();
        std::iter::from_fn(|| byte(&mut rest)).collect()
    })
}

fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split(|byte| *byte == b'\n')
}

/// Makes a field of each line: the first byte chooses the name, the others are the value.
fn fields(bytes: &[u8], names: &[&'static str]) -> HeaderMap {
    let mut fields = HeaderMap::new();
    for (first, value) in lines(bytes).filter_map(<[u8]>::split_first) {
        if let Ok(value) = HeaderValue::from_bytes(value) {
            fields.append(
                HeaderName::from_static(names[usize::from(*first) % names.len()]),
                value,
            );
        }
    }
    fields
}

/// The fields of upstreams that are missing in all inputs of a corpus.
pub(crate) fn fields_without_input(corpus: &str) -> impl Iterator<Item = &'static str> {
    let inputs = inputs(corpus).filter_map(|input| Some(fields(input.get(1..)?, &FIELDS)));
    let inputs: Vec<_> = inputs.collect();
    let is_missing = move |field: &&str| inputs.iter().all(|fields| !fields.contains_key(*field));
    FIELDS.into_iter().filter(is_missing)
}

/// The lines of a field without the white space around them, which is not part of a value (RFC 9110, section 5.5).
fn values<'h>(headers: &'h HeaderMap, name: &str) -> Vec<&'h [u8]> {
    headers
        .get_all(name)
        .iter()
        .map(|value| value.as_bytes().trim_ascii())
        .collect()
}

fn is_dictionary(lines: &[&[u8]]) -> bool {
    sfv::Parser::new(&lines.join(&b", "[..]))
        .parse::<sfv::Dictionary>()
        .is_ok()
}

fn is_natural(value: &sfv::BareItem) -> bool {
    value
        .as_integer()
        .is_some_and(|number| i64::from(number) >= 0)
}

/// An item of draft-10 as another parser finds it: its name is a string, and this parameter is a number.
fn is_named(item: &sfv::Item, count: &str) -> bool {
    let key_is_fine = item
        .params
        .get("pk")
        .is_none_or(|key| key.as_byte_sequence().is_some());
    item.bare_item.as_string().is_some()
        && item.params.get(count).is_some_and(is_natural)
        && key_is_fine
}

/// Whether this is a valid item of `RateLimit`.
fn is_state(item: &sfv::Item) -> bool {
    is_named(item, "r") && item.params.get("t").is_none_or(is_natural)
}

/// Whether this is a valid item of `RateLimit-Policy`.
fn is_policy(item: &sfv::Item) -> bool {
    let has_window = |window: &sfv::BareItem| {
        window
            .as_integer()
            .is_some_and(|number| i64::from(number) > 0)
    };
    let unit_is_fine = item
        .params
        .get("qu")
        .is_none_or(|unit| unit.as_string().is_some());
    is_named(item, "q") && item.params.get("w").is_none_or(has_window) && unit_is_fine
}

/// The items of the field in these lines, or `None` if the field is malformed.
fn items(lines: &[&[u8]], is_fine: fn(&sfv::Item) -> bool) -> Option<sfv::List> {
    let parse = |text: &[u8]| sfv::Parser::new(text).parse::<sfv::List>().ok();
    let is_fine =
        |entry: &sfv::ListEntry| matches!(entry, sfv::ListEntry::Item(item) if is_fine(item));
    // An empty line is an empty list, but cannot be a part of a longer one.
    let each = lines
        .iter()
        .all(|line| parse(line).is_some_and(|list| lines.len() == 1 || !list.is_empty()));
    parse(&lines.join(&b", "[..])).filter(|list| each && list.iter().all(is_fine))
}

/// Each family reads any answer of an upstream, and no answer pauses a limiter for longer than the cap.
pub(crate) fn upstream(bytes: &[u8]) {
    const CAP: Duration = Duration::from_secs(90);
    const STATUSES: [u16; 8] = [200, 202, 301, 403, 404, 429, 503, 529];
    let Some((first, rest)) = bytes.split_first() else {
        return;
    };
    let status = StatusCode::from_u16(STATUSES[usize::from(*first) % STATUSES.len()]).unwrap();
    let headers = fields(rest, &FIELDS);
    for cap in [Duration::ZERO, CAP, Duration::MAX] {
        let limiter = Limiter::builder("8 concurrent")
            .spread_below(10)
            .build()
            .unwrap();
        for family in UpstreamFamily::all() {
            let answer = UpstreamReader::new(family)
                .max_wait(cap)
                .read(status, &headers, now());
            assert!(answer.retry_after().is_none_or(|wait| wait <= cap));
            assert!(answer.quotas().len() <= 8);
            assert!(
                answer
                    .quotas()
                    .iter()
                    .all(|quota| quota.reset_after.is_none_or(|reset| reset <= cap))
            );
            assert!(
                answer
                    .malformed()
                    .iter()
                    .all(|field| headers.contains_key(*field))
            );
            assert!(answer.is_limited() || !matches!(status.as_u16(), 429 | 503));
            limiter.apply_upstream_signal(&answer.signal());
            answer
                .quotas()
                .iter()
                .for_each(|quota| limiter.apply_upstream_signal(&answer.signal_for(quota.unit)));
            let longest = cap.max(Duration::from_secs(1)); // the pause after a denial without a time
            assert!(limiter.snapshot().paused_for.unwrap_or_default() <= longest);
            limiter.resume();
        }
    }

    // Another parser finds the same fields malformed. Those from a cache are not read.
    if values(&headers, "age").is_empty() {
        let is_malformed = |family| {
            let answer = UpstreamReader::new(family).read(status, &headers, now());
            answer.malformed().contains(&"ratelimit")
        };
        let lines = values(&headers, "ratelimit");
        assert_eq!(
            is_malformed(UpstreamFamily::Draft10),
            items(&lines, is_state).is_none(),
            "{headers:?}"
        );
        assert!(
            is_dictionary(&lines) || is_malformed(UpstreamFamily::Draft7),
            "{headers:?}"
        );
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn is_trusted(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(ip) => ip.octets()[0] == 10,
        IpAddr::V6(ip) => ip.segments()[..4] == [0xfd00, 4, 0, 0],
    }
}

/// A header is read from the right up to the first element that is not an address.
pub(crate) fn client_ip(bytes: &[u8]) {
    let received: Vec<_> = lines(bytes)
        .filter_map(|line| HeaderValue::from_bytes(line).ok())
        .collect();
    let headers = |name: &'static str, lines: &[HeaderValue]| -> HeaderMap {
        lines
            .iter()
            .map(|line| (HeaderName::from_static(name), line.clone()))
            .collect()
    };
    let peer = Some(ip("10.0.0.1"));
    let networks = ClientIp::behind_networks(["10.0.0.0/8", "fd00:4::/64"]).unwrap();
    let hops = |hops| ClientIp::behind_hops(hops).unwrap();
    for (header, name) in [
        (ForwardedHeader::XForwardedFor, "x-forwarded-for"),
        (ForwardedHeader::Forwarded, "forwarded"),
    ] {
        for client_ip in [networks.clone(), hops(1), hops(2), hops(3)] {
            let client_ip = client_ip.header(header).ipv6_prefix(128).unwrap();
            let found = client_ip.find(peer, &headers(name, &received));
            // The key comes from the leftmost element. Another element on its left would be read, too.
            let is_whole_list = matches!(
                found,
                Err(NoClientIp::NoHeader { .. } | NoClientIp::TooFewHops { .. })
            ) || client_ip
                == networks.clone().header(header).ipv6_prefix(128).unwrap()
                && found.is_ok_and(is_trusted);
            if is_whole_list {
                continue;
            }
            for forged in [
                &b"203.0.113.66"[..],
                b"for=203.0.113.66;by=\"",
                b"\"\\",
                b",",
            ] {
                let own_line = [&[HeaderValue::from_bytes(forged).unwrap()], &*received].concat();
                assert_eq!(
                    client_ip.find(peer, &headers(name, &own_line)),
                    found,
                    "{received:?}"
                );
                // A quote may begin a string that ends in an element which is malformed without the quote.
                if found.is_ok() || header == ForwardedHeader::XForwardedFor {
                    let mut same_line = received.clone();
                    let line = [forged, b", ", received[0].as_bytes()].concat();
                    same_line[0] = HeaderValue::from_bytes(&line).unwrap();
                    assert_eq!(
                        client_ip.find(peer, &headers(name, &same_line)),
                        found,
                        "{received:?}"
                    );
                }
            }
        }
    }

    // Elements that are read one by one give the same result.
    let elements: Vec<_> = received
        .iter()
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b','))
        .collect();
    let alone = |element: &[u8]| {
        let one = headers(
            "x-forwarded-for",
            &[HeaderValue::from_bytes(element).unwrap()],
        );
        hops(1).ipv6_prefix(128).unwrap().find(None, &one).ok()
    };
    let mut expected = None;
    for element in elements.into_iter().rev() {
        expected = alone(element);
        if expected.is_none_or(|address| !is_trusted(address)) {
            break;
        }
    }
    let found = networks
        .ipv6_prefix(128)
        .unwrap()
        .find(peer, &headers("x-forwarded-for", &received));
    assert_eq!(found.ok(), expected, "{received:?}");
}

/// A reader can read the fields that the crate writes beside any fields of the application.
pub(crate) fn merged(bytes: &[u8]) {
    const NAMES: [&str; 9] = [
        "ratelimit",
        "ratelimit-policy",
        "ratelimit-limit",
        "ratelimit-remaining",
        "ratelimit-reset",
        "x-ratelimit-limit",
        "x-ratelimit-remaining",
        "x-ratelimit-reset",
        "retry-after",
    ];
    let there = fields(bytes, &NAMES);
    let limiter = Limiter::new("window 1/min and 8 concurrent").unwrap();
    let _held = limiter.try_acquire().unwrap();
    let (answer, limits) = limiter.request().try_acquire_explained();
    let Err(TryAcquireError::Denied(decision)) = answer else {
        panic!("granted")
    };
    let denied = FieldValues::denied(&limits, &decision)
        .retry_after(Duration::from_secs(9))
        .partition_key(b"key");
    for (style, family) in [
        (RateLimitStyle::Draft10, UpstreamFamily::Draft10),
        (RateLimitStyle::Draft7, UpstreamFamily::Draft7),
        (RateLimitStyle::Draft6, UpstreamFamily::Draft6),
        (
            RateLimitStyle::XSeconds,
            UpstreamFamily::XRateLimit(ResetFormat::Seconds),
        ),
        (
            RateLimitStyle::XUnix,
            UpstreamFamily::XRateLimit(ResetFormat::UnixSeconds),
        ),
        (RateLimitStyle::None, UpstreamFamily::RetryAfter),
    ] {
        let mut headers = there.clone();
        RateLimitFields::new("api")
            .unwrap()
            .style(style)
            .write(&mut headers, &denied, now());
        let answer = UpstreamReader::new(family).max_wait(Duration::MAX).read(
            StatusCode::TOO_MANY_REQUESTS,
            &headers,
            now(),
        );
        assert!(
            answer.malformed().is_empty(),
            "{style:?} {there:?} {headers:?}"
        );
        assert!(
            answer
                .retry_after()
                .is_some_and(|wait| wait >= Duration::from_secs(9)),
            "{style:?} {there:?}"
        );
        assert_eq!(
            answer.quotas().is_empty(),
            style == RateLimitStyle::None,
            "{style:?} {there:?}"
        );
        match style {
            RateLimitStyle::Draft10 => {
                let fields = [
                    ("ratelimit", is_state as fn(&sfv::Item) -> bool),
                    ("ratelimit-policy", is_policy),
                ];
                for (name, is_fine) in fields {
                    let [line] = values(&headers, name)[..] else {
                        panic!("{headers:?}")
                    };
                    let all = items(&[line], is_fine).unwrap();
                    let kept = items(&values(&there, name), is_fine).unwrap_or_default();
                    assert_eq!(
                        (all.len(), &all[..kept.len()]),
                        (kept.len() + 2, &*kept),
                        "{there:?} {headers:?}"
                    );
                }
            }
            RateLimitStyle::Draft7 => {
                assert!(
                    is_dictionary(&values(&headers, "ratelimit")),
                    "{there:?} {headers:?}"
                );
                let [line] = values(&headers, "ratelimit-policy")[..] else {
                    panic!("{headers:?}")
                };
                assert!(items(&[line], |_| true).is_some(), "{there:?} {headers:?}");
            }
            _ => {}
        }
    }
}

/// A policy that is read from a text prints as a text of the same policy.
pub(crate) fn policy(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match text.parse::<Policy>() {
        Ok(policy) => assert_eq!(
            policy.to_string().parse::<Policy>().as_ref(),
            Ok(&policy),
            "{text}"
        ),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
