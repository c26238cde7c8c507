//! W9: limits in Redis, compared with raw scripts on the same server, that of `TOLLGATE_REDIS_URL`; and on the cluster of
//! `TOLLGATE_REDIS_CLUSTER_URLS`, by the cluster client of the crate `redis`.
//!
//! The raw side sends a script for each decision, over one multiplexed connection: one of one pace, written for this, or the
//! limiter's own.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::lock::Mutex;
use redis::Value;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClient;
use tokio::runtime::Runtime;
use tollgate::SharedLimiter;
use tollgate::store::RedisStore;

use super::{Cases, POLICY, ROUNDS, Raw};
use crate::rounds::median;
use crate::table::{Bar, Row, Unit};

/// The number of keys requested at once where the time on the server is measured. A server that sleeps between calls takes longer.
const AT_ONCE: usize = 64;

/// One pace in exact integers, with its numbers as literals: parts of a microsecond, 100 units each of them, a burst of a million.
const RAW: &str = "local c = redis.call('TIME') local now = c[1] * 1000000 + c[2] \
    local raw, a, last = redis.call('GET', KEYS[1]), 0, now \
    if raw then last, a = struct.unpack('<dd', raw) if last > now then now = last end \
    local back = (now - last) * 100 a = back >= a and 0 or a - back end \
    if a + ARGV[1] > 1000000 then return {0, math.ceil((a + ARGV[1] - 1000000) / 100)} end \
    a = a + ARGV[1] \
    redis.call('SET', KEYS[1], struct.pack('<dd', now, a), 'PX', math.ceil(a / 100000) + 1) \
    return {1, 0}";

/// Takes a place. The leases are a set that is sorted by expiry.
const TAKES: &str = "local c = redis.call('TIME') local now = c[1] * 1000000 + c[2] \
    redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now) \
    if redis.call('ZCARD', KEYS[1]) >= 1 then return 0 end \
    redis.call('ZADD', KEYS[1], now + 30000000, ARGV[1]) redis.call('PEXPIRE', KEYS[1], 30001) \
    return 1";

/// Gives the place back, and notifies the waiters.
const GIVES_BACK: &str = "if redis.call('ZREM', KEYS[1], ARGV[1]) == 1 then redis.call('PUBLISH', 'bench', 'x') end return 1";

/// What the raw side sends: its own script, or the limiter's.
const PEERS: [&str; 2] = ["one script call", "one call of the same script"];

#[derive(Clone)]
struct Script<C = MultiplexedConnection> {
    connection: C,
    hash: Arc<[u8]>,
    argument: Arc<[u8]>,
    /// The prefix of the keys of this script, which has a state of its own.
    prefix: &'static str,
}

impl<C: Clone> Script<C> {
    fn new(connection: &C, hash: &[u8], argument: &[u8], prefix: &'static str) -> Self {
        Self {
            connection: connection.clone(),
            hash: hash.into(),
            argument: argument.into(),
            prefix,
        }
    }
}

impl Script {
    /// The commands that a limiter sends for its first decision, as the server reports them.
    async fn of_limiter(connection: &MultiplexedConnection, limiter: &SharedLimiter) -> Self {
        let mut raw = connection.clone();
        let mut set = async |micros: i64| {
            let set = redis::cmd("CONFIG")
                .arg("SET")
                .arg("slowlog-log-slower-than")
                .arg(micros)
                .take();
            set.exec_async(&mut raw).await.expect("it is allowed");
        };
        set(0).await;
        drop(limiter.acquire().await.expect("a grant"));
        set(-1).await;
        let get = redis::cmd("SLOWLOG").arg("GET").arg(128).take();
        let log: Vec<Vec<Value>> = get
            .query_async(&mut raw)
            .await
            .expect("the log is returned");
        let sent = log.into_iter().find_map(|mut entry| {
            let sent: Vec<Vec<u8>> = redis::from_redis_value(entry.swap_remove(3)).ok()?;
            let [name, hash, _, _, argument] = sent.try_into().ok()?;
            (name == b"EVALSHA").then(|| Self::new(connection, &hash, &argument, "own "))
        });
        sent.expect("a limiter sends a script")
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Raw for Script<C> {
    async fn decide(&self, _: usize, key: &str) {
        let mut connection = self.connection.clone();
        let key = if self.prefix.is_empty() {
            Cow::from(key)
        } else {
            Cow::from(self.prefix.to_owned() + key)
        };
        let call = redis::cmd("EVALSHA")
            .arg(&*self.hash)
            .arg(1)
            .arg(&*key)
            .arg(&*self.argument)
            .take();
        match call
            .query_async(&mut connection)
            .await
            .expect("the script runs")
        {
            Value::Array(reply) => assert_eq!(reply[0], Value::Int(1)),
            Value::Int(done) => assert_eq!(done, 1),
            Value::BulkString(_) => {}
            reply => panic!("a strange reply: {reply:?}"),
        }
    }
}

/// The figures of the limiter that have no peer.
struct Server<'a, O> {
    cases: &'a Cases<O, Script>,
    raw: MultiplexedConnection,
}

pub(crate) fn rows() -> Vec<Row> {
    let (url, runtime) = (super::url("TOLLGATE_REDIS_URL"), super::runtime());
    let client = redis::Client::open(url.as_str()).expect("an address");
    let open = || RedisStore::connect(url.as_str()).expect("the address has served already");
    let (connection, scripts, heard) = runtime.block_on(async {
        let mut raw = client
            .get_multiplexed_async_connection()
            .await
            .expect("a server");
        redis::cmd("FLUSHALL")
            .exec_async(&mut raw)
            .await
            .expect("it is allowed");
        let hash: String = redis::cmd("SCRIPT")
            .arg("LOAD")
            .arg(RAW)
            .query_async(&mut raw)
            .await
            .expect("it is allowed");
        let mut heard = client.get_async_pubsub().await.expect("a connection");
        heard.subscribe("bench").await.expect("a channel");
        let own = SharedLimiter::new(open(), "sent", POLICY).expect("a sound policy");
        let own = Script::of_limiter(&raw, &own).await;
        let scripts = [Script::new(&raw, hash.as_bytes(), b"1", ""), own];
        (raw, scripts, Arc::new(Mutex::new(heard.into_on_message())))
    });
    let on_cluster = on_cluster(&runtime, &scripts);
    let peers = PEERS.into_iter().zip(scripts).collect();
    let cases = Cases {
        workload: "W9",
        of: String::new(),
        runtime,
        open,
        peers,
    };
    let mut rows = Vec::new();
    for (callers, bar) in [(1, None), (8, None), (64, Some(4.0)), (1_000, Some(10.0))] {
        rows.extend(cases.one_key(callers, bar));
    }
    rows.extend(cases.one_caller(Some(1.15)));
    rows.extend(on_cluster);
    rows.extend(cases.many_keys(Some(0.95)));
    let server = Server {
        cases: &cases,
        raw: connection.clone(),
    };
    rows.extend([1, 64].map(|callers| server.prefetched(callers)));
    let [takes, gives_back] = [TAKES, GIVES_BACK].map(|script| {
        let mut raw = connection.clone();
        let load = redis::cmd("SCRIPT").arg("LOAD").arg(script).take();
        let hash: String = cases
            .runtime
            .block_on(load.query_async(&mut raw))
            .expect("it is allowed");
        Script::new(&raw, hash.as_bytes(), b"lease", "")
    });
    let by_hand = {
        let heard = Arc::clone(&heard);
        cases.runtime.block_on(takes.decide(0, "raw place"));
        move || {
            let (takes, gives_back, heard) =
                (takes.clone(), gives_back.clone(), Arc::clone(&heard));
            async move {
                gives_back.decide(0, "raw place").await;
                heard.lock().await.next().await;
                takes.decide(0, "raw place").await;
            }
        }
    };
    let message = move || {
        let (mut connection, heard) = (connection.clone(), Arc::clone(&heard));
        async move {
            redis::cmd("PUBLISH")
                .arg("bench")
                .arg("x")
                .exec_async(&mut connection)
                .await
                .expect("the message arrives");
            heard.lock().await.next().await;
        }
    };
    let by_hand = (
        "a script that gives back to receive, and one that takes",
        by_hand,
    );
    rows.extend(cases.release_elsewhere(
        ("PUBLISH to receive, and one script call", message),
        Some(by_hand),
    ));
    rows.push(cases.heartbeat(Some(20.0)));
    rows.extend(server.costs());
    rows
}

/// One caller on a cluster, compared with calls by the cluster client. The scripts are those of the peers at one server.
fn on_cluster(runtime: &Arc<Runtime>, scripts: &[Script]) -> Vec<Row> {
    let urls = super::url("TOLLGATE_REDIS_CLUSTER_URLS");
    let open = || {
        let store = RedisStore::cluster(urls.split(',')).build();
        store.expect("addresses of a cluster")
    };
    let peers = runtime.block_on(async {
        let client = ClusterClient::new(urls.split(',')).expect("addresses of a cluster");
        let mut raw = client.get_async_connection().await.expect("a cluster");
        let load = redis::cmd("SCRIPT").arg("LOAD").arg(RAW).take();
        load.exec_async(&mut raw).await.expect("it is allowed");
        // All nodes learn the script of the limiter.
        let limiter = SharedLimiter::new(open(), "sent", POLICY).expect("a sound policy");
        for key in 0..100 {
            let key = limiter.key(format!("key {key}"));
            drop(key.acquire().await.expect("a grant"));
        }
        let on_cluster =
            |script: &Script| Script::new(&raw, &script.hash, &script.argument, script.prefix);
        let scripts: Vec<_> = scripts.iter().map(on_cluster).collect();
        PEERS.into_iter().zip(scripts).collect()
    });
    let cases = Cases {
        workload: "W9",
        of: "cluster of three nodes, ".to_owned(),
        runtime: Arc::clone(runtime),
        open,
        peers,
    };
    cases.one_caller(Some(1.15))
}

impl<O: Fn() -> RedisStore> Server<'_, O> {
    fn prefetched(&self, callers: usize) -> Row {
        let builder = SharedLimiter::builder(
            (self.cases.open)(),
            "prefetched",
            "1000000000/s burst 10000000",
        );
        let limiter = builder
            .prefetch(100_000, Duration::from_millis(50))
            .build()
            .expect("a sound policy");
        let case = self.cases.case(&format!(
            "one key, prefetched, {callers} callers: decisions a second"
        ));
        let rates = (0..ROUNDS).map(|_| {
            let limiter = limiter.clone();
            self.cases.rate(callers, move |_| {
                let permit = limiter.acquire_owned();
                async move { drop(permit.await.expect("a grant")) }
            })
        });
        Row::figure(
            ("W9", &case),
            Unit::Millions,
            median(rates.collect()),
            None,
            Some(Bar::AtLeast(5.0)),
        )
    }

    /// The time that a call of one ask takes on the server, as the server measures it.
    fn costs(&self) -> Vec<Row> {
        let policies = [
            ("one pace", "100000000/s burst 1000000", Some(6.0)),
            ("fixed window", "window 100000000/s", None),
            ("sliding counter", "sliding counter 100000000/s", None),
            ("sliding log of 1,000", "sliding log 1000/10ms", None),
            ("penalty", "penalty 1000000 falling 100000000/s", None),
            ("places", "1000 concurrent", None),
            (
                "pace and window",
                "100000000/s burst 1000000 and window 100000000/s",
                None,
            ),
        ];
        let row = |(kind, policy, bar): (&str, &str, Option<f64>)| {
            let case = self
                .cases
                .case(&format!("a script call on the server: {kind}"));
            let limiter = self.cases.limiter(kind, policy);
            let keys: Vec<_> = (0..AT_ONCE)
                .map(|key| limiter.key(key.to_string()))
                .collect();
            let micros = self
                .cost(async || drop(join_all(keys.iter().map(SharedLimiter::try_acquire)).await));
            Row::figure(
                ("W9", &case),
                Unit::Micros,
                micros,
                None,
                bar.map(Bar::AtMost),
            )
        };
        let raw = &self.cases.peers[0].1;
        let micros = self.cost(async || {
            drop(
                join_all(
                    (0..AT_ONCE).map(async |key| raw.decide(key, &format!("raw {key}")).await),
                )
                .await,
            );
        });
        let case =
            "a script call on the server: one pace, without policy, fence and limits in the reply";
        let written = Row::figure(("W9", case), Unit::Micros, micros, None, None);
        policies.into_iter().map(row).chain([written]).collect()
    }

    /// The mean time of a script on the server, in microseconds.
    fn cost(&self, some: impl AsyncFn()) -> f64 {
        self.cases.runtime.block_on(async {
            some().await;
            let mut raw = self.raw.clone();
            redis::cmd("CONFIG")
                .arg("RESETSTAT")
                .exec_async(&mut raw)
                .await
                .expect("it is allowed");
            for _ in 0..200 {
                some().await;
            }
            let stats: String = redis::cmd("INFO")
                .arg("commandstats")
                .query_async(&mut raw)
                .await
                .expect("the log is returned");
            let evalsha = stats
                .lines()
                .find(|line| line.starts_with("cmdstat_evalsha:"))
                .unwrap_or_default();
            let each = evalsha
                .split("usec_per_call=")
                .nth(1)
                .and_then(|rest| rest.split(',').next());
            each.and_then(|each| each.parse().ok()).unwrap_or(f64::NAN)
        })
    }
}
