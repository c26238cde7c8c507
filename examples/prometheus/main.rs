//! Numbers of limiters for Prometheus: an endpoint that is scraped, and callers that keep a few limiters busy.
//!
//! ```text
//! cargo run --example prometheus --features prometheus              # http://127.0.0.1:9184/metrics, until it is interrupted
//! cargo run --example prometheus --features prometheus -- --once    # prints one scrape
//! ```
//!
//! `search` is a limiter whose callers wait, and sometimes hold a permit for longer than its TTL; `users` is keyed, and denies; `model`
//! adapts its limit; `payments` is shared, and its store is away for a second out of ten.
//!
//! Each scrape reads the snapshots of the limiters first, because grants are not events. A scrape job for a Prometheus:
//!
//! ```text
//! scrape_configs:
//!   - job_name: tollgate
//!     scrape_interval: 5s
//!     static_configs: [{ targets: ["127.0.0.1:9184"] }]
//! ```
//!
//! Import `docs/grafana-dashboard.json` in a Grafana to see them. The exit code is 0, or 2 with one line when something failed.

mod load;

use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use clap::Parser;
use common::{exit_code, say, seconds};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::net::TcpListener;
use tollgate::telemetry::MetricsReporter;

use crate::load::Limiters;

/// Bounds of the histogram of waits, in seconds. Without them it would be a summary.
const BUCKETS: [f64; 10] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

/// Serves numbers of busy limiters to Prometheus
#[derive(Debug, Parser)]
struct Options {
    /// Where to serve
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9184")]
    listen: SocketAddr,
    /// Prints one scrape instead
    #[arg(long)]
    once: bool,
    /// How long the limiters are used before that scrape
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds, requires = "once")]
    run: Duration,
}

/// Answers scrapes.
struct Exporter {
    reporter: MetricsReporter,
    recorder: PrometheusHandle,
}

impl Exporter {
    fn scrape(&self) -> String {
        self.reporter.report();
        self.recorder.render()
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    exit_code(run(&Options::parse()).await)
}

async fn run(options: &Options) -> Result<ExitCode, Box<dyn Error>> {
    // The recorder is installed first: descriptions that are made before that are lost.
    let waits = Matcher::Full("tollgate_wait_seconds".to_owned());
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(waits, &BUCKETS)?
        .install_recorder()?;
    let limiters = Limiters::new()?;
    let reporter = MetricsReporter::new()
        .limiter(&limiters.search)
        .limiter(&limiters.model)
        .keyed(&limiters.users)
        .shared(&limiters.payments);
    let exporter = Arc::new(Exporter { reporter, recorder });
    if options.once {
        limiters.use_all();
        tokio::time::sleep(options.run).await;
        say!("{}", exporter.scrape().trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    let listener = TcpListener::bind(options.listen).await;
    let listener =
        listener.map_err(|error| format!("cannot serve on {}: {error}", options.listen))?;
    limiters.use_all();
    say!("http://{}/metrics", listener.local_addr()?);
    let scrape = move || async move {
        (
            [(CONTENT_TYPE, "text/plain; version=0.0.4")],
            exporter.scrape(),
        )
    };
    axum::serve(listener, Router::new().route("/metrics", get(scrape))).await?;
    Ok(ExitCode::SUCCESS)
}
