//! The word before the lock: while no request waits, a plain concurrency is decided by one atomic operation.
//!
//! ```text
//! bit 63   bits 62..32   bits 31..0
//! SHUT     count         units
//! ```
//!
//! Beside it lies `folded`. **The fence of the latest grant is `folded + count`**, modulo 2^64: so a grant, its fence and the number
//! of grants so far are one write.
//!
//! # Who owns what
//!
//! *Open*, the word owns the units that are left and the count; their copies under the lock are stale. *Shut*, the state under the
//! lock owns them, and the units in the word are *in transit*: they were released meanwhile, and who brought them is on the way to
//! the lock. The word is shut by whoever takes the lock, and opened again by whoever leaves it, unless a request waits or the state
//! does not fit. Only [`Guarded`](super::guard::Guarded) does either.
//!
//! # Orderings
//!
//! - [`Word::take`] loads the word (Acquire), then `folded` (Relaxed), and replaces the word if it is still the same (AcqRel). The
//!   load reads from the opening or from a later write of the same release sequence, so it sees the `folded` of that opening or of
//!   a later one. If it is a later one, the word has changed in between, and the exchange fails.
//! - [`Word::put_back`] adds its units (AcqRel). What a holder did under its permit happens before the add, and so before the next
//!   holder's exchange, or before the swap by which the word is shut.
//! - [`Word::shut`] swaps (AcqRel), [`Word::open`] exchanges (Release, by AcqRel). Both run under the lock, which orders `folded`
//!   and all else that they touch.
//!
//! # No release is missed
//!
//! All operations on the word have one order. A request is queued only under the lock, hence after the word was shut. Units that
//! came back before that are in the value that the swap returned; units that come back later find the word shut, and who brings
//! them then takes the lock and serves the queue.
//!
//! # No word returns
//!
//! A thread may be preempted between its load and its exchange. If the word had the same value again by then, the exchange would
//! succeed with an old `folded`, and a fence would be given twice. So every grant and every opening adds one to the count, modulo
//! 2^31: the same value returns after two billion of them at the earliest, during one preemption. A count that is full sends the
//! next request to the lock, so that it never carries into `SHUT`.

use super::sync::AtomicU64;
use super::sync::Ordering::{AcqRel, Acquire, Relaxed};

const SHUT: u64 = 1 << 63;
const UNITS_BITS: u32 = 32;
/// The most units that fit.
pub(super) const MAX_UNITS: u64 = (1 << UNITS_BITS) - 1;
/// The greatest count.
pub(super) const MAX_COUNT: u64 = (1 << (63 - UNITS_BITS)) - 1;
const ONE_GRANT: u64 = 1 << UNITS_BITS;

#[derive(Debug)]
pub(super) struct Word {
    word: AtomicU64,
    folded: AtomicU64,
}

/// What an open word owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Places {
    /// Units that are left: at most [`MAX_UNITS`].
    pub(super) units: u64,
    /// The fence of the latest grant.
    pub(super) fence: u64,
}

/// What was in a word that was shut.
#[derive(Debug)]
pub(super) enum Found {
    Open(Places),
    /// It was shut already, and these units were in transit.
    InTransit(u64),
}

/// What became of units that were to be put back.
#[derive(Debug)]
pub(super) enum PutBack {
    Done,
    /// They are in transit; the caller must take the lock, by which they reach the state, and serve the queue.
    InTransit,
    /// The word is shut; the caller must put them back under the lock.
    Refused,
}

impl Word {
    /// A word that is shut.
    pub(super) fn new() -> Self {
        Self { word: AtomicU64::new(SHUT), folded: AtomicU64::new(0) }
    }

    /// Takes `cost` units. Returns the fence of the grant; `None`, without a change, if the lock must decide.
    #[inline(always)]
    pub(super) fn take(&self, cost: u64) -> Option<u64> {
        let mut word = self.word.load(Acquire);
        loop {
            let (left, count) = (word & MAX_UNITS, word >> UNITS_BITS);
            // The second comparison includes SHUT, which is above every count.
            if cost.wrapping_sub(1) >= left || count >= MAX_COUNT {
                return None;
            }
            let folded = self.folded.load(Relaxed);
            match self.word.compare_exchange(word, word + ONE_GRANT - cost, AcqRel, Acquire) {
                Ok(_) => return Some(folded.wrapping_add(count + 1)),
                Err(changed) => word = changed,
            }
        }
    }

    /// Puts the units of a permit back that was granted for them.
    #[inline(always)]
    pub(super) fn put_back(&self, cost: u64) -> PutBack {
        if self.word.load(Relaxed) & SHUT != 0 {
            PutBack::Refused
        } else if self.word.fetch_add(cost, AcqRel) & SHUT == 0 {
            PutBack::Done
        } else {
            PutBack::InTransit
        }
    }

    /// Shuts the word. `None`: it was shut, with nothing in transit. Call it under the lock.
    #[inline(always)]
    pub(super) fn shut(&self) -> Option<Found> {
        // Relaxed: the latest opening was under the lock. Units that this does not see are in transit: who brings them follows.
        if self.word.load(Relaxed) == SHUT {
            return None;
        }
        let found = self.word.swap(SHUT, AcqRel);
        let (units, count) = (found & MAX_UNITS, found >> UNITS_BITS);
        Some(if found & SHUT == 0 {
            Found::Open(Places { units, fence: self.folded.load(Relaxed).wrapping_add(count) })
        } else {
            Found::InTransit(units)
        })
    }

    /// Opens the word; what is in transit is added. Call it under the lock, where the word is shut.
    #[inline(always)]
    pub(super) fn open(&self, Places { units, fence }: Places) {
        // The count goes on by the grants under the lock, and one more for the opening.
        let count = fence.wrapping_sub(self.folded.load(Relaxed)).wrapping_add(1) & MAX_COUNT;
        self.folded.store(fence.wrapping_sub(count), Relaxed);
        let open = count << UNITS_BITS | units;
        let mut shut = SHUT;
        while let Err(changed) = self.word.compare_exchange(shut, open + (shut & MAX_UNITS), AcqRel, Relaxed) {
            shut = changed;
        }
    }
}
