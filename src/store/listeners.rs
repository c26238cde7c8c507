//! The listeners for releases in this process.

use std::sync::Arc;

use super::ReleaseListener;
use crate::lock::Lock;

/// The listeners of a store, each with its limiter.
#[derive(Debug, Default)]
pub(super) struct Listeners(Lock<Vec<(Arc<str>, ReleaseListener)>>);

impl Listeners {
    pub(super) fn add(&self, limiter: &Arc<str>, listener: ReleaseListener) {
        self.0.lock().push((Arc::clone(limiter), listener));
    }

    /// The listeners that are not closed. Closed listeners are removed.
    fn open(&self) -> Vec<(Arc<str>, ReleaseListener)> {
        let mut listeners = self.0.lock();
        listeners.retain(|(_, listener)| !listener.is_closed());
        listeners.clone()
    }

    /// The limiters that have a listener, each once.
    #[cfg(any(feature = "postgres", feature = "redis"))]
    pub(super) fn limiters(&self) -> std::collections::BTreeSet<Arc<str>> {
        self.open()
            .into_iter()
            .map(|(limiter, _)| limiter)
            .collect()
    }

    /// Calls the listeners of this limiter, or of all limiters, outside the lock, because a listener is foreign code.
    pub(super) fn each(&self, limiter: Option<&str>, call: impl Fn(&ReleaseListener)) {
        for (of, listener) in self.open() {
            if limiter.is_none_or(|limiter| *of == *limiter) {
                call(&listener);
            }
        }
    }

    /// Notifies the listeners of this limiter.
    pub(super) fn released(&self, limiter: &str, key: &[u8]) {
        self.each(Some(limiter), |listener| listener.released(key));
    }
}
