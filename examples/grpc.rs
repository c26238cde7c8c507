//! A gRPC server that limits each client and all of them together, and a client that heeds its refusals.
//!
//! ```text
//! cargo run --example grpc
//! ```
//!
//! The server is one of tonic. It admits five calls a second of each client, by the metadata `x-client`, and four at the same time in
//! all. A call over the limit is refused before its handler runs, with `RESOURCE_EXHAUSTED` and the time to wait; this holds for unary
//! calls and for streams. A hasty client sends twenty calls at once. A polite one sends as many through an `OutboundLayer`, which holds
//! all of its calls back after a refusal. The exit code is 1 if a refused call has reached its handler, or the polite client did not get
//! all of its answers.

use std::error::Error;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use clap::Parser;
use common::{exit_code, say};
use futures_util::{Stream, StreamExt, stream};
use http::HeaderName;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tollgate::layers::{HeaderKey, LimitLayer, OutboundLayer};
use tollgate::{KeyedLimiter, Limiter};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tower::Layer;

const CALLS: u64 = 20;

/// Limits a gRPC server, and lets a client heed its refusals
#[derive(Debug, Parser)]
struct Options {}

/// Counts the calls that reach a handler.
#[derive(Clone, Default)]
struct Counting(Arc<AtomicU64>);

#[tonic::async_trait]
impl Health for Counting {
    async fn check(
        &self,
        _: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        self.0.fetch_add(1, Relaxed);
        tokio::time::sleep(Duration::from_millis(20)).await;
        Ok(Response::new(HealthCheckResponse::default()))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn watch(
        &self,
        _: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        self.0.fetch_add(1, Relaxed);
        let answers = stream::iter(0..3).then(async |_| {
            tokio::time::sleep(Duration::from_millis(10)).await;
            Ok(HealthCheckResponse::default())
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

async fn serve(handlers: Counting) -> Result<Channel, Box<dyn Error>> {
    // The inner layer refuses a call that cannot begin within a second; the outer one then refunds it.
    let client = HeaderKey::new(HeaderName::from_static("x-client"));
    let per_client = KeyedLimiter::builder("5/s burst 5")
        .settle_permits()
        .build()?;
    let per_client = LimitLayer::new(per_client).by(client).name("client")?;
    let places = LimitLayer::new(Limiter::new("4 concurrent")?).name("places")?;
    let server = Server::builder()
        .layer(per_client)
        .layer(places.wait(Duration::from_secs(1)))
        .add_service(HealthServer::new(handlers));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = format!("http://{}", listener.local_addr()?);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    Ok(Endpoint::from_shared(address)?.connect().await?)
}

/// The request of a client.
fn from(client: &'static str) -> Request<HealthCheckRequest> {
    let mut request = Request::new(HealthCheckRequest::default());
    let client = client.parse().expect("the name of a client is ASCII");
    request.metadata_mut().insert("x-client", client);
    request
}

#[tokio::main]
async fn main() -> ExitCode {
    Options::parse();
    exit_code(run().await)
}

async fn run() -> Result<ExitCode, Box<dyn Error>> {
    let handlers = Counting::default();
    let channel = serve(handlers.clone()).await?;

    // Half of the calls are streams.
    let start = Instant::now();
    let mut hasty = JoinSet::new();
    for number in 0..CALLS {
        let mut client = HealthClient::new(channel.clone());
        hasty.spawn(async move {
            if number % 2 == 0 {
                return client.check(from("hasty")).await.map(drop);
            }
            let answers = client.watch(from("hasty")).await?.into_inner();
            answers.for_each(|_| std::future::ready(())).await;
            Ok(())
        });
    }
    let answers = hasty.join_all().await;
    let refusal = answers.iter().find_map(|answer| answer.as_ref().err());
    let answered = answers.iter().filter(|answer| answer.is_ok()).count() as u64;
    say!(
        "hasty    {answered:>2} of {CALLS} calls answered in {:?}",
        start.elapsed()
    );
    if let Some(refusal) = refusal {
        let wait = refusal.metadata().get("grpc-retry-pushback-ms");
        let wait = wait.and_then(|wait| wait.to_str().ok()).unwrap_or("?");
        say!(
            "         the others: {:?}, {}, retry after {wait} ms",
            refusal.code(),
            refusal.message()
        );
    }
    let of_hasty = handlers.0.load(Relaxed);

    // The layer waits for its own limit, and after a refusal for the time in it. Such a call is made again here.
    let start = Instant::now();
    let layer = OutboundLayer::new(Limiter::new("2 concurrent")?);
    let mut client = HealthClient::new(layer.layer(channel));
    let mut attempts = 0;
    for _ in 0..CALLS {
        loop {
            attempts += 1;
            if client.check(from("polite")).await.is_ok() {
                break;
            }
        }
    }
    say!(
        "polite   {CALLS} of {CALLS} calls answered in {:?}, after {attempts} attempts",
        start.elapsed()
    );

    let of_polite = handlers.0.load(Relaxed) - of_hasty;
    say!("server   {of_hasty} and {of_polite} calls reached their handlers");
    if (of_hasty, of_polite) != (answered, CALLS) || attempts > CALLS + 8 {
        eprintln!("error: refused calls reached a handler, or the polite client did not wait");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}
