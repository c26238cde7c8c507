//! Known ways in which limits in HTTP go wrong, with a test for each. More of them are tested elsewhere: forged and malformed addresses
//! in client_ip.rs, rounding in http_fields.rs, permits that are lost in http_layer.rs, forgotten keys in keyed.rs.

use std::convert::Infallible;
use std::future::{pending, ready};
use std::net::{IpAddr, SocketAddr};

use crate::common::ms;
use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::get;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::advance;
use tollgate::layers::{ClientIp, LimitBody, LimitLayer};
use tollgate::{KeyedLimiter, Limiter, MaxConcurrency};
use tower::{Layer, Service, ServiceExt, service_fn};

type Answer = Response<Full<Bytes>>;

fn hello() -> impl Service<Request<()>, Response = Answer, Error = Infallible, Future: Send> + Clone
{
    service_fn(|_: Request<()>| ready(Ok(Answer::default())))
}

async fn status<S>(service: &S, request: Request<()>) -> u16
where
    S: Service<Request<()>, Response = Response<LimitBody<Full<Bytes>>>, Error = Infallible>
        + Clone,
{
    service
        .clone()
        .oneshot(request)
        .await
        .unwrap()
        .status()
        .as_u16()
}

fn from(peer: &str) -> Request<()> {
    let mut request = Request::new(());
    request
        .extensions_mut()
        .insert(peer.parse::<SocketAddr>().unwrap());
    request
}

/// Trap: the service owns the state. A server clones the service for each connection, so no limit is shared.
#[tokio::test(start_paused = true)]
async fn clones_of_a_service_and_of_its_layer_share_one_limit() {
    let layer = LimitLayer::new(Limiter::new("window 2/min").unwrap());
    let service = layer.layer(hello());
    let copies = [
        service.clone(),
        service.clone(),
        layer.layer(hello()),
        layer.clone().layer(hello()),
    ];
    let mut statuses = Vec::new();
    for copy in &copies {
        statuses.push(status(copy, Request::new(())).await);
    }
    assert_eq!(statuses, [200, 200, 429, 429]);
}

/// Trap: the key is the whole `X-Forwarded-For`, so a client gets a new budget with each value.
#[tokio::test(start_paused = true)]
async fn a_client_does_not_choose_its_key_by_a_header() {
    let limiter = KeyedLimiter::<IpAddr>::new("window 2/min").unwrap();
    let behind_proxy = ClientIp::behind_networks(["10.0.0.0/8"]).unwrap();
    let service = LimitLayer::new(limiter.clone())
        .by(behind_proxy)
        .layer(hello());
    let mut statuses = Vec::new();
    for forged in [
        "203.0.113.1",
        "203.0.113.2",
        "203.0.113.3",
        "not an address",
    ] {
        let mut direct = from("198.51.100.9:4711");
        direct
            .headers_mut()
            .insert("x-forwarded-for", forged.parse().unwrap());
        let mut proxied = from("10.0.0.1:4711");
        proxied.headers_mut().insert(
            "x-forwarded-for",
            format!("{forged}, 192.0.2.5").parse().unwrap(),
        );
        statuses.push([
            status(&service, direct).await,
            status(&service, proxied).await,
        ]);
    }
    assert_eq!(statuses, [[200, 200], [200, 200], [429, 429], [429, 429]]);
    assert_eq!(limiter.len(), 2);
}

/// Trap: the key is the address of the peer with its port, so each connection is a new client.
#[tokio::test(start_paused = true)]
async fn each_connection_of_a_client_has_the_same_key() {
    let service = LimitLayer::new(KeyedLimiter::<IpAddr>::new("window 2/min").unwrap())
        .by(ClientIp::peer())
        .layer(hello());
    let mut statuses = Vec::new();
    for port in 4_000..4_004 {
        statuses.push(status(&service, from(&format!("198.51.100.9:{port}"))).await);
    }
    assert_eq!(statuses, [200, 200, 429, 429]);
}

/// Trap: a client with an IPv6 network uses another address for each request, or all IPv4 clients share a key.
#[tokio::test(start_paused = true)]
async fn a_client_has_one_key_in_its_network_of_ipv6_and_not_that_of_all_ipv4() {
    let service = LimitLayer::new(KeyedLimiter::<IpAddr>::new("window 1/min").unwrap())
        .by(ClientIp::peer())
        .layer(hello());
    let mut statuses = Vec::new();
    for peer in [
        "[2001:db8::1]:1",
        "[2001:db8::2]:1",
        "[2001:db8:0:ff::3]:1",
        "[::ffff:192.0.2.1]:1",
        "[::ffff:192.0.2.2]:1",
    ] {
        statuses.push(status(&service, from(peer)).await);
    }
    assert_eq!(statuses, [200, 429, 429, 200, 200]);
}

/// Trap: a header that is set after the head was written never reaches the client. The test reads the bytes that a client gets.
#[tokio::test]
async fn the_fields_are_in_the_head_of_an_answer_that_is_sent() {
    let limiter = KeyedLimiter::<IpAddr>::new("window 1/min").unwrap();
    let client = ClientIp::peer().peer_from(|extensions| {
        extensions
            .get::<ConnectInfo<SocketAddr>>()
            .map(|peer| peer.0)
    });
    let router = Router::new()
        .route("/", get(|| async { "hello" }))
        .layer(LimitLayer::new(limiter).by(client));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async {
        axum::serve(
            listener,
            router.into_make_service_with_connect_info::<SocketAddr>(),
        )
        .await
        .unwrap();
    });
    for (status, field) in [
        ("200 OK", r#"ratelimit: "default";r=0;t="#),
        ("429 Too Many Requests", "retry-after: "),
    ] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream
            .write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            .await
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, _) = answer.split_once("\r\n\r\n").unwrap();
        assert!(
            head.starts_with(&format!("HTTP/1.1 {status}\r\n"))
                && head.contains(&format!("\r\n{field}")),
            "{answer}"
        );
    }
}

/// Trap: a wait below a second is written as 0 seconds, and the client comes back at once, again and again.
#[tokio::test(start_paused = true)]
async fn a_client_that_comes_back_after_retry_after_is_granted() {
    for (policy, after) in [
        ("5/s burst 1", 1),
        ("1/min burst 1", 60),
        ("window 1/1500ms", 2),
    ] {
        let service = LimitLayer::new(Limiter::new(policy).unwrap()).layer(hello());
        assert_eq!(status(&service, Request::new(())).await, 200);
        let denied = service.clone().oneshot(Request::new(())).await.unwrap();
        let reported: u64 = denied.headers()["retry-after"]
            .to_str()
            .unwrap()
            .parse()
            .unwrap();
        assert_eq!(reported, after, "{policy}");
        advance(ms(1_000 * reported)).await;
        assert_eq!(status(&service, Request::new(())).await, 200, "{policy}");
    }
}

/// Trap: the code after the call of the inner service releases the permit. That code does not run when the request is dropped.
#[tokio::test(start_paused = true)]
async fn a_permit_is_released_when_the_inner_future_is_dropped() {
    let never = service_fn(|_: Request<()>| pending::<Result<Answer, Infallible>>());
    let limiter = Limiter::new(MaxConcurrency::new(1)).unwrap();
    for _ in 0..3 {
        let mut call = tokio_test::task::spawn(
            LimitLayer::new(limiter.clone())
                .layer(never)
                .oneshot(Request::new(())),
        );
        assert!(call.poll().is_pending());
        assert_eq!(limiter.snapshot().in_flight, 1);
        drop(call);
        assert_eq!(limiter.snapshot().in_flight, 0);
    }
}
