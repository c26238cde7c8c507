//! Grants in the order of time, in chunks.
//!
//! Each entry holds a running total, as in a table of cumulative frequencies, so that the sum of the units until an instant and
//! the instant of the n-th unit take a binary search. In one long table, a refund would change all later totals, and to free the
//! memory of expired entries, all others would be moved. So the table is cut into chunks, as an unrolled linked list is (Shao,
//! Reppy, Appel 1994, "Unrolling lists"): the totals count from the beginning of their chunk, and chunks are freed one by one.
//!
//! For `n` entries in chunks of `c`: a grant takes O(1) amortised and O(c) at worst, because it drops entries of one chunk only. A
//! sum and a search take O(log n). A refund changes the rest of its chunk and one number of each later chunk: O(c + n / c).

use std::collections::VecDeque;

use super::super::Moment;

mod chunk;
pub(super) mod steps;
#[cfg(test)]
mod tests;

use chunk::Chunk;
pub(super) use chunk::{CHUNK, FEW};

/// The grants that may still count, oldest first, one entry an instant, each of at least one unit.
///
/// All units are numbered in the order of their grants. The numbers may wrap around; they differ by at most [`u64::MAX`].
#[derive(Debug, Clone)]
pub(crate) struct Grants {
    /// When the oldest entry was granted; [`Moment::NEVER`] if there is none.
    first: Moment,
    /// The number of the last unit before the oldest entry.
    start: u64,
    /// The number of the last unit.
    end: u64,
    /// The chunk that grants are appended to. Empty only if there are no entries.
    latest: Chunk,
    /// The chunks before it, if there are any.
    closed: Option<Box<Closed>>,
}

impl Default for Grants {
    fn default() -> Self {
        Self {
            first: Moment::NEVER,
            start: 0,
            end: 0,
            latest: Chunk::default(),
            closed: None,
        }
    }
}

impl Grants {
    /// From entries in the order of time. `None` if these cannot be the grants of a log.
    pub(crate) fn new(entries: Vec<(Moment, u64)>) -> Option<Self> {
        let mut grants = Self::default();
        for (at, units) in entries {
            let is_later = grants.last() < Some(at);
            if units == 0 || !is_later || grants.used().checked_add(units).is_none() {
                return None;
            }
            grants.push(at, units);
        }
        Some(grants)
    }

    /// Each entry with its units.
    pub(super) fn to_vec(&self) -> Vec<(Moment, u64)> {
        let mut entries = Vec::with_capacity(self.len());
        let mut before = self.start;
        for (at, end) in self.chunks().flat_map(Chunk::entries) {
            entries.push((at, end.wrapping_sub(before)));
            before = end;
        }
        entries
    }

    /// The units of all entries.
    #[inline(always)]
    pub(super) fn used(&self) -> u64 {
        self.end.wrapping_sub(self.start)
    }

    /// The number of entries.
    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.latest.len() + self.closed.as_ref().map_or(0, |closed| closed.len)
    }

    /// The entries that there is memory for.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.chunks().map(Chunk::memory).sum()
    }

    /// When the oldest entry was granted; [`Moment::NEVER`] if there is none.
    #[inline(always)]
    pub(super) fn first(&self) -> Moment {
        self.first
    }

    /// When the latest entry was granted.
    #[inline(always)]
    pub(super) fn last(&self) -> Option<Moment> {
        self.latest.last().map(|entry| entry.0)
    }

    /// The units of those granted at `last` or before.
    pub(super) fn units_until(&self, last: Moment) -> u64 {
        if self.last() <= Some(last) {
            return self.used();
        }
        let (number, index) = self.count(|(at, _)| at <= last);
        self.end_before(number, index).wrapping_sub(self.start)
    }

    /// When the `nth` of all units was granted, from 1.
    pub(super) fn granted_at(&self, nth: u64) -> Option<Moment> {
        let before = |(_, end): (Moment, u64)| end.wrapping_sub(self.start) < nth;
        if self.chunk(0).first().is_some_and(|entry| !before(entry)) {
            return Some(self.first);
        }
        let (number, index) = self.count(before);
        self.chunk(number).get(index).map(|entry| entry.0)
    }

    /// Adds `units`, at least one, to the latest entry if that is not older than `now`. The sum of all units must not exceed
    /// [`u64::MAX`].
    #[inline(always)]
    pub(super) fn push(&mut self, now: Moment, units: u64) {
        if self.latest.is_full() && self.last() < Some(now) {
            self.make_room();
        }
        self.first = self.first.min(now);
        self.end = self.end.wrapping_add(units);
        self.latest.push(now, self.end);
    }

    /// Drops those granted at `last` or before, of the oldest chunk only.
    #[inline(always)]
    pub(super) fn drop_some(&mut self, last: Moment) {
        let next = match &mut self.closed {
            Some(closed) => closed.drop_until(last, &mut self.start),
            None => self.latest.drop_until(last, &mut self.start),
        };
        match next {
            Some(first) => self.first = first,
            None => self.tidy(),
        }
        if self.closed.is_none() {
            self.latest.shrink();
        }
    }

    /// Joins the oldest entry with the next one, at the later instant.
    pub(super) fn join_oldest(&mut self) {
        match &mut self.closed {
            Some(closed) => closed.change(0, Chunk::join_first),
            None => self.latest.join_first(),
        }
        self.tidy();
    }

    /// Refunds up to `units` that were granted `at` this instant, if they may still count. Exact, as if they had never been granted,
    /// unless their entry was joined with a later one.
    pub(crate) fn take_back(&mut self, at: Moment, units: u64) {
        let (number, index) = self.count(|(granted, _)| granted < at);
        let Some((_, end)) = self.chunk(number).get(index).filter(|entry| entry.0 == at) else {
            return;
        };
        let had = end.wrapping_sub(self.end_before(number, index));
        let back = units.min(had);
        let take_back = |chunk: &mut Chunk| chunk.take_back(index, back, back == had);
        self.end = self.end.wrapping_sub(back);
        match &mut self.closed {
            Some(closed) if number < closed.chunks.len() => {
                self.latest.shift(back);
                closed.shift_after(number, back);
                closed.change(number, take_back);
                closed.join_sparse(number);
            }
            closed => {
                take_back(&mut self.latest);
                if self.latest.len() == 0
                    && let Some(latest) = closed.as_mut().and_then(|closed| closed.pop())
                {
                    self.latest = latest;
                }
            }
        }
        self.tidy();
    }

    /// Refunds up to `units`, the latest first.
    pub(crate) fn take_back_latest(&mut self, units: u64) {
        let left = self.used().saturating_sub(units);
        if left == 0 {
            *self = Self::default();
            return;
        }
        let (number, index) = self.count(|(_, end)| end.wrapping_sub(self.start) < left);
        if let Some(latest) = self
            .closed
            .as_mut()
            .and_then(|closed| closed.truncate(number))
        {
            self.latest = latest;
        }
        self.end = self.start.wrapping_add(left);
        self.latest.truncate(index, self.end);
        self.tidy();
    }

    fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        self.closed
            .iter()
            .flat_map(|closed| &closed.chunks)
            .chain([&self.latest])
    }

    /// The chunk of this number, from 0. The latest one if `number` is the count of the closed chunks.
    #[inline(always)]
    fn chunk(&self, number: usize) -> &Chunk {
        self.closed
            .as_ref()
            .and_then(|closed| closed.chunks.get(number))
            .unwrap_or(&self.latest)
    }

    /// The first entry that is not `early`: the number of its chunk, and its index in there.
    fn count(&self, early: impl Fn((Moment, u64)) -> bool) -> (usize, usize) {
        let number = self
            .closed
            .as_ref()
            .map_or(0, |closed| closed.count_early(&early));
        (number, self.chunk(number).count(early))
    }

    /// The number of the last unit before this entry.
    fn end_before(&self, number: usize, index: usize) -> u64 {
        let chunk = self.chunk(number);
        match index
            .checked_sub(1)
            .and_then(|previous| chunk.get(previous))
        {
            Some((_, end)) => end,
            None if number == 0 => self.start,
            None => chunk.before(),
        }
    }

    /// Starts a new latest chunk when the old one is full.
    #[cold]
    fn make_room(&mut self) {
        if !self.latest.make_room() {
            let full = std::mem::replace(&mut self.latest, Chunk::after(self.end));
            self.closed.get_or_insert_default().push(full);
        }
    }

    /// Restores the invariants after entries were removed.
    fn tidy(&mut self) {
        if self
            .closed
            .as_ref()
            .is_some_and(|closed| closed.chunks.is_empty())
        {
            self.closed = None;
        }
        self.first = self.chunk(0).first().map_or(Moment::NEVER, |entry| entry.0);
    }
}

/// Chunks that nothing is appended to, oldest first, none of them empty.
#[derive(Debug, Clone, Default)]
struct Closed {
    chunks: VecDeque<Chunk>,
    /// The number of their entries.
    len: usize,
}

impl Closed {
    /// How many chunks at the front have only `early` entries.
    fn count_early(&self, early: impl Fn((Moment, u64)) -> bool) -> usize {
        self.chunks.partition_point(|chunk| {
            steps::count();
            chunk.last().is_none_or(&early)
        })
    }

    fn push(&mut self, chunk: Chunk) {
        self.len += chunk.len();
        self.chunks.push_back(chunk);
    }

    fn pop(&mut self) -> Option<Chunk> {
        let chunk = self.chunks.pop_back()?;
        self.len -= chunk.len();
        Some(chunk)
    }

    /// [`Chunk::drop_until`] of the oldest chunk, which is freed if nothing is left of it.
    #[inline(always)]
    fn drop_until(&mut self, last: Moment, start: &mut u64) -> Option<Moment> {
        let oldest = self.chunks.front_mut()?;
        let before = oldest.len();
        let next = oldest.drop_until(last, start);
        self.len -= before - oldest.len();
        if next.is_none() {
            self.chunks.pop_front();
        }
        next
    }

    /// Changes a chunk, and removes it if that leaves no entry in it.
    fn change(&mut self, number: usize, change: impl FnOnce(&mut Chunk)) {
        let Some(chunk) = self.chunks.get_mut(number) else {
            return;
        };
        let before = chunk.len();
        change(chunk);
        self.len -= before - chunk.len();
        if chunk.len() == 0 {
            self.chunks.remove(number);
        }
    }

    /// Updates the later chunks after a refund of `units` in this one.
    fn shift_after(&mut self, number: usize, units: u64) {
        self.chunks
            .range_mut(number + 1..)
            .for_each(|chunk| chunk.shift(units));
    }

    /// Joins a chunk that has lost entries with each neighbour that it fits into one chunk with. So chunks are more than half full
    /// on average, whatever is refunded.
    fn join_sparse(&mut self, number: usize) {
        for number in [Some(number), number.checked_sub(1)].into_iter().flatten() {
            let len = |number| self.chunks.get(number).map(Chunk::len);
            let fits = len(number)
                .zip(len(number + 1))
                .is_some_and(|(len, next)| len + next <= CHUNK);
            if fits && let Some(next) = self.chunks.remove(number + 1) {
                self.chunks[number].append(&next);
            }
        }
    }

    /// Removes the chunk of this number, which is returned, and all behind it.
    fn truncate(&mut self, number: usize) -> Option<Chunk> {
        let mut last = None;
        while self.chunks.len() > number {
            last = self.pop();
        }
        last
    }
}
