//! One waiter: its request and its waker.

use std::task::Waker;

use crate::core::request::Caller;
use crate::priority::Priority;

/// A waiter in its line. What most waiters do not have, a deadline, is kept beside the line.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) id: WaiterId,
    pub(crate) cost: u64,
    pub(crate) caller: Caller,
    pub(crate) waker: Waker,
}

/// Identifies a waiter until its owner has its answer, and says where it waits. The order is that of arrival.
///
/// From the top: the arrival, the level of its priority, whether its caller blocks a thread. The count of arrivals wraps after
/// 2^59; what compares waiters in one line does so relative to the front.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WaiterId(u64);

const BLOCKING: u64 = 1;
const LEVEL_SHIFT: u32 = 1;
const LEVEL_MASK: u64 = 0xF;
const ARRIVAL_SHIFT: u32 = LEVEL_SHIFT + LEVEL_MASK.count_ones();
const _: () = assert!(Priority::LEVELS as u64 <= LEVEL_MASK + 1);

impl WaiterId {
    #[inline(always)]
    pub(crate) fn new(arrival: u64, priority: Priority, blocking: bool) -> Self {
        Self(arrival << ARRIVAL_SHIFT | u64::from(priority.level()) << LEVEL_SHIFT | u64::from(blocking))
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

    /// A number that orders those of one level which arrived with `front` or after it.
    #[inline(always)]
    pub(crate) fn since(self, front: Self) -> u64 {
        self.0.wrapping_sub(front.0)
    }

    /// At most the id of any waiter of its level that arrives later.
    pub(crate) fn next(self) -> Self {
        Self((self.0 & !BLOCKING).wrapping_add(1 << ARRIVAL_SHIFT))
    }
}
