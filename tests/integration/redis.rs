//! Limits in Redis, on real servers: exact counts, and what goes wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::support::proxy::Proxy;
use crate::support::redis_server::{RedisServer, any_server, chain};
use tokio::io::AsyncWriteExt;
use tokio::time::{sleep, timeout};
use tollgate::store::{RedisStore, StoreError};
use tollgate::{AcquireError, SharedLimiter, TryAcquireError};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A store whose keys no other test and no other run uses.
fn store_at(url: &str, test: &str) -> RedisStore {
    RedisStore::builder(url)
        .prefix(format!("test-{}-{test}", std::process::id()))
        .timeout(ms(2_000))
        .build()
        .unwrap()
}

fn limiter(store: &RedisStore, policy: &str) -> SharedLimiter {
    SharedLimiter::builder(store.clone(), "limiter", policy)
        .deadline(ms(3_000))
        .build()
        .unwrap()
}

/// Whether a request is admitted. Panics at an error that is not a denial.
async fn admitted(limiter: &SharedLimiter) -> bool {
    match limiter.try_acquire().await {
        Ok(_) => true,
        Err(TryAcquireError::Denied(_)) => false,
        Err(error) => panic!("{error:?}"),
    }
}

fn query<T: redis::FromRedisValue>(url: &str, command: &str) -> T {
    let mut words = command.split(' ');
    let mut cmd = redis::cmd(words.next().unwrap());
    words.for_each(|word| _ = cmd.arg(word));
    cmd.query(&mut redis::Client::open(url).unwrap().get_connection().unwrap())
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn many_callers_of_many_processes_get_exactly_the_limit() {
    let (_server, url) = any_server();
    for policy in [
        "window 500/h from first grant",
        "sliding log 500/h",
        "sliding counter 500/30d",
        "1/h burst 500",
    ] {
        let granted = Arc::new(AtomicU64::new(0));
        let processes = (0..8).map(|_| {
            let (limiter, granted) = (
                limiter(&store_at(&url, policy), policy),
                Arc::clone(&granted),
            );
            tokio::spawn(async move {
                let callers = (0..32).map(|_| {
                    let (limiter, granted) = (limiter.clone(), Arc::clone(&granted));
                    tokio::spawn(async move {
                        while admitted(&limiter).await {
                            granted.fetch_add(1, Relaxed);
                        }
                    })
                });
                for caller in callers.collect::<Vec<_>>() {
                    caller.await.unwrap();
                }
            })
        });
        for process in processes.collect::<Vec<_>>() {
            process.await.unwrap();
        }
        assert_eq!(granted.load(Relaxed), 500, "{policy}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_permits_are_held_than_there_are_places() {
    let (_server, url) = any_server();
    let (out, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let callers = (0..8).flat_map(|_| {
        let limiter = limiter(&store_at(&url, "places"), "5 concurrent");
        let (out, most) = (Arc::clone(&out), Arc::clone(&most));
        (0..32).map(move |_| {
            let (limiter, out, most) = (limiter.clone(), Arc::clone(&out), Arc::clone(&most));
            tokio::spawn(async move {
                let permit = limiter.acquire().await.unwrap();
                most.fetch_max(out.fetch_add(1, Relaxed) + 1, Relaxed);
                sleep(ms(1)).await;
                out.fetch_sub(1, Relaxed);
                drop(permit);
            })
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.unwrap();
    }
    assert_eq!(most.load(Relaxed), 5);
}

#[tokio::test]
async fn a_release_wakes_a_waiter_of_another_process() {
    let (_server, url) = any_server();
    let [one, other] = [(); 2].map(|()| limiter(&store_at(&url, "wakes"), "1 concurrent ttl 1m"));
    let permit = one.acquire().await.unwrap();
    let waiting = tokio::spawn(async move { other.acquire().await.map(|permit| permit.fence()) });
    sleep(ms(300)).await;
    assert!(!waiting.is_finished());
    let (fence, start) = (permit.fence(), Instant::now());
    drop(permit);
    assert!(waiting.await.unwrap().unwrap() > fence);
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "it waited for the expiry"
    );
}

/// A fixed bug: the waiter waited until the lease would have expired.
#[tokio::test]
async fn waiters_are_served_although_the_message_of_a_release_is_lost() {
    let server = RedisServer::start(&[]);
    let [one, other] =
        [(); 2].map(|()| limiter(&store_at(&server.url(), "lost"), "1 concurrent ttl 1m"));
    let permit = one.acquire().await.unwrap();
    let waiting = tokio::spawn(async move { other.acquire().await.map(drop) });
    sleep(ms(300)).await;
    query::<u64>(&server.url(), "CLIENT KILL TYPE pubsub");
    let start = Instant::now();
    drop(permit);
    waiting.await.unwrap().unwrap();
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "it waited for the expiry"
    );
}

#[tokio::test]
async fn listeners_are_notified_of_releases_again_after_a_restart() {
    let mut server = RedisServer::start(&[]);
    let [one, other] =
        [(); 2].map(|()| limiter(&store_at(&server.url(), "listens"), "1 concurrent ttl 1m"));
    drop(one.acquire().await.unwrap());
    server.kill();
    server.restart();
    let start = Instant::now();
    while query::<Vec<String>>(&server.url(), "PUBSUB CHANNELS").is_empty() {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "no listener is connected"
        );
        sleep(ms(20)).await;
    }
    while one.check(1).await.is_err() || other.check(1).await.is_err() {}
    let permit = one.acquire().await.unwrap();
    let waiting = tokio::spawn(async move { other.acquire().await.map(drop) });
    sleep(ms(200)).await;
    let start = Instant::now();
    drop(permit);
    waiting.await.unwrap().unwrap();
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "it waited for the expiry"
    );
}

#[tokio::test]
async fn a_lease_that_is_not_renewed_expires_and_all_keys_vanish() {
    let server = RedisServer::start(&[]);
    let limiter = SharedLimiter::builder(
        store_at(&server.url(), "leases"),
        "limiter",
        "1 concurrent ttl 1s and 100/s",
    )
    .max_hold(ms(1_000))
    .build()
    .unwrap();
    std::mem::forget(limiter.acquire().await.unwrap());
    assert!(!admitted(&limiter).await);
    let start = Instant::now();
    drop(limiter.acquire().await.unwrap());
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
    for _ in 0..100 {
        sleep(ms(50)).await;
        if query::<u64>(&server.url(), "DBSIZE") == 0 {
            return;
        }
    }
    panic!(
        "these keys stay: {:?}",
        query::<Vec<String>>(&server.url(), "KEYS *")
    );
}

#[tokio::test]
async fn every_key_expires() {
    let server = RedisServer::start(&[]);
    let policies = [
        "2 concurrent and 3 concurrent per request",
        "sliding log 100/min and window 100/min and window 100/min from first grant",
        "sliding counter 100/min and 100/min and 100/min refilled each period initial 0",
        "penalty 1 falling 1/s and penalty 1 half-life 1s ban 1s",
    ];
    for policy in policies {
        let limiter = limiter(&store_at(&server.url(), policy), policy);
        let permit = limiter.try_acquire().await;
        let more = limiter.request().cost(2).try_acquire().await;
        drop((permit, more));
        let _denied = limiter.try_acquire().await;
        for key in query::<Vec<String>>(&server.url(), "KEYS *") {
            let expires_in: i64 = query(&server.url(), &format!("PTTL {key}"));
            assert!(
                (0..130_000).contains(&expires_in) || expires_in == -2,
                "{policy}: {key} expires in {expires_in} ms"
            );
        }
    }
}

#[tokio::test]
async fn a_denial_writes_nothing() {
    let server = RedisServer::start(&[]);
    let policy =
        "1/h and window 1/h and sliding log 1/h and sliding counter 1/h and 1 concurrent ttl 1h";
    let limiter = limiter(&store_at(&server.url(), "denials"), policy);
    let _permit = limiter.acquire().await.unwrap();
    let changes = || {
        let text: String = query(&server.url(), "INFO persistence");
        text.lines()
            .find(|line| line.starts_with("rdb_changes_since_last_save"))
            .unwrap()
            .to_owned()
    };
    let before = changes();
    for _ in 0..10 {
        assert!(!admitted(&limiter).await);
        drop(limiter.check(1).await.unwrap());
    }
    assert_eq!(changes(), before);
}

#[tokio::test]
async fn scripts_that_the_server_forgets_are_loaded_again() {
    let server = RedisServer::start(&[]);
    let limiter = limiter(
        &store_at(&server.url(), "flush"),
        "window 5/h from first grant",
    );
    let mut granted = 0;
    for round in 0..8 {
        if round % 2 == 0 {
            query::<String>(&server.url(), "SCRIPT FLUSH");
        }
        granted += u64::from(admitted(&limiter).await);
    }
    assert_eq!(granted, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_is_reported_down_and_used_again_when_it_is_back() {
    let mut server = RedisServer::start(&[]);
    let limiter = limiter(
        &store_at(&server.url(), "killed"),
        "window 5/h from first grant",
    );
    assert!(admitted(&limiter).await);
    server.kill();
    let mut unreachable = 0;
    for _ in 0..20 {
        let start = Instant::now();
        match limiter.check(1).await {
            Err(StoreError::Unreachable { .. }) => unreachable += 1,
            Err(StoreError::Unanswered { .. }) => {}
            other => panic!("{other:?}"),
        }
        assert!(start.elapsed() < Duration::from_secs(3));
    }
    assert!(
        unreachable >= 19,
        "only the first call can be sent on a connection that breaks: {unreachable}"
    );
    server.restart();
    let start = Instant::now();
    while limiter.check(1).await.is_err() {
        assert!(start.elapsed() < Duration::from_secs(10));
        sleep(ms(10)).await;
    }
    assert!(admitted(&limiter).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn late_calls_are_not_carried_out_by_a_server_that_stood_still() {
    let server = RedisServer::start(&[]);
    let store = RedisStore::builder(server.url())
        .timeout(ms(200))
        .build()
        .unwrap();
    let limiter = SharedLimiter::builder(store, "stopped", "window 100/h from first grant")
        .deadline(ms(300))
        .build()
        .unwrap();
    drop(limiter.acquire().await.unwrap());
    server.signal("STOP");
    let start = Instant::now();
    let mut errors = Vec::new();
    while start.elapsed() < ms(1_500) {
        errors.push(limiter.try_acquire().await.unwrap_err());
    }
    server.signal("CONT");
    let unanswered = |error: &TryAcquireError| chain(error).contains("not answered");
    assert!(errors.iter().any(unanswered), "{errors:?}");
    let start = Instant::now();
    let remaining = loop {
        if let Ok(decision) = limiter.check(1).await {
            break decision.remaining();
        }
        assert!(start.elapsed() < Duration::from_secs(10));
        sleep(ms(10)).await;
    };
    assert_eq!(remaining, 99, "{} attempts failed", errors.len());
}

#[tokio::test]
async fn a_wrong_password_is_refused_and_not_shown() {
    let server = RedisServer::start(&["--requirepass", "correct-horse"]);
    let with = |password: &str| {
        server
            .url()
            .replace("redis://", &format!("redis://:{password}@"))
    };
    let store = RedisStore::connect(with("battery-staple")).unwrap();
    let error = limiter(&store, "10/s").check(1).await.unwrap_err();
    assert!(matches!(error, StoreError::Refused { .. }), "{error:?}");
    let reported = chain(&error)
        + &format!(
            "{store:?} {:?}",
            RedisStore::builder(with("battery-staple"))
        );
    assert!(
        !reported.contains("battery")
            && reported.contains("WRONGPASS") | reported.contains("uthentication"),
        "{reported}"
    );
    let without = limiter(&RedisStore::connect(server.url()).unwrap(), "10/s")
        .check(1)
        .await
        .unwrap_err();
    assert!(matches!(without, StoreError::Refused { .. }), "{without:?}");
    assert!(
        limiter(&RedisStore::connect(with("correct-horse")).unwrap(), "10/s")
            .check(1)
            .await
            .is_ok()
    );
}

#[tokio::test]
async fn a_replica_that_only_reads_refuses() {
    let server = RedisServer::start(&["--replicaof", "127.0.0.1 1"]);
    let limiter = limiter(&store_at(&server.url(), "replica"), "10/s");
    let error = limiter.try_acquire().await.unwrap_err();
    assert!(chain(&error).contains("refuses"), "{error:?}");
}

/// A fixed bug: the old server was called for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_to_a_server_that_was_replaced_is_closed() {
    let (old, new) = (RedisServer::start(&[]), RedisServer::start(&[]));
    let (proxy, url) = Proxy::before(&old.url()).await;
    let limiter = limiter(&store_at(&url, "takes-over"), "window 5/h from first grant");
    assert!(admitted(&limiter).await);
    query::<String>(&old.url(), "REPLICAOF 127.0.0.1 1");
    proxy.lead_to(&new.url());
    let start = Instant::now();
    while let Err(error) = limiter.try_acquire().await {
        assert!(matches!(error, TryAcquireError::Store(_)), "{error:?}");
        assert!(start.elapsed() < Duration::from_secs(30), "{error:?}");
        sleep(ms(20)).await;
    }
}

/// Places that a server without persistence has lost are granted again, and their former holders are notified.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_are_notified_of_leases_that_a_server_has_lost() {
    let mut server = RedisServer::start(&[]);
    let [one, other] = [(); 2].map(|()| {
        limiter(
            &store_at(&server.url(), "lost"),
            "1 concurrent ttl 3s and window 2/h from first grant",
        )
    });
    let permit = one.acquire().await.unwrap();
    server.kill();
    server.restart();
    timeout(Duration::from_secs(30), permit.reclaimed())
        .await
        .expect("at its next renewal, or when its TTL ends");
    let mut granted = 0;
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(30) {
        match other.request().timeout(ms(2_000)).acquire().await {
            Ok(_permit) => granted += 1,
            Err(AcquireError::Store(_)) => sleep(ms(20)).await,
            Err(_) => break,
        }
    }
    assert_eq!(granted, 2, "as of a new limiter");
}

#[tokio::test]
async fn an_address_without_a_listener_is_unreachable() {
    for wrong in [
        "http://localhost/",
        "redis://",
        "",
        "redis://:secret@localhost:port/",
    ] {
        let error = RedisStore::connect(wrong).unwrap_err();
        assert!(
            matches!(error, StoreError::Unreachable { .. }),
            "{wrong:?}: {error:?}"
        );
        assert!(!chain(&error).contains("secret"), "{}", chain(&error));
    }
    let error = limiter(
        &RedisStore::connect("redis://127.0.0.1:1/").unwrap(),
        "10/s",
    )
    .check(1)
    .await
    .unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
    let error = limiter(
        &RedisStore::connect("unix:///nowhere/redis.sock").unwrap(),
        "10/s",
    )
    .check(1)
    .await
    .unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
}

#[tokio::test]
async fn a_server_that_is_no_redis_is_an_error() {
    for answer in [
        "HTTP/1.1 400 Bad Request\r\n\r\n",
        "+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n",
        "*1000000000\r\n",
        "$-5\r\n",
        "",
    ] {
        let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}/", socket.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = socket.accept().await {
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        let store = RedisStore::builder(url).timeout(ms(100)).build().unwrap();
        let error = limiter(&store, "10/s").check(1).await.unwrap_err();
        assert!(
            matches!(
                error,
                StoreError::Unreachable { .. } | StoreError::Unanswered { .. }
            ),
            "{answer:?}: {error:?}"
        );
    }
}

#[tokio::test]
async fn any_bytes_are_a_key() {
    let (_server, url) = any_server();
    let limiter = limiter(
        &store_at(&url, "hostile"),
        "1/h and 9 concurrent and sliding log 9/h",
    );
    let long = vec![b'}'; 1 << 20];
    let keys: [&[u8]; 9] = [
        b"",
        b"{",
        b"}{a}",
        b"a:b",
        b"\0",
        b"a\r\nb",
        b"*?[a]\\",
        "\u{1F980}%41".as_bytes(),
        &long,
    ];
    for key in keys {
        assert!(
            admitted(&limiter.key(key)).await,
            "{}",
            key[..key.len().min(20)].escape_ascii()
        );
    }
    for key in keys {
        assert!(
            !admitted(&limiter.key(key)).await,
            "{}",
            key[..key.len().min(20)].escape_ascii()
        );
    }
    let (mut found, mut from) = (Vec::new(), None);
    loop {
        let page = limiter.keys(from, 3).await.unwrap();
        found.extend(page.keys.iter().map(|key| key.to_vec()));
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    found.sort();
    found.dedup();
    let mut expected = keys.map(<[u8]>::to_vec);
    expected.sort();
    assert_eq!(found, expected);
    limiter.key(b"}{a}").reset().await.unwrap();
    assert!(admitted(&limiter.key(b"}{a}")).await);
    assert!(!admitted(&limiter.key(b"{")).await);
}

#[tokio::test]
async fn another_policy_is_an_error_unless_its_revision_is_later() {
    let (_server, url) = any_server();
    let store = store_at(&url, "policies");
    let (old, new) = (
        limiter(&store, "10/h"),
        limiter(&store, "20/h and 2 concurrent"),
    );
    assert!(admitted(&old).await);
    let error = new.check(1).await.unwrap_err();
    let (stored, given) = ("10/h".to_owned(), "20/h and 2 concurrent".to_owned());
    assert_eq!(
        error,
        StoreError::PolicyDiffers {
            limiter: "limiter".into(),
            stored,
            stored_revision: 0,
            given,
            given_revision: 0,
        }
    );
    let replaces = SharedLimiter::builder(store, "limiter", "20/h and 2 concurrent")
        .revision(1)
        .build()
        .unwrap();
    assert!(admitted(&replaces).await);
    assert!(new.check(1).await.is_ok());
    assert!(old.check(1).await.is_ok());
    assert_eq!(old.policy().to_string(), "20/h and 2 concurrent");
}

#[tokio::test]
async fn a_policy_of_a_later_version_is_named_and_grants_nothing() {
    let server = RedisServer::start(&[]);
    let store = store_at(&server.url(), "later");
    let first = limiter(&store, "10/h");
    assert!(admitted(&first).await);
    let state = query::<Vec<String>>(&server.url(), "KEYS *").remove(0);
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    let mut kept: Vec<u8> = redis::cmd("GET")
        .arg(&state)
        .query(&mut connection)
        .unwrap();
    assert!(kept.starts_with(b"\x0110/h\0"), "{kept:?}");
    kept.splice(1..5, *b"7 per blue moon#8");
    redis::cmd("SET")
        .arg(&state)
        .arg(&kept)
        .exec(&mut connection)
        .unwrap();
    for revision in [0, 7, 9] {
        let builder = SharedLimiter::builder(store.clone(), "limiter", "10/h");
        let limiter = builder.revision(revision).build().unwrap();
        let Err(TryAcquireError::Store(error)) = limiter.try_acquire().await else {
            panic!();
        };
        let own = format!("`10/h` (revision {revision})");
        for part in ["`7 per blue moon` (revision 8)", own.as_str()] {
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}

#[tokio::test]
async fn an_invalid_state_is_reported_as_damaged_until_its_reset() {
    let server = RedisServer::start(&[]);
    let limiter = limiter(
        &store_at(&server.url(), "damaged"),
        "window 10/h from first grant",
    );
    assert!(admitted(&limiter).await);
    let state = query::<Vec<String>>(&server.url(), "KEYS *").remove(0);
    for command in [
        "SET @ nonsense",
        "SETRANGE @ 0 \u{2}",
        "APPEND @ more",
        "SET @ \u{1}",
        "LPUSH @ 1",
    ] {
        query::<redis::Value>(&server.url(), &format!("DEL {state}"));
        if command.starts_with("SETRANGE") || command.starts_with("APPEND") {
            assert!(admitted(&limiter).await);
        }
        query::<redis::Value>(&server.url(), &command.replace('@', &state));
        let error = limiter.check(1).await.unwrap_err();
        assert!(
            matches!(&error, StoreError::Damaged { at, .. } if *at == state),
            "{command}: {error:?}"
        );
        limiter.reset().await.unwrap();
        assert!(limiter.check(1).await.is_ok(), "{command}");
    }
}

#[test]
fn a_store_outlives_the_runtimes_that_call_it() {
    let (_server, url) = any_server();
    let store = store_at(&url, "runtimes");
    let mut granted = 0;
    for _ in 0..40 {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        granted += runtime.block_on(async {
            u64::from(admitted(&limiter(&store, "window 30/h from first grant")).await)
        });
    }
    assert_eq!(granted, 30);
}

#[test]
fn policies_that_redis_cannot_count_exactly_are_refused_with_a_reason() {
    let store = RedisStore::connect("redis://127.0.0.1/").unwrap();
    let refused = [
        ("window 10/1500ns", "whole microseconds"),
        ("10/1001ns refilled each period", "whole microseconds"),
        ("penalty 3 falling 1/1ns", "whole microseconds"),
        ("sliding counter 10/1001ns", "whole microseconds"),
        ("sliding counter 10/300d", "200 days"),
        ("window 9007199254740993/d", "too large"),
        ("999999937/d burst 999999937", "too large"),
        ("4 concurrent aimd", "adapts"),
    ];
    for (policy, why) in refused {
        let error = SharedLimiter::new(store.clone(), "limiter", policy).unwrap_err();
        assert!(chain(&error).contains(why), "{policy}: {}", chain(&error));
    }
    let many = vec!["1/s"; 17].join(" and ");
    assert!(
        chain(&SharedLimiter::new(store.clone(), "limiter", many.as_str()).unwrap_err())
            .contains("16 limits")
    );
    for policy in [
        "3/7ns",
        "sliding log 10/1001ns",
        "1000000/d",
        "sliding counter 4000000000/d",
        &many[..many.len() - 8],
    ] {
        assert!(
            SharedLimiter::new(store.clone(), "limiter", policy).is_ok(),
            "{policy}"
        );
    }
}
