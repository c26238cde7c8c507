//! An observer that counts.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use metrics::{
    Label, SharedString, Unit, counter, describe_counter, describe_histogram, histogram,
};

use crate::debug_fields::debug_fields;
use crate::decision::Decision;
use crate::event::EventKind;
use crate::observe::{LimiterEvent, ObservedKey, Observer};

/// Counts what happens in limiters, and how long requests wait. The [module](crate::telemetry) has a table of the metrics, of which this
/// counts those of the observer; a [`MetricsReporter`](super::MetricsReporter) sets the others.
///
/// # Examples
///
/// ```
/// use tollgate::telemetry::{MetricsObserver, MetricsReporter};
/// use tollgate::{KeyedLimiter, Limiter};
///
/// // After the recorder, for instance that of `metrics-exporter-prometheus`, was installed:
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
    /// Describes the metrics to the present recorder, and counts for whichever is the recorder at an event.
    #[must_use]
    pub fn new() -> Self {
        for (name, text) in COUNTERS {
            describe_counter!(name, text);
        }
        describe_histogram!(WAIT_SECONDS, Unit::Seconds, "how long requests waited");
        Self { key_label: None }
    }

    /// Adds a label `key` to the metrics of keys, which `label` makes of a key. Each text that it returns is kept for ever by most
    /// recorders, so it must return few different ones: the plan of a customer, not the customer.
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

/// The counters, and what each counts.
const COUNTERS: [(&str, &str); 14] = [
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
        "tollgate_streams_ended_total",
        "throttled streams that ended before their source",
    ),
    (
        "tollgate_store_failures_total",
        "how often the store went down",
    ),
];

const WAIT_SECONDS: &str = "tollgate_wait_seconds";

/// The label of a limiter's name.
pub(super) fn limiter_label(name: Option<&Arc<str>>) -> Label {
    let name = name.map_or(SharedString::const_str("unnamed"), |name| {
        SharedString::from_shared(Arc::clone(name))
    });
    Label::new("limiter", name)
}

/// Which limit of the policy denied.
fn denied_by(decision: &Decision) -> Cow<'static, str> {
    let Some((limit, index)) = decision.denied_by().zip(decision.denied_by_index()) else {
        return "none".into();
    };
    format!("{index}/{}", limit.description().name).into()
}

impl Observer for MetricsObserver {
    fn observe(&self, event: &LimiterEvent<'_>) {
        let count = |name: &'static str, label: Option<Label>| {
            counter!(name, self.labels(event, label)).increment(1);
        };
        let waited = |outcome, waited: Duration| {
            let labels = self.labels(event, [Label::new("outcome", outcome)]);
            histogram!(WAIT_SECONDS, labels).record(waited);
        };
        match event.kind {
            EventKind::GrantedAfterWait { waited: time, .. } => waited("granted", *time),
            EventKind::TimedOut { waited: time, .. } => {
                waited("timed_out", *time);
                count("tollgate_timed_out_total", None);
            }
            EventKind::Denied { decision, .. } => {
                let reason = match (decision.is_paused(), decision.is_store_down()) {
                    (_, true) => "store_down",
                    (true, false) => "paused",
                    (false, false) => "limit",
                };
                let limit = Label::new("limit", denied_by(decision));
                let labels = self.labels(event, [limit, Label::new("reason", reason)]);
                counter!("tollgate_denied_total", labels).increment(1);
            }
            EventKind::Shed { reason, .. } => {
                count(
                    "tollgate_shed_total",
                    Some(Label::new("reason", reason.as_str())),
                );
            }
            EventKind::Banned { limit_index, .. } => {
                let limit = format!("{limit_index}/penalty");
                count("tollgate_bans_total", Some(Label::new("limit", limit)));
            }
            EventKind::UpstreamMalformed { field } => {
                count(
                    "tollgate_malformed_fields_total",
                    Some(Label::new("field", *field)),
                );
            }
            EventKind::Refused { reason, .. } => {
                count(
                    "tollgate_refused_total",
                    Some(Label::new("reason", reason.as_str())),
                );
            }
            EventKind::Reclaimed { .. } => count("tollgate_reclaimed_total", None),
            EventKind::ReleasedLate { .. } => count("tollgate_released_late_total", None),
            EventKind::Paused { .. } => count("tollgate_pauses_total", None),
            EventKind::PolicyChanged { .. } => count("tollgate_policy_changes_total", None),
            EventKind::Evicted { .. } => count("tollgate_evicted_keys_total", None),
            EventKind::TooManyKeys => count("tollgate_refused_keys_total", None),
            EventKind::StreamEnded { .. } => count("tollgate_streams_ended_total", None),
            EventKind::StoreDown { .. } => count("tollgate_store_failures_total", None),
            // A reporter shows what they change.
            EventKind::LimitMoved { .. }
            | EventKind::Resumed { .. }
            | EventKind::Closed
            | EventKind::StoreUp { .. } => {}
        }
    }
}

/// [`MetricsObserver::new`].
impl Default for MetricsObserver {
    fn default() -> Self {
        Self::new()
    }
}

debug_fields!(MetricsObserver, |observer| labels_keys =
    observer.key_label.is_some());
