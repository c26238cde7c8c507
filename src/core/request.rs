//! A request: what it costs, how it waits, and what answers it.

use std::num::NonZeroU32;
use std::panic::Location;
use std::sync::Arc;

use crate::core::arena::Index;
use crate::error::AcquireError;
use crate::flow::FlowId;
use crate::policy::Policy;
use crate::priority::Priority;
use crate::snapshot::LimitStatus;
use crate::strategy::{Counts, Moment, Outcome, Unit};

/// The line of the program that requests a permit.
pub(crate) type Caller = &'static Location<'static>;

/// The request of a waiter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) costs: Costs<'a>,
    pub(crate) priority: Priority,
    /// [`Moment::NEVER`]: none.
    pub(crate) deadline: Moment,
    pub(crate) caller: Caller,
    /// The caller blocks its own thread, and runs the timer there while it is at the front.
    pub(crate) blocking: bool,
}

/// What a request costs. Most requests name no unit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Costs<'a> {
    pub(crate) plain: u64,
    pub(crate) details: Option<&'a Arc<CostDetails>>,
}

/// The parts of a cost that few requests have: the cost in units, the flow that it counts for, and whether the grant is to be
/// explained.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CostDetails {
    /// How many of each unit. There are a few at most.
    costs: Vec<(Unit, u64)>,
    flow: Option<FlowId>,
    parent: Option<FlowId>,
    /// Of the flow, and of the parent; 1 unless set.
    weight: Option<NonZeroU32>,
    parent_weight: Option<NonZeroU32>,
    /// Whether the permit comes with the status of each limit at the grant.
    explained: bool,
}

/// A flow or a parent, and its weight among those that share with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FlowShare {
    pub(crate) id: FlowId,
    pub(crate) weight: NonZeroU32,
}

/// The flow of a request, and the parent that it is within, if it names one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FlowPath {
    pub(crate) flow: FlowShare,
    pub(crate) parent: Option<FlowShare>,
}

/// What the work of a permit has really cost, where that is known.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Actual<'a> {
    /// The work did not take place.
    Nothing,
    /// The plain cost. The cost in units was as estimated.
    Cost(u64),
    /// The cost in these units, and the plain cost, if it is known. What is not known was as estimated.
    Costs {
        plain: Option<u64>,
        units: &'a CostDetails,
    },
}

/// How the work of a permit went.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorkReport {
    pub(crate) outcome: Outcome,
    /// The time since the grant, if both were read from the same clock.
    pub(crate) rtt_nanos: Option<u64>,
}

impl WorkReport {
    pub(crate) fn new(outcome: Outcome, grant: Grant, now: Moment) -> Self {
        let rtt_nanos = grant.at.known().map(|at| now.since(at));
        Self { outcome, rtt_nanos }
    }
}

impl<'a> Costs<'a> {
    #[inline(always)]
    pub(crate) const fn plain(cost: u64) -> Self {
        Self {
            plain: cost,
            details: None,
        }
    }

    #[inline(always)]
    pub(crate) fn new(plain: u64, details: &'a Option<Arc<CostDetails>>) -> Self {
        Self {
            plain,
            details: details.as_ref(),
        }
    }

    /// Whether the limits are to say how they are at the grant.
    pub(crate) fn explained(self) -> bool {
        self.details.is_some_and(|details| details.explained)
    }

    /// Whether a word must not grant the request, because the grant is more than a place.
    #[inline(always)]
    pub(crate) fn needs_lock(self) -> bool {
        self.details
            .is_some_and(|details| details.explained || details.flow.is_some())
    }

    #[inline(always)]
    pub(crate) fn flow(self) -> Option<FlowPath> {
        self.details?.flow()
    }

    pub(crate) fn flow_id(self) -> Option<FlowId> {
        self.details?.flow_id()
    }

    /// The charge to a limit that counts this. `None`: the request does not name the unit.
    pub(crate) fn of(self, counts: Counts) -> Option<u64> {
        match counts {
            Counts::Cost => Some(self.plain),
            Counts::Requests => Some(1),
            Counts::Unit(unit) => self.details?.get(unit),
        }
    }
}

impl CostDetails {
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

    pub(crate) fn flow(&self) -> Option<FlowPath> {
        let share = |id, weight: Option<NonZeroU32>| FlowShare {
            id,
            weight: weight.unwrap_or(NonZeroU32::MIN),
        };
        Some(FlowPath {
            flow: share(self.flow?, self.weight),
            parent: self.parent.map(|id| share(id, self.parent_weight)),
        })
    }

    pub(crate) fn flow_id(&self) -> Option<FlowId> {
        self.flow
    }

    pub(crate) fn set_flow(&mut self, flow: FlowId, parent: Option<FlowId>) {
        self.flow = Some(flow);
        self.parent = parent;
    }

    pub(crate) fn set_weight(&mut self, weight: NonZeroU32) {
        self.weight = Some(weight);
    }

    pub(crate) fn set_parent_weight(&mut self, weight: NonZeroU32) {
        self.parent_weight = Some(weight);
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
    /// The actual cost to a limit that counts this and was charged the `estimate`.
    pub(crate) fn of(self, counts: Counts, estimate: u64) -> u64 {
        match (self, counts) {
            (Self::Nothing, _) => 0,
            (Self::Cost(actual), Counts::Cost) => actual,
            (Self::Costs { plain, .. }, Counts::Cost) => plain.unwrap_or(estimate),
            (Self::Costs { units, .. }, Counts::Unit(unit)) => units.get(unit).unwrap_or(estimate),
            _ => estimate,
        }
    }
}

/// The record of a grant: enough to undo it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) fence: u64,
    pub(crate) claim: Claim,
    /// When it was decided; [`Moment::NEVER`] if no clock was read because the gate needs none.
    pub(crate) at: Moment,
}

impl Grant {
    pub(crate) const NOTHING: Self = Self {
        fence: 0,
        claim: Claim::NONE,
        at: Moment::NEVER,
    };

    /// A place, granted without a clock: the fence says it all.
    pub(crate) const fn of_place(fence: u64) -> Self {
        Self {
            fence,
            claim: Claim::PLACE,
            at: Moment::NEVER,
        }
    }

    /// The grant of a request with these costs. In a flow, its place is released under the lock.
    pub(crate) fn counted_if_in_flow(mut self, costs: Costs<'_>) -> Self {
        if self.claim == Claim::PLACE && costs.flow().is_some() {
            self.claim = Claim::COUNTED_PLACE;
        }
        self
    }
}

/// What a permit holds until its release: a place, a place until it is reclaimed, or nothing, which is the permit of a rate. The permit
/// of a rate may know the value that it [reached](crate::core::word::packed_rate), for its refund.
///
/// It is one word, so that a grant is moved in registers. Reading an enum as a whole right after its parts were written stalls
/// the processor for longer than a grant takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claim(u64);

impl Claim {
    pub(crate) const NONE: Self = Self(u64::MAX);
    /// The indexes of leases lie below, the values of rates above. Its units are its plain cost.
    pub(crate) const PLACE: Self = Self(Self::COUNTED_PLACE.0 + 1);
    /// A place under a policy that counts units or requests: it is released under the lock, because its plain cost does not say how
    /// many units come back.
    pub(crate) const COUNTED_PLACE: Self = Self(Self::NAMED_UNITS.0 + 1);
    /// No place, but units that the gate has recorded, until the permit comes back.
    pub(crate) const NAMED_UNITS: Self = Self(1 << 32);

    pub(crate) fn of_lease(index: Index) -> Self {
        Self(index.number().into())
    }

    /// The claim of a rate's grant that reached this value. A value that is too large is not kept.
    #[inline(always)]
    pub(crate) fn of_rate(reached: u64) -> Self {
        Self(reached.saturating_add(Self::PLACE.0 + 1))
    }

    /// Whether the release must reach the gate: the permit holds a place, a lease, or recorded units.
    #[inline(always)]
    pub(crate) fn holds(self) -> bool {
        self.0 <= Self::PLACE.0
    }

    /// Whether it is counted as in flight.
    #[inline(always)]
    pub(crate) fn holds_place(self) -> bool {
        self.holds() && self != Self::NAMED_UNITS
    }

    /// Whether the gate may have recorded units, and no lease ends the record.
    pub(crate) fn names_units(self) -> bool {
        self == Self::COUNTED_PLACE || self == Self::NAMED_UNITS
    }

    pub(crate) fn lease(self) -> Option<Index> {
        u32::try_from(self.0).ok().map(Index::new)
    }

    /// The value that a rate's grant reached, if it is kept.
    pub(crate) fn reached(self) -> Option<u64> {
        if self == Self::NONE {
            None
        } else {
            self.0.checked_sub(Self::PLACE.0 + 1)
        }
    }
}

/// Boxed, so that an answer fits into two registers: a refusal can bear the allocation.
pub(crate) type Refused = Box<RefusedRequest>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RefusedRequest {
    pub(crate) error: AcquireError,
    /// What the limits said then, if the request asked for it.
    pub(crate) limits: Vec<LimitStatus>,
}

impl From<AcquireError> for Refused {
    fn from(error: AcquireError) -> Self {
        Self::new(RefusedRequest {
            error,
            limits: Vec::new(),
        })
    }
}
