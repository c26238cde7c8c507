//! The web server to fetch from when no URLs are given. It answers 429 to requests above its limits. Its limiter and the client's
//! do not know each other.

use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use reqwest::Url;
use tokio::net::TcpListener;
use tollgate::{Limiter, MaxConcurrency, Policy, Throttle, TryAcquireError};

/// 200 a second and 8 at once, the same as the client's default limits, but with a larger burst. The network can deliver requests
/// late and several together: the burst of 10 of such a client then arrives together with the 8 requests that are on their way.
/// With a burst of 20, the server never refuses a client that keeps these limits.
fn limits() -> Policy {
    MaxConcurrency::new(8).and(Throttle::every(Duration::from_millis(5)).burst(20))
}

/// Serves on a free local port until the program ends. Returns the URL of each page.
pub(crate) async fn start(
    pages: usize,
) -> Result<Vec<Result<Url, String>>, Box<dyn std::error::Error>> {
    let listener = TcpListener::bind(("127.0.0.1", 0))
        .await
        .map_err(|error| format!("cannot serve on 127.0.0.1: {error}"))?;
    let home = Url::parse(&format!("http://{}/", listener.local_addr()?))?;
    let limiter = Limiter::builder(limits()).name("server").build()?;
    tokio::spawn(async {
        axum::serve(
            listener,
            Router::new()
                .route("/pages/{page}", get(page))
                .with_state(limiter),
        )
        .await
    });
    Ok((0..pages)
        .map(|page| {
            home.join(&format!("pages/{page}"))
                .map_err(|error| error.to_string())
        })
        .collect())
}

async fn page(State(limiter): State<Limiter>, Path(page): Path<u64>) -> Response {
    // Dropped before the answer is sent, so that the place is free when the client gets the answer.
    let _permit = match limiter.try_acquire() {
        Ok(permit) => permit,
        Err(error) => return refusal(&error),
    };
    tokio::time::sleep(latency(page)).await;
    format!("This is page {page}.\n").into_response()
}

fn refusal(error: &TryAcquireError) -> Response {
    let TryAcquireError::Denied(decision) = error else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    // The header has whole seconds. There is no retry-after when it takes a release; then a second is a guess.
    let seconds = decision
        .retry_after()
        .map_or(1, |after| after.as_nanos().div_ceil(1_000_000_000));
    (
        StatusCode::TOO_MANY_REQUESTS,
        [(header::RETRY_AFTER, seconds.to_string())],
        decision.to_string(),
    )
        .into_response()
}

/// How long a page takes: 5 to 60 ms, the same in every run. The mean is a little less than 40 ms, at which 8 at once would be 200
/// a second. So sometimes the rate limits the client, and sometimes the concurrency.
fn latency(page: u64) -> Duration {
    // The finalizer of splitmix64, so that neighbouring pages differ.
    let mut hash = page.wrapping_add(0x9e37_79b9_7f4a_7c15);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    Duration::from_millis(5 + (hash ^ (hash >> 31)) % 56)
}
