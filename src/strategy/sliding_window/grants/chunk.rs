//! One chunk of a log: entries that follow each other.

use std::collections::VecDeque;

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
    entries: VecDeque<(Moment, u64)>,
}

impl Chunk {
    /// An empty chunk that begins behind the unit `before`, with memory for [`CHUNK`] entries.
    pub(super) fn after(before: u64) -> Self {
        Self {
            before,
            entries: VecDeque::with_capacity(CHUNK),
        }
    }

    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
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
        self.entries.back().map(|entry| self.numbered(entry))
    }

    #[inline(always)]
    pub(super) fn get(&self, index: usize) -> Option<(Moment, u64)> {
        self.entries.get(index).map(|entry| self.numbered(entry))
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (Moment, u64)> {
        self.entries.iter().map(|entry| self.numbered(entry))
    }

    /// How many entries, the first ones, are `early`.
    pub(super) fn count(&self, early: impl Fn((Moment, u64)) -> bool) -> usize {
        self.entries.partition_point(|entry| {
            steps::count();
            early(self.numbered(entry))
        })
    }

    /// Adds the units up to number `end` to the latest entry if that is not older than `now`, or as a new one.
    #[inline(always)]
    pub(super) fn push(&mut self, now: Moment, end: u64) {
        steps::count();
        let end = end.wrapping_sub(self.before);
        match self.entries.back_mut() {
            Some(latest) if latest.0 >= now => latest.1 = end,
            _ => self.entries.push_back((now, end)),
        }
    }

    /// Drops those granted at `last` or before, and moves `start` behind their units.
    #[inline(always)]
    pub(super) fn drop_until(&mut self, last: Moment, start: &mut u64) {
        while let Some((at, end)) = self.first()
            && at <= last
        {
            steps::count();
            *start = end;
            self.entries.pop_front();
        }
    }

    /// Drops the first entry. Its units then belong to the next one.
    pub(super) fn join_first(&mut self) {
        self.entries.pop_front();
    }

    /// Refunds units of an entry, and removes the entry if `all` of its units are refunded.
    pub(super) fn take_back(&mut self, index: usize, units: u64, all: bool) {
        for entry in self.entries.range_mut(index..) {
            steps::count();
            entry.1 = entry.1.wrapping_sub(units);
        }
        if all {
            self.entries.remove(index);
        }
    }

    /// Updates the chunk after a refund of `units` before it.
    pub(super) fn shift(&mut self, units: u64) {
        steps::count();
        self.before = self.before.wrapping_sub(units);
    }

    /// Removes the units behind number `end`, which is one of the entry at `index`.
    pub(super) fn truncate(&mut self, index: usize, end: u64) {
        self.entries.truncate(index + 1);
        if let Some(latest) = self.entries.back_mut() {
            latest.1 = end.wrapping_sub(self.before);
        }
    }

    /// Appends the entries of the next chunk.
    pub(super) fn append(&mut self, next: &Self) {
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
            self.entries.shrink_to(FEW.max(2 * self.len()));
        }
    }

    #[inline(always)]
    fn numbered(&self, (at, end): &(Moment, u64)) -> (Moment, u64) {
        (*at, self.before.wrapping_add(*end))
    }
}
