//! The full chunks of a log, before the one that grants are appended to.

use std::collections::VecDeque;

use super::super::super::Moment;
use super::chunk::{CHUNK, Chunk};
use super::steps;

/// Chunks that nothing is appended to, oldest first, none of them empty.
#[derive(Debug, Clone, Default)]
pub(super) struct Closed {
    chunks: VecDeque<Chunk>,
    /// The number of their entries.
    len: usize,
}

impl Closed {
    /// The number of entries.
    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The number of chunks.
    #[inline(always)]
    pub(super) fn count(&self) -> usize {
        self.chunks.len()
    }

    #[inline(always)]
    pub(super) fn get(&self, number: usize) -> Option<&Chunk> {
        self.chunks.get(number)
    }

    pub(super) fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        self.chunks.iter()
    }

    /// How many chunks at the front have only `early` entries.
    pub(super) fn count_early(&self, early: impl Fn((Moment, u64)) -> bool) -> usize {
        self.chunks.partition_point(|chunk| {
            steps::count();
            chunk.last().is_none_or(&early)
        })
    }

    pub(super) fn push(&mut self, chunk: Chunk) {
        self.len += chunk.len();
        self.chunks.push_back(chunk);
    }

    pub(super) fn pop(&mut self) -> Option<Chunk> {
        let chunk = self.chunks.pop_back()?;
        self.len -= chunk.len();
        Some(chunk)
    }

    /// [`Chunk::drop_until`] of the oldest chunk, which is freed if nothing is left of it.
    #[inline(always)]
    pub(super) fn drop_until(&mut self, last: Moment, start: &mut u64) -> Option<Moment> {
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
    pub(super) fn change(&mut self, number: usize, change: impl FnOnce(&mut Chunk)) {
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
    pub(super) fn shift_after(&mut self, number: usize, units: u64) {
        self.chunks
            .range_mut(number + 1..)
            .for_each(|chunk| chunk.shift(units));
    }

    /// Joins a chunk that has lost entries with each neighbour that it fits into one chunk with. So chunks are more than half full
    /// on average, whatever is refunded.
    pub(super) fn join_sparse(&mut self, number: usize) {
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
    pub(super) fn truncate(&mut self, number: usize) -> Option<Chunk> {
        let mut last = None;
        while self.chunks.len() > number {
            last = self.pop();
        }
        last
    }
}
