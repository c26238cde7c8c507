//! The totals over all keys, compared with a count of the answers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use crate::common::{ms, queued};
use proptest::prelude::*;
use tokio::time::advance;
use tokio_test::task::{self, Spawn};
use tollgate::store::MemoryStore;
use tollgate::{
    AcquireError, FixedWindow, KeyTotals, KeyedAcquireOwned, KeyedLimiter, MaxConcurrency, Penalty,
    Permit, Policy, Rate, SharedLimiter, SlidingWindow, Throttle, TryAcquireError, UsageCarryOver,
    WhenFull,
};

fn policies() -> Vec<Policy> {
    vec![
        Throttle::every(ms(40)).burst(3).into(),
        FixedWindow::new(3, ms(100)).into(),
        SlidingWindow::log(4, ms(100)).into(),
        Penalty::new(3, Rate::new(1, ms(40))).into(),
        MaxConcurrency::new(2).into(),
        Policy::from(Throttle::every(ms(20)).burst(3)).and(FixedWindow::new(4, ms(100))),
        Policy::from(MaxConcurrency::new(2)).and(Throttle::every(ms(20)).burst(3)),
        "3/100ms and 2/10ms and 9/s and 5/200ms".parse().unwrap(),
    ]
}

#[derive(Debug, Clone)]
enum Step {
    TryAcquire { key: u64, cost: u64 },
    Acquire { key: u64, timeout: u64 },
    ByOwnLimiter { key: u64 },
    GiveUp(prop::sample::Index),
    Release(prop::sample::Index),
    Refund(prop::sample::Index),
    Pass { millis: u64 },
    PauseFor { millis: u64 },
    SetPolicy { policy: prop::sample::Index },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (key, index) = (0_u64..6, any::<prop::sample::Index>);
    let step = prop_oneof![
        16 => (key.clone(), 1_u64..4).prop_map(|(key, cost)| Step::TryAcquire { key, cost }),
        8 => (key.clone(), 0_u64..200).prop_map(|(key, timeout)| Step::Acquire { key, timeout }),
        2 => key.prop_map(|key| Step::ByOwnLimiter { key }),
        1 => index().prop_map(Step::GiveUp),
        8 => index().prop_map(Step::Release),
        2 => index().prop_map(Step::Refund),
        8 => prop_oneof![0_u64..50, 0_u64..400].prop_map(|millis| Step::Pass { millis }),
        1 => (0_u64..100).prop_map(|millis| Step::PauseFor { millis }),
        2 => index().prop_map(|policy| Step::SetPolicy { policy }),
    ];
    prop::collection::vec(step, 1..120)
}

/// Counts the answers.
#[derive(Default)]
struct Count {
    totals: KeyTotals,
    held: Vec<Permit>,
    waiting: Vec<Spawn<KeyedAcquireOwned<u64>>>,
}

impl Count {
    fn tried(&mut self, answer: Result<Permit, TryAcquireError>) {
        match answer {
            Ok(permit) => {
                self.totals.granted += 1;
                self.held.push(permit);
            }
            Err(TryAcquireError::Denied(_)) => self.totals.denied += 1,
            Err(_) => {}
        }
    }

    /// Polls until no waiting request has an answer, because each poll may cause answers to other requests.
    fn poll_all(&mut self, keyed: &KeyedLimiter<u64>) {
        let mut waiting = self.waiting.len() + 1;
        while self.waiting.len() < waiting {
            waiting = self.waiting.len();
            self.totals.in_flight = keyed.snapshots().map(|(_, key)| key.in_flight).sum(); // each snapshot does due work
            for mut wait in std::mem::take(&mut self.waiting) {
                match wait.poll() {
                    std::task::Poll::Pending => self.waiting.push(wait),
                    std::task::Poll::Ready(Ok(permit)) => {
                        self.totals.granted += 1;
                        self.held.push(permit);
                    }
                    std::task::Poll::Ready(Err(error)) => match error {
                        AcquireError::TimedOut { .. } => self.totals.timed_out += 1,
                        AcquireError::QueueFull { .. } => self.totals.shed += 1,
                        _ => {}
                    },
                }
            }
        }
        self.totals.queued = self.waiting.len() as u64;
    }
}

fn take<T>(from: &mut Vec<T>, index: prop::sample::Index) -> Option<T> {
    (!from.is_empty()).then(|| from.swap_remove(index.index(from.len())))
}

proptest! {
    #![proptest_config(crate::common::replay::cases(500))]

    /// Six keys, of which two or all are known.
    #[test]
    fn totals_are_the_sums_of_the_answers(
        policy in prop::sample::select(policies()),
        max_keys in prop::sample::select(vec![2, 10]),
        evicts in any::<bool>(),
        steps in steps(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let when_full = if evicts { WhenFull::EvictSoonestReset } else { WhenFull::Deny };
            let keyed = KeyedLimiter::<u64>::builder(policy).max_keys(max_keys).when_full(when_full).max_queue(2).build().unwrap();
            let mut count = Count::default();
            for step in steps {
                match step {
                    Step::TryAcquire { key, cost } => count.tried(keyed.try_acquire_many(&key, cost)),
                    Step::Acquire { key, timeout } => {
                        let request = keyed.request(&key).timeout(ms(timeout));
                        count.waiting.push(task::spawn(request.acquire_owned()));
                    }
                    Step::ByOwnLimiter { key } => {
                        if let Ok(own) = keyed.limiter(&key) {
                            count.tried(own.try_acquire());
                        }
                    }
                    Step::GiveUp(index) => drop(take(&mut count.waiting, index)),
                    Step::Release(index) => drop(take(&mut count.held, index)),
                    Step::Refund(index) => {
                        let refunded = take(&mut count.held, index).is_some_and(Permit::refund);
                        count.totals.refunded += u64::from(refunded);
                    }
                    Step::Pass { millis } => advance(ms(millis)).await,
                    Step::PauseFor { millis } => keyed.pause_for(ms(millis)),
                    Step::SetPolicy { policy } => {
                        keyed.set_policy_with(policy.get(&policies()).clone(), UsageCarryOver::AsIs).unwrap();
                    }
                }
                count.poll_all(&keyed);
                prop_assert_eq!(keyed.totals(), count.totals);
            }
            Ok(())
        })?;
    }
}

/// Several threads grant, deny, evict, and make keys active and idle, while another one reads the totals.
#[test]
fn totals_only_rise_and_lose_nothing_between_threads() {
    for policy in [
        "40/s burst 3",
        "2 concurrent",
        "2 concurrent and 40/s burst 3",
        "30/s per request",
    ] {
        let keyed = KeyedLimiter::<u64>::builder(policy)
            .max_keys(24)
            .when_full(WhenFull::EvictSoonestReset)
            .build()
            .unwrap();
        // Key 0 is used up, and so the last to be evicted: it denies for certain, even if the threads run one after another.
        // The attempt that ends the loop is the first denial.
        let taken: Vec<_> = std::iter::from_fn(|| keyed.try_acquire(&0).ok()).collect();
        let (granted, denied, is_over) = (
            AtomicU64::new(taken.len() as u64),
            AtomicU64::new(1),
            AtomicBool::new(false),
        );
        thread::scope(|scope| {
            let users: Vec<_> = (0..3_u64)
                .map(|nth| {
                    let (keyed, granted, denied) = (&keyed, &granted, &denied);
                    scope.spawn(move || {
                        let mut held = Vec::new();
                        for call in 0..20_000 {
                            match keyed.try_acquire(&(call * (7 + nth) % 41)) {
                                Ok(permit) => {
                                    granted.fetch_add(1, Relaxed);
                                    held.push(permit);
                                }
                                Err(TryAcquireError::Denied(_)) => _ = denied.fetch_add(1, Relaxed),
                                Err(_) => {}
                            }
                            if call % 5 == 0 {
                                held.clear();
                            }
                        }
                    })
                })
                .collect();
            scope.spawn(|| {
                let mut before = KeyTotals::default();
                while !is_over.load(Relaxed) {
                    let now = keyed.totals();
                    assert!(
                        now.granted >= before.granted && now.denied >= before.denied,
                        "{before:?} {now:?}"
                    );
                    before = now;
                }
            });
            users.into_iter().for_each(|user| user.join().unwrap());
            is_over.store(true, Relaxed);
        });
        drop(taken);
        let totals = keyed.totals();
        assert_eq!(
            (totals.granted, totals.denied),
            (granted.into_inner(), denied.into_inner()),
            "{policy}"
        );
        assert!(
            totals.granted > 0 && totals.denied > 1 && totals.in_flight == 0,
            "{policy}: {totals:?}"
        );
    }
}

/// The counts of a key stay in the totals after its last handle is dropped.
#[tokio::test(start_paused = true)]
async fn totals_of_a_shared_limiter_are_over_all_its_keys() {
    let api = SharedLimiter::builder(MemoryStore::new(), "api", "1 concurrent")
        .max_queue(1)
        .build()
        .unwrap();
    let mut held = Vec::new();
    for key in 0..100_u64 {
        let user = api.key(key.to_string());
        held.push(user.acquire().await.unwrap());
        assert!(user.try_acquire().await.is_err());
        assert!(user.request().timeout(ms(5)).acquire().await.is_err());
    }
    let waiting = queued(api.key("0").acquire_owned());
    let mut expected = KeyTotals::default();
    (expected.granted, expected.denied, expected.timed_out) = (100, 100, 100);
    (expected.in_flight, expected.queued) = (100, 1);
    assert_eq!(api.totals(), expected);
    drop((held, waiting));
    tokio::time::sleep(Duration::from_secs(300)).await; // no key is kept any more
    api.key("new").acquire().await.unwrap().release();
    (expected.in_flight, expected.queued, expected.granted) = (0, 0, 101);
    assert_eq!(api.totals(), expected);
}
