//! A crawler: two requests at a time and twenty a second to each host, and a shutdown that lets running ones end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use axum::Router;
use http::Request;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tollgate::KeyedLimiter;
use tollgate::layers::{OutboundError, OutboundLayer};
use tower::{Layer, ServiceExt};

use super::Outcome;

/// A site that counts its visitors.
async fn site(visitors: Arc<AtomicU64>) -> std::io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?);
    let page = async move || {
        visitors.fetch_add(1, Relaxed);
        "a page"
    };
    tokio::spawn(axum::serve(listener, Router::new().fallback(page)).into_future());
    Ok(url)
}

#[tokio::test]
async fn main() -> Outcome {
    let visitors = Arc::new(AtomicU64::new(0));
    let sites = [site(visitors.clone()).await?, site(visitors.clone()).await?];
    let per_host = KeyedLimiter::new("2 concurrent and 20/s burst 5")?;
    let client = Client::builder(TokioExecutor::new()).build_http::<String>();
    let client = OutboundLayer::by_host(&per_host).layer(client);

    let mut pages = JoinSet::new();
    for number in 0..40 {
        let request = Request::get(format!("{}{number}", sites[number % 2])).body(String::new())?;
        let page = client.clone().oneshot(request);
        pages.spawn(async { page.await.map(|page| page.status()) });
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    per_host.close(); // requests that wait fail, running ones end
    let ended = pages.join_all().await;
    per_host.drained().await;
    let is_closed = |error: &OutboundError<_>| matches!(error, OutboundError::Acquire(error) if error.is_closed());
    let refused = ended
        .iter()
        .filter(|page| page.as_ref().is_err_and(is_closed));
    assert_eq!(refused.count() as u64 + visitors.load(Relaxed), 40);
    assert!((10..=24).contains(&visitors.load(Relaxed)));
    Ok(())
}
