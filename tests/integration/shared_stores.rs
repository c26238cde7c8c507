//! Shared limiters, each with a store instance of its own, as in several processes. The clock is real.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tollgate::store::Store;
#[cfg(feature = "sqlite")]
use tollgate::store::{Asks, Call, Scope, Settlement};
use tollgate::{EventKind, SharedLimiter, TryAcquireError};

fn unique(name: &str) -> String {
    format!("{name} {}", uuid::Uuid::new_v4())
}

/// Limiters with the same name.
fn processes<S: Store>(open: &impl Fn() -> S, count: usize, policy: &str) -> Vec<SharedLimiter> {
    let name = unique("processes");
    (0..count)
        .map(|_| SharedLimiter::new(open(), name.as_str(), policy).unwrap())
        .collect()
}

async fn places_are_shared<S: Store>(open: impl Fn() -> S) {
    let held = Arc::new(AtomicU64::new(0));
    let limiters = processes(&open, 3, "2 concurrent ttl 30s");
    let tasks: Vec<_> = limiters
        .iter()
        .flat_map(|limiter| std::iter::repeat_n(limiter, 4))
        .map(|limiter| {
            let (limiter, held) = (limiter.clone(), Arc::clone(&held));
            tokio::spawn(async move {
                for _ in 0..5 {
                    let permit = limiter.acquire().await.unwrap();
                    assert!(held.fetch_add(1, SeqCst) < 2);
                    tokio::task::yield_now().await;
                    held.fetch_sub(1, SeqCst);
                    drop(permit);
                }
            })
        })
        .collect();
    let all = async {
        for task in tasks {
            task.await.unwrap();
        }
    };
    timeout(Duration::from_secs(60), all)
        .await
        .expect("a release is noticed long before the TTL");
}

async fn a_rate_is_shared<S: Store>(open: impl Fn() -> S) {
    let limiters = processes(&open, 3, "200/s burst 20");
    let start = Instant::now();
    let tasks = limiters.into_iter().map(|limiter| {
        tokio::spawn(async move {
            for _ in 0..20 {
                drop(limiter.acquire().await.unwrap());
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    assert!(
        start.elapsed() >= Duration::from_millis(190),
        "60 after {:?}",
        start.elapsed()
    );
}

async fn a_denial_says_when_to_retry<S: Store>(open: impl Fn() -> S) {
    let [one, other] =
        <[_; 2]>::try_from(processes(&open, 2, "window 2/h from first grant")).unwrap();
    drop(one.try_acquire().await.unwrap());
    drop(other.key("alice").try_acquire().await.unwrap());
    drop(other.try_acquire().await.unwrap());
    let Err(TryAcquireError::Denied(decision)) = one.try_acquire().await else {
        panic!()
    };
    let retry_after = decision.retry_after().unwrap();
    assert!(
        retry_after <= Duration::from_secs(3_600) && retry_after > Duration::from_secs(3_000),
        "{retry_after:?}"
    );
    one.reset().await.unwrap();
    drop(other.key("alice").try_acquire().await.unwrap());
}

/// A fixed bug: in the SQL stores a denial did not store a new key, so each call found an empty bucket.
async fn a_bucket_that_is_empty_at_first_fills<S: Store>(open: impl Fn() -> S) {
    for policy in [
        "10/s burst 5 initial 0",
        "1/100ms burst 5 refilled each period initial 0",
    ] {
        let [one, other] = <[_; 2]>::try_from(processes(&open, 2, policy)).unwrap();
        let start = Instant::now();
        drop(
            timeout(Duration::from_secs(20), one.acquire_many(5))
                .await
                .expect("it fills")
                .unwrap(),
        );
        assert!(
            start.elapsed() >= Duration::from_millis(300),
            "{:?} for five under {policy}",
            start.elapsed()
        );
        for looks in ["check", "limits"] {
            let key = other.key(looks);
            let is_full = async || match looks {
                "check" => key.check(5).await.unwrap().is_allowed(),
                _ => key.limits().await.unwrap()[0].remaining == 5,
            };
            assert!(!is_full().await, "{looks} under {policy}");
            let fills = async {
                while !is_full().await {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            timeout(Duration::from_secs(20), fills)
                .await
                .unwrap_or_else(|_| panic!("{looks} under {policy}"));
        }
    }
}

async fn a_ban_and_a_new_policy_are_reported_once<S: Store>(open: impl Fn() -> S) {
    let name = unique("reported");
    let reported = Arc::new(Mutex::new(Vec::new()));
    let build = |policy: &str, revision: u64| {
        let reported = Arc::clone(&reported);
        let builder = SharedLimiter::builder(open(), name.as_str(), policy)
            .revision(revision)
            .on_event(move |event| {
                let what = match &event.kind {
                    EventKind::Banned {
                        limit_index,
                        banned_for,
                        ..
                    } => format!("{limit_index} for {banned_for:?}"),
                    EventKind::PolicyChanged { from, to, .. } => format!("from {from} to {to}"),
                    _ => return,
                };
                reported.lock().unwrap().push(what);
            });
        builder.build().unwrap()
    };
    let policy = "100/s and penalty 1 falling 1/s ban 1m";
    let [one, other] = [build(policy, 0), build(policy, 0)];
    assert!(one.try_acquire().await.is_ok());
    for banned in [&other, &one, &other] {
        assert!(banned.try_acquire().await.is_err());
    }
    assert!(build("5/h", 1).try_acquire().await.is_ok());
    for _ in 0..3 {
        assert!(one.try_acquire().await.is_ok());
    }
    assert_eq!(
        *reported.lock().unwrap(),
        ["1 for 60s".to_owned(), format!("from {policy} to 5/h")]
    );
}

macro_rules! shares {
    ($store:ident, $open:expr) => {
        mod $store {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn places_are_shared() {
                let (open, _alive) = $open;
                super::places_are_shared(open).await;
            }

            #[tokio::test]
            async fn a_rate_is_shared() {
                let (open, _alive) = $open;
                super::a_rate_is_shared(open).await;
            }

            #[tokio::test]
            async fn a_denial_says_when_to_retry() {
                let (open, _alive) = $open;
                super::a_denial_says_when_to_retry(open).await;
            }

            #[tokio::test]
            async fn a_bucket_that_is_empty_at_first_fills() {
                let (open, _alive) = $open;
                super::a_bucket_that_is_empty_at_first_fills(open).await;
            }

            #[tokio::test]
            async fn a_ban_and_a_new_policy_are_reported_once() {
                let (open, _alive) = $open;
                super::a_ban_and_a_new_policy_are_reported_once(open).await;
            }
        }
    };
}

#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
fn url(variable: &str) -> String {
    let url = std::env::var(variable).ok().filter(|url| !url.is_empty());
    url.unwrap_or_else(|| {
        panic!("set {variable} to the URL of a server, or run the tests by scripts/servers")
    })
}

#[cfg(feature = "sqlite")]
shares!(sqlite, {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.db");
    (
        move || tollgate::store::SqliteStore::open(&file).unwrap(),
        folder,
    )
});
#[cfg(feature = "redis")]
shares!(
    redis,
    (
        || tollgate::store::RedisStore::connect(super::url("TOLLGATE_REDIS_URL")).unwrap(),
        ()
    )
);
#[cfg(feature = "postgres")]
shares!(
    postgres,
    (
        || tollgate::store::PostgresStore::open(&super::url("TOLLGATE_POSTGRES_URL")).unwrap(),
        ()
    )
);
#[cfg(feature = "mysql")]
shares!(
    mysql,
    (
        || tollgate::store::MysqlStore::open(&super::url("TOLLGATE_MYSQL_URL")).unwrap(),
        ()
    )
);

/// As the docs of the SQL stores and of `settle` state, these stores do not keep past grants of a bucket or a throttle.
#[cfg(feature = "sqlite")]
#[tokio::test]
async fn a_settlement_downwards_of_a_bucket_or_throttle_refunds_nothing_in_sql_and_all_of_it_in_memory()
 {
    async fn remaining(store: impl Store, policy: &str) -> u64 {
        let scope = Scope {
            limiter: unique("settled").as_str().into(),
            key: [].into(),
        };
        let mut call = Call::new(scope, policy.parse().unwrap(), 1);
        call.asks = vec![Asks::new(1, 1, [60])];
        let granted = store.call(call.clone()).await.unwrap();
        assert_eq!((granted.granted, granted.limits[0].remaining), (1, 40));
        call.asks = Vec::new();
        call.settlements = vec![Settlement::new(granted.now, [60], [10])];
        store.call(call).await.unwrap().limits[0].remaining
    }
    let folder = tempfile::tempdir().unwrap();
    for (number, (policy, in_sql, in_memory)) in [
        ("1/day burst 100", 40, 90),
        ("throttle every 1d burst 100", 40, 90),
        ("window 100/day", 90, 90),
        ("sliding log 100/day", 90, 90),
        ("sliding counter 100/day", 90, 90),
        ("1/day burst 100 refilled each period", 40, 90),
        ("penalty 100 falling 1/day", 90, 90),
    ]
    .into_iter()
    .enumerate()
    {
        let file = folder.path().join(format!("{number}.db"));
        assert_eq!(
            remaining(tollgate::store::MemoryStore::new(), policy).await,
            in_memory,
            "{policy}"
        );
        assert_eq!(
            remaining(tollgate::store::SqliteStore::open(&file).unwrap(), policy).await,
            in_sql,
            "{policy}"
        );
    }
}
