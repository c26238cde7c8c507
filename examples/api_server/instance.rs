//! One instance of the server: a process with two listeners, for users and for operators.

use std::error::Error;
use std::io::Read as _;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Extension, Request};
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::routing::get;
use common::store::AnyStore;
use common::{chain, say};
use tokio::net::TcpListener;
use tokio::time::sleep;
use tollgate::layers::{ClientIp, LimitLayer, RateLimitStyle};
use tollgate::{Adapt, Limiter, MaxConcurrency, Outcome};

use crate::answers::{CAPACITY, PENALTY, PLAN, SEARCH, problem, refused};
use crate::options::Options;
use crate::plans::Limiters;
use crate::users::{User, Users, authenticate, user_of};
use crate::{message, penalties};

/// How long a request may wait for capacity.
const PATIENCE: Duration = Duration::from_millis(500);

/// Serves until the process that started this one has ended. Errors go to that process, which prints them.
pub(crate) async fn run(options: &Options) -> ExitCode {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]); // returns when the other end is closed
        std::process::exit(0);
    });
    let Err(error) = serve(options).await else {
        return ExitCode::SUCCESS;
    };
    say!("{}", message::failed(&chain(&*error)));
    ExitCode::from(2)
}

async fn serve(options: &Options) -> Result<(), Box<dyn Error>> {
    let (for_users, for_operators) = services(options)?;
    // Operators use another address, to which no proxy leads. So the table needs no password, and works during an attack.
    let [users_at, operators_at] = [
        TcpListener::bind("127.0.0.1:0").await?,
        TcpListener::bind("127.0.0.1:0").await?,
    ];
    say!(
        "{}",
        message::listening(users_at.local_addr()?, operators_at.local_addr()?)
    );
    tokio::spawn(async { axum::serve(operators_at, for_operators).await });
    Ok(axum::serve(
        users_at,
        for_users.into_make_service_with_connect_info::<SocketAddr>(),
    )
    .await?)
}

/// What users get, and what operators get.
fn services(options: &Options) -> Result<(Router, Router), Box<dyn Error>> {
    let (Some(store), Some(users), Some(name)) = (&options.store, &options.users, &options.name)
    else {
        return Err("an instance needs a store, users and a name".into());
    };
    let limiters = Limiters::new(&AnyStore::open(store)?, name, options.minute())?;
    let users = Users::open(users)?;

    // 1. In front of everything: the penalty of an address.
    let client_ip = match options.proxies.as_slice() {
        [] => ClientIp::peer(),
        proxies => ClientIp::behind_networks(proxies)?,
    };
    let table = penalties::limiter()?;
    let penalty = LimitLayer::new(table.clone())
        .by(client_ip.peer_from(|extensions| {
            extensions
                .get::<ConnectInfo<SocketAddr>>()
                .map(|peer| peer.0)
        }))
        .name("client")?
        .penalize(penalties::charge)
        .on_refusal(refused(PENALTY));

    // 2. The capacity of this instance, which the limiter finds. It is not the quota of a client, so no fields show it.
    let capacity =
        Limiter::builder(MaxConcurrency::new(64).adapt(Adapt::gradient().between(16, 256)))
            .max_queue(256)
            .build()?;
    let capacity = LimitLayer::new(capacity)
        .wait(PATIENCE)
        .style(RateLimitStyle::None)
        .classify(outcome_of)
        .on_refusal(refused(CAPACITY));

    // 3. The users: `authenticate`.
    // 4. What their plan allows. Searches have a limit of their own, which is checked first: the plan does not count the searches
    //    that it denies.
    let searches = LimitLayer::new(limiters.searches.clone())
        .by(|request: &Request| user_of(request).map(|user| user.id))
        .name("search")?
        .on_refusal(refused(SEARCH));
    let limiters = Arc::new(limiters);
    let plan = LimitLayer::choose(move |user: &User| limiters.of(user))
        .by(user_of)
        .name("plan")?
        .on_refusal(refused(PLAN));

    // A layer that is added later is outside of the earlier ones.
    let cheap = Router::new()
        .route("/items", get(items))
        .route_layer(plan.clone());
    let expensive = Router::new()
        .route("/search", get(search))
        .route_layer(plan)
        .route_layer(searches);
    let app = cheap
        .merge(expensive)
        .fallback(async || {
            problem(
                StatusCode::NOT_FOUND,
                None,
                "no_such_page",
                "see /items and /search",
            )
            .map(axum::body::Body::from)
        })
        .layer(from_fn_with_state(users, authenticate))
        .layer(capacity)
        .layer(penalty);
    let operators = Router::new().route("/penalties", get(async move || penalties::table(&table)));
    Ok((app, operators))
}

/// By default a 429 is an overload. Here the inner layers send it, and it says nothing about the load.
fn outcome_of(status: Option<StatusCode>) -> Outcome {
    match status {
        Some(StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT) | None => {
            Outcome::Overloaded
        }
        Some(status) if status.is_client_error() => Outcome::Ignored,
        Some(_) => Outcome::Ok,
    }
}

async fn items(Extension(user): Extension<User>) -> String {
    sleep(Duration::from_millis(2)).await;
    format!("the items of {}, whose plan is {}\n", user.name, user.plan)
}

async fn search(Extension(user): Extension<User>) -> String {
    sleep(Duration::from_millis(20)).await;
    format!("what {} searched for\n", user.name)
}
