//! Policies in configuration files.

use std::time::Duration;

use tollgate::{Limit, MaxConcurrency, Policy, Rate, TokenBucket};

fn policy() -> Policy {
    let slots = MaxConcurrency::new(8).ttl(Duration::from_secs(30));
    Policy::from(slots).and(TokenBucket::new(Rate::per_minute(100), 100))
}

#[test]
fn a_policy_is_its_text_in_json() {
    let text = r#""8 concurrent ttl 30s and 100/min""#;
    assert_eq!(serde_json::to_string(&policy()).unwrap(), text);
    assert_eq!(serde_json::from_str::<Policy>(text).unwrap(), policy());
    assert_eq!(serde_json::from_value::<Policy>(text.trim_matches('"').into()).unwrap(), policy());
    assert_eq!(serde_json::to_string(&Rate::per_hour(5_000)).unwrap(), r#""5000/h""#);
    assert_eq!(serde_json::from_str::<Rate>(r#""5000/h""#).unwrap(), Rate::per_hour(5_000));
}

#[test]
fn a_policy_is_its_text_in_toml() {
    let file: toml::Table = toml::from_str("[limits]\napi = '8 concurrent ttl 30s and 100/min'\nlogin = '3 concurrent'").unwrap();
    let limits = &file["limits"];
    assert_eq!(limits["api"].clone().try_into::<Policy>().unwrap(), policy());
    assert_eq!(limits["login"].clone().try_into::<Limit>().unwrap(), MaxConcurrency::new(3).into());
    assert_eq!(toml::Value::try_from(policy()).unwrap().as_str(), Some("8 concurrent ttl 30s and 100/min"));
}

#[test]
fn a_wrong_file_is_told_the_place_in_the_text_and_what_goes_there() {
    let wrong = "20/s brust 40";
    let told = "expected `burst`, `refilled`, `initial`, `and` or the end of the text, found `brust`; did you mean `burst`?\n  20/s brust 40\n       ^^^^^";
    let json = serde_json::from_str::<Policy>(&format!("{wrong:?}")).unwrap_err().to_string();
    assert_eq!(json, format!("{told} at line 1 column 15"));
    let toml = toml::from_str::<std::collections::HashMap<String, Policy>>(&format!("api = {wrong:?}")).unwrap_err().to_string();
    assert!(toml.contains(told), "{toml}");
}

#[test]
fn a_number_is_told_to_be_text() {
    let error = serde_json::from_str::<Rate>("100").unwrap_err().to_string();
    assert!(error.starts_with("invalid type: integer `100`, expected a rate as text, such as \"100/min\""), "{error}");
}
