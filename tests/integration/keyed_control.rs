//! Closing, pausing and changing the policy of all keys at once has the same effect as the same call on a limiter for each key.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::thread;
use std::time::Duration;

use crate::common::{self, CountPolls, exceeded, limiter, ms, queued};
use proptest::prelude::*;
use tokio::time::{Instant, advance, sleep, timeout};
use tokio_test::{assert_pending, assert_ready, task};
use tollgate::{
    AcquireError, Align, ConfigError, EventKind, FixedWindow, KeyedLimiter, Limiter,
    MaxConcurrency, Penalty, Permit, Policy, Rate, SlidingWindow, Throttle, TokenBucket,
    TryAcquireError, UsageCarryOver, WhenFull,
};

fn keyed(policy: impl Into<Policy>) -> KeyedLimiter<u64> {
    KeyedLimiter::new(policy).unwrap()
}

fn bucket(burst: u64) -> TokenBucket {
    TokenBucket::new(Rate::per_second(1), burst)
}

const PER_REQUEST: &str = "2 concurrent per request and 7/300ms";

fn policies() -> Vec<Policy> {
    vec![
        Throttle::every(ms(40)).burst(3).into(),
        TokenBucket::new(Rate::new(7, ms(300)), 3).into(),
        FixedWindow::new(3, ms(100)).into(),
        FixedWindow::new(5, ms(70)).align(Align::FirstGrant).into(),
        SlidingWindow::counter(3, ms(100)).into(),
        SlidingWindow::log(4, ms(100)).into(),
        Penalty::new(3, Rate::new(1, ms(40))).into(),
        MaxConcurrency::new(2).into(),
        MaxConcurrency::new(3).ttl(ms(70)).into(),
        Policy::from(Throttle::every(ms(20)).burst(3)).and(FixedWindow::new(4, ms(100))),
        Policy::from(MaxConcurrency::new(2)).and(Throttle::every(ms(20)).burst(3)),
        PER_REQUEST.parse().unwrap(),
        "3/100ms per request and 5 tokens/s".parse().unwrap(),
    ]
}

#[derive(Debug, Clone)]
enum Step {
    TryAcquire {
        key: u64,
        cost: u64,
    },
    Check {
        key: u64,
        cost: u64,
    },
    Release(prop::sample::Index),
    Activate {
        key: u64,
    },
    Pass {
        micros: u64,
    },
    PauseFor {
        micros: u64,
    },
    Resume,
    PauseKey {
        key: u64,
        micros: u64,
    },
    SetPolicy {
        policy: prop::sample::Index,
        in_proportion: bool,
    },
    Close {
        to_new: bool,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0_u64..3;
    let step = prop_oneof![
        16 => (key.clone(), 1_u64..4).prop_map(|(key, cost)| Step::TryAcquire { key, cost }),
        6 => (key.clone(), 0_u64..5).prop_map(|(key, cost)| Step::Check { key, cost }),
        6 => any::<prop::sample::Index>().prop_map(Step::Release),
        2 => key.clone().prop_map(|key| Step::Activate { key }),
        8 => prop_oneof![0_u64..50_000, 0_u64..400_000].prop_map(|micros| Step::Pass { micros }),
        3 => (0_u64..100_000).prop_map(|micros| Step::PauseFor { micros }),
        2 => Just(Step::Resume),
        1 => (key, 0_u64..100_000).prop_map(|(key, micros)| Step::PauseKey { key, micros }),
        4 => (any::<prop::sample::Index>(), any::<bool>())
            .prop_map(|(policy, in_proportion)| Step::SetPolicy { policy, in_proportion }),
        1 => any::<bool>().prop_map(|to_new| Step::Close { to_new }),
    ];
    prop::collection::vec(step, 1..80)
}

proptest! {
    #![proptest_config(common::replay::cases(500))]

    /// The reference is one [`Limiter`] for each key, to which the same change is made.
    #[test]
    fn a_change_of_all_keys_is_that_change_of_the_limiter_of_each(
        policy in prop::sample::select(policies()),
        steps in steps(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let keyed = keyed(policy.clone());
            let alone: Vec<Limiter> = (0..3).map(|_| limiter(policy.clone())).collect();
            let of = |key: u64| &alone[key as usize];
            let mut held = Vec::<(Permit, Permit)>::new();
            // A plain limiter has one pause: the later of the pause of all keys and that of the key.
            let (mut all_until, mut key_until) = (Instant::now(), [Instant::now(); 3]);
            let mut present = policy.clone();
            for step in steps {
                match step {
                    Step::TryAcquire { key, cost } => match (keyed.try_acquire_many(&key, cost), of(key).try_acquire_many(cost)) {
                        (Ok(permit), Ok(expected)) => held.push((permit, expected)),
                        (permit, expected) => prop_assert_eq!(permit.err(), expected.err()),
                    },
                    Step::Check { key, cost } => prop_assert_eq!(keyed.check(&key, cost), of(key).check(cost)),
                    Step::Release(index) => {
                        if !held.is_empty() {
                            drop(held.swap_remove(index.index(held.len())));
                        }
                    }
                    Step::Activate { key } => drop(keyed.limiter(&key).unwrap()),
                    Step::Pass { micros } => advance(Duration::from_micros(micros)).await,
                    Step::PauseFor { micros } => {
                        let pause = Duration::from_micros(micros);
                        keyed.pause_for(pause);
                        alone.iter().for_each(|limiter| limiter.pause_for(pause));
                        all_until = all_until.max(Instant::now() + pause);
                    }
                    Step::Resume => {
                        keyed.resume();
                        all_until = Instant::now();
                        for (limiter, until) in alone.iter().zip(key_until) {
                            limiter.resume();
                            limiter.pause_until(until);
                        }
                    }
                    Step::PauseKey { key, micros } => {
                        let pause = Duration::from_micros(micros);
                        let own = keyed.limiter(&key).unwrap();
                        own.resume();
                        own.pause_for(pause);
                        of(key).resume();
                        of(key).pause_until(all_until.max(Instant::now() + pause));
                        key_until[key as usize] = Instant::now() + pause;
                    }
                    Step::SetPolicy { policy, in_proportion } => {
                        // A limiter keeps what its former policies counted; a key that was forgotten in between does not.
                        if present == PER_REQUEST.parse().unwrap() && held.iter().any(|(permit, _)| permit.cost() > 1) {
                            continue;
                        }
                        let policy = policy.get(&policies()).clone();
                        present = policy.clone();
                        let carry = if in_proportion { UsageCarryOver::InProportion } else { UsageCarryOver::AsIs };
                        keyed.set_policy_with(policy.clone(), carry).unwrap();
                        alone.iter().for_each(|limiter| limiter.set_policy_with(policy.clone(), carry).unwrap());
                    }
                    Step::Close { to_new: true } => {
                        keyed.close_to_new();
                        alone.iter().for_each(Limiter::close_to_new);
                    }
                    Step::Close { to_new: false } => {
                        keyed.close();
                        alone.iter().for_each(Limiter::close);
                    }
                }
            }
            let in_flight = keyed.snapshots().map(|(_, key)| key.in_flight).sum::<u64>();
            let (totals, each) = (keyed.totals(), || alone.iter().map(Limiter::snapshot));
            prop_assert_eq!(totals.granted, each().map(|one| one.granted).sum::<u64>());
            prop_assert_eq!(totals.denied, each().map(|one| one.denied).sum::<u64>());
            prop_assert_eq!(totals.in_flight, in_flight);
            Ok(())
        })?;
    }
}

/// The keys are idle, in use, with a waiter, and unknown.
#[tokio::test(start_paused = true)]
async fn closing_refuses_waiting_and_later_requests_of_all_keys() {
    for policy in [Policy::from(bucket(1)), MaxConcurrency::new(1).into()] {
        let keyed = KeyedLimiter::builder(policy).max_keys(3).build().unwrap();
        let _idle = keyed.acquire(&0).await.unwrap();
        let own = keyed.limiter(&1).unwrap();
        let held = keyed.acquire(&2).await.unwrap();
        let mut waiting = queued(keyed.acquire(&2));
        let unpolled = keyed.acquire_owned(&3);
        assert!(!keyed.is_closed());
        keyed.clone().close();
        keyed.close();
        assert!(keyed.is_closed() && own.is_closed() && held.is_live());
        assert!(waiting.is_woken());
        assert_eq!(
            assert_ready!(waiting.poll()).unwrap_err(),
            AcquireError::Closed
        );
        assert_eq!(unpolled.await.unwrap_err(), AcquireError::Closed);
        for key in 0..6 {
            assert_eq!(keyed.acquire(&key).await.unwrap_err(), AcquireError::Closed);
            assert_eq!(
                keyed.try_acquire(&key).unwrap_err(),
                TryAcquireError::Closed,
                "a full table, too"
            );
            let decision = keyed.check(&key, 1);
            assert_eq!(
                (decision.is_allowed(), decision.retry_after()),
                (false, None)
            );
        }
        let blocked = thread::spawn({
            let keyed = keyed.clone();
            move || keyed.blocking_acquire(&9).map(drop)
        });
        assert_eq!(blocked.join().unwrap(), Err(AcquireError::Closed));
        assert_eq!(own.acquire().await.unwrap_err(), AcquireError::Closed);
        assert!(keyed.run(&4, async {}).await.is_err());
        assert!(
            keyed.len() <= 3 && keyed.snapshot(&9).is_none(),
            "a refused key stays unknown"
        );
    }
}

#[tokio::test]
async fn closing_all_keys_to_new_requests_serves_those_that_wait_and_then_drains() {
    for policy in [
        "1 concurrent",
        "1 concurrent ttl 60s",
        "1 concurrent and 1000/s",
    ] {
        let keyed = KeyedLimiter::<u32>::new(policy).unwrap();
        let [first, second] = [7, 8].map(|key| keyed.try_acquire(&key).unwrap());
        let mut waiting = [7, 7, 8].map(|key| queued(keyed.acquire_owned(&key)));
        keyed.close_to_new();
        keyed.close_to_new();
        assert!(
            keyed.is_closed()
                && keyed.limiter(&7).unwrap().is_closed()
                && keyed.limiter(&9).unwrap().is_closed()
        );
        for key in [7, 8, 9] {
            assert_eq!(
                keyed.acquire(&key).await.unwrap_err(),
                AcquireError::Closed,
                "{policy}: {key}"
            );
            assert_eq!(
                keyed.try_acquire(&key).unwrap_err(),
                TryAcquireError::Closed,
                "{policy}: {key}"
            );
        }
        assert!(
            waiting.iter().all(|waiting| !waiting.is_woken()),
            "{policy}"
        );
        let mut drained = queued(keyed.drained());
        drop((first, second));
        assert_pending!(drained.poll());
        for waiting in &mut waiting {
            assert_pending!(drained.poll());
            drop(assert_ready!(waiting.poll()).unwrap());
        }
        assert_ready!(drained.poll());

        let keyed = KeyedLimiter::<u32>::new(policy).unwrap();
        let _out = keyed.try_acquire(&7).unwrap();
        let mut waiting = queued(keyed.acquire(&7));
        keyed.close_to_new();
        keyed.close();
        assert_eq!(
            assert_ready!(waiting.poll()).unwrap_err(),
            AcquireError::Closed,
            "closing refuses those, too"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_own_limiter_of_a_key_that_comes_after_closing_is_closed() {
    let keyed = keyed(MaxConcurrency::new(1));
    keyed.close();
    assert!(keyed.limiter(&7).unwrap().is_closed());
}

#[tokio::test(start_paused = true)]
async fn draining_waits_for_places_and_waiters_of_all_keys_and_for_nothing_else() {
    let keyed = keyed(Policy::from(MaxConcurrency::new(1)).and(bucket(5)));
    keyed.drained().await;
    let [first, second] = [
        keyed.acquire(&1).await.unwrap(),
        keyed.acquire(&2).await.unwrap(),
    ];
    let waiting = queued(keyed.acquire(&2));
    keyed.limiter(&3).unwrap().try_acquire().unwrap().release();
    let mut drained = queued(keyed.drained());
    drop(first);
    drop(waiting);
    assert_pending!(drained.poll());
    drop(second);
    assert!(drained.is_woken());
    assert_ready!(drained.poll());
    let rates = self::keyed(bucket(5));
    let _spent = rates.acquire(&1).await.unwrap();
    rates.drained().await;
}

/// The limiter is open. While one of two keys is held at any time, `drained` does not complete.
#[tokio::test(start_paused = true)]
async fn draining_an_open_limiter_waits_for_an_instant_without_use() {
    let keyed = keyed(MaxConcurrency::new(1));
    let mut held = keyed.try_acquire(&0).unwrap();
    let mut drained = queued(keyed.drained());
    for key in 1..200 {
        let next = keyed.try_acquire(&(key % 3)).unwrap();
        drop(std::mem::replace(&mut held, next));
        tokio::task::yield_now().await; // each poll takes from the budget of this task
        assert_pending!(drained.poll());
    }
    drop(held);
    tokio::task::yield_now().await;
    assert_ready!(drained.poll());
}

/// Each part of the keys is free when it is read, because they are read one after another.
#[test]
fn draining_is_not_misled_by_keys_that_are_held_in_turns() {
    let keyed = keyed(MaxConcurrency::new(1));
    let is_over = Arc::new(AtomicBool::new(false));
    let holds = thread::spawn({
        let (keyed, is_over) = (keyed.clone(), Arc::clone(&is_over));
        move || {
            let mut held = keyed.try_acquire(&0).unwrap();
            let mut key = 0;
            while !is_over.load(Relaxed) {
                key = (key + 1) % 64;
                let next = keyed.try_acquire(&key).unwrap();
                drop(std::mem::replace(&mut held, next));
            }
            held
        }
    });
    while keyed.snapshots().all(|(_, key)| key.in_flight == 0) {}
    let runtime = common::current_thread();
    let drains = runtime.block_on(async { timeout(ms(300), keyed.drained()).await });
    is_over.store(true, Relaxed);
    let held = holds.join().unwrap();
    assert!(drains.is_err(), "a key was held at any time");
    drop(held);
    common::within_ten_seconds(&runtime, keyed.drained());
}

#[tokio::test(start_paused = true)]
async fn draining_is_cancel_safe_and_any_number_of_tasks_can_wait() {
    let keyed = keyed(MaxConcurrency::new(2));
    let held = [
        keyed.acquire(&1).await.unwrap(),
        keyed.acquire(&2).await.unwrap(),
    ];
    drop(queued(keyed.drained()));
    let waits: Vec<_> = (0..3)
        .map(|_| {
            let keyed = keyed.clone();
            tokio::spawn(async move { keyed.drained().await })
        })
        .collect();
    sleep(ms(1)).await;
    drop(queued(keyed.drained()));
    assert!(waits.iter().all(|wait| !wait.is_finished()));
    keyed.close();
    drop(held);
    for wait in waits {
        wait.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn draining_ends_with_the_reclaim_of_a_leaked_permit() {
    let keyed = keyed(MaxConcurrency::new(1).ttl(ms(300)));
    keyed.acquire(&1).await.unwrap().forget();
    let start = Instant::now();
    keyed.drained().await;
    assert_eq!(start.elapsed(), ms(300));
}

/// With thousands of keys in use, the future is woken at most once for each key, not for each release.
#[tokio::test(start_paused = true)]
async fn a_drain_of_many_keys_is_polled_a_few_times_each() {
    const KEYS: u64 = 3_000;
    let keyed = keyed(MaxConcurrency::new(10));
    let held: Vec<_> = (0..10 * KEYS)
        .map(|nth| keyed.try_acquire(&(nth % KEYS)).unwrap())
        .collect();
    keyed.close();
    let polls = Arc::new(AtomicUsize::new(0));
    let drained = {
        let keyed = keyed.clone();
        CountPolls(
            Box::pin(async move { keyed.drained().await }),
            Arc::clone(&polls),
        )
    };
    let drained = tokio::spawn(drained);
    for permit in held {
        tokio::task::yield_now().await;
        drop(permit);
    }
    drained.await.unwrap();
    let polls = polls.load(Relaxed);
    assert!(polls <= 2 * KEYS as usize, "{polls}");
}

#[tokio::test(start_paused = true)]
async fn a_pause_holds_idle_active_and_new_keys_back_until_it_ends() {
    for policy in [
        Policy::from(bucket(5)),
        MaxConcurrency::new(5).into(),
        SlidingWindow::log(5, ms(1_000)).into(),
    ] {
        let keyed = keyed(policy);
        drop(keyed.try_acquire(&0).unwrap());
        let _held = keyed.try_acquire(&1).unwrap();
        let own = keyed.limiter(&2).unwrap();
        keyed.pause_for(Duration::ZERO);
        assert!(keyed.check(&0, 1).is_allowed());
        keyed.pause_for(ms(500));
        keyed.pause_for(ms(200));
        let start = Instant::now();
        for key in 0..4 {
            let decision = keyed.check(&key, 1);
            assert!(
                decision.is_paused() && decision.retry_after() == Some(ms(500)),
                "{key}: {decision}"
            );
            let Err(TryAcquireError::Denied(denial)) = keyed.try_acquire(&key) else {
                panic!("key {key} is not paused")
            };
            assert_eq!(denial, keyed.check(&key, 1));
            match keyed.snapshot(&key) {
                Some(snapshot) => assert_eq!(snapshot.retry_after, Some(ms(500))),
                None => assert_eq!(key, 3, "only a key that has taken nothing may be forgotten"),
            }
        }
        assert!(own.try_acquire().is_err());
        assert_eq!(
            keyed.try_acquire_many(&5, 6).unwrap_err().to_string(),
            keyed.try_acquire_many(&0, 6).unwrap_err().to_string()
        );
        let waits: Vec<_> = (0..6)
            .map(|key| tokio::spawn(keyed.acquire_owned(&key)))
            .collect();
        advance(ms(499)).await;
        assert!(keyed.try_acquire(&6).is_err() && waits.iter().all(|wait| !wait.is_finished()));
        for wait in waits {
            drop(wait.await.unwrap().unwrap());
        }
        assert_eq!(start.elapsed(), ms(500));
        assert!(keyed.try_acquire(&6).is_ok() && keyed.check(&0, 1).is_allowed());
        keyed.pause_until(Instant::now() + ms(10));
        assert_eq!(keyed.check(&9, 1).retry_after(), Some(ms(10)));
        keyed.pause_until(start);
        advance(ms(10)).await;
        assert!(keyed.check(&9, 1).is_allowed());
    }
}

#[tokio::test(start_paused = true)]
async fn resuming_serves_all_keys_and_leaves_a_key_that_is_paused_by_itself() {
    let keyed = keyed(bucket(5));
    let own = keyed.limiter(&1).unwrap();
    own.pause_for(Duration::MAX);
    keyed.pause_for(Duration::MAX);
    let mut waiting: Vec<_> = (0..3)
        .map(|key| queued(keyed.acquire_owned(&key)))
        .collect();
    own.resume();
    assert_pending!(waiting[1].poll(), "all keys are paused");
    own.pause_for(Duration::MAX);
    keyed.resume();
    for key in [0, 2] {
        assert!(waiting[key].is_woken());
        drop(assert_ready!(waiting[key].poll()).unwrap());
    }
    assert_pending!(waiting[1].poll(), "it is paused by itself");
    assert!(keyed.try_acquire(&7).is_ok());
    own.resume();
    drop(assert_ready!(waiting[1].poll()).unwrap());
}

/// A request that has left the queue of a paused key does not keep the key from being evicted.
#[tokio::test(start_paused = true)]
async fn keys_become_idle_and_are_forgotten_during_a_pause() {
    let keyed = KeyedLimiter::builder(bucket(1))
        .max_keys(2)
        .when_full(WhenFull::EvictSoonestReset)
        .build()
        .unwrap();
    keyed.pause_for(Duration::MAX);
    for key in 0..100_u64 {
        drop(queued(keyed.acquire(&key)));
    }
    assert!(keyed.len() <= 2);
    keyed.resume();
    assert!(keyed.try_acquire(&7).is_ok());
}

/// In the end all keys have the same policy, pause and closing, whichever thread reaches a shard first.
#[test]
fn concurrent_changes_end_alike_for_all_keys() {
    for round in 0..200 {
        let keyed = KeyedLimiter::<u64>::builder(bucket(10))
            .max_keys(10_000)
            .build()
            .unwrap();
        for key in 0..200 {
            drop(keyed.try_acquire(&key).unwrap());
            if key % 4 == 0 {
                drop(keyed.limiter(&key).unwrap());
            }
        }
        thread::scope(|scope| {
            let keyed = &keyed;
            scope.spawn(move || keyed.pause_for(Duration::MAX));
            scope.spawn(move || keyed.resume());
            scope.spawn(move || keyed.set_policy(bucket(20)).unwrap());
            scope.spawn(move || keyed.set_policy(bucket(30 + round % 2)).unwrap());
        });
        let decisions = (0..400).map(|key| keyed.check(&key, 1));
        let mut kinds: Vec<_> = decisions
            .map(|decision| (decision.is_paused(), decision.limit()))
            .collect();
        kinds.dedup();
        assert_eq!(kinds.len(), 1, "{kinds:?}");
        assert_eq!(keyed.policy().limits()[0].capacity(), kinds[0].1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_policy_with_larger_states_makes_idle_keys_active_and_a_smaller_one_idle_again() {
    let keyed = keyed(bucket(10));
    for key in 0..1_000 {
        drop(keyed.try_acquire_many(&key, key % 3).ok());
    }
    keyed
        .set_policy(SlidingWindow::log(10, ms(10_000)))
        .unwrap();
    for key in 0..1_000 {
        assert_eq!(keyed.check(&key, 1).remaining(), 10 - key % 3);
    }
    keyed
        .set_policy(Policy::from(bucket(20)).and(FixedWindow::new(15, ms(60_000))))
        .unwrap();
    keyed.set_policy(bucket(30)).unwrap();
    for key in 0..1_000 {
        assert_eq!(keyed.check(&key, 1).remaining(), 30 - key % 3);
    }
    advance(ms(3_000)).await;
    for key in 2_000..12_000 {
        drop(keyed.try_acquire(&key).unwrap());
    }
    assert!(
        keyed.len() <= 10_100,
        "reset keys were forgotten: {}",
        keyed.len()
    );
}

#[tokio::test(start_paused = true)]
async fn waiting_requests_keep_their_position_under_another_policy_or_can_never_be_admitted() {
    let keyed = keyed(MaxConcurrency::new(3));
    let _held = keyed.try_acquire_many(&1, 3).unwrap();
    let mut large = queued(keyed.request(&1).cost(3).acquire());
    let mut small = queued(keyed.acquire(&1));
    keyed.set_policy(MaxConcurrency::new(2)).unwrap();
    assert_eq!(
        exceeded(&assert_ready!(large.poll()).unwrap_err()),
        Some((3, 2))
    );
    assert_pending!(small.poll());
    keyed.set_policy(MaxConcurrency::new(4)).unwrap();
    drop(assert_ready!(small.poll()).unwrap());
}

#[test]
fn an_invalid_policy_and_tiers_are_errors_and_change_nothing() {
    let keyed = keyed(bucket(3));
    assert!(matches!(
        keyed.set_policy(MaxConcurrency::new(0)),
        Err(ConfigError::ZeroLimit { .. })
    ));
    assert!(matches!(
        keyed.set_policy("8 concurent"),
        Err(ConfigError::Parse(_))
    ));
    assert_eq!(
        (keyed.policy(), keyed.check(&1, 1).limit()),
        (bucket(3).into(), 3)
    );
    let tier = Policy::from(bucket(2));
    let tiered = KeyedLimiter::<u64>::builder(bucket(3))
        .tiers(move |_| tier.clone())
        .build()
        .unwrap();
    assert_eq!(tiered.set_policy(bucket(5)), Err(ConfigError::HasTiers));
    assert_eq!(
        (tiered.policy(), tiered.check(&1, 1).limit()),
        (bucket(3).into(), 2)
    );
}

/// Pausing and closing apply to the keys of all tiers.
#[tokio::test(start_paused = true)]
async fn keys_with_tiers_are_paused_and_closed() {
    let tiers = [Policy::from(bucket(2)), MaxConcurrency::new(2).into()];
    let keyed = KeyedLimiter::<u64>::builder(bucket(1))
        .tiers(move |key| tiers[*key as usize % 2].clone())
        .build()
        .unwrap();
    drop(
        (0..4)
            .map(|key| keyed.try_acquire(&key).unwrap())
            .collect::<Vec<_>>(),
    );
    keyed.pause_for(ms(100));
    assert!((0..6).all(|key| keyed.check(&key, 1).is_paused()));
    drop(keyed.acquire(&1).await.unwrap());
    assert!((0..6).all(|key| keyed.try_acquire(&key).is_ok()));
    keyed.close();
    assert!((0..8).all(|key| keyed.try_acquire(&key).unwrap_err() == TryAcquireError::Closed));
}

/// The observer of a key that becomes active by a change of the policy has its key.
#[tokio::test(start_paused = true)]
async fn events_of_keys_that_a_policy_makes_active_have_their_key() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let events = Arc::clone(&seen);
    let keyed = KeyedLimiter::<String>::builder(bucket(3))
        .on_event(move |event| {
            if let EventKind::Reclaimed { .. } = event.kind {
                let key: &String = event.key_as().unwrap();
                events.lock().unwrap().push(key.clone());
            }
        })
        .build()
        .unwrap();
    let alice = "alice".to_owned();
    drop(keyed.try_acquire(&alice).unwrap());
    keyed
        .set_policy(Policy::from(bucket(3)).and(MaxConcurrency::new(1).ttl(ms(100))))
        .unwrap();
    keyed.acquire(&alice).await.unwrap().forget();
    sleep(ms(200)).await;
    assert_eq!(*seen.lock().unwrap(), [alice]);
}

/// Each active key reports events, and its own pause separately from that of all keys. An idle key reports only its own events.
#[tokio::test(start_paused = true)]
async fn changes_of_all_keys_are_reported_by_active_keys() {
    let reported: Arc<Mutex<Vec<(u64, EventKind)>>> = Arc::default();
    let seen = Arc::clone(&reported);
    let keyed = KeyedLimiter::<u64>::builder(bucket(2))
        .on_event(move |event| {
            let key = *event.key_as().unwrap();
            seen.lock().unwrap().push((key, event.kind.clone()));
        })
        .build()
        .unwrap();
    let take = || {
        let events = std::mem::take(&mut *reported.lock().unwrap()).into_iter();
        let mut events: Vec<_> = events
            .map(|(key, event)| match event {
                EventKind::Paused { paused_for, .. } => (key, "paused", paused_for),
                EventKind::Resumed { ended_ago, .. } => (key, "resumed", ended_ago),
                EventKind::Denied { decision, .. } => {
                    (key, "denied", decision.retry_after().unwrap_or_default())
                }
                EventKind::PolicyChanged { to, .. } => (
                    key,
                    "policy",
                    Duration::from_secs(to.limits()[0].capacity()),
                ),
                EventKind::Closed => (key, "closed", Duration::ZERO),
                other => panic!("{other:?}"),
            })
            .collect();
        events.sort_by_key(|event| event.0); // one shard after another
        events
    };
    drop(keyed.try_acquire(&0).unwrap());
    let own: Vec<_> = (1..3).map(|key| keyed.limiter(&key).unwrap()).collect();
    keyed.pause_for(ms(100));
    assert_eq!(take(), [(1, "paused", ms(100)), (2, "paused", ms(100))]);
    keyed.pause_for(ms(50));
    assert_eq!(take(), [], "the later end stands");
    own[0].pause_for(ms(40));
    assert_eq!(take(), [(1, "paused", ms(40))]);
    assert!(keyed.try_acquire(&0).is_err());
    assert_eq!(take(), [(0, "denied", ms(100))]);
    advance(ms(60)).await;
    assert!(own[0].check(1).is_paused());
    assert_eq!(
        take(),
        [(1, "resumed", ms(20))],
        "its own pause has ended, and that of all keys goes on"
    );
    own[0].resume();
    assert_eq!(take(), []);
    own[0].pause_for(ms(100));
    keyed.resume();
    assert_eq!(
        take(),
        [
            (1, "paused", ms(100)),
            (1, "resumed", ms(0)),
            (2, "resumed", ms(0))
        ]
    );
    keyed.pause_for(ms(30));
    assert_eq!(take(), [(1, "paused", ms(30)), (2, "paused", ms(30))]);
    advance(ms(130)).await;
    assert!(own.iter().all(|limiter| limiter.check(1).is_allowed()));
    assert_eq!(
        take(),
        [
            (1, "resumed", ms(100)),
            (1, "resumed", ms(30)),
            (2, "resumed", ms(100))
        ]
    );
    keyed.set_policy(bucket(5)).unwrap();
    assert_eq!(take(), [1, 2].map(|key| (key, "policy", ms(5_000))));
    keyed.close();
    keyed.close();
    assert_eq!(take(), [1, 2].map(|key| (key, "closed", ms(0))));
}

/// A waker is foreign code: it may change all keys while a change wakes it.
#[test]
fn wakers_may_change_all_keys() {
    struct Closes(KeyedLimiter<u64>, AtomicU64);
    impl Wake for Closes {
        fn wake(self: Arc<Self>) {
            self.1.fetch_add(1, Relaxed);
            self.0.set_policy(bucket(7)).unwrap();
            self.0.pause_for(ms(5));
            self.0.close();
        }
    }
    let runtime = common::current_thread();
    let _context = runtime.enter();
    let keyed = keyed(MaxConcurrency::new(1));
    let closes = Arc::new(Closes(keyed.clone(), AtomicU64::new(0)));
    let waker = Waker::from(Arc::clone(&closes));
    let _held: Vec<_> = (0..50)
        .map(|key| keyed.try_acquire(&key).unwrap())
        .collect();
    let mut waiting: Vec<_> = (0..50)
        .map(|key| Box::pin(keyed.acquire_owned(&key)))
        .collect();
    for wait in &mut waiting {
        assert!(
            wait.as_mut()
                .poll(&mut std::task::Context::from_waker(&waker))
                .is_pending()
        );
    }
    keyed.set_policy(MaxConcurrency::new(2)).unwrap();
    assert_eq!((closes.1.load(Relaxed), keyed.is_closed()), (50, true));
    assert_eq!(keyed.policy(), bucket(7).into());
}

#[tokio::test(start_paused = true)]
async fn clones_of_a_task_are_woken_when_all_keys_are_resumed() {
    let keyed = keyed(bucket(1));
    keyed.pause_for(Duration::MAX);
    let mut waiting = task::spawn(keyed.acquire(&1));
    assert_pending!(waiting.poll());
    sleep(ms(60_000)).await;
    assert!(!waiting.is_woken());
    keyed.resume();
    assert!(waiting.is_woken());
}
