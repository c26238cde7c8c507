//! The waiters, by priority and then in arrival order or as their [`flows`] share, and the answers that were not taken yet.
//!
//! A waiter leaves its line with its answer, and only the owner of its id takes the answer out: that is the caller's *out*
//! channel. So a permit reaches the caller that it was granted to, and an abandoned one is found by the same id.
//!
//! A [`Queue`] owns the waiters and their order, [`UntakenAnswers`](untaken_answers::UntakenAnswers) the answers. [`Waiters`] owns
//! both, and what holds the requests back besides the limits.

pub(crate) mod answers;
#[cfg(test)]
#[path = "queue/answers/tests.rs"]
mod answers_tests;
pub(crate) mod deadlines;
mod flows;
mod sync;
mod turns;
pub(crate) mod untaken_answers;
mod waiter;
mod waiters;
pub(crate) mod waiting_line;

pub(crate) use waiter::{Front, WaiterId};
pub(crate) use waiters::{Options, Waiters};

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::task::Waker;

use crate::core::queue::answers::Slot;
use crate::core::queue::deadlines::{Deadline, Deadlines};
use crate::core::queue::flows::Flows;
use crate::core::queue::waiter::Waiter;
use crate::core::queue::waiting_line::{Levels, WaitingLine};
use crate::core::request::{Caller, CostDetails, Costs, FlowPath, Request};
use crate::overflow::Overflow;
use crate::priority::Priority;
use crate::snapshot::FlowStatus;
use crate::strategy::Moment;

/// The waiters and their order.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    levels: Levels,
    /// The waiters that have come so far.
    arrivals: u64,
    /// A bit for each priority with a waiter.
    occupied: u16,
    len: u32,
    /// Among waiters of one priority, the latest is served first.
    newest_first: bool,
    /// A full queue drops a request of the longest flow.
    drops_longest: bool,
    /// Any flow is known.
    has_flows: bool,
    /// Among waiters of one priority, the first is served first: no flow is known, and the latest does not go first.
    is_fifo: bool,
    deadlines: Deadlines,
    /// Allocated when it is used: each of a million keys may have a queue.
    extras: Option<Box<QueueExtras>>,
}

#[derive(Debug, Default)]
struct QueueExtras {
    /// The waiters of flows, and what the flows have; `None` if no flow is known.
    flows: Option<Box<Flows>>,
    /// What the costs of waiters without a flow have besides the plain cost.
    details: BTreeMap<WaiterId, Arc<CostDetails>>,
    /// When the waiters came, if an observer gets their waiting times.
    came_at: BTreeMap<WaiterId, Moment>,
    /// The waiters that do not wait for their turn, because the next call to a store answers them.
    tries: BTreeSet<WaiterId>,
    /// The waiters whose costs a new plan can never admit, the last one first. Some may have left.
    misfits: Vec<WaiterId>,
}

impl QueueExtras {
    /// Whether nothing is recorded but the details of costs.
    fn only_details(&self) -> bool {
        self.flows.is_none()
            && self.came_at.is_empty()
            && self.tries.is_empty()
            && self.misfits.is_empty()
    }
}

impl Queue {
    pub(crate) const MAX_LEN: usize = u32::MAX as usize;

    pub(crate) fn new(newest_first: bool, drops_longest: bool) -> Self {
        Self {
            newest_first,
            drops_longest,
            is_fifo: !newest_first,
            ..Self::default()
        }
    }

    /// Waiters without an answer.
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a waiter, whose answer goes into the `slot`, if it has one.
    #[inline(always)]
    pub(super) fn push(
        &mut self,
        request: &Request<'_>,
        waker: Waker,
        slot: Option<Slot>,
    ) -> WaiterId {
        let &Request {
            costs: Costs {
                plain: cost,
                details,
            },
            priority,
            deadline,
            caller,
            blocking,
        } = request;
        let id = WaiterId::new(
            self.next_arrival(),
            priority,
            blocking,
            details.map(Arc::as_ref),
            slot,
        );
        let level = usize::from(priority.level());
        let waiter = Waiter { id, cost, waker };
        if let Some(details) = details {
            self.push_with_details(waiter, deadline, caller, details);
        } else {
            if self.has_flows {
                self.note_unnamed();
            }
            self.levels.get_mut(level).push(waiter, deadline, caller);
        }
        self.arrivals = self.arrivals.wrapping_add(1);
        self.occupied |= 1 << level;
        self.len += 1;
        if deadline != Moment::NEVER {
            self.deadlines.insert(Deadline::new(deadline, id), cost);
        }
        id
    }

    /// Adds a waiter whose cost has details.
    #[cold]
    fn push_with_details(
        &mut self,
        waiter: Waiter,
        deadline: Moment,
        caller: Caller,
        details: &Arc<CostDetails>,
    ) {
        if let Some(path) = details.flow() {
            let arrival = self.next_arrival();
            self.begin_flows()
                .push((waiter, arrival), deadline, caller, details, path);
            return;
        }
        self.note_unnamed();
        let id = waiter.id;
        let extras = self.extras.get_or_insert_default();
        extras.details.insert(id, Arc::clone(details));
        self.levels
            .get_mut(id.level())
            .push(waiter, deadline, caller);
    }

    /// The number of the next waiter to come.
    fn next_arrival(&self) -> u64 {
        self.arrivals.wrapping_add(1)
    }

    /// The waiter that is next.
    #[inline(always)]
    pub(crate) fn front(&self) -> Option<Front> {
        let level = self.occupied.checked_ilog2()? as usize;
        if !self.is_fifo {
            return self.chosen(level);
        }
        let (&Waiter { id, cost, .. }, caller) = self.levels.get(level)?.front_and_caller()?;
        Some(Front { id, cost, caller })
    }

    /// [`Queue::front`], where not the first one to have come is served first.
    #[cold]
    fn chosen(&self, level: usize) -> Option<Front> {
        let line = self.levels.get(level);
        let in_line = if self.newest_first {
            line.and_then(WaitingLine::back)
        } else {
            line.and_then(WaitingLine::front)
        };
        let in_line = in_line.map(|waiter| waiter.id);
        let of_flow = self
            .flows()
            .and_then(|flows| flows.choose(level, in_line, self.arrivals));
        let (&Waiter { id, cost, .. }, caller) = match of_flow {
            Some(chosen) => (&chosen.waiter, chosen.caller),
            None => {
                let (waiter, _, caller) = self.find(in_line?)?;
                (waiter, caller)
            }
        };
        Some(Front { id, cost, caller })
    }

    pub(crate) fn is_front(&self, id: WaiterId) -> bool {
        self.front().is_some_and(|front| front.id == id)
    }

    /// Whether a new request goes before all waiters.
    #[inline(always)]
    pub(crate) fn would_be_front(&self, request: &Request<'_>) -> bool {
        if self.has_flows {
            return self.turns(Some(request)).next().is_none();
        }
        self.occupied >> self.first_level_ahead_of(request.priority) == 0
    }

    /// The lowest level whose waiters go before a new request of this priority and without a flow.
    #[inline(always)]
    fn first_level_ahead_of(&self, priority: Priority) -> usize {
        usize::from(priority.level()) + usize::from(self.newest_first)
    }

    /// Units of the waiters that go before a new request of this priority, those of all flows among them.
    pub(crate) fn units_ahead_of(&self, priority: Priority) -> u64 {
        let first = self.first_level_ahead_of(priority);
        self.levels
            .iter_from(first)
            .map(WaitingLine::units)
            .chain(
                (first..Priority::LEVELS)
                    .filter_map(|level| Some(self.flows()?.waiters().units_at(level))),
            )
            .fold(0, u64::saturating_add)
    }

    /// Units of all waiters: at least 1 if there are any. The sum of huge costs saturates, so after some leave it may be 0.
    pub(crate) fn units_ahead(&self) -> u64 {
        self.units_ahead_of(Priority::LOWEST)
            .max(u64::from(!self.is_empty()))
    }

    pub(crate) fn has_deadlines(&self) -> bool {
        self.next_deadline() != Moment::NEVER
    }

    #[inline(always)]
    pub(crate) fn next_deadline(&self) -> Moment {
        self.deadlines
            .first()
            .map_or(Moment::NEVER, |first| first.at)
    }

    /// The first waiter whose deadline has passed.
    pub(crate) fn expired(&self, now: Moment) -> Option<WaiterId> {
        self.deadlines
            .first()
            .filter(|first| first.at <= now)
            .map(|first| first.id)
    }

    /// Units that certainly go before a new request, if no waiter gives up. A waiter with an earlier deadline may time out, so it is not
    /// counted; if many have deadlines, some that stay are not counted either.
    pub(crate) fn units_surely_ahead_of(&self, request: &Request<'_>) -> u64 {
        /// The number of deadlines that are checked.
        const MAX_CHECKED: usize = 64;
        let &Request {
            costs,
            priority,
            deadline,
            ..
        } = request;
        let first = self.first_level_ahead_of(priority);
        let path = costs.flow();
        let ahead = match self.flows() {
            Some(flows) => u128::from(self.units_ahead_in(flows, priority, path)),
            None => u128::from(self.units_ahead_of(priority)),
        };
        let is_ahead = |id: WaiterId| match self.flows() {
            Some(flows) if id.level() == usize::from(priority.level()) => {
                first == id.level() && flows.has_in_flow(path, id)
            }
            _ => id.level() >= first,
        };
        let cost_ahead = |other: &Deadline| match self.waiter(other.id) {
            Some(waiter) if is_ahead(other.id) => u128::from(waiter.cost),
            _ => 0,
        };
        let leaving = self
            .deadlines
            .iter()
            .take_while(|other| other.at <= deadline);
        let units = if leaving.clone().nth(MAX_CHECKED).is_none() {
            ahead.saturating_sub(leaving.map(cost_ahead).sum())
        } else {
            let staying = self
                .deadlines
                .iter()
                .rev()
                .take_while(|other| other.at > deadline)
                .take(MAX_CHECKED);
            ahead.saturating_sub(self.deadlines.units()) + staying.map(cost_ahead).sum::<u128>()
        };
        u64::try_from(units).unwrap_or(u64::MAX)
    }

    /// Units of the waiters that go before a new request of this priority and flow, however the flows share.
    fn units_ahead_in(&self, flows: &Flows, priority: Priority, path: Option<FlowPath>) -> u64 {
        let level = usize::from(priority.level());
        let own = match path {
            _ if self.newest_first => 0,
            Some(path) => flows.units_of(path, level),
            None => self.levels.get(level).map_or(0, WaitingLine::units),
        };
        let above = self.levels.iter_from(level + 1).map(WaitingLine::units);
        let flows_above =
            (level + 1..Priority::LEVELS).map(|level| flows.waiters().units_at(level));
        above.chain(flows_above).fold(own, u64::saturating_add)
    }

    /// The deadline of a waiter; [`Moment::NEVER`] if it has none, or was answered.
    pub(crate) fn deadline(&self, id: WaiterId) -> Moment {
        self.find(id)
            .map_or(Moment::NEVER, |(_, deadline, _)| deadline)
    }

    /// The waiter that is dropped for a new request when the queue is full.
    pub(crate) fn victim(&self, overflow: Overflow, request: &Request<'_>) -> Option<WaiterId> {
        let priority = request.priority;
        match overflow {
            Overflow::Reject | Overflow::Block { .. } => None,
            Overflow::DropOldest => {
                let first = (0..Priority::LEVELS).filter_map(|level| self.first_at(level));
                first.min_by_key(|id| id.arrival(self.arrivals))
            }
            Overflow::DropLongest => {
                let flows = self.flows()?;
                let in_lines = self.levels.iter_from(0).find_map(WaitingLine::back);
                let unnamed = (
                    self.len() - flows.waiters().len(),
                    in_lines.map(|waiter| waiter.id),
                );
                let victim = flows.victim(request.costs.flow(), unnamed, self.arrivals);
                victim.filter(|id| id.level() <= usize::from(priority.level()))
            }
            Overflow::DropLowestPriority | Overflow::Leak => {
                let leaks = overflow == Overflow::Leak;
                let lowest = self.occupied.trailing_zeros() as usize;
                let end = usize::from(priority.level()) + usize::from(leaks);
                if lowest >= end {
                    None
                } else if leaks || self.newest_first {
                    self.first_at(lowest)
                } else {
                    self.last_at(lowest)
                }
            }
        }
    }

    /// The first waiter of this level to have come.
    fn first_at(&self, level: usize) -> Option<WaiterId> {
        let in_line = self.levels.get(level).and_then(WaitingLine::front);
        let in_flow = self.flows().and_then(|flows| flows.waiters().first(level));
        let ids = in_line.into_iter().chain(in_flow).map(|waiter| waiter.id);
        ids.min_by_key(|id| id.arrival(self.arrivals))
    }

    /// The last one.
    fn last_at(&self, level: usize) -> Option<WaiterId> {
        let in_line = self.levels.get(level).and_then(WaitingLine::back);
        let in_flow = self.flows().and_then(|flows| flows.waiters().last(level));
        let ids = in_line.into_iter().chain(in_flow).map(|waiter| waiter.id);
        ids.max_by_key(|id| id.arrival(self.arrivals))
    }

    /// Sets the waker to be woken with the answer and returns the one that it replaces. `Err`, if the request was answered,
    /// returns `waker`. Either must be woken or dropped outside every lock.
    pub(crate) fn replace_waker(&mut self, id: WaiterId, waker: Waker) -> Result<Waker, Waker> {
        let waiter = if id.is_in_flow() {
            self.flows_mut()
                .and_then(|flows| Some(&mut flows.waiters_mut().find_mut(id)?.waiter))
        } else {
            self.levels.get_mut(id.level()).get_mut(id)
        };
        match waiter {
            Some(waiter) => Ok(std::mem::replace(&mut waiter.waker, waker)),
            None => Err(waker),
        }
    }

    /// Takes the waker of a waiter. When the waker is woken, its task polls again and leaves another one.
    pub(crate) fn take_waker(&mut self, id: WaiterId) -> Option<Waker> {
        self.replace_waker(id, Waker::noop().clone()).ok()
    }

    /// [`Queue::take_waker`] of all waiters but one.
    pub(crate) fn take_wakers(&mut self, except: Option<WaiterId>) -> Vec<Waker> {
        let ids = self.waiting().map(|(id, _)| id);
        let ids: Vec<_> = ids.filter(|id| Some(*id) != except).collect();
        ids.into_iter()
            .filter_map(|id| self.take_waker(id))
            .collect()
    }

    /// All waiters with their costs: by priority and arrival, first those without a flow.
    fn waiting(&self) -> impl Iterator<Item = (WaiterId, Costs<'_>)> {
        let in_line = self.levels.iter_from(0).rev().flat_map(WaitingLine::iter);
        let in_line = in_line.map(|(waiter, _)| waiter);
        let in_flow = self
            .flows()
            .into_iter()
            .flat_map(|flows| flows.waiters().iter());
        in_line
            .chain(in_flow)
            .map(|waiter| (waiter.id, self.costs(waiter)))
    }

    /// The plain cost of a waiter; 0 if it has left.
    pub(crate) fn cost(&self, id: WaiterId) -> u64 {
        self.waiter(id).map_or(0, |waiter| waiter.cost)
    }

    pub(super) fn waiter(&self, id: WaiterId) -> Option<&Waiter> {
        if id.is_in_flow() {
            return Some(&self.flows()?.waiters().find(id)?.waiter);
        }
        self.levels.get(id.level())?.get(id)
    }

    /// A waiter with its deadline and its caller.
    fn find(&self, id: WaiterId) -> Option<(&Waiter, Moment, Caller)> {
        if id.is_in_flow() {
            let found = self.flows()?.waiters().find(id)?;
            return Some((&found.waiter, found.deadline, found.caller));
        }
        let line = self.levels.get(id.level())?;
        let (deadline, caller) = line.deadline_and_caller(id)?;
        Some((line.get(id)?, deadline, caller))
    }

    /// Takes a waiter out of its line and out of all sums. `None`, without a change, when it has left.
    #[inline]
    pub(crate) fn remove(&mut self, id: WaiterId) -> Option<Waker> {
        if self.has_flows {
            return self.remove_among_flows(id, None);
        }
        let line = self.levels.get_mut(id.level());
        let (Waiter { cost, waker, .. }, deadline) = line.remove(id)?;
        if line.front().is_none() {
            self.occupied &= !(1 << id.level());
        }
        self.note_removed(id, cost, deadline);
        Some(waker)
    }

    /// [`Queue::remove`] of the front, which asks for `cost`, in the common case: no waiter has a deadline, and nothing is recorded of
    /// the front beside its line. `None`, without a change, in any other case.
    #[inline(always)]
    pub(crate) fn pop_plain(&mut self, cost: u64) -> Option<(WaiterId, Waker)> {
        let level = self.occupied.checked_ilog2()? as usize;
        let extras = self.extras.as_ref();
        if !self.is_fifo || extras.is_some_and(|extras| !extras.only_details()) {
            return None;
        }
        let (Waiter { id, waker, .. }, is_last) = self.levels.get_mut(level).pop_plain(cost)?;
        if is_last {
            self.occupied &= !(1 << level);
        }
        self.len -= 1;
        Some((id, waker))
    }

    /// Takes a waiter that has left its line out of all sums.
    #[inline(always)]
    fn note_removed(&mut self, id: WaiterId, cost: u64, deadline: Moment) {
        self.len -= 1;
        if let Some(extras) = &mut self.extras {
            extras.details.remove(&id);
            extras.came_at.remove(&id);
            extras.tries.remove(&id);
        }
        if deadline != Moment::NEVER {
            self.deadlines.remove(&Deadline::new(deadline, id), cost);
        }
    }
}

/// Flows.
impl Queue {
    fn flows(&self) -> Option<&Flows> {
        self.extras.as_ref()?.flows.as_deref()
    }

    fn flows_mut(&mut self) -> Option<&mut Flows> {
        self.extras.as_mut()?.flows.as_deref_mut()
    }

    /// Whether any flow is known: one of its requests waits, or one of its permits is in flight, or it still counts what it was
    /// granted.
    #[inline(always)]
    pub(crate) fn has_flows(&self) -> bool {
        self.has_flows
    }

    /// What some flows have: those with the most requests.
    pub(crate) fn flow_statuses(&self, max: usize) -> Vec<FlowStatus> {
        self.flows()
            .map_or_else(Vec::new, |flows| flows.statuses(max))
    }

    /// The flows, which are known from now on.
    fn begin_flows(&mut self) -> &mut Flows {
        self.has_flows = true;
        self.is_fifo = false;
        let (newest_first, drops_longest) = (self.newest_first, self.drops_longest);
        let extras = self.extras.get_or_insert_default();
        extras
            .flows
            .get_or_insert_with(|| Box::new(Flows::new(newest_first, drops_longest)))
    }

    /// Prepares for a new request, which may be of a flow.
    pub(crate) fn expect(&mut self, costs: Costs<'_>, in_flight: u64) {
        self.end_flows(); // what is left of a refused request
        if costs.flow().is_some() {
            self.begin_flows();
        }
        self.set_in_flight(in_flight);
    }

    /// If no flow is known, none costs anything.
    fn end_flows(&mut self) {
        if let Some(extras) = &mut self.extras
            && extras.flows.as_ref().is_some_and(|flows| flows.is_empty())
        {
            extras.flows = None;
            self.has_flows = false;
            self.is_fifo = !self.newest_first;
        }
    }

    /// Whether a request without a flow waits.
    fn has_unnamed_waiters(&self) -> bool {
        self.len() > self.flows().map_or(0, |flows| flows.waiters().len())
    }

    /// Called before a request without a flow waits, or is granted without a wait.
    #[cold]
    fn note_unnamed(&mut self) {
        if !self.has_unnamed_waiters()
            && let Some(flows) = self.flows_mut()
        {
            flows.unnamed_begins();
        }
    }

    /// [`Queue::remove`] of a waiter, which is `granted` the permit of this fence that holds so many units, or refused.
    #[cold]
    fn remove_among_flows(&mut self, id: WaiterId, granted: Option<(u64, u64)>) -> Option<Waker> {
        let level = id.level();
        let (Waiter { cost, waker, .. }, deadline) = if id.is_in_flow() {
            self.flows_mut()?.remove(id, granted)?
        } else {
            let removed = self.levels.get_mut(level).remove(id)?;
            if granted.is_some()
                && let Some(flows) = self.flows_mut()
            {
                flows.serve_unnamed(removed.0.cost);
            }
            removed
        };
        if let Some(flows) = self.flows_mut() {
            flows.unreserve(id);
        }
        let in_line = self.levels.get(level).and_then(WaitingLine::front);
        let in_flow = self
            .flows()
            .is_some_and(|flows| !flows.waiters().is_empty_at(level));
        if in_line.is_none() && !in_flow {
            self.occupied &= !(1 << level);
        }
        self.end_flows();
        self.note_removed(id, cost, deadline);
        Some(waker)
    }

    /// [`Queue::remove`] of a waiter that is granted a permit, which holds so many units.
    #[cold]
    pub(crate) fn remove_granted(&mut self, id: WaiterId, fence: u64, held: u64) -> Option<Waker> {
        self.remove_among_flows(id, Some((fence, held)))
    }

    /// Records that a new request is granted without a wait.
    pub(crate) fn note_served_at_once(&mut self, costs: Costs<'_>) {
        if let Some(path) = costs.flow() {
            self.begin_flows().serve_at_once(path, costs.plain);
        } else {
            self.note_unnamed();
            if let Some(flows) = self.flows_mut() {
                flows.serve_unnamed(costs.plain);
            }
        }
        self.end_flows();
    }

    /// Records how many units are in flight, with which the flows are compared.
    pub(crate) fn set_in_flight(&mut self, units: u64) {
        let rests = units == 0 && self.is_empty();
        if let Some(flows) = self.flows_mut() {
            flows.set_in_flight(units);
            if rests {
                flows.rest();
                self.end_flows();
            }
        }
    }

    /// Records which waiter is the front. Returns whether it was another one before.
    pub(crate) fn note_front(&mut self, id: WaiterId) -> bool {
        self.flows_mut().is_some_and(|flows| flows.note_front(id))
    }

    /// Decides that no request of its priority passes this one.
    pub(crate) fn reserve(&mut self, id: WaiterId) {
        if self.waiter(id).is_some()
            && let Some(flows) = self.flows_mut()
        {
            flows.reserve(id);
        }
    }

    /// Records that the permit of this fence holds so many units for a flow.
    pub(crate) fn hold(&mut self, path: FlowPath, fence: u64, units: u64) {
        if units > 0 {
            self.begin_flows().hold(path, fence, units);
        }
    }

    /// Records that the permit of this fence, which may be of a flow, holds nothing any more.
    #[cold]
    pub(crate) fn note_released(&mut self, fence: u64) {
        if let Some(flows) = self.flows_mut() {
            flows.release(fence);
            self.end_flows();
        }
    }
}

/// The details that few costs have.
impl Queue {
    /// The details of the cost of a waiter.
    #[inline(always)]
    pub(crate) fn cost_details(&self, id: WaiterId) -> Option<Arc<CostDetails>> {
        if id.has_details() {
            self.details_of(id).cloned()
        } else {
            None
        }
    }

    fn details_of(&self, id: WaiterId) -> Option<&Arc<CostDetails>> {
        if id.is_in_flow() {
            return Some(&self.flows()?.waiters().find(id)?.details);
        }
        self.extras.as_ref()?.details.get(&id)
    }

    /// The request of a waiter whose cost has these [details](Queue::cost_details).
    pub(crate) fn request<'a>(
        &self,
        id: WaiterId,
        details: &'a Option<Arc<CostDetails>>,
    ) -> Option<Request<'a>> {
        let (waiter, deadline, caller) = self.find(id)?;
        Some(Request {
            costs: Costs::new(waiter.cost, details),
            priority: id.priority(),
            deadline,
            caller,
            blocking: id.is_blocking(),
        })
    }

    fn costs(&self, waiter: &Waiter) -> Costs<'_> {
        Costs {
            plain: waiter.cost,
            details: self.details_of(waiter.id),
        }
    }
}

/// When the waiters came, which is recorded only if an observer gets their waiting times.
impl Queue {
    /// Records when a waiter came.
    pub(crate) fn note_arrival(&mut self, id: WaiterId, now: Moment) {
        self.extras.get_or_insert_default().came_at.insert(id, now);
    }

    /// Whether an arrival is recorded for any waiter.
    #[inline(always)]
    pub(crate) fn knows_arrivals(&self) -> bool {
        self.extras
            .as_ref()
            .is_some_and(|extras| !extras.came_at.is_empty())
    }

    /// When the waiter came, if that was recorded. It is forgotten now.
    pub(crate) fn take_arrival(&mut self, id: WaiterId) -> Option<Moment> {
        self.extras.as_mut()?.came_at.remove(&id)
    }
}

/// The waiters that do not wait for their turn.
impl Queue {
    /// Marks a waiter that does not wait for its turn. Its arrival is forgotten: only the grant of a request that waits is
    /// reported.
    pub(crate) fn add_try(&mut self, id: WaiterId) {
        let extras = self.extras.get_or_insert_default();
        extras.tries.insert(id);
        extras.came_at.remove(&id);
    }

    pub(crate) fn is_try(&self, id: WaiterId) -> bool {
        self.extras
            .as_ref()
            .is_some_and(|extras| extras.tries.contains(&id))
    }

    pub(crate) fn tries(&self) -> impl Iterator<Item = WaiterId> {
        self.extras.iter().flat_map(|extras| &extras.tries).copied()
    }
}

/// The waiters that a new plan can never admit.
impl Queue {
    /// Finds the waiters whose costs do not fit a new plan; [`Queue::next_misfit`] returns them. Some may remain of a former
    /// plan, although they fit the new one.
    pub(crate) fn find_misfits(&mut self, fits: impl Fn(Costs<'_>) -> bool) {
        let misfits = self.waiting().filter(|(_, costs)| !fits(*costs));
        let mut misfits: Vec<_> = misfits.map(|(id, _)| id).collect();
        misfits.reverse();
        if !misfits.is_empty() {
            self.extras.get_or_insert_default().misfits = misfits;
        }
    }

    #[inline(always)]
    pub(crate) fn has_misfits(&self) -> bool {
        self.extras
            .as_ref()
            .is_some_and(|extras| !extras.misfits.is_empty())
    }

    /// The first misfit that still waits. Each is returned once.
    pub(crate) fn next_misfit(&mut self) -> Option<WaiterId> {
        loop {
            let id = self.extras.as_mut()?.misfits.pop()?;
            if self.waiter(id).is_some() {
                return Some(id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::Location;

    use super::*;

    fn request(priority: Priority) -> Request<'static> {
        Request {
            costs: Costs::plain(1),
            priority,
            deadline: Moment::NEVER,
            caller: Location::caller(),
            blocking: false,
        }
    }

    /// The `peers` benchmark measures this as "heap per waiter", together with the future.
    #[test]
    fn a_waiter_takes_32_bytes() {
        assert_eq!(size_of::<Waiter>(), 32);
    }

    #[test]
    fn victims_follow_the_overflow_rule() {
        let mut queue = Queue::new(false, false);
        let ids = [
            Priority::NORMAL,
            Priority::LOW,
            Priority::HIGH,
            Priority::LOW,
        ]
        .map(|p| queue.push(&request(p), Waker::noop().clone(), None));
        assert_eq!(
            queue.victim(Overflow::Reject, &request(Priority::HIGHEST)),
            None
        );
        assert_eq!(
            queue.victim(Overflow::DropOldest, &request(Priority::LOWEST)),
            Some(ids[0])
        );
        assert_eq!(
            queue.victim(Overflow::DropLowestPriority, &request(Priority::NORMAL)),
            Some(ids[3])
        );
        assert_eq!(
            queue.victim(Overflow::DropLowestPriority, &request(Priority::LOW)),
            None
        );
        queue.remove(ids[0]);
        assert_eq!(
            queue.victim(Overflow::DropOldest, &request(Priority::LOWEST)),
            Some(ids[1])
        );
    }

    #[test]
    fn sums_of_huge_costs_saturate_and_recover() {
        let mut queue = Queue::new(false, false);
        let huge = Request {
            costs: Costs::plain(u64::MAX),
            ..request(Priority::NORMAL)
        };
        let ids = [(); 3].map(|()| queue.push(&huge, Waker::noop().clone(), None));
        assert_eq!(queue.units_ahead_of(Priority::LOW), u64::MAX);
        for id in ids {
            queue.remove(id);
        }
        assert_eq!(queue.units_ahead_of(Priority::LOW), 0);
    }
}
