//! What an observer learns once of the state in the store.

use std::collections::BTreeMap;

use crate::policy::Policy;

#[derive(Debug, Default)]
pub(super) struct ReportedOnce {
    /// For each limit, when the latest ban ends that began here, by the store's clock.
    bans: BTreeMap<usize, u64>,
    /// The policy, as text, that the store has and the next call replaces.
    replaced: Option<String>,
}

impl ReportedOnce {
    /// The store has another policy, which the next call replaces.
    pub(super) fn replaces_next(&mut self, stored: &str) {
        self.replaced = Some(stored.to_owned());
    }

    /// Whether the next call replaces the policy in the store.
    pub(super) fn replaces(&self) -> bool {
        self.replaced.is_some()
    }

    /// The policy that such a call has replaced.
    pub(super) fn take_replaced(&mut self) -> Option<Policy> {
        self.replaced.take()?.parse().ok()
    }

    /// Whether this ban is another one than the latest that began here: while the store's clock stands still, each denial looks as if it
    /// had begun it.
    pub(super) fn is_new_ban(&mut self, limit_index: usize, until: u64) -> bool {
        self.bans.insert(limit_index, until) != Some(until)
    }
}
