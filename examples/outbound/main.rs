//! Fetches URLs with a limited concurrency and a limited rate, and draws what happened. Without URLs it fetches the pages of a web
//! server of its own, first without limits and then with them: before and after.
//!
//! ```text
//! cargo run --example outbound                      # 2,000 pages: a storm of 429s without limits, and none with them
//! cargo run --example outbound -- --unlimited       # only the storm
//! cargo run --example outbound -- urls.txt          # one URL a line
//! grep -o 'https://[^"]*' page.html | cargo run --example outbound -- --rate 5 -
//! ```
//!
//! It prints a table and writes a drawing to `target/outbound.svg`. The exit code is 0 when every page was fetched, 1 when some
//! were not, and 2 when it could not start or draw.

mod drawing;
mod fetch;
mod options;
mod progress;
mod record;
mod report;
mod server;
mod urls;

use std::error::Error;
use std::process::ExitCode;

use clap::Parser as _;
use common::{exit_code, say};
use reqwest::Client;
use tollgate::Limiter;

use crate::options::Options;
use crate::progress::Progress;
use crate::record::Run;

#[tokio::main]
async fn main() -> ExitCode {
    exit_code(run(Options::parse()).await)
}

async fn run(options: Options) -> Result<ExitCode, Box<dyn Error>> {
    let mut runs = Vec::new();
    if options.input.is_none() && !options.unlimited {
        runs.push(
            fetch(Options {
                unlimited: true,
                ..options.clone()
            })
            .await?,
        );
    }
    runs.push(fetch(options).await?);
    if runs
        .iter()
        .all(|run| run.records.is_empty() && run.unsent == 0)
    {
        say!("nothing to fetch");
        return Ok(ExitCode::SUCCESS);
    }
    report::print(&runs);
    if runs.iter().any(|run| !run.records.is_empty()) {
        say!("drawing          {}", drawing::draw(&runs)?.display());
    }
    Ok(if runs.iter().all(Run::all_well) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Fetches all URLs under the limits that the options name.
async fn fetch(options: Options) -> Result<Run, Box<dyn Error>> {
    // The drawing needs the time of each grant. A limiter of concurrency alone records it only on request.
    let limiter = Limiter::builder(options.policy())
        .name("outbound")
        .record_grant_time()
        .build()?;
    // The only provider of TLS that is compiled in. In the second run it is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut client = Client::builder()
        .user_agent("tollgate-outbound")
        .timeout(options.timeout);
    let urls = match &options.input {
        Some(input) => urls::read(input)?,
        None => {
            client = client.no_proxy().tls_certs_only([]); // the server is local: a proxy or missing certificates must not matter
            server::start(options.pages).await?
        }
    };
    let client = client.build().map_err(|error| {
        format!(
            "cannot set up the HTTP client: {}",
            fetch::root_cause(&error)
        )
    })?;
    let progress = Progress::new(urls.len());
    let run = fetch::all(urls, &limiter, &client, options, &progress).await;
    progress.finish();
    Ok(run)
}
