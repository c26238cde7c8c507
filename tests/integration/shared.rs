//! Limits in a store in memory. Each of several limiters stands for a process. The clock is paused, so that the instants are exact.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use crate::common::faulty::{Faulty, Way};
use crate::common::ms;
use tokio::time::{Instant, sleep, timeout};
use tollgate::store::{MemoryStore, OnStoreDown};
use tollgate::{
    AcquireError, EventKind, LimitStatus, Limiter, LimiterEvent, MaxConcurrency, Penalty, Permit,
    Policy, Rate, SharedLimiter, Throttle, TokenBucket, TryAcquireError, UpstreamSignal,
};

/// One limiter for each process, on one store.
fn processes(store: &MemoryStore, count: usize, policy: &str) -> Vec<SharedLimiter> {
    (0..count)
        .map(|_| SharedLimiter::new(store.clone(), "test", policy).unwrap())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_rate_is_one_for_all_processes() {
    let store = MemoryStore::new();
    let all = processes(&store, 4, "throttle every 100ms");
    let start = Instant::now();
    let granted = Arc::new(AtomicU64::new(0));
    for limiter in &all {
        for _ in 0..5 {
            let (limiter, granted) = (limiter.clone(), Arc::clone(&granted));
            tokio::spawn(async move {
                drop(limiter.acquire().await.unwrap());
                granted.fetch_add(1, Relaxed);
            });
        }
    }
    for expected in 1..=20 {
        sleep(ms(100)).await;
        let granted = granted.load(Relaxed);
        assert!(
            granted <= expected + 1,
            "{granted} after {:?}",
            start.elapsed()
        );
    }
    sleep(ms(10)).await;
    assert_eq!(granted.load(Relaxed), 20);
}

#[tokio::test(start_paused = true)]
async fn places_are_shared_and_pass_from_process_to_process() {
    let store = MemoryStore::new();
    let [one, other] = processes(&store, 2, "2 concurrent").try_into().unwrap();
    let first = one.acquire().await.unwrap();
    let _second = other.acquire().await.unwrap();
    assert!(matches!(
        one.try_acquire().await,
        Err(TryAcquireError::Denied(_))
    ));
    let waiting = tokio::spawn(async move { other.acquire().await.unwrap().fence() });
    sleep(ms(10)).await;
    let fence = first.fence();
    drop(first);
    sleep(ms(1)).await;
    assert!(waiting.is_finished(), "it learns of the release");
    assert!(waiting.await.unwrap() > fence);
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_while_its_permit_lives() {
    let store = MemoryStore::new();
    let [one, other] = processes(&store, 2, "1 concurrent ttl 3s")
        .try_into()
        .unwrap();
    let permit = one.acquire().await.unwrap();
    sleep(Duration::from_secs(60)).await;
    assert!(permit.is_live());
    assert!(matches!(
        other.try_acquire().await,
        Err(TryAcquireError::Denied(_))
    ));
    drop(permit);
    sleep(ms(1)).await;
    assert!(other.try_acquire().await.is_ok());
    sleep(Duration::from_secs(60)).await;
    assert!(store.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_permit_is_held_for_the_longest_time_at_most() {
    let store = MemoryStore::new();
    let limiter = SharedLimiter::builder(
        store.clone(),
        "test",
        MaxConcurrency::new(1).ttl(Duration::from_secs(3)),
    )
    .max_hold(Duration::from_secs(10))
    .build()
    .unwrap();
    let start = Instant::now();
    let leaked = limiter.acquire().await.unwrap();
    let _next = limiter.acquire().await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 10);
    assert!(!leaked.is_live());
}

#[tokio::test(start_paused = true)]
async fn a_denial_names_the_limit_and_the_instant() {
    let store = MemoryStore::new();
    let [one, other] = processes(&store, 2, "5 concurrent and 2/s")
        .try_into()
        .unwrap();
    let _permits = [one.acquire().await.unwrap(), other.acquire().await.unwrap()];
    let Err(TryAcquireError::Denied(decision)) = one.try_acquire().await else {
        panic!()
    };
    assert_eq!(decision.denied_by().unwrap().to_string(), "2/s");
    assert_eq!(decision.retry_after(), Some(ms(500)));
    sleep(ms(499)).await;
    assert!(other.try_acquire().await.is_err());
    sleep(ms(1)).await;
    assert!(other.try_acquire().await.is_ok());
}

/// A pause holds back only the process that was paused, with prefetched units and without.
#[tokio::test(start_paused = true)]
async fn a_pause_holds_back_this_process() {
    for prefetched in [0, 10] {
        let store = MemoryStore::new();
        let build = || {
            SharedLimiter::builder(store.clone(), "test", "1000/min burst 1000")
                .prefetch(prefetched, ms(60_000))
                .build()
        };
        let [one, other] = [build().unwrap(), build().unwrap()];
        one.acquire().await.unwrap().release();
        let start = Instant::now();
        one.apply_upstream_signal(
            &UpstreamSignal::new()
                .limited()
                .retry_after(Duration::from_secs(30)),
        );
        one.pause_for(Duration::from_secs(20)); // the later end of two pauses counts
        assert_eq!(one.snapshot().paused_for, Some(Duration::from_secs(30)));
        let Err(TryAcquireError::Denied(decision)) = one.try_acquire().await else {
            panic!("granted")
        };
        assert!(
            decision.is_paused() && decision.retry_after() == Some(Duration::from_secs(30)),
            "{decision:?}"
        );
        other.acquire().await.unwrap().release();
        assert_eq!(start.elapsed(), Duration::ZERO);
        one.acquire().await.unwrap().release();
        assert_eq!(start.elapsed(), Duration::from_secs(30));

        one.pause_for(Duration::MAX);
        let waiting = tokio::spawn(one.acquire_owned());
        sleep(Duration::from_secs(3_600)).await;
        assert!(!waiting.is_finished());
        one.resume();
        sleep(ms(1)).await;
        assert!(waiting.is_finished());
    }
}

#[tokio::test(start_paused = true)]
async fn a_pause_of_a_key_lasts_while_the_key_is_not_used() {
    let alive = Arc::new(());
    let held = Arc::clone(&alive);
    let limiter = SharedLimiter::builder(MemoryStore::new(), "test", "1000/min")
        .on_event(move |_| drop(Arc::clone(&held)));
    let limiter = limiter.build().unwrap();
    for key in 0..100_u8 {
        limiter
            .key([key])
            .pause_for(Duration::from_secs(u64::from(key)));
    }
    limiter.key("for ever").pause_for(Duration::MAX);
    limiter.key("resumed").pause_for(Duration::MAX);
    limiter.key("resumed").resume();
    sleep(Duration::from_secs(50)).await;
    let is_paused = |key: &[u8]| limiter.key(key).snapshot().paused_for;
    for key in 0..100 {
        let rest = u64::from(key)
            .checked_sub(50)
            .filter(|rest| *rest > 0)
            .map(Duration::from_secs);
        assert_eq!(is_paused(&[key]), rest, "{key}");
    }
    assert_eq!(
        [is_paused(b"for ever"), is_paused(b"resumed")],
        [Some(Duration::MAX), None]
    );
    let handle = limiter.key("for ever");
    drop(limiter);
    assert_eq!(
        (handle.snapshot().paused_for, Arc::strong_count(&alive)),
        (Some(Duration::MAX), 2)
    );
    drop(handle);
    assert_eq!(
        Arc::strong_count(&alive),
        1,
        "a pause keeps no limiter that is gone"
    );
}

/// Each request opens the key anew, as a layer of HTTP does.
#[tokio::test(start_paused = true)]
async fn a_denial_is_remembered_while_the_key_is_not_used() {
    let faulty = Faulty::new();
    let limiter = faulty
        .builder("window 1/min from first grant")
        .build()
        .unwrap();
    let calls = || faulty.calls.swap(0, Relaxed);
    assert!(limiter.key("eve").try_acquire().await.is_ok());
    assert!(limiter.key("eve").try_acquire().await.is_err());
    sleep(ms(10)).await;
    calls();
    for _ in 0..100 {
        let denied = limiter.key("eve").try_acquire().await.unwrap_err();
        assert!(denied.retry_after().is_some());
        let late = limiter.key("eve").request().timeout(ms(10)).acquire().await;
        assert!(late.is_err());
    }
    assert_eq!(calls(), 0);
    assert!(limiter.key("bob").try_acquire().await.is_ok());
    sleep(Duration::from_secs(61)).await;
    assert!(limiter.key("eve").try_acquire().await.is_ok());
    assert_eq!(calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn costs_by_unit_are_settled_in_the_store() {
    let store = MemoryStore::new();
    let [one, other] = processes(&store, 2, "2 concurrent per request and 1000 tokens/min")
        .try_into()
        .unwrap();
    let permit = one
        .request()
        .cost_of("tokens", 900)
        .acquire()
        .await
        .unwrap();
    let denied = other.request().cost_of("tokens", 200).try_acquire().await;
    assert!(
        matches!(denied, Err(TryAcquireError::Denied(_))),
        "{denied:?}"
    );
    let waiting = tokio::spawn(async move {
        one.request()
            .cost_of("tokens", 800)
            .acquire()
            .await
            .map(drop)
    });
    sleep(ms(1)).await;
    assert!(permit.settle_costs([("tokens", 100)]));
    sleep(ms(1)).await;
    assert!(
        waiting.is_finished(),
        "this process asks again with what it gives back"
    );
    assert!(waiting.await.unwrap().is_ok());
    let limits = other.limits().await.unwrap();
    assert_eq!((limits[0].remaining, limits[1].remaining), (2, 100));
    assert!(matches!(
        other.acquire().await,
        Err(AcquireError::MissingCost { .. })
    ));
}

#[tokio::test(start_paused = true)]
async fn keys_have_limits_of_their_own() {
    let store = MemoryStore::new();
    let limiter = SharedLimiter::new(
        store.clone(),
        "test",
        TokenBucket::new(Rate::per_second(1), 1),
    )
    .unwrap();
    for key in ["", "a", "b", "a\0b"] {
        assert!(limiter.key(key).try_acquire().await.is_ok());
        assert!(limiter.key(key).try_acquire().await.is_err());
    }
    assert_eq!(limiter.keys(None, 10).await.unwrap().keys.len(), 4);
    limiter.key("a").reset().await.unwrap();
    assert!(limiter.key("a").try_acquire().await.is_ok());
    sleep(Duration::from_secs(2)).await;
    assert!(store.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_reset_serves_waiters_at_once() {
    let store = MemoryStore::new();
    let limiter = SharedLimiter::new(store, "test", "window 1/min from first grant").unwrap();
    assert!(limiter.try_acquire().await.is_ok());
    let began = Instant::now();
    let waiting = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire().await.map(drop) }
    });
    sleep(ms(10)).await;
    limiter.reset().await.unwrap();
    waiting.await.unwrap().unwrap();
    assert_eq!(began.elapsed(), ms(10));
}

/// A fixed bug: a denial that the store decided before the reset, and sent after it, was remembered.
#[tokio::test(start_paused = true)]
async fn a_denial_from_before_a_reset_is_not_remembered_after_it() {
    let faulty = Faulty::new();
    let limiter = faulty
        .builder("window 1/h from first grant")
        .build()
        .unwrap();
    limiter.try_acquire().await.unwrap().release();
    faulty.set(Way::RepliesLate(ms(100)));
    let asking = tokio::spawn(limiter.try_acquire());
    sleep(ms(10)).await;
    let waiting = tokio::spawn(limiter.acquire_owned());
    limiter.reset().await.unwrap();
    assert!(asking.await.unwrap().is_err(), "the store had denied it");
    let start = Instant::now();
    waiting.await.unwrap().unwrap().release();
    assert_eq!(start.elapsed(), ms(100), "it asks the store");
}

/// A fixed bug: units that a permit from before a reset gave back were granted twice.
#[tokio::test(start_paused = true)]
async fn a_permit_from_before_a_reset_gives_nothing_back() {
    for policy in [
        "window 10/h from first grant",
        "window 10/100d wall clock",
        "sliding counter 10/100d",
        "sliding log 10/h",
        "10/h burst 10",
    ] {
        let limiter = SharedLimiter::new(MemoryStore::new(), "test", policy).unwrap();
        let refunded = limiter.acquire_many(6).await.unwrap();
        let settled = limiter.acquire_many(4).await.unwrap();
        limiter.reset().await.unwrap();
        let latter = limiter.acquire_many(10).await.unwrap();
        assert!(
            refunded.refund() && settled.settle(1),
            "{policy}: the store gets it"
        );
        sleep(ms(1)).await;
        assert!(limiter.try_acquire().await.is_err(), "{policy}");
        assert!(latter.refund());
        sleep(ms(1)).await;
        assert_eq!(
            limiter.limits().await.unwrap()[0].remaining,
            10,
            "{policy}: one from after it does"
        );
    }
}

/// A fixed bug: after a reset, the store may give a fence anew that a permit from before the reset still has.
#[tokio::test(start_paused = true)]
async fn a_permit_from_before_a_reset_gives_back_no_place_of_another() {
    let limiter = SharedLimiter::new(MemoryStore::new(), "test", "1 concurrent").unwrap();
    let before = limiter.acquire().await.unwrap();
    limiter.reset().await.unwrap();
    let after = limiter.try_acquire().await.unwrap();
    assert!(after.fence() > before.fence());
    drop(before);
    sleep(ms(1)).await;
    assert!(limiter.try_acquire().await.is_err());
    drop(after);
    sleep(ms(1)).await;
    assert!(limiter.try_acquire().await.is_ok());
}

/// A fixed bug: explained requests, which layers make, caused a prefetch and were granted none of its units.
#[tokio::test(start_paused = true)]
async fn prefetched_units_are_granted_to_explained_requests_too() {
    let builder = SharedLimiter::builder(MemoryStore::new(), "test", "window 5/h from first grant");
    let limiter = builder
        .prefetch(100, Duration::from_secs(10))
        .build()
        .unwrap();
    for nth in 1..=5 {
        let (granted, limits) = limiter
            .request()
            .cost_of("tokens", 7)
            .try_acquire_explained()
            .await;
        assert!(granted.is_ok() && (limits.is_empty() || nth != 2), "{nth}");
        sleep(ms(1)).await;
    }
    assert!(limiter.try_acquire().await.is_err());
}

/// A fixed bug: the permit was mistaken for another one that was granted after the reset.
#[tokio::test(start_paused = true)]
async fn a_permit_from_before_a_reset_does_not_refund_a_later_one_with_the_same_fence() {
    let limiter =
        SharedLimiter::new(MemoryStore::new(), "test", "window 10/h from first grant").unwrap();
    let before = limiter.acquire_many(10).await.unwrap();
    limiter.reset().await.unwrap();
    let (after, _) = limiter.request().cost(10).try_acquire_explained().await;
    assert_eq!(after.as_ref().unwrap().fence(), before.fence());
    assert!(before.refund());
    sleep(ms(1)).await;
    assert!(limiter.try_acquire().await.is_err());
}

/// A fixed bug: these units were granted in addition to the whole limit after the reset.
#[tokio::test(start_paused = true)]
async fn prefetched_units_are_not_granted_after_a_reset() {
    let store = MemoryStore::new();
    let builder = SharedLimiter::builder(store.clone(), "test", "window 100/h from first grant")
        .prefetch(20, Duration::from_secs(60));
    let (limiter, other) = (
        builder.build().unwrap(),
        SharedLimiter::new(store, "test", "window 100/h from first grant").unwrap(),
    );
    for _ in 0..30 {
        drop(limiter.try_acquire().await.unwrap());
    }
    assert!(
        other.limits().await.unwrap()[0].remaining < 70,
        "there are some"
    );
    limiter.reset().await.unwrap();
    let mut granted = 0;
    for limiter in [&other, &limiter] {
        while limiter.try_acquire().await.is_ok() {
            granted += 1;
        }
    }
    assert_eq!(granted, 100);
}

/// A fixed bug: a charge that was to be sent in the background arrived after the reset.
#[tokio::test(start_paused = true)]
async fn a_charge_from_before_a_reset_is_not_applied_after_it() {
    let limiter =
        SharedLimiter::new(MemoryStore::new(), "test", "window 10/h from first grant").unwrap();
    let permit = limiter.acquire().await.unwrap();
    assert!(permit.settle(5));
    limiter.penalize(10);
    limiter.reset().await.unwrap();
    assert!(limiter.try_acquire_many(10).await.is_ok());
    limiter.penalize(3);
    sleep(ms(1)).await;
    limiter.reset().await.unwrap();
    limiter.penalize(4);
    sleep(ms(1)).await;
    assert_eq!(
        limiter.limits().await.unwrap()[0].remaining,
        6,
        "one from after it is"
    );
}

#[tokio::test(start_paused = true)]
async fn a_reset_comes_after_a_charge_that_is_on_its_way() {
    let faulty = Faulty::by(Way::Slow(ms(100)));
    let limiter = faulty
        .builder("window 10/h from first grant")
        .build()
        .unwrap();
    limiter.penalize(10);
    sleep(ms(10)).await;
    limiter.reset().await.unwrap();
    assert_eq!(limiter.limits().await.unwrap()[0].remaining, 10);
}

/// A fixed bug: a reset whose future was dropped sent the store the charges that another reset had withheld.
#[tokio::test(start_paused = true)]
async fn resets_at_the_same_time_charge_nothing_from_before_them() {
    let faulty = Faulty::by(Way::Slow(ms(100)));
    let limiter = faulty
        .builder("window 10/h from first grant")
        .build()
        .unwrap();
    limiter.penalize(3);
    sleep(ms(10)).await;
    limiter.penalize(4); // unsent while a call is in flight
    let succeeds = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.reset().await }
    });
    sleep(ms(10)).await;
    assert!(timeout(ms(10), limiter.reset()).await.is_err());
    succeeds.await.unwrap().unwrap();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(limiter.limits().await.unwrap()[0].remaining, 10);
}

#[tokio::test(start_paused = true)]
async fn a_closed_key_stays_closed_while_it_is_not_used() {
    let limiter = SharedLimiter::new(MemoryStore::new(), "test", "1000/min").unwrap();
    limiter.key("eve").close();
    limiter.key("mallory").close_to_new();
    for key in ["eve", "mallory"] {
        limiter.key(key).pause_for(Duration::from_secs(1));
        limiter.key(key).resume();
    }
    sleep(Duration::from_secs(3_600)).await;
    for _ in 0..1_000 {
        limiter.key("bob").pause_for(ms(1));
    }
    for key in ["eve", "mallory"] {
        assert!(
            limiter.key(key).is_closed()
                && limiter
                    .key(key)
                    .try_acquire()
                    .await
                    .unwrap_err()
                    .is_closed(),
            "{key}"
        );
    }
    assert!(
        limiter.try_acquire().await.is_ok() && limiter.key("alice").try_acquire().await.is_ok(),
        "others are open"
    );
}

/// A fixed bug: a pause that began while another thread resumed the key was lost once the key was no longer used.
#[tokio::test(start_paused = true)]
async fn a_pause_that_begins_while_a_key_is_resumed_is_kept() {
    let handle = Arc::new(OnceLock::<SharedLimiter>::new());
    let observed = Arc::clone(&handle);
    let pauses_again = move |event: &LimiterEvent<'_>| {
        if let EventKind::Resumed { .. } = event.kind {
            observed.get().unwrap().key("eve").pause_for(Duration::MAX);
        }
    };
    let limiter = SharedLimiter::builder(MemoryStore::new(), "test", "10/s")
        .on_event(pauses_again)
        .build()
        .unwrap();
    handle.set(limiter.clone()).unwrap();
    limiter.key("eve").pause_for(Duration::from_secs(60));
    limiter.key("eve").resume();
    assert_eq!(
        limiter.key("eve").snapshot().paused_for,
        Some(Duration::MAX)
    );
}

#[tokio::test(start_paused = true)]
async fn a_key_is_charged_in_the_store_without_a_request() {
    let store = MemoryStore::new();
    let policy = "2 concurrent and 100/min and 50 tokens/min";
    let [one, other] = processes(&store, 2, policy).try_into().unwrap();
    let left = async |limiter: &SharedLimiter| {
        let remaining = |status: &LimitStatus| status.remaining;
        limiter
            .key("eve")
            .limits()
            .await
            .unwrap()
            .iter()
            .map(remaining)
            .collect::<Vec<_>>()
    };
    one.key("eve").penalize(0);
    one.key("eve").penalize(30);
    one.key("eve").penalize(40);
    sleep(ms(1)).await;
    assert_eq!(
        (left(&one).await, left(&other).await),
        (vec![2, 30, 50], vec![2, 30, 50])
    );
    one.key("eve").penalize(u64::MAX);
    one.key("eve").penalize(u64::MAX);
    sleep(ms(1)).await;
    assert_eq!(
        left(&other).await,
        [2, 0, 50],
        "no request needs to ask or to have a handle"
    );
    other.key("eve").reset().await.unwrap();
    assert_eq!(left(&one).await, [2, 100, 50]);
}

#[tokio::test(start_paused = true)]
async fn a_closed_limiter_still_gives_its_places_back() {
    let store = MemoryStore::new();
    let [one, other] = processes(&store, 2, "1 concurrent").try_into().unwrap();
    let permit = one.acquire().await.unwrap();
    one.close();
    assert_eq!(one.acquire().await.unwrap_err(), AcquireError::Closed);
    drop(permit);
    one.drained().await;
    drop(one);
    sleep(ms(1)).await;
    assert!(other.try_acquire().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_different_policy_is_an_error_that_shows_both() {
    let store = MemoryStore::new();
    let ten = SharedLimiter::new(store.clone(), "test", Throttle::every(ms(100))).unwrap();
    let _permit = ten.acquire().await.unwrap();
    let twenty = SharedLimiter::new(store.clone(), "test", Throttle::every(ms(50))).unwrap();
    let Err(AcquireError::Store(error)) = twenty.acquire().await else {
        panic!()
    };
    assert_eq!(
        error.to_string(),
        "the store has the limiter \"test\" with the policy `throttle every 100ms` (revision 0), not `throttle every 50ms` (revision 0): to change the policy of all processes, give the new one a higher revision; to have both, use another name"
    );
    let policy = Policy::from(Throttle::every(ms(50)));
    let replaces = SharedLimiter::builder(store, "test", policy)
        .revision(1)
        .build()
        .unwrap();
    sleep(ms(100)).await;
    assert!(replaces.try_acquire().await.is_ok());
    let start = Instant::now();
    let _permit = ten.acquire().await.unwrap();
    assert_eq!(start.elapsed(), ms(50));
}

/// Four processes of several threads, in a window that does not end, with callers that wait, that do not wait, and that give up.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn under_contention_exactly_the_limit_is_granted() {
    const LIMIT: u64 = 600;
    let store = MemoryStore::new();
    let [granted, in_flight, most] = [0; 3].map(|_| Arc::new(AtomicU64::new(0)));
    let mut tasks = tokio::task::JoinSet::new();
    for limiter in processes(
        &store,
        4,
        &format!("3 concurrent and window {LIMIT}/36500d"),
    ) {
        for nth in 0..32 {
            let limiter = limiter.clone();
            let (granted, in_flight, most) = (
                Arc::clone(&granted),
                Arc::clone(&in_flight),
                Arc::clone(&most),
            );
            tasks.spawn(async move {
                loop {
                    let permit = match nth % 3 {
                        0 => match limiter.try_acquire().await {
                            Ok(permit) => permit,
                            Err(TryAcquireError::Denied(decision))
                                if decision
                                    .retry_after()
                                    .is_some_and(|after| after > ms(1_000)) =>
                            {
                                break;
                            }
                            Err(_) => {
                                tokio::task::yield_now().await; // others take turns
                                continue;
                            }
                        },
                        1 => match limiter.request().timeout(ms(500)).acquire().await {
                            Ok(permit) => permit,
                            Err(_) => break,
                        },
                        _ => match timeout(Duration::from_micros(300), limiter.acquire()).await {
                            Ok(permit) => permit.unwrap(),
                            Err(_) if granted.load(Relaxed) >= LIMIT => break,
                            Err(_) => continue, // it may have been granted: then it is refunded
                        },
                    };
                    most.fetch_max(in_flight.fetch_add(1, Relaxed) + 1, Relaxed);
                    granted.fetch_add(1, Relaxed);
                    tokio::task::yield_now().await;
                    in_flight.fetch_sub(1, Relaxed);
                    drop(permit);
                }
            });
        }
    }
    let all = async { while tasks.join_next().await.is_some() {} };
    // It takes some ten seconds, and more beside other tests.
    timeout(Duration::from_secs(300), all)
        .await
        .expect("no request hangs");
    assert!(most.load(Relaxed) <= 3, "{}", most.load(Relaxed));
    assert_eq!(granted.load(Relaxed), LIMIT);
}

/// At any instant the store has charged at least the units that the processes have granted, and at most the limit.
#[tokio::test(start_paused = true)]
async fn prefetched_units_never_exceed_the_limit_and_come_back() {
    let store = MemoryStore::new();
    let limiter = || {
        let builder =
            SharedLimiter::builder(store.clone(), "test", "window 1000/h from first grant");
        builder.prefetch(100, ms(50)).build().unwrap()
    };
    let all = [limiter(), limiter(), limiter()];
    let mut granted = 0;
    for round in 0.. {
        let mut denied = 0;
        for limiter in &all {
            match limiter.try_acquire().await {
                Ok(_) => granted += 1,
                Err(TryAcquireError::Denied(_)) => denied += 1,
                Err(error) => panic!("{error}"),
            }
        }
        if denied == 3 {
            sleep(ms(51)).await; // units that were not used have come back
            if all[0].check(1).await.unwrap().remaining() == 0 {
                break;
            }
        }
        assert!(round < 2_000);
    }
    assert_eq!(granted, 1_000);
    let places = SharedLimiter::builder(store, "other", "8 concurrent")
        .prefetch(10, ms(50))
        .build();
    assert!(matches!(places, Err(tollgate::ConfigError::Store(_))));
}

/// A fixed bug: under a penalty that counts each attempt, an attempt that another limit was sure to deny made no call, and waited.
#[tokio::test(start_paused = true)]
async fn a_penalty_counts_attempts_that_another_limit_is_known_to_deny() {
    let store = MemoryStore::new();
    let policy = "penalty 5 falling 1/h and 1 concurrent";
    let (limiter, alone) = (
        SharedLimiter::new(store, "test", policy).unwrap(),
        Limiter::new(policy).unwrap(),
    );
    let _permits = (
        limiter.acquire().await.unwrap(),
        alone.acquire().await.unwrap(),
    );
    let start = Instant::now();
    for _ in 0..8 {
        assert!(matches!(
            limiter.try_acquire().await,
            Err(TryAcquireError::Denied(_))
        ));
        assert!(alone.try_acquire().is_err());
        let remaining = limiter.limits().await.unwrap()[0].remaining;
        assert_eq!(remaining, alone.limits()[0].remaining);
        sleep(ms(5)).await; // the carrier has ended
    }
    assert_eq!(start.elapsed(), ms(40), "each is answered at once");
}

/// A fixed bug: a request without a handle of the limiter, as in a layer for clients, was not notified and only asked at intervals.
#[tokio::test(start_paused = true)]
async fn a_waiter_is_notified_of_releases_without_a_handle_of_the_limiter() {
    let store = MemoryStore::new();
    let [one, other] = processes(&store, 2, "1 concurrent").try_into().unwrap();
    let permit = one.acquire().await.unwrap();
    let waiting = tokio::spawn(other.acquire_owned());
    drop(other);
    sleep(ms(100)).await;
    let start = Instant::now();
    drop(permit);
    waiting.await.unwrap().unwrap().release();
    assert!(start.elapsed() <= ms(10), "{:?}", start.elapsed());
}

/// A fixed bug: a permit that holds nothing found no manager to settle it, since no handle of the key was left.
#[tokio::test(start_paused = true)]
async fn a_permit_of_a_key_is_settled_without_a_handle_of_the_key() {
    let shared = SharedLimiter::new(MemoryStore::new(), "used", "100/min").unwrap();
    let permit = shared.key("k").request().cost(50).acquire().await.unwrap();
    assert!(permit.settle(7));
    sleep(ms(1)).await;
    assert_eq!(shared.key("k").limits().await.unwrap()[0].remaining, 93);
}

/// A fixed bug: the waiter waited until the lease would have expired.
#[tokio::test(start_paused = true)]
async fn a_release_message_that_arrives_before_the_denial_is_not_lost() {
    let faulty = Faulty::new();
    let other = faulty.elsewhere("1 concurrent ttl 1m");
    let here = faulty.builder("1 concurrent ttl 1m").build().unwrap();
    let permit = other.acquire().await.unwrap();
    faulty.set(Way::RepliesLate(ms(100)));
    let waiting = tokio::spawn(async move { here.acquire().await.map(drop) });
    sleep(ms(50)).await;
    let start = Instant::now();
    drop(permit);
    waiting.await.unwrap().unwrap();
    assert!(start.elapsed() <= ms(151), "{:?}", start.elapsed());
}

/// A fixed bug: the denial repeated the time of the store's reply.
#[tokio::test(start_paused = true)]
async fn a_remembered_denial_reports_the_time_that_is_left() {
    let faulty = Faulty::new();
    let limiter = faulty.builder("1/10s").build().unwrap();
    let ask = || limiter.request().try_acquire_explained();
    let (granted, limits) = ask().await;
    assert_eq!(
        (granted.is_ok(), limits[0].remaining, limits[0].reset_after),
        (true, 0, ms(10_000))
    );
    sleep(ms(4_000)).await;
    let left = |(denied, limits): (Result<_, _>, Vec<LimitStatus>)| {
        let Err(TryAcquireError::Denied(decision)) = denied.map(drop) else {
            panic!("it is denied")
        };
        assert_eq!(
            (limits[0].remaining, limits[0].reset_after),
            (0, decision.reset_after())
        );
        decision.retry_after().unwrap()
    };
    let first = left(ask().await);
    assert_eq!(faulty.calls.load(Relaxed), 2);
    sleep(ms(1_000)).await;
    assert_eq!(left(ask().await), first - ms(1_000));
    assert_eq!(
        faulty.calls.load(Relaxed),
        2,
        "the store was not asked again"
    );
    assert!(ms(5_900) < first && first <= ms(6_000), "{first:?}");
}

fn retry_after(denied: Result<Permit, TryAcquireError>) -> Duration {
    match denied {
        Err(TryAcquireError::Denied(decision)) => decision.retry_after().expect("a rate says when"),
        other => panic!("{other:?}"),
    }
}

/// A fixed bug: the remembered denial of one cost was also the answer to a larger cost.
#[tokio::test(start_paused = true)]
async fn a_remembered_denial_does_not_answer_another_cost() {
    let faulty = Faulty::new();
    let limiter = faulty.builder("1/s burst 3").build().unwrap();
    drop(limiter.request().cost(3).acquire().await.unwrap());
    sleep(ms(200)).await;
    let is_about = |reported: Duration, expected| {
        assert!(
            expected - ms(5) < reported && reported <= expected,
            "{reported:?}"
        );
    };
    for _ in 0..2 {
        is_about(retry_after(limiter.try_acquire().await), ms(800));
        is_about(retry_after(limiter.try_acquire_many(3).await), ms(2_800));
        let calls = faulty.calls.load(Relaxed);
        is_about(retry_after(limiter.try_acquire_many(3).await), ms(2_800));
        assert_eq!(faulty.calls.load(Relaxed), calls, "this cost is remembered");
    }
}

/// A fixed bug: requests that did not wait were denied with the one before them in a call, whatever their costs.
#[tokio::test(start_paused = true)]
async fn requests_that_go_together_are_each_denied_for_their_own_cost() {
    let faulty = Faulty::new();
    let limiter = faulty.builder("1/s burst 3").build().unwrap();
    drop(limiter.request().cost(2).acquire().await.unwrap());
    faulty.set(Way::Slow(ms(10)));
    let ask = |cost| {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.try_acquire_many(cost).await })
    };
    let (under_way, large, small, larger) = (ask(1), ask(3), ask(1), ask(3));
    drop(under_way.await.unwrap().expect("a unit is left"));
    let [large, small, larger] = [
        retry_after(large.await.unwrap()),
        retry_after(small.await.unwrap()),
        retry_after(larger.await.unwrap()),
    ];
    assert!(
        large > ms(2_900) && larger > ms(2_900),
        "{large:?} {larger:?}"
    );
    assert!(small > ms(900) && small < ms(1_000), "{small:?}");
}

#[tokio::test(start_paused = true)]
async fn a_small_request_that_does_not_wait_is_granted_beside_a_large_one_that_is_denied() {
    let faulty = Faulty::new();
    let limiter = faulty.builder("1/h burst 3").build().unwrap();
    drop(limiter.acquire().await.unwrap());
    faulty.set(Way::Slow(ms(10)));
    let ask = |cost| {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.try_acquire_many(cost).await })
    };
    let (under_way, large, small) = (ask(1), ask(3), ask(1));
    drop(under_way.await.unwrap().unwrap());
    assert!(large.await.unwrap().is_err());
    drop(small.await.unwrap().expect("a unit is left"));
}

/// A fixed bug: its retry-after was the time at which the smaller cost is admitted.
#[tokio::test(start_paused = true)]
async fn a_larger_request_that_times_out_or_is_denied_behind_others_does_not_say_when_a_smaller_one_is_admitted()
 {
    let limiter = SharedLimiter::builder(MemoryStore::new(), "test", "1/s burst 3")
        .max_queue(1)
        .build()
        .unwrap();
    drop(limiter.request().cost(3).acquire().await.unwrap());
    sleep(ms(200)).await;
    assert!(limiter.try_acquire().await.is_err()); // for 800 ms more
    for timeout in [100, 500] {
        let timed_out = limiter
            .request()
            .cost(3)
            .timeout(ms(timeout))
            .acquire()
            .await
            .unwrap_err();
        assert!(
            matches!(
                timed_out,
                AcquireError::TimedOut {
                    retry_after: None,
                    ..
                }
            ),
            "{timed_out:?}"
        );
    }
    let waiting = tokio::spawn(limiter.acquire_owned());
    sleep(ms(1)).await;
    let full = limiter.request().cost(3).acquire().await.unwrap_err();
    assert_eq!(
        full,
        AcquireError::QueueFull {
            retry_after: Some(ms(1_000))
        },
        "after the waiter, even a full bucket has too little"
    );
    drop(waiting.await.unwrap().unwrap());

    let limiter = SharedLimiter::new(MemoryStore::new(), "test", "1/s burst 3").unwrap();
    drop(limiter.request().cost(3).acquire().await.unwrap());
    let waiting = tokio::spawn(limiter.acquire_owned());
    sleep(ms(1)).await;
    let Err(TryAcquireError::Denied(denied)) = limiter.try_acquire_many(3).await else {
        panic!("one waits before it")
    };
    assert_eq!(denied.retry_after(), None);
    drop(waiting.await.unwrap().unwrap());
}

/// A penalty would count a second ask of the same request, so the store is not asked about another cost again. Its retry-after is then
/// unknown.
#[tokio::test(start_paused = true)]
async fn each_attempt_counts_once_for_a_penalty_when_requests_go_together() {
    const POLICY: &str = "penalty 4 falling 1/h ceiling 100";
    let faulty = Faulty::new();
    let limiter = faulty.builder(POLICY).build().unwrap();
    faulty.set(Way::Slow(ms(10)));
    let ask = |cost| {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.try_acquire_many(cost).await })
    };
    let (granted, first, other) = (ask(4), ask(2), ask(1));
    drop(granted.await.unwrap().unwrap());
    assert!(retry_after(first.await.unwrap()) > Duration::from_secs(3 * 3_600));
    let Err(TryAcquireError::Denied(decision)) = other.await.unwrap() else {
        panic!("the penalty is above its threshold")
    };
    assert_eq!(decision.retry_after(), None);
    let reset_after = faulty.elsewhere(POLICY).limits().await.unwrap()[0].reset_after;
    let hours = reset_after.as_secs_f64() / 3_600.0;
    assert!(6.99 < hours && hours <= 7.0, "4, 2 and 1 units: {hours} h");
}

#[tokio::test(start_paused = true)]
async fn a_grant_after_a_wait_is_explained() {
    let limiter =
        SharedLimiter::new(MemoryStore::new(), "test", "2 concurrent and 3/10s burst 3").unwrap();
    let permits = [
        limiter.acquire().await.unwrap(),
        limiter.acquire().await.unwrap(),
    ];
    let waiting = tokio::spawn(limiter.request().acquire_explained());
    sleep(ms(1)).await;
    drop(permits);
    let (permit, limits) = waiting.await.unwrap();
    let said = |limits: &[LimitStatus]| {
        limits
            .iter()
            .map(|limit| (limit.capacity, limit.remaining))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (permit.is_ok(), said(&limits)),
        (true, vec![(2, 1), (3, 0)])
    );
    let (refused, limits) = limiter.request().timeout(ms(100)).acquire_explained().await;
    assert!(
        matches!(refused, Err(AcquireError::TimedOut { .. })),
        "{refused:?}"
    );
    assert_eq!(said(&limits), [(2, 1), (3, 0)]);
}

/// A fixed bug: the store granted a part of a prefetch, and its denial of the other units denied that part, too.
#[tokio::test(start_paused = true)]
async fn prefetched_units_are_granted_whatever_the_store_has_denied() {
    let limiter = SharedLimiter::builder(MemoryStore::new(), "test", "window 5/h from first grant")
        .prefetch(100, ms(10_000))
        .build()
        .unwrap();
    for nth in 0..5 {
        let granted = limiter.try_acquire().await;
        assert!(granted.is_ok(), "{nth}: {granted:?}");
        sleep(ms(1)).await;
    }
    assert!(limiter.try_acquire().await.is_err());
}

/// A fixed bug: a denial without a call of the store was not reported to the observer.
#[tokio::test(start_paused = true)]
async fn each_denial_is_reported_whether_or_not_the_store_was_asked() {
    let faulty = Faulty::new();
    let reported = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&reported);
    let builder = faulty
        .builder("window 1/h from first grant")
        .on_store_down(OnStoreDown::Deny)
        .on_event(move |event| {
            if let EventKind::Denied {
                cost,
                decision,
                requested_in,
                ..
            } = &event.kind
            {
                seen.lock()
                    .unwrap()
                    .push((*cost, decision.clone(), requested_in.line()));
            }
        });
    let limiter = builder.build().unwrap();
    let mut denials = Vec::new();
    let mut deny = async || {
        let (denied, line) = (limiter.try_acquire().await, line!());
        let Err(TryAcquireError::Denied(decision)) = denied else {
            panic!("{denied:?}")
        };
        denials.push((1, decision, line));
    };
    limiter.try_acquire().await.unwrap().release();
    for _ in 0..5 {
        deny().await;
        sleep(ms(1)).await;
    }
    sleep(Duration::from_secs(3_601)).await;
    faulty.set(Way::Refuses);
    for _ in 0..2 {
        deny().await; // the second one without a call
    }
    assert_eq!(limiter.snapshot().denied, 7);
    assert_eq!(*reported.lock().unwrap(), denials);
}

/// A fixed bug: a remembered denial ignored the pause.
#[tokio::test(start_paused = true)]
async fn a_denial_in_a_pause_lasts_as_long_as_the_pause() {
    let hour = Duration::from_secs(3_600);
    let limiter = SharedLimiter::new(MemoryStore::new(), "test", "1/s burst 1").unwrap();
    assert!(limiter.try_acquire().await.is_ok() && limiter.try_acquire().await.is_err());
    limiter.pause_for(hour);
    let denied = limiter.try_acquire().await.unwrap_err();
    assert_eq!(denied.retry_after(), Some(hour));

    let faulty = Faulty::by(Way::Refuses);
    let down = faulty
        .builder("10/s")
        .on_store_down(OnStoreDown::Deny)
        .build()
        .unwrap();
    assert_eq!(down.try_acquire().await.unwrap_err().retry_after(), None);
    down.pause_for(hour);
    let Err(TryAcquireError::Denied(decision)) = down.try_acquire().await else {
        panic!("granted")
    };
    assert!(
        decision.is_paused() && decision.retry_after() == Some(hour),
        "{decision:?}"
    );
}

/// A fixed bug: a check predicted the decision of the store, although no request would have asked it.
#[tokio::test(start_paused = true)]
async fn a_check_answers_as_try_acquire_in_a_pause_and_when_it_is_closed() {
    let (faulty, hour) = (Faulty::new(), Duration::from_secs(3_600));
    let resumed = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&resumed);
    let builder = faulty.builder("2/s burst 2").on_event(move |event| {
        count.fetch_add(
            u64::from(matches!(event.kind, EventKind::Resumed { .. })),
            Relaxed,
        );
    });
    let limiter = builder.build().unwrap();
    assert!(limiter.check(1).await.unwrap().is_allowed());
    let zero = limiter.check(0).await.unwrap();
    assert!(
        !zero.is_allowed() && !zero.is_paused() && zero.retry_after().is_none(),
        "{zero:?}"
    );

    for denied_before in [false, true] {
        limiter.pause_for(hour);
        let calls = faulty.calls.load(Relaxed);
        let decision = limiter.check(1).await.unwrap();
        assert_eq!(
            faulty.calls.load(Relaxed),
            calls,
            "it asks the store for nothing"
        );
        assert_eq!(
            (decision.is_paused(), decision.retry_after()),
            (!denied_before, Some(hour))
        );
        let Err(TryAcquireError::Denied(denied)) = limiter.try_acquire().await else {
            panic!("granted")
        };
        assert_eq!(denied, decision);
        sleep(hour).await;
        assert!(limiter.check(1).await.unwrap().is_allowed());
        assert_eq!(resumed.swap(0, Relaxed), 1);
        assert!(limiter.try_acquire_many(2).await.is_ok() && limiter.try_acquire().await.is_err());
    }

    faulty.set(Way::RepliesLate(ms(100)));
    sleep(Duration::from_secs(1)).await;
    let pausing = async {
        sleep(ms(50)).await;
        limiter.pause_for(hour);
    };
    let (decision, ()) = tokio::join!(limiter.check(1), pausing);
    assert_eq!(
        decision.unwrap().retry_after(),
        Some(hour - ms(50)),
        "the pause began meanwhile"
    );
    limiter.resume();

    limiter.close();
    let closed = limiter.check(1).await.unwrap();
    assert!(
        !closed.is_allowed() && !closed.is_paused() && closed.retry_after().is_none(),
        "{closed:?}"
    );
}

/// Units that this process has prefetched are granted without a call, so a check allows them.
#[tokio::test(start_paused = true)]
async fn a_check_counts_prefetched_units() {
    let limiter = SharedLimiter::builder(MemoryStore::new(), "test", "window 3/h from first grant")
        .prefetch(100, ms(10_000))
        .build()
        .unwrap();
    assert!(limiter.try_acquire().await.is_ok());
    let check = async |cost| {
        let decision = limiter.check(cost).await.unwrap();
        (decision.is_allowed(), decision.remaining())
    };
    assert_eq!(
        (check(1).await, check(2).await, check(3).await),
        ((true, 2), (true, 2), (false, 2))
    );
    limiter.pause_for(ms(1));
    assert!(!check(1).await.0);
    sleep(ms(1)).await;
    assert!(limiter.try_acquire_many(2).await.is_ok());
    assert_eq!(check(1).await, (false, 0));
}

/// The bans that an observer got: the index of the limit, and for how long.
type Bans = Arc<Mutex<Vec<(usize, Duration)>>>;

/// Records the bans. Checks that each follows its denial.
fn note_bans() -> (Bans, impl Fn(&LimiterEvent<'_>) + Send + Sync + 'static) {
    let (bans, denied_in) = (Bans::default(), Mutex::new(None));
    let noted = Arc::clone(&bans);
    let note = move |event: &LimiterEvent<'_>| match &event.kind {
        EventKind::Denied { requested_in, .. } => {
            *denied_in.lock().unwrap() = Some(requested_in.line());
        }
        EventKind::Banned {
            limit_index,
            banned_for,
            requested_in,
            ..
        } => {
            assert_eq!(denied_in.lock().unwrap().take(), Some(requested_in.line()));
            noted.lock().unwrap().push((*limit_index, *banned_for));
        }
        _ => {}
    };
    (bans, note)
}

/// A ban is reported as in a limiter of one process, and only in the process whose attempt started it.
#[tokio::test(start_paused = true)]
async fn a_ban_is_reported_once_where_it_begins() {
    let second = Duration::from_secs(1);
    for ban in [
        Penalty::new(3, Rate::per_second(1)).ban(7 * second),
        Penalty::new(3, Rate::per_second(1))
            .ban(7 * second)
            .escalate(20 * second)
            .forgive_after(40 * second),
        Penalty::new(3, Rate::per_second(1))
            .half_life(2 * second)
            .ban(3 * second)
            .forgive_after(Duration::ZERO),
    ] {
        let policy = "10/2s burst 4".parse::<Policy>().unwrap().and(ban);
        let store = MemoryStore::new();
        let [
            (bans, note),
            (bans_here, note_here),
            (bans_there, note_there),
        ] = [note_bans(), note_bans(), note_bans()];
        let alone = Limiter::builder(policy.clone())
            .on_event(note)
            .build()
            .unwrap();
        let build = || SharedLimiter::builder(store.clone(), "test", policy.clone());
        let here = build().on_event(note_here).build().unwrap();
        let there = build().on_event(note_there).build().unwrap();
        for nth in 0..2_000_u64 {
            let cost = 1 + nth % 3;
            let asked = if nth / 3 % 4 == 0 { &there } else { &here };
            let (granted, expected) = (
                asked.try_acquire_many(cost).await.is_ok(),
                alone.try_acquire_many(cost).is_ok(),
            );
            assert_eq!(granted, expected, "{nth}");
            sleep(ms(if nth % 3 == 0 { 0 } else { nth * 7_919 % 1_009 })).await;
        }
        let mut reported: Vec<_> = bans_here.lock().unwrap().clone();
        reported.extend(&*bans_there.lock().unwrap());
        let mut expected = bans.lock().unwrap().clone();
        assert!(
            expected.len() > 10 && !bans_there.lock().unwrap().is_empty(),
            "{expected:?}"
        );
        reported.sort();
        expected.sort();
        assert_eq!(reported, expected);
    }
}

/// One of the attempts that share a call begins the ban. A request that waits begins none.
#[tokio::test(start_paused = true)]
async fn attempts_that_share_a_call_begin_one_ban() {
    let (bans, note) = note_bans();
    let policy = Penalty::new(2, Rate::per_second(1)).ban(Duration::from_secs(60));
    let limiter = SharedLimiter::builder(MemoryStore::new(), "test", policy)
        .on_event(note)
        .build()
        .unwrap();
    limiter.acquire_many(2).await.unwrap().release();
    assert!(limiter.request().timeout(ms(10)).acquire().await.is_err());
    assert!(bans.lock().unwrap().is_empty());
    let denied = tokio::join!(
        limiter.try_acquire(),
        limiter.try_acquire(),
        limiter.try_acquire_many(2)
    );
    assert!(denied.0.is_err() && denied.1.is_err() && denied.2.is_err());
    assert_eq!(*bans.lock().unwrap(), [(0, Duration::from_secs(60))]);
}

/// Under `OnStoreDown::Local`, the ban is of the local fallback.
#[tokio::test(start_paused = true)]
async fn a_ban_by_this_process_alone_is_reported() {
    let (bans, note) = note_bans();
    let local = OnStoreDown::Local("100/s and penalty 1 falling 1/s ban 1m".parse().unwrap());
    let builder = Faulty::by(Way::Refuses)
        .builder("5/h")
        .on_store_down(local)
        .on_event(note);
    let limiter = builder.build().unwrap();
    assert!(limiter.try_acquire().await.is_ok());
    for _ in 0..3 {
        assert!(limiter.try_acquire().await.is_err());
    }
    assert_eq!(*bans.lock().unwrap(), [(1, Duration::from_secs(60))]);
}

/// Each process reports it for each key that it uses, when it follows.
#[tokio::test(start_paused = true)]
async fn each_process_reports_once_that_the_policy_is_another() {
    let faulty = Faulty::new();
    let reported = Arc::new(Mutex::new(Vec::new()));
    let build = |process: &'static str, policy: &str, revision| {
        let reported = Arc::clone(&reported);
        let builder = faulty
            .builder(policy)
            .revision(revision)
            .on_event(move |event| {
                if let EventKind::PolicyChanged { from, to, .. } = &event.kind {
                    let line = format!("{process}: from {from} to {to}");
                    reported.lock().unwrap().push(line);
                }
            });
        builder.build().unwrap()
    };
    let old = build("old", "1 concurrent ttl 1m", 0);
    let new = build("new", "2 concurrent ttl 1m", 1);
    let take = || std::mem::take(&mut *reported.lock().unwrap());
    let held = old.acquire().await.unwrap();
    let waiting = tokio::join!(new.try_acquire(), new.try_acquire());
    assert_eq!(
        (waiting.0.is_ok(), waiting.1.is_ok()),
        (true, false),
        "the place that is held counts"
    );
    drop(waiting);
    assert!(new.try_acquire().await.is_ok());
    assert!(take().is_empty());
    sleep(Duration::from_secs(90)).await; // it renews its lease, and so finds the later policy
    assert!(held.is_live());
    assert_eq!(
        take(),
        ["old: from 1 concurrent ttl 1m to 2 concurrent ttl 1m"]
    );
}

/// Threads outside every runtime wait for a place of another process, for a unit, and no longer than their timeouts.
#[test]
fn threads_wait_for_the_store() {
    let store = MemoryStore::new();
    let [one, other] = processes(&store, 2, "1 concurrent and 50/s burst 2")
        .try_into()
        .unwrap();
    let start = std::time::Instant::now();
    let held = one.blocking_acquire().unwrap();
    let waits = std::thread::spawn(move || drop(other.blocking_acquire().unwrap()));
    let late = one.request().timeout(ms(30)).blocking_acquire();
    assert!(
        matches!(late, Err(AcquireError::TimedOut { .. })),
        "{late:?}"
    );
    drop(held);
    waits.join().unwrap();
    for _ in 0..3 {
        drop(one.blocking_acquire().unwrap());
    }
    assert!(
        start.elapsed() >= ms(59),
        "five units of 50 a second, two of them at once: {:?}",
        start.elapsed()
    );
    one.close();
    assert!(matches!(one.blocking_acquire(), Err(AcquireError::Closed)));
}
