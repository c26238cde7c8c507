//! What a request costs: its plain cost, and a number of each unit that it names.

use std::sync::Arc;

use crate::policy::Policy;
use crate::strategy::{Counts, Unit};

/// What a request costs. Most requests name no unit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Costs<'a> {
    pub(crate) plain: u64,
    pub(crate) by_unit: Option<&'a Arc<UnitCosts>>,
}

/// What few requests say beyond their plain cost: how many of each unit, and whether the grant is to be explained.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct UnitCosts {
    /// How many of each unit. There are a few at most.
    costs: Vec<(Unit, u64)>,
    /// Whether its permit is to come with what the limits say at the grant.
    explained: bool,
}

/// What the work of a permit has really cost, where that is known.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Actual<'a> {
    /// It did not take place.
    Nothing,
    /// The plain cost. What it took of units was as estimated.
    Cost(u64),
    /// The cost in these units. The plain cost, and that in other units, was as estimated.
    Units(&'a UnitCosts),
}

impl<'a> Costs<'a> {
    #[inline(always)]
    pub(crate) const fn plain(cost: u64) -> Self {
        Self {
            plain: cost,
            by_unit: None,
        }
    }

    #[inline(always)]
    pub(crate) fn new(plain: u64, by_unit: &'a Option<Arc<UnitCosts>>) -> Self {
        Self {
            plain,
            by_unit: by_unit.as_ref(),
        }
    }

    /// Whether the limits are to say how they are at the grant.
    pub(crate) fn explained(self) -> bool {
        self.by_unit.is_some_and(|by_unit| by_unit.explained)
    }

    /// What a limit is charged that counts this. `None`: the request does not say.
    pub(crate) fn of(self, counts: Counts) -> Option<u64> {
        match counts {
            Counts::Cost => Some(self.plain),
            Counts::Requests => Some(1),
            Counts::Unit(unit) => self.by_unit?.get(unit),
        }
    }
}

impl UnitCosts {
    pub(crate) fn one_of_each(policy: &Policy) -> Self {
        let mut one_of_each = Self::default();
        for limit in policy.limits() {
            if let Counts::Unit(unit) = limit.counts() {
                one_of_each.set(unit, 1);
            }
        }
        one_of_each
    }

    pub(crate) fn get(&self, unit: Unit) -> Option<u64> {
        self.costs
            .iter()
            .find(|(named, _)| *named == unit)
            .map(|(_, cost)| *cost)
    }

    pub(crate) fn ask_for_explanation(&mut self) {
        self.explained = true;
    }

    /// A later cost of the same unit replaces the earlier one.
    pub(crate) fn set(&mut self, unit: Unit, cost: u64) {
        match self.costs.iter_mut().find(|(named, _)| *named == unit) {
            Some((_, before)) => *before = cost,
            None => self.costs.push((unit, cost)),
        }
    }
}

impl Actual<'_> {
    /// The actual cost of what a limit counts that was charged the `estimate`.
    pub(crate) fn of(self, counts: Counts, estimate: u64) -> u64 {
        match (self, counts) {
            (Self::Nothing, _) => 0,
            (Self::Cost(actual), Counts::Cost) => actual,
            (Self::Units(units), Counts::Unit(unit)) => units.get(unit).unwrap_or(estimate),
            _ => estimate,
        }
    }
}
