//! The metrics that limiters send to a recorder of `metrics`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::common::everything::{KEY, NAMES, SHARED_KEY, everything};
use crate::common::faulty::{Faulty, Way};
use crate::common::{ms, queued};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tokio::time::sleep;
use tokio_test::assert_ready_ok;
use tollgate::store::OnStoreDown;
use tollgate::telemetry::{MetricsObserver, MetricsReporter};
use tollgate::{
    KeyedLimiter, Limiter, MaxConcurrency, Rate, Throttle, TokenBucket, TryAcquireError,
};

/// A recorder for this thread.
fn record() -> (Snapshotter, impl Sized) {
    let recorder = Box::leak(Box::new(DebuggingRecorder::new()));
    (
        recorder.snapshotter(),
        metrics::set_default_local_recorder(recorder),
    )
}

/// Each metric as `name{label=value,…}` with its number, or with the recorded values of a histogram. A snapshot empties the recorder.
fn taken(snapshotter: &Snapshotter) -> BTreeMap<String, Vec<f64>> {
    let text = |(key, _, _, value): (metrics_util::CompositeKey, _, _, DebugValue)| {
        let labels: Vec<_> = key
            .key()
            .labels()
            .map(|label| format!("{}={}", label.key(), label.value()))
            .collect();
        let value = match value {
            DebugValue::Counter(count) => vec![count as f64],
            DebugValue::Gauge(value) => vec![value.into_inner()],
            DebugValue::Histogram(values) => values.into_iter().map(f64::from).collect(),
        };
        (
            format!("{}{{{}}}", key.key().name(), labels.join(",")),
            value,
        )
    };
    snapshotter
        .snapshot()
        .into_vec()
        .into_iter()
        .map(text)
        .collect()
}

fn name(metric: &str) -> &str {
    metric.split('{').next().unwrap()
}

/// The metrics in the table of the docs, each with its labels and the type that sets it.
fn documented() -> BTreeMap<&'static str, (BTreeSet<&'static str>, &'static str)> {
    let rows = include_str!("../../src/telemetry.rs")
        .lines()
        .filter_map(|line| line.strip_prefix("//! | `tollgate_"));
    let columns = rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
    let of_row = |row: Vec<&'static str>| {
        (
            row[0].trim_end_matches('`'),
            (row[2].split('`').skip(1).step_by(2).collect(), row[3]),
        )
    };
    columns.map(of_row).collect()
}

#[tokio::test(start_paused = true)]
async fn every_event_is_counted_under_a_documented_name_with_few_labels() {
    let (snapshotter, _guard) = record();
    everything(MetricsObserver::new()).await;
    let (seen, documented) = (taken(&snapshotter), documented());
    for metric in seen.keys() {
        let (labels, by) = &documented[name(metric).strip_prefix("tollgate_").unwrap()];
        assert_eq!(*by, "observer", "{metric}");
        let inside = metric.trim_end_matches('}').split_once('{').unwrap().1;
        let own: BTreeSet<_> = inside
            .split(',')
            .map(|label| label.split('=').next().unwrap())
            .collect();
        assert_eq!(&own, labels, "{metric}");
        assert!(
            NAMES
                .iter()
                .any(|name| inside.contains(&format!("limiter={name}"))),
            "{metric}"
        );
        assert!(
            !metric.contains(KEY) && !metric.contains(SHARED_KEY),
            "{metric}"
        );
    }
    let names: BTreeSet<_> = seen
        .keys()
        .filter_map(|metric| name(metric).strip_prefix("tollgate_"))
        .collect();
    let of_observer = documented
        .iter()
        .filter(|(_, (_, by))| *by == "observer")
        .map(|(name, _)| *name);
    assert_eq!(names, of_observer.collect());
    for (metric, count) in [
        (
            "tollgate_denied_total{limiter=plain,limit=0/concurrency,reason=limit}",
            1.0,
        ),
        (
            "tollgate_denied_total{limiter=plain,limit=none,reason=paused}",
            1.0,
        ),
        (
            "tollgate_denied_total{limiter=plain,limit=0/penalty,reason=limit}",
            1.0,
        ),
        ("tollgate_bans_total{limiter=keyed,limit=0/penalty}", 1.0),
        ("tollgate_shed_total{limiter=test,reason=queue_full}", 1.0),
        ("tollgate_timed_out_total{limiter=keyed}", 2.0),
        ("tollgate_reclaimed_total{limiter=plain}", 1.0),
        ("tollgate_released_late_total{limiter=plain}", 1.0),
        ("tollgate_evicted_keys_total{limiter=keyed}", 1.0),
        ("tollgate_refused_keys_total{limiter=keyed}", 1.0),
        (
            "tollgate_refused_total{limiter=test,reason=exceeds_limit}",
            1.0,
        ),
        ("tollgate_store_failures_total{limiter=test}", 1.0),
        ("tollgate_streams_ended_total{limiter=plain}", 1.0),
        ("tollgate_pauses_total{limiter=plain}", 1.0),
        (
            "tollgate_malformed_fields_total{limiter=plain,field=retry-after}",
            1.0,
        ),
        ("tollgate_policy_changes_total{limiter=plain}", 1.0),
    ] {
        assert_eq!(
            seen.get(metric),
            Some(&vec![count]),
            "{metric} in {seen:#?}"
        );
    }
    assert_eq!(
        seen["tollgate_wait_seconds{limiter=plain,outcome=timed_out}"],
        [0.01, 0.0]
    );
}

/// A fixed bug: the denial was counted as a pause.
#[tokio::test(start_paused = true)]
async fn a_denial_without_a_store_is_distinguished_from_a_pause() {
    let (snapshotter, _guard) = record();
    let faulty = Faulty::new();
    let builder = faulty
        .builder("1 concurrent")
        .on_store_down(OnStoreDown::Deny)
        .observer(MetricsObserver::new());
    let limiter = builder.build().unwrap();
    let held = limiter.try_acquire().await.unwrap();
    assert!(limiter.try_acquire().await.is_err());
    drop(held);
    let a_while = Duration::from_secs(60); // the remembered denial has ended, so the store is asked again
    faulty.set(Way::Refuses);
    for _ in 0..3 {
        sleep(a_while).await;
        let Err(TryAcquireError::Denied(decision)) = limiter.try_acquire().await else {
            panic!("it is granted")
        };
        assert!(decision.is_store_down() && decision.is_paused());
        assert_eq!(
            decision.to_string(),
            "the store does not answer; no time to retry is known"
        );
    }
    sleep(a_while).await;
    faulty.set(Way::Cut);
    let denied = tokio::join!(limiter.try_acquire(), limiter.try_acquire());
    assert!(denied.0.is_err() && denied.1.is_err());
    sleep(a_while).await;
    faulty.set(Way::Open);
    drop(limiter.acquire().await.unwrap());
    limiter.pause_for(ms(5));
    assert!(limiter.try_acquire().await.is_err());
    let mut seen = taken(&snapshotter);
    seen.retain(|metric, _| name(metric) == "tollgate_denied_total");
    let expected = [
        (
            "tollgate_denied_total{limiter=test,limit=0/concurrency,reason=limit}",
            1.0,
        ),
        (
            "tollgate_denied_total{limiter=test,limit=none,reason=paused}",
            1.0,
        ),
        (
            "tollgate_denied_total{limiter=test,limit=none,reason=store_down}",
            5.0,
        ),
    ];
    assert_eq!(
        seen,
        expected
            .map(|(metric, count)| (metric.to_owned(), vec![count]))
            .into()
    );
}

#[tokio::test(start_paused = true)]
async fn a_wait_is_recorded_in_seconds() {
    let (snapshotter, _guard) = record();
    let limiter = Limiter::builder(Throttle::every(ms(250)))
        .observer(MetricsObserver::new())
        .build()
        .unwrap();
    for _ in 0..3 {
        limiter.acquire().await.unwrap().release();
    }
    let seen = taken(&snapshotter);
    assert_eq!(
        seen["tollgate_wait_seconds{limiter=unnamed,outcome=granted}"],
        [0.25, 0.25]
    );
}

/// Twenty thousand keys have as many metrics as one key, unless a label is requested.
#[tokio::test(start_paused = true)]
async fn labels_stay_bounded_with_many_keys() {
    let (snapshotter, _guard) = record();
    let by_parity = |key: tollgate::ObservedKey<'_>| {
        ["even", "odd"][*key.downcast_ref::<usize>().unwrap() % 2].to_owned()
    };
    for (observer, expected) in [
        (MetricsObserver::new(), 1),
        (MetricsObserver::new().label_keys(by_parity), 2),
    ] {
        let builder =
            KeyedLimiter::<usize>::builder(TokenBucket::new(Rate::per_minute(1), 1)).name("users");
        let keyed = builder.observer(observer).build().unwrap();
        for key in 0..20_000 {
            assert!(keyed.try_acquire(&key).is_ok() && keyed.try_acquire(&key).is_err());
        }
        let seen = taken(&snapshotter);
        let denied: Vec<_> = seen
            .iter()
            .filter(|(metric, count)| metric.contains("denied") && count[0] > 0.0)
            .collect();
        assert_eq!(denied.len(), expected, "{denied:?}");
        assert_eq!(
            denied.iter().map(|(_, count)| count[0]).sum::<f64>(),
            20_000.0
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_reporter_sets_the_numbers_of_the_snapshots() {
    let (snapshotter, _guard) = record();
    let search = Limiter::builder("3 concurrent and 100/s burst 9")
        .name("search")
        .build()
        .unwrap();
    let users = KeyedLimiter::<u8>::builder(MaxConcurrency::new(2))
        .name("users")
        .max_keys(50)
        .build()
        .unwrap();
    let hosts = KeyedLimiter::<u8>::builder(Throttle::every(ms(500)))
        .name("hosts")
        .build()
        .unwrap();
    let faulty = Faulty::new();
    let api = faulty.builder("2 concurrent").build().unwrap();
    let reporter = MetricsReporter::new()
        .limiter(&search)
        .keyed(&users)
        .keyed(&hosts)
        .shared(&api);

    let held = (
        search.acquire_many(2).await.unwrap(),
        users.try_acquire(&1).unwrap(),
        users.try_acquire(&2).unwrap(),
    );
    let full = users.try_acquire(&2).unwrap();
    let (waiting, by_key) = (queued(search.acquire_many(2)), queued(users.acquire(&2)));
    assert!(hosts.try_acquire(&1).is_ok());
    let of_store = (
        api.acquire().await.unwrap(),
        api.key("alice").acquire().await.unwrap(),
    );
    reporter.report();
    let expected = [
        ("tollgate_granted_total{limiter=search}", 1.0),
        ("tollgate_refunded_total{limiter=search}", 0.0),
        ("tollgate_in_flight{limiter=search}", 2.0),
        ("tollgate_concurrency{limiter=search}", 3.0),
        ("tollgate_queued{limiter=search}", 1.0),
        ("tollgate_available{limiter=search}", 0.0),
        ("tollgate_paused{limiter=search}", 0.0),
        ("tollgate_granted_total{limiter=users}", 3.0),
        ("tollgate_refunded_total{limiter=users}", 0.0),
        ("tollgate_keys{limiter=users}", 2.0),
        ("tollgate_max_keys{limiter=users}", 50.0),
        ("tollgate_in_flight{limiter=users}", 3.0),
        ("tollgate_queued{limiter=users}", 1.0),
        ("tollgate_granted_total{limiter=hosts}", 1.0),
        ("tollgate_refunded_total{limiter=hosts}", 0.0),
        ("tollgate_in_flight{limiter=hosts}", 0.0),
        ("tollgate_queued{limiter=hosts}", 0.0),
        ("tollgate_keys{limiter=hosts}", 1.0),
        ("tollgate_max_keys{limiter=hosts}", 1_000_000.0),
        ("tollgate_granted_total{limiter=test}", 2.0),
        ("tollgate_refunded_total{limiter=test}", 0.0),
        ("tollgate_in_flight{limiter=test}", 2.0),
        ("tollgate_concurrency{limiter=test}", 2.0),
        ("tollgate_queued{limiter=test}", 0.0),
        ("tollgate_paused{limiter=test}", 0.0),
        ("tollgate_store_up{limiter=test}", 1.0),
    ];
    let seen = taken(&snapshotter);
    assert_eq!(
        seen,
        expected
            .map(|(metric, value)| (metric.to_owned(), vec![value]))
            .into()
    );
    let documented = documented();
    let of_reporter = documented
        .iter()
        .filter(|(_, (_, by))| *by == "reporter")
        .map(|(name, _)| *name);
    assert_eq!(
        of_reporter.collect::<BTreeSet<_>>(),
        seen.keys()
            .map(|key| &name(key)["tollgate_".len()..])
            .collect()
    );

    drop((waiting, by_key, held, full, of_store));
    faulty.set(Way::Refuses);
    for _ in 0..2 {
        assert!(api.acquire().await.is_err());
    }
    search.pause_for(ms(5));
    reporter.report();
    let seen = taken(&snapshotter);
    assert_eq!(seen["tollgate_store_up{limiter=test}"], [0.0]);
    assert_eq!(
        (
            &seen["tollgate_paused{limiter=search}"],
            &seen["tollgate_in_flight{limiter=search}"]
        ),
        (&vec![1.0], &vec![0.0])
    );
    sleep(ms(10)).await;
    let mut again = tokio_test::task::spawn(search.acquire());
    drop(assert_ready_ok!(again.poll()));
    reporter.report();
    let seen = taken(&snapshotter);
    assert_eq!(seen["tollgate_granted_total{limiter=search}"], [2.0]);
}

/// The dashboard uses exactly the metrics that the adapters set.
#[test]
fn the_dashboard_shows_the_documented_metrics() {
    let text = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/docs/grafana-dashboard.json"
    ))
    .unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let queries = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let queries: Vec<&str> = queries
        .map(|target| target["expr"].as_str().unwrap())
        .collect();
    let documented = documented();
    let mut shown = BTreeSet::new();
    for query in &queries {
        assert!(query.contains("limiter=~\"$limiter\""), "{query}");
        let as_asked = query
            .replace("$__rate_interval", "1m")
            .replace("$limiter", "a|b");
        let rest = rusty_promql_parser::expr(&as_asked).map(|(rest, _)| rest);
        assert_eq!(rest, Ok(""), "{query}");
        let words = query.split(|char: char| !char.is_alphanumeric() && char != '_');
        for word in words.filter_map(|word| word.strip_prefix("tollgate_")) {
            let metric = word
                .trim_end_matches("_bucket")
                .trim_end_matches("_count")
                .trim_end_matches("_sum");
            assert!(documented.contains_key(metric), "{query}: {metric}");
            shown.insert(metric);
        }
    }
    let left_out: Vec<_> = documented
        .keys()
        .filter(|metric| !shown.contains(*metric))
        .collect();
    assert!(left_out.is_empty(), "{left_out:?}");
    let ids: BTreeSet<_> = panels
        .iter()
        .map(|panel| panel["id"].as_u64().unwrap())
        .collect();
    assert_eq!(ids.len(), panels.len());
}

/// The outcomes in the table of the docs, for each kind of limiter behind a layer.
#[cfg(feature = "http")]
#[tokio::test(start_paused = true)]
async fn outcomes_of_requests_of_a_layer_are_counted_as_documented() {
    use std::convert::Infallible;
    use std::future::ready;

    use http::{HeaderName, Request, Response};
    use tollgate::SharedLimiter;
    use tollgate::layers::{HeaderKey, LimitLayer};
    use tollgate::store::MemoryStore;
    use tower::{Layer, ServiceExt, service_fn};

    let (snapshotter, _guard) = record();
    let metrics = MetricsObserver::new;
    let builder = KeyedLimiter::<String>::builder("1 concurrent")
        .name("keyed")
        .observer(metrics())
        .max_keys(1)
        .max_queue(1);
    let keyed = builder.build().unwrap();
    let builder = SharedLimiter::builder(MemoryStore::new(), "shared", "1 concurrent")
        .observer(metrics())
        .max_queue(1);
    let shared = builder.build().unwrap();
    let reporter = MetricsReporter::new().keyed(&keyed).shared(&shared);
    let inner = || {
        service_fn(|_: Request<()>| ready(Ok::<_, Infallible>(Response::new("hello".to_owned()))))
    };
    let of = |user: &str| Request::builder().header("x-user", user).body(()).unwrap();
    macro_rules! ask_each {
        ($limiter:expr) => {{
            let layer = || {
                LimitLayer::new($limiter.clone())
                    .by(HeaderKey::new(HeaderName::from_static("x-user")))
            };
            let (at_once, after_a_wait) = (
                layer().layer(inner()),
                layer().wait(ms(100_000)).layer(inner()),
            );
            let held = at_once.clone().oneshot(of("a")).await.unwrap();
            let mut refused = vec![
                at_once
                    .clone()
                    .oneshot(of("a"))
                    .await
                    .unwrap()
                    .status()
                    .as_u16(),
            ];
            let mut waiting = queued(after_a_wait.clone().oneshot(of("a")));
            refused.push(
                after_a_wait
                    .clone()
                    .oneshot(of("a"))
                    .await
                    .unwrap()
                    .status()
                    .as_u16(),
            );
            sleep(ms(200_000)).await;
            refused.push(
                tokio_test::assert_ready!(waiting.poll())
                    .unwrap()
                    .status()
                    .as_u16(),
            );
            refused.push(
                at_once
                    .oneshot(Request::new(()))
                    .await
                    .unwrap()
                    .status()
                    .as_u16(),
            );
            drop(queued(after_a_wait.clone().oneshot(of("a")))); // the client disconnects
            let mut waiting = queued(after_a_wait.oneshot(of("a")));
            drop(held);
            sleep(ms(1)).await;
            let let_in = tokio_test::assert_ready!(waiting.poll()).unwrap();
            (refused, let_in)
        }};
    }
    let (refused, _held) = ask_each!(keyed);
    assert_eq!(refused, [429, 503, 429, 403]);
    let at_once = LimitLayer::new(keyed.clone())
        .by(HeaderKey::new(HeaderName::from_static("x-user")))
        .layer(inner());
    assert_eq!(
        at_once.oneshot(of("b")).await.unwrap().status(),
        503,
        "there is no room for another key"
    );
    let (refused, _held_there) = ask_each!(shared);
    assert_eq!(refused, [429, 503, 429, 403]);
    reporter.report();
    let seen = taken(&snapshotter);
    let counted = |limiter: &str| {
        ["granted", "denied", "timed_out", "shed", "refused_keys"].map(|counter| {
            let metric = format!("tollgate_{counter}_total{{limiter={limiter}");
            seen.iter()
                .filter(|(seen, _)| seen.starts_with(&metric))
                .map(|(_, count)| count[0])
                .sum::<f64>()
        })
    };
    assert_eq!(counted("keyed"), [2.0, 1.0, 1.0, 1.0, 1.0]);
    assert_eq!(counted("shared"), [2.0, 1.0, 1.0, 1.0, 0.0]);
}
