//! A wrapper over an outgoing action: all replicas of a client take a token from one bucket before each call, so that together they
//! do not overwhelm the service that they call. The bucket refills all at once each period, inside the request for a token.
//!
//! ```text
//! cargo run --example outgoing_action    # two replicas, in one process
//! cargo run --example outgoing_action --features sqlite -- --store target/outgoing.db    # in two terminals: four replicas
//! ```
//!
//! It shows how an action without a token is answered: by an error that says when to retry, or by a wait in turn with a timeout. It
//! also shows an action that costs several tokens, and the three rules for the time in which the store does not answer.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, value_parser};
use common::store::AnyStore;
use common::{Human, chain, exit_code, say, seconds};
use futures_util::future::join_all;
use tokio::time::{Instant, sleep};
use tollgate::store::OnStoreDown;
use tollgate::{ConfigError, Rate, RunError, SharedLimiter, TokenBucket, TryAcquireError};

/// How long a call to the service takes.
const CALL: Duration = Duration::from_millis(20);

/// Limits the calls of two replicas to a service by one bucket of tokens
#[derive(Debug, Parser)]
struct Options {
    /// Tokens in the bucket, and tokens that come each period
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = value_parser!(u64).range(2..=1_000))]
    tokens: u64,
    /// The period
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    period: Duration,
    /// `memory`, or with their features the path of an SQLite file, redis://…, postgres://… or mysql://…
    #[arg(long, value_name = "STORE", default_value = "memory")]
    store: String,
}

/// An action that runs only with a token. The limiter hides where the tokens are kept.
struct Limited<A> {
    bucket: SharedLimiter,
    action: A,
}

impl<A, F> Limited<A>
where
    A: Fn(String) -> F,
    F: Future<Output = String>,
{
    /// Runs the action if there are this many tokens now. The error says when there will be.
    async fn call(&self, input: String, tokens: u64) -> Result<String, TryAcquireError> {
        let _permit = self.bucket.try_acquire_many(tokens).await?;
        Ok((self.action)(input).await)
    }

    /// Waits for the tokens in turn, and runs the action.
    async fn call_within(
        &self,
        timeout: Duration,
        input: String,
        tokens: u64,
    ) -> Result<String, RunError> {
        self.bucket
            .request()
            .cost(tokens)
            .timeout(timeout)
            .run((self.action)(input))
            .await
    }
}

/// The action: it stands for a call over the network.
async fn pay(what: String) -> String {
    sleep(CALL).await;
    format!("{what} is paid")
}

#[tokio::main]
async fn main() -> ExitCode {
    exit_code(run(&Options::parse()).await)
}

async fn run(options: &Options) -> Result<ExitCode, Box<dyn Error>> {
    let Options {
        tokens,
        period,
        store,
    } = options;
    let bucket = TokenBucket::new(Rate::new(*tokens, *period), *tokens).refill_each_period();
    let store = AnyStore::open(store)?;
    let replica = |name: &str, rule| {
        let bucket = SharedLimiter::builder(store.clone(), name, bucket)
            .on_store_down(rule)
            .build()?;
        Ok::<_, ConfigError>(Limited {
            bucket,
            action: pay,
        })
    };
    let replicas = [
        replica("payments", OnStoreDown::Error)?,
        replica("payments", OnStoreDown::Error)?,
    ];
    replicas[0].bucket.limits().await?; // connects to the store
    let start = Instant::now();
    let tell = |who: &str, outcome: Result<String, Box<dyn Error>>| {
        let outcome = outcome.unwrap_or_else(|error| format!("not called: {}", chain(&*error)));
        say!(
            "{:>6.3} s  {who:<8} {outcome}",
            start.elapsed().as_secs_f64()
        );
    };
    // The replicas take turns.
    let bills = |count| (1..=count).zip(replicas.iter().zip(["a", "b"]).cycle());

    say!(
        "one bucket for two replicas: {bucket}\n\n1. All call at once, and without a token there is an error"
    );
    join_all(bills(tokens + 3).map(async |(bill, (replica, name))| {
        tell(
            name,
            replica
                .call(format!("bill {bill}"), 1)
                .await
                .map_err(Into::into),
        );
    }))
    .await;

    let longest = *period * 3;
    say!(
        "\n2. All call at once, and wait in turn for {} at most",
        Human(longest)
    );
    join_all(bills(2 * tokens).map(async |(bill, (replica, name))| {
        tell(
            name,
            replica
                .call_within(longest, format!("bill {bill}"), 1)
                .await
                .map_err(Into::into),
        );
    }))
    .await;

    say!("\n3. A call may cost several tokens");
    for cost in [2, *tokens, tokens + 1] {
        tell(
            "a",
            replicas[0]
                .call_within(longest, format!("batch of {cost}"), cost)
                .await
                .map_err(Into::into),
        );
    }

    for (name, rule) in [
        ("error", OnStoreDown::Error),
        ("deny", OnStoreDown::Deny),
        ("allow", OnStoreDown::Allow),
    ] {
        say!("\n4. The store is cut off, and the rule is: {name}");
        let replica = replica(&format!("payments-{name}"), rule)?;
        store.cut(true);
        tell(
            "at once",
            replica
                .call("bill 1".to_owned(), 1)
                .await
                .map_err(Into::into),
        );
        tell(
            "in turn",
            replica
                .call_within(*period / 4, "bill 2".to_owned(), 1)
                .await
                .map_err(Into::into),
        );
        store.cut(false);
        sleep(*period / 2).await;
        tell(
            "later",
            replica
                .call_within(longest, "bill 3".to_owned(), 1)
                .await
                .map_err(Into::into),
        );
    }
    Ok(ExitCode::SUCCESS)
}
