//! While the store does not answer, the local fallback decides requests: exactly, in order, and never over its limits.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::faulty::{Faulty, Way};
use crate::common::{Random, ms};
use tokio::time::{Instant, sleep, timeout};
use tollgate::store::{OnStoreDown, StoreError};
use tollgate::{AcquireError, ConfigError, EventKind, Permit, SharedLimiter, TryAcquireError};

const SECOND: Duration = Duration::from_secs(1);

fn under_local(policy: &str) -> OnStoreDown {
    OnStoreDown::Local(policy.parse().unwrap())
}

fn limiter(faulty: &Faulty, policy: &str, local: &str) -> SharedLimiter {
    faulty
        .builder(policy)
        .on_store_down(under_local(local))
        .build()
        .unwrap()
}

/// A limiter whose store was just cut off. The first request detects this.
async fn cut_off(policy: &str, local: &str) -> (Faulty, SharedLimiter) {
    let faulty = Faulty::new();
    let limiter = limiter(&faulty, policy, local);
    drop(limiter.acquire().await.unwrap());
    sleep(ms(10)).await; // a place has come back
    faulty.set(Way::Cut);
    (faulty, limiter)
}

fn assert_denied(denied: Result<Permit, TryAcquireError>, retry_after: Option<Duration>) {
    match denied {
        Err(TryAcquireError::Denied(decision)) => assert_eq!(decision.retry_after(), retry_after),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_local_rate_grants_at_its_own_instants() {
    let (_faulty, limiter) = cut_off("1000/s", "throttle every 100ms").await;
    let start = Instant::now();
    drop(limiter.acquire().await.unwrap());
    assert_eq!(
        start.elapsed(),
        ms(500),
        "the deadline of the call that finds out"
    );
    for turn in 1..=50 {
        drop(limiter.acquire().await.unwrap());
        assert_eq!(start.elapsed(), ms(500 + turn * 100));
    }
}

#[tokio::test(start_paused = true)]
async fn requests_that_do_not_wait_get_the_local_decision() {
    let (faulty, limiter) = cut_off("1000/s", "throttle every 100ms").await;
    drop(limiter.try_acquire().await.unwrap());
    let calls = faulty.calls.load(Relaxed);
    assert_denied(limiter.try_acquire().await, Some(ms(100)));
    let decision = limiter.check(1).await.unwrap();
    assert_eq!(
        (decision.is_allowed(), decision.retry_after()),
        (false, Some(ms(100)))
    );
    assert_eq!(decision.limit(), limiter_capacity("throttle every 100ms"));
    assert_eq!(
        faulty.calls.load(Relaxed),
        calls,
        "the store is not asked meanwhile"
    );
    sleep(ms(99)).await;
    assert_denied(limiter.try_acquire().await, Some(ms(1)));
    sleep(ms(1)).await;
    assert!(limiter.check(1).await.unwrap().is_allowed());
    assert!(limiter.try_acquire().await.is_ok());
}

fn limiter_capacity(policy: &str) -> u64 {
    policy.parse::<tollgate::Policy>().unwrap().limits()[0].capacity()
}

#[tokio::test(start_paused = true)]
async fn a_check_notices_by_itself_that_the_store_is_down_and_back() {
    let faulty = Faulty::new();
    let limiter = limiter(&faulty, "5/h", "2/h");
    faulty.set(Way::Refuses);
    assert_eq!(limiter.check(1).await.unwrap().remaining(), 2);
    assert!(limiter.try_acquire().await.is_ok());
    assert_eq!(limiter.check(1).await.unwrap().remaining(), 1);
    assert!(matches!(
        limiter.limits().await,
        Err(StoreError::Refused { .. })
    ));
    faulty.set(Way::Open);
    sleep(SECOND).await;
    assert_eq!(
        limiter.check(1).await.unwrap().remaining(),
        5,
        "the store has granted nothing"
    );
    drop(limiter.acquire().await.unwrap());
    assert_eq!(limiter.check(1).await.unwrap().remaining(), 4);
}

#[tokio::test(start_paused = true)]
async fn local_places_are_held_until_they_are_dropped() {
    let (faulty, limiter) = cut_off("20 concurrent", "2 concurrent").await;
    let first = limiter.acquire().await.unwrap();
    let second = limiter.acquire().await.unwrap();
    assert_denied(limiter.try_acquire().await, None);
    assert_eq!(limiter.snapshot().in_flight, 2);
    let waiting = tokio::spawn(limiter.acquire_owned());
    sleep(ms(10)).await;
    assert!(!waiting.is_finished());
    let released = Instant::now();
    drop(first);
    let third = waiting.await.unwrap().unwrap();
    assert_eq!(released.elapsed(), Duration::ZERO);
    assert!(third.fence() > second.fence() && third.expires_at().is_none());
    drop((second, third));
    assert_eq!(limiter.snapshot().in_flight, 0);
    timeout(SECOND, limiter.drained()).await.unwrap();
    assert!(faulty.store.is_empty(), "the store never heard of them");
}

#[tokio::test(start_paused = true)]
async fn when_the_store_is_back_waiters_ask_it_and_local_permits_stay_live() {
    let (faulty, limiter) = cut_off("20 concurrent", "1 concurrent").await;
    let local = limiter.acquire().await.unwrap();
    let waiting: Vec<_> = (0..3)
        .map(|_| tokio::spawn(limiter.acquire_owned()))
        .collect();
    sleep(SECOND).await;
    assert!(waiting.iter().all(|waiter| !waiter.is_finished()));
    faulty.set(Way::Open);
    let mut permits = Vec::new();
    for waiter in waiting {
        permits.push(
            timeout(16 * SECOND, waiter)
                .await
                .expect("the store answers")
                .unwrap()
                .unwrap(),
        );
    }
    assert!(permits.iter().all(|permit| permit.fence() > local.fence()));
    assert_eq!(limiter.snapshot().in_flight, 4);
    drop(permits);
    sleep(ms(10)).await;
    assert!(faulty.store.is_empty());
    faulty.set(Way::Refuses);
    assert_denied(limiter.try_acquire().await, None);
    drop(local);
    assert!(limiter.try_acquire().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_limiter_under_local_asks_the_store_from_time_to_time() {
    let (faulty, limiter) = cut_off("window 1000000/h from first grant", "1000000/s").await;
    drop(limiter.acquire().await.unwrap());
    faulty.set(Way::Open);
    let start = Instant::now();
    // No request waits at any time.
    while limiter.acquire().await.unwrap().fence() < 1_000_000_000 {
        sleep(ms(1)).await;
        assert!(start.elapsed() < SECOND);
    }
    assert_eq!(
        limiter.limits().await.unwrap()[0].remaining,
        1_000_000 - 2,
        "the probe took nothing"
    );
}

/// A fixed bug: after a long outage a process used its local fallback for up to 15 s more.
#[tokio::test(start_paused = true)]
async fn a_process_leaves_its_local_fallback_within_probe_every() {
    const DEADLINE: Duration = ms(500);
    let mut random = Random(7);
    for probe_every in [None, Some(ms(200)), Some(ms(3_000))] {
        for way in [Way::Refuses, Way::Cut] {
            let faulty = Faulty::new();
            let mut builder = faulty
                .builder("1000000/s")
                .on_store_down(under_local("1000000/s"))
                .deadline(DEADLINE);
            if let Some(probe_every) = probe_every {
                builder = builder.probe_every(probe_every);
            }
            let limiter = builder.build().unwrap();
            let keys: Vec<_> = (0..5).map(|key| limiter.key(format!("{key}"))).collect();
            let requests_for = async |time: Duration, every| {
                let start = Instant::now();
                while start.elapsed() < time {
                    for key in &keys {
                        drop(key.try_acquire().await.unwrap());
                    }
                    sleep(every).await;
                }
            };
            for _ in 0..4 {
                faulty.set(way);
                requests_for(ms(random.below(60_000)), ms(50)).await;
                faulty.set(Way::Open);
                let call_under_way = if way == Way::Cut { DEADLINE } else { ms(0) };
                requests_for(
                    probe_every.unwrap_or(SECOND) + call_under_way + ms(10),
                    ms(5),
                )
                .await;
                for key in &keys {
                    let permit = key.try_acquire().await.unwrap();
                    assert!(
                        permit.fence() > 1_000_000_000,
                        "under the local fallback after {way:?}, {probe_every:?}"
                    );
                }
            }
        }
    }
}

/// What four processes are granted in the second after the store has come back, beside what its limit admits in that second: each
/// continues under its local fallback until it has found out.
#[tokio::test(start_paused = true)]
async fn little_more_than_the_limit_is_granted_in_the_second_after_the_store_comes_back() {
    const LIMIT: u64 = 400;
    const PROCESSES: u64 = 4;
    let mut worst = 0;
    for way in [Way::Refuses, Way::Cut] {
        for outage in [2_000, 3_300, 9_100, 31_700, 60_900] {
            let faulty = Faulty::new();
            let grants = Arc::new(Mutex::new(Vec::new()));
            let mut tasks = tokio::task::JoinSet::new();
            for _ in 0..PROCESSES {
                let share = format!("{}/s burst 1", LIMIT / PROCESSES);
                let limiter = limiter(&faulty, &format!("{LIMIT}/s burst 10"), &share);
                for _ in 0..8 {
                    let (limiter, grants) = (limiter.clone(), Arc::clone(&grants));
                    tasks.spawn(async move {
                        loop {
                            drop(limiter.acquire().await.unwrap());
                            grants.lock().unwrap().push(Instant::now());
                        }
                    });
                }
            }
            sleep(3 * SECOND).await;
            faulty.set(way);
            sleep(ms(outage)).await;
            faulty.set(Way::Open);
            let back = Instant::now();
            sleep(3 * SECOND).await;
            tasks.abort_all();
            let within = |from, to| {
                let grants = grants.lock().unwrap();
                let is_within = |at: &&Instant| (from..to).contains(*at);
                grants.iter().filter(is_within).count() as u64
            };
            let first = within(back, back + SECOND);
            let third = within(back + 2 * SECOND, back + 3 * SECOND);
            println!("{way:?} for {outage} ms: {first}, then {third} in a second");
            worst = worst.max(first.saturating_sub(LIMIT + 10));
            assert!((LIMIT - 8..=LIMIT + 10).contains(&third), "{third}");
        }
    }
    println!("at most {worst} more than the limit admits");
    assert!(worst <= LIMIT, "{worst}");
}

#[tokio::test(start_paused = true)]
async fn an_unsteady_store_gives_no_local_burst_twice() {
    let faulty = Faulty::new();
    let limiter = limiter(&faulty, "1000000/h", "window 10/h from first grant");
    let mut by_process = 0;
    for _ in 0..20 {
        faulty.set(Way::Refuses);
        for _ in 0..20 {
            by_process += u32::from(limiter.try_acquire().await.is_ok());
        }
        faulty.set(Way::Open);
        sleep(20 * SECOND).await;
        by_process += u32::from(limiter.try_acquire().await.is_ok());
        sleep(ms(10)).await; // the limiter has detected that the store answers
        assert!(
            limiter.try_acquire().await.unwrap().fence() > 1_000_000_000,
            "by the store"
        );
    }
    assert_eq!(by_process, 10);
}

#[tokio::test(start_paused = true)]
async fn a_charge_counts_locally_and_in_the_store() {
    let (faulty, limiter) = cut_off(
        "window 100/h from first grant",
        "window 10/h from first grant",
    )
    .await;
    assert!(limiter.try_acquire().await.is_ok());
    limiter.penalize(8);
    assert!(limiter.try_acquire().await.is_ok());
    assert!(matches!(
        limiter.try_acquire().await,
        Err(TryAcquireError::Denied(_))
    ));
    faulty.set(Way::Open);
    sleep(Duration::from_secs(30)).await;
    assert_eq!(limiter.limits().await.unwrap()[0].remaining, 91);
}

#[tokio::test(start_paused = true)]
async fn each_key_has_local_usage_that_outlives_its_handle() {
    let (_faulty, limiter) = cut_off("1000/s", "window 3/1m from first grant").await;
    for key in ["alice", "bob"] {
        let mut granted = 0;
        for _ in 0..10 {
            granted += u32::from(limiter.key(key).try_acquire().await.is_ok());
            sleep(ms(1)).await;
        }
        assert_eq!(granted, 3, "{key}");
    }
    sleep(60 * SECOND).await;
    assert!(limiter.key("alice").try_acquire().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn local_requests_keep_their_order_and_can_be_dropped() {
    let (_faulty, limiter) = cut_off("1000/s", "throttle every 100ms").await;
    drop(limiter.acquire().await.unwrap());
    let start = Instant::now();
    let mut waiting: Vec<_> = (0..4).map(|_| Box::pin(limiter.acquire_owned())).collect();
    for waiter in &mut waiting {
        assert!(timeout(Duration::ZERO, waiter).await.is_err());
    }
    drop(waiting.remove(1));
    let mut granted = Vec::new();
    for waiter in waiting {
        drop(waiter.await.unwrap());
        granted.push(start.elapsed());
    }
    assert_eq!(granted, [ms(100), ms(200), ms(300)]);
    // A grant that is not taken is refunded.
    let mut dropped = Box::pin(limiter.acquire_owned());
    assert!(timeout(ms(1), &mut dropped).await.is_err());
    sleep(ms(150)).await;
    drop(dropped);
    assert!(limiter.try_acquire().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_local_timeout_passes_at_its_instant() {
    let (_faulty, limiter) = cut_off("1000/s", "1 concurrent").await;
    let _place = limiter.acquire().await.unwrap();
    let start = Instant::now();
    let late = limiter.request().timeout(ms(250)).acquire().await;
    assert!(
        matches!(late, Err(AcquireError::TimedOut { .. })),
        "{late:?}"
    );
    assert_eq!(start.elapsed(), ms(250));
}

#[tokio::test(start_paused = true)]
async fn a_cost_that_the_local_fallback_can_never_admit_is_an_error_and_keeps_no_request_waiting() {
    let (_faulty, limiter) = cut_off("1000 concurrent", "4 concurrent").await;
    let _place = limiter.acquire().await.unwrap();
    let large = limiter.acquire_many(5).await.unwrap_err();
    assert!(
        matches!(
            large,
            AcquireError::ExceedsLimit {
                cost: 5,
                max: 4,
                ..
            }
        ),
        "{large:?}"
    );
    let large = limiter.try_acquire_many(5).await.unwrap_err();
    assert!(
        matches!(
            large,
            TryAcquireError::ExceedsLimit {
                cost: 5,
                max: 4,
                ..
            }
        ),
        "{large:?}"
    );
    assert!(limiter.try_acquire_many(3).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn units_are_counted_and_settled_under_the_local_fallback() {
    let (faulty, limiter) = cut_off_by_unit(
        "10 concurrent per request and 1000 tokens/h",
        "100 tokens/h",
    )
    .await;
    let request = |tokens| limiter.request().cost_of("tokens", tokens);
    let permit = request(80).acquire().await.unwrap();
    assert_eq!(permit.cost_of("tokens"), Some(80));
    assert!(request(30).try_acquire().await.is_err());
    assert!(permit.settle_costs([("tokens", 50)]));
    let dropped = request(30).try_acquire().await.unwrap();
    drop(dropped);
    assert!(
        request(30).try_acquire().await.is_err(),
        "a dropped permit of a rate keeps its units"
    );
    faulty.set(Way::Open);
    sleep(20 * SECOND).await;
    drop(request(1).acquire().await.unwrap());
    drop(request(1).acquire().await.unwrap());
    assert!(
        limiter.limits().await.unwrap()[1].remaining >= 1_000 - 3,
        "the store has paid for none of it"
    );
}

async fn cut_off_by_unit(policy: &str, local: &str) -> (Faulty, SharedLimiter) {
    let faulty = Faulty::new();
    let limiter = limiter(&faulty, policy, local);
    drop(
        limiter
            .request()
            .cost_of("tokens", 1)
            .acquire()
            .await
            .unwrap(),
    );
    faulty.set(Way::Cut);
    (faulty, limiter)
}

#[tokio::test(start_paused = true)]
async fn a_local_fallback_is_checked_when_the_limiter_is_built() {
    let build = |local: &str| {
        Faulty::new()
            .builder("10/s")
            .on_store_down(under_local(local))
            .build()
            .map(drop)
    };
    assert!(matches!(
        build("0/s"),
        Err(ConfigError::ZeroRate { .. } | ConfigError::ZeroLimit { .. })
    ));
    let error = build("2 concurrent ttl 30s").unwrap_err();
    let ConfigError::Store(error) = error else {
        panic!("{error:?}")
    };
    assert!(
        matches!(*error, StoreError::Unsupported { .. }),
        "{error:?}"
    );
    build("2 concurrent and 5/s").unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_observer_gets_the_same_events_as_under_the_other_rules() {
    let faulty = Faulty::new();
    let (events, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let builder = faulty.builder("10/s").on_store_down(under_local("1/h"));
    let limiter = builder
        .on_event(move |event| drop(events.send(event.kind.clone())))
        .build()
        .unwrap();
    faulty.set(Way::Refuses);
    assert!(limiter.try_acquire().await.is_ok());
    assert!(limiter.try_acquire().await.is_err());
    sleep(SECOND).await;
    assert!(limiter.try_acquire().await.is_err());
    sleep(ms(10)).await; // the limiter has asked the store
    faulty.set(Way::Open);
    sleep(2 * SECOND).await;
    assert!(
        limiter.try_acquire().await.is_err(),
        "it finds out for the next one"
    );
    sleep(ms(10)).await;
    assert!(limiter.try_acquire().await.is_ok());
    let mut kinds = Vec::new();
    while let Ok(kind) = seen.try_recv() {
        kinds.push(match kind {
            EventKind::StoreDown { .. } => "down",
            EventKind::StoreUp { .. } => "up",
            EventKind::Denied { .. } => "denied",
            _ => "other",
        });
    }
    kinds.retain(|kind| *kind != "other");
    assert_eq!(kinds, ["denied", "denied", "down", "denied", "up"]);
}

/// Whatever the connection to the store does, local grants never exceed the local fallback.
#[tokio::test(start_paused = true)]
async fn the_local_fallback_is_never_exceeded_in_random_faults() {
    for seed in 1..=40_u64 {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let faulty = Faulty::new();
        let limiter = limiter(
            &faulty,
            "1000 concurrent and 100000/s",
            "3 concurrent and sliding log 5/1s",
        );
        let (mut held, mut grants): (Vec<Permit>, Vec<Instant>) = (Vec::new(), Vec::new());
        let is_local = |permit: &Permit| permit.fence() < 1_000_000_000;
        let mut waiting = Vec::new();
        for _ in 0..300 {
            match random.below(12) {
                0 => faulty.set(Way::Open),
                1 => faulty.set(Way::Cut),
                2 => faulty.set(
                    [Way::LosesReplies, Way::Slow(ms(300)), Way::Refuses][random.below(3) as usize],
                ),
                3..=5 => waiting.push(tokio::spawn(limiter.acquire_owned())),
                6 => {
                    if let Some(given_up) = waiting.pop() {
                        given_up.abort();
                    }
                }
                7 => drop(timeout(ms(random.below(700)), limiter.try_acquire()).await),
                8 | 9 => {
                    if !held.is_empty() {
                        drop(held.swap_remove(random.below(held.len() as u64) as usize));
                    }
                }
                _ => sleep(ms(random.below(400))).await,
            }
            if let Ok(Ok(permit)) = timeout(ms(1), limiter.acquire()).await {
                grants.extend(is_local(&permit).then(Instant::now));
                held.push(permit);
            }
            for index in (0..waiting.len()).rev() {
                if waiting[index].is_finished() {
                    held.extend(waiting.swap_remove(index).await.ok().and_then(Result::ok));
                }
            }
            let local = held.iter().filter(|permit| is_local(permit)).count();
            assert!(local <= 3, "seed {seed}: {local} places");
            let recent = grants.iter().filter(|at| at.elapsed() < SECOND).count();
            assert!(recent <= 5, "seed {seed}: {recent} in a second");
        }
        faulty.set(Way::Open);
        drop(held);
        for waiter in waiting {
            drop(
                timeout(20 * SECOND, waiter)
                    .await
                    .expect("it ends")
                    .unwrap(),
            );
        }
        timeout(20 * SECOND, limiter.drained())
            .await
            .expect("nothing is left");
        sleep(30 * SECOND).await;
        assert!(
            faulty.store.is_empty(),
            "seed {seed}: {} keys",
            faulty.store.len()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_newcomer_of_another_flow_is_next_at_the_local_limit() {
    let (_faulty, limiter) = cut_off("1 concurrent", "1 concurrent").await;
    let acquire = |flow: &'static str| {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.request().flow(flow).acquire().await.unwrap() })
    };
    let permit = acquire("flood").await.unwrap();
    let flood = [(); 3].map(|()| acquire("flood"));
    sleep(ms(10)).await;
    let newcomer = acquire("newcomer");
    sleep(ms(10)).await;
    drop(permit);
    let _permit = timeout(SECOND, newcomer).await.unwrap().unwrap();
    assert!(flood.iter().all(|request| !request.is_finished()));
}

#[tokio::test(start_paused = true)]
async fn the_fallback_does_not_decide_while_the_store_answers_with_an_error() {
    let faulty = Faulty::by(Way::Differs);
    let limiter = limiter(&faulty, "9/h", "9/h");
    let checked = limiter.check(1).await;
    assert!(
        matches!(checked, Err(StoreError::UnknownPolicy { .. })),
        "{checked:?}"
    );
    faulty.set(Way::Open);
    let calls = faulty.calls.load(Relaxed);
    drop(limiter.acquire().await.unwrap());
    assert_eq!(faulty.calls.load(Relaxed), calls + 1, "the store decides");
}
