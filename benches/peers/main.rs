//! Compares tollgate with its peers on several workloads, interleaved in one run.
//!
//! ```text
//! cargo bench -p peers --bench peers               all workloads without a store, three to nine minutes: longer if W11 finds wrk, and on a slow machine; draws docs/benchmarks.svg and gaps.svg
//! cargo bench -p peers --bench peers -- W1 W3      some of them; draws in target/
//! cargo bench -p peers --bench peers --features quanta     also the cases with `fast_clock()`
//! cargo bench -p peers --bench peers -- W11        a layer in front of a service, and in front of a server if wrk is installed
//! scripts/servers cargo bench -p peers --bench peers --features redis -- W9     limits in Redis
//! scripts/servers cargo bench -p peers --bench peers --features postgres,mysql,sqlite -- W10     limits in databases; each feature alone works, too
//! scripts/servers cargo bench -p peers --bench peers --features redis -- W12    how processes share a limit, a minute and a half for each store
//! ```
//!
//! Absolute figures differ between machines and change from minute to minute; only ratios within one run are meaningful. So the
//! peers of a workload take turns in short batches, and a ratio is the median of the ratios of all rounds.

mod canvas;
mod contended;
mod decision;
mod drawing;
#[cfg(feature = "quanta")]
mod fast_clock;
mod flows;
mod gaps;
mod heap;
mod http;
mod http_server;
mod keyed;
mod memory;
mod rounds;
mod scatter;
mod services;
mod setup;
mod spans;
#[cfg(any(
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "sqlite"
))]
// No single store uses all of this module.
#[cfg_attr(
    not(all(
        feature = "mysql",
        feature = "postgres",
        feature = "redis",
        feature = "sqlite"
    )),
    allow(dead_code)
)]
mod stores;
mod stream;
mod table;
mod timing;
mod trace;
mod uncontended;
mod waiting;

use std::env;
use std::path::Path;

use crate::table::{Row, print};

#[global_allocator]
static HEAP: heap::Counting = heap::Counting;

type Workload = (&'static str, fn() -> Vec<Row>);

const WORKLOADS: &[Workload] = &[
    ("W1", uncontended::plain),
    ("W1", uncontended::kept),
    ("W2", uncontended::with_ttl),
    ("W3", contended::held_across_a_yield),
    ("W4", decision::one_decision),
    ("W4", decision::of_several_limits),
    #[cfg(feature = "quanta")]
    ("W4", fast_clock::one_decision),
    ("W5", keyed::one_decision),
    #[cfg(feature = "quanta")]
    ("W5", fast_clock::one_decision_of_a_key),
    ("W5", keyed::memory),
    ("W5", keyed::longest_call),
    ("W6", waiting::at_a_rate),
    ("W7", memory::per_waiter),
    ("W8", stream::per_item),
    ("W13", flows::waiting),
    ("W11", http::rows),
    #[cfg(feature = "quanta")]
    ("W11", fast_clock::a_layer),
    ("W11 wrk", http_server::rows),
];

/// They run only when they are named: most need a server.
const WORKLOADS_IN_STORES: &[Workload] = &[
    #[cfg(feature = "redis")]
    ("W9", stores::redis::rows),
    #[cfg(feature = "postgres")]
    ("W10 PostgreSQL", stores::postgres::rows),
    #[cfg(feature = "mysql")]
    ("W10 MariaDB", stores::mysql::rows),
    #[cfg(feature = "sqlite")]
    ("W10 SQLite", stores::sqlite::rows),
    #[cfg(feature = "redis")]
    ("W12", stores::shares::in_redis),
    #[cfg(feature = "postgres")]
    ("W12", stores::shares::in_postgres),
    #[cfg(feature = "mysql")]
    ("W12", stores::shares::in_mysql),
    #[cfg(feature = "sqlite")]
    ("W12", stores::shares::in_sqlite),
];

fn main() {
    let (flags, names): (Vec<_>, Vec<_>) =
        env::args().skip(1).partition(|arg| arg.starts_with("--"));
    #[cfg(any(
        feature = "mysql",
        feature = "postgres",
        feature = "redis",
        feature = "sqlite"
    ))]
    if let Some((stores::shares::REPLICA, arguments)) = names
        .split_first()
        .map(|(first, rest)| (first.as_str(), rest))
    {
        stores::shares::replica(arguments).expect("a process of a run");
        return;
    }
    // `cargo bench` passes `--bench`. `cargo test --all-targets` does not, and must not take minutes.
    if flags.is_empty() && names.is_empty() {
        println!("run as `cargo bench -p peers --bench peers`");
        return;
    }
    let is_wanted = |&&(name, _): &&Workload| {
        name.split(' ')
            .any(|part| names.iter().any(|wanted| part.eq_ignore_ascii_case(wanted)))
    };
    let wanted: Vec<_> = if names.is_empty() {
        WORKLOADS.iter().collect()
    } else {
        let all = WORKLOADS.iter().chain(WORKLOADS_IN_STORES);
        all.filter(is_wanted).collect()
    };
    let mut rows = Vec::new();
    for &(name, run) in wanted {
        eprintln!("{name} ...");
        rows.extend(run());
    }
    if rows.is_empty() {
        return; // W12 has printed a table of its own
    }
    print(&rows);
    let proportions: Vec<_> = rows
        .iter()
        .filter_map(|row| row.proportion.as_ref())
        .collect();
    let folder = if names.is_empty() { "docs" } else { "target" };
    // cargo runs a bench in the folder of its package.
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(folder);
    drawing::draw(&proportions, &path.join("benchmarks.svg")).expect("the drawing can be written");
    let gaps: Vec<_> = rows.iter().filter_map(|row| row.gaps.as_ref()).collect();
    gaps::draw(&gaps, &path.join("gaps.svg")).expect("the drawing can be written");
    eprintln!("drawn in {folder}");
}
