//! The server that the clients connect to.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::routing::{get, post};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::HeaderName;
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};
use tollgate::layers::{HeaderKey, KeyedBy, LimitLayer, OrShared};
use tollgate::{KeyedLimiter, Limiter, MaxConcurrency};

pub(crate) const PLACES: u64 = 4;
pub(crate) const QUEUE: u64 = 4;
const PATIENCE: Duration = Duration::from_secs(180);

/// Counts the handlers that run. A handler runs until its body is sent.
#[derive(Clone, Default)]
pub(crate) struct Running(Arc<[AtomicU64; 2]>);

/// A handler that runs until this is dropped.
pub(crate) struct Run(Running);

impl Running {
    pub(crate) fn start(&self) -> Run {
        let now = self.0[0].fetch_add(1, SeqCst) + 1;
        self.0[1].fetch_max(now, SeqCst);
        Run(self.clone())
    }

    pub(crate) fn now(&self) -> u64 {
        self.0[0].load(SeqCst)
    }

    /// The most handlers that ran at the same time.
    pub(crate) fn most(&self) -> u64 {
        self.0[1].load(SeqCst)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.0.0[0].fetch_sub(1, SeqCst);
    }
}

/// The body that a handler sends: chunks, a millisecond apart.
fn chunks(run: Run) -> impl futures_util::Stream<Item = Bytes> {
    stream::unfold(run, |run| async {
        sleep(Duration::from_millis(1)).await;
        Some((Bytes::from_static(&[b'x'; 1_024]), run))
    })
}

async fn endless(State(running): State<Running>) -> Body {
    Body::from_stream(chunks(running.start()).map(Ok::<_, Infallible>))
}

/// A body that ends with an error after three chunks.
async fn cut(State(running): State<Running>) -> Body {
    let fails = stream::once(async { Err("the disk is gone") });
    Body::from_stream(chunks(running.start()).take(3).map(Ok).chain(fails))
}

async fn work(State(running): State<Running>) -> &'static str {
    let _run = running.start();
    sleep(Duration::from_millis(2)).await;
    "done"
}

async fn never(State(running): State<Running>) -> &'static str {
    let _run = running.start();
    std::future::pending().await
}

async fn panics(State(running): State<Running>) -> &'static str {
    let _run = running.start();
    panic!("the handler panics")
}

/// Answers with the length of the uploaded body.
async fn upload(State(running): State<Running>, body: Bytes) -> String {
    let _run = running.start();
    body.len().to_string()
}

pub(crate) type QuotaLayer =
    LimitLayer<KeyedLimiter<String>, OrShared<Arc<KeyedBy<HeaderKey>>, String>>;

/// Two limiters, and the handlers that run behind them.
#[derive(Clone)]
pub(crate) struct Limits {
    places: Limiter,
    quota: KeyedLimiter<String>,
    pub(crate) running: Running,
}

impl Limits {
    /// A limiter of a few places with a short queue, and a limiter with this quota for each value of the field `x-client`.
    pub(crate) fn new(quota: &str) -> Self {
        let places = Limiter::builder(MaxConcurrency::new(PLACES))
            .max_queue(QUEUE as usize)
            .build()
            .unwrap();
        Self {
            places,
            quota: KeyedLimiter::new(quota).unwrap(),
            running: Running::default(),
        }
    }

    /// The inner layer: requests wait.
    pub(crate) fn of_places(&self) -> LimitLayer<Limiter> {
        LimitLayer::new(self.places.clone())
            .wait(Duration::from_secs(100))
            .name("places")
            .unwrap()
    }

    /// The outer layer: requests are refused.
    pub(crate) fn of_quota(&self) -> QuotaLayer {
        let client = HeaderKey::new(HeaderName::from_static("x-client"));
        LimitLayer::new(self.quota.clone())
            .by(client)
            .or_shared(String::from("-"))
            .name("quota")
            .unwrap()
    }

    pub(crate) fn granted(&self) -> u64 {
        self.places.snapshot().granted
    }

    fn numbers(&self) -> [u64; 3] {
        let places = self.places.snapshot();
        [places.in_flight, places.queued, self.running.now()]
    }

    /// Waits until these numbers of requests are in flight, wait, and run.
    pub(crate) async fn come_to(&self, numbers: [u64; 3]) {
        let reached = async {
            while self.numbers() != numbers {
                sleep(Duration::from_millis(2)).await;
            }
        };
        assert!(
            timeout(PATIENCE, reached).await.is_ok(),
            "{:?} instead of {numbers:?}",
            self.numbers()
        );
    }

    /// Waits until nothing is in flight and nothing waits. Checks that never more handlers ran than there are places.
    pub(crate) async fn come_to_rest(&self) {
        self.come_to([0; 3]).await;
        assert!(
            self.running.most() <= PLACES,
            "{} at the same time",
            self.running.most()
        );
    }
}

/// A router behind the limits, which speaks HTTP/1 and HTTP/2. Returns its address.
pub(crate) async fn serve(limits: &Limits) -> SocketAddr {
    let router = Router::new()
        .route("/", get(|| async { "hello" }))
        .route("/endless", get(endless))
        .route("/cut", get(cut))
        .route("/work", get(work))
        .route("/never", get(never))
        .route("/panics", get(panics))
        .route("/upload", post(upload).put(upload))
        .with_state(limits.running.clone())
        .layer(limits.of_places())
        .layer(limits.of_quota());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async { axum::serve(listener, router).await.unwrap() });
    address
}
