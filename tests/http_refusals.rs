//! What operators and clients see of a request that a layer refuses, and no limiter has denied.

mod common;

use std::convert::Infallible;
use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::get;
use bytes::Bytes;
use common::faulty::{Faulty, Way};
use common::ms;
use http::{HeaderName, Request, Response};
use http_body::Body;
use http_body_util::BodyExt;
use tokio::time::{Instant, sleep, timeout};
use tollgate::http::{ClientIp, ForwardedHeader, HeaderKey, Identity, LimitLayer, NoClientIp, NoIdentity, RateLimitFields};
use tollgate::{EventKind, KeyedLimiter, KeyedLimiterEvent, Limiter, Observation, Observer, RefusedReason};
use tower::{Layer, Service, ServiceExt, service_fn};

/// Each event: the limiter, the key, and what it is.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<[String; 3]>>>);

impl Observer for Told {
    fn observe(&self, what: &Observation<'_>) {
        let key = what.key.map_or_else(String::new, |key| format!("{key:?}"));
        let kind = match what.kind {
            EventKind::Refused { cost, reason, error, requested_in, .. } => {
                assert_eq!(requested_in.file(), file!());
                format!("{} {cost}: {error}", reason.as_str())
            }
            other => format!("{other:?}").split([' ', '(']).next().unwrap().to_owned(),
        };
        self.0.lock().unwrap().push([what.name().unwrap_or_default().to_owned(), key, kind]);
    }
}

impl Told {
    fn take(&self) -> Vec<[String; 3]> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }

    /// The only event since the last look: the limiter and the key, its reason with the cost, and its words.
    #[track_caller]
    fn only(&self) -> [String; 3] {
        let all = self.take();
        let [[limiter, key, what]] = &all[..] else { panic!("{all:?}") };
        let (reason, words) = what.split_once(": ").unwrap_or((what, ""));
        [format!("{limiter} {key}"), reason.to_owned(), words.to_owned()]
    }
}

fn hello() -> impl Service<Request<()>, Response = Response<String>, Error = Infallible, Future: Send> + Clone {
    service_fn(async |_: Request<()>| Ok(Response::new("hello".to_owned())))
}

fn from_peer() -> Request<()> {
    let mut request = Request::new(());
    request.extensions_mut().insert(SocketAddr::from(([192, 0, 2, 1], 4711)));
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
    (status, String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap())
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
async fn what_a_layer_refuses_is_told_to_the_observer_of_its_limiter() {
    let told = Told::default();
    let limiter = Limiter::builder("2/min burst 2").name("plain").observer(told.clone()).build().unwrap();
    let layer = LimitLayer::new(limiter.clone());
    assert_eq!(status(layer.clone().cost(3).layer(hello()), from_peer()).await, 413);
    let too_large = "a cost of 3 is above 2, the most that `2/min` admits";
    assert_eq!(told.only(), ["plain ", "exceeds_limit 3", too_large]);
    assert_eq!(status(layer.clone().cost(0).layer(hello()), from_peer()).await, 500);
    assert_eq!(told.only(), ["plain ", "misconfigured 0", "a cost of 0 takes nothing; ask for at least 1"]);
    limiter.close();
    assert_eq!(told.only(), ["plain ", "Closed", ""]);
    for layer in [layer.clone(), layer.wait(ms(10))] {
        assert_eq!(status(layer.layer(hello()), from_peer()).await, 503);
        assert_eq!(told.only(), ["plain ", "closed 1", "the limiter is closed"]);
    }

    let units = Limiter::builder("4 tokens/min").observer(told.clone()).build().unwrap();
    assert_eq!(status(LimitLayer::new(units).layer(hello()), from_peer()).await, 500);
    let [_, reason, words] = told.only();
    assert!(reason == "misconfigured 1" && words.contains("counts tokens"), "{reason} {words}");
}

#[tokio::test(start_paused = true)]
async fn a_keyed_limiter_tells_the_key_if_it_is_known() {
    let (told, by_closure) = (Told::default(), Arc::new(Mutex::new(Vec::new())));
    let seen = Arc::clone(&by_closure);
    let on_event = move |event: KeyedLimiterEvent<'_, IpAddr>| {
        let KeyedLimiterEvent::Limiter { event, .. } = event else { panic!("{event:?}") };
        let EventKind::Refused { reason, .. } = event.kind else { panic!("{event:?}") };
        seen.lock().unwrap().push((event.name().map(str::to_owned), reason));
    };
    let builder = KeyedLimiter::<IpAddr>::builder("2/min burst 2").name("clients").observer(told.clone());
    let keyed = builder.on_event(on_event).build().unwrap();
    let layer = LimitLayer::new(keyed.clone()).by(ClientIp::peer());
    assert_eq!(status(layer.clone().layer(hello()), Request::new(())).await, 403);
    let [who, reason, words] = told.only();
    assert_eq!((who.as_str(), reason.as_str()), ("clients ", "no_identity 1"));
    assert!(words.contains("into_make_service_with_connect_info"), "it says what to do: {words}");
    assert!(by_closure.lock().unwrap().is_empty(), "it takes a key");
    assert!(keyed.is_empty());

    for layer in [layer.clone().cost(3), layer.cost(3).wait(ms(10))] {
        assert_eq!(status(layer.layer(hello()), from_peer()).await, 413);
        assert_eq!(told.only()[..2], ["clients 192.0.2.1", "exceeds_limit 3"]);
    }
    let expected = (Some("clients".to_owned()), RefusedReason::ExceedsLimit);
    assert_eq!(*by_closure.lock().unwrap(), [expected.clone(), expected]);
}

/// `StoreDown` comes once; each request that got 503 for it is told.
#[tokio::test(start_paused = true)]
async fn each_request_that_a_store_fails_is_told() {
    for by_key in [false, true] {
        for wait in [None, Some(ms(100))] {
            let (told, names) = (Told::default(), Arc::new(Mutex::new(Vec::new())));
            let seen = Arc::clone(&names);
            let builder = Faulty::by(Way::Refuses).builder("2/min burst 2").observer(told.clone());
            let builder = builder.on_event(move |event| seen.lock().unwrap().extend(event.name().map(str::to_owned)));
            let layer = LimitLayer::new(builder.build().unwrap());
            let layer = if let Some(wait) = wait { layer.wait(wait) } else { layer };
            let (together, apart) = (layer.clone().layer(hello()), layer.by(ClientIp::peer()).layer(hello()));
            for _ in 0..5 {
                let status =
                    if by_key { status(apart.clone(), from_peer()).await } else { status(together.clone(), from_peer()).await };
                assert_eq!(status, 503);
            }
            let (key, name) = if by_key { (r#""192.0.2.1""#, "test/192.0.2.1") } else { ("", "test") };
            let failed = "store_failed 1: the store faulty refuses the call: read only";
            let mut all = told.take();
            all.retain(|[_, _, what]| what != "StoreDown");
            assert_eq!(all, [0; 5].map(|_| ["test", key, failed].map(str::to_owned)), "{wait:?}");
            let names = std::mem::take(&mut *names.lock().unwrap());
            assert_eq!(names.iter().filter(|seen| *seen == name).count(), if by_key { 5 } else { 6 }, "{names:?}");
            if by_key {
                assert_eq!(status(apart, Request::new(())).await, 403);
                assert_eq!(told.only()[..2], ["test ", "no_identity 1"]);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_limiter_that_is_chosen_tells_of_its_own() {
    let told = Told::default();
    let small = Limiter::builder("1/min burst 1").name("small").observer(told.clone()).build().unwrap();
    let choose = move |_: &IpAddr| small.clone();
    let service = LimitLayer::choose(choose).by(ClientIp::peer()).cost(2).layer(hello());
    assert_eq!(status(service.clone(), from_peer()).await, 413);
    assert_eq!(told.only()[..2], ["small ", "exceeds_limit 2"]);
    assert_eq!(status(service, Request::new(())).await, 403);
    assert_eq!(told.take().len(), 0, "no limiter was chosen");
}

#[tokio::test(start_paused = true)]
async fn what_a_limiter_tells_is_not_told_twice() {
    let told = Told::default();
    let limiter = Limiter::builder("1 concurrent").max_queue(0).observer(told.clone()).build().unwrap();
    let _held = limiter.try_acquire().unwrap();
    let layer = LimitLayer::new(limiter);
    assert_eq!(status(layer.clone().layer(hello()), from_peer()).await, 503);
    assert_eq!(told.only()[1], "Denied");
    assert_eq!(status(layer.wait(ms(10)).layer(hello()), from_peer()).await, 503);
    assert_eq!(told.only()[1], "Shed");

    let keyed = KeyedLimiter::<IpAddr>::builder("1/min burst 1").max_keys(1).observer(told.clone()).build().unwrap();
    drop(keyed.try_acquire(&IpAddr::from([192, 0, 2, 9])).unwrap());
    let layer = LimitLayer::new(keyed).by(ClientIp::peer());
    assert_eq!(status(layer.clone().layer(hello()), from_peer()).await, 503);
    assert_eq!(told.only()[1], "TooManyKeys");
    let shared = layer.or_shared([192, 0, 2, 9].into()).wait(ms(10));
    assert_eq!(status(shared.layer(hello()), Request::new(())).await, 429);
    assert_eq!(told.only()[1], "TimedOut");
}

// ---- what clients see ----

/// The most common first mistake: the server is not told to hand the addresses on.
#[tokio::test(start_paused = true)]
async fn without_connect_info_the_403_says_what_is_missing() {
    let told = Told::default();
    let limiter = KeyedLimiter::<IpAddr>::builder("100/min").observer(told.clone()).build().unwrap();
    let client_ip = ClientIp::peer().peer_from(|extensions| extensions.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0));
    let router: Router = Router::new().route("/", get(|| async { "hello" })).layer(LimitLayer::new(limiter).by(client_ip));
    let (status, body) = answer(router, Request::new(axum::body::Body::empty())).await;
    assert_eq!(status, 403);
    let expected = r#"{"type":"about:blank","title":"Forbidden","status":403,"detail":"the request has no address of a peer"}"#;
    assert_eq!(body, expected);
    assert!(told.only()[2].contains("into_make_service_with_connect_info"));
}

#[tokio::test(start_paused = true)]
async fn a_403_tells_what_is_missing_and_nothing_of_the_server() {
    let forwarded = || ClientIp::behind_hops(2).unwrap().header(ForwardedHeader::XForwardedFor);
    let key = || HeaderKey::new(HeaderName::from_static("x-api-key"));
    let limiter = || LimitLayer::new(KeyedLimiter::<String>::new("9/min").unwrap());
    let by_ip = || LimitLayer::new(KeyedLimiter::<IpAddr>::new("9/min").unwrap()).by(forwarded()).layer(hello());
    let by_key = limiter().by(key()).layer(hello());
    let pair = KeyedLimiter::<(IpAddr, String)>::new("9/min").unwrap();
    let by_both = LimitLayer::new(pair).by((ClientIp::peer(), key())).layer(hello());
    let says_nothing = limiter().by(|_: &Request<()>| None).layer(hello());
    let passes_on = limiter().by(move |request: &Request<()>| key().identify(request)).layer(hello());
    let later = limiter().by_future(|request: &Request<()>| {
        let token = HeaderKey::bearer().identify(request);
        async { token }
    });
    let with = |name: &str, value: &str| Request::builder().header(name, value).body(()).unwrap();
    let x_forwarded_for = |value: &str| with("x-forwarded-for", value);
    let cases = [
        (answer(by_ip(), Request::new(())).await, "the request has no header X-Forwarded-For"),
        (answer(by_ip(), x_forwarded_for("192.0.2.1")).await, "the header X-Forwarded-For of the request has too few elements"),
        (
            answer(by_ip(), x_forwarded_for("unknown, 192.0.2.1")).await,
            "the header X-Forwarded-For of the request does not tell the address of the client",
        ),
        (
            answer(by_ip(), x_forwarded_for("<script>, 192.0.2.1")).await,
            "the header X-Forwarded-For of the request has an element that is no address",
        ),
        (answer(by_key.clone(), Request::new(())).await, "the request has no header x-api-key"),
        (answer(by_key, with("x-api-key", " ")).await, "the header x-api-key of the request has no usable value"),
        (answer(by_both.clone(), Request::new(())).await, "the request has no address of a peer"),
        (answer(by_both, from_peer()).await, "the request has no header x-api-key"),
        (answer(says_nothing, from_peer()).await, "who sends the request is unknown"),
        (answer(passes_on, from_peer()).await, "the request has no header x-api-key"),
        (answer(later.clone().layer(hello()), from_peer()).await, "the request has no header authorization"),
        (
            answer(later.layer(hello()), with("authorization", "Basic dTpw")).await,
            "the header authorization of the request has no usable value",
        ),
    ];
    for ((status, body), detail) in cases {
        let json: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!((status, json["status"].as_u64(), json["detail"].as_str()), (403, Some(403), Some(detail)));
    }
}

/// The default answer, with something of one's own; and the reason as data.
#[tokio::test(start_paused = true)]
async fn on_refusal_can_add_to_the_default_answer() {
    let why = Arc::new(Mutex::new(Vec::new()));
    let fields = RateLimitFields::new("api").unwrap();
    let limiter = KeyedLimiter::<IpAddr>::new("window 1/min").unwrap();
    let layer = LimitLayer::new(limiter).by(ClientIp::peer()).name("api").unwrap();
    let plain = layer.clone().layer(hello());
    let logged = Arc::clone(&why);
    let own = layer.on_refusal(move |refusal| {
        if let tollgate::http::Refusal::NoIdentity(unknown) = refusal {
            logged.lock().unwrap().push(unknown.clone());
        }
        let mut response = refusal.response(&fields);
        response.headers_mut().insert("x-help", "limits".parse().unwrap());
        response
    });
    let own = own.layer(hello());
    assert_eq!(status(plain.clone(), from_peer()).await, 200);
    for (request, expected) in [(from_peer as fn() -> Request<()>, 429), (|| Request::new(()), 403)] {
        let (by_default, added) =
            (plain.clone().oneshot(request()).await.unwrap(), own.clone().oneshot(request()).await.unwrap());
        assert_eq!((by_default.status().as_u16(), added.status().as_u16()), (expected, expected));
        let mut headers = added.headers().clone();
        assert_eq!(headers.remove("x-help").unwrap(), "limits");
        assert_eq!(&headers, by_default.headers());
        let (one, other) = (by_default.into_body().collect().await.unwrap(), added.into_body().collect().await.unwrap());
        assert_eq!(one.to_bytes(), other.to_bytes());
    }
    assert_eq!(*why.lock().unwrap(), [NoIdentity::ClientIp(NoClientIp::NoPeer)]);
}

/// As the docs of `by_future` say: its future is not bounded by `wait`, and can bound itself.
#[tokio::test(start_paused = true)]
async fn a_lookup_that_hangs_is_bounded_by_its_own_timeout() {
    let limiter = KeyedLimiter::<u64>::new("9/min").unwrap();
    let hour = Duration::from_secs(3_600);
    let lookup = move || async move {
        sleep(hour).await;
        Some(7)
    };
    let unbounded = LimitLayer::new(limiter.clone()).wait(ms(10)).by_future(move |_: &Request<()>| lookup());
    let bounded = LimitLayer::new(limiter).by_future(move |_: &Request<()>| async move {
        timeout(ms(200), lookup()).await.ok().flatten().ok_or(NoIdentity::Unknown)
    });
    let start = Instant::now();
    assert_eq!((status(bounded.layer(hello()), from_peer()).await, start.elapsed()), (403, ms(200)));
    assert_eq!((status(unbounded.layer(hello()), from_peer()).await, start.elapsed()), (200, hour + ms(200)));
}
