//! The layer of HTTP clients: what a request waits for, how the upstream's answers affect other requests, and that nothing is left behind.

use std::convert::Infallible;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::upstreams::FIELDS;
use crate::common::{limiter, ms};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, StreamBody};
use proptest::prelude::*;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};
use tollgate::layers::{
    OutboundError, OutboundLayer, PermitBody, ResetFormat, UpstreamFamily, UpstreamReader,
};
use tollgate::store::MemoryStore;
use tollgate::{
    AcquireError, Adapt, EventKind, KeyedLimiter, Limiter, LimiterEvent, LimiterSnapshot,
    MaxConcurrency, Outcome, SharedLimiter, Throttle,
};
use tower::{Layer, Service, ServiceExt, service_fn};

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn get(uri: &str) -> Request<String> {
    Request::get(uri).body(String::new()).unwrap()
}

/// An answer with a status and the fields of `name: value` lines.
fn answer(status: u16, fields: &str) -> Response<String> {
    let mut answer = Response::builder().status(status);
    for (name, value) in fields.lines().filter_map(|line| line.split_once(": ")) {
        answer = answer.header(name, value);
    }
    answer.body("body".to_owned()).unwrap()
}

/// An upstream that gives these answers, each at once, and then 200. It counts the calls.
#[derive(Clone, Default)]
struct Upstream {
    answers: Arc<Mutex<Vec<Response<String>>>>,
    calls: Arc<AtomicUsize>,
}

impl Upstream {
    fn new(answers: impl IntoIterator<Item = Response<String>>) -> Self {
        let mut answers: Vec<_> = answers.into_iter().collect();
        answers.reverse();
        Self {
            answers: Arc::new(Mutex::new(answers)),
            ..Self::default()
        }
    }

    fn service(
        &self,
    ) -> impl Service<Request<String>, Response = Response<String>, Error = Infallible, Future: Send>
    + Clone
    + Send
    + use<> {
        let this = self.clone();
        service_fn(move |_: Request<String>| {
            this.calls.fetch_add(1, Relaxed);
            let answer = this
                .answers
                .lock()
                .unwrap()
                .pop()
                .unwrap_or_else(|| answer(200, ""));
            async move { Ok(answer) }
        })
    }
}

fn is_idle(snapshot: &LimiterSnapshot) -> bool {
    (snapshot.in_flight, snapshot.queued) == (0, 0)
}

#[tokio::test(start_paused = true)]
async fn a_permit_is_held_until_the_body_has_ended_or_is_dropped() {
    let limiter = limiter(MaxConcurrency::new(2));
    let client = OutboundLayer::new(limiter.clone()).layer(Upstream::default().service());
    let read = client.clone().oneshot(get("http://a/")).await.unwrap();
    let dropped = client.clone().oneshot(get("http://a/")).await.unwrap();
    assert_eq!(limiter.snapshot().in_flight, 2);
    let mut waiting = tokio_test::task::spawn(client.clone().oneshot(get("http://a/")));
    assert!(waiting.poll().is_pending());
    let mut body = read.into_body();
    assert_eq!(
        body.frame().await.unwrap().unwrap().into_data().unwrap(),
        "body"
    );
    assert!(waiting.is_woken());
    drop(waiting.await.unwrap());
    assert_eq!(limiter.snapshot().in_flight, 1);
    drop(dropped);
    assert!(is_idle(&limiter.snapshot()));

    let client = OutboundLayer::new(limiter.clone())
        .until_head()
        .layer(Upstream::default().service());
    let _response = client.oneshot(get("http://a/")).await.unwrap();
    assert!(is_idle(&limiter.snapshot()));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_cut_gives_the_permit_back() {
    let limiter = limiter(MaxConcurrency::new(1));
    let client = service_fn(|_: Request<()>| async {
        let frames = [
            Ok(http_body::Frame::data(Bytes::from("half"))),
            Err(io::Error::from(io::ErrorKind::ConnectionReset)),
        ];
        Ok::<_, Infallible>(Response::new(StreamBody::new(futures_util::stream::iter(
            frames,
        ))))
    });
    let response = OutboundLayer::new(limiter.clone())
        .layer(client)
        .oneshot(Request::new(()))
        .await
        .unwrap();
    let mut body = response.into_body();
    assert!(body.frame().await.unwrap().is_ok());
    assert_eq!(limiter.snapshot().in_flight, 1);
    assert!(body.frame().await.unwrap().is_err());
    assert!(is_idle(&limiter.snapshot()));
}

#[tokio::test(start_paused = true)]
async fn a_body_without_content_holds_nothing() {
    let limiter = limiter(MaxConcurrency::new(1));
    let client = service_fn(|_: Request<()>| async {
        Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
    });
    let _response: Response<PermitBody<_>> = OutboundLayer::new(limiter.clone())
        .layer(client)
        .oneshot(Request::new(()))
        .await
        .unwrap();
    assert!(is_idle(&limiter.snapshot()));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_an_error_and_nothing_is_sent() {
    let upstream = Upstream::default();
    let limiter = limiter(MaxConcurrency::new(1));
    let _busy = limiter.try_acquire().unwrap();
    let client = OutboundLayer::new(limiter.clone())
        .timeout(secs(5))
        .layer(upstream.service());
    let start = Instant::now();
    let error = client.clone().oneshot(get("http://a/")).await.unwrap_err();
    assert!(
        matches!(error, OutboundError::Acquire(AcquireError::TimedOut { .. })),
        "{error:?}"
    );
    assert_eq!(start.elapsed(), secs(5));
    limiter.close();
    let error = client.oneshot(get("http://a/")).await.unwrap_err();
    assert!(matches!(
        error,
        OutboundError::Acquire(AcquireError::Closed)
    ));
    let full = KeyedLimiter::builder(MaxConcurrency::new(1))
        .max_keys(1)
        .build()
        .unwrap();
    let _other = full.try_acquire("other").unwrap();
    let error = OutboundLayer::by_host(full)
        .layer(upstream.service())
        .oneshot(get("http://a/"))
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            OutboundError::Acquire(AcquireError::TooManyKeys { max: 1 })
        ),
        "{error:?}"
    );
    assert_eq!(upstream.calls.load(Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn a_denial_holds_back_all_requests_until_the_instant_that_it_names() {
    let upstream = Upstream::new([answer(429, "retry-after: 30")]);
    let limiter = limiter(MaxConcurrency::new(8));
    let client = OutboundLayer::new(limiter).layer(upstream.service());
    let start = Instant::now();
    assert_eq!(
        client
            .clone()
            .oneshot(get("http://a/"))
            .await
            .unwrap()
            .status(),
        429
    );
    let all = (0..4)
        .map(|_| tokio::spawn(client.clone().oneshot(get("http://a/"))))
        .collect::<Vec<_>>();
    sleep(secs(30) - ms(1)).await;
    assert_eq!(upstream.calls.load(Relaxed), 1);
    for one in all {
        assert_eq!(one.await.unwrap().unwrap().status(), 200);
    }
    assert_eq!(start.elapsed(), secs(30));
}

#[tokio::test(start_paused = true)]
async fn a_denial_by_one_host_holds_back_no_other() {
    let upstream = Upstream::new([answer(503, "retry-after: 30")]);
    let per_host = KeyedLimiter::new(MaxConcurrency::new(8)).unwrap();
    let client = OutboundLayer::by_host(per_host.clone()).layer(upstream.service());
    let start = Instant::now();
    drop(
        client
            .clone()
            .oneshot(get("http://user@A:80/x"))
            .await
            .unwrap(),
    );
    drop(client.clone().oneshot(get("http://b:80/")).await.unwrap());
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert!(per_host.check("a", 1).is_paused() && !per_host.check("b", 1).is_paused());
    drop(client.clone().oneshot(get("http://a:81/y")).await.unwrap());
    drop(client.clone().oneshot(get("https://a:80/y")).await.unwrap());
    assert_eq!(start.elapsed(), Duration::ZERO);
    drop(client.clone().oneshot(get("http://a/y")).await.unwrap());
    assert_eq!(start.elapsed(), secs(30));
    let _held = client.clone().oneshot(get("https://c:443/")).await.unwrap();
    assert_eq!(per_host.snapshot("c").unwrap().in_flight, 1);

    // The same hosts, with another form of the port, or with a dot at the end.
    let keys = per_host.len();
    for uri in [
        "https://C:0443/",
        "https://c:/",
        "https://user:443@c/",
        "http://b:080/",
        "http://b./",
        "https://c.:443/",
    ] {
        drop(client.clone().oneshot(get(uri)).await.unwrap());
        assert_eq!(per_host.len(), keys, "{uri}");
    }
    let _held = client
        .clone()
        .oneshot(get("https://[2001:DB8::443]:443/"))
        .await
        .unwrap();
    assert_eq!(per_host.snapshot("[2001:db8::443]").unwrap().in_flight, 1);

    let by_field = Request::get("/path")
        .header("host", "B:80")
        .body(String::new())
        .unwrap();
    let _held = client.oneshot(by_field).await.unwrap();
    assert_eq!(per_host.snapshot("b:80").unwrap().in_flight, 1);
}

#[tokio::test(start_paused = true)]
async fn the_closure_chooses_the_key() {
    let per_path = KeyedLimiter::<String>::new(Throttle::every(secs(1))).unwrap();
    let client = OutboundLayer::by_key(per_path, |request| request.uri.path().to_owned())
        .layer(Upstream::default().service());
    let start = Instant::now();
    for (path, at) in [("/a", 0), ("/b", 0), ("/a", 1), ("/b", 1)] {
        drop(
            client
                .clone()
                .oneshot(get(&format!("http://host{path}")))
                .await
                .unwrap(),
        );
        assert_eq!(start.elapsed(), secs(at));
    }
}

#[tokio::test(start_paused = true)]
async fn a_shared_limiter_is_held_back_in_this_process() {
    let upstream = Upstream::new([answer(429, "retry-after: 30")]);
    let store = MemoryStore::new();
    let [one, other] =
        [(); 2].map(|()| SharedLimiter::new(store.clone(), "api", "8 concurrent").unwrap());
    let client = OutboundLayer::new(one.clone()).layer(upstream.service());
    let start = Instant::now();
    drop(client.clone().oneshot(get("http://a/")).await.unwrap());
    drop(other.acquire().await.unwrap());
    assert_eq!(start.elapsed(), Duration::ZERO);
    drop(client.oneshot(get("http://a/")).await.unwrap());
    assert_eq!(start.elapsed(), secs(30));
    sleep(ms(1)).await;
    assert!(is_idle(&one.snapshot()));
}

/// Each layer is that of another process, with the same store.
#[tokio::test(start_paused = true)]
async fn processes_share_the_limits_of_each_host() {
    let (store, upstream) = (MemoryStore::new(), Upstream::default());
    let clients = [(); 2].map(|()| {
        let shared = SharedLimiter::new(store.clone(), "api", "sliding log 6/min").unwrap();
        OutboundLayer::by_host(shared).layer(upstream.service())
    });
    let call = |nth: usize, uri: &str| tokio::spawn(clients[nth % 2].clone().oneshot(get(uri)));
    let all: Vec<_> = (0..18).map(|nth| call(nth, "http://a/")).collect();
    for calls in [6, 12, 18] {
        sleep(secs(1)).await;
        assert_eq!(upstream.calls.load(Relaxed), calls);
        sleep(secs(58)).await;
        assert_eq!(upstream.calls.load(Relaxed), calls);
        sleep(secs(1)).await;
    }
    for one in all {
        assert_eq!(one.await.unwrap().unwrap().status(), 200);
    }

    let start = Instant::now();
    for nth in 0..6 {
        for host in ["http://b/", "http://C/", "http://c:8080/"] {
            drop(call(nth, host).await.unwrap().unwrap());
        }
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
    drop(call(0, "http://c/").await.unwrap().unwrap());
    assert_eq!(start.elapsed(), secs(60));
}

/// Nothing keeps the key between two requests.
#[tokio::test(start_paused = true)]
async fn a_host_with_a_shared_limit_is_held_back_in_this_process() {
    let upstream = Upstream::new([answer(429, "retry-after: 30")]);
    let store = MemoryStore::new();
    let [one, other] = [(); 2].map(|()| {
        let shared = SharedLimiter::new(store.clone(), "api", "8 concurrent and 100/s").unwrap();
        OutboundLayer::by_host(shared).layer(upstream.service())
    });
    let start = Instant::now();
    for (client, uri, at) in [
        (&one, "http://a/", 0),
        (&one, "http://b/", 1),
        (&other, "http://a/", 2),
        (&one, "http://a/", 30),
    ] {
        drop(client.clone().oneshot(get(uri)).await.unwrap());
        assert_eq!(start.elapsed(), secs(at), "{uri}");
        sleep(secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_shared_limiter_has_keys_of_several_types() {
    let shared = SharedLimiter::new(MemoryStore::new(), "api", Throttle::every(secs(1))).unwrap();
    let by_number = OutboundLayer::by_key(shared.clone(), |request| {
        (request.uri.path().to_owned(), 7_u64)
    });
    let client = by_number.layer(Upstream::default().service());
    let start = Instant::now();
    for (path, at) in [("/a", 0), ("/b", 0), ("/a", 1), ("/b", 1)] {
        drop(
            client
                .clone()
                .oneshot(get(&format!("http://host{path}")))
                .await
                .unwrap(),
        );
        assert_eq!(start.elapsed(), secs(at));
    }
    assert!(!shared.key("2:/a7").check(1).await.unwrap().is_allowed());
}

#[tokio::test(start_paused = true)]
async fn a_quota_that_runs_out_is_spread_for_a_key_too() {
    let fields = "x-ratelimit-remaining: 3\nx-ratelimit-reset: 60";
    let upstream = Upstream::new([answer(200, fields)]);
    let per_host = KeyedLimiter::builder(MaxConcurrency::new(8))
        .spread_below(10)
        .build()
        .unwrap();
    let reader = UpstreamReader::new(UpstreamFamily::XRateLimit(ResetFormat::Seconds));
    let client = OutboundLayer::by_host(per_host)
        .upstream(reader)
        .layer(upstream.service());
    let start = Instant::now();
    for at in [0, 0, 20, 40, 60] {
        drop(client.clone().oneshot(get("http://a/")).await.unwrap());
        assert_eq!(start.elapsed(), secs(at));
    }
}

#[tokio::test(start_paused = true)]
async fn requests_and_tokens_are_distinguished() {
    let few = "x-ratelimit-remaining-requests: 400\nx-ratelimit-reset-requests: 1s\n";
    let spent = format!("{few}x-ratelimit-remaining-tokens: 0\nx-ratelimit-reset-tokens: 6m0s");
    let left = format!("{few}x-ratelimit-remaining-tokens: 5\nx-ratelimit-reset-tokens: 6m0s");
    for (fields, names_tokens, waits) in [(&spent, true, 360), (&spent, false, 0), (&left, true, 0)]
    {
        let policy = if names_tokens {
            "500/min per request and 100000 tokens/min"
        } else {
            "500/min"
        };
        let limiter = Limiter::builder(policy).spread_below(100).build().unwrap();
        let layer = OutboundLayer::new(limiter.clone())
            .upstream(UpstreamReader::new(UpstreamFamily::OpenAi));
        let layer = if names_tokens {
            layer.cost_of("tokens", |request| {
                request.extensions.get().copied().unwrap_or(1_000)
            })
        } else {
            layer
        };
        let client = layer.layer(Upstream::new([answer(200, fields)]).service());
        let start = Instant::now();
        let mut request = get("http://a/");
        request.extensions_mut().insert(40_000_u64);
        drop(client.clone().oneshot(request).await.unwrap());
        if names_tokens {
            assert_eq!(limiter.limits()[1].remaining, 60_000);
        }
        drop(client.oneshot(get("http://a/")).await.unwrap());
        assert_eq!(start.elapsed(), secs(waits), "{policy}");
    }
}

/// Anthropic's quotas have hyphens in their names. The units of costs mostly have underscores.
#[tokio::test(start_paused = true)]
async fn a_unit_is_the_same_with_a_hyphen_and_with_an_underscore() {
    for (unit, left, waits) in [
        ("input_tokens", "input-tokens: 0", 30),
        ("input-tokens", "input-tokens: 0", 30),
        ("Input_Tokens", "input-tokens: 0", 30),
        ("output_tokens", "output-tokens: 0", 30),
        ("input_tokens", "output-tokens: 0", 0),
        ("input_tokens", "tokens: 0", 0),
        ("input_tokens", "input-tokens: 1", 0),
    ] {
        let (quota, left) = left.split_once(": ").unwrap();
        let date = "date: Mon, 23 Nov 2026 01:00:00 GMT";
        let reset = format!("anthropic-ratelimit-{quota}-reset: 2026-11-23T01:00:30Z");
        let upstream = Upstream::new([answer(
            200,
            &format!("{date}\nanthropic-ratelimit-{quota}-remaining: {left}\n{reset}"),
        )]);
        let limiter =
            Limiter::new(format!("500/min per request and 100000 {unit}/min").as_str()).unwrap();
        let reader = UpstreamReader::new(UpstreamFamily::Anthropic);
        let client = OutboundLayer::new(limiter)
            .upstream(reader)
            .cost_of(unit, |_| 1_000)
            .layer(upstream.service());
        let start = Instant::now();
        for at in [0, waits] {
            drop(client.clone().oneshot(get("http://a/")).await.unwrap());
            assert_eq!(start.elapsed(), secs(at), "{unit} {quota}");
        }
    }
}

/// OpenAI's quota of a project has a name of its own.
#[tokio::test(start_paused = true)]
async fn a_quota_holds_back_requests_that_count_its_unit() {
    let fields = "x-ratelimit-limit-project-tokens: 2000000\nx-ratelimit-remaining-project-tokens: 0\n\
        x-ratelimit-reset-project-tokens: 30s\nx-ratelimit-remaining-tokens: 90000\nx-ratelimit-reset-tokens: 1s";
    for (status, unit, also, waits) in [
        (200, "project-tokens", None, 30),
        (200, "project_tokens", None, 30),
        (200, "tokens", None, 0),
        (200, "tokens", Some("project-tokens"), 30), // no limit counts this unit
        (429, "tokens", None, 30), // a denial without a time: until a quota that is spent, whatever it counts, is reset
    ] {
        let limiter =
            Limiter::new(format!("500/min per request and 100000 {unit}/min").as_str()).unwrap();
        let layer = OutboundLayer::new(limiter)
            .upstream(UpstreamReader::new(UpstreamFamily::OpenAi))
            .cost_of(unit, |_| 1_000);
        let layer = also
            .into_iter()
            .fold(layer, |layer, unit| layer.cost_of(unit, |_| 0));
        let client = layer.layer(Upstream::new([answer(status, fields)]).service());
        let start = Instant::now();
        for at in [0, waits] {
            drop(client.clone().oneshot(get("http://a/")).await.unwrap());
            assert_eq!(start.elapsed(), secs(at), "{status} {unit} {also:?}");
        }
    }
}

/// A fixed bug: each request was refused.
#[tokio::test(start_paused = true)]
async fn a_timeout_above_100_years_is_one_of_100_years() {
    let limiter = limiter(MaxConcurrency::new(1));
    let held = limiter.try_acquire().unwrap();
    let client = OutboundLayer::new(limiter)
        .timeout(Duration::MAX)
        .layer(Upstream::default().service());
    let mut waits = tokio_test::task::spawn(client.oneshot(get("http://a/")));
    assert!(waits.poll().is_pending());
    drop(held);
    assert_eq!(waits.await.unwrap().status(), 200);
}

#[tokio::test(start_paused = true)]
async fn a_denied_request_is_sent_again_a_bounded_number_of_times() {
    let upstream = Upstream::new((0..9).map(|_| answer(429, "retry-after: 10")));
    let limiter = limiter(MaxConcurrency::new(1));
    let client = OutboundLayer::new(limiter.clone())
        .retry(2)
        .layer(upstream.service());
    let start = Instant::now();
    let response = client.oneshot(get("http://a/")).await.unwrap();
    assert_eq!(
        (response.status().as_u16(), start.elapsed()),
        (429, secs(20))
    );
    assert_eq!(upstream.calls.load(Relaxed), 3);
    drop(response);
    assert!(is_idle(&limiter.snapshot()));
}

#[tokio::test(start_paused = true)]
async fn only_denials_are_sent_again_and_503_by_choice() {
    for (status, by_choice, calls) in [
        (500, true, 1),
        (503, false, 1),
        (503, true, 2),
        (429, false, 2),
        (200, true, 1),
    ] {
        let upstream = Upstream::new([answer(status, "retry-after: 10")]);
        let layer = OutboundLayer::new(limiter(MaxConcurrency::new(1))).retry(2);
        let layer = if by_choice {
            layer.retry_unavailable()
        } else {
            layer
        };
        drop(
            layer
                .layer(upstream.service())
                .oneshot(get("http://a/"))
                .await
                .unwrap(),
        );
        assert_eq!(upstream.calls.load(Relaxed), calls, "{status} {by_choice}");
    }
    let upstream = Upstream::new([answer(429, "")]);
    let layer =
        OutboundLayer::new(limiter(MaxConcurrency::new(1))).retry_with(2, |_: &String| None);
    assert_eq!(
        layer
            .layer(upstream.service())
            .oneshot(get("http://a/"))
            .await
            .unwrap()
            .status(),
        429
    );
}

#[tokio::test(start_paused = true)]
async fn the_answer_is_returned_where_a_retry_would_wait_too_long() {
    let upstream = Upstream::new([answer(429, "retry-after: 60")]);
    let client = OutboundLayer::new(limiter(MaxConcurrency::new(1)))
        .timeout(secs(5))
        .retry(2)
        .layer(upstream.service());
    let start = Instant::now();
    assert_eq!(
        client.oneshot(get("http://a/")).await.unwrap().status(),
        429
    );
    assert_eq!(
        (upstream.calls.load(Relaxed), start.elapsed()),
        (1, Duration::ZERO)
    );
}

/// A retry sends the request with all its parts.
#[tokio::test(start_paused = true)]
async fn a_retry_sends_the_same_request() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let reported = Arc::clone(&seen);
    let client = service_fn(move |request: Request<String>| {
        let field = request.headers().get("x-id").cloned();
        let extension = request.extensions().get::<u8>().copied();
        reported.lock().unwrap().push((
            request.method().clone(),
            request.uri().clone(),
            field,
            extension,
            request.body().clone(),
        ));
        async { Ok::<_, Infallible>(answer(429, "")) }
    });
    let mut request = Request::put("http://a/x?y")
        .header("x-id", "7")
        .body("content".to_owned())
        .unwrap();
    request.extensions_mut().insert(9_u8);
    drop(
        OutboundLayer::new(limiter(MaxConcurrency::new(1)))
            .retry(1)
            .layer(client)
            .oneshot(request)
            .await
            .unwrap(),
    );
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0], seen[1]);
    assert_eq!((seen[0].3, seen[0].4.as_str()), (Some(9), "content"));
}

#[tokio::test(start_paused = true)]
async fn malformed_fields_are_reported_and_hold_no_request_back() {
    let malformed = "retry-after: -1\nratelimit: \"a\";r=0;t=";
    let upstream = Upstream::new([answer(200, malformed), answer(429, malformed)]);
    let reported = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&reported);
    let note = move |event: &LimiterEvent<'_>| {
        if let EventKind::UpstreamMalformed { field, .. } = event.kind {
            notes.lock().unwrap().push(*field);
        }
    };
    let limiter = Limiter::builder(MaxConcurrency::new(1))
        .on_event(note)
        .build()
        .unwrap();
    let layer =
        OutboundLayer::new(limiter.clone()).upstream(UpstreamReader::new(UpstreamFamily::Draft10));
    let client = layer.layer(upstream.service());
    drop(client.clone().oneshot(get("http://a/")).await.unwrap());
    assert_eq!(
        (
            &*std::mem::take(&mut *reported.lock().unwrap()),
            limiter.snapshot().paused_for
        ),
        (&["ratelimit"][..], None)
    );
    drop(client.oneshot(get("http://a/")).await.unwrap());
    let second = Some(Duration::from_secs(1)); // the pause after a denial without a time
    assert_eq!(
        (&**reported.lock().unwrap(), limiter.snapshot().paused_for),
        (&["retry-after", "ratelimit"][..], second)
    );
}

#[tokio::test(start_paused = true)]
async fn an_adaptive_concurrency_gets_the_outcome_of_each_call() {
    let limit_after = async |answer: Response<String>| {
        let limiter = limiter(MaxConcurrency::new(20).adapt(Adapt::aimd()));
        let client = OutboundLayer::new(limiter.clone()).layer(Upstream::new([answer]).service());
        drop(client.oneshot(get("http://a/")).await.unwrap());
        limiter.snapshot().concurrency.unwrap()
    };
    for (status, limit) in [(429, 18), (503, 18), (504, 18), (500, 20), (200, 20)] {
        assert_eq!(limit_after(answer(status, "")).await, limit, "{status}");
    }
    let limiter = limiter(MaxConcurrency::new(20).adapt(Adapt::aimd()));
    let failing = service_fn(|_: Request<String>| async {
        Err::<Response<String>, _>(io::Error::other("reset"))
    });
    let layer = OutboundLayer::new(limiter.clone());
    let error = layer
        .layer(failing)
        .oneshot(get("http://a/"))
        .await
        .unwrap_err();
    assert!(matches!(error, OutboundError::Service(_)) && error.to_string() == "reset");
    assert_eq!(limiter.snapshot().concurrency, Some(18));
    let ignores = layer
        .classify(|_: Result<&http::response::Parts, &io::Error>| Outcome::Ignored)
        .layer(failing);
    drop(ignores.oneshot(get("http://a/")).await.unwrap_err());
    assert_eq!(limiter.snapshot().concurrency, Some(18));
}

/// An answer that was read to its end is a success, and raises the limit after a round in which it was in use. An answer that was
/// dropped before its end is not a success.
#[tokio::test(start_paused = true)]
async fn only_a_body_that_was_read_is_a_success() {
    for reads in [true, false] {
        let limiter = limiter(MaxConcurrency::new(2).adapt(Adapt::aimd()));
        let client = OutboundLayer::new(limiter.clone()).layer(Upstream::default().service());
        for _ in 0..4 {
            let both = [
                client.clone().oneshot(get("http://a/")).await.unwrap(),
                client.clone().oneshot(get("http://a/")).await.unwrap(),
            ];
            sleep(ms(10)).await;
            for response in both {
                if reads {
                    response.into_body().collect().await.unwrap();
                }
            }
        }
        assert_eq!(limiter.snapshot().concurrency.unwrap() > 2, reads);
    }
}

#[tokio::test(start_paused = true)]
async fn a_future_that_is_dropped_at_any_stage_leaves_nothing_behind() {
    // The future waits for the permit, for the answer, for the pause before the retry, and for the answer to the retry.
    for dropped_at in [0, 1, 15, 25, 35] {
        let limiter = limiter(MaxConcurrency::new(1));
        let slow = Upstream::new([answer(429, "retry-after: 10")]);
        let inner = slow.service();
        let client = service_fn(move |request: Request<String>| {
            let inner = inner.clone();
            async move {
                sleep(secs(10)).await;
                inner.oneshot(request).await
            }
        });
        let client = OutboundLayer::new(limiter.clone()).retry(1).layer(client);
        let busy = limiter.try_acquire().unwrap();
        let call = tokio::spawn(client.oneshot(get("http://a/")));
        tokio::task::yield_now().await;
        assert_eq!(limiter.snapshot().queued, 1);
        if dropped_at > 0 {
            drop(busy);
        }
        sleep(secs(dropped_at)).await;
        assert_eq!(call.is_finished(), dropped_at == 35);
        call.abort();
        drop(call.await);
        assert_eq!(is_idle(&limiter.snapshot()), dropped_at > 0);
        limiter.resume();
        assert_eq!(
            (limiter.try_acquire().is_ok(), limiter.snapshot().queued),
            (dropped_at > 0, 0)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_inner_service_loses_no_permit() {
    for in_call in [true, false] {
        let limiter = limiter(MaxConcurrency::new(1));
        let client = service_fn(move |_: Request<String>| {
            assert!(!in_call, "on purpose");
            async {
                if true {
                    panic!("on purpose")
                } else {
                    Ok::<_, Infallible>(answer(200, ""))
                }
            }
        });
        let client = OutboundLayer::new(limiter.clone()).layer(client);
        assert!(
            tokio::spawn(client.oneshot(get("http://a/")))
                .await
                .unwrap_err()
                .is_panic()
        );
        assert!(is_idle(&limiter.snapshot()));
    }
}

#[test]
fn an_error_can_be_boxed_where_the_inner_one_is_boxed() {
    let boxed: Box<dyn std::error::Error + Send + Sync> =
        OutboundError::<Infallible>::Acquire(AcquireError::Closed).into_boxed();
    assert_eq!(boxed.downcast_ref(), Some(&AcquireError::Closed));
}

proptest! {
    #![proptest_config(crate::common::replay::cases(256))]

    #[test]
    fn no_answer_pauses_for_longer_than_the_cap(
        status in prop_oneof![100_u16..1_000, prop::sample::select(vec![200, 403, 429, 503, 529])],
        values in prop::collection::vec(prop_oneof![
            prop::collection::vec(any::<u8>(), 0..40),
            prop::sample::select(vec!["", "0", "rejected"]).prop_map(|value| value.as_bytes().to_vec()),
            "[0-9]{1,30}(\\.[0-9]{1,9})?".prop_map(String::into_bytes),
            "\"a\";r=0;t=[0-9]{1,15}|limit=9, remaining=0, reset=[0-9]{1,15}".prop_map(String::into_bytes),
            "[0-9]{1,9}h[0-9]{1,9}m|[23][0-9]{3}-1[0-2]-[12][0-9]T[01][0-9]:00:00Z".prop_map(String::into_bytes),
        ], FIELDS.len()),
    ) {
        let values = values.iter().map(|value| HeaderValue::from_bytes(value));
        let fields = FIELDS.into_iter().zip(values).filter(|(name, _)| *name != "age"); // the field that a cache adds
        let fields: HeaderMap =
            fields.filter_map(|(name, value)| Some((HeaderName::from_static(name), value.ok().filter(|value| !value.is_empty())?))).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            for family in UpstreamFamily::all() {
                let limiter = Limiter::new("8 concurrent per request and 100000 tokens/min").unwrap();
                let layer = OutboundLayer::new(limiter.clone())
                    .upstream(UpstreamReader::new(family).max_wait(secs(90)))
                    .cost_of("tokens", |_| 1);
                let client = service_fn(|_: Request<()>| {
                    let mut answer = Response::new(String::new());
                    *answer.status_mut() = StatusCode::from_u16(status).unwrap();
                    *answer.headers_mut() = fields.clone();
                    async { Ok::<_, Infallible>(answer) }
                });
                drop(layer.layer(client).oneshot(Request::new(())).await.unwrap());
                assert!(limiter.snapshot().paused_for.unwrap_or_default() <= secs(90), "{family:?}");
            }
        });
    }
}

/// Over a connection: the server denies one caller, and all callers of that host wait, while those of another host continue.
#[tokio::test]
async fn over_http_all_callers_of_a_host_pause_while_another_host_goes_on() {
    let serve = async |denials: usize| {
        let calls = Arc::new(AtomicUsize::new(0));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}/", listener.local_addr().unwrap());
        let counted = Arc::clone(&calls);
        let app = axum::Router::new().fallback(move || {
            let call = counted.fetch_add(1, Relaxed);
            async move {
                if call < denials {
                    answer(429, "retry-after: 3")
                } else {
                    answer(200, "")
                }
            }
        });
        let server = tokio::spawn(async move { axum::serve(listener, app).await });
        (uri, calls, server.abort_handle())
    };
    let ((denies, denied, first), (grants, granted, second)) = (serve(1).await, serve(0).await);
    let per_host = KeyedLimiter::new(MaxConcurrency::new(4)).unwrap();
    let client = hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new())
        .build_http::<String>();
    let client = OutboundLayer::by_host(per_host).layer(client);

    let call = |uri: &str| {
        let call = client.clone().oneshot(get(uri));
        tokio::spawn(async move {
            let response = call.await.unwrap();
            assert_eq!(response.status(), 200);
            assert_eq!(
                response.into_body().collect().await.unwrap().to_bytes(),
                "body"
            );
        })
    };
    assert_eq!(
        client.clone().oneshot(get(&denies)).await.unwrap().status(),
        429
    );
    let start = std::time::Instant::now();
    let paused: Vec<_> = (0..6).map(|_| call(&denies)).collect();
    for _ in 0..6 {
        call(&grants).await.unwrap();
    }
    assert_eq!(
        (granted.load(Relaxed), denied.load(Relaxed)),
        (6, 1),
        "after {:?}",
        start.elapsed()
    );
    for call in paused {
        call.await.unwrap();
    }
    assert!(start.elapsed() >= ms(2_900), "{:?}", start.elapsed());
    assert_eq!(denied.load(Relaxed), 7);
    first.abort();
    second.abort();
}
