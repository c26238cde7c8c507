//! Inputs that the fuzzers of `fuzz/` have found, run through the same checks. `scripts/fuzz` looks for more.

use std::panic::catch_unwind;

mod checks;

#[track_caller]
fn replay(corpus: &str, check: fn(&[u8])) {
    let inputs: Vec<_> = checks::inputs(corpus).collect();
    assert!(inputs.len() > 40, "{} inputs", inputs.len());
    let failed: Vec<_> = inputs
        .iter()
        .filter(|input| catch_unwind(|| check(input)).is_err())
        .collect();
    let failed: Vec<_> = failed
        .into_iter()
        .map(|input| input.escape_ascii().to_string())
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn addresses_are_found_in_any_bytes() {
    replay(include_str!("fuzzed/client_ip.txt"), checks::client_ip);
}

#[test]
fn fields_are_merged_with_any_bytes() {
    replay(include_str!("fuzzed/merged.txt"), checks::merged);
}

#[test]
fn policies_are_read_from_any_bytes() {
    replay(include_str!("fuzzed/policy.txt"), checks::policy);
}

#[test]
fn upstreams_are_read_from_any_bytes() {
    replay(include_str!("fuzzed/upstream.txt"), checks::upstream);
}

#[test]
fn the_corpus_of_upstreams_has_every_field() {
    let corpus = include_str!("fuzzed/upstream.txt");
    let missing: Vec<_> = checks::fields_without_input(corpus).collect();
    assert!(
        missing.is_empty(),
        "tests/integration/fuzzed/upstream.txt lacks {}",
        missing.join(", ")
    );
}

#[test]
fn a_corpus_can_hold_any_bytes() {
    let bytes: Vec<u8> = (0..=255).collect();
    let corpus = format!("{}\n\n{}\n", bytes.escape_ascii(), b"\\x".escape_ascii());
    assert_eq!(
        checks::inputs(&corpus).collect::<Vec<_>>(),
        [bytes, Vec::new(), b"\\x".to_vec()]
    );
}
