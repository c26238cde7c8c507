//! A random test that fails prints the one line that replays it:
//!
//! ```text
//! replay: TOLLGATE_REPLAY=5c… cargo test --workspace --all-features --test integration keyed::an_idle_key_and_an_active_one_agree --
//! --exact ```
//!
//! The value is the seed of the case that failed, before it was made smaller. With it, the test tries only that case. Tests that
//! draw from a fixed seed need no such line: each run of them is a replay.

use std::any::Any;
use std::fmt::Debug;
use std::{env, thread};

use proptest::test_runner::{Config, FailurePersistence, FileFailurePersistence, PersistedSeed};

const SEED: &str = "TOLLGATE_REPLAY";

/// The configuration of a random test that tries this many cases.
pub(crate) fn cases(cases: u32) -> Config {
    let replays = env::var_os(SEED).is_some();
    Config {
        failure_persistence: Some(Box::new(Replay::default())),
        // The same value as in proptest. For the 0 cases of a replay, proptest would set 0.
        max_shrink_iters: cases.saturating_mul(4),
        ..Config::with_cases(if replays { 0 } else { cases })
    }
}

/// Prints the line, and keeps failed cases in a file as proptest does by default.
#[derive(Debug, Clone, Default, PartialEq)]
struct Replay(FileFailurePersistence);

impl FailurePersistence for Replay {
    fn load_persisted_failures2(&self, source: Option<&'static str>) -> Vec<PersistedSeed> {
        match env::var(SEED) {
            Ok(seed) => match format!("cc {seed}").parse() {
                Ok(seed) => vec![seed],
                Err(()) => panic!("{SEED} is not a seed: {seed}"),
            },
            Err(_) => {
                let kept = self.0.load_persisted_failures2(source);
                if !kept.is_empty() {
                    eprintln!("{} # if a kept case fails", line(source, None));
                }
                kept
            }
        }
    }

    fn save_persisted_failure2(
        &mut self,
        source: Option<&'static str>,
        seed: PersistedSeed,
        smallest: &dyn Debug,
    ) {
        eprintln!("{}", line(source, Some(&seed)));
        self.0.save_persisted_failure2(source, seed, smallest);
    }

    fn box_clone(&self) -> Box<dyn FailurePersistence> {
        Box::new(self.clone())
    }

    fn eq(&self, other: &dyn FailurePersistence) -> bool {
        other.as_any().downcast_ref() == Some(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The line that replays this seed. Without a seed, it replays the kept cases, which a run tries first.
pub(crate) fn line(source: Option<&str>, seed: Option<&PersistedSeed>) -> String {
    let source = source.unwrap_or_default();
    let seed = seed.map_or_else(String::new, |seed| {
        format!("{SEED}={} ", seed.to_string().trim_start_matches("cc "))
    });
    let program = if source.starts_with("src/") {
        "--lib"
    } else {
        "--test integration"
    };
    let thread = thread::current();
    // If all tests share one thread, its name is no test's. Then the line replays the whole module.
    let tests = match thread.name() {
        Some(test) if test != "main" => format!("{test} -- --exact"),
        _ => module(source),
    };
    format!("replay: {seed}cargo test --workspace --all-features {program} {tests}")
}

/// The path of a module, from the path of its file.
pub(crate) fn module(source: &str) -> String {
    let path = source.trim_end_matches(".rs");
    let path = ["src/", "tests/integration/"]
        .iter()
        .find_map(|root| path.strip_prefix(root));
    path.unwrap_or_default().replace('/', "::")
}
