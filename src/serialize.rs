//! Serialises the state and the decisions of limiters, for logs and monitoring: one field for each number. A duration is in
//! nanoseconds, as the name of its field says; the longest, 292 years, also stands for one without an end. Every format has
//! integers up to that.

use std::time::Duration;

use serde::ser::{Serialize, SerializeStruct as _, Serializer};

use crate::decision::Decision;
use crate::keyed::KeySnapshot;
use crate::snapshot::{KeyTotals, LimitStatus, LimiterSnapshot};

/// Serialises variables under their names.
macro_rules! fields {
    ($serializer:ident, $name:literal, $($field:ident),*) => {{
        let mut fields = $serializer.serialize_struct($name, [$(stringify!($field)),*].len())?;
        $(fields.serialize_field(stringify!($field), &$field)?;)*
        fields.end()
    }};
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// With the feature `serde`. Durations are in nanoseconds: `paused_for_ns` (at most 2⁶³ − 1, also for a pause without an end) and
/// `next_grant_in_ns`.
///
/// ```
/// use tollgate::{Limiter, MaxConcurrency};
///
/// let limiter = Limiter::new(MaxConcurrency::new(2))?;
/// let _permit = limiter.try_acquire()?;
/// let json = serde_json::to_value(limiter.snapshot())?;
/// assert_eq!((&json["in_flight"], &json["next_grant_in_ns"]), (&1.into(), &0.into()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl Serialize for LimiterSnapshot {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self {
            in_flight,
            concurrency,
            queued,
            granted,
            denied,
            shed,
            timed_out,
            reclaimed,
            refunded,
            paused_for,
            next_grant_in,
        } = *self;
        let (paused_for_ns, next_grant_in_ns) = (paused_for.map(nanos), next_grant_in.map(nanos));
        fields!(
            serializer,
            "LimiterSnapshot",
            in_flight,
            concurrency,
            queued,
            granted,
            denied,
            shed,
            timed_out,
            reclaimed,
            refunded,
            paused_for_ns,
            next_grant_in_ns
        )
    }
}

/// With the feature `serde`. See [`LimiterSnapshot`].
impl Serialize for KeyTotals {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self {
            in_flight,
            queued,
            granted,
            denied,
            shed,
            timed_out,
            reclaimed,
            refunded,
        } = *self;
        fields!(
            serializer,
            "KeyTotals",
            in_flight,
            queued,
            granted,
            denied,
            shed,
            timed_out,
            reclaimed,
            refunded
        )
    }
}

/// With the feature `serde`: the limit as text, and `available_after_ns` and `reset_after_ns` in nanoseconds. See [`LimiterSnapshot`].
impl Serialize for LimitStatus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self {
            limit,
            capacity,
            remaining,
            available_after,
            reset_after,
        } = *self;
        let (available_after_ns, reset_after_ns) = (nanos(available_after), nanos(reset_after));
        fields!(
            serializer,
            "LimitStatus",
            limit,
            capacity,
            remaining,
            available_after_ns,
            reset_after_ns
        )
    }
}

/// With the feature `serde`. Durations are in nanoseconds: `retry_after_ns` and `reset_after_ns`. See [`LimiterSnapshot`].
impl Serialize for KeySnapshot {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self {
            used,
            limit,
            remaining,
            retry_after,
            reset_after,
            in_flight,
            queued,
        } = *self;
        let (retry_after_ns, reset_after_ns) = (retry_after.map(nanos), nanos(reset_after));
        fields!(
            serializer,
            "KeySnapshot",
            used,
            limit,
            remaining,
            retry_after_ns,
            reset_after_ns,
            in_flight,
            queued
        )
    }
}

/// With the feature `serde`: the results of its methods. `denied_by` is the limit as text; durations are in nanoseconds:
/// `retry_after_ns` and `reset_after_ns`. See [`LimiterSnapshot`].
impl Serialize for Decision {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (allowed, paused, store_down) =
            (self.is_allowed(), self.is_paused(), self.is_store_down());
        let (limit, remaining) = (self.limit(), self.remaining());
        let (denied_by, denied_by_index) = (self.denied_by(), self.denied_by_index());
        let (retry_after_ns, reset_after_ns) =
            (self.retry_after().map(nanos), nanos(self.reset_after()));
        fields!(
            serializer,
            "Decision",
            allowed,
            paused,
            store_down,
            limit,
            remaining,
            retry_after_ns,
            reset_after_ns,
            denied_by,
            denied_by_index
        )
    }
}
