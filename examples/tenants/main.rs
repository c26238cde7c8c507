//! Three tenants share a limiter: `flood` keeps hundreds of requests waiting, `gold` has weight 3, and `late` arrives halfway. Each of
//! two limits is shared twice. Before: requests have no flow and wait in order of arrival. After: each tenant is a flow.
//!
//! ```text
//! cargo run --example tenants
//! cargo run --example tenants -- --flood 5000    # before, the others get still less; after, nothing changes
//! ```
//!
//! The example runs in virtual time, by tokio's paused clock. So it takes a moment, and each run prints the same numbers. The request
//! with its flow is in `load.rs`.
//!
//! It prints a table for each limit and writes a drawing to `target/tenants.svg`. The exit code is 0 when the tenants shared fairly
//! after, 1 when they did not, and 2 when something else failed.

mod drawing;
mod load;
mod report;
mod shares;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, value_parser};
use common::{exit_code, say};

use crate::load::{LIMITS, Order};

/// Shares a limiter between three tenants, without flows and with them
#[derive(Debug, Parser)]
struct Options {
    /// Requests that `flood` makes at the same time
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = value_parser!(u64).range(100..=20_000))]
    flood: u64,
    /// File for the drawing
    #[arg(long, value_name = "FILE", default_value = "target/tenants.svg")]
    svg: PathBuf,
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> ExitCode {
    exit_code(run(&Options::parse()).await)
}

async fn run(options: &Options) -> Result<ExitCode, Box<dyn Error>> {
    let tenants = load::tenants(options.flood);
    let (mut pairs, mut unfair) = (Vec::new(), None);
    for limit in LIMITS {
        let before = load::run(limit, tenants, Order::Arrival).await?;
        let after = load::run(limit, tenants, Order::Flows).await?;
        report::print(&before, &after);
        unfair = unfair.or_else(|| after.unfair());
        pairs.push([before, after]);
    }
    drawing::draw(&pairs, &options.svg)?;
    say!("drawing  {}", options.svg.display());
    Ok(match unfair {
        None => ExitCode::SUCCESS,
        Some(unfair) => {
            eprintln!("error: {unfair}");
            ExitCode::FAILURE
        }
    })
}
