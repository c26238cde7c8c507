use std::time::Duration;

use tracing::field::{DebugValue, Empty, debug, display};
use tracing::{debug_span, event};

use crate::event::EventKind;
use crate::observe::{Observation, ObservedKey, Observer, OpenWait, WaitEnd, WaitStart};

/// Makes events and spans of what happens in limiters. The [module](crate::telemetry) has a table of them.
///
/// An event that no subscriber wants is not made. (The limiter is observed all the same, which costs what
/// [`on_event`](crate::LimiterBuilder::on_event) says.)
///
/// # Examples
///
/// ```
/// use tollgate::telemetry::TracingObserver;
/// use tollgate::{KeyedLimiter, Limiter};
///
/// let search = Limiter::builder("8 concurrent ttl 30s").name("search").observer(TracingObserver::new()).build()?;
/// let users = KeyedLimiter::<u64>::builder("100/min").name("users").observer(TracingObserver::new().with_keys()).build()?;
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct TracingObserver {
    shows_keys: bool,
    without_spans: bool,
}

impl TracingObserver {
    /// An adapter that leaves keys out, and makes spans.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Shows keys, in the field `key`, as `Debug` formats them. Do so where keys are no secrets.
    #[must_use]
    pub fn with_keys(mut self) -> Self {
        self.shows_keys = true;
        self
    }

    /// Makes no spans of waits, only events.
    #[must_use]
    pub fn without_spans(mut self) -> Self {
        self.without_spans = true;
        self
    }

    fn key<'a>(&self, key: Option<ObservedKey<'a>>) -> Option<DebugValue<ObservedKey<'a>>> {
        key.filter(|_| self.shows_keys).map(debug)
    }
}

fn seconds(duration: Option<Duration>) -> Option<f64> {
    duration.map(|duration| duration.as_secs_f64())
}

impl Observer for TracingObserver {
    fn observe(&self, what: &Observation<'_>) {
        macro_rules! tell {
            ($level:ident, $message:literal $(, $name:ident = $value:expr)*) => {
                event!(
                    target: "tollgate", tracing::Level::$level,
                    limiter = what.name(), key = self.key(what.key) $(, $name = $value)*, $message
                )
            };
        }
        match what.kind {
            EventKind::GrantedAfterWait { fence, cost, priority, waited, requested_in, .. } => tell!(
                DEBUG,
                "granted after a wait",
                waited = waited.as_secs_f64(),
                fence = fence,
                cost = cost,
                priority = priority.level(),
                requested_in = display(requested_in)
            ),
            EventKind::Denied { cost, decision, requested_in } => tell!(
                DEBUG,
                "denied",
                limit = decision.denied_by().map(display),
                retry_after = seconds(decision.retry_after()),
                cost = cost,
                requested_in = display(requested_in)
            ),
            EventKind::TimedOut { cost, priority, waited, retry_after, requested_in } => tell!(
                DEBUG,
                "timed out",
                waited = waited.as_secs_f64(),
                retry_after = seconds(*retry_after),
                cost = cost,
                priority = priority.level(),
                requested_in = display(requested_in)
            ),
            EventKind::Shed { cost, priority, reason, requested_in } => tell!(
                DEBUG,
                "shed",
                reason = reason.as_str(),
                cost = cost,
                priority = priority.level(),
                requested_in = display(requested_in)
            ),
            EventKind::LimitMoved { from, to } => tell!(DEBUG, "the limit has moved", from = from, to = to),
            EventKind::Banned { limit_index, banned_for, requested_in } => tell!(
                INFO,
                "banned",
                limit_index = *limit_index as u64,
                banned_for = banned_for.as_secs_f64(),
                requested_in = display(requested_in)
            ),
            EventKind::Paused { paused_for } => {
                tell!(INFO, "paused", paused_for = seconds(Some(*paused_for).filter(|time| *time < Duration::MAX)));
            }
            EventKind::Resumed { ended_ago } => tell!(INFO, "resumed", ended_ago = ended_ago.as_secs_f64()),
            EventKind::PolicyChanged { from, to } => {
                tell!(INFO, "the policy has changed", from = display(from), to = display(to));
            }
            EventKind::Closed => tell!(INFO, "closed"),
            EventKind::StoreUp { down_for } => tell!(INFO, "the store answers again", down_for = down_for.as_secs_f64()),
            EventKind::Reclaimed { id, fence, cost, held, acquired_in } => tell!(
                WARN,
                "reclaimed a permit",
                held = held.as_secs_f64(),
                permit = display(id),
                fence = fence,
                cost = cost,
                acquired_in = display(acquired_in)
            ),
            EventKind::ReleasedLate { id, fence, cost } => {
                tell!(WARN, "a reclaimed permit was released late", permit = display(id), fence = fence, cost = cost);
            }
            EventKind::UpstreamMalformed { field } => tell!(WARN, "ignored a malformed field of an upstream", field = *field),
            EventKind::Evicted { reset_after } => tell!(WARN, "evicted a key", reset_after = reset_after.as_secs_f64()),
            EventKind::TooManyKeys => tell!(WARN, "refused a new key"),
            EventKind::Refused { cost, reason, error, requested_in } => tell!(
                WARN,
                "refused a request",
                reason = reason.as_str(),
                error = error.as_str(),
                cost = cost,
                requested_in = display(requested_in)
            ),
            EventKind::StreamEnded { error, requested_in } => {
                tell!(WARN, "a throttled stream ended early", error = display(error), requested_in = display(requested_in));
            }
            EventKind::StoreDown { error } => tell!(WARN, "the store does not answer", error = display(error)),
        }
    }

    fn wait_begins(&self, wait: &WaitStart<'_>) -> Option<Box<dyn OpenWait>> {
        if self.without_spans {
            return None;
        }
        let span = debug_span!(
            target: "tollgate", "wait",
            limiter = wait.limiter.map(|name| &**name), key = self.key(wait.key), cost = wait.cost,
            priority = wait.priority.level(), requested_in = display(wait.requested_in), outcome = Empty, fence = Empty, error = Empty
        );
        (!span.is_disabled()).then(|| Box::new(Span(span)) as Box<dyn OpenWait>)
    }
}

/// It is closed when it is dropped.
struct Span(tracing::Span);

impl OpenWait for Span {
    fn end(self: Box<Self>, end: WaitEnd<'_>) {
        let Self(span) = *self;
        match end {
            WaitEnd::Granted { fence } => span.record("outcome", "granted").record("fence", fence),
            WaitEnd::Refused(error) => span.record("outcome", "refused").record("error", display(error)),
            WaitEnd::Cancelled => span.record("outcome", "cancelled"),
        };
    }
}
