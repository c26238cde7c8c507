//! The waiters, by priority and then in arrival order, and the answers that were not taken yet.
//!
//! A waiter leaves its line with its answer, and only the owner of its id takes the answer out: that is the caller's *out*
//! channel. So a permit reaches the caller that it was granted to, and an abandoned one is found by the same id. A granted place is
//! one number, which goes into the waiter's [slot](crate::core::answers); any other answer is [kept](crate::core::kept) under the lock.

mod arrivals;
mod details;
mod sweep;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;

use crate::core::answers::{Answers, Slots};
use crate::core::costs::{Costs, UnitCosts};
use crate::core::deadlines::{Deadline, Deadlines};
use crate::core::grant::Grant;
use crate::core::kept::{Answer, Kept};
use crate::core::levels::Levels;
use crate::core::refused::Refused;
use crate::core::request::{Caller, Request};
use crate::core::waiter::{Waiter, WaiterId};
use crate::core::waiting_line::WaitingLine;
use crate::overflow::Overflow;
use crate::priority::Priority;
use crate::snapshot::LimitStatus;
use crate::strategy::Moment;

#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnswerKind {
    Granted,
    Failed,
}

/// The waiter that is next.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Front {
    pub(crate) id: WaiterId,
    pub(crate) cost: u64,
    pub(crate) caller: Caller,
}

/// The state of a request whose owner gave it up.
#[derive(Debug)]
pub(crate) enum Abandoned {
    /// It was waiting; the waker must be dropped outside every lock.
    Waiting(Waker),
    /// It had been granted, and the grant was not taken.
    Granted(Grant),
    Failed,
}

#[derive(Debug)]
pub(crate) struct Queue {
    levels: Levels,
    /// The waiters that have come so far.
    arrivals: u64,
    /// A bit for each priority with a waiter.
    occupied: u16,
    len: u32,
    /// Of one priority, the latest is served first.
    newest_first: bool,
    deadlines: Deadlines,
    slots: Slots,
    /// Allocated when it is used: each of a million keys may have a queue.
    rest: Option<Box<Rest>>,
}

#[derive(Debug, Default)]
struct Rest {
    kept: Kept,
    /// Of waiters that name units.
    by_unit: BTreeMap<WaiterId, Arc<UnitCosts>>,
    /// What the limits said at the grants of these fences, until it is taken.
    explanations: BTreeMap<u64, Vec<LimitStatus>>,
    /// A [sweep](Queue::sweep) goes on with this waiter, or with the next one if it has left.
    swept_to: Option<WaiterId>,
    /// When the waiters came, where an observer is told how long they have waited.
    came_at: BTreeMap<WaiterId, Moment>,
}

impl Queue {
    pub(crate) const MAX_LEN: usize = u32::MAX as usize;

    pub(crate) const fn new(newest_first: bool) -> Self {
        Self {
            levels: Levels::new(),
            arrivals: 0,
            occupied: 0,
            len: 0,
            newest_first,
            deadlines: Deadlines::new(),
            slots: Slots::new(),
            rest: None,
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

    /// `bare_place`: its grant will be a place and nothing more.
    #[inline]
    pub(crate) fn push(&mut self, request: &Request<'_>, waker: Waker, bare_place: bool) -> WaiterId {
        let &Request { costs: Costs { plain: cost, by_unit }, priority, deadline, caller, blocking } = request;
        self.arrivals = self.arrivals.wrapping_add(1);
        let slot = if bare_place { self.slots.claim(self.len) } else { None };
        let id = WaiterId::new(self.arrivals, priority, blocking, by_unit.is_some(), slot);
        if let Some(by_unit) = by_unit {
            self.rest.get_or_insert_default().by_unit.insert(id, Arc::clone(by_unit));
        }
        let level = self.levels.get_mut(id.level());
        level.line.push(Waiter { id, cost, waker }, deadline, caller);
        level.units = level.units.saturating_add(cost);
        self.occupied |= 1 << id.level();
        self.len += 1;
        if deadline != Moment::NEVER {
            self.deadlines.insert(Deadline { at: deadline, priority: Reverse(priority), id }, cost);
        }
        id
    }

    /// The line with the waiter that is next.
    #[inline(always)]
    fn front_line(&self) -> Option<&WaitingLine> {
        Some(&self.levels.get(self.occupied.checked_ilog2()? as usize)?.line)
    }

    #[inline(always)]
    fn front_waiter(&self) -> Option<&Waiter> {
        let line = self.front_line()?;
        if self.newest_first { line.back() } else { line.front() }
    }

    /// The waiter that is next.
    #[inline(always)]
    pub(crate) fn front(&self) -> Option<Front> {
        let line = self.front_line()?;
        if self.newest_first {
            return latest(line);
        }
        let &Waiter { id, cost, .. } = line.front()?;
        Some(Front { id, cost, caller: line.front_caller()? })
    }

    /// Whether a new request of this priority goes before all waiters.
    pub(crate) fn would_be_front(&self, priority: Priority) -> bool {
        self.occupied >> self.first_level_ahead_of(priority) == 0
    }

    pub(crate) fn is_front(&self, id: WaiterId) -> bool {
        self.front_waiter().is_some_and(|front| front.id == id)
    }

    /// The lowest level whose waiters go before a new request of this priority.
    #[inline(always)]
    fn first_level_ahead_of(&self, priority: Priority) -> usize {
        usize::from(priority.level()) + usize::from(self.newest_first)
    }

    /// Units of the waiters that go before a new request of this priority.
    pub(crate) fn units_ahead_of(&self, priority: Priority) -> u64 {
        self.levels.iter_from(self.first_level_ahead_of(priority)).fold(0, |sum, level| sum.saturating_add(level.units))
    }

    pub(crate) fn has_deadlines(&self) -> bool {
        !self.deadlines.is_empty()
    }

    #[inline(always)]
    pub(crate) fn next_deadline(&self) -> Moment {
        self.deadlines.first().map_or(Moment::NEVER, |first| first.at)
    }

    /// The first waiter whose deadline has passed.
    pub(crate) fn expired(&self, now: Moment) -> Option<WaiterId> {
        self.deadlines.first().filter(|first| first.at <= now).map(|first| first.id)
    }

    /// Units that certainly go before a new request of this priority and deadline, if no waiter gives up. A waiter with an
    /// earlier deadline may time out, so it is not counted; if many have deadlines, some that stay are not counted either.
    pub(crate) fn units_surely_ahead_of(&self, priority: Priority, deadline: Moment) -> u64 {
        /// The number of deadlines that are checked.
        const MAX_CHECKED: usize = 64;
        let (ahead, first) = (self.units_ahead_of(priority), self.first_level_ahead_of(priority));
        let cost_ahead = |other: &Deadline| match self.waiter(other.id) {
            Some(waiter) if usize::from(other.priority.0.level()) >= first => u128::from(waiter.cost),
            _ => 0,
        };
        if self.deadlines.is_empty() {
            return ahead;
        }
        let leaving = self.deadlines.iter().take_while(|other| other.at <= deadline);
        if leaving.clone().nth(MAX_CHECKED).is_none() {
            return saturating(u128::from(ahead).saturating_sub(leaving.map(cost_ahead).sum()));
        }
        let staying = self.deadlines.iter().rev().take_while(|other| other.at > deadline).take(MAX_CHECKED);
        let patient = u128::from(ahead).saturating_sub(self.deadlines.units());
        saturating(patient + staying.map(cost_ahead).sum::<u128>())
    }

    /// [`Moment::NEVER`] when there is none, or the request was answered.
    pub(crate) fn deadline(&self, id: WaiterId) -> Moment {
        self.levels.get(id.level()).map_or(Moment::NEVER, |level| level.line.deadline(id))
    }

    /// The waiter that is dropped for a new request of `priority` when the queue is full.
    pub(crate) fn victim(&self, overflow: Overflow, priority: Priority) -> Option<WaiterId> {
        match overflow {
            Overflow::Reject | Overflow::Block { .. } => None,
            Overflow::DropOldest => {
                let newcomer = WaiterId::new(self.arrivals.wrapping_add(1), priority, false, false, None);
                let fronts = self.levels.iter_from(0).filter_map(|level| level.line.front());
                fronts.map(|waiter| waiter.id).max_by_key(|id| newcomer.since(*id))
            }
            Overflow::DropLowestPriority => {
                let lowest = self.occupied.trailing_zeros() as usize;
                let level = (lowest < usize::from(priority.level())).then(|| self.levels.get(lowest)).flatten()?;
                let last = if self.newest_first { level.line.front() } else { level.line.back() };
                last.map(|waiter| waiter.id)
            }
            Overflow::Leak => {
                let lowest = self.occupied.trailing_zeros() as usize;
                let level = (lowest <= usize::from(priority.level())).then(|| self.levels.get(lowest)).flatten()?;
                level.line.front().map(|waiter| waiter.id)
            }
        }
    }

    /// Where granted places are taken out without the lock. `None` while there were no slots.
    pub(crate) fn answers(&self) -> Option<&Arc<Answers>> {
        self.slots.answers()
    }

    /// Grants to a waiter; its waker is to be woken outside every lock.
    #[inline(always)]
    pub(crate) fn grant(&mut self, id: WaiterId, grant: Grant) -> Option<Waker> {
        let waker = self.remove(id)?;
        match id.slot() {
            Some(slot) if grant == Grant::of_place(grant.fence) => self.slots.grant(slot, grant.fence),
            _ => self.keep(id, Ok(grant)),
        }
        Some(waker)
    }

    /// Refuses a waiter; its waker is to be woken outside every lock.
    pub(crate) fn refuse(&mut self, id: WaiterId, refused: Refused) -> Option<Waker> {
        self.take_arrival(id);
        let waker = self.remove(id)?;
        self.keep(id, Err(refused));
        Some(waker)
    }

    fn keep(&mut self, id: WaiterId, answer: Answer) {
        self.rest.get_or_insert_default().kept.insert(id, answer);
    }

    /// Takes the answer out, if there is one; then the id is spent. `Err`: there is none; the value says whether the waiter has
    /// another waker, which `waker` must replace. See [`Queue::replace_waker`].
    pub(crate) fn poll(&mut self, id: WaiterId, waker: &Waker) -> Result<Answer, bool> {
        if let Some(answer) = self.take(id) {
            return Ok(answer);
        }
        let waiter = self.waiter(id).expect("an id is valid until its owner has its answer");
        Err(!waiter.waker.will_wake(waker))
    }

    fn take(&mut self, id: WaiterId) -> Option<Answer> {
        let place = id.slot().and_then(|slot| self.slots.take(slot)).map(|fence| Ok(Grant::of_place(fence)));
        place.or_else(|| self.rest.as_mut()?.kept.take(id).inspect(|_| self.free_slot(id)))
    }

    fn free_slot(&self, id: WaiterId) {
        if let Some(slot) = id.slot() {
            self.slots.free(slot);
        }
    }

    /// Sets the waker to be woken with the answer and returns the one that it replaces. `Err`, if the request was answered,
    /// returns `waker`. Either must be woken or dropped outside every lock.
    pub(crate) fn replace_waker(&mut self, id: WaiterId, waker: Waker) -> Result<Waker, Waker> {
        match self.levels.get_mut(id.level()).line.get_mut(id) {
            Some(waiter) => Ok(std::mem::replace(&mut waiter.waker, waker)),
            None => Err(waker),
        }
    }

    /// Takes the waker of a waiter. When it is woken, its task polls again and leaves another one.
    pub(crate) fn take_waker(&mut self, id: WaiterId) -> Option<Waker> {
        self.replace_waker(id, Waker::noop().clone()).ok()
    }

    /// [`Queue::take_waker`] of all waiters but one, in order.
    pub(crate) fn take_wakers(&mut self, except: Option<WaiterId>) -> Vec<Waker> {
        let mut wakers = Vec::new();
        for level in (0..Priority::LEVELS).rev().filter(|level| self.occupied >> level & 1 == 1) {
            let waiters = self.levels.get_mut(level).line.iter_mut().filter(|waiter| Some(waiter.id) != except);
            wakers.extend(waiters.map(|waiter| std::mem::replace(&mut waiter.waker, Waker::noop().clone())));
        }
        wakers
    }

    /// The owner gives its request up; the id is spent.
    pub(crate) fn abandon(&mut self, id: WaiterId) -> Abandoned {
        self.take_arrival(id);
        if let Some(waker) = self.remove(id) {
            self.free_slot(id);
            return Abandoned::Waiting(waker);
        }
        match self.take(id) {
            Some(Ok(grant)) => Abandoned::Granted(grant),
            _ => Abandoned::Failed,
        }
    }

    /// All waiters, in order, with their costs and deadlines.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (WaiterId, Costs<'_>, Moment)> {
        self.waiting_from_level(0)
    }

    /// [`Queue::waiting`], only those that go before a new request of this priority.
    pub(crate) fn waiting_ahead_of(&self, priority: Priority) -> impl Iterator<Item = (WaiterId, Costs<'_>, Moment)> {
        self.waiting_from_level(self.first_level_ahead_of(priority))
    }

    fn waiting_from_level(&self, lowest: usize) -> impl Iterator<Item = (WaiterId, Costs<'_>, Moment)> {
        let newest_first = self.newest_first;
        let waiters = self.levels.iter_from(lowest).rev().flat_map(move |level| {
            let mut line = level.line.iter();
            std::iter::from_fn(move || if newest_first { line.next_back() } else { line.next() })
        });
        waiters.map(|(waiter, deadline)| (waiter.id, self.costs(waiter), deadline))
    }

    /// The plain cost of a waiter; 0 if it has left.
    pub(crate) fn cost(&self, id: WaiterId) -> u64 {
        self.waiter(id).map_or(0, |waiter| waiter.cost)
    }

    fn waiter(&self, id: WaiterId) -> Option<&Waiter> {
        self.levels.get(id.level())?.line.get(id)
    }

    /// The answer to a request; `None` while it waits.
    #[cfg(test)]
    pub(crate) fn peek(&self, id: WaiterId) -> Option<AnswerKind> {
        if id.slot().is_some_and(|slot| self.slots.answers().is_some_and(|answers| answers.is_granted(slot))) {
            return Some(AnswerKind::Granted);
        }
        self.rest.as_ref()?.kept.get(id).map(|answer| if answer.is_ok() { AnswerKind::Granted } else { AnswerKind::Failed })
    }

    /// Takes a waiter out of its line and out of all sums. `None`, without a change, when it has left.
    #[inline]
    fn remove(&mut self, id: WaiterId) -> Option<Waker> {
        let level = self.levels.get_mut(id.level());
        let (Waiter { cost, waker, .. }, deadline) = level.line.remove(id)?;
        level.units = level.units.saturating_sub(cost);
        if level.line.front().is_none() {
            level.units = 0;
            self.occupied &= !(1 << id.level());
        }
        self.len -= 1;
        if id.names_units()
            && let Some(rest) = &mut self.rest
        {
            rest.by_unit.remove(&id);
        }
        if deadline != Moment::NEVER {
            self.deadlines.remove(&Deadline { at: deadline, priority: Reverse(id.priority()), id }, cost);
        }
        Some(waker)
    }
}

#[cold]
fn latest(line: &WaitingLine) -> Option<Front> {
    let &Waiter { id, cost, .. } = line.back()?;
    Some(Front { id, cost, caller: line.caller(id)? })
}

fn saturating(units: u128) -> u64 {
    u64::try_from(units).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::panic::Location;

    use super::*;

    fn request(priority: Priority) -> Request<'static> {
        Request { costs: Costs::plain(1), priority, deadline: Moment::NEVER, caller: Location::caller(), blocking: false }
    }

    /// What the `peers` benchmark measures as "heap per waiter", but for the future.
    #[test]
    fn a_waiter_takes_32_bytes() {
        assert_eq!(size_of::<Waiter>(), 32);
    }

    #[test]
    fn victims_follow_the_overflow_rule() {
        let mut queue = Queue::new(false);
        let ids = [Priority::NORMAL, Priority::LOW, Priority::HIGH, Priority::LOW]
            .map(|p| queue.push(&request(p), Waker::noop().clone(), true));
        assert_eq!(queue.victim(Overflow::Reject, Priority::HIGHEST), None);
        assert_eq!(queue.victim(Overflow::DropOldest, Priority::LOWEST), Some(ids[0]));
        assert_eq!(queue.victim(Overflow::DropLowestPriority, Priority::NORMAL), Some(ids[3]));
        assert_eq!(queue.victim(Overflow::DropLowestPriority, Priority::LOW), None);
        queue.abandon(ids[0]);
        assert_eq!(queue.victim(Overflow::DropOldest, Priority::LOWEST), Some(ids[1]));
    }

    #[test]
    fn sums_of_huge_costs_saturate_and_recover() {
        let mut queue = Queue::new(false);
        let huge = Request { costs: Costs::plain(u64::MAX), ..request(Priority::NORMAL) };
        let ids = [(); 3].map(|()| queue.push(&huge, Waker::noop().clone(), true));
        assert_eq!(queue.units_ahead_of(Priority::LOW), u64::MAX);
        for id in ids {
            queue.abandon(id);
        }
        assert_eq!(queue.units_ahead_of(Priority::LOW), 0);
    }
}
