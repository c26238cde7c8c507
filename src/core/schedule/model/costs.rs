//! What a request costs, in the reference: its plain cost and two units, each of which it may leave out; and its flow.

use std::num::NonZeroU32;
use std::sync::Arc;

use super::flows::Flow;
use crate::core::request::{Actual, CostDetails};
use crate::flow::FlowId;
use crate::strategy::{Counts, Unit};

pub(super) const UNITS: [&str; 2] = ["a", "b"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cost {
    pub(super) plain: u64,
    pub(super) units: [Option<u64>; 2],
    pub(super) flow: Option<Flow>,
}

/// What the work of a permit has really cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Settled {
    Nothing,
    Cost(u64),
    Units([Option<u64>; 2]),
}

impl Cost {
    pub(super) const fn plain(plain: u64) -> Self {
        Self {
            plain,
            units: [None; 2],
            flow: None,
        }
    }

    pub(super) fn of(self, counts: Counts) -> Option<u64> {
        match counts {
            Counts::Cost => Some(self.plain),
            Counts::Requests => Some(1),
            Counts::Unit(unit) => named(self.units, unit),
        }
    }

    pub(super) fn details(self) -> Option<Arc<CostDetails>> {
        let mut details = cost_details(self.units);
        if let Some(Flow {
            name,
            weight,
            parent,
        }) = self.flow
        {
            let weight_of = |weight: u64| NonZeroU32::new(weight as u32).unwrap();
            details.set_weight(weight_of(weight));
            match parent {
                None => details.set_flow(FlowId::of(name), None),
                Some((parent, of_parent)) => {
                    let parent = FlowId::of_parent(parent);
                    let flow = parent.with(name);
                    details.set_flow(flow, Some(parent));
                    details.set_parent_weight(weight_of(of_parent));
                }
            }
        }
        (details != CostDetails::default()).then(|| Arc::new(details))
    }
}

impl Settled {
    /// The actual cost in what a limit `counts`, after a charge of `estimate`.
    pub(super) fn of(self, counts: Counts, estimate: u64) -> u64 {
        let said = match (self, counts) {
            (Self::Nothing, _) => Some(0),
            (Self::Cost(actual), Counts::Cost) => Some(actual),
            (Self::Units(units), Counts::Unit(unit)) => named(units, unit),
            _ => None,
        };
        said.unwrap_or(estimate)
    }

    pub(super) fn with<R>(self, settle: impl FnOnce(Actual<'_>) -> R) -> R {
        match self {
            Self::Nothing => settle(Actual::Nothing),
            Self::Cost(actual) => settle(Actual::Cost(actual)),
            Self::Units(units) => settle(Actual::Costs {
                plain: None,
                units: &cost_details(units),
            }),
        }
    }
}

fn named(units: [Option<u64>; 2], unit: Unit) -> Option<u64> {
    units[UNITS
        .iter()
        .position(|name| *name == unit.as_str())
        .unwrap()]
}

fn cost_details(units: [Option<u64>; 2]) -> CostDetails {
    let mut costs = CostDetails::default();
    for (name, units) in UNITS.iter().zip(units) {
        units
            .into_iter()
            .for_each(|units| costs.set(Unit::new(name), units));
    }
    costs
}
