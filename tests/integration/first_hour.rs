//! The first attempts of users who come from another limiter: their guesses compile, or fail with an error that explains the
//! fault. The calls that the guide lists for other limiters are written here in the same way.

use std::time::Duration;

use crate::common::{self, ms, queued};
use futures_util::stream::{self, StreamExt};
use tokio::time::{Instant, timeout};
use tokio_test::{assert_pending, assert_ready};
use tollgate::{
    AcquireError, AcquireOwned, FixedWindow, KeyedLimiter, Limiter, LimiterGroup, MaxConcurrency,
    Overflow, Policy, PollLimiter, Priority, Rate, RunError, StreamLimitExt, Throttle, TokenBucket,
};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// The calls of a user who comes from tokio's semaphore.
#[tokio::test(start_paused = true)]
async fn a_semaphore_is_replaced_call_by_call() -> Outcome {
    let limiter = Limiter::new(MaxConcurrency::new(8))?;
    let mut permit = limiter.acquire_many(3).await?;
    let part = permit.split(1)?;
    assert_eq!((permit.cost(), part.cost(), limiter.available()), (2, 1, 5));
    permit.merge(part)?;
    let _spawned = tokio::spawn(limiter.acquire_owned()).await??;
    assert!(limiter.try_acquire().is_ok());
    let n = 4;
    limiter.set_policy(MaxConcurrency::new(8 + n))?; // add_permits
    assert_eq!(limiter.available(), 8);
    let mut polled = PollLimiter::new(limiter.clone());
    let _permit = std::future::poll_fn(|cx| polled.poll_acquire(cx)).await?;
    limiter.close();
    assert!(limiter.acquire().await.unwrap_err().is_closed());
    Ok(())
}

/// The calls of a user who comes from governor.
#[tokio::test(start_paused = true)]
async fn a_governor_is_replaced_call_by_call() -> Outcome {
    let limiter = Limiter::new(TokenBucket::new(Rate::per_second(50), 50))?;
    let _ok = (limiter.try_acquire()?, limiter.try_acquire_many(40)?);
    let start = Instant::now();
    let _permits = (limiter.acquire().await?, limiter.acquire_many(9).await?);
    assert_eq!(start.elapsed(), ms(20));
    let keyed = KeyedLimiter::<String>::new(TokenBucket::new(Rate::per_second(1), 1))?;
    let _permit = keyed.try_acquire("alice")?; // a borrowed key
    let denied = keyed.try_acquire("alice").unwrap_err();
    assert_eq!(denied.retry_after(), Some(Duration::from_secs(1)));
    Ok(())
}

/// The calls of users who come from leaky-bucket, tower and bottleneck.
#[tokio::test(start_paused = true)]
async fn the_others_are_replaced_call_by_call() -> Outcome {
    let d = ms(100);
    let leaky = Limiter::new(Throttle::every(d).burst(10))?;
    leaky.acquire_many(10).await?.release();
    assert_eq!(
        Limiter::new(MaxConcurrency::new(8))?
            .run(async { 1 })
            .await?,
        1
    );
    assert_eq!(
        Limiter::new(FixedWindow::new(100, d))?
            .run(async { 2 })
            .await?,
        2
    );

    let bottleneck = Limiter::builder((
        MaxConcurrency::new(2),
        Throttle::every(d),
        FixedWindow::new(100, d),
    ));
    let bottleneck = bottleneck.max_queue(10).overflow(Overflow::Leak).build()?;
    let start = Instant::now();
    assert_eq!(
        bottleneck
            .request()
            .priority(Priority::HIGH)
            .cost(1)
            .run(async { 3 })
            .await?,
        3
    );
    let wrapped = bottleneck.wrap(|x: u32| async move { x + 1 });
    assert_eq!((wrapped(4).await?, start.elapsed()), (5, d));
    bottleneck.close_to_new();
    bottleneck.drained().await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn requests_that_the_first_users_missed_compile() -> Outcome {
    // Slots, requests and tokens a minute as one policy.
    let model =
        Limiter::new("8 concurrent per request and 500/min per request and 100000 tokens/min")?;
    model
        .request()
        .cost_of("tokens", 1_200)
        .acquire()
        .await?
        .release();
    // A future that is spawned, or kept in a struct.
    struct Job {
        permit: AcquireOwned,
    }
    let limiter = Limiter::new(MaxConcurrency::new(2))?;
    let job = Job {
        permit: limiter.acquire_owned(),
    };
    tokio::spawn(limiter.run(async {})).await??;
    drop(job.permit.await?);
    // Work with a cost, a priority and a timeout.
    let request = limiter
        .request()
        .cost(2)
        .priority(Priority::LOW)
        .timeout(ms(10));
    assert_eq!(request.run(async { 1 }).await?, 1);
    // Outputs of permitted work, jitter, the policy and its numbers.
    let outputs: Vec<_> = stream::iter(1..4)
        .map_permitted(&limiter, |n| async move { n * n })
        .collect()
        .await;
    assert_eq!(outputs, [Ok(1), Ok(4), Ok(9)]);
    limiter.request().jitter(ms(5)).acquire().await?.release();
    assert_eq!(
        (
            limiter.policy().to_string().as_str(),
            MaxConcurrency::new(2).get_limit()
        ),
        ("2 concurrent", 2)
    );
    // By key: work, a pause, closing.
    let keyed = KeyedLimiter::<String>::new(MaxConcurrency::new(1))?;
    assert_eq!(keyed.run("a", async { 2 }).await?, 2);
    keyed.pause_for(ms(30));
    let start = Instant::now();
    keyed.acquire("a").await?.release();
    assert_eq!(start.elapsed(), ms(30));
    keyed.close();
    keyed.drained().await;
    assert!(keyed.acquire("b").await.unwrap_err().is_closed());
    // A group with a timeout and a priority.
    let group = LimiterGroup::new([limiter.clone(), Limiter::new(Throttle::every(ms(60_000)))?]);
    group
        .request()
        .priority(Priority::HIGH)
        .timeout(ms(10))
        .acquire()
        .await?
        .release();
    assert!(group.request().timeout(ms(10)).acquire().await.is_err());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn silent_mistakes_are_now_reported() -> Outcome {
    let places = Limiter::new(MaxConcurrency::new(1))?;
    // A throttled stream under a policy of places would limit nothing.
    let mut throttled = stream::iter([1, 2]).try_throttled(&places);
    assert!(matches!(
        throttled.next().await,
        Some(Err(AcquireError::NoRate { .. }))
    ));
    // A stream that ends because of a full queue returns the error.
    let full = Limiter::builder(Throttle::every(ms(10)))
        .max_queue(0)
        .build()?;
    let items: Vec<_> = stream::iter(1..4).try_throttled(&full).collect().await;
    assert!(matches!(&items[..], [Ok(1), Err(_)]), "{items:?}");
    // `drained` of an open limiter ends when no permit is out.
    timeout(ms(1), places.drained()).await?;
    // A second observer does not replace the first.
    let reported = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let tell = || {
        let reported = std::sync::Arc::clone(&reported);
        move |_: &tollgate::LimiterEvent<'_>| {
            _ = reported.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    };
    let observed = Limiter::builder(Throttle::every(ms(10)))
        .on_event(tell())
        .on_event(tell())
        .build()?;
    let _permit = observed.try_acquire()?;
    assert!(observed.try_acquire().is_err());
    assert_eq!(reported.load(std::sync::atomic::Ordering::Relaxed), 2);
    Ok(())
}

/// It would block its runtime for ever.
#[tokio::test]
#[should_panic(expected = "Cannot block the current thread from within a runtime")]
async fn blocking_in_a_task_panics() {
    let limiter = common::limiter(MaxConcurrency::new(1));
    let _held = limiter.try_acquire().unwrap();
    drop(limiter.blocking_acquire());
}

#[tokio::test]
async fn first_guesses_compile() -> Outcome {
    let policy = MaxConcurrency::new(8).and(Throttle::every(ms(1)));
    assert_eq!(
        Limiter::new(policy)?.policy(),
        Limiter::new((MaxConcurrency::new(8), Throttle::every(ms(1))))?.policy()
    );
    let limiter = Limiter::new("8 concurrent and 100/min")?;
    let _permit = limiter.request().await?;
    for text in [
        "10 per second",
        "100/hr",
        "rate 10/s",
        "100 rpm",
        "100 requests a minute",
    ] {
        Limiter::new(text)?;
    }
    for (guess, policy) in [
        (Policy::from(Throttle::per_second(5)), "throttle 5/s"),
        (Throttle::per_minute(100).into(), "throttle every 600ms"),
        (TokenBucket::per_minute(100).into(), "100/min"),
        (FixedWindow::per_hour(9).into(), "window 9/h"),
    ] {
        assert_eq!(guess, policy.parse()?);
        let limiter = Limiter::new(guess)?;
        let _line = format!("{} {}", limiter.snapshot(), limiter.limits()[0]);
    }
    assert!(Limiter::new(Throttle::per_second(0)).is_err());
    assert!(Limiter::new(TokenBucket::per_second(0)).is_err());
    assert!(Limiter::new(FixedWindow::per_second(0)).is_err());
    let fastest = Throttle::per_second(u64::MAX).get_interval();
    assert_eq!(fastest, Duration::from_nanos(1));
    let error = Limiter::new("8 concurent").unwrap_err().to_string();
    assert!(error.contains("did you mean `concurrent`?"), "{error}");
    Ok(())
}

#[tokio::test]
async fn errors_name_the_limit_the_number_and_the_way_out() -> Outcome {
    let limiter = Limiter::new(MaxConcurrency::new(1))?;
    let error = limiter.acquire_many(2).await.unwrap_err().to_string();
    assert!(
        error.contains("the limit of `1 concurrent` is 1") && error.contains("raise the limit"),
        "{error}"
    );
    let error = Limiter::new("20 concurrent aimd from 9 to 3")
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "the floor of `20 concurrent aimd from 9 to 3` is 9; set 1 to 3"
    );
    limiter.close();
    let error = limiter.run(async {}).await.unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(
        matches!(error, RunError::Acquire(AcquireError::Closed))
            && !error.to_string().contains(&source)
    );
    let error = LimiterGroup::new([limiter]).acquire().await.unwrap_err();
    assert!(std::error::Error::source(&error).is_some());
    Ok(())
}

/// A fast throttle without a burst keeps its rate by the precise timer; without it, the throttle reaches the rate that the docs
/// state.
#[tokio::test]
async fn a_pace_without_a_burst_is_never_exceeded() -> Outcome {
    let limiter = Limiter::builder(Throttle::every(ms(1)))
        .precise_timer()
        .build()?;
    let start = std::time::Instant::now();
    for _ in 0..20 {
        limiter.acquire().await?.release();
    }
    assert!(start.elapsed() >= ms(19));
    let mut waiting = queued(limiter.reserve()?);
    assert_pending!(waiting.poll());
    tokio::time::sleep(ms(5)).await;
    assert_ready!(waiting.poll())?.release();
    Ok(())
}
