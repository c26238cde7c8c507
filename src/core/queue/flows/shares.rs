//! What each flow has, by which it is compared with the others.

use std::num::NonZeroU32;

use crate::core::arena::{Index, List};
use crate::core::request::FlowShare;
use crate::flow::FlowId;
use crate::priority::Priority;

/// Stands for the parent of the flows without one.
pub(super) const ROOT: Index = Index::new(u32::MAX);

/// What a flow has, divided by its weight: the least is served first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Share {
    pub(super) held: u128,
    pub(super) served: u128,
    /// When its next request came.
    pub(super) rank: u64,
}

/// A flow that has a request of some priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OrderEntry {
    pub(super) rivals: Rivals,
    pub(super) share: Share,
    pub(super) flow: Index,
}

/// The flows of one parent that have a request of one priority. In order, those without a parent come first, the highest priority
/// before the others, so that the flow that is next is the first of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rivals(u64);

impl Rivals {
    pub(super) fn new(parent: Index, level: usize) -> Self {
        let parent = parent.number().wrapping_sub(ROOT.number());
        Self(u64::from(parent) << 32 | (Priority::LEVELS - 1 - level) as u64)
    }

    /// The ones after these.
    pub(super) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// How many requests of a flow wait, among the flows of the same parent: the last one is the longest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LengthEntry {
    pub(super) parent: Index,
    /// Requests, divided by the weight.
    pub(super) length: u128,
    /// When the request came that would be dropped.
    pub(super) newest: u64,
    pub(super) flow: Index,
}

/// A flow, or the parent of flows.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) id: FlowId,
    pub(super) parent: Index,
    pub(super) weight: NonZeroU32,
    /// A bit for each priority with a request; of a parent, with a request of any of its flows.
    pub(super) occupied: u16,
    pub(super) is_idle: bool,
    /// How many of its requests wait.
    pub(super) len: u32,
    /// The units that its permits hold.
    pub(super) held: u64,
    /// The units that it was granted, divided by its weight, in virtual time.
    pub(super) served: u128,
    normal: Line,
    others: Option<Box<[Line; Priority::LEVELS]>>,
    pub(super) within: Option<Box<Within>>,
}

/// The waiters of one flow and priority.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line {
    pub(super) waiters: List,
    /// The units that they request.
    pub(super) units: u64,
}

/// What only a parent has.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Within {
    pub(super) time: VirtualTime,
    /// Its flows.
    pub(super) flows: u32,
}

/// The virtual time of flows that share: see the [module](super).
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct VirtualTime {
    pub(super) now: u128,
    /// The most that any flow has been granted.
    most: u128,
}

impl VirtualTime {
    /// Charges a grant to what a flow has been `served`.
    pub(super) fn serve(&mut self, served: &mut u128, charge: u128) {
        self.now = self.now.max(*served);
        *served = served.saturating_add(charge);
        self.most = self.most.max(*served);
    }

    /// Nothing waits and nothing is in flight: no flow has a claim on the others.
    pub(super) fn rest(&mut self) {
        self.now = self.most;
    }
}

/// Units divided by a weight, to compare shares.
pub(super) fn scaled(units: u64, weight: u32) -> u128 {
    match u32::try_from(units) {
        _ if weight == 1 => u128::from(units) << 32,
        // A division of 128 bits takes several times as long.
        Ok(units) => u128::from((u64::from(units) << 32) / u64::from(weight)),
        Err(_) => (u128::from(units) << 32) / u128::from(weight),
    }
}

impl Line {
    const EMPTY: Self = Self {
        waiters: List::EMPTY,
        units: 0,
    };
}

impl Flow {
    pub(super) fn new(FlowShare { id, weight }: FlowShare, parent: Index, served: u128) -> Self {
        Self {
            id,
            parent,
            weight,
            occupied: 0,
            is_idle: false,
            len: 0,
            held: 0,
            served,
            normal: Line::EMPTY,
            others: None,
            within: None,
        }
    }

    pub(super) fn is_parent(&self) -> bool {
        self.within.is_some()
    }

    pub(super) fn line(&self, level: usize) -> &Line {
        if level == usize::from(Priority::NORMAL.level()) {
            return &self.normal;
        }
        let others = self.others.as_deref();
        others.map_or(&Line::EMPTY, |others| &others[level])
    }

    /// The line of the lowest priority with a request.
    pub(super) fn lowest_line(&self) -> Option<&Line> {
        let lowest = self.occupied.trailing_zeros();
        (self.occupied != 0).then(|| self.line(lowest as usize))
    }

    pub(super) fn line_mut(&mut self, level: usize) -> &mut Line {
        if level == usize::from(Priority::NORMAL.level()) {
            return &mut self.normal;
        }
        let others = self
            .others
            .get_or_insert_with(|| Box::new([Line::EMPTY; Priority::LEVELS]));
        &mut others[level]
    }

    pub(super) fn charge(&self, units: u64) -> u128 {
        scaled(units, self.weight.get())
    }

    pub(super) fn may_be_idle(&self) -> bool {
        let has_flows = self.within.as_ref().is_some_and(|within| within.flows > 0);
        self.occupied == 0 && self.held == 0 && !has_flows
    }
}

pub(super) fn levels_of(occupied: u16) -> impl Iterator<Item = usize> {
    let without_lowest = |levels: u16| levels & levels.wrapping_sub(1);
    std::iter::successors(Some(occupied), move |levels| Some(without_lowest(*levels)))
        .take_while(|levels| *levels != 0)
        .map(|levels| levels.trailing_zeros() as usize)
}
