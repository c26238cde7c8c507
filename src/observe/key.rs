use std::any::Any;
use std::fmt;

/// The key that an event is of, whatever its type. It can be formatted by `Debug`, or taken as what it is.
///
/// The key of a [`SharedLimiter`](crate::SharedLimiter) is an `Arc<[u8]>`, and is formatted as text with escapes.
///
/// There may be a million keys, and a key may be a secret: think before it becomes a label or a line in a log.
///
/// ```
/// use tollgate::{KeyedLimiter, Observation, Rate, TokenBucket};
///
/// let (events, seen) = std::sync::mpsc::channel();
/// let limiter = KeyedLimiter::<String>::builder(TokenBucket::new(Rate::per_minute(1), 1))
///     .observer(move |what: &Observation<'_>| {
///         let Some(key) = what.key else { return };
///         events.send((format!("{key:?}"), key.downcast_ref::<String>().cloned())).unwrap();
///     })
///     .build()?;
/// assert!(limiter.try_acquire("alice").is_ok() && limiter.try_acquire("alice").is_err());
/// assert_eq!(seen.recv()?, (r#""alice""#.to_owned(), Some("alice".to_owned())));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
pub struct ObservedKey<'a> {
    key: &'a (dyn Any + Send + Sync),
    format: FormatKey,
}

/// Formats a key of the type that it is for.
pub(crate) type FormatKey = fn(&dyn Any, &mut fmt::Formatter<'_>) -> fmt::Result;

impl<'a> ObservedKey<'a> {
    pub(crate) fn new<K: Send + Sync + 'static>(key: &'a K, format: FormatKey) -> Self {
        Self { key, format }
    }

    /// The key, if keys are of this type.
    #[must_use]
    pub fn downcast_ref<K: 'static>(&self) -> Option<&'a K> {
        self.key.downcast_ref()
    }
}

impl fmt::Debug for ObservedKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (self.format)(self.key, f)
    }
}

/// For keys that are `Debug`.
pub(crate) fn format_by_debug<K: fmt::Debug + 'static>(key: &dyn Any, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match key.downcast_ref::<K>() {
        Some(key) => key.fmt(f),
        None => format_nothing(key, f),
    }
}

/// For keys that need not be.
pub(crate) fn format_nothing(_: &dyn Any, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str("..")
}
