//! Leases: permits with a TTL, in the order in which they expire.

use std::num::NonZeroU64;

use crate::core::arena::{Arena, Index, List};
use crate::core::request::Caller;
use crate::strategy::Moment;

/// One permit that will be reclaimed.
#[derive(Debug)]
pub(crate) struct Lease {
    /// Distinguishes this lease from a later one at the same index.
    pub(crate) fence: u64,
    pub(crate) cost: u64,
    pub(crate) granted_at: Moment,
    /// Its grant or its latest renewal: the TTL counts from here.
    pub(crate) renewed_at: Moment,
    pub(crate) expires_at: Moment,
    pub(crate) caller: Caller,
}

/// All leases of one gate. They share one TTL, so granting and renewing append, and the front expires first.
#[derive(Debug)]
pub(crate) struct Leases {
    /// Nanoseconds; `None` after a change to a policy without one.
    ttl: Option<NonZeroU64>,
    arena: Arena<Lease>,
    by_expiry: List,
    /// When the front expires; [`Moment::NEVER`] if there is none. Each request asks for it.
    next_expiry: Moment,
}

impl Leases {
    pub(crate) const fn new(ttl: NonZeroU64) -> Self {
        Self { ttl: Some(ttl), arena: Arena::new(), by_expiry: List::EMPTY, next_expiry: Moment::NEVER }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_expiry.front().is_none()
    }

    pub(crate) fn has_ttl(&self) -> bool {
        self.ttl.is_some()
    }

    /// Replaces the TTL. That of every live lease counts from its grant or its latest renewal as before, so the order stays.
    /// Leases that have expired stay expired, since they are reclaimed in batches.
    pub(crate) fn set_ttl(&mut self, ttl: Option<NonZeroU64>, now: Moment) {
        self.ttl = ttl;
        for index in self.arena.indexes(&self.by_expiry).collect::<Vec<_>>() {
            if let Some(lease) = self.arena.get_mut(index).filter(|lease| now < lease.expires_at) {
                lease.expires_at = expiry(ttl, lease.renewed_at);
            }
        }
        self.note_front();
    }

    pub(crate) fn open(&mut self, fence: u64, cost: u64, now: Moment, caller: Caller) -> Index {
        let expires_at = expiry(self.ttl, now);
        if self.is_empty() {
            self.next_expiry = expires_at;
        }
        let lease = Lease { fence, cost, granted_at: now, renewed_at: now, expires_at, caller };
        self.arena.insert_back(&mut self.by_expiry, lease)
    }

    pub(crate) fn get_mut(&mut self, index: Index, fence: u64) -> Option<&mut Lease> {
        self.arena.get_mut(index).filter(|lease| lease.fence == fence)
    }

    #[inline(always)]
    pub(crate) fn next_expiry(&self) -> Moment {
        self.next_expiry
    }

    /// The front may have changed.
    #[inline]
    fn note_front(&mut self) {
        let front = self.by_expiry.front().and_then(|index| self.arena.get(index));
        self.next_expiry = front.map_or(Moment::NEVER, |lease| lease.expires_at);
    }

    /// The leases, first to last as they expire.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Lease> {
        self.arena.indexes(&self.by_expiry).filter_map(|index| self.arena.get(index))
    }

    /// Ends a lease. `None` when it was reclaimed before.
    pub(crate) fn close(&mut self, index: Index, fence: u64) -> Option<()> {
        self.get_mut(index, fence)?;
        let was_front = self.by_expiry.front() == Some(index);
        self.arena.unlink(&mut self.by_expiry, index);
        self.arena.discard(index);
        if was_front {
            self.note_front();
        }
        Some(())
    }

    /// Restarts the TTL of a live lease. A lease past its TTL is not revived, even if it was not reclaimed yet.
    pub(crate) fn renew(&mut self, index: Index, fence: u64, now: Moment) -> bool {
        let expires_at = expiry(self.ttl, now);
        let Some(lease) = self.get_mut(index, fence).filter(|lease| now < lease.expires_at) else { return false };
        (lease.renewed_at, lease.expires_at) = (now, expires_at);
        self.arena.unlink(&mut self.by_expiry, index);
        self.arena.push_back(&mut self.by_expiry, index);
        self.note_front();
        true
    }

    /// Ends the lease that expired first, if one has.
    pub(crate) fn pop_expired(&mut self, now: Moment) -> Option<Lease> {
        let index = self.by_expiry.front().filter(|_| self.next_expiry <= now)?;
        self.arena.unlink(&mut self.by_expiry, index);
        self.note_front();
        Some(self.arena.remove(index))
    }
}

fn expiry(ttl: Option<NonZeroU64>, renewed_at: Moment) -> Moment {
    ttl.map_or(Moment::NEVER, |ttl| renewed_at.plus(ttl.get()))
}
