//! Fetches with one permit for each request, held from before the request is sent until its body is read.

use std::error::Error;
use std::time::Duration;

use common::Human;
use reqwest::{Client, StatusCode, Url};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tollgate::{Limiter, Permit};

use crate::options::Options;
use crate::progress::Progress;
use crate::record::{Outcome, Record, Run};

/// Fetches all URLs, as fast as the limiter admits them.
pub(crate) async fn all(
    urls: Vec<Result<Url, String>>,
    limiter: &Limiter,
    client: &Client,
    options: Options,
    progress: &Progress,
) -> Run {
    let start = Instant::now();
    let mut request = limiter.request();
    if let Some(longest) = options.max_wait {
        request = request.timeout(longest);
    }
    let admit = async |url: Result<Url, String>| {
        let url = url?;
        let permit = request
            .clone()
            .acquire()
            .await
            .map_err(|error| format!("{url}: no permit: {error}"))?;
        Ok::<_, String>((url, permit))
    };
    let (mut fetches, mut unsent) = (JoinSet::new(), 0);
    for url in urls {
        let asked = Instant::now();
        // The task starts after its permit was granted, so that there are never more tasks than permits.
        match admit(url).await {
            Ok((url, permit)) => {
                let fetch = Fetch {
                    url,
                    permit,
                    client: client.clone(),
                    timeout: options.timeout,
                    progress: progress.clone(),
                };
                fetches.spawn(fetch.run(start, asked));
            }
            Err(why) => {
                progress.failed(why);
                unsent += 1;
            }
        }
    }
    let mut records = fetches.join_all().await;
    let elapsed = start.elapsed();
    records.sort_unstable_by_key(|record| record.granted);
    Run {
        options,
        records,
        unsent,
        elapsed,
    }
}

/// One request that has its permit.
struct Fetch {
    url: Url,
    permit: Permit,
    client: Client,
    timeout: Duration,
    progress: Progress,
}

impl Fetch {
    async fn run(self, start: Instant, asked: Instant) -> Record {
        let granted = self.permit.acquired_at().unwrap_or(asked);
        let expires = self.permit.expires_at();
        let outcome = tokio::select! {
            biased;
            outcome = self.fetch() => outcome,
            // The place may belong to another request by now. To continue would exceed the limit.
            () = self.permit.reclaimed() => self.failed("its permit was reclaimed; raise --ttl"),
        };
        // The place is free when the permit expires, or else when it is released below. The clock is read before the release, so
        // that the next request with this place never seems to start before this one ends.
        let now = Instant::now();
        let finished = expires.map_or(now, |expires| expires.min(now));
        self.permit.release();
        Record {
            waited: granted - asked,
            granted: granted - start,
            finished: finished - start,
            outcome,
        }
    }

    async fn fetch(&self) -> Outcome {
        let answer = async {
            let response = self.client.get(self.url.clone()).send().await?;
            let status = response.status();
            response.bytes().await?;
            Ok(status)
        };
        match answer.await {
            Ok(StatusCode::TOO_MANY_REQUESTS) => {
                self.progress.done();
                Outcome::TooManyRequests
            }
            Ok(status) if status.is_success() => {
                self.progress.done();
                Outcome::Fetched
            }
            Ok(status) => self.failed(format_args!("answered {status}")),
            Err(error) => self.failed(self.explain(&error)),
        }
    }

    fn failed(&self, why: impl std::fmt::Display) -> Outcome {
        self.progress.failed(format_args!("{}: {why}", self.url));
        Outcome::Failed
    }

    fn explain(&self, error: &reqwest::Error) -> String {
        if error.is_timeout() {
            format!("no full answer within {}", Human(self.timeout))
        } else {
            root_cause(error)
        }
    }
}

/// The innermost source of an error: "connection refused" rather than "error sending request".
pub(crate) fn root_cause(error: &dyn Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}
