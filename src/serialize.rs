//! The impls of the feature `serde`.
//!
//! The state and the decisions of limiters are serialised for logs and monitoring: one field for each number. A duration is in
//! nanoseconds, as the name of its field says; the longest, 292 years, also stands for one without an end. Every format has
//! integers up to that.
//!
//! A policy is its text in every format: the same that errors and logs print.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde::ser::{Serialize, SerializeStruct as _, Serializer};

use crate::decision::Decision;
use crate::keyed::KeySnapshot;
use crate::policy::{Limit, Policy};
use crate::rate::Rate;
use crate::snapshot::{KeyTotals, LimitStatus, LimiterSnapshot};
use crate::text::ParseError;

/// Serialises all fields of a type, or variables, under their names. Durations are `in ns`, or `in optional_ns`.
macro_rules! serialize_fields {
    ($(#[$doc:meta])* $type:ident { $($field:ident $(in $form:ident)?),* }) => {
        $(#[$doc])*
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let Self { $($field),* } = *self;
                serialize_fields!(serializer, stringify!($type); $($field $(in $form)?),*)
            }
        }
    };
    ($serializer:ident, $name:expr; $($field:ident $(in $form:ident)?),*) => {{
        let mut fields = $serializer.serialize_struct($name, [$(stringify!($field)),*].len())?;
        $(serialize_fields!(@fields, $field $(in $form)?);)*
        fields.end()
    }};
    (@$fields:ident, $field:ident) => { $fields.serialize_field(stringify!($field), &$field)? };
    (@$fields:ident, $field:ident in ns) => { $fields.serialize_field(concat!(stringify!($field), "_ns"), &nanos($field))? };
    (@$fields:ident, $field:ident in optional_ns) => {
        $fields.serialize_field(concat!(stringify!($field), "_ns"), &$field.map(nanos))?
    };
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

serialize_fields! {
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
    LimiterSnapshot {
        in_flight, concurrency, queued, granted, denied, shed, timed_out, reclaimed, refunded, paused_for in optional_ns,
        next_grant_in in optional_ns
    }
}

serialize_fields! {
    /// With the feature `serde`. See [`LimiterSnapshot`].
    KeyTotals {
        in_flight, queued, granted, denied, shed, timed_out, reclaimed, refunded
    }
}

serialize_fields! {
    /// With the feature `serde`: the limit as text, and `available_after_ns` and `reset_after_ns` in nanoseconds. See [`LimiterSnapshot`].
    LimitStatus {
        limit, capacity, remaining, available_after in ns, reset_after in ns
    }
}

serialize_fields! {
    /// With the feature `serde`. Durations are in nanoseconds: `retry_after_ns` and `reset_after_ns`. See [`LimiterSnapshot`].
    KeySnapshot {
        used, limit, remaining, retry_after in optional_ns, reset_after in ns, in_flight, queued
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
        let (retry_after, reset_after) = (self.retry_after(), self.reset_after());
        serialize_fields!(
            serializer, "Decision";
            allowed, paused, store_down, limit, remaining, retry_after in optional_ns, reset_after in ns, denied_by, denied_by_index
        )
    }
}

/// Reads a type from its text. `what` describes the text.
struct Text<T> {
    what: &'static str,
    value: PhantomData<T>,
}

impl<T: FromStr<Err = ParseError>> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

macro_rules! as_text {
    ($($value:ident: $what:literal),*) => {$(
        impl Serialize for $value {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $value {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_str(Text { what: $what, value: PhantomData })
            }
        }
    )*};
}

as_text!(
    Rate: "a rate as text, such as \"100/min\"",
    Limit: "a limit as text, such as \"8 concurrent\"",
    Policy: "a policy as text, such as \"8 concurrent and 100/min\""
);
