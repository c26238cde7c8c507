//! Doubly linked lists threaded through one arena: every operation in constant time, no allocation an entry.
//!
//! Memory comes in chunks rather than in one growing vector: a queue of a million entries is never copied under a lock, and no
//! doubling leaves half of it unused. It goes back when the last entry leaves.

/// The place of an entry. It belongs to whoever inserted the entry, until that one removes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key(u32);

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

    pub(crate) fn front(&self) -> Option<Key> {
        (self.head != NIL).then_some(Key(self.head))
    }

    pub(crate) fn back(&self) -> Option<Key> {
        (self.tail != NIL).then_some(Key(self.tail))
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
    pub(crate) fn insert(&mut self, value: T) -> Key {
        self.len += 1;
        let key = self.vacant();
        let entry = self.entry(key);
        entry.value = Some(value);
        let next_free = std::mem::replace(&mut entry.next, NIL);
        if self.free == key {
            self.free = next_free;
        }
        Key(key)
    }

    /// An entry given back, or else the first fresh one.
    #[inline]
    fn vacant(&mut self) -> u32 {
        if self.free != NIL {
            return self.free;
        }
        let key = self.fresh;
        if key as usize == self.chunks.len() * CHUNK {
            self.chunks.push(Box::new([const { Entry { prev: NIL, next: NIL, value: None } }; CHUNK]));
        }
        self.fresh += 1;
        key
    }

    /// Takes an entry out; it must be in no list.
    pub(crate) fn remove(&mut self, key: Key) -> T {
        let value = self.entry(key.0).value.take().expect("a key is removed once, by its owner");
        self.release(key);
        value
    }

    /// [`Arena::remove`] for one that nobody wants: moving it out costs more than dropping it where it is.
    #[inline]
    pub(crate) fn discard(&mut self, key: Key) {
        self.entry(key.0).value = None;
        self.release(key);
    }

    #[inline]
    fn release(&mut self, key: Key) {
        let free = std::mem::replace(&mut self.free, key.0);
        self.entry(key.0).next = free;
        self.len -= 1;
        if self.len == 0 && self.chunks.len() > 1 {
            // All that is left is free: as if none had ever been used. Old links are overwritten on insertion.
            self.chunks.truncate(1);
            (self.free, self.fresh) = (NIL, 0);
        }
    }

    /// `None` when the entry was removed; a new one may have taken its place.
    #[inline]
    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        self.chunks.get(key.0 as usize / CHUNK)?[key.0 as usize % CHUNK].value.as_ref()
    }

    /// See [`Arena::get`].
    #[inline]
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.chunks.get_mut(key.0 as usize / CHUNK)?[key.0 as usize % CHUNK].value.as_mut()
    }

    #[inline]
    pub(crate) fn push_back(&mut self, list: &mut List, key: Key) {
        let tail = std::mem::replace(&mut list.tail, key.0);
        let entry = self.entry(key.0);
        (entry.prev, entry.next) = (tail, NIL);
        if tail == NIL {
            list.head = key.0;
        } else {
            self.entry(tail).next = key.0;
        }
    }

    /// Takes an entry out of the list that it is in.
    #[inline]
    pub(crate) fn unlink(&mut self, list: &mut List, key: Key) {
        let entry = self.entry(key.0);
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
    pub(crate) fn keys(&self, list: &List) -> impl Iterator<Item = Key> {
        std::iter::successors(list.front(), |key| {
            let next = self.chunks[key.0 as usize / CHUNK][key.0 as usize % CHUNK].next;
            (next != NIL).then_some(Key(next))
        })
    }

    #[inline]
    fn entry(&mut self, key: u32) -> &mut Entry<T> {
        &mut self.chunks[key as usize / CHUNK][key as usize % CHUNK]
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
            let mut model: VecDeque<(Key, usize)> = VecDeque::new();
            for (number, step) in steps.into_iter().enumerate() {
                match step.filter(|_| !model.is_empty()) {
                    Some(pick) => {
                        let (key, value) = model.remove(pick.index(model.len())).unwrap();
                        arena.unlink(&mut list, key);
                        prop_assert_eq!(arena.remove(key), value);
                        prop_assert_eq!(arena.get(key), None);
                    }
                    None => {
                        let key = arena.insert(number);
                        arena.push_back(&mut list, key);
                        model.push_back((key, number));
                    }
                }
                prop_assert_eq!(list.front(), model.front().map(|entry| entry.0));
                prop_assert_eq!(list.back(), model.back().map(|entry| entry.0));
                prop_assert!(arena.keys(&list).eq(model.iter().map(|entry| entry.0)));
                prop_assert!(model.iter().all(|&(key, value)| arena.get(key) == Some(&value)));
                prop_assert_eq!(arena.len(), model.len());
            }
        }
    }

    #[test]
    fn memory_goes_back_when_the_last_entry_leaves() {
        let mut arena = Arena::new();
        let keys: Vec<_> = (0..1_000).map(|number| arena.insert(number)).collect();
        assert_eq!(arena.chunks.len(), 1_000_usize.div_ceil(CHUNK));
        for key in keys {
            arena.remove(key);
        }
        assert_eq!(arena.chunks.len(), 1);
    }
}
