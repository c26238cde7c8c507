//! Doubly linked lists threaded through one arena: every operation in constant time, no allocation an entry.
//!
//! Memory comes in chunks rather than in one growing vector: a queue of a million entries is never copied under a lock, and no
//! doubling leaves half of it unused. It goes back when the last entry leaves.

/// The place of an entry. It belongs to whoever inserted the entry, until that one removes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Index(u32);

const NIL: u32 = u32::MAX;
/// Entries a chunk: large enough that the vector of chunks is nothing, small enough that one is quickly allocated.
const CHUNK: usize = 64;

#[derive(Debug)]
struct Entry<T> {
    /// The neighbours in a list; of a free entry, `next` is the next free one.
    prev: u32,
    next: u32,
    value: Option<T>,
}

#[derive(Debug)]
pub(crate) struct Arena<T> {
    chunks: Vec<Box<[Entry<T>; CHUNK]>>,
    /// The first of the entries that were given back.
    free: u32,
    /// The first of those that were never used.
    fresh: u32,
    len: usize,
}

/// The ends of one list in an arena.
#[derive(Debug, Clone, Copy)]
pub(crate) struct List {
    head: u32,
    tail: u32,
}

impl List {
    pub(crate) const EMPTY: Self = Self { head: NIL, tail: NIL };

    pub(crate) fn front(&self) -> Option<Index> {
        (self.head != NIL).then_some(Index(self.head))
    }

    pub(crate) fn back(&self) -> Option<Index> {
        (self.tail != NIL).then_some(Index(self.tail))
    }
}

impl<T> Arena<T> {
    /// The most entries there can be.
    pub(crate) const MAX_LEN: usize = NIL as usize;

    pub(crate) const fn new() -> Self {
        Self { chunks: Vec::new(), free: NIL, fresh: 0, len: 0 }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds an entry that is in no list. There must be fewer than [`Arena::MAX_LEN`].
    #[inline]
    pub(crate) fn insert(&mut self, value: T) -> Index {
        self.len += 1;
        let index = self.vacant();
        let entry = self.entry(index);
        entry.value = Some(value);
        let next_free = std::mem::replace(&mut entry.next, NIL);
        if self.free == index {
            self.free = next_free;
        }
        Index(index)
    }

    /// An entry given back, or else the first fresh one.
    #[inline]
    fn vacant(&mut self) -> u32 {
        if self.free != NIL {
            return self.free;
        }
        let index = self.fresh;
        if index as usize == self.chunks.len() * CHUNK {
            self.chunks.push(Box::new([const { Entry { prev: NIL, next: NIL, value: None } }; CHUNK]));
        }
        self.fresh += 1;
        index
    }

    /// Takes an entry out; it must be in no list.
    pub(crate) fn remove(&mut self, index: Index) -> T {
        let value = self.entry(index.0).value.take().expect("a index is removed once, by its owner");
        self.release(index);
        value
    }

    /// [`Arena::remove`] for one that nobody wants: moving it out costs more than dropping it where it is.
    #[inline]
    pub(crate) fn discard(&mut self, index: Index) {
        self.entry(index.0).value = None;
        self.release(index);
    }

    #[inline]
    fn release(&mut self, index: Index) {
        let free = std::mem::replace(&mut self.free, index.0);
        self.entry(index.0).next = free;
        self.len -= 1;
        if self.len == 0 && self.chunks.len() > 1 {
            // All that is left is free: as if none had ever been used. Old links are overwritten on insertion.
            self.chunks.truncate(1);
            (self.free, self.fresh) = (NIL, 0);
        }
    }

    /// `None` when the entry was removed; a new one may have taken its place.
    #[inline]
    pub(crate) fn get(&self, index: Index) -> Option<&T> {
        self.chunks.get(index.0 as usize / CHUNK)?[index.0 as usize % CHUNK].value.as_ref()
    }

    /// See [`Arena::get`].
    #[inline]
    pub(crate) fn get_mut(&mut self, index: Index) -> Option<&mut T> {
        self.chunks.get_mut(index.0 as usize / CHUNK)?[index.0 as usize % CHUNK].value.as_mut()
    }

    #[inline]
    pub(crate) fn push_back(&mut self, list: &mut List, index: Index) {
        let tail = std::mem::replace(&mut list.tail, index.0);
        let entry = self.entry(index.0);
        (entry.prev, entry.next) = (tail, NIL);
        if tail == NIL {
            list.head = index.0;
        } else {
            self.entry(tail).next = index.0;
        }
    }

    /// Takes an entry out of the list that it is in.
    #[inline]
    pub(crate) fn unlink(&mut self, list: &mut List, index: Index) {
        let entry = self.entry(index.0);
        let (prev, next) = (std::mem::replace(&mut entry.prev, NIL), std::mem::replace(&mut entry.next, NIL));
        match prev {
            NIL => list.head = next,
            prev => self.entry(prev).next = next,
        }
        match next {
            NIL => list.tail = prev,
            next => self.entry(next).prev = prev,
        }
    }

    /// The keys of a list, front to back.
    pub(crate) fn indexes(&self, list: &List) -> impl Iterator<Item = Index> {
        std::iter::successors(list.front(), |index| {
            let next = self.chunks[index.0 as usize / CHUNK][index.0 as usize % CHUNK].next;
            (next != NIL).then_some(Index(next))
        })
    }

    #[inline]
    fn entry(&mut self, index: u32) -> &mut Entry<T> {
        &mut self.chunks[index as usize / CHUNK][index as usize % CHUNK]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_list_behaves_as_a_deque_with_removal_in_the_middle(
            steps in prop::collection::vec(prop::option::of(any::<prop::sample::Index>()), 0..400),
        ) {
            let (mut arena, mut list) = (Arena::new(), List::EMPTY);
            let mut model: VecDeque<(Index, usize)> = VecDeque::new();
            for (number, step) in steps.into_iter().enumerate() {
                match step.filter(|_| !model.is_empty()) {
                    Some(pick) => {
                        let (index, value) = model.remove(pick.index(model.len())).unwrap();
                        arena.unlink(&mut list, index);
                        prop_assert_eq!(arena.remove(index), value);
                        prop_assert_eq!(arena.get(index), None);
                    }
                    None => {
                        let index = arena.insert(number);
                        arena.push_back(&mut list, index);
                        model.push_back((index, number));
                    }
                }
                prop_assert_eq!(list.front(), model.front().map(|entry| entry.0));
                prop_assert_eq!(list.back(), model.back().map(|entry| entry.0));
                prop_assert!(arena.indexes(&list).eq(model.iter().map(|entry| entry.0)));
                prop_assert!(model.iter().all(|&(index, value)| arena.get(index) == Some(&value)));
                prop_assert_eq!(arena.len(), model.len());
            }
        }
    }

    #[test]
    fn memory_goes_back_when_the_last_entry_leaves() {
        let mut arena = Arena::new();
        let indexes: Vec<_> = (0..1_000).map(|number| arena.insert(number)).collect();
        assert_eq!(arena.chunks.len(), 1_000_usize.div_ceil(CHUNK));
        for index in indexes {
            arena.remove(index);
        }
        assert_eq!(arena.chunks.len(), 1);
    }
}
