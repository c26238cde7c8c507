//! One chunk of a log: entries that follow each other.

use super::super::super::Moment;
use super::steps;

/// The most entries of a chunk. A refund in a log of a million then changes up to 512 entries and 2,000 chunks.
pub(crate) const CHUNK: usize = 512;

/// Memory for this many entries, a kilobyte, is not worth freeing.
pub(crate) const FEW: usize = 64;

/// Some entries that follow each other: when each was granted, and the number of its last unit.
#[derive(Debug, Clone, Default)]
pub(super) struct Chunk {
    /// The number of the last unit before the first entry, at the time when that was appended.
    before: u64,
    /// In rising order. The numbers count from `before`.
    entries: Vec<(Moment, u64)>,
    /// How many entries at the front have been dropped. At least one entry remains, unless the list is empty.
    dropped: usize,
}

impl Chunk {
    /// An empty chunk that begins behind the unit `before`, with memory for [`CHUNK`] entries.
    pub(super) fn after(before: u64) -> Self {
        Self {
            before,
            entries: Vec::with_capacity(CHUNK),
            dropped: 0,
        }
    }

    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.dropped
    }

    #[inline(always)]
    pub(super) fn is_full(&self) -> bool {
        self.entries.len() >= CHUNK
    }

    /// The entries that there is memory for.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.entries.capacity()
    }

    /// The number of the last unit before the chunk, if no entry has been dropped.
    pub(super) fn before(&self) -> u64 {
        self.before
    }

    #[inline(always)]
    pub(super) fn first(&self) -> Option<(Moment, u64)> {
        self.get(0)
    }

    #[inline(always)]
    pub(super) fn last(&self) -> Option<(Moment, u64)> {
        self.entries.last().map(|entry| self.numbered(entry))
    }

    #[inline(always)]
    pub(super) fn get(&self, index: usize) -> Option<(Moment, u64)> {
        self.entries
            .get(self.dropped + index)
            .map(|entry| self.numbered(entry))
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (Moment, u64)> {
        self.entries[self.dropped..]
            .iter()
            .map(|entry| self.numbered(entry))
    }

    /// How many entries, the first ones, are `early`.
    pub(super) fn count(&self, early: impl Fn((Moment, u64)) -> bool) -> usize {
        self.entries[self.dropped..].partition_point(|entry| {
            steps::count();
            early(self.numbered(entry))
        })
    }

    /// Adds the units up to number `end` to the latest entry if that is not older than `now`, or as a new one.
    #[inline(always)]
    pub(super) fn push(&mut self, now: Moment, end: u64) {
        steps::count();
        let end = end.wrapping_sub(self.before);
        match self.entries.last_mut() {
            Some(latest) if latest.0 >= now => latest.1 = end,
            _ => {
                if self.entries.len() == self.entries.capacity() {
                    self.make_room();
                }
                self.entries.push((now, end));
            }
        }
    }

    /// Drops those granted at `last` or before, and moves `start` behind their units. Returns when the next one was granted.
    #[inline(always)]
    pub(super) fn drop_until(&mut self, last: Moment, start: &mut u64) -> Option<Moment> {
        while let Some((at, end)) = self.first() {
            if at > last {
                return Some(at);
            }
            steps::count();
            *start = end;
            self.dropped += 1;
        }
        self.clear_if_all_dropped();
        None
    }

    /// Drops the first entry. Its units then belong to the next one.
    pub(super) fn join_first(&mut self) {
        self.dropped += 1;
        self.clear_if_all_dropped();
    }

    /// Refunds units of an entry, and removes the entry if `all` of its units are refunded.
    pub(super) fn take_back(&mut self, index: usize, units: u64, all: bool) {
        let index = self.dropped + index;
        for entry in &mut self.entries[index..] {
            steps::count();
            entry.1 = entry.1.wrapping_sub(units);
        }
        if all {
            self.entries.remove(index);
            self.clear_if_all_dropped();
        }
    }

    /// Updates the chunk after a refund of `units` before it.
    pub(super) fn shift(&mut self, units: u64) {
        steps::count();
        self.before = self.before.wrapping_sub(units);
    }

    /// Removes the units behind number `end`, which is one of the entry at `index`.
    pub(super) fn truncate(&mut self, index: usize, end: u64) {
        self.entries.truncate(self.dropped + index + 1);
        if let Some(latest) = self.entries.last_mut() {
            latest.1 = end.wrapping_sub(self.before);
        }
    }

    /// Appends the entries of the next chunk.
    pub(super) fn append(&mut self, next: &Self) {
        self.remove_dropped();
        let before = self.before;
        self.entries.extend(
            next.entries()
                .map(|(at, end)| (at, end.wrapping_sub(before))),
        );
    }

    /// Frees memory if there is room for many more entries than there are.
    #[inline(always)]
    pub(super) fn shrink(&mut self) {
        if self.entries.capacity() > FEW && self.len() < self.entries.capacity() / 4 {
            self.remove_dropped();
            self.entries.shrink_to(FEW.max(2 * self.entries.len()));
        }
    }

    /// Removes the dropped entries and moves the others, if more than half were dropped. Returns whether it did.
    #[cold]
    pub(super) fn make_room(&mut self) -> bool {
        let sparse = self.dropped > self.entries.len() / 2;
        if sparse {
            self.remove_dropped();
        }
        sparse
    }

    fn remove_dropped(&mut self) {
        self.entries.drain(..self.dropped);
        self.dropped = 0;
    }

    #[inline(always)]
    fn clear_if_all_dropped(&mut self) {
        if self.dropped >= self.entries.len() {
            self.entries.clear();
            self.dropped = 0;
        }
    }

    #[inline(always)]
    fn numbered(&self, (at, end): &(Moment, u64)) -> (Moment, u64) {
        (*at, self.before.wrapping_add(*end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A chunk with memory for `capacity` entries, after `pushed` of which the first `dropped` were dropped.
    fn chunk(capacity: usize, pushed: u64, dropped: u64) -> Chunk {
        let mut chunk = Chunk {
            entries: Vec::with_capacity(capacity),
            ..Chunk::default()
        };
        for number in 1..=pushed {
            chunk.push(Moment::from_nanos(number), number);
        }
        chunk.drop_until(Moment::from_nanos(dropped), &mut 0);
        chunk
    }

    #[test]
    fn a_chunk_that_is_less_than_a_quarter_full_gives_memory_back() {
        for (pushed, dropped, left) in [(500, 372, 512), (500, 373, 254), (500, 480, FEW)] {
            let mut chunk = chunk(512, pushed, dropped);
            chunk.shrink();
            assert_eq!(chunk.memory(), left);
        }
    }

    #[test]
    fn the_memory_of_dropped_entries_is_used_again_if_they_are_more_than_half() {
        for (dropped, memory) in [(4, 16), (5, 8)] {
            let mut chunk = chunk(8, 8, dropped);
            chunk.push(Moment::from_nanos(9), 9);
            assert_eq!(chunk.memory(), memory);
        }
    }
}
