//! Limits in a Redis Cluster: slots that move, nodes that die or stand still, and messages between nodes.
//!
//! Each test that breaks a cluster starts its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tollgate::store::{RedisStore, Store, StoreError};
use tollgate::{AcquireError, SharedLimiter, TryAcquireError};

use crate::support::redis_cluster::RedisCluster;
use crate::support::redis_server::{any_server, chain};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A time that is enough for any step on a busy machine.
const SOON: Duration = Duration::from_secs(60);

/// The options of nodes that replace each other within seconds, and serve what they have meanwhile.
const FAILS_OVER: [&str; 4] = [
    "--cluster-node-timeout",
    "1500",
    "--cluster-require-full-coverage",
    "no",
];

/// The options of nodes that never replace each other during a test.
const STAYS: [&str; 4] = [
    "--cluster-node-timeout",
    "60000",
    "--cluster-require-full-coverage",
    "no",
];

fn shared_cluster() -> Vec<String> {
    let variable = "TOLLGATE_REDIS_CLUSTER_URLS";
    let urls = std::env::var(variable).ok().filter(|urls| !urls.is_empty());
    let urls = urls.unwrap_or_else(|| {
        panic!(
            "set {variable} to the URLs of a cluster's nodes, or run the tests by scripts/servers"
        )
    });
    urls.split(',').map(str::to_owned).collect()
}

fn store(urls: &[String]) -> RedisStore {
    store_with(urls, ms(1_000))
}

fn store_with(urls: &[String], timeout: Duration) -> RedisStore {
    let urls = urls.iter().map(String::as_str);
    RedisStore::cluster(urls).timeout(timeout).build().unwrap()
}

/// A limiter of one process.
fn process(urls: &[String], name: &str, policy: &str) -> SharedLimiter {
    SharedLimiter::builder(store(urls), name, policy)
        .deadline(ms(1_500))
        .build()
        .unwrap()
}

fn unique(name: &str) -> String {
    format!("{name}-{}", uuid::Uuid::new_v4())
}

/// The name of the state of a key, where neither limiter nor key has a character that is encoded.
fn state(limiter: &str, key: &str) -> String {
    format!("tollgate:{{{limiter}:{key}}}")
}

/// A key of this limiter whose slot this node has.
fn key_at(cluster: &RedisCluster, limiter: &str, node: usize) -> String {
    let keys = (0..).map(|number| format!("k{number}"));
    keys.take(1_000)
        .find(|key| cluster.owner(cluster.slot(&state(limiter, key)), node) == node)
        .unwrap()
}

/// Callers that take all units of some keys, until each key is used up.
struct Takers {
    callers: JoinSet<()>,
    granted: Arc<Vec<AtomicU64>>,
    failed: Arc<Vec<AtomicU64>>,
    errors: Arc<std::sync::Mutex<Vec<String>>>,
}

impl Takers {
    fn begin(processes: &[SharedLimiter], keys: usize) -> Self {
        let counts = || Arc::new((0..keys).map(|_| AtomicU64::new(0)).collect::<Vec<_>>());
        let mut this = Self {
            callers: JoinSet::new(),
            granted: counts(),
            failed: counts(),
            errors: Arc::default(),
        };
        for (process, key) in processes
            .iter()
            .flat_map(|process| (0..keys).map(move |key| (process, key)))
        {
            let limiter = process.key(format!("k{key}"));
            let (granted, failed) = (Arc::clone(&this.granted), Arc::clone(&this.failed));
            let errors = Arc::clone(&this.errors);
            this.callers.spawn(async move {
                loop {
                    match limiter.try_acquire().await {
                        Ok(permit) => {
                            granted[key].fetch_add(1, SeqCst);
                            drop(permit);
                            sleep(ms(15)).await;
                        }
                        Err(TryAcquireError::Denied(decision))
                            if decision
                                .retry_after()
                                .is_some_and(|wait| wait > Duration::from_secs(60)) =>
                        {
                            return;
                        }
                        Err(TryAcquireError::Denied(_)) => sleep(ms(5)).await,
                        Err(error) => {
                            failed[key].fetch_add(1, SeqCst);
                            errors.lock().unwrap().push(chain(&error));
                            sleep(ms(20)).await;
                        }
                    }
                }
            });
        }
        this
    }

    /// The grants and the failures of each key, once all keys are used up.
    async fn end(mut self) -> (Vec<(u64, u64)>, Vec<String>) {
        let callers = async {
            while let Some(caller) = self.callers.join_next().await {
                caller.unwrap();
            }
        };
        timeout(2 * SOON, callers).await.expect("callers hang");
        let count = |counts: &[AtomicU64]| {
            counts
                .iter()
                .map(|count| count.load(SeqCst))
                .collect::<Vec<_>>()
        };
        let errors = std::mem::take(&mut *self.errors.lock().unwrap());
        (
            count(&self.granted)
                .into_iter()
                .zip(count(&self.failed))
                .collect(),
            errors,
        )
    }

    fn sum(&self) -> u64 {
        self.granted.iter().map(|count| count.load(SeqCst)).sum()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_are_exact_while_slots_move_under_load() {
    const KEYS: usize = 30;
    const LIMIT: u64 = 400;
    let cluster = RedisCluster::start(3, &STAYS);
    let urls = cluster.urls();
    // The nodes are not all given.
    let name = unique("moves");
    let policy = format!("window {LIMIT}/100d from first grant");
    let [one, other] = [(); 2].map(|()| process(&urls[1..2], &name, &policy));
    let takers = Takers::begin(&[one, other], KEYS);
    while takers.sum() < 300 {
        sleep(ms(5)).await;
    }
    let cluster = tokio::task::spawn_blocking(move || {
        cluster.reshard(600, 0, 1);
        cluster.reshard(1_200, 1, 2);
        cluster
    });
    let cluster = cluster.await.unwrap();
    println!(
        "granted when the slots had moved: {} of {}",
        takers.sum(),
        LIMIT * KEYS as u64
    );
    let (counts, errors) = takers.end().await;
    assert_eq!(errors, [""; 0]);
    assert!(
        counts.iter().all(|count| *count == (LIMIT, 0)),
        "{counts:?}"
    );
    drop(cluster);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_followed_while_its_slot_is_moved() {
    let cluster = RedisCluster::start(3, &STAYS);
    let name = unique("followed");
    let (one, other) = (0, 1);
    let key = key_at(&cluster, &name, one);
    let slot = cluster.slot(&state(&name, &key));
    // These calls must all be answered, also by a machine that is busy with other tests.
    let patient = |name: &str, policy: &str| {
        SharedLimiter::builder(store_with(&cluster.urls(), ms(10_000)), name, policy)
            .deadline(ms(15_000))
            .build()
            .unwrap()
    };
    let rate = patient(&name, "window 6/100d from first grant").key(&key);
    let (name, policy) = (format!("{name}2"), "sliding log 6/100d and 5 concurrent");
    let places = patient(&name, policy);
    // A key with several keys of Redis in the same slot.
    let many = (0..60_000).map(|number| format!("k{number}"));
    let mut connection = cluster.connection(0);
    let many = many.into_iter().find(|many| {
        let mut cmd = redis::cmd("CLUSTER");
        cmd.arg("KEYSLOT").arg(state(&name, many));
        cmd.query::<u16>(&mut connection).unwrap() == slot
    });
    let places = many.as_ref().map(|many| places.key(many));
    let take_both = async || {
        drop(rate.try_acquire().await.unwrap());
        if let Some(places) = &places {
            drop(places.try_acquire().await.unwrap());
        }
    };
    take_both().await;
    let ids = [cluster.id(one), cluster.id(other)];
    let set =
        |node, what: &str| cluster.query::<String>(node, &format!("CLUSTER SETSLOT {slot} {what}"));
    set(other, &format!("IMPORTING {}", ids[0]));
    set(one, &format!("MIGRATING {}", ids[1]));
    drop(rate.try_acquire().await.unwrap());
    let port = cluster.urls()[other]
        .trim_end_matches('/')
        .rsplit_once(':')
        .unwrap()
        .1
        .to_owned();
    if let Some(many) = &many {
        // Some of its keys do not exist, so no node carries out a call. It is tried again until its time is up; if an attempt is under way
        // then, the error is that of an attempt without an answer.
        let mut attempts = 0..20;
        let error = loop {
            let start = Instant::now();
            assert!(
                attempts.next().is_some(),
                "no call has ended between two attempts"
            );
            let impatient = process(&cluster.urls(), &name, policy).key(many);
            let error = impatient.try_acquire().await.unwrap_err();
            assert!(
                start.elapsed() > ms(500) && start.elapsed() < ms(5_000),
                "{:?}",
                start.elapsed()
            );
            match error {
                TryAcquireError::Store(error)
                    if matches!(*error, StoreError::Unanswered { .. }) => {}
                error => break error,
            }
        };
        assert!(
            matches!(&error, TryAcquireError::Store(error) if matches!(**error, StoreError::Unreachable { .. })),
            "{error:?}"
        );
        assert!(
            chain(&error).contains("TRYAGAIN") || chain(&error).contains("TryAgain"),
            "{}",
            chain(&error)
        );
    }
    for key in cluster.query::<Vec<String>>(one, &format!("CLUSTER GETKEYSINSLOT {slot} 100")) {
        assert_eq!(
            cluster.query::<String>(one, &format!("MIGRATE 127.0.0.1 {port} {key} 0 5000")),
            "OK"
        );
    }
    // The old node answers ASK, for a script that the new node does not know.
    assert_eq!(cluster.query::<String>(other, "SCRIPT FLUSH"), "OK");
    drop(rate.try_acquire().await.unwrap());
    for node in [other, one, 2] {
        set(node, &format!("NODE {}", ids[1]));
    }
    let served = async {
        while let Some(places) = &places
            && let Err(TryAcquireError::Store(_)) = places.try_acquire().await
        {
            sleep(ms(20)).await;
        }
    };
    timeout(SOON, served)
        .await
        .expect("the call is carried out after the move");
    let mut granted = 3;
    while rate.try_acquire().await.is_ok() {
        granted += 1;
    }
    assert_eq!(granted, 6);
    if let Some(places) = &places {
        let remaining = places.check(1).await.unwrap().remaining();
        assert_eq!(remaining, 4, "the calls that failed were not carried out");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_takes_over_from_a_master_that_is_killed() {
    const KEYS: usize = 30;
    let mut cluster = RedisCluster::start(6, &FAILS_OVER);
    let urls = cluster.urls();
    let name = unique("killed");
    let policy = "window 200/100d from first grant";
    let [one, other] = [(); 2].map(|()| process(&urls[..3], &name, policy));
    let killed = 1;
    let owners: Vec<usize> = (0..KEYS)
        .map(|key| cluster.owner(cluster.slot(&state(&name, &format!("k{key}"))), 0))
        .collect();
    let own: Vec<bool> = owners.iter().map(|owner| *owner == killed).collect();
    let takers = Takers::begin(&[one.clone(), other], KEYS);
    while takers.sum() < 600 {
        sleep(ms(5)).await;
    }
    // A listing that is begun before, and ends afterwards.
    let listing = store(&urls[..3]);
    let limiter: Arc<str> = name.as_str().into();
    let first = listing.keys(&limiter, None, 1).await.unwrap();
    let mut listed = first.keys;
    cluster.nodes[killed].kill();
    let start = Instant::now();
    let key = format!("k{}", own.iter().position(|own| *own).unwrap());
    // Another process with its own store and breaker.
    let watch = process(&urls, &name, policy).key(&key);
    let mut down = 0;
    while let Err(TryAcquireError::Store(_)) = watch.try_acquire().await {
        down += 1;
        assert!(start.elapsed() < SOON, "nobody takes over");
        sleep(ms(10)).await;
    }
    println!(
        "served again {:?} after the kill, {down} attempts failed",
        start.elapsed()
    );
    let mut next = first.next;
    while let Some(from) = next {
        let page = match listing.keys(&limiter, Some(from.clone()), 1).await {
            Ok(page) => page,
            Err(error) => {
                assert!(start.elapsed() < SOON, "{error:?}");
                sleep(ms(20)).await;
                next = Some(from);
                continue;
            }
        };
        listed.extend(page.keys);
        next = page.next;
    }
    listed.sort();
    listed.dedup();
    assert_eq!(listed.len(), KEYS);
    let (counts, errors) = takers.end().await;
    println!("{} errors, e.g. {:?}", errors.len(), errors.first());
    let is_own = |key: &usize| own[*key];
    let failures = |key: usize| counts[key].1;
    let dead = (0..KEYS).filter(is_own).map(failures).min().unwrap();
    for (key, (granted, failed)) in counts.iter().copied().enumerate() {
        let slot = cluster.slot(&state(&name, &format!("k{key}")));
        let has_moved = cluster.owner(slot, 0) != owners[key];
        // The replica may have missed the last grants. A call without a reply may have charged.
        let most = if has_moved { 200 + 20 } else { 200 };
        assert!(
            granted + failed + u64::from(own[key]) >= 200 && granted <= most,
            "{key} moved: {has_moved}, {granted} granted, {failed} failed"
        );
        // If the machine stalls, calls to other nodes fail, too, and their breakers open for a while.
        assert!(
            own[key] || failed < dead / 2,
            "{key}: {failed} failed, {dead} at the dead node"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_stands_still_delays_only_its_own_keys() {
    let cluster = RedisCluster::start(3, &STAYS);
    let urls = cluster.urls();
    let name = unique("still");
    let limiter = process(&urls, &name, "100000/s");
    let limiters = [0, 1, 2].map(|node| limiter.key(key_at(&cluster, &name, node)));
    for limiter in &limiters {
        drop(limiter.try_acquire().await.unwrap());
    }
    let fresh_name = unique("fresh");
    let fresh_key = key_at(&cluster, &fresh_name, 1);
    let frozen = 0;
    cluster.nodes[frozen].signal("STOP");
    let stops = Arc::new(AtomicBool::new(false));
    let is_delayed = {
        let (stops, limiter) = (Arc::clone(&stops), limiters[frozen].clone());
        tokio::spawn(async move {
            let (mut failed, mut slowest) = (0, Duration::ZERO);
            while !stops.load(SeqCst) {
                let start = Instant::now();
                assert!(matches!(
                    limiter.try_acquire().await,
                    Err(TryAcquireError::Store(_))
                ));
                (failed, slowest) = (failed + 1, slowest.max(start.elapsed()));
                sleep(ms(20)).await;
            }
            (failed, slowest)
        })
    };
    let mut times = Vec::new();
    let start = Instant::now();
    while start.elapsed() < ms(3_000) {
        for limiter in &limiters[1..] {
            let start = Instant::now();
            drop(limiter.try_acquire().await.unwrap());
            times.push(start.elapsed());
        }
        sleep(ms(5)).await;
    }
    // A store that knows nothing yet, and is given the frozen node first.
    let urls = [urls[frozen].clone(), urls[2].clone()];
    let fresh = process(&urls, &fresh_name, "10/s").key(fresh_key);
    let start = Instant::now();
    drop(fresh.try_acquire().await.unwrap());
    assert!(start.elapsed() < ms(800), "{:?}", start.elapsed());
    stops.store(true, SeqCst);
    let (failed, slowest) = is_delayed.await.unwrap();
    times.sort();
    println!(
        "others: median {:?}, slowest {:?}; of the frozen node {failed} failed, slowest {slowest:?}",
        times[times.len() / 2],
        times.last().unwrap()
    );
    assert!(
        times[times.len() / 2] < ms(50),
        "{:?}",
        times[times.len() / 2]
    );
    assert!(
        failed > 0 && slowest < ms(1_000 + 2_000),
        "{failed} failed, the slowest after {slowest:?}"
    );
    cluster.nodes[frozen].signal("CONT");
    let start = Instant::now();
    while let Err(TryAcquireError::Store(error)) = limiters[frozen].try_acquire().await {
        assert!(start.elapsed() < SOON, "{error:?}");
        sleep(ms(20)).await;
    }
}

/// Releases a place of each key in one process, for a waiter of another process. Returns the median time to the grant.
async fn median_of_releases(
    holder: &SharedLimiter,
    waiter: &SharedLimiter,
    keys: usize,
) -> Duration {
    let mut times = Vec::new();
    for key in 0..keys {
        let (holder, waiter) = (holder.key(format!("k{key}")), waiter.key(format!("k{key}")));
        let permit = holder.acquire().await.unwrap();
        let waiting = tokio::spawn(async move { waiter.acquire().await.map(|_| Instant::now()) });
        sleep(ms(60)).await;
        assert!(!waiting.is_finished());
        let start = Instant::now();
        drop(permit);
        let granted = timeout(SOON, waiting)
            .await
            .expect("it waits for ever")
            .unwrap();
        times.push(granted.unwrap() - start);
    }
    times.sort();
    times[times.len() / 2]
}

/// Waiters that heard nothing would ask about once a second.
const BY_MESSAGES: Duration = ms(200);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_for_keys_of_all_nodes_are_woken_by_messages() {
    let name = unique("woken");
    let urls = shared_cluster();
    let [holder, waiter] = [(); 2].map(|()| process(&urls, &name, "1 concurrent ttl 1m"));
    let median = median_of_releases(&holder, &waiter, 24).await;
    assert!(median < BY_MESSAGES, "{median:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_heard_after_the_node_that_delivered_them_has_died() {
    let mut cluster = RedisCluster::start(6, &FAILS_OVER);
    let urls = cluster.urls();
    let name = unique("heard");
    let [holder, waiter] = [(); 2].map(|()| process(&urls[..3], &name, "1 concurrent ttl 1m"));
    let median = median_of_releases(&holder, &waiter, 12).await;
    assert!(median < BY_MESSAGES, "{median:?}");
    let channels = |cluster: &RedisCluster, node| {
        cluster
            .query::<Vec<(String, u64)>>(node, &format!("PUBSUB NUMSUB tollgate:released:{name}"))
            [0]
        .1
    };
    let heard: Vec<u64> = (0..3).map(|node| channels(&cluster, node)).collect();
    let dies = (0..3).max_by_key(|node| heard[*node]).unwrap();
    assert!(heard[dies] > 0, "{heard:?}");
    cluster.nodes[dies].kill();
    let start = Instant::now();
    let is_served = async |limiter: &SharedLimiter| {
        for key in 0..12 {
            let limiter = limiter.key(format!("k{key}"));
            while let Err(AcquireError::Store(error)) = limiter.acquire().await.map(drop) {
                assert!(start.elapsed() < SOON, "{error:?}");
                sleep(ms(20)).await;
            }
        }
    };
    is_served(&holder).await;
    is_served(&waiter).await;
    let living: Vec<usize> = (0..6).filter(|node| *node != dies).collect();
    while living
        .iter()
        .map(|node| channels(&cluster, *node))
        .sum::<u64>()
        < 2
    {
        assert!(start.elapsed() < SOON, "nobody listens");
        sleep(ms(20)).await;
    }
    println!("both listen again {:?} after the kill", start.elapsed());
    let median = median_of_releases(&holder, &waiter, 12).await;
    assert!(median < BY_MESSAGES, "{median:?}");
}

#[tokio::test]
async fn user_and_password_of_the_first_address_are_used_at_all_nodes_and_not_shown() {
    let options = [
        &STAYS[..],
        &[
            "--requirepass",
            "correct-horse",
            "--masterauth",
            "correct-horse",
        ],
    ]
    .concat();
    let cluster = RedisCluster::start(3, &options);
    let with = |password: &str| {
        cluster.urls()[0].replace("redis://", &format!("redis://default:{password}@"))
    };
    let limiter = process(&[with("correct-horse")], "limiter", "10/s");
    for key in 0..12 {
        assert!(limiter.key(format!("k{key}")).try_acquire().await.is_ok());
    }
    let wrong = store(&[with("battery-staple")]);
    let builder = RedisStore::cluster([with("battery-staple")]);
    let error = SharedLimiter::new(wrong.clone(), "limiter", "10/s")
        .unwrap()
        .check(1)
        .await
        .unwrap_err();
    assert!(matches!(error, StoreError::Refused { .. }), "{error:?}");
    let reported = format!("{} {wrong:?} {builder:?} {}", chain(&error), wrong.name());
    assert!(!reported.contains("battery"), "{reported}");
}

#[tokio::test]
async fn addresses_of_no_cluster_are_errors() {
    let none = RedisStore::cluster([""; 0]).build().unwrap_err();
    assert!(matches!(none, StoreError::Unreachable { .. }), "{none:?}");
    let (_server, url) = any_server();
    let error = process(&[url], "limiter", "10/s")
        .check(1)
        .await
        .unwrap_err();
    assert!(
        chain(&error).contains("cluster support disabled"),
        "{error:?}"
    );
}
