//! What the requests of a client cost, how they are settled and refunded, and how many are sent again.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::common::ms;
use http::{Request, Response};
use http_body_util::BodyExt;
use tokio::time::{Instant, advance};
use tollgate::layers::{ActualCost, OutboundLayer, RetryBudget, UpstreamFamily, UpstreamReader};
use tollgate::store::MemoryStore;
use tollgate::{Adapt, Limiter, MaxConcurrency, Rate, SharedLimiter, TokenBucket};
use tower::{Layer, Service, ServiceExt, service_fn};

fn to(path: &str) -> Request<String> {
    Request::get(path).body(String::new()).unwrap()
}

/// The last part of the path.
fn number(path: &str) -> u64 {
    path.rsplit('/').next().unwrap().parse().unwrap()
}

/// Answers with the status that is the last part of the path, and a field that says 7 units were used.
fn echo(
    calls: &Arc<AtomicU64>,
) -> impl Service<Request<String>, Response = Response<String>, Error = Infallible, Future: Send> + Clone
{
    let calls = Arc::clone(calls);
    service_fn(move |request: Request<String>| {
        calls.fetch_add(1, Relaxed);
        let status = number(request.uri().path()) as u16;
        let answer = Response::builder().status(status).header("x-used", "7");
        async { Ok(answer.body("words".to_owned()).unwrap()) }
    })
}

fn bucket(units: u64) -> TokenBucket {
    TokenBucket::new(Rate::per_minute(units), units)
}

#[tokio::test(start_paused = true)]
async fn a_request_has_its_own_cost_and_one_of_cost_0_needs_no_permit() {
    let limiter = Limiter::new(MaxConcurrency::new(5).and(bucket(100))).unwrap();
    let calls = Arc::default();
    let client = OutboundLayer::new(limiter.clone())
        .cost_by(|request| request.uri.query().map_or(1, |cost| cost.parse().unwrap()))
        .layer(echo(&calls));
    let answer = client.clone().oneshot(to("/200?4")).await.unwrap();
    assert_eq!(limiter.snapshot().in_flight, 4);
    assert_eq!(
        client.clone().oneshot(to("/200?0")).await.unwrap().status(),
        200
    );
    assert_eq!(limiter.snapshot().in_flight, 4);
    drop(answer);
    assert_eq!(
        (limiter.limits()[0].remaining, limiter.limits()[1].remaining),
        (5, 96)
    );
    assert!(
        client.oneshot(to("/200?6")).await.is_err(),
        "no capacity for 6"
    );
    assert_eq!(calls.load(Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn a_permit_is_settled_by_the_head_or_by_who_reads_the_body() {
    let policy = "2 concurrent per request and 1000 tokens/min";
    let limiter = Limiter::new(policy).unwrap();
    let left = || (limiter.limits()[0].remaining, limiter.limits()[1].remaining);
    let layer = OutboundLayer::new(limiter.clone()).cost_of("tokens", |_| 900);
    let calls = Arc::default();
    let of_head = layer.clone().settle_by(|head| {
        let used = head.headers.get("x-used")?.to_str().ok()?.parse().ok()?;
        Some(ActualCost::of("tokens", used))
    });
    let answer = of_head
        .layer(echo(&calls))
        .oneshot(to("/200"))
        .await
        .unwrap();
    assert_eq!(left(), (1, 100), "until the body has ended");
    answer.into_body().collect().await.unwrap();
    assert_eq!(left(), (2, 993));

    // What only the body tells is set before the last clone of the cost is dropped.
    advance(Duration::from_secs(60)).await;
    let client = layer.clone().settle_later().layer(echo(&calls));
    let mut answer = client.clone().oneshot(to("/200")).await.unwrap();
    let cost: ActualCost = answer.extensions_mut().remove().unwrap();
    let words = answer.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(left(), (1, 100));
    cost.set_of("tokens", 1);
    cost.set_of("tokens", words.len() as u64);
    drop(cost);
    assert_eq!(left(), (2, 995));

    // A body that is not read, and a cost that is never set.
    advance(Duration::from_secs(60)).await;
    let mut answer = client.clone().oneshot(to("/200")).await.unwrap();
    let cost: ActualCost = answer.extensions_mut().remove().unwrap();
    cost.set_of("tokens", 40);
    drop((cost.clone(), cost));
    assert_eq!(left(), (1, 100));
    drop(answer);
    assert_eq!(left(), (2, 960));
    advance(Duration::from_secs(60)).await;
    drop(client.oneshot(to("/200")).await.unwrap());
    assert_eq!(left(), (2, 100));
}

#[tokio::test(start_paused = true)]
async fn a_key_of_a_shared_limiter_is_settled_when_no_handle_of_it_is_left() {
    let shared = SharedLimiter::new(MemoryStore::new(), "used", bucket(100)).unwrap();
    let calls = Arc::default();
    let client = OutboundLayer::by_key(&shared, |_| "k".to_owned())
        .cost_by(|_| 50)
        .settle_by(|_| Some(ActualCost::new(7)))
        .layer(echo(&calls));
    for remaining in [93, 86] {
        let answer = client.clone().oneshot(to("/200")).await.unwrap();
        answer.into_body().collect().await.unwrap();
        tokio::time::sleep(ms(1)).await;
        let left = shared.key("k").limits().await.unwrap()[0].remaining;
        assert_eq!(left, remaining);
    }
}

#[tokio::test(start_paused = true)]
async fn a_denied_request_is_refunded_by_choice_and_its_outcome_is_reported() {
    let adaptive = MaxConcurrency::new(100).adapt(Adapt::aimd().between(1, 200).backoff(500));
    let left = |limiter: &Limiter| limiter.limits()[1].remaining;
    let calls = Arc::default();
    for (refunds, status, remaining) in [(false, 429, 99), (true, 429, 100), (true, 503, 99)] {
        let limiter = Limiter::new(adaptive.and(bucket(100))).unwrap();
        let layer = OutboundLayer::new(limiter.clone());
        let layer = if refunds {
            layer.refund_denied()
        } else {
            layer
        };
        let client = layer.layer(echo(&calls));
        let answer = client.oneshot(to(&format!("/{status}"))).await.unwrap();
        drop(answer);
        assert_eq!(left(&limiter), remaining, "{refunds} {status}");
        assert_eq!(
            limiter.snapshot().concurrency,
            Some(50),
            "{refunds} {status}"
        );
        assert_eq!(limiter.snapshot().in_flight, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_denial_that_could_be_settled_later_holds_no_place_while_its_request_is_sent_again() {
    let limiter = Limiter::new("1 concurrent").unwrap();
    let calls = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&calls);
    let upstream = service_fn(move |_: Request<String>| {
        counter.fetch_add(1, Relaxed);
        let answer = Response::builder().status(429).header("retry-after", "0");
        async { Ok::<_, Infallible>(answer.body(String::new()).unwrap()) }
    });
    let layer = OutboundLayer::new(limiter.clone()).settle_later().retry(1);
    let client = layer.timeout(ms(0)).layer(upstream);
    let answer = client.oneshot(to("/")).await.unwrap();
    assert_eq!((calls.load(Relaxed), limiter.snapshot().in_flight), (2, 1));
    assert!(answer.extensions().get::<ActualCost>().is_some());
    drop(answer);
    assert_eq!(limiter.snapshot().in_flight, 0);
}

/// Sends `requests`, one after another. Returns the attempts.
async fn attempts(
    layer: &OutboundLayer<impl Outcomes, tollgate::layers::Retry>,
    path: &str,
    requests: u64,
) -> u64 {
    let calls = Arc::default();
    let client = layer.clone().layer(echo(&calls));
    for _ in 0..requests {
        let answer = client.clone().oneshot(to(path)).await.unwrap();
        assert_eq!(u64::from(answer.status().as_u16()), number(path));
    }
    calls.load(Relaxed)
}

trait Outcomes: tollgate::layers::OutboundClassifier<Infallible> + Clone {}

impl<C: tollgate::layers::OutboundClassifier<Infallible> + Clone> Outcomes for C {}

#[tokio::test(start_paused = true)]
async fn a_dead_upstream_gets_at_most_1_2_attempts_for_each_request() {
    let layer = || OutboundLayer::new(Limiter::new("1000 concurrent").unwrap()).retry(5);
    let dead = layer();
    let first = attempts(&dead, "/429", 1_000).await;
    assert_eq!(
        first,
        1_000 + 99 + 10,
        "the first request found the budget full"
    );
    // Its clones share the budget, which is spent.
    let clone = dead.clone().retry_unavailable();
    assert_eq!(attempts(&clone, "/503", 1_000).await, 1_000 + 100);
    // Successes fill it again.
    assert_eq!(attempts(&dead, "/200", 1_000).await, 1_000);
    assert_eq!(attempts(&dead, "/429", 2).await, 2 + 10);

    let unlimited = layer().retry_budget(RetryBudget::unlimited());
    assert_eq!(attempts(&unlimited, "/429", 100).await, 600);
    let none = layer().retry_budget(RetryBudget::new().save_up_to(0));
    assert_eq!(attempts(&none, "/429", 100).await, 100);
    let strict = RetryBudget::new().percent_of_requests(0);
    assert_eq!(
        attempts(&layer().retry_budget(strict.clone()), "/429", 100).await,
        110
    );
    let other = layer().retry_budget(strict);
    assert_eq!(
        attempts(&other, "/200", 4).await + attempts(&other, "/429", 1).await,
        5
    );
    assert_eq!(
        attempts(&other, "/200", 1).await + attempts(&other, "/429", 1).await,
        3
    );
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_gets_no_permit_is_not_paid_for() {
    let budget = RetryBudget::new().percent_of_requests(0);
    let layer = |policy: &str| {
        let limiter = Limiter::new(policy).unwrap();
        OutboundLayer::new(limiter)
            .retry(1)
            .retry_budget(budget.clone())
    };
    for _ in 0..20 {
        // The window has no unit for the retry.
        let client = layer("window 1/h").timeout(ms(10));
        assert_eq!(attempts(&client, "/429", 1).await, 1);
    }
    assert_eq!(attempts(&layer("1000/s"), "/429", 20).await, 20 + 10);
}

/// One of eight attempts is denied: its retry succeeds.
#[tokio::test(start_paused = true)]
async fn a_busy_upstream_costs_each_request_at_most_its_share_of_retries() {
    let nth = Arc::new(AtomicU64::new(0));
    let calls = Arc::clone(&nth);
    let busy = service_fn(move |_: Request<String>| {
        let denied = calls.fetch_add(1, Relaxed).is_multiple_of(8);
        let answer = Response::builder().status(if denied { 429 } else { 200 });
        async {
            Ok::<_, Infallible>(
                answer
                    .header("retry-after", "1")
                    .body(String::new())
                    .unwrap(),
            )
        }
    });
    let limiter = Limiter::new("1 concurrent").unwrap();
    let reader = UpstreamReader::new(UpstreamFamily::RetryAfter);
    let client = OutboundLayer::new(limiter)
        .upstream(reader)
        .retry(3)
        .layer(busy);
    let start = Instant::now();
    for _ in 0..700 {
        let answer = client.clone().oneshot(to("/")).await.unwrap();
        assert_eq!(
            answer.status(),
            200,
            "a seventh more attempts are within a fifth"
        );
    }
    assert_eq!(nth.load(Relaxed), 800);
    assert_eq!(
        start.elapsed(),
        ms(100_000),
        "each denial held back the requests for a second"
    );
}
