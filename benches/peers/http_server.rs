//! W11: the throughput of a server of axum that says hello, by wrk, with a layer and without.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use axum::Router;
use axum::response::Response;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tollgate::Throttle;
use tollgate::layers::RateLimitStyle;
use tower::util::MapResponseLayer;
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;

use crate::rounds::Contest;
use crate::services::layer;
use crate::table::{Bar, Row, Unit};

const ROUNDS: usize = 21;
/// Two fields of the same length as those of the layer.
const FIELDS: [(&str, &str); 2] = [
    ("ratelimit-policy", r#""default";q=1000000"#),
    ("ratelimit", r#""default";r=999999;t=1"#),
];
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
    let with_fields = serve(
        &runtime,
        hello().layer(layer(policy(), RateLimitStyle::Draft10)),
    );
    let without = serve(
        &runtime,
        hello().layer(layer(policy(), RateLimitStyle::None)),
    );
    let mut config = GovernorConfigBuilder::default();
    config.period(PERIOD).burst_size(BURST);
    let governed = serve(
        &runtime,
        hello().layer(GovernorLayer::new(config.finish().expect("not zero"))),
    );
    let config = config.use_headers().finish().expect("not zero");
    let governed_with_fields = serve(&runtime, hello().layer(GovernorLayer::new(config)));
    let bar = Some(Bar::AtLeast(0.99));
    // The costs of any layer and of any two fields are measured for comparison.
    let empty_layer = serve(
        &runtime,
        hello().layer(MapResponseLayer::new(|answer: Response| answer)),
    );
    let own_fields = serve(
        &runtime,
        Router::new().route("/", get(|| async { (FIELDS, "hello") })),
    );
    let contest = |case, server, peer, against, bar| {
        Contest::new(("W11", case), Unit::Millions, move || throughput(server))
            .against(peer, bar, move || throughput(against))
            .run(ROUNDS)
    };
    let (no_layer, an_empty_one) = ("without a layer", "behind an empty layer");
    [
        contest(
            "wrk: requests to axum, fields of draft-10",
            with_fields,
            no_layer,
            alone,
            bar,
        ),
        contest(
            "wrk: requests to axum, fields of draft-10",
            with_fields,
            "the handler sends such fields",
            own_fields,
            None,
        ),
        contest(
            "wrk: requests to axum, without fields",
            without,
            no_layer,
            alone,
            bar,
        ),
        contest(
            "wrk: requests to axum, without fields",
            without,
            an_empty_one,
            empty_layer,
            None,
        ),
        contest(
            "wrk: requests to axum, behind an empty layer",
            empty_layer,
            no_layer,
            alone,
            None,
        ),
        contest(
            "wrk: requests to axum, behind tower_governor",
            governed,
            no_layer,
            alone,
            None,
        ),
        contest(
            "wrk: requests to axum, its fields",
            governed_with_fields,
            no_layer,
            alone,
            None,
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn serve(runtime: &Runtime, app: Router) -> SocketAddr {
    let listener = runtime
        .block_on(TcpListener::bind("127.0.0.1:0"))
        .expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    runtime.spawn(async {
        axum::serve(
            listener,
            app.into_make_service_with_connect_info::<SocketAddr>(),
        )
        .await
    });
    address
}

/// The throughput in million requests a second.
fn throughput(server: SocketAddr) -> f64 {
    let output = Command::new("wrk")
        .args(["-t1", "-c32", "-d1s", &format!("http://{server}/")])
        .output()
        .expect("it is installed");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(!text.contains("Non-2xx"), "a request was denied:\n{text}");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Requests/sec:"))
        .expect("wrk says it");
    line.trim().parse::<f64>().expect("a number") / 1e6
}
