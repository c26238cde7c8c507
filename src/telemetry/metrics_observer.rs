use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use metrics::{Label, SharedString, Unit, counter, describe_counter, describe_histogram, histogram};

use crate::decision::Decision;
use crate::event::EventKind;
use crate::observe::{Observation, ObservedKey, Observer};
use crate::policy::Limit;

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
        for (name, text) in [
            (DENIED, "try_acquire calls that were denied"),
            (TIMED_OUT, "requests that timed out, or would have"),
            (SHED, "requests that a full queue dropped or refused"),
            (RECLAIMED, "permits reclaimed after their TTL"),
            (RELEASED_LATE, "reclaimed permits that were dropped after all"),
            (BANS, "bans that began"),
            (PAUSES, "pauses that began, or whose end moved"),
            (MALFORMED_FIELDS, "header fields of upstreams that were ignored"),
            (POLICY_CHANGES, "policies replaced"),
            (EVICTED_KEYS, "keys forgotten before they were reset"),
            (REFUSED_KEYS, "requests of new keys that were refused"),
            (REFUSED, "requests that a layer of HTTP refused and no limiter denied"),
            (STREAMS_ENDED, "throttled streams that ended before their source"),
            (STORE_FAILURES, "how often the store went down"),
        ] {
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
    pub fn label_keys(mut self, label: impl Fn(ObservedKey<'_>) -> String + Send + Sync + 'static) -> Self {
        self.key_label = Some(Arc::new(label));
        self
    }

    fn labels(&self, what: &Observation<'_>, others: impl IntoIterator<Item = Label>) -> Vec<Label> {
        let key = what.key.zip(self.key_label.as_ref()).map(|(key, label)| Label::new("key", label(key)));
        [limiter_label(what.limiter)].into_iter().chain(key).chain(others).collect()
    }
}

const DENIED: &str = "tollgate_denied_total";
const TIMED_OUT: &str = "tollgate_timed_out_total";
const SHED: &str = "tollgate_shed_total";
const WAIT_SECONDS: &str = "tollgate_wait_seconds";
const RECLAIMED: &str = "tollgate_reclaimed_total";
const RELEASED_LATE: &str = "tollgate_released_late_total";
const BANS: &str = "tollgate_bans_total";
const PAUSES: &str = "tollgate_pauses_total";
const MALFORMED_FIELDS: &str = "tollgate_malformed_fields_total";
const POLICY_CHANGES: &str = "tollgate_policy_changes_total";
const EVICTED_KEYS: &str = "tollgate_evicted_keys_total";
const REFUSED_KEYS: &str = "tollgate_refused_keys_total";
const REFUSED: &str = "tollgate_refused_total";
const STREAMS_ENDED: &str = "tollgate_streams_ended_total";
const STORE_FAILURES: &str = "tollgate_store_failures_total";

/// The label of a limiter's name.
pub(super) fn limiter_label(name: Option<&Arc<str>>) -> Label {
    let name = name.map_or(SharedString::const_str("unnamed"), |name| SharedString::from_shared(Arc::clone(name)));
    Label::new("limiter", name)
}

/// Which limit of the policy denied.
fn denied_by(decision: &Decision) -> Cow<'static, str> {
    let Some((limit, index)) = decision.denied_by().zip(decision.denied_by_index()) else { return "none".into() };
    let kind = match limit {
        Limit::Throttle(_) => "throttle",
        Limit::MaxConcurrency(_) => "concurrency",
        Limit::FixedWindow(_) => "fixed_window",
        Limit::TokenBucket(_) => "token_bucket",
        Limit::SlidingWindow(_) => "sliding_window",
        Limit::Penalty(_) => "penalty",
    };
    format!("{index}/{kind}").into()
}

impl Observer for MetricsObserver {
    fn observe(&self, what: &Observation<'_>) {
        let waited = |outcome, waited: Duration| {
            histogram!(WAIT_SECONDS, self.labels(what, [Label::new("outcome", outcome)])).record(waited);
        };
        let count = |name: &'static str| counter!(name, self.labels(what, [])).increment(1);
        match what.kind {
            EventKind::GrantedAfterWait { waited: time, .. } => waited("granted", *time),
            EventKind::TimedOut { waited: time, .. } => {
                waited("timed_out", *time);
                count(TIMED_OUT);
            }
            EventKind::Denied { decision, .. } => {
                let reason = match (decision.is_paused(), decision.is_store_down()) {
                    (_, true) => "store_down",
                    (true, false) => "paused",
                    (false, false) => "limit",
                };
                let labels = [Label::new("limit", denied_by(decision)), Label::new("reason", reason)];
                counter!(DENIED, self.labels(what, labels)).increment(1);
            }
            EventKind::Shed { reason, .. } => {
                counter!(SHED, self.labels(what, [Label::new("reason", reason.as_str())])).increment(1);
            }
            EventKind::Banned { limit_index, .. } => {
                let limit = format!("{limit_index}/penalty");
                counter!(BANS, self.labels(what, [Label::new("limit", limit)])).increment(1);
            }
            EventKind::Reclaimed { .. } => count(RECLAIMED),
            EventKind::ReleasedLate { .. } => count(RELEASED_LATE),
            EventKind::Paused { .. } => count(PAUSES),
            EventKind::UpstreamMalformed { field } => {
                counter!(MALFORMED_FIELDS, self.labels(what, [Label::new("field", *field)])).increment(1);
            }
            EventKind::PolicyChanged { .. } => count(POLICY_CHANGES),
            EventKind::Evicted { .. } => count(EVICTED_KEYS),
            EventKind::TooManyKeys => count(REFUSED_KEYS),
            EventKind::Refused { reason, .. } => {
                counter!(REFUSED, self.labels(what, [Label::new("reason", reason.as_str())])).increment(1);
            }
            EventKind::StreamEnded { .. } => count(STREAMS_ENDED),
            EventKind::StoreDown { .. } => count(STORE_FAILURES),
            // A reporter shows what they change.
            EventKind::LimitMoved { .. } | EventKind::Resumed { .. } | EventKind::Closed | EventKind::StoreUp { .. } => {}
        }
    }
}

/// [`MetricsObserver::new`].
impl Default for MetricsObserver {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MetricsObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsObserver").field("labels_keys", &self.key_label.is_some()).finish()
    }
}
