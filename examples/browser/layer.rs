//! A page in front of a server behind a `LimitLayer`: the answers that it gets, and that nothing is left behind when it closes.
//! `scripts/browser` runs it.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Html;
use axum::routing::get;
use futures_util::stream;
use page::visit;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tollgate::layers::LimitLayer;
use tollgate::{Limiter, MaxConcurrency};

/// Long enough for a busy machine. Also the longest wait of a request in the queue.
const PATIENCE: Duration = Duration::from_secs(180);

/// A page whose requests bypass the browser's cache, in which requests for one URL wait for each other.
const PAGE: &str = "<!doctype html><title>a page</title><script>
    const ask = (path, options) => fetch(path, { cache: 'no-store', ...options });
    const reported = async answer =>
        ({ status: answer.status, fields: Object.fromEntries(answer.headers), text: await answer.text() });
</script>";

/// A server whose page is free, and whose other routes are limited together.
struct Server {
    origin: String,
    limiter: Limiter,
    /// Has a permit for each request to `/gate` that may end.
    gate: Arc<Semaphore>,
    /// The number of requests to `/gate` that run, and the most at the same time.
    running: Arc<[AtomicU64; 2]>,
}

impl Server {
    async fn start(
        limiter: Limiter,
        layer: impl FnOnce(LimitLayer<Limiter>) -> LimitLayer<Limiter>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = format!("http://{}", listener.local_addr().unwrap());
        let server = Self {
            origin,
            limiter,
            gate: Arc::new(Semaphore::new(0)),
            running: Arc::default(),
        };
        let (gate, running) = (Arc::clone(&server.gate), Arc::clone(&server.running));
        let through_the_gate = async move || {
            let now = running[0].fetch_add(1, SeqCst) + 1;
            running[1].fetch_max(now, SeqCst);
            gate.acquire().await.unwrap().forget();
            running[0].fetch_sub(1, SeqCst);
            "done"
        };
        let router = Router::new()
            .route("/hello", get(|| async { "hello" }))
            .route("/never", get(pending::<()>))
            .route("/endless", get(endless))
            .route("/gate", get(through_the_gate))
            .route_layer(layer(LimitLayer::new(server.limiter.clone())))
            .route("/", get(Html(PAGE)));
        tokio::spawn(async { axum::serve(listener, router).await.unwrap() });
        server
    }

    /// Waits until these numbers of requests are in flight and wait.
    async fn come_to(&self, in_flight: u64, queued: u64) {
        let numbers = || {
            (
                self.limiter.snapshot().in_flight,
                self.limiter.snapshot().queued,
            )
        };
        let reached = async {
            while numbers() != (in_flight, queued) {
                sleep(Duration::from_millis(2)).await;
            }
        };
        assert!(
            timeout(PATIENCE, reached).await.is_ok(),
            "{:?} instead of {:?}",
            numbers(),
            (in_flight, queued)
        );
    }
}

/// Chunks, a millisecond apart.
async fn endless() -> Body {
    Body::from_stream(stream::unfold((), async |()| {
        sleep(Duration::from_millis(1)).await;
        Some((Ok::<_, Infallible>("a chunk"), ()))
    }))
}

fn places(count: u64) -> Limiter {
    Limiter::builder(MaxConcurrency::new(count))
        .max_queue(100)
        .build()
        .unwrap()
}

fn seconds(answer: &Value) -> u64 {
    answer["fields"]["retry-after"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap()
}

#[tokio::test]
async fn a_page_reads_the_remaining_units_and_the_reason_of_a_refusal() {
    let server = Server::start(Limiter::new("window 3/h").unwrap(), |layer| {
        layer.name("api").unwrap()
    })
    .await;
    visit(&server.origin, 1280, async |page| {
        for left in [2, 1, 0] {
            let granted = page.run("return reported(await ask('/hello'))").await;
            assert_eq!(
                (&granted["status"], &granted["text"]),
                (&200.into(), &"hello".into()),
                "{granted}"
            );
            assert_eq!(granted["fields"]["ratelimit-policy"], r#""api";q=3;w=3600"#);
            let state = granted["fields"]["ratelimit"].as_str().unwrap();
            assert!(
                state.starts_with(&format!(r#""api";r={left};t=3"#)),
                "{state}"
            );
            assert_eq!(granted["fields"]["retry-after"], Value::Null);
        }

        let refused = page.run("return reported(await ask('/hello'))").await;
        assert_eq!(refused["status"], 429);
        assert!((3_000..=3_600).contains(&seconds(&refused)), "{refused}");
        assert!(
            refused["fields"]["ratelimit"]
                .as_str()
                .unwrap()
                .starts_with(r#""api";r=0;t=3"#),
            "{refused}"
        );
        assert_eq!(
            refused["fields"]["content-type"],
            "application/problem+json"
        );
        let problem: Value = serde_json::from_str(refused["text"].as_str().unwrap()).unwrap();
        assert_eq!(
            problem["type"],
            "https://iana.org/assignments/http-problem-types#quota-exceeded"
        );
        assert_eq!(problem["violated-policies"], json!(["api"]));

        // HEAD gets the same answer, without the body.
        let head = page
            .run("return reported(await ask('/hello', { method: 'HEAD' }))")
            .await;
        assert_eq!(
            (&head["status"], &head["text"]),
            (&429.into(), &"".into()),
            "{head}"
        );
        assert!((3_000..=3_600).contains(&seconds(&head)), "{head}");
        for field in ["ratelimit-policy", "content-type", "content-length"] {
            assert_eq!(head["fields"][field], refused["fields"][field], "{field}");
        }
        assert_eq!(server.limiter.snapshot().granted, 3);
    })
    .await;
}

#[tokio::test]
async fn a_page_that_waits_for_retry_after_is_allowed_again() {
    let server = Server::start(Limiter::new("window 1/2s").unwrap(), |layer| layer).await;
    visit(&server.origin, 1280, async |page| {
        // On a slow machine, a window may end between two requests.
        let refused = "
            for (;;) {
                const answer = await ask('/hello');
                if (answer.status !== 200) return reported(answer);
            }";
        let refused = page.run(refused).await;
        assert_eq!(refused["status"], 429);
        let after = seconds(&refused);
        assert!((1..=2).contains(&after), "{refused}");
        let later = format!("await new Promise(resolve => setTimeout(resolve, {after}000)); return (await ask('/hello')).status");
        assert_eq!(page.run(&later).await, 200);
    })
    .await;
}

#[tokio::test]
async fn a_body_that_a_page_stops_reading_gives_its_place_back() {
    let server = Server::start(places(1), |layer| layer).await;
    visit(&server.origin, 1280, async |page| {
        for stop in ["window.stop.abort()", "await window.reader.cancel()"] {
            let begin = "
                window.stop = new AbortController();
                const answer = await ask('/endless', { signal: window.stop.signal });
                window.reader = answer.body.getReader();
                return [answer.status, (await window.reader.read()).value.length]";
            let begun = page.run(begin).await;
            assert!(begun[0] == 200 && begun[1].as_u64() > Some(0), "{begun}");
            server.come_to(1, 0).await;
            // The endless request has the only place.
            assert_eq!(page.run("return (await ask('/hello')).status").await, 503);
            page.run(stop).await;
            server.come_to(0, 0).await;
            assert_eq!(page.run("return (await ask('/hello')).status").await, 200);
            server.come_to(0, 0).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_request_that_a_page_aborts_leaves_the_queue() {
    let server = Server::start(places(1), |layer| layer.wait(PATIENCE)).await;
    visit(&server.origin, 1280, async |page| {
        let held = server.limiter.try_acquire().unwrap();
        let ask = "
            window.stop = new AbortController();
            window.answer = ask('/never', { signal: window.stop.signal }).catch(error => error.name)";
        page.run(ask).await;
        server.come_to(1, 1).await;
        page.run("window.stop.abort()").await;
        server.come_to(1, 0).await;
        assert_eq!(page.run("return window.answer").await, "AbortError");

        // Chromium keeps a page that is left, with its requests, for a minute in its back/forward cache, unless it has such a listener.
        const NOT_KEPT: &str = "addEventListener('unload', () => {})";
        page.run(NOT_KEPT).await;
        page.run(ask).await;
        server.come_to(1, 1).await;
        page.goto("/?another").await;
        server.come_to(1, 0).await;
        drop(held);
        server.come_to(0, 0).await;
        assert_eq!(server.limiter.snapshot().granted, 1, "a request that has left the queue is not granted");

        // One is in flight, and one waits.
        page.run(NOT_KEPT).await;
        page.run(ask).await;
        server.come_to(1, 0).await;
        page.run(ask).await;
        server.come_to(1, 1).await;
        page.goto("/").await;
        server.come_to(0, 0).await;
        assert_eq!(page.run("return (await ask('/hello')).status").await, 200);
    })
    .await;
}

#[tokio::test]
async fn many_requests_of_a_page_run_within_the_limit_and_all_are_answered() {
    let server = Server::start(places(3), |layer| layer.wait(PATIENCE)).await;
    visit(&server.origin, 1280, async |page| {
        let ask = "window.answers = Promise.all(Array.from({ length: 20 }, async () => (await ask('/gate')).text()))";
        page.run(ask).await;
        // Chromium opens six connections to a host, and keeps the other requests back.
        server.come_to(3, 3).await;
        server.gate.add_permits(20);
        assert_eq!(page.run("return window.answers").await, Value::from(vec!["done"; 20]));
        server.come_to(0, 0).await;
        let [now, most] = &*server.running;
        assert_eq!((now.load(SeqCst), most.load(SeqCst), server.limiter.snapshot().granted), (0, 3, 20));
    })
    .await;
}
