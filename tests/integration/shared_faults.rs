//! A store that does not answer, refuses calls, or answers late: no request hangs, no limit is exceeded, and no unit is lost.

mod bad_replies;

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::faulty::{Faulty, Way};
use crate::common::ms;
use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};
use tollgate::store::{MemoryStore, OnStoreDown, StoreError};
use tollgate::{
    AcquireError, ConfigError, EventKind, Overflow, Priority, RunError, SharedLimiter,
    SharedLimiterBuilder, TryAcquireError,
};

fn is_unanswered(error: &AcquireError) -> bool {
    matches!(error, AcquireError::Store(error) if matches!(**error, StoreError::Unanswered { .. }))
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_answer_is_an_error_at_the_deadline_and_then_at_once() {
    let faulty = Faulty::new();
    let limiter = faulty.builder("10/s").build().unwrap();
    faulty.set(Way::Cut);
    for expected in [ms(500), ms(500), ms(0), ms(0)] {
        let start = Instant::now();
        assert!(is_unanswered(&limiter.acquire().await.unwrap_err()));
        assert!(
            start.elapsed() <= expected + ms(60),
            "{:?}",
            start.elapsed()
        );
    }
    let error = limiter.try_acquire().await.unwrap_err();
    assert!(matches!(error, TryAcquireError::Store(_)), "{error:?}");
    assert!(limiter.check(1).await.is_err());
    assert_eq!(faulty.calls.load(Relaxed), 2);
    faulty.set(Way::Open);
    sleep(Duration::from_secs(6)).await;
    assert!(limiter.acquire().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn events_report_when_the_store_goes_down_and_comes_back() {
    let faulty = Faulty::new();
    let (events, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let limiter = faulty
        .builder("10/s")
        .on_event(move |event| {
            assert_eq!(event.name(), Some("test"));
            drop(events.send(event.kind.clone()));
        })
        .build()
        .unwrap();
    faulty.set(Way::Refuses);
    for _ in 0..3 {
        assert!(limiter.key("k").acquire().await.is_err());
    }
    let event = seen.recv().await.unwrap();
    assert!(
        matches!(
            event,
            EventKind::StoreDown {
                error: StoreError::Refused { .. },
                ..
            }
        ),
        "{event:?}"
    );
    faulty.set(Way::Open);
    sleep(Duration::from_secs(2)).await;
    assert!(limiter.acquire().await.is_ok());
    let event = seen.recv().await.unwrap();
    let EventKind::StoreUp { down_for, .. } = event else {
        panic!("{event:?}")
    };
    assert!(down_for >= Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn under_deny_requests_wait_until_the_store_answers() {
    let faulty = Faulty::new();
    let limiter = faulty
        .builder("10/s burst 1")
        .on_store_down(OnStoreDown::Deny)
        .build()
        .unwrap();
    faulty.set(Way::Cut);
    let waiting = tokio::spawn(limiter.acquire_owned());
    let denied = limiter.try_acquire().await;
    assert!(
        matches!(denied, Err(TryAcquireError::Denied(_))),
        "{denied:?}"
    );
    sleep(Duration::from_secs(60)).await;
    assert!(!waiting.is_finished());
    faulty.set(Way::Open);
    let _permit = timeout(Duration::from_secs(16), waiting)
        .await
        .expect("it asks again")
        .unwrap()
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn under_allow_all_requests_are_granted_with_fences_below_those_of_the_store() {
    let faulty = Faulty::new();
    let limiter = faulty
        .builder("1 concurrent")
        .on_store_down(OnStoreDown::Allow)
        .build()
        .unwrap();
    let fence = limiter.acquire().await.unwrap().fence();
    faulty.set(Way::Cut);
    let permits = [
        limiter.acquire().await.unwrap(),
        limiter.acquire().await.unwrap(),
        limiter.try_acquire().await.unwrap(),
    ];
    assert!(permits.iter().all(|permit| permit.fence() < fence));
    let ids: std::collections::BTreeSet<_> = permits.iter().map(tollgate::Permit::id).collect();
    assert_eq!(ids.len(), 3);
    assert!(
        permits.into_iter().all(|permit| !permit.settle(2)),
        "there is nothing to settle"
    );
}

#[tokio::test(start_paused = true)]
async fn places_of_a_lost_reply_come_back() {
    let faulty = Faulty::new();
    let limiter = faulty.builder("1 concurrent ttl 1h").build().unwrap();
    let other = faulty.elsewhere("1 concurrent ttl 1h");
    faulty.set(Way::LosesReplies);
    assert!(is_unanswered(&limiter.acquire().await.unwrap_err()));
    assert!(
        other.try_acquire().await.is_err(),
        "the store has granted it"
    );
    faulty.set(Way::Open);
    let _place = timeout(Duration::from_secs(5), other.acquire())
        .await
        .expect("it was given back")
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_release_is_sent_until_it_arrives() {
    let faulty = Faulty::new();
    let limiter = faulty.builder("1 concurrent ttl 1h").build().unwrap();
    let other = faulty.elsewhere("1 concurrent ttl 1h");
    let permit = limiter.acquire().await.unwrap();
    faulty.set(Way::Cut);
    drop(permit);
    drop(limiter);
    sleep(Duration::from_secs(60)).await;
    assert!(other.try_acquire().await.is_err());
    faulty.set(Way::Open);
    let _place = timeout(Duration::from_secs(20), other.acquire())
        .await
        .expect("it has arrived")
        .unwrap();
}

/// A fixed bug: settlements that came between the failure and the next call were lost with the last handle of the key.
#[tokio::test(start_paused = true)]
async fn unsent_settlements_of_a_failed_call_are_sent_when_the_store_answers() {
    for way in [Way::Refuses, Way::Cut, Way::LosesReplies] {
        let faulty = Faulty::new();
        let limiter = faulty
            .builder("1 concurrent ttl 1h and window 100/h from first grant")
            .build()
            .unwrap();
        let key = limiter.key("k");
        let permit = key.acquire().await.unwrap();
        faulty.set(way);
        assert!(key.try_acquire().await.is_err());
        key.penalize(9);
        drop((permit, key));
        sleep(Duration::from_secs(5)).await;
        faulty.set(Way::Open);
        sleep(Duration::from_secs(20)).await;
        let limits = faulty
            .elsewhere("1 concurrent ttl 1h and window 100/h from first grant")
            .key("k")
            .limits()
            .await
            .unwrap();
        assert_eq!(limits[0].remaining, 1, "{way:?}: the place was given back");
        // A charge that the store may have received is not sent again.
        assert!(
            way != Way::Refuses || limits[1].remaining == 90,
            "{limits:?}"
        );
    }
}

/// A fixed bug: leases had the same numbers whenever a key was used anew.
#[tokio::test(start_paused = true)]
async fn a_return_that_arrives_late_ends_no_later_lease() {
    let faulty = Faulty::new();
    let limiter = faulty.builder("1 concurrent ttl 1h").build().unwrap();
    let permit = limiter.key("k").acquire().await.unwrap();
    sleep(Duration::from_secs(11)).await; // the process no longer knows the clock of the store
    faulty.set(Way::Slow(Duration::from_secs(2)));
    drop(permit);
    sleep(ms(10)).await;
    faulty.set(Way::Open);
    sleep(ms(990)).await; // it is returned once more
    let _held = limiter.key("k").try_acquire().await.unwrap();
    sleep(Duration::from_secs(2)).await;
    assert!(
        faulty
            .elsewhere("1 concurrent ttl 1h")
            .key("k")
            .try_acquire()
            .await
            .is_err()
    );
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_cannot_be_renewed_ends_for_its_holder_before_it_ends_for_the_store() {
    let faulty = Faulty::new();
    let limiter = faulty.builder("1 concurrent ttl 3s").build().unwrap();
    let other = faulty.elsewhere("1 concurrent ttl 3s");
    let (permit, start) = (limiter.acquire().await.unwrap(), Instant::now());
    sleep(ms(1_500)).await; // renewed once
    faulty.set(Way::Cut);
    let run = tokio::spawn(async move {
        permit.reclaimed().await;
        Instant::now()
    });
    let elsewhere = tokio::spawn(async move {
        let permit = other.acquire().await.unwrap();
        (Instant::now(), permit.fence())
    });
    let ended = run.await.unwrap();
    let (begun, _) = elsewhere.await.unwrap();
    assert!(ended <= begun, "{:?} {:?}", ended - start, begun - start);
    assert!(
        begun - start <= ms(1_500 + 3_000 + 200),
        "{:?}",
        begun - start
    );
}

/// The store serves other calls between them.
#[tokio::test(start_paused = true)]
async fn the_renewals_of_many_leases_are_spread_over_a_sixth_of_the_ttl() {
    let faulty = Faulty::new();
    let limiter = faulty.builder("3000 concurrent ttl 12s").build().unwrap();
    let _permits = join_all((0..2_500).map(|_| limiter.acquire())).await;
    let (start, mut renewals) = (Instant::now(), Vec::new());
    let mut calls = faulty.calls.load(Relaxed);
    sleep(ms(50)).await;
    while start.elapsed() < ms(9_500) {
        sleep(ms(100)).await;
        let before = std::mem::replace(&mut calls, faulty.calls.load(Relaxed));
        if calls > before {
            renewals.push((start.elapsed().as_millis() / 100, calls - before));
        }
    }
    let tenths = [40, 47, 53, 80, 87, 93].map(|at| (at, 1));
    assert_eq!(renewals, tenths);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_failed_is_tried_again_after_a_twelfth_of_the_ttl() {
    let faulty = Faulty::new();
    let limiter = faulty.builder("1 concurrent ttl 12s").build().unwrap();
    let _permit = limiter.acquire().await.unwrap();
    let calls = faulty.calls.load(Relaxed);
    sleep(ms(3_900)).await;
    faulty.set(Way::Refuses);
    sleep(ms(200)).await;
    faulty.set(Way::Open);
    assert_eq!(faulty.calls.load(Relaxed), calls + 1);
    sleep(ms(1_000)).await;
    assert_eq!(faulty.calls.load(Relaxed), calls + 2);
}

#[tokio::test(start_paused = true)]
async fn work_whose_lease_was_lost_is_dropped() {
    let faulty = Faulty::new();
    let limiter = faulty.builder("1 concurrent ttl 3s").build().unwrap();
    let work = tokio::spawn(limiter.run(sleep(Duration::from_secs(3_600))));
    sleep(ms(100)).await;
    limiter.reset().await.unwrap(); // an operator reclaims all leases
    let ended = timeout(Duration::from_secs(2), work)
        .await
        .expect("the next renewal notifies the holder")
        .unwrap();
    assert!(
        matches!(ended, Err(RunError::Reclaimed { .. })),
        "{ended:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_slow_store_carries_out_no_call_after_its_deadline() {
    let faulty = Faulty::new();
    let limiter = faulty.builder("3/h burst 3").build().unwrap();
    drop(limiter.acquire().await.unwrap()); // the process knows the clock of the store now
    faulty.set(Way::Slow(ms(490)));
    assert!(limiter.acquire().await.is_ok(), "in time");
    faulty.set(Way::Slow(ms(800)));
    assert!(is_unanswered(&limiter.acquire().await.unwrap_err()));
    sleep(Duration::from_secs(2)).await;
    assert_eq!(
        faulty.elsewhere("3/h burst 3").limits().await.unwrap()[0].remaining,
        1
    );
}

/// A fixed bug: the process forgot the clock of the store at the first failure, so the next call arrived late and was carried out.
#[tokio::test(start_paused = true)]
async fn no_call_is_carried_out_late_after_a_failure() {
    let faulty = Faulty::new();
    let limiter = faulty.builder("3/h burst 3").build().unwrap();
    drop(limiter.acquire().await.unwrap());
    faulty.set(Way::Cut);
    assert!(is_unanswered(&limiter.acquire().await.unwrap_err()));
    faulty.set(Way::Slow(ms(800)));
    assert!(is_unanswered(&limiter.acquire().await.unwrap_err()));
    sleep(Duration::from_secs(2)).await;
    assert_eq!(
        faulty.elsewhere("3/h burst 3").limits().await.unwrap()[0].remaining,
        2
    );
}

/// A fixed bug: a request that does not wait came during a call, and waited with the requests that the call denied.
#[tokio::test(start_paused = true)]
async fn a_request_that_does_not_wait_is_denied_with_those_that_do() {
    let faulty = Faulty::new();
    let limiter = faulty.builder("1/h burst 1").build().unwrap();
    drop(limiter.acquire().await.unwrap());
    faulty.set(Way::Slow(ms(100)));
    let waiting = tokio::spawn(limiter.acquire_owned());
    sleep(ms(50)).await;
    let start = Instant::now();
    assert!(matches!(
        limiter.try_acquire().await,
        Err(TryAcquireError::Denied(_))
    ));
    assert!(start.elapsed() <= ms(51), "{:?}", start.elapsed());
    assert!(!waiting.is_finished());
}

#[tokio::test(start_paused = true)]
async fn waiters_keep_their_order_over_failures() {
    let faulty = Faulty::new();
    let limiter = faulty
        .builder("1 concurrent")
        .on_store_down(OnStoreDown::Deny)
        .build()
        .unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let first = limiter.acquire().await.unwrap();
    for nth in 0..5 {
        let (limiter, order) = (limiter.clone(), Arc::clone(&order));
        tokio::spawn(async move {
            let _permit = limiter.acquire().await.unwrap();
            order.lock().unwrap().push(nth);
            sleep(ms(100)).await;
        });
        tokio::task::yield_now().await;
    }
    faulty.set(Way::Cut);
    drop(first);
    sleep(Duration::from_secs(10)).await;
    faulty.set(Way::Open);
    sleep(Duration::from_secs(30)).await;
    assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3, 4]);
    assert!(faulty.store.is_empty());
}

/// The runtime that carries a call is shut down. Requests that wait in other runtimes are served.
#[test]
fn a_waiter_does_not_depend_on_another_runtime() {
    let faulty = Faulty::new();
    let limiter = faulty.builder("1 concurrent").build().unwrap();
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let (stalled, serving) = (runtime(), runtime());
    faulty.set(Way::Slow(ms(100)));
    let mut first = Box::pin(limiter.acquire_owned());
    stalled.block_on(async {
        assert!(
            timeout(ms(1), &mut first).await.is_err(),
            "its call is under way"
        );
    });
    // Nothing polls the first runtime now.
    faulty.set(Way::Open);
    let start = std::time::Instant::now();
    let other = limiter.clone();
    let answer = serving.block_on(async { timeout(Duration::from_secs(5), other.acquire()).await });
    assert!(answer.is_ok(), "it hangs");
    assert!(
        start.elapsed() < Duration::from_secs(3),
        "{:?}",
        start.elapsed()
    );
    drop(stalled);
}

/// A process dies: its places come back within a TTL.
#[test]
fn a_dead_process_gives_its_places_back_within_a_ttl() {
    let faulty = Faulty::new();
    let policy = "2 concurrent ttl 300ms";
    let dying = faulty.builder(policy).build().unwrap();
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let other = faulty.elsewhere(policy);
    let held = runtime();
    let permits = held.block_on(async {
        [
            dying.acquire().await.unwrap(),
            dying.acquire().await.unwrap(),
        ]
    });
    faulty.set(Way::Cut); // no message of the process arrives any more: neither renewals nor releases
    let start = std::time::Instant::now();
    runtime().block_on(async {
        assert!(other.try_acquire().await.is_err());
        let _place = other.acquire().await.unwrap();
    });
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "{:?}",
        start.elapsed()
    );
    drop(permits);
}

/// A fixed bug: the holder took the lease for renewed, although the store granted the place to another request.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_the_store_does_not_know_of_prolongs_nothing() {
    let faulty = Faulty::new();
    let limiter = faulty.builder("1 concurrent ttl 3s").build().unwrap();
    let other = faulty.elsewhere("1 concurrent ttl 3s");
    let permit = limiter.acquire().await.unwrap();
    faulty.set(Way::Cut);
    for _ in 0..10 {
        _ = permit.renew();
        _ = permit.renew_for(Duration::from_secs(3));
        sleep(ms(500)).await;
        let elsewhere = other.try_acquire().await;
        assert!(
            !(permit.is_live() && elsewhere.is_ok()),
            "two hold one place"
        );
    }
}

/// A fixed bug: the lease of a forgotten permit was renewed for ever.
#[tokio::test(start_paused = true)]
async fn a_forgotten_permit_is_not_renewed() {
    let faulty = Faulty::new();
    let limiter = faulty.builder("1 concurrent ttl 3s").build().unwrap();
    limiter.acquire().await.unwrap().forget();
    let next = timeout(Duration::from_secs(4), limiter.acquire()).await;
    assert!(next.is_ok(), "its TTL has passed");
}

/// A fixed bug: a denial was still remembered after this process had released the place.
#[tokio::test(start_paused = true)]
async fn a_release_in_this_process_ends_a_remembered_denial() {
    let faulty = Faulty::new();
    let limiter = faulty.builder("1 concurrent").build().unwrap();
    let permit = limiter.acquire().await.unwrap();
    assert!(limiter.try_acquire().await.is_err());
    drop(permit);
    assert!(limiter.try_acquire().await.is_ok());
}

/// The same bug, while the call with the release was in flight.
#[tokio::test(start_paused = true)]
async fn a_release_in_flight_ends_a_remembered_denial() {
    let faulty = Faulty::new();
    let limiter = faulty.builder("1 concurrent").build().unwrap();
    let permit = limiter.acquire().await.unwrap();
    assert!(limiter.try_acquire().await.is_err());
    faulty.set(Way::Slow(ms(50)));
    drop(permit);
    sleep(ms(10)).await;
    assert!(limiter.try_acquire().await.is_ok());
}

/// A fixed bug: a request with a timeout was refused at once, because a larger one had been denied for longer.
#[tokio::test(start_paused = true)]
async fn a_denial_of_a_large_cost_does_not_refuse_a_small_one() {
    let limiter = SharedLimiter::new(MemoryStore::new(), "test", "10/h burst 10").unwrap();
    drop(limiter.request().cost(9).acquire().await.unwrap());
    assert!(limiter.try_acquire_many(5).await.is_err());
    let timed = limiter
        .request()
        .timeout(Duration::from_secs(1))
        .acquire()
        .await;
    assert!(timed.is_ok(), "{timed:?}");
}

/// A fixed bug: the store was called without a pause for the request that still waited.
#[tokio::test(start_paused = true)]
async fn a_request_that_was_dropped_from_the_queue_causes_no_further_calls() {
    let faulty = Faulty::new();
    let builder = faulty
        .builder("penalty 5 falling 1/h and 1 concurrent")
        .max_queue(2);
    let builder = builder.poll_every(Duration::from_secs(3_600)); // a shorter interval would cause one more call
    let limiter = builder
        .overflow(Overflow::DropLowestPriority)
        .build()
        .unwrap();
    let _held = limiter.acquire().await.unwrap();
    faulty.set(Way::Slow(ms(100)));
    let _waiting = tokio::spawn(limiter.acquire_owned());
    sleep(ms(10)).await; // its call is under way
    let mut dropped =
        tokio_test::task::spawn(limiter.request().priority(Priority::LOW).try_acquire());
    assert!(dropped.poll().is_pending());
    let _next = tokio::spawn(limiter.acquire_owned());
    sleep(ms(200)).await;
    faulty.set(Way::Open);
    let before = faulty.calls.load(Relaxed);
    sleep(ms(500)).await;
    assert_eq!(faulty.calls.load(Relaxed) - before, 0);
    assert!(matches!(dropped.await, Err(TryAcquireError::NotAsked(_))));
}

/// A fixed bug: a request that came during that call waited for the next one.
#[tokio::test(start_paused = true)]
async fn try_acquire_is_denied_when_the_call_in_flight_fails() {
    let faulty = Faulty::new();
    let limiter = faulty
        .builder("10/s")
        .on_store_down(OnStoreDown::Deny)
        .build()
        .unwrap();
    faulty.set(Way::Cut);
    for _ in 0..4 {
        let waiting = tokio::spawn(limiter.acquire_owned());
        sleep(ms(100)).await;
        let start = Instant::now();
        let denied = limiter.try_acquire().await;
        assert!(
            matches!(denied, Err(TryAcquireError::Denied(_))),
            "{denied:?}"
        );
        assert!(start.elapsed() <= ms(500), "{:?}", start.elapsed());
        drop(waiting);
        sleep(ms(1000)).await;
    }
}

/// A fixed bug: a closed limiter returned the last denial instead.
#[tokio::test(start_paused = true)]
async fn a_closed_limiter_says_so() {
    let limiter = SharedLimiter::new(MemoryStore::new(), "test", "1/h burst 1").unwrap();
    drop(limiter.acquire().await.unwrap());
    assert!(limiter.try_acquire().await.is_err());
    limiter.close();
    let closed = limiter.try_acquire().await;
    assert!(matches!(closed, Err(TryAcquireError::Closed)), "{closed:?}");
}

/// A fixed bug: the prefetched units were lost with the last handle of the key.
#[tokio::test(start_paused = true)]
async fn prefetched_units_outlive_the_handle_of_their_key() {
    let store = MemoryStore::new();
    let limiter = SharedLimiter::builder(store.clone(), "test", "window 1000/h from first grant")
        .prefetch(100, ms(50))
        .build()
        .unwrap();
    for _ in 0..100 {
        drop(limiter.key("a").try_acquire().await.unwrap());
        sleep(ms(10)).await;
    }
    sleep(ms(100)).await;
    assert_eq!(limiter.key("a").limits().await.unwrap()[0].remaining, 900);
}

/// A fixed bug: a settlement was lost with a call that had certainly not been carried out.
#[tokio::test(start_paused = true)]
async fn settlements_that_the_store_refused_are_sent_later() {
    let faulty = Faulty::new();
    let limiter = faulty.builder("10/h burst 10").build().unwrap();
    let permit = limiter.request().cost(5).acquire().await.unwrap();
    faulty.set(Way::Refuses);
    assert!(permit.settle(10));
    sleep(ms(20)).await;
    faulty.set(Way::Open);
    sleep(Duration::from_secs(30)).await;
    assert_eq!(limiter.limits().await.unwrap()[0].remaining, 0);
}

/// A fixed bug: a request that failed at once counted as an attempt to send the settlements, which were dropped after 16 attempts.
#[tokio::test(start_paused = true)]
async fn requests_that_fail_at_once_drop_no_unsent_settlement() {
    for rule in [OnStoreDown::Error, OnStoreDown::Allow] {
        let faulty = Faulty::new();
        let limiter = faulty
            .builder("window 100/h from first grant")
            .on_store_down(rule.clone())
            .build()
            .unwrap();
        let permit = limiter.acquire_many(5).await.unwrap();
        faulty.set(Way::Refuses);
        limiter.penalize(9);
        assert!(permit.settle(7));
        for _ in 0..100 {
            drop(limiter.acquire().await);
        }
        faulty.set(Way::Open);
        sleep(Duration::from_secs(20)).await;
        assert_eq!(
            limiter.limits().await.unwrap()[0].remaining,
            100 - 7 - 9,
            "{rule:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn unsent_settlements_are_retried_for_two_minutes() {
    let faulty = Faulty::new();
    let limiter = faulty
        .builder("window 100/h from first grant")
        .build()
        .unwrap();
    drop(limiter.acquire().await.unwrap());
    faulty.set(Way::Refuses);
    limiter.penalize(30);
    sleep(Duration::from_secs(200)).await;
    limiter.penalize(4);
    sleep(Duration::from_secs(60)).await;
    faulty.set(Way::Open);
    sleep(Duration::from_secs(30)).await;
    assert_eq!(limiter.limits().await.unwrap()[0].remaining, 100 - 1 - 4);
}

/// A fixed bug: each charge during a failed call became a settlement of its own.
#[tokio::test(start_paused = true)]
async fn charges_are_combined_also_while_a_call_fails() {
    let faulty = Faulty::by(Way::RefusesLate(ms(100)));
    let limiter = faulty
        .builder("window 1000/h from first grant")
        .build()
        .unwrap();
    for _ in 0..600 {
        limiter.penalize(1);
        sleep(ms(100)).await;
    }
    faulty.set(Way::Open);
    sleep(Duration::from_secs(30)).await;
    assert_eq!(limiter.limits().await.unwrap()[0].remaining, 400);
    assert_eq!(*faulty.most_settlements.lock().unwrap(), 1);
}

/// The reset and the charges come from the same process. Another process may still send a charge from before the reset after it.
#[tokio::test(start_paused = true)]
async fn unsent_charges_are_not_applied_after_a_reset() {
    let faulty = Faulty::new();
    let limiter = faulty
        .builder("window 10/h from first grant")
        .build()
        .unwrap();
    let permit = limiter.acquire().await.unwrap();
    faulty.set(Way::Refuses);
    limiter.penalize(9);
    assert!(permit.settle(5));
    sleep(Duration::from_secs(60)).await;
    faulty.set(Way::Open);
    while limiter.reset().await.is_err() {
        sleep(ms(100)).await; // the breaker is open
    }
    sleep(Duration::from_secs(60)).await;
    assert_eq!(limiter.limits().await.unwrap()[0].remaining, 10);
}

#[tokio::test(start_paused = true)]
async fn a_reset_that_fails_or_is_dropped_loses_no_charge() {
    let faulty = Faulty::by(Way::Refuses);
    let limiter = faulty
        .builder("window 20/h from first grant")
        .build()
        .unwrap();
    for _ in 0..2 {
        assert!(limiter.try_acquire().await.is_err());
    }
    limiter.penalize(3);
    assert!(limiter.reset().await.is_err(), "the breaker is open");
    faulty.set(Way::Slow(ms(100)));
    sleep(Duration::from_secs(30)).await;
    assert_eq!(limiter.limits().await.unwrap()[0].remaining, 17);
    limiter.penalize(4);
    sleep(ms(10)).await;
    limiter.penalize(5);
    assert!(
        timeout(ms(10), limiter.reset()).await.is_err(),
        "it waits for the first charge to arrive"
    );
    sleep(Duration::from_secs(1)).await;
    assert_eq!(limiter.limits().await.unwrap()[0].remaining, 8);
}

#[tokio::test(start_paused = true)]
async fn charges_are_combined_until_the_store_answers() {
    for way in [Way::Refuses, Way::Cut] {
        let faulty = Faulty::new();
        let limiter = faulty
            .builder("window 1000/h from first grant")
            .build()
            .unwrap();
        drop(limiter.acquire().await.unwrap());
        faulty.set(way);
        for _ in 0..600 {
            limiter.penalize(1);
            sleep(ms(10)).await;
        }
        faulty.set(Way::Open);
        sleep(Duration::from_secs(30)).await;
        let charged = 999 - limiter.limits().await.unwrap()[0].remaining;
        // A call without an answer is not repeated, because it may have been carried out.
        assert!(
            charged == 600 || matches!(way, Way::Cut) && (1..600).contains(&charged),
            "{charged} {way:?}"
        );
        assert_eq!(*faulty.most_settlements.lock().unwrap(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_future_loses_nothing() {
    const POLICY: &str = "1 concurrent and 10/s burst 10";
    let faulty = Faulty::new();
    let (one, other) = (
        faulty.builder(POLICY).build().unwrap(),
        faulty.elsewhere(POLICY),
    );
    for _ in 0..3 {
        let mut acquire = tokio_test::task::spawn(one.acquire());
        assert!(acquire.poll().is_pending());
        drop(acquire); // its call is under way
        sleep(ms(5)).await;
    }
    assert!(other.try_acquire().await.is_ok());
    sleep(ms(1)).await; // its release is on its way
    let limits = one.limits().await.unwrap();
    assert_eq!((limits[0].remaining, limits[1].remaining), (1, 9));
}

/// A fixed bug: an overflow with the longest interval of polls.
#[tokio::test(start_paused = true)]
async fn the_largest_options_cause_no_overflow() {
    let faulty = Faulty {
        notifies: false,
        ..Faulty::new()
    };
    for extreme in [Duration::from_nanos(1), Duration::MAX] {
        let builder = faulty
            .builder("1 concurrent and 18446744073709551615/s")
            .poll_every(extreme)
            .probe_every(extreme)
            .lease(Duration::MAX);
        let limiter = builder
            .deadline(Duration::MAX)
            .max_hold(Duration::MAX)
            .build()
            .unwrap();
        for _ in 0..16 {
            let held = timeout(Duration::from_secs(1), limiter.acquire())
                .await
                .unwrap()
                .unwrap();
            assert!(matches!(
                limiter.try_acquire().await,
                Err(TryAcquireError::Denied(_))
            ));
            drop(held);
        }
        sleep(ms(5)).await; // the last place is on its way back
    }
}

/// A fixed bug: with a deadline of zero every call failed, and with an interval of zero the store was called in a loop.
#[test]
fn a_zero_duration_in_an_option_is_an_error() {
    type Set = fn(SharedLimiterBuilder) -> SharedLimiterBuilder;
    let options: [(&str, Set); 6] = [
        ("deadline", |builder| builder.deadline(Duration::ZERO)),
        ("lease", |builder| builder.lease(Duration::ZERO)),
        ("max_hold", |builder| builder.max_hold(Duration::ZERO)),
        ("poll_every", |builder| builder.poll_every(Duration::ZERO)),
        ("probe_every", |builder| builder.probe_every(Duration::ZERO)),
        ("prefetch", |builder| builder.prefetch(10, Duration::ZERO)),
    ];
    for (name, set) in options {
        let error = set(SharedLimiter::builder(MemoryStore::new(), "test", "10/s"))
            .build()
            .unwrap_err();
        assert_eq!(error, ConfigError::ZeroOption { option: name });
        assert_eq!(
            error.to_string(),
            format!("the {name} of a shared limiter is zero; set at least 1 ns")
        );
    }
}

/// A fixed bug: fences overflowed if quintillions of units were prefetched.
#[tokio::test(start_paused = true)]
async fn no_number_of_prefetched_units_exhausts_the_fences() {
    let store = MemoryStore::new();
    let builder = SharedLimiter::builder(store, "test", "18446744073709551615/s")
        .prefetch(u64::MAX, Duration::MAX);
    let limiter = builder.build().unwrap();
    let mut before = 0;
    for _ in 0..8 {
        let fence = limiter.acquire_many(u64::MAX / 4).await.unwrap().fence();
        assert!(fence > before, "{fence} after {before}");
        before = fence;
        sleep(ms(300)).await;
    }
}

/// A fixed bug: one call carried all settlements, however many there were.
#[tokio::test(start_paused = true)]
async fn many_settlements_go_in_calls_of_a_bounded_size() {
    let faulty = Faulty::new();
    let limiter = faulty
        .builder("window 1000000/h from first grant")
        .build()
        .unwrap();
    let mut permits = Vec::new();
    for _ in 0..2_500 {
        permits.push(limiter.request().cost(3).acquire_owned());
    }
    let permits = futures_util::future::try_join_all(permits).await.unwrap();
    assert!(permits.into_iter().all(|permit| permit.settle(2)));
    sleep(ms(100)).await;
    assert_eq!(
        limiter.limits().await.unwrap()[0].remaining,
        1_000_000 - 5_000
    );
    assert_eq!(*faulty.most_settlements.lock().unwrap(), 1_000);
}

/// A fixed bug: a request whose timeout passed within the random delay after a denial was refused, and one that does not wait was denied,
/// although the store would have granted them.
#[tokio::test(start_paused = true)]
async fn a_request_that_cannot_wait_longer_asks_at_the_instant_that_the_store_named() {
    for _ in 0..10 {
        for waits in [true, false] {
            let faulty = Faulty::new();
            let (limiter, other) = (
                faulty.builder("1/s burst 1").build().unwrap(),
                faulty.elsewhere("1/s burst 1"),
            );
            // After repeated denials, the limiter adds a random delay before it asks.
            for _ in 0..5 {
                drop(other.acquire().await.unwrap());
                assert!(limiter.try_acquire().await.is_err());
                sleep(ms(1_200)).await;
            }
            drop(other.try_acquire().await.unwrap());
            let start = Instant::now();
            let denied = limiter.try_acquire().await.unwrap_err();
            assert!(
                denied.retry_after().is_some_and(|after| after <= ms(1_000)),
                "{denied:?}"
            );
            if waits {
                let timeout = ms(1_005) - start.elapsed();
                drop(limiter.request().timeout(timeout).acquire().await.unwrap());
            } else {
                sleep(ms(1_000) - start.elapsed()).await;
                drop(limiter.try_acquire().await.unwrap());
            }
            assert!(start.elapsed() <= ms(1_005), "{:?}", start.elapsed());
        }
    }
}

/// A fixed bug: a check replaced the policy in the store, and so dropped all usage.
#[tokio::test(start_paused = true)]
async fn a_check_drops_no_usage() {
    let store = MemoryStore::new();
    let former = SharedLimiter::new(store.clone(), "test", "5/h burst 5").unwrap();
    drop(former.acquire().await.unwrap());
    let latter = SharedLimiter::builder(store, "test", "9/h burst 9")
        .revision(1)
        .build()
        .unwrap();
    assert_eq!(latter.check(1).await.unwrap().remaining(), 8);
    assert_eq!(latter.limits().await.unwrap()[0].remaining, 8);
    assert_eq!(former.check(1).await.unwrap().remaining(), 8);
    assert_eq!(former.policy().to_string(), "9/h");
}
