//! Sets the metrics that are read from snapshots of limiters.

use std::hash::Hash;
use std::sync::Arc;

use metrics::{Label, counter, describe_counter, describe_gauge, gauge};

use super::metrics_observer::limiter_label;
use crate::debug_fields::debug_fields;
use crate::keyed::KeyedLimiter;
use crate::limiter::Limiter;
use crate::shared::SharedLimiter;
use crate::snapshot::LimiterSnapshot;

/// Sets the metrics that only a snapshot has. A grant without a wait takes no lock and is no event, so grants, and what is in
/// flight, are read from the limiters when they are collected. The [module](crate::telemetry) has a table of the metrics.
///
/// It holds a handle of each limiter. Limiters with the same name, or without one, overwrite each other's numbers.
///
/// # When to report
///
/// Call [`report`](Self::report) in the handler of a scrape, before the recorder renders, or in a task of your own every few seconds:
///
/// ```
/// use std::time::Duration;
/// use tollgate::Limiter;
/// use tollgate::telemetry::MetricsReporter;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let search = Limiter::builder("8 concurrent").name("search").build()?;
/// let reporter = MetricsReporter::new().limiter(&search);
/// let reports = tokio::spawn(async move {
///     let mut every = tokio::time::interval(Duration::from_secs(5));
///     loop {
///         every.tick().await;
///         reporter.report();
///     }
/// });
/// # tokio::time::sleep(Duration::from_secs(20)).await;
/// # assert!(!reports.is_finished());
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
#[must_use = "it reports when `report` is called"]
pub struct MetricsReporter {
    sources: Vec<Box<dyn Fn() + Send + Sync>>,
}

impl MetricsReporter {
    /// A reporter of no limiters. It describes the metrics to the present recorder.
    pub fn new() -> Self {
        for (name, text) in COUNTERS {
            describe_counter!(name, text);
        }
        for (name, text) in GAUGES {
            describe_gauge!(name, text);
        }
        Self::default()
    }

    /// Adds a limiter to the report.
    pub fn limiter(self, limiter: &Limiter) -> Self {
        let (limiter, label) = (limiter.clone(), label(limiter.name()));
        self.and(move || {
            let now = limiter.snapshot();
            let counts = [now.granted, now.refunded];
            report_use(&label, counts, [now.in_flight, now.queued]);
            report_state(&label, &now);
            set("tollgate_available", &label, limiter.available());
        })
    }

    /// Adds a keyed limiter to the report: how many keys it knows, and its [totals](KeyedLimiter::totals), whose docs say how
    /// long that takes.
    pub fn keyed<K: Hash + Eq + Clone + Send + Sync + 'static>(
        self,
        limiter: &KeyedLimiter<K>,
    ) -> Self {
        let (limiter, label) = (limiter.clone(), label(limiter.name()));
        self.and(move || {
            let now = limiter.totals();
            let counts = [now.granted, now.refunded];
            report_use(&label, counts, [now.in_flight, now.queued]);
            set("tollgate_keys", &label, limiter.len() as u64);
            set("tollgate_max_keys", &label, limiter.max_keys() as u64);
        })
    }

    /// Adds a shared limiter to the report: the [totals](SharedLimiter::totals) of this process over all keys, whether the store
    /// answers, and of the key of the handle what this process may have in flight and whether it is paused. It calls no store.
    pub fn shared(self, limiter: &SharedLimiter) -> Self {
        let (limiter, label) = (limiter.clone(), label(Some(limiter.name())));
        self.and(move || {
            let now = limiter.totals();
            let counts = [now.granted, now.refunded];
            report_use(&label, counts, [now.in_flight, now.queued]);
            report_state(&label, &limiter.snapshot());
            set(
                "tollgate_store_up",
                &label,
                u64::from(limiter.store_is_up()),
            );
        })
    }

    /// Sets the metrics to the present numbers, for the present recorder. It waits for nothing but the locks of the limiters,
    /// each of which it holds briefly.
    pub fn report(&self) {
        self.sources.iter().for_each(|source| source());
    }

    fn and(mut self, source: impl Fn() + Send + Sync + 'static) -> Self {
        self.sources.push(Box::new(source));
        self
    }
}

/// The counters, and what each is.
const COUNTERS: [(&str, &str); 2] = [
    ("tollgate_granted_total", "grants, also refunded ones"),
    ("tollgate_refunded_total", "grants that were undone"),
];

/// The gauges, and what each is.
const GAUGES: [(&str, &str); 8] = [
    ("tollgate_in_flight", "units in flight"),
    ("tollgate_concurrency", "units that may be in flight"),
    ("tollgate_queued", "requests that wait"),
    (
        "tollgate_available",
        "the largest cost that would be granted now",
    ),
    ("tollgate_paused", "1 while the limiter is paused"),
    ("tollgate_keys", "known keys"),
    ("tollgate_max_keys", "how many keys may be known"),
    (
        "tollgate_store_up",
        "0 while calls to the store are given up",
    ),
];

fn label(name: Option<&str>) -> Label {
    limiter_label(name.map(Arc::from).as_ref())
}

fn set(name: &'static str, label: &Label, value: u64) {
    gauge!(name, vec![label.clone()]).set(value as f64);
}

fn report_use(label: &Label, [granted, refunded]: [u64; 2], [in_flight, queued]: [u64; 2]) {
    counter!("tollgate_granted_total", vec![label.clone()]).absolute(granted);
    counter!("tollgate_refunded_total", vec![label.clone()]).absolute(refunded);
    set("tollgate_in_flight", label, in_flight);
    set("tollgate_queued", label, queued);
}

fn report_state(label: &Label, now: &LimiterSnapshot) {
    if let Some(concurrency) = now.concurrency {
        set("tollgate_concurrency", label, concurrency);
    }
    set(
        "tollgate_paused",
        label,
        u64::from(now.paused_for.is_some()),
    );
}

debug_fields!(MetricsReporter, |reporter| limiters =
    reporter.sources.len());
