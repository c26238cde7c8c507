//! An API that limits its clients: each client has a quota that its plan sets, and a token bucket for each endpoint. One client
//! changes its plan in the middle of the minute; what it has used still counts.
//!
//! ```text
//! cargo run --example api_quota                                        # a minute of 3 s
//! cargo run --example api_quota -- --window sliding --minute-ms 10000
//! ```

use std::collections::HashMap;
use std::error::Error;
use std::fmt::Debug;
use std::process::ExitCode;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use clap::{Parser, ValueEnum, value_parser};
use common::{Human, exit_code, say};
use indicatif::HumanCount;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep};
use tollgate::{
    ConfigError, Decision, FixedWindow, KeyedLimiter, LimiterGroup, Policy, Rate, SlidingWindow,
    TokenBucket, TryAcquireError,
};

/// Limits the clients of an API by their plan, and by endpoint
#[derive(Debug, Parser)]
#[command(allow_negative_numbers = true)]
struct Options {
    /// Length of the "minute" of all quotas and buckets
    #[arg(long, value_name = "MS", default_value_t = 3_000, value_parser = value_parser!(u64).range(10..=60_000))]
    minute_ms: u64,
    /// How the quota of a client is counted: in fixed windows, or in a sliding window
    #[arg(long, value_enum, default_value_t = Window::Fixed)]
    window: Window,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Window {
    Fixed,
    Sliding,
}

type Client = &'static str;

/// The plan of a client sets its quota.
#[derive(Debug, Clone, Copy)]
enum Plan {
    Free,
    Starter,
    Higher,
}

impl Plan {
    fn quota(self, window: Window, minute: Duration) -> Policy {
        let units = match self {
            Self::Free => 100,
            Self::Starter => 3_000,
            Self::Higher => 20_000,
        };
        match window {
            Window::Fixed => FixedWindow::new(units, minute).into(),
            Window::Sliding => SlidingWindow::counter(units, minute).into(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Endpoint {
    Status,
    Search,
    Export,
}

impl Endpoint {
    /// How many units a request takes from the client's quota, and as many from the endpoint's bucket.
    fn cost(self) -> u64 {
        match self {
            Self::Status | Self::Search => 1,
            Self::Export => 5,
        }
    }

    /// The token bucket that each client has at this endpoint.
    fn bucket(self, minute: Duration) -> Policy {
        let (per_minute, burst) = match self {
            Self::Status => (60_000, 10_000),
            Self::Search => (3_000, 100),
            Self::Export => (1_500, 50),
        };
        TokenBucket::new(Rate::new(per_minute, minute), burst).into()
    }

    /// The endpoint of a client's nth request. Of 20 requests, 17 are for the status.
    fn of_request(number: u64) -> Self {
        match number % 20 {
            7 | 14 => Self::Search,
            19 => Self::Export,
            _ => Self::Status,
        }
    }
}

struct Api {
    plans: Arc<RwLock<HashMap<Client, Plan>>>,
    quotas: KeyedLimiter<Client>,
    buckets: KeyedLimiter<(Client, Endpoint)>,
}

impl Api {
    fn new(Options { minute_ms, window }: Options) -> Result<Self, ConfigError> {
        let minute = Duration::from_millis(minute_ms);
        let plans: Arc<RwLock<HashMap<Client, Plan>>> = Arc::default();
        let known = Arc::clone(&plans);
        let quotas = KeyedLimiter::builder(Plan::Free.quota(window, minute))
            .tiers(move |client: &Client| plan_of(&known, client).quota(window, minute))
            .build()?;
        let buckets = KeyedLimiter::builder(Endpoint::Status.bucket(minute))
            .tiers(move |(_, endpoint): &(Client, Endpoint)| endpoint.bucket(minute))
            .build()?;
        Ok(Self {
            plans,
            quotas,
            buckets,
        })
    }

    fn subscribe(&self, client: Client, plan: Plan) {
        self.plans
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(client, plan);
    }

    /// Makes one request. It is charged to the quota and to the bucket, or to neither.
    fn call(&self, client: Client, endpoint: Endpoint) -> Result<(), Box<TryAcquireError>> {
        let both = LimiterGroup::new([
            self.quotas.limiter(&client)?,
            self.buckets.limiter(&(client, endpoint))?,
        ]);
        both.try_acquire_many(endpoint.cost())
            .map(drop)
            .map_err(|denied| denied.error.into())
    }
}

fn plan_of(plans: &RwLock<HashMap<Client, Plan>>, client: Client) -> Plan {
    plans
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .get(client)
        .copied()
        .unwrap_or(Plan::Free)
}

/// How many of a client's requests were served, and which limits denied the others.
struct Tally {
    client: Client,
    asked: u64,
    served: u64,
    /// The first denial by each limit: when, for which endpoint, and the limit's answer.
    denials: Vec<(Duration, Endpoint, Decision)>,
}

impl Tally {
    fn denied(&mut self, at: Duration, endpoint: Endpoint, why: Decision) {
        if self
            .denials
            .iter()
            .all(|(.., known)| known.denied_by() != why.denied_by())
        {
            self.denials.push((at, endpoint, why));
        }
    }
}

/// Sends this many requests, spread evenly over a time.
async fn send(
    api: Arc<Api>,
    client: Client,
    requests: u64,
    during: Duration,
) -> Result<Tally, TryAcquireError> {
    const TICKS: u32 = 100;
    let mut ticks = interval((during / TICKS).max(Duration::from_nanos(1)));
    let start = Instant::now();
    let mut tally = Tally {
        client,
        asked: 0,
        served: 0,
        denials: Vec::new(),
    };
    for tick in 1..=u64::from(TICKS) {
        ticks.tick().await;
        while tally.asked < requests * tick / u64::from(TICKS) {
            let endpoint = Endpoint::of_request(tally.asked);
            match api.call(client, endpoint) {
                Ok(()) => tally.served += 1,
                Err(error) => match *error {
                    TryAcquireError::Denied(why) => tally.denied(start.elapsed(), endpoint, why),
                    error => return Err(error),
                },
            }
            tally.asked += 1;
        }
    }
    Ok(tally)
}

#[tokio::main]
async fn main() -> ExitCode {
    exit_code(run(Options::parse()).await)
}

async fn run(options: Options) -> Result<ExitCode, Box<dyn Error>> {
    let part = Duration::from_millis(options.minute_ms).mul_f64(0.4);
    let api = Arc::new(Api::new(options)?);

    say!(
        "1. Four clients send requests for {}, which is 0.4 of a minute",
        Human(part)
    );
    let mut clients = JoinSet::new();
    for (client, plan, requests) in [
        ("alice", Plan::Free, 600),
        ("bob", Plan::Starter, 6_000),
        ("carol", Plan::Higher, 30_000),
        ("dave", Plan::Free, 600),
    ] {
        api.subscribe(client, plan);
        clients.spawn(send(Arc::clone(&api), client, requests, part));
    }
    let mut tallies = clients
        .join_all()
        .await
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    tallies.sort_unstable_by_key(|tally| tally.client);
    print(&api, &tallies);

    say!(
        "\n2. In the middle of the minute dave moves from the free plan to starter; what dave has used still counts"
    );
    tell(&api, "before", "dave");
    api.subscribe("dave", Plan::Starter);
    tell(&api, "after", "dave");
    print(&api, &[send(Arc::clone(&api), "dave", 6_000, part).await?]);

    say!("\n3. alice waits for the retry-after, and is allowed again");
    tell(&api, "before", "alice");
    sleep(
        api.quotas
            .check(&"alice", 1)
            .retry_after()
            .unwrap_or_default(),
    )
    .await;
    tell(&api, "after", "alice");
    Ok(ExitCode::SUCCESS)
}

fn print(api: &Api, tallies: &[Tally]) {
    say!("   client  plan        asked   served   denied   quota left");
    for &Tally {
        client,
        asked,
        served,
        ..
    } in tallies
    {
        let plan = lower(&plan_of(&api.plans, client));
        let [limit, left] = [Decision::limit, Decision::remaining]
            .map(|of| HumanCount(of(&api.quotas.check(&client, 1))));
        let [asked, served, denied] =
            [asked, served, asked - served].map(|count| HumanCount(count).to_string());
        say!("   {client:<6}  {plan:<7}  {asked:>8} {served:>8} {denied:>8}   {left} of {limit}");
    }
    say!("   the first denial of each client by each limit: when, and for which endpoint");
    for Tally {
        client, denials, ..
    } in tallies
    {
        for (at, endpoint, why) in denials {
            let by = why
                .denied_by()
                .map(|limit| limit.to_string())
                .unwrap_or_default();
            say!(
                "   {client:<6}  {:>11}  {:<6}  by {by:<27}  retry after {:>11}",
                millis(*at),
                lower(endpoint),
                retry(why)
            );
        }
    }
}

/// Prints what a client has used, and the answer that it would get now.
fn tell(api: &Api, when: &str, client: Client) {
    let used = api
        .quotas
        .snapshot(&client)
        .map_or(0, |numbers| numbers.used);
    let answer = api.quotas.check(&client, 1);
    let verdict = match answer.denied_by() {
        Some(limit) => format!("denied by {limit}, retry after {}", retry(&answer)),
        None => format!("allowed, {} left", HumanCount(answer.remaining())),
    };
    say!(
        "   {when:<6}  {used} of {} used: {verdict}",
        HumanCount(answer.limit())
    );
}

fn lower(name: &impl Debug) -> String {
    format!("{name:?}").to_lowercase()
}

fn retry(why: &Decision) -> String {
    why.retry_after()
        .map_or_else(|| "unknown".to_owned(), millis)
}

/// A duration in milliseconds, with microseconds: a client that retries a moment too early is denied again.
fn millis(span: Duration) -> String {
    format!("{:.3} ms", span.as_secs_f64() * 1e3)
}
