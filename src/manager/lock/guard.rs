//! The lock behind the [word](super::word), and the only way to the state under it.
//!
//! # What is allocated when
//!
//! A word of places holds all that matters while no request waits, and each of a million keys may have one. So the state and its
//! lock are allocated by the first call that needs them, and stay. Until then the word has never been shut. If several calls need
//! them at the same time, one allocates and the others wait for it (by [`OnceLock`]). The new state does not contain the grants
//! so far: the first call that takes its lock finds the word open, and takes over what it owns, as any later call does. So no
//! release is missed: while there is no state the word is open, and released units are in it.

use std::fmt::Debug;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::sync::Ordering::Relaxed;
use super::sync::{AtomicU64, Mutex, MutexGuard, OnceLock};
use super::word::{BeforeShut, Word, WordRate};
use crate::core::word::packed_rate::{WordContents, WordValue};

/// What the states of one limiter share: it makes new states, and has the rate by which their words decide.
pub(crate) trait Source {
    type State: BehindWord + Debug;
    /// What is allocated with a state, and used without its lock.
    type OutsideLock: Debug;

    /// Makes the state of a word of places.
    fn state(&self) -> (Self::State, Self::OutsideLock);

    /// `None` if no word of this source decides a rate.
    fn rate(&self) -> Option<&WordRate>;
}

/// A state that a word can stand for.
pub(crate) trait BehindWord {
    /// Takes over what the word owned: its content, the fence of its latest grant, and the latest reading of the clock in
    /// nanoseconds, if it decided by one.
    fn take_over(&mut self, content: WordValue, fence: u64, latest: Option<u64>);

    /// Adds units that were released while the word was shut.
    fn put_back(&mut self, units: u64);

    /// If `false`, [`BehindWord::hand_over`] would return `None`, and need not be called.
    fn may_hand_over(&self) -> bool;

    /// What the word is to own, and the fence of the latest grant. `None` if the lock must decide, because a request waits or the
    /// state does not fit a word.
    fn hand_over(&mut self) -> Option<(WordContents, u64)>;
}

/// A state with the word before it. The word comes first, so that it shares a cache line with the counts of the `Arc` around it.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Guarded<S: Source> {
    pub(crate) word: Word,
    inner: OnceLock<Box<Inner<S>>>,
    common: Arc<S>,
}

/// It begins with a cache line, so that what two workers change in turn is in as few lines as possible: they hand over 8 to 17 % more.
#[derive(Debug)]
#[repr(align(64))]
struct Inner<S: Source> {
    state: Mutex<S::State>,
    /// The number of times the word was opened. It changes only under the lock.
    openings: AtomicU64,
    outside_lock: S::OutsideLock,
}

/// The locked state. While it exists the word is shut; when it is dropped the word is opened, if the state can be handed over.
#[derive(Debug)]
pub(crate) struct Locked<'a, S: Source> {
    state: MutexGuard<'a, S::State>,
    guarded: &'a Guarded<S>,
}

/// The locked state behind a word that stays open. The state has a copy of what the word owned when the lock was taken; the word
/// continues to grant requests. That is enough to read the state.
pub(crate) type PeekGuard<'a, T> = MutexGuard<'a, T>;

impl<S: Source> Guarded<S> {
    /// Has a state from the start.
    pub(crate) fn new(common: Arc<S>, state: S::State, outside_lock: S::OutsideLock) -> Self {
        let inner = OnceLock::from(Box::new(Inner::new(state, outside_lock)));
        let guarded = Self {
            word: Word::shut_from_the_start(),
            inner,
            common,
        };
        drop(guarded.lock());
        guarded
    }

    /// Has an open word with these units of places, after the grant of this fence. The state is allocated when it is needed.
    pub(crate) fn of_places(common: Arc<S>, units: u64, fence: u64) -> Self {
        Self {
            word: Word::of_places(units, fence),
            inner: OnceLock::new(),
            common,
        }
    }

    pub(crate) fn common(&self) -> &Arc<S> {
        &self.common
    }

    /// Whether no call has needed the state so far.
    pub(crate) fn is_only_a_word(&self) -> bool {
        self.inner.get().is_none()
    }

    /// The content of the word, and the fence of its latest grant. `None` once there is a state.
    pub(crate) fn content_of_word(&self) -> Option<(WordValue, u64)> {
        if !self.is_only_a_word() {
            return None;
        }
        let peeked = self.word.peek_unlocked();
        // Once there is a state, the word may hold what that state has handed over.
        peeked.filter(|_| self.is_only_a_word())
    }

    /// A copy of the state that a call would allocate now. `None` once there is a state.
    pub(crate) fn copy_of_word(&self) -> Option<S::State> {
        let (content, fence) = self.content_of_word()?;
        let (mut copy, _) = self.common.state();
        copy.take_over(content, fence, None);
        Some(copy)
    }

    /// What lies outside the lock; for callers that need the state, too.
    #[inline(always)]
    pub(crate) fn outside_lock(&self) -> &S::OutsideLock {
        &self.inner().outside_lock
    }

    #[inline(always)]
    pub(crate) fn lock(&self) -> Locked<'_, S> {
        let mut state = self.lock_state();
        if !self.word.is_empty() {
            self.shut(&mut state);
        }
        Locked {
            state,
            guarded: self,
        }
    }

    /// Locks the state, and copies what the word owns into it. The word stays open. `None`: the word is shut.
    #[inline(always)]
    pub(crate) fn peek(&self) -> Option<PeekGuard<'_, S::State>> {
        if !self.word.is_open() {
            return None;
        }
        let mut state = self.lock_state();
        let (content, fence) = self.word.peek()?;
        state.take_over(content, fence, None);
        Some(state)
    }

    /// No code of this crate panics under the lock, and no foreign code runs there. If code panicked all the same, the limiter
    /// would continue, because a limiter that fails for ever is worse.
    #[inline(always)]
    fn lock_state(&self) -> MutexGuard<'_, S::State> {
        self.inner().state.lock()
    }

    #[inline(always)]
    fn inner(&self) -> &Inner<S> {
        match self.inner.get() {
            Some(inner) => inner,
            None => self.allocate(),
        }
    }

    #[cold]
    #[inline(never)]
    fn allocate(&self) -> &Inner<S> {
        self.inner.get_or_init(|| {
            let (state, outside_lock) = self.common.state();
            Box::new(Inner::new(state, outside_lock))
        })
    }

    #[inline(never)]
    fn shut(&self, state: &mut S::State) {
        match self.word.shut() {
            BeforeShut::Open { content, fence } => {
                let rate = match content {
                    WordValue::Places { .. } => None,
                    WordValue::Rate { .. } => self.common.rate(),
                };
                state.take_over(content, fence, rate.map(WordRate::latest));
            }
            BeforeShut::InTransit { units } => state.put_back(units),
        }
    }
}

impl<S: Source> Inner<S> {
    fn new(state: S::State, outside_lock: S::OutsideLock) -> Self {
        Self {
            state: Mutex::new(state),
            openings: AtomicU64::new(0),
            outside_lock,
        }
    }
}

impl<S: Source> Deref for Locked<'_, S> {
    type Target = S::State;

    #[inline(always)]
    fn deref(&self) -> &S::State {
        &self.state
    }
}

impl<S: Source> DerefMut for Locked<'_, S> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut S::State {
        &mut self.state
    }
}

impl<S: Source> Drop for Locked<'_, S> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.state.may_hand_over() {
            self.open();
        }
    }
}

impl<S: Source> Locked<'_, S> {
    #[inline(never)]
    fn open(&mut self) {
        let Some((opening, fence)) = self.state.hand_over() else {
            return;
        };
        let Guarded { word, common, .. } = self.guarded;
        let openings = &self.guarded.inner().openings;
        let next = openings.load(Relaxed).wrapping_add(1);
        openings.store(next, Relaxed);
        word.open(opening, fence, next, common.rate());
    }
}
