//! The word before the lock: while no request waits, a policy of one limit is decided by one atomic operation.
//!
//! ```text
//!             bit 63   bit 62   then    the rest
//! places      0        0        count   units left      a plain concurrency: a count of 30 bits, 32 of units
//! rate        0        RATE     count   value           a pace or a fixed window: a count of 9 bits, 53 of its value
//! shut        SHUT     0        0       units in transit
//! ```
//!
//! A rate could be decided under the lock alone. The word decides it because that is faster: a decision on a rate (W4 in
//! BENCHMARKS.md) takes 43 ns here, and the same limit under the lock takes 53 ns.
//!
//! `folded` lies beside it. **The fence of the latest grant is `folded + count`**, modulo 2^64: so a grant, its fence and the
//! number of grants so far are one write. The [`PackedRate`] determines which cost a value admits at which instant; it lies in a
//! [`WordRate`], apart from the word: each of a million keys may have a word, and none of them decides a rate.
//!
//! # Who owns what
//!
//! *Open*, the word owns its content and the count; their copies under the lock are stale. *Shut*, the state under the lock owns
//! them, and units in the word are *in transit*: they were released meanwhile, and the caller that released them is on the way to
//! the lock. The word is shut when the lock is taken, and opened again when it is released, unless a request waits or the state does
//! not fit. Only [`Guarded`](super::guard::Guarded) does either. The packed rate and `folded` are written only under the lock,
//! while the word is shut.
//!
//! # Orderings
//!
//! - A grant loads the word (Acquire), then `folded` (Relaxed) and the packed rate, and replaces the word if it is still the
//!   same (AcqRel). The load reads from the opening or from a later write of the same release sequence, so it sees what was
//!   written before that opening, or something later. If it is later, the word has changed in between, and the exchange fails.
//!   [`Word::peek_unlocked`] does the same, and replaces the word by itself.
//! - A denial writes nothing. It loads the word (Acquire), then the packed rate (Acquire), and then the word again (Relaxed). The packed
//!   rate is stored by Release after the word was shut: if a load of it reads from such a store, the second load of the word reads
//!   from the shutting or later, so the word has changed, and the lock decides.
//! - [`Word::put_back`] adds its units (AcqRel). What a holder did under its permit happens before the add, and so before the next
//!   holder's exchange, or before the swap by which the word is shut. It adds units to a word of places or to a shut one only: while
//!   a place is out, no word of a rate is opened.
//! - [`Word::shut`] swaps (AcqRel), [`Word::open`] exchanges (Release, by AcqRel), [`Word::peek`] loads (Acquire). They run under
//!   the lock, which orders all else that they touch.
//! - The latest reading of the clock is loaded and stored (Relaxed) without an order. It only detects readings of a clock that is
//!   far behind. A store that is lost leaves it early by the time between two grants.
//!
//! # No release is missed
//!
//! All operations on the word have one order. A request is queued only under the lock, hence after the word was shut. Units that
//! were released before that are in the value that the swap returned; units that are released later find the word shut, and the
//! caller that releases them then takes the lock and serves the queue.
//!
//! # No value of the word recurs
//!
//! A thread may be preempted between its load and its exchange. If the word had the same value again by then, the exchange would
//! succeed with an old `folded` or an old packed rate, and a fence would be given twice. So every grant and every opening adds
//! one to the count. In a word of places, the count wraps only after a billion of them, which would have to happen during one
//! preemption. In a word of a rate, the count is short, but the [value never falls](crate::core::word::packed_rate) until its 53
//! bits are used up. A count that is full sends the next request to the lock, so that it never carries into `RATE`.
//!
//! The number of openings is kept under the lock, and passed to [`Word::open`]; a word that is open from the start counts from 0.

use std::num::NonZeroU64;

use super::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};
use super::sync::{AtomicBool, AtomicU64};
use crate::core::word::packed_rate::{
    LineField, MAX_PLACES, MAX_VALUE, PackedRate, RateDenial, WordContents, WordValue,
};

const SHUT: u64 = 1 << 63;
const RATE: u64 = 1 << 62;

/// The lowest bit of the count in a word of places, and in one of a rate.
const COUNT_OF_PLACES: u32 = 32;
const COUNT_OF_RATE: u32 = MAX_VALUE.trailing_ones();

const _: () = assert!(MAX_PLACES == mask(COUNT_OF_PLACES));

/// How far a clock may be behind the latest reading, in nanoseconds: threads that read it at the same time may take turns.
const MAX_STEP_BACK: u64 = 1_000_000;

#[derive(Debug)]
pub(crate) struct Word {
    word: AtomicU64,
    folded: AtomicU64,
}

/// The packed rate, which determines the cost that a value admits.
#[derive(Debug, Default)]
pub(crate) struct WordRate {
    line: PackedRate<AtomicU64>,
    /// The latest reading of the clock by which a rate was decided here, in nanoseconds. Readings under the lock are not
    /// included.
    latest: AtomicU64,
    /// Whether the policy is no longer the one that the limiter was built with, which a denial names.
    is_of_another_policy: AtomicBool,
}

/// What was in a word that was shut.
#[derive(Debug)]
pub(crate) enum BeforeShut {
    /// `fence` is that of the latest grant.
    Open { content: WordValue, fence: u64 },
    /// It was shut already, and these units were in transit.
    InTransit { units: u64 },
}

/// The result of [`Word::put_back`].
#[derive(Debug)]
pub(crate) enum PutBack {
    Done,
    /// They are in transit; the caller must take the lock, by which they reach the state, and serve the queue.
    InTransit,
    /// The word is shut; the caller must put them back under the lock.
    Refused,
}

impl Word {
    /// A shut word, before any grant.
    pub(super) fn shut_from_the_start() -> Self {
        Self {
            word: AtomicU64::new(SHUT),
            folded: AtomicU64::new(0),
        }
    }

    /// An open word of at most [`MAX_PLACES`] places, after the grant of this fence.
    pub(super) fn of_places(units: u64, fence: u64) -> Self {
        let count = fence & max_count(COUNT_OF_PLACES);
        Self {
            word: AtomicU64::new(count << COUNT_OF_PLACES | units),
            folded: AtomicU64::new(fence - count),
        }
    }

    /// Whether it is open and decides a rate. It may have changed by the next call.
    #[inline(always)]
    pub(crate) fn decides_rate(&self) -> bool {
        self.word.load(Relaxed) & RATE != 0
    }

    /// Takes `cost` units of a place. Returns the fence of the grant; `None`, without a change, if the lock must decide.
    #[inline(always)]
    pub(crate) fn take_place(&self, cost: u64) -> Option<u64> {
        let take = |units: u64| units.checked_sub(cost).filter(|_| cost > 0);
        let (fence, _) = self.grant(0, COUNT_OF_PLACES, take)?;
        Some(fence)
    }

    /// Takes `cost` units of a rate at `now`, in nanoseconds. Returns the fence of the grant and the value after it, which is never
    /// zero; `None`, without a change, if the lock must decide.
    #[inline(always)]
    pub(crate) fn take_rate(
        &self,
        rate: &WordRate,
        now: u64,
        cost: u64,
    ) -> Option<(u64, NonZeroU64)> {
        let latest = rate.latest.load(Relaxed);
        if now > latest {
            rate.latest.store(now, Relaxed);
        } else if latest - now > MAX_STEP_BACK {
            return None;
        }
        let (fence, value) = self.grant(RATE, COUNT_OF_RATE, |value| {
            rate.line.take(value, now, cost)
        })?;
        Some((fence, NonZeroU64::new(value)?))
    }

    /// Denies `cost` units of a rate at `now`, in nanoseconds, or at the latest reading of the clock. `None`: the lock must decide.
    #[inline(always)]
    pub(crate) fn deny_rate(&self, rate: &WordRate, now: u64, cost: u64) -> Option<RateDenial> {
        let now = rate.present(now)?;
        let word = self.word.load(Acquire);
        if word & (SHUT | RATE) != RATE || rate.is_of_another_policy.load(Acquire) {
            return None;
        }
        let denial = rate.line.denial(word & mask(COUNT_OF_RATE), now, cost)?;
        (self.word.load(Relaxed) == word).then_some(denial)
    }

    /// Counts a grant that changes the content as `decide` says. Returns its fence and the new content.
    #[inline(always)]
    fn grant(
        &self,
        kind: u64,
        count_at: u32,
        decide: impl Fn(u64) -> Option<u64>,
    ) -> Option<(u64, u64)> {
        let mut word = self.word.load(Acquire);
        loop {
            let (count, content) = ((word ^ kind) >> count_at, word & mask(count_at));
            // SHUT and the other kind lie above every count.
            if count >= max_count(count_at) {
                return None;
            }
            let content = decide(content)?;
            let folded = self.folded.load(Relaxed);
            match self.word.compare_exchange(
                word,
                kind | (count + 1) << count_at | content,
                AcqRel,
                Acquire,
            ) {
                Ok(_) => return Some((folded.wrapping_add(count + 1), content)),
                Err(changed) => word = changed,
            }
        }
    }

    /// What an open word holds, and the fence of its latest grant; `None` if it is shut. Call it under the lock, which keeps it from
    /// being shut or opened meanwhile.
    #[inline(always)]
    pub(super) fn peek(&self) -> Option<(WordValue, u64)> {
        let found = self.word.load(Acquire);
        (found & SHUT == 0).then(|| parts(found, self.folded.load(Relaxed)))
    }

    /// [`Word::peek`] without the lock.
    pub(super) fn peek_unlocked(&self) -> Option<(WordValue, u64)> {
        let mut word = self.word.load(Acquire);
        while word & SHUT == 0 {
            let folded = self.folded.load(Relaxed);
            match self.word.compare_exchange(word, word, AcqRel, Acquire) {
                Ok(_) => return Some(parts(word, folded)),
                Err(changed) => word = changed,
            }
        }
        None
    }

    /// Puts the units of a granted place back.
    #[inline(always)]
    pub(crate) fn put_back(&self, cost: u64) -> PutBack {
        if !self.is_open() {
            PutBack::Refused
        } else if self.word.fetch_add(cost, AcqRel) & SHUT == 0 {
            PutBack::Done
        } else {
            PutBack::InTransit
        }
    }

    /// Whether it is open. It may have changed by the next call.
    #[inline(always)]
    pub(crate) fn is_open(&self) -> bool {
        self.word.load(Relaxed) & SHUT == 0
    }

    /// Whether it is shut, with nothing in transit. Call it under the lock.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        // Relaxed: the latest opening was under the lock. Units that this does not see are in transit: their caller takes the lock next.
        self.word.load(Relaxed) == SHUT
    }

    /// Shuts the word. Call it under the lock.
    pub(super) fn shut(&self) -> BeforeShut {
        let found = self.word.swap(SHUT, AcqRel);
        if found & SHUT != 0 {
            let units = found & MAX_PLACES;
            return BeforeShut::InTransit { units };
        }
        let (content, fence) = parts(found, self.folded.load(Relaxed));
        BeforeShut::Open { content, fence }
    }

    /// Opens the word after the grant of this fence, with the number of earlier `openings`. Units in transit are added. Call it
    /// under the lock, where the word is shut. A word of a rate needs a `rate`.
    pub(super) fn open(
        &self,
        opening: WordContents,
        fence: u64,
        openings: u64,
        rate: Option<&WordRate>,
    ) {
        let (kind, count_at, content) = match opening {
            WordContents::Places { units } => (0, COUNT_OF_PLACES, units),
            WordContents::Rate { line, value } => {
                let Some(rate) = rate else { return };
                rate.set_line(line);
                (RATE, COUNT_OF_RATE, value)
            }
        };
        let count = fence.wrapping_add(openings) & max_count(count_at);
        self.folded.store(fence.wrapping_sub(count), Relaxed);
        let open = kind | count << count_at | content;
        let mut shut = SHUT;
        while let Err(changed) =
            self.word
                .compare_exchange(shut, open + (shut & !SHUT), AcqRel, Relaxed)
        {
            shut = changed;
        }
    }
}

impl WordRate {
    /// The latest reading of the clock by which a rate was decided, in nanoseconds.
    pub(crate) fn latest(&self) -> u64 {
        self.latest.load(Relaxed)
    }

    /// The later of `now` and the latest reading of the clock by which a rate was decided, in nanoseconds. `None` if `now` is far
    /// behind, as on another clock.
    #[inline(always)]
    pub(crate) fn present(&self, now: u64) -> Option<u64> {
        let latest = self.latest();
        (latest.saturating_sub(now) <= MAX_STEP_BACK).then(|| latest.max(now))
    }

    /// From now on, the lock denies. Call it under the lock, while the word is shut.
    pub(crate) fn policy_is_replaced(&self) {
        self.is_of_another_policy.store(true, Release);
    }

    fn set_line(&self, line: PackedRate) {
        let own = &self.line;
        for (number, value) in [
            (&own.base, line.base),
            (&own.origin, line.origin),
            (&own.parts_per_nano, line.parts_per_nano),
            (&own.parts_per_unit, line.parts_per_unit),
            (&own.tolerance, line.tolerance),
            (&own.max_age, line.max_age),
        ] {
            if number.load(Relaxed) != value {
                number.store(value, Release);
            }
        }
    }
}

impl LineField for AtomicU64 {
    #[inline(always)]
    fn get(&self) -> u64 {
        self.load(Acquire)
    }
}

/// The content of an open word, and the fence of the latest grant.
#[inline(always)]
fn parts(word: u64, folded: u64) -> (WordValue, u64) {
    let (count_at, content) = if word & RATE == 0 {
        let units = word & mask(COUNT_OF_PLACES);
        (COUNT_OF_PLACES, WordValue::Places { units })
    } else {
        let value = word & mask(COUNT_OF_RATE);
        (COUNT_OF_RATE, WordValue::Rate { value })
    };
    (content, folded.wrapping_add((word & !RATE) >> count_at))
}

const fn mask(count_at: u32) -> u64 {
    (1 << count_at) - 1
}

const fn max_count(count_at: u32) -> u64 {
    (1 << (62 - count_at)) - 1
}
