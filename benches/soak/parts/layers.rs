//! A server behind two layers, under wrk and under clients that cut their requests, the answers and the connections. All places come
//! back.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::panic::panic_any;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName};
use axum::routing::{get, post};
use futures_util::stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tollgate::layers::{HeaderKey, LimitLayer};
use tollgate::{KeyedLimiter, Limiter};

use super::{SOON, ms};
use crate::holder::OnPurpose;
use crate::reference::{Hold, Reference};
use crate::run::Run;
use crate::tally::{Counts, Tally, add, read};

const PLACES: u64 = 12;
const EACH: u64 = 8;
const QUEUE: usize = 40;
const CLIENTS: [&str; 3] = ["wrk", "streams", "rude"];
/// wrk cuts what is under way at the end of its time.
const SPELL: Duration = ms(3_000);

/// The account of the requests that the handlers serve: of all, and of each client.
struct Served {
    all: Arc<Reference>,
    each: Vec<Arc<Reference>>,
    counts: Arc<Counts>,
}

impl Served {
    fn enter(&self, headers: &HeaderMap) -> [Hold; 2] {
        add(&self.counts.granted);
        let client = headers
            .get("x-client")
            .and_then(|client| client.to_str().ok());
        let client = CLIENTS
            .iter()
            .position(|known| Some(*known) == client)
            .unwrap_or(0);
        let now = Instant::now();
        [&self.all, &self.each[client]].map(|reference| reference.enter(1, (now, now), None))
    }
}

async fn hello(State(served): State<Arc<Served>>, headers: HeaderMap) -> &'static str {
    let _held = served.enter(&headers);
    sleep(ms(4)).await;
    "hello"
}

async fn upload(State(served): State<Arc<Served>>, headers: HeaderMap, body: Body) -> String {
    let _held = served.enter(&headers);
    match axum::body::to_bytes(body, 1 << 20).await {
        Ok(body) => body.len().to_string(),
        Err(error) => error.to_string(),
    }
}

/// A body of 16 chunks. It holds its places until it has ended or is dropped.
async fn download(State(served): State<Arc<Served>>, headers: HeaderMap) -> Body {
    let held = served.enter(&headers);
    Body::from_stream(stream::unfold((held, 0), async |(held, chunk)| {
        if chunk == 16 {
            return None;
        }
        sleep(ms(1)).await;
        Some((
            Ok::<_, Infallible>(Bytes::from_static(&[b'x'; 4_096])),
            (held, chunk + 1),
        ))
    }))
}

async fn panics(State(served): State<Arc<Served>>, headers: HeaderMap) -> &'static str {
    let _held = served.enter(&headers);
    add(&served.counts.panicked);
    panic_any(OnPurpose)
}

async fn never(State(served): State<Arc<Served>>, headers: HeaderMap) -> &'static str {
    let _held = served.enter(&headers);
    std::future::pending().await
}

pub(crate) async fn run(run: Arc<Run>, tally: Arc<Tally>) {
    let counts = tally.counts();
    let places = Limiter::builder("12 concurrent")
        .max_queue(QUEUE)
        .build()
        .expect("a sound policy");
    let clients = KeyedLimiter::<String>::new("8 concurrent and 5000/s").expect("a sound policy");
    let each = CLIENTS
        .map(|client| Reference::new(format!("the client {client}"), &tally, Some(EACH), &[]));
    let served = Arc::new(Served {
        all: Reference::new("all clients", &tally, Some(PLACES), &[]),
        each: each.to_vec(),
        counts: Arc::clone(&counts),
    });
    let by_client = HeaderKey::new(HeaderName::from_static("x-client"));
    let app = Router::new()
        .route("/", get(hello))
        .route("/upload", post(upload))
        .route("/download", get(download))
        .route("/panics", get(panics))
        .route("/never", get(never))
        .with_state(served)
        .layer(
            LimitLayer::new(places.clone())
                .wait(ms(500))
                .name("all")
                .expect("a sound name"),
        )
        .layer(
            LimitLayer::new(clients.clone())
                .by(by_client)
                .wait(ms(100))
                .name("each")
                .expect("a sound name"),
        );
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let server = tokio::spawn(async { axum::serve(listener, app).await });

    let mut tasks = JoinSet::new();
    for (client, path, connections) in [("wrk", "/", 24), ("streams", "/download", 12)] {
        tasks.spawn(wrk(
            address,
            client,
            path,
            connections,
            Arc::clone(&run),
            Arc::clone(&tally),
        ));
    }
    for _ in 0..12 {
        tasks.spawn(rude(
            address,
            Arc::clone(&run),
            Arc::clone(&tally),
            Arc::clone(&counts),
        ));
    }
    tally
        .within(run.left() + 2 * SOON, "a client", tasks.join_all())
        .await;

    let rests = || {
        let (places, clients) = (places.snapshot(), clients.totals());
        [
            places.in_flight,
            places.queued,
            clients.in_flight,
            clients.queued,
        ] == [0; 4]
    };
    tally
        .until(SOON, "places of requests that have ended", rests)
        .await;
    server.abort();
    let snapshot = places.snapshot();
    if let Err(error) = places.try_acquire_many(PLACES) {
        tally.fault(format_args!("not all places can be taken: {error}"));
    }
    // A client may go between the grant and the handler.
    let (handled, granted) = (read(&counts.granted), snapshot.granted - snapshot.refunded);
    if handled > granted {
        tally.fault(format_args!(
            "{handled} requests were handled, and {granted} granted"
        ));
    }
    if handled == 0 {
        tally.fault("no request was handled");
    }
    tally.note(format_args!("{snapshot}"));
}

/// Runs wrk again and again.
async fn wrk(
    address: SocketAddr,
    client: &str,
    path: &str,
    connections: u32,
    run: Arc<Run>,
    tally: Arc<Tally>,
) {
    while run.goes_on() {
        let seconds = SPELL.min(run.left()).as_secs().max(1);
        let mut command = Command::new("wrk");
        command
            .args([
                "-t1".to_owned(),
                format!("-c{connections}"),
                format!("-d{seconds}s"),
            ])
            .args([
                "-H",
                &format!("x-client: {client}"),
                &format!("http://{address}{path}"),
            ])
            .stdin(Stdio::null())
            .kill_on_drop(true);
        match tally.within(SOON, "wrk", command.output()).await {
            Some(Ok(output)) if output.status.success() => {}
            Some(Ok(output)) => {
                tally.fault(format_args!(
                    "wrk: {}",
                    String::from_utf8_lossy(&output.stderr)
                ));
                return;
            }
            Some(Err(error)) => {
                tally.fault(format_args!("wrk: {error}"));
                return;
            }
            None => return,
        }
    }
}

/// Makes requests that end too early, in different ways.
async fn rude(address: SocketAddr, run: Arc<Run>, tally: Arc<Tally>, counts: Arc<Counts>) {
    const HEAD: &str = "HTTP/1.1\r\nhost: soak\r\nx-client: rude\r\n";
    while run.pause(ms(fastrand::u64(..30))).await {
        let (sent, reads) = match fastrand::u32(..8) {
            // Half a head.
            0 => ("GET / HTTP/1.1\r\nx-client: ru".to_owned(), 0),
            // Goes before the answer.
            1 => (format!("GET / {HEAD}\r\n"), 0),
            // A part of the body of a request, by its length and in chunks.
            2 => (
                format!("POST /upload {HEAD}content-length: 5000\r\n\r\nhello"),
                0,
            ),
            3 => (
                format!(
                    "POST /upload {HEAD}transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n7\r\nwor"
                ),
                0,
            ),
            // A part of the body of an answer.
            4 => (
                format!("GET /download {HEAD}\r\n"),
                fastrand::usize(1..20_000),
            ),
            5 => (format!("GET /panics {HEAD}\r\n"), 1),
            6 => (format!("GET /never {HEAD}\r\n"), 0),
            // Several requests at once, of which it reads a part of the first answer.
            _ => (
                format!("GET /download {HEAD}\r\nGET / {HEAD}\r\nGET /never {HEAD}\r\n"),
                3_000,
            ),
        };
        let visit = async {
            let mut stream = TcpStream::connect(address).await?;
            stream.write_all(sent.as_bytes()).await?;
            let mut buffer = vec![0; reads];
            if reads > 0 {
                let read = timeout(ms(1_000), stream.read_exact(&mut buffer)).await;
                drop(read); // the server may refuse the request, or close the connection
            }
            sleep(ms(fastrand::u64(..40))).await;
            std::io::Result::Ok(())
        };
        if let Some(Err(error)) = tally.within(SOON, "a client that cuts", visit).await {
            tally.fault(format_args!("a client that cuts: {error}"));
        }
        add(&counts.cancelled);
    }
}
