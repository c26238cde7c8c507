//! What few gates have: costs that permits named by unit, what only former plans counted, and grants that cannot be refunded.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::core::gate::measure::InFlightOf;
use crate::core::request::{Costs, UnitCosts};

#[derive(Debug, Default)]
pub(super) struct RareState {
    /// The units that permits were granted, by fence, until they come back.
    unit_costs: BTreeMap<u64, Arc<UnitCosts>>,
    /// What is in flight of things that former plans counted and the present one does not.
    legacy_in_flight: Vec<InFlightOf>,
    /// For each limit, the last fence whose grant it cannot refund: it was granted before the limit was added, or its units were
    /// reset since.
    refundable_after: Box<[u64]>,
}

impl RareState {
    /// The state after a change of the plan.
    pub(super) fn after_change(
        former: Option<Box<Self>>,
        legacy_in_flight: Vec<InFlightOf>,
        refundable_after: Box<[u64]>,
    ) -> Self {
        Self {
            unit_costs: former.map(|former| former.unit_costs).unwrap_or_default(),
            legacy_in_flight,
            refundable_after,
        }
    }

    pub(super) fn record_units(&mut self, fence: u64, by_unit: &Arc<UnitCosts>) {
        self.unit_costs.insert(fence, Arc::clone(by_unit));
    }

    pub(super) fn unit_costs(&self, fence: u64) -> Option<&Arc<UnitCosts>> {
        self.unit_costs.get(&fence)
    }

    /// Removes the record of a permit that ends.
    pub(super) fn take_units(&mut self, fence: u64) -> Option<Arc<UnitCosts>> {
        self.unit_costs.remove(&fence)
    }

    /// What is in flight of things that only former plans counted.
    pub(super) fn legacy_in_flight(&self) -> impl Iterator<Item = &InFlightOf> {
        self.legacy_in_flight
            .iter()
            .filter(|legacy| legacy.units > 0)
    }

    /// Counts a grant in what only former plans counted.
    pub(super) fn charge_legacy(&mut self, costs: Costs<'_>) {
        self.legacy_in_flight
            .iter_mut()
            .for_each(|legacy| legacy.charge(costs));
    }

    pub(super) fn release_legacy(&mut self, fence: u64, costs: Costs<'_>) {
        self.legacy_in_flight
            .iter_mut()
            .for_each(|legacy| legacy.release(fence, costs));
    }

    /// Releases units of permits whose fences are unknown.
    pub(super) fn release_legacy_units(&mut self, units: u64) {
        self.legacy_in_flight
            .iter_mut()
            .for_each(|legacy| legacy.units = legacy.units.saturating_sub(units));
    }

    pub(super) fn forget_legacy(&mut self) {
        self.legacy_in_flight = Vec::new();
    }

    pub(super) fn set_refundable_after(&mut self, refundable_after: Box<[u64]>) {
        self.refundable_after = refundable_after;
    }
}

/// For each limit, the last fence whose grant it cannot refund, or 0.
pub(super) fn refundable_after(rare: &Option<Box<RareState>>) -> impl Iterator<Item = u64> {
    rare.iter()
        .flat_map(|rare| &rare.refundable_after)
        .copied()
        .chain(std::iter::repeat(0))
}
