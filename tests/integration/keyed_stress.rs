//! Keyed limiters under attack: hostile keys, observers, tiers and runtimes, alone and together.

use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, OnceLock, mpsc};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use crate::common::ms;
use tokio::time::{Instant, advance, sleep};
use tokio_test::{assert_pending, task};
use tollgate::{
    AcquireError, Adapt, FixedWindow, KeyedLimiter, Limiter, MaxConcurrency, Outcome, Policy, Rate,
    SlidingWindow, Throttle, TokenBucket, TryAcquireError, WhenFull,
};

/// A debt that does not fit into a word saturates. It does not wrap around.
#[tokio::test(start_paused = true)]
async fn a_huge_penalty_is_a_huge_debt() {
    for policy in [
        TokenBucket::new(Rate::per_second(1), 2),
        TokenBucket::new(Rate::per_second(4_000_000_000), 2),
    ] {
        let keyed = KeyedLimiter::<u8>::new(policy).unwrap();
        for shift in 0..64 {
            keyed.reset(&1);
            assert!(keyed.penalize(&1, 1 << shift));
            assert!(keyed.penalize(&1, 1 << shift));
            assert!(keyed.try_acquire(&1).is_err(), "2^{shift} units");
            assert!(
                shift < 50 || keyed.check(&1, 1).retry_after() > Some(ms(10)),
                "2^{shift} units"
            );
        }
        let limiter = keyed.limiter(&1).unwrap();
        assert!(limiter.try_acquire().is_err(), "its limiter takes it over");
    }
}

/// A store that remembers the highest fence refuses a holder with a lower one.
#[test]
fn the_fences_of_a_key_rise_although_it_was_forgotten() {
    let keyed = KeyedLimiter::<u32>::builder(MaxConcurrency::new(1))
        .max_keys(64)
        .build()
        .unwrap();
    let mut highest = 0;
    for round in 1..20 {
        let fence = keyed.try_acquire(&0).unwrap().fence();
        assert!(fence > highest, "round {round}: {fence} after {highest}");
        highest = fence;
        (1..500).for_each(|other| drop(keyed.try_acquire(&(round * 1_000 + other)).unwrap()));
        assert_eq!(keyed.snapshot(&0), None, "forgotten");
    }
}

/// The first request that waits allocates what a wait needs, while another does the same and the place comes back.
#[test]
fn the_first_requests_that_wait_for_a_key_miss_no_release() {
    const KEYS: u32 = 2_000;
    let keyed = KeyedLimiter::<u32>::new(MaxConcurrency::new(1)).unwrap();
    let line = |key| {
        (
            keyed.limiter(&key).unwrap(),
            Mutex::new(keyed.try_acquire(&key).ok()),
        )
    };
    let lines: Vec<_> = (0..KEYS).map(line).collect();
    let together = Barrier::new(3);
    let wait_in_each = || {
        let wait = |limiter: &Limiter| {
            together.wait();
            limiter
                .request()
                .timeout(Duration::from_secs(10))
                .blocking_acquire()
                .is_ok()
        };
        lines.iter().filter(|(limiter, _)| wait(limiter)).count()
    };
    std::thread::scope(|scope| {
        let waiting = [scope.spawn(wait_in_each), scope.spawn(wait_in_each)];
        for (_, held) in &lines {
            let held = held.lock().unwrap().take();
            together.wait();
            drop(held);
        }
        assert_eq!(
            waiting.map(|waiting| waiting.join().unwrap()),
            [KEYS as usize; 2]
        );
    });
    for (limiter, _) in &lines {
        assert_eq!(
            (limiter.snapshot().granted, limiter.snapshot().in_flight),
            (3, 0)
        );
    }
}

/// The first denials are counted before the key has a state.
#[test]
fn all_denials_of_a_key_are_counted() {
    const DENIALS: u64 = 70_000;
    let keyed = KeyedLimiter::<u8>::new(MaxConcurrency::new(1)).unwrap();
    let (limiter, held) = (keyed.limiter(&0).unwrap(), keyed.try_acquire(&0).unwrap());
    for denial in 1..=DENIALS {
        assert!(keyed.try_acquire(&0).is_err());
        assert!(denial > 3 || limiter.snapshot().denied == denial);
    }
    assert_eq!(limiter.snapshot().denied, DENIALS);
    drop(held);
}

#[tokio::test]
async fn no_two_permits_have_the_same_id() {
    let policies: [Policy; 2] = [
        MaxConcurrency::new(2).into(),
        TokenBucket::new(Rate::per_second(1), 10).into(),
    ];
    for policy in policies {
        let keyed = KeyedLimiter::<u32>::new(policy).unwrap();
        let mut ids = HashSet::new();
        for key in 0..10_000 {
            let limiter = (key % 3 == 0).then(|| keyed.limiter(&key).unwrap());
            for _ in 0..2 {
                assert!(
                    ids.insert(keyed.try_acquire(&key).unwrap().id()),
                    "key {key}"
                );
            }
            drop(limiter);
        }
    }
}

/// Events of a key's limiter are reported outside every lock, also when the key's tier has just changed. Here the call and the
/// observer both bring the new policy: it is applied once and reported once.
#[test]
fn an_observer_may_use_the_limiter_while_a_tier_changes() {
    static KEYED: OnceLock<KeyedLimiter<u8>> = OnceLock::new();
    static WIDE: AtomicBool = AtomicBool::new(false);
    static REPORTED: AtomicUsize = AtomicUsize::new(0);
    let limit = |wide| {
        if wide {
            MaxConcurrency::new(2)
        } else {
            MaxConcurrency::new(1).ttl(ms(10))
        }
    };
    let keyed = KeyedLimiter::builder(limit(false))
        .tiers(move |_| limit(WIDE.load(Ordering::Relaxed)).into())
        .on_event(|_| {
            assert!(KEYED.get().unwrap().snapshot(&1).is_some());
            REPORTED.fetch_add(1, Ordering::Relaxed);
        })
        .build()
        .unwrap();
    let keyed = KEYED.get_or_init(|| keyed);
    keyed.try_acquire(&1).unwrap().forget(); // outside every runtime: no timer runs
    std::thread::sleep(ms(20));
    WIDE.store(true, Ordering::Relaxed);
    let (done, waiting) = mpsc::channel();
    std::thread::spawn(move || done.send(keyed.try_acquire_many(&1, 2).is_ok()));
    assert_eq!(
        waiting.recv_timeout(Duration::from_secs(10)),
        Ok(true),
        "a deadlock"
    );
    assert_eq!(
        REPORTED.load(Ordering::Relaxed),
        2,
        "the permit was reclaimed, and the policy replaced"
    );
}

/// Calls the limiter with the key when it is woken. A wake under a lock would be a deadlock.
struct UsesLimiter(KeyedLimiter<u8>, AtomicUsize);

impl Wake for UsesLimiter {
    fn wake(self: Arc<Self>) {
        assert!(self.0.snapshot(&1).is_some());
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn a_waker_may_use_the_limiter_while_a_tier_changes() {
    let wide = Arc::new(AtomicBool::new(false));
    let is_wide = Arc::clone(&wide);
    let keyed = KeyedLimiter::<u8>::builder(MaxConcurrency::new(1))
        .tiers(move |_| {
            MaxConcurrency::new(if is_wide.load(Ordering::Relaxed) {
                2
            } else {
                1
            })
            .into()
        })
        .build()
        .unwrap();
    let _out = keyed.try_acquire(&1).unwrap();
    let uses_limiter = Arc::new(UsesLimiter(keyed.clone(), AtomicUsize::new(0)));
    let mut waiting = Box::pin(keyed.acquire(&1));
    assert!(
        waiting
            .as_mut()
            .poll(&mut Context::from_waker(&Waker::from(Arc::clone(
                &uses_limiter
            ))))
            .is_pending()
    );
    wide.store(true, Ordering::Relaxed);
    let (done, checked) = mpsc::channel();
    let other = keyed.clone();
    std::thread::spawn(move || done.send(other.check(&1, 1).is_allowed()));
    assert_eq!(
        checked.recv_timeout(Duration::from_secs(10)),
        Ok(false),
        "a deadlock"
    );
    assert_eq!(
        uses_limiter.1.load(Ordering::Relaxed),
        1,
        "the wider tier has a place for it"
    );
    assert!(waiting.await.is_ok());
}

/// An observer may run in the call of any caller, as [`tollgate::LimiterBuilder::on_event`] says.
#[test]
fn a_panic_of_an_observer_does_not_reach_the_caller() {
    let keyed = KeyedLimiter::<u8>::builder(TokenBucket::new(Rate::per_hour(1), 2))
        .max_keys(1)
        .when_full(WhenFull::EvictSoonestReset)
        .on_event(|_| resume_unwind(Box::new("on purpose, without the noise of the hook")))
        .build()
        .unwrap();
    drop(keyed.try_acquire(&1).unwrap());
    assert_eq!(keyed.try_acquire(&2).unwrap().cost(), 1, "1 was evicted");
    let _limiter = keyed.limiter(&2).unwrap();
    assert_eq!(
        keyed.try_acquire(&3).unwrap_err(),
        TryAcquireError::TooManyKeys { max: 1 }
    );
}

/// Keys whose policy keeps them always active can be evicted, too.
#[tokio::test(start_paused = true)]
async fn active_keys_that_are_not_needed_are_evicted_when_there_are_no_idle_ones() {
    let bucket = || TokenBucket::new(Rate::per_second(1), 3);
    let adaptive = MaxConcurrency::new(3).adapt(Adapt::aimd());
    let builders = [
        KeyedLimiter::builder(SlidingWindow::log(3, Duration::from_secs(60))),
        KeyedLimiter::builder(bucket()).settle_permits(),
        KeyedLimiter::builder(adaptive),
    ];
    for builder in builders {
        let keyed = builder
            .max_keys(2)
            .when_full(WhenFull::EvictSoonestReset)
            .build()
            .unwrap();
        let held = keyed.try_acquire(&"held").unwrap();
        for key in ["a", "b", "c"] {
            let permit = keyed.try_acquire(&key).unwrap();
            let fence = permit.fence();
            permit.report(Outcome::Overloaded);
            assert!(keyed.snapshot(&"held").is_some() && keyed.len() == 2);
            assert!(fence > 0);
        }
        drop(held);
    }
}

/// An adaptive concurrency that starts at a bound is reset at that bound.
#[test]
fn keys_whose_concurrency_has_not_moved_are_forgotten() {
    let adaptive = MaxConcurrency::new(5).adapt(Adapt::aimd().between(10, 20));
    let keyed = KeyedLimiter::<u32>::builder(adaptive)
        .max_keys(10)
        .build()
        .unwrap();
    for key in 0..1_000 {
        drop(keyed.try_acquire(&key).unwrap());
    }
}

/// A key whose comparison panics on demand.
#[derive(Debug, Clone)]
struct Trap(u32, Arc<AtomicBool>);

impl PartialEq for Trap {
    fn eq(&self, other: &Self) -> bool {
        if self.1.load(Ordering::Relaxed) {
            resume_unwind(Box::new("on purpose, without the noise of the hook"));
        }
        self.0 == other.0
    }
}

impl Eq for Trap {}

impl Hash for Trap {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

/// A shard in which a key has panicked still works.
#[tokio::test(start_paused = true)]
async fn keys_that_panic_leave_nothing_behind() {
    let armed = Arc::new(AtomicBool::new(false));
    let key = |number| Trap(number, Arc::clone(&armed));
    let keyed = KeyedLimiter::builder(Throttle::every(ms(100)))
        .max_keys(64)
        .build()
        .unwrap(); // two shards
    for number in 0..64 {
        drop(keyed.try_acquire(&key(number)).unwrap());
    }
    armed.store(true, Ordering::Relaxed);
    for number in 0..64 {
        assert!(catch_unwind(AssertUnwindSafe(|| drop(keyed.try_acquire(&key(number))))).is_err());
    }
    armed.store(false, Ordering::Relaxed);
    assert_eq!(keyed.len(), 64);
    advance(ms(100)).await;
    // All are reset; whichever shard a new key belongs to, the keys of the other shard make room for it.
    for number in 64..128 {
        assert!(keyed.try_acquire(&key(number)).is_ok(), "{number}");
        advance(ms(1)).await;
    }
    assert_eq!(keyed.snapshots().count(), keyed.len());
}

#[tokio::test(start_paused = true)]
async fn a_timeout_that_is_too_long_is_an_error_also_for_an_idle_key() {
    let keyed = KeyedLimiter::<u8>::new(Throttle::every(ms(100))).unwrap();
    let error = keyed
        .request(&1)
        .timeout(Duration::MAX)
        .acquire()
        .await
        .unwrap_err();
    assert!(
        matches!(error, AcquireError::TimeoutTooLong { .. }),
        "{error}"
    );
    assert!(keyed.is_empty());
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        resume_unwind(Box::new("on purpose, without the noise of the hook"));
    }
}

/// The task with the timer of many keys ends with its runtime: all waiters elsewhere are woken.
#[test]
fn a_waker_that_panics_when_its_runtime_ends_strands_no_other_key() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap()
    };
    let keyed = KeyedLimiter::<u32>::new(Throttle::every(ms(500))).unwrap();
    let (first, second) = (runtime(), runtime());
    let keys: Vec<u32> = (0..20).collect();
    let mut panicking: Vec<_> = keys
        .iter()
        .map(|key| Box::pin(keyed.acquire(key)))
        .collect();
    let others: Vec<u32> = (100..120).collect();
    let mut waiting: Vec<_> = others
        .iter()
        .map(|key| task::spawn(keyed.acquire(key)))
        .collect();
    first.block_on(async {
        for key in keys.iter().chain(&others) {
            drop(keyed.try_acquire(key).unwrap());
        }
        let panics = Waker::from(Arc::new(Panics));
        for acquire in &mut panicking {
            assert!(
                acquire
                    .as_mut()
                    .poll(&mut Context::from_waker(&panics))
                    .is_pending()
            );
        }
        waiting
            .iter_mut()
            .for_each(|acquire| assert_pending!(acquire.poll()));
        tokio::task::yield_now().await;
    });
    let _ = catch_unwind(AssertUnwindSafe(|| drop(first)));
    assert!(
        waiting.iter().all(task::Spawn::is_woken),
        "they must start another driver"
    );
    second.block_on(async {
        for acquire in waiting {
            drop(acquire.await.unwrap());
        }
    });
}

/// On two threads, tasks call every operation on a few keys. In the end every unit is accounted for.
#[test]
fn two_hundred_tasks_on_twenty_keys_lose_nothing_and_exceed_nothing() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .unwrap();
    let tasks = runtime.metrics();
    let hour = Duration::from_secs(3_600);
    let policies: Vec<(Policy, Option<u64>, Option<u64>)> = vec![
        (MaxConcurrency::new(3).into(), Some(3), None),
        (MaxConcurrency::new(2).ttl(hour).into(), Some(2), None),
        (FixedWindow::new(500, hour).into(), None, Some(500)),
        (
            Policy::from(MaxConcurrency::new(3)).and(FixedWindow::new(500, hour)),
            Some(3),
            Some(500),
        ),
        (
            Throttle::every(Duration::from_micros(200)).burst(2).into(),
            None,
            None,
        ),
    ];
    for (number, (policy, places, units)) in policies.into_iter().enumerate() {
        let keyed = KeyedLimiter::<u64>::new(policy.clone()).unwrap();
        let used: Arc<Vec<(AtomicU64, AtomicU64)>> =
            Arc::new((0..20).map(|_| Default::default()).collect());
        let workers: Vec<_> = (0..200_u64)
            .map(|worker| {
                let (keyed, used) = (keyed.clone(), Arc::clone(&used));
                runtime.spawn(async move {
                    let mut random = (worker + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    for _ in 0..60 {
                        random ^= random << 13;
                        random ^= random >> 7;
                        random ^= random << 17;
                        let key = random % 20;
                        let limiter = (random >> 20 & 7 == 0).then(|| keyed.limiter(&key).unwrap());
                        let permit = match random >> 8 & 7 {
                            0..=2 => tokio::time::timeout(
                                Duration::from_micros(random >> 12 & 1_023),
                                keyed.acquire(&key),
                            )
                            .await
                            .ok()
                            .and_then(Result::ok),
                            3 => match &limiter {
                                Some(limiter) => limiter.try_acquire().ok(),
                                None => keyed.try_acquire(&key).ok(),
                            },
                            4 => {
                                let mut acquire = task::spawn(keyed.acquire(&key));
                                match acquire.poll() {
                                    std::task::Poll::Ready(permit) => permit.ok(),
                                    std::task::Poll::Pending => None,
                                }
                            }
                            5 => keyed.snapshots().map(|_| ()).last().and(None),
                            6 => {
                                let _ = keyed.check(&key, 1);
                                None
                            }
                            _ => keyed.try_acquire(&key).ok(),
                        };
                        let Some(permit) = permit else { continue };
                        let (out, ever) = &used[key as usize];
                        let now_out = out.fetch_add(1, Ordering::SeqCst) + 1;
                        let now_ever = ever.fetch_add(1, Ordering::SeqCst) + 1;
                        assert!(
                            places.is_none_or(|places| now_out <= places),
                            "{now_out} out"
                        );
                        assert!(
                            units.is_none_or(|units| now_ever <= units),
                            "{now_ever} units"
                        );
                        if random >> 30 & 1 == 0 {
                            tokio::task::yield_now().await;
                        }
                        out.fetch_sub(1, Ordering::SeqCst);
                        drop(permit);
                        if units.is_none() && random >> 31 & 15 == 0 {
                            _ = keyed.penalize(&key, 1);
                            keyed.reward(&key, 1);
                        }
                    }
                })
            })
            .collect();
        let all = async {
            for worker in workers {
                worker.await.unwrap();
            }
        };
        runtime
            .block_on(async { tokio::time::timeout(Duration::from_secs(60), all).await })
            .expect("a request is stranded");
        for (key, numbers) in keyed.snapshots() {
            assert_eq!(
                (numbers.in_flight, numbers.queued),
                (0, 0),
                "key {key} of {policy}"
            );
            if let Some(units) = units {
                let ever = used[key as usize].1.load(Ordering::SeqCst);
                assert!(ever <= units);
                assert_eq!(numbers.used, ever, "key {key} of {policy}");
            }
        }
        assert!(keyed.len() <= 20 && keyed.snapshots().count() == keyed.len());
        drop(keyed);
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while tasks.num_alive_tasks() > 0 {
            assert!(
                std::time::Instant::now() < deadline,
                "policy {number} leaves a task behind"
            );
            std::thread::sleep(ms(1));
        }
    }
}

/// A limiter in a `static` sees runtimes come and go, some of them with waiters, some that are never polled.
#[test]
fn runtimes_that_end_strand_no_waiter() {
    static KEYED: OnceLock<KeyedLimiter<u32>> = OnceLock::new();
    let keyed = KEYED.get_or_init(|| {
        let limits = Policy::from(MaxConcurrency::new(1)).and(Throttle::every(ms(2)));
        KeyedLimiter::builder(limits).max_keys(64).build().unwrap()
    });
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_time()
            .build()
            .unwrap()
    };
    let idle = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let last = runtime();
    let waiting: Vec<_> = (0..20)
        .map(|key| {
            last.spawn(async move {
                for _ in 0..20 {
                    let permit = keyed.acquire(&key).await.unwrap();
                    sleep(Duration::from_micros(300)).await;
                    drop(permit);
                }
            })
        })
        .collect();
    for round in 0..10 {
        let passing = runtime();
        for key in 0..40 {
            passing.spawn(async move {
                while let Ok(permit) = keyed.acquire(&(key % 20)).await {
                    sleep(Duration::from_micros(100)).await;
                    drop(permit);
                }
            });
        }
        let mut never_run: Vec<_> = (0..20)
            .map(|key| Box::pin(async move { keyed.acquire(&key).await }))
            .collect();
        {
            let _in_idle = idle.enter();
            let mut context = Context::from_waker(Waker::noop());
            never_run
                .iter_mut()
                .for_each(|acquire| drop(acquire.as_mut().poll(&mut context)));
        }
        std::thread::sleep(ms(3 + round));
        drop(passing);
        drop(never_run);
    }
    let all = async {
        for task in waiting {
            task.await.unwrap();
        }
    };
    last.block_on(async { tokio::time::timeout(Duration::from_secs(30), all).await })
        .expect("a request is stranded");
    assert!(
        keyed
            .snapshots()
            .all(|(_, numbers)| (numbers.in_flight, numbers.queued) == (0, 0))
    );
}

/// Invariant 3, while the key becomes active and idle.
#[tokio::test(start_paused = true)]
async fn the_order_of_a_key_holds_while_others_come_and_go() {
    let keyed = KeyedLimiter::<u32>::builder(Throttle::every(ms(10)))
        .max_keys(64)
        .build()
        .unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    drop(keyed.try_acquire(&0).unwrap());
    for number in 0..50 {
        let (waiter, order) = (keyed.clone(), Arc::clone(&order));
        tasks.push(tokio::spawn(async move {
            if number % 7 == 3 {
                return drop(tokio::time::timeout(ms(15), waiter.acquire(&0)).await);
            }
            drop(waiter.acquire(&0).await.unwrap());
            order.lock().unwrap().push((number, Instant::now()));
        }));
        tokio::task::yield_now().await;
        (1..20).for_each(|other| drop(keyed.try_acquire(&other)));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let order = order.lock().unwrap().clone();
    assert!(order.is_sorted(), "{order:?}");
    assert!(order.windows(2).all(|pair| pair[1].1 - pair[0].1 >= ms(10)));
    sleep(ms(10)).await;
    assert!(keyed.try_acquire(&0).is_ok());
}
