use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use crate::event::{EventKind, LimiterEvent};
use crate::observe::{FormatKey, Observation, ObservedKey, Observer, Observers, OpenWait, WaitStart};

/// What a keyed limiter tells its observers: an event of one of its keys, as in the table of [`LimiterEvent`], in the order that is
/// promised there, or one of the keys themselves. [`KeyedLimiterBuilder::on_event`](crate::KeyedLimiterBuilder::on_event) has an example.
#[derive(Debug)]
#[non_exhaustive]
pub enum KeyedLimiterEvent<'a, K> {
    /// A key was forgotten before it was reset: [`WhenFull::EvictSoonestReset`](crate::WhenFull::EvictSoonestReset).
    #[non_exhaustive]
    Evicted {
        /// The [name](crate::KeyedLimiterBuilder::name) of the keyed limiter, if it has one.
        limiter: Option<&'a Arc<str>>,
        /// The key.
        key: &'a K,
        /// How long until it would have been reset.
        reset_after: Duration,
    },
    /// A new key was refused: [`WhenFull::Deny`](crate::WhenFull::Deny).
    #[non_exhaustive]
    TooManyKeys {
        /// The [name](crate::KeyedLimiterBuilder::name) of the keyed limiter, if it has one.
        limiter: Option<&'a Arc<str>>,
        /// The key.
        key: &'a K,
    },
    /// An event of the limiter of one key, also where the key is only a [state](crate::KeyedLimiter#memory) and has no limiter.
    ///
    /// Of what changes all keys ([`pause_for`](crate::KeyedLimiter::pause_for), [`resume`](crate::KeyedLimiter::resume),
    /// [`set_policy`](crate::KeyedLimiter::set_policy), [`close`](crate::KeyedLimiter::close)) and of the end of such a pause, only
    /// keys that are [active](crate::KeyedLimiter#memory) at the time tell, each for itself.
    Limiter {
        /// The key.
        key: &'a K,
        /// The event.
        event: &'a LimiterEvent,
    },
}

impl<'a, K> KeyedLimiterEvent<'a, K> {
    /// The [name](crate::KeyedLimiterBuilder::name) of the keyed limiter, if it has one.
    #[must_use]
    pub fn name(&self) -> Option<&'a str> {
        match *self {
            Self::Evicted { limiter, .. } | Self::TooManyKeys { limiter, .. } => limiter.map(|name| &**name),
            Self::Limiter { event, .. } => event.name(),
        }
    }

    /// The key.
    #[must_use]
    pub const fn key(&self) -> &'a K {
        match *self {
            Self::Evicted { key, .. } | Self::TooManyKeys { key, .. } | Self::Limiter { key, .. } => key,
        }
    }
}

// Not derived: that would ask the same of the keys.
impl<K> Clone for KeyedLimiterEvent<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for KeyedLimiterEvent<'_, K> {}

/// A closure of `on_event`.
pub(super) struct OnKeyedEvent<K, F>(F, PhantomData<fn(&K)>);

impl<K, F> OnKeyedEvent<K, F> {
    pub(super) fn new(closure: F) -> Self {
        Self(closure, PhantomData)
    }
}

impl<K: 'static, F: Fn(KeyedLimiterEvent<'_, K>) + Send + Sync + 'static> Observer for OnKeyedEvent<K, F> {
    fn observe(&self, what: &Observation<'_>) {
        let &Observation { limiter, key, kind, event, .. } = what;
        let Some(key) = key.and_then(|key| key.downcast_ref()) else { return };
        self.0(match *kind {
            EventKind::Evicted { reset_after } => KeyedLimiterEvent::Evicted { limiter, key, reset_after },
            EventKind::TooManyKeys => KeyedLimiterEvent::TooManyKeys { limiter, key },
            _ => KeyedLimiterEvent::Limiter { key, event },
        });
    }
}

/// Who is told of the events of all keys, and how keys are formatted for them.
pub(super) struct KeyedObserver {
    pub(super) observers: Observers,
    pub(super) format: FormatKey,
}

impl KeyedObserver {
    /// Tells what has happened to a key, or to a request whose key is unknown. Called outside every lock.
    pub(super) fn emit<K: Send + Sync + 'static>(&self, key: Option<&K>, event: &LimiterEvent) {
        let key = key.map(|key| ObservedKey::new(key, self.format));
        self.observers.emit(&Observation { key, ..Observation::new(event) });
    }
}

/// The observers of the manager of one key.
pub(super) struct OfKey<K> {
    pub(super) of_all: Arc<KeyedObserver>,
    pub(super) key: K,
}

impl<K: Send + Sync + 'static> OfKey<K> {
    fn key(&self) -> Option<ObservedKey<'_>> {
        Some(ObservedKey::new(&self.key, self.of_all.format))
    }
}

impl<K: Send + Sync + 'static> Observer for OfKey<K> {
    fn observe(&self, what: &Observation<'_>) {
        self.of_all.observers.pass_on(&Observation { key: self.key(), ..*what });
    }

    fn wait_begins(&self, wait: &WaitStart<'_>) -> Option<Box<dyn OpenWait>> {
        self.of_all.observers.pass_on_wait(&WaitStart { key: self.key(), ..*wait })
    }
}
