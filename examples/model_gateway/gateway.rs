//! The gateway: tasks that call the model through one limiter.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use reqwest::{Client, StatusCode, Url, header};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tollgate::{Limiter, UpstreamSignal};

use crate::options::Options;
use crate::{number, provider, random};

const WORDS: [&str; 7] = [
    "summarise",
    "these",
    "notes",
    "and",
    "list",
    "open",
    "questions",
];
const MOST_WORDS: f64 = 180.0;
/// The estimate of the longest prompt, rounded up.
pub(crate) const LARGEST_PROMPT: u64 = 300;
/// Longer than any answer takes.
const TIMEOUT: Duration = Duration::from_secs(30);

type Failure = Box<dyn Error + Send + Sync>;

/// One answered call.
#[derive(Debug)]
pub(crate) struct Call {
    /// How long it waited for its permit.
    pub(crate) waited: Duration,
    /// When its answer came, since the start.
    pub(crate) answered: Duration,
    /// Tokens.
    pub(crate) estimated: u64,
    pub(crate) used: u64,
}

/// A whole run. The calls are in the order of their answers.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) calls: Vec<Call>,
    /// Calls that were answered with 429.
    pub(crate) refused: u64,
    /// When the last answer came.
    pub(crate) elapsed: Duration,
    /// Tokens that the limit allows in this time.
    pub(crate) allowed: f64,
}

impl Run {
    pub(crate) fn used(&self) -> u64 {
        self.calls.iter().map(|call| call.used).sum()
    }

    /// Tokens used, in percent of those allowed.
    pub(crate) fn percent(&self) -> f64 {
        self.used() as f64 * 100.0 / self.allowed
    }
}

/// Calls the model until the run is over. The last calls are answered a little later.
pub(crate) async fn run(
    options: &Options,
    limiter: Limiter,
    settles: bool,
) -> Result<Run, Box<dyn Error>> {
    let url = provider::start(options).await?;
    // Installs the only provider of TLS that is compiled in. The other gateway may have installed it already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // The server is local: a proxy or missing certificates must not matter.
    let client = Client::builder()
        .no_proxy()
        .tls_certs_only([])
        .timeout(TIMEOUT)
        .build()?;
    let start = Instant::now();
    let gateway = Arc::new(Gateway {
        limiter,
        client,
        url,
        settles,
        max_tokens: options.max_tokens,
        estimate: options.estimate(),
        seed: !options.seed, // so that prompts and answers differ in length
        next: AtomicU64::new(0),
        refused: AtomicU64::new(0),
        start,
        end: start + options.run,
    });
    let mut tasks = JoinSet::new();
    for _ in 0..options.tasks {
        tasks.spawn(Arc::clone(&gateway).call_until_the_end());
    }
    let mut calls = Vec::new();
    while let Some(of_one) = tasks.join_next().await {
        calls.extend(
            of_one?.map_err(|failure| format!("a call failed: {}", root_cause(&*failure)))?,
        );
    }
    calls.sort_unstable_by_key(|call| call.answered);
    let elapsed = calls.last().map_or(options.run, |call| call.answered);
    let allowed = options.burst() as f64 + options.rate() * elapsed.as_secs_f64();
    Ok(Run {
        calls,
        refused: gateway.refused.load(Ordering::Relaxed),
        elapsed,
        allowed,
    })
}

struct Gateway {
    limiter: Limiter,
    client: Client,
    url: Url,
    settles: bool,
    max_tokens: u64,
    estimate: u64,
    seed: u64,
    next: AtomicU64,
    refused: AtomicU64,
    start: Instant,
    end: Instant,
}

enum Answer {
    Usage { input: u64, output: u64 },
    TooManyRequests { retry_after: Duration },
}

impl Gateway {
    async fn call_until_the_end(self: Arc<Self>) -> Result<Vec<Call>, Failure> {
        let mut calls = Vec::new();
        while Instant::now() < self.end {
            let prompt = self.prompt();
            let estimated = prompt.len() as u64 / 4 + self.estimate;
            let asked = Instant::now();
            let request = self.limiter.request().cost_of("tokens", estimated);
            let Ok(permit) = timeout_at(self.end, request.acquire()).await else {
                break;
            };
            let (permit, waited) = (permit?, asked.elapsed());
            match self.call(&prompt).await? {
                Answer::Usage { input, output } => {
                    let used = input + output;
                    if self.settles {
                        _ = permit.settle_costs([("tokens", used)]);
                    }
                    calls.push(Call {
                        waited,
                        answered: self.start.elapsed(),
                        estimated,
                        used,
                    });
                }
                Answer::TooManyRequests { retry_after } => {
                    self.refused.fetch_add(1, Ordering::Relaxed);
                    _ = permit.refund();
                    self.limiter.apply_upstream_signal(
                        &UpstreamSignal::new().limited().retry_after(retry_after),
                    );
                }
            }
        }
        Ok(calls)
    }

    async fn call(&self, prompt: &str) -> Result<Answer, Failure> {
        let body = format!(
            r#"{{"max_tokens": {}, "prompt": "{prompt}"}}"#,
            self.max_tokens
        );
        let response = self.client.post(self.url.clone()).body(body).send().await?;
        if response.status() == StatusCode::TOO_MANY_REQUESTS {
            let header = response
                .headers()
                .get(header::RETRY_AFTER)
                .ok_or("a 429 without a Retry-After")?;
            return Ok(Answer::TooManyRequests {
                retry_after: Duration::from_secs(header.to_str()?.parse()?),
            });
        }
        let text = response.error_for_status()?.text().await?;
        let tokens = |field| number(&text, field).ok_or_else(|| format!("no {field} in `{text}`"));
        Ok(Answer::Usage {
            input: tokens("input_tokens")?,
            output: tokens("output_tokens")?,
        })
    }

    /// A prompt of any length up to the longest.
    fn prompt(&self) -> String {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        let words = (MOST_WORDS * random(self.seed, index)).ceil() as usize;
        WORDS
            .into_iter()
            .cycle()
            .take(words)
            .collect::<Vec<_>>()
            .join(" ")
    }
}

/// The innermost source of an error: "connection refused" rather than "error sending request".
fn root_cause(error: &dyn Error) -> String {
    error.source().map_or_else(|| error.to_string(), root_cause)
}
