//! One waiter: its request and its waker.

use std::task::Waker;

use crate::core::queue::answers::{Answers, Slot};
use crate::core::request::Caller;
use crate::priority::Priority;

/// A waiter in its line. Its deadline, which most do not have, and its caller, which most share, are kept beside the line.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) id: WaiterId,
    pub(crate) cost: u64,
    pub(crate) waker: Waker,
}

/// The waiter that is next.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Front {
    pub(crate) id: WaiterId,
    pub(crate) cost: u64,
    pub(crate) caller: Caller,
}

/// Identifies a waiter until its owner has its answer, and encodes where it waits. The order is that of arrival.
///
/// From the top: the arrival, the level of its priority, whether it names units, whether its caller blocks a thread, the slot for its
/// answer. The count of arrivals wraps after 2^47, so waiters in one line are compared relative to the front.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WaiterId(u64);

const SLOT_MASK: u64 = 0x7FF;
/// The waiter has no slot.
const NO_SLOT: u64 = SLOT_MASK;
const BLOCKING: u64 = 1 << SLOT_MASK.count_ones();
/// The units that the waiter names are kept beside its line.
const NAMES_UNITS: u64 = BLOCKING << 1;
const LEVEL_SHIFT: u32 = NAMES_UNITS.trailing_zeros() + 1;
const LEVEL_MASK: u64 = 0xF;
const ARRIVAL_SHIFT: u32 = LEVEL_SHIFT + LEVEL_MASK.count_ones();
const _: () =
    assert!(Priority::LEVELS as u64 <= LEVEL_MASK + 1 && (Answers::CAPACITY as u64) <= NO_SLOT);

impl WaiterId {
    #[inline(always)]
    pub(crate) fn new(
        arrival: u64,
        priority: Priority,
        blocking: bool,
        names_units: bool,
        slot: Option<Slot>,
    ) -> Self {
        let flags = if blocking { BLOCKING } else { 0 } | if names_units { NAMES_UNITS } else { 0 };
        let level = u64::from(priority.level()) << LEVEL_SHIFT;
        Self(arrival << ARRIVAL_SHIFT | level | flags | slot.map_or(NO_SLOT, u64::from))
    }

    /// The slot for its answer, if that is a place.
    #[inline(always)]
    pub(crate) fn slot(self) -> Option<Slot> {
        let slot = self.0 & SLOT_MASK;
        (slot != NO_SLOT).then_some(slot as Slot)
    }

    #[inline(always)]
    pub(crate) fn level(self) -> usize {
        (self.0 >> LEVEL_SHIFT & LEVEL_MASK) as usize
    }

    pub(crate) fn priority(self) -> Priority {
        Priority::new(self.level() as u8).expect("made from a priority")
    }

    pub(crate) fn is_blocking(self) -> bool {
        self.0 & BLOCKING != 0
    }

    #[inline(always)]
    pub(crate) fn names_units(self) -> bool {
        self.0 & NAMES_UNITS != 0
    }

    /// A number that orders the waiters of one level that arrived with `front` or after it.
    #[inline(always)]
    pub(crate) fn since(self, front: Self) -> u64 {
        self.0.wrapping_sub(front.0)
    }
}
