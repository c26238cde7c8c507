//! A concurrency limit that follows a server, which loses half its places and later takes three times as long for each call.
//!
//! ```text
//! cargo run --example adaptive                        # additive increase, multiplicative decrease
//! cargo run --example adaptive -- --rule gradient     # from latency: needs no refusals
//! cargo run --example adaptive -- --fixed 20          # does not adapt: too low while the server is well
//! cargo run --example adaptive -- --fixed 120         # does not adapt: always too high
//! ```
//!
//! The callers always have work. Each acquires a permit, calls the server and reports the outcome. The limiter knows nothing else
//! about the server. The example prints a table and writes a drawing to `target/adaptive.svg`.

mod callers;
mod drawing;
#[path = "../plot/mod.rs"]
mod plot;
mod report;
mod server;

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use tollgate::{Adapt, Limiter, MaxConcurrency};

/// Calls a server whose capacity changes, with a concurrency limit that follows it
#[derive(Debug, Parser)]
struct Options {
    /// The rule by which the limit adapts
    #[arg(long, value_enum, default_value_t = Rule::Aimd)]
    rule: Rule,
    /// A limit that does not adapt
    #[arg(long, value_name = "N", conflicts_with = "rule")]
    fixed: Option<u64>,
    /// Callers, each of which makes one call after the other
    #[arg(long, value_name = "N", default_value_t = 120)]
    callers: usize,
    /// How long each of the five phases lasts
    #[arg(long, value_name = "SECONDS", default_value_t = 3)]
    seconds: u32,
    /// The file for the drawing
    #[arg(long, value_name = "FILE", default_value = "target/adaptive.svg")]
    svg: PathBuf,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Rule {
    Aimd,
    Gradient,
}

impl Options {
    fn concurrency(&self) -> MaxConcurrency {
        match (self.fixed, self.rule) {
            (Some(limit), _) => MaxConcurrency::new(limit),
            (None, Rule::Aimd) => MaxConcurrency::new(10).adapt(Adapt::aimd().between(4, 200)),
            (None, Rule::Gradient) => MaxConcurrency::new(10).adapt(Adapt::gradient().between(4, 200)),
        }
    }

    /// What the limit does, as a title of its chart.
    fn title(&self) -> &'static str {
        match (self.fixed, self.rule) {
            (Some(_), _) => "Limit: fixed",
            (None, Rule::Aimd) => "Limit: rises until the server refuses a call, which it does when its queue is full",
            (None, Rule::Gradient) => {
                "Limit: rises until calls take 1.5 times as long as when few are out; the dips measure that"
            }
        }
    }
}

#[tokio::main]
async fn main() {
    if let Err(error) = run(&Options::parse()).await {
        eprintln!("error: {error}");
        std::process::exit(2);
    }
}

async fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let (limiter, limit) = (Limiter::new(options.concurrency())?, tollgate::Limit::from(options.concurrency()).to_string());
    let length = Duration::from_secs(options.seconds.max(1).into());
    println!("limit    {limit}");
    let run = callers::run(&limiter, options.callers, length).await?;
    report::print(&run);
    drawing::draw(&run, &limit, options.title(), &options.svg)?;
    println!("drawing  {}", options.svg.display());
    Ok(())
}
