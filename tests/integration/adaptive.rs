//! Adaptive concurrency from end to end: the limit settles at the capacity of a server, for every way to acquire permits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use crate::common::ms;
use futures_util::StreamExt as _;
use futures_util::stream;
use proptest::prelude::*;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_test::task;
use tollgate::{
    Adapt, KeyedLimiter, Limiter, LimiterGroup, MaxConcurrency, Outcome, Permit, Policy,
    SlidingWindow, StreamLimitExt as _, TryAcquireError,
};

/// The number of calls that the server works on at once: the knee.
const KNEE: usize = 10;
/// How long the server works on a call. A call takes longer if it waits for its turn.
const WORK: Duration = ms(20);
/// The server refuses a call when it holds this many.
const FULL: usize = 3 * KNEE;
/// More than the server can take, so that every place of the limit is in use.
const CALLERS: usize = 60;

struct Server {
    places: Semaphore,
    inside: AtomicUsize,
}

impl Server {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            places: Semaphore::new(KNEE),
            inside: AtomicUsize::new(0),
        })
    }

    async fn call(&self) -> Outcome {
        if self.inside.load(Ordering::Relaxed) >= FULL {
            sleep(ms(1)).await;
            return Outcome::Overloaded;
        }
        self.inside.fetch_add(1, Ordering::Relaxed);
        let place = self.places.acquire().await.unwrap();
        sleep(WORK).await;
        drop(place);
        self.inside.fetch_sub(1, Ordering::Relaxed);
        Outcome::Ok
    }
}

/// Lets all callers call the server until `end`, one call after the other.
async fn call_until<F>(end: Instant, acquire: impl Fn() -> F + Clone + Send + 'static)
where
    F: Future<Output = Permit> + Send,
{
    let (server, mut callers) = (Server::new(), JoinSet::new());
    for _ in 0..CALLERS {
        let (server, acquire) = (Arc::clone(&server), acquire.clone());
        callers.spawn(async move {
            while Instant::now() < end {
                let permit = acquire().await;
                permit.report(server.call().await);
            }
        });
    }
    while let Some(done) = callers.join_next().await {
        done.unwrap();
    }
}

/// The limits during the work, after the first four seconds.
async fn watch(end: Instant, limit: impl Fn() -> u64) -> Vec<u64> {
    sleep(Duration::from_secs(4)).await;
    let mut seen = Vec::new();
    while Instant::now() < end {
        seen.push(limit());
        sleep(ms(7)).await;
    }
    seen.sort_unstable();
    seen
}

/// A rule, and the range in which the limit is to settle.
#[derive(Debug, Clone, Copy)]
struct Case {
    adapt: Adapt,
    low: u64,
    high: u64,
}

impl Case {
    fn all() -> [Self; 4] {
        [
            Self {
                adapt: Adapt::aimd().timeout(WORK + ms(2)),
                low: 8,
                high: 12,
            },
            Self {
                adapt: Adapt::aimd(),
                low: 25,
                high: 31,
            }, // the server refuses the 31st
            Self {
                adapt: Adapt::gradient(),
                low: 15,
                high: 21,
            }, // 1.5 × 10 + √limit
            Self {
                adapt: Adapt::gradient().tolerance(1_100),
                low: 11,
                high: 17,
            }, // 1.1 × 10 + √limit
        ]
    }

    fn concurrency(self, initial: u64) -> MaxConcurrency {
        MaxConcurrency::new(initial).adapt(self.adapt.between(1, 200))
    }

    /// The gradient rule probes below its limit for the round trip of the unloaded server, so a fifth of the time may be lower. No
    /// limit is ever higher.
    #[track_caller]
    fn assert_settled(self, seen: &[u64]) {
        let (low, high) = (seen[seen.len() / 5], seen[seen.len() - 1]);
        assert!(
            self.low <= low && high <= self.high,
            "from {low} to {high}: {self:?}"
        );
    }
}

fn end() -> Instant {
    Instant::now() + Duration::from_secs(12)
}

#[tokio::test(start_paused = true)]
async fn the_limit_of_a_limiter_settles_at_the_knee_of_its_server() {
    for case in Case::all() {
        for initial in [4, 30] {
            let (limiter, end) = (Limiter::new(case.concurrency(initial)).unwrap(), end());
            let work = tokio::spawn(call_until(end, {
                let limiter = limiter.clone();
                move || {
                    let limiter = limiter.clone();
                    async move { limiter.acquire().await.unwrap() }
                }
            }));
            case.assert_settled(&watch(end, || limiter.check(1).limit()).await);
            work.await.unwrap();
        }
    }
}

/// No request is queued: every permit is granted in its own call.
#[tokio::test(start_paused = true)]
async fn the_limit_settles_for_callers_that_do_not_wait() {
    for case in Case::all() {
        let (limiter, end) = (Limiter::new(case.concurrency(20)).unwrap(), end());
        let work = tokio::spawn(call_until(end, {
            let limiter = limiter.clone();
            move || {
                let limiter = limiter.clone();
                async move {
                    loop {
                        match limiter.try_acquire() {
                            Ok(permit) => return permit,
                            Err(_) => sleep(ms(9)).await,
                        }
                    }
                }
            }
        }));
        case.assert_settled(&watch(end, || limiter.check(1).limit()).await);
        work.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn the_limit_of_each_key_settles_at_the_knee_of_its_server() {
    for case in Case::all() {
        let (keyed, end) = (KeyedLimiter::new(case.concurrency(20)).unwrap(), end());
        let mut work = JoinSet::new();
        for key in ["a", "b"] {
            let keyed = keyed.clone();
            work.spawn(call_until(end, move || {
                let keyed = keyed.clone();
                async move { keyed.acquire(&key).await.unwrap() }
            }));
        }
        let (a, b) = tokio::join!(
            watch(end, || keyed.check(&"a", 1).limit()),
            watch(end, || keyed.check(&"b", 1).limit())
        );
        case.assert_settled(&a);
        case.assert_settled(&b);
        work.join_all().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_limit_of_a_stream_settles_at_the_knee_of_its_server() {
    for case in Case::all() {
        let (limiter, server, end) = (
            Limiter::new(case.concurrency(20)).unwrap(),
            Server::new(),
            end(),
        );
        let items = stream::repeat(())
            .take_until(sleep_until(end))
            .with_permits(&limiter);
        let work = items.for_each_concurrent(None, |item| async {
            let ((), permit) = item.unwrap();
            permit.report(server.call().await);
        });
        let (seen, ()) = tokio::join!(watch(end, || limiter.check(1).limit()), work);
        case.assert_settled(&seen);
    }
}

/// A rate in the same policy reads the clock too, and a TTL records the time of the grant.
#[tokio::test(start_paused = true)]
async fn the_limit_settles_equally_beside_a_rate_a_concurrency_or_a_ttl() {
    for case in Case::all() {
        let concurrency = case.concurrency(20);
        let others = [
            Policy::from(concurrency).and(SlidingWindow::counter(1_000_000, ms(1_000))),
            Policy::from(concurrency).and(MaxConcurrency::new(500)),
            Policy::from(concurrency.ttl(Duration::from_secs(60))),
        ];
        for policy in others {
            let (limiter, end) = (Limiter::new(policy).unwrap(), end());
            let work = tokio::spawn(call_until(end, {
                let limiter = limiter.clone();
                move || {
                    let limiter = limiter.clone();
                    async move { limiter.acquire().await.unwrap() }
                }
            }));
            case.assert_settled(&watch(end, || limiter.snapshot().concurrency.unwrap()).await);
            work.await.unwrap();
        }
    }
}

/// 10 at first; a round trip of more than 100 ms is an overload, which leaves 9.
fn late_after_100_ms() -> MaxConcurrency {
    MaxConcurrency::new(10).adapt(Adapt::aimd().timeout(ms(100)).between(1, 10))
}

/// Holds a permit for `span`, reports that the work is done, and returns the limit.
async fn work_for(permit: Permit, span: Duration, limiter: &Limiter) -> u64 {
    sleep(span).await;
    assert!(permit.report(Outcome::Ok));
    limiter.check(1).limit()
}

/// For every way to acquire a permit, its round trip begins with the grant, not with the request or the limiter.
#[tokio::test(start_paused = true)]
async fn every_way_to_a_permit_measures_the_time_since_the_grant() {
    for (span, left) in [(ms(100), 10), (ms(101), 9)] {
        let new = || Limiter::new(late_after_100_ms()).unwrap();
        let limiter = new();
        assert_eq!(
            work_for(limiter.try_acquire().unwrap(), span, &limiter).await,
            left,
            "at the limiter's first instant"
        );

        let limiter = new();
        sleep(ms(5_000)).await;
        assert_eq!(
            work_for(limiter.try_acquire().unwrap(), span, &limiter).await,
            left,
            "in place"
        );
        let limiter = new();
        assert_eq!(
            work_for(limiter.acquire().await.unwrap(), span, &limiter).await,
            left,
            "in place, by a future"
        );
        let limiter = new();
        let permit = limiter.request().timeout(ms(7)).acquire().await.unwrap();
        assert_eq!(
            work_for(permit, span, &limiter).await,
            left,
            "with a timeout"
        );
        let limiter = new();
        let handle = limiter.clone();
        let permit = tokio::task::spawn_blocking(move || handle.blocking_acquire().unwrap())
            .await
            .unwrap();
        assert_eq!(work_for(permit, span, &limiter).await, left, "blocking");

        let limiter = new();
        let held: Vec<_> = (0..10).map(|_| limiter.try_acquire().unwrap()).collect();
        let queued = tokio::spawn({
            let limiter = limiter.clone();
            async move { limiter.acquire().await.unwrap() }
        });
        sleep(ms(5_000)).await;
        drop(held);
        assert_eq!(
            work_for(queued.await.unwrap(), span, &limiter).await,
            left,
            "from the queue"
        );

        let keyed = KeyedLimiter::new(late_after_100_ms()).unwrap();
        sleep(ms(5_000)).await;
        let limiter = keyed.limiter(&1).unwrap();
        assert_eq!(
            work_for(keyed.try_acquire(&1).unwrap(), span, &limiter).await,
            left,
            "of a key"
        );
        let limiter = keyed.limiter(&2).unwrap();
        assert_eq!(
            work_for(keyed.acquire(&2).await.unwrap(), span, &limiter).await,
            left,
            "of a key, by a future"
        );
        let limiter = keyed.limiter(&3).unwrap();
        let permit = keyed.request(&3).timeout(ms(7)).acquire().await.unwrap();
        assert_eq!(
            work_for(permit, span, &limiter).await,
            left,
            "of a key, with a timeout"
        );
        let limiter = keyed.limiter(&4).unwrap();
        assert_eq!(
            work_for(limiter.try_acquire().unwrap(), span, &limiter).await,
            left,
            "of a key's limiter"
        );

        let limiter = new();
        let mut items = std::pin::pin!(stream::iter([1]).with_permits(&limiter));
        let (_, permit) = items.next().await.unwrap().unwrap();
        assert_eq!(work_for(permit, span, &limiter).await, left, "of a stream");

        let (first, second) = (new(), new());
        let group = LimiterGroup::new([first.clone(), second.clone()]);
        let [permit, _] =
            <[Permit; 2]>::try_from(group.try_acquire().unwrap().into_permits()).unwrap();
        assert_eq!(work_for(permit, span, &first).await, left, "of a group");
        let held: Vec<_> = std::iter::from_fn(|| first.try_acquire().ok()).collect();
        let queued = tokio::spawn(async move { group.acquire().await.unwrap() });
        sleep(ms(5_000)).await;
        drop(held);
        let [_, permit] = <[Permit; 2]>::try_from(queued.await.unwrap().into_permits()).unwrap();
        assert_eq!(
            work_for(permit, span, &second).await,
            left,
            "of a group that waited"
        );
    }
}

/// `run`, streams and a dropped permit report no outcome.
#[tokio::test(start_paused = true)]
async fn work_that_reports_nothing_leaves_the_limit_where_it_is() {
    let limiter = Limiter::new(late_after_100_ms()).unwrap();
    limiter.run(sleep(ms(500))).await.unwrap();
    stream::iter(0..50)
        .for_each_permitted(&limiter, |_| sleep(ms(500)))
        .await
        .unwrap();
    assert_eq!(stream::iter(0..50).with_permits(&limiter).count().await, 50);
    drop(limiter.acquire().await.unwrap());
    assert_eq!(limiter.check(1).limit(), 10);
}

/// If two clocks differ, their difference is never taken for a round trip. An overload still counts.
#[test]
fn the_difference_of_two_clocks_is_not_a_round_trip() {
    let runtime = |paused| {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(paused)
            .build()
            .unwrap()
    };
    let limiter = Limiter::new(late_after_100_ms()).unwrap();
    let (here, there) = (runtime(false), runtime(true));
    there.block_on(async {
        sleep(Duration::from_secs(3_600)).await;
        drop(limiter.acquire().await.unwrap());
    });
    for _ in 0..50 {
        let permit = here.block_on(limiter.acquire()).unwrap();
        assert!(permit.report(Outcome::Ok));
    }
    assert_eq!(limiter.check(1).limit(), 10);
    here.block_on(limiter.acquire())
        .unwrap()
        .report(Outcome::Overloaded);
    assert_eq!(limiter.check(1).limit(), 9);
}

/// A permit that was granted when nothing read the clock has no round trip: neither one in flight when the limit begins to adapt,
/// nor one that its caller has not taken yet.
#[tokio::test(start_paused = true)]
async fn a_permit_granted_before_the_limit_adapts_does_not_move_it() {
    for outcome in [Outcome::Ok, Outcome::Overloaded] {
        let limiter = Limiter::new(MaxConcurrency::new(2)).unwrap();
        let (out, held) = (
            limiter.try_acquire().unwrap(),
            limiter.try_acquire().unwrap(),
        );
        let mut untaken = task::spawn(limiter.acquire());
        let mut waiting = task::spawn(limiter.acquire());
        assert!(untaken.poll().is_pending() && waiting.poll().is_pending());
        sleep(Duration::from_secs(50)).await;
        drop(held);
        limiter.set_policy(late_after_100_ms()).unwrap();
        assert!(out.report(outcome));
        let Poll::Ready(Ok(permit)) = untaken.poll() else {
            panic!("it was granted")
        };
        assert!(permit.report(outcome));
        assert_eq!(limiter.check(1).limit(), 10);
        let Poll::Ready(Ok(permit)) = waiting.poll() else {
            panic!("the new limit has a place")
        };
        assert_eq!(
            work_for(permit, ms(101), &limiter).await,
            9,
            "granted since"
        );
    }
}

const TEN_MINUTES: Duration = Duration::from_secs(600);

/// 20 at first; an overload leaves 18.
fn aimd() -> MaxConcurrency {
    MaxConcurrency::new(20).adapt(Adapt::aimd())
}

/// A fixed bug: a key whose limit had moved was kept forever, so the table filled up.
#[tokio::test(start_paused = true)]
async fn a_key_whose_limit_has_moved_can_be_forgotten_ten_minutes_after_its_last_report() {
    for concurrency in [aimd(), MaxConcurrency::new(20).adapt(Adapt::gradient())] {
        let keyed = KeyedLimiter::builder(concurrency)
            .max_keys(100)
            .build()
            .unwrap();
        for key in 0..100 {
            keyed.try_acquire(&key).unwrap().report(Outcome::Overloaded);
        }
        assert_eq!(keyed.snapshot(&0).unwrap().reset_after, TEN_MINUTES);
        sleep(TEN_MINUTES - ms(1)).await;
        assert_eq!(
            keyed.try_acquire(&100).unwrap_err(),
            TryAcquireError::TooManyKeys { max: 100 }
        );
        assert_eq!(keyed.check(&0, 1).limit(), 18);
        sleep(ms(1)).await;
        assert_eq!(keyed.check(&0, 1).limit(), 20);
        for key in 100..1_100 {
            keyed.try_acquire(&key).unwrap().report(Outcome::Ignored);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_limit_starts_again_ten_minutes_after_the_last_report() {
    let limiter = Limiter::new(aimd()).unwrap();
    limiter.try_acquire().unwrap().report(Outcome::Overloaded);
    sleep(TEN_MINUTES - ms(1)).await;
    assert_eq!(
        (
            limiter.check(1).limit(),
            limiter.check(1).remaining(),
            limiter.snapshot().concurrency
        ),
        (18, 18, Some(18))
    );
    assert_eq!(limiter.check(1).reset_after(), ms(1));
    drop(limiter.try_acquire().unwrap()); // reports nothing
    sleep(ms(1)).await;
    assert_eq!(
        (
            limiter.check(1).limit(),
            limiter.check(1).remaining(),
            limiter.snapshot().concurrency
        ),
        (20, 20, Some(20))
    );
    let held: Vec<_> = std::iter::from_fn(|| limiter.try_acquire().ok()).collect();
    assert_eq!(held.len(), 20);
}

/// Never over: while any permit is in flight, the limit stays as it is and the key is not forgotten.
#[tokio::test(start_paused = true)]
async fn a_limit_with_a_place_out_does_not_start_again() {
    let keyed = KeyedLimiter::builder(aimd()).max_keys(2).build().unwrap();
    keyed
        .try_acquire(&"held")
        .unwrap()
        .report(Outcome::Overloaded);
    let held = keyed.try_acquire(&"held").unwrap();
    sleep(2 * TEN_MINUTES).await;
    for key in ["a", "b", "c", "d"] {
        keyed.try_acquire(&key).unwrap().report(Outcome::Ignored);
    }
    assert_eq!(
        (
            keyed.check(&"held", 1).limit(),
            keyed.check(&"held", 1).remaining()
        ),
        (18, 17)
    );
    let others: Vec<_> = std::iter::from_fn(|| keyed.try_acquire(&"held").ok()).collect();
    assert_eq!(others.len(), 17);
    drop((held, others));
    assert_eq!(keyed.check(&"held", 1).remaining(), 20);
    let all: Vec<_> = std::iter::from_fn(|| keyed.try_acquire(&"held").ok()).collect();
    assert_eq!(all.len(), 20);
}

/// Time alone serves no waiter. Once all places are released, the restarted limit serves them.
#[tokio::test(start_paused = true)]
async fn a_limit_that_restarts_serves_its_waiters() {
    let limiter = Limiter::new(aimd()).unwrap();
    limiter.try_acquire().unwrap().report(Outcome::Overloaded);
    let held: Vec<_> = std::iter::from_fn(|| limiter.try_acquire().ok()).collect();
    let waiting: Vec<_> = (0..30)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move { std::mem::forget(limiter.acquire().await.unwrap()) })
        })
        .collect();
    sleep(2 * TEN_MINUTES).await;
    assert_eq!((held.len(), limiter.snapshot().queued), (18, 30));
    limiter.pause_for(ms(10)); // so that all places are released before a waiter is served
    drop(held);
    sleep(ms(20)).await;
    assert_eq!(
        (
            limiter.snapshot().in_flight,
            limiter.snapshot().concurrency,
            limiter.snapshot().queued
        ),
        (20, Some(20), 10)
    );
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}

/// An input to a limiter. A permit or a waiter is chosen by a number, modulo their count.
#[derive(Debug, Clone, Copy)]
enum Step {
    Try(u64),
    Wait(u64),
    GiveUp(usize),
    Report(usize, Outcome),
    ReportElsewhere(usize, Outcome),
    Settle(usize, u64),
    Drop(usize),
    Renew(usize),
    Pass(Duration),
    SetPolicy(MaxConcurrency),
}

fn any_concurrency() -> impl Strategy<Value = MaxConcurrency> {
    let rule = prop_oneof![
        Just(Adapt::aimd()),
        (1_000..3_000_u32, 1..=1_000_u32).prop_map(|(tolerance, smoothing)| Adapt::gradient()
            .tolerance(tolerance)
            .smoothing(smoothing)),
    ];
    let bounds = (1..6_u64, 0..30_u64).prop_map(|(floor, more)| (floor, floor + more));
    let timeout = prop::option::of((1..300_u64).prop_map(ms));
    let ttl = prop::option::of((1..2_000_u64).prop_map(ms));
    (rule, bounds, 1..1_000_u32, timeout, ttl, 1..40_u64).prop_map(
        |(adapt, (floor, ceiling), backoff, timeout, ttl, initial)| {
            let adapt = adapt.between(floor, ceiling).backoff(backoff);
            let concurrency = MaxConcurrency::new(initial)
                .adapt(timeout.map_or(adapt, |timeout| adapt.timeout(timeout)));
            ttl.map_or(concurrency, |ttl| concurrency.ttl(ttl))
        },
    )
}

fn any_step() -> impl Strategy<Value = Step> {
    let outcome = || prop_oneof![6 => Just(Outcome::Ok), 2 => Just(Outcome::Overloaded), 1 => Just(Outcome::Ignored)];
    let span = prop_oneof![
        4 => (0..20_u64).prop_map(ms),
        2 => (0..3_000_u64).prop_map(ms),
        1 => Just(TEN_MINUTES - ms(1)),
        1 => Just(TEN_MINUTES),
        1 => Just(1_000 * TEN_MINUTES),
    ];
    prop_oneof![
        12 => (1..6_u64).prop_map(Step::Try),
        6 => (1..6_u64).prop_map(Step::Wait),
        2 => any::<usize>().prop_map(Step::GiveUp),
        16 => (any::<usize>(), outcome()).prop_map(|(nth, outcome)| Step::Report(nth, outcome)),
        1 => (any::<usize>(), outcome()).prop_map(|(nth, outcome)| Step::ReportElsewhere(nth, outcome)),
        1 => (any::<usize>(), 0..9_u64).prop_map(|(nth, actual)| Step::Settle(nth, actual)),
        4 => any::<usize>().prop_map(Step::Drop),
        1 => any::<usize>().prop_map(Step::Renew),
        10 => span.prop_map(Step::Pass),
        1 => any_concurrency().prop_map(Step::SetPolicy),
    ]
}

proptest! {
    #![proptest_config(crate::common::replay::cases(256))]

    /// For any reports at any time: the limit stays within its bounds, no grant exceeds it, no request waits that could be
    /// served, and in the end all places are released.
    #[test]
    fn no_grant_exceeds_the_limit_and_no_place_is_lost(
        concurrency in any_concurrency(),
        steps in prop::collection::vec(any_step(), 0..300),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(go(concurrency, steps))?;
    }
}

async fn go(concurrency: MaxConcurrency, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let limiter = &Limiter::new(concurrency).unwrap();
    let mut held: Vec<Permit> = Vec::new();
    let mut waiting = Vec::new();
    for step in steps {
        let granted = limiter.snapshot().granted;
        let take = |held: &mut Vec<Permit>, nth: usize| {
            (!held.is_empty()).then(|| held.swap_remove(nth % held.len()))
        };
        match step {
            Step::Try(cost) => held.extend(limiter.try_acquire_many(cost)),
            Step::Wait(cost) => {
                waiting.push((cost, task::spawn(Box::pin(limiter.acquire_many(cost)))));
            }
            Step::GiveUp(nth) => {
                if !waiting.is_empty() {
                    drop(waiting.remove(nth % waiting.len()));
                }
            }
            Step::Report(nth, outcome) => {
                take(&mut held, nth).map(|permit| permit.report(outcome));
            }
            Step::ReportElsewhere(nth, outcome) => {
                // Outside of the runtime, the clock is the real one.
                take(&mut held, nth).map(|permit| {
                    std::thread::spawn(move || permit.report(outcome))
                        .join()
                        .unwrap()
                });
            }
            Step::Settle(nth, actual) => {
                take(&mut held, nth).map(|permit| permit.settle(actual));
            }
            Step::Drop(nth) => drop(take(&mut held, nth)),
            Step::Renew(nth) => {
                if !held.is_empty() {
                    _ = held[nth % held.len()].renew();
                }
            }
            Step::Pass(span) => tokio::time::advance(span).await,
            Step::SetPolicy(concurrency) => limiter.set_policy(concurrency).unwrap(),
        }
        let _ = limiter.snapshot(); // does the work that is due
        let mut others = Vec::new();
        for (cost, mut request) in waiting {
            match request.poll() {
                Poll::Ready(Ok(permit)) => held.push(permit),
                Poll::Ready(Err(_)) => {}
                Poll::Pending => others.push((cost, request)),
            }
        }
        waiting = others;

        let snapshot = limiter.snapshot();
        let limit = snapshot.concurrency.unwrap();
        let live: u64 = held
            .iter()
            .filter(|permit| permit.is_live())
            .map(Permit::cost)
            .sum();
        prop_assert_eq!(
            (snapshot.in_flight, snapshot.queued),
            (live, waiting.len() as u64),
            "{:?}",
            step
        );
        prop_assert!(
            snapshot.granted == granted || live <= limit,
            "{:?}: {} of {}",
            step,
            live,
            limit
        );
        prop_assert!((1..=35).contains(&limit));
        if let Some((cost, _)) = waiting.first() {
            prop_assert!(
                live + cost > limit,
                "{:?}: {} of {}, and {} could be served",
                step,
                live,
                limit,
                cost
            );
        }
    }
    drop(waiting);
    held.clear();
    let all: Vec<_> = std::iter::from_fn(|| limiter.try_acquire().ok()).collect();
    prop_assert_eq!(all.len() as u64, limiter.check(1).limit());
    Ok(())
}
