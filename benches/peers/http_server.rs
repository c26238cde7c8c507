//! W11: the throughput of a server of axum that says hello, by wrk, with a layer and without.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tollgate::Throttle;
use tollgate::http::RateLimitStyle;
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;

use crate::rounds::Contest;
use crate::services::layer;
use crate::table::{Bar, Row, Unit};

const ROUNDS: usize = 21;
/// All requests of wrk come from one address.
const PERIOD: Duration = Duration::from_nanos(100);
const BURST: u32 = 1_000_000;

pub(crate) fn rows() -> Vec<Row> {
    if Command::new("wrk").arg("--version").output().is_err() {
        eprintln!("  skipped: wrk is not installed");
        return Vec::new();
    }
    let runtime = Runtime::new().expect("a runtime");
    let hello = || Router::new().route("/", get(|| async { "hello" }));
    let alone = serve(&runtime, hello());
    let policy = || Throttle::every(PERIOD).burst(BURST.into());
    let with_fields = serve(&runtime, hello().layer(layer(policy(), RateLimitStyle::Draft10)));
    let without = serve(&runtime, hello().layer(layer(policy(), RateLimitStyle::None)));
    let mut config = GovernorConfigBuilder::default();
    let config = config.period(PERIOD).burst_size(BURST).finish().expect("not zero");
    let governed = serve(&runtime, hello().layer(GovernorLayer::new(config)));
    let bar = Some(Bar::AtLeast(0.99));
    let contest = |case, server, bar| {
        Contest::new(("W11", case), Unit::Millions, move || throughput(server))
            .against("without a layer", bar, move || throughput(alone))
            .run(ROUNDS)
    };
    [
        contest("wrk: requests to axum, fields of draft-10", with_fields, bar),
        contest("wrk: requests to axum, without fields", without, bar),
        contest("wrk: requests to axum, behind tower_governor", governed, None),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn serve(runtime: &Runtime, app: Router) -> SocketAddr {
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    runtime.spawn(async { axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await });
    address
}

/// Million requests a second.
fn throughput(server: SocketAddr) -> f64 {
    let output =
        Command::new("wrk").args(["-t1", "-c32", "-d1s", &format!("http://{server}/")]).output().expect("it is installed");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(!text.contains("Non-2xx"), "a request was denied:\n{text}");
    let line = text.lines().find_map(|line| line.strip_prefix("Requests/sec:")).expect("wrk says it");
    line.trim().parse::<f64>().expect("a number") / 1e6
}
