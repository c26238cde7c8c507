//! What takes a limiter takes it as a value and as a reference.

use futures_util::{SinkExt, StreamExt, sink, stream};
use tollgate::store::MemoryStore;
use tollgate::{
    KeyedLimiter, Limiter, LimiterGroup, PollLimiter, SharedLimiter, SinkLimitExt, StreamLimitExt,
};

#[tokio::test]
async fn a_limiter_is_taken_as_a_value_and_as_a_reference() {
    let limiter = Limiter::new("1000000/s").unwrap();
    let shared = SharedLimiter::new(MemoryStore::new(), "shared", "1000000/s").unwrap();
    let group = LimiterGroup::new([&limiter])
        .and(&limiter)
        .and(limiter.clone());
    assert_eq!(
        LimiterGroup::new([limiter.clone()]).members().len(),
        group.members().len()
    );
    for mut polled in [
        PollLimiter::new(&limiter),
        PollLimiter::new(limiter.clone()),
    ] {
        let permit = std::future::poll_fn(|context| polled.poll_acquire(context)).await;
        drop(permit.unwrap());
    }
    let items = || stream::iter(0..3);
    macro_rules! of_each {
        ($limiter:ident) => {
            let (one, other) = (
                items().throttled(&$limiter),
                items().throttled($limiter.clone()),
            );
            assert_eq!((one.count().await, other.count().await), (3, 3));
            let (one, other) = (
                items().try_throttled(&$limiter),
                items().try_throttled($limiter.clone()),
            );
            assert_eq!((one.count().await, other.count().await), (3, 3));
            let (one, other) = (
                items().with_permits(&$limiter),
                items().with_permits($limiter.clone()),
            );
            assert_eq!((one.count().await, other.count().await), (3, 3));
            let mut one = sink::drain().throttled_sink(&$limiter);
            let mut other = sink::drain().throttled_sink($limiter.clone());
            one.send(1).await.unwrap();
            other.send(1).await.unwrap();
        };
    }
    of_each!(limiter);
    of_each!(shared);
}

#[cfg(feature = "http")]
#[test]
fn a_layer_takes_a_limiter_as_a_value_and_as_a_reference() {
    use tollgate::layers::{HeaderKey, LimitLayer, OutboundLayer};

    let limiter = Limiter::new("1/s").unwrap();
    let keyed = KeyedLimiter::<String>::new("1/s").unwrap();
    let shared = SharedLimiter::new(MemoryStore::new(), "shared", "1/s").unwrap();
    let _layers: [LimitLayer<Limiter>; 2] =
        [LimitLayer::new(&limiter), LimitLayer::new(limiter.clone())];
    let _layers = [LimitLayer::new(&keyed), LimitLayer::new(keyed.clone())]
        .map(|layer| layer.by(HeaderKey::bearer()));
    let _layers: [LimitLayer<SharedLimiter>; 2] =
        [LimitLayer::new(&shared), LimitLayer::new(shared.clone())];
    let _layers: [OutboundLayer; 8] = [
        OutboundLayer::new(&limiter),
        OutboundLayer::new(limiter),
        OutboundLayer::by_host(&keyed),
        OutboundLayer::by_host(keyed.clone()),
        OutboundLayer::by_host(&shared),
        OutboundLayer::by_host(shared),
        OutboundLayer::by_key(&keyed, |request| request.uri.path().to_owned()),
        OutboundLayer::by_key(keyed, |request| request.uri.path().to_owned()),
    ];
}

#[cfg(feature = "metrics")]
#[test]
fn a_reporter_takes_a_limiter_as_a_value_and_as_a_reference() {
    use tollgate::telemetry::MetricsReporter;

    let limiter = Limiter::new("1/s").unwrap();
    let keyed = KeyedLimiter::<String>::new("1/s").unwrap();
    let shared = SharedLimiter::new(MemoryStore::new(), "shared", "1/s").unwrap();
    let reporter = MetricsReporter::new()
        .limiter(&limiter)
        .keyed(&keyed)
        .shared(&shared);
    reporter
        .limiter(limiter)
        .keyed(keyed)
        .shared(shared)
        .report();
}
