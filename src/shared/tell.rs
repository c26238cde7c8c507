use std::sync::Arc;

use super::SharedLimiter;
use crate::event::{EventKind, LimiterEvent};
use crate::observe::Observation;

impl SharedLimiter {
    /// Tells the observers, if there are any, of an event that no manager tells. The key need not be in use.
    pub(crate) fn tell(&self, key: &[u8], kind: impl FnOnce() -> EventKind) {
        let shared = &self.shared;
        if shared.link.observer.is_some() {
            let key: Arc<[u8]> = key.into();
            let event = LimiterEvent::new(Some(shared.name_of(&key)), kind());
            shared.observers_of(&key).emit(&Observation::new(&event));
        }
    }
}
