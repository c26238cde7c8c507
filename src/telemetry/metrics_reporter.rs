use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use metrics::{Label, counter, describe_counter, describe_gauge, gauge};

use super::metrics_observer::limiter_label;
use crate::keyed::KeyedLimiter;
use crate::limiter::Limiter;
use crate::shared::SharedLimiter;
use crate::snapshot::LimiterSnapshot;

/// Sets the metrics that only a snapshot tells. A grant without a wait takes no lock and is no event, so grants, and what is in flight,
/// are read from the limiters when somebody asks. The [module](crate::telemetry) has a table of the metrics.
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
        describe_counter!(GRANTED, "grants, also refunded ones");
        describe_counter!(REFUNDED, "grants that were undone");
        for (name, text) in [
            (IN_FLIGHT, "units in flight"),
            (CONCURRENCY, "units that may be in flight"),
            (QUEUED, "requests that wait"),
            (AVAILABLE, "the largest cost that would be granted now"),
            (PAUSED, "1 while the limiter is paused"),
            (KEYS, "known keys"),
            (MAX_KEYS, "how many keys may be known"),
            (STORE_UP, "0 while calls to the store are given up"),
        ] {
            describe_gauge!(name, text);
        }
        Self::default()
    }

    /// Reports of a limiter, too.
    pub fn limiter(self, limiter: &Limiter) -> Self {
        let (limiter, label) = (limiter.clone(), label(limiter.name()));
        self.and(move || {
            let now = limiter.snapshot();
            report_use(&label, [now.granted, now.refunded], [now.in_flight, now.queued]);
            report_state(&label, &now);
            set(AVAILABLE, &label, limiter.available());
        })
    }

    /// Reports of a keyed limiter, too: how many keys it knows, and its [totals](KeyedLimiter::totals), where it is said how long that
    /// takes.
    pub fn keyed<K: Hash + Eq + Clone + Send + Sync + 'static>(self, limiter: &KeyedLimiter<K>) -> Self {
        let (limiter, label) = (limiter.clone(), label(limiter.name()));
        self.and(move || {
            let now = limiter.totals();
            report_use(&label, [now.granted, now.refunded], [now.in_flight, now.queued]);
            set(KEYS, &label, limiter.len() as u64);
            set(MAX_KEYS, &label, limiter.max_keys() as u64);
        })
    }

    /// Reports of a shared limiter, too: the [totals](SharedLimiter::totals) of this process over all keys, whether the store answers,
    /// and of the key of the handle what this process may have in flight and whether it is paused. It calls no store.
    pub fn shared(self, limiter: &SharedLimiter) -> Self {
        let (limiter, label) = (limiter.clone(), label(Some(limiter.name())));
        self.and(move || {
            let now = limiter.totals();
            report_use(&label, [now.granted, now.refunded], [now.in_flight, now.queued]);
            report_state(&label, &limiter.snapshot());
            set(STORE_UP, &label, u64::from(limiter.store_is_up()));
        })
    }

    /// Sets the metrics to the present numbers, for the present recorder. It waits for nothing but the locks of the limiters, each of
    /// which it takes shortly.
    pub fn report(&self) {
        self.sources.iter().for_each(|source| source());
    }

    fn and(mut self, source: impl Fn() + Send + Sync + 'static) -> Self {
        self.sources.push(Box::new(source));
        self
    }
}

const GRANTED: &str = "tollgate_granted_total";
const REFUNDED: &str = "tollgate_refunded_total";
const IN_FLIGHT: &str = "tollgate_in_flight";
const CONCURRENCY: &str = "tollgate_concurrency";
const QUEUED: &str = "tollgate_queued";
const AVAILABLE: &str = "tollgate_available";
const PAUSED: &str = "tollgate_paused";
const KEYS: &str = "tollgate_keys";
const MAX_KEYS: &str = "tollgate_max_keys";
const STORE_UP: &str = "tollgate_store_up";

fn label(name: Option<&str>) -> Label {
    limiter_label(name.map(Arc::from).as_ref())
}

fn set(name: &'static str, label: &Label, value: u64) {
    gauge!(name, vec![label.clone()]).set(value as f64);
}

fn report_use(label: &Label, [granted, refunded]: [u64; 2], [in_flight, queued]: [u64; 2]) {
    counter!(GRANTED, vec![label.clone()]).absolute(granted);
    counter!(REFUNDED, vec![label.clone()]).absolute(refunded);
    set(IN_FLIGHT, label, in_flight);
    set(QUEUED, label, queued);
}

fn report_state(label: &Label, now: &LimiterSnapshot) {
    if let Some(concurrency) = now.concurrency {
        set(CONCURRENCY, label, concurrency);
    }
    set(PAUSED, label, u64::from(now.paused_for.is_some()));
}

impl fmt::Debug for MetricsReporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsReporter").field("limiters", &self.sources.len()).finish()
    }
}
