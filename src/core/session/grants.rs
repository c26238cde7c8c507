//! What the store has recorded of this process's live permits.

use std::collections::BTreeMap;

use crate::core::arena::Index;
use crate::strategy::Moment;

/// A grant by the store.
#[derive(Debug, Clone, Copy)]
pub(super) struct GrantByStore {
    pub(super) fence: u64,
    /// The number of its lease, if it is one.
    pub(super) number: u64,
    /// By the store's clock.
    pub(super) granted_at: u64,
    /// When the call was sent. The TTL counts from here: in the store it began later.
    pub(super) sent_at: Moment,
}

/// The permits whose grants the store has recorded, by fence.
#[derive(Debug, Default)]
pub(super) struct StoredGrants {
    pub(super) by_fence: BTreeMap<u64, StoredGrant>,
    /// Whether a task renews the leases.
    is_renewed: bool,
}

#[derive(Debug)]
pub(super) struct StoredGrant {
    /// Its lease, if it is one: the index in the gate, and the number in the store.
    pub(super) lease: Option<(Index, u64)>,
    /// By the store's clock.
    pub(super) granted_at: u64,
    /// Until when the lease may be renewed.
    pub(super) renewed_until: Moment,
}

impl StoredGrants {
    /// The next fence that no permit has. After a reset, the store may give a fence again that an earlier permit still has.
    pub(super) fn free_fence(&self, mut fence: u64) -> u64 {
        while self.by_fence.contains_key(&fence) {
            fence += 1;
        }
        fence
    }

    /// The leases that may be renewed, by fence and number.
    fn renewable(&self, now: Moment) -> impl Iterator<Item = (u64, u64)> {
        self.by_fence
            .iter()
            .filter(move |(_, grant)| now < grant.renewed_until)
            .filter_map(|(fence, grant)| Some((*fence, grant.lease?.1)))
    }

    /// Whether a task must begin to renew the leases. If so, it is taken to have begun.
    pub(super) fn begin_renewals(&mut self, now: Moment) -> bool {
        let begins = !self.is_renewed && self.renewable(now).next().is_some();
        self.is_renewed |= begins;
        begins
    }

    /// The leases to renew. If there are none, no task renews leases any more, until a grant begins it again.
    pub(super) fn next_renewals(&mut self, now: Moment) -> Vec<(u64, u64)> {
        let leases: Vec<_> = self.renewable(now).collect();
        self.is_renewed = !leases.is_empty();
        leases
    }

    /// Records that the task that renews the leases has ended, although some may be left.
    pub(super) fn renewals_stopped(&mut self) {
        self.is_renewed = false;
    }
}
