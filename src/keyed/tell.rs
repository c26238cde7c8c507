//! Events that layers report.

use super::limiter::KeyedLimiter;
use super::table::with_table;
use crate::event::EventKind;

impl<K: Send + Sync + 'static> KeyedLimiter<K> {
    /// Reports an event of a key, or of a request whose key is unknown. It changes nothing.
    pub(crate) fn tell(&self, key: Option<&K>, kind: impl FnOnce() -> EventKind) {
        with_table!(&*self.table, |table| table.shared.tell(key, kind));
    }
}
