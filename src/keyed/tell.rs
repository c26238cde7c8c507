use super::any_table::with_table;
use super::limiter::KeyedLimiter;
use crate::event::EventKind;

impl<K: Send + Sync + 'static> KeyedLimiter<K> {
    /// Tells the observers, if there are any, of what has changed nothing: of a key, or of a request whose key is unknown.
    pub(crate) fn tell(&self, key: Option<&K>, kind: impl FnOnce() -> EventKind) {
        with_table!(&*self.table, |table| table.shared.tell(key, kind));
    }
}
