//! The lock behind the [word](super::word), and the only way to the state under it.

use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;

use super::sync::{Mutex, MutexGuard};
use super::word::{Found, Places, PutBack, Word};

/// A state that a word can stand for.
pub(super) trait BehindWord {
    /// Takes over what the word owned.
    fn take_over(&mut self, places: Places);

    /// These units were released while the word was shut.
    fn put_back(&mut self, units: u64);

    /// What the word is to own; `None` where the lock must decide: a request waits, or the state does not fit a word.
    fn hand_over(&self) -> Option<Places>;
}

/// A state with the word before it. The word comes first, so that it shares a cache line with the counts of the `Arc` around it.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Guarded<T> {
    word: Word,
    state: Mutex<T>,
}

/// The locked state. While it exists the word is shut; when it is dropped the word is opened, if the state can be handed over.
#[derive(Debug)]
pub(super) struct Locked<'a, T: BehindWord> {
    state: MutexGuard<'a, T>,
    word: &'a Word,
}

impl<T: BehindWord> Guarded<T> {
    pub(super) fn new(state: T) -> Self {
        let guarded = Self { word: Word::new(), state: Mutex::new(state) };
        drop(guarded.lock());
        guarded
    }

    /// Takes `cost` units without the lock, and returns the fence. `None`, without a change, if the lock must decide.
    #[inline(always)]
    pub(super) fn take(&self, cost: u64) -> Option<u64> {
        self.word.take(cost)
    }

    /// Puts the units of a permit back without the lock, if it can. Otherwise the caller must lock.
    #[inline(always)]
    pub(super) fn put_back(&self, cost: u64) -> PutBack {
        self.word.put_back(cost)
    }

    /// No code of this crate panics under the lock, and no foreign code runs there. If one did panic, to go on is better than a
    /// limiter that fails for ever.
    #[inline(always)]
    pub(super) fn lock(&self) -> Locked<'_, T> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match self.word.shut() {
            None => {}
            Some(Found::Open(places)) => state.take_over(places),
            Some(Found::InTransit(units)) => state.put_back(units),
        }
        Locked { state, word: &self.word }
    }
}

impl<T: BehindWord> Deref for Locked<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.state
    }
}

impl<T: BehindWord> DerefMut for Locked<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.state
    }
}

impl<T: BehindWord> Drop for Locked<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(places) = self.state.hand_over() {
            self.word.open(places);
        }
    }
}
