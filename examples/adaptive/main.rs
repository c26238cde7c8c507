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
mod report;
mod server;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum, value_parser};
use common::{exit_code, say};
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
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = value_parser!(u32).range(1..=600))]
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
            (None, Rule::Gradient) => {
                MaxConcurrency::new(10).adapt(Adapt::gradient().between(4, 200))
            }
        }
    }

    /// The rule, as the headline of the drawing.
    fn headline(&self) -> &'static str {
        match (self.fixed, self.rule) {
            (Some(_), _) => "A fixed concurrency limit and a server whose capacity changes",
            (None, Rule::Aimd) => {
                "The rule aimd (additive increase, multiplicative decrease) follows a server"
            }
            (None, Rule::Gradient) => "The rule gradient (from latency) follows a server",
        }
    }

    /// What the rule does, and what the latency shows about it.
    fn caption(&self) -> &'static str {
        match (self.fixed, self.rule) {
            (Some(_), _) => {
                "It does not adapt: it is too low, or calls wait in the server's queue."
            }
            (None, Rule::Aimd) => {
                "The limit rises until the server's queue is full and it refuses a call. Its 40 places and its queue of 40 make latency \
                 twice what the work takes."
            }
            (None, Rule::Gradient) => {
                "The limit rises until calls take 1.5 times as long as when few are out; in the dips it measures that again."
            }
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    exit_code(run(&Options::parse()).await)
}

async fn run(options: &Options) -> Result<ExitCode, Box<dyn Error>> {
    let (limiter, limit) = (
        Limiter::new(options.concurrency())?,
        tollgate::Limit::from(options.concurrency()).to_string(),
    );
    let length = Duration::from_secs(options.seconds.into());
    say!("limit    {limit}");
    let run = callers::run(&limiter, options.callers, length).await?;
    report::print(&run);
    drawing::draw(
        &run,
        &limit,
        (options.headline(), options.caption()),
        &options.svg,
    )?;
    say!("drawing  {}", options.svg.display());
    Ok(ExitCode::SUCCESS)
}
