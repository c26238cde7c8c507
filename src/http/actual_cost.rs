//! What a request has really cost, where that is known only after its work.

use std::fmt;
use std::sync::Arc;

use crate::core::request::{Actual, CostDetails};
use crate::lock::Lock;
use crate::permit::Permit;
use crate::strategy::{Outcome, Unit};

/// What a request has really cost, as soon as that is known: at once, or when more of its body has been sent. Clones share the cost.
/// [`LimitLayer::settle_by`](super::LimitLayer::settle_by) has an example.
///
/// The cost that was set last counts. Nothing is settled before the permit ends, and if no cost was set, the estimate stays charged.
/// See [`Permit::settle`] for what a limit refunds.
///
/// ```
/// use tollgate::http::ActualCost;
///
/// let cost = ActualCost::of("input_tokens", 912);
/// let of_stream = cost.clone();
/// of_stream.set_of("output_tokens", 100);
/// of_stream.set_of("output_tokens", 350); // more have been sent
/// assert_eq!(format!("{cost:?}"), "ActualCost { cost: None, units: [(input_tokens, 912), (output_tokens, 350)] }");
/// ```
#[derive(Clone, Default)]
pub struct ActualCost(Arc<Lock<KnownCost>>);

#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct KnownCost {
    plain: Option<u64>,
    units: CostDetails,
}

impl ActualCost {
    /// A cost in the units that [`LimitLayer::cost`](super::LimitLayer::cost) counts: 0 to 2^64 - 1.
    ///
    /// ```
    /// use tollgate::http::ActualCost;
    ///
    /// assert_eq!(format!("{:?}", ActualCost::new(12)), "ActualCost { cost: Some(12), units: [] }");
    /// ```
    #[must_use]
    pub fn new(cost: u64) -> Self {
        let actual = Self::default();
        actual.set(cost);
        actual
    }

    /// A cost in a unit that limits of the policy [count](crate::Counts::Unit): 0 to 2^64 - 1. See the [type's example](Self).
    #[must_use]
    pub fn of(unit: &str, cost: u64) -> Self {
        let actual = Self::default();
        actual.set_of(unit, cost);
        actual
    }

    /// Sets the cost that [`new`](Self::new) sets.
    pub fn set(&self, cost: u64) {
        self.0.lock().plain = Some(cost);
    }

    /// Sets the cost in one unit, like [`of`](Self::of). The costs in other units stay. See the [type's example](Self).
    pub fn set_of(&self, unit: &str, cost: u64) {
        self.0.lock().units.set(Unit::new(unit), cost);
    }

    /// Settles the permit by what is known, and reports the outcome, if there is one. Returns the permit if no cost was set.
    pub(super) fn settle(&self, permit: Permit, outcome: Option<Outcome>) -> Result<(), Permit> {
        let known = self.0.lock().clone();
        if known == KnownCost::default() {
            return Err(permit);
        }
        let actual = Actual::Costs {
            plain: known.plain,
            units: &known.units,
        };
        permit.end(actual, outcome);
        Ok(())
    }
}

impl fmt::Debug for ActualCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.0.lock();
        f.debug_struct("ActualCost")
            .field("cost", &known.plain)
            .field("units", &known.units.units())
            .finish()
    }
}
