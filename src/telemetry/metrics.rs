//! Metrics: an observer that counts events, and a reporter that reads snapshots.

use std::borrow::{Borrow, Cow};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use metrics::{
    Label, SharedString, Unit, counter, describe_counter, describe_gauge, describe_histogram,
    gauge, histogram,
};

use crate::decision::Decision;
use crate::event::EventKind;
use crate::keyed::KeyedLimiter;
use crate::limiter::Limiter;
use crate::observe::{LimiterEvent, ObservedKey, Observer};
use crate::shared::SharedLimiter;
use crate::snapshot::LimiterSnapshot;

/// The counters of the observer, each with its description.
const EVENTS: &[(&str, &str)] = &[
    (
        "tollgate_denied_total",
        "try_acquire calls that were denied",
    ),
    (
        "tollgate_timed_out_total",
        "requests that timed out, or would have",
    ),
    (
        "tollgate_shed_total",
        "requests that a full queue dropped or refused",
    ),
    (
        "tollgate_reclaimed_total",
        "permits reclaimed after their TTL",
    ),
    (
        "tollgate_released_late_total",
        "reclaimed permits that were dropped after all",
    ),
    ("tollgate_bans_total", "bans that began"),
    (
        "tollgate_pauses_total",
        "pauses that began, or whose end moved",
    ),
    (
        "tollgate_malformed_fields_total",
        "header fields of upstreams that were ignored",
    ),
    ("tollgate_policy_changes_total", "policies replaced"),
    (
        "tollgate_evicted_keys_total",
        "keys forgotten before they were reset",
    ),
    (
        "tollgate_refused_keys_total",
        "requests of new keys that were refused",
    ),
    (
        "tollgate_refused_total",
        "requests that a layer of HTTP refused and no limiter denied",
    ),
    (
        "tollgate_would_refuse_total",
        "requests that a layer of HTTP in shadow mode would have refused",
    ),
    (
        "tollgate_streams_ended_total",
        "throttled streams that ended before their source",
    ),
    (
        "tollgate_store_failures_total",
        "how often the store went down",
    ),
];

/// The metrics that the reporter sets, each with its description.
const NUMBERS: &[(&str, &str)] = &[
    ("tollgate_granted_total", "grants, also refunded ones"),
    ("tollgate_refunded_total", "grants that were undone"),
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

const WAIT_SECONDS: &str = "tollgate_wait_seconds";

fn describe(metrics: &[(&'static str, &'static str)]) {
    for &(name, text) in metrics {
        if name.ends_with("_total") {
            describe_counter!(name, text);
        } else {
            describe_gauge!(name, text);
        }
    }
}

/// Counts what happens in limiters, and how long requests wait. The [module](crate::telemetry) has a table of the metrics. This
/// type sets those of the observer; a [`MetricsReporter`] sets the others.
///
/// # Examples
///
/// ```
/// use tollgate::telemetry::{MetricsObserver, MetricsReporter};
/// use tollgate::{KeyedLimiter, Limiter};
///
/// // First install a recorder, for instance that of `metrics-exporter-prometheus`.
/// let metrics = MetricsObserver::new();
/// let search = Limiter::builder("8 concurrent").name("search").observer(metrics.clone()).build()?;
/// let users = KeyedLimiter::<u64>::builder("100/min").name("users").observer(metrics.clone()).build()?;
///
/// let reporter = MetricsReporter::new().limiter(&search).keyed(&users);
/// reporter.report(); // before each scrape
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct MetricsObserver {
    key_label: Option<Arc<KeyLabel>>,
}

type KeyLabel = dyn Fn(ObservedKey<'_>) -> String + Send + Sync;

impl MetricsObserver {
    /// Describes the metrics to the present recorder. Each event is counted by the recorder that is installed at that time.
    #[must_use]
    pub fn new() -> Self {
        describe(EVENTS);
        describe_histogram!(WAIT_SECONDS, Unit::Seconds, "how long requests waited");
        Self { key_label: None }
    }

    /// Adds a label `key` to the metrics of keys: the text that `label` returns for a key. Most recorders keep each text for
    /// ever, so `label` must return few different texts: the plan of a customer, not the customer.
    ///
    /// ```
    /// use tollgate::telemetry::MetricsObserver;
    ///
    /// let by_plan = MetricsObserver::new().label_keys(|key| match key.downcast_ref::<u64>() {
    ///     Some(..1_000) => "founders".to_owned(),
    ///     _ => "others".to_owned(),
    /// });
    /// ```
    #[must_use]
    pub fn label_keys(
        mut self,
        label: impl Fn(ObservedKey<'_>) -> String + Send + Sync + 'static,
    ) -> Self {
        self.key_label = Some(Arc::new(label));
        self
    }

    fn labels(
        &self,
        event: &LimiterEvent<'_>,
        others: impl IntoIterator<Item = Label>,
    ) -> Vec<Label> {
        let key = event
            .key
            .zip(self.key_label.as_ref())
            .map(|(key, label)| Label::new("key", label(key)));
        [limiter_label(event.limiter)]
            .into_iter()
            .chain(key)
            .chain(others)
            .collect()
    }
}

impl Observer for MetricsObserver {
    fn observe(&self, event: &LimiterEvent<'_>) {
        let wait = |outcome, waited: &Duration| {
            let labels = self.labels(event, [Label::new("outcome", outcome)]);
            histogram!(WAIT_SECONDS, labels).record(*waited);
        };
        let label = |name, value: Cow<'static, str>| vec![Label::new(name, value)];
        let (name, others) = match event.kind {
            EventKind::GrantedAfterWait { waited, .. } => return wait("granted", waited),
            EventKind::TimedOut { waited, .. } => {
                wait("timed_out", waited);
                ("tollgate_timed_out_total", Vec::new())
            }
            EventKind::Denied { decision, .. } => {
                let reason = match (decision.is_paused(), decision.is_store_down()) {
                    (_, true) => "store_down",
                    (true, false) => "paused",
                    (false, false) => "limit",
                };
                let limit = Label::new("limit", denied_by(decision));
                (
                    "tollgate_denied_total",
                    vec![limit, Label::new("reason", reason)],
                )
            }
            EventKind::Shed { reason, .. } => (
                "tollgate_shed_total",
                label("reason", reason.as_str().into()),
            ),
            EventKind::Banned { limit_index, .. } => (
                "tollgate_bans_total",
                label("limit", format!("{limit_index}/penalty").into()),
            ),
            EventKind::UpstreamMalformed { field } => (
                "tollgate_malformed_fields_total",
                label("field", (*field).into()),
            ),
            EventKind::Refused { reason, .. } => (
                "tollgate_refused_total",
                label("reason", reason.as_str().into()),
            ),
            EventKind::WouldRefuse { status, .. } => (
                "tollgate_would_refuse_total",
                label("status", status.to_string().into()),
            ),
            EventKind::Reclaimed { .. } => ("tollgate_reclaimed_total", Vec::new()),
            EventKind::ReleasedLate { .. } => ("tollgate_released_late_total", Vec::new()),
            EventKind::Paused { .. } => ("tollgate_pauses_total", Vec::new()),
            EventKind::PolicyChanged { .. } => ("tollgate_policy_changes_total", Vec::new()),
            EventKind::Evicted { .. } => ("tollgate_evicted_keys_total", Vec::new()),
            EventKind::TooManyKeys => ("tollgate_refused_keys_total", Vec::new()),
            EventKind::StreamEnded { .. } => ("tollgate_streams_ended_total", Vec::new()),
            EventKind::StoreDown { .. } => ("tollgate_store_failures_total", Vec::new()),
            // The metrics of the reporter show the effect of these events.
            EventKind::LimitMoved { .. }
            | EventKind::Resumed { .. }
            | EventKind::Closed
            | EventKind::StoreUp { .. } => return,
        };
        counter!(name, self.labels(event, others)).increment(1);
    }
}

impl Default for MetricsObserver {
    fn default() -> Self {
        Self::new()
    }
}

debug_fields! { MetricsObserver, |observer| labels_keys = observer.key_label.is_some() }

/// The label of a limiter's name.
fn limiter_label(name: Option<&Arc<str>>) -> Label {
    let name = name.map_or(SharedString::const_str("unnamed"), |name| {
        SharedString::from_shared(Arc::clone(name))
    });
    Label::new("limiter", name)
}

/// The label for the limit of the policy that denied.
fn denied_by(decision: &Decision) -> Cow<'static, str> {
    let Some((limit, index)) = decision.denied_by().zip(decision.denied_by_index()) else {
        return "none".into();
    };
    format!("{index}/{}", limit.description().name).into()
}

/// Sets the metrics that only a snapshot has. A grant without a wait takes no lock and causes no event, so grants and units in
/// flight are read from the limiters at each report. The [module](crate::telemetry) has a table of the metrics.
///
/// The reporter holds a handle of each limiter. Limiters with the same name, or without one, overwrite each other's numbers.
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
        describe(NUMBERS);
        Self::default()
    }

    /// Adds a limiter to the report.
    pub fn limiter(self, limiter: impl Borrow<Limiter>) -> Self {
        let limiter = limiter.borrow();
        let (limiter, label) = (
            limiter.clone(),
            limiter_label(limiter.name().map(Arc::from).as_ref()),
        );
        self.and(move || {
            let now = limiter.snapshot();
            report_use(
                &label,
                [now.granted, now.refunded, now.in_flight, now.queued],
            );
            report_state(&label, &now);
            set("tollgate_available", &label, limiter.available());
        })
    }

    /// Adds a keyed limiter to the report: the number of known keys, and the [totals](KeyedLimiter::totals), whose docs say how
    /// long reading them takes.
    pub fn keyed<K: Hash + Eq + Clone + Send + Sync + 'static>(
        self,
        limiter: impl Borrow<KeyedLimiter<K>>,
    ) -> Self {
        let limiter = limiter.borrow();
        let (limiter, label) = (
            limiter.clone(),
            limiter_label(limiter.name().map(Arc::from).as_ref()),
        );
        self.and(move || {
            let now = limiter.totals();
            report_use(
                &label,
                [now.granted, now.refunded, now.in_flight, now.queued],
            );
            set("tollgate_keys", &label, limiter.len() as u64);
            set("tollgate_max_keys", &label, limiter.max_keys() as u64);
        })
    }

    /// Adds a shared limiter to the report: the [totals](SharedLimiter::totals) of this process over all keys, whether the store
    /// answers, and for the handle's key how many units this process may have in flight and whether the key is paused. A report
    /// does not call the store.
    pub fn shared(self, limiter: impl Borrow<SharedLimiter>) -> Self {
        let limiter = limiter.borrow();
        let (limiter, label) = (limiter.clone(), limiter_label(Some(&limiter.name().into())));
        self.and(move || {
            let now = limiter.totals();
            report_use(
                &label,
                [now.granted, now.refunded, now.in_flight, now.queued],
            );
            report_state(&label, &limiter.snapshot());
            set(
                "tollgate_store_up",
                &label,
                u64::from(limiter.store_is_up()),
            );
        })
    }

    /// Sets the metrics to the present numbers, for the present recorder. It waits only for the locks of the limiters, and holds
    /// each lock briefly.
    pub fn report(&self) {
        self.sources.iter().for_each(|source| source());
    }

    fn and(mut self, source: impl Fn() + Send + Sync + 'static) -> Self {
        self.sources.push(Box::new(source));
        self
    }
}

fn set(name: &'static str, label: &Label, value: u64) {
    gauge!(name, vec![label.clone()]).set(value as f64);
}

fn report_use(label: &Label, [granted, refunded, in_flight, queued]: [u64; 4]) {
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

debug_fields! { MetricsReporter, |reporter| limiters = reporter.sources.len() }
