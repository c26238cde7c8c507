use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{FutureExt, Stream, StreamExt, stream};
use http::uri::PathAndQuery;
use tokio::net::TcpListener;
use tokio::sync::oneshot::{self, Sender};
use tokio::time::timeout;
use tollgate::layers::OutboundLayer;
use tollgate::{Limiter, MaxConcurrency};
use tonic::body::Body;
use tonic::server::{ClientStreamingService, NamedService, StreamingService};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_prost::ProstCodec;
use tower::{Layer, Service};

use crate::server::{Limits, PLACES, QUEUE, QuotaLayer, Running};

fn serving() -> HealthCheckResponse {
    HealthCheckResponse {
        status: ServingStatus::Serving.into(),
    }
}

fn ask(name: &str) -> HealthCheckRequest {
    HealthCheckRequest {
        service: name.to_owned(),
    }
}

/// A service of health checks. The name in a request says what the service does.
struct Named(Running);

#[tonic::async_trait]
impl Health for Named {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let _run = self.0.start();
        match &*request.into_inner().service {
            "fails" => Err(Status::not_found("no such service")),
            "panics" => panic!("the handler panics"),
            "never" => std::future::pending().await,
            _ => Ok(Response::new(serving())),
        }
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let run = self.0.start();
        let all = stream::unfold(run, |run| async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            Some((Ok(serving()), run))
        });
        Ok(Response::new(match &*request.into_inner().service {
            "ends" => Box::pin(all.take(3)),
            "fails" => Box::pin(
                all.take(3)
                    .chain(stream::once(async { Err(Status::data_loss("cut")) })),
            ),
            _ => Box::pin(all),
        }))
    }
}

/// Two methods to which a client sends a stream: `Collect` answers once after the end of the stream, `Echo` answers each message.
#[derive(Clone)]
struct Streams(Running);

impl NamedService for Streams {
    const NAME: &'static str = "clients.Streams";
}

type Answering<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl Service<http::Request<Body>> for Streams {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answering<Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let method = self.clone();
        Box::pin(async {
            let mut grpc = tonic::server::Grpc::new(ProstCodec::default());
            Ok(match request.uri().path() {
                "/clients.Streams/Collect" => grpc.client_streaming(method, request).await,
                _ => grpc.streaming(method, request).await,
            })
        })
    }
}

impl ClientStreamingService<HealthCheckRequest> for Streams {
    type Response = HealthCheckResponse;
    type Future = Answering<Result<Response<HealthCheckResponse>, Status>>;

    fn call(&mut self, request: Request<Streaming<HealthCheckRequest>>) -> Self::Future {
        let run = self.0.start();
        Box::pin(async {
            let _run = run;
            request
                .into_inner()
                .for_each(|message| async { drop(message.unwrap()) })
                .await;
            Ok(Response::new(serving()))
        })
    }
}

impl StreamingService<HealthCheckRequest> for Streams {
    type Response = HealthCheckResponse;
    type ResponseStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;
    type Future = Answering<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<HealthCheckRequest>>) -> Self::Future {
        let run = self.0.start();
        let answers = request.into_inner().map(move |message| {
            let _run = &run;
            message.map(|_| serving())
        });
        Box::pin(async { Ok(Response::new(Box::pin(answers) as Self::ResponseStream)) })
    }
}

type Codec = ProstCodec<HealthCheckRequest, HealthCheckResponse>;

async fn collect(
    channel: &Channel,
    messages: impl Stream<Item = HealthCheckRequest> + Send + 'static,
) -> Result<Response<HealthCheckResponse>, Status> {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await.unwrap();
    let path = PathAndQuery::from_static("/clients.Streams/Collect");
    grpc.client_streaming(Request::new(messages), path, Codec::default())
        .await
}

async fn echo(
    channel: &Channel,
    messages: impl Stream<Item = HealthCheckRequest> + Send + 'static,
) -> Result<Streaming<HealthCheckResponse>, Status> {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await.unwrap();
    let path = PathAndQuery::from_static("/clients.Streams/Echo");
    Ok(grpc
        .streaming(Request::new(messages), path, Codec::default())
        .await?
        .into_inner())
}

/// One message, after which the client keeps its stream open until the sender is dropped. Dropping the answer alone does not end the call:
/// the client of hyper still has the other half of its stream.
fn open_stream() -> (Sender<()>, impl Stream<Item = HealthCheckRequest> + Send) {
    let (sender, closed) = oneshot::channel();
    (
        sender,
        stream::iter([ask("")]).chain(closed.into_stream().filter_map(|_| async { None })),
    )
}

/// The status of a call of each kind: one message each way, a stream of answers, a stream of requests, and both streams.
async fn errors_of_each_kind(channel: &Channel) -> [Status; 4] {
    let mut client = HealthClient::new(channel.clone());
    let [(_open, messages), (_also_open, others)] = [open_stream(), open_stream()];
    [
        client.check(ask("")).await.unwrap_err(),
        client.watch(ask("ends")).await.unwrap_err(),
        collect(channel, messages).await.unwrap_err(),
        echo(channel, others).await.unwrap_err(),
    ]
}

/// A connection to a server of tonic behind two layers: `quota` outside, and the layer of the places inside.
async fn connect(limits: &Limits, quota: QuotaLayer) -> Channel {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let server = Server::builder()
        .layer(quota)
        .layer(limits.of_places())
        .add_service(HealthServer::new(Named(limits.running.clone())))
        .add_service(Streams(limits.running.clone()));
    tokio::spawn(async {
        server
            .serve_with_incoming(TcpIncoming::from(listener))
            .await
            .unwrap();
    });
    Endpoint::from_shared(address)
        .unwrap()
        .connect()
        .await
        .unwrap()
}

async fn health(limits: &Limits, quota: QuotaLayer) -> HealthClient<Channel> {
    HealthClient::new(connect(limits, quota).await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trailers_come_through_and_release_the_permit() {
    let limits = Limits::new("window 1000/h");
    let mut client = health(&limits, limits.of_quota()).await;
    let answer = client.check(ask("")).await.unwrap();
    assert!(
        answer
            .metadata()
            .get("ratelimit")
            .unwrap()
            .to_str()
            .unwrap()
            .starts_with(r#""places";r=3, "quota";r=999;t="#)
    );
    assert_eq!(answer.metadata().get("grpc-status").unwrap(), "0");
    assert_eq!(answer.into_inner(), serving());
    limits.come_to_rest().await;
    let error = client.check(ask("fails")).await.unwrap_err();
    assert_eq!(
        (error.code(), error.message()),
        (Code::NotFound, "no such service")
    );
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
    assert_eq!(
        client.clone().check(ask("")).await.unwrap_err().code(),
        Code::Unavailable
    );
    calls.iter().for_each(tokio::task::JoinHandle::abort);
    limits.come_to_rest().await;

    let mut request = Request::new(ask("never"));
    request.set_timeout(Duration::from_millis(100));
    let error = timeout(Duration::from_secs(180), client.clone().check(request))
        .await
        .unwrap()
        .unwrap_err();
    assert!(
        [Code::Cancelled, Code::DeadlineExceeded].contains(&error.code()),
        "{error:?}"
    );
    limits.come_to_rest().await;
    assert!(client.clone().check(ask("")).await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_permit_of_a_call_that_streams_requests_is_held_until_its_answer_has_ended() {
    let limits = Limits::new("window 1000/h");
    let channel = connect(&limits, limits.of_quota()).await;
    assert_eq!(
        collect(&channel, stream::iter([ask(""), ask("")]))
            .await
            .unwrap()
            .into_inner(),
        serving()
    );
    limits.come_to_rest().await;

    let (open, messages) = open_stream();
    let mut answers = echo(&channel, messages).await.unwrap();
    assert_eq!(answers.message().await.unwrap(), Some(serving()));
    limits.come_to([1, 0, 1]).await;
    drop(open);
    assert_eq!(answers.message().await.unwrap(), None);
    limits.come_to_rest().await;

    let (open, messages) = open_stream();
    let mut cut = echo(&channel, messages).await.unwrap();
    assert_eq!(cut.message().await.unwrap(), Some(serving()));
    limits.come_to([1, 0, 1]).await;
    drop((cut, open));
    limits.come_to_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spent_quota_is_resource_exhausted_for_calls_of_each_kind() {
    let limits = Limits::new("window 1/h");
    let channel = connect(&limits, limits.of_quota()).await;
    assert!(
        HealthClient::new(channel.clone())
            .check(ask(""))
            .await
            .is_ok()
    );
    for error in errors_of_each_kind(&channel).await {
        assert_eq!(
            (error.code(), error.message()),
            (Code::ResourceExhausted, "Quota Exceeded: \"quota\"")
        );
        let metadata = |name: &str| {
            error
                .metadata()
                .get(name)
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned()
        };
        let (seconds, millis): (u64, u64) = (
            metadata("retry-after").parse().unwrap(),
            metadata("grpc-retry-pushback-ms").parse().unwrap(),
        );
        assert!(
            (3_500..=3_600).contains(&seconds) && seconds == millis.div_ceil(1_000),
            "{seconds} {millis}"
        );
        assert!(
            metadata("ratelimit").starts_with("\"quota\";r=0;t="),
            "{error:?}"
        );
        assert_eq!(metadata("ratelimit-policy"), "\"quota\";q=1;w=3600");
    }
    limits.come_to_rest().await;
    assert_eq!(limits.granted(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_is_unavailable_for_calls_of_each_kind() {
    let limits = Limits::new("window 1000/h");
    let channel = connect(&limits, limits.of_quota()).await;
    let mut held = Vec::new();
    for _ in 0..PLACES {
        let (open, messages) = open_stream();
        held.push((open, echo(&channel, messages).await.unwrap()));
    }
    let queued = (0..QUEUE).map(|_| {
        let mut client = HealthClient::new(channel.clone());
        tokio::spawn(async move { client.check(ask("")).await.map(drop) })
    });
    let queued: Vec<_> = queued.collect();
    limits.come_to([PLACES, QUEUE, PLACES]).await;
    for error in errors_of_each_kind(&channel).await {
        assert_eq!(
            (error.code(), error.message()),
            (Code::Unavailable, "Temporary Reduced Capacity")
        );
        // The outer layer, which granted the call, says what is left.
        assert!(
            error
                .metadata()
                .get("ratelimit")
                .unwrap()
                .to_str()
                .unwrap()
                .contains("\"quota\";r=9"),
            "{error:?}"
        );
    }
    queued.iter().for_each(tokio::task::JoinHandle::abort);
    drop(held);
    limits.come_to_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_function_can_answer_refusals_in_grpc() {
    let limits = Limits::new("window 1/h");
    let quota = limits.of_quota().on_refusal(|refusal| {
        Status::new(refusal.grpc_code().into(), refusal.to_string()).into_http()
    });
    let channel = connect(&limits, quota).await;
    assert!(
        HealthClient::new(channel.clone())
            .check(ask(""))
            .await
            .is_ok()
    );
    for error in errors_of_each_kind(&channel).await {
        assert_eq!(error.code(), Code::ResourceExhausted);
        assert!(
            error.message().contains("window 1/h"),
            "{}",
            error.message()
        );
        assert!(error.metadata().get("grpc-retry-pushback-ms").is_some());
    }
    limits.come_to_rest().await;
    assert_eq!(limits.granted(), 1);
}

/// The client calls through an `OutboundLayer`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_layer_of_clients_pauses_for_a_refusal_of_grpc() {
    let limits = Limits::new("window 1/h");
    let limiter = Limiter::new(MaxConcurrency::new(1)).unwrap();
    let channel = connect(&limits, limits.of_quota()).await;
    let mut client = HealthClient::new(
        OutboundLayer::new(limiter.clone())
            .timeout(Duration::from_secs(1))
            .layer(channel),
    );
    assert!(client.check(ask("")).await.is_ok());
    assert_eq!(
        client.check(ask("")).await.unwrap_err().code(),
        Code::ResourceExhausted
    );
    assert!(limiter.snapshot().paused_for.unwrap() > Duration::from_secs(3_400));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_layer_of_clients_holds_its_permit_until_the_trailers() {
    let limits = Limits::new("window 1000/h");
    let limiter = Limiter::new(MaxConcurrency::new(1)).unwrap();
    let channel = connect(&limits, limits.of_quota()).await;
    let mut client = HealthClient::new(OutboundLayer::new(limiter.clone()).layer(channel));
    assert!(client.check(ask("")).await.is_ok());
    assert_eq!(
        client.check(ask("fails")).await.unwrap_err().code(),
        Code::NotFound
    );
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
    assert!(
        timeout(Duration::from_millis(100), client.check(ask("never")))
            .await
            .is_err()
    );
    assert_eq!(limiter.snapshot().in_flight, 0);
    limits.come_to_rest().await;
}
