//! What a request has really cost, where that is known only after its work.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::core::request::{Actual, CostDetails};
use crate::permit::Permit;
use crate::strategy::{Outcome, Unit};

/// What a request has really cost, as soon as that is known: at once, or when more of its body has been sent. Clones share the cost.
/// [`LimitLayer::settle_by`](super::LimitLayer::settle_by) has an example.
///
/// The cost that was set last counts. Nothing is settled before the permit ends, and if no cost was set, the estimate stays charged.
/// See [`Permit::settle`] for what a limit refunds. [`OutboundLayer::settle_later`](super::OutboundLayer::settle_later) settles when
/// the last clone is dropped.
///
/// ```
/// use tollgate::layers::ActualCost;
///
/// let cost = ActualCost::of("input_tokens", 912);
/// let of_stream = cost.clone();
/// of_stream.set_of("output_tokens", 100);
/// of_stream.set_of("output_tokens", 350); // more have been sent
/// assert_eq!((cost.get_of("input_tokens"), cost.get_of("output_tokens"), cost.get()), (Some(912), Some(350), None));
/// ```
#[derive(Clone, Default)]
pub struct ActualCost(Arc<Mutex<KnownCost>>);

#[derive(Default)]
struct KnownCost {
    plain: Option<u64>,
    units: CostDetails,
    /// A permit that is settled when no clone is left, and the outcome that is reported with it.
    left: Option<(Permit, Option<Outcome>)>,
}

impl KnownCost {
    fn settle(&self, permit: Permit, outcome: Option<Outcome>) {
        let actual = Actual::Costs {
            plain: self.plain,
            units: &self.units,
        };
        permit.end(actual, outcome);
    }
}

/// The last clone is dropped.
impl Drop for KnownCost {
    fn drop(&mut self) {
        if let Some((permit, outcome)) = self.left.take() {
            self.settle(permit, outcome);
        }
    }
}

impl ActualCost {
    /// A cost in the units that [`LimitLayer::cost`](super::LimitLayer::cost) counts: 0 to 2^64 - 1.
    ///
    /// ```
    /// use tollgate::layers::ActualCost;
    ///
    /// assert_eq!(ActualCost::new(12).get(), Some(12));
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

    /// The cost that was [set](Self::set) last, if any was. See the example of [`new`](Self::new).
    #[must_use]
    pub fn get(&self) -> Option<u64> {
        self.0.lock().plain
    }

    /// The cost in one unit that was [set](Self::set_of) last, if any was. See the [type's example](Self).
    #[must_use]
    pub fn get_of(&self, unit: &str) -> Option<u64> {
        self.0.lock().units.get(Unit::new(unit))
    }

    /// Settles the permit by what is known now, and reports the outcome, if there is one.
    pub(super) fn settle(&self, permit: Permit, outcome: Option<Outcome>) {
        let known = self.0.lock();
        // No foreign code runs under the lock.
        let known = KnownCost {
            plain: known.plain,
            units: known.units.clone(),
            left: None,
        };
        known.settle(permit, outcome);
    }

    /// [`ActualCost::settle`] when no clone is left, by what is known then.
    pub(super) fn settle_last(self, permit: Permit, outcome: Option<Outcome>) {
        self.0.lock().left = Some((permit, outcome));
    }
}

debug_fields! { ActualCost, |actual| cost = actual.get() }
