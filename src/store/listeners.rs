//! Who wants to be told of releases.

use std::sync::{Arc, Mutex, PoisonError};

use super::ReleaseListener;

/// The listeners of a store, each with its limiter.
#[derive(Debug, Default)]
pub(super) struct Listeners(Mutex<Vec<(Arc<str>, ReleaseListener)>>);

impl Listeners {
    /// Adds one, and drops those that are closed.
    pub(super) fn add(&self, limiter: &Arc<str>, listener: ReleaseListener) {
        let mut listeners = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.retain(|(_, listener)| !listener.is_closed());
        listeners.push((Arc::clone(limiter), listener));
    }

    /// Whether nobody listens any more.
    #[cfg(feature = "postgres")]
    pub(super) fn is_empty(&self) -> bool {
        let mut listeners = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.retain(|(_, listener)| !listener.is_closed());
        listeners.is_empty()
    }

    /// Tells those of this limiter. None of them is called under the lock.
    pub(super) fn released(&self, limiter: &str, key: &[u8]) {
        let mut listeners = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.retain(|(_, listener)| !listener.is_closed());
        let told: Vec<_> = listeners.iter().filter(|(of, _)| **of == *limiter).map(|(_, listener)| listener.clone()).collect();
        drop(listeners);
        told.iter().for_each(|listener| listener.released(key));
    }
}
