//! The turns to come, if no other request came: grants are made on copies of the shares.

use std::collections::btree_set::Range;
use std::collections::{BTreeMap, BTreeSet};
use std::iter::Peekable;

use super::Flows;
use super::shares::{OrderEntry, ROOT, Rivals, Share, VirtualTime, scaled};
use crate::core::arena::Index;
use crate::core::queue::waiter::WaiterId;
use crate::core::request::{FlowPath, FlowShare};
use crate::priority::Priority;

/// Stand for the flow of a newcomer, and for its parent, if these are not known yet.
const NEW_FLOW: Index = Index::new(u32::MAX - 1);
const NEW_PARENT: Index = Index::new(u32::MAX - 2);

/// The turns of the flows. Its owner takes it from one priority to the next.
#[derive(Debug)]
pub(crate) struct FairTurns<'a> {
    flows: &'a Flows,
    level: usize,
    /// The flows that differ from those of the queue.
    imagined: BTreeMap<Index, Imagined>,
    /// The flows with a request at this level, by parent.
    groups: BTreeMap<Index, Group<'a>>,
    time: VirtualTime,
    unnamed_held: u64,
    unnamed_served: u128,
    newcomer: Option<Newcomer>,
}

/// A request that does not wait yet.
#[derive(Debug, Clone, Copy)]
struct Newcomer {
    flow: Index,
    level: usize,
    arrival: u64,
}

/// A flow as the grants so far would leave it.
#[derive(Debug)]
struct Imagined {
    parent: Index,
    weight: u32,
    held: u64,
    served: u128,
    /// That of its flows, if it is a parent.
    time: Option<VirtualTime>,
    /// Its next request, unless it is that of the queue.
    next: Option<NextRequest>,
    /// Where it is in its group.
    entry: Option<OrderEntry>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextRequest {
    Waiter(Index),
    Newcomer,
    None,
}

/// The flows of one parent: first those that are as in the queue, then the others.
#[derive(Debug)]
struct Group<'a> {
    unchanged: Peekable<Range<'a, OrderEntry>>,
    imagined: BTreeSet<OrderEntry>,
}

impl<'a> FairTurns<'a> {
    /// The turns from the highest level on; with those of a newcomer, which would come as `arrival`.
    pub(crate) fn new(flows: &'a Flows, newcomer: Option<(FlowPath, usize, u64)>) -> Self {
        let mut turns = Self {
            flows,
            level: Priority::LEVELS,
            imagined: BTreeMap::new(),
            groups: BTreeMap::new(),
            time: flows.time,
            unnamed_held: flows.in_flight.saturating_sub(flows.held),
            unnamed_served: flows.unnamed_served,
            newcomer: None,
        };
        if let Some((path, level, arrival)) = newcomer {
            let parent = path.parent.map_or(ROOT, |parent| {
                let index = turns.join(parent, ROOT, NEW_PARENT);
                turns.imagine(index).time.get_or_insert_default();
                index
            });
            let flow = turns.join(path.flow, parent, NEW_FLOW);
            turns.newcomer = Some(Newcomer {
                flow,
                level,
                arrival,
            });
        }
        turns
    }

    /// The requests without a flow begin to wait.
    pub(crate) fn unnamed_begins(&mut self) {
        self.unnamed_served = self.unnamed_served.max(self.time.now);
    }

    /// Continues with the requests of another priority.
    pub(crate) fn enter_level(&mut self, level: usize) {
        self.level = level;
        self.groups.clear();
        for flow in self.imagined.values_mut() {
            (flow.next, flow.entry) = (None, None);
        }
        // First the flows within a parent, because the place of the parent follows from them.
        let mut imagined: Vec<_> = self.imagined.keys().copied().collect();
        imagined.sort_by_key(|index| self.imagined[index].parent == ROOT);
        for index in imagined {
            self.place(index);
        }
    }

    /// The share of the requests without a flow, the next of which came as this arrival.
    pub(crate) fn unnamed_share(&self, arrival: u64) -> Share {
        Share {
            held: scaled(self.unnamed_held, 1),
            served: self.unnamed_served,
            rank: self.flows.rank(arrival),
        }
    }

    /// The flow that is next, and its share.
    pub(crate) fn next(&mut self) -> Option<(Share, Index)> {
        let first = self.first(ROOT)?;
        let is_parent = match self.imagined.get(&first.flow) {
            Some(flow) => flow.time.is_some(),
            None => self.flows.flows.get(first.flow)?.is_parent(),
        };
        let flow = if is_parent {
            self.first(first.flow)?.flow
        } else {
            first.flow
        };
        Some((first.share, flow))
    }

    /// The next request of a flow; `None` if that is the newcomer.
    pub(crate) fn waiter_of(&self, flow: Index) -> Option<WaiterId> {
        match self.next_of(flow) {
            NextRequest::Waiter(index) => Some(self.flows.waiters.at(index)?.waiter.id),
            NextRequest::Newcomer | NextRequest::None => None,
        }
    }

    /// Whether the newcomer belongs to this flow, and has the priority that is next.
    pub(crate) fn newcomer_is_in(&self, flow: Index) -> bool {
        self.newcomer
            .is_some_and(|newcomer| newcomer.flow == flow && newcomer.level == self.level)
    }

    /// The next request of a flow leaves; `granted`: its cost, and the units that it holds from then on.
    pub(crate) fn advance(&mut self, flow: Index, granted: Option<(u64, u64)>) {
        let next = match self.next_of(flow) {
            NextRequest::Waiter(index) => self.next_after(flow, self.neighbour(index)),
            other => other,
        };
        self.imagine(flow).next = Some(next);
        if let Some((cost, units)) = granted {
            self.serve(flow, cost);
            self.change_held(flow, &|held| held.saturating_add(units));
        }
        self.place_with_parent(flow);
    }

    /// A request without a flow is granted.
    pub(crate) fn serve_unnamed(&mut self, cost: u64, units: u64) {
        self.time.serve(&mut self.unnamed_served, scaled(cost, 1));
        self.unnamed_held = self.unnamed_held.saturating_add(units);
    }

    /// The permit of this fence, which held so many units, is released.
    pub(crate) fn release(&mut self, fence: u64, units: u64) {
        let Some(holding) = self.flows.holdings.get(&fence) else {
            self.unnamed_held = self.unnamed_held.saturating_sub(units);
            return;
        };
        let (flow, units) = (holding.flow, holding.units);
        self.change_held(flow, &|held| held.saturating_sub(units));
        self.place_with_parent(flow);
    }
}

impl<'a> FairTurns<'a> {
    /// A flow to which a newcomer belongs.
    fn join(&mut self, share: FlowShare, parent: Index, new: Index) -> Index {
        let now = match self.imagined.get(&parent) {
            Some(parent) => parent.time.unwrap_or_default().now,
            None => self.flows.time_of(parent).now,
        };
        let index = self.flows.by_id.get(&share.id).copied().unwrap_or(new);
        let waits = self
            .flows
            .flows
            .get(index)
            .is_some_and(|flow| flow.occupied != 0);
        if index == new {
            let flow = Imagined {
                parent,
                weight: share.weight.get(),
                held: 0,
                served: now,
                time: None,
                next: None,
                entry: None,
            };
            self.imagined.insert(new, flow);
        }
        let flow = self.imagine(index);
        flow.weight = share.weight.get();
        if !waits {
            flow.served = flow.served.max(now);
        }
        index
    }

    fn imagine(&mut self, index: Index) -> &mut Imagined {
        let flows = self.flows;
        let flow = || {
            let flow = flows.flows.get(index).expect("a flow of this queue");
            Imagined {
                parent: flow.parent,
                weight: flow.weight.get(),
                held: flow.held,
                served: flow.served,
                time: flow.within.as_ref().map(|within| within.time),
                next: None,
                entry: None,
            }
        };
        self.imagined.entry(index).or_insert_with(flow)
    }

    fn next_of(&self, flow: Index) -> NextRequest {
        let imagined = self.imagined.get(&flow).and_then(|flow| flow.next);
        imagined.unwrap_or_else(|| {
            let first = self.flows.next_index(flow, self.level);
            if self.flows.newest_first && self.newcomer_is_in(flow) {
                NextRequest::Newcomer
            } else {
                self.next_after(flow, first)
            }
        })
    }

    /// The waiter, or else what follows the last waiter of a flow.
    fn next_after(&self, flow: Index, waiter: Option<Index>) -> NextRequest {
        match waiter {
            Some(index) => NextRequest::Waiter(index),
            None if self.newcomer_is_in(flow) && !self.flows.newest_first => NextRequest::Newcomer,
            None => NextRequest::None,
        }
    }

    /// The waiter of a flow that is next after this one.
    fn neighbour(&self, waiter: Index) -> Option<Index> {
        if self.flows.newest_first {
            self.flows.waiters.before(waiter)
        } else {
            self.flows.waiters.after(waiter)
        }
    }

    fn group(&mut self, parent: Index) -> &mut Group<'a> {
        let (flows, level) = (self.flows, self.level);
        self.groups.entry(parent).or_insert_with(|| Group {
            unchanged: flows.entries(parent, level).peekable(),
            imagined: BTreeSet::new(),
        })
    }

    fn first(&mut self, parent: Index) -> Option<OrderEntry> {
        self.group(parent);
        let group = self.groups.get_mut(&parent)?;
        let is_imagined = |entry: &&OrderEntry| self.imagined.contains_key(&entry.flow);
        while group.unchanged.next_if(is_imagined).is_some() {}
        let unchanged = group.unchanged.peek().copied();
        let first = unchanged.into_iter().chain(group.imagined.first()).min();
        first.copied()
    }

    fn serve(&mut self, index: Index, cost: u64) {
        let flow = self.imagine(index);
        let (parent, charge, mut served) = (flow.parent, scaled(cost, flow.weight), flow.served);
        if parent == ROOT {
            self.time.serve(&mut served, charge);
        } else {
            let time = self.imagine(parent).time.get_or_insert_default();
            time.serve(&mut served, charge);
            self.serve(parent, cost);
        }
        self.imagine(index).served = served;
    }

    fn change_held(&mut self, index: Index, change: &dyn Fn(u64) -> u64) {
        if index != ROOT {
            let flow = self.imagine(index);
            flow.held = change(flow.held);
            let parent = flow.parent;
            self.change_held(parent, change);
        }
    }

    fn place_with_parent(&mut self, index: Index) {
        self.place(index);
        let parent = self.imagine(index).parent;
        if parent != ROOT {
            self.imagine(parent);
            self.place(parent);
        }
    }

    /// Puts a flow where it belongs in its group, if it has a request.
    fn place(&mut self, index: Index) {
        let is_parent = self.imagine(index).time.is_some();
        let rank = if is_parent {
            self.first(index).map(|first| first.share.rank)
        } else {
            let arrival = match self.next_of(index) {
                NextRequest::Waiter(waiter) => {
                    self.flows.waiters.at(waiter).map(|waiter| waiter.arrival)
                }
                NextRequest::Newcomer => self.newcomer.map(|newcomer| newcomer.arrival),
                NextRequest::None => None,
            };
            arrival.map(|arrival| self.flows.rank(arrival))
        };
        let level = self.level;
        let flow = self.imagine(index);
        let (parent, former) = (flow.parent, flow.entry.take());
        let entry = rank.map(|rank| OrderEntry {
            rivals: Rivals::new(parent, level),
            share: Share {
                held: scaled(flow.held, flow.weight),
                served: flow.served,
                rank,
            },
            flow: index,
        });
        flow.entry = entry;
        let group = self.group(parent);
        if let Some(former) = former {
            group.imagined.remove(&former);
        }
        group.imagined.extend(entry);
    }
}
