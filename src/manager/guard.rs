//! The lock behind the [word](super::word), and the only way to the state under it.

use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;

use super::sync::{Mutex, MutexGuard};
use super::word::{Found, Kind, PutBack, Word};
use crate::core::line::{Content, Opening};

/// A state that a word can stand for.
pub(super) trait BehindWord {
    /// Takes over what the word owned: its content, the fence of its latest grant, and the latest reading of the clock in
    /// nanoseconds, if it decided by one.
    fn take_over(&mut self, content: Content, fence: u64, latest: Option<u64>);

    /// These units were released while the word was shut.
    fn put_back(&mut self, units: u64);

    /// Whether there may be a [`BehindWord::hand_over`]; if not, that need not be asked.
    fn may_hand_over(&self) -> bool;

    /// What the word is to own; `None` where the lock must decide: a request waits, or the state does not fit a word.
    /// The second number is the fence of the latest grant.
    fn hand_over(&mut self) -> Option<(Opening, u64)>;
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

/// The locked state behind a word that stays open: what the word owns is a copy as of the lock, and requests go on to be granted
/// there. That is enough to answer what the state is, and changes nothing that the word owns.
#[derive(Debug)]
pub(super) struct Looked<'a, T> {
    state: MutexGuard<'a, T>,
}

impl<T: BehindWord> Guarded<T> {
    /// `decides_rates`: see [`Word::new`].
    pub(super) fn new(state: T, decides_rates: bool) -> Self {
        let guarded = Self { word: Word::new(decides_rates), state: Mutex::new(state) };
        drop(guarded.lock());
        guarded
    }

    /// See [`Word::kind`].
    #[inline(always)]
    pub(super) fn kind(&self) -> Kind {
        self.word.kind()
    }

    /// See [`Word::take_place`].
    #[inline(always)]
    pub(super) fn take_place(&self, cost: u64) -> Option<u64> {
        self.word.take_place(cost)
    }

    /// See [`Word::take_rate`].
    #[inline(always)]
    pub(super) fn take_rate(&self, now: u64, cost: u64) -> Option<(u64, u64)> {
        self.word.take_rate(now, cost)
    }

    /// Puts the units of a permit back without the lock, if it can. Otherwise the caller must lock.
    #[inline(always)]
    pub(super) fn put_back(&self, cost: u64) -> PutBack {
        self.word.put_back(cost)
    }

    #[inline(always)]
    pub(super) fn lock(&self) -> Locked<'_, T> {
        let mut state = self.lock_state();
        if !self.word.is_empty() {
            self.shut(&mut state);
        }
        Locked { state, word: &self.word }
    }

    #[inline(never)]
    fn shut(&self, state: &mut T) {
        match self.word.shut() {
            Found::Open { content: content @ Content::Places { .. }, fence } => state.take_over(content, fence, None),
            Found::Open { content, fence } => state.take_over(content, fence, self.word.latest()),
            Found::InTransit { units } => state.put_back(units),
        }
    }

    /// Whether the word is open. It may have changed by the next call.
    #[inline(always)]
    pub(super) fn is_open(&self) -> bool {
        self.word.is_open()
    }

    /// The lock, for a caller to whom a copy of what the word owns will do. `None`: the word is shut.
    #[inline(always)]
    pub(super) fn look(&self) -> Option<Looked<'_, T>> {
        if !self.is_open() {
            return None;
        }
        let mut state = self.lock_state();
        let (content, fence) = self.word.look()?;
        state.take_over(content, fence, None);
        Some(Looked { state })
    }

    /// See [`Word::present`].
    #[inline(always)]
    pub(super) fn present(&self, now: u64) -> Option<u64> {
        self.word.present(now)
    }

    /// No code of this crate panics under the lock, and no foreign code runs there. If one did panic, to go on is better than a
    /// limiter that fails for ever.
    #[inline(always)]
    fn lock_state(&self) -> MutexGuard<'_, T> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Deref for Looked<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.state
    }
}

impl<T> DerefMut for Looked<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.state
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
        if self.state.may_hand_over() {
            self.open();
        }
    }
}

impl<T: BehindWord> Locked<'_, T> {
    #[inline(never)]
    fn open(&mut self) {
        if let Some((opening, fence)) = self.state.hand_over() {
            self.word.open(opening, fence);
        }
    }
}
