//! A client of a language model: requests and tokens a minute, a 429 that holds all of them back, and the usage that the body tells.

use std::time::Duration;

use axum::{Json, Router, routing::post};
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tokio::time::Instant;
use tollgate::Limiter;
use tollgate::layers::{ActualCost, OutboundLayer, UpstreamFamily, UpstreamReader};
use tower::{Layer, ServiceExt};

use super::Outcome;

/// The model denies its second request for two seconds.
async fn complete() -> (StatusCode, [(&'static str, &'static str); 1], Json<Value>) {
    static REQUESTS: AtomicU64 = AtomicU64::new(0);
    let status = match REQUESTS.fetch_add(1, Relaxed) {
        1 => StatusCode::TOO_MANY_REQUESTS,
        _ => StatusCode::OK,
    };
    let answer = json!({ "text": "hello", "usage": { "total_tokens": 120 } });
    (status, [("retry-after", "2")], Json(answer))
}

#[tokio::test(start_paused = true)]
async fn main() -> Outcome {
    let limiter = Limiter::new("50/min per request and 1000 tokens/min")?;
    let model: Router = Router::new().route("/v1/complete", post(complete));
    let client = OutboundLayer::new(&limiter)
        .upstream(UpstreamReader::new(UpstreamFamily::OpenAi))
        .cost_of("tokens", |_| 400)
        .settle_later()
        .refund_denied()
        .retry(3)
        .layer(model);

    let start = Instant::now();
    for _ in 0..3 {
        let request = Request::post("/v1/complete").body(String::new())?;
        let mut response = client.clone().oneshot(request).await?;
        assert_eq!(response.status(), StatusCode::OK);
        let cost: ActualCost = response.extensions_mut().remove().unwrap_or_default();
        let body = response.into_body().collect().await?.to_bytes();
        let answer: Value = serde_json::from_slice(&body)?;
        let used = answer["usage"]["total_tokens"].as_u64();
        cost.set_of("tokens", used.ok_or("no usage")?);
    }
    assert_eq!(start.elapsed(), Duration::from_secs(2));
    let refilled = 2 * 1_000 / 60; // while the model held all requests back
    assert_eq!(limiter.limits()[1].remaining, 1_000 - 3 * 120 + refilled);
    Ok(())
}
