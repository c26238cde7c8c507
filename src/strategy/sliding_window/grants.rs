//! Grants in the order of time, whose sums take O(log n).
//!
//! The sums are a Fenwick tree (Fenwick 1994, "A new data structure for cumulative frequency tables"): node `i`, counted from 1,
//! holds the units of the last `i & -i` entries up to the `i`-th. So a sum, a change of one entry and a search for a sum touch
//! one node for each bit of the length, and a node can be appended from those before it.

use super::super::Moment;

/// Up to this many entries, a kilobyte, are not worth compacting.
pub(super) const FEW: usize = 64;

/// The grants that may still count, oldest first, one entry an instant.
#[derive(Debug, Clone, Default)]
pub(crate) struct Grants {
    /// For each entry: when it was granted, in rising order, and the node of the tree that ends with it.
    entries: Vec<(Moment, u64)>,
    /// How many entries at the front have expired; they stay until the next [`Grants::compact`].
    dropped: usize,
    dropped_units: u64,
    /// The units of all entries, including dropped ones.
    units: u64,
    /// An upper bound of the other entries that were refunded whole.
    empty: usize,
}

impl Grants {
    /// From entries in the order of time, of [`u64::MAX`] units at most.
    pub(super) fn new(mut entries: Vec<(Moment, u64)>) -> Self {
        let units = entries.iter().map(|entry| entry.1).sum();
        for number in 1..=entries.len() {
            steps::count();
            if let Some(next) = next_node(number, entries.len()) {
                entries[next - 1].1 += entries[number - 1].1;
            }
        }
        Self { entries, units, ..Self::default() }
    }

    /// A copy with each entry that counts and its units, and room for as many more.
    pub(super) fn to_vec(&self) -> Vec<(Moment, u64)> {
        let mut counting = Vec::with_capacity(2 * self.len() + FEW);
        let entries = (self.dropped..self.entries.len()).map(|index| (self.entries[index].0, self.units_of(index)));
        counting.extend(entries.filter(|entry| entry.1 > 0));
        counting
    }

    /// The units of all entries.
    #[inline(always)]
    pub(super) fn used(&self) -> u64 {
        self.units - self.dropped_units
    }

    /// The number of entries that may have units.
    pub(super) fn len(&self) -> usize {
        (self.entries.len() - self.dropped).saturating_sub(self.empty)
    }

    /// The entries that there is memory for.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.entries.capacity()
    }

    pub(super) fn first(&self) -> Option<Moment> {
        self.entries.get(self.dropped).map(|entry| entry.0)
    }

    pub(super) fn last(&self) -> Option<Moment> {
        self.entries[self.dropped..].last().map(|entry| entry.0)
    }

    /// The units of those granted at `last` or before.
    pub(super) fn units_until(&self, last: Moment) -> u64 {
        self.sum(self.count_until(last)) - self.dropped_units
    }

    /// When the `nth` of all units was granted, from 1.
    pub(super) fn granted_at(&self, nth: u64) -> Option<Moment> {
        let number = self.search(self.dropped_units.checked_add(nth)?);
        self.entries.get(number).map(|entry| entry.0)
    }

    /// Adds `units` to the latest entry if that is not older than `now`. The sum of all units must not exceed [`u64::MAX`].
    pub(super) fn push(&mut self, now: Moment, units: u64) {
        if self.units.checked_add(units).is_none() {
            self.compact();
        }
        self.units += units;
        if self.last().is_some_and(|last| last >= now) {
            self.change(self.entries.len() - 1, |node| node + units);
            return;
        }
        let node = units + self.nodes_within(self.entries.len() + 1);
        self.entries.push((now, node));
    }

    /// Drops those granted at `last` or before.
    pub(super) fn drop_until(&mut self, last: Moment) {
        self.dropped = self.count_until(last);
        if self.dropped == self.entries.len() {
            *self = Self::default();
            return;
        }
        self.dropped_units = self.sum(self.dropped);
        self.compact_if_sparse();
    }

    /// Joins the oldest entry with the next one, at the later instant.
    pub(super) fn join_oldest(&mut self) {
        let units = self.units_of(self.dropped);
        self.change(self.dropped, |node| node - units);
        self.change(self.dropped + 1, |node| node + units);
        self.dropped += 1;
        self.compact_if_sparse();
    }

    /// Refunds up to `units` to the entry of this instant.
    pub(super) fn take_back(&mut self, at: Moment, units: u64) {
        let index = self.entries[self.dropped..].partition_point(|entry| {
            steps::count();
            entry.0 < at
        }) + self.dropped;
        if self.entries.get(index).is_none_or(|entry| entry.0 != at) {
            return;
        }
        let had = self.units_of(index);
        let back = units.min(had);
        self.change(index, |node| node - back);
        self.units -= back;
        if back < had {
            return;
        }
        self.empty += 1;
        // The last entry is not empty, so that it gives the instant at which all units have expired.
        while self.entries.len() > self.dropped && self.units_of(self.entries.len() - 1) == 0 {
            self.entries.pop();
            self.empty = self.empty.saturating_sub(1);
        }
        self.compact_if_sparse();
    }

    /// Refunds up to `units`, to the latest entries first.
    pub(super) fn take_back_latest(&mut self, units: u64) {
        let left = self.used().saturating_sub(units);
        if left == 0 {
            *self = Self::default();
            return;
        }
        let left = self.dropped_units + left;
        let last = self.search(left);
        self.entries.truncate(last + 1);
        let surplus = self.sum(last + 1) - left;
        self.change(last, |node| node - surplus);
        self.units = left;
    }

    /// How many entries, the dropped ones included, were granted at `last` or before.
    fn count_until(&self, last: Moment) -> usize {
        let until = |entry: &(Moment, u64)| {
            steps::count();
            entry.0 <= last
        };
        self.dropped + self.entries[self.dropped..].partition_point(until)
    }

    fn units_of(&self, index: usize) -> u64 {
        self.entries[index].1 - self.nodes_within(index + 1)
    }

    /// The nodes whose units are in this one too, numbered from 1, besides its own entry: on average one.
    fn nodes_within(&self, number: usize) -> u64 {
        let (mut sum, mut within, end) = (0, number - 1, number & (number - 1));
        while within > end {
            steps::count();
            sum += self.entries[within - 1].1;
            within &= within - 1;
        }
        sum
    }

    /// The units of the first `number` entries.
    fn sum(&self, mut number: usize) -> u64 {
        let mut sum = 0;
        while number > 0 {
            steps::count();
            sum += self.entries[number - 1].1;
            number &= number - 1;
        }
        sum
    }

    /// The index of the first entry up to which there are this many units; the length if there are fewer.
    fn search(&self, mut units: u64) -> usize {
        let mut number = 0;
        for bit in (0..usize::BITS - self.entries.len().leading_zeros()).rev() {
            steps::count();
            let next = number + (1 << bit);
            if let Some((_, node)) = self.entries.get(next - 1).filter(|entry| entry.1 < units) {
                (number, units) = (next, units - node);
            }
        }
        number
    }

    /// Changes the units of one entry, in all nodes that they are in.
    fn change(&mut self, index: usize, change: impl Fn(u64) -> u64) {
        let mut number = Some(index + 1);
        while let Some(at) = number {
            steps::count();
            let node = &mut self.entries[at - 1].1;
            *node = change(*node);
            number = next_node(at, self.entries.len());
        }
    }

    /// The work is proportional to the entries that are left. As many must have been dropped or refunded before, each once: O(1)
    /// a grant.
    fn compact_if_sparse(&mut self) {
        if self.dropped + self.empty > self.entries.len() / 2 + FEW / 2 {
            self.compact();
        }
    }

    /// Frees the dropped and the refunded entries, and their memory.
    fn compact(&mut self) {
        *self = Self::new(self.to_vec());
    }
}

/// The next node that holds the units of this one, numbered from 1.
fn next_node(number: usize, len: usize) -> Option<usize> {
    let next = number + (number & number.wrapping_neg());
    (next <= len).then_some(next)
}

/// Nodes and entries that were visited, for the tests.
#[cfg(not(test))]
mod steps {
    #[inline(always)]
    pub(super) fn count() {}
}
#[cfg(test)]
pub(super) mod steps {
    use std::cell::Cell;

    thread_local!(static STEPS: Cell<u64> = const { Cell::new(0) });

    pub(super) fn count() {
        STEPS.set(STEPS.get() + 1);
    }

    pub(in super::super) fn of(act: impl FnOnce()) -> u64 {
        let before = STEPS.get();
        act();
        STEPS.get() - before
    }
}
