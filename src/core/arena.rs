//! Doubly linked lists threaded through one arena: every operation in constant time, no allocation for each entry.
//!
//! Memory comes in chunks rather than in one growing vector: a queue of a million entries is never copied under a lock, and no
//! doubling leaves half of it unused. The first chunk grows from one entry, because each of a million keys may have an arena for
//! one. A chunk is freed when its last entry is removed.

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
/// Entries in a chunk: large enough that the vector of chunks is small beside them, small enough that one is quickly allocated.
const CHUNK: usize = 64;
/// An empty arena that had at most this many entries keeps their memory, because it is usually filled again.
const KEPT: usize = 8;
/// No place in a chunk.
const NONE: u8 = u8::MAX;

#[derive(Debug)]
struct Entry<T> {
    /// The neighbours in a list; of a free entry, `next` is the place in its chunk of the next free one.
    prev: u32,
    next: u32,
    value: Option<T>,
}

/// Has room where an entry is free or was never used; then it is in the arena's list of such chunks.
#[derive(Debug)]
struct Chunk<T> {
    /// Entries used since the chunk was last empty, at most [`CHUNK`].
    entries: Vec<Entry<T>>,
    /// The first free entry, or [`NONE`].
    free: u8,
    /// Entries in use.
    len: u8,
    /// The next chunk that has room.
    next_open: u32,
}

#[derive(Debug)]
pub(crate) struct Arena<T> {
    chunks: Vec<Chunk<T>>,
    /// The first chunk that has room.
    open: u32,
    /// The one empty chunk that keeps its memory while others are in use, so that a queue that grows and shrinks by one entry
    /// does not allocate each time.
    spare: u32,
    /// Entries in use.
    len: u32,
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

    #[cfg(test)]
    fn back(&self) -> Option<Index> {
        (self.tail != NIL).then_some(Index(self.tail))
    }
}

impl<T> Chunk<T> {
    const EMPTY: Self = Self { entries: Vec::new(), free: NONE, len: 0, next_open: NIL };
}

impl<T> Arena<T> {
    pub(crate) const fn new() -> Self {
        Self { chunks: Vec::new(), open: NIL, spare: NIL, len: 0 }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    /// The entries that there is memory for.
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.entries.capacity()).sum()
    }

    /// Adds an entry that is in no list.
    #[cfg(test)]
    fn insert(&mut self, value: T) -> Index {
        self.insert_behind(NIL, value)
    }

    /// Adds an entry as the last one of a list. There must be fewer than `u32::MAX`.
    #[inline]
    pub(crate) fn insert_back(&mut self, list: &mut List, value: T) -> Index {
        let index = self.insert_behind(list.tail, value);
        self.append(list, index);
        index
    }

    #[inline]
    fn insert_behind(&mut self, prev: u32, value: T) -> Index {
        let number = self.chunk_with_room();
        let chunk = &mut self.chunks[number as usize];
        let place = if chunk.free == NONE {
            let fresh = chunk.entries.len();
            if fresh == chunk.entries.capacity() {
                let capacity = if number == 0 { (2 * fresh).max(1) } else { CHUNK };
                chunk.entries.reserve_exact(capacity - fresh);
            }
            chunk.entries.push(Entry { prev, next: NIL, value: Some(value) });
            fresh as u8
        } else {
            let place = chunk.free;
            let entry = &mut chunk.entries[usize::from(place)];
            (entry.prev, entry.value) = (prev, Some(value));
            chunk.free = std::mem::replace(&mut entry.next, NIL) as u8;
            place
        };
        chunk.len += 1;
        if usize::from(chunk.len) == CHUNK {
            self.open = chunk.next_open;
        }
        self.len += 1;
        Index(number * CHUNK as u32 + u32::from(place))
    }

    #[inline]
    fn chunk_with_room(&mut self) -> u32 {
        if self.open == NIL {
            self.add_chunk();
        }
        if self.spare != NIL && self.chunks[self.open as usize].len == 0 {
            let spare = std::mem::replace(&mut self.spare, NIL);
            let memory = std::mem::take(&mut self.chunks[spare as usize].entries);
            self.chunks[self.open as usize].entries = memory;
        }
        self.open
    }

    #[cold]
    fn add_chunk(&mut self) {
        if self.chunks.is_empty() {
            self.chunks.reserve_exact(1); // most arenas have no second one
        }
        self.open = self.chunks.len() as u32;
        self.chunks.push(Chunk::EMPTY);
    }

    /// Takes an entry out; it must be in no list.
    pub(crate) fn remove(&mut self, index: Index) -> T {
        self.vacate(index, Option::take).expect("an index is removed once, by its owner")
    }

    /// [`Arena::remove`] without the value: moving it out costs more than dropping it in place.
    #[inline]
    pub(crate) fn discard(&mut self, index: Index) {
        self.vacate(index, |value| *value = None);
    }

    #[inline(always)]
    fn vacate<R>(&mut self, index: Index, empty: impl FnOnce(&mut Option<T>) -> R) -> R {
        let number = index.0 / CHUNK as u32;
        let chunk = &mut self.chunks[number as usize];
        let place = index.0 as usize % CHUNK;
        let entry = &mut chunk.entries[place];
        let emptied = empty(&mut entry.value);
        entry.next = u32::from(std::mem::replace(&mut chunk.free, place as u8));
        if usize::from(chunk.len) == CHUNK {
            chunk.next_open = std::mem::replace(&mut self.open, number);
        }
        chunk.len -= 1;
        self.len -= 1;
        if chunk.len == 0 && (self.chunks.len() > 1 || self.chunks[0].entries.len() > KEPT) {
            self.give_back(number);
        }
        emptied
    }

    /// Frees the memory of an empty chunk, unless it is the only empty one.
    #[inline(never)]
    fn give_back(&mut self, number: u32) {
        let chunk = &mut self.chunks[number as usize];
        chunk.free = NONE;
        if self.len == 0 {
            let mut entries = std::mem::take(&mut chunk.entries);
            let (used, capacity) = (entries.len(), entries.capacity());
            entries.clear();
            if used <= capacity / 4 {
                entries.shrink_to(capacity / 2);
            }
            self.chunks.truncate(1);
            self.chunks.shrink_to(1);
            self.chunks[0] = Chunk { entries, ..Chunk::EMPTY };
            (self.open, self.spare) = (0, NIL);
        } else if self.spare == NIL {
            chunk.entries.clear();
            self.spare = number;
        } else {
            chunk.entries = Vec::new();
        }
    }

    /// `None` when the entry was removed; a new one may have taken its place.
    #[inline]
    pub(crate) fn get(&self, index: Index) -> Option<&T> {
        self.chunks.get(index.0 as usize / CHUNK)?.entries.get(index.0 as usize % CHUNK)?.value.as_ref()
    }

    /// See [`Arena::get`].
    #[inline]
    pub(crate) fn get_mut(&mut self, index: Index) -> Option<&mut T> {
        self.chunks.get_mut(index.0 as usize / CHUNK)?.entries.get_mut(index.0 as usize % CHUNK)?.value.as_mut()
    }

    #[inline]
    pub(crate) fn push_back(&mut self, list: &mut List, index: Index) {
        let entry = self.entry(index.0);
        (entry.prev, entry.next) = (list.tail, NIL);
        self.append(list, index);
    }

    #[inline(always)]
    fn append(&mut self, list: &mut List, index: Index) {
        let tail = std::mem::replace(&mut list.tail, index.0);
        if tail == NIL {
            list.head = index.0;
        } else {
            self.entry(tail).next = index.0;
        }
    }

    /// Takes an entry out of the list that it is in.
    #[inline(always)]
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

    /// The entries of a list, front to back.
    pub(crate) fn indexes(&self, list: &List) -> impl Iterator<Item = Index> {
        std::iter::successors(list.front(), |index| self.after(*index))
    }

    /// The next entry of the list that this one is in.
    fn after(&self, index: Index) -> Option<Index> {
        let next = self.chunks[index.0 as usize / CHUNK].entries[index.0 as usize % CHUNK].next;
        (next != NIL).then_some(Index(next))
    }

    #[inline]
    fn entry(&mut self, index: u32) -> &mut Entry<T> {
        &mut self.chunks[index as usize / CHUNK].entries[index as usize % CHUNK]
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

    /// Each of a million keys may have an arena for one entry.
    #[test]
    fn one_entry_takes_memory_for_one() {
        let mut arena = Arena::new();
        let index = arena.insert(0);
        assert_eq!((arena.capacity(), arena.chunks.capacity()), (1, 1));
        arena.remove(index);
        arena.insert(1);
        assert_eq!((arena.capacity(), arena.chunks.capacity()), (1, 1));
    }

    #[test]
    fn memory_goes_back_when_the_last_entry_leaves() {
        let mut arena = Arena::new();
        let indexes: Vec<_> = (0..1_000).map(|number| arena.insert(number)).collect();
        assert_eq!(arena.capacity(), 1_000_usize.next_multiple_of(CHUNK));
        for index in indexes {
            arena.remove(index);
        }
        assert!(arena.capacity() <= CHUNK && arena.chunks.len() == 1);
        for _ in 0..8 {
            let indexes: Vec<_> = (0..=KEPT).map(|number| arena.insert(number)).collect();
            indexes.into_iter().for_each(|index| arena.discard(index));
        }
        assert!(arena.capacity() <= 4 * KEPT, "memory follows what is used: {}", arena.capacity());
    }

    /// A queue that had a peak keeps at most a quarter of its memory while one entry remains, wherever that is.
    #[test]
    fn one_remaining_entry_keeps_few_chunks() {
        for kept in [0, 1, 63, 64, 5_000, 9_999] {
            let mut arena = Arena::new();
            let mut indexes: Vec<_> = (0..10_000).map(|number| arena.insert(number)).collect();
            let last = indexes.swap_remove(kept);
            indexes.into_iter().for_each(|index| arena.discard(index));
            assert!(arena.capacity() <= 2 * CHUNK, "{} entries for the one at {kept}", arena.capacity());
            let refilled: Vec<_> = (0..10_000).map(|number| arena.insert(number)).collect();
            assert_eq!(arena.get(last), Some(&kept));
            assert!(refilled.iter().enumerate().all(|(number, index)| arena.get(*index) == Some(&number)));
            assert_eq!(arena.capacity(), 10_001_usize.next_multiple_of(CHUNK), "chunks are used again");
        }
    }

    /// No allocation for each entry where a queue grows and shrinks by one at the end of a chunk.
    #[test]
    fn an_entry_that_comes_and_goes_keeps_its_chunk() {
        let mut arena = Arena::new();
        let _full: Vec<_> = (0..CHUNK).map(|number| arena.insert(number)).collect();
        for _ in 0..3 {
            let index = arena.insert(0);
            assert_eq!(arena.capacity(), 2 * CHUNK);
            arena.discard(index);
            assert_eq!(arena.capacity(), 2 * CHUNK);
        }
    }
}
