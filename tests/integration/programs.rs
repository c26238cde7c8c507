//! Programs of a first hour: each is at most 50 lines, and needs no code that this crate should have. That of tonic is in
//! `tests/clients`.

use std::fs;
use std::path::Path;

#[cfg(feature = "serde")]
mod administration;
#[cfg(feature = "http")]
mod crawler;
#[cfg(feature = "sqlite")]
mod database_pool;
#[cfg(feature = "http")]
mod model_client;
mod pipeline;
#[cfg(feature = "redis")]
mod replicas;
mod tenants;
#[cfg(feature = "http")]
mod tiers;
mod workers;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Blank lines and comments do not count.
#[test]
fn each_program_has_at_most_50_lines() {
    let is_code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
    let mut programs = 0;
    for folder in ["tests/integration/programs", "tests/clients/src/programs"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        // The package on crates.io has no folder of clients.
        for file in fs::read_dir(folder).into_iter().flatten() {
            let path = file.unwrap().path();
            let lines = fs::read_to_string(&path).unwrap();
            let lines = lines.lines().filter(is_code).count();
            assert!(lines <= 50, "{} has {lines} lines", path.display());
            programs += 1;
        }
    }
    assert!(programs >= 9);
}
