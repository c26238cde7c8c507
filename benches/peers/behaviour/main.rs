//! What happens in tollgate and in its peers when requests are large, cancelled, forgotten, many: the same programs, side by side.
//!
//! ```text
//! cargo bench -p peers --bench behaviour --features behaviour             all questions, about a minute
//! cargo bench -p peers --bench behaviour --features behaviour -- leak     some of them
//! ```
//!
//! It prints docs/behaviour.md's tables. A cell is computed from what happened in the run. Clocks are paused where the limiter follows
//! tokio's clock and time is not the question. The run fails if a guarantee of tollgate does not hold.

mod cancelled;
mod clock;
mod flood;
mod large;
mod leak;
mod limiters;
mod order;
mod polls;
mod rate;
mod replicas;
mod shares;
#[path = "../spans.rs"]
mod spans;
mod table;
mod tasks;

use std::env;
use std::fmt::Display;
use std::process::ExitCode;
use std::time::Instant;

use crate::table::{Row, print};

type Question = (&'static str, fn() -> Row);

const QUESTIONS: &[Question] = &[
    ("large", large::of_places),
    ("large", large::of_rates),
    ("order", order::of_places),
    ("order", order::of_rates),
    ("shares", shares::of_places),
    ("shares", shares::of_rates),
    ("polls", polls::of_places),
    ("polls", polls::of_rates),
    ("leak", leak::of_permits),
    ("leak", leak::of_waiting_for_places),
    ("leak", leak::of_waiting_for_rates),
    ("cancelled", cancelled::of_places),
    ("cancelled", cancelled::of_rates),
    ("cancelled", cancelled::after_its_unit_has_come),
    ("rate", rate::with_burst),
    ("rate", rate::without_burst),
    ("clock", clock::an_hour),
    ("flood", flood::of_places),
    ("flood", flood::of_rates),
    ("replicas", replicas::of_places),
    ("replicas", replicas::of_rates),
];

fn main() -> ExitCode {
    let mut arguments: Vec<String> = env::args().skip(1).collect();
    if arguments
        .first()
        .is_some_and(|first| first == replicas::REPLICA)
    {
        let report = replicas::replica(&arguments[1..]);
        return report.map_or_else(fail, |()| ExitCode::SUCCESS);
    }
    // `cargo bench` passes `--bench`. `cargo test --all-targets` does not, and must not take a minute.
    let is_bench = arguments.iter().any(|argument| argument == "--bench");
    arguments.retain(|argument| argument != "--bench");
    if !is_bench && arguments.is_empty() {
        println!("run as `cargo bench -p peers --bench behaviour --features behaviour`");
        return ExitCode::SUCCESS;
    }
    let is_known = |argument: &&String| QUESTIONS.iter().any(|(name, _)| name == *argument);
    if let Some(unknown) = arguments.iter().find(|argument| !is_known(argument)) {
        let mut names: Vec<_> = QUESTIONS.iter().map(|(name, _)| *name).collect();
        names.dedup();
        return fail(format!(
            "`{unknown}` is none of the questions: {}",
            names.join(", ")
        ));
    }
    let start = Instant::now();
    let mut rows = Vec::new();
    for (name, ask) in QUESTIONS {
        if arguments.is_empty() || arguments.iter().any(|wanted| wanted == name) {
            eprintln!("{name} ...");
            rows.push(ask());
        }
    }
    print(&rows);
    println!("{}", versions());
    eprintln!("{:.0} s", start.elapsed().as_secs_f64());
    ExitCode::SUCCESS
}

fn fail(error: impl Display) -> ExitCode {
    eprintln!("{error}");
    ExitCode::FAILURE
}

/// The versions that this program is compiled with.
fn versions() -> String {
    let lock = include_str!("../../../Cargo.lock");
    let version_of = |name: &str| {
        let package = format!("name = \"{name}\"\nversion = \"");
        let found = lock
            .split_once(&package)
            .and_then(|(_, rest)| rest.split_once('"'));
        format!("{name} {}", found.expect("it is in the lock file").0)
    };
    [
        "tollgate",
        "tokio",
        "tower",
        "governor",
        "leaky-bucket",
        "ratelimit",
    ]
    .map(version_of)
    .join(", ")
}
