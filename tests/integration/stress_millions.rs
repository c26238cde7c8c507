//! Many permits on two workers: fences have no gaps, no limit is exceeded, and in the end every unit is back.
//!
//! `scripts/stress` takes ten million permits in each test, in the release profile.

use std::env;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::common::Random;
use futures_util::poll;
use tokio::task::yield_now;
use tollgate::{FixedWindow, Limiter, MaxConcurrency, Permit, Policy, Throttle, TryAcquireError};

const TASKS: u64 = 32;
const MAX_COST: u64 = 3;

/// The rates are lower than the throughput of two workers, so that the limits deny.
const UNITS_PER_MILLI: u64 = if cfg!(debug_assertions) { 200 } else { 1_000 };
const NANOS_PER_MILLI: u64 = 1_000_000;

/// The number of permits that all tasks of a test take together.
fn permits() -> u64 {
    env::var("STRESS_PERMITS").map_or(200_000, |permits| {
        permits.parse().expect("STRESS_PERMITS is a number")
    })
}

struct Grant {
    fence: u64,
    cost: u64,
    /// `None` if the policy reads no clock.
    at: Option<Instant>,
}

/// A limiter under stress, and the counts of the test.
struct Stress {
    limiter: Limiter,
    /// One of them is in force.
    policies: [Policy; 2],
    /// The most units in flight that one of the policies allows.
    max_in_flight: u64,
    in_flight: AtomicU64,
    denied: AtomicU64,
}

/// Decrements the count before the permit is released.
struct Held<'a>(
    #[expect(dead_code, reason = "held")] Permit,
    &'a AtomicU64,
    u64,
);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.1.fetch_sub(self.2, Ordering::SeqCst);
    }
}

impl Stress {
    /// Takes this many permits in each task, and returns all grants that reached a task.
    async fn run(limiter: &Limiter, policies: [Policy; 2], max_in_flight: u64) -> Vec<Grant> {
        let (in_flight, denied) = Default::default();
        let stress = Arc::new(Self {
            limiter: limiter.clone(),
            policies,
            max_in_flight,
            in_flight,
            denied,
        });
        let tasks: Vec<_> = (1..=TASKS)
            .map(|seed| tokio::spawn(Arc::clone(&stress).take(permits() / TASKS, seed)))
            .collect();
        let all = async {
            let mut grants = Vec::new();
            for task in tasks {
                grants.extend(task.await.expect("the task ran to its end"));
            }
            grants
        };
        let grants = tokio::time::timeout(Duration::from_secs(600), all)
            .await
            .expect("a waiter is stranded");
        stress.check_the_end(&grants);
        grants
    }

    async fn take(self: Arc<Self>, permits: u64, seed: u64) -> Vec<Grant> {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let mut grants = Vec::with_capacity(permits as usize);
        while (grants.len() as u64) < permits {
            if random.below(1_000) == 0 {
                self.interfere(&mut random).await;
            }
            let cost = 1 + random.below(MAX_COST);
            let Some(permit) = self.acquire(cost, &mut random).await else {
                continue;
            };
            let at = permit.acquired_at().map(tokio::time::Instant::into_std);
            grants.push(Grant {
                fence: permit.fence(),
                cost,
                at,
            });
            let in_flight = self.in_flight.fetch_add(cost, Ordering::SeqCst) + cost;
            let _held = Held(permit, &self.in_flight, cost);
            assert!(
                in_flight <= self.max_in_flight,
                "{in_flight} units in flight"
            );
            if random.below(4) == 0 {
                yield_now().await;
            }
        }
        grants
    }

    async fn acquire(&self, cost: u64, random: &mut Random) -> Option<Permit> {
        match random.below(8) {
            0..=3 => match self.limiter.try_acquire_many(cost) {
                Ok(permit) => Some(permit),
                Err(TryAcquireError::Denied(_)) => {
                    self.denied.fetch_add(1, Ordering::Relaxed);
                    yield_now().await;
                    None
                }
                Err(error) => panic!("{error}"),
            },
            4 => {
                let mut acquire = pin!(self.limiter.acquire_many(cost));
                match poll!(&mut acquire) {
                    Poll::Ready(permit) => Some(permit.unwrap()),
                    Poll::Pending => {
                        // Dropped while it waits, or after it was granted a permit that it did not take.
                        for _ in 0..random.below(3) {
                            yield_now().await;
                        }
                        None
                    }
                }
            }
            _ => Some(self.limiter.acquire_many(cost).await.unwrap()),
        }
    }

    async fn interfere(&self, random: &mut Random) {
        match random.below(5) {
            0 => self
                .limiter
                .set_policy(self.policies[random.below(2) as usize].clone())
                .unwrap(),
            1 => self
                .limiter
                .pause_for(Duration::from_micros(random.below(50))),
            2 => {
                self.limiter.pause_for(Duration::MAX);
                yield_now().await;
                self.limiter.resume();
            }
            3 => assert!(self.limiter.check(1).remaining() <= self.max_in_flight),
            _ => {
                let (former, latter) = (self.limiter.snapshot(), self.limiter.snapshot());
                assert!(
                    former.granted <= latter.granted && latter.in_flight <= self.max_in_flight,
                    "{former:?} {latter:?}"
                );
            }
        }
    }

    fn check_the_end(&self, grants: &[Grant]) {
        let snapshot = self.limiter.snapshot();
        assert_eq!(
            (snapshot.in_flight, snapshot.queued),
            (0, 0),
            "{snapshot:?}"
        );
        assert_eq!(
            snapshot.granted,
            grants.len() as u64 + snapshot.refunded,
            "{snapshot:?}"
        );
        assert_eq!(
            snapshot.denied,
            self.denied.load(Ordering::Relaxed),
            "{snapshot:?}"
        );
        assert!(
            snapshot.denied > 0 && snapshot.refunded > 0,
            "nothing was contended: {snapshot:?}"
        );
        // The fences of the grants that were taken are all different, and at most the number of all grants. So the fences of all
        // grants are 1, 2, 3 and so on, and those that are missing here belong to grants that were undone.
        let mut seen = vec![false; snapshot.granted as usize];
        for Grant { fence, .. } in grants {
            let seen = seen
                .get_mut(*fence as usize - 1)
                .expect("a fence above the number of grants");
            assert!(
                !std::mem::replace(seen, true),
                "fence {fence} was given twice"
            );
        }
    }
}

/// The grants in order of time, as instants in nanoseconds since `start` with their costs.
fn timeline(grants: &[Grant], start: Instant) -> Vec<(u64, u64)> {
    let nanos = |grant: &Grant| {
        grant
            .at
            .expect("a rate knows its grant times")
            .duration_since(start)
            .as_nanos() as u64
    };
    let mut timeline: Vec<_> = grants
        .iter()
        .map(|grant| (nanos(grant), grant.cost))
        .collect();
    timeline.sort_unstable();
    timeline
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrency_is_never_exceeded_and_every_place_comes_back() {
    let policies = [8, 5].map(|limit| Policy::from(MaxConcurrency::new(limit)));
    let limiter = Limiter::new(policies[0].clone()).unwrap();
    Stress::run(&limiter, policies.clone(), 8).await;
    limiter.set_policy(policies[0].clone()).unwrap();
    limiter.resume();
    assert!(limiter.try_acquire_many(8).is_ok(), "a place is lost");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_throttle_keeps_its_rate_at_every_grant() {
    const INTERVAL: u64 = NANOS_PER_MILLI / UNITS_PER_MILLI;
    const BURST: u64 = 10 * UNITS_PER_MILLI;
    let policy = Policy::from(Throttle::every(Duration::from_nanos(INTERVAL)).burst(BURST));
    let limiter = Limiter::new(policy.clone()).unwrap();
    let start = Instant::now();
    let grants = Stress::run(&limiter, [policy.clone(), policy], u64::MAX).await;
    // The generic cell rate algorithm: when the units of all grants so far would have arrived at an even rate.
    let mut arrival = 0;
    for (at, cost) in timeline(&grants, start) {
        arrival = at.max(arrival) + cost * INTERVAL;
        assert!(
            arrival <= at + BURST * INTERVAL,
            "over the rate, {at} ns after the start"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fixed_window_keeps_its_limit_in_every_window() {
    const LIMIT: u64 = 10 * UNITS_PER_MILLI;
    const PERIOD: u64 = 10 * NANOS_PER_MILLI;
    let policy = Policy::from(FixedWindow::new(LIMIT, Duration::from_nanos(PERIOD)));
    let start = Instant::now();
    let limiter = Limiter::new(policy.clone()).unwrap();
    // The first window began between `start` and now.
    let uncertain = start.elapsed().as_nanos() as u64;
    let grants = Stress::run(&limiter, [policy.clone(), policy], u64::MAX).await;
    let (mut window, mut used) = (0, 0);
    // A grant so close to a boundary that it may belong to either window is left out.
    for (at, cost) in timeline(&grants, start)
        .into_iter()
        .filter(|(at, _)| at % PERIOD >= uncertain)
    {
        used = if at / PERIOD == window {
            used + cost
        } else {
            cost
        };
        window = at / PERIOD;
        assert!(used <= LIMIT, "{used} units in window {window}");
    }
}
