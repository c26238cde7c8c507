//! A server that loses half its places, and later takes three times as long; a concurrency that finds out by itself.
//!
//! ```text
//! cargo run --release --example adaptive                        # additive increase, multiplicative decrease
//! cargo run --release --example adaptive -- --rule gradient     # from the latency alone
//! cargo run --release --example adaptive -- --fixed 20          # too few while it is well
//! cargo run --release --example adaptive -- --fixed 120         # too many, always
//! ```
//!
//! Callers always have work. Each takes a permit, calls the server, and reports how that went; the limiter knows nothing else of
//! the server. It ends with a table on standard output and a drawing in `target/adaptive.svg`.

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

/// Calls a server whose capacity changes, with a concurrency that follows it
#[derive(Debug, Parser)]
struct Options {
    /// How the limit moves
    #[arg(long, value_enum, default_value_t = Rule::Aimd)]
    rule: Rule,
    /// A limit that does not move
    #[arg(long, value_name = "N", conflicts_with = "rule")]
    fixed: Option<u64>,
    /// Callers, each of which makes one call after the other
    #[arg(long, value_name = "N", default_value_t = 120)]
    callers: usize,
    /// How long each of the five phases lasts
    #[arg(long, value_name = "SECONDS", default_value_t = 3)]
    seconds: u32,
    /// Where the drawing goes
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
}

#[tokio::main]
async fn main() {
    if let Err(error) = run(&Options::parse()).await {
        eprintln!("error: {error}");
        std::process::exit(2);
    }
}

async fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let limiter = Limiter::new(options.concurrency())?;
    let length = Duration::from_secs(options.seconds.max(1).into());
    println!("limit    {}", tollgate::Limit::from(options.concurrency()));
    let run = callers::run(&limiter, options.callers, length).await?;
    report::print(&run);
    drawing::draw(&run, &tollgate::Limit::from(options.concurrency()).to_string(), &options.svg)?;
    println!("drawing  {}", options.svg.display());
    Ok(())
}
