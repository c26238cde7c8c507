//! Doubly linked lists threaded through one slab: every operation in constant time (but for growth), no allocation for each entry.
//!
//! The slab is one vector. When it grows, its entries are copied under the lock of the manager. After a peak, its memory is freed when
//! the last entry is removed.

use slab::Slab;

/// The index of an entry, owned by the code that inserted the entry until the entry is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Index(u32);

impl Index {
    pub(crate) const fn new(number: u32) -> Self {
        Self(number)
    }

    pub(crate) const fn number(self) -> u32 {
        self.0
    }
}

const NIL: u32 = u32::MAX;
/// An empty arena with room for at most this many entries keeps their memory, because it is usually filled again.
const KEPT: usize = 8;

#[derive(Debug)]
struct Entry<T> {
    /// The neighbours in a list.
    prev: u32,
    next: u32,
    value: T,
}

#[derive(Debug)]
pub(crate) struct Arena<T>(Slab<Entry<T>>);

/// The ends of one list in an arena.
#[derive(Debug, Clone, Copy)]
pub(crate) struct List {
    head: u32,
    tail: u32,
}

impl List {
    pub(crate) const EMPTY: Self = Self {
        head: NIL,
        tail: NIL,
    };

    pub(crate) fn front(&self) -> Option<Index> {
        (self.head != NIL).then_some(Index(self.head))
    }

    #[cfg(test)]
    fn back(&self) -> Option<Index> {
        (self.tail != NIL).then_some(Index(self.tail))
    }
}

impl<T> Arena<T> {
    pub(crate) const fn new() -> Self {
        Self(Slab::new())
    }

    /// Adds an entry as the last one of a list. There must be fewer than `u32::MAX`.
    #[inline]
    pub(crate) fn insert_back(&mut self, list: &mut List, value: T) -> Index {
        if self.0.capacity() == 0 {
            self.0.reserve_exact(1); // each of a million keys may have an arena for one entry
        }
        let entry = Entry {
            prev: list.tail,
            next: NIL,
            value,
        };
        let index = Index(self.0.insert(entry) as u32);
        self.append(list, index);
        index
    }

    /// Takes an entry out; it must be in no list.
    #[inline]
    pub(crate) fn remove(&mut self, index: Index) -> T {
        let entry = self.0.remove(index.0 as usize);
        if self.0.is_empty() && self.0.capacity() > KEPT {
            self.0 = Slab::new();
        }
        entry.value
    }

    /// `None` when the entry was removed; a new one may have taken its place.
    #[inline]
    pub(crate) fn get(&self, index: Index) -> Option<&T> {
        Some(&self.0.get(index.0 as usize)?.value)
    }

    /// See [`Arena::get`].
    #[inline]
    pub(crate) fn get_mut(&mut self, index: Index) -> Option<&mut T> {
        Some(&mut self.0.get_mut(index.0 as usize)?.value)
    }

    /// Adds an entry that is in no list as the last one of a list.
    #[inline]
    pub(crate) fn push_back(&mut self, list: &mut List, index: Index) {
        let entry = &mut self.0[index.0 as usize];
        entry.prev = list.tail;
        entry.next = NIL;
        self.append(list, index);
    }

    #[inline(always)]
    fn append(&mut self, list: &mut List, index: Index) {
        let tail = std::mem::replace(&mut list.tail, index.0);
        if tail == NIL {
            list.head = index.0;
        } else {
            self.0[tail as usize].next = index.0;
        }
    }

    /// Takes an entry out of the list that it is in.
    #[inline(always)]
    pub(crate) fn unlink(&mut self, list: &mut List, index: Index) {
        let &Entry { prev, next, .. } = &self.0[index.0 as usize];
        match prev {
            NIL => list.head = next,
            prev => self.0[prev as usize].next = next,
        }
        match next {
            NIL => list.tail = prev,
            next => self.0[next as usize].prev = prev,
        }
    }

    /// The entries of a list, front to back.
    pub(crate) fn indexes(&self, list: &List) -> impl Iterator<Item = Index> {
        std::iter::successors(list.front(), |index| {
            let next = self.0[index.0 as usize].next;
            (next != NIL).then_some(Index(next))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(crate::replay::cases(256))]

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
                        let index = arena.insert_back(&mut list, number);
                        model.push_back((index, number));
                    }
                }
                prop_assert_eq!(list.front(), model.front().map(|entry| entry.0));
                prop_assert_eq!(list.back(), model.back().map(|entry| entry.0));
                prop_assert!(arena.indexes(&list).eq(model.iter().map(|entry| entry.0)));
                prop_assert!(model.iter().all(|&(index, value)| arena.get(index) == Some(&value)));
                prop_assert_eq!(arena.0.len(), model.len());
            }
        }
    }

    /// Each of a million keys may have an arena for one entry.
    #[test]
    fn one_entry_takes_memory_for_one() {
        let (mut arena, mut list) = (Arena::new(), List::EMPTY);
        for number in 0..2 {
            let index = arena.insert_back(&mut list, number);
            assert_eq!(arena.0.capacity(), 1);
            arena.unlink(&mut list, index);
            arena.remove(index);
        }
    }

    #[test]
    fn memory_goes_back_when_the_last_entry_leaves() {
        let (mut arena, mut list) = (Arena::new(), List::EMPTY);
        for number in 0..1_000 {
            arena.insert_back(&mut list, number);
        }
        while let Some(index) = list.front() {
            arena.unlink(&mut list, index);
            arena.remove(index);
        }
        assert!(
            arena.0.capacity() <= KEPT,
            "memory follows what is used: {}",
            arena.0.capacity()
        );
    }
}
