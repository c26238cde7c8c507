//! The waiters that have a deadline, the earliest first.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::core::queue::waiter::WaiterId;
use crate::priority::Priority;
use crate::strategy::Moment;

/// A waiter's deadline; of equal ones, the first in the queue is the least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Deadline {
    pub(crate) at: Moment,
    priority: Reverse<Priority>,
    pub(crate) id: WaiterId,
}

impl Deadline {
    pub(crate) fn new(at: Moment, id: WaiterId) -> Self {
        Self {
            at,
            priority: Reverse(id.priority()),
            id,
        }
    }
}

/// Most queues have no deadline: then this is a null pointer.
#[derive(Debug, Default)]
pub(crate) struct Deadlines(Option<Box<Timed>>);

#[derive(Debug)]
struct Timed {
    /// Kept outside the tree: each of a million keys may have a waiter with a deadline, and a tree of one takes memory for
    /// eleven.
    first: Deadline,
    others: BTreeSet<Deadline>,
    /// The units that these waiters request.
    units: u128,
}

impl Deadlines {
    #[inline(always)]
    pub(crate) fn first(&self) -> Option<&Deadline> {
        Some(&self.0.as_ref()?.first)
    }

    /// The earliest first.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Deadline> + Clone {
        self.0
            .iter()
            .flat_map(|timed| std::iter::once(&timed.first).chain(&timed.others))
    }

    /// The units that the waiters with a deadline request.
    pub(crate) fn units(&self) -> u128 {
        self.0.as_ref().map_or(0, |timed| timed.units)
    }

    pub(crate) fn insert(&mut self, deadline: Deadline, cost: u64) {
        match &mut self.0 {
            Some(timed) => {
                timed.units += u128::from(cost);
                timed.others.insert(deadline.max(timed.first));
                timed.first = deadline.min(timed.first);
            }
            none => {
                *none = Some(Box::new(Timed {
                    first: deadline,
                    others: BTreeSet::new(),
                    units: cost.into(),
                }));
            }
        }
    }

    /// Removes a deadline that was inserted with this cost.
    pub(crate) fn remove(&mut self, deadline: &Deadline, cost: u64) {
        let Some(timed) = &mut self.0 else { return };
        timed.units -= u128::from(cost);
        if timed.first != *deadline {
            timed.others.remove(deadline);
        } else if let Some(next) = timed.others.pop_first() {
            timed.first = next;
        } else {
            self.0 = None;
        }
    }
}
