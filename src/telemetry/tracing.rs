//! An observer that emits events and spans of `tracing`.

use std::time::Duration;

use tracing::field::{DebugValue, Empty, debug, display};
use tracing::{debug_span, event};

use crate::event::EventKind;
use crate::observe::{LimiterEvent, ObservedKey, Observer, OpenWait, WaitEnd, WaitStart};

/// Emits an event for each event of a limiter, and a span for each wait. The [module](crate::telemetry) has a table of them.
///
/// An event in which no subscriber is interested is not built. (The limiter still has an observer, with the costs that
/// [`observer`](crate::LimiterBuilder::observer) states.)
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
    /// An adapter that leaves keys out, and emits spans.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// Shows keys in the field `key`, as `Debug` formats them. Use it only where keys are not secret.
        #[must_use]
        pub with_keys() => shows_keys = true;

        /// Emits only events, and no spans of waits.
        #[must_use]
        pub without_spans() => without_spans = true;
    }

    fn key<'a>(&self, key: Option<ObservedKey<'a>>) -> Option<DebugValue<ObservedKey<'a>>> {
        key.filter(|_| self.shows_keys).map(debug)
    }
}

impl Observer for TracingObserver {
    #[expect(
        clippy::semicolon_if_nothing_returned,
        reason = "each arm is one call of the macro"
    )]
    fn observe(&self, event: &LimiterEvent<'_>) {
        macro_rules! report {
            ($level:ident, $message:literal $(, $($fields:tt)+)?) => {
                event!(
                    target: "tollgate", tracing::Level::$level,
                    limiter = event.name(), key = self.key(event.key), $($($fields)+,)? $message
                )
            };
        }
        match event.kind {
            EventKind::GrantedAfterWait {
                fence,
                cost,
                priority,
                flow,
                waited,
                requested_in,
                ..
            } => report!(
                DEBUG, "granted after a wait",
                waited = waited.as_secs_f64(), fence, cost, priority = priority.level(), flow = flow.map(display), %requested_in
            ),
            EventKind::Denied {
                cost,
                flow,
                decision,
                requested_in,
            } => {
                let limit = decision.denied_by().map(display);
                let retry_after = decision.retry_after().map(|after| after.as_secs_f64());
                report!(DEBUG, "denied", limit, retry_after, cost, flow = flow.map(display), %requested_in);
            }
            EventKind::TimedOut {
                cost,
                priority,
                flow,
                waited,
                retry_after,
                requested_in,
            } => {
                let (waited, priority, flow) =
                    (waited.as_secs_f64(), priority.level(), flow.map(display));
                let retry_after = retry_after.map(|after| after.as_secs_f64());
                report!(DEBUG, "timed out", waited, retry_after, cost, priority, flow, %requested_in);
            }
            EventKind::Shed {
                cost,
                priority,
                flow,
                reason,
                requested_in,
            } => report!(
                DEBUG, "shed",
                reason = reason.as_str(), cost, priority = priority.level(), flow = flow.map(display), %requested_in
            ),
            EventKind::LimitMoved { from, to } => report!(DEBUG, "the limit has moved", from, to),
            EventKind::Banned {
                limit_index,
                banned_for,
                requested_in,
            } => report!(
                INFO, "banned",
                limit_index = *limit_index as u64, banned_for = banned_for.as_secs_f64(), %requested_in
            ),
            EventKind::Paused { paused_for } => {
                let paused_for = Some(paused_for).filter(|time| **time < Duration::MAX);
                report!(
                    INFO,
                    "paused",
                    paused_for = paused_for.map(Duration::as_secs_f64)
                );
            }
            EventKind::Resumed { ended_ago } => {
                report!(INFO, "resumed", ended_ago = ended_ago.as_secs_f64())
            }
            EventKind::PolicyChanged { from, to } => {
                report!(INFO, "the policy has changed", %from, %to)
            }
            EventKind::Closed => report!(INFO, "closed"),
            EventKind::StoreUp { down_for } => report!(
                INFO,
                "the store answers again",
                down_for = down_for.as_secs_f64()
            ),
            EventKind::Reclaimed {
                id: permit,
                fence,
                cost,
                held,
                acquired_in,
            } => report!(
                WARN, "reclaimed a permit",
                held = held.as_secs_f64(), %permit, fence, cost, %acquired_in
            ),
            EventKind::ReleasedLate {
                id: permit,
                fence,
                cost,
            } => report!(WARN, "a reclaimed permit was released late", %permit, fence, cost),
            EventKind::UpstreamMalformed { field } => {
                report!(WARN, "ignored a malformed field of an upstream", field)
            }
            EventKind::WouldRefuse {
                cost,
                flow,
                status,
                error,
                requested_in,
            } => report!(
                DEBUG, "would refuse a request",
                status = *status, error, cost, flow = flow.map(display), %requested_in
            ),
            EventKind::Evicted { reset_after } => {
                report!(
                    WARN,
                    "evicted a key",
                    reset_after = reset_after.as_secs_f64()
                )
            }
            EventKind::TooManyKeys => report!(WARN, "refused a new key"),
            EventKind::Refused {
                cost,
                reason,
                error,
                requested_in,
            } => {
                report!(WARN, "refused a request", reason = reason.as_str(), error, cost, %requested_in)
            }
            EventKind::StreamEnded {
                error,
                requested_in,
            } => report!(WARN, "a throttled stream ended early", %error, %requested_in),
            EventKind::StoreDown { error } => report!(WARN, "the store does not answer", %error),
        }
    }

    fn wait_begins(&self, wait: &WaitStart<'_>) -> Option<Box<dyn OpenWait>> {
        if self.without_spans {
            return None;
        }
        let span = debug_span!(
            target: "tollgate", "wait",
            limiter = wait.limiter.map(|name| &**name), key = self.key(wait.key), cost = wait.cost,
            priority = wait.priority.level(), flow = wait.flow.map(display), requested_in = display(wait.requested_in), outcome = Empty, fence = Empty, error = Empty
        );
        (!span.is_disabled()).then(|| Box::new(TracedWait(span)) as Box<dyn OpenWait>)
    }
}

/// The span of a wait. Dropping it closes the span.
struct TracedWait(tracing::Span);

impl OpenWait for TracedWait {
    fn end(self: Box<Self>, end: WaitEnd<'_>) {
        let Self(span) = *self;
        match end {
            WaitEnd::Granted { fence } => span.record("outcome", "granted").record("fence", fence),
            WaitEnd::Refused(error) => span
                .record("outcome", "refused")
                .record("error", display(error)),
            WaitEnd::Cancelled => span.record("outcome", "cancelled"),
        };
    }
}
