//! Fetches URLs with a limited concurrency and a limited rate, and draws what happened.
//!
//! ```text
//! cargo run --example outbound                      # 2,000 pages of a web server of its own
//! cargo run --example outbound -- --unlimited       # the same without limits: a storm of 429s
//! cargo run --example outbound -- urls.txt          # one URL a line
//! grep -o 'https://[^"]*' page.html | cargo run --example outbound -- --rate 5 -
//! ```
//!
//! It prints a table and writes a drawing to `target/outbound.svg`. The exit code is 0 when every page was fetched, 1 when some
//! were not, and 2 when it could not start or draw.

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
    // The drawing needs the time of each grant. A limiter of concurrency alone records it only on request.
    let limiter = Limiter::builder(options.policy()).name("outbound").record_grant_time().build()?;
    // The only provider of TLS that is compiled in; so this can fail only when it was done before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut client = Client::builder().user_agent("tollgate-outbound").timeout(options.timeout);
    let urls = match &options.input {
        Some(input) => urls::read(input)?,
        None => {
            client = client.no_proxy().tls_certs_only([]); // the server is local: a proxy or missing certificates must not matter
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
