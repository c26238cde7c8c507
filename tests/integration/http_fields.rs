//! The header fields in which a server reports its limits.

use std::time::Duration;

use crate::common::counting::{LIVE, PEAK};
use crate::common::ms;
use crate::common::upstreams::now;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use proptest::prelude::*;
use tokio::time::advance;
use tollgate::layers::{
    FieldValues, PolicyNameError, ProblemType, RateLimitFields, RateLimitStyle, ResetFormat,
    UpstreamFamily, UpstreamReader,
};
use tollgate::{Counts, Decision, Limit, LimitStatus, Limiter, TryAcquireError};

const STYLES: [RateLimitStyle; 6] = [
    RateLimitStyle::Draft10,
    RateLimitStyle::Draft7,
    RateLimitStyle::Draft6,
    RateLimitStyle::XSeconds,
    RateLimitStyle::XUnix,
    RateLimitStyle::None,
];

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn fields(style: RateLimitStyle) -> RateLimitFields {
    RateLimitFields::new("api").unwrap().style(style)
}

fn limiter(policy: &str) -> Limiter {
    Limiter::new(policy).unwrap()
}

/// A denial of a request of this cost.
fn denial(limiter: &Limiter, cost: u64) -> (Decision, Vec<LimitStatus>) {
    let (answer, limits) = limiter.request().cost(cost).try_acquire_explained();
    let Err(TryAcquireError::Denied(decision)) = answer else {
        panic!("granted")
    };
    (decision, limits)
}

/// Each line of each field, sorted by name.
fn lines(headers: &HeaderMap) -> Vec<String> {
    let mut lines: Vec<_> = headers.iter().collect();
    lines.sort_by_key(|(name, _)| name.as_str());
    lines
        .into_iter()
        .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
        .collect()
}

fn written(style: RateLimitStyle, values: &FieldValues<'_>) -> Vec<String> {
    let mut headers = HeaderMap::new();
    fields(style).write(&mut headers, values, now());
    lines(&headers)
}

fn granted(policy: &str) -> Vec<String> {
    written(
        RateLimitStyle::Draft10,
        &FieldValues::granted(&limiter(policy).limits()),
    )
}

fn set(headers: &mut HeaderMap, text: &str) {
    let (name, value) = text.split_once(": ").unwrap();
    headers.append(
        HeaderName::try_from(name).unwrap(),
        HeaderValue::try_from(value).unwrap(),
    );
}

/// The lines of the fields after the fields `there` and then the fields of `values` were written.
fn merged(style: RateLimitStyle, there: &[&str], values: &FieldValues<'_>) -> Vec<String> {
    let mut headers = HeaderMap::new();
    there.iter().for_each(|line| set(&mut headers, line));
    fields(style).write(&mut headers, values, now());
    lines(&headers)
}

#[tokio::test(start_paused = true)]
async fn each_limit_is_an_item_of_two_lists() {
    for (policy, list, state) in [
        ("window 100/min", r#""api";q=100;w=60"#, r#""api";r=100"#),
        ("sliding log 5/h", r#""api";q=5;w=3600"#, r#""api";r=5"#),
        ("100/min", r#""api";q=100;w=60"#, r#""api";r=100"#),
        ("20/s burst 50", r#""api";q=50;w=3"#, r#""api";r=50"#), // 2.5 s
        ("every 100ms burst 15", r#""api";q=15;w=2"#, r#""api";r=15"#),
        ("window 5/200ms", r#""api";q=5"#, r#""api";r=5"#), // not `w=0`, nor five in a second
        (
            "8 concurrent",
            r#""api";q=8;qu="concurrent-requests""#,
            r#""api";r=8"#,
        ),
        (
            "8 concurrent per request",
            r#""api";q=8;qu="concurrent-requests""#,
            r#""api";r=8"#,
        ),
        (
            "8 concurrent counting jobs",
            r#""api";q=8;qu="concurrent-jobs""#,
            r#""api";r=8"#,
        ),
        (
            "100/min per request",
            r#""api";q=100;w=60"#,
            r#""api";r=100"#,
        ),
        (
            "100000 tokens/min",
            r#""api";q=100000;w=60;qu="tokens""#,
            r#""api";r=100000"#,
        ),
        (
            "5000 content-bytes/s",
            r#""api";q=5000;w=1;qu="content-bytes""#,
            r#""api";r=5000"#,
        ),
        (
            "penalty 10 falling 1/s",
            r#""api";q=10;w=10"#,
            r#""api";r=10"#,
        ),
        ("penalty 10 half-life 30s", r#""api";q=10"#, r#""api";r=10"#),
        (
            "8 concurrent and 100/min and 500/h",
            r#""api-1";q=8;qu="concurrent-requests", "api-2";q=100;w=60, "api-3";q=500;w=3600"#,
            r#""api-1";r=8, "api-2";r=100, "api-3";r=500"#,
        ),
    ] {
        let expected = [
            format!("ratelimit: {state}"),
            format!("ratelimit-policy: {list}"),
        ];
        assert_eq!(granted(policy), expected, "{policy}");
    }
}

#[tokio::test(start_paused = true)]
async fn integers_have_at_most_15_digits() {
    let most = "999999999999999";
    let expected = [
        format!(r#"ratelimit: "api";r={most}"#),
        format!(r#"ratelimit-policy: "api";q={most};w=1"#),
    ];
    for units in ["999999999999999", "1000000000000000", "9999999999999999"] {
        assert_eq!(granted(&format!("window {units}/s")), expected, "{units}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_limit_that_denied_has_none_left_until_the_retry() {
    let limiter = limiter("10/min and window 100/h");
    let _permit = limiter.try_acquire_many(7).unwrap();
    advance(ms(500)).await;
    let (decision, limits) = denial(&limiter, 5);
    assert_eq!(
        (limits[0].remaining, decision.retry_after()),
        (3, Some(ms(11_500)))
    );
    let lists = written(
        RateLimitStyle::Draft10,
        &FieldValues::denied(&limits, &decision),
    );
    assert_eq!(
        lists,
        [
            r#"ratelimit: "api-1";r=0;t=12, "api-2";r=93;t=3600"#,
            r#"ratelimit-policy: "api-1";q=10;w=60, "api-2";q=100;w=3600"#,
            "retry-after: 12"
        ]
    );
    // A grant takes the last units: the next unit comes in 6 seconds, all units come in a minute.
    let _permit = limiter.try_acquire_many(3).unwrap();
    let limits = limiter.limits();
    assert_eq!(
        (limits[0].remaining, limits[0].reset_after),
        (0, ms(59_500))
    );
    assert_eq!(
        written(RateLimitStyle::Draft10, &FieldValues::granted(&limits))[0],
        r#"ratelimit: "api-1";r=0;t=6, "api-2";r=90;t=3600"#
    );
}

#[tokio::test(start_paused = true)]
async fn a_spent_limit_states_when_its_next_units_come() {
    for (policy, t) in [
        ("window 6/min", 60),
        ("6/min", 10),
        ("12/min burst 6", 5),
        ("every 1500ms burst 6", 2),
        ("penalty 6 falling 1/min", 60),
        ("penalty 6 falling 4/min", 60),
        ("penalty 6 half-life 30s", 30),
        ("2/min burst 6 refilled each period", 60),
        ("4/min burst 6 refilled each period", 60),
        ("sliding log 6/min", 60),
        // One of six units is free when a sixth of the next window has passed.
        ("sliding counter 6/min", 70),
        ("sliding counter 6/min and window 6/h", 70),
    ] {
        let limiter = limiter(policy);
        let _permit = limiter.try_acquire_many(6).unwrap();
        let lists = written(
            RateLimitStyle::Draft10,
            &FieldValues::granted(&limiter.limits()),
        );
        let item = lists[0].split(", ").next().unwrap();
        assert!(item.ends_with(&format!(";r=0;t={t}")), "{policy}: {item}");
    }
    // The oldest unit of a log leaves first.
    let log = limiter("sliding log 6/min");
    let _permit = log.try_acquire_many(5).unwrap();
    advance(secs(50)).await;
    let _permit = log.try_acquire().unwrap();
    let lists = written(
        RateLimitStyle::Draft10,
        &FieldValues::granted(&log.limits()),
    );
    assert_eq!(lists[0], r#"ratelimit: "api";r=0;t=10"#);
    // A permit is settled at more than its estimate.
    let limiter = limiter("6/min");
    assert!(limiter.try_acquire_many(6).unwrap().settle(8));
    let lists = written(
        RateLimitStyle::Draft10,
        &FieldValues::granted(&limiter.limits()),
    );
    assert_eq!(lists[0], r#"ratelimit: "api";r=0;t=30"#);
}

#[tokio::test(start_paused = true)]
async fn a_limit_with_units_left_states_no_longer_time_than_its_window() {
    // While units are left, no client has to wait until bans are forgiven, or until the units of a window weigh nothing.
    let limiter = limiter("penalty 6 falling 1/min ban 1h forgive 24h");
    let reported = || {
        written(
            RateLimitStyle::Draft10,
            &FieldValues::granted(&limiter.limits()),
        )[0]
        .clone()
    };
    assert!(limiter.try_acquire_many(6).is_ok() && limiter.try_acquire().is_err());
    advance(secs(3_600)).await;
    assert_eq!(limiter.limits()[0].reset_after, secs(24 * 3_600));
    for (r, t) in [(5, 60), (4, 120), (3, 180), (2, 240), (1, 300), (0, 60)] {
        assert!(limiter.try_acquire().is_ok());
        assert_eq!(reported(), format!(r#"ratelimit: "api";r={r};t={t}"#));
    }
    let counter = self::limiter("sliding counter 6/min");
    assert!(counter.try_acquire().is_ok());
    assert_eq!(counter.limits()[0].reset_after, secs(120));
    assert_eq!(
        written(
            RateLimitStyle::Draft6,
            &FieldValues::granted(&counter.limits())
        )[2],
        "ratelimit-reset: 60"
    );
}

/// Several limits deny. The decision names one of them. At the retry the others have units again, so their `t` is at most the retry-after.
#[tokio::test(start_paused = true)]
async fn no_spent_limit_states_a_longer_wait_than_retry_after() {
    let limiter = limiter("window 2/h and window 2/min and window 2/10s");
    let _permit = limiter.try_acquire_many(2).unwrap();
    let (decision, limits) = denial(&limiter, 1);
    let lists = written(
        RateLimitStyle::Draft10,
        &FieldValues::denied(&limits, &decision),
    );
    assert_eq!(
        lists[0],
        r#"ratelimit: "api-1";r=0;t=3600, "api-2";r=0;t=60, "api-3";r=0;t=10"#
    );
    let sooner = FieldValues::denied(&limits, &decision).retry_after(secs(30));
    assert_eq!(
        written(RateLimitStyle::Draft10, &sooner)[0],
        r#"ratelimit: "api-1";r=0;t=30, "api-2";r=0;t=30, "api-3";r=0;t=10"#
    );
    assert_eq!(
        written(RateLimitStyle::Draft10, &sooner)[2],
        "retry-after: 30"
    );
}

#[test]
fn retry_after_is_rounded_up_and_never_zero() {
    for (wait, jitter, seconds) in [
        (0, 0, "1"),
        (1, 0, "1"),
        (999, 0, "1"),
        (1_000, 0, "1"),
        (1_001, 0, "2"),
        (1_000, 1, "2"),
        (1_500, 1_500, "3"),
        (u64::MAX, u64::MAX, "999999999999999"),
    ] {
        let values = FieldValues::refused(&[])
            .retry_after(ms(wait))
            .jitter(ms(jitter));
        for style in STYLES {
            assert_eq!(
                written(style, &values),
                [format!("retry-after: {seconds}")],
                "{wait} ms"
            );
        }
    }
    assert_eq!(
        written(
            RateLimitStyle::None,
            &FieldValues::refused(&[]).jitter(secs(5))
        ),
        [""; 0]
    );
    assert_eq!(
        written(
            RateLimitStyle::None,
            &FieldValues::granted(&[]).retry_after(secs(5))
        ),
        [""; 0]
    );
}

#[tokio::test(start_paused = true)]
async fn a_denied_concurrency_states_no_time_unless_one_is_given() {
    let limiter = limiter("1 concurrent");
    let _held = limiter.try_acquire().unwrap();
    let (decision, limits) = denial(&limiter, 1);
    let values = FieldValues::denied(&limits, &decision);
    let lists = [
        r#"ratelimit: "api";r=0"#,
        r#"ratelimit-policy: "api";q=1;qu="concurrent-requests""#,
        "retry-after: 2",
    ];
    assert_eq!(written(RateLimitStyle::Draft10, &values), lists[..2]);
    assert_eq!(
        written(RateLimitStyle::Draft10, &values.retry_after(secs(2))),
        lists
    );
}

#[tokio::test(start_paused = true)]
async fn styles_with_one_limit_describe_the_tightest() {
    let limiter = limiter("1 concurrent per request and window 10/min and window 100/h");
    let permit = limiter.try_acquire_many(4).unwrap();
    let limits = limiter.limits();
    let values = FieldValues::granted(&limits);
    let draft_7 = [
        "ratelimit: limit=10, remaining=6, reset=60",
        "ratelimit-policy: 10;w=60, 100;w=3600",
    ];
    assert_eq!(written(RateLimitStyle::Draft7, &values), draft_7);
    let draft_6 = [
        "ratelimit-limit: 10",
        "ratelimit-remaining: 6",
        "ratelimit-reset: 60",
    ];
    assert_eq!(written(RateLimitStyle::Draft6, &values), draft_6);
    assert_eq!(
        written(RateLimitStyle::XSeconds, &values),
        draft_6.map(|line| format!("x-{line}"))
    );
    let unix = [
        "x-ratelimit-limit: 10",
        "x-ratelimit-remaining: 6",
        "x-ratelimit-reset: 1795395660",
    ];
    assert_eq!(written(RateLimitStyle::XUnix, &values), unix);
    assert_eq!(written(RateLimitStyle::None, &values), [""; 0]);
    drop(permit);
    // The limit that denied goes first, though another one has a smaller share left.
    let units = self::limiter("window 10/min and window 100 tokens/h");
    let _permit = units
        .request()
        .cost(9)
        .cost_of("tokens", 50)
        .try_acquire()
        .unwrap();
    let (answer, limits) = units
        .request()
        .cost_of("tokens", 60)
        .try_acquire_explained();
    let Err(TryAcquireError::Denied(decision)) = answer else {
        panic!("50 are left")
    };
    let denied = written(
        RateLimitStyle::Draft6,
        &FieldValues::denied(&limits, &decision),
    );
    assert_eq!(
        denied,
        [
            "ratelimit-limit: 100",
            "ratelimit-remaining: 0",
            "ratelimit-reset: 3600",
            "retry-after: 3600"
        ]
    );
    assert_eq!(
        written(RateLimitStyle::Draft6, &FieldValues::granted(&limits))[0],
        "ratelimit-limit: 10"
    );
    // The shares are equal, so the limit with the later reset is described.
    let equal = self::limiter("window 10/min and window 10/h");
    let _permit = equal.try_acquire().unwrap();
    let limits = equal.limits();
    assert_eq!(
        written(RateLimitStyle::Draft6, &FieldValues::granted(&limits))[2],
        "ratelimit-reset: 3600"
    );
    assert_eq!(
        written(RateLimitStyle::Draft7, &FieldValues::granted(&limits))[1],
        "ratelimit-policy: 10;w=60"
    );
    // A concurrency has no reset, which these styles require.
    let limits = self::limiter("8 concurrent").limits();
    for style in [
        RateLimitStyle::Draft7,
        RateLimitStyle::Draft6,
        RateLimitStyle::XSeconds,
        RateLimitStyle::XUnix,
    ] {
        assert_eq!(written(style, &FieldValues::granted(&limits)), [""; 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn lists_of_several_layers_become_one() {
    let limits = limiter("window 5/min").limits();
    let values = FieldValues::granted(&limits);
    let own = [r#""api";r=5"#, r#""api";q=5;w=60"#];
    for (there, first) in [
        (vec![], ["", ""]),
        (
            vec![r#"ratelimit: "app";r=1"#, r#"ratelimit-policy: "app";q=9"#],
            [r#""app";r=1, "#, r#""app";q=9, "#],
        ),
        (
            vec![
                r#"ratelimit: "a";r=1"#,
                r#"ratelimit: "b";r=2 , "c";r=3"#,
                r#"ratelimit-policy: "a";q=9"#,
            ],
            [r#""a";r=1, "b";r=2 , "c";r=3, "#, r#""a";q=9, "#],
        ),
        // A reader ignores these malformed fields, and everything that is added to them.
        (
            vec![r#"ratelimit: "a";r=1,"#, r#"ratelimit-policy: "a" ;q=9"#],
            ["", ""],
        ),
        (
            vec![
                r#"ratelimit: "a";r=1"#,
                "ratelimit: b c",
                "ratelimit-policy: 5;w=60",
            ],
            ["", ""],
        ),
        (vec!["ratelimit: limit=5, remaining=1, reset=2"], ["", ""]),
        (vec!["ratelimit: "], ["", ""]),
    ] {
        let expected = [
            format!("ratelimit: {}{}", first[0], own[0]),
            format!("ratelimit-policy: {}{}", first[1], own[1]),
        ];
        assert_eq!(
            merged(RateLimitStyle::Draft10, &there, &values),
            expected,
            "{there:?}"
        );
    }
    let draft_7 = merged(
        RateLimitStyle::Draft7,
        &["ratelimit-policy: 9;w=1"],
        &values,
    );
    assert_eq!(
        draft_7,
        [
            "ratelimit: limit=5, remaining=5, reset=0",
            "ratelimit-policy: 9;w=1, 5;w=60"
        ]
    );
    let draft_7 = merged(
        RateLimitStyle::Draft7,
        &["ratelimit-policy: \"a\";q=9"],
        &values,
    );
    assert_eq!(draft_7[1], "ratelimit-policy: 5;w=60");
}

#[tokio::test(start_paused = true)]
async fn the_tighter_of_two_single_limits_stays() {
    let limiter = limiter("window 10/min");
    let _permit = limiter.try_acquire_many(6).unwrap();
    let limits = limiter.limits();
    let values = FieldValues::granted(&limits); // 4 of 10, for 60 s
    for (numbers, stays) in [
        (["100", "39", "1"], true),
        (["100", "41", "3600"], false),
        (["5", "2", "61"], true),
        (["5", "2", "59"], false),
        (["0", "0", "0"], true),
        // A reader needs all three fields.
        (["100", "1", "soon"], false),
        (["100", "-1", "5"], false),
    ] {
        let [limit, remaining, reset] = numbers;
        let own = if stays { numbers } else { ["10", "4", "60"] };
        for (style, prefix) in [
            (RateLimitStyle::Draft6, ""),
            (RateLimitStyle::XSeconds, "x-"),
        ] {
            let fields = |[limit, remaining, reset]: [&str; 3]| {
                [("limit", limit), ("remaining", remaining), ("reset", reset)]
                    .map(|(name, value)| format!("{prefix}ratelimit-{name}: {value}"))
            };
            let there = fields(numbers);
            assert_eq!(
                merged(style, &there.each_ref().map(String::as_str), &values),
                fields(own),
                "{numbers:?}"
            );
        }
        let dictionary = |[limit, remaining, reset]: [&str; 3]| {
            format!("ratelimit: limit={limit}, remaining={remaining}, reset={reset}")
        };
        let there = dictionary([limit, remaining, reset]);
        assert_eq!(
            merged(RateLimitStyle::Draft7, &[&there], &values)[0],
            dictionary(own),
            "{numbers:?}"
        );
    }
    let there = [
        "x-ratelimit-limit: 9",
        "x-ratelimit-remaining: 1",
        "x-ratelimit-remaining: 2",
        "x-ratelimit-reset: 5",
    ];
    let own = [
        "x-ratelimit-limit: 10",
        "x-ratelimit-remaining: 4",
        "x-ratelimit-reset: 60",
    ];
    assert_eq!(merged(RateLimitStyle::XSeconds, &there, &values), own);
}

#[test]
fn the_later_of_two_retry_times_stays() {
    let values = FieldValues::refused(&[]).retry_after(secs(30));
    for (there, expected) in [
        ("retry-after: 29", "30"),
        ("retry-after: 31", "31"),
        ("retry-after: 99999999999999999999", "99999999999999999999"),
        ("retry-after: Mon, 23 Nov 2026 01:00:29 GMT", "30"),
        (
            "retry-after: Mon, 23 Nov 2026 01:00:31 GMT",
            "Mon, 23 Nov 2026 01:00:31 GMT",
        ),
        (
            "retry-after: Monday, 23-Nov-26 02:00:00 GMT",
            "Monday, 23-Nov-26 02:00:00 GMT",
        ),
        (
            "retry-after: Mon, 23 Nov 2026 01:00:30 GMT",
            "Mon, 23 Nov 2026 01:00:30 GMT",
        ),
        ("retry-after: soon", "30"),
        ("retry-after: -40", "30"),
    ] {
        assert_eq!(
            merged(RateLimitStyle::Draft10, &[there], &values),
            [format!("retry-after: {expected}")],
            "{there}"
        );
    }
    assert_eq!(
        merged(
            RateLimitStyle::None,
            &["retry-after: 40", "retry-after: 50"],
            &values
        ),
        ["retry-after: 30"]
    );
    assert_eq!(
        merged(
            RateLimitStyle::None,
            &["retry-after: 40"],
            &FieldValues::granted(&[])
        ),
        ["retry-after: 40"]
    );
}

#[test]
fn a_full_header_map_causes_no_panic() {
    let mut headers = HeaderMap::new();
    let name = |n| HeaderName::try_from(format!("x-{n}")).unwrap();
    let full = (0..40_000).find(|n| {
        headers
            .try_insert(name(*n), HeaderValue::from_static(""))
            .is_err()
    });
    let values = FieldValues::refused(&[]).retry_after(secs(9));
    fields(RateLimitStyle::Draft10).write(&mut headers, &values, now());
    assert_eq!(
        (full, headers.get("retry-after")),
        (Some(headers.len()), None)
    );
}

#[test]
fn a_name_is_printable_ascii() {
    for (name, error) in [
        ("", PolicyNameError::Empty),
        ("caf\u{e9}", PolicyNameError::Character('\u{e9}')),
        ("a\nb", PolicyNameError::Character('\n')),
        ("a\0", PolicyNameError::Character('\0')),
        ("\u{7f}", PolicyNameError::Character('\u{7f}')),
        (
            &"x".repeat(257),
            PolicyNameError::TooLong { len: 257, max: 256 },
        ),
    ] {
        assert_eq!(RateLimitFields::new(name), Err(error), "{name:?}");
    }
    assert!(RateLimitFields::new(&"\"".repeat(256)).is_ok());
    assert_eq!(
        PolicyNameError::Character('\n').to_string(),
        "the name of a policy contains '\\n'; only printable ASCII is allowed"
    );
}

#[tokio::test(start_paused = true)]
async fn a_problem_names_its_type_and_the_limit_that_denied() {
    let problem = |policy: &str, cost: u64| {
        let limiter = limiter(policy);
        let _held = limiter.try_acquire_many(cost).unwrap();
        let (decision, limits) = denial(&limiter, cost);
        let values = FieldValues::denied(&limits, &decision);
        let problem = values.problem_type();
        let body = RateLimitFields::new(r#"a"\b"#)
            .unwrap()
            .problem(&values, problem);
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            (body["type"].as_str(), body["status"].as_u64()),
            (Some(problem.uri()), Some(problem.status().as_u16().into()))
        );
        assert!(
            body["title"]
                .as_str()
                .is_some_and(|title| !title.is_empty())
        );
        (problem, body["violated-policies"].to_string())
    };
    assert_eq!(
        problem("1/min", 1),
        (ProblemType::QuotaExceeded, r#"["a\"\\b"]"#.to_owned())
    );
    assert_eq!(
        problem("9 concurrent and 1/min", 1),
        (ProblemType::QuotaExceeded, r#"["a\"\\b-2"]"#.to_owned())
    );
    assert_eq!(
        problem("penalty 1 falling 1/h", 1),
        (ProblemType::AbnormalUsage, r#"["a\"\\b"]"#.to_owned())
    );
    let refused = FieldValues::refused(&[]);
    assert_eq!(refused.problem_type(), ProblemType::ReducedCapacity);
    let body: serde_json::Value = serde_json::from_slice(
        &fields(RateLimitStyle::None).problem(&refused, ProblemType::ReducedCapacity),
    )
    .unwrap();
    assert_eq!(body["violated-policies"], serde_json::json!([]));
    let statuses = [
        ProblemType::QuotaExceeded,
        ProblemType::AbnormalUsage,
        ProblemType::ReducedCapacity,
    ]
    .map(ProblemType::status);
    assert_eq!(statuses.map(|status| status.as_u16()), [429, 429, 503]);
    assert_eq!(ProblemType::CONTENT_TYPE, "application/problem+json");
    // The limiter is paused, so no limit has denied.
    let paused = limiter("1/min");
    paused.pause_for(secs(9));
    let (decision, limits) = denial(&paused, 1);
    let values = FieldValues::denied(&limits, &decision);
    assert_eq!(values.problem_type(), ProblemType::ReducedCapacity);
    assert_eq!(
        written(RateLimitStyle::Draft10, &values)[..1],
        [r#"ratelimit: "api";r=1"#]
    );
    assert_eq!(written(RateLimitStyle::None, &values), ["retry-after: 9"]);
}

#[tokio::test(start_paused = true)]
async fn writing_allocates_the_values_and_nothing_else() {
    let limiter = limiter("8 concurrent and 10/min and window 100/h");
    let _permit = limiter.try_acquire_many(8).unwrap();
    let (decision, limits) = denial(&limiter, 5);
    let values = FieldValues::denied(&limits, &decision)
        .retry_after(secs(7))
        .partition_key(b"trial");
    for style in STYLES {
        let fields = fields(style);
        let mut headers = HeaderMap::with_capacity(16);
        let before = LIVE.get();
        PEAK.set(before);
        fields.write(&mut headers, &values, now());
        let bytes: usize = headers.values().map(HeaderValue::len).sum();
        assert_eq!(
            (LIVE.get() - before, PEAK.get() - before),
            (bytes, bytes),
            "{style:?}"
        );
        assert!(bytes > 0);
    }
    // A value above 128 bytes takes one more buffer, which doubles, while it is written.
    let many = (1..=12)
        .map(|units| format!("{units}/min"))
        .collect::<Vec<_>>()
        .join(" and ");
    let limits = Limiter::new(&*many).unwrap().limits();
    let mut headers = HeaderMap::with_capacity(16);
    let before = LIVE.get();
    PEAK.set(before);
    fields(RateLimitStyle::Draft10).write(&mut headers, &FieldValues::granted(&limits), now());
    let bytes: usize = headers.values().map(HeaderValue::len).sum();
    assert_eq!((LIVE.get() - before, bytes > 256), (bytes, true));
    assert!(
        PEAK.get() - before <= bytes + 2 * bytes,
        "{}",
        PEAK.get() - before
    );
}

/// Texts of limits, costs of requests of which some are denied, and a time to wait.
fn policies() -> impl Strategy<Value = (Vec<String>, Vec<u64>, u64)> {
    let period = prop::sample::select(vec!["200ms", "1s", "1500ms", "1min", "7h"]);
    let limit =
        (1..2_000_u64, 1..2_000_u64, period, 0..9).prop_map(|(units, burst, period, kind)| {
            match kind {
                0 => format!("window {units}/{period}"),
                1 => format!("sliding log {units}/{period}"),
                2 => format!("{units}/{period} burst {burst}"),
                3 => format!("every {period} burst {burst}"),
                4 => format!("{units} concurrent"),
                5 => format!("penalty {units} falling {burst}/{period}"),
                6 => format!("penalty {units} half-life {period}"),
                7 => format!("window {units}/{period} per request"),
                _ => format!("{units} tokens/{period} burst {burst}"),
            }
        });
    (
        prop::collection::vec(limit, 1..5),
        prop::collection::vec(1..1_500_u64, 0..6),
        0..90_000_u64,
    )
}

/// The last explanation of several requests, and the decision if it was a denial.
fn explained(limits: &[String], costs: &[u64], wait: u64) -> (Vec<LimitStatus>, Option<Decision>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let limiter = limiter(&limits.join(" and "));
        let (mut last, mut permits) = ((limiter.limits(), None), Vec::new());
        for cost in costs {
            match limiter
                .request()
                .cost(*cost)
                .cost_of("tokens", cost / 2)
                .try_acquire_explained()
            {
                (Ok(permit), limits) => {
                    permits.push(permit);
                    last = (limits, None);
                }
                (Err(TryAcquireError::Denied(decision)), limits) => last = (limits, Some(decision)),
                (Err(_), _) => {} // above the capacity of a limit
            }
            advance(ms(wait)).await;
        }
        last
    })
}

fn values<'a>(limits: &'a [LimitStatus], decision: Option<&Decision>) -> FieldValues<'a> {
    decision.map_or(FieldValues::granted(limits), |decision| {
        FieldValues::denied(limits, decision)
    })
}

proptest! {
    #![proptest_config(crate::common::replay::cases(500))]

    /// Another parser reads the numbers of the limits in the lists.
    #[test]
    fn lists_parse_to_what_the_limits_said((policy, costs, wait) in policies(), name in "[ -~]{1,20}", key in any::<Option<Vec<u8>>>()) {
        let (limits, decision) = explained(&policy, &costs, wait);
        let mut values = values(&limits, decision.as_ref());
        if let Some(key) = &key {
            values = values.partition_key(key);
        }
        let mut headers = HeaderMap::new();
        RateLimitFields::new(&name).unwrap().write(&mut headers, &values, now());
        let list = |field: &str| sfv::Parser::new(headers[field].as_bytes()).parse::<sfv::List>().unwrap();
        let (policies, states) = (list("ratelimit-policy"), list("ratelimit"));
        prop_assert_eq!((policies.len(), states.len()), (limits.len(), limits.len()));
        for (index, status) in limits.iter().enumerate() {
            let expected = if limits.len() == 1 { name.clone() } else { format!("{name}-{}", index + 1) };
            for (list, keys) in [(&policies, ["q", "w", "qu", "pk"].as_slice()), (&states, &["r", "t", "pk"])] {
                let sfv::ListEntry::Item(item) = &list[index] else { panic!("an inner list") };
                prop_assert_eq!(item.bare_item.as_string().unwrap().as_str(), &expected);
                prop_assert_eq!(item.params.get("pk").map(|key| key.as_byte_sequence().unwrap()), key.as_deref());
                prop_assert!(item.params.keys().all(|key| keys.contains(&key.as_str())));
            }
            let number = |list: &sfv::List, name: &str| {
                let sfv::ListEntry::Item(item) = &list[index] else { panic!("an inner list") };
                item.params.get(name).map(|value| i64::from(value.as_integer().unwrap()) as u64)
            };
            let denied_by_it = decision.as_ref().is_some_and(|decision| decision.denied_by_index() == Some(index));
            let unit = match (&status.limit, status.limit.counts()) {
                (Limit::MaxConcurrency(_), _) => Some("concurrent-requests".to_owned()),
                (_, Counts::Unit(unit)) => Some(unit.as_str().to_owned()),
                _ => None,
            };
            let sfv::ListEntry::Item(policy) = &policies[index] else { panic!("an inner list") };
            prop_assert_eq!(policy.params.get("qu").map(|unit| unit.as_string().unwrap().as_str()), unit.as_deref());
            prop_assert_eq!(number(&policies, "q"), Some(status.capacity));
            prop_assert!(number(&policies, "w") != Some(0));
            prop_assert_eq!(number(&states, "r"), Some(if denied_by_it { 0 } else { status.remaining }));
            let wait = number(&states, "t");
            prop_assert!(wait != Some(0) && wait.is_none_or(|wait| wait <= status.reset_after.as_secs() + 1));
            if denied_by_it {
                let retry_after = headers.get("retry-after").map(|value| value.to_str().unwrap().parse::<u64>().unwrap());
                prop_assert_eq!(wait, retry_after.filter(|_| status.reset_after > Duration::ZERO));
            }
        }
    }

    /// Another parser reads one limit in the dictionary of draft-07, and the quotas that have a window in its list.
    #[test]
    fn a_dictionary_parses_to_what_a_limit_said((policy, costs, wait) in policies()) {
        let (limits, decision) = explained(&policy, &costs, wait);
        let mut headers = HeaderMap::new();
        fields(RateLimitStyle::Draft7).write(&mut headers, &values(&limits, decision.as_ref()), now());
        let natural = |item: &sfv::BareItem| u64::try_from(i64::from(item.as_integer().unwrap())).unwrap();

        let list = headers.get("ratelimit-policy").map(|field| sfv::Parser::new(field.as_bytes()).parse::<sfv::List>().unwrap());
        let reported = list.iter().flatten().map(|entry| {
            let sfv::ListEntry::Item(item) = entry else { panic!("an inner list") };
            assert!(item.params.len() == 1);
            (natural(&item.bare_item), natural(&item.params["w"]))
        });
        let reported = reported.collect::<Vec<_>>();
        for (nth, (quota, window)) in reported.iter().enumerate() {
            prop_assert!(*window > 0 && reported[..nth].iter().all(|(other, _)| quota != other), "{:?}", reported);
            let is_of = |status: &LimitStatus| match &status.limit {
                Limit::FixedWindow(fixed) => fixed.get_period().as_secs_f64().ceil() as u64 == *window,
                Limit::SlidingWindow(sliding) => sliding.period().as_secs_f64().ceil() as u64 == *window,
                limit => !matches!(limit, Limit::MaxConcurrency(_)),
            };
            prop_assert!(limits.iter().any(|status| status.capacity == *quota && is_of(status)), "{:?} {:?}", reported, limits);
        }
        for status in &limits {
            let is_reported = reported.iter().any(|(quota, _)| *quota == status.capacity);
            prop_assert!(is_reported || !matches!(&status.limit, Limit::FixedWindow(fixed) if fixed.get_period() >= secs(1)), "{:?}", reported);
        }

        let Some(dictionary) = headers.get("ratelimit") else {
            prop_assert!(limits.iter().all(|status| matches!(status.limit, Limit::MaxConcurrency(_))));
            return Ok(());
        };
        let dictionary = sfv::Parser::new(dictionary.as_bytes()).parse::<sfv::Dictionary>().unwrap();
        let members = dictionary.iter().map(|(key, entry)| {
            let sfv::ListEntry::Item(item) = entry else { panic!("an inner list") };
            assert!(item.params.is_empty());
            (key.as_str(), natural(&item.bare_item))
        });
        let members = members.collect::<Vec<_>>();
        let [("limit", limit), ("remaining", remaining), ("reset", reset)] = members[..] else { panic!("{members:?}") };
        let denied_by = decision.as_ref().and_then(Decision::denied_by_index);
        let is_reported = |(index, status): (usize, &LimitStatus)| {
            let left = if denied_by == Some(index) { 0 } else { status.remaining };
            (status.capacity, left) == (limit, remaining) && reset <= status.reset_after.as_secs() + 1
        };
        prop_assert!(limits.iter().enumerate().any(is_reported), "{:?} {:?}", members, limits);
    }

    /// A client that used the last unit and comes back after `t` seconds finds one, and finds none a second earlier.
    #[test]
    fn a_client_that_waits_for_t_retries_neither_too_early_nor_too_late(
        (kind, units, burst) in (0..8_usize, 1..40_u64, 1..60_u64),
        period in prop::sample::select(vec![1_u64, 3, 60]),
        requests in prop::collection::vec((1..60_u64, 0..20_000_u64), 1..40),
    ) {
        let (policy, window) = match kind {
            0 => (format!("window {units}/{period}s"), period),
            1 => (format!("{units}/{period}s burst {burst}"), (period * burst).div_ceil(units)),
            2 => (format!("{units}/{period}s burst {burst} refilled each period"), period * burst.div_ceil(units)),
            3 => (format!("sliding log {units}/{period}s"), period),
            4 => (format!("sliding counter {units}/{period}s"), period),
            5 => (format!("penalty {burst} falling {units}/{period}s ignoring denied"), period * burst.div_ceil(units)),
            6 => (format!("penalty {burst} half-life {period}s ignoring denied"), period * u64::from(64 - burst.leading_zeros())),
            _ => (format!("penalty {burst} falling {units}/{period}s ban {period}s forgive 1h"), period * burst.div_ceil(units)),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let limiter = limiter(&policy);
            for (cost, wait) in requests {
                if let (Ok(_permit), limits) = limiter.request().cost(cost).try_acquire_explained() {
                    let mut headers = HeaderMap::new();
                    fields(RateLimitStyle::Draft6).write(&mut headers, &FieldValues::granted(&limits), now());
                    let number = |name: &str| headers[name].to_str().unwrap().parse::<u64>().unwrap();
                    let t = secs(number("ratelimit-reset"));
                    match limiter.check(1).retry_after() {
                        None | Some(Duration::ZERO) => assert!(t <= secs(window), "{policy}: {t:?} {limits:?}"),
                        Some(more) => {
                            assert_eq!(number("ratelimit-remaining"), 0);
                            assert!(more <= t && t < more + secs(1), "{policy}: {t:?}, {more:?} {limits:?}");
                        }
                    }
                }
                advance(ms(wait)).await;
            }
        });
    }

    /// The reader of this crate reads the same numbers, in every style.
    #[test]
    fn written_fields_are_read_back((policy, costs, wait) in policies()) {
        let (limits, decision) = explained(&policy, &costs, wait);
        let values = values(&limits, decision.as_ref());
        let (status, is_denied) = (if decision.is_some() { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK }, decision.is_some());
        for (style, family) in [
            (RateLimitStyle::Draft10, UpstreamFamily::Draft10),
            (RateLimitStyle::Draft7, UpstreamFamily::Draft7),
            (RateLimitStyle::Draft6, UpstreamFamily::Draft6),
            (RateLimitStyle::XSeconds, UpstreamFamily::XRateLimit(ResetFormat::Seconds)),
            (RateLimitStyle::XUnix, UpstreamFamily::XRateLimit(ResetFormat::UnixSeconds)),
        ] {
            let mut headers = HeaderMap::new();
            fields(style).write(&mut headers, &values, now());
            let answer = UpstreamReader::new(family).max_wait(Duration::MAX).read(status, &headers, now());
            prop_assert_eq!(answer.malformed(), [""; 0]);
            prop_assert_eq!(answer.is_limited(), is_denied);
            let wait = decision.as_ref().and_then(Decision::retry_after);
            prop_assert_eq!(answer.retry_after().is_some(), wait.is_some());
            prop_assert!(answer.retry_after().is_none_or(|read| wait.unwrap() <= read && read <= wait.unwrap() + secs(1)));
            if style == RateLimitStyle::Draft10 {
                prop_assert_eq!(answer.quotas().len(), limits.len());
            }
            for (index, quota) in answer.quotas().iter().enumerate() {
                let denied_by = |index| decision.as_ref().is_some_and(|decision| decision.denied_by_index() == Some(index));
                let left = |index: usize| if denied_by(index) { 0 } else { limits[index].remaining };
                let matches = |index: usize| quota.limit == Some(limits[index].capacity) && quota.remaining == Some(left(index));
                if style == RateLimitStyle::Draft10 {
                    prop_assert!(matches(index), "{:?} {:?}", quota, limits);
                    continue;
                }
                let tightest = (0..limits.len()).find(|index| matches(*index) && quota.unit == "requests").unwrap();
                prop_assert!(quota.reset_after.is_some());
                let share = |index: usize| left(index) as f64 / limits[index].capacity as f64;
                let others = (0..limits.len()).filter(|index| !limits[*index].limit.to_string().contains("concurrent"));
                prop_assert!(others.clone().all(|other| denied_by(tightest) || share(tightest) <= share(other)), "{:?} {:?}", quota, limits);
            }
        }
    }

    /// The result is readable, whatever fields the answer had before.
    #[test]
    fn merged_fields_can_be_read(there in prop::collection::vec("[ \"ab;r=q1,:\\\\]{0,12}|\"a\";r=1|\"a\";q=1|1;w=1|limit=1|[0-9]{0,3}|17953956[0-9]{2}", 12)) {
        let limits = limiter("window 100/min").limits();
        let values = FieldValues::refused(&limits).retry_after(secs(9));
        let names = [
            "ratelimit", "ratelimit-policy", "ratelimit-limit", "ratelimit-remaining", "ratelimit-reset", "x-ratelimit-limit", "x-ratelimit-reset",
            "retry-after", "x-ratelimit-remaining",
        ];
        for (style, family) in [
            (RateLimitStyle::Draft10, UpstreamFamily::Draft10),
            (RateLimitStyle::Draft7, UpstreamFamily::Draft7),
            (RateLimitStyle::Draft6, UpstreamFamily::Draft6),
            (RateLimitStyle::XSeconds, UpstreamFamily::XRateLimit(ResetFormat::Seconds)),
            (RateLimitStyle::XUnix, UpstreamFamily::XRateLimit(ResetFormat::UnixSeconds)),
        ] {
            let mut headers = HeaderMap::new();
            for (name, value) in names.iter().cycle().zip(&there) {
                headers.append(*name, HeaderValue::try_from(value).unwrap());
            }
            fields(style).write(&mut headers, &values, now());
            let answer = UpstreamReader::new(family).read(StatusCode::TOO_MANY_REQUESTS, &headers, now());
            prop_assert!(answer.retry_after().is_some_and(|wait| wait >= secs(9)));
            prop_assert_eq!((answer.malformed(), answer.quotas().is_empty()), ([""; 0].as_slice(), false), "{:?} {:?}", style, headers);
        }
    }
}
