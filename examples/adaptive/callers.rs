//! The callers and what they measure.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, timeout_at};
use tollgate::{Limiter, Outcome};

use crate::server::{PHASES, Refused, Server};

const SAMPLE: Duration = Duration::from_millis(20);

/// One call. Its times are since the start.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) finished: Duration,
    pub(crate) latency: Duration,
    pub(crate) refused: bool,
}

#[derive(Debug)]
pub(crate) struct Run {
    /// The length of each phase.
    pub(crate) length: Duration,
    pub(crate) calls: Vec<Call>,
    /// The limit over time.
    pub(crate) limits: Vec<(Duration, u64)>,
}

impl Run {
    pub(crate) fn end(&self) -> Duration {
        self.length * PHASES.len() as u32
    }
}

/// Lets `callers` tasks call the server while it goes through its phases.
pub(crate) async fn run(
    limiter: &Limiter,
    callers: usize,
    length: Duration,
) -> Result<Run, Box<dyn Error>> {
    let (server, start) = (Arc::new(Server::new()?), Instant::now());
    let end = start + length * PHASES.len() as u32;
    let watch = tokio::spawn(watch(limiter.clone(), start, end));
    let mut work = JoinSet::new();
    for _ in 0..callers {
        work.spawn(call(limiter.clone(), Arc::clone(&server), start, end));
    }
    for phase in PHASES {
        server.enter(phase)?;
        sleep(length).await;
    }
    let mut calls: Vec<_> = work.join_all().await.into_iter().flatten().collect();
    calls.sort_unstable_by_key(|call| call.finished);
    Ok(Run {
        length,
        calls,
        limits: watch.await?,
    })
}

/// One caller: makes one call after the other.
async fn call(limiter: Limiter, server: Arc<Server>, start: Instant, end: Instant) -> Vec<Call> {
    let mut calls = Vec::new();
    while Instant::now() < end
        && let Ok(Ok(permit)) = timeout_at(end, limiter.acquire()).await
    {
        let sent = Instant::now();
        let answer = server.call().await;
        let now = Instant::now();
        permit.report(match answer {
            Ok(()) => Outcome::Ok,
            Err(Refused) => Outcome::Overloaded,
        });
        calls.push(Call {
            finished: now - start,
            latency: now - sent,
            refused: answer.is_err(),
        });
    }
    calls
}

async fn watch(limiter: Limiter, start: Instant, end: Instant) -> Vec<(Duration, u64)> {
    let (mut ticks, mut limits) = (interval(SAMPLE), Vec::new());
    while Instant::now() < end {
        ticks.tick().await;
        limits.push((start.elapsed(), limiter.snapshot().concurrency.unwrap_or(0)));
    }
    limits
}
