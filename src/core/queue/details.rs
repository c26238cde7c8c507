//! What few waiters have: costs by unit, and permits that are explained.

use std::sync::Arc;

use super::Queue;
use crate::core::costs::{Costs, UnitCosts};
use crate::core::request::Request;
use crate::core::waiter::{Waiter, WaiterId};
use crate::snapshot::LimitStatus;

impl Queue {
    /// Keeps what the limits said at a grant until [it is taken](Queue::take_explanation).
    pub(crate) fn explain(&mut self, fence: u64, limits: Vec<LimitStatus>) {
        self.rest.get_or_insert_default().explanations.insert(fence, limits);
    }

    pub(crate) fn take_explanation(&mut self, fence: u64) -> Option<Vec<LimitStatus>> {
        self.rest.as_mut()?.explanations.remove(&fence)
    }

    /// The units that a waiter names.
    #[inline(always)]
    pub(crate) fn unit_costs(&self, id: WaiterId) -> Option<Arc<UnitCosts>> {
        if id.names_units() { self.named_units(id).cloned() } else { None }
    }

    fn named_units(&self, id: WaiterId) -> Option<&Arc<UnitCosts>> {
        self.rest.as_ref()?.by_unit.get(&id)
    }

    /// The request of a waiter that names these [units](Queue::unit_costs).
    pub(crate) fn request<'a>(&self, id: WaiterId, by_unit: &'a Option<Arc<UnitCosts>>) -> Option<Request<'a>> {
        let costs = Costs::new(self.waiter(id)?.cost, by_unit);
        let caller = self.levels.get(id.level())?.line.caller(id)?;
        Some(Request { costs, priority: id.priority(), deadline: self.deadline(id), caller, blocking: id.is_blocking() })
    }

    pub(super) fn costs(&self, waiter: &Waiter) -> Costs<'_> {
        Costs { plain: waiter.cost, by_unit: self.named_units(waiter.id) }
    }
}
