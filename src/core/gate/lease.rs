//! Leases: permits with a TTL, in the order in which they expire.

use std::collections::BTreeMap;
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

/// All leases of one gate. Most share one TTL, so granting and renewing append, and the front expires first. The few with a
/// shorter TTL of their own are kept beside that list, in order.
#[derive(Debug)]
pub(crate) struct Leases {
    /// Nanoseconds; `None` after a change to a policy without one.
    ttl: Option<NonZeroU64>,
    arena: Arena<Lease>,
    by_expiry: List,
    /// `None` while there are none.
    own_ttls: Option<Box<OwnTtls>>,
    /// When the first one expires; [`Moment::NEVER`] if there is none. Each request reads it.
    next_expiry: Moment,
}

/// The leases with a TTL of their own, in nanoseconds, by their expiry and index.
type OwnTtls = BTreeMap<(Moment, Index), NonZeroU64>;

impl Leases {
    pub(crate) const fn new(ttl: NonZeroU64) -> Self {
        Self {
            ttl: Some(ttl),
            arena: Arena::new(),
            by_expiry: List::EMPTY,
            own_ttls: None,
            next_expiry: Moment::NEVER,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_expiry.front().is_none() && self.own_ttls.is_none()
    }

    pub(crate) fn has_ttl(&self) -> bool {
        self.ttl.is_some()
    }

    /// Replaces the TTL. The TTL of every live lease counts from its grant or its latest renewal as before, so the order stays.
    /// Leases that have expired stay expired, since they are reclaimed in batches.
    pub(crate) fn set_ttl(&mut self, ttl: Option<NonZeroU64>, now: Moment) {
        self.ttl = ttl;
        let shared = self.arena.indexes(&self.by_expiry);
        let shared = shared.map(|index| (index, None));
        let own_ttls = self.own_ttls.take().into_iter();
        let own_ttls = own_ttls.flat_map(|own_ttls| *own_ttls);
        let own_ttls = own_ttls.map(|((_, index), own)| (index, Some(own)));
        for (index, own) in shared.chain(own_ttls).collect::<Vec<_>>() {
            let ttl = self.shorter(own);
            let Some(lease) = self.arena.get_mut(index) else {
                continue;
            };
            if now < lease.expires_at {
                lease.expires_at = expiry(ttl, lease.renewed_at);
            }
            if let Some(own) = own {
                let own_ttls = self.own_ttls.get_or_insert_default();
                own_ttls.insert((lease.expires_at, index), own);
            }
        }
        self.note_front();
    }

    #[inline]
    pub(crate) fn open(&mut self, fence: u64, cost: u64, now: Moment, caller: Caller) -> Index {
        let expires_at = expiry(self.ttl, now);
        self.next_expiry = self.next_expiry.min(expires_at);
        let lease = Lease {
            fence,
            cost,
            granted_at: now,
            renewed_at: now,
            expires_at,
            caller,
        };
        self.arena.insert_back(&mut self.by_expiry, lease)
    }

    fn get_mut(&mut self, index: Index, fence: u64) -> Option<&mut Lease> {
        self.arena
            .get_mut(index)
            .filter(|lease| lease.fence == fence)
    }

    /// The lease, if its TTL has not passed: it is not revived afterwards, even if it was not reclaimed yet.
    pub(crate) fn live(&mut self, index: Index, fence: u64, now: Moment) -> Option<&mut Lease> {
        self.get_mut(index, fence)
            .filter(|lease| now < lease.expires_at)
    }

    /// The lease with a TTL of its own that expires first, and when.
    fn first_own(&self) -> Option<(Moment, Index)> {
        let own_ttls = self.own_ttls.as_ref()?;
        own_ttls.keys().next().copied()
    }

    /// The TTL of a lease: its own, or the common one if that is shorter.
    fn shorter(&self, own: Option<NonZeroU64>) -> Option<NonZeroU64> {
        self.ttl.into_iter().chain(own).min()
    }

    #[inline(always)]
    pub(crate) fn next_expiry(&self) -> Moment {
        self.next_expiry
    }

    /// Updates the next expiry after the first lease may have changed.
    fn note_front(&mut self) {
        self.note_shared_front();
        if let Some((first_own, _)) = self.first_own() {
            self.next_expiry = self.next_expiry.min(first_own);
        }
    }

    /// [`Leases::note_front`] where no lease has a TTL of its own.
    #[inline]
    fn note_shared_front(&mut self) {
        let front = self
            .by_expiry
            .front()
            .and_then(|index| self.arena.get(index));
        self.next_expiry = front.map_or(Moment::NEVER, |lease| lease.expires_at);
    }

    /// The leases in the order in which they are reclaimed.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Lease> {
        let mut shared = self
            .arena
            .indexes(&self.by_expiry)
            .filter_map(|index| self.arena.get(index))
            .peekable();
        let own_ttls = self
            .own_ttls
            .iter()
            .flat_map(|own_ttls| own_ttls.keys())
            .filter_map(|(_, index)| self.arena.get(*index));
        let mut own_ttls = own_ttls.peekable();
        std::iter::from_fn(move || match (shared.peek(), own_ttls.peek()) {
            (Some(first), Some(first_own)) if first_own.expires_at <= first.expires_at => {
                own_ttls.next()
            }
            (None, _) => own_ttls.next(),
            _ => shared.next(),
        })
    }

    /// Takes a lease, which stays in the arena, out of its order. Returns its own TTL.
    #[inline(never)]
    fn unlink(&mut self, index: Index) -> Option<NonZeroU64> {
        let own = self.unlink_own_ttl(index);
        if own.is_none() {
            self.arena.unlink(&mut self.by_expiry, index);
        }
        own
    }

    fn unlink_own_ttl(&mut self, index: Index) -> Option<NonZeroU64> {
        let own_ttls = self.own_ttls.as_mut()?;
        let expires_at = self.arena.get(index)?.expires_at;
        let own = own_ttls.remove(&(expires_at, index));
        if own_ttls.is_empty() {
            self.own_ttls = None;
        }
        own
    }

    /// Ends a lease. `None` when it was reclaimed before.
    #[inline]
    pub(crate) fn close(&mut self, index: Index, fence: u64) -> Option<()> {
        self.get_mut(index, fence)?;
        if self.own_ttls.is_some() {
            self.unlink(index);
            self.arena.remove(index);
            self.note_front();
            return Some(());
        }
        let was_front = self.by_expiry.front() == Some(index);
        self.arena.unlink(&mut self.by_expiry, index);
        self.arena.remove(index);
        if was_front {
            self.note_shared_front();
        }
        Some(())
    }

    /// Restarts the TTL of a live lease. Returns whether it is live.
    pub(crate) fn renew(&mut self, index: Index, fence: u64, now: Moment) -> bool {
        if self.live(index, fence, now).is_none() {
            return false;
        }
        let own = self.unlink(index);
        self.link(index, own, now);
        true
    }

    /// Gives a live lease its own TTL. The common TTL is the most. It counts from now if the lease is renewed at the same time.
    /// Returns whether the lease is live now.
    pub(crate) fn set_own_ttl(
        &mut self,
        index: Index,
        fence: u64,
        now: Moment,
        own: NonZeroU64,
        renews: bool,
    ) -> bool {
        let Some(lease) = self.live(index, fence, now) else {
            return false;
        };
        let from = if renews { now } else { lease.renewed_at };
        self.unlink(index);
        self.link(index, Some(own), from);
        self.live(index, fence, now).is_some()
    }

    /// Puts a lease that was taken out into its order again. Its TTL counts from `renewed_at`.
    fn link(&mut self, index: Index, own: Option<NonZeroU64>, renewed_at: Moment) {
        let expires_at = expiry(self.shorter(own), renewed_at);
        if let Some(lease) = self.arena.get_mut(index) {
            lease.renewed_at = renewed_at;
            lease.expires_at = expires_at;
        }
        match own {
            Some(own) => {
                let own_ttls = self.own_ttls.get_or_insert_default();
                own_ttls.insert((expires_at, index), own);
            }
            None => self.arena.push_back(&mut self.by_expiry, index),
        }
        self.note_front();
    }

    /// Ends the lease that expired first, if one has.
    pub(crate) fn pop_expired(&mut self, now: Moment) -> Option<Lease> {
        if self.next_expiry > now {
            return None;
        }
        let index = match self.first_own() {
            Some((first, index)) if first == self.next_expiry => index,
            _ => self.by_expiry.front()?,
        };
        self.unlink(index);
        self.note_front();
        Some(self.arena.remove(index))
    }
}

fn expiry(ttl: Option<NonZeroU64>, renewed_at: Moment) -> Moment {
    ttl.map_or(Moment::NEVER, |ttl| renewed_at.plus(ttl.get()))
}

#[cfg(test)]
mod tests {
    use std::panic::Location;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(crate::replay::cases(256))]

        #[test]
        fn leases_are_listed_as_they_are_reclaimed(
            leases in prop::collection::vec((0_u64..4, prop::option::of(1_u64..14)), 0..12),
        ) {
            let mut all = Leases::new(NonZeroU64::new(10).unwrap());
            let mut now = Moment::START;
            for (fence, (nanos, own)) in (0..).zip(leases) {
                now = now.plus(nanos);
                let index = all.open(fence, 1, now, Location::caller());
                if let Some(own) = own.and_then(NonZeroU64::new) {
                    all.set_own_ttl(index, fence, now, own, false);
                }
            }
            let listed: Vec<_> = all.iter().map(|lease| (lease.expires_at, lease.fence)).collect();
            prop_assert!(listed.is_sorted_by_key(|(expires_at, _)| *expires_at));
            let reclaimed = std::iter::from_fn(|| all.pop_expired(Moment::LAST));
            prop_assert!(listed.into_iter().eq(reclaimed.map(|lease| (lease.expires_at, lease.fence))));
            prop_assert!(all.is_empty());
        }
    }
}
