//! Limits of one policy that count different things: the plain cost, requests, and named units.

use std::time::Duration;

use crate::common::ms;
use tokio::time::{Instant, advance, sleep};
use tokio_test::{assert_pending, assert_ready, task};
use tollgate::{
    AcquireError, ConfigError, Counts, KeyedLimiter, Limit, Limiter, LimiterGroup, MaxConcurrency,
    Penalty, PermitRequest, Policy, Rate, SlidingWindow, Throttle, TokenBucket, TryAcquireError,
    UsageCarryOver,
};

const MODEL: &str = "2 concurrent per request and 5/min per request and 1000 tokens/min";

fn limiter(policy: impl TryInto<Policy, Error: Into<ConfigError>>) -> Limiter {
    Limiter::new(policy).unwrap_or_else(|error| panic!("{error}"))
}

fn model() -> Limiter {
    Limiter::new(MODEL).unwrap()
}

/// A request for this many tokens.
fn tokens(limiter: &Limiter, tokens: u64) -> PermitRequest<&Limiter> {
    limiter.request().cost_of("tokens", tokens)
}

fn denied_by(error: TryAcquireError) -> String {
    let TryAcquireError::Denied(decision) = error else {
        panic!("{error}")
    };
    decision.denied_by().unwrap().to_string()
}

#[tokio::test(start_paused = true)]
async fn each_limit_is_charged_what_it_counts_and_a_denial_names_the_one_that_denies() {
    let model = model();
    let first = tokens(&model, 900).try_acquire().unwrap();
    assert_eq!(
        (
            first.cost(),
            first.cost_of("tokens"),
            first.cost_of("images")
        ),
        (1, Some(900), None)
    );
    assert_eq!(
        denied_by(tokens(&model, 101).try_acquire().unwrap_err()),
        "1000 tokens/min"
    );
    let second = tokens(&model, 0).cost(70).try_acquire().unwrap(); // the plain cost is counted by no limit
    assert_eq!(
        denied_by(tokens(&model, 101).try_acquire().unwrap_err()),
        "2 concurrent per request"
    );
    drop((first, second));
    for _ in 0..3 {
        drop(tokens(&model, 1).try_acquire().unwrap());
    }
    assert_eq!(
        denied_by(tokens(&model, 1).try_acquire().unwrap_err()),
        "5/min per request"
    );
}

#[tokio::test(start_paused = true)]
async fn a_denial_charges_no_limit() {
    let model = limiter("2 concurrent per request and 10/min and 100 tokens/min");
    assert!(tokens(&model, 100).cost(4).try_acquire().is_ok()); // its place is free again
    assert!(tokens(&model, 1).cost(6).try_acquire().is_err());
    let decision = tokens(&model, 0).cost(6).check();
    assert!(decision.is_allowed(), "{decision}");
    assert_eq!(model.snapshot().in_flight, 0);
}

#[tokio::test(start_paused = true)]
async fn a_decision_has_the_numbers_of_the_scarcest_limit_in_its_unit() {
    let model = limiter("8 concurrent per request and 1000 tokens/min");
    let decision = tokens(&model, 100).check();
    assert_eq!((decision.limit(), decision.remaining()), (8, 8)); // ten such requests would fit the other
    let decision = tokens(&model, 300).check();
    assert_eq!((decision.limit(), decision.remaining()), (1_000, 1_000)); // three such requests
    let _permit = tokens(&model, 940).try_acquire().unwrap();
    let denied = tokens(&model, 80).check();
    assert!(
        matches!(denied.denied_by().unwrap().counts(), Counts::Unit(unit) if unit.as_str() == "tokens")
    );
    assert_eq!(
        (denied.remaining(), denied.retry_after()),
        (60, Some(Duration::from_millis(1_200)))
    );
    assert_eq!(
        denied.to_string(),
        "denied by `1000 tokens/min`; retry after 1.2s"
    );
}

#[tokio::test(start_paused = true)]
async fn one_queue_serves_requests_of_different_units_in_order() {
    let model = limiter("1 concurrent per request and 1000 tokens/min");
    let held = tokens(&model, 1_000).acquire().await.unwrap();
    let mut large = task::spawn(tokens(&model, 600).acquire());
    let mut small = task::spawn(tokens(&model, 0).acquire());
    assert_pending!(large.poll());
    assert_pending!(small.poll());
    drop(held);
    advance(ms(35_999)).await;
    assert_pending!(small.poll()); // it would be admitted
    assert_pending!(large.poll());
    sleep(ms(2)).await;
    let permit = assert_ready!(large.poll()).unwrap();
    assert_pending!(small.poll());
    drop(permit);
    assert!(small.is_woken());
    drop(assert_ready!(small.poll()).unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_behind_waiters_is_exact() {
    let model = limiter("100/s per request and 1000 tokens/s");
    let _permit = tokens(&model, 1_000).try_acquire().unwrap();
    let mut waiting = task::spawn(tokens(&model, 500).acquire());
    assert_pending!(waiting.poll());
    assert_eq!(tokens(&model, 250).check().retry_after(), Some(ms(750)));
    assert_eq!(tokens(&model, 0).check().retry_after(), Some(ms(500)));
}

#[tokio::test(start_paused = true)]
async fn settling_one_unit_leaves_the_others() {
    let model = limiter("10/min and 10/min per request and 1000 input/min and 1000 output/min");
    let request = || {
        model
            .request()
            .cost(4)
            .cost_of("input", 600)
            .cost_of("output", 600)
    };
    let permit = request().try_acquire().unwrap();
    assert!(permit.settle_costs([("output", 100), ("images", 7)]));
    let left = |request: PermitRequest<&Limiter>| request.check().remaining();
    assert_eq!(
        left(model.request().cost_of("input", 1_000).cost_of("output", 0)),
        400
    );
    assert_eq!(
        left(model.request().cost_of("input", 0).cost_of("output", 1_000)),
        900
    );
    assert_eq!(
        left(
            model
                .request()
                .cost(10)
                .cost_of("input", 0)
                .cost_of("output", 0)
        ),
        6
    );

    let permit = model
        .request()
        .cost(2)
        .cost_of("input", 0)
        .cost_of("output", 0)
        .try_acquire()
        .unwrap();
    assert!(permit.settle(3)); // the plain cost only
    assert_eq!(
        left(
            model
                .request()
                .cost(10)
                .cost_of("input", 0)
                .cost_of("output", 0)
        ),
        3
    );

    let permit = model
        .request()
        .cost(3)
        .cost_of("input", 400)
        .cost_of("output", 900)
        .try_acquire()
        .unwrap();
    assert!(permit.refund());
    assert_eq!(model.snapshot().refunded, 1);
    assert!(
        model
            .request()
            .cost(3)
            .cost_of("input", 400)
            .cost_of("output", 900)
            .check()
            .is_allowed()
    );
}

#[tokio::test(start_paused = true)]
async fn an_underestimate_becomes_a_debt_of_its_unit() {
    let model = limiter("5/min per request and 600 tokens/min");
    assert!(
        tokens(&model, 100)
            .try_acquire()
            .unwrap()
            .settle_costs([("tokens", 700)])
    );
    assert_eq!(tokens(&model, 1).check().retry_after(), Some(ms(10_100))); // a debt of 100, and one
    assert!(tokens(&model, 0).check().is_allowed());
}

#[tokio::test(start_paused = true)]
async fn places_counted_in_a_unit_come_back_as_they_were_taken() {
    let upload = limiter("3 concurrent per request and 100 concurrent counting megabytes ttl 10s");
    let megabytes = |units| upload.request().cost_of("megabytes", units);
    let large = megabytes(90).acquire().await.unwrap();
    assert_eq!(
        denied_by(megabytes(11).try_acquire().unwrap_err()),
        "100 concurrent ttl 10s counting megabytes"
    );
    let small = megabytes(10).acquire().await.unwrap();
    drop(large);
    let large = megabytes(90).acquire().await.unwrap();
    std::mem::forget(large);
    let start = Instant::now();
    let permit = megabytes(91).acquire().await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(10));
    assert!(!small.is_live());
    drop((permit, small));
    assert_eq!(upload.snapshot().in_flight, 0);
    let _whole = megabytes(100).try_acquire().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_permit_that_takes_no_place_has_no_ttl() {
    let upload = limiter("100 concurrent ttl 1s counting megabytes and 5/min per request");
    let request = upload.request().cost_of("megabytes", 0);
    let permit = request.try_acquire().unwrap();
    sleep(Duration::from_secs(2)).await;
    assert!(permit.is_live());
    drop(permit);
    assert_eq!(upload.snapshot().reclaimed, 0);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_request_gives_all_units_back() {
    let upload = limiter("100 concurrent counting megabytes and 1000 tokens/min");
    let request = |megabytes| {
        upload
            .request()
            .cost_of("megabytes", megabytes)
            .cost_of("tokens", 1_000)
    };
    let held = upload
        .request()
        .cost_of("megabytes", 100)
        .cost_of("tokens", 0)
        .acquire()
        .await
        .unwrap();
    let mut granted = task::spawn(request(60).acquire());
    assert_pending!(granted.poll());
    let mut waiting = task::spawn(request(70).acquire());
    assert_pending!(waiting.poll());
    drop(held);
    assert!(granted.is_woken());
    drop(granted); // untaken
    assert!(waiting.is_woken());
    drop(waiting);
    assert!(request(100).try_acquire().is_ok());
}

#[tokio::test]
async fn a_request_must_give_a_cost_in_each_counted_unit() {
    let model = model();
    let error = model.acquire().await.unwrap_err();
    assert!(matches!(&error, AcquireError::MissingCost { unit, .. } if unit.as_str() == "tokens"));
    assert_eq!(
        error.to_string(),
        "`1000 tokens/min` counts tokens, and the request does not say how many it takes: add .cost_of(\"tokens\", …), or 0"
    );
    assert!(matches!(
        model.try_acquire().unwrap_err(),
        TryAcquireError::MissingCost { .. }
    ));
    assert!(matches!(
        model.request().cost_of("token", 5).acquire().await,
        Err(AcquireError::MissingCost { .. })
    ));
    assert!(!model.check(1).is_allowed() && model.check(1).retry_after().is_none());
    assert_eq!(model.available(), 0);
    let error = tokens(&model, 1_001).acquire().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "a cost of 1001 can never be admitted: the burst of `1000 tokens/min` is 1000; split the request, or raise the burst"
    );
    assert_eq!(
        tokens(&model, 5).cost(0).acquire().await.unwrap_err(),
        AcquireError::ZeroCost
    );
    assert!(tokens(&model, u64::MAX).try_acquire().is_err());
    // Upper and lower case are the same, and the last number counts.
    let permit = model
        .request()
        .cost_of("tokens", 5_000)
        .cost_of("Tokens", 7)
        .acquire()
        .await
        .unwrap();
    assert_eq!(permit.cost_of("TOKENS"), Some(7));
}

#[tokio::test]
async fn a_unit_that_no_limit_counts_changes_nothing() {
    let places = limiter(MaxConcurrency::new(2));
    let permit = tokens(&places, u64::MAX).cost(2).acquire().await.unwrap();
    assert!(places.try_acquire().is_err());
    assert!(permit.settle_costs([("tokens", 3)]));
    assert_eq!(places.available(), 2);
    let rate = limiter(Throttle::every(ms(60_000)).burst(3));
    assert!(
        tokens(&rate, 9)
            .try_acquire()
            .unwrap()
            .settle_costs([("tokens", 0)])
    );
    assert_eq!(rate.available(), 2);
    assert!(tokens(&rate, 9).try_acquire().unwrap().refund());
    assert_eq!(rate.available(), 2);
}

#[test]
fn a_unit_has_a_valid_name() {
    for name in ["", "two words", "1st", &"x".repeat(32), "tökens"] {
        let error = Limiter::new(MaxConcurrency::new(1).counting(name)).unwrap_err();
        assert!(
            matches!(error, ConfigError::InvalidUnit { .. }),
            "{name}: {error}"
        );
    }
}

#[test]
fn units_are_read_and_printed_as_text() {
    let tokens = TokenBucket::new(Rate::per_minute(100_000), 100_000).counting("tokens");
    for text in [
        "100000 tokens/min",
        "100,000 Tokens per minute",
        "100000 tokens a min",
        "100000/min counting tokens",
    ] {
        assert_eq!(text.parse::<Policy>().unwrap(), tokens.into(), "{text}");
    }
    assert_eq!(tokens.to_string(), "100000 tokens/min");
    let text = "8 concurrent per request and 500/min per request and 100000 tokens/min";
    let policy = MaxConcurrency::new(8)
        .per_request()
        .and(TokenBucket::new(Rate::per_minute(500), 500).per_request())
        .and(tokens);
    assert_eq!(
        (text.parse::<Policy>().unwrap(), policy.to_string().as_str()),
        (policy, text)
    );
    // The unit of a plain cost has no name.
    assert_eq!(
        "100 requests/min".parse::<Limit>().unwrap().counts(),
        Counts::Cost
    );
    let others = [
        "throttle every 10ms burst 5 counting bytes",
        "window 500 bytes/s wall clock",
        "sliding log 10/min per request",
        "penalty 10 falling 1/s counting faults",
        "4096 concurrent ttl 30s counting megabytes",
    ];
    for text in others {
        assert_eq!(text.parse::<Limit>().unwrap().to_string(), text);
    }
    let error = "100 tokens/fortnight"
        .parse::<Limit>()
        .unwrap_err()
        .to_string();
    assert!(error.contains("found `fortnight`"), "{error}");
    let error = "8 concurrent counting 5"
        .parse::<Limit>()
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("expected the name of a unit, such as `tokens`, found `5`"),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_group_charges_each_limiter_what_it_counts() {
    let (slots, model) = (limiter(MaxConcurrency::new(2)), model());
    let group = LimiterGroup::new([slots.clone(), model.clone()]);
    let request = |units| group.request().cost_of("tokens", units);
    let permit = request(900).acquire().await.unwrap();
    assert_eq!(
        (slots.available(), tokens(&model, 101).check().remaining()),
        (1, 100)
    );
    let denied = request(101).try_acquire().unwrap_err();
    assert_eq!(
        (denied.member, denied_by(denied.error)),
        (1, "1000 tokens/min".to_owned())
    );
    assert_eq!(
        request(101)
            .check()
            .map(|decision| decision.is_allowed())
            .collect::<Vec<_>>(),
        [true, false]
    );
    assert!(permit.settle_costs([("tokens", 100)]));
    drop(request(900).try_acquire().unwrap());
    let error = group.acquire().await.unwrap_err();
    assert!(matches!(
        (error.member, error.error),
        (1, AcquireError::MissingCost { .. })
    ));
    assert_eq!(slots.available(), 2);
    assert!(request(0).try_acquire().unwrap().refund());
}

#[tokio::test(start_paused = true)]
async fn each_key_counts_by_unit_and_settles() {
    let per_user = KeyedLimiter::new("2 concurrent per request and 1000 tokens/min").unwrap();
    let request = |user, tokens| per_user.request(user).cost_of("tokens", tokens);
    let permit = request(&"a", 900).try_acquire().unwrap();
    assert_eq!(
        denied_by(request(&"a", 200).try_acquire().unwrap_err()),
        "1000 tokens/min"
    );
    assert!(request(&"b", 200).check().is_allowed() && !request(&"a", 200).check().is_allowed());
    assert!(permit.settle_costs([("tokens", 0)]));
    assert!(request(&"a", 1_000).acquire().await.is_ok());
    let waited = request(&"a", 500).timeout(ms(60_000)).acquire_owned();
    let start = Instant::now();
    assert_eq!(
        tokio::spawn(waited)
            .await
            .unwrap()
            .unwrap()
            .cost_of("tokens"),
        Some(500)
    );
    assert_eq!(start.elapsed(), ms(30_000));
    assert!(matches!(
        per_user.try_acquire(&"a"),
        Err(TryAcquireError::MissingCost { .. })
    ));
    assert!(!per_user.check(&"c", 1).is_allowed());
    let snapshot = per_user.snapshot(&"a").unwrap();
    assert_eq!((snapshot.in_flight, snapshot.remaining), (0, 0));

    let rates = KeyedLimiter::new("10/min per request and 1000 tokens/min").unwrap();
    assert!(
        rates
            .request(&1)
            .cost_of("tokens", 800)
            .try_acquire()
            .unwrap()
            .settle_costs([("tokens", 100)])
    );
    assert!(
        rates
            .request(&1)
            .cost_of("tokens", 900)
            .check()
            .is_allowed()
    );
    advance(Duration::from_secs(61)).await;
    for key in 2..100 {
        assert!(
            rates
                .request(&key)
                .cost_of("tokens", 1_000)
                .try_acquire()
                .is_ok()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_policy_keeps_units_in_flight_under_the_unit_in_which_they_were_taken() {
    let limiter = limiter(MaxConcurrency::new(8));
    let (five, two) = (
        limiter.try_acquire_many(5).unwrap(),
        limiter.try_acquire_many(2).unwrap(),
    );
    limiter.set_policy("8 concurrent per request").unwrap();
    assert_eq!(limiter.snapshot().in_flight, 7); // the number of requests is unknown
    let one = limiter.try_acquire_many(8).unwrap();
    assert!(limiter.try_acquire().is_err());
    drop(five);
    assert_eq!(limiter.snapshot().in_flight, 3);
    limiter
        .set_policy("10 concurrent counting megabytes")
        .unwrap();
    assert_eq!(limiter.snapshot().in_flight, 3);
    let megabytes = limiter
        .request()
        .cost_of("megabytes", 7)
        .try_acquire()
        .unwrap();
    drop(two);
    assert_eq!(limiter.snapshot().in_flight, 8);
    drop(one);
    assert_eq!(limiter.snapshot().in_flight, 7);
    limiter.set_policy(MaxConcurrency::new(8)).unwrap();
    assert_eq!(limiter.snapshot().in_flight, 1); // the plain cost was counted all the time
    let many = limiter.try_acquire_many(7).unwrap();
    assert!(limiter.try_acquire().is_err());
    drop(megabytes);
    assert_eq!(limiter.snapshot().in_flight, 7);
    drop(many);
    assert_eq!((limiter.snapshot().in_flight, limiter.available()), (0, 8));
}

#[tokio::test(start_paused = true)]
async fn a_rate_carries_usage_over_only_from_a_rate_of_the_same_unit() {
    let limiter = limiter("100 tokens/min and 100/min");
    drop(tokens(&limiter, 60).cost(10).try_acquire().unwrap());
    limiter
        .set_policy_with(
            "window 200/min and window 200 tokens/min",
            UsageCarryOver::AsIs,
        )
        .unwrap();
    assert_eq!(tokens(&limiter, 200).check().remaining(), 140);
    assert_eq!(tokens(&limiter, 0).cost(200).check().remaining(), 190);
    limiter.set_policy("200 images/min").unwrap();
    assert_eq!(
        limiter.request().cost_of("images", 200).check().remaining(),
        200
    );
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_a_new_policy_asks_for_more_is_refused() {
    let limiter = limiter("1 concurrent per request");
    let held = limiter.try_acquire().unwrap();
    let (mut plain, mut counted) = (
        task::spawn(limiter.acquire()),
        task::spawn(tokens(&limiter, 5).acquire()),
    );
    assert_pending!(plain.poll());
    assert_pending!(counted.poll());
    limiter
        .set_policy("1 concurrent per request and 10 tokens/min")
        .unwrap();
    assert!(matches!(
        assert_ready!(plain.poll()),
        Err(AcquireError::MissingCost { .. })
    ));
    assert_pending!(counted.poll());
    drop(held);
    drop(assert_ready!(counted.poll()).unwrap());
}

#[tokio::test(start_paused = true)]
async fn denied_and_timed_out_requests_count_by_unit() {
    let penalty = limiter(Policy::from((
        Penalty::new(3, Rate::per_second(1)).counting("faults"),
        Throttle::every(ms(1)).burst(9),
    )));
    let faults = |units| penalty.request().cost_of("faults", units);
    drop(faults(3).try_acquire().unwrap());
    assert!(faults(1).try_acquire().is_err()); // it raises the counter
    assert!(faults(0).try_acquire().is_ok());
    assert_eq!(
        faults(1).check().retry_after(),
        Some(Duration::from_secs(2))
    );
    let error = faults(3).timeout(ms(100)).acquire().await.unwrap_err();
    assert_eq!(
        error,
        AcquireError::TimedOut {
            retry_after: Some(Duration::from_secs(4)),
            decision: None
        }
    );
}

/// Never over, in any of the units, with tasks on several threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_over_in_any_unit() {
    let upload = limiter("3 concurrent per request and 10 concurrent counting megabytes");
    let (requests, megabytes) = (
        std::sync::atomic::AtomicU64::new(0),
        std::sync::atomic::AtomicU64::new(0),
    );
    let counts = std::sync::Arc::new((requests, megabytes));
    let tasks: Vec<_> = (0..8_u64)
        .map(|task| {
            let (upload, counts) = (upload.clone(), std::sync::Arc::clone(&counts));
            tokio::spawn(async move {
                use std::sync::atomic::Ordering::SeqCst;
                for nth in 0..2_000 {
                    let size = (task * 7 + nth) % 11;
                    let permit = upload
                        .request()
                        .cost_of("megabytes", size)
                        .acquire()
                        .await
                        .unwrap();
                    assert!(counts.0.fetch_add(1, SeqCst) < 3);
                    assert!(counts.1.fetch_add(size, SeqCst) + size <= 10);
                    if nth % 3 == 0 {
                        tokio::task::yield_now().await;
                    }
                    counts.1.fetch_sub(size, SeqCst);
                    counts.0.fetch_sub(1, SeqCst);
                    drop(permit);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(upload.snapshot().in_flight, 0);
    upload.close();
    upload.drained().await;
}

#[tokio::test(start_paused = true)]
async fn a_log_counts_units_exactly() {
    let log = limiter(SlidingWindow::log(10, ms(1_000)).counting("bytes"));
    let bytes = |units| log.request().cost_of("bytes", units);
    drop(bytes(7).try_acquire().unwrap());
    advance(ms(400)).await;
    drop(bytes(3).try_acquire().unwrap());
    assert_eq!(bytes(8).check().retry_after(), Some(ms(1_000)));
    assert_eq!(bytes(7).check().retry_after(), Some(ms(600)));
}

#[test]
fn a_thread_waits_for_units() {
    let model = limiter("1000 tokens/s");
    tokens(&model, 1_000).blocking_acquire().unwrap().release();
    let permit = tokens(&model, 20).blocking_acquire().unwrap();
    assert_eq!(permit.cost_of("tokens"), Some(20));
}

/// A fixed bug: grants made while the policy counted another unit were forgotten when it counted the first unit again.
#[tokio::test(start_paused = true)]
async fn never_over_when_a_former_unit_is_counted_again() {
    let limiter = limiter("2 concurrent per request");
    let one = limiter.try_acquire().unwrap();
    limiter.set_policy("100 concurrent counting mb").unwrap();
    let more: Vec<_> = (0..5)
        .map(|_| limiter.request().cost_of("mb", 10).try_acquire().unwrap())
        .collect();
    limiter.set_policy("2 concurrent per request").unwrap();
    assert_eq!(limiter.snapshot().in_flight, 6);
    assert!(limiter.try_acquire().is_err());
    drop(more);
    assert_eq!(limiter.snapshot().in_flight, 1);
    let other = limiter.try_acquire().unwrap();
    drop((one, other));
    assert_eq!(
        (limiter.snapshot().in_flight, limiter.available()),
        (0, u64::MAX)
    );
}
