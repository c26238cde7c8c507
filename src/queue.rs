//! Who waits: by priority, then in arrival order; what each asks for; and the slot through which each is answered.
//!
//! An entry is a caller's own *out* channel as well: the answer is put into it, and only its owner's key takes it out. So a
//! permit reaches the caller it was given to, and an abandoned one is found by the same key.

use std::collections::BTreeSet;
use std::task::Waker;
use std::time::Duration;

use crate::arena::{Arena, Key, List};
use crate::error::{AcquireError, PriorityError};
use crate::lease::{Admission, Caller};
use crate::strategy::Moment;

/// How urgent a request is: 0 to 9, higher first. Within one priority, first come, first served.
///
/// Priorities are strict: as long as more urgent requests wait, less urgent ones do too.
///
/// # Examples
///
/// ```
/// use tollgate::{Limiter, MaxConcurrency, Priority};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(MaxConcurrency::new(1))?;
/// let out = limiter.acquire().await?;
/// let mut normal = tokio_test::task::spawn(limiter.acquire());
/// let mut urgent = tokio_test::task::spawn(limiter.request().priority(Priority::HIGH).acquire());
/// assert!(normal.poll().is_pending() && urgent.poll().is_pending());
/// drop(out);
/// assert!(!normal.is_woken() && urgent.is_woken());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(u8);

impl Priority {
    /// 0: served when nobody else waits.
    pub const LOWEST: Self = Self(0);
    /// 2.
    pub const LOW: Self = Self(2);
    /// 5: what a request has that asks for none.
    pub const NORMAL: Self = Self(5);
    /// 7.
    pub const HIGH: Self = Self(7);
    /// 9.
    pub const HIGHEST: Self = Self(9);

    const LEVELS: usize = Self::HIGHEST.0 as usize + 1;

    /// A priority by its level, 0 to 9.
    ///
    /// # Errors
    ///
    /// [`PriorityError`] for a level above 9.
    ///
    /// ```
    /// use tollgate::Priority;
    ///
    /// assert_eq!(Priority::new(5)?, Priority::NORMAL);
    /// assert_eq!(Priority::new(10).unwrap_err().level, 10);
    /// # Ok::<(), tollgate::PriorityError>(())
    /// ```
    pub const fn new(level: u8) -> Result<Self, PriorityError> {
        if level <= Self::HIGHEST.0 { Ok(Self(level)) } else { Err(PriorityError { level, max: Self::HIGHEST.0 }) }
    }

    /// The level, 0 to 9. See [`Priority::new`].
    #[must_use]
    pub const fn level(self) -> u8 {
        self.0
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self::NORMAL
    }
}

/// Who goes when a full queue gets another request. See [`Builder::overflow`](crate::Builder::overflow) for an example.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Overflow {
    /// The newcomer is turned away with [`AcquireError::QueueFull`].
    #[default]
    Reject,
    /// Who has waited longest, whatever the priority, is dropped with [`AcquireError::Shed`].
    DropOldest,
    /// Who would be served last (the latest of the lowest priority) is dropped with [`AcquireError::Shed`], if it is less
    /// urgent than the newcomer; otherwise the newcomer is turned away with [`AcquireError::QueueFull`].
    DropLowestPriority,
    /// All who wait are dropped with [`AcquireError::Shed`], and nobody is accepted until nobody has come for as long as the
    /// penalty: whoever comes before is turned away with [`AcquireError::Blocked`], and starts it anew. (This is what the npm
    /// package *bottleneck* calls its strategy `BLOCK`.)
    Block {
        /// How long it must be quiet: any time. With zero the queue is dropped and the next one is accepted; after
        /// [`Duration::MAX`] nobody ever is.
        penalty: Duration,
    },
}

impl Overflow {
    /// Of [`Overflow::Block`]; zero for the others.
    pub(crate) fn penalty(self) -> Duration {
        match self {
            Self::Block { penalty } => penalty,
            _ => Duration::ZERO,
        }
    }
}

/// What a waiter asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub(crate) cost: u64,
    pub(crate) priority: Priority,
    /// [`Moment::NEVER`]: none.
    pub(crate) deadline: Moment,
    pub(crate) caller: Caller,
    /// The caller's own thread blocks, and keeps the time while he is at the front.
    pub(crate) on_own_thread: bool,
}

#[derive(Debug)]
enum Slot {
    Waiting { waker: Waker, deadline: Moment },
    Granted(Admission),
    Failed(AcquireError),
}

#[derive(Debug)]
struct Waiter {
    slot: Slot,
    cost: u64,
    caller: Caller,
    /// Arrival order over all priorities; compared modulo 2^32, enough to find the oldest.
    arrival: u32,
    priority: Priority,
    on_own_thread: bool,
}

#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Granted,
    Failed,
}

/// Who is next.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Front {
    pub(crate) key: Key,
    pub(crate) cost: u64,
    pub(crate) caller: Caller,
    pub(crate) on_own_thread: bool,
}

/// What became of a request whose owner gave it up.
#[derive(Debug)]
pub(crate) enum Abandoned {
    /// It was waiting; the waker must be dropped outside every lock.
    Waiting(Waker),
    /// It had been granted and nobody took the grant.
    Granted(Admission, u64),
    Failed,
}

/// Those of one priority. Answered waiters are in no list.
#[derive(Debug, Clone, Copy)]
struct Level {
    waiting: List,
    /// Units asked for.
    units: u64,
}

#[derive(Debug)]
pub(crate) struct Queue {
    arena: Arena<Waiter>,
    len: usize,
    /// A bit for each priority that somebody waits in.
    occupied: u16,
    arrivals: u32,
    levels: [Level; Priority::LEVELS],
    deadlines: BTreeSet<(Moment, Key)>,
}

impl Queue {
    pub(crate) const MAX_LEN: usize = Arena::<Waiter>::MAX_LEN / 2;

    pub(crate) const fn new() -> Self {
        Self {
            arena: Arena::new(),
            len: 0,
            occupied: 0,
            arrivals: 0,
            levels: [Level { waiting: List::EMPTY, units: 0 }; Priority::LEVELS],
            deadlines: BTreeSet::new(),
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
    pub(crate) fn push(&mut self, request: &Request, waker: Waker) -> Key {
        let &Request { cost, priority, deadline, caller, on_own_thread } = request;
        self.arrivals = self.arrivals.wrapping_add(1);
        let slot = Slot::Waiting { waker, deadline };
        let key = self.arena.insert(Waiter { slot, cost, caller, arrival: self.arrivals, priority, on_own_thread });
        let level = &mut self.levels[usize::from(priority.0)];
        self.arena.push_back(&mut level.waiting, key);
        level.units = level.units.saturating_add(cost);
        self.occupied |= 1 << priority.0;
        self.len += 1;
        if deadline != Moment::NEVER {
            self.deadlines.insert((deadline, key));
        }
        key
    }

    /// Who is next.
    pub(crate) fn front(&self) -> Option<Front> {
        let level = self.occupied.checked_ilog2()? as usize;
        let key = self.levels[level].waiting.front()?;
        let &Waiter { cost, caller, on_own_thread, .. } = self.arena.get(key)?;
        Some(Front { key, cost, caller, on_own_thread })
    }

    /// Whether a newcomer of this priority goes before all who wait.
    pub(crate) fn would_be_front(&self, priority: Priority) -> bool {
        self.occupied >> priority.0 == 0
    }

    pub(crate) fn is_front(&self, key: Key) -> bool {
        self.occupied.checked_ilog2().is_some_and(|level| self.levels[level as usize].waiting.front() == Some(key))
    }

    /// Units asked for by waiters of at least this priority: they go before a newcomer of it.
    pub(crate) fn units_ahead_of(&self, priority: Priority) -> u64 {
        self.levels[usize::from(priority.0)..].iter().fold(0, |sum, level| sum.saturating_add(level.units))
    }

    pub(crate) fn has_deadlines(&self) -> bool {
        !self.deadlines.is_empty()
    }

    #[inline(always)]
    pub(crate) fn next_deadline(&self) -> Moment {
        // Most queues have none: do not even look for the first.
        if self.deadlines.is_empty() { Moment::NEVER } else { self.deadlines.first().map_or(Moment::NEVER, |first| first.0) }
    }

    /// A waiter whose time is up, with its cost and priority.
    pub(crate) fn expired(&self, now: Moment) -> Option<(Key, u64, Priority)> {
        if self.deadlines.is_empty() {
            return None;
        }
        let (deadline, key) = *self.deadlines.first()?;
        self.arena.get(key).filter(|_| deadline <= now).map(|waiter| (key, waiter.cost, waiter.priority))
    }

    /// The waker of one who waits.
    pub(crate) fn waker(&self, key: Key) -> Option<Waker> {
        match &self.arena.get(key)?.slot {
            Slot::Waiting { waker, .. } => Some(waker.clone()),
            _ => None,
        }
    }

    /// [`Moment::NEVER`] when there is none, or the request was answered.
    pub(crate) fn deadline(&self, key: Key) -> Moment {
        match self.arena.get(key) {
            Some(Waiter { slot: Slot::Waiting { deadline, .. }, .. }) => *deadline,
            _ => Moment::NEVER,
        }
    }

    /// Who is to go for a newcomer of `priority` when the queue is full.
    pub(crate) fn victim(&self, overflow: Overflow, priority: Priority) -> Option<Key> {
        match overflow {
            Overflow::Reject | Overflow::Block { .. } => None,
            Overflow::DropOldest => {
                let heads = self.levels.iter().filter_map(|level| level.waiting.front());
                heads.max_by_key(|key| self.arena.get(*key).map_or(0, |waiter| self.arrivals.wrapping_sub(waiter.arrival)))
            }
            Overflow::DropLowestPriority => {
                let lowest = self.occupied.trailing_zeros() as usize;
                (lowest < usize::from(priority.0)).then(|| self.levels[lowest].waiting.back()).flatten()
            }
        }
    }

    /// Puts a grant into the slot of a waiter; wake him outside every lock.
    #[inline]
    pub(crate) fn grant(&mut self, key: Key, admission: Admission) -> Option<Waker> {
        self.answer(key, Slot::Granted(admission))
    }

    /// Puts a refusal into the slot of a waiter; wake him outside every lock.
    pub(crate) fn refuse(&mut self, key: Key, error: AcquireError) -> Option<Waker> {
        self.answer(key, Slot::Failed(error))
    }

    /// Takes the answer out, if there is one; then the key is spent. Otherwise `waker` will be woken, and the one that it
    /// replaces is handed back, to be dropped outside every lock.
    pub(crate) fn poll(&mut self, key: Key, waker: &Waker) -> Result<Result<Admission, AcquireError>, Option<Waker>> {
        let waiter = self.arena.get_mut(key).expect("a key is valid until its owner has his answer");
        let answer = match &mut waiter.slot {
            Slot::Waiting { waker: current, .. } => {
                return Err((!current.will_wake(waker)).then(|| std::mem::replace(current, waker.clone())));
            }
            Slot::Granted(admission) => Ok(*admission),
            Slot::Failed(error) => Err(error.clone()),
        };
        self.arena.discard(key);
        Ok(answer)
    }

    /// The owner gives his request up; the key is spent.
    pub(crate) fn abandon(&mut self, key: Key) -> Abandoned {
        if let Some(waker) = self.answer(key, Slot::Failed(AcquireError::Closed)) {
            self.arena.discard(key);
            return Abandoned::Waiting(waker);
        }
        let waiter = self.arena.remove(key);
        match waiter.slot {
            Slot::Granted(admission) => Abandoned::Granted(admission, waiter.cost),
            _ => Abandoned::Failed,
        }
    }

    /// What one who waits asked for.
    pub(crate) fn request(&self, key: Key) -> Option<Request> {
        match self.arena.get(key)? {
            &Waiter { slot: Slot::Waiting { deadline, .. }, cost, caller, priority, on_own_thread, .. } => {
                Some(Request { cost, priority, deadline, caller, on_own_thread })
            }
            _ => None,
        }
    }

    /// All who wait for more than `max` units, with what they wait for.
    pub(crate) fn costs_above(&self, max: u64) -> Vec<(Key, u64)> {
        let keys = self.levels.iter().rev().flat_map(|level| self.arena.keys(&level.waiting));
        keys.filter_map(|key| Some((key, self.arena.get(key)?.cost))).filter(|(_, cost)| *cost > max).collect()
    }

    /// The wakers of all who wait, in order.
    pub(crate) fn wakers(&self) -> impl Iterator<Item = &Waker> {
        let keys = self.levels.iter().rev().flat_map(|level| self.arena.keys(&level.waiting));
        keys.filter_map(|key| match &self.arena.get(key)?.slot {
            Slot::Waiting { waker, .. } => Some(waker),
            _ => None,
        })
    }

    /// What is in a slot; `None` while it waits.
    #[cfg(test)]
    pub(crate) fn peek(&self, key: Key) -> Option<Answer> {
        match self.arena.get(key)?.slot {
            Slot::Waiting { .. } => None,
            Slot::Granted(_) => Some(Answer::Granted),
            Slot::Failed(_) => Some(Answer::Failed),
        }
    }

    /// Puts an answer into the slot of one who waits, and takes him out of his list and out of all sums. `None`, and nothing
    /// done, when he has one already.
    fn answer(&mut self, key: Key, answer: Slot) -> Option<Waker> {
        let waiter = self.arena.get_mut(key)?;
        let (cost, priority) = (waiter.cost, waiter.priority);
        if !matches!(waiter.slot, Slot::Waiting { .. }) {
            return None;
        }
        let Slot::Waiting { waker, deadline } = std::mem::replace(&mut waiter.slot, answer) else { return None };
        let level = &mut self.levels[usize::from(priority.0)];
        self.arena.unlink(&mut level.waiting, key);
        level.units = level.units.saturating_sub(cost);
        if level.waiting.front().is_none() {
            level.units = 0;
            self.occupied &= !(1 << priority.0);
        }
        self.len -= 1;
        if deadline != Moment::NEVER {
            self.deadlines.remove(&(deadline, key));
        }
        Some(waker)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::Location;

    use super::*;

    fn request(priority: Priority) -> Request {
        Request { cost: 1, priority, deadline: Moment::NEVER, caller: Location::caller(), on_own_thread: false }
    }

    /// What PEERS measure as "heap a waiter": the whole entry with its links stays within a cache line.
    #[test]
    fn an_entry_takes_at_most_64_bytes() {
        assert!(size_of::<Option<Waiter>>() + 2 * size_of::<u32>() <= 64, "{}", size_of::<Option<Waiter>>());
    }

    #[test]
    fn victims_follow_the_overflow_rule() {
        let mut queue = Queue::new();
        let keys = [Priority::NORMAL, Priority::LOW, Priority::HIGH, Priority::LOW]
            .map(|p| queue.push(&request(p), Waker::noop().clone()));
        assert_eq!(queue.victim(Overflow::Reject, Priority::HIGHEST), None);
        assert_eq!(queue.victim(Overflow::DropOldest, Priority::LOWEST), Some(keys[0]));
        assert_eq!(queue.victim(Overflow::DropLowestPriority, Priority::NORMAL), Some(keys[3]));
        assert_eq!(queue.victim(Overflow::DropLowestPriority, Priority::LOW), None);
        queue.abandon(keys[0]);
        assert_eq!(queue.victim(Overflow::DropOldest, Priority::LOWEST), Some(keys[1]));
    }

    #[test]
    fn sums_of_huge_costs_saturate_and_recover() {
        let mut queue = Queue::new();
        let huge = Request { cost: u64::MAX, ..request(Priority::NORMAL) };
        let keys = [(); 3].map(|()| queue.push(&huge, Waker::noop().clone()));
        assert_eq!(queue.units_ahead_of(Priority::LOW), u64::MAX);
        for key in keys {
            queue.abandon(key);
        }
        assert_eq!(queue.units_ahead_of(Priority::LOW), 0);
    }
}
