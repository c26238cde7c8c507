//! A hash table whose entries lie in one array: a lookup reads one region of memory.
//!
//! An entry has a *home*, a slot that follows from its hash. It lies there, or in the first slot after it that was free. The
//! first slot follows the last one. So every slot from an entry's home to its own is taken, and a lookup ends at a free slot. A
//! removal keeps this invariant by moving later entries back into the gap. (Knuth, The Art of Computer Programming, volume 3,
//! section 6.4, algorithms L and R.)
//!
//! A full table grows by a third, so that it is filled to between 60 and 80 %. A lookup then reads 1.8 to 3 slots on average,
//! mostly of one cache line. Homes are in the order of the hashes, so a table that grows is read and written from the beginning
//! to the end.
//!
//! `hashbrown::HashTable` would take up to 39 bytes for a key of 16 bytes in place of 27, because it grows by doubling, and under
//! steady churn removed entries make it grow too. A lookup in it reads two regions of memory.

#[cfg(test)]
mod tests;

/// The entries of type `T` in their slots. The caller provides the hashes: `hash_of` returns the hash of an entry. No other code
/// of the caller runs while entries are moved.
#[derive(Debug)]
pub(super) struct Probing<T> {
    slots: Box<[Option<T>]>,
    len: usize,
}

impl<T> Probing<T> {
    /// Slots of the smallest table that is not empty.
    const FEW: usize = 4;
    /// A table of at most this many slots is not made smaller.
    const SMALL: usize = 64;

    pub(super) fn new() -> Self {
        Self {
            slots: Box::default(),
            len: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The number of slots.
    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn get(&self, slot: usize) -> Option<&T> {
        self.slots.get(slot)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, slot: usize) -> Option<&mut T> {
        self.slots.get_mut(slot)?.as_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().flatten()
    }

    pub(super) fn into_entries(self) -> impl Iterator<Item = T> {
        self.slots.into_iter().flatten()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().flatten()
    }

    /// The slot of the entry that has this hash and for which `is_it` holds.
    #[inline(always)]
    pub(super) fn find(&self, hash: u64, mut is_it: impl FnMut(&T) -> bool) -> Option<usize> {
        let home = home(hash, self.slots.len());
        let (before, from_home) = self.slots.split_at(home);
        for (distance, slot) in from_home.iter().enumerate() {
            match slot {
                Some(entry) if is_it(entry) => return Some(home + distance),
                Some(_) => {}
                None => return None,
            }
        }
        before.iter().map_while(Option::as_ref).position(is_it)
    }

    /// Adds an entry, whether or not an equal one is there. Returns its slot.
    pub(super) fn insert(&mut self, hash: u64, entry: T, hash_of: impl Fn(&T) -> u64) -> usize {
        if self.len == most(self.slots.len()) {
            self.resize((self.slots.len() * 4).div_ceil(3).max(Self::FEW), hash_of);
        }
        self.len += 1;
        place(&mut self.slots, hash, entry)
    }

    /// Removes an entry. Other entries move from later slots to earlier ones, the earliest of which is `slot`.
    pub(super) fn remove(&mut self, slot: usize, hash_of: impl Fn(&T) -> u64) -> Option<T> {
        let removed = self.slots.get_mut(slot)?.take()?;
        self.len -= 1;
        let slots = self.slots.len();
        let after = |from: usize, to: usize| {
            if from <= to {
                to - from
            } else {
                to + slots - from
            }
        };
        let mut gap = slot;
        let mut at = next(slot, slots);
        while let Some(entry) = &self.slots[at] {
            if after(home(hash_of(entry), slots), at) >= after(gap, at) {
                self.slots.swap(gap, at);
                gap = at;
            }
            at = next(at, slots);
        }
        Some(removed)
    }

    /// Frees memory when so few entries are left that moving them is worthwhile.
    pub(super) fn shrink(&mut self, hash_of: impl Fn(&T) -> u64) {
        let slots = self.slots.len();
        if slots > Self::SMALL && self.len < slots / 8 {
            self.resize(slots / 2, hash_of);
        }
    }

    fn resize(&mut self, slots: usize, hash_of: impl Fn(&T) -> u64) {
        let resized = std::iter::repeat_with(|| None).take(slots).collect();
        for entry in std::mem::replace(&mut self.slots, resized)
            .into_iter()
            .flatten()
        {
            place(&mut self.slots, hash_of(&entry), entry);
        }
    }
}

/// The low 32 bits of the hash choose the slot, the highest of them first.
#[inline(always)]
fn home(hash: u64, slots: usize) -> usize {
    ((u64::from(hash as u32) * slots as u64) >> 32) as usize
}

/// The most entries for this many slots. At least one slot stays free.
fn most(slots: usize) -> usize {
    slots * 4 / 5
}

/// Puts an entry into its slot. At least one slot must be free.
fn place<T>(slots: &mut [Option<T>], hash: u64, entry: T) -> usize {
    let mut slot = home(hash, slots.len());
    while slots[slot].is_some() {
        slot = next(slot, slots.len());
    }
    slots[slot] = Some(entry);
    slot
}

fn next(slot: usize, slots: usize) -> usize {
    if slot + 1 < slots { slot + 1 } else { 0 }
}
