//! Doubly linked lists threaded through one arena: every operation in constant time, no allocation for each entry.
//!
//! Memory comes in chunks rather than in one growing vector: a queue of a million entries is never copied under a lock, and no
//! doubling leaves half of it unused. The first chunk grows from one entry, because each of a million keys may have an arena for
//! one. A chunk is freed when its last entry is removed.

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

    fn chunk(self) -> usize {
        self.0 as usize / CHUNK
    }

    fn place(self) -> usize {
        self.0 as usize % CHUNK
    }
}

const NIL: u32 = u32::MAX;
/// Entries in a chunk: large enough that the vector of chunks is small beside them, small enough that one is quickly allocated.
const CHUNK: usize = 64;
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
struct Chunk<T> {
    entries: Slab<Entry<T>>,
    /// The next chunk that has room, if this one has.
    next_open: u32,
}

#[derive(Debug)]
pub(crate) struct Arena<T> {
    chunks: Vec<Chunk<T>>,
    /// The first chunk that has room.
    open: u32,
    /// Entries in use.
    len: u32,
}

/// The ends of one list in an arena.
#[derive(Debug, Clone, Copy)]
pub(crate) struct List {
    head: u32,
    tail: u32,
}

fn index(number: u32) -> Option<Index> {
    (number != NIL).then_some(Index(number))
}

impl List {
    pub(crate) const EMPTY: Self = Self {
        head: NIL,
        tail: NIL,
    };

    pub(crate) fn front(&self) -> Option<Index> {
        index(self.head)
    }

    pub(crate) fn back(&self) -> Option<Index> {
        index(self.tail)
    }
}

impl<T> Arena<T> {
    pub(crate) const fn new() -> Self {
        Self {
            chunks: Vec::new(),
            open: NIL,
            len: 0,
        }
    }

    /// Adds an entry as the last one of a list. There must be fewer than `u32::MAX`.
    #[inline]
    pub(crate) fn insert_back(&mut self, list: &mut List, value: T) -> Index {
        let first = self.chunks.get(self.open as usize);
        if first.is_none_or(|chunk| chunk.entries.capacity() == 0) {
            self.allocate();
        }
        let number = self.open;
        let chunk = &mut self.chunks[number as usize];
        let place = chunk.entries.insert(Entry {
            prev: list.tail,
            next: NIL,
            value,
        });
        if chunk.entries.len() == CHUNK {
            self.open = chunk.next_open;
        }
        self.len += 1;
        let index = Index(number * CHUNK as u32 + place as u32);
        self.append(list, index);
        index
    }

    /// Gives the first chunk with room memory, and makes one if there is none.
    #[cold]
    fn allocate(&mut self) {
        if self.open == NIL {
            if self.chunks.is_empty() {
                self.chunks.reserve_exact(1); // most arenas have no second one
            }
            self.open = self.chunks.len() as u32;
            self.chunks.push(Chunk {
                entries: Slab::new(),
                next_open: NIL,
            });
        }
        let capacity = if self.open == 0 { 1 } else { CHUNK };
        self.chunks[self.open as usize].entries = Slab::with_capacity(capacity);
    }

    /// Takes an entry out; it must be in no list.
    #[inline]
    pub(crate) fn remove(&mut self, index: Index) -> T {
        let chunk = &mut self.chunks[index.chunk()];
        let entry = chunk.entries.remove(index.place());
        let (left, capacity) = (chunk.entries.len(), chunk.entries.capacity());
        self.len -= 1;
        if left == CHUNK - 1 {
            self.reopen(index.chunk());
        }
        if left == 0 && capacity > KEPT {
            self.give_back(index.chunk());
        }
        entry.value
    }

    /// A chunk that was full has room: it is the first one to be filled.
    #[cold]
    fn reopen(&mut self, number: usize) {
        let former = std::mem::replace(&mut self.open, number as u32);
        self.chunks[number].next_open = former;
        if let Some(former) = self.chunks.get_mut(former as usize)
            && former.entries.is_empty()
        {
            former.entries = Slab::new();
        }
    }

    /// Frees the memory of an empty chunk. The first chunk with room keeps its own, so that a queue that grows and shrinks by one
    /// entry does not allocate each time. An empty arena keeps half of one chunk.
    #[cold]
    fn give_back(&mut self, number: usize) {
        if self.len == 0 {
            let capacity = self.chunks[number].entries.capacity() / 2;
            self.chunks.truncate(1);
            self.chunks.shrink_to(1);
            self.chunks[0] = Chunk {
                entries: Slab::with_capacity(capacity),
                next_open: NIL,
            };
            self.open = 0;
        } else if self.open != number as u32 {
            self.chunks[number].entries = Slab::new();
        }
    }

    /// `None` when the entry was removed; a new one may have taken its place.
    #[inline]
    pub(crate) fn get(&self, index: Index) -> Option<&T> {
        let chunk = self.chunks.get(index.chunk())?;
        Some(&chunk.entries.get(index.place())?.value)
    }

    /// See [`Arena::get`].
    #[inline]
    pub(crate) fn get_mut(&mut self, index: Index) -> Option<&mut T> {
        let chunk = self.chunks.get_mut(index.chunk())?;
        Some(&mut chunk.entries.get_mut(index.place())?.value)
    }

    #[inline]
    fn entry(&mut self, index: Index) -> &mut Entry<T> {
        &mut self.chunks[index.chunk()].entries[index.place()]
    }

    /// Adds an entry that is in no list as the last one of a list.
    #[inline]
    pub(crate) fn push_back(&mut self, list: &mut List, index: Index) {
        let entry = self.entry(index);
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
            self.entry(Index(tail)).next = index.0;
        }
    }

    /// Takes an entry out of the list that it is in.
    #[inline(always)]
    pub(crate) fn unlink(&mut self, list: &mut List, index: Index) {
        let &mut Entry { prev, next, .. } = self.entry(index);
        match prev {
            NIL => list.head = next,
            prev => self.entry(Index(prev)).next = next,
        }
        match next {
            NIL => list.tail = prev,
            next => self.entry(Index(next)).prev = prev,
        }
    }

    /// The entry before this one in its list.
    pub(crate) fn before(&self, entry: Index) -> Option<Index> {
        index(self.chunks[entry.chunk()].entries[entry.place()].prev)
    }

    /// The entry after this one in its list.
    pub(crate) fn after(&self, entry: Index) -> Option<Index> {
        index(self.chunks[entry.chunk()].entries[entry.place()].next)
    }

    /// The entries of a list, front to back.
    pub(crate) fn indexes(&self, list: &List) -> impl Iterator<Item = Index> {
        std::iter::successors(list.front(), |entry| self.after(*entry))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    impl<T> Arena<T> {
        /// The entries that there is memory for.
        fn capacity(&self) -> usize {
            let chunks = self.chunks.iter();
            chunks.map(|chunk| chunk.entries.capacity()).sum()
        }
    }

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
                prop_assert_eq!(arena.len as usize, model.len());
            }
        }
    }

    fn take<T>(arena: &mut Arena<T>, list: &mut List, index: Index) -> T {
        arena.unlink(list, index);
        arena.remove(index)
    }

    fn fill(arena: &mut Arena<usize>, list: &mut List, entries: usize) -> Vec<Index> {
        (0..entries)
            .map(|number| arena.insert_back(list, number))
            .collect()
    }

    /// Each of a million keys may have an arena for one entry.
    #[test]
    fn one_entry_takes_memory_for_one() {
        let (mut arena, mut list) = (Arena::new(), List::EMPTY);
        for number in 0..2 {
            let index = arena.insert_back(&mut list, number);
            assert_eq!((arena.capacity(), arena.chunks.capacity()), (1, 1));
            take(&mut arena, &mut list, index);
        }
    }

    #[test]
    fn memory_goes_back_when_the_last_entry_leaves() {
        let (mut arena, mut list) = (Arena::new(), List::EMPTY);
        let indexes = fill(&mut arena, &mut list, 1_000);
        assert_eq!(arena.capacity(), 1_000_usize.next_multiple_of(CHUNK));
        for index in indexes {
            take(&mut arena, &mut list, index);
        }
        // Each time, half of it is kept.
        for kept in [CHUNK / 2, CHUNK / 4, KEPT, KEPT] {
            assert_eq!((arena.capacity(), arena.chunks.len()), (kept, 1));
            let index = arena.insert_back(&mut list, 0);
            take(&mut arena, &mut list, index);
        }
    }

    /// A queue that had a peak keeps at most two chunks while one entry remains, wherever that is.
    #[test]
    fn one_remaining_entry_keeps_few_chunks() {
        for kept in [0, 1, 63, 64, 5_000, 9_999] {
            let (mut arena, mut list) = (Arena::new(), List::EMPTY);
            let mut indexes = fill(&mut arena, &mut list, 10_000);
            let last = indexes.swap_remove(kept);
            for index in indexes {
                take(&mut arena, &mut list, index);
            }
            assert!(
                arena.capacity() <= 2 * CHUNK,
                "{} entries for the one at {kept}",
                arena.capacity()
            );
            let refilled = fill(&mut arena, &mut list, 10_000);
            assert_eq!(arena.get(last), Some(&kept));
            let mut refilled = refilled.iter().enumerate();
            assert!(refilled.all(|(number, index)| arena.get(*index) == Some(&number)));
            assert_eq!(
                arena.capacity(),
                10_001_usize.next_multiple_of(CHUNK),
                "chunks are used again"
            );
        }
    }

    /// No allocation for each entry where a queue grows and shrinks by one at the end of a chunk.
    #[test]
    fn an_entry_that_comes_and_goes_keeps_its_chunk() {
        let (mut arena, mut list) = (Arena::new(), List::EMPTY);
        let full = fill(&mut arena, &mut list, CHUNK);
        for _ in 0..3 {
            let index = arena.insert_back(&mut list, 0);
            assert_eq!(arena.capacity(), 2 * CHUNK);
            take(&mut arena, &mut list, index);
            assert_eq!(arena.capacity(), 2 * CHUNK);
        }
        assert_eq!(arena.get(full[0]), Some(&0));
    }
}
