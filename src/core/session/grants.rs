//! What the store has recorded of this process's live permits.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use crate::core::arena::Index;
use crate::core::gate::Gate;
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
#[derive(Debug)]
pub(super) struct StoredGrants {
    ttl: NonZeroU64,
    /// Nanoseconds after which a permit is reclaimed although its holder lives.
    pub(super) max_hold: Option<u64>,
    pub(super) by_fence: BTreeMap<u64, StoredGrant>,
    /// Whether a task renews the leases.
    pub(super) is_renewed: bool,
}

#[derive(Debug)]
pub(super) struct StoredGrant {
    /// Its lease, if it is one: where the gate has it, and the number that the store knows it by.
    pub(super) lease: Option<(Index, u64)>,
    /// By the store's clock.
    pub(super) granted_at: u64,
    /// Until when the lease may be renewed.
    pub(super) renewed_until: Moment,
}

impl StoredGrants {
    pub(super) fn new(ttl: NonZeroU64, max_hold: Option<u64>) -> Self {
        Self {
            ttl,
            max_hold,
            by_fence: BTreeMap::new(),
            is_renewed: false,
        }
    }

    /// The next fence that no permit has. After a reset, the store may give a fence anew that a permit from before it still has.
    pub(super) fn free_fence(&self, mut fence: u64) -> u64 {
        while self.by_fence.contains_key(&fence) {
            fence += 1;
        }
        fence
    }

    /// The leases that may be renewed, by fence and number.
    pub(super) fn renewable(&self, now: Moment) -> impl Iterator<Item = (u64, u64)> {
        self.by_fence
            .iter()
            .filter(move |(_, grant)| now < grant.renewed_until)
            .filter_map(|(fence, grant)| Some((*fence, grant.lease?.1)))
    }

    /// Whether a task is to begin to renew the leases. If so, it is taken to have begun.
    pub(super) fn begin_renewals(&mut self, now: Moment) -> bool {
        let begins = !self.is_renewed && self.renewable(now).next().is_some();
        self.is_renewed |= begins;
        begins
    }

    /// Ends the renewals if nothing is left to renew. Returns whether they have ended.
    pub(super) fn end_renewals(&mut self, now: Moment) -> bool {
        let ends = self.renewable(now).next().is_none();
        self.is_renewed &= !ends;
        ends
    }

    /// A renewal that was sent at `sent_at` has reached the store: the lease in the gate lives on, or was `lost`.
    pub(super) fn note_renewal(
        &self,
        gate: &mut Gate,
        now: Moment,
        fence: u64,
        sent_at: Moment,
        lost: bool,
    ) {
        let Some(grant) = self.by_fence.get(&fence) else {
            return;
        };
        let Some((index, _)) = grant.lease else {
            return;
        };
        if lost {
            gate.set_own_ttl(index, fence, now, NonZeroU64::MIN, true);
        } else if let Some(left) = NonZeroU64::new(grant.renewed_until.since(sent_at)) {
            gate.set_own_ttl(index, fence, sent_at, left.min(self.ttl), true);
        }
    }
}
