//! The load: users of each plan, and an abuser who guesses tokens, over HTTP and to all instances in turn.

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use common::chain;
use futures_util::future::try_join_all;
use reqwest::{Client, StatusCode};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tollgate::{ConfigError, Limiter, Permit, Throttle};

use crate::claims::examine;
use crate::options::Options;
use crate::plans::Plan;
use crate::progress::Progress;
use crate::record::{Answer, Record};
use crate::users::{self, User};
use crate::{answers, penalties};

/// One request of this many is a search. The number is odd, so that searches go to two instances.
const SEARCH_EVERY: usize = 17;
/// How long a user sends requests to get a denial whose `Retry-After` can be tried.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often the live table is read.
const TABLE_EVERY: Duration = Duration::from_millis(200);

/// A client that sends requests: a user or the abuser.
pub(crate) struct Caller {
    pub(crate) name: String,
    /// `None` for the abuser.
    pub(crate) plan: Option<Plan>,
    token: Option<String>,
    address: IpAddr,
    /// The most requests in flight at once.
    connections: u16,
    pace: Limiter,
    sent: AtomicUsize,
}

impl Caller {
    /// Sends more than the plan allows.
    fn user(token: String, user: User) -> Result<Self, ConfigError> {
        let (times, connections) = match user.plan {
            Plan::Free => (4.0, 1),
            Plan::Pro => (1.5, 8),
            Plan::Enterprise => (1.2, 24),
        };
        let (address, per_second) = (
            [203, 0, 113, user.id as u8],
            times * user.plan.per_minute() as f64 / 60.0,
        );
        Self::new(
            user.name,
            Some(user.plan),
            Some(token),
            address,
            connections,
            per_second,
        )
    }

    fn abuser(instances: u16) -> Result<Self, ConfigError> {
        Self::new(
            "abuser".to_owned(),
            None,
            None,
            [198, 51, 100, 66],
            2 * instances,
            20.0 * f64::from(instances),
        )
    }

    fn new(
        name: String,
        plan: Option<Plan>,
        token: Option<String>,
        address: [u8; 4],
        connections: u16,
        per_second: f64,
    ) -> Result<Self, ConfigError> {
        let pace = Limiter::new(
            Throttle::every(Duration::from_secs_f64(1.0 / per_second)).burst(connections.into()),
        )?;
        Ok(Self {
            name,
            plan,
            token,
            address: address.into(),
            connections,
            pace,
            sent: AtomicUsize::new(0),
        })
    }

    /// Waits until the caller's turn to send so many more requests.
    async fn wait_for_turn(&self, requests: u16) -> Result<(), String> {
        let turn = self.pace.acquire_many(requests.into()).await;
        turn.map(Permit::release).map_err(|error| error.to_string())
    }
}

/// What all callers share.
struct Load {
    client: Client,
    instances: Vec<(SocketAddr, SocketAddr)>,
    start: Instant,
    end: Instant,
    progress: Progress,
}

/// The results of the load.
pub(crate) struct Results {
    pub(crate) records: Vec<(Arc<Caller>, Record)>,
    /// The table of the first instance, at the end of the load.
    pub(crate) table: String,
    /// Whether the table of some instance has shown that the abuser is locked out.
    pub(crate) abuser_was_seen: bool,
}

pub(crate) async fn run(
    options: &Options,
    instances: &[(SocketAddr, SocketAddr)],
) -> Result<Results, Box<dyn Error>> {
    let _ = rustls::crypto::ring::default_provider().install_default(); // reqwest needs a provider of TLS, also for http://
    let start = Instant::now();
    let load = Arc::new(Load {
        client: Client::new(),
        instances: instances.to_vec(),
        start,
        end: start + options.run,
        progress: Progress::new(options.run),
    });
    let abuser = Caller::abuser(options.instances)?;
    let abuser_at = abuser.address;
    let users = users::examples()
        .into_iter()
        .map(|(token, user)| Caller::user(token, user));
    let mut callers = Vec::new();
    for caller in users.chain([Ok(abuser)]) {
        let (load, caller) = (Arc::clone(&load), Arc::new(caller?));
        callers.push((Arc::clone(&caller), tokio::spawn(load.call(caller))));
    }

    let mut abuser_was_seen = false;
    while Instant::now() < load.end {
        for instance in 0..load.instances.len() {
            abuser_was_seen |= penalties::locks_out(&load.table(instance).await?, abuser_at);
        }
        load.progress.show(start.elapsed());
        sleep(TABLE_EVERY).await;
    }
    let table = load.table(0).await?;
    load.progress.wait();
    let mut records = Vec::new();
    for (caller, task) in callers {
        records.push((caller, task.await??));
    }
    load.progress.finish();
    Ok(Results {
        records,
        table,
        abuser_was_seen,
    })
}

impl Load {
    /// Sends the requests of one caller, and then checks the retry-after of an answer.
    async fn call(self: Arc<Self>, caller: Arc<Caller>) -> Result<Record, String> {
        let mut connections = JoinSet::new();
        for _ in 0..caller.connections {
            let (load, caller) = (Arc::clone(&self), Arc::clone(&caller));
            connections.spawn(async move {
                let mut answers = Vec::new();
                loop {
                    caller.wait_for_turn(1).await?;
                    if Instant::now() >= load.end {
                        return Ok::<_, String>(answers);
                    }
                    answers.push(load.send(&caller, true).await?);
                }
            });
        }
        let mut record = Record::default();
        for done in connections.join_all().await {
            record.answers.extend(done?);
        }
        if caller.plan.is_some() {
            self.try_retry_after(&caller, &mut record).await?;
        }
        Ok(record)
    }

    /// Sends requests until the plan denies one while no other is in flight. Waits as that answer says, and sends the next request.
    async fn try_retry_after(&self, caller: &Caller, record: &mut Record) -> Result<(), String> {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            // First as many requests at once as use up the units that come back meanwhile, and then a single request.
            for at_once in [caller.connections, 1] {
                caller.wait_for_turn(at_once).await?;
                record
                    .answers
                    .extend(try_join_all((0..at_once).map(|_| self.send(caller, false))).await?);
            }
            let Some(last) = record.answers.last() else {
                continue;
            };
            let (true, Some(after)) = (last.code == answers::PLAN.code, last.retry_after) else {
                continue;
            };
            sleep_until(self.start + last.received + after).await;
            let next = self.send(caller, false).await?;
            // An answer of a server without capacity says nothing about the plan.
            let is_about_the_plan = next.status != StatusCode::SERVICE_UNAVAILABLE;
            record.retried = is_about_the_plan.then_some((after, next.is_allowed()));
            record.answers.push(next);
            if is_about_the_plan {
                break;
            }
        }
        Ok(())
    }

    /// Sends the next request of a caller.
    async fn send(&self, caller: &Caller, may_search: bool) -> Result<Answer, String> {
        let nth = caller.sent.fetch_add(1, Relaxed);
        let (instance, _) = self.instances[nth % self.instances.len()];
        let is_search = may_search && nth.is_multiple_of(SEARCH_EVERY);
        let path = if is_search { "search" } else { "items" };
        let token = caller
            .token
            .clone()
            .unwrap_or_else(|| format!("guess-{nth}"));
        let request = self
            .client
            .get(format!("http://{instance}/{path}"))
            .bearer_auth(token);
        let request = request.header("x-forwarded-for", caller.address.to_string());
        let sent = self.start.elapsed();
        let failed =
            |error: reqwest::Error| format!("{instance} does not answer: {}", chain(&error));
        let response = request.send().await.map_err(failed)?;
        let (status, headers) = (response.status(), response.headers().clone());
        let body = response.text().await.map_err(failed)?;
        let answer = examine(
            status,
            &headers,
            &body,
            sent..self.start.elapsed(),
            is_search,
        );
        self.progress.count(&answer);
        Ok(answer)
    }

    async fn table(&self, instance: usize) -> Result<String, String> {
        let (_, operators) = self.instances[instance];
        let table = async {
            self.client
                .get(format!("http://{operators}/penalties"))
                .send()
                .await?
                .text()
                .await
        };
        table
            .await
            .map_err(|error| format!("{operators} does not answer: {}", chain(&error)))
    }
}
