//! A reqwest client under an `OutboundLayer`: it keeps to a limit for each host, and pauses when the host denies.
//!
//! ```text
//! cargo run --example reqwest_layer
//! ```

use std::error::Error;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Instant;

use axum::Router;
use axum::http::Response;
use clap::Parser;
use common::say;
use tokio::net::TcpListener;
use tollgate::KeyedLimiter;
use tollgate::layers::OutboundLayer;

/// Sends requests through a client of reqwest that keeps to a limit for each host, to a server that denies one of them
#[derive(Debug, Parser)]
struct Options {}

/// A server that denies its third request.
async fn serve(listener: TcpListener) {
    static REQUESTS: AtomicU32 = AtomicU32::new(0);
    let answer = async || match REQUESTS.fetch_add(1, Relaxed) {
        2 => Response::builder()
            .status(429)
            .header("retry-after", "1")
            .body(String::new()),
        _ => Response::builder().body("hello".to_owned()),
    };
    let app = Router::new().fallback(move || async move { answer().await.unwrap_or_default() });
    axum::serve(listener, app).await.unwrap_or_default();
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    Options::parse();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let uri = format!("http://{}/", listener.local_addr()?);
    tokio::spawn(serve(listener));

    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .build()?;
    let limited = OutboundLayer::by_host(KeyedLimiter::new("8 concurrent")?)
        .retry(1)
        .reqwest(client.clone());

    let start = Instant::now();
    for _ in 0..4 {
        let response = limited.execute(client.get(&uri).build()?).await?;
        say!(
            "{:>5} ms  {}  {}",
            start.elapsed().as_millis(),
            response.status(),
            response.text().await?
        );
    }
    Ok(())
}
