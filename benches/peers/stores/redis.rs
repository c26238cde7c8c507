//! W9: limits in Redis beside raw scripts on the same server, that of `TOLLGATE_REDIS_URL`.
//!
//! The raw side sends a script of one pace, written for this comparison and nothing else, for each decision, over one multiplexed
//! connection.

use std::env;
use std::future::Future;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use redis::aio::MultiplexedConnection;
use tokio::runtime::Runtime;
use tollgate::SharedLimiter;
use tollgate::store::RedisStore;

use crate::rounds::{Contest, median};
use crate::table::{Bar, Row, Unit};

const SLICE: Duration = Duration::from_millis(400);
const ROUNDS: usize = 7;
/// A rate that never denies.
const POLICY: &str = "100000000/s burst 1000000";

/// One pace in exact integers, with its numbers as literals: parts of a microsecond, 100 units each of them, a burst of a million.
const RAW: &str = "local c = redis.call('TIME') local now = c[1] * 1000000 + c[2] \
    local raw, a, last = redis.call('GET', KEYS[1]), 0, now \
    if raw then last, a = struct.unpack('<dd', raw) if last > now then now = last end \
    local back = (now - last) * 100 a = back >= a and 0 or a - back end \
    if a + ARGV[1] > 1000000 then return {0, math.ceil((a + ARGV[1] - 1000000) / 100)} end \
    a = a + ARGV[1] \
    redis.call('SET', KEYS[1], struct.pack('<dd', now, a), 'PX', math.ceil(a / 100000) + 1) \
    return {1, 0}";

struct Server {
    url: String,
    runtime: Runtime,
    raw: MultiplexedConnection,
    hash: String,
}

pub(crate) fn in_redis() -> Vec<Row> {
    match Server::connect() {
        Ok(server) => server.rows(),
        Err(error) => {
            eprintln!("W9 needs a Redis server: {error}; run it by scripts/servers, or set TOLLGATE_REDIS_URL");
            process::exit(1);
        }
    }
}

impl Server {
    fn connect() -> Result<Self, Box<dyn std::error::Error>> {
        let url = env::var("TOLLGATE_REDIS_URL").map_err(|_| "TOLLGATE_REDIS_URL is not set")?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let client = redis::Client::open(url.as_str())?;
        let (raw, hash) = runtime.block_on(async {
            let mut raw = client.get_multiplexed_async_connection().await?;
            redis::cmd("FLUSHALL").exec_async(&mut raw).await?;
            let hash: String = redis::cmd("SCRIPT").arg("LOAD").arg(RAW).query_async(&mut raw).await?;
            Ok::<_, redis::RedisError>((raw, hash))
        })?;
        Ok(Self { url, runtime, raw, hash })
    }

    fn store(&self) -> RedisStore {
        RedisStore::connect(self.url.as_str()).expect("the address has served already")
    }

    fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for (callers, bar) in [(1, None), (8, None), (64, Some(4.0)), (1_000, Some(10.0))] {
            eprintln!("  one key, {callers} callers");
            rows.extend(self.one_key(callers, bar));
        }
        eprintln!("  one caller after the other");
        rows.extend(self.one_caller());
        eprintln!("  many keys");
        rows.extend(self.many_keys());
        for callers in [1, 64] {
            eprintln!("  prefetched, {callers} callers");
            rows.push(self.prefetched(callers));
        }
        eprintln!("  a release elsewhere");
        rows.push(self.release_elsewhere());
        eprintln!("  what scripts cost");
        rows.extend(self.costs());
        rows
    }

    async fn decide_raw(mut raw: MultiplexedConnection, hash: &str, key: &str) {
        let (granted, _): (u8, u64) =
            redis::cmd("EVALSHA").arg(hash).arg(1).arg(key).arg(1).query_async(&mut raw).await.expect("the script runs");
        assert_eq!(granted, 1);
    }

    /// Millions of decisions a second, by as many callers in a loop.
    fn rate<F: Future<Output = ()> + Send + 'static>(
        &self,
        callers: usize,
        decide: impl Fn(usize) -> F + Send + Sync + 'static,
    ) -> f64 {
        let decide = Arc::new(decide);
        let count = Arc::new(AtomicU64::new(0));
        self.runtime.block_on(async {
            let tasks = (0..callers).map(|caller| {
                let (decide, count) = (Arc::clone(&decide), Arc::clone(&count));
                tokio::spawn(async move {
                    loop {
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
            for task in tasks {
                task.abort();
                drop(task.await);
            }
            rate
        })
    }

    fn one_key(&self, callers: usize, bar: Option<f64>) -> Vec<Row> {
        let limiter = SharedLimiter::new(self.store(), "hot", POLICY).expect("a sound policy");
        let ours = || {
            let limiter = limiter.clone();
            self.rate(callers, move |_| {
                let permit = limiter.acquire_owned();
                async move { drop(permit.await.expect("a grant")) }
            })
        };
        let raw = || {
            let (raw, hash) = (self.raw.clone(), self.hash.clone());
            self.rate(callers, move |_| {
                let (raw, hash) = (raw.clone(), hash.clone());
                async move { Self::decide_raw(raw, &hash, "raw").await }
            })
        };
        let case = format!("one key, {callers} callers: decisions a second");
        Contest::new(("W9", &case), Unit::Millions, ours)
            .against("one script call a decision", bar.map(Bar::AtLeast), raw)
            .run(ROUNDS)
    }

    /// The time of one decision after the other.
    fn one_caller(&self) -> Vec<Row> {
        const DECISIONS: usize = 2_000;
        let limiter = SharedLimiter::new(self.store(), "one", POLICY).expect("a sound policy");
        let ours = || {
            self.runtime.block_on(async {
                let limiter = limiter.clone();
                let times = tokio::spawn(async move {
                    let mut times = Vec::with_capacity(DECISIONS);
                    for _ in 0..DECISIONS {
                        let start = Instant::now();
                        drop(limiter.acquire().await.expect("a grant"));
                        times.push(start.elapsed().as_nanos() as f64 / 1_000.0);
                    }
                    times
                });
                median(times.await.expect("no panic"))
            })
        };
        let raw = || {
            self.runtime.block_on(async {
                let (raw, hash) = (self.raw.clone(), self.hash.clone());
                let times = tokio::spawn(async move {
                    let mut times = Vec::with_capacity(DECISIONS);
                    for _ in 0..DECISIONS {
                        let start = Instant::now();
                        Self::decide_raw(raw.clone(), &hash, "raw one").await;
                        times.push(start.elapsed().as_nanos() as f64 / 1_000.0);
                    }
                    times
                });
                median(times.await.expect("no panic"))
            })
        };
        Contest::new(("W9", "one caller, one decision after the other: p50"), Unit::Micros, ours)
            .against("one script call", Some(Bar::AtMost(1.15)), raw)
            .run(ROUNDS)
    }

    fn many_keys(&self) -> Vec<Row> {
        const KEYS: usize = 10_000;
        const CALLERS: usize = 256;
        let limiter = SharedLimiter::new(self.store(), "many", POLICY).expect("a sound policy");
        let keys: Arc<Vec<_>> = Arc::new((0..KEYS).map(|key| limiter.key(key.to_le_bytes())).collect());
        let next = Arc::new(AtomicU64::new(1));
        let any = move || (next.fetch_add(0x9E37_79B9_7F4A_7C15, Relaxed) >> 40) as usize % KEYS;
        let (any_of_ours, any_of_raw) = (any.clone(), any);
        let ours = || {
            let (keys, any) = (Arc::clone(&keys), any_of_ours.clone());
            self.rate(CALLERS, move |_| {
                let permit = keys[any()].acquire_owned();
                async move { drop(permit.await.expect("a grant")) }
            })
        };
        let raw = || {
            let (raw, hash, any) = (self.raw.clone(), self.hash.clone(), any_of_raw.clone());
            self.rate(CALLERS, move |_| {
                let (raw, hash, key) = (raw.clone(), hash.clone(), any());
                async move { Self::decide_raw(raw, &hash, &format!("raw {key}")).await }
            })
        };
        Contest::new(("W9", "10,000 keys, 256 callers: decisions a second"), Unit::Millions, ours)
            .against("one script call a decision", Some(Bar::AtLeast(0.95)), raw)
            .run(ROUNDS)
    }

    fn prefetched(&self, callers: usize) -> Row {
        let builder = SharedLimiter::builder(self.store(), "ahead", "1000000000/s burst 10000000");
        let limiter = builder.prefetch(100_000, Duration::from_millis(50)).build().expect("a sound policy");
        let rates = (0..ROUNDS).map(|_| {
            let limiter = limiter.clone();
            self.rate(callers, move |_| {
                let permit = limiter.acquire_owned();
                async move { drop(permit.await.expect("a grant")) }
            })
        });
        let case = format!("one key, prefetched, {callers} callers: decisions a second");
        Row::figure(("W9", &case), Unit::Millions, median(rates.collect()), None, Some(Bar::AtLeast(5.0)))
    }

    /// From a release in one process to a grant in another one, beside the time of a message and of a script call.
    fn release_elsewhere(&self) -> Row {
        const TIMES: usize = 500;
        let limiter = || SharedLimiter::new(self.store(), "places", "1 concurrent ttl 30s").expect("a sound policy");
        let (one, other) = (limiter(), limiter());
        self.runtime.block_on(async {
            let mut releases = Vec::new();
            for _ in 0..TIMES {
                let permit = one.acquire().await.expect("a grant");
                let other = other.clone();
                let granted = tokio::spawn(async move {
                    let permit = other.acquire().await.expect("a grant");
                    let at = Instant::now();
                    drop(permit);
                    at
                });
                tokio::time::sleep(Duration::from_millis(2)).await; // it waits
                let start = Instant::now();
                drop(permit);
                releases.push(granted.await.expect("no panic").saturating_duration_since(start).as_nanos() as f64 / 1_000.0);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let client = redis::Client::open(self.url.as_str()).expect("an address");
            let mut heard = client.get_async_pubsub().await.expect("a connection");
            heard.subscribe("bench").await.expect("a channel");
            let mut heard = heard.into_on_message();
            let (mut messages, mut calls) = (Vec::new(), Vec::new());
            for _ in 0..TIMES {
                let start = Instant::now();
                redis::cmd("PUBLISH").arg("bench").arg("x").exec_async(&mut self.raw.clone()).await.expect("it is told");
                heard.next().await;
                messages.push(start.elapsed().as_nanos() as f64 / 1_000.0);
                let start = Instant::now();
                Self::decide_raw(self.raw.clone(), &self.hash, "raw one").await;
                calls.push(start.elapsed().as_nanos() as f64 / 1_000.0);
            }
            let (grant, sum) = (median(releases), median(messages) + median(calls));
            let peer = ("PUBLISH to receive, and one script call", sum);
            let what = ("W9", "from a release elsewhere to the grant: p50");
            Row::against(what, Unit::Micros, grant, peer, grant / sum, Some(Bar::AtMost(1.25)))
        })
    }

    /// What a call of one ask takes on the server, by its own count.
    fn costs(&self) -> Vec<Row> {
        let policies = [
            ("one pace", "100000000/s burst 1000000", Some(6.0)),
            ("fixed window", "window 100000000/s", None),
            ("sliding counter", "sliding counter 100000000/s", None),
            ("sliding log of 1,000", "sliding log 1000/10ms", None),
            ("penalty", "penalty 1000000 falling 100000000/s", None),
            ("places", "1000 concurrent", None),
            ("pace and window", "100000000/s burst 1000000 and window 100000000/s", None),
        ];
        let row = |(kind, policy, bar): (&str, &str, Option<f64>)| {
            let limiter = SharedLimiter::new(self.store(), kind, policy).expect("a sound policy");
            let micros = self.runtime.block_on(async {
                drop(limiter.acquire().await.expect("a grant"));
                let mut raw = self.raw.clone();
                redis::cmd("CONFIG").arg("RESETSTAT").exec_async(&mut raw).await.expect("it is allowed");
                for _ in 0..3_000 {
                    drop(limiter.try_acquire().await);
                }
                let stats: String = redis::cmd("INFO").arg("commandstats").query_async(&mut raw).await.expect("it tells");
                let evalsha = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap_or_default();
                let each = evalsha.split("usec_per_call=").nth(1).and_then(|rest| rest.split(',').next());
                each.and_then(|each| each.parse().ok()).unwrap_or(f64::NAN)
            });
            let case = format!("a script call on the server: {kind}");
            Row::figure(("W9", &case), Unit::Micros, micros, None, bar.map(Bar::AtMost))
        };
        policies.into_iter().map(row).collect()
    }
}
