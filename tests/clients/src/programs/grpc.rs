//! A server of tonic that refuses calls before their handler, and a client that then waits.

use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tollgate::layers::{LimitLayer, OutboundLayer};
use tollgate::{Limiter, MaxConcurrency};
use tonic::Code;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Endpoint, Server};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower::Layer;

type Outcome = Result<(), Box<dyn std::error::Error>>;

#[tokio::test]
async fn main() -> Outcome {
    let limiter = Limiter::new("8 concurrent and window 3/s from first grant")?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let (_reporter, health) = tonic_health::server::health_reporter();
    let server = Server::builder()
        .layer(LimitLayer::new(&limiter))
        .add_service(health);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));

    // Without a limit of its own, a client is refused.
    let channel = Endpoint::from_shared(url)?.connect().await?;
    let mut client = HealthClient::new(channel.clone());
    let ask = HealthCheckRequest::default;
    let start = Instant::now();
    let mut stream = client.watch(ask()).await?.into_inner();
    assert!(stream.message().await?.is_some());
    client.check(ask()).await?;
    client.check(ask()).await?;
    let refused = client.watch(ask()).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);

    // The layer of a client heeds the wait in the refusal, for all of its calls.
    let polite = OutboundLayer::new(Limiter::new(MaxConcurrency::new(4))?);
    let mut polite = HealthClient::new(polite.layer(channel));
    assert!(polite.check(ask()).await.is_err());
    polite.check(ask()).await?;
    assert!(start.elapsed() > Duration::from_millis(900));
    assert_eq!(limiter.snapshot().in_flight, 1, "the stream is still open");
    drop(stream);
    Ok(())
}
