use std::fmt;

use super::tell::tell;
use super::wait::{OpenWait, WaitEnd, WaitSpan, WaitStart};
use super::{Observation, Observer};
use crate::contain_panic::contain_panic;
use crate::event::LimiterEvent;

/// Those who are told, outside every lock.
///
/// A thin pointer: each of a million keys has one of these, and most have nobody to tell.
#[derive(Default)]
pub(crate) struct Observers(Option<Box<Box<dyn Observer>>>);

impl Observers {
    pub(crate) const NONE: Self = Self(None);

    pub(crate) fn new(observer: impl Observer) -> Self {
        Self(Some(Box::new(Box::new(observer))))
    }

    /// Calls another one after those so far. A panic in one does not keep the others from being called.
    pub(crate) fn and(self, next: impl Observer) -> Self {
        match self.0 {
            None => Self::new(next),
            Some(first) => Self::new(Both(*first, next)),
        }
    }

    /// [`Observers::and`] for a closure of `on_event`.
    pub(crate) fn and_call(self, closure: impl Fn(&LimiterEvent) + Send + Sync + 'static) -> Self {
        self.and(OnEvent(closure))
    }

    pub(crate) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Passes on what a part of the limiter was told.
    pub(crate) fn pass_on(&self, what: &Observation<'_>) {
        if let Some(observer) = &self.0 {
            observer.observe(what);
        }
    }

    /// The same for a wait.
    pub(crate) fn pass_on_wait(&self, wait: &WaitStart<'_>) -> Option<Box<dyn OpenWait>> {
        self.0.as_ref()?.wait_begins(wait)
    }

    pub(crate) fn emit(&self, what: &Observation<'_>) {
        if let Some(observer) = &self.0 {
            tell(|| observer.observe(what));
        }
    }

    /// Tells that a request waits.
    pub(crate) fn open(&self, wait: &WaitStart<'_>) -> Option<WaitSpan> {
        let mut span = None;
        if let Some(observer) = &self.0 {
            tell(|| span = observer.wait_begins(wait).map(WaitSpan::new));
        }
        span
    }
}

struct OnEvent<F>(F);

impl<F: Fn(&LimiterEvent) + Send + Sync + 'static> Observer for OnEvent<F> {
    fn observe(&self, what: &Observation<'_>) {
        self.0(what.event);
    }
}

struct Both<A, B>(A, B);

impl<B: Observer> Observer for Both<Box<dyn Observer>, B> {
    fn observe(&self, what: &Observation<'_>) {
        contain_panic(|| self.0.observe(what));
        self.1.observe(what);
    }

    fn wait_begins(&self, wait: &WaitStart<'_>) -> Option<Box<dyn OpenWait>> {
        let (mut first, mut next) = (None, None);
        contain_panic(|| first = self.0.wait_begins(wait));
        contain_panic(|| next = self.1.wait_begins(wait));
        match (first, next) {
            (Some(first), Some(next)) => Some(Box::new(Both(first, next))),
            (first, next) => first.or(next),
        }
    }
}

impl OpenWait for Both<Box<dyn OpenWait>, Box<dyn OpenWait>> {
    fn end(self: Box<Self>, end: WaitEnd<'_>) {
        let Self(first, next) = *self;
        contain_panic(|| first.end(end));
        next.end(end);
    }
}

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_some() { "Observers(..)" } else { "Observers(none)" })
    }
}
