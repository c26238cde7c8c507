//! Who is told of events, and of requests that wait.

mod key;
mod observers;
mod tell;
mod wait;

pub use self::key::ObservedKey;
pub(crate) use self::key::{FormatKey, format_by_debug, format_nothing};
pub(crate) use self::observers::Observers;
pub(crate) use self::wait::WaitSpan;
pub use self::wait::{OpenWait, WaitEnd, WaitStart};

use std::sync::Arc;

use crate::event::{EventKind, LimiterEvent};

/// Is told what happens in limiters. One observer may serve limiters, keyed limiters and shared limiters alike.
///
/// `observer` of each builder takes it: [`LimiterBuilder::observer`](crate::LimiterBuilder::observer), which says when it is called
/// and what it may do, and those of [keyed](crate::KeyedLimiterBuilder::observer) and
/// [shared](crate::SharedLimiterBuilder::observer) limiters. [`LimiterEvent`] has a table of all events.
///
/// Closures that take an [`Observation`] are observers. With the features `tracing` and `metrics`, the module `telemetry` has two that
/// are ready to use.
///
/// # Examples
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use tollgate::{EventKind, KeyedLimiter, Limiter, MaxConcurrency, Observation, Observer};
///
/// #[derive(Clone, Default)]
/// struct Denials(Arc<Mutex<Vec<String>>>);
///
/// impl Observer for Denials {
///     fn observe(&self, what: &Observation<'_>) {
///         if let EventKind::Denied { decision, .. } = what.kind {
///             let limit = decision.denied_by();
///             self.0.lock().unwrap().push(format!("{:?} {:?}: {}", what.name(), what.key, limit.unwrap()));
///         }
///     }
/// }
///
/// let denials = Denials::default();
/// let limiter = Limiter::builder(MaxConcurrency::new(1)).name("search").observer(denials.clone()).build()?;
/// let keyed = KeyedLimiter::builder(MaxConcurrency::new(1)).name("users").observer(denials.clone()).build()?;
/// let _permits = (limiter.try_acquire()?, keyed.try_acquire(&7)?);
/// assert!(limiter.try_acquire().is_err() && keyed.try_acquire(&7).is_err());
/// let seen = denials.0.lock().unwrap();
/// assert_eq!(seen[0], r#"Some("search") None: 1 concurrent"#);
/// assert_eq!(seen[1], r#"Some("users") Some(7): 1 concurrent"#);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Observer: Send + Sync + 'static {
    /// Something has happened.
    fn observe(&self, what: &Observation<'_>);

    /// A request has begun to wait. What is returned is kept with the request, and told how the wait ends. By default, nothing is.
    ///
    /// It is called in the task or thread of the request, at its first poll, and the wait ends there, too. Requests that need not wait
    /// are not told. The request is in the queue already, so events of its grant may be told before. See [`OpenWait`] for an example.
    fn wait_begins(&self, wait: &WaitStart<'_>) -> Option<Box<dyn OpenWait>> {
        _ = wait;
        None
    }
}

impl<F: Fn(&Observation<'_>) + Send + Sync + 'static> Observer for F {
    fn observe(&self, what: &Observation<'_>) {
        self(what);
    }
}

/// An event, and of what: what an [`Observer`] is told. That trait has an example.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Observation<'a> {
    /// The [name](crate::LimiterBuilder::name) of the limiter, if it has one: of a keyed or a shared limiter it is the same for all
    /// keys.
    pub limiter: Option<&'a Arc<str>>,
    /// The key, if it is an event of one.
    pub key: Option<ObservedKey<'a>>,
    /// What has happened.
    pub kind: &'a EventKind,
    /// As closures of `on_event` take it.
    pub(crate) event: &'a LimiterEvent,
}

impl<'a> Observation<'a> {
    pub(crate) fn new(event: &'a LimiterEvent) -> Self {
        Self { limiter: event.limiter.as_ref(), key: None, kind: &event.kind, event }
    }

    /// The [name](crate::LimiterBuilder::name) of the limiter, if it has one.
    #[must_use]
    pub fn name(&self) -> Option<&'a str> {
        self.limiter.map(|name| &**name)
    }
}
