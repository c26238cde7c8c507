//! W9 and W10: limits in stores, compared with scripts and statements on the same server. Each script or statement is one decision.

#[cfg(feature = "mysql")]
pub(crate) mod mysql;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
#[cfg(feature = "redis")]
pub(crate) mod redis;
pub(crate) mod shares;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use std::{env, process};

use cpu_time::ProcessTime;
use futures_util::future::join_all;
use tokio::runtime::{Builder, Runtime};
use tollgate::SharedLimiter;
use tollgate::store::Store;

use crate::rounds::{Contest, median};
use crate::table::{Bar, Row, Unit};

const SLICE: Duration = Duration::from_millis(400);
const ROUNDS: usize = 7;
/// A rate that never denies.
const POLICY: &str = "100000000/s burst 1000000";

/// Decisions that only the client of the store makes, written for this comparison. None of them is denied.
trait Raw: Clone + Send + Sync + 'static {
    fn decide(&self, caller: usize, key: &str) -> impl Future<Output = ()> + Send;
}

/// How often something is done, and after what pause: a processor that has slept takes longer.
#[derive(Clone, Copy)]
struct Rhythm {
    times: usize,
    pause: Option<Duration>,
}

impl Rhythm {
    const LOOP: Self = Self {
        times: 2_000,
        pause: None,
    };
    /// The numbers for cases in which a process waits for a place.
    const SPACED: Self = Self {
        times: 200,
        pause: Some(Duration::from_millis(3)),
    };
}

/// The cases that are the same for each store.
struct Cases<O, R> {
    workload: &'static str,
    /// The start of the name of each case.
    of: String,
    runtime: Arc<Runtime>,
    /// Opens a store, as another process does.
    open: O,
    peers: Vec<(&'static str, R)>,
}

/// A runtime with one worker: the server, or the store's thread, has the other processor.
fn runtime() -> Arc<Runtime> {
    Arc::new(
        Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime"),
    )
}

/// The address of a server in the environment.
fn url(variable: &str) -> String {
    env::var(variable).unwrap_or_else(|_| {
        eprintln!("{variable} is not set: run this by scripts/servers");
        process::exit(1);
    })
}

impl<O: Fn() -> S, S: Store, R: Raw> Cases<O, R> {
    fn limiter(&self, name: &str, policy: &str) -> SharedLimiter {
        let _in_runtime = self.runtime.enter(); // as in a program
        SharedLimiter::new((self.open)(), name, policy).expect("a sound policy")
    }

    fn case(&self, case: &str) -> String {
        eprintln!("  {}{case}", self.of);
        format!("{}{case}", self.of)
    }

    /// Millions of decisions a second, by this number of callers, each in a loop.
    fn rate<F: Future<Output = ()> + Send + 'static>(
        &self,
        callers: usize,
        decide: impl Fn(usize) -> F + Send + Sync + 'static,
    ) -> f64 {
        let decide = Arc::new(decide);
        let (count, stops) = (
            Arc::new(AtomicU64::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        self.runtime.block_on(async {
            let tasks = (0..callers).map(|caller| {
                let (decide, count, stops) =
                    (Arc::clone(&decide), Arc::clone(&count), Arc::clone(&stops));
                tokio::spawn(async move {
                    while !stops.load(Relaxed) {
                        decide(caller).await;
                        count.fetch_add(1, Relaxed);
                    }
                })
            });
            let tasks: Vec<_> = tasks.collect();
            tokio::time::sleep(SLICE / 4).await;
            let (before, start) = (count.load(Relaxed), Instant::now());
            tokio::time::sleep(SLICE).await;
            let rate = (count.load(Relaxed) - before) as f64 / start.elapsed().as_micros() as f64;
            stops.store(true, Relaxed); // stops between calls: a client may close its connection when a call is dropped
            for task in tasks {
                task.await.expect("no panic");
            }
            rate
        })
    }

    /// Ours, with the limiter that `choose` returns for each decision, beside the peers, with the key of that index.
    fn rates<C>(
        &self,
        (case, callers, bar): (&str, usize, Option<f64>),
        choose: C,
        key: fn(usize) -> String,
    ) -> Vec<Row>
    where
        C: Fn(usize) -> SharedLimiter + Clone + Send + Sync + 'static,
    {
        let case = self.case(case);
        let ours = || {
            let choose = choose.clone();
            self.rate(callers, move |caller| {
                let permit = choose(caller).acquire_owned();
                async move { drop(permit.await.expect("a grant")) }
            })
        };
        let mut contest = Contest::new((self.workload, &case), Unit::Millions, ours);
        for (name, raw) in &self.peers {
            contest = contest.against(name, bar.map(Bar::AtLeast), move || {
                let raw = raw.clone();
                self.rate(callers, move |caller| {
                    let (raw, key) = (raw.clone(), key(caller));
                    async move { raw.decide(caller, &key).await }
                })
            });
        }
        contest.run(ROUNDS)
    }

    fn one_key(&self, callers: usize, bar: Option<f64>) -> Vec<Row> {
        let limiter = self.limiter("hot", POLICY);
        let case = format!("one key, {callers} callers: decisions a second");
        self.rates(
            (&case, callers, bar),
            move |_| limiter.clone(),
            |_| "raw".to_owned(),
        )
    }

    /// Several processes use one key. Each has a store of its own.
    fn one_key_of_processes(&self, processes: usize, callers: usize) -> Vec<Row> {
        let limiters: Arc<[_]> = (0..processes)
            .map(|_| self.limiter("hot", POLICY))
            .collect();
        let case =
            format!("one key, {processes} processes of {callers} callers: decisions a second");
        let choose = move |caller: usize| limiters[caller % limiters.len()].clone();
        self.rates((&case, processes * callers, None), choose, |_| {
            "raw".to_owned()
        })
    }

    fn many_keys(&self, bar: Option<f64>) -> Vec<Row> {
        const KEYS: usize = 10_000;
        /// A number that looks random.
        fn any() -> usize {
            static NEXT: AtomicU64 = AtomicU64::new(1);
            (NEXT.fetch_add(0x9E37_79B9_7F4A_7C15, Relaxed) >> 40) as usize % KEYS
        }
        let limiter = self.limiter("many", POLICY);
        let keys: Arc<[_]> = (0..KEYS)
            .map(|key| limiter.key(key.to_le_bytes()))
            .collect();
        // Each key gets its row in the table.
        self.runtime.block_on(async {
            join_all(keys.iter().map(SharedLimiter::acquire)).await;
            for (_, raw) in &self.peers {
                join_all((0..KEYS).map(async |key| raw.decide(key, &format!("raw {key}")).await))
                    .await;
            }
        });
        let case = "10,000 keys, 256 callers: decisions a second";
        self.rates(
            (case, 256, bar),
            move |_| keys[any()].clone(),
            |_| format!("raw {}", any()),
        )
    }

    /// The median time of an operation in microseconds. The operations run one after another.
    fn one_after_the_other<F: Future<Output = ()> + Send>(
        &self,
        rhythm: Rhythm,
        one: impl Fn() -> F + Send + 'static,
    ) -> f64 {
        let times = self.runtime.spawn(async move {
            let mut times = Vec::with_capacity(rhythm.times);
            for _ in 0..rhythm.times {
                if let Some(pause) = rhythm.pause {
                    tokio::time::sleep(pause).await;
                }
                let start = Instant::now();
                one().await;
                times.push(start.elapsed().as_nanos() as f64 / 1_000.0);
            }
            times
        });
        median(self.runtime.block_on(times).expect("no panic"))
    }

    fn one_raw(&self, rhythm: Rhythm, raw: &R) -> f64 {
        let raw = raw.clone();
        self.one_after_the_other(rhythm, move || {
            let raw = raw.clone();
            async move { raw.decide(0, "raw one").await }
        })
    }

    fn one_caller(&self, bar: Option<f64>) -> Vec<Row> {
        let case = self.case("one caller, one decision after the other: p50");
        let limiter = self.limiter("one", POLICY);
        let ours = || {
            let limiter = limiter.clone();
            self.one_after_the_other(Rhythm::LOOP, move || {
                let permit = limiter.acquire_owned();
                async move { drop(permit.await.expect("a grant")) }
            })
        };
        let mut contest = Contest::new((self.workload, &case), Unit::Micros, ours);
        for (nth, (name, raw)) in (1..).zip(&self.peers) {
            let bar = bar.filter(|_| nth == self.peers.len()); // the last peer does the same work
            contest = contest.against(name, bar.map(Bar::AtMost), || {
                self.one_raw(Rhythm::LOOP, raw)
            });
        }
        contest.run(ROUNDS)
    }

    /// Measures the time from a release in one process to the grant in another one. It is compared with the time of a message and a
    /// call of the first peer, and with the same work done `by_hand` where that is given. `message` sends a message and receives it.
    fn release_elsewhere<F: Future<Output = ()> + Send, G: Future<Output = ()> + Send>(
        &self,
        (peer, message): (&'static str, impl Fn() -> F + Clone + Send + 'static),
        by_hand: Option<(&'static str, impl Fn() -> G + Clone + Send + 'static)>,
    ) -> Vec<Row> {
        let case = self.case("from a release elsewhere to the grant: p50");
        let [one, other] = ["places"; 2].map(|name| self.limiter(name, "1 concurrent ttl 30s"));
        let ours = || {
            let (one, other) = (one.clone(), other.clone());
            let times = self.runtime.spawn(async move {
                let mut times = Vec::with_capacity(Rhythm::SPACED.times);
                for _ in 0..Rhythm::SPACED.times {
                    let permit = one.acquire().await.expect("a grant");
                    let other = other.clone();
                    let granted = tokio::spawn(async move {
                        let permit = other.acquire().await.expect("a grant");
                        let at = Instant::now();
                        drop(permit);
                        at
                    });
                    tokio::time::sleep(Duration::from_millis(3)).await; // it waits
                    let start = Instant::now();
                    drop(permit);
                    times.push(
                        granted
                            .await
                            .expect("no panic")
                            .saturating_duration_since(start)
                            .as_nanos() as f64
                            / 1_000.0,
                    );
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                times
            });
            median(self.runtime.block_on(times).expect("no panic"))
        };
        let message = || self.one_after_the_other(Rhythm::SPACED, message.clone());
        let sum = || message() + self.one_raw(Rhythm::SPACED, &self.peers[0].1);
        let mut contest = Contest::new((self.workload, &case), Unit::Micros, ours).against(
            peer,
            Some(Bar::AtMost(1.25)),
            sum,
        );
        if let Some((peer, by_hand)) = by_hand {
            contest = contest.against(peer, None, move || {
                self.one_after_the_other(Rhythm::SPACED, by_hand.clone())
            });
        }
        contest.run(ROUNDS)
    }

    /// The CPU time of this process in which it renews ten thousand leases once, in milliseconds.
    fn heartbeat(&self, bar: Option<f64>) -> Row {
        const LEASES: usize = 10_000;
        const TTL: u32 = 6;
        let case = self.case("one renewal of 10,000 leases: ms of CPU");
        let limiter = self.limiter("leases", &format!("{LEASES} concurrent ttl {TTL}s"));
        let (permits, cpu) = self.runtime.block_on(async {
            let permits = join_all((0..LEASES).map(|_| limiter.acquire())).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
            let before = ProcessTime::now();
            tokio::time::sleep(Duration::from_secs(u64::from(TTL))).await; // three times
            (permits, before.elapsed().as_secs_f64() * 1_000.0 / 3.0)
        });
        assert!(
            permits
                .iter()
                .all(|permit| permit.as_ref().is_ok_and(tollgate::Permit::is_live)),
            "a lease was lost"
        );
        Row::figure(
            (self.workload, &case),
            Unit::Plain(1),
            cpu,
            None,
            bar.map(Bar::AtMost),
        )
    }
}
