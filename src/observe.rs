//! Observers of limiters, and what they receive: events, and the waits of requests.

mod event;
mod observers;

pub(crate) use self::event::{FormatKey, WaitSpan, format_by_debug, format_nothing};
pub use self::event::{LimiterEvent, ObservedKey, OpenWait, WaitEnd, WaitStart};
pub(crate) use self::observers::{KeyedObservers, Observers};

/// Receives the events of limiters, and the waits of their requests. One observer may serve any number of limiters, keyed
/// limiters and shared limiters.
///
/// Pass an observer to `observer` of a builder: [`LimiterBuilder::observer`](crate::LimiterBuilder::observer), which states when
/// an observer is called and what it may do, or those of [keyed](crate::KeyedLimiterBuilder::observer) and
/// [shared](crate::SharedLimiterBuilder::observer) limiters. [`LimiterEvent`] has a table of all events.
///
/// A closure that takes a [`&LimiterEvent<'_>`](LimiterEvent) is an observer; `on_event` of each builder takes a closure without
/// a type for its argument. With the features `tracing` and `metrics`, the module `telemetry` has two observers that are ready to
/// use.
///
/// # Examples
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use tollgate::{EventKind, KeyedLimiter, Limiter, MaxConcurrency, LimiterEvent, Observer};
///
/// #[derive(Clone, Default)]
/// struct Denials(Arc<Mutex<Vec<String>>>);
///
/// impl Observer for Denials {
///     fn observe(&self, event: &LimiterEvent<'_>) {
///         if let EventKind::Denied { decision, .. } = event.kind {
///             let limit = decision.denied_by();
///             self.0.lock().unwrap().push(format!("{:?} {:?}: {}", event.name(), event.key, limit.unwrap()));
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
    /// Receives an event.
    fn observe(&self, event: &LimiterEvent<'_>);

    /// A request has begun to wait. The returned [`OpenWait`] is kept with the request, and receives the end of the wait. The
    /// default is `None`.
    ///
    /// This is called in the task or thread of the request, at its first poll. The wait ends there, too. It is not called for a
    /// request that does not wait. The request is already in the queue, so the event of its grant may be reported first. See
    /// [`OpenWait`] for an example.
    fn wait_begins(&self, wait: &WaitStart<'_>) -> Option<Box<dyn OpenWait>> {
        _ = wait;
        None
    }
}

impl<F: Fn(&LimiterEvent<'_>) + Send + Sync + 'static> Observer for F {
    fn observe(&self, event: &LimiterEvent<'_>) {
        self(event);
    }
}
