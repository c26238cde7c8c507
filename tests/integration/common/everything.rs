//! Every event of every kind of limiter, in front of one observer.

use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use tokio::time::sleep;
use tokio_test::task;
use tollgate::store::MemoryStore;
use tollgate::{
    Adapt, KeyedLimiter, Limiter, MaxConcurrency, Observer, Outcome, Penalty, Policy, Rate,
    SharedLimiter, StreamLimitExt as _, Throttle, UpstreamSignal, WhenFull,
};

use super::faulty::{Faulty, Way};
use super::{ms, queued};

/// The limiters' names.
pub(crate) const NAMES: [&str; 3] = ["plain", "keyed", "test"];
/// The key of the keyed limiter. Its text appears nowhere else.
pub(crate) const KEY: &str = "key-of-alice";
pub(crate) const SHARED_KEY: &str = "key-of-bob";

/// Causes every kind of event with limiters of all three kinds.
pub(crate) async fn everything(observer: impl Observer + Clone) {
    let plain = |policy: Policy| {
        Limiter::builder(policy)
            .name("plain")
            .max_queue(1)
            .observer(observer.clone())
            .build()
            .unwrap()
    };
    of_one(plain).await;
    let mut all_keys = Vec::new();
    let key = |policy: Policy| {
        let builder = KeyedLimiter::<String>::builder(policy)
            .name("keyed")
            .max_queue(1);
        let keyed = builder.observer(observer.clone()).build().unwrap();
        let limiter = keyed.limiter(KEY).unwrap();
        all_keys.push(keyed);
        limiter
    };
    of_one(key).await;
    of_keys(&observer);
    of_store(&observer).await;
    of_policies_in_store(&observer).await;
    #[cfg(feature = "http")]
    of_layers(&observer).await;
}

/// Refusals of layers around limiters of each kind: no request of this cost could be granted.
#[cfg(feature = "http")]
async fn of_layers(observer: &(impl Observer + Clone)) {
    use http::{Request, Response};
    use tollgate::layers::LimitLayer;
    use tower::{Layer, ServiceExt, service_fn};

    let hello = service_fn(async |_: Request<()>| {
        Ok::<_, std::convert::Infallible>(Response::new(String::new()))
    });
    let key_is = |key: &'static str| move |_: &Request<()>| Some(key.to_owned());
    let plain = Limiter::builder("1/s burst 1")
        .name("plain")
        .observer(observer.clone())
        .build()
        .unwrap();
    let keyed = KeyedLimiter::<String>::builder("1/s burst 1")
        .name("keyed")
        .observer(observer.clone())
        .build()
        .unwrap();
    let shared = Faulty::new()
        .builder("1/s burst 1")
        .observer(observer.clone())
        .build()
        .unwrap();
    macro_rules! status_of {
        ($layer:expr) => {{
            let service = $layer.cost(2).layer(hello);
            let answer = service.oneshot(Request::new(())).await.unwrap();
            answer.status().as_u16()
        }};
    }
    let refused = [
        status_of!(LimitLayer::new(&plain)),
        status_of!(LimitLayer::new(&keyed).by(key_is(KEY))),
        status_of!(LimitLayer::new(&shared).by(key_is(SHARED_KEY))),
    ];
    assert_eq!(refused, [413; 3]);
    let served = [
        status_of!(LimitLayer::new(plain).shadow().fair_by(key_is("a"))),
        status_of!(LimitLayer::new(keyed).by(key_is(KEY)).shadow()),
        status_of!(LimitLayer::new(shared).by(key_is(SHARED_KEY)).shadow()),
    ];
    assert_eq!(served, [200; 3]);
}

async fn of_one(mut limiter: impl FnMut(Policy) -> Limiter) {
    let jobs = limiter("1 concurrent ttl 50ms".parse().unwrap());
    let of_flow = || jobs.request().flow("a");
    let held = jobs.acquire().await.unwrap();
    let waiting = queued(of_flow().acquire());
    assert!(of_flow().acquire().await.is_err(), "shed");
    assert!(of_flow().try_acquire().is_err());
    drop(held);
    let held = waiting.await.unwrap();
    assert!(of_flow().timeout(ms(10)).acquire().await.is_err());
    drop(queued(jobs.acquire())); // cancelled
    sleep(ms(60)).await;
    assert!(!held.is_live());
    drop(held); // late
    jobs.pause_for(ms(5));
    assert!(jobs.try_acquire().is_err());
    jobs.resume();
    jobs.apply_upstream_signal(&UpstreamSignal::new().malformed("retry-after"));
    jobs.set_policy("2 concurrent").unwrap();
    jobs.close();

    let guarded = limiter(
        Penalty::new(1, Rate::per_second(1))
            .ban(Duration::from_secs(1))
            .into(),
    );
    assert!(guarded.try_acquire().is_ok() && guarded.try_acquire().is_err());
    assert!(
        guarded.request().timeout(ms(10)).acquire().await.is_err(),
        "it would be too late"
    );
    guarded.close();
    assert_eq!(stream::iter([1]).throttled(&guarded).count().await, 0);

    let adaptive = limiter(
        MaxConcurrency::new(10)
            .adapt(Adapt::aimd().between(1, 12).backoff(500))
            .into(),
    );
    let held = adaptive.acquire().await.unwrap();
    sleep(ms(1)).await;
    assert!(held.report(Outcome::Overloaded));
}

fn of_keys(observer: &(impl Observer + Clone)) {
    for when_full in [WhenFull::Deny, WhenFull::EvictSoonestReset] {
        let builder = KeyedLimiter::<String>::builder(Throttle::every(ms(1_000)))
            .name("keyed")
            .max_keys(1);
        let keyed = builder
            .when_full(when_full)
            .observer(observer.clone())
            .build()
            .unwrap();
        assert!(keyed.try_acquire(KEY).is_ok() && keyed.try_acquire(KEY).is_err());
        assert_eq!(
            keyed.try_acquire("other").is_ok(),
            when_full == WhenFull::EvictSoonestReset
        );
    }
}

async fn of_store(observer: &(impl Observer + Clone)) {
    let faulty = Faulty::new();
    let builder = faulty.builder("1 concurrent").max_queue(2).max_hold(ms(50));
    let limiter: SharedLimiter = builder.observer(observer.clone()).build().unwrap();
    let key = limiter.key(SHARED_KEY);
    let held = key.acquire().await.unwrap();
    assert!(key.try_acquire().await.is_err());
    let mut waiting = [queued(key.acquire()), queued(key.acquire())];
    assert!(key.acquire().await.is_err(), "shed");
    sleep(ms(100)).await; // the permit is reclaimed
    drop(held); // late
    let [first, second] = &mut waiting;
    drop(first.await.unwrap());
    drop(second.await.unwrap());
    let held = key.acquire().await.unwrap();
    assert!(key.request().timeout(ms(20)).acquire().await.is_err());
    drop(held);
    faulty.set(Way::Refuses);
    for _ in 0..2 {
        assert!(limiter.acquire().await.is_err());
    }
    assert!(!limiter.store_is_up());
    faulty.set(Way::Open);
    sleep(Duration::from_secs(2)).await;
    drop(limiter.acquire().await.unwrap());
    assert!(limiter.store_is_up());
    key.close();
    let mut refused = task::spawn(key.acquire());
    assert!(refused.poll().is_ready());
}

async fn of_policies_in_store(observer: &(impl Observer + Clone)) {
    let store = MemoryStore::new();
    let build = |policy: Policy| {
        SharedLimiter::builder(store.clone(), "test", policy).observer(observer.clone())
    };
    let former = build(Throttle::every(ms(1_000)).into())
        .build()
        .unwrap()
        .key(SHARED_KEY);
    assert!(former.try_acquire().await.is_ok());
    drop(queued(former.acquire())); // cancelled
    let guarded = Penalty::new(2, Rate::per_second(1)).ban(Duration::from_secs(1));
    let guarded = build(guarded.into())
        .revision(1)
        .build()
        .unwrap()
        .key(SHARED_KEY);
    assert!(guarded.try_acquire().await.is_ok() && guarded.try_acquire().await.is_err());
    assert!(former.try_acquire().await.is_err()); // it has the same policy by now
    guarded.pause_for(ms(5));
    guarded.resume();
    guarded.apply_upstream_signal(&UpstreamSignal::new().malformed("retry-after"));
    guarded.close();
    assert_eq!(stream::iter([1]).throttled(&guarded).count().await, 0);
}
