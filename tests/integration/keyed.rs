//! One limiter for each key: what a key costs, when it is forgotten, and that keys are independent.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::net::Ipv6Addr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{self, CountPolls, idle_for_real, limiter, ms};
use proptest::prelude::*;
use tokio::time::{Instant, advance, sleep};
use tokio_test::{assert_pending, assert_ready, task};
use tollgate::{
    AcquireError, ConfigError, EventKind, FixedWindow, KeyedLimiter, Limiter, MaxConcurrency,
    Overflow, Penalty, Policy, Rate, SlidingWindow, Throttle, TokenBucket, TryAcquireError,
    WhenFull,
};

fn bucket(burst: u64) -> TokenBucket {
    TokenBucket::new(Rate::per_second(1), burst)
}

/// All kinds of limits, in the widths that a key's state can have.
fn policies() -> Vec<Policy> {
    vec![
        Throttle::every(ms(40)).burst(3).into(),
        TokenBucket::new(Rate::new(7, ms(300)), 3).into(),
        TokenBucket::new(Rate::new(3, ms(100)), 3)
            .refill_each_period()
            .into(),
        FixedWindow::new(3, ms(100)).into(),
        SlidingWindow::counter(3, ms(100)).into(),
        SlidingWindow::log(3, ms(100)).into(),
        Penalty::new(3, Rate::new(1, ms(40))).into(),
        MaxConcurrency::new(2).into(),
        MaxConcurrency::new(2).ttl(ms(70)).into(),
        Policy::from(Throttle::every(ms(20)).burst(3)).and(FixedWindow::new(4, ms(100))),
        Policy::from(MaxConcurrency::new(2)).and(Throttle::every(ms(20)).burst(3)),
        Policy::from(SlidingWindow::counter(5, ms(100)))
            .and(FixedWindow::new(4, ms(100)))
            .and(Penalty::new(6, Rate::new(2, ms(30)))),
        // As many words as an idle key has without a tier.
        Policy::from(SlidingWindow::counter(5, ms(100))).and(Penalty::new(6, Rate::new(2, ms(30)))),
    ]
}

#[derive(Debug, Clone)]
enum Step {
    TryAcquire {
        key: u8,
        cost: u64,
    },
    Check {
        key: u8,
        cost: u64,
    },
    Penalize {
        key: u8,
        units: u64,
    },
    Reward {
        key: u8,
        units: u64,
    },
    Reset {
        key: u8,
    },
    Release(prop::sample::Index),
    /// A handle of the key's limiter is held for a moment, so that the key is active.
    Activate {
        key: u8,
    },
    Pass {
        micros: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0_u8..3;
    let step = prop_oneof![
        8 => (key.clone(), 1_u64..4).prop_map(|(key, cost)| Step::TryAcquire { key, cost }),
        2 => (key.clone(), 1_u64..4).prop_map(|(key, cost)| Step::Check { key, cost }),
        1 => (key.clone(), 1_u64..4).prop_map(|(key, units)| Step::Penalize { key, units }),
        1 => (key.clone(), 1_u64..4).prop_map(|(key, units)| Step::Reward { key, units }),
        1 => key.clone().prop_map(|key| Step::Reset { key }),
        3 => any::<prop::sample::Index>().prop_map(Step::Release),
        1 => key.prop_map(|key| Step::Activate { key }),
        4 => prop_oneof![0_u64..50_000, 0_u64..400_000].prop_map(|micros| Step::Pass { micros }),
    ];
    prop::collection::vec(step, 1..80)
}

proptest! {
    #![proptest_config(common::replay::cases(1_500))]

    /// Each key behaves as a limiter of its own, whether it is idle, active, forgotten or known. The reference is one [`Limiter`]
    /// for each key, which is never forgotten.
    #[test]
    fn a_key_behaves_as_a_limiter_of_its_own(policy in prop::sample::select(policies()), steps in steps(), tiered in any::<bool>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let builder = KeyedLimiter::<u8>::builder(policy.clone());
            let tier = policy.clone();
            let keyed = if tiered { builder.tiers(move |_| tier.clone()) } else { builder }.build().unwrap();
            let alone: Vec<Limiter> = (0..3).map(|_| limiter(policy.clone())).collect();
            let mut held = Vec::new();
            for step in steps {
                match step {
                    Step::TryAcquire { key, cost } => {
                        let (permit, expected) = (keyed.try_acquire_many(&key, cost), alone[usize::from(key)].try_acquire_many(cost));
                        match (permit, expected) {
                            (Ok(permit), Ok(expected)) => held.push((permit, expected)),
                            (permit, expected) => prop_assert_eq!(permit.err(), expected.err()),
                        }
                    }
                    Step::Check { key, cost } => {
                        prop_assert_eq!(keyed.check(&key, cost), alone[usize::from(key)].check(cost));
                    }
                    // A plain limiter has no such calls. The next test compares them.
                    Step::Penalize { .. } | Step::Reward { .. } | Step::Reset { .. } => {}
                    Step::Release(index) => {
                        if !held.is_empty() {
                            drop(held.swap_remove(index.index(held.len())));
                        }
                    }
                    Step::Activate { key } => drop(keyed.limiter(&key).unwrap()),
                    Step::Pass { micros } => advance(Duration::from_micros(micros)).await,
                }
            }
            Ok(())
        })?;
    }

    /// Charges, refunds and resets by hand are the same for an idle key and an active one.
    #[test]
    fn an_idle_key_and_an_active_one_agree(policy in prop::sample::select(policies()), steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let (idle, active) = (KeyedLimiter::<u8>::new(policy.clone()).unwrap(), KeyedLimiter::<u8>::new(policy).unwrap());
            let _limiters: Vec<_> = (0..3).map(|key| active.limiter(&key).unwrap()).collect();
            let mut held = Vec::new();
            for step in steps {
                match step {
                    Step::TryAcquire { key, cost } => match (idle.try_acquire_many(&key, cost), active.try_acquire_many(&key, cost)) {
                        (Ok(permit), Ok(expected)) => held.push((permit, expected)),
                        (permit, expected) => prop_assert_eq!(permit.err(), expected.err()),
                    },
                    Step::Check { key, cost } => prop_assert_eq!(idle.check(&key, cost), active.check(&key, cost)),
                    Step::Penalize { key, units } => prop_assert!(idle.penalize(&key, units) && active.penalize(&key, units)),
                    Step::Reward { key, units } => {
                        idle.reward(&key, units);
                        active.reward(&key, units);
                    }
                    Step::Reset { key } => {
                        idle.reset(&key);
                        active.reset(&key);
                    }
                    Step::Release(index) => {
                        if !held.is_empty() {
                            drop(held.swap_remove(index.index(held.len())));
                        }
                    }
                    Step::Activate { key } => {
                        if let Some(snapshot) = idle.snapshot(&key) {
                            prop_assert_eq!(Some(snapshot), active.snapshot(&key));
                        }
                    }
                    Step::Pass { micros } => advance(Duration::from_micros(micros)).await,
                }
            }
            Ok(())
        })?;
    }
}

/// Trap: a map that an attacker grows. After a million addresses, the limits of the earlier keys are still kept.
#[tokio::test(start_paused = true)]
async fn a_million_hostile_keys_stay_within_the_bound_and_live_limits_survive() {
    let max = 50_000;
    let per_client = KeyedLimiter::<Ipv6Addr>::builder(TokenBucket::new(Rate::per_second(1), 5))
        .max_keys(max)
        .build()
        .unwrap();
    let address = |number: u128| Ipv6Addr::from_bits(0x2001_0db8 << 96 | number);
    let victims: Vec<_> = (0..100).map(|number| address(number << 64)).collect();
    for victim in &victims {
        drop(per_client.try_acquire_many(victim, 5).unwrap());
    }
    let mut turned_away = 0;
    for number in 1..=1_000_000 {
        match per_client.try_acquire(&address(number)) {
            Ok(_) => {}
            Err(TryAcquireError::TooManyKeys { max: reported }) => {
                assert_eq!(reported, max);
                turned_away += 1;
            }
            Err(error) => panic!("{error}"),
        }
        assert!(per_client.len() <= max);
        if number % 10_000 == 0 {
            advance(ms(10)).await;
        }
    }
    assert!(turned_away > 0, "the bound was reached");
    for victim in &victims {
        let remaining = per_client.snapshot(victim).map(|numbers| numbers.remaining);
        assert_eq!(
            remaining,
            Some(1),
            "a second has passed since the bucket was emptied"
        );
    }
}

/// Trap: the eviction of a key that is in use gives its usage back.
#[tokio::test(start_paused = true)]
async fn a_key_is_forgotten_only_when_it_is_reset() {
    let keyed = KeyedLimiter::new(bucket(10)).unwrap();
    drop(keyed.try_acquire_many(&u64::MAX, 10).unwrap());
    for second in 1..10 {
        advance(ms(1_000)).await;
        for key in second * 10_000..second * 10_000 + 2_000 {
            drop(keyed.try_acquire(&key).unwrap()); // each call checks a few others
        }
        assert_eq!(keyed.check(&u64::MAX, 1).remaining(), second);
        assert!(keyed.snapshot(&u64::MAX).is_some());
    }
}

/// Trap: a sweep that stops every caller. Here each call with a new key forgets a few others.
#[tokio::test(start_paused = true)]
async fn reset_keys_are_forgotten_as_others_come() {
    let keyed = KeyedLimiter::new(bucket(1)).unwrap();
    for key in 0..20_000_u64 {
        drop(keyed.try_acquire(&key).unwrap());
    }
    assert_eq!(keyed.len(), 20_000);
    advance(ms(1_000)).await;
    let mut most = 0;
    for key in 20_000..60_000_u64 {
        let before = keyed.len();
        drop(keyed.try_acquire(&key).unwrap());
        most = most.max((before + 1).saturating_sub(keyed.len()));
        if key % 1_000 == 0 {
            advance(ms(50)).await;
        }
    }
    assert!(most <= 8, "{most} keys went in one call");
    assert!(
        keyed.len() < 35_000,
        "{} keys are known, of which 20,000 can be live",
        keyed.len()
    );
}

/// Invariant 6: a thousand keys with waiters cost one task with one timer, and idle keys none.
#[tokio::test(start_paused = true)]
async fn a_thousand_keys_with_waiters_cost_one_task() {
    let keyed = KeyedLimiter::new(Throttle::every(ms(100))).unwrap();
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let before = tasks();
    for key in 0..1_000_u32 {
        drop(keyed.try_acquire(&key).unwrap());
    }
    assert_eq!(tasks(), before);
    let polls = Arc::new(AtomicUsize::new(0));
    let mut waiting = Vec::new();
    for key in 0..1_000_u32 {
        let keyed = keyed.clone();
        let acquire = async move { drop(keyed.acquire(&key).await.unwrap()) };
        waiting.push(task::spawn(CountPolls(
            Box::pin(acquire),
            Arc::clone(&polls),
        )));
        assert_pending!(waiting.last_mut().unwrap().poll());
    }
    assert_eq!(tasks(), before + 1);
    let start = Instant::now();
    for acquire in waiting {
        acquire.await;
    }
    assert_eq!(start.elapsed(), ms(100));
    assert!(
        polls.load(Ordering::Relaxed) <= 3_000,
        "two polls a grant, and one when it came here to be awaited"
    );
    let idle = Instant::now();
    idle_for_real().await;
    assert_eq!(idle.elapsed(), Duration::ZERO, "no timer is armed");
    drop(keyed);
    sleep(ms(1)).await;
    assert_eq!(tasks(), before, "the task ends with its limiter");
}

/// The owned key is made when the key is new, and not again.
#[tokio::test(start_paused = true)]
async fn a_key_can_be_borrowed_and_is_made_only_when_it_is_new() {
    let keyed = KeyedLimiter::new(bucket(3)).unwrap();
    drop(keyed.acquire("alice").await.unwrap());
    drop(keyed.try_acquire(&"alice".to_owned()).unwrap());
    drop(
        tokio::spawn(keyed.acquire_owned("alice"))
            .await
            .unwrap()
            .unwrap(),
    );
    assert!(keyed.try_acquire("alice").is_err() && keyed.try_acquire("bob").is_ok());
    assert_eq!(
        keyed.check("alice", 1),
        keyed.limiter("alice").unwrap().check(1)
    );
    assert!(
        keyed.penalize("alice", 1) && keyed.snapshot("alice").is_some() && keyed.reset("alice")
    );
    let mut known: Vec<String> = keyed.snapshots().map(|(key, _)| key).collect();
    known.sort_unstable();
    assert_eq!(known, ["alice", "bob"]);

    #[derive(PartialEq, Eq, Hash)]
    struct Name(u32);
    #[derive(Clone, PartialEq, Eq, Hash)]
    struct Owned(Arc<Name>);
    static MADE: AtomicUsize = AtomicUsize::new(0);
    impl ToOwned for Name {
        type Owned = Owned;
        fn to_owned(&self) -> Owned {
            MADE.fetch_add(1, Ordering::Relaxed);
            Owned(Arc::new(Self(self.0)))
        }
    }
    impl std::borrow::Borrow<Name> for Owned {
        fn borrow(&self) -> &Name {
            &self.0
        }
    }
    for policy in [Policy::from(bucket(5)), MaxConcurrency::new(2).into()] {
        let keyed = KeyedLimiter::<Owned>::new(policy).unwrap();
        MADE.store(0, Ordering::Relaxed);
        assert!(keyed.check(&Name(7), 1).is_allowed());
        assert_eq!(MADE.load(Ordering::Relaxed), 0);
        let _known = keyed.acquire(&Name(7)).await.unwrap();
        for _ in 0..5 {
            drop(keyed.acquire(&Name(7)).await.unwrap());
            drop(keyed.request(&Name(7)).timeout(ms(10)).acquire().await);
            drop(keyed.try_acquire(&Name(7)));
        }
        assert_eq!(MADE.load(Ordering::Relaxed), 1);
    }
}

/// Invariant 3, for each key by itself.
#[tokio::test(start_paused = true)]
async fn waiters_for_a_key_are_served_in_order_and_never_overtaken() {
    let keyed = KeyedLimiter::new(Throttle::every(ms(100))).unwrap();
    drop(keyed.acquire(&"a").await.unwrap());
    let mut first = task::spawn(keyed.acquire(&"a"));
    let mut second = task::spawn(keyed.acquire(&"a"));
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    assert!(keyed.try_acquire(&"a").is_err() && keyed.try_acquire(&"b").is_ok());
    sleep(ms(101)).await;
    assert!(first.is_woken() && !second.is_woken());
    drop(assert_ready!(first.poll()).unwrap());
    assert!(keyed.try_acquire(&"a").is_err());
    sleep(ms(100)).await;
    drop(assert_ready!(second.poll()).unwrap());
}

/// Invariant 2: a waiter that is dropped costs no other request anything, before and after its grant.
#[tokio::test(start_paused = true)]
async fn a_dropped_acquire_leaves_the_key_as_it_was() {
    let keyed = KeyedLimiter::new(Throttle::every(ms(100))).unwrap();
    drop(keyed.acquire(&1).await.unwrap());
    for until in [ms(50), ms(50)] {
        let mut waiting = task::spawn(keyed.acquire(&1));
        assert_pending!(waiting.poll());
        sleep(until).await;
        drop(waiting);
    }
    assert!(
        keyed.try_acquire(&1).is_ok(),
        "the grant of the second was refunded"
    );
}

#[tokio::test(start_paused = true)]
async fn an_active_key_that_is_not_needed_becomes_idle_again_and_keeps_its_usage() {
    let keyed = KeyedLimiter::new(bucket(3)).unwrap();
    let limiter = keyed.limiter(&0_u64).unwrap();
    drop(limiter.try_acquire_many(3).unwrap());
    drop(limiter);
    for key in 1..5_000 {
        drop(keyed.try_acquire(&key).unwrap());
    }
    assert_eq!(keyed.check(&0, 1).remaining(), 0);
    advance(ms(1_000)).await;
    assert_eq!(keyed.check(&0, 1).remaining(), 1);
    let fence = keyed.try_acquire(&0).unwrap().fence();
    assert!(fence > 1, "fences rise over the change: {fence}");
}

#[tokio::test(start_paused = true)]
async fn a_leak_under_one_key_is_reclaimed_on_time_and_reported_with_its_key() {
    let reported = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&reported);
    let keyed = KeyedLimiter::builder(MaxConcurrency::new(1).ttl(ms(300)))
        .on_event(move |event| {
            if let EventKind::Reclaimed { held, .. } = event.kind {
                let key: &&str = event.key_as().unwrap();
                seen.lock().unwrap().push((*key, *held));
            }
        })
        .build()
        .unwrap();
    std::mem::forget(keyed.acquire(&"leaky").await.unwrap());
    let _other = keyed.acquire(&"tight").await.unwrap();
    let start = Instant::now();
    let _permit = keyed.acquire(&"leaky").await.unwrap();
    assert_eq!(start.elapsed(), ms(300));
    assert!(reported.lock().unwrap().contains(&("leaky", ms(300))));
}

#[tokio::test(start_paused = true)]
async fn a_key_with_places_out_is_kept_and_can_be_forgotten_after_their_return() {
    let keyed = KeyedLimiter::builder(MaxConcurrency::new(1))
        .max_keys(2)
        .build()
        .unwrap();
    let (first, second) = (
        keyed.try_acquire(&1).unwrap(),
        keyed.try_acquire(&2).unwrap(),
    );
    assert_eq!(
        keyed.try_acquire(&3).unwrap_err(),
        TryAcquireError::TooManyKeys { max: 2 }
    );
    assert_eq!(
        keyed.acquire(&3).await.unwrap_err(),
        AcquireError::TooManyKeys { max: 2 }
    );
    assert!(!keyed.check(&3, 1).is_allowed());
    drop(first);
    let _third = keyed.try_acquire(&3).unwrap();
    drop(second);
}

/// The tier of a key may change while the key lives.
#[tokio::test(start_paused = true)]
async fn a_tier_that_changes_keeps_what_was_used() {
    let minute = Duration::from_secs(60);
    let plans: Arc<Mutex<HashMap<&str, u64>>> =
        Arc::new(Mutex::new(HashMap::from([("alice", 100), ("bob", 3_000)])));
    let known = Arc::clone(&plans);
    let keyed = KeyedLimiter::<&str>::builder(FixedWindow::new(100, minute))
        .tiers(move |user| FixedWindow::new(known.lock().unwrap()[user], minute).into())
        .build()
        .unwrap();
    drop(keyed.try_acquire_many(&"alice", 80).unwrap());
    assert_eq!(
        (
            keyed.check(&"alice", 1).remaining(),
            keyed.check(&"bob", 1).remaining()
        ),
        (20, 3_000)
    );
    plans.lock().unwrap().insert("alice", 20_000);
    assert_eq!(
        (
            keyed.check(&"alice", 1).limit(),
            keyed.check(&"alice", 1).remaining()
        ),
        (20_000, 19_920)
    );
    plans.lock().unwrap().insert("alice", 50);
    assert_eq!(
        (
            keyed.check(&"alice", 1).remaining(),
            keyed.check(&"alice", 1).retry_after()
        ),
        (0, Some(minute))
    );
    let alice = keyed.limiter(&"alice").unwrap();
    plans.lock().unwrap().insert("alice", 100);
    assert_eq!(
        keyed.check(&"alice", 1).remaining(),
        20,
        "an active one changes too"
    );
    drop(alice);
}

/// As above, for a change from a policy whose keys can be idle to one whose keys are always active.
#[tokio::test(start_paused = true)]
async fn an_idle_key_whose_new_tier_makes_it_active_keeps_what_was_used() {
    let (minute, pays) = (Duration::from_secs(60), Arc::new(AtomicBool::new(false)));
    let known = Arc::clone(&pays);
    let (free, paid) = (
        Policy::from(FixedWindow::new(40, minute)),
        Policy::from(SlidingWindow::log(50, minute)),
    );
    let keyed = KeyedLimiter::<u64>::builder(free.clone())
        .tiers(move |_| {
            if known.load(Ordering::Relaxed) {
                paid.clone()
            } else {
                free.clone()
            }
        })
        .build()
        .unwrap();
    let first = keyed.try_acquire_many(&1, 30).unwrap();
    pays.store(true, Ordering::Relaxed);
    let second = keyed.try_acquire_many(&1, 20).unwrap();
    assert!(first.fence() < second.fence());
    assert_eq!(
        (keyed.check(&1, 1).limit(), keyed.check(&1, 1).retry_after()),
        (50, Some(minute))
    );
    pays.store(false, Ordering::Relaxed);
    assert_eq!(
        (keyed.check(&1, 1).limit(), keyed.check(&1, 1).remaining()),
        (40, 0)
    );
}

/// A type of key whose code is not the standard library's.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Own(u64);

/// The tables: keys of types of std and of other types, states of two words, and keys that are always active.
#[tokio::test(start_paused = true)]
async fn keys_of_every_kind_of_table_have_their_own_window() {
    async fn check_keys<K: Debug + Hash + Eq + Clone + Send + Sync + 'static>(
        key: impl Fn(u64) -> K,
        settles: bool,
    ) {
        let builder = KeyedLimiter::builder(FixedWindow::new(3, ms(100))).max_keys(300);
        let keyed = if settles {
            builder.settle_permits()
        } else {
            builder
        }
        .build()
        .unwrap();
        for _ in 0..2 {
            for key in (0..200).map(&key) {
                let (two, one) = (
                    keyed.try_acquire_many(&key, 2).unwrap(),
                    keyed.try_acquire(&key).unwrap(),
                );
                assert!(two.fence() < one.fence());
                assert_eq!(keyed.check(&key, 1).retry_after(), Some(ms(100)));
                assert_eq!(two.refund(), settles, "{key:?}");
                assert_eq!(
                    keyed.check(&key, 1).remaining(),
                    if settles { 2 } else { 0 },
                    "{key:?}"
                );
            }
            assert_eq!(keyed.len(), 200);
            advance(ms(100)).await;
        }
        advance(ms(100)).await;
        for _ in 0..100 {
            (0..200).for_each(|number| _ = keyed.snapshot(&key(number)));
        }
        assert!(keyed.is_empty());
    }
    for settles in [false, true] {
        check_keys(|number| number, settles).await;
        check_keys(Own, settles).await;
    }
}

#[tokio::test(start_paused = true)]
async fn more_tiers_than_are_kept_are_still_distinguished() {
    let keyed = KeyedLimiter::<u64>::builder(bucket(1))
        .max_keys(5_000) // a shard has hundreds of them
        .tiers(|key| bucket(key + 1).into())
        .build()
        .unwrap();
    for key in 0..5_000 {
        assert_eq!(keyed.check(&key, 1).limit(), key + 1);
        drop(keyed.try_acquire_many(&key, key + 1).unwrap());
    }
    for key in 0..5_000 {
        assert_eq!(keyed.check(&key, 1).remaining(), 0);
    }
    let mut shown: Vec<_> = keyed
        .snapshots()
        .map(|(key, now)| (key, now.limit))
        .collect();
    shown.sort_unstable();
    assert!(shown.into_iter().eq((0..5_000).map(|key| (key, key + 1))));
}

/// Its manager is dropped on the way of calls for other keys.
#[tokio::test(start_paused = true)]
async fn a_key_that_becomes_idle_keeps_its_tier_and_what_was_used() {
    let keyed = KeyedLimiter::<u64>::builder(FixedWindow::new(1_000, ms(100)))
        .tiers(|key| match key {
            7 => FixedWindow::new(5, ms(7_000)).into(),
            _ => FixedWindow::new(1_000, ms(100)).into(),
        })
        .build()
        .unwrap();
    drop(keyed.limiter(&7).unwrap());
    drop(keyed.try_acquire_many(&7, 5).unwrap());
    advance(ms(1)).await;
    let before = keyed.check(&7, 1);
    for key in 100..10_000 {
        drop(keyed.try_acquire(&key).unwrap());
    }
    let (_, shown) = keyed.snapshots().find(|(key, _)| *key == 7).unwrap();
    assert_eq!((shown.limit, shown.used), (5, 5));
    assert_eq!(keyed.check(&7, 1), before);
}

#[test]
fn an_invalid_tier_is_an_error_of_the_call() {
    let keyed = KeyedLimiter::<u64>::builder(bucket(1))
        .tiers(|key| bucket(*key).into())
        .build()
        .unwrap();
    assert!(keyed.try_acquire(&1).is_ok());
    let error = keyed.try_acquire(&0).unwrap_err();
    assert!(
        matches!(error, TryAcquireError::Config(error) if matches!(*error, ConfigError::ZeroLimit { .. }))
    );
    assert!(!keyed.check(&0, 1).is_allowed());
    assert!(!keyed.penalize(&0, 1));
}

#[tokio::test(start_paused = true)]
async fn the_key_with_the_soonest_reset_is_evicted_and_reported() {
    let evicted = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&evicted);
    let keyed = KeyedLimiter::builder(bucket(10))
        .max_keys(3)
        .when_full(WhenFull::EvictSoonestReset)
        .on_event(move |event| {
            if let EventKind::Evicted { reset_after, .. } = event.kind {
                let key: &&str = event.key_as().unwrap();
                seen.lock().unwrap().push((*key, *reset_after));
            }
        })
        .build()
        .unwrap();
    for (key, cost) in [("heavy", 9), ("light", 2), ("middle", 5), ("new", 1)] {
        drop(keyed.try_acquire_many(&key, cost).unwrap());
    }
    assert_eq!(*evicted.lock().unwrap(), [("light", ms(2_000))]);
    assert_eq!(keyed.len(), 3);
    assert_eq!(keyed.check(&"heavy", 1).remaining(), 1);
}

#[tokio::test(start_paused = true)]
async fn snapshots_have_every_key_with_its_counter() {
    let keyed = KeyedLimiter::new(Penalty::new(3, Rate::per_second(1)).ceiling(6)).unwrap();
    for (key, attempts) in [("alice", 1), ("bob", 3), ("eve", 40)] {
        (0..attempts).for_each(|_| drop(keyed.try_acquire(&key)));
    }
    let _limiter = keyed.limiter(&"bob").unwrap();
    let mut table: Vec<_> = keyed
        .snapshots()
        .map(|(key, numbers)| (key, numbers.used, numbers.remaining))
        .collect();
    table.sort_unstable();
    assert_eq!(table, [("alice", 1, 2), ("bob", 3, 0), ("eve", 6, 0)]);
}

#[tokio::test(start_paused = true)]
async fn bad_input_is_a_typed_error() {
    assert_eq!(
        KeyedLimiter::<u8>::builder(bucket(1))
            .max_keys(0)
            .build()
            .unwrap_err(),
        ConfigError::ZeroKeys
    );
    assert!(KeyedLimiter::<u8>::new(bucket(0)).is_err());
    let keyed = KeyedLimiter::<u8>::new(bucket(2)).unwrap();
    for active in [false, true] {
        let _limiter = active.then(|| keyed.limiter(&1).unwrap());
        assert_eq!(
            keyed.try_acquire_many(&1, 0).unwrap_err(),
            TryAcquireError::ZeroCost
        );
        assert_eq!(
            common::exceeded(&keyed.try_acquire_many(&1, 3).unwrap_err()),
            Some((3, 2))
        );
        assert_eq!(
            keyed.acquire_many(&1, 0).await.unwrap_err(),
            AcquireError::ZeroCost
        );
        assert_eq!(
            common::exceeded(&keyed.acquire_many(&1, 3).await.unwrap_err()),
            Some((3, 2))
        );
        assert!(!keyed.check(&1, 0).is_allowed() && !keyed.check(&1, 3).is_allowed());
    }
    assert!(keyed.penalize(&1, u64::MAX));
    assert!(keyed.penalize(&1, u64::MAX));
    assert!(keyed.try_acquire(&1).is_err());
    keyed.reset(&1);
    assert!(keyed.try_acquire_many(&1, 2).is_ok());
}

#[tokio::test(start_paused = true)]
async fn the_queue_of_each_key_has_its_own_bound() {
    let keyed = KeyedLimiter::builder(Throttle::every(ms(100)))
        .max_queue(1)
        .overflow(Overflow::DropOldest)
        .build()
        .unwrap();
    for key in ["a", "b"] {
        drop(keyed.acquire(&key).await.unwrap());
    }
    let mut waiting: Vec<_> = ["a", "b"]
        .iter()
        .map(|key| task::spawn(keyed.acquire(key)))
        .collect();
    waiting
        .iter_mut()
        .for_each(|waiting| assert_pending!(waiting.poll()));
    let mut late = task::spawn(keyed.acquire(&"a"));
    assert_pending!(late.poll());
    assert_eq!(
        assert_ready!(waiting[0].poll()).unwrap_err(),
        AcquireError::Shed {
            retry_after: Some(ms(100))
        }
    );
    assert!(!waiting[1].is_woken());
}

#[test]
fn a_keyed_limiter_serves_several_runtimes_one_after_another() {
    let keyed = KeyedLimiter::new(Throttle::every(ms(200))).unwrap();
    for _ in 0..3 {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let keyed = keyed.clone();
        runtime.block_on(async move {
            for key in [1, 2, 1, 2] {
                drop(keyed.acquire(&key).await.unwrap());
            }
        });
    }
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap()
    };
    let (first, second) = (runtime(), runtime());
    let mut waiting = task::spawn(keyed.acquire(&3));
    first.block_on(async { drop(keyed.acquire(&3).await.unwrap()) });
    {
        let _in_first = first.enter();
        assert_pending!(waiting.poll());
    }
    drop(first); // its task ran the timer
    second.block_on(async { drop(waiting.await.unwrap()) });
}

/// Never over, under contention: 8 threads on 16 keys.
#[test]
fn threads_on_the_same_keys_never_exceed_their_limits() {
    let keyed = KeyedLimiter::new(FixedWindow::new(1_000, Duration::from_secs(3_600))).unwrap();
    let granted: Vec<AtomicUsize> = (0..16).map(|_| AtomicUsize::new(0)).collect();
    std::thread::scope(|scope| {
        for thread in 0..8_usize {
            let (keyed, granted) = (&keyed, &granted);
            scope.spawn(move || {
                for attempt in 0..4_000_usize {
                    let key = (attempt * 7 + thread) % 16;
                    let limiter = (attempt % 50 == 0).then(|| keyed.limiter(&key));
                    if keyed.try_acquire(&key).is_ok() {
                        granted[key].fetch_add(1, Ordering::Relaxed);
                    }
                    drop(limiter);
                }
            });
        }
    });
    assert!(
        granted
            .iter()
            .all(|count| count.load(Ordering::Relaxed) == 1_000),
        "{granted:?}"
    );
}

/// Invariant 1: units that were refunded or reset by hand are not refunded a second time.
#[tokio::test(start_paused = true)]
async fn a_permit_from_before_a_reset_or_a_reward_refunds_nothing() {
    for policy in policies() {
        if policy
            .limits()
            .iter()
            .any(|limit| matches!(limit, tollgate::Limit::MaxConcurrency(_)))
        {
            continue;
        }
        let keyed = KeyedLimiter::new(policy.clone()).unwrap();
        let limiter = keyed.limiter(&1).unwrap();
        let forget: [fn(&KeyedLimiter<i32>); 2] = [
            |keyed| assert!(keyed.reset(&1)),
            |keyed| keyed.reward(&1, 3),
        ];
        for forget in forget {
            keyed.reset(&1);
            let early = limiter.try_acquire_many(3).unwrap();
            forget(&keyed);
            let late = limiter.try_acquire_many(3).unwrap();
            let remaining = limiter.check(1).remaining();
            assert!(early.refund(), "it was live");
            assert_eq!(limiter.check(1).remaining(), remaining, "{policy}");
            late.release();
        }
    }
}

/// Invariant 7. A fixed bug: a key was forgotten when its bucket was full, and started again with the few tokens of a new one.
#[tokio::test(start_paused = true)]
async fn a_key_whose_bucket_starts_with_few_tokens_is_granted_at_its_retry_after() {
    let keyed = KeyedLimiter::new(bucket(1).initial(0)).unwrap();
    for key in 0..30 {
        let Err(TryAcquireError::Denied(denial)) = keyed.try_acquire(&key) else {
            panic!("the bucket is empty at first")
        };
        advance(denial.retry_after().unwrap()).await;
        (0..1_000).for_each(|other| _ = keyed.check(&(1_000 + other), 1)); // each call checks a few keys
        assert!(keyed.try_acquire(&key).is_ok(), "{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn requests_for_known_keys_forget_others_that_are_reset() {
    let bucket = TokenBucket::new(Rate::per_second(1_000_000), 1_000_000);
    let keyed = KeyedLimiter::builder(bucket).max_keys(600).build().unwrap();
    let take = |key: u64| drop(keyed.try_acquire_many(&key, 1_000).unwrap());
    (0..500).for_each(take);
    assert_eq!(keyed.len(), 500);
    advance(ms(1)).await;
    for _ in 0..1_000 {
        (0..100).for_each(|key| drop(keyed.try_acquire(&key).unwrap()));
    }
    assert!(keyed.len() < 110, "{}", keyed.len());
}

#[tokio::test(start_paused = true)]
async fn a_keyed_limiter_shows_its_name_its_bound_and_its_keys() {
    let keyed = KeyedLimiter::<u64>::builder(FixedWindow::new(3, ms(100)))
        .name("users")
        .max_keys(70)
        .build()
        .unwrap();
    assert_eq!((keyed.name(), keyed.max_keys()), (Some("users"), 70));
    assert!(keyed.is_empty());
    drop(keyed.try_acquire(&7).unwrap());
    assert!(!keyed.is_empty());
    let shown = keyed.snapshot(&7).unwrap().to_string();
    assert_eq!(shown, "1 of 3 used, 0 in flight, 0 queued");
}
