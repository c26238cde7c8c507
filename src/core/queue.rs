//! The waiters, by priority and then in arrival order: the request of each, and the slot for its answer.
//!
//! An entry is also its caller's *out* channel: it holds the answer, and only the owner of the index takes it out. So a permit
//! reaches the caller that it was granted to, and an abandoned one is found by the same index.

use std::cmp::Reverse;
use std::task::Waker;

use crate::core::arena::{Arena, Index};
use crate::core::deadlines::{Deadline, Deadlines};
use crate::core::grant::Grant;
use crate::core::levels::Levels;
use crate::core::request::{Caller, Request};
use crate::error::AcquireError;
use crate::overflow::Overflow;
use crate::priority::Priority;
use crate::strategy::Moment;

#[derive(Debug)]
enum Answer {
    Waiting { waker: Waker, deadline: Moment },
    Granted(Grant),
    Failed(AcquireError),
}

#[derive(Debug)]
struct Waiter {
    slot: Answer,
    cost: u64,
    caller: Caller,
    /// Arrival order over all priorities; compared modulo 2^32, enough to find the oldest.
    arrival: u32,
    priority: Priority,
    blocking: bool,
}

#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnswerKind {
    Granted,
    Failed,
}

/// The waiter that is next.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Front {
    pub(crate) index: Index,
    pub(crate) cost: u64,
    pub(crate) caller: Caller,
    pub(crate) blocking: bool,
}

/// The state of a request whose owner gave it up.
#[derive(Debug)]
pub(crate) enum Abandoned {
    /// It was waiting; the waker must be dropped outside every lock.
    Waiting(Waker),
    /// It had been granted, and the grant was not taken.
    Granted(Grant, u64),
    Failed,
}

#[derive(Debug)]
pub(crate) struct Queue {
    arena: Arena<Waiter>,
    len: usize,
    /// A bit for each priority with a waiter.
    occupied: u16,
    arrivals: u32,
    levels: Levels,
    deadlines: Deadlines,
    /// The next waiter of a [sweep](Queue::sweep).
    swept_to: Option<Index>,
}

impl Queue {
    pub(crate) const MAX_LEN: usize = Arena::<Waiter>::MAX_LEN / 2;

    pub(crate) const fn new() -> Self {
        Self {
            arena: Arena::new(),
            len: 0,
            occupied: 0,
            arrivals: 0,
            levels: Levels::new(),
            deadlines: Deadlines::new(),
            swept_to: None,
        }
    }

    /// Waiters without an answer.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub(crate) fn push(&mut self, request: &Request, waker: Waker) -> Index {
        let &Request { cost, priority, deadline, caller, blocking } = request;
        self.arrivals = self.arrivals.wrapping_add(1);
        let slot = Answer::Waiting { waker, deadline };
        let waiter = Waiter { slot, cost, caller, arrival: self.arrivals, priority, blocking };
        let level = self.levels.get_mut(usize::from(priority.level()));
        let index = self.arena.insert_back(&mut level.waiting, waiter);
        level.units = level.units.saturating_add(cost);
        self.occupied |= 1 << priority.level();
        self.len += 1;
        if deadline != Moment::NEVER {
            let deadline = Deadline { at: deadline, priority: Reverse(priority), arrival: self.arrivals, index };
            self.deadlines.insert(deadline, cost);
        }
        index
    }

    /// The waiter that is next.
    pub(crate) fn front(&self) -> Option<Front> {
        let level = self.occupied.checked_ilog2()? as usize;
        let index = self.levels.get(level).waiting.front()?;
        let &Waiter { cost, caller, blocking, .. } = self.arena.get(index)?;
        Some(Front { index, cost, caller, blocking })
    }

    /// Whether a new request of this priority goes before all waiters.
    pub(crate) fn would_be_front(&self, priority: Priority) -> bool {
        self.occupied >> priority.level() == 0
    }

    pub(crate) fn is_front(&self, index: Index) -> bool {
        self.occupied.checked_ilog2().is_some_and(|level| self.levels.get(level as usize).waiting.front() == Some(index))
    }

    /// Units of the waiters of at least this priority, which go before a new request of it.
    pub(crate) fn units_ahead_of(&self, priority: Priority) -> u64 {
        self.levels.iter_from(usize::from(priority.level())).fold(0, |sum, level| sum.saturating_add(level.units))
    }

    pub(crate) fn has_deadlines(&self) -> bool {
        !self.deadlines.is_empty()
    }

    #[inline(always)]
    pub(crate) fn next_deadline(&self) -> Moment {
        self.deadlines.first().map_or(Moment::NEVER, |first| first.at)
    }

    /// The first waiter whose deadline has passed.
    pub(crate) fn expired(&self, now: Moment) -> Option<Index> {
        self.deadlines.first().filter(|first| first.at <= now).map(|first| first.index)
    }

    /// Units that certainly go before a new request of this priority and deadline, if no waiter gives up. A waiter with an
    /// earlier deadline may time out, so it is not counted; if many have deadlines, some that stay are not counted either.
    pub(crate) fn units_surely_ahead_of(&self, priority: Priority, deadline: Moment) -> u64 {
        /// The number of deadlines that are checked.
        const MAX_CHECKED: usize = 64;
        let ahead = self.units_ahead_of(priority);
        let cost_ahead = |other: &Deadline| match self.arena.get(other.index) {
            Some(waiter) if waiter.priority >= priority => u128::from(waiter.cost),
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
    pub(crate) fn deadline(&self, index: Index) -> Moment {
        match self.arena.get(index) {
            Some(Waiter { slot: Answer::Waiting { deadline, .. }, .. }) => *deadline,
            _ => Moment::NEVER,
        }
    }

    /// The waiter that is dropped for a new request of `priority` when the queue is full.
    pub(crate) fn victim(&self, overflow: Overflow, priority: Priority) -> Option<Index> {
        match overflow {
            Overflow::Reject | Overflow::Block { .. } => None,
            Overflow::DropOldest => {
                let heads = self.levels.iter_from(0).filter_map(|level| level.waiting.front());
                heads.max_by_key(|index| self.arena.get(*index).map_or(0, |waiter| self.arrivals.wrapping_sub(waiter.arrival)))
            }
            Overflow::DropLowestPriority => {
                let lowest = self.occupied.trailing_zeros() as usize;
                (lowest < usize::from(priority.level())).then(|| self.levels.get(lowest).waiting.back()).flatten()
            }
        }
    }

    /// Puts a grant into the slot of a waiter; its waker is to be woken outside every lock.
    #[inline]
    pub(crate) fn grant(&mut self, index: Index, grant: Grant) -> Option<Waker> {
        self.answer(index, Answer::Granted(grant))
    }

    /// Puts a refusal into the slot of a waiter; its waker is to be woken outside every lock.
    pub(crate) fn refuse(&mut self, index: Index, error: AcquireError) -> Option<Waker> {
        self.answer(index, Answer::Failed(error))
    }

    /// Takes the answer out, if there is one; then the index is spent. `Err`: there is none; the value says whether the slot has
    /// another waker, which `waker` must replace. See [`Queue::replace_waker`].
    pub(crate) fn poll(&mut self, index: Index, waker: &Waker) -> Result<Result<Grant, AcquireError>, bool> {
        let waiter = self.arena.get_mut(index).expect("an index is valid until its owner has its answer");
        let answer = match &mut waiter.slot {
            Answer::Waiting { waker: current, .. } => return Err(!current.will_wake(waker)),
            Answer::Granted(grant) => Ok(*grant),
            Answer::Failed(error) => Err(error.clone()),
        };
        self.arena.discard(index);
        Ok(answer)
    }

    /// Sets the waker to be woken with the answer and returns the one that it replaces. `Err`, if the request was answered,
    /// returns `waker`. Either must be woken or dropped outside every lock.
    pub(crate) fn replace_waker(&mut self, index: Index, waker: Waker) -> Result<Waker, Waker> {
        match self.arena.get_mut(index).map(|waiter| &mut waiter.slot) {
            Some(Answer::Waiting { waker: current, .. }) => Ok(std::mem::replace(current, waker)),
            _ => Err(waker),
        }
    }

    /// Takes the waker of a waiter. When it is woken, its task polls again and leaves another one.
    pub(crate) fn take_waker(&mut self, index: Index) -> Option<Waker> {
        self.replace_waker(index, Waker::noop().clone()).ok()
    }

    /// [`Queue::take_waker`] of all waiters but one, in order.
    pub(crate) fn take_wakers(&mut self, except: Option<Index>) -> Vec<Waker> {
        let levels: Vec<_> = self.levels.iter_from(0).rev().collect();
        let indexes: Vec<Index> = levels.iter().flat_map(|level| self.arena.indexes(&level.waiting)).collect();
        indexes.into_iter().filter(|index| Some(*index) != except).filter_map(|index| self.take_waker(index)).collect()
    }

    /// The owner gives its request up; the index is spent.
    pub(crate) fn abandon(&mut self, index: Index) -> Abandoned {
        if let Some(waker) = self.answer(index, Answer::Failed(AcquireError::Closed)) {
            self.arena.discard(index);
            return Abandoned::Waiting(waker);
        }
        let waiter = self.arena.remove(index);
        match waiter.slot {
            Answer::Granted(grant) => Abandoned::Granted(grant, waiter.cost),
            _ => Abandoned::Failed,
        }
    }

    /// The request of a waiter.
    pub(crate) fn request(&self, index: Index) -> Option<Request> {
        match self.arena.get(index)? {
            &Waiter { slot: Answer::Waiting { deadline, .. }, cost, caller, priority, blocking, .. } => {
                Some(Request { cost, priority, deadline, caller, blocking })
            }
            _ => None,
        }
    }

    /// Starts a sweep of all waiters, in order; see [`Queue::next_above`].
    pub(crate) fn sweep(&mut self) {
        self.swept_to = self.first_below(Priority::LEVELS);
    }

    pub(crate) fn is_swept(&self) -> bool {
        self.swept_to.is_none()
    }

    /// The next waiter of the sweep whose cost is above `max`, with that cost. Each waiter that is visited takes one of the
    /// `steps`; when none is left, the sweep stops, and continues there the next time.
    pub(crate) fn next_above(&mut self, max: u64, steps: &mut usize) -> Option<(Index, u64)> {
        while *steps > 0 {
            let index = self.swept_to?;
            *steps -= 1;
            self.swept_to = self.after(index);
            if let Some(cost) = self.arena.get(index).map(|waiter| waiter.cost).filter(|cost| *cost > max) {
                return Some((index, cost));
            }
        }
        None
    }

    #[cfg(test)]
    pub(crate) fn next_in_sweep(&self) -> Option<Index> {
        self.swept_to
    }

    /// All waiters, in order, with their costs and deadlines.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (Index, u64, Moment)> {
        let indexes = std::iter::successors(self.first_below(Priority::LEVELS), |index| self.after(*index));
        indexes.filter_map(|index| match self.arena.get(index)? {
            &Waiter { slot: Answer::Waiting { deadline, .. }, cost, .. } => Some((index, cost, deadline)),
            _ => None,
        })
    }

    /// The next waiter in the queue.
    fn after(&self, index: Index) -> Option<Index> {
        let level = || self.arena.get(index).map_or(0, |waiter| usize::from(waiter.priority.level()));
        self.arena.after(index).or_else(|| self.first_below(level()))
    }

    /// The first waiter of all levels below this one.
    fn first_below(&self, level: usize) -> Option<Index> {
        (0..level).rev().map(|level| self.levels.get(level)).find_map(|level| level.waiting.front())
    }

    /// The answer in a slot; `None` while the request waits.
    #[cfg(test)]
    pub(crate) fn peek(&self, index: Index) -> Option<AnswerKind> {
        match self.arena.get(index)?.slot {
            Answer::Waiting { .. } => None,
            Answer::Granted(_) => Some(AnswerKind::Granted),
            Answer::Failed(_) => Some(AnswerKind::Failed),
        }
    }

    /// Puts an answer into the slot of a waiter, and takes the waiter out of its list and out of all sums. `None`, without a
    /// change, when it has an answer already.
    fn answer(&mut self, index: Index, answer: Answer) -> Option<Waker> {
        let waiter = self.arena.get_mut(index)?;
        let (cost, priority, arrival) = (waiter.cost, waiter.priority, waiter.arrival);
        if !matches!(waiter.slot, Answer::Waiting { .. }) {
            return None;
        }
        let Answer::Waiting { waker, deadline } = std::mem::replace(&mut waiter.slot, answer) else { return None };
        if self.swept_to == Some(index) {
            self.swept_to = self.after(index);
        }
        let level = self.levels.get_mut(usize::from(priority.level()));
        self.arena.unlink(&mut level.waiting, index);
        level.units = level.units.saturating_sub(cost);
        if level.waiting.front().is_none() {
            level.units = 0;
            self.occupied &= !(1 << priority.level());
        }
        self.len -= 1;
        if deadline != Moment::NEVER {
            self.deadlines.remove(&Deadline { at: deadline, priority: Reverse(priority), arrival, index }, cost);
        }
        Some(waker)
    }
}

fn saturating(units: u128) -> u64 {
    u64::try_from(units).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::panic::Location;

    use super::*;

    fn request(priority: Priority) -> Request {
        Request { cost: 1, priority, deadline: Moment::NEVER, caller: Location::caller(), blocking: false }
    }

    /// What the `peers` benchmark measures as "heap per waiter": the whole entry with its links stays within a cache line.
    #[test]
    fn an_entry_takes_at_most_64_bytes() {
        assert!(size_of::<Option<Waiter>>() + 2 * size_of::<u32>() <= 64, "{}", size_of::<Option<Waiter>>());
    }

    #[test]
    fn victims_follow_the_overflow_rule() {
        let mut queue = Queue::new();
        let indexes = [Priority::NORMAL, Priority::LOW, Priority::HIGH, Priority::LOW]
            .map(|p| queue.push(&request(p), Waker::noop().clone()));
        assert_eq!(queue.victim(Overflow::Reject, Priority::HIGHEST), None);
        assert_eq!(queue.victim(Overflow::DropOldest, Priority::LOWEST), Some(indexes[0]));
        assert_eq!(queue.victim(Overflow::DropLowestPriority, Priority::NORMAL), Some(indexes[3]));
        assert_eq!(queue.victim(Overflow::DropLowestPriority, Priority::LOW), None);
        queue.abandon(indexes[0]);
        assert_eq!(queue.victim(Overflow::DropOldest, Priority::LOWEST), Some(indexes[1]));
    }

    #[test]
    fn sums_of_huge_costs_saturate_and_recover() {
        let mut queue = Queue::new();
        let huge = Request { cost: u64::MAX, ..request(Priority::NORMAL) };
        let indexes = [(); 3].map(|()| queue.push(&huge, Waker::noop().clone()));
        assert_eq!(queue.units_ahead_of(Priority::LOW), u64::MAX);
        for index in indexes {
            queue.abandon(index);
        }
        assert_eq!(queue.units_ahead_of(Priority::LOW), 0);
    }
}
