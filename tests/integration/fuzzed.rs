//! Inputs that the fuzzers of `fuzz/` have found, run through the same checks. `scripts/fuzz` looks for more.

use corpus::{inputs, replay};

mod checks;
mod corpus;

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
fn clients_are_identified_by_any_bytes() {
    replay(include_str!("fuzzed/identity.txt"), checks::identity);
}

#[test]
fn fields_are_written_of_any_policy() {
    replay(include_str!("fuzzed/written.txt"), checks::written);
}

#[test]
fn the_corpus_of_upstreams_has_every_field() {
    let inputs = inputs(include_str!("fuzzed/upstream.txt"));
    let missing: Vec<_> = checks::fields_without_input(inputs).collect();
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
        inputs(&corpus).collect::<Vec<_>>(),
        [bytes, Vec::new(), b"\\x".to_vec()]
    );
}
