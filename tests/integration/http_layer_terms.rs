//! What a layer asks for by the request and settles by the response, whom it shares a limiter between, and what it would refuse.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{Random, ms};
use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::stream;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Empty, StreamBody};
use tokio::time::{advance, sleep};
use tollgate::layers::{ActualCost, HeaderKey, IntoLimiter, LimitLayer};
use tollgate::{
    Adapt, EventKind, KeyedLimiter, Limiter, LimiterEvent, MaxConcurrency, Outcome, Overflow,
    Policy, Priority, Rate, SharedLimiter, TokenBucket,
};
use tower::util::ServiceExt;
use tower::{Layer, Service, service_fn};

type Body = Empty<Bytes>;

/// Says hello, and counts the requests.
fn hello(
    served: &Arc<AtomicU64>,
) -> impl Service<Request<()>, Response = Response<Body>, Error = Infallible, Future: Send> + Clone
{
    let served = Arc::clone(served);
    service_fn(move |_: Request<()>| {
        served.fetch_add(1, Ordering::Relaxed);
        async { Ok(Response::new(Body::new())) }
    })
}

fn to(path: &str) -> Request<()> {
    Request::get(path).body(()).unwrap()
}

async fn status<S, R>(service: &S, request: Request<()>) -> u16
where
    S: Service<Request<()>, Response = Response<R>, Error: std::fmt::Debug> + Clone,
{
    let response = service.clone().oneshot(request).await;
    response.unwrap().status().as_u16()
}

/// The last part of the path.
fn number(path: &str) -> u64 {
    path.rsplit('/').next().unwrap().parse().unwrap()
}

fn bucket(units: u64) -> TokenBucket {
    TokenBucket::new(Rate::per_minute(units), units)
}

#[tokio::test(start_paused = true)]
async fn a_request_has_its_own_cost_also_by_unit() {
    let policy: Policy = "100/min and 3/min per request and 1000 tokens/min"
        .parse()
        .unwrap();
    let limiter = Limiter::new(policy).unwrap();
    let served = Arc::default();
    let service = LimitLayer::new(limiter.clone())
        .cost_by(|head| number(head.uri.path()))
        .cost_of("tokens", |head| 10 * number(head.uri.path()))
        .layer(hello(&served));
    let remaining = || {
        limiter
            .limits()
            .iter()
            .map(|limit| limit.remaining)
            .collect::<Vec<_>>()
    };

    let response = service.clone().oneshot(to("/9")).await.unwrap();
    assert_eq!(remaining(), [91, 2, 910]);
    let left = response.headers()["ratelimit"].to_str().unwrap();
    assert!(left.contains("r=91") && left.contains("r=910"), "{left}");
    assert_eq!(status(&service, to("/0")).await, 200);
    assert_eq!(remaining(), [91, 2, 910], "a cost of 0 asks for nothing");
    assert_eq!(status(&service, to("/91")).await, 200);
    assert_eq!(status(&service, to("/1")).await, 429);
    assert_eq!(status(&service, to("/101")).await, 413);
    assert_eq!(served.load(Ordering::Relaxed), 3);
}

#[tokio::test(start_paused = true)]
async fn requests_that_wait_have_their_priority_and_share_by_their_key() {
    let limiter = Limiter::builder(MaxConcurrency::new(1))
        .max_queue(20)
        .overflow(Overflow::DropLongest)
        .build()
        .unwrap();
    let (order, served) = (Arc::new(Mutex::new(Vec::new())), Arc::default());
    let log = Arc::clone(&order);
    let slow = service_fn(move |request: Request<()>| {
        log.lock().unwrap().push(request.uri().path().to_owned());
        async {
            sleep(ms(10)).await;
            Ok::<_, Infallible>(Response::new(Body::new()))
        }
    });
    let service = LimitLayer::new(limiter)
        .wait(Duration::from_secs(60))
        .fair_by(|request: &Request<()>| Some(request.uri().path().chars().nth(1)))
        .weight_by(|head| {
            if head.uri.path().starts_with("/b") {
                2
            } else {
                1
            }
        })
        .priority_by(|head| match head.uri.path() {
            "/urgent" => Priority::HIGH,
            _ => Priority::NORMAL,
        })
        .layer(slow);
    let paths = [
        "/a1", "/a2", "/a3", "/a4", "/b1", "/b2", "/b3", "/b4", "/urgent",
    ];
    let answers = paths.map(|path| status(&service, to(path)));
    assert_eq!(join_all(answers).await, [200; 9]);
    let expected = [
        "/a1", "/urgent", "/b1", "/b2", "/a2", "/b3", "/b4", "/a3", "/a4",
    ];
    assert_eq!(*order.lock().unwrap(), expected);

    let flood = (0..40).map(|_| status(&service, to("/a")));
    let (flood, quiet) = tokio::join!(join_all(flood), async {
        sleep(ms(1)).await;
        status(&service, to("/b")).await
    });
    assert_eq!(quiet, 200, "it took the place of a request of the flood");
    assert_eq!(flood.iter().filter(|status| **status == 200).count(), 20);
    let heavy = LimitLayer::new(Limiter::new("1 concurrent").unwrap());
    let heavy = heavy.weight_by(|_| 0).layer(hello(&served));
    assert_eq!(status(&heavy, to("/")).await, 500, "a weight of 0");
}

/// A stream whose handler learns the cost while it sends.
fn learning(
    cost: ActualCost,
) -> StreamBody<impl futures_util::Stream<Item = Result<Frame<Bytes>, Infallible>>> {
    StreamBody::new(stream::unfold(0, move |sent| {
        let cost = cost.clone();
        async move {
            cost.set_of("tokens", 100 * sent);
            let frame = Frame::data(Bytes::from_static(b"word"));
            (sent < 5).then_some((Ok(frame), sent + 1))
        }
    }))
}

#[tokio::test(start_paused = true)]
async fn a_permit_is_settled_when_the_body_ends_or_the_client_goes() {
    let limiter = Limiter::new("2 concurrent per request and 1000 tokens/min").unwrap();
    let streaming = service_fn(async |_: Request<()>| {
        let cost = ActualCost::default();
        let mut response = Response::new(Box::pin(learning(cost.clone())));
        response.extensions_mut().insert(cost);
        Ok::<_, Infallible>(response)
    });
    let service = LimitLayer::new(limiter.clone())
        .cost_of("tokens", |_| 900)
        .settle_by(|head| head.extensions.get().cloned())
        .layer(streaming);
    let left = || (limiter.limits()[0].remaining, limiter.limits()[1].remaining);

    let response = service.clone().oneshot(to("/")).await.unwrap();
    assert_eq!(left(), (1, 100));
    response.into_body().collect().await.unwrap();
    assert_eq!(left(), (2, 500), "after the last frame");

    advance(Duration::from_secs(60)).await;
    let mut response = service.clone().oneshot(to("/")).await.unwrap();
    for _ in 0..2 {
        response.frame().await.unwrap().unwrap();
    }
    assert_eq!(left(), (1, 100));
    drop(response); // the client has gone
    assert_eq!(
        left(),
        (2, 900),
        "100 tokens were sent for the second frame"
    );

    // A handler that sets nothing leaves the estimate.
    let silent = service_fn(async |_: Request<()>| {
        let mut response = Response::new(Body::new());
        response.extensions_mut().insert(ActualCost::default());
        Ok::<_, Infallible>(response)
    });
    advance(Duration::from_secs(60)).await;
    let layer = LimitLayer::new(limiter.clone()).cost_of("tokens", |_| 400);
    let service = layer
        .settle_by(|head| head.extensions.get().cloned())
        .layer(silent);
    assert_eq!(status(&service, to("/")).await, 200);
    assert_eq!(left(), (2, 600));
}

#[tokio::test(start_paused = true)]
async fn a_header_settles_limiters_of_each_kind_and_the_outcome_is_still_reported() {
    let used = service_fn(async |request: Request<()>| {
        let mut response = Response::new(Body::new());
        let used = number(request.uri().path());
        response.headers_mut().insert("x-used", used.into());
        Ok::<_, Infallible>(response)
    });
    fn by_header<L: Clone>(limiter: impl IntoLimiter<Limiter = L>) -> LimitLayer<L> {
        LimitLayer::new(limiter).cost(50).settle_by(|head| {
            let used = head.headers.get("x-used")?.to_str().ok()?.parse().ok()?;
            Some(ActualCost::new(used))
        })
    }
    let one = Limiter::new(bucket(100)).unwrap();
    assert_eq!(
        status(&by_header(one.clone()).layer(used), to("/7")).await,
        200
    );
    assert_eq!(one.available(), 93);
    assert_eq!(
        status(&by_header(one.clone()).layer(used), to("/120")).await,
        200
    );
    assert_eq!(
        one.check(1).retry_after(),
        Some(ms(600 * 28)),
        "a debt of 27, and one unit"
    );

    let keyed = KeyedLimiter::<String>::builder(bucket(100))
        .settle_permits()
        .build()
        .unwrap();
    let key = |_: &Request<()>| Some("k".to_owned());
    let service = by_header(keyed.clone()).by(key).layer(used);
    assert_eq!(status(&service, to("/7")).await, 200);
    assert_eq!(keyed.check("k", 1).remaining(), 93);

    let store = tollgate::store::MemoryStore::new();
    let shared = SharedLimiter::new(store, "used", bucket(100)).unwrap();
    assert_eq!(
        status(&by_header(shared.clone()).layer(used), to("/7")).await,
        200
    );
    sleep(ms(10)).await;
    assert_eq!(shared.limits().await.unwrap()[0].remaining, 93);

    // No handle of the key is left when the body ends.
    let key = |_: &Request<()>| Some("k".to_owned());
    let service = by_header(&shared).by(key).layer(used);
    assert_eq!(status(&service, to("/7")).await, 200);
    sleep(ms(10)).await;
    assert_eq!(shared.key("k").limits().await.unwrap()[0].remaining, 93);

    let adaptive = MaxConcurrency::new(100)
        .per_request()
        .adapt(Adapt::aimd().between(1, 200).backoff(500));
    let adaptive = Limiter::new(adaptive.and(bucket(100))).unwrap();
    let layer = by_header(adaptive.clone()).classify(|_| Outcome::Overloaded);
    assert_eq!(status(&layer.layer(used), to("/7")).await, 200);
    assert_eq!(adaptive.snapshot().concurrency, Some(50));
    assert_eq!(adaptive.limits()[1].remaining, 93);
}

/// The same random requests to a layer in shadow mode and to one that enforces the limit.
#[tokio::test(start_paused = true)]
async fn a_shadow_denies_nobody_and_decides_like_its_enforcing_twin() {
    let policies = [
        "3 concurrent",
        "5/s burst 2",
        "2 concurrent and 20/10s",
        "penalty 3 falling 1/s",
        "sliding log 4/s",
    ];
    for (nth, policy) in policies.into_iter().enumerate() {
        let would_refuse = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&would_refuse);
        let observer = move |event: &LimiterEvent<'_>| {
            if let EventKind::WouldRefuse { status, .. } = event.kind {
                assert!([429, 503].contains(status));
                count.fetch_add(1, Ordering::Relaxed);
            }
        };
        let shadow = Limiter::builder(policy).observer(observer).build().unwrap();
        let twin = Limiter::new(policy).unwrap();
        let slow = |served: &Arc<AtomicU64>| {
            let served = Arc::clone(served);
            service_fn(move |request: Request<()>| {
                served.fetch_add(1, Ordering::Relaxed);
                async move {
                    sleep(ms(number(request.uri().path()))).await;
                    Ok::<_, Infallible>(Response::new(Body::new()))
                }
            })
        };
        let (of_shadow, of_twin) = (Arc::default(), Arc::default());
        let waits = nth % 2 == 1;
        let layer = |limiter: &Limiter| {
            let layer = LimitLayer::new(limiter.clone());
            if waits { layer.wait(ms(300)) } else { layer }
        };
        let shadow_service = layer(&shadow).shadow().layer(slow(&of_shadow));
        let twin_service = layer(&twin).layer(slow(&of_twin));
        let mut random = Random(nth as u64 + 1);
        let mut both = Vec::new();
        for _ in 0..300 {
            let path = format!("/{}", random.below(900));
            both.push(tokio::spawn({
                let (shadow, twin) = (shadow_service.clone(), twin_service.clone());
                async move { tokio::join!(status(&shadow, to(&path)), status(&twin, to(&path))) }
            }));
            sleep(ms(random.below(200))).await;
            let (one, other) = (shadow.snapshot(), twin.snapshot());
            assert_eq!(
                (one.granted, one.denied),
                (other.granted, other.denied),
                "{policy}"
            );
        }
        let statuses: Vec<_> = join_all(both)
            .await
            .into_iter()
            .map(Result::unwrap)
            .collect();
        assert!(statuses.iter().all(|(shadow, _)| *shadow == 200));
        let refused = statuses.iter().filter(|(_, twin)| *twin != 200).count() as u64;
        assert!(refused > 10, "{policy}: {refused}");
        assert_eq!(would_refuse.load(Ordering::Relaxed), refused, "{policy}");
        assert_eq!(of_shadow.load(Ordering::Relaxed), 300);
        assert_eq!(of_twin.load(Ordering::Relaxed), 300 - refused);
    }
}

#[tokio::test(start_paused = true)]
async fn a_shadow_shows_clients_nothing_and_serves_unknown_ones() {
    let served = Arc::default();
    let layer = LimitLayer::new(KeyedLimiter::new(bucket(1)).unwrap());
    let service = layer.by(HeaderKey::bearer()).shadow().layer(hello(&served));
    for token in ["", "Bearer a", "Bearer a"] {
        let request = Request::get("/")
            .header("authorization", token)
            .body(())
            .unwrap();
        let response = service.clone().oneshot(request).await.unwrap();
        assert_eq!(
            (response.status().as_u16(), response.headers().len()),
            (200, 0)
        );
    }
    assert_eq!(served.load(Ordering::Relaxed), 3);

    // The status is the one of the twin: a place of a key is a quota.
    let (sender, statuses) = std::sync::mpsc::channel();
    let observer = move |event: &LimiterEvent<'_>| {
        if let EventKind::WouldRefuse { status, .. } = event.kind {
            sender.send(*status).unwrap();
        }
    };
    let places = KeyedLimiter::<String>::builder("1 concurrent").observer(observer);
    let places = places.build().unwrap();
    let _held = places.try_acquire("a").unwrap();
    let layer = LimitLayer::new(&places).by(HeaderKey::bearer());
    let request = || Request::get("/").header("authorization", "Bearer a");
    let request = || request().body(()).unwrap();
    let shadow = layer.clone().shadow();
    assert_eq!(status(&shadow.layer(hello(&served)), request()).await, 200);
    let waiting = layer.clone().shadow().wait(ms(10));
    assert_eq!(status(&waiting.layer(hello(&served)), request()).await, 200);
    assert_eq!(status(&layer.layer(hello(&served)), request()).await, 429);
    assert_eq!(statuses.try_iter().collect::<Vec<_>>(), [429, 429]);
}

#[tokio::test(start_paused = true)]
async fn stacked_layers_charge_a_request_all_or_none() {
    let total = Limiter::new(Policy::from(MaxConcurrency::new(50)).and(bucket(100))).unwrap();
    let per_client = KeyedLimiter::<String>::builder(bucket(3))
        .settle_permits()
        .build()
        .unwrap();
    let served = Arc::default();
    let of_total = || LimitLayer::new(total.clone()).name("total").unwrap();
    let of_client = LimitLayer::new(per_client.clone()).name("client").unwrap();
    let of_client = || of_client.clone().by(HeaderKey::bearer());
    let request = |client: &str| {
        let token = format!("Bearer {client}");
        Request::get("/")
            .header("authorization", token)
            .body(())
            .unwrap()
    };
    let outer_total = of_total().layer(of_client().layer(hello(&served)));
    let statuses = join_all((0..10).map(|_| status(&outer_total, request("a")))).await;
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 3);
    assert_eq!(
        (
            total.limits()[1].remaining,
            per_client.check("a", 1).remaining()
        ),
        (97, 0)
    );

    let rest = (0..97).map(|_| total.try_acquire().unwrap().release());
    assert_eq!(rest.count(), 97);
    let outer_client = of_client().layer(of_total().layer(hello(&served)));
    assert_eq!(status(&outer_client, request("b")).await, 429);
    assert_eq!(
        per_client.check("b", 1).remaining(),
        3,
        "the total limit refused"
    );
    assert_eq!(served.load(Ordering::Relaxed), 3);
    assert_eq!(total.snapshot().in_flight, 0);
}
