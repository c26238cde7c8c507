//! How the cost of one operation grows with the number of waiters, keys, flows, limits and callers.
//!
//! ```text
//! cargo bench -p peers --bench growth                       all, a minute, or two on a busy machine
//! cargo bench -p peers --bench growth -- waiters keys       some of them
//! ```
//!
//! It prints a table, and draws target/growth.svg. The figures are medians. Peers are measured at the same sizes: what grows for
//! them too, such as the time in which memory answers, is not the limiter's. `examples/simulation` draws how the calls of replicas
//! grow, up to a thousand of them.

mod callers;
#[path = "../canvas.rs"]
mod canvas;
mod curve;
mod drawing;
mod flows;
#[path = "../heap.rs"]
mod heap;
mod keys;
mod limits;
mod line;
#[path = "../scatter.rs"]
mod scatter;
#[path = "../timing.rs"]
mod timing;
mod waiters;

use std::env;
use std::fmt::Display;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use crate::curve::{Chart, bytes, print};

#[global_allocator]
static HEAP: heap::Counting = heap::Counting;

type Quantity = (&'static str, fn() -> Chart);

const QUANTITIES: [Quantity; 5] = [
    ("waiters", waiters::chart),
    ("keys", keys::chart),
    ("flows", flows::chart),
    ("limits", limits::chart),
    ("callers", callers::chart),
];

fn main() -> ExitCode {
    let (flags, wanted): (Vec<_>, Vec<_>) =
        env::args().skip(1).partition(|arg| arg.starts_with("--"));
    // `cargo bench` passes `--bench`. `cargo test --all-targets` does not, and must not take minutes.
    if flags.is_empty() && wanted.is_empty() {
        println!("run as `cargo bench -p peers --bench growth`");
        return ExitCode::SUCCESS;
    }
    let names = QUANTITIES.map(|(name, _)| name);
    if let Some(unknown) = wanted.iter().find(|name| !names.contains(&name.as_str())) {
        return fail(format!(
            "`{unknown}` is none of the quantities: {}",
            names.join(", ")
        ));
    }
    let start = Instant::now();
    let mut charts = Vec::new();
    for (name, measure) in QUANTITIES {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            eprintln!("{name} ...");
            charts.push(measure());
        }
    }
    let heap = bytes(&mut charts);
    charts.extend(heap);
    print(&charts);
    eprintln!("{:.0} s", start.elapsed().as_secs_f64());
    // cargo runs a bench in the folder of its package.
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/growth.svg");
    match drawing::draw(&charts, &path) {
        Ok(()) => {
            eprintln!("drawn in target/growth.svg");
            ExitCode::SUCCESS
        }
        Err(error) => fail(format!("cannot draw {}: {error}", path.display())),
    }
}

fn fail(error: impl Display) -> ExitCode {
    eprintln!("{error}");
    ExitCode::FAILURE
}
