//! Properties that hold for any bytes from outside: policies, header fields and messages.

#[path = "../common/upstreams.rs"]
#[allow(clippy::duplicate_mod, reason = "the fuzzers compile this file alone")]
mod upstreams;

use std::net::IpAddr;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use tollgate::layers::{
    ClientIp, FieldValues, ForwardedHeader, HeaderKey, Identity, NoClientIp, NoIdentity,
    ProblemType, RateLimitFields, RateLimitStyle, ResetFormat, UpstreamFamily, UpstreamReader,
};
use tollgate::{Limiter, Policy, TryAcquireError};
use upstreams::{FIELDS, now};

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

/// The fields of upstreams that none of these inputs has.
pub(crate) fn fields_without_input(
    inputs: impl Iterator<Item = Vec<u8>>,
) -> impl Iterator<Item = &'static str> {
    let inputs = inputs.filter_map(|input| Some(fields(input.get(1..)?, &FIELDS)));
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

/// A key is printable, within its length, and from the only line of its header.
pub(crate) fn identity(bytes: &[u8]) {
    const NAMES: [&str; 2] = ["authorization", "x-api-key"];
    let Some((max_len, rest)) = bytes.split_first() else {
        return;
    };
    let mut request = Request::new(());
    *request.headers_mut() = fields(rest, &NAMES);
    let max_len = usize::from(*max_len);
    let [token, key] = NAMES.map(|name| {
        let name = HeaderName::from_static(name);
        let key = if name == NAMES[0] {
            HeaderKey::bearer()
        } else {
            HeaderKey::new(name.clone())
        };
        let found = key.max_len(max_len).identify(&request);
        let lines = values(request.headers(), name.as_str());
        let expected = match lines[..] {
            [] => Err(NoIdentity::NoHeader(name)),
            [line] => {
                let is_bearer = name == NAMES[0];
                let scheme = if is_bearer { "bearer " } else { "" };
                let usable = line
                    .split_at_checked(scheme.len())
                    .filter(|(found, _)| found.eq_ignore_ascii_case(scheme.as_bytes()))
                    .map(|(_, value)| value.trim_ascii())
                    .filter(|value| (1..=max_len).contains(&value.len()))
                    .filter(|value| value.iter().all(|byte| (b' '..=b'~').contains(byte)));
                usable
                    .map(|value| String::from_utf8(value.to_vec()).unwrap())
                    .ok_or(NoIdentity::UnusableHeader(name))
            }
            _ => Err(NoIdentity::UnusableHeader(name)),
        };
        assert_eq!(found, expected, "{request:?}");
        if let Err(unknown) = &found {
            let needs_no_escape = |char| matches!(char, ' '..='~') && !matches!(char, '"' | '\\');
            assert!(unknown.detail().chars().all(needs_no_escape));
        }
        found
    });
    let both = (
        HeaderKey::bearer().max_len(max_len),
        HeaderKey::new(HeaderName::from_static(NAMES[1])).max_len(max_len),
    );
    let expected = token.and_then(|token| Ok((token, key?)));
    assert_eq!(both.identify(&request), expected, "{request:?}");
}

/// A reader finds in the fields of any policy, name and key what was written, and the body of a denial is JSON.
///
/// The lines of an input: how the limiter is used, the name, the partition key, the policy.
pub(crate) fn written(bytes: &[u8]) {
    let mut parts = bytes.splitn(4, |byte| *byte == b'\n');
    let [uses, name, key, policy] = std::array::from_fn(|_| parts.next().unwrap_or_default());
    let (Ok(name), Ok(policy)) = (str::from_utf8(name), str::from_utf8(policy)) else {
        return;
    };
    let is_name =
        (1..=256).contains(&name.len()) && name.chars().all(|char| matches!(char, ' '..='~'));
    let fields = RateLimitFields::new(name);
    assert_eq!(fields.is_ok(), is_name, "{name:?}");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let _clock = runtime.enter();
    if let (Ok(fields), Ok(limiter)) = (fields, Limiter::new(policy)) {
        let _permits: Vec<_> = uses
            .iter()
            .take(20)
            .map(|units| limiter.try_acquire_many((*units).into()))
            .collect();
        let (answer, limits) = limiter.request().try_acquire_explained();
        let values = match &answer {
            Ok(_) => FieldValues::granted(&limits),
            Err(TryAcquireError::Denied(decision)) => FieldValues::denied(&limits, decision),
            Err(_) => FieldValues::refused(&limits),
        };
        let decision = match &answer {
            Err(TryAcquireError::Denied(decision)) => Some(decision),
            _ => None,
        };
        let denied_by = decision.and_then(|decision| decision.denied_by_index());
        let retry_after = decision.and_then(|decision| decision.retry_after());

        /// The largest number of a structured field (RFC 9651, section 3.3.1).
        const MOST: u64 = 999_999_999_999_999;
        let mut headers = HeaderMap::new();
        fields.write(&mut headers, &values.partition_key(key), now());
        let read = |name| items(&self::values(&headers, name), |_| true).unwrap();
        let (states, policies) = (read("ratelimit"), read("ratelimit-policy"));
        assert_eq!((states.len(), policies.len()), (limits.len(), limits.len()));
        let both = states.iter().zip(&policies).zip(&limits).enumerate();
        for (index, ((state, policy), status)) in both {
            let (sfv::ListEntry::Item(state), sfv::ListEntry::Item(policy)) = (state, policy)
            else {
                panic!("{headers:?}")
            };
            assert!(is_state(state) && is_policy(policy), "{headers:?}");
            assert_eq!(state.bare_item, policy.bare_item, "{headers:?}");
            let said = state.bare_item.as_string().unwrap().as_str();
            assert!(said.starts_with(name), "{headers:?}");
            for item in [state, policy] {
                let said = item.params["pk"].as_byte_sequence().unwrap();
                assert_eq!(said, key, "{headers:?}");
            }
            let number = |item: &sfv::Item, name: &str| {
                i64::from(item.params[name].as_integer().unwrap()) as u64
            };
            assert_eq!(number(policy, "q"), status.capacity.min(MOST));
            let is_denying = denied_by == Some(index);
            let remaining = if is_denying { 0 } else { status.remaining };
            assert_eq!(number(state, "r"), remaining.min(MOST), "{headers:?}");
        }
        for (style, family) in [
            (RateLimitStyle::Draft10, UpstreamFamily::Draft10),
            (RateLimitStyle::Draft7, UpstreamFamily::Draft7),
            (RateLimitStyle::Draft6, UpstreamFamily::Draft6),
            (
                RateLimitStyle::XSeconds,
                UpstreamFamily::XRateLimit(ResetFormat::Seconds),
            ),
            (RateLimitStyle::None, UpstreamFamily::RetryAfter),
        ] {
            let mut headers = HeaderMap::new();
            let styled = fields.clone().style(style);
            styled.write(&mut headers, &values.partition_key(key), now());
            let status = StatusCode::TOO_MANY_REQUESTS;
            let reader = UpstreamReader::new(family).max_wait(Duration::MAX);
            let answer = reader.read(status, &headers, now());
            assert!(answer.malformed().is_empty(), "{style:?} {headers:?}");
            if let Some(after) = retry_after.filter(|after| after.as_secs() < MOST) {
                let said = answer.retry_after().unwrap();
                assert!(said >= after, "{style:?} {after:?} {headers:?}");
            }
        }

        let body = fields.problem(&values, values.problem_type());
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let violated = body["violated-policies"].as_array().unwrap();
        assert_eq!(violated.len(), usize::from(denied_by.is_some()), "{body}");
        let starts = |said: &serde_json::Value| said.as_str().unwrap().starts_with(name);
        assert!(violated.iter().all(starts), "{body}");
        let is_reduced = values.problem_type() == ProblemType::ReducedCapacity;
        assert_eq!(is_reduced, denied_by.is_none(), "{body}");
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
