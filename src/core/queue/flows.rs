//! Flows: requests that share the limits fairly with those of other flows.
//!
//! Within a priority, the next grant goes to the flow whose permits hold the fewest units; of equal ones, to the one that was granted
//! the fewest; of these, to the one whose request came first. Both numbers are divided by the weight of the flow. A flow may be within
//! a parent: the parents share first, and then the flows of the chosen one. The requests without a flow are one more flow.
//!
//! The units that were granted are counted as in start-time fair queuing (Goyal, Vin, Cheng, 1996): a flow that begins to wait
//! continues from the [virtual time](VirtualTime), which is what the flow that was served last had been granted before. So no flow
//! saves up a claim while it does not wait, and none pays for the time before another one came. A flow is forgotten when it has no
//! request, holds nothing, and the virtual time has reached it.
//!
//! The flows of one [`Queue`](super::Queue) own their waiters. Those without a flow stay in the lines of the queue.

mod shares;
mod turns;

use std::collections::btree_set::Range;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use foldhash::fast::FixedState;

use crate::core::arena::{Arena, Index, List};
use crate::core::queue::waiter::{Waiter, WaiterId};
use crate::core::request::{Caller, CostDetails, FlowPath, FlowShare};
use crate::flow::FlowId;
use crate::priority::Priority;
use crate::strategy::Moment;

use shares::{Flow, LengthEntry, OrderEntry, ROOT, VirtualTime, Within, levels_of, scaled};

pub(super) use shares::Share;
pub(super) use turns::FairTurns;

/// At most this many idle flows are remembered. One that is forgotten early is served as if it were new.
const MAX_IDLE: usize = 1_024;
/// A map of flows that had more than this many gives its memory back when it is empty.
const KEPT: usize = 64;

#[derive(Debug)]
pub(crate) struct Flows {
    waiters: Arena<FlowWaiter>,
    /// By priority, then in arrival order.
    by_arrival: BTreeMap<u64, Index>,
    /// The units that the waiters of each priority request.
    units: [u64; Priority::LEVELS],
    flows: Arena<Flow>,
    by_id: HashMap<FlowId, Index, FixedState>,
    /// The flows with a request or a holding, and the parents of flows.
    active: List,
    /// The others, the longest idle one first.
    idle: List,
    idle_len: usize,
    /// The flows that have requests, in order: see [`Share`].
    order: BTreeSet<OrderEntry>,
    /// The flows that have requests, by their number: only where the longest flow is to be found.
    lengths: Option<BTreeSet<LengthEntry>>,
    time: VirtualTime,
    /// What the requests without a flow have been granted.
    unnamed_served: u128,
    /// The units in flight, whoever holds them.
    in_flight: u64,
    /// Those that permits of flows hold.
    held: u64,
    /// What permits of flows hold, by fence.
    holdings: BTreeMap<u64, Holding>,
    /// The waiters that were chosen when a unit was free and did not fit, at most one of each priority.
    reserved: Vec<WaiterId>,
    /// Of equal requests, the latest goes first.
    newest_first: bool,
}

/// A waiter of a flow.
#[derive(Debug)]
struct FlowWaiter {
    waiter: Waiter,
    deadline: Moment,
    caller: Caller,
    details: Arc<CostDetails>,
    flow: Index,
    /// Counts all waiters.
    arrival: u64,
}

#[derive(Debug)]
struct Holding {
    flow: Index,
    units: u64,
}

impl Flows {
    pub(super) fn new(newest_first: bool, finds_longest: bool) -> Self {
        Self {
            waiters: Arena::new(),
            by_arrival: BTreeMap::new(),
            units: [0; Priority::LEVELS],
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
            newest_first,
        }
    }

    /// Whether no flow is known. Then the requests without a flow are the only ones.
    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Requests of flows that wait.
    pub(super) fn len(&self) -> usize {
        self.by_arrival.len()
    }

    /// The units that the requests with the priority of this level ask for.
    pub(super) fn units_at(&self, level: usize) -> u64 {
        self.units[level]
    }

    /// Those of one flow.
    pub(super) fn units_of(&self, path: FlowPath, level: usize) -> u64 {
        let flow = self.by_id.get(&path.flow.id);
        flow.and_then(|flow| self.flows.get(*flow))
            .map_or(0, |flow| flow.line(level).units)
    }
}

/// The waiters.
impl Flows {
    pub(super) fn push(
        &mut self,
        (waiter, arrival): (Waiter, u64),
        deadline: Moment,
        caller: Caller,
        details: &Arc<CostDetails>,
        path: FlowPath,
    ) {
        let flow = self.join(path);
        let (id, cost) = (waiter.id, waiter.cost);
        let level = id.level();
        self.change(flow, 1 << level, |flows| {
            let waiter = FlowWaiter {
                waiter,
                deadline,
                caller,
                details: Arc::clone(details),
                flow,
                arrival,
            };
            let Some(line) = flows.flows.get_mut(flow).map(|flow| flow.line_mut(level)) else {
                return;
            };
            line.units = line.units.saturating_add(cost);
            let index = flows.waiters.insert_back(&mut line.waiters, waiter);
            flows.by_arrival.insert(id.by_level(), index);
            flows.change_len(flow, |len| len.saturating_add(1));
        });
        self.units[level] = self.units[level].saturating_add(cost);
    }

    fn flow_waiter(&self, id: WaiterId) -> Option<&FlowWaiter> {
        self.waiters.get(*self.by_arrival.get(&id.by_level())?)
    }

    pub(super) fn get(&self, id: WaiterId) -> Option<&Waiter> {
        Some(&self.flow_waiter(id)?.waiter)
    }

    pub(super) fn get_mut(&mut self, id: WaiterId) -> Option<&mut Waiter> {
        let waiter = self.waiters.get_mut(*self.by_arrival.get(&id.by_level())?);
        Some(&mut waiter?.waiter)
    }

    /// A waiter with its deadline and its caller.
    pub(super) fn find(&self, id: WaiterId) -> Option<(&Waiter, Moment, Caller)> {
        let FlowWaiter {
            waiter,
            deadline,
            caller,
            ..
        } = self.flow_waiter(id)?;
        Some((waiter, *deadline, caller))
    }

    /// The details of the cost of a waiter.
    pub(super) fn details(&self, id: WaiterId) -> Option<&Arc<CostDetails>> {
        Some(&self.flow_waiter(id)?.details)
    }

    /// Whether a waiter is in this flow, or without a flow as the path is.
    pub(super) fn has_in_flow(&self, path: Option<FlowPath>, id: WaiterId) -> bool {
        match path {
            Some(path) => {
                let flow = self.by_id.get(&path.flow.id);
                flow.is_some() && flow == self.flow_of(id).as_ref()
            }
            None => !id.is_in_flow(),
        }
    }

    /// Takes a waiter out. `None`, without a change, when it has left.
    pub(super) fn remove(&mut self, id: WaiterId) -> Option<(Waiter, Moment)> {
        let index = self.by_arrival.remove(&id.by_level())?;
        let flow = self.waiters.get(index)?.flow;
        let level = id.level();
        self.unreserve(id);
        let removed = self.change(flow, 0, |flows| {
            let line = flows.flows.get_mut(flow)?.line_mut(level);
            flows.waiters.unlink(&mut line.waiters, index);
            let removed = flows.waiters.remove(index);
            line.units = match line.waiters.front() {
                Some(_) => line.units.saturating_sub(removed.waiter.cost),
                None => 0,
            };
            flows.change_len(flow, |len| len.saturating_sub(1));
            Some(removed)
        })?;
        self.units[level] = match self.first_arrival(level) {
            Some(_) => self.units[level].saturating_sub(removed.waiter.cost),
            None => 0,
        };
        Some((removed.waiter, removed.deadline))
    }

    /// The waiters with the priority of this level, in arrival order.
    fn arrivals(&self, level: usize) -> impl DoubleEndedIterator<Item = &Waiter> {
        let range = self.by_arrival.range(WaiterId::range_of_level(level));
        range.filter_map(|(_, index)| Some(&self.waiters.get(*index)?.waiter))
    }

    pub(super) fn first_arrival(&self, level: usize) -> Option<&Waiter> {
        self.arrivals(level).next()
    }

    pub(super) fn last_arrival(&self, level: usize) -> Option<&Waiter> {
        self.arrivals(level).next_back()
    }

    /// All waiters, by priority and arrival.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Waiter> {
        self.by_arrival
            .values()
            .filter_map(|index| Some(&self.waiters.get(*index)?.waiter))
    }
}

/// Turns.
impl Flows {
    /// The waiter that is next of those with the priority of this level. `in_line`: the next one without a flow. `arrivals`: how many
    /// have come.
    pub(super) fn choose(
        &self,
        level: usize,
        in_line: Option<WaiterId>,
        arrivals: u64,
    ) -> Option<WaiterId> {
        if let Some(id) = self.reserved(level) {
            return Some(id);
        }
        let Some((share, waiter)) = self.next(level) else {
            return in_line;
        };
        in_line
            .filter(|id| self.unnamed_share(id.arrival(arrivals)) < share)
            .or(Some(waiter.waiter.id))
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

    /// The flow of a waiter.
    pub(super) fn flow_of(&self, id: WaiterId) -> Option<Index> {
        Some(self.flow_waiter(id)?.flow)
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

    /// Records that this waiter is granted.
    pub(super) fn serve(&mut self, id: WaiterId) {
        let Some(&FlowWaiter {
            flow,
            waiter: Waiter { cost, .. },
            ..
        }) = self.flow_waiter(id)
        else {
            return;
        };
        self.change(flow, 0, |flows| flows.note_served(flow, cost));
    }

    /// Records that a request of this flow is granted without a wait.
    pub(super) fn serve_at_once(&mut self, path: FlowPath, cost: u64) {
        let flow = self.join(path);
        self.change(flow, 0, |flows| flows.note_served(flow, cost));
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

/// The longest flow.
impl Flows {
    /// The request that a new one of this flow replaces in a full queue: the newest one of the longest flow. `unnamed`: how many
    /// requests without a flow wait, and the one of them that would be dropped. `None` if the flow of the new request is the longest.
    pub(super) fn victim(
        &self,
        path: Option<FlowPath>,
        (unnamed_len, unnamed): (usize, Option<WaiterId>),
        arrivals: u64,
    ) -> Option<WaiterId> {
        let unnamed = unnamed.map(|id| {
            let length = scaled(unnamed_len as u64, 1);
            (length, id.arrival(arrivals), id)
        });
        let longest = self.longest_in(ROOT);
        let is_unnamed = unnamed.is_some_and(|(length, newest, _)| {
            longest.is_none_or(|longest| (length, newest) > (longest.length, longest.newest))
        });
        let length = match (unnamed, longest) {
            (Some((length, ..)), _) if is_unnamed => length,
            (_, Some(longest)) => longest.length,
            _ => return None,
        };
        let own = path.map(|path| path.parent.unwrap_or(path.flow));
        let own_length = match own {
            Some(share) => self.length_with_one_more(share),
            None => scaled(unnamed_len as u64 + 1, 1),
        };
        if own_length >= length {
            let FlowPath { flow, parent } = path?;
            let longest = self.longest_in(*self.by_id.get(&parent?.id)?)?;
            let is_longer = longest.length > self.length_with_one_more(flow);
            return is_longer.then(|| self.newest_of(longest.flow)).flatten();
        }
        if is_unnamed {
            return unnamed.map(|(.., id)| id);
        }
        let longest = longest?;
        let within = self.longest_in(longest.flow).unwrap_or(longest);
        self.newest_of(within.flow)
    }

    fn length_with_one_more(&self, share: FlowShare) -> u128 {
        let flow = self.by_id.get(&share.id);
        let flow = flow.and_then(|flow| self.flows.get(*flow));
        let len = flow.map_or(0, |flow| u64::from(flow.len));
        scaled(len + 1, share.weight.get())
    }

    /// The longest of the flows of one parent.
    fn longest_in(&self, parent: Index) -> Option<LengthEntry> {
        let bound = |flow, length, newest| LengthEntry {
            parent,
            length,
            newest,
            flow: Index::new(flow),
        };
        let all = bound(0, 0, 0)..=bound(u32::MAX, u128::MAX, u64::MAX);
        self.lengths.as_ref()?.range(all).next_back().copied()
    }

    /// The request of a flow that is dropped first.
    fn newest_of(&self, flow: Index) -> Option<WaiterId> {
        let lowest = self.flows.get(flow)?.lowest_line()?;
        Some(self.waiters.get(lowest.waiters.back()?)?.waiter.id)
    }

    fn length(&self, index: Index) -> Option<LengthEntry> {
        self.lengths.as_ref()?;
        let flow = self.flows.get(index)?;
        let newest = if flow.is_parent() {
            self.longest_in(index)?.newest
        } else {
            let lowest = flow.lowest_line()?;
            self.waiters.get(lowest.waiters.back()?)?.arrival
        };
        Some(LengthEntry {
            parent: flow.parent,
            length: flow.charge(flow.len.into()),
            newest,
            flow: index,
        })
    }

    /// Changes how many requests of a flow and its parent wait.
    fn change_len(&mut self, index: Index, change: fn(u32) -> u32) {
        if let Some(flow) = self.flows.get_mut(index) {
            flow.len = change(flow.len);
            let parent = flow.parent;
            self.change_len(parent, change);
        }
    }
}

/// What permits hold.
impl Flows {
    /// The flow, if any request of it waits.
    fn waiting_flow(&self, path: FlowPath) -> Option<Index> {
        let index = *self.by_id.get(&path.flow.id)?;
        self.flows
            .get(index)
            .filter(|flow| flow.occupied != 0)
            .map(|_| index)
    }

    /// Records that the permit of this fence holds so many units for a flow.
    pub(super) fn hold(&mut self, path: FlowPath, fence: u64, units: u64) {
        // The weight of a flow is that of its latest request, which may still wait.
        let flow = self.waiting_flow(path).unwrap_or_else(|| self.join(path));
        self.change(flow, 0, |flows| {
            flows.change_held(flow, &|held| held.saturating_add(units));
        });
        self.held = self.held.saturating_add(units);
        self.holdings.insert(fence, Holding { flow, units });
    }

    /// Records that the permit of this fence holds nothing any more. It may be of no flow.
    pub(super) fn release(&mut self, fence: u64) {
        let Some(Holding { flow, units }) = self.holdings.remove(&fence) else {
            return;
        };
        self.held = self.held.saturating_sub(units);
        self.change(flow, 0, |flows| {
            flows.change_held(flow, &|held| held.saturating_sub(units));
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
        self.waiters.get(self.next_index(flow, level)?)
    }

    /// The first of the flows of one parent.
    fn first_in(&self, parent: Index, level: usize) -> Option<&OrderEntry> {
        self.entries(parent, level).next()
    }

    /// The flows of one parent that have a request of this priority, in order.
    fn entries(&self, parent: Index, level: usize) -> Range<'_, OrderEntry> {
        let at = |level: usize| OrderEntry {
            parent,
            level: level as u8,
            share: Share {
                held: 0,
                served: 0,
                rank: 0,
            },
            flow: Index::new(0),
        };
        self.order.range(at(level)..at(level + 1))
    }

    fn entry(&self, index: Index, level: usize) -> Option<OrderEntry> {
        let flow = self.flows.get(index)?;
        let rank = if flow.is_parent() {
            self.first_in(index, level)?.share.rank
        } else {
            self.rank(self.next_of(index, level)?.arrival)
        };
        Some(OrderEntry {
            parent: flow.parent,
            level: level as u8,
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

    /// Changes a flow that is in the order, and its parent. `levels`: a bit for each priority at which it may get its first request.
    fn change<R>(&mut self, index: Index, levels: u16, change: impl FnOnce(&mut Self) -> R) -> R {
        let flow = self.flows.get(index);
        let parent = flow
            .map(|flow| flow.parent)
            .filter(|parent| *parent != ROOT);
        let of_parent = parent.map(|parent| self.take_out(parent));
        let of_flow = self.take_out(index);
        let result = change(self);
        self.put_in(index, of_flow | levels);
        if let (Some(parent), Some(before)) = (parent, of_parent) {
            self.put_in(parent, before | levels);
            self.rest_within(parent);
            self.note_idle(parent);
        }
        self.note_idle(index);
        self.forget_idle();
        result
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
        if let Some(within) = self
            .flows
            .get_mut(parent)
            .and_then(|parent| parent.within.as_mut())
        {
            within.time.serve(&mut served, charge);
        }
        if let Some(flow) = self.flows.get_mut(index) {
            flow.served = served;
        }
        self.note_served(parent, cost);
    }

    /// Changes the units that the permits of a flow hold, and those of its parent.
    fn change_held(&mut self, index: Index, change: &dyn Fn(u64) -> u64) {
        if let Some(flow) = self.flows.get_mut(index) {
            flow.held = change(flow.held);
            let parent = flow.parent;
            self.change_held(parent, change);
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
            self.change_unforgotten(index, |flow| {
                flow.weight = share.weight;
                if flow.occupied == 0 {
                    flow.served = flow.served.max(now);
                }
            });
        }
        index
    }

    /// Changes a flow alone, without forgetting any.
    fn change_unforgotten(&mut self, index: Index, change: impl FnOnce(&mut Flow)) {
        let parent = self.flows.get(index).map_or(ROOT, |flow| flow.parent);
        let of_parent = self.take_out(parent);
        let of_flow = self.take_out(index);
        if let Some(flow) = self.flows.get_mut(index) {
            change(flow);
        }
        self.put_in(index, of_flow);
        self.put_in(parent, of_parent);
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
        if self
            .flows
            .get(parent)
            .is_some_and(|parent| parent.occupied == 0 && parent.held == 0)
            && let Some(within) = self.within_mut(parent)
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
        if self.by_id.is_empty() && self.by_id.capacity() > KEPT {
            self.by_id = HashMap::default();
        }
    }
}
