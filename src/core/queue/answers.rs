//! The answers that are taken without the lock: a word for each of the first waiters.
//!
//! The holder of the lock gives a waiter a slot of its own and, later, writes the fence of its grant there. Only the owner of the
//! request reads the slot, and it takes the fence out without the lock. A fence is enough for the common answer, a place and nothing
//! more, because the owner knows what it asked for. Every other answer (a grant with a time or a lease, a refusal) stays under the
//! lock, and so do the answers to waiters without a slot. While a slot holds no fence, its owner asks under the lock.
//!
//! # Memory
//!
//! A few slots are there from the start, more and many more are allocated when one of them is first used. They are not freed before
//! the limiter is, because an owner may read its slot at any time. So they are few: a key with one waiter has none, and a queue of a
//! million, whose hand-offs wait for memory and not for the lock, keeps 8 KiB.
//!
//! # Memory ordering
//!
//! | task | step | ordering | why |
//! |---|---|---|---|
//! | the lock's holder | finds the slot `FREE`, writes `ASK` | Acquire, Relaxed | the last owner is done with it |
//! | the lock's holder | writes the fence | Release | publishes the releases that made the grant possible |
//! | the owner | reads the fence | Acquire | orders what a former holder of the place did before what the next one does |
//! | the owner | writes `FREE` | Release | pairs with the Acquire above |
//!
//! *No answer is lost or taken twice.* Between `ASK` and `FREE` the slot belongs to one request. The lock's holder writes its fence
//! once, after the waiter has left the line, and only the owner, by one call at a time, writes `FREE`. A new owner got its slot by
//! a call of its own, so it reads `ASK` or what was written after it: the order of writes to one word is the same for all.
//!
//! *No wake-up is lost.* An owner that reads `ASK` takes the lock, under which fences are written and wakers are kept. It finds
//! its answer there, or leaves its waker for the task that grants later.

use std::sync::{Arc, OnceLock};

use super::sync::AtomicU64;
use super::sync::Ordering::{Acquire, Relaxed, Release};

/// The request waits, or its answer lies under the lock. No grant has this fence: fences count from 1.
const ASK: u64 = 0;
/// No request has the slot. No limiter makes enough grants to reach this fence.
const FREE: u64 = u64::MAX;

/// The numbers of slots that there are from the start, after the first and after the second allocation.
const FEW: usize = 4;
const SOME: usize = 64;
const ALL: usize = 1_024;

/// The number of a slot.
pub(crate) type Slot = u16;

#[derive(Debug)]
pub(crate) struct Answers {
    few: [AtomicU64; FEW],
    more: OnceLock<Box<[AtomicU64; SOME - FEW]>>,
    many: OnceLock<Box<[AtomicU64; ALL - SOME]>>,
}

fn free_slots<const LEN: usize>() -> [AtomicU64; LEN] {
    std::array::from_fn(|_| AtomicU64::new(FREE))
}

impl Default for Answers {
    fn default() -> Self {
        Self {
            few: free_slots(),
            more: OnceLock::new(),
            many: OnceLock::new(),
        }
    }
}

impl Answers {
    /// The number of slots.
    pub(crate) const CAPACITY: Slot = ALL as Slot;

    /// The word of a slot; `None` if it is not allocated.
    #[inline(always)]
    fn word(&self, slot: Slot) -> Option<&AtomicU64> {
        let slot = usize::from(slot);
        if slot < FEW {
            self.few.get(slot)
        } else if slot < SOME {
            self.more.get()?.get(slot - FEW)
        } else {
            self.many.get()?.get(slot - SOME)
        }
    }

    /// Takes the fence of a granted place out of the slot, which is free then. `None`: the answer, if there is one, lies under the
    /// lock. Only the owner of the slot may call it.
    #[inline(always)]
    pub(crate) fn take(&self, slot: Slot) -> Option<u64> {
        let word = self.word(slot)?;
        let fence = word.load(Acquire);
        if fence == ASK || fence == FREE {
            return None;
        }
        word.store(FREE, Release);
        Some(fence)
    }

    /// Gives a free slot to a waiter. Returns whether it was free.
    #[inline(always)]
    fn claim(&self, slot: Slot) -> bool {
        let claimed = self.word(slot).filter(|word| word.load(Acquire) == FREE);
        claimed.inspect(|word| word.store(ASK, Relaxed)).is_some()
    }

    #[cold]
    fn allocate(&self, slot: Slot) {
        if usize::from(slot) < SOME {
            self.more.get_or_init(|| Box::new(free_slots()));
        } else {
            self.many.get_or_init(|| Box::new(free_slots()));
        }
    }
}

/// The slots as the lock's holder gives them out. They are allocated when two requests wait at once: each of a million keys may
/// have a waiter.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    /// For the owners of slots. `None` while none were needed.
    pub(crate) answers: Option<Arc<Answers>>,
    /// All slots below this number were used before.
    pub(super) used: Slot,
    /// The slot that was given out the longest time ago, which is probably free: in a queue, the first waiter is answered first.
    oldest: Slot,
}

impl Slots {
    /// A slot for a new waiter behind this many `others`. `None` if all slots are or seem to be in use, or none are needed so
    /// far.
    #[inline(always)]
    pub(crate) fn claim(&mut self, others: u32) -> Option<Slot> {
        const TRIES: Slot = 4;
        if self.answers.is_none() {
            if others == 0 {
                return None;
            }
            self.begin();
        }
        let answers = self.answers.as_ref()?;
        let after = |slot| if slot + 1 < self.used { slot + 1 } else { 0 };
        let mut slot = self.oldest;
        for _ in 0..TRIES.min(self.used) {
            if answers.claim(slot) {
                self.oldest = after(slot);
                return Some(slot);
            }
            slot = after(slot);
        }
        self.oldest = after(self.oldest); // one step, so that a line that grows stays in step with its slots
        self.claim_unused()
    }

    #[cold]
    fn begin(&mut self) {
        self.answers.get_or_insert_default();
    }

    #[inline(never)]
    fn claim_unused(&mut self) -> Option<Slot> {
        let (slot, answers) = (self.used, self.answers.as_ref()?);
        if slot == Answers::CAPACITY {
            return None;
        }
        if answers.word(slot).is_none() {
            answers.allocate(slot);
        }
        self.used += 1;
        answers.claim(slot).then_some(slot)
    }

    /// See [`Answers::take`].
    pub(crate) fn take(&self, slot: Slot) -> Option<u64> {
        self.answers.as_ref()?.take(slot)
    }

    /// Frees the slot. Its owner takes an answer that lies under the lock, or has given up.
    pub(crate) fn free(&self, slot: Slot) {
        self.grant(slot, FREE);
    }

    /// Grants a place to the owner of the slot.
    #[inline(always)]
    pub(crate) fn grant(&self, slot: Slot, fence: u64) {
        if let Some(word) = self.answers.as_ref().and_then(|answers| answers.word(slot)) {
            word.store(fence, Release);
        }
    }
}

/// The model of the schedule must not take what it looks at.
#[cfg(any(test, fuzzing))]
mod for_model {
    use super::*;

    impl Answers {
        pub(crate) fn is_granted(&self, slot: Slot) -> bool {
            self.word(slot)
                .is_some_and(|word| ![ASK, FREE].contains(&word.load(Relaxed)))
        }
    }
}
