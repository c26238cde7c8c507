//! A gate whose limits are in a store that many processes share. The store decides; the gate knows what this process holds, and what
//! the store has not been told yet.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;

use super::change::is_unnamed;
use super::local::Local;
use super::{Gate, Past};
use crate::core::arena::Index;
use crate::core::costs::{Actual, Costs};
use crate::core::grant::{Claim, Grant};
use crate::core::lease::Leases;
use crate::core::measure::charged;
use crate::core::plan::Plan;
use crate::core::request::Caller;
use crate::decision::Decision;
use crate::exchange::Settlement;
use crate::policy::Limit;
use crate::strategy::{LimitReport, Moment};

/// What this process holds of the store's limits, and owes to it.
#[derive(Debug)]
pub(crate) struct Holdings {
    ttl: NonZeroU64,
    /// Nanoseconds after which a permit is reclaimed although its holder lives.
    max_hold: Option<u64>,
    /// What the store has recorded of live permits, by fence.
    held: BTreeMap<u64, Held>,
    outbox: Outbox,
    /// What this process decides alone.
    pub(super) local: Option<Box<Local>>,
}

/// What the store has not been told yet.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// The numbers of leases that came back.
    pub(crate) returns: Vec<u64>,
    settlements: Vec<Settlement>,
    /// The sum of the charges without a grant.
    charge: Option<Settlement>,
}

/// A permit whose grant the store has recorded.
#[derive(Debug)]
struct Held {
    /// Of a lease, where the gate has it and the number that the store knows it by.
    lease: Option<(Index, u64)>,
    /// By the store's clock.
    granted_at: u64,
    /// Until when the lease may be renewed.
    renewed_until: Moment,
}

/// A grant by the store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GrantByStore {
    pub(crate) fence: u64,
    /// The number of its lease, if it is one.
    pub(crate) number: u64,
    /// By the store's clock.
    pub(crate) granted_at: u64,
    /// When the call was sent. The TTL counts from here: in the store it began later.
    pub(crate) sent_at: Moment,
}

impl Holdings {
    pub(crate) fn new(ttl: NonZeroU64, max_hold: Option<u64>) -> Self {
        Self { ttl, max_hold, held: BTreeMap::new(), outbox: Outbox::default(), local: None }
    }
}

impl Outbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.returns.is_empty() && self.settlements.is_empty() && self.charge.is_none()
    }

    /// Takes out the settlements, the earliest first, and the charge with them.
    pub(crate) fn take_settlements(&mut self, max: usize) -> Vec<Settlement> {
        let charge = self.charge.take();
        let count = self.settlements.len().min(max.saturating_sub(usize::from(charge.is_some())));
        let rest = self.settlements.split_off(count);
        let mut taken = std::mem::replace(&mut self.settlements, rest);
        taken.extend(charge);
        taken
    }

    /// The store was not told of them.
    pub(crate) fn put_back(&mut self, settlements: Vec<Settlement>) {
        let (charges, settlements): (Vec<_>, Vec<_>) = settlements.into_iter().partition(Settlement::is_charge);
        self.settlements.splice(0..0, settlements);
        charges.into_iter().for_each(|charge| self.add_charge(charge));
    }

    /// Charges are one, however many come while the store does not answer.
    fn add_charge(&mut self, charge: Settlement) {
        match &mut self.charge {
            Some(sum) => sum.actual.iter_mut().zip(&charge.actual).for_each(|(sum, units)| *sum = sum.saturating_add(*units)),
            none => *none = Some(charge),
        }
    }
}

impl Gate {
    /// A gate for limits in a store.
    pub(crate) fn shared(plan: Arc<Plan>, now: Moment, holdings: Holdings) -> Self {
        let holds_places = plan.holds_places();
        Self {
            leases: holds_places.then(|| Box::new(Leases::new(holdings.ttl))),
            max_cost: 0, // nothing is decided in place
            place: if holds_places { Claim::COUNTED_PLACE } else { Claim::NONE },
            fits_word: false,
            past: Some(Box::new(Past { holdings: Some(Box::new(holdings)), ..Past::of(plan.limits()) })),
            ..Self::new(plan, now, true)
        }
    }

    pub(super) fn holdings(&mut self) -> Option<&mut Holdings> {
        self.past.as_mut()?.holdings.as_deref_mut()
    }

    pub(super) fn is_shared(&self) -> bool {
        self.past.as_ref().is_some_and(|past| past.holdings.is_some())
    }

    /// What the store has not been told yet.
    pub(crate) fn outbox(&mut self) -> Option<&mut Outbox> {
        Some(&mut self.holdings()?.outbox)
    }

    /// Whether there is anything that the store has not been told yet.
    pub(crate) fn owes(&self) -> bool {
        let holdings = self.past.as_ref().and_then(|past| past.holdings.as_ref());
        holdings.is_some_and(|holdings| !holdings.outbox.is_empty())
    }

    /// What a request costs of each limit.
    pub(crate) fn costs_of_each(&self, costs: Costs<'_>) -> Box<[u64]> {
        (0..self.plan.limits().len()).map(|index| charged(self.measures(), index, costs)).collect()
    }

    /// Records a grant of the store.
    pub(crate) fn record(&mut self, now: Moment, costs: Costs<'_>, by_store: GrantByStore, caller: Caller) -> Grant {
        let GrantByStore { mut fence, number, granted_at, sent_at } = by_store;
        // After a reset, the store may give a fence anew that a permit from before it still has.
        while self.holdings().is_some_and(|holdings| holdings.held.contains_key(&fence)) {
            fence += 1;
        }
        self.fence += 1;
        let (states, _, measures) = self.parts();
        let mut holds = false;
        for (index, state) in states.enumerate() {
            let cost = charged(measures, index, costs);
            if state.places().is_some() && cost > 0 {
                state.charge(now, cost);
                holds = true;
            }
        }
        let mut lease = None;
        if holds && let Some(leases) = &mut self.leases {
            let index = leases.open(fence, costs.plain, now, caller);
            lease = Some((index, number));
        }
        let claim = match lease {
            Some((index, _)) => Claim::of_lease(index),
            None if costs.by_unit.is_some() => Claim::NAMED_UNITS,
            None => return Grant { fence, claim: Claim::of_rate(granted_at), at: now },
        };
        if let (Some(by_unit), Some(past)) = (costs.by_unit, &mut self.past) {
            past.named.insert(fence, Arc::clone(by_unit));
        }
        if let Some(holdings) = self.holdings() {
            let renewed_until = holdings.max_hold.map_or(Moment::NEVER, |max| now.plus(max));
            holdings.held.insert(fence, Held { lease, granted_at, renewed_until });
        }
        self.renewed(now, fence, sent_at, false);
        Grant { fence, claim, at: now }
    }

    /// A permit came back, or was reclaimed: the store is to be told.
    pub(super) fn give_back(&mut self, fence: u64) {
        let Some(holdings) = self.holdings() else { return };
        if let Some(Held { lease: Some((_, number)), .. }) = holdings.held.remove(&fence) {
            holdings.outbox.returns.push(number);
        }
    }

    /// A grant of the store that nobody takes.
    pub(crate) fn decline(&mut self, number: u64, charged: Box<[u64]>, granted_at: u64) {
        if self.place.holds_place()
            && let Some(outbox) = self.outbox()
        {
            outbox.returns.push(number);
        }
        self.decline_units(charged, granted_at);
    }

    /// Units of the store that nobody takes.
    pub(crate) fn decline_units(&mut self, charged: Box<[u64]>, granted_at: u64) {
        let actual = vec![0; charged.len()].into();
        if let Some(outbox) = self.outbox() {
            outbox.settlements.push(Settlement { granted_at, charged, actual });
        }
    }

    /// [`Gate::settle`]: the store is to be told of the difference.
    pub(super) fn settle_with_store(&mut self, now: Moment, grant: Grant, cost: u64, actual: Actual<'_>) -> Option<()> {
        if let Some(local) = self.take_granted_locally(grant) {
            return local.settle(now, grant, cost, actual);
        }
        let is_held = grant.claim.names_units() || grant.claim.lease().is_some(); // else another permit may have this fence
        let by_unit = self.unit_costs(grant.fence).filter(|_| is_held).cloned();
        let recorded = self.holdings()?.held.get(&grant.fence).filter(|_| is_held).map(|held| held.granted_at);
        let granted_at = recorded.or(grant.claim.reached());
        self.release_live(now, grant, cost)?;
        let costs = Costs::new(cost, &by_unit);
        let charged = self.costs_of_each(costs);
        let counts = self.plan.limits().iter().map(Limit::counts);
        let actual: Box<[u64]> = counts.zip(&charged).map(|(counts, charged)| actual.of(counts, *charged)).collect();
        if actual != charged {
            let settlement = Settlement { granted_at: granted_at?, charged, actual };
            self.outbox()?.settlements.push(settlement);
        }
        Some(())
    }

    /// [`Gate::charge`]: the store is to be told.
    pub(super) fn charge_in_store(&mut self, now: Moment, units: u64) {
        let plan = Arc::clone(&self.plan);
        let Some(holdings) = self.holdings() else { return };
        if let Some(local) = &mut holdings.local {
            local.gate.charge(now, units);
        }
        if units > 0 {
            let actual = plan.limits().iter().map(|limit| if is_unnamed(limit) { units } else { 0 });
            holdings.outbox.add_charge(Settlement::charge(actual.collect::<Box<[u64]>>()));
        }
    }

    /// The leases that may be renewed, by fence and number.
    pub(crate) fn renewable(&mut self, now: Moment) -> Vec<(u64, u64)> {
        let Some(holdings) = self.holdings() else { return Vec::new() };
        let live = holdings.held.iter().filter(|(_, held)| now < held.renewed_until);
        live.filter_map(|(fence, held)| Some((*fence, held.lease?.1))).collect()
    }

    pub(crate) fn has_renewable(&mut self, now: Moment) -> bool {
        self.holdings()
            .is_some_and(|holdings| holdings.held.values().any(|held| held.lease.is_some() && now < held.renewed_until))
    }

    /// A grant that the store knows nothing of. Fences of the store are microseconds since 1970, or more.
    pub(crate) fn grant_without_store(&mut self, now: Moment) -> Grant {
        self.fence += 1;
        Grant { fence: self.fence, claim: Claim::NONE, at: now }
    }

    /// A renewal that was sent at `sent_at` has reached the store: the lease lives on, or was `lost`.
    pub(crate) fn renewed(&mut self, now: Moment, fence: u64, sent_at: Moment, lost: bool) {
        let Some(holdings) = self.holdings() else { return };
        let ttl = holdings.ttl;
        let Some(Held { lease: Some((index, _)), renewed_until, .. }) = holdings.held.get(&fence) else { return };
        let (index, renewed_until) = (*index, *renewed_until);
        let Some(leases) = &mut self.leases else { return };
        if lost {
            leases.set_own_ttl(index, fence, now, NonZeroU64::MIN, true);
        } else if let Some(own) = until(sent_at, ttl, renewed_until) {
            leases.set_own_ttl(index, fence, sent_at, own, true);
        }
    }

    /// A permit is never released: its lease is not renewed any more.
    pub(super) fn stop_renewing(&mut self, fence: u64) {
        if let Some(held) = self.holdings().and_then(|holdings| holdings.held.get_mut(&fence)) {
            held.renewed_until = Moment::START;
        }
    }

    /// Whether a denied request raises a limit.
    pub(crate) fn counts_denials(&self) -> bool {
        self.plan.counts_denials()
    }

    /// The denial of a request of which nothing is known: no limit is to blame for it.
    pub(crate) fn unknown_decision(&self, now: Moment) -> Decision {
        self.refused_decision(now).paused(Moment::NEVER, now)
    }

    /// The denial of a request that is refused whatever its limits say.
    pub(crate) fn refused_decision(&self, now: Moment) -> Decision {
        let report = LimitReport { denied_until: Some(Moment::NEVER), remaining: 0, ready_at: now, reset_at: now };
        let capacity = |by: usize| self.plan.limits()[by].capacity();
        Decision::summarize(self.plan.policy(), None, std::iter::once(report), now, 0, capacity)
    }
}

/// A TTL from `sent_at` on that ends at `end` at the latest. `None`: it was renewed for the last time.
fn until(sent_at: Moment, ttl: NonZeroU64, end: Moment) -> Option<NonZeroU64> {
    NonZeroU64::new(end.since(sent_at)).map(|left| left.min(ttl))
}

#[cfg(test)]
mod tests {
    use std::panic::Location;
    use std::time::Duration;

    use super::*;
    use crate::core::costs::UnitCosts;

    /// A fixed bug: what was recorded of a rate that counts named units was kept for ever.
    #[test]
    fn of_a_permit_that_came_back_nothing_is_kept() {
        let plan = Plan::new("1000 tokens/min".parse().unwrap(), Duration::ZERO).unwrap();
        let by_unit = Some(Arc::new(UnitCosts::one_of_each(plan.policy())));
        let mut gate = Gate::shared(Arc::new(plan), Moment::START, Holdings::new(NonZeroU64::MIN, None));
        let by_store = GrantByStore { fence: 7, number: 0, granted_at: 1, sent_at: Moment::START };
        let grant = gate.record(Moment::START, Costs::new(1, &by_unit), by_store, Location::caller());
        assert_eq!(gate.holdings().unwrap().held.len(), 1);
        gate.release(grant.fence, 1, grant.claim);
        assert!(gate.holdings().unwrap().held.is_empty());
    }
}
