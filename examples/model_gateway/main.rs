//! Calls to a model within slots, requests and tokens a minute, as one policy. How many tokens a call uses is known only from its
//! answer: a call reserves an estimate, the tokens of its prompt and the longest answer that it asks for.
//!
//! ```text
//! cargo run --example model_gateway                            # a "minute" of 2 s, for 10 s
//! cargo run --example model_gateway -- --estimate 500          # reserves less; a longer answer is a debt
//! cargo run --example model_gateway -- --provider-tokens 5000  # the provider allows less than the policy: 429s
//! ```
//!
//! Two gateways run at the same time, each with a provider and a limiter of its own. The first keeps to the estimate. The second
//! settles each permit at the usage that the answer reports, and so makes three times as many calls within the same policy.
//!
//! It prints a table and writes a drawing to `target/model_gateway.svg`. The exit code is 0 when the provider answered no call
//! with 429, 1 when it did, and 2 when something else failed.

mod drawing;
mod gateway;
mod options;
mod provider;
mod report;

use std::error::Error;
use std::process::ExitCode;

use clap::Parser as _;
use common::{Human, exit_code, say};
use tollgate::Limiter;

use crate::options::Options;

#[tokio::main]
async fn main() -> ExitCode {
    exit_code(run(&Options::parse()).await)
}

async fn run(options: &Options) -> Result<ExitCode, Box<dyn Error>> {
    options.refuse_long_waits()?;
    let [first, second] = [
        Limiter::new(options.policy())?,
        Limiter::new(options.policy())?,
    ];
    say!("{}", options.policy());
    say!(
        "{} tasks, {}, two gateways\n",
        options.tasks,
        Human(options.run)
    );
    let (kept, settled) = tokio::try_join!(
        gateway::run(options, first, false),
        gateway::run(options, second, true)
    )?;
    report::print(&kept, &settled);
    drawing::draw(&kept, &settled, options)?;
    say!("{:<20}{}", "drawing", options.svg.display());
    Ok(if kept.refused + settled.refused == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// A number from 0 to 1 that looks random: the same for the same seed and index. It is the finalizer of splitmix64.
fn random(seed: u64, index: u64) -> f64 {
    let mut hash = seed.wrapping_add((index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (hash ^ (hash >> 31)) as f64 / u64::MAX as f64
}

/// The number behind the first `"field":` of a JSON text. That is enough here, and the examples compile no JSON parser for it.
fn number(json: &str, field: &str) -> Option<u64> {
    let (_, value) = json.split_once(&format!("\"{field}\":"))?;
    let value = value.trim_start();
    value[..value.find(|char: char| !char.is_ascii_digit())?]
        .parse()
        .ok()
}
