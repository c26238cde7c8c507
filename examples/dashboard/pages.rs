//! The requests of browsers: the page, its events, changes of settings, leaks.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::sse::{Event, Sse};
use axum::response::{Html, IntoResponse};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use common::chain;
use futures_util::stream::{self, Stream, StreamExt as _};
use serde_json::{Value, json};

use crate::Board;
use crate::panels::{About, Panel};

/// Why a request of a browser is refused, in a line that the page shows.
type Refusal = (StatusCode, String);

/// The time after which a disconnected page tries again.
const RETRY: Duration = Duration::from_secs(1);

const ASSETS: [(&str, &str, &str); 4] = [
    (
        "dashboard.css",
        "text/css",
        include_str!("assets/dashboard.css"),
    ),
    (
        "dashboard.js",
        "text/javascript",
        include_str!("assets/dashboard.js"),
    ),
    (
        "uPlot.css",
        "text/css",
        include_str!("assets/uPlot.min.css"),
    ),
    (
        "uPlot.js",
        "text/javascript",
        include_str!("assets/uPlot.iife.min.js"),
    ),
];

pub(crate) fn router(board: Arc<Board>) -> Router {
    Router::new()
        .route("/", get(Html(include_str!("assets/index.html"))))
        .route("/assets/{name}", get(asset))
        .route("/events", get(events))
        .route("/status", get(status))
        .route("/panels/{name}", put(change))
        .route("/panels/{name}/leaks", post(leak))
        .with_state(board)
}

async fn asset(Path(wanted): Path<String>) -> impl IntoResponse {
    let asset = ASSETS.iter().find(|(name, ..)| *name == wanted);
    asset
        .map(|(_, kind, text)| ([(CONTENT_TYPE, *kind)], *text))
        .ok_or(StatusCode::NOT_FOUND)
}

/// `start` has what the page is built from and the numbers of the last minute; each `tick` has new ones. The stream ends with the
/// connection, or when the page falls behind: it then connects anew.
async fn events(
    State(board): State<Arc<Board>>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let (mut start, ticks) = board.feed.join();
    start["panels"] = board
        .panels
        .iter()
        .map(|panel| describe(panel.about))
        .collect();
    let start = Event::default()
        .event("start")
        .retry(RETRY)
        .data(start.to_string());
    let ticks = stream::unfold(ticks, async |mut ticks| {
        let tick = ticks.recv().await.ok()?;
        Some((Event::default().event("tick").data(&*tick), ticks))
    });
    Sse::new(stream::once(async { start }).chain(ticks).map(Ok))
}

fn describe(about: &About) -> Value {
    let knobs = about.knobs.iter().map(|knob| {
        let (min, max) = (knob.range.start(), knob.range.end());
        json!({ "name": knob.name, "label": knob.label, "unit": knob.unit, "min": min, "max": max })
    });
    let knobs: Vec<_> = knobs.collect();
    let tenants: Vec<_> = about.tenants.iter().map(|tenant| tenant.name).collect();
    json!({
        "name": about.name, "title": about.title, "text": about.text, "leaks": about.leaks, "knobs": knobs, "tenants": tenants,
    })
}

/// The latest tick, for programs.
async fn status(State(board): State<Arc<Board>>) -> Json<Value> {
    Json(board.feed.latest())
}

async fn change(
    State(board): State<Arc<Board>>,
    Path(name): Path<String>,
    wanted: Result<Json<BTreeMap<String, Value>>, JsonRejection>,
) -> Result<StatusCode, Refusal> {
    let Json(wanted) = wanted.map_err(|error| (error.status(), error.body_text()))?;
    find(&board, &name)?
        .change(&wanted)
        .map_err(|error| (StatusCode::BAD_REQUEST, error))?;
    Ok(StatusCode::NO_CONTENT)
}

async fn leak(
    State(board): State<Arc<Board>>,
    Path(name): Path<String>,
) -> Result<Json<Value>, Refusal> {
    let panel = find(&board, &name)?;
    if !panel.about.leaks {
        let error = format!("`{name}` has no TTL: what leaked would never come back");
        return Err((StatusCode::BAD_REQUEST, error));
    }
    let leaked = panel.seen.leaks.leak(&panel.limiter).await;
    let fence = leaked.map_err(|error| {
        (
            StatusCode::CONFLICT,
            format!("nothing to leak: {}", chain(&error)),
        )
    })?;
    Ok(Json(json!({ "permit": fence })))
}

fn find<'a>(board: &'a Board, name: &str) -> Result<&'a Panel, Refusal> {
    board.panel(name).ok_or_else(|| {
        let names: Vec<_> = board.panels.iter().map(|panel| panel.about.name).collect();
        (
            StatusCode::NOT_FOUND,
            format!(
                "no limiter is called `{name}`; there are {}",
                names.join(", ")
            ),
        )
    })
}
