//! The waiters of one priority, in arrival order, and a line of them for each priority.
//!
//! They stand in chunks rather than in one growing deque: a queue of a million waiters is never copied under a lock, a waiter that
//! leaves from the middle moves at most half a chunk, and memory follows what is used. The first chunk grows from one waiter,
//! because each of a million keys may have one.

use std::collections::VecDeque;
use std::ptr;
use std::task::Waker;

use crate::core::queue::waiter::{Waiter, WaiterId};
use crate::core::request::Caller;
use crate::priority::Priority;
use crate::strategy::Moment;

/// Waiters in a chunk: large enough that the deque of chunks is small beside them, small enough that one is quickly allocated and
/// compacted.
const CHUNK: usize = 64;
/// Neighbouring chunks with this many waiters in total are merged. So all chunks but two are a quarter full on average.
const MERGED: usize = CHUNK / 2;
/// A line that had at most this many waiters keeps their memory when it is empty, because it is usually filled again.
const KEPT: usize = 8;

#[derive(Debug)]
struct Chunk {
    waiters: VecDeque<Waiter>,
    /// The caller of all waiters here that are not among the exceptions.
    caller: Caller,
    /// The deadline and the caller of each waiter here, written out where one has a deadline or another caller. Most lines need none.
    #[expect(
        clippy::box_collection,
        reason = "most chunks have none: it keeps a chunk small"
    )]
    exceptions: Option<Box<VecDeque<(Moment, Caller)>>>,
}

impl Chunk {
    fn new(capacity: usize, caller: Caller) -> Self {
        Self {
            waiters: VecDeque::with_capacity(capacity),
            caller,
            exceptions: None,
        }
    }

    #[inline(always)]
    fn push(&mut self, waiter: Waiter, deadline: Moment, caller: Caller) {
        if deadline != Moment::NEVER || !ptr::eq(caller, self.caller) || self.exceptions.is_some() {
            self.push_exception(deadline, caller);
        }
        let Waiter { id, cost, waker } = waiter;
        self.push_words(id, cost, waker);
    }

    /// Not inlined, so that the words come in registers. A waiter that was written word by word and is then moved as a block stalls the
    /// processor.
    #[inline(never)]
    fn push_words(&mut self, id: WaiterId, cost: u64, waker: Waker) {
        self.waiters.push_back(Waiter { id, cost, waker });
    }

    #[inline(never)]
    fn push_exception(&mut self, deadline: Moment, caller: Caller) {
        let others = self.waiters.len();
        if others == 0 {
            self.caller = caller;
            self.exceptions = None;
            if deadline == Moment::NEVER {
                return;
            }
        }
        let exceptions = self.exceptions.get_or_insert_default();
        exceptions.resize(others, (Moment::NEVER, self.caller));
        exceptions.push_back((deadline, caller));
    }

    #[inline(always)]
    fn deadline_and_caller(&self, nth: usize) -> (Moment, Caller) {
        match &self.exceptions {
            None => (Moment::NEVER, self.caller),
            Some(exceptions) => exceptions[nth],
        }
    }

    #[inline(always)]
    fn pop(&mut self) -> Option<(Waiter, Moment)> {
        let waiter = self.waiters.pop_front()?;
        Some((waiter, self.remove_exception(0)))
    }

    fn remove(&mut self, nth: usize) -> Option<(Waiter, Moment)> {
        Some((self.waiters.remove(nth)?, self.remove_exception(nth)))
    }

    /// Returns the deadline.
    #[inline(always)]
    fn remove_exception(&mut self, nth: usize) -> Moment {
        self.exceptions
            .as_mut()
            .and_then(|exceptions| exceptions.remove(nth))
            .map_or(Moment::NEVER, |(deadline, _)| deadline)
    }

    fn append(&mut self, mut other: Self) {
        while !other.waiters.is_empty() {
            let (_, caller) = other.deadline_and_caller(0);
            if let Some((waiter, deadline)) = other.pop() {
                self.push(waiter, deadline, caller);
            }
        }
    }

    fn iter(&self) -> impl DoubleEndedIterator<Item = (&Waiter, Moment)> {
        self.waiters
            .iter()
            .enumerate()
            .map(|(nth, waiter)| (waiter, self.deadline_and_caller(nth).0))
    }
}

/// Only the last chunk may be empty; it is filled again, so that a line that grows and shrinks by one waiter does not allocate each
/// time.
#[derive(Debug, Default)]
pub(crate) struct WaitingLine {
    chunks: VecDeque<Chunk>,
    /// The units that the waiters request.
    units: u64,
}

impl WaitingLine {
    /// The units that the waiters request. The sum of huge costs saturates, so after some leave it may be too low.
    pub(crate) fn units(&self) -> u64 {
        self.units
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, waiter: Waiter, deadline: Moment, caller: Caller) {
        self.units = self.units.saturating_add(waiter.cost);
        match self.chunks.back_mut() {
            Some(last) if last.waiters.len() < last.waiters.capacity().min(CHUNK) => {
                last.push(waiter, deadline, caller);
            }
            _ => self.grow(caller).push(waiter, deadline, caller),
        }
    }

    /// A chunk with room at the end, for a waiter of this caller.
    #[inline(never)]
    fn grow(&mut self, caller: Caller) -> &mut Chunk {
        if self.chunks.is_empty() {
            self.chunks.reserve_exact(1); // most lines have one waiter
            self.chunks.push_back(Chunk::new(1, caller));
        } else if self.chunks.len() == 1 && self.chunks[0].waiters.len() < CHUNK {
            let waiters = &mut self.chunks[0].waiters;
            waiters.reserve_exact(waiters.len().clamp(1, CHUNK - waiters.len()));
        } else {
            self.chunks.push_back(Chunk::new(CHUNK, caller));
        }
        self.chunks.back_mut().expect("pushed")
    }

    #[inline(always)]
    pub(crate) fn front(&self) -> Option<&Waiter> {
        self.chunks.front()?.waiters.front()
    }

    #[inline(always)]
    pub(crate) fn front_and_caller(&self) -> Option<(&Waiter, Caller)> {
        let first = self.chunks.front()?;
        Some((first.waiters.front()?, first.deadline_and_caller(0).1))
    }

    pub(crate) fn back(&self) -> Option<&Waiter> {
        self.chunks
            .iter()
            .rev()
            .find_map(|chunk| chunk.waiters.back())
    }

    pub(crate) fn get(&self, id: WaiterId) -> Option<&Waiter> {
        let (number, nth) = self.find(id)?;
        self.chunks[number].waiters.get(nth)
    }

    pub(crate) fn get_mut(&mut self, id: WaiterId) -> Option<&mut Waiter> {
        let (number, nth) = self.find(id)?;
        self.chunks[number].waiters.get_mut(nth)
    }

    /// `None` if the waiter no longer waits.
    pub(crate) fn deadline_and_caller(&self, id: WaiterId) -> Option<(Moment, Caller)> {
        let (number, nth) = self.find(id)?;
        Some(self.chunks[number].deadline_and_caller(nth))
    }

    /// Takes a waiter out, with its deadline. `None` if it no longer waits.
    #[inline(always)]
    pub(crate) fn remove(&mut self, id: WaiterId) -> Option<(Waiter, Moment)> {
        let removed = if self.front()?.id == id {
            self.pop()
        } else {
            self.remove_behind(id)
        };
        if let Some((waiter, _)) = &removed {
            self.units = self.units.saturating_sub(waiter.cost);
        }
        removed
    }

    /// Takes the first waiter out, if it asks for `cost`, without details; no waiter may have a deadline. Also returns whether it was
    /// the last one.
    #[inline(always)]
    pub(crate) fn pop_plain(&mut self, cost: u64) -> Option<(Waiter, bool)> {
        let first = self.chunks.front_mut()?;
        let front = first.waiters.front()?;
        if front.cost != cost || front.id.has_details() {
            return None;
        }
        let (waiter, _) = first.pop()?;
        self.units = self.units.saturating_sub(cost);
        let is_last = first.waiters.is_empty() && {
            self.drop_first();
            self.front().is_none()
        };
        Some((waiter, is_last))
    }

    #[inline(always)]
    fn pop(&mut self) -> Option<(Waiter, Moment)> {
        let first = self.chunks.front_mut()?;
        let removed = first.pop();
        if first.waiters.is_empty() {
            self.drop_first();
        }
        removed
    }

    #[inline(never)]
    fn remove_behind(&mut self, id: WaiterId) -> Option<(Waiter, Moment)> {
        let (number, nth) = self.find(id)?;
        let removed = self.chunks[number].remove(nth);
        if self.chunks[number].waiters.is_empty() && number + 1 < self.chunks.len() {
            self.chunks.remove(number);
        } else {
            self.merge(number);
        }
        if number > 0 {
            self.merge(number - 1);
        }
        removed
    }

    /// Drops the first chunk, which is empty, or shrinks it if it is the only one.
    #[inline(never)]
    fn drop_first(&mut self) {
        if self.chunks.len() > 1 {
            self.chunks.pop_front();
        }
        if self.front().is_none() {
            self.units = 0;
            let Chunk {
                waiters,
                exceptions,
                ..
            } = &mut self.chunks[0];
            *exceptions = None;
            if waiters.capacity() > KEPT {
                waiters.shrink_to(waiters.capacity() / 2);
                self.chunks.shrink_to(1);
            }
        }
    }

    /// Puts the waiters of a chunk and of the next one into one chunk, if they are few.
    fn merge(&mut self, number: usize) {
        if let Some(next) = self.chunks.get(number + 1)
            && self.chunks[number].waiters.len() + next.waiters.len() <= MERGED
            && let Some(next) = self.chunks.remove(number + 1)
        {
            self.chunks[number].append(next);
        }
    }

    /// All waiters with their deadlines.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (&Waiter, Moment)> {
        self.chunks.iter().flat_map(Chunk::iter)
    }

    /// The chunk of a waiter, if none behind the first chunk has left, and all requests since have joined this line. A search that begins
    /// in the middle of a long line waits for memory a dozen times.
    fn likely_chunk(&self, id: WaiterId, front: WaiterId) -> usize {
        let chunk = CHUNK as u64;
        let in_first = self.chunks.front().map_or(0, |first| first.waiters.len());
        let behind_first = id.arrivals_since(front) + chunk - in_first as u64;
        usize::try_from(behind_first / chunk).unwrap_or(usize::MAX)
    }

    /// The chunk of a waiter, and its place in it.
    fn find(&self, id: WaiterId) -> Option<(usize, usize)> {
        let front = self.front()?.id;
        let arrival = id.since(front);
        if arrival == 0 {
            return Some((0, 0));
        }
        let begins_by_then = |chunk: &Chunk| {
            chunk
                .waiters
                .front()
                .is_some_and(|first| first.id.since(front) <= arrival)
        };
        let count = partition_point_near(
            self.likely_chunk(id, front).saturating_add(1),
            self.chunks.len(),
            |number| begins_by_then(&self.chunks[number]),
        );
        let number = count - 1; // the first one does
        let waiters = &self.chunks[number].waiters;
        let behind = id.arrivals_since(waiters.front()?.id);
        let behind = usize::try_from(behind).unwrap_or(usize::MAX);
        let nth = partition_point_near(behind, waiters.len(), |nth| {
            waiters[nth].id.since(front) < arrival
        });
        (waiters.get(nth)?.id == id).then_some((number, nth))
    }
}

/// The number of the first indices below `len` for which `holds`, if it holds for no later one. The closer the guess, the fewer are tried:
/// two for the right one. (Bentley and Yao, 1976, "An almost optimal algorithm for unbounded searching".)
fn partition_point_near(guess: usize, len: usize, mut holds: impl FnMut(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, len);
    let mut step = 0;
    while low < high {
        let index = match (low > 0, high < len) {
            (false, false) => guess.clamp(1, len) - 1,
            (true, false) => (low - 1).saturating_add(step).min(len - 1),
            (false, true) => high.saturating_sub(step),
            (true, true) => low.midpoint(high),
        };
        if holds(index) {
            low = index + 1;
        } else {
            high = index;
        }
        step = step.saturating_mul(2).max(1);
    }
    low
}

/// A line for each priority. Most queues have only that of [`Priority::NORMAL`], and each of a million keys may have a queue: another
/// line is allocated when it is used.
#[derive(Debug, Default)]
pub(crate) struct Levels {
    normal: WaitingLine,
    others: Option<Box<[Option<Box<WaitingLine>>; Priority::LEVELS]>>,
}

impl Levels {
    /// The line of a level; `None` if it was never used.
    #[inline(always)]
    pub(crate) fn get(&self, level: usize) -> Option<&WaitingLine> {
        if level == usize::from(Priority::NORMAL.level()) {
            return Some(&self.normal);
        }
        self.others.as_ref()?[level].as_deref()
    }

    #[inline(always)]
    pub(crate) fn get_mut(&mut self, level: usize) -> &mut WaitingLine {
        if level == usize::from(Priority::NORMAL.level()) {
            return &mut self.normal;
        }
        self.others.get_or_insert_default()[level].get_or_insert_default()
    }

    /// The lines from the level `from` to the highest.
    pub(crate) fn iter_from(&self, from: usize) -> impl DoubleEndedIterator<Item = &WaitingLine> {
        (from..Priority::LEVELS).filter_map(|level| self.get(level))
    }
}

#[cfg(test)]
mod tests {
    use std::panic::Location;
    use std::task::Waker;

    use proptest::prelude::*;

    use super::*;

    fn id(arrival: u64) -> WaiterId {
        WaiterId::new(arrival, Priority::NORMAL, false, None, None)
    }

    fn waiter(id: WaiterId) -> Waiter {
        Waiter {
            id,
            cost: 1,
            waker: Waker::noop().clone(),
        }
    }

    fn callers() -> [Caller; 3] {
        [Location::caller(), Location::caller(), Location::caller()]
    }

    impl WaitingLine {
        /// The waiters that there is memory for.
        fn capacity(&self) -> usize {
            self.chunks
                .iter()
                .map(|chunk| chunk.waiters.capacity())
                .sum()
        }

        fn push_plain(&mut self, arrival: u64) {
            self.push(waiter(id(arrival)), Moment::NEVER, callers()[0]);
        }

        fn filled(len: u64) -> Self {
            let mut line = Self::default();
            (0..len).for_each(|arrival| line.push_plain(arrival));
            line
        }
    }

    proptest! {
        #![proptest_config(crate::replay::cases(256))]

        #[test]
        fn a_line_behaves_as_a_list_with_removal_in_the_middle(
            phases in prop::collection::vec(
                (0..300_usize, any::<bool>(), 1..4_u64, 0..300_usize, prop::collection::vec(any::<prop::sample::Index>(), 300)),
                1..8,
            ),
        ) {
            let mut line = WaitingLine::default();
            let mut model: Vec<(WaiterId, Moment, Caller)> = Vec::new();
            let mut arrival = u64::MAX - 100; // the count wraps
            for (joining, timed, sites, leaving, picks) in phases {
                for nth in 0..joining {
                    arrival = arrival.wrapping_add(1);
                    let deadline = if timed && nth % 3 == 0 { Moment::from_nanos(arrival) } else { Moment::NEVER };
                    let caller = callers()[(arrival % sites) as usize];
                    line.push(waiter(id(arrival)), deadline, caller);
                    model.push((id(arrival), deadline, caller));
                }
                for pick in picks.into_iter().take(leaving.min(model.len())) {
                    let (id, deadline, caller) = model.remove(pick.index(model.len()));
                    let found = (line.get(id).map(|waiter| waiter.id), line.deadline_and_caller(id));
                    prop_assert_eq!(found, (Some(id), Some((deadline, caller))));
                    prop_assert_eq!(line.remove(id).map(|(waiter, deadline)| (waiter.id, deadline)), Some((id, deadline)));
                    prop_assert!(line.get(id).is_none() && line.remove(id).is_none());
                    prop_assert!(line.deadline_and_caller(id).is_none());
                }
                let timed = model.iter().map(|&(id, deadline, _)| (id, deadline));
                prop_assert!(line.iter().map(|(waiter, deadline)| (waiter.id, deadline)).eq(timed));
                prop_assert!(model.iter().all(|&(id, deadline, caller)| line.deadline_and_caller(id) == Some((deadline, caller))));
                prop_assert_eq!(line.units(), model.len() as u64);
                let front = line.front_and_caller().map(|(waiter, caller)| (waiter.id, caller));
                prop_assert_eq!(front, model.first().map(|&(id, _, caller)| (id, caller)));
                prop_assert_eq!(line.back().map(|waiter| waiter.id), model.last().map(|waiter| waiter.0));
                prop_assert!(line.capacity() <= 4 * model.len() + 3 * CHUNK, "{} for {}", line.capacity(), model.len());
            }
        }
    }

    /// A waiter that gives up is found at once, however long the line is.
    #[test]
    fn the_chunk_of_a_waiter_follows_from_its_arrival() {
        let mut line = WaitingLine::filled(1_000);
        for front in 0..500 {
            for arrival in front..1_000 {
                let chunk = line.find(id(arrival)).map(|(number, _)| number);
                assert_eq!(chunk, Some(line.likely_chunk(id(arrival), id(front))));
            }
            line.pop();
        }
    }

    #[test]
    fn a_search_from_a_guess_tries_few_indices() {
        for len in 0..40 {
            for (point, guess) in
                (0..=len).flat_map(|point| (0..50).map(move |guess| (point, guess)))
            {
                let mut tries = 0;
                let found = partition_point_near(guess, len, |index| {
                    tries += 1;
                    index < point
                });
                assert_eq!(found, point, "of {len}, near {guess}");
                let most = match point.abs_diff(guess.min(len)) {
                    0 => 2,
                    distance => 4 + 2 * distance.ilog2(),
                };
                assert!(tries <= most, "{tries} of {len}: {point}, near {guess}");
            }
        }
        assert_eq!(
            partition_point_near(usize::MAX, 1_000, |index| index < 7),
            7
        );
    }

    /// Waiters with one caller and without deadlines, as most are, take memory for nothing else.
    #[test]
    fn callers_are_written_out_only_where_they_differ() {
        let [one, other, _] = callers();
        let mut line = WaitingLine::filled(2 * CHUNK as u64);
        assert!(
            size_of::<Chunk>() <= 48 && line.chunks.iter().all(|chunk| chunk.exceptions.is_none())
        );
        for arrival in 0..2 * CHUNK as u64 {
            line.remove(id(arrival));
        }
        for (arrival, caller) in [(1_000, other), (1_001, other), (1_002, one)] {
            assert!(line.chunks[0].exceptions.is_none());
            line.push(waiter(id(arrival)), Moment::NEVER, caller);
        }
        assert!(
            line.chunks[0]
                .exceptions
                .as_ref()
                .is_some_and(|exceptions| exceptions.len() == 3)
        );
    }

    /// Each of a million keys may have a line for one waiter.
    #[test]
    fn one_waiter_takes_memory_for_one() {
        let mut line = WaitingLine::default();
        for arrival in 0..3 {
            line.push_plain(arrival);
            assert_eq!(line.capacity(), 1);
            line.remove(id(arrival));
        }
    }

    #[test]
    fn a_line_that_grows_doubles_its_memory_up_to_a_chunk() {
        for len in 1..=CHUNK {
            assert_eq!(
                WaitingLine::filled(len as u64).capacity(),
                len.next_power_of_two()
            );
        }
    }

    /// The chunks beside it are full, so it is not merged into one of them.
    #[test]
    fn a_chunk_that_becomes_empty_in_the_middle_is_dropped() {
        let chunk = CHUNK as u64;
        let mut line = WaitingLine::filled(3 * chunk);
        (chunk..2 * chunk).for_each(|arrival| _ = line.remove(id(arrival)));
        assert_eq!(line.capacity(), 2 * CHUNK);
        assert!((2 * chunk..3 * chunk).all(|arrival| line.get(id(arrival)).is_some()));
    }

    #[test]
    fn memory_goes_back_when_the_last_waiter_leaves() {
        let mut line = WaitingLine::filled(10_000);
        assert_eq!(line.capacity(), 10_000_usize.next_multiple_of(CHUNK));
        for arrival in 0..10_000 {
            line.remove(id(arrival));
        }
        assert_eq!((line.capacity(), line.chunks.capacity()), (CHUNK / 2, 1));
        for _ in 0..8 {
            line.push_plain(0);
            line.remove(id(0));
        }
        assert_eq!(line.capacity(), KEPT, "memory follows what is used");
    }

    /// A line that had a peak keeps little of its memory while few wait, wherever they stand.
    #[test]
    fn the_few_that_remain_keep_few_chunks() {
        for kept in [
            &[0][..],
            &[1],
            &[63],
            &[64],
            &[5_000],
            &[9_999],
            &[0, 9_999],
            &[63, 64, 128, 9_000],
        ] {
            let mut line = WaitingLine::filled(10_000);
            (0..10_000)
                .filter(|arrival| !kept.contains(arrival))
                .for_each(|arrival| _ = line.remove(id(arrival)));
            assert!(
                line.capacity() <= 2 * CHUNK,
                "{} for {kept:?}",
                line.capacity()
            );
            assert!(
                line.iter()
                    .map(|(waiter, _)| waiter.id)
                    .eq(kept.iter().map(|arrival| id(*arrival)))
            );
        }
        let mut line = WaitingLine::filled(10_000);
        (0..10_000)
            .filter(|arrival| arrival % 64 != 7)
            .for_each(|arrival| _ = line.remove(id(arrival)));
        assert!(
            line.capacity() <= 4 * 157 + CHUNK,
            "{} for 157",
            line.capacity()
        );
    }

    /// No allocation for each waiter where a line grows and shrinks by one at the end of a chunk.
    #[test]
    fn a_waiter_that_comes_and_goes_keeps_its_chunk() {
        let mut line = WaitingLine::filled(CHUNK as u64);
        for arrival in 100..103 {
            line.push_plain(arrival);
            line.remove(id(arrival));
            assert_eq!(line.capacity(), 2 * CHUNK);
        }
    }
}
