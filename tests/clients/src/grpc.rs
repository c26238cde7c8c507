use std::pin::Pin;
use std::time::Duration;

use futures_util::{Stream, StreamExt, stream};
use tokio::net::TcpListener;
use tokio::time::timeout;
use tollgate::http::OutboundLayer;
use tollgate::{Limiter, MaxConcurrency};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tower::Layer;

use crate::server::{Limits, PLACES, QUEUE, QuotaLayer, Running};

fn serving() -> HealthCheckResponse {
    HealthCheckResponse { status: ServingStatus::Serving.into() }
}

fn ask(name: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: name.to_owned() }
}

/// The service of health checks, which does what the name in the request says.
struct Named(Running);

#[tonic::async_trait]
impl Health for Named {
    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        let _run = self.0.start();
        match &*request.into_inner().service {
            "fails" => Err(Status::not_found("no such service")),
            "panics" => panic!("the handler panics"),
            "never" => std::future::pending().await,
            _ => Ok(Response::new(serving())),
        }
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let run = self.0.start();
        let all = stream::unfold(run, |run| async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            Some((Ok(serving()), run))
        });
        Ok(Response::new(match &*request.into_inner().service {
            "ends" => Box::pin(all.take(3)),
            "fails" => Box::pin(all.take(3).chain(stream::once(async { Err(Status::data_loss("cut")) }))),
            _ => Box::pin(all),
        }))
    }
}

/// A connection to a server of tonic behind the layer of the places, and this one outside it.
async fn connect(limits: &Limits, quota: QuotaLayer) -> Channel {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let server =
        Server::builder().layer(quota).layer(limits.of_places()).add_service(HealthServer::new(Named(limits.running.clone())));
    tokio::spawn(async { server.serve_with_incoming(TcpIncoming::from(listener)).await.unwrap() });
    Endpoint::from_shared(address).unwrap().connect().await.unwrap()
}

async fn health(limits: &Limits, quota: QuotaLayer) -> HealthClient<Channel> {
    HealthClient::new(connect(limits, quota).await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trailers_come_through_and_release_the_permit() {
    let limits = Limits::new("window 1000/h");
    let mut client = health(&limits, limits.of_quota()).await;
    let answer = client.check(ask("")).await.unwrap();
    assert!(answer.metadata().get("ratelimit").unwrap().to_str().unwrap().starts_with(r#""places";r=3, "quota";r=999;t="#));
    assert_eq!(answer.metadata().get("grpc-status").unwrap(), "0");
    assert_eq!(answer.into_inner(), serving());
    limits.come_to_rest().await;
    let error = client.check(ask("fails")).await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::NotFound, "no such service"));
    limits.come_to_rest().await;

    let mut ends = client.watch(ask("ends")).await.unwrap().into_inner();
    for _ in 0..3 {
        assert!(ends.message().await.unwrap().is_some());
    }
    assert!(ends.message().await.unwrap().is_none());
    limits.come_to_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_grpc_that_either_side_cuts_leaves_nothing_behind() {
    let limits = Limits::new("window 1000/h");
    let mut client = health(&limits, limits.of_quota()).await;
    let mut fails = client.watch(ask("fails")).await.unwrap().into_inner();
    for _ in 0..3 {
        assert!(fails.message().await.unwrap().is_some());
    }
    assert_eq!(fails.message().await.unwrap_err().code(), Code::DataLoss);
    limits.come_to_rest().await;

    let mut endless = client.watch(ask("")).await.unwrap().into_inner();
    assert!(endless.message().await.unwrap().is_some());
    limits.come_to([1, 0, 1]).await;
    drop(endless); // RST_STREAM
    limits.come_to_rest().await;

    let mut endless = client.watch(ask("")).await.unwrap().into_inner();
    assert!(endless.message().await.unwrap().is_some());
    limits.come_to([1, 0, 1]).await;
    drop(client); // with its connection
    drop(endless);
    limits.come_to_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_panic_or_are_given_up_leave_nothing_behind() {
    let limits = Limits::new("window 1000/h");
    let client = health(&limits, limits.of_quota()).await;
    for _ in 0..=PLACES {
        assert!(client.clone().check(ask("panics")).await.is_err());
    }
    limits.come_to_rest().await;

    let calls: Vec<_> = (0..PLACES + QUEUE)
        .map(|_| {
            let mut client = client.clone();
            tokio::spawn(async move { client.check(ask("never")).await.map(drop) })
        })
        .collect();
    limits.come_to([PLACES, QUEUE, PLACES]).await;
    // The queue is full.
    assert!(client.clone().check(ask("")).await.unwrap_err().message().contains("503 Service Unavailable"));
    calls.iter().for_each(tokio::task::JoinHandle::abort);
    limits.come_to_rest().await;

    let mut request = Request::new(ask("never"));
    request.set_timeout(Duration::from_millis(100));
    let error = timeout(Duration::from_secs(180), client.clone().check(request)).await.unwrap().unwrap_err();
    assert!([Code::Cancelled, Code::DeadlineExceeded].contains(&error.code()), "{error:?}");
    limits.come_to_rest().await;
    assert!(client.clone().check(ask("")).await.is_ok());
}

/// Else a client of tonic takes the body of the refusal for a message, which is `INTERNAL`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_is_answered_in_grpc() {
    let limits = Limits::new("window 1/h");
    let mut client = health(&limits, limits.of_quota()).await;
    assert!(client.check(ask("")).await.is_ok());
    let error = client.check(ask("")).await.unwrap_err();
    assert!(error.code() == Code::Internal && error.message().contains("429 Too Many Requests"), "{error:?}");
    assert!(client.watch(ask("")).await.unwrap().into_inner().message().await.is_err());
    limits.come_to_rest().await;

    let quota = limits.of_quota().on_refusal(|refusal| Status::resource_exhausted(refusal.to_string()).into_http());
    let mut client = health(&limits, quota).await;
    let error = client.check(ask("")).await.unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted);
    assert!(error.message().contains("window 1/h"), "{}", error.message());
    let after = error.metadata().get("retry-after").unwrap().to_str().unwrap();
    assert!((3_500..=3_600).contains(&after.parse().unwrap()), "{after}");
    assert_eq!(client.watch(ask("")).await.unwrap_err().code(), Code::ResourceExhausted);
    limits.come_to_rest().await;
    assert_eq!(limits.granted(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_layer_of_clients_holds_its_permit_until_the_trailers() {
    let limits = Limits::new("window 1000/h");
    let limiter = Limiter::new(MaxConcurrency::new(1)).unwrap();
    let channel = connect(&limits, limits.of_quota()).await;
    let mut client = HealthClient::new(OutboundLayer::new(limiter.clone()).layer(channel));
    assert!(client.check(ask("")).await.is_ok());
    assert_eq!(client.check(ask("fails")).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(limiter.snapshot().in_flight, 0);

    let mut ends = client.watch(ask("ends")).await.unwrap().into_inner();
    for _ in 0..3 {
        assert!(ends.message().await.unwrap().is_some());
        assert_eq!(limiter.snapshot().in_flight, 1);
    }
    assert!(ends.message().await.unwrap().is_none());
    assert_eq!(limiter.snapshot().in_flight, 0);

    let endless = client.watch(ask("")).await.unwrap().into_inner();
    assert_eq!(limiter.snapshot().in_flight, 1);
    drop(endless);
    assert_eq!(limiter.snapshot().in_flight, 0);
    assert!(timeout(Duration::from_millis(100), client.check(ask("never"))).await.is_err());
    assert_eq!(limiter.snapshot().in_flight, 0);
    limits.come_to_rest().await;
}
