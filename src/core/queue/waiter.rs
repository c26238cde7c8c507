//! One waiter: its request and its waker.

use std::ops::Range;
use std::task::Waker;

use crate::core::queue::answers::{Answers, Slot};
use crate::core::request::{Caller, CostDetails};
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
/// From the top: the arrival, the level of its priority, whether it is in a flow, whether its cost has details, whether its caller
/// blocks a thread, the slot for its answer. The count of arrivals wraps after 2^46, so waiters in one line are compared relative to
/// the front.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WaiterId(u64);

const SLOT_MASK: u64 = 0x7FF;
/// The waiter has no slot.
const NO_SLOT: u64 = SLOT_MASK;
const BLOCKING: u64 = 1 << SLOT_MASK.count_ones();
/// The details of its cost are kept beside its line.
const HAS_DETAILS: u64 = BLOCKING << 1;
/// It waits among the [flows](crate::core::queue::flows).
const IN_FLOW: u64 = HAS_DETAILS << 1;
const LEVEL_SHIFT: u32 = IN_FLOW.trailing_zeros() + 1;
const LEVEL_MASK: u64 = 0xF;
const ARRIVAL_SHIFT: u32 = LEVEL_SHIFT + LEVEL_MASK.count_ones();
const ARRIVAL_MASK: u64 = u64::MAX >> ARRIVAL_SHIFT;
const _: () =
    assert!(Priority::LEVELS as u64 <= LEVEL_MASK + 1 && (Answers::CAPACITY as u64) <= NO_SLOT);

impl WaiterId {
    #[inline(always)]
    pub(crate) fn new(
        arrival: u64,
        priority: Priority,
        blocking: bool,
        details: Option<&CostDetails>,
        slot: Option<Slot>,
    ) -> Self {
        let has_details = match details {
            None => 0,
            Some(details) if details.flow().is_some() => HAS_DETAILS | IN_FLOW,
            Some(_) => HAS_DETAILS,
        };
        let flags = if blocking { BLOCKING } else { 0 } | has_details;
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
    pub(crate) fn has_details(self) -> bool {
        self.0 & HAS_DETAILS != 0
    }

    #[inline(always)]
    pub(crate) fn is_in_flow(self) -> bool {
        self.0 & IN_FLOW != 0
    }

    /// Which arrival it is, after `latest` arrivals.
    pub(crate) fn arrival(self, latest: u64) -> u64 {
        let ago = latest.wrapping_sub(self.0 >> ARRIVAL_SHIFT) & ARRIVAL_MASK;
        latest.wrapping_sub(ago)
    }

    /// A number for each waiter, which sorts by level, then by arrival.
    pub(crate) fn by_level(self) -> u64 {
        (self.level() as u64) << ARRIVAL_MASK.count_ones() | self.0 >> ARRIVAL_SHIFT
    }

    /// The [numbers](Self::by_level) of a level.
    pub(crate) fn range_of_level(level: usize) -> Range<u64> {
        let first = |level: usize| (level as u64) << ARRIVAL_MASK.count_ones();
        first(level)..first(level + 1)
    }

    /// How many arrivals after that of `front` this one was.
    pub(crate) fn arrivals_since(self, front: Self) -> u64 {
        (self.0 >> ARRIVAL_SHIFT).wrapping_sub(front.0 >> ARRIVAL_SHIFT) & ARRIVAL_MASK
    }

    /// A number that orders the waiters of one level that arrived with `front` or after it.
    #[inline(always)]
    pub(crate) fn since(self, front: Self) -> u64 {
        self.0.wrapping_sub(front.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_sort_by_level_and_then_by_arrival() {
        let arrivals = [0, 1, 5, ARRIVAL_MASK];
        let mut before = None;
        for level in 0..Priority::LEVELS {
            let priority = Priority::new(level as u8).unwrap();
            for arrival in arrivals {
                let id = WaiterId::new(arrival, priority, true, None, Some(3));
                let number = id.by_level();
                assert!(WaiterId::range_of_level(id.level()).contains(&number));
                assert!(before.replace(number) < Some(number));
            }
        }
    }
}
