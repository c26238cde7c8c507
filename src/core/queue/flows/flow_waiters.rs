//! The requests of flows that wait, in the lines of their flows and by arrival.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::shares::Line;
use crate::core::arena::{Arena, Index};
use crate::core::queue::waiter::{Waiter, WaiterId};
use crate::core::request::{Caller, CostDetails};
use crate::priority::Priority;
use crate::strategy::Moment;

/// A waiter of a flow.
#[derive(Debug)]
pub(crate) struct FlowWaiter {
    pub(crate) waiter: Waiter,
    pub(crate) deadline: Moment,
    pub(crate) caller: Caller,
    pub(crate) details: Arc<CostDetails>,
    pub(super) flow: Index,
    /// Counts all waiters.
    pub(super) arrival: u64,
}

/// The waiters of all flows. Each flow has lines of them.
#[derive(Debug)]
pub(crate) struct FlowWaiters {
    waiters: Arena<FlowWaiter>,
    /// By priority, then in arrival order.
    by_arrival: BTreeMap<u64, Index>,
    /// By priority.
    sums: [LevelSum; Priority::LEVELS],
}

#[derive(Debug, Default, Clone, Copy)]
struct LevelSum {
    waiters: u32,
    /// The units that they request.
    units: u64,
}

impl FlowWaiters {
    pub(super) fn new() -> Self {
        Self {
            waiters: Arena::new(),
            by_arrival: BTreeMap::new(),
            sums: [LevelSum::default(); Priority::LEVELS],
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_arrival.len()
    }

    /// The units that the waiters with the priority of this level request. The sum of huge costs saturates, so after some leave it may
    /// be too low.
    pub(crate) fn units_at(&self, level: usize) -> u64 {
        self.sums[level].units
    }

    /// Whether no waiter has the priority of this level.
    pub(crate) fn is_empty_at(&self, level: usize) -> bool {
        self.sums[level].waiters == 0
    }

    /// Adds a waiter as the last one of the line of its flow and priority.
    pub(super) fn push(&mut self, line: &mut Line, waiter: FlowWaiter) {
        let Waiter { id, cost, .. } = waiter.waiter;
        line.units = line.units.saturating_add(cost);
        let sum = &mut self.sums[id.level()];
        sum.waiters += 1;
        sum.units = sum.units.saturating_add(cost);
        let index = self.waiters.insert_back(&mut line.waiters, waiter);
        self.by_arrival.insert(id.by_level(), index);
    }

    /// Takes a waiter out of its line.
    pub(super) fn remove(&mut self, line: &mut Line, id: WaiterId) -> Option<FlowWaiter> {
        let index = self.by_arrival.remove(&id.by_level())?;
        self.waiters.unlink(&mut line.waiters, index);
        let removed = self.waiters.remove(index);
        let less = |units: u64, is_empty: bool| {
            if is_empty {
                0
            } else {
                units.saturating_sub(removed.waiter.cost)
            }
        };
        line.units = less(line.units, line.waiters.front().is_none());
        let sum = &mut self.sums[id.level()];
        sum.waiters -= 1;
        sum.units = less(sum.units, sum.waiters == 0);
        Some(removed)
    }

    /// `None` if it has left.
    pub(crate) fn find(&self, id: WaiterId) -> Option<&FlowWaiter> {
        self.at(*self.by_arrival.get(&id.by_level())?)
    }

    pub(crate) fn find_mut(&mut self, id: WaiterId) -> Option<&mut FlowWaiter> {
        self.waiters.get_mut(*self.by_arrival.get(&id.by_level())?)
    }

    /// The flow of a waiter.
    pub(crate) fn flow_of(&self, id: WaiterId) -> Option<Index> {
        Some(self.find(id)?.flow)
    }

    /// The waiter at this place of a line.
    pub(super) fn at(&self, index: Index) -> Option<&FlowWaiter> {
        self.waiters.get(index)
    }

    /// The place before this one in its line.
    pub(super) fn before(&self, index: Index) -> Option<Index> {
        self.waiters.before(index)
    }

    /// The place after this one in its line.
    pub(super) fn after(&self, index: Index) -> Option<Index> {
        self.waiters.after(index)
    }

    /// The waiters with the priority of this level, in arrival order.
    fn arrivals(&self, level: usize) -> impl DoubleEndedIterator<Item = &Waiter> {
        let range = self.by_arrival.range(WaiterId::range_of_level(level));
        range.filter_map(|(_, index)| Some(&self.at(*index)?.waiter))
    }

    /// The first one with the priority of this level to have come.
    pub(crate) fn first(&self, level: usize) -> Option<&Waiter> {
        self.arrivals(level).next()
    }

    /// The last one.
    pub(crate) fn last(&self, level: usize) -> Option<&Waiter> {
        self.arrivals(level).next_back()
    }

    /// All waiters, by priority and arrival.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Waiter> {
        let indexes = self.by_arrival.values();
        indexes.filter_map(|index| Some(&self.at(*index)?.waiter))
    }
}
