//! Events that layers report.

use std::sync::Arc;

use super::SharedLimiter;
use crate::event::EventKind;

impl SharedLimiter {
    /// Reports an event of a key that its manager does not report. The key need not be in use.
    pub(crate) fn tell(&self, key: &[u8], kind: impl FnOnce() -> EventKind) {
        let observer = &self.shared.link.observer;
        if observer.observers.is_some() {
            let key = Some(key).filter(|key| !key.is_empty());
            observer.emit(key.map(Arc::<[u8]>::from).as_ref(), &kind());
        }
    }
}
