//! The service to fetch from when no URLs are given: slow in places, and strict. Its limiter is its own; it knows nothing of
//! the client's.

use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use reqwest::Url;
use tokio::net::TcpListener;
use tollgate::{Limiter, MaxConcurrency, Policy, Throttle, TryAcquireError};

/// 200 a second and 8 at once, the client's default limits. The burst makes up for the network, which delivers late and then
/// several together: a client that keeps to 200 a second with a burst of 10 and to 8 at once can have 8 under way besides the
/// 10 of its burst. So 18 is enough however slow the network is, and no such client is ever turned away.
fn limits() -> Policy {
    Policy::from(MaxConcurrency::new(8)).and(Throttle::every(Duration::from_millis(5)).burst(20))
}

/// Serves on a free port of the loopback until the program ends. Returns the address of every page.
pub(crate) async fn start(pages: usize) -> Result<Vec<Result<Url, String>>, Box<dyn std::error::Error>> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(|error| format!("cannot serve on 127.0.0.1: {error}"))?;
    let home = Url::parse(&format!("http://{}/", listener.local_addr()?))?;
    let limiter = Limiter::builder(limits()).name("server").build()?;
    tokio::spawn(async { axum::serve(listener, Router::new().route("/pages/{page}", get(page)).with_state(limiter)).await });
    Ok((0..pages).map(|page| home.join(&format!("pages/{page}")).map_err(|error| error.to_string())).collect())
}

async fn page(State(limiter): State<Limiter>, Path(page): Path<u64>) -> Response {
    // Dropped when this function ends, before the answer is sent: when the client sees the answer, its place is free.
    let _permit = match limiter.try_acquire() {
        Ok(permit) => permit,
        Err(error) => return refusal(&error),
    };
    tokio::time::sleep(latency(page)).await;
    format!("This is page {page}.\n").into_response()
}

fn refusal(error: &TryAcquireError) -> Response {
    let TryAcquireError::Denied(decision) = error else { return StatusCode::SERVICE_UNAVAILABLE.into_response() };
    // The header counts whole seconds. The limiter knows no time when it takes a release: then a second is as good as any.
    let seconds = decision.retry_after().map_or(1, |after| after.as_nanos().div_ceil(1_000_000_000));
    (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, seconds.to_string())], decision.to_string()).into_response()
}

/// 5 to 60 ms, the same for a page in every run. Their mean is just short of 40 ms, at which 8 at once make 200 a second: so
/// the client meets now the one limit, now the other.
fn latency(page: u64) -> Duration {
    // The finalizer of splitmix64, so that neighbours differ.
    let mut hash = page.wrapping_add(0x9e37_79b9_7f4a_7c15);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    Duration::from_millis(5 + (hash ^ (hash >> 31)) % 56)
}
