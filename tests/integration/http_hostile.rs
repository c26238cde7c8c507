//! Hostile clients and upstreams, and functions of the application that panic: permits are released, and the limiter continues to
//! work.

use std::convert::Infallible;
use std::future::{Future, pending, ready};
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::common::limiter;
use axum::Router;
use axum::body::Body;
use axum::routing::get;
use bytes::Bytes;
use futures_util::{FutureExt, stream};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tollgate::layers::{LimitLayer, OutboundLayer};
use tollgate::{Adapt, KeyedLimiter, Limiter, MaxConcurrency, Outcome};
use tower::{Layer, Service, ServiceExt, service_fn};

type Answer = Response<Full<Bytes>>;

const LONG: Duration = Duration::from_secs(180);

fn hello()
-> impl Service<Request<()>, Response = Answer, Error = Infallible, Future: Send> + Clone + Send {
    service_fn(|_: Request<()>| ready(Ok(Response::new(Full::new(Bytes::from_static(b"hello"))))))
}

fn is_idle(limiter: &Limiter) -> bool {
    let numbers = limiter.snapshot();
    (numbers.in_flight, numbers.queued) == (0, 0)
}

async fn comes_to_rest(limiter: &Limiter) {
    let rests = async {
        while !is_idle(limiter) {
            sleep(Duration::from_millis(2)).await;
        }
    };
    assert!(
        timeout(LONG, rests).await.is_ok(),
        "{:?}",
        limiter.snapshot()
    );
}

// ---- over connections ----

/// Serves one connection after another by hyper alone. More cases reach the service than behind a router of axum.
async fn serve<S, B>(is_http2: bool, service: S) -> SocketAddr
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static,
    B: http_body::Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let stream = TokioIo::new(listener.accept().await.unwrap().0);
            let service = service.clone();
            let service =
                hyper::service::service_fn(move |request| service.clone().oneshot(request));
            if is_http2 {
                let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .serve_connection(stream, service);
                tokio::spawn(connection.map(drop));
            } else {
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new()
                        .serve_connection(stream, service)
                        .map(drop),
                );
            }
        }
    });
    address
}

fn request(method: Method, path: &str) -> Request<String> {
    let uri = format!("http://localhost{path}");
    Request::builder()
        .method(method)
        .uri(uri)
        .header("host", "localhost")
        .body(String::new())
        .unwrap()
}

async fn send(
    is_http2: bool,
    address: SocketAddr,
    method: Method,
) -> (StatusCode, HeaderMap, hyper::Result<Bytes>) {
    let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let response = if is_http2 {
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), stream)
            .await
            .unwrap();
        tokio::spawn(connection);
        sender.send_request(request(method, "/")).await
    } else {
        let (mut sender, connection) = http1::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        sender.send_request(request(method, "/")).await
    };
    let (head, body) = response.unwrap().into_parts();
    (
        head.status,
        head.headers,
        body.collect()
            .await
            .map(http_body_util::Collected::to_bytes),
    )
}

/// An answer to HEAD has no content. HTTP/1 servers leave it out; over HTTP/2 a client takes it for an error.
#[tokio::test]
async fn a_refusal_of_a_head_request_has_no_body() {
    for is_http2 in [false, true] {
        let limiter = Limiter::new("window 1/h").unwrap();
        let hello =
            service_fn(|_: Request<Incoming>| ready(Ok::<_, Infallible>(Answer::default())));
        let at_once = LimitLayer::new(limiter.clone()).layer(hello);
        let address = serve(is_http2, at_once).await;
        assert_eq!(send(is_http2, address, Method::HEAD).await.0, 200);
        let waits = LimitLayer::new(limiter.clone())
            .wait(Duration::from_secs(1))
            .layer(hello);
        for address in [address, serve(is_http2, waits).await] {
            let (status, get_fields, body) = send(is_http2, address, Method::GET).await;
            assert_eq!(
                (status.as_u16(), body.unwrap().len()),
                (
                    429,
                    get_fields["content-length"]
                        .to_str()
                        .unwrap()
                        .parse()
                        .unwrap()
                )
            );
            let (status, mut head_fields, body) = send(is_http2, address, Method::HEAD).await;
            assert_eq!(
                (status.as_u16(), body.unwrap().len()),
                (429, 0),
                "{is_http2}"
            );
            for changing in ["date", "retry-after", "ratelimit"] {
                assert!(head_fields.remove(changing).is_some() || changing == "ratelimit");
            }
            assert!(
                head_fields
                    .iter()
                    .all(|(name, value)| get_fields[name] == value),
                "{head_fields:?} {get_fields:?}"
            );
        }
    }
}

/// Answers to HEAD, 204 and 304 have no content: the server neither reads the body nor reports that it has not.
#[tokio::test]
async fn a_body_without_end_that_is_not_sent_holds_no_permit() {
    for (method, status) in [(Method::HEAD, 200), (Method::GET, 204), (Method::GET, 304)] {
        let limiter = limiter(MaxConcurrency::new(1));
        let endless = service_fn(move |_: Request<Incoming>| {
            let frames =
                stream::repeat_with(|| Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"x"))));
            let response = Response::builder()
                .status(status)
                .body(StreamBody::new(frames))
                .unwrap();
            ready(Ok::<_, Infallible>(response))
        });
        let address = serve(false, LimitLayer::new(limiter.clone()).layer(endless)).await;
        let (found, _, body) = send(false, address, method).await;
        assert_eq!((found.as_u16(), body.unwrap().len()), (status, 0));
        comes_to_rest(&limiter).await;
    }
}

/// The rapid reset of HTTP/2: each request is cancelled right after it was sent.
#[tokio::test]
async fn requests_that_are_reset_at_once_leave_nothing_behind() {
    let limiter = Limiter::builder(MaxConcurrency::new(2))
        .max_queue(50)
        .build()
        .unwrap();
    let never = service_fn(|_: Request<Incoming>| pending::<Result<Answer, Infallible>>());
    let address = serve(
        true,
        LimitLayer::new(limiter.clone()).wait(LONG).layer(never),
    )
    .await;
    for _ in 0..10 {
        let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), stream)
            .await
            .unwrap();
        tokio::spawn(connection);
        for nth in 0..100 {
            if sender.ready().await.is_err() {
                break; // the server has closed the connection
            }
            let mut call = Box::pin(sender.send_request(request(Method::GET, "/")));
            let _pending = futures_util::poll!(&mut call);
            if nth % 2 == 0 {
                sleep(Duration::from_millis(1)).await; // the server handles the request, or queues it
            }
        }
    }
    comes_to_rest(&limiter).await;
    assert!(limiter.snapshot().granted >= 10, "{:?}", limiter.snapshot());
}

/// As documented, the answer to an upgrade ends when the connection changes to the other protocol.
#[tokio::test]
async fn an_upgraded_connection_holds_no_permit() {
    async fn upgrade(request: Request<Body>) -> Response<Body> {
        tokio::spawn(async move {
            let mut echo = TokioIo::new(hyper::upgrade::on(request).await.unwrap());
            let mut bytes = [0; 4];
            while echo.read_exact(&mut bytes).await.is_ok() {
                echo.write_all(&bytes).await.unwrap();
            }
        });
        let response = Response::builder()
            .status(101)
            .header("connection", "upgrade")
            .header("upgrade", "echo");
        response.body(Body::empty()).unwrap()
    }
    let limiter = limiter(MaxConcurrency::new(1));
    let router = Router::new()
        .route("/", get(upgrade))
        .layer(LimitLayer::new(limiter.clone()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async { axum::serve(listener, router).await.unwrap() });
    let mut streams = Vec::new();
    for _ in 0..3 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream
            .write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n")
            .await
            .unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        assert!(head.starts_with(b"HTTP/1.1 101 "));
        streams.push(stream);
    }
    for stream in &mut streams {
        stream.write_all(b"ping").await.unwrap();
        let mut bytes = [0; 4];
        stream.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"ping");
    }
    assert!(is_idle(&limiter));
}

// ---- bodies ----

/// Servers do not poll a body after its trailers. A body may not report its end before that poll.
#[tokio::test(start_paused = true)]
async fn a_body_that_ends_with_trailers_is_a_success() {
    let limiter = limiter(MaxConcurrency::new(2).adapt(Adapt::aimd()));
    let trails = service_fn(|_: Request<()>| {
        let frames = [
            Frame::data(Bytes::from_static(b"x")),
            Frame::trailers(HeaderMap::new()),
        ];
        ready(Ok::<_, Infallible>(Response::new(StreamBody::new(
            stream::iter(frames.map(Ok::<_, Infallible>)),
        ))))
    });
    let service = LimitLayer::new(limiter.clone())
        .classify(|_| Outcome::Ok)
        .layer(trails);
    for _ in 0..4 {
        let mut responses = [(); 2].map(|()| {
            service
                .clone()
                .oneshot(Request::new(()))
                .now_or_never()
                .unwrap()
                .unwrap()
        });
        sleep(Duration::from_millis(10)).await;
        for response in &mut responses {
            assert!(
                response
                    .body_mut()
                    .frame()
                    .await
                    .unwrap()
                    .unwrap()
                    .is_data()
            );
            assert!(!response.body().is_end_stream());
            assert!(
                response
                    .body_mut()
                    .frame()
                    .await
                    .unwrap()
                    .unwrap()
                    .is_trailers()
            );
        }
        assert!(is_idle(&limiter), "before the bodies are dropped");
    }
    assert!(limiter.snapshot().concurrency.unwrap() > 2);
}

/// Over HTTP/1 a server polls for no frame after the announced length. A body that sends a file does not know where its end is.
#[tokio::test(start_paused = true)]
async fn a_body_that_has_sent_its_length_is_a_success() {
    let limiter = limiter(MaxConcurrency::new(1));
    for (length, complete) in [("4", true), ("5", false), ("+4", false), ("4, 4", false)] {
        let sends = service_fn(move |_: Request<()>| {
            let frames =
                stream::repeat_with(|| Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"xx"))));
            let response = Response::builder()
                .header("content-length", length)
                .body(StreamBody::new(frames));
            ready(Ok::<_, Infallible>(response.unwrap()))
        });
        let mut of_server = LimitLayer::new(limiter.clone())
            .layer(sends)
            .oneshot(Request::new(()))
            .await
            .unwrap();
        for sent in [false, complete] {
            assert!(
                of_server
                    .body_mut()
                    .frame()
                    .await
                    .unwrap()
                    .unwrap()
                    .is_data()
            );
            assert_eq!(is_idle(&limiter), sent, "{length}");
        }
        drop(of_server);
        let mut of_client = OutboundLayer::new(limiter.clone())
            .layer(sends)
            .oneshot(Request::new(()))
            .await
            .unwrap();
        for sent in [false, complete] {
            assert!(
                of_client
                    .body_mut()
                    .frame()
                    .await
                    .unwrap()
                    .unwrap()
                    .is_data()
            );
            assert_eq!(is_idle(&limiter), sent, "{length}");
        }
    }
}

// ---- numbers ----

#[tokio::test(start_paused = true)]
async fn numbers_out_of_range_are_answered_and_never_panic() {
    let limiter = Limiter::new("1 concurrent and 10/min burst 10").unwrap();
    let layer = LimitLayer::new(limiter.clone());
    let status = async |layer: LimitLayer<Limiter>| {
        layer
            .layer(hello())
            .oneshot(Request::new(()))
            .await
            .unwrap()
            .status()
            .as_u16()
    };
    assert_eq!(status(layer.clone().cost(0)).await, 500);
    assert_eq!(status(layer.clone().cost(u64::MAX)).await, 413);
    assert_eq!(status(layer.clone().wait(Duration::ZERO)).await, 200);
    assert_eq!(status(layer.clone().wait(Duration::MAX)).await, 200);
    assert_eq!(status(layer.clone().retry_jitter(Duration::MAX)).await, 200);
    let held = limiter.try_acquire().unwrap();
    assert_eq!(status(layer.clone().wait(Duration::ZERO)).await, 503);
    drop(held);
    limiter.pause_for(Duration::from_secs(100));
    let refused = layer
        .clone()
        .retry_jitter(Duration::MAX)
        .layer(hello())
        .oneshot(Request::new(()))
        .await
        .unwrap();
    assert!(
        refused.headers()["retry-after"]
            .to_str()
            .unwrap()
            .parse::<u64>()
            .unwrap()
            >= 100
    );
    limiter.resume();

    let _held = limiter.try_acquire().unwrap();
    let client = OutboundLayer::new(limiter.clone())
        .timeout(Duration::MAX)
        .layer(hello());
    assert!(client.oneshot(Request::new(())).await.is_err());
    let client = OutboundLayer::new(limiter.clone())
        .timeout(Duration::ZERO)
        .layer(hello());
    assert!(client.oneshot(Request::new(())).await.is_err());
    assert_eq!(limiter.snapshot().queued, 0);
}

// ---- functions that panic ----

fn panics() -> bool {
    true
}

/// Runs a call to its end or panic, and checks that the limiter still works.
async fn check_panic<F: Future>(limiter: &Limiter, call: impl FnOnce() -> F) {
    let caught = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(future) => AssertUnwindSafe(future).catch_unwind().await.is_err(),
        Err(_) => true,
    };
    assert!(caught && is_idle(limiter), "{:?}", limiter.snapshot());
    drop(limiter.try_acquire().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_function_that_panics_in_the_layer_of_servers_loses_no_permit() {
    let limiter = limiter(MaxConcurrency::new(1));
    let keyed = KeyedLimiter::<u8>::new(MaxConcurrency::new(1)).unwrap();
    for wait in [None, Some(LONG)] {
        let layer = LimitLayer::new(limiter.clone());
        let layer = wait.map_or(layer.clone(), |wait| layer.wait(wait));
        let classify = layer
            .clone()
            .classify(|_| {
                if panics() {
                    panic!("classify")
                } else {
                    Outcome::Ok
                }
            })
            .layer(hello());
        check_panic(&limiter, || classify.oneshot(Request::new(()))).await;

        let respond = layer.clone().cost(5).on_refusal(|_| {
            if panics() {
                panic!("on_refusal")
            } else {
                Response::default()
            }
        });
        check_panic(&limiter, || {
            respond.layer(hello()).oneshot(Request::new(()))
        })
        .await;

        let by_key = LimitLayer::new(keyed.clone());
        let by_key = wait.map_or(by_key.clone(), |wait| by_key.wait(wait));
        let key_of = by_key
            .clone()
            .by(|_: &Request<()>| if panics() { panic!("key") } else { Some(1) });
        check_panic(&limiter, || key_of.layer(hello()).oneshot(Request::new(()))).await;
        let later = by_key
            .clone()
            .by_async(|_: &Request<()>| async { if panics() { panic!("key") } else { Some(1) } });
        check_panic(&limiter, || later.layer(hello()).oneshot(Request::new(()))).await;
        let penalize = by_key
            .by(|_: &Request<()>| Some(1))
            .penalize(|_| if panics() { panic!("penalize") } else { 1 });
        check_panic(&limiter, || {
            penalize.layer(hello()).oneshot(Request::new(()))
        })
        .await;
        assert_eq!(keyed.snapshot(&1).map_or(0, |numbers| numbers.in_flight), 0);
        assert!(keyed.try_acquire(&1).is_ok());

        let of = limiter.clone();
        let choose = LimitLayer::choose(move |_: &u8| {
            if panics() {
                panic!("choose")
            } else {
                of.clone()
            }
        });
        let choose = wait
            .map_or(choose.clone(), |wait| choose.wait(wait))
            .by(|_: &Request<()>| Some(1));
        check_panic(&limiter, || choose.layer(hello()).oneshot(Request::new(()))).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_function_that_panics_in_the_layer_of_clients_loses_no_permit() {
    let limiter = limiter(MaxConcurrency::new(1));
    let layer = OutboundLayer::new(limiter.clone());
    let denies = service_fn(|_: Request<()>| {
        let answer = Response::builder()
            .status(429)
            .header("retry-after", "0")
            .header("ratelimit", "?")
            .body(Full::<Bytes>::default());
        ready(Ok::<_, Infallible>(answer.unwrap()))
    });
    macro_rules! check {
        ($layer:expr) => {
            check_panic(&limiter, || $layer.layer(denies).oneshot(Request::new(()))).await
        };
    }
    check!(layer.clone().upstream_by(|_| if panics() {
        panic!("upstream_by")
    } else {
        unreachable!()
    }));
    check!(
        layer
            .clone()
            .cost_of("tokens", |_| if panics() { panic!("cost_of") } else { 1 })
    );
    check!(layer.clone().retry_with(1, |_: &()| if panics() {
        panic!("retry_with")
    } else {
        None
    }));
    check!(layer.clone().classify(
        |_: Result<&http::response::Parts, &Infallible>| if panics() {
            panic!("classify")
        } else {
            Outcome::Ok
        }
    ));
    let keyed = KeyedLimiter::<u8>::new(MaxConcurrency::new(1)).unwrap();
    check!(OutboundLayer::by_key(keyed, |_| if panics() {
        panic!("by_key")
    } else {
        1
    }));
}
