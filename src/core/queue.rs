//! The waiters, by priority and then in arrival order, and the answers that were not taken yet.
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
mod sync;
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
use crate::core::queue::waiter::Waiter;
use crate::core::queue::waiting_line::{Levels, WaitingLine};
use crate::core::request::{Costs, Request, UnitCosts};
use crate::overflow::Overflow;
use crate::priority::Priority;
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
    deadlines: Deadlines,
    /// Allocated when it is used: each of a million keys may have a queue.
    extras: Option<Box<QueueExtras>>,
}

#[derive(Debug, Default)]
struct QueueExtras {
    /// The units of the waiters that name any.
    by_unit: BTreeMap<WaiterId, Arc<UnitCosts>>,
    /// When the waiters came, if an observer gets their waiting times.
    came_at: BTreeMap<WaiterId, Moment>,
    /// The waiters that do not wait for their turn, because the next call to a store answers them.
    tries: BTreeSet<WaiterId>,
    /// The waiters whose costs a new plan can never admit, the last one first. Some may have left.
    misfits: Vec<WaiterId>,
}

impl Queue {
    pub(crate) const MAX_LEN: usize = u32::MAX as usize;

    pub(crate) fn new(newest_first: bool) -> Self {
        Self {
            newest_first,
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
    #[inline]
    pub(super) fn push(
        &mut self,
        request: &Request<'_>,
        waker: Waker,
        slot: Option<Slot>,
    ) -> WaiterId {
        let &Request {
            costs: Costs {
                plain: cost,
                by_unit,
            },
            priority,
            deadline,
            caller,
            blocking,
        } = request;
        self.arrivals = self.arrivals.wrapping_add(1);
        let id = WaiterId::new(self.arrivals, priority, blocking, by_unit.is_some(), slot);
        if let Some(by_unit) = by_unit {
            let extras = self.extras.get_or_insert_default();
            extras.by_unit.insert(id, Arc::clone(by_unit));
        }
        let waiter = Waiter { id, cost, waker };
        self.levels
            .get_mut(id.level())
            .push(waiter, deadline, caller);
        self.occupied |= 1 << id.level();
        self.len += 1;
        if deadline != Moment::NEVER {
            self.deadlines.insert(Deadline::new(deadline, id), cost);
        }
        id
    }

    /// The waiter that is next.
    #[inline(always)]
    pub(crate) fn front(&self) -> Option<Front> {
        let line = self.levels.get(self.occupied.checked_ilog2()? as usize)?;
        if self.newest_first {
            return latest(line);
        }
        let (&Waiter { id, cost, .. }, caller) = line.front_and_caller()?;
        Some(Front { id, cost, caller })
    }

    pub(crate) fn is_front(&self, id: WaiterId) -> bool {
        self.front().is_some_and(|front| front.id == id)
    }

    /// Whether a new request of this priority goes before all waiters.
    pub(crate) fn would_be_front(&self, priority: Priority) -> bool {
        self.occupied >> self.first_level_ahead_of(priority) == 0
    }

    /// The lowest level whose waiters go before a new request of this priority.
    #[inline(always)]
    fn first_level_ahead_of(&self, priority: Priority) -> usize {
        usize::from(priority.level()) + usize::from(self.newest_first)
    }

    /// Units of the waiters that go before a new request of this priority.
    pub(crate) fn units_ahead_of(&self, priority: Priority) -> u64 {
        self.levels
            .iter_from(self.first_level_ahead_of(priority))
            .fold(0, |sum, line| sum.saturating_add(line.units()))
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

    /// Units that certainly go before a new request of this priority and deadline, if no waiter gives up. A waiter with an
    /// earlier deadline may time out, so it is not counted; if many have deadlines, some that stay are not counted either.
    pub(crate) fn units_surely_ahead_of(&self, priority: Priority, deadline: Moment) -> u64 {
        /// The number of deadlines that are checked.
        const MAX_CHECKED: usize = 64;
        let ahead = u128::from(self.units_ahead_of(priority));
        let first = self.first_level_ahead_of(priority);
        let cost_ahead = |other: &Deadline| match self.waiter(other.id) {
            Some(waiter) if other.id.level() >= first => u128::from(waiter.cost),
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

    /// The deadline of a waiter; [`Moment::NEVER`] if it has none, or was answered.
    pub(crate) fn deadline(&self, id: WaiterId) -> Moment {
        self.levels
            .get(id.level())
            .and_then(|line| line.deadline_and_caller(id))
            .map_or(Moment::NEVER, |(deadline, _)| deadline)
    }

    /// The waiter that is dropped for a new request of `priority` when the queue is full.
    pub(crate) fn victim(&self, overflow: Overflow, priority: Priority) -> Option<WaiterId> {
        let victim = match overflow {
            Overflow::Reject | Overflow::Block { .. } => None,
            Overflow::DropOldest => {
                let newcomer =
                    WaiterId::new(self.arrivals.wrapping_add(1), priority, false, false, None);
                let fronts = self.levels.iter_from(0).filter_map(WaitingLine::front);
                fronts.max_by_key(|waiter| newcomer.since(waiter.id))
            }
            Overflow::DropLowestPriority | Overflow::Leak => {
                let leaks = overflow == Overflow::Leak;
                let lowest = self.occupied.trailing_zeros() as usize;
                let end = usize::from(priority.level()) + usize::from(leaks);
                if lowest >= end {
                    return None;
                }
                let line = self.levels.get(lowest)?;
                if leaks || self.newest_first {
                    line.front()
                } else {
                    line.back()
                }
            }
        };
        victim.map(|waiter| waiter.id)
    }

    /// Sets the waker to be woken with the answer and returns the one that it replaces. `Err`, if the request was answered,
    /// returns `waker`. Either must be woken or dropped outside every lock.
    pub(crate) fn replace_waker(&mut self, id: WaiterId, waker: Waker) -> Result<Waker, Waker> {
        match self.levels.get_mut(id.level()).get_mut(id) {
            Some(waiter) => Ok(std::mem::replace(&mut waiter.waker, waker)),
            None => Err(waker),
        }
    }

    /// Takes the waker of a waiter. When the waker is woken, its task polls again and leaves another one.
    pub(crate) fn take_waker(&mut self, id: WaiterId) -> Option<Waker> {
        self.replace_waker(id, Waker::noop().clone()).ok()
    }

    /// [`Queue::take_waker`] of all waiters but one, in order.
    pub(crate) fn take_wakers(&mut self, except: Option<WaiterId>) -> Vec<Waker> {
        let mut wakers = Vec::new();
        for level in (0..Priority::LEVELS)
            .rev()
            .filter(|level| self.occupied >> level & 1 == 1)
        {
            let waiters = self
                .levels
                .get_mut(level)
                .iter_mut()
                .filter(|waiter| Some(waiter.id) != except);
            wakers.extend(
                waiters.map(|waiter| std::mem::replace(&mut waiter.waker, Waker::noop().clone())),
            );
        }
        wakers
    }

    /// All waiters, in order, with their costs and deadlines.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (WaiterId, Costs<'_>, Moment)> {
        self.waiting_from_level(0)
    }

    /// [`Queue::waiting`], only those that go before a new request of this priority.
    pub(crate) fn waiting_ahead_of(
        &self,
        priority: Priority,
    ) -> impl Iterator<Item = (WaiterId, Costs<'_>, Moment)> {
        self.waiting_from_level(self.first_level_ahead_of(priority))
    }

    fn waiting_from_level(
        &self,
        lowest: usize,
    ) -> impl Iterator<Item = (WaiterId, Costs<'_>, Moment)> {
        let newest_first = self.newest_first;
        let waiters = self.levels.iter_from(lowest).rev().flat_map(move |line| {
            let mut line = line.iter();
            std::iter::from_fn(move || {
                if newest_first {
                    line.next_back()
                } else {
                    line.next()
                }
            })
        });
        waiters.map(|(waiter, deadline)| (waiter.id, self.costs(waiter), deadline))
    }

    /// The plain cost of a waiter; 0 if it has left.
    pub(crate) fn cost(&self, id: WaiterId) -> u64 {
        self.waiter(id).map_or(0, |waiter| waiter.cost)
    }

    pub(super) fn waiter(&self, id: WaiterId) -> Option<&Waiter> {
        self.levels.get(id.level())?.get(id)
    }

    /// Takes a waiter out of its line and out of all sums. `None`, without a change, when it has left.
    #[inline]
    pub(crate) fn remove(&mut self, id: WaiterId) -> Option<Waker> {
        let line = self.levels.get_mut(id.level());
        let (Waiter { cost, waker, .. }, deadline) = line.remove(id)?;
        if line.front().is_none() {
            self.occupied &= !(1 << id.level());
        }
        self.len -= 1;
        if let Some(extras) = &mut self.extras {
            extras.by_unit.remove(&id);
            extras.came_at.remove(&id);
            extras.tries.remove(&id);
        }
        if deadline != Moment::NEVER {
            self.deadlines.remove(&Deadline::new(deadline, id), cost);
        }
        Some(waker)
    }
}

/// The units that few waiters name.
impl Queue {
    /// The units that a waiter names.
    #[inline(always)]
    pub(crate) fn unit_costs(&self, id: WaiterId) -> Option<Arc<UnitCosts>> {
        if id.names_units() {
            self.named_units(id).cloned()
        } else {
            None
        }
    }

    fn named_units(&self, id: WaiterId) -> Option<&Arc<UnitCosts>> {
        self.extras.as_ref()?.by_unit.get(&id)
    }

    /// The request of a waiter that names these [units](Queue::unit_costs).
    pub(crate) fn request<'a>(
        &self,
        id: WaiterId,
        by_unit: &'a Option<Arc<UnitCosts>>,
    ) -> Option<Request<'a>> {
        let costs = Costs::new(self.waiter(id)?.cost, by_unit);
        let (deadline, caller) = self.levels.get(id.level())?.deadline_and_caller(id)?;
        Some(Request {
            costs,
            priority: id.priority(),
            deadline,
            caller,
            blocking: id.is_blocking(),
        })
    }

    fn costs(&self, waiter: &Waiter) -> Costs<'_> {
        Costs {
            plain: waiter.cost,
            by_unit: self.named_units(waiter.id),
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
        let misfits = self.waiting().filter(|(_, costs, _)| !fits(*costs));
        let mut misfits: Vec<_> = misfits.map(|(id, ..)| id).collect();
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

#[cold]
fn latest(line: &WaitingLine) -> Option<Front> {
    let &Waiter { id, cost, .. } = line.back()?;
    let (_, caller) = line.deadline_and_caller(id)?;
    Some(Front { id, cost, caller })
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
        let mut queue = Queue::new(false);
        let ids = [
            Priority::NORMAL,
            Priority::LOW,
            Priority::HIGH,
            Priority::LOW,
        ]
        .map(|p| queue.push(&request(p), Waker::noop().clone(), None));
        assert_eq!(queue.victim(Overflow::Reject, Priority::HIGHEST), None);
        assert_eq!(
            queue.victim(Overflow::DropOldest, Priority::LOWEST),
            Some(ids[0])
        );
        assert_eq!(
            queue.victim(Overflow::DropLowestPriority, Priority::NORMAL),
            Some(ids[3])
        );
        assert_eq!(
            queue.victim(Overflow::DropLowestPriority, Priority::LOW),
            None
        );
        queue.remove(ids[0]);
        assert_eq!(
            queue.victim(Overflow::DropOldest, Priority::LOWEST),
            Some(ids[1])
        );
    }

    #[test]
    fn sums_of_huge_costs_saturate_and_recover() {
        let mut queue = Queue::new(false);
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
