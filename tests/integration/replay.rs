//! The line that replays a failed random test.

use crate::common::replay::{line, module};

#[test]
fn the_line_names_the_program_the_test_and_the_seed() {
    let text = "cc 07000000000000000000000000000000000000000000000000000000000000ff";
    let line = line(
        Some("src/keyed/probing/tests.rs"),
        Some(&text.parse().unwrap()),
    );
    let seed = &text["cc ".len()..];
    let begin =
        format!("replay: TOLLGATE_REPLAY={seed} cargo test --workspace --all-features --lib ");
    let tests = line.strip_prefix(&begin).unwrap();
    assert!(tests.ends_with(" -- --exact") || tests == "keyed::probing::tests");
}

#[test]
fn a_module_has_the_path_of_its_file() {
    let paths = [
        (
            "src/core/queue/untaken_answers.rs",
            "core::queue::untaken_answers",
        ),
        (
            "tests/integration/shared_faults/bad_replies.rs",
            "shared_faults::bad_replies",
        ),
        ("", ""),
    ];
    assert!(paths.iter().all(|(file, path)| module(file) == *path));
}
