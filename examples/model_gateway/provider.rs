//! The provider of the model: a web server that counts requests and tokens in buckets of its own, and answers 429 when one of them
//! does not suffice. Its buckets and the client's limiter do not know each other.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use reqwest::Url;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};

use crate::options::Options;
use crate::{number, random};

/// An answer takes this long, and longer by `EACH_TOKEN` for each of its tokens.
const FIRST_TOKEN: Duration = Duration::from_millis(30);
const EACH_TOKEN: Duration = Duration::from_micros(300);

struct Account {
    requests: Bucket,
    tokens: Bucket,
    seed: u64,
    answers: u64,
}

/// Serves on a free local port until the program ends. Returns the URL of the model.
pub(crate) async fn start(options: &Options) -> Result<Url, Box<dyn std::error::Error>> {
    let listener = TcpListener::bind(("127.0.0.1", 0))
        .await
        .map_err(|error| format!("cannot serve on 127.0.0.1: {error}"))?;
    let url = Url::parse(&format!("http://{}/model", listener.local_addr()?))?;
    let account = Account {
        requests: Bucket::new(options.requests, options.minute),
        tokens: Bucket::new(options.provider_tokens(), options.minute),
        seed: options.seed,
        answers: 0,
    };
    let router = Router::new()
        .route("/model", post(answer))
        .with_state(Arc::new(Mutex::new(account)));
    tokio::spawn(async { axum::serve(listener, router).await });
    Ok(url)
}

async fn answer(State(account): State<Arc<Mutex<Account>>>, call: String) -> Response {
    let Some(max_tokens) = number(&call, "max_tokens") else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let input = (call.split_whitespace().count() as u64 * 4).div_ceil(3); // a word is a little more than a token
    let admitted = account.lock().unwrap().admit(input, max_tokens);
    let output = match admitted {
        Ok(output) => output,
        Err(wait) => {
            let seconds = wait.as_nanos().div_ceil(1_000_000_000).to_string(); // the header has whole seconds
            return (
                StatusCode::TOO_MANY_REQUESTS,
                [(header::RETRY_AFTER, seconds)],
            )
                .into_response();
        }
    };
    sleep(FIRST_TOKEN + EACH_TOKEN * output as u32).await;
    format!(r#"{{"usage": {{"input_tokens": {input}, "output_tokens": {output}}}}}"#)
        .into_response()
}

impl Account {
    /// Charges a request and its tokens. Returns how many tokens its answer has, or how long to wait.
    fn admit(&mut self, input: u64, max_tokens: u64) -> Result<u64, Duration> {
        // The third power: most answers are far shorter than the longest, and a quarter of it on average.
        let output = (max_tokens as f64 * random(self.seed, self.answers).powi(3))
            .ceil()
            .max(1.0) as u64;
        let tokens = (input + output) as f64;
        let wait = self
            .requests
            .wait_for(1.0)
            .max(self.tokens.wait_for(tokens));
        if wait > Duration::ZERO {
            return Err(wait);
        }
        self.requests.level -= 1.0;
        self.tokens.level -= tokens;
        self.answers += 1;
        Ok(output)
    }
}

/// A bucket that holds what comes in a minute, and is full at first.
struct Bucket {
    size: f64,
    a_second: f64,
    level: f64,
    at: Instant,
}

impl Bucket {
    fn new(units: u64, minute: Duration) -> Self {
        let size = units as f64;
        Self {
            size,
            a_second: size / minute.as_secs_f64(),
            level: size,
            at: Instant::now(),
        }
    }

    /// The time until the bucket holds this many units. (A cost above its size is admitted when it is full, and leaves a debt.)
    fn wait_for(&mut self, units: f64) -> Duration {
        let now = Instant::now();
        let refill = (now - self.at).as_secs_f64() * self.a_second;
        self.level = self.size.min(self.level + refill);
        self.at = now;
        let missing = (units.min(self.size) - self.level).max(0.0);
        Duration::try_from_secs_f64(missing / self.a_second).unwrap_or(Duration::MAX)
    }
}
