//! Leases: permits with a TTL, in the order in which they expire.

use std::panic::Location;
use std::sync::Arc;

use tokio::sync::Notify;

use crate::arena::{Arena, Key, List};
use crate::strategy::Moment;

/// The line of the program that asks for a permit.
pub(crate) type Caller = &'static Location<'static>;

/// What a gate gave: enough to take it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Admission {
    pub(crate) fence: u64,
    /// When it was decided; [`Moment::START`] where the gate needs no clock.
    pub(crate) at: Moment,
    pub(crate) claim: Claim,
}

/// What a permit holds that must come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    /// The permit of a rate.
    Nothing,
    Place,
    /// A place, until it is reclaimed.
    Lease(Key),
}

impl Claim {
    pub(crate) fn lease(self) -> Option<Key> {
        match self {
            Self::Lease(key) => Some(key),
            _ => None,
        }
    }
}

/// One permit that will be reclaimed.
#[derive(Debug)]
pub(crate) struct Lease {
    /// Tells this lease from a later one in the same place.
    pub(crate) fence: u64,
    pub(crate) cost: u64,
    pub(crate) granted_at: Moment,
    /// Its grant or its latest renewal: what the TTL counts from.
    pub(crate) renewed_at: Moment,
    pub(crate) expires_at: Moment,
    pub(crate) caller: Caller,
    /// Rung, outside, for a holder that awaits the reclaim: when it was carried out, or somebody else must keep the time. A
    /// payload here.
    pub(crate) bell: Option<Arc<Notify>>,
}

/// All leases of one gate. At any time their TTL is one and the same, so granting and renewing append, and the front expires first.
#[derive(Debug)]
pub(crate) struct Leases {
    /// Nanoseconds; `None` while none is counted.
    ttl: Option<u64>,
    arena: Arena<Lease>,
    by_expiry: List,
}

impl Leases {
    pub(crate) const fn new(ttl: u64) -> Self {
        Self { ttl: Some(ttl), arena: Arena::new(), by_expiry: List::EMPTY }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_expiry.front().is_none()
    }

    pub(crate) fn has_ttl(&self) -> bool {
        self.ttl.is_some()
    }

    /// From now on the TTL is another one, counted for all that is leased from its grant or its renewal. The order stays.
    pub(crate) fn set_ttl(&mut self, ttl: Option<u64>) {
        self.ttl = ttl;
        for key in self.arena.keys(&self.by_expiry).collect::<Vec<_>>() {
            if let Some(lease) = self.arena.get_mut(key) {
                lease.expires_at = expiry(ttl, lease.renewed_at);
            }
        }
    }

    pub(crate) fn open(&mut self, fence: u64, cost: u64, now: Moment, caller: Caller) -> Key {
        let expires_at = expiry(self.ttl, now);
        let key = self.arena.insert(Lease { fence, cost, granted_at: now, renewed_at: now, expires_at, caller, bell: None });
        self.arena.push_back(&mut self.by_expiry, key);
        key
    }

    pub(crate) fn get_mut(&mut self, key: Key, fence: u64) -> Option<&mut Lease> {
        self.arena.get_mut(key).filter(|lease| lease.fence == fence)
    }

    pub(crate) fn bells(&self) -> impl Iterator<Item = &Arc<Notify>> {
        self.arena.keys(&self.by_expiry).filter_map(|key| self.arena.get(key)?.bell.as_ref())
    }

    pub(crate) fn next_expiry(&self) -> Moment {
        self.by_expiry.front().and_then(|key| self.arena.get(key)).map_or(Moment::NEVER, |lease| lease.expires_at)
    }

    /// Ends a lease. `None` when it was reclaimed before.
    pub(crate) fn close(&mut self, key: Key, fence: u64) -> Option<()> {
        self.get_mut(key, fence)?;
        self.arena.unlink(&mut self.by_expiry, key);
        self.arena.discard(key);
        Some(())
    }

    /// Starts the TTL of a live lease anew. A lease past its TTL stays so, whether or not it was reclaimed by now.
    pub(crate) fn renew(&mut self, key: Key, fence: u64, now: Moment) -> bool {
        let expires_at = expiry(self.ttl, now);
        let Some(lease) = self.get_mut(key, fence).filter(|lease| now < lease.expires_at) else { return false };
        (lease.renewed_at, lease.expires_at) = (now, expires_at);
        self.arena.unlink(&mut self.by_expiry, key);
        self.arena.push_back(&mut self.by_expiry, key);
        true
    }

    /// Ends the lease that expired first, if one has.
    pub(crate) fn expire_one(&mut self, now: Moment) -> Option<Lease> {
        let key = self.by_expiry.front().filter(|_| self.next_expiry() <= now)?;
        self.arena.unlink(&mut self.by_expiry, key);
        Some(self.arena.remove(key))
    }
}

fn expiry(ttl: Option<u64>, renewed_at: Moment) -> Moment {
    ttl.map_or(Moment::NEVER, |ttl| renewed_at.plus(ttl))
}
