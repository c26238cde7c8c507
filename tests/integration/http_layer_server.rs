//! Limits in front of a server that real clients connect to. Whatever a client does, in the end nothing is in flight and nothing waits.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::MatchedPath;
use axum::routing::get;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tollgate::layers::LimitLayer;
use tollgate::{KeyedLimiter, Limiter, MaxConcurrency};
use tower::ServiceExt;

/// A body without an end.
async fn stream_on() -> Body {
    let chunks = stream::repeat(Bytes::from_static(&[b'x'; 1_024])).then(async |chunk| {
        sleep(Duration::from_millis(1)).await;
        Ok::<_, Infallible>(chunk)
    });
    Body::from_stream(chunks)
}

async fn panics() -> &'static str {
    panic!("the handler panics")
}

async fn never() -> &'static str {
    std::future::pending().await
}

/// Two layers on a router, one of them with a queue.
struct Server {
    places: Limiter,
    rate: Limiter,
    address: SocketAddr,
}

impl Server {
    async fn start(places: u64) -> Self {
        let places = Limiter::new(MaxConcurrency::new(places)).unwrap();
        let rate = Limiter::new("1000 concurrent and 1000000/s burst 1000000").unwrap();
        let router = Router::new()
            .route("/", get(|| async { "hello" }))
            .route("/empty", get(|| async { StatusCode::NO_CONTENT }))
            .route("/stream", get(stream_on))
            .route("/panics", get(panics))
            .route("/never", get(never))
            .layer(
                LimitLayer::new(places.clone())
                    .wait(Duration::from_secs(30))
                    .name("places")
                    .unwrap(),
            )
            .layer(LimitLayer::new(rate.clone()).name("rate").unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async { axum::serve(listener, router).await.unwrap() });
        Self {
            places,
            rate,
            address,
        }
    }

    fn numbers(&self) -> [u64; 4] {
        let (places, rate) = (self.places.snapshot(), self.rate.snapshot());
        [places.in_flight, places.queued, rate.in_flight, rate.queued]
    }

    async fn comes_to(&self, numbers: [u64; 4]) {
        let reached = async {
            while self.numbers() != numbers {
                sleep(Duration::from_millis(2)).await;
            }
        };
        assert!(
            timeout(Duration::from_secs(20), reached).await.is_ok(),
            "{:?} instead of {numbers:?}",
            self.numbers()
        );
    }

    async fn comes_to_rest(&self) {
        self.comes_to([0; 4]).await;
    }

    async fn connect(&self, is_http2: bool) -> Client {
        let stream = TokioIo::new(TcpStream::connect(self.address).await.unwrap());
        if is_http2 {
            let (sender, connection) = http2::handshake(TokioExecutor::new(), stream)
                .await
                .unwrap();
            Client {
                sender: Sender::Http2(sender),
                connection: tokio::spawn(async { drop(connection.await) }),
            }
        } else {
            let (sender, connection) = http1::handshake(stream).await.unwrap();
            Client {
                sender: Sender::Http1(sender),
                connection: tokio::spawn(async { drop(connection.await) }),
            }
        }
    }
}

enum Sender {
    Http1(http1::SendRequest<String>),
    Http2(http2::SendRequest<String>),
}

/// One connection. Its drop cuts it.
struct Client {
    sender: Sender,
    connection: tokio::task::JoinHandle<()>,
}

impl Client {
    async fn send(
        &mut self,
        method: Method,
        path: &str,
    ) -> hyper::Result<Response<hyper::body::Incoming>> {
        let uri = format!("http://localhost{path}");
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .header("host", "localhost")
            .body(String::new())
            .unwrap();
        match &mut self.sender {
            Sender::Http1(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
            Sender::Http2(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
        }
    }

    /// The whole answer.
    async fn get(
        &mut self,
        method: Method,
        path: &str,
    ) -> hyper::Result<(StatusCode, HeaderMap, Bytes)> {
        let (head, body) = self.send(method, path).await?.into_parts();
        Ok((head.status, head.headers, body.collect().await?.to_bytes()))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

#[tokio::test]
async fn answers_have_the_fields_of_all_layers_and_leave_nothing_behind() {
    let server = Server::start(1).await;
    for is_http2 in [false, true] {
        let mut client = server.connect(is_http2).await;
        for (method, path, status, body) in [
            (Method::GET, "/", 200, "hello"),
            (Method::HEAD, "/", 200, ""),
            (Method::GET, "/empty", 204, ""),
            (Method::HEAD, "/empty", 204, ""),
            (Method::HEAD, "/stream", 200, ""),
            (Method::GET, "/nowhere", 404, ""),
            (Method::POST, "/", 405, ""),
        ] {
            let (found, fields, text) = client.get(method, path).await.unwrap();
            assert_eq!(
                (found.as_u16(), &*text),
                (status, body.as_bytes()),
                "{path}"
            );
            let lines: Vec<_> = fields
                .get_all("ratelimit")
                .iter()
                .map(|line| line.to_str().unwrap())
                .collect();
            let [line] = lines[..] else {
                panic!("{lines:?}")
            };
            assert!(
                line.starts_with(r#""places";r=0, "rate-1";r=999, "rate-2";r=999999;t="#),
                "{line}"
            );
            server.comes_to_rest().await;
        }
    }
    assert_eq!(server.places.snapshot().granted, 14);
}

#[tokio::test]
async fn a_stream_that_the_client_cuts_releases_its_permits() {
    let server = Server::start(2).await;
    for is_http2 in [false, true] {
        // The client drops the answer or the connection.
        for cuts_connection in [false, true] {
            let mut client = server.connect(is_http2).await;
            let mut response = client.send(Method::GET, "/stream").await.unwrap();
            assert!(response.body_mut().frame().await.unwrap().is_ok());
            assert_eq!(server.numbers(), [1, 0, 1, 0]);
            // Over HTTP/1, an answer is cut only with its connection.
            let kept = (!cuts_connection && is_http2).then_some(client);
            drop(response);
            server.comes_to_rest().await;
            drop(kept);
        }
    }
}

#[tokio::test]
async fn a_handler_that_panics_releases_its_permits() {
    let server = Server::start(1).await;
    for is_http2 in [false, true] {
        for _ in 0..3 {
            let mut client = server.connect(is_http2).await;
            assert!(client.get(Method::GET, "/panics").await.is_err());
            server.comes_to_rest().await;
        }
    }
}

#[tokio::test]
async fn a_client_that_goes_away_leaves_the_queue() {
    let server = Server::start(1).await;
    for is_http2 in [false, true] {
        let mut clients = Vec::new();
        for _ in 0..5 {
            let mut client = server.connect(is_http2).await;
            clients.push(tokio::spawn(async move {
                client.get(Method::GET, "/never").await.is_ok()
            }));
        }
        server.comes_to([1, 4, 5, 0]).await;
        // Each client holds the place or waits for it. When one goes away, the others move up.
        for (nth, client) in clients.into_iter().enumerate() {
            client.abort();
            let left = 4 - nth as u64;
            server
                .comes_to([left.min(1), left.saturating_sub(1), left, 0])
                .await;
        }
    }
    server.comes_to_rest().await;
    assert_eq!(
        server
            .connect(false)
            .await
            .get(Method::GET, "/")
            .await
            .unwrap()
            .0,
        200
    );
}

#[tokio::test]
async fn a_crowd_is_served_one_after_another() {
    let server = Server::start(2).await;
    let (start, mut clients) = (std::sync::Arc::new(Notify::new()), Vec::new());
    for nth in 0..20 {
        let (mut client, start) = (
            server.connect(nth % 2 == 0).await,
            std::sync::Arc::clone(&start),
        );
        clients.push(tokio::spawn(async move {
            start.notified().await;
            client.get(Method::GET, "/").await.unwrap().0
        }));
    }
    tokio::task::yield_now().await;
    start.notify_waiters();
    for client in clients {
        assert_eq!(
            timeout(Duration::from_secs(20), client)
                .await
                .unwrap()
                .unwrap(),
            200
        );
    }
    server.comes_to_rest().await;
    assert_eq!(server.places.snapshot().granted, 20);
}

/// A layer around a route, one around a group, and one whose keys are the routes.
#[tokio::test]
async fn routes_and_groups_have_limits_of_their_own() {
    let once = || LimitLayer::new(Limiter::new("window 1/h").unwrap());
    let by_route = |request: &Request<Body>| {
        request
            .extensions()
            .get::<MatchedPath>()
            .map(|path| path.as_str().to_owned())
    };
    let each_twice =
        LimitLayer::new(KeyedLimiter::<String>::new("window 2/h").unwrap()).by(by_route);
    let hello = || get(|| async { "hello" });
    let group = Router::new()
        .route("/one", hello())
        .route("/two", hello())
        .layer(once());
    let app = Router::new()
        .route("/limited", hello().layer(once()))
        .route("/free/{id}", hello())
        .nest("/group", group)
        .route_layer(each_twice.name("route").unwrap());
    for (path, expected) in [
        ("/limited", 200),
        ("/limited", 429),
        ("/group/one", 200),
        ("/group/two", 429),
        ("/free/1", 200),
        ("/free/2", 200),
        ("/free/3", 429), // the third request of this route
        ("/none", 404),
    ] {
        let answer = app
            .clone()
            .oneshot(Request::get(path).body(Body::empty()).unwrap())
            .await
            .unwrap();
        assert_eq!(answer.status(), expected, "{path}");
    }
}
