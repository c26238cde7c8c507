//! Policies in configuration files, and snapshots and decisions in logs.

use std::time::Duration;

use serde_json::json;
use tollgate::{KeyedLimiter, Limit, Limiter, MaxConcurrency, Policy, Rate, TokenBucket};

fn policy() -> Policy {
    let slots = MaxConcurrency::new(8).ttl(Duration::from_secs(30));
    Policy::from(slots).and(TokenBucket::new(Rate::per_minute(100), 100))
}

#[test]
fn a_policy_is_serialized_as_its_text_in_json() {
    let text = r#""8 concurrent ttl 30s and 100/min""#;
    assert_eq!(serde_json::to_string(&policy()).unwrap(), text);
    assert_eq!(serde_json::from_str::<Policy>(text).unwrap(), policy());
    assert_eq!(
        serde_json::from_value::<Policy>(text.trim_matches('"').into()).unwrap(),
        policy()
    );
    assert_eq!(
        serde_json::to_string(&Rate::per_hour(5_000)).unwrap(),
        r#""5000/h""#
    );
    assert_eq!(
        serde_json::from_str::<Rate>(r#""5000/h""#).unwrap(),
        Rate::per_hour(5_000)
    );
}

#[test]
fn a_policy_is_serialized_as_its_text_in_toml() {
    let file: toml::Table = toml::from_str(
        "[limits]\napi = '8 concurrent ttl 30s and 100/min'\nlogin = '3 concurrent'",
    )
    .unwrap();
    let limits = &file["limits"];
    assert_eq!(
        limits["api"].clone().try_into::<Policy>().unwrap(),
        policy()
    );
    assert_eq!(
        limits["login"].clone().try_into::<Limit>().unwrap(),
        MaxConcurrency::new(3).into()
    );
    assert_eq!(
        toml::Value::try_from(policy()).unwrap().as_str(),
        Some("8 concurrent ttl 30s and 100/min")
    );
}

#[test]
fn an_error_in_a_file_shows_the_place_in_the_text_and_what_goes_there() {
    let wrong = "20/s brust 40";
    let reported = "expected `burst`, `refilled`, `initial`, `per`, `counting`, `and` or the end of the text, found `brust`; did you mean `burst`?\n  20/s brust 40\n       ^^^^^";
    let json = serde_json::from_str::<Policy>(&format!("{wrong:?}"))
        .unwrap_err()
        .to_string();
    assert_eq!(json, format!("{reported} at line 1 column 15"));
    let toml =
        toml::from_str::<std::collections::HashMap<String, Policy>>(&format!("api = {wrong:?}"))
            .unwrap_err()
            .to_string();
    assert!(toml.contains(reported), "{toml}");
}

#[test]
fn a_number_in_place_of_a_text_is_an_error() {
    let error = serde_json::from_str::<Rate>("100").unwrap_err().to_string();
    assert!(
        error.starts_with(
            "invalid type: integer `100`, expected a rate as text, such as \"100/min\""
        ),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn snapshots_and_decisions_are_serialized_as_their_numbers() {
    let limiter = Limiter::new("3 concurrent and 2/s").unwrap();
    let _two = limiter.try_acquire_many(2).unwrap();
    assert!(limiter.try_acquire().is_err());
    let snapshot = json!({
        "in_flight": 2, "concurrency": 3, "queued": 0, "granted": 1, "denied": 1, "shed": 0, "timed_out": 0, "reclaimed": 0,
        "refunded": 0, "paused_for_ns": null, "next_grant_in_ns": 500_000_000,
    });
    assert_eq!(serde_json::to_value(limiter.snapshot()).unwrap(), snapshot);
    let denied = json!({
        "allowed": false, "paused": false, "store_down": false, "limit": 2, "remaining": 0, "retry_after_ns": 500_000_000,
        "reset_after_ns": 1_000_000_000, "denied_by": "2/s", "denied_by_index": 1,
    });
    assert_eq!(serde_json::to_value(limiter.check(1)).unwrap(), denied);

    let keyed = KeyedLimiter::new("2/s").unwrap();
    assert!(keyed.penalize(&"eve", 2));
    let eve = json!({
        "used": 2, "limit": 2, "remaining": 0, "retry_after_ns": 500_000_000, "reset_after_ns": 1_000_000_000, "in_flight": 0,
        "queued": 0,
    });
    assert_eq!(
        serde_json::to_value(keyed.snapshot(&"eve").unwrap()).unwrap(),
        eve
    );
}

#[tokio::test(start_paused = true)]
async fn a_pause_without_an_end_fits_every_format() {
    let limiter = Limiter::new(MaxConcurrency::new(3)).unwrap();
    limiter.pause_for(Duration::MAX);
    let table = toml::Table::try_from(limiter.snapshot()).unwrap();
    assert_eq!(table["paused_for_ns"].as_integer(), Some(i64::MAX));
    assert!(
        !table.contains_key("next_grant_in_ns"),
        "only a resume helps"
    );
    assert_eq!(
        toml::Table::try_from(limiter.check(1)).unwrap()["paused"].as_bool(),
        Some(true)
    );
}
