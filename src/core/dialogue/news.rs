//! What observers are told once of the state in the store.

use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(crate) struct News {
    /// For each limit, when the latest ban ends that began here, by the store's clock.
    bans: BTreeMap<usize, u64>,
}

impl News {
    /// Whether this ban is another one than the latest that began here: while the store's clock stands still, each denial looks as if it
    /// had begun it.
    pub(crate) fn is_new_ban(&mut self, limit_index: usize, until: u64) -> bool {
        self.bans.insert(limit_index, until) != Some(until)
    }
}
