//! What a request costs, in the reference: its plain cost and two units, each of which it may leave out.

use std::sync::Arc;

use crate::core::request::{Actual, UnitCosts};
use crate::strategy::{Counts, Unit};

pub(super) const UNITS: [&str; 2] = ["a", "b"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cost {
    pub(super) plain: u64,
    pub(super) units: [Option<u64>; 2],
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
        }
    }

    pub(super) fn of(self, counts: Counts) -> Option<u64> {
        match counts {
            Counts::Cost => Some(self.plain),
            Counts::Requests => Some(1),
            Counts::Unit(unit) => named(self.units, unit),
        }
    }

    pub(super) fn by_unit(self) -> Option<Arc<UnitCosts>> {
        self.units
            .iter()
            .any(Option::is_some)
            .then(|| Arc::new(unit_costs(self.units)))
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
            Self::Units(units) => settle(Actual::Units(&unit_costs(units))),
        }
    }
}

fn named(units: [Option<u64>; 2], unit: Unit) -> Option<u64> {
    units[UNITS
        .iter()
        .position(|name| *name == unit.as_str())
        .unwrap()]
}

fn unit_costs(units: [Option<u64>; 2]) -> UnitCosts {
    let mut costs = UnitCosts::default();
    for (name, units) in UNITS.iter().zip(units) {
        units
            .into_iter()
            .for_each(|units| costs.set(Unit::new(name), units));
    }
    costs
}
