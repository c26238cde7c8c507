//! The observers of a limiter, and how they are called.

use std::fmt;
use std::sync::Arc;

use super::Observer;
use super::event::{
    FormatKey, LimiterEvent, ObservedKey, OpenWait, WaitEnd, WaitSpan, WaitStart, call,
};
use crate::contain_panic::contain_panic;
use crate::event::EventKind;

/// The observers of a limiter. They are called outside every lock.
///
/// This is a thin pointer, because each of a million keys has one, and most have no observer.
#[derive(Default)]
pub(crate) struct Observers(Option<Box<Box<dyn Observer>>>);

impl Observers {
    pub(crate) const NONE: Self = Self(None);

    pub(crate) fn new(observer: impl Observer) -> Self {
        Self(Some(Box::new(Box::new(observer))))
    }

    /// Adds an observer, which is called after the earlier ones. If one observer panics, the others are still called.
    pub(crate) fn and(self, next: impl Observer) -> Self {
        match self.0 {
            None => Self::new(next),
            Some(first) => Self::new(Both(*first, next)),
        }
    }

    pub(crate) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn emit(&self, event: &LimiterEvent<'_>) {
        if let Some(observer) = &self.0 {
            call(|| observer.observe(event));
        }
    }

    /// Reports that a request waits.
    pub(crate) fn open(&self, wait: &WaitStart<'_>) -> Option<WaitSpan> {
        let mut span = None;
        if let Some(observer) = &self.0 {
            call(|| span = observer.wait_begins(wait).map(WaitSpan::new));
        }
        span
    }
}

/// The observers of a limiter with keys.
#[derive(Debug)]
pub(crate) struct KeyedObservers {
    /// The name of the limiter with all its keys.
    pub(crate) name: Option<Arc<str>>,
    pub(crate) observers: Observers,
    pub(crate) format: FormatKey,
}

impl KeyedObservers {
    /// Reports an event of a key without a manager, or of a request whose key is unknown. Called outside every lock.
    pub(crate) fn tell<K: Send + Sync + 'static>(
        &self,
        key: Option<&K>,
        kind: impl FnOnce() -> EventKind,
    ) {
        if self.observers.is_some() {
            let key = key.map(|key| ObservedKey::new(key, self.format));
            self.observers.emit(&LimiterEvent {
                limiter: self.name.as_ref(),
                key,
                kind: &kind(),
            });
        }
    }

    /// The observers of the manager of one key, or of requests without a key. If there are any, the key is cloned.
    #[inline(always)] // most limiters have no observer
    pub(crate) fn of_key<K: Clone + Send + Sync + 'static>(
        self: &Arc<Self>,
        key: Option<&K>,
    ) -> Observers {
        if !self.observers.is_some() {
            return Observers::NONE;
        }
        let (keyed, key) = (Arc::clone(self), key.cloned());
        Observers::new(OfKey { keyed, key })
    }
}

/// Adds the key to the events that the manager of one key reports.
struct OfKey<K> {
    keyed: Arc<KeyedObservers>,
    key: Option<K>,
}

impl<K: Send + Sync + 'static> OfKey<K> {
    fn key(&self) -> Option<ObservedKey<'_>> {
        let key = self.key.as_ref();
        key.map(|key| ObservedKey::new(key, self.keyed.format))
    }
}

impl<K: Send + Sync + 'static> Observer for OfKey<K> {
    fn observe(&self, event: &LimiterEvent<'_>) {
        if let Some(observer) = &self.keyed.observers.0 {
            observer.observe(&LimiterEvent {
                limiter: self.keyed.name.as_ref(),
                key: self.key(),
                ..*event
            });
        }
    }

    fn wait_begins(&self, wait: &WaitStart<'_>) -> Option<Box<dyn OpenWait>> {
        self.keyed.observers.0.as_ref()?.wait_begins(&WaitStart {
            limiter: self.keyed.name.as_ref(),
            key: self.key(),
            ..*wait
        })
    }
}

struct Both<A, B>(A, B);

impl<B: Observer> Observer for Both<Box<dyn Observer>, B> {
    fn observe(&self, event: &LimiterEvent<'_>) {
        contain_panic(|| self.0.observe(event));
        self.1.observe(event);
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
        f.write_str(if self.is_some() {
            "Observers(..)"
        } else {
            "Observers(none)"
        })
    }
}
