//! Flows: requests that share the limits fairly with those of other flows.
//!
//! Within a priority, the next grant goes to the flow whose permits hold the fewest units; of equal ones, to the one that was granted
//! the fewest; of these, to the one whose request came first. Both numbers are divided by the weight of the flow. A flow may be within
//! a parent: the parents share first, and then the flows of the chosen one. The requests without a flow are one more flow.
//!
//! The units that were granted are counted as in start-time fair queuing (Goyal, Vin, Cheng, 1996): a flow that begins to wait
//! continues from the [virtual time](VirtualTime), which is what the flow that was served last had been granted before that grant. So
//! no flow saves up a claim while it does not wait, and none pays for more than its latest grant of the time before another one came.
//! A flow is forgotten when it has no request, holds nothing, and the virtual time has reached it. When no request waits and nothing
//! is in flight, the virtual time has reached all flows.
//!
//! The flows of one [`Queue`](super::Queue) own their waiters. Those without a flow stay in the lines of the queue.

mod flow_waiters;
mod longest;
mod shares;
mod turns;

use std::cmp::Reverse;
use std::collections::btree_set::Range;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};
use std::iter::successors;
use std::sync::Arc;

use foldhash::fast::FixedState;

use crate::core::arena::{Arena, Index, List};
use crate::core::queue::waiter::{Waiter, WaiterId};
use crate::core::request::{Caller, CostDetails, FlowPath, FlowShare};
use crate::flow::FlowId;
use crate::snapshot::FlowStatus;
use crate::strategy::Moment;

use flow_waiters::{FlowWaiter, FlowWaiters};
use shares::{
    Flow, LengthEntry, OrderEntry, ROOT, Rivals, Share, VirtualTime, Within, levels_of, scaled,
};

pub(super) use turns::FairTurns;

/// At most this many idle flows are remembered. One that is forgotten early is served as if it were new.
const MAX_IDLE: usize = 1_024;

#[derive(Debug)]
pub(crate) struct Flows {
    waiters: FlowWaiters,
    flows: Arena<Flow>,
    by_id: HashMap<FlowId, Index, FixedState>,
    /// The flows with a request or a holding, and the parents of flows.
    active: List,
    /// The others, the longest idle one first.
    idle: List,
    idle_len: usize,
    /// The flows that have requests, in order: see [`Share`].
    order: BTreeSet<OrderEntry>,
    /// The flows that have requests, by how many: only where the longest flow is to be found.
    lengths: Option<BTreeSet<LengthEntry>>,
    time: VirtualTime,
    /// What the requests without a flow have been granted.
    unnamed_served: u128,
    /// All units in flight.
    in_flight: u64,
    /// Those that permits of flows hold.
    held: u64,
    /// What permits of flows hold, by fence.
    holdings: BTreeMap<u64, Holding>,
    /// The waiters that were chosen when a unit was free and did not fit, at most one of each priority.
    reserved: Vec<WaiterId>,
    /// The waiter that was the front when the queue was served last.
    front: Option<WaiterId>,
    /// Of equal requests, the latest goes first.
    newest_first: bool,
}

#[derive(Debug)]
struct Holding {
    flow: Index,
    units: u64,
}

impl Flows {
    pub(super) fn new(newest_first: bool, finds_longest: bool) -> Self {
        Self {
            waiters: FlowWaiters::new(),
            flows: Arena::new(),
            by_id: HashMap::default(),
            active: List::EMPTY,
            idle: List::EMPTY,
            idle_len: 0,
            order: BTreeSet::new(),
            lengths: finds_longest.then(BTreeSet::new),
            time: VirtualTime::default(),
            unnamed_served: 0,
            in_flight: 0,
            held: 0,
            holdings: BTreeMap::new(),
            reserved: Vec::new(),
            front: None,
            newest_first,
        }
    }

    /// Whether no flow is known. Then the requests without a flow are the only ones.
    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// The flows that have requests or whose permits hold units, at most `max`: those with the most requests, and of equal ones those
    /// that hold the most.
    pub(super) fn statuses(&self, max: usize) -> Vec<FlowStatus> {
        let mut longest = BinaryHeap::new();
        let after = |index: &Index| self.flows.after(*index);
        for index in successors(self.active.front(), after) {
            if let Some(flow) = self.flows.get(index)
                && !flow.is_parent()
            {
                longest.push(Reverse((flow.len, flow.held, index)));
                if longest.len() > max {
                    longest.pop();
                }
            }
        }
        let statuses = longest.into_sorted_vec().into_iter();
        statuses
            .filter_map(|Reverse((.., index))| {
                let flow = self.flows.get(index)?;
                Some(FlowStatus {
                    id: flow.id,
                    parent: self.flows.get(flow.parent).map(|parent| parent.id),
                    weight: flow.weight.get().into(),
                    queued: flow.len.into(),
                    in_flight: flow.held,
                })
            })
            .collect()
    }

    /// The units that the requests of one flow with the priority of this level ask for.
    pub(super) fn units_of(&self, path: FlowPath, level: usize) -> u64 {
        let flow = self.by_id.get(&path.flow.id);
        flow.and_then(|flow| self.flows.get(*flow))
            .map_or(0, |flow| flow.line(level).units)
    }
}

/// The waiters.
impl Flows {
    pub(super) fn waiters(&self) -> &FlowWaiters {
        &self.waiters
    }

    pub(super) fn waiters_mut(&mut self) -> &mut FlowWaiters {
        &mut self.waiters
    }

    pub(super) fn push(
        &mut self,
        (waiter, arrival): (Waiter, u64),
        deadline: Moment,
        caller: Caller,
        details: &Arc<CostDetails>,
        path: FlowPath,
    ) {
        let flow = self.join(path);
        let level = waiter.id.level();
        let waiter = FlowWaiter {
            waiter,
            deadline,
            caller,
            details: Arc::clone(details),
            flow,
            arrival,
        };
        let push = |flows: &mut Self| {
            if let Some(of_flow) = flows.flows.get_mut(flow) {
                flows.waiters.push(of_flow.line_mut(level), waiter);
            }
            flows.change_with_parent(flow, &|flow| flow.len += 1);
        };
        let of_flow = self.flows.get(flow);
        let is_behind_another = of_flow.is_some_and(|flow| flow.occupied >> level & 1 == 1);
        if is_behind_another && !self.newest_first && self.lengths.is_none() {
            push(self); // the next request of the flow stays the same
        } else {
            self.change(flow, 1 << level, push);
        }
    }

    /// Whether a waiter is in this flow, or without a flow as the path is.
    pub(super) fn has_in_flow(&self, path: Option<FlowPath>, id: WaiterId) -> bool {
        match path {
            Some(path) => {
                let flow = self.by_id.get(&path.flow.id);
                flow.is_some() && flow == self.waiters.flow_of(id).as_ref()
            }
            None => !id.is_in_flow(),
        }
    }

    /// Takes a waiter out: `granted` the permit of this fence, which holds so many units, or without a grant. `None`, without a
    /// change, when it has left.
    pub(super) fn remove(
        &mut self,
        id: WaiterId,
        granted: Option<(u64, u64)>,
    ) -> Option<(Waiter, Moment)> {
        let flow = self.waiters.flow_of(id)?;
        let removed = self.change(flow, 0, |flows| {
            let line = flows.flows.get_mut(flow)?.line_mut(id.level());
            let removed = flows.waiters.remove(line, id)?;
            flows.change_with_parent(flow, &|flow| flow.len -= 1);
            if let Some((fence, units)) = granted {
                flows.note_served(flow, removed.waiter.cost);
                flows.add_holding(fence, Holding { flow, units });
            }
            Some(removed)
        })?;
        Some((removed.waiter, removed.deadline))
    }
}

/// Turns.
impl Flows {
    /// The waiter that is next of those with the priority of this level. `None`: the next one without a flow, which is `in_line`, or
    /// none at all. `arrivals`: how many have come.
    pub(super) fn choose(
        &self,
        level: usize,
        in_line: Option<WaiterId>,
        arrivals: u64,
    ) -> Option<&FlowWaiter> {
        if let Some(id) = self.reserved(level) {
            return self.waiters.find(id).filter(|_| id.is_in_flow());
        }
        let (share, waiter) = self.next(level)?;
        let unnamed = in_line.map(|id| self.unnamed_share(id.arrival(arrivals)));
        unnamed
            .is_none_or(|unnamed| share < unnamed)
            .then_some(waiter)
    }

    /// The waiter of a flow that is next of those with the priority of this level, and the share that it is chosen by.
    fn next(&self, level: usize) -> Option<(Share, &FlowWaiter)> {
        let first = self.first_in(ROOT, level)?;
        let flow = match self.flows.get(first.flow)?.is_parent() {
            true => self.first_in(first.flow, level)?.flow,
            false => first.flow,
        };
        Some((first.share, self.next_of(flow, level)?))
    }

    /// The waiter that was chosen before and is not passed.
    fn reserved(&self, level: usize) -> Option<WaiterId> {
        let mut reserved = self.reserved.iter();
        reserved.find(|id| id.level() == level).copied()
    }

    pub(super) fn all_reserved(&self) -> &[WaiterId] {
        &self.reserved
    }

    /// Decides that no other waiter of its priority passes this one. Where the latest is served first, nothing is decided.
    pub(super) fn reserve(&mut self, id: WaiterId) {
        if !self.newest_first && self.reserved(id.level()).is_none() {
            self.reserved.push(id);
        }
    }

    /// A waiter has left.
    pub(super) fn unreserve(&mut self, id: WaiterId) {
        self.reserved.retain(|reserved| *reserved != id);
    }

    /// The share of the requests without a flow, the next of which came as this arrival.
    fn unnamed_share(&self, arrival: u64) -> Share {
        Share {
            held: scaled(self.in_flight.saturating_sub(self.held), 1),
            served: self.unnamed_served,
            rank: self.rank(arrival),
        }
    }

    /// The requests without a flow begin to wait.
    pub(super) fn unnamed_begins(&mut self) {
        self.unnamed_served = self.unnamed_served.max(self.time.now);
    }

    /// Records that a request without a flow is granted.
    pub(super) fn serve_unnamed(&mut self, cost: u64) {
        self.time.serve(&mut self.unnamed_served, scaled(cost, 1));
        self.forget_idle();
    }

    /// Records that a request of this flow is granted without a wait.
    pub(super) fn serve_at_once(&mut self, path: FlowPath, cost: u64) {
        let flow = self.join(path);
        self.change(flow, 0, |flows| flows.note_served(flow, cost));
    }

    /// Records which waiter is the front. Returns whether it was another one before.
    pub(super) fn note_front(&mut self, id: WaiterId) -> bool {
        self.front.replace(id) != Some(id)
    }

    /// Records how many units are in flight.
    pub(super) fn set_in_flight(&mut self, units: u64) {
        self.in_flight = units;
    }

    /// Records that no request waits and nothing is in flight, of a flow or without one.
    pub(super) fn rest(&mut self) {
        self.time.rest();
        self.forget_idle();
    }
}

/// What permits hold.
impl Flows {
    /// Records that the permit of this fence holds so many units for a flow.
    pub(super) fn hold(&mut self, path: FlowPath, fence: u64, units: u64) {
        let flow = self.join(path);
        self.change(flow, 0, |flows| {
            flows.add_holding(fence, Holding { flow, units });
        });
    }

    fn add_holding(&mut self, fence: u64, holding: Holding) {
        let Holding { flow, units } = holding;
        if units > 0 {
            self.change_with_parent(flow, &|flow| flow.held = flow.held.saturating_add(units));
            self.held = self.held.saturating_add(units);
            self.holdings.insert(fence, holding);
        }
    }

    /// Records that the permit of this fence holds nothing any more. It may be of no flow.
    pub(super) fn release(&mut self, fence: u64) {
        let Some(Holding { flow, units }) = self.holdings.remove(&fence) else {
            return;
        };
        self.held = self.held.saturating_sub(units);
        self.change(flow, 0, |flows| {
            flows.change_with_parent(flow, &|flow| flow.held = flow.held.saturating_sub(units));
        });
    }
}

/// The order.
impl Flows {
    /// A smaller one goes first, of equal shares.
    fn rank(&self, arrival: u64) -> u64 {
        if self.newest_first { !arrival } else { arrival }
    }

    fn next_index(&self, flow: Index, level: usize) -> Option<Index> {
        let line = &self.flows.get(flow)?.line(level).waiters;
        if self.newest_first {
            line.back()
        } else {
            line.front()
        }
    }

    /// The next waiter of a flow.
    fn next_of(&self, flow: Index, level: usize) -> Option<&FlowWaiter> {
        self.waiters.at(self.next_index(flow, level)?)
    }

    /// The first of the flows of one parent.
    fn first_in(&self, parent: Index, level: usize) -> Option<&OrderEntry> {
        let rivals = Rivals::new(parent, level);
        // A search takes several times as long.
        let first = self.order.first()?;
        if first.rivals >= rivals {
            return Some(first).filter(|first| first.rivals == rivals);
        }
        self.entries(parent, level).next()
    }

    /// The flows of one parent that have a request of this priority, in order.
    fn entries(&self, parent: Index, level: usize) -> Range<'_, OrderEntry> {
        let rivals = Rivals::new(parent, level);
        let first_of = |rivals: Rivals| OrderEntry {
            rivals,
            share: Share {
                held: 0,
                served: 0,
                rank: 0,
            },
            flow: Index::new(0),
        };
        self.order.range(first_of(rivals)..first_of(rivals.next()))
    }

    fn entry(&self, index: Index, level: usize) -> Option<OrderEntry> {
        let flow = self.flows.get(index)?;
        let rank = if flow.is_parent() {
            self.first_in(index, level)?.share.rank
        } else {
            self.rank(self.next_of(index, level)?.arrival)
        };
        Some(OrderEntry {
            rivals: Rivals::new(flow.parent, level),
            share: Share {
                held: flow.charge(flow.held),
                served: flow.served,
                rank,
            },
            flow: index,
        })
    }

    fn take_out(&mut self, index: Index) -> u16 {
        let occupied = self.flows.get(index).map_or(0, |flow| flow.occupied);
        for level in levels_of(occupied) {
            if let Some(entry) = self.entry(index, level) {
                self.order.remove(&entry);
            }
        }
        if let Some(length) = self.length(index)
            && let Some(lengths) = &mut self.lengths
        {
            lengths.remove(&length);
        }
        occupied
    }

    /// Puts a flow into the order at those of these levels at which it has a request.
    fn put_in(&mut self, index: Index, levels: u16) {
        let mut occupied = 0;
        for level in levels_of(levels) {
            if let Some(entry) = self.entry(index, level) {
                self.order.insert(entry);
                occupied |= 1 << level;
            }
        }
        if let Some(flow) = self.flows.get_mut(index) {
            flow.occupied = occupied;
        }
        if let Some(length) = self.length(index)
            && let Some(lengths) = &mut self.lengths
        {
            lengths.insert(length);
        }
    }

    /// Changes a flow and its parent, and puts both where they belong. `levels`: a bit for each priority at which the flow may get its
    /// first request.
    fn reorder<R>(&mut self, index: Index, levels: u16, change: impl FnOnce(&mut Self) -> R) -> R {
        let parent = self.parent_of(index);
        if parent == ROOT {
            let before = self.take_out(index);
            let result = change(self);
            self.put_in(index, before | levels);
            return result;
        }
        let of_parent = self.take_out(parent);
        let of_flow = self.take_out(index);
        let result = change(self);
        self.put_in(index, of_flow | levels);
        self.put_in(parent, of_parent | levels);
        result
    }

    /// [`Flows::reorder`], and forgets the flows that need not be known any more.
    fn change<R>(&mut self, index: Index, levels: u16, change: impl FnOnce(&mut Self) -> R) -> R {
        let result = self.reorder(index, levels, change);
        let parent = self.parent_of(index);
        self.rest_within(parent);
        self.note_idle(parent);
        self.note_idle(index);
        self.forget_idle();
        result
    }

    fn parent_of(&self, index: Index) -> Index {
        self.flows.get(index).map_or(ROOT, |flow| flow.parent)
    }

    fn note_served(&mut self, index: Index, cost: u64) {
        let Some(flow) = self.flows.get_mut(index) else {
            return;
        };
        let (charge, parent) = (flow.charge(cost), flow.parent);
        if parent == ROOT {
            self.time.serve(&mut flow.served, charge);
            return;
        }
        let mut served = flow.served;
        if let Some(within) = self.within_mut(parent) {
            within.time.serve(&mut served, charge);
        }
        if let Some(flow) = self.flows.get_mut(index) {
            flow.served = served;
        }
        self.note_served(parent, cost);
    }

    /// Makes the same change to a flow and to its parent.
    fn change_with_parent(&mut self, index: Index, change: &dyn Fn(&mut Flow)) {
        if let Some(flow) = self.flows.get_mut(index) {
            change(flow);
            let parent = flow.parent;
            self.change_with_parent(parent, change);
        }
    }
}

/// Flows that come and go.
impl Flows {
    /// The flow of a request that begins to wait, or is granted.
    fn join(&mut self, path: FlowPath) -> Index {
        let parent = path.parent.map_or(ROOT, |parent| {
            let index = self.known(parent, ROOT);
            if let Some(parent) = self.flows.get_mut(index) {
                parent.within.get_or_insert_default();
            }
            index
        });
        self.known(path.flow, parent)
    }

    fn known(&mut self, share: FlowShare, parent: Index) -> Index {
        let Some(&index) = self.by_id.get(&share.id) else {
            let now = self.time_of(parent).now;
            let flow = Flow::new(share, parent, now);
            let index = self.flows.insert_back(&mut self.active, flow);
            self.by_id.insert(share.id, index);
            if let Some(within) = self.within_mut(parent) {
                within.flows += 1;
            }
            self.note_idle(parent);
            return index;
        };
        let now = self.time_of(parent).now;
        let is_changed = self.flows.get(index).is_some_and(|flow| {
            flow.weight != share.weight || flow.occupied == 0 && flow.served < now
        });
        if is_changed {
            self.reorder(index, 0, |flows| {
                if let Some(flow) = flows.flows.get_mut(index) {
                    flow.weight = share.weight;
                    if flow.occupied == 0 {
                        flow.served = flow.served.max(now);
                    }
                }
            });
        }
        index
    }

    fn time_of(&self, parent: Index) -> VirtualTime {
        let parent = self.flows.get(parent);
        let within = parent.and_then(|parent| parent.within.as_ref());
        within.map_or(self.time, |within| within.time)
    }

    fn within_mut(&mut self, parent: Index) -> Option<&mut Within> {
        self.flows.get_mut(parent)?.within.as_deref_mut()
    }

    /// If no flow of a parent has a request or holds anything, none has a claim on the others.
    fn rest_within(&mut self, parent: Index) {
        if let Some(parent) = self.flows.get_mut(parent)
            && (parent.occupied, parent.held) == (0, 0)
            && let Some(within) = &mut parent.within
        {
            within.time.rest();
        }
    }

    /// Keeps a flow among the idle ones, or out of them.
    fn note_idle(&mut self, index: Index) {
        let Some(flow) = self.flows.get_mut(index) else {
            return;
        };
        let is_idle = flow.may_be_idle();
        if std::mem::replace(&mut flow.is_idle, is_idle) == is_idle {
            return;
        }
        let (from, to) = match is_idle {
            true => (&mut self.active, &mut self.idle),
            false => (&mut self.idle, &mut self.active),
        };
        self.flows.unlink(from, index);
        self.flows.push_back(to, index);
        self.idle_len = if is_idle {
            self.idle_len + 1
        } else {
            self.idle_len - 1
        };
    }

    /// Forgets the idle flows that would now be served like new ones, and the longest idle ones of very many.
    fn forget_idle(&mut self) {
        while let Some(index) = self.idle.front()
            && let Some(flow) = self.flows.get(index)
        {
            let (parent, id) = (flow.parent, flow.id);
            if flow.served > self.time_of(parent).now && self.idle_len <= MAX_IDLE {
                return;
            }
            self.flows.unlink(&mut self.idle, index);
            self.flows.remove(index);
            self.idle_len -= 1;
            self.by_id.remove(&id);
            if let Some(within) = self.within_mut(parent) {
                within.flows -= 1;
            }
            self.note_idle(parent);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    fn share(id: FlowId) -> FlowShare {
        FlowShare {
            id,
            weight: NonZeroU32::MIN,
        }
    }

    fn path(flow: usize) -> FlowPath {
        FlowPath {
            flow: share(FlowId::of(flow)),
            parent: None,
        }
    }

    fn path_within(parent: &str, flow: usize) -> FlowPath {
        let parent = FlowId::of_parent(parent);
        FlowPath {
            flow: share(parent.with(flow)),
            parent: Some(share(parent)),
        }
    }

    fn served(flows: &Flows, path: FlowPath) -> Option<u128> {
        let index = flows.by_id.get(&path.flow.id)?;
        flows.flows.get(*index).map(|flow| flow.served >> 32)
    }

    #[test]
    fn of_many_idle_flows_the_latest_are_remembered() {
        let mut flows = Flows::new(false, false);
        (0..=MAX_IDLE).for_each(|flow| flows.serve_at_once(path(flow), 1));
        assert_eq!(flows.by_id.len(), MAX_IDLE);
        assert_eq!(
            [0, 1, MAX_IDLE].map(|flow| served(&flows, path(flow))),
            [None, Some(1), Some(1)]
        );
    }

    #[test]
    fn at_rest_all_flows_are_forgotten() {
        let mut flows = Flows::new(false, false);
        flows.serve_at_once(path(1), 1);
        flows.serve_at_once(path(2), 2);
        for flow in 0..2 {
            flows.serve_at_once(path_within("a", flow), 3);
        }
        assert!(!flows.is_empty());
        flows.rest();
        assert!(flows.is_empty());
    }

    #[test]
    fn permits_that_hold_nothing_are_not_recorded() {
        let mut flows = Flows::new(false, false);
        flows.serve_at_once(path(1), 1);
        flows.hold(path(1), 1, 0);
        assert!(flows.holdings.is_empty());
        flows.hold(path(1), 2, 1);
        assert_eq!(flows.holdings.len(), 1);
    }

    /// It holds a permit, so it is known for all that time.
    #[test]
    fn a_flow_that_did_not_wait_has_saved_up_no_claim() {
        let mut flows = Flows::new(false, false);
        flows.hold(path(1), 1, 1);
        (0..5).for_each(|_| flows.serve_at_once(path(2), 1));
        assert_eq!(served(&flows, path(1)), Some(0));
        flows.serve_at_once(path(1), 1);
        assert_eq!(
            [1, 2].map(|flow| served(&flows, path(flow))),
            [Some(5), Some(5)]
        );
        flows.serve_at_once(path(1), 1);
        assert_eq!(served(&flows, path(1)), Some(6));
    }

    #[test]
    fn units_are_divided_by_weights_however_many_they_are() {
        for units in [0, 1, 7, u64::from(u32::MAX), 1 << 32, u64::MAX] {
            for weight in [1, 2, 3, u32::MAX] {
                let exact = (u128::from(units) << 32) / u128::from(weight);
                assert_eq!(scaled(units, weight), exact, "{units} / {weight}");
            }
        }
    }
}
