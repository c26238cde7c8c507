//! Who wants to be told of releases.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::ReleaseListener;

/// The listeners of a store, each with its limiter.
#[derive(Debug, Default)]
pub(super) struct Listeners(Mutex<Listening>);

#[derive(Debug, Default)]
struct Listening {
    listeners: Vec<(Arc<str>, ReleaseListener)>,
    /// Whether a task receives messages for them.
    #[cfg(feature = "postgres")]
    served: bool,
}

impl Listeners {
    /// Without those that are closed.
    fn open(&self) -> MutexGuard<'_, Listening> {
        let mut listening = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        listening.listeners.retain(|(_, listener)| !listener.is_closed());
        listening
    }

    pub(super) fn add(&self, limiter: &Arc<str>, listener: ReleaseListener) {
        self.open().listeners.push((Arc::clone(limiter), listener));
    }

    /// Whether they are served already; from now on they are.
    #[cfg(feature = "postgres")]
    pub(super) fn begin_to_serve(&self) -> bool {
        std::mem::replace(&mut self.open().served, true)
    }

    /// Whether anybody listens. If not, the next listener is to be served anew.
    #[cfg(feature = "postgres")]
    pub(super) fn are_served(&self) -> bool {
        let mut listening = self.open();
        listening.served = !listening.listeners.is_empty();
        listening.served
    }

    /// Tells all that messages may have been lost.
    #[cfg(feature = "postgres")]
    pub(super) fn hear_again(&self) {
        let told = self.open().listeners.clone();
        told.iter().for_each(|(_, listener)| listener.hears_again());
    }

    /// Tells those of this limiter. None of them is called under the lock.
    pub(super) fn released(&self, limiter: &str, key: &[u8]) {
        let listening = self.open();
        let of_limiter = listening.listeners.iter().filter(|(of, _)| **of == *limiter);
        let told: Vec<_> = of_limiter.map(|(_, listener)| listener.clone()).collect();
        drop(listening);
        told.iter().for_each(|listener| listener.released(key));
    }
}
