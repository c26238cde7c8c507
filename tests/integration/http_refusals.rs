//! What operators and clients see of a request that a layer refuses although no limiter has denied it.

use std::convert::Infallible;
use std::fmt::Debug;
use std::future::ready;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::faulty::{Faulty, Way};
use crate::common::ms;
use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::get;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, Method, Request, Response};
use http_body::Body;
use http_body_util::BodyExt;
use tokio::time::{Instant, advance, sleep, timeout};
use tollgate::layers::{
    ClientIp, ForwardedHeader, HeaderKey, Identity, LimitLayer, NoClientIp, NoIdentity,
    OutboundLayer, RateLimitFields, RateLimitStyle,
};
use tollgate::{EventKind, KeyedLimiter, Limiter, LimiterEvent, Observer, Outcome, RefusedReason};
use tower::{Layer, Service, ServiceExt, service_fn};

/// Collects each event: the limiter, the key, and the kind.
#[derive(Clone, Default)]
struct Reported(Arc<Mutex<Vec<[String; 3]>>>);

impl Observer for Reported {
    fn observe(&self, event: &LimiterEvent<'_>) {
        let key = event.key.map_or_else(String::new, |key| format!("{key:?}"));
        let kind = match event.kind {
            EventKind::Refused {
                cost,
                reason,
                error,
                requested_in,
                ..
            } => {
                assert_eq!(requested_in.file(), file!());
                format!("{} {cost}: {error}", reason.as_str())
            }
            other => format!("{other:?}")
                .split([' ', '('])
                .next()
                .unwrap()
                .to_owned(),
        };
        self.0
            .lock()
            .unwrap()
            .push([event.name().unwrap_or_default().to_owned(), key, kind]);
    }
}

impl Reported {
    fn take(&self) -> Vec<[String; 3]> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }

    /// The only event since the last call: the limiter and the key, the reason with the cost, and the text.
    #[track_caller]
    fn only(&self) -> [String; 3] {
        let all = self.take();
        let [[limiter, key, what]] = &all[..] else {
            panic!("{all:?}")
        };
        let (reason, words) = what.split_once(": ").unwrap_or((what, ""));
        [
            format!("{limiter} {key}"),
            reason.to_owned(),
            words.to_owned(),
        ]
    }
}

fn hello()
-> impl Service<Request<()>, Response = Response<String>, Error = Infallible, Future: Send> + Clone
{
    service_fn(async |_: Request<()>| Ok(Response::new("hello".to_owned())))
}

fn from_peer() -> Request<()> {
    let mut request = Request::new(());
    request
        .extensions_mut()
        .insert(SocketAddr::from(([192, 0, 2, 1], 4711)));
    request
}

/// The status and the body.
async fn answer<S, R, B>(service: S, request: Request<R>) -> (u16, String)
where
    S: Service<Request<R>, Response = Response<B>, Error: Debug>,
    B: Body<Data = Bytes, Error: Debug>,
{
    let response = service.oneshot(request).await.unwrap();
    let status = response.status().as_u16();
    (
        status,
        String::from_utf8(
            response
                .into_body()
                .collect()
                .await
                .unwrap()
                .to_bytes()
                .to_vec(),
        )
        .unwrap(),
    )
}

async fn status<S, B>(service: S, request: Request<()>) -> u16
where
    S: Service<Request<()>, Response = Response<B>, Error: Debug>,
    B: Body<Data = Bytes, Error: Debug>,
{
    answer(service, request).await.0
}

// ---- what operators see ----

#[tokio::test(start_paused = true)]
async fn refusals_of_a_layer_are_reported_to_the_observer_of_its_limiter() {
    let reported = Reported::default();
    let limiter = Limiter::builder("2/min burst 2")
        .name("plain")
        .observer(reported.clone())
        .build()
        .unwrap();
    let layer = LimitLayer::new(limiter.clone());
    assert_eq!(
        status(layer.clone().cost(3).layer(hello()), from_peer()).await,
        413
    );
    let too_large = "a cost of 3 is above 2, the most that `2/min` admits";
    assert_eq!(reported.only(), ["plain ", "exceeds_limit 3", too_large]);
    assert_eq!(
        status(layer.clone().cost(0).layer(hello()), from_peer()).await,
        500
    );
    assert_eq!(
        reported.only(),
        [
            "plain ",
            "misconfigured 0",
            "a cost of 0 takes nothing; ask for at least 1"
        ]
    );
    limiter.close();
    assert_eq!(reported.only(), ["plain ", "Closed", ""]);
    for layer in [layer.clone(), layer.wait(ms(10))] {
        assert_eq!(status(layer.layer(hello()), from_peer()).await, 503);
        assert_eq!(
            reported.only(),
            ["plain ", "closed 1", "the limiter is closed"]
        );
    }

    let units = Limiter::builder("4 tokens/min")
        .observer(reported.clone())
        .build()
        .unwrap();
    assert_eq!(
        status(LimitLayer::new(units).layer(hello()), from_peer()).await,
        500
    );
    let [_, reason, words] = reported.only();
    assert!(
        reason == "misconfigured 1" && words.contains("counts tokens"),
        "{reason} {words}"
    );
}

#[tokio::test(start_paused = true)]
async fn the_event_of_a_keyed_limiter_has_the_key_if_it_is_known() {
    let (reported, by_closure) = (Reported::default(), Arc::new(Mutex::new(Vec::new())));
    let seen = Arc::clone(&by_closure);
    let on_event = move |event: &LimiterEvent<'_>| {
        let EventKind::Refused { reason, .. } = event.kind else {
            panic!("{event:?}")
        };
        seen.lock().unwrap().push((
            event.name().map(str::to_owned),
            event.key.is_some(),
            *reason,
        ));
    };
    let builder = KeyedLimiter::<IpAddr>::builder("2/min burst 2")
        .name("clients")
        .observer(reported.clone());
    let keyed = builder.on_event(on_event).build().unwrap();
    let layer = LimitLayer::new(keyed.clone()).by(ClientIp::peer());
    assert_eq!(
        status(layer.clone().layer(hello()), Request::new(())).await,
        403
    );
    let [who, reason, words] = reported.only();
    assert_eq!(
        (who.as_str(), reason.as_str()),
        ("clients ", "no_identity 1")
    );
    assert!(
        words.contains("into_make_service_with_connect_info"),
        "it says what to do: {words}"
    );
    assert!(keyed.is_empty());

    for layer in [layer.clone().cost(3), layer.cost(3).wait(ms(10))] {
        assert_eq!(status(layer.layer(hello()), from_peer()).await, 413);
        assert_eq!(
            reported.only()[..2],
            ["clients 192.0.2.1", "exceeds_limit 3"]
        );
    }
    let of = |has_key, reason| (Some("clients".to_owned()), has_key, reason);
    let too_large = of(true, RefusedReason::ExceedsLimit);
    assert_eq!(
        *by_closure.lock().unwrap(),
        [
            of(false, RefusedReason::NoIdentity),
            too_large.clone(),
            too_large
        ]
    );
}

/// `StoreDown` comes once, and `Refused` for each request that got 503 for it.
#[tokio::test(start_paused = true)]
async fn each_request_that_fails_because_of_its_store_is_an_event() {
    for by_key in [false, true] {
        for wait in [None, Some(ms(100))] {
            let (reported, keys) = (Reported::default(), Arc::new(Mutex::new(Vec::new())));
            let seen = Arc::clone(&keys);
            let builder = Faulty::by(Way::Refuses)
                .builder("2/min burst 2")
                .observer(reported.clone());
            let builder = builder.on_event(move |event| {
                let key = event.key.map(|key| format!("{key:?}"));
                seen.lock().unwrap().push(key.unwrap_or_default());
            });
            let layer = LimitLayer::new(builder.build().unwrap());
            let layer = if let Some(wait) = wait {
                layer.wait(wait)
            } else {
                layer
            };
            let (together, apart) = (
                layer.clone().layer(hello()),
                layer.by(ClientIp::peer()).layer(hello()),
            );
            for _ in 0..5 {
                let status = if by_key {
                    status(apart.clone(), from_peer()).await
                } else {
                    status(together.clone(), from_peer()).await
                };
                assert_eq!(status, 503);
            }
            let key = if by_key { r#""192.0.2.1""# } else { "" };
            let failed = "store_failed 1: the store faulty refuses the call: read only";
            let mut all = reported.take();
            all.retain(|[_, _, what]| what != "StoreDown");
            assert_eq!(
                all,
                [0; 5].map(|_| ["test", key, failed].map(str::to_owned)),
                "{wait:?}"
            );
            let keys = std::mem::take(&mut *keys.lock().unwrap());
            assert_eq!(
                keys.iter().filter(|seen| *seen == key).count(),
                if by_key { 5 } else { 6 },
                "{keys:?}"
            );
            if by_key {
                assert_eq!(status(apart, Request::new(())).await, 403);
                assert_eq!(reported.only()[..2], ["test ", "no_identity 1"]);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_chosen_limiter_reports_its_own_refusals() {
    let reported = Reported::default();
    let small = Limiter::builder("1/min burst 1")
        .name("small")
        .observer(reported.clone())
        .build()
        .unwrap();
    let choose = move |_: &IpAddr| small.clone();
    let service = LimitLayer::choose(choose)
        .by(ClientIp::peer())
        .cost(2)
        .layer(hello());
    assert_eq!(status(service.clone(), from_peer()).await, 413);
    assert_eq!(reported.only()[..2], ["small ", "exceeds_limit 2"]);
    assert_eq!(status(service, Request::new(())).await, 403);
    assert_eq!(reported.take().len(), 0, "no limiter was chosen");
}

#[tokio::test(start_paused = true)]
async fn what_a_limiter_reports_is_not_reported_twice() {
    let reported = Reported::default();
    let limiter = Limiter::builder("1 concurrent")
        .max_queue(0)
        .observer(reported.clone())
        .build()
        .unwrap();
    let _held = limiter.try_acquire().unwrap();
    let layer = LimitLayer::new(limiter);
    assert_eq!(status(layer.clone().layer(hello()), from_peer()).await, 503);
    assert_eq!(reported.only()[1], "Denied");
    assert_eq!(
        status(layer.wait(ms(10)).layer(hello()), from_peer()).await,
        503
    );
    assert_eq!(reported.only()[1], "Shed");

    let keyed = KeyedLimiter::<IpAddr>::builder("1/min burst 1")
        .max_keys(1)
        .observer(reported.clone())
        .build()
        .unwrap();
    drop(keyed.try_acquire(&IpAddr::from([192, 0, 2, 9])).unwrap());
    let layer = LimitLayer::new(keyed).by(ClientIp::peer());
    assert_eq!(status(layer.clone().layer(hello()), from_peer()).await, 503);
    assert_eq!(reported.only()[1], "TooManyKeys");
    let shared = layer.or_shared([192, 0, 2, 9].into()).wait(ms(10));
    assert_eq!(status(shared.layer(hello()), Request::new(())).await, 429);
    assert_eq!(reported.only()[1], "TimedOut");
}

// ---- what clients see ----

/// The most common first mistake: the server does not pass the addresses on.
#[tokio::test(start_paused = true)]
async fn without_connect_info_the_403_says_what_is_missing() {
    let reported = Reported::default();
    let limiter = KeyedLimiter::<IpAddr>::builder("100/min")
        .observer(reported.clone())
        .build()
        .unwrap();
    let client_ip = ClientIp::peer().peer_from(|extensions| {
        extensions
            .get::<ConnectInfo<SocketAddr>>()
            .map(|peer| peer.0)
    });
    let router: Router = Router::new()
        .route("/", get(|| async { "hello" }))
        .layer(LimitLayer::new(limiter).by(client_ip));
    let (status, body) = answer(router, Request::new(axum::body::Body::empty())).await;
    assert_eq!(status, 403);
    let expected = r#"{"type":"about:blank","title":"Forbidden","status":403,"detail":"the request has no address of a peer"}"#;
    assert_eq!(body, expected);
    assert!(reported.only()[2].contains("into_make_service_with_connect_info"));
}

#[tokio::test(start_paused = true)]
async fn a_403_says_what_is_missing_and_nothing_else_about_the_server() {
    let forwarded = || {
        ClientIp::behind_hops(2)
            .unwrap()
            .header(ForwardedHeader::XForwardedFor)
    };
    let key = || HeaderKey::new(HeaderName::from_static("x-api-key"));
    let limiter = || LimitLayer::new(KeyedLimiter::<String>::new("9/min").unwrap());
    let by_ip = || {
        LimitLayer::new(KeyedLimiter::<IpAddr>::new("9/min").unwrap())
            .by(forwarded())
            .layer(hello())
    };
    let by_key = limiter().by(key()).layer(hello());
    let pair = KeyedLimiter::<(IpAddr, String)>::new("9/min").unwrap();
    let by_both = LimitLayer::new(pair)
        .by((ClientIp::peer(), key()))
        .layer(hello());
    let says_nothing = limiter().by(|_: &Request<()>| None).layer(hello());
    let passes_on = limiter()
        .by(move |request: &Request<()>| key().identify(request))
        .layer(hello());
    let later = limiter().by_async(|request: &Request<()>| {
        let token = HeaderKey::bearer().identify(request);
        async { token }
    });
    let with = |name: &str, value: &str| Request::builder().header(name, value).body(()).unwrap();
    let x_forwarded_for = |value: &str| with("x-forwarded-for", value);
    let cases = [
        (
            answer(by_ip(), Request::new(())).await,
            "the request has no header X-Forwarded-For",
        ),
        (
            answer(by_ip(), x_forwarded_for("192.0.2.1")).await,
            "the header X-Forwarded-For of the request has too few elements",
        ),
        (
            answer(by_ip(), x_forwarded_for("unknown, 192.0.2.1")).await,
            "the header X-Forwarded-For of the request does not tell the address of the client",
        ),
        (
            answer(by_ip(), x_forwarded_for("<script>, 192.0.2.1")).await,
            "the header X-Forwarded-For of the request has an element that is no address",
        ),
        (
            answer(by_key.clone(), Request::new(())).await,
            "the request has no header x-api-key",
        ),
        (
            answer(by_key, with("x-api-key", " ")).await,
            "the header x-api-key of the request has no usable value",
        ),
        (
            answer(by_both.clone(), Request::new(())).await,
            "the request has no address of a peer",
        ),
        (
            answer(by_both, from_peer()).await,
            "the request has no header x-api-key",
        ),
        (
            answer(says_nothing, from_peer()).await,
            "the client that sends the request is unknown",
        ),
        (
            answer(passes_on, from_peer()).await,
            "the request has no header x-api-key",
        ),
        (
            answer(later.clone().layer(hello()), from_peer()).await,
            "the request has no header authorization",
        ),
        (
            answer(later.layer(hello()), with("authorization", "Basic dTpw")).await,
            "the header authorization of the request has no usable value",
        ),
    ];
    for ((status, body), detail) in cases {
        let json: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(
            (status, json["status"].as_u64(), json["detail"].as_str()),
            (403, Some(403), Some(detail))
        );
    }
}

/// The closure changes the default answer, and reads the reason as data.
#[tokio::test(start_paused = true)]
async fn on_refusal_can_add_to_the_default_answer() {
    let why = Arc::new(Mutex::new(Vec::new()));
    let fields = RateLimitFields::new("api").unwrap();
    let limiter = KeyedLimiter::<IpAddr>::new("window 1/min").unwrap();
    let layer = LimitLayer::new(limiter)
        .by(ClientIp::peer())
        .name("api")
        .unwrap();
    let plain = layer.clone().layer(hello());
    let logged = Arc::clone(&why);
    let own = layer.on_refusal(move |refusal| {
        if let tollgate::layers::Refusal::NoIdentity(unknown) = refusal {
            logged.lock().unwrap().push(unknown.clone());
        }
        let mut response = refusal.response(&fields);
        response
            .headers_mut()
            .insert("x-help", "limits".parse().unwrap());
        response
    });
    let own = own.layer(hello());
    assert_eq!(status(plain.clone(), from_peer()).await, 200);
    for (request, expected) in [
        (from_peer as fn() -> Request<()>, 429),
        (|| Request::new(()), 403),
    ] {
        let (by_default, added) = (
            plain.clone().oneshot(request()).await.unwrap(),
            own.clone().oneshot(request()).await.unwrap(),
        );
        assert_eq!(
            (by_default.status().as_u16(), added.status().as_u16()),
            (expected, expected)
        );
        let mut headers = added.headers().clone();
        assert_eq!(headers.remove("x-help").unwrap(), "limits");
        assert_eq!(&headers, by_default.headers());
        let (one, other) = (
            by_default.into_body().collect().await.unwrap(),
            added.into_body().collect().await.unwrap(),
        );
        assert_eq!(one.to_bytes(), other.to_bytes());
    }
    assert_eq!(
        *why.lock().unwrap(),
        [NoIdentity::ClientIp(NoClientIp::NoPeer)]
    );
}

/// As the docs of `by_async` state, `wait` does not bound the future, but the future can have its own timeout.
#[tokio::test(start_paused = true)]
async fn a_lookup_that_hangs_is_bounded_by_its_own_timeout() {
    let limiter = KeyedLimiter::<u64>::new("9/min").unwrap();
    let hour = Duration::from_secs(3_600);
    let lookup = move || async move {
        sleep(hour).await;
        Some(7)
    };
    let unbounded = LimitLayer::new(limiter.clone())
        .wait(ms(10))
        .by_async(move |_: &Request<()>| lookup());
    let bounded = LimitLayer::new(limiter).by_async(move |_: &Request<()>| async move {
        timeout(ms(200), lookup())
            .await
            .ok()
            .flatten()
            .ok_or(NoIdentity::Unknown)
    });
    let start = Instant::now();
    assert_eq!(
        (
            status(bounded.layer(hello()), from_peer()).await,
            start.elapsed()
        ),
        (403, ms(200))
    );
    assert_eq!(
        (
            status(unbounded.layer(hello()), from_peer()).await,
            start.elapsed()
        ),
        (200, hour + ms(200))
    );
}

// ---- what clients of gRPC see ----

fn grpc_call() -> Request<()> {
    let mut request = from_peer();
    *request.method_mut() = Method::POST;
    request
        .headers_mut()
        .insert("content-type", "application/grpc".parse().unwrap());
    request
}

/// The fields of a refusal that has no body.
async fn trailers_only<S, B>(service: S, request: Request<()>) -> HeaderMap
where
    S: Service<Request<()>, Response = Response<B>, Error: Debug>,
    B: Body<Data = Bytes, Error: Debug>,
{
    let response = service.oneshot(request).await.unwrap();
    assert_eq!(
        (response.status().as_u16(), response.body().is_end_stream()),
        (200, true)
    );
    assert_eq!(response.headers()["content-type"], "application/grpc");
    response.headers().clone()
}

#[tokio::test(start_paused = true)]
async fn a_quota_and_a_capacity_have_statuses_of_grpc() {
    let quota = LimitLayer::new(Limiter::new("window 1/min and 9/min").unwrap())
        .name("a%\"")
        .unwrap()
        .layer(hello());
    assert_eq!(status(quota.clone(), grpc_call()).await, 200);
    advance(Duration::from_micros(500)).await;
    let refused = trailers_only(quota, grpc_call()).await;
    let fields = [
        "grpc-status",
        "grpc-message",
        "retry-after",
        "grpc-retry-pushback-ms",
    ];
    assert_eq!(
        fields.map(|field| refused[field].to_str().unwrap()),
        ["8", "Quota Exceeded: \"a%25\\\"-1\"", "60", "60000"]
    );
    assert_eq!(
        refused["ratelimit-policy"],
        "\"a%\\\"-1\";q=1;w=60, \"a%\\\"-2\";q=9;w=60"
    );
    assert!(
        refused["ratelimit"]
            .to_str()
            .unwrap()
            .starts_with("\"a%\\\"-1\";r=0;t=60, ")
    );

    let limiter = Limiter::new("1 concurrent").unwrap();
    let _held = limiter.try_acquire().unwrap();
    let refused = trailers_only(LimitLayer::new(limiter).layer(hello()), grpc_call()).await;
    assert_eq!(
        (&refused["grpc-status"], &refused["ratelimit"]),
        (&"14".parse().unwrap(), &"\"default\";r=0".parse().unwrap())
    );
    assert_eq!(
        refused["grpc-message"],
        "Temporary Reduced Capacity: \"default\""
    );
    assert!(
        !refused.contains_key("grpc-retry-pushback-ms"),
        "when is unknown"
    );
}

#[tokio::test(start_paused = true)]
async fn each_refusal_has_its_status_of_grpc() {
    let limit = || Limiter::new("window 1/min").unwrap();
    let closed = limit();
    closed.close();
    let full = KeyedLimiter::<IpAddr>::builder("1/min")
        .max_keys(1)
        .build()
        .unwrap();
    drop(full.try_acquire(&IpAddr::from([192, 0, 2, 9])).unwrap());
    let by_key = LimitLayer::new(KeyedLimiter::<String>::new("9/min").unwrap());
    let key = HeaderKey::new(HeaderName::from_static("x-api-key"));
    let penalty = LimitLayer::new(Limiter::new("penalty 1 falling 1/min").unwrap()).layer(hello());
    assert_eq!(status(penalty.clone(), from_peer()).await, 200);
    let paused = limit();
    paused.pause_for(ms(1_500));
    let down = Faulty::by(Way::Refuses)
        .builder("2/min burst 2")
        .build()
        .unwrap();
    let queue = Limiter::builder("1 concurrent")
        .max_queue(0)
        .build()
        .unwrap();
    let _held = queue.try_acquire().unwrap();
    for (refused, status, message) in [
        (
            trailers_only(penalty, grpc_call()).await,
            "8",
            "Abnormal Usage Detected: \"default\"",
        ),
        (
            trailers_only(LimitLayer::new(paused).layer(hello()), grpc_call()).await,
            "14",
            "Temporary Reduced Capacity",
        ),
        (
            trailers_only(
                LimitLayer::new(queue).wait(ms(9)).layer(hello()),
                grpc_call(),
            )
            .await,
            "14",
            "Temporary Reduced Capacity",
        ),
        (
            trailers_only(
                LimitLayer::new(full).by(ClientIp::peer()).layer(hello()),
                grpc_call(),
            )
            .await,
            "14",
            "Temporary Reduced Capacity",
        ),
        (
            trailers_only(LimitLayer::new(down).layer(hello()), grpc_call()).await,
            "14",
            "Temporary Reduced Capacity",
        ),
        (
            trailers_only(LimitLayer::new(closed).layer(hello()), grpc_call()).await,
            "14",
            "Temporary Reduced Capacity",
        ),
        (
            trailers_only(by_key.by(key).layer(hello()), grpc_call()).await,
            "16",
            "Forbidden: the request has no header x-api-key",
        ),
        (
            trailers_only(LimitLayer::new(limit()).cost(2).layer(hello()), grpc_call()).await,
            "9",
            "Payload Too Large",
        ),
        (
            trailers_only(LimitLayer::new(limit()).cost(0).layer(hello()), grpc_call()).await,
            "13",
            "Internal Server Error",
        ),
    ] {
        assert_eq!(
            (&refused["grpc-status"], &refused["grpc-message"]),
            (&status.parse().unwrap(), &message.parse().unwrap())
        );
    }
}

/// gRPC-Web has a framing of its own, and browsers understand the plain answer.
#[tokio::test(start_paused = true)]
async fn a_call_of_grpc_is_known_by_its_content_type() {
    let limiter = Limiter::new("window 1/min").unwrap();
    let _spent = limiter.try_acquire().unwrap();
    let service = LimitLayer::new(limiter).layer(hello());
    let with = |method: Method, content_type: &str| {
        Request::builder()
            .method(method)
            .header("content-type", content_type)
            .body(())
            .unwrap()
    };
    for content_type in [
        "application/grpc",
        "application/grpc+proto",
        "application/grpc+json",
        "Application/GRPC+Proto",
        "application/grpc;charset=utf-8",
        "application/grpc+proto ; charset=utf-8",
    ] {
        let refused = trailers_only(service.clone(), with(Method::POST, content_type)).await;
        assert_eq!(refused["grpc-status"], "8", "{content_type}");
    }
    for (method, content_type) in [
        (Method::POST, "application/json"),
        (Method::POST, "application/grpc-web"),
        (Method::POST, "application/grpc-web+proto"),
        (Method::POST, "application/grpc-web-text"),
        (Method::POST, "application/grpcx"),
        (Method::POST, "text/plain; of=application/grpc"),
        (Method::GET, "application/grpc"),
        (Method::HEAD, "application/grpc"),
    ] {
        let response = service
            .clone()
            .oneshot(with(method.clone(), content_type))
            .await
            .unwrap();
        assert_eq!(response.status(), 429, "{method} {content_type}");
        assert_eq!(
            response.headers()["content-type"],
            "application/problem+json",
            "{method} {content_type}"
        );
        assert!(
            !response
                .headers()
                .keys()
                .any(|name| name.as_str().starts_with("grpc-")),
            "{method} {content_type}"
        );
    }
    assert_eq!(
        status(
            service,
            Request::builder().method(Method::POST).body(()).unwrap()
        )
        .await,
        429
    );
}

#[tokio::test(start_paused = true)]
async fn the_wait_of_a_refusal_of_grpc_is_rounded_up_to_a_millisecond() {
    for (interval, waited, pushback, retry_after) in [
        ("1/min", Duration::from_micros(59_249_999), "751", "1"),
        ("1/min", Duration::from_micros(59_999_999), "1", "1"),
        ("1/hour", Duration::ZERO, "3600000", "3600"),
        // A signed number of 32 bits: any other value asks the client never to retry.
        ("1/100d", Duration::ZERO, "2147483647", "8640000"),
    ] {
        let service = LimitLayer::new(Limiter::new(interval).unwrap())
            .style(RateLimitStyle::None)
            .layer(hello());
        assert_eq!(status(service.clone(), grpc_call()).await, 200);
        advance(waited).await;
        let refused = trailers_only(service, grpc_call()).await;
        assert_eq!(refused["grpc-retry-pushback-ms"], pushback, "{interval}");
        assert_eq!(refused["retry-after"], retry_after, "{interval}");
    }
    let limiter = Limiter::new("1/min").unwrap();
    let _spent = limiter.try_acquire().unwrap();
    let refused = trailers_only(
        LimitLayer::new(limiter)
            .retry_jitter(Duration::from_secs(9))
            .layer(hello()),
        grpc_call(),
    )
    .await;
    let pushback: u64 = refused["grpc-retry-pushback-ms"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    let seconds: u64 = refused["retry-after"].to_str().unwrap().parse().unwrap();
    assert!(
        (60_000..=69_000).contains(&pushback) && seconds == pushback.div_ceil(1_000),
        "{pushback} {seconds}"
    );
}

/// An outer layer that granted the call, and has nothing left for the next one, makes both waits longer. It refunds a call that an
/// inner layer refuses.
#[tokio::test(start_paused = true)]
async fn an_outer_layer_makes_the_wait_of_grpc_longer_unless_it_refunds_the_call() {
    let busy = service_fn(async |_: Request<()>| {
        let refusal = Response::builder()
            .header("content-type", "application/grpc")
            .header("grpc-status", "8")
            .header("retry-after", "1")
            .header("grpc-retry-pushback-ms", "1000");
        Ok::<_, Infallible>(refusal.body(String::new()).unwrap())
    });
    let spent = Limiter::new("1/s").unwrap();
    let _spent = spent.try_acquire().unwrap();
    let inner = LimitLayer::new(spent).name("inner").unwrap();
    let outer = || {
        let limiter = Limiter::new("window 1/min").unwrap();
        LimitLayer::new(limiter).name("outer").unwrap()
    };
    let waits = |refused: HeaderMap| {
        ["retry-after", "grpc-retry-pushback-ms"]
            .map(|name| refused[name].to_str().unwrap().to_owned())
    };
    let of_application = trailers_only(outer().layer(busy), grpc_call()).await;
    assert_eq!(waits(of_application), ["60", "60000"]);
    let of_inner = trailers_only(outer().layer(inner.layer(busy)), grpc_call()).await;
    assert_eq!(waits(of_inner), ["1", "1000"]);
}

#[tokio::test(start_paused = true)]
async fn on_refusal_answers_calls_of_grpc_too() {
    let fields = RateLimitFields::new("api").unwrap();
    let limiter = Limiter::new("window 1/min").unwrap();
    let _spent = limiter.try_acquire().unwrap();
    let layer = LimitLayer::new(limiter).name("api").unwrap();
    let own = layer.clone().on_refusal(|refusal| {
        assert_eq!(refusal.grpc_code(), 8);
        Response::builder().status(418).body("no".into()).unwrap()
    });
    let (status, body) = answer(own.layer(hello()), grpc_call()).await;
    assert_eq!((status, body.as_str()), (418, "no"));
    // The answer keeps its own wait if that is longer, or if it asks the client never to retry.
    for (pushback, expected) in [
        ("-1", "-1"),
        ("never", "never"),
        ("5", "60000"),
        ("70000", "70000"),
    ] {
        let own = layer.clone().on_refusal(move |_| {
            Response::builder()
                .header("grpc-retry-pushback-ms", pushback)
                .body(Bytes::new())
                .unwrap()
        });
        let response = own.layer(hello()).oneshot(grpc_call()).await.unwrap();
        assert_eq!(response.headers()["grpc-retry-pushback-ms"], expected);
    }
    let added = layer.clone().on_refusal(move |refusal| {
        let mut response = refusal.grpc_response(&fields);
        response
            .headers_mut()
            .insert("x-help", "limits".parse().unwrap());
        response
    });
    let mut headers = trailers_only(added.layer(hello()), grpc_call()).await;
    assert_eq!(headers.remove("x-help").unwrap(), "limits");
    assert_eq!(
        headers,
        trailers_only(layer.layer(hello()), grpc_call()).await
    );
}

/// Outer layers and clients see the status that the refusal would have in plain HTTP. No outcome is reported for a refusal within.
#[tokio::test(start_paused = true)]
async fn layers_outside_see_the_status_of_a_refusal_of_grpc() {
    let refuses = |policy: &str| {
        let limiter = Limiter::new(policy).unwrap();
        let permit = limiter.try_acquire().unwrap();
        (
            permit,
            LimitLayer::new(limiter)
                .name("inner")
                .unwrap()
                .layer(hello()),
        )
    };
    for (policy, expected) in [("window 1/min", 429), ("1 concurrent", 503)] {
        let (_held, inner) = refuses(policy);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (classified, penalized) = (Arc::clone(&seen), Arc::clone(&seen));
        let outer = LimitLayer::new(Limiter::new("9 concurrent").unwrap())
            .classify(move |status| {
                classified.lock().unwrap().push(status.unwrap().as_u16());
                Outcome::Ok
            })
            .penalize(move |status| {
                penalized.lock().unwrap().push(status.as_u16());
                0
            });
        let _refused = trailers_only(outer.layer(inner), grpc_call()).await;
        assert_eq!(
            *seen.lock().unwrap(),
            [expected],
            "a refusal within is not classified"
        );
    }
    let with_status = |grpc_status: &'static str| {
        service_fn(move |_: Request<()>| {
            let answer = Response::builder()
                .header("content-type", "application/grpc")
                .header("grpc-status", grpc_status);
            ready(Ok::<_, Infallible>(answer.body(String::new()).unwrap()))
        })
    };
    for (grpc_status, expected) in [
        ("0", 200),
        ("5", 404),
        ("16", 401),
        ("4", 504),
        ("13", 500),
        ("99", 500),
        ("x", 500),
    ] {
        let layer =
            LimitLayer::new(Limiter::new("9 concurrent").unwrap()).classify(move |status| {
                assert_eq!(status.unwrap().as_u16(), expected, "{grpc_status}");
                Outcome::Ok
            });
        let _answer = layer
            .layer(with_status(grpc_status))
            .oneshot(grpc_call())
            .await
            .unwrap();
    }

    // A client pauses for as long as the answer says.
    let (_held, inner) = refuses("window 1/min");
    let limiter = Limiter::new("9 concurrent").unwrap();
    let client = OutboundLayer::new(limiter.clone()).layer(inner);
    assert_eq!(
        client.oneshot(grpc_call()).await.unwrap().headers()["grpc-status"],
        "8"
    );
    let start = Instant::now();
    let _permit = limiter.acquire().await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(60));
}
