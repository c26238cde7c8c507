//! Tests of what no single room can see: every limit is known wherever limits are listed.
#![cfg(all(
    feature = "conformance",
    feature = "http",
    feature = "metrics",
    feature = "redis",
    feature = "serde"
))]

use std::collections::BTreeSet;
use std::time::SystemTime;

use metrics_util::debugging::DebuggingRecorder;

use crate::layers::{FieldValues, ProblemType, RateLimitFields, UpstreamFamily, UpstreamReader};
use crate::policy::{Limit, Policy, lacking, samples};
use crate::store::{Asks, Call, MemoryStore, RedisStore, Rules, Scope, Store, conformance};
use crate::strategy::{Counts, Guards};
use crate::telemetry::MetricsObserver;
use crate::{Decision, Limiter, Permit, TryAcquireError};

fn every_sample() -> impl Iterator<Item = Limit> {
    samples().into_iter().flat_map(|(_, limits)| limits)
}

/// Takes all units of a limiter with this limit. Returns what then denies, while nothing comes back.
fn exhausted(limit: Limit) -> (Limiter, Vec<Permit>, Decision) {
    let builder = Limiter::builder(limit.counting(Counts::Cost)).observer(MetricsObserver::new());
    let (limiter, mut permits) = (builder.build().unwrap(), Vec::new());
    loop {
        match limiter.try_acquire() {
            Ok(permit) => permits.push(permit),
            Err(TryAcquireError::Denied(decision)) => return (limiter, permits, decision),
            Err(error) => panic!("{limit}: {error}"),
        }
    }
}

#[test]
fn every_limit_has_a_text_and_a_name_of_its_own() {
    let mut names = Vec::new();
    for (type_name, limits) in samples() {
        let name = limits[0].description().name;
        assert!(!names.contains(&name), "{name} is the name of two limits");
        names.push(name);
        for limit in limits {
            assert_eq!(limit.description().name, name, "{type_name}: {limit}");
            assert_eq!(limit.to_string().parse(), Ok(limit));
            let json = serde_json::to_string(&limit).unwrap();
            assert_eq!(json, format!("\"{limit}\""));
            assert_eq!(serde_json::from_str::<Limit>(&json).unwrap(), limit);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn every_limit_is_named_by_its_denials() {
    for limit in every_sample().map(|limit| limit.counting(Counts::Cost)) {
        let (_limiter, _permits, decision) = exhausted(limit);
        assert_eq!(decision.denied_by(), Some(limit));
    }
}

#[tokio::test(start_paused = true)]
async fn every_limit_has_header_fields_and_a_problem_type() {
    let (fields, now) = (RateLimitFields::new("limit").unwrap(), SystemTime::now());
    for limit in every_sample() {
        let (limiter, _permits, decision) = exhausted(limit);
        let limits = limiter.limits();
        let values = FieldValues::denied(&limits, &decision);
        let mut headers = http::HeaderMap::new();
        fields.write(&mut headers, &values, now);
        let reader = UpstreamReader::new(UpstreamFamily::Draft10);
        let answer = reader.read(http::StatusCode::TOO_MANY_REQUESTS, &headers, now);
        let [quota] = answer.quotas() else {
            panic!("{limit}: {headers:?}")
        };
        let said = (quota.limit, quota.remaining);
        assert_eq!(said, (Some(limits[0].capacity), Some(0)), "{limit}");
        let guards = limit.description().guards;
        let counts_places = guards == Guards::Capacity;
        assert_eq!(quota.reset_after.is_none(), counts_places, "{limit}");
        assert_eq!(quota.unit.starts_with("concurrent-"), counts_places);
        let is_abnormal = values.problem_type() == ProblemType::AbnormalUsage;
        assert_eq!(is_abnormal, guards == Guards::Conduct, "{limit}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_limit_has_a_label_in_metrics() {
    for limit in every_sample() {
        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        metrics::with_local_recorder(&recorder, || {
            drop(exhausted(limit));
        });
        let expected = format!("0/{}", limit.description().name);
        let metrics = snapshotter.snapshot().into_vec();
        let mut denials = metrics.iter().map(|(key, ..)| key.key()).filter(|key| {
            key.name() == "tollgate_denied_total"
                && key.labels().any(|label| label.value() == expected)
        });
        assert!(denials.next().is_some(), "{limit}: {metrics:?}");
    }
}

#[test]
fn every_limit_is_known_to_the_stores() {
    let stores: [&dyn Store; 2] = [
        &MemoryStore::new(),
        &RedisStore::connect("redis://localhost").unwrap(),
    ];
    let rules = Rules::new("the SQL stores");
    for limit in every_sample() {
        let policy = Policy::from(limit);
        let adapts = limit.description().adapts;
        for store in stores {
            let is_exact = limit.to_string().contains("/ns") || limit.to_string().contains("1ns");
            if !(store.name() == stores[1].name() && is_exact) {
                assert_eq!(store.supports(&policy).is_err(), adapts, "{limit}");
            }
        }
        assert_eq!(rules.supports(&policy).is_err(), adapts, "{limit}");
        if adapts {
            continue;
        }
        let scope = Scope {
            limiter: "limiter".into(),
            key: [].into(),
        };
        let mut call = Call::new(scope, policy, 1);
        call.ttl = 1_000_000_000;
        call.asks.push(Asks::new(1, u64::MAX / 2, [1]));
        let now = 1_800_000_000_000_000_000;
        let first = rules.decide(now, None, &call).unwrap();
        let again = rules.decide(now, first.state.as_ref(), &call).unwrap();
        assert_eq!(again.reply.granted, 0, "{limit}");
    }
}

/// Asserts that the text has all these words.
#[track_caller]
fn assert_has(what: &str, text: &str, words: impl IntoIterator<Item = String>) {
    let missing: Vec<_> = words
        .into_iter()
        .filter(|word| !text.contains(word))
        .collect();
    assert!(missing.is_empty(), "{what} lacks {}", missing.join(", "));
}

#[test]
fn every_limit_is_among_those_that_random_calls_have() {
    assert_eq!(
        lacking(&conformance::POLICIES),
        [""; 0],
        "in src/store/conformance/oracle.rs"
    );
    let corpus = include_str!("../tests/integration/fuzzed/policy.txt").lines();
    let policies: Vec<_> = corpus
        .filter(|line| line.parse::<Policy>().is_ok())
        .collect();
    assert_eq!(
        lacking(&policies),
        [""; 0],
        "in tests/integration/fuzzed/policy.txt"
    );
}

#[test]
fn every_limit_is_in_the_tables_of_the_documentation() {
    /// The rows of the tables in this part of a text.
    fn rows(text: &str, begins: &str, ends: &str) -> String {
        let (_, part) = text.split_once(begins).expect(begins);
        let (part, _) = part.split_once(ends).expect(ends);
        let lines = part.lines().filter(|line| line.contains("| "));
        lines.map(|line| line.to_owned() + "\n").collect()
    }
    let types = || samples().into_iter().map(|(name, _)| name);
    let heading = "# Which limit to use";
    let readme = rows(include_str!("../README.md"), heading, "\n## ");
    assert_has(
        "README.md",
        &readme,
        types().map(|name| format!("`{name}::")),
    );
    let guide = rows(include_str!("lib.rs"), heading, "\n//! # ");
    assert_has("lib.rs", &guide, types().map(|name| format!("[`{name}")));
    let grammar = rows(include_str!("policy.rs"), "/// # As text", "/// ## ");
    assert_has(
        "policy.rs",
        &grammar,
        types().map(|name| format!("[`{name}")),
    );
    let resets = rows(include_str!("layers/fields.rs"), "/// # Numbers", "/// # ");
    let with_resets = samples()
        .into_iter()
        .filter(|(_, limits)| !limits[0].counts_places());
    assert_has(
        "layers/fields.rs",
        &resets,
        with_resets.map(|(name, _)| format!("[`{name}")),
    );
    let metrics = include_str!("telemetry.rs");
    let labels = samples()
        .into_iter()
        .map(|(_, limits)| format!("`{}`", limits[0].description().name));
    assert_has("telemetry.rs", metrics, labels);
}

/// The types of the handles, as the record of the API has them, in the order of the columns.
const HANDLES: [&str; 4] = [
    "Limiter",
    "KeyedLimiter<K>",
    "SharedLimiter",
    "LimiterGroup",
];
const REQUESTS: [&str; 4] = [
    "PermitRequest<&'a tollgate::Limiter>",
    "PermitRequest<(&'a tollgate::KeyedLimiter<K>, &'a Q)>",
    "PermitRequest<&'a tollgate::SharedLimiter>",
    "PermitRequest<&tollgate::LimiterGroup>",
];

/// The calls with a receiver that a type has in the recorded API, but for those of traits.
fn calls(type_name: &str) -> BTreeSet<&'static str> {
    const OF_TRAITS: [&str; 7] = [
        "clone",
        "default",
        "drop",
        "eq",
        "fmt",
        "into_future",
        "into_limiter",
    ];
    let prefix = format!("fn tollgate::{type_name}::");
    let lines = include_str!("../docs/api.txt").lines();
    let signatures = lines.filter_map(|line| Some(line.split_once(&prefix)?.1));
    let calls = signatures.filter(|signature| signature.contains("self"));
    calls
        .filter_map(|signature| signature.split(['(', '<']).next())
        .filter(|call| !OF_TRAITS.contains(call))
        .collect()
}

#[test]
fn every_call_is_in_the_tables_of_the_guide_or_has_a_reason() {
    let page = include_str!("guide/calls.md");
    let (handles, requests) = page.split_once("# The methods of a request").unwrap();
    for (part, types) in [(handles, HANDLES), (requests, REQUESTS)] {
        let of_types = types.map(calls);
        assert!(of_types.iter().all(|calls| calls.contains("acquire")));
        let mut listed = BTreeSet::new();
        for row in part.lines().filter(|line| line.starts_with("| `")) {
            let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
            let call = cells[0].trim_matches('`');
            listed.insert(call);
            for (cell, calls) in cells[1..].iter().zip(&of_types) {
                assert_eq!(*cell == "✓", calls.contains(call), "{row}");
                assert!(!cell.is_empty(), "{row}");
            }
            assert_eq!(cells.len(), 5, "{row}");
        }
        let all: BTreeSet<_> = of_types.iter().flatten().copied().collect();
        assert_eq!(listed, all);
    }
}
