//! Fetches URLs with bounded concurrency and a bounded pace, and draws what happened.
//!
//! ```text
//! cargo run --release --example outbound                      # its own web server, 2,000 pages
//! cargo run --release --example outbound -- --unlimited       # the same without limits: a storm of 429s
//! cargo run --release --example outbound -- urls.txt          # one URL a line
//! grep -o 'https://[^"]*' page.html | cargo run --release --example outbound -- --rate 5 -
//! ```
//!
//! It ends with a table on standard output and a drawing in `target/outbound.svg`. The exit code is 0 when every page came,
//! 1 when some did not, 2 when it could not start or draw.

mod drawing;
mod fetch;
mod options;
#[path = "../plot/mod.rs"]
mod plot;
mod progress;
mod record;
mod report;
mod server;
mod urls;

use std::error::Error;
use std::process::ExitCode;

use clap::Parser as _;
use reqwest::Client;
use tollgate::Limiter;

use crate::options::Options;
use crate::progress::Progress;

#[tokio::main]
async fn main() -> ExitCode {
    match run(&Options::parse()).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

async fn run(options: &Options) -> Result<ExitCode, Box<dyn Error>> {
    // Stamped, because the drawing wants to know when each permit was granted, and pure concurrency reads no clock.
    let limiter = Limiter::builder(options.policy()).name("outbound").record_grant_time().build()?;
    let mut client = Client::builder().user_agent("tollgate-outbound").timeout(options.timeout);
    let urls = match &options.input {
        Some(input) => urls::read(input)?,
        None => {
            client = client.no_proxy().tls_certs_only([]); // neither is needed, so neither may be in the way
            server::start(options.pages).await?
        }
    };
    let client = client.build().map_err(|error| format!("cannot set up the HTTP client: {}", fetch::root_cause(&error)))?;
    if urls.is_empty() {
        println!("nothing to fetch");
        return Ok(ExitCode::SUCCESS);
    }

    let progress = Progress::new(urls.len());
    let run = fetch::all(urls, &limiter, &client, options, &progress).await;
    progress.finish();

    report::print(&run, options);
    if !run.records.is_empty() {
        drawing::draw(&run, options)?;
        println!("drawing           {}", options.svg.display());
    }
    Ok(if run.all_well(options) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
