//! The permits of a process whose limits are in a store, and what is owed to the store for them.

use std::num::NonZeroU64;

use super::StoreSession;
use super::grants::{GrantByStore, StoredGrant};
use super::prefetch::UnusedUnits;
use crate::core::gate::Gate;
use crate::core::gate::lease::Lease;
use crate::core::request::{Actual, Caller, Claim, Costs, Grant};
use crate::exchange::Settlement;
use crate::policy::Limit;
use crate::strategy::{Counts, Moment};

impl StoreSession {
    /// Records a grant of the store.
    pub(super) fn record(
        &mut self,
        now: Moment,
        costs: Costs<'_>,
        by_store: GrantByStore,
        caller: Caller,
    ) -> Grant {
        let fence = self.grants.free_fence(by_store.fence);
        let mut claim = self.gate.record(now, costs, fence, caller);
        if claim == Claim::NONE {
            claim = Claim::of_rate(by_store.granted_at);
        } else {
            let sent_at = by_store.sent_at;
            let max_hold = self.options.max_hold;
            let stored = StoredGrant {
                lease: claim.lease().map(|index| (index, by_store.number)),
                granted_at: by_store.granted_at,
                renewed_until: max_hold.map_or(Moment::NEVER, |max| now.plus(max)),
            };
            self.grants.by_fence.insert(fence, stored);
            self.note_renewal(now, fence, sent_at, false);
        }
        Grant {
            fence,
            claim,
            at: now,
        }
    }

    /// Records that a renewal that was sent at `sent_at` has reached the store: the lease in the gate continues, or was `lost`.
    pub(super) fn note_renewal(&mut self, now: Moment, fence: u64, sent_at: Moment, lost: bool) {
        let Some(&StoredGrant {
            lease: Some((index, _)),
            renewed_until,
            ..
        }) = self.grants.by_fence.get(&fence)
        else {
            return;
        };
        if lost {
            self.gate
                .set_own_ttl(index, fence, now, NonZeroU64::MIN, true);
        } else if let Some(left) = NonZeroU64::new(renewed_until.since(sent_at)) {
            let ttl = left.min(self.options.ttl);
            self.gate.set_own_ttl(index, fence, sent_at, ttl, true);
        }
    }

    /// Gives a grant that no request takes back to the store.
    pub(super) fn decline(&mut self, number: u64, charged: Box<[u64]>, granted_at: u64) {
        if self.gate.holds_places() {
            self.debts.returns.push(number);
        }
        self.decline_units(charged, granted_at);
    }

    /// Gives prefetched units that are not needed back to the store.
    pub(super) fn give_back_unused(&mut self, unused: Option<UnusedUnits>) {
        if let Some((units, granted_at)) = unused {
            let charged = self.gate.limits().costs_of_each(Costs::plain(units));
            self.decline_units(charged, granted_at);
        }
    }

    /// Gives units that no request takes back to the store.
    fn decline_units(&mut self, charged: Box<[u64]>, granted_at: u64) {
        let actual = vec![0; charged.len()];
        let settlement = Settlement::new(granted_at, charged, actual);
        self.debts.settlements.push(settlement);
    }

    /// Gives the lease of a released or reclaimed permit back to the store.
    fn give_back(&mut self, fence: u64) {
        let grant = self.grants.by_fence.remove(&fence);
        if let Some((_, number)) = grant.and_then(|grant| grant.lease) {
            self.debts.returns.push(number);
        }
    }

    /// The gate of the local fallback, if it granted this permit. Places that the store has granted are leases, and its permits
    /// of rates have the time of the grant.
    fn fallback_of(&mut self, fence: u64, claim: Claim) -> Option<&mut Gate> {
        match claim {
            Claim::NONE | Claim::COUNTED_PLACE => self.fallback.gate.as_deref_mut(),
            Claim::NAMED_UNITS if !self.grants.by_fence.contains_key(&fence) => {
                self.fallback.gate.as_deref_mut()
            }
            _ => None,
        }
    }

    /// Releases a permit to the gate that granted it: that of the local fallback, or that of the store's grants.
    pub(crate) fn end(
        &mut self,
        fence: u64,
        claim: Claim,
        end: impl FnOnce(&mut Gate) -> Option<()>,
    ) -> Option<()> {
        if let Some(gate) = self.fallback_of(fence, claim) {
            return end(gate);
        }
        end(&mut self.gate)?;
        if claim.holds() {
            self.give_back(fence);
        }
        Some(())
    }

    /// See [`Gate::reclaim_one`].
    pub(crate) fn reclaim_one(&mut self, now: Moment) -> Option<Lease> {
        let lease = self.gate.reclaim_one(now)?;
        self.give_back(lease.fence);
        Some(lease)
    }

    /// See [`Gate::settle`]. The difference is sent to the store.
    pub(crate) fn settle(
        &mut self,
        now: Moment,
        grant: Grant,
        cost: u64,
        actual: Actual<'_>,
    ) -> Option<()> {
        let Grant { fence, claim, .. } = grant;
        if let Some(gate) = self.fallback_of(fence, claim) {
            return gate.settle(now, grant, cost, actual);
        }
        let is_held = claim.holds(); // else another permit may have this fence
        let by_unit = self.gate.unit_costs(fence).filter(|_| is_held).cloned();
        let recorded = self.grants.by_fence.get(&fence).filter(|_| is_held);
        let granted_at = recorded.map(|grant| grant.granted_at);
        let granted_at = granted_at.or(claim.reached());
        self.end(fence, claim, |gate| gate.release_live(now, grant, cost))?;
        let limits = self.gate.limits();
        let charged = limits.costs_of_each(Costs::new(cost, &by_unit));
        let counts = limits.policy().limits().iter().map(Limit::counts);
        let actual: Box<[u64]> = counts
            .zip(&charged)
            .map(|(counts, charged)| actual.of(counts, *charged))
            .collect();
        if actual != charged {
            let settlement = Settlement::new(granted_at?, charged, actual);
            self.debts.settlements.push(settlement);
        }
        Some(())
    }

    /// See [`Gate::forget`]. A permit that is never released is not renewed any more.
    pub(crate) fn forget(&mut self, fence: u64, claim: Claim) {
        if claim.names_units() {
            self.end(fence, claim, |gate| {
                gate.forget(fence, claim);
                Some(())
            });
        }
        if let Some(grant) = self.grants.by_fence.get_mut(&fence) {
            grant.renewed_until = Moment::START;
        }
    }

    /// See [`Gate::charge`]. The charge is sent to the store.
    pub(crate) fn charge(&mut self, now: Moment, units: u64) {
        if let Some(gate) = self.fallback.gate.as_deref_mut() {
            gate.charge(now, units);
        }
        if units > 0 {
            let charged = |limit: &Limit| match limit.counts() {
                Counts::Unit(_) => 0,
                _ => units,
            };
            let limits = self.gate.limits().policy().limits().iter();
            let charge = Settlement::charge(limits.map(charged).collect::<Box<[u64]>>());
            self.debts.add_charge(charge);
        }
    }
}
