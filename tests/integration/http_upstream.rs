//! The limits of an upstream are read from the fields of its answer.

use std::time::{Duration, SystemTime};

use crate::common::counting::{LIVE, PEAK};
use crate::common::upstreams::{FIELDS, NOW, now};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use proptest::prelude::*;
use tollgate::UpstreamSignal;
use tollgate::layers::{
    ResetFormat, UpstreamAnswer, UpstreamFamily, UpstreamQuota, UpstreamReader,
};

const OK: StatusCode = StatusCode::OK;
const TOO_MANY: StatusCode = StatusCode::TOO_MANY_REQUESTS;

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Header fields from a text with one field a line.
fn headers(text: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').unwrap();
        headers.append(
            HeaderName::try_from(name).unwrap(),
            HeaderValue::try_from(value.trim_start()).unwrap(),
        );
    }
    headers
}

fn read<R>(
    family: UpstreamFamily,
    status: StatusCode,
    text: &str,
    look: impl FnOnce(&UpstreamAnswer<'_>) -> R,
) -> R {
    look(&UpstreamReader::new(family).read(status, &headers(text), now()))
}

fn retry_after(family: UpstreamFamily, text: &str) -> (Option<Duration>, bool) {
    read(family, TOO_MANY, text, |answer| {
        (answer.retry_after(), answer.malformed().is_empty())
    })
}

/// Each quota as one line: name, unit, limit, remaining, seconds to the reset, window.
fn quotas(family: UpstreamFamily, text: &str) -> Vec<String> {
    read(family, OK, text, |answer| {
        assert_eq!(answer.malformed(), [""; 0], "{text}");
        answer.quotas().iter().map(show).collect()
    })
}

fn show(quota: &UpstreamQuota<'_>) -> String {
    fn or_dash<T: ToString>(value: Option<T>) -> String {
        value.map_or_else(|| "-".to_owned(), |value| value.to_string())
    }
    let reset = or_dash(quota.reset_after.map(|time| time.as_secs_f64()));
    let window = or_dash(quota.window.map(|time| time.as_secs()));
    let (limit, remaining) = (or_dash(quota.limit), or_dash(quota.remaining));
    format!(
        "{} {} {limit} {remaining} {reset} {window}",
        or_dash(quota.name),
        quota.unit
    )
}

fn malformed(family: UpstreamFamily, text: &str) -> Vec<&'static str> {
    read(family, TOO_MANY, text, |answer| answer.malformed().to_vec())
}

#[test]
fn retry_after_is_seconds_or_one_of_three_dates() {
    for (text, wait) in [
        ("0", 0),
        ("30", 30),
        ("0030", 30),
        ("Mon, 23 Nov 2026 01:00:30 GMT", 30),
        ("Monday, 23-Nov-26 01:00:30 GMT", 30),
        ("Mon Nov 23 01:00:30 2026", 30),
        ("Mon, 23 Nov 2026 00:59:59 GMT", 0),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 0),
        ("Sunday, 06-Nov-94 08:49:37 GMT", 0), // not in 2094
        ("Mon, 23 Nov 2026 01:00:60 GMT", 60),
    ] {
        assert_eq!(
            retry_after(UpstreamFamily::RetryAfter, &format!("retry-after: {text}")),
            (Some(secs(wait)), true),
            "{text}"
        );
    }
}

#[test]
fn retry_after_that_is_negative_fractional_or_repeated_is_ignored() {
    for text in [
        "-1",
        "+1",
        "1.5",
        "",
        "soon",
        "1 2",
        "5, 10",
        "0x10",
        "1e3",
        "Mon, 23 Nov 2026 01:00:30",
        "\u{661}",
    ] {
        assert_eq!(
            retry_after(UpstreamFamily::RetryAfter, &format!("retry-after: {text}")),
            (None, false),
            "{text}"
        );
    }
    assert_eq!(
        retry_after(UpstreamFamily::RetryAfter, "retry-after: 5\nretry-after: 5"),
        (None, false)
    );
    assert_eq!(retry_after(UpstreamFamily::RetryAfter, ""), (None, true));
}

#[test]
fn no_duration_is_longer_than_the_cap() {
    for text in [
        "3601",
        "18446744073709551616",
        &"9".repeat(1_000),
        "Fri, 31 Dec 9999 23:59:59 GMT",
    ] {
        assert_eq!(
            retry_after(UpstreamFamily::RetryAfter, &format!("retry-after: {text}")),
            (Some(secs(3_600)), true),
            "{text}"
        );
    }
    let fields = headers("retry-after: 11\nratelimit: \"a\";r=0;t=999999999999999");
    let answer = UpstreamReader::new(UpstreamFamily::Draft10)
        .max_wait(secs(10))
        .read(TOO_MANY, &fields, now());
    assert_eq!(
        (answer.retry_after(), answer.quotas()[0].reset_after),
        (Some(secs(10)), Some(secs(10)))
    );
}

#[test]
fn an_instant_is_measured_against_the_date_of_the_answer() {
    // The upstream's clock is a day behind, and a year of two digits is resolved by its own date.
    let date = "date: Sun, 22 Nov 2026 01:00:00 GMT";
    let after = "retry-after: Sun, 22 Nov 2026 01:00:07 GMT";
    assert_eq!(
        retry_after(UpstreamFamily::RetryAfter, &format!("{date}\n{after}")),
        (Some(secs(7)), true)
    );
    assert_eq!(
        retry_after(UpstreamFamily::RetryAfter, after),
        (Some(secs(0)), true)
    );
    let reset = format!(
        "{date}\nx-ratelimit-remaining: 0\nx-ratelimit-reset: {}",
        NOW - 86_400 + 12
    );
    assert_eq!(
        quotas(UpstreamFamily::GitHub, &reset),
        ["- requests - 0 12 -"]
    );
    let reset = format!("{date}\nanthropic-ratelimit-tokens-reset: 2026-11-22T01:00:01.5Z");
    assert_eq!(
        quotas(UpstreamFamily::Anthropic, &reset),
        ["- tokens - - 1.5 -"]
    );
    // The answer was in a cache since then.
    assert_eq!(
        retry_after(
            UpstreamFamily::RetryAfter,
            &format!("{date}\nage: 5\n{after}")
        ),
        (Some(secs(2)), true)
    );
    // An invalid date is ignored.
    assert_eq!(
        malformed(
            UpstreamFamily::RetryAfter,
            "date: yesterday\nretry-after: 1"
        ),
        ["date"]
    );
}

#[test]
fn retry_after_concerns_errors_only() {
    for (status, wait) in [
        (200, None),
        (202, None),
        (301, None),
        (400, Some(5)),
        (403, Some(5)),
        (429, Some(5)),
        (503, Some(5)),
        (599, Some(5)),
    ] {
        let status = StatusCode::from_u16(status).unwrap();
        read(
            UpstreamFamily::RetryAfter,
            status,
            "retry-after: 5",
            |answer| {
                assert_eq!(answer.retry_after(), wait.map(secs), "{status}");
                assert_eq!(
                    answer.is_limited(),
                    [429, 503].contains(&status.as_u16()),
                    "{status}"
                );
            },
        );
    }
}

#[test]
fn quotas_from_a_cache_are_ignored() {
    let text = "ratelimit: \"a\";r=0;t=9\nx-ratelimit-remaining: 0\nx-ratelimit-remaining-requests: 0\nratelimit-remaining: 0\n\
                x-rate-limit-remaining: 0\nanthropic-ratelimit-requests-remaining: 0\nx-shopify-shop-api-call-limit: 40/40";
    let dictionary = text.replace("\"a\";r=0;t=9", "limit=1, remaining=0");
    for family in UpstreamFamily::all() {
        let text = if family == UpstreamFamily::Draft7 {
            &dictionary
        } else {
            text
        };
        let count = |age: &str| {
            read(family, OK, &format!("{text}\n{age}"), |answer| {
                answer.quotas().len()
            })
        };
        let here = usize::from(family != UpstreamFamily::RetryAfter);
        assert_eq!(
            [
                count(""),
                count("age: 0"),
                count("age: 1"),
                count("age: 86400")
            ],
            [here, here, 0, 0],
            "{family:?}: the quotas that it reads in the text"
        );
    }
}

#[test]
fn lists_of_draft_10_are_read() {
    let draft_10 = |text: &str| quotas(UpstreamFamily::Draft10, text);
    for (text, expected) in [
        ("", vec![]),
        ("ratelimit:", vec![]),
        (
            r#"ratelimit: "default";r=50;t=30"#,
            vec!["default requests - 50 30 -"],
        ),
        (
            r#"ratelimit: "default";r=50"#,
            vec!["default requests - 50 - -"],
        ),
        // express-rate-limit has a space after `;`
        (
            "ratelimit-policy: \"100-in-15min\"; q=100; w=900; pk=:NmRjMDQ0ZTE2ZjZh:\n\
             ratelimit: \"100-in-15min\"; r=99; t=900",
            vec!["100-in-15min requests 100 99 900 900"],
        ),
        // Cloudflare's two names do not match
        (
            "ratelimit: \"default\";r=49;t=10\nratelimit-policy: \"burst\";q=50;w=10",
            vec!["default requests - 49 10 -"],
        ),
        (
            "ratelimit-policy: \"slots\";q=8;qu=\"concurrent-requests\", \"b\";q=65535;qu=\"content-bytes\";w=10\n\
             ratelimit: \"slots\";r=7\nratelimit: \"b\";r=300;t=4",
            vec![
                "slots concurrent-requests 8 7 - -",
                "b content-bytes 65535 300 4 10",
            ],
        ),
        // unknown parameters are ignored; the last parameter of a name counts
        (
            r#"ratelimit: "a";acme-x=?1;r=1;acme-y=1.5;r=2;acme-z"#,
            vec!["a requests - 2 - -"],
        ),
        // names are not normalised
        (
            r#"ratelimit: "a\"\\, ;r=9";r=1"#,
            vec![r#"a\"\\, ;r=9 requests - 1 - -"#],
        ),
        // the window is not capped, because nothing waits for it
        (
            "ratelimit: \"d\";r=0;t=7200\nratelimit-policy: \"d\";q=5;w=86400",
            vec!["d requests 5 0 3600 86400"],
        ),
    ] {
        assert_eq!(draft_10(text), expected, "{text}");
    }
    let keys = "ratelimit: \"a\";r=1;pk=:YQ==:, \"a\";r=2;pk=:Yg==:\nratelimit-policy: \"a\";q=10;pk=:YQ==:, \"a\";q=20;pk=:Yg==:";
    assert_eq!(
        draft_10(keys),
        ["a requests 10 1 - -", "a requests 20 2 - -"]
    );
    read(UpstreamFamily::Draft10, OK, keys, |answer| {
        assert_eq!(answer.quotas()[1].partition_key, Some("Yg=="));
    });
    let long = (1..=12)
        .map(|n| format!("\"{n}\";r={n}"))
        .collect::<Vec<_>>()
        .join(",");
    assert_eq!(draft_10(&format!("ratelimit: {long}")).len(), 8);
}

#[test]
fn one_error_makes_a_reader_ignore_the_whole_field() {
    for field in [
        "ratelimit: \"a\" ;r=1",
        "ratelimit: \"a\";r=1,",
        "ratelimit: ,\"a\";r=1",
        "ratelimit: \"a\";r=1\nratelimit: \"b\";r=",
        "ratelimit: \"b\";r=\nratelimit: \"a\";r=1",
        "ratelimit: \"a\";r=1\nratelimit:",
        "ratelimit: \"a;r=1",
        "ratelimit: \"a\\n\";r=1",
        "ratelimit: \"a\";r=1234567890123456",
        "ratelimit: \"a\";R=1",
        "ratelimit: \"a\";r=1;acme-x=(1)",
        // well formed, but not as in the draft
        "ratelimit: a;r=1",
        "ratelimit: (\"a\");r=1",
        "ratelimit: \"a\"",
        "ratelimit: \"a\";r=-1",
        "ratelimit: \"a\";r=1.0",
        "ratelimit: \"a\";r=1;t=-1",
        "ratelimit: \"a\";r=1;t=\"5\"",
        "ratelimit: \"a\";r=1;pk=abc",
        // the form of draft-07
        "ratelimit: limit=100, remaining=50, reset=5",
    ] {
        read(UpstreamFamily::Draft10, OK, field, |answer| {
            assert_eq!(
                (answer.quotas().len(), answer.malformed()),
                (0, ["ratelimit"].as_slice()),
                "{field}"
            );
        });
    }
    for policy in [
        "\"a\"",
        "\"a\";q=1;w=0",
        "\"a\";q=1;w=-1",
        "\"a\";q=1;qu=requests",
        "\"a\";q=-1",
        "a;q=1",
        "\"a\";q=1;",
        "100;w=1",
    ] {
        let text = format!("ratelimit: \"a\";r=1;t=2\nratelimit-policy: {policy}");
        read(UpstreamFamily::Draft10, OK, &text, |answer| {
            assert_eq!(answer.malformed(), ["ratelimit-policy"], "{policy}");
            assert_eq!(
                answer.quotas().iter().map(show).collect::<Vec<_>>(),
                ["a requests - 1 2 -"],
                "{policy}"
            );
        });
    }
}

/// Values of parameters that no reader of rate limits needs are checked all the same.
#[test]
fn each_type_of_structured_fields_is_checked() {
    const FINE: [&str; 29] = [
        "0",
        "-0",
        "00",
        "123456789012345",
        "-123456789012345",
        "1.5",
        "-1.123",
        "123456789012.123",
        "\"\"",
        "\"a\\\"\\\\ ~\"",
        "t",
        "*",
        "T!#$%&'*+-.^_`|~:/0",
        "::",
        ":YQ==:",
        ":YQ=:",
        ":YQ:",
        ":YWI=:",
        ":YWI:",
        ":YWJj:",
        ":+/+/:",
        ":YR==:",
        "?0",
        "?1",
        "@0",
        "@-123456789012345",
        "%\"\"",
        "%\"a%22%c3%a9 %f0%9f%98%80~\"",
        "%\"%25\"",
    ];
    const FAULTY: [&str; 44] = [
        "",
        "-",
        "--1",
        "+1",
        "1.",
        ".5",
        "1.1234",
        "1234567890123456",
        "1234567890123.1",
        "1.5.5",
        "1e5",
        "\"",
        "\"a",
        "\"\\a\"",
        "\"\t\"",
        "\"\u{e9}\"",
        "\"\\",
        "'a'",
        "!a",
        "\u{e9}",
        ":",
        ":Y:",
        ":Y=:",
        ":YQ===:",
        ":YWI==:",
        ":YWJj=:",
        ":Y Q:",
        ":Y-_=:",
        ":YQ==",
        "?",
        "?2",
        "?t",
        "@",
        "@1.5",
        "@a",
        "%",
        "%a",
        "%\"",
        "%\"%C3%A9\"",
        "%\"%c3\"",
        "%\"%c3a\"",
        "%\"%ff\"",
        "%\"\u{e9}\"",
        "%\"%a\"",
    ];
    let is_malformed = |family, text: &str| {
        read(family, OK, &format!("ratelimit: {text}"), |answer| {
            !answer.malformed().is_empty()
        })
    };
    for (values, fine) in [(FINE.as_slice(), true), (&FAULTY, false)] {
        for value in values {
            let forms = [
                format!("limit=1, x={value}"),
                format!("limit=1, x;a={value}"),
                format!("limit=1, x=(1 {value} )"),
            ];
            for form in forms.iter().filter(|form| !form.contains("(1  )")) {
                assert_eq!(is_malformed(UpstreamFamily::Draft7, form), !fine, "{form}");
                assert_eq!(
                    sfv::Parser::new(form).parse::<sfv::Dictionary>().is_ok(),
                    fine,
                    "{form}"
                );
            }
            let parameter = format!("\"a\";r=1;x={value}");
            assert_eq!(
                is_malformed(UpstreamFamily::Draft10, &parameter),
                !fine,
                "{parameter}"
            );
        }
    }
    for faulty in [
        "(",
        "(1",
        "(1 ",
        "(1,2)",
        "(1;a\"b\")",
        "(1\"b\")",
        "((1))",
        "(1)2",
        "(1\t2)",
        ")",
        "1 ;a",
        "1;\ta",
        "1;",
        "1;A",
        "1;1",
        "1;a=(1)",
    ] {
        let dictionary = format!("limit=1, x={faulty}");
        assert!(
            is_malformed(UpstreamFamily::Draft7, &dictionary),
            "{faulty}"
        );
        assert!(
            sfv::Parser::new(&dictionary)
                .parse::<sfv::Dictionary>()
                .is_err(),
            "{faulty}"
        );
    }
    assert!(!is_malformed(
        UpstreamFamily::Draft7,
        "limit=1;*a-b_c.d9=1;  b=2 \t,\t *, z_-.*=()"
    ));
}

#[test]
fn the_dictionary_of_draft_07_is_read() {
    let draft_7 = |text: &str| quotas(UpstreamFamily::Draft7, text);
    assert_eq!(
        draft_7("ratelimit: limit=100, remaining=50, reset=5"),
        ["- requests 100 50 5 -"]
    );
    assert_eq!(
        draft_7(
            "ratelimit: limit=10\nratelimit: reset=1;x=y, remaining=1, remaining=2, z, y=(1 2)"
        ),
        ["- requests 10 2 1 -"]
    );
    assert_eq!(
        draft_7("ratelimit: limit=50, remaining=1, reset=1\nratelimit-policy: 10;w=1, 50;w=60"),
        ["- requests 50 1 1 60"]
    );
    for text in [
        "limit=-1",
        "limit=a",
        "limit",
        "limit=(1)",
        "limit=1;",
        "limit=1 ;w=1",
        "limit=1,",
        "\"a\";r=1",
    ] {
        assert_eq!(
            malformed(UpstreamFamily::Draft7, &format!("ratelimit: {text}")),
            ["ratelimit"],
            "{text}"
        );
    }
}

#[test]
fn the_three_fields_of_the_first_drafts_are_read() {
    let draft_6 = |text: &str| quotas(UpstreamFamily::Draft6, text);
    assert_eq!(
        draft_6("ratelimit-limit: 100\nratelimit-remaining: 50\nratelimit-reset: 30"),
        ["- requests 100 50 30 -"]
    );
    // Docker Hub
    assert_eq!(
        draft_6("ratelimit-limit: 100;w=21600\nratelimit-remaining: 20;w=21600"),
        ["- requests 100 20 - 21600"]
    );
    // Envoy and limitador
    let list = "ratelimit-limit: 10, 10;w=1;name=\"a, b\", 1000;w=3600\nratelimit-remaining: 3\nratelimit-reset: 1";
    assert_eq!(draft_6(list), ["- requests 10 3 1 1"]);
    assert_eq!(
        quotas(
            UpstreamFamily::XRateLimit(ResetFormat::Seconds),
            &list.replace("ratelimit", "x-ratelimit")
        ),
        ["- requests 10 3 1 1"]
    );
    let other_limit = "ratelimit-limit: 10, 50;w=60";
    assert_eq!(draft_6(other_limit), ["- requests 10 - - -"]);
    // drafts -03 to -06
    let policies = "ratelimit-limit: 10\nratelimit-remaining: 3\nratelimit-reset: 1\nratelimit-policy: 10;w=1, 50;w=60;comment=\"a, b\"";
    assert_eq!(draft_6(policies), ["- requests 10 3 1 1"]);
    assert_eq!(
        draft_6(&policies.replace("limit: 10", "limit: 50")),
        ["- requests 50 3 1 60"]
    );
    assert_eq!(
        draft_6(&policies.replace("limit: 10", "limit: 60")),
        ["- requests 60 3 1 -"]
    );
    assert_eq!(
        draft_6(&policies.replace("limit: 10", "limit: 10;w=5")),
        ["- requests 10 3 1 5"],
        "the nearer of the two"
    );
    assert_eq!(draft_6("ratelimit-policy: 10;w=1"), [""; 0]);
    for policy in ["10;w=-1", "\"a\";q=10;w=1", "10;w=1,"] {
        read(
            UpstreamFamily::Draft6,
            OK,
            &policies.replace("10;w=1, 50", &format!("{policy}, 50")),
            |answer| {
                assert_eq!(answer.malformed(), [""; 0], "{policy}");
                assert_eq!(
                    answer.quotas().iter().map(show).collect::<Vec<_>>(),
                    ["- requests 10 3 1 -"],
                    "{policy}"
                );
            },
        );
    }
    let bad = "ratelimit-limit: many\nratelimit-remaining: -1\nratelimit-reset: -30";
    assert_eq!(
        malformed(UpstreamFamily::Draft6, bad),
        ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"]
    );
    let twice = "ratelimit-limit: 5\nratelimit-remaining: 1\nratelimit-remaining: 2";
    assert_eq!(
        malformed(UpstreamFamily::Draft6, twice),
        ["ratelimit-remaining"]
    );
}

#[test]
fn a_reset_has_the_meaning_that_was_chosen() {
    for (format, text, wait) in [
        (ResetFormat::Seconds, "30".to_owned(), 30),
        (ResetFormat::UnixSeconds, (NOW + 30).to_string(), 30),
        (ResetFormat::UnixSeconds, format!("{}.000", NOW + 30), 30),
        (ResetFormat::UnixMillis, format!("{}000", NOW + 30), 30),
        (ResetFormat::GoDuration, "6m0s".to_owned(), 360),
        (ResetFormat::Rfc3339, "2026-11-23T01:00:30Z".to_owned(), 30),
        // A wrong format is harmless: the instant has passed, or the wait is capped.
        (ResetFormat::UnixSeconds, "30".to_owned(), 0),
        (ResetFormat::Seconds, NOW.to_string(), 3_600),
        (ResetFormat::UnixSeconds, format!("{NOW}000"), 3_600),
    ] {
        let text =
            format!("x-ratelimit-limit: 60\nx-ratelimit-remaining: 2\nx-ratelimit-reset: {text}");
        assert_eq!(
            quotas(UpstreamFamily::XRateLimit(format), &text),
            [format!("- requests 60 2 {wait} -")],
            "{format:?}"
        );
    }
    for (format, text) in [
        (ResetFormat::Seconds, "6m0s"),
        (ResetFormat::UnixMillis, "1.5"),
        (ResetFormat::GoDuration, "30"),
        (ResetFormat::Rfc3339, "30"),
    ] {
        let text = format!("x-ratelimit-reset: {text}");
        assert_eq!(
            malformed(UpstreamFamily::XRateLimit(format), &text),
            ["x-ratelimit-reset"],
            "{format:?}"
        );
    }
}

/// Reddit counts in floating point.
#[test]
fn a_decimal_remaining_is_rounded_down() {
    let reddit = UpstreamFamily::XRateLimit(ResetFormat::Seconds);
    for (remaining, expected) in [
        ("599.0", 599),
        ("0.0", 0),
        ("0.999999999999", 0),
        ("1.5", 1),
        ("007.0", 7),
    ] {
        let text = format!(
            "x-ratelimit-remaining: {remaining}\nx-ratelimit-used: 1\nx-ratelimit-reset: 55"
        );
        assert_eq!(
            quotas(reddit, &text),
            [format!("- requests - {expected} 55 -")],
            "{remaining}"
        );
    }
    let spent = "x-ratelimit-remaining: 0.0\nx-ratelimit-used: 600\nx-ratelimit-reset: 55";
    let signal = read(reddit, OK, spent, |answer| answer.signal_for("requests"));
    assert_eq!(
        signal,
        UpstreamSignal::new().remaining(0).reset_after(secs(55))
    );
    for remaining in [
        ".5",
        "1.",
        "-1.0",
        "1.0.0",
        "1e3",
        "1.x",
        "x.1",
        "1,5.0",
        "1234567890123456",
    ] {
        let text = format!("x-ratelimit-remaining: {remaining}");
        assert_eq!(
            malformed(reddit, &text),
            ["x-ratelimit-remaining"],
            "{remaining}"
        );
    }
    assert_eq!(
        malformed(UpstreamFamily::GitHub, "x-ratelimit-remaining: 599.0"),
        ["x-ratelimit-remaining"]
    );
}

#[test]
fn each_vendor_has_its_own_fields() {
    use UpstreamFamily::{
        Anthropic, AzureOpenAi, Discord, GitHub, GitLab, OpenAi, Shopify, Twitter,
    };
    let epoch = NOW + 1_800;
    let github = format!(
        "x-ratelimit-limit: 5000\nx-ratelimit-remaining: 4999\nx-ratelimit-used: 1\nx-ratelimit-resource: core\nx-ratelimit-reset: {epoch}"
    );
    assert_eq!(quotas(GitHub, &github), ["core requests 5000 4999 1800 -"]);
    let gitlab = format!(
        "ratelimit-limit: 600\nratelimit-observed: 6\nratelimit-remaining: 594\nratelimit-reset: {epoch}"
    );
    assert_eq!(quotas(GitLab, &gitlab), ["- requests 600 594 1800 -"]);
    let twitter =
        format!("x-rate-limit-limit: 900\nx-rate-limit-remaining: 0\nx-rate-limit-reset: {epoch}");
    assert_eq!(quotas(Twitter, &twitter), ["- requests 900 0 1800 -"]);
    let openai = "x-ratelimit-limit-requests: 60\nx-ratelimit-remaining-requests: 59\nx-ratelimit-reset-requests: 1s\n\
        x-ratelimit-limit-tokens: 150000\nx-ratelimit-remaining-tokens: 149984\nx-ratelimit-reset-tokens: 6m0s\n\
        x-ratelimit-limit-project-tokens: 40000\nx-ratelimit-remaining-project-tokens: 0\nx-ratelimit-reset-project-tokens: 12ms";
    let tokens = [
        "- requests 60 59 1 -",
        "- tokens 150000 149984 360 -",
        "- project-tokens 40000 0 0.012 -",
    ];
    assert_eq!(quotas(OpenAi, openai), tokens);
    let azure = "x-ratelimit-limit-requests: 120\nx-ratelimit-remaining-requests: 19\nx-ratelimit-reset-requests: 10\n\
        x-ratelimit-limit-tokens: -1\nx-ratelimit-remaining-tokens: -1\nx-ratelimit-reset-tokens: -1";
    assert_eq!(
        quotas(AzureOpenAi, azure),
        ["- requests 120 19 10 -", "- tokens - - - -"]
    );
    let anthropic = ["requests", "tokens", "input-tokens", "output-tokens"].map(|unit| {
        format!(
            "anthropic-ratelimit-{unit}-limit: 50\nanthropic-ratelimit-{unit}-remaining: 5\n\
             anthropic-ratelimit-{unit}-reset: 2026-11-23T01:00:09Z"
        )
    });
    let expected = ["requests", "tokens", "input-tokens", "output-tokens"]
        .map(|unit| format!("- {unit} 50 5 9 -"));
    assert_eq!(quotas(Anthropic, &anthropic.join("\n")), expected);
    let discord = "x-ratelimit-limit: 5\nx-ratelimit-remaining: 0\nx-ratelimit-reset: 1470173023.123\n\
        x-ratelimit-reset-after: 64.57\nx-ratelimit-bucket: abcd1234";
    assert_eq!(quotas(Discord, discord), ["abcd1234 requests 5 0 64.57 -"]);
    assert_eq!(
        quotas(Shopify, "x-shopify-shop-api-call-limit: 32/40"),
        ["- requests 40 8 - -"]
    );
    assert_eq!(
        quotas(Shopify, "x-shopify-shop-api-call-limit: 41/40"),
        ["- requests 40 0 - -"]
    );
    for text in ["32", "32/", "/40", "-1/40", "32/40/50", "a/b"] {
        let field = "x-shopify-shop-api-call-limit";
        assert_eq!(
            malformed(Shopify, &format!("{field}: {text}")),
            [field],
            "{text}"
        );
    }
}

#[test]
fn vendors_differ_in_their_denials_too() {
    use UpstreamFamily::{Anthropic, AzureOpenAi, Discord, GitHub, OpenAi, RetryAfter, Shopify};
    let limited = |family, status, text: &str| {
        let status = StatusCode::from_u16(status).unwrap();
        UpstreamReader::new(family)
            .read(status, &headers(text), now())
            .is_limited()
    };
    assert!(limited(Anthropic, 529, "") && !limited(OpenAi, 529, ""));
    assert!(
        limited(GitHub, 403, "x-ratelimit-remaining: 0") && limited(GitHub, 403, "retry-after: 60")
    );
    assert!(
        !limited(GitHub, 403, "x-ratelimit-remaining: 1")
            && !limited(RetryAfter, 403, "retry-after: 60")
    );
    assert!(!limited(GitHub, 200, "x-ratelimit-remaining: 0"));
    for family in [Discord, Shopify] {
        assert_eq!(
            retry_after(family, "retry-after: 2.5"),
            (Some(Duration::from_millis(2_500)), true),
            "{family:?}"
        );
    }
    for family in [OpenAi, AzureOpenAi] {
        let both = "retry-after-ms: 750\nretry-after: 1";
        assert_eq!(
            retry_after(family, both),
            (Some(Duration::from_millis(750)), true),
            "{family:?}"
        );
        assert_eq!(
            retry_after(family, "retry-after-ms: x\nretry-after: 1"),
            (Some(secs(1)), false),
            "{family:?}"
        );
    }
    assert_eq!(
        retry_after(GitHub, "retry-after-ms: 750\nretry-after: 1"),
        (Some(secs(1)), true)
    );
}

#[test]
fn a_signal_is_about_the_quota_of_its_unit_with_the_fewest_units() {
    let signal = |family, status, unit, text: &str| {
        read(family, status, text, |answer| answer.signal_for(unit))
    };
    let new = UpstreamSignal::new;
    let lists = "ratelimit: \"a\";r=3;t=1, \"b\";r=0;t=5, \"c\";r=0;t=9, \"d\";r=0\nratelimit-policy: \"d\";q=8;qu=\"concurrent-requests\"";
    assert_eq!(
        signal(UpstreamFamily::Draft10, OK, "requests", lists),
        new().remaining(0).reset_after(secs(9))
    );
    assert_eq!(
        signal(UpstreamFamily::Draft10, OK, "concurrent-requests", lists),
        new().remaining(0)
    );
    assert_eq!(signal(UpstreamFamily::Draft10, OK, "tokens", lists), new());
    // A denial: Retry-After overrules the reset of a quota that is spent,
    let denied = format!("{lists}\nretry-after: 2");
    let expected = new().limited().retry_after(secs(2)).remaining(0);
    assert_eq!(
        signal(UpstreamFamily::Draft10, TOO_MANY, "requests", &denied),
        expected
    );
    // without one it is the latest reset of the spent quotas, whatever they count,
    let tokens = "x-ratelimit-remaining-tokens: 0\nx-ratelimit-reset-tokens: 30s\n\
        x-ratelimit-remaining-requests: 9\nx-ratelimit-reset-requests: 5m";
    let expected = new()
        .limited()
        .retry_after(secs(30))
        .remaining(9)
        .reset_after(secs(300));
    assert_eq!(
        signal(UpstreamFamily::OpenAi, TOO_MANY, "Requests", tokens),
        expected
    );
    let both = tokens.replace("requests: 9", "requests: 0");
    let expected = new()
        .limited()
        .retry_after(secs(300))
        .remaining(0)
        .reset_after(secs(300));
    assert_eq!(
        signal(UpstreamFamily::OpenAi, TOO_MANY, "requests", &both),
        expected
    );
    // then of the quotas without a remaining number, as Azure may answer,
    for unknown in [
        "x-ratelimit-reset-requests: 55",
        "x-ratelimit-remaining-requests: -1\nx-ratelimit-reset-requests: 55",
    ] {
        let expected = new().limited().retry_after(secs(55)).reset_after(secs(55));
        assert_eq!(
            signal(UpstreamFamily::AzureOpenAi, TOO_MANY, "requests", unknown),
            expected
        );
        let tokens = |remaining| {
            format!(
                "{unknown}\nx-ratelimit-remaining-tokens: {remaining}\nx-ratelimit-reset-tokens: 20"
            )
        };
        let least = expected.retry_after(secs(20));
        assert_eq!(
            signal(
                UpstreamFamily::AzureOpenAi,
                TOO_MANY,
                "requests",
                &tokens("0")
            ),
            least
        );
        assert_eq!(
            signal(
                UpstreamFamily::AzureOpenAi,
                TOO_MANY,
                "requests",
                &tokens("1")
            ),
            expected
        );
        assert_eq!(
            signal(UpstreamFamily::AzureOpenAi, OK, "requests", unknown),
            new().reset_after(secs(55))
        );
    }
    // and a second if no quota is spent, however far its reset.
    let expected = new()
        .limited()
        .retry_after(secs(1))
        .remaining(9)
        .reset_after(secs(300));
    assert_eq!(
        signal(
            UpstreamFamily::OpenAi,
            TOO_MANY,
            "requests",
            &tokens.replace("tokens: 0", "tokens: 1")
        ),
        expected
    );
    assert_eq!(
        signal(UpstreamFamily::RetryAfter, OK, "requests", "retry-after: 2"),
        new()
    );
}

/// The fields describe a subscription. If a customer pays for more, a successful answer can contain `rejected`, too.
#[test]
fn a_denial_by_anthropic_may_name_the_reset_of_a_subscription() {
    let rejected = format!(
        "anthropic-ratelimit-unified-status: rejected\nanthropic-ratelimit-unified-reset: {}",
        NOW + 40
    );
    let shown = |status, text: &str| {
        read(UpstreamFamily::Anthropic, status, text, |answer| {
            (
                answer.quotas().iter().map(show).collect::<Vec<_>>(),
                answer.signal(),
            )
        })
    };
    let new = UpstreamSignal::new;
    let spent = new()
        .limited()
        .retry_after(secs(40))
        .remaining(0)
        .reset_after(secs(40));
    assert_eq!(
        shown(TOO_MANY, &rejected),
        (vec!["unified requests - 0 40 -".to_owned()], spent)
    );
    let (_, signal) = shown(TOO_MANY, &format!("{rejected}\nretry-after: 7"));
    assert_eq!(signal, new().limited().retry_after(secs(7)).remaining(0));
    let (_, signal) = shown(
        TOO_MANY,
        &rejected.replace(&(NOW + 40).to_string(), &(NOW + 86_400).to_string()),
    );
    assert_eq!(
        signal.retry_after(secs(3_600)),
        signal,
        "not beyond the cap"
    );

    let overage = format!("{rejected}\nanthropic-ratelimit-unified-overage-in-use: true");
    assert_eq!(shown(OK, &overage), (vec![], new()));
    let no_times = new().limited().retry_after(secs(1));
    for status in ["allowed", "allowed_warning", "unheard-of"] {
        let text = rejected.replace("rejected", status);
        assert_eq!(
            (shown(TOO_MANY, &text), shown(OK, &text)),
            ((vec![], no_times), (vec![], new())),
            "{status}"
        );
    }
    for (reset, is_malformed) in [
        ("", false),
        (
            "anthropic-ratelimit-unified-reset: 2026-11-23T01:00:40Z",
            true,
        ),
    ] {
        let text = format!("anthropic-ratelimit-unified-status: rejected\n{reset}");
        assert_eq!(
            !malformed(UpstreamFamily::Anthropic, &text).is_empty(),
            is_malformed,
            "{reset}"
        );
        assert_eq!(
            shown(TOO_MANY, &text).1.retry_after(secs(1)),
            shown(TOO_MANY, &text).1,
            "{reset}"
        );
    }
}

/// A family reads a field if an answer with the field twice is malformed.
#[test]
fn every_family_reads_the_fields_that_it_names() {
    let known = headers(
        "ratelimit: \"a\";r=1\nx-ratelimit-remaining: 1\nanthropic-ratelimit-unified-status: rejected",
    );
    let dictionary = headers("ratelimit: remaining=1");
    for family in UpstreamFamily::all() {
        let named: Vec<_> = family.fields().collect();
        let unlisted = named.iter().find(|field| !FIELDS.contains(field));
        assert_eq!(
            unlisted, None,
            "a field that {family:?} reads, and the list of the tests lacks"
        );
        for field in FIELDS {
            let is_dictionary = family == UpstreamFamily::Draft7;
            let mut fields = if is_dictionary { &dictionary } else { &known }.clone();
            fields.remove(field);
            for _ in 0..2 {
                fields.append(field, HeaderValue::from_static("?"));
            }
            let answer = UpstreamReader::new(family).read(TOO_MANY, &fields, now());
            // The field of another draft is ignored next to these.
            if (family, field) != (UpstreamFamily::Draft6, "ratelimit-policy") {
                let is_read = answer.malformed().contains(&field);
                assert_eq!(is_read, named.contains(&field), "{field} of {family:?}");
            }
        }
    }
    for field in FIELDS {
        let mut families = UpstreamFamily::all();
        assert!(
            families.any(|family| family.fields().any(|read| read == field)),
            "{field}"
        );
    }
}

/// One of these pieces.
fn one_of(pieces: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop::sample::select(pieces).prop_map(str::to_owned)
}

/// A list or a dictionary that may have a fault.
fn nearly_structured(member: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
    const VALUES: [&str; 32] = [
        "?1",
        "?0",
        "@12",
        "@-1",
        "%\"caf%c3%a9\"",
        "%\"a\"",
        "tok",
        "*t/x:y",
        "-1",
        "0",
        "-1.5",
        "1.123",
        "123456789012345",
        "00",
        "123456789012.123",
        ":YQ==:",
        ":YQ:",
        ":YQ=:",
        "::",
        ":YR==:",
        "\"\"",
        "\"\\\"\\\\\"",
        "\", ;r=1\"",
        "(1 2)",
        "( \"a\";x  tok )",
        "()",
        "((1))",
        "?2",
        "%\"%c3\"",
        "1.",
        ":Y:",
        "1234567890123456",
    ];
    const FAULTS: [&str; 36] = [
        "(",
        ")",
        "@1.5",
        "@",
        "%\"%C3%A9\"",
        "%",
        "%\"",
        "-",
        "1.1234",
        "1234567890123.1",
        ":YQ===:",
        ":Y Q:",
        ":Y=:",
        "\"",
        "\\",
        "\"\\x\"",
        "=",
        ";pk=:YQ==:",
        ";pk=1",
        ";*",
        ";A",
        ";a.b-c_*=?1",
        "\t",
        "\u{e9}",
        ";",
        ",",
        " ",
        ";r",
        ";r=-1",
        ";t=1.5",
        ";t=5;t=6",
        "limit=1",
        "a",
        "1",
        "?",
        ":",
    ];
    let parameter = (
        one_of(&["; ", ";", ";  "]),
        one_of(&["r", "x", "*a", "t"]),
        one_of(&VALUES),
    );
    let parameter = prop_oneof![
        6 => one_of(&[";r=1", ";t=5", ";q=9", "; r=2", ";r=3;t=0", ";pk=:YQ==:", ";x", ";x=?0"]),
        1 => parameter.prop_map(|(space, key, value)| format!("{space}{key}={value}")),
    ];
    let member = (
        prop_oneof![9 => member, 1 => one_of(&VALUES)],
        prop::collection::vec(parameter, 0..4),
    );
    let member = member.prop_map(|(value, parameters)| value + &parameters.concat());
    let fault = prop_oneof![2 => Just(None), 1 => (any::<prop::sample::Index>(), 0..2_usize, prop_oneof![Just(String::new()), one_of(&FAULTS)]).prop_map(Some)];
    (
        prop::collection::vec((member, one_of(&[", ", ",", " ,\t"])), 0..4),
        fault,
    )
        .prop_map(|(members, fault)| {
            let mut text = members
                .into_iter()
                .flat_map(|(member, comma)| [comma, member])
                .skip(1)
                .collect::<String>();
            if let Some((at, removed, fault)) = fault {
                let starts = text
                    .char_indices()
                    .map(|(at, _)| at)
                    .chain([text.len()])
                    .collect::<Vec<_>>();
                let at = at.index(starts.len());
                text.replace_range(
                    starts[at]..starts[(at + removed).min(starts.len() - 1)],
                    &fault,
                );
            }
            text
        })
}

fn nearly_a_list() -> impl Strategy<Value = String> {
    nearly_structured(one_of(&[
        "\"a\";r=1",
        "\"b\";r=2;t=5",
        "\"c\";r=3",
        "\"\\\"\";r=4",
    ]))
}

fn nearly_a_dictionary() -> impl Strategy<Value = String> {
    nearly_structured(one_of(&[
        "limit=1",
        "remaining=2",
        "reset=3",
        "limit=4",
        "reset",
        "a-b",
        "c=?0",
        "limit=(1)",
    ]))
}

/// The answer of another parser to the field `RateLimit` of draft-10: the numbers, or `None` if it is malformed. Here it is also
/// `None` if a line is not a list of its own, because a string is open at its end.
fn by_sfv(lines: &[String]) -> Option<Vec<(String, i64, Option<i64>)>> {
    let parse = |text: &str| sfv::Parser::new(text).parse::<sfv::List>().ok();
    let _lists = lines
        .iter()
        .map(|line| parse(line))
        .collect::<Option<Vec<_>>>()?;
    let list = parse(&lines.join(", "))?;
    let item = |entry: &sfv::ListEntry| {
        let sfv::ListEntry::Item(item) = entry else {
            return None;
        };
        let natural = |name: &str| match item.params.get(name) {
            None => Some(None),
            Some(value) => value
                .as_integer()
                .map(i64::from)
                .filter(|value| *value >= 0)
                .map(Some),
        };
        if item
            .params
            .get("pk")
            .is_some_and(|key| key.as_byte_sequence().is_none())
        {
            return None;
        }
        Some((
            item.bare_item.as_string()?.as_str().to_owned(),
            natural("r")??,
            natural("t")?,
        ))
    };
    list.iter().map(item).collect()
}

proptest! {
    #![proptest_config(crate::common::replay::cases(4_000))]

    #[test]
    fn another_parser_rejects_the_same_lists(lines in prop::collection::vec(nearly_a_list(), 1..3)) {
        let mut fields = HeaderMap::new();
        for line in &lines {
            let Ok(value) = HeaderValue::from_bytes(line.as_bytes()) else { return Ok(()) };
            fields.append("ratelimit", value);
        }
        let answer = UpstreamReader::new(UpstreamFamily::Draft10).max_wait(Duration::MAX).read(OK, &fields, now());
        // White space around a value is not part of it (RFC 9110, section 5.5).
        let lines = lines.iter().map(|line| line.trim_matches([' ', '\t']).to_owned()).collect::<Vec<_>>();
        let expected = by_sfv(&lines);
        prop_assert_eq!(answer.malformed().is_empty(), expected.is_some(), "{:?}", lines);
        if let Some(expected) = expected {
            let own = answer.quotas().iter().map(|quota| {
                let name = quota.name.unwrap().replace("\\\"", "\"").replace("\\\\", "\\");
                (name, quota.remaining.unwrap() as i64, quota.reset_after.map(|reset| reset.as_secs() as i64))
            });
            prop_assert_eq!(own.collect::<Vec<_>>(), expected.into_iter().take(8).collect::<Vec<_>>());
        }
    }

    #[test]
    fn another_parser_agrees_on_dictionaries(line in nearly_a_dictionary()) {
        let Ok(value) = HeaderValue::from_bytes(line.as_bytes()) else { return Ok(()) };
        let fields = HeaderMap::from_iter([(HeaderName::from_static("ratelimit"), value)]);
        let answer = UpstreamReader::new(UpstreamFamily::Draft7).read(OK, &fields, now());
        let other = sfv::Parser::new(line.trim_matches([' ', '\t'])).parse::<sfv::Dictionary>().ok();
        let natural = |entry: &sfv::ListEntry| match entry {
            sfv::ListEntry::Item(item) => item.bare_item.as_integer().is_some_and(|number| i64::from(number) >= 0),
            sfv::ListEntry::InnerList(_) => false,
        };
        let keys = ["limit", "remaining", "reset"];
        let expected = other.as_ref().is_some_and(|other| keys.iter().filter_map(|key| other.get(*key)).all(natural));
        prop_assert!(expected || !answer.malformed().is_empty(), "{}", line);
        // If a key comes twice, its first value may be malformed: the other parser keeps only the last one.
        let repeats = keys.iter().any(|key| line.matches(key).count() > 1);
        prop_assert!(!expected || repeats || answer.malformed().is_empty(), "{}", line);
    }

    #[test]
    fn another_parser_agrees_on_dates(instant in 0_u64..253_402_300_800, now_is_later in 0_u64..10_000) {
        let date = httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + secs(instant));
        let fields = headers(&format!("retry-after: {date}"));
        let arrived = SystemTime::UNIX_EPOCH + secs(instant.saturating_sub(now_is_later));
        let answer = UpstreamReader::new(UpstreamFamily::RetryAfter).max_wait(Duration::MAX).read(TOO_MANY, &fields, arrived);
        prop_assert_eq!(answer.retry_after(), Some(secs(now_is_later.min(instant))));
    }

}

proptest! {
    #![proptest_config(crate::common::replay::cases(1_500))]

    /// No bytes cause a panic or a duration above the cap.
    #[test]
    fn any_bytes_are_read_without_a_panic(
        values in prop::collection::vec(prop_oneof![
            prop::collection::vec(any::<u8>(), 0..40),
            Just(b"rejected".to_vec()),
            nearly_a_list().prop_map(String::into_bytes),
            "[0-9]{1,15}|limit=9, remaining=0, reset=[0-9]{1,15}".prop_map(String::into_bytes),
            "[-0-9.:smhTZ+, GMTNov]{0,40}".prop_map(String::into_bytes),
        ], 60),
        status in prop_oneof![100_u16..1_000, prop::sample::select(vec![200, 403, 429, 503, 529])],
        cap in 0_u64..100,
        now in 0_u64..1 << 40,
    ) {
        let mut fields = HeaderMap::new();
        for (name, value) in FIELDS.iter().cycle().zip(&values) {
            // Half of the fields that come second.
            if let Ok(value) = HeaderValue::from_bytes(value) && (fields.get(*name).is_none() || value.len() % 2 == 0) {
                fields.append(*name, value);
            }
        }
        for family in UpstreamFamily::all() {
            let reader = UpstreamReader::new(family).max_wait(secs(cap));
            let answer = reader.read(StatusCode::from_u16(status).unwrap(), &fields, SystemTime::UNIX_EPOCH + secs(now));
            let resets = answer.quotas().iter().filter_map(|quota| quota.reset_after);
            prop_assert!(resets.chain(answer.retry_after()).all(|wait| wait <= secs(cap)));
            let _signal = answer.signal_for("tokens");
        }
    }
}

/// Two values are an exception, and are not in these fields: a partition key, and a string with escapes.
#[test]
fn reading_allocates_nothing() {
    let fields = headers(
        "date: Sunday, 22-Nov-26 01:00:00 GMT\nretry-after: Sun Nov 22 01:00:07 2026\nx-ratelimit-reset-tokens: 6m0s\n\
         ratelimit: \"a\";r=1;t=5\nratelimit: \"b\";r=2\nratelimit-policy: \"a\";q=9;qu=\"tokens\"\nx-ratelimit-limit: 5, 5;w=1\n\
         anthropic-ratelimit-input-tokens-reset: 2026-11-23T01:00:09Z\nx-ratelimit-limit-tokens: bad\nratelimit-limit: 1\nratelimit-limit: 2",
    );
    for family in UpstreamFamily::all() {
        PEAK.set(LIVE.get());
        let answer = UpstreamReader::new(family).read(TOO_MANY, &fields, now());
        let signal = answer.signal();
        assert_eq!(PEAK.get(), LIVE.get(), "{family:?}");
        assert_ne!(signal, UpstreamSignal::new());
    }
}
