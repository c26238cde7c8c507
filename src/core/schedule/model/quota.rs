//! An upstream's quota that is spread out: its grants in a list.

use super::limits::Bound;

/// What is left of an upstream's quota, at an even pace.
#[derive(Debug, Clone)]
pub(super) struct Quota {
    pub(super) units: u64,
    /// Nanoseconds a unit.
    pub(super) interval: u64,
    /// When the first unit is granted.
    pub(super) since: u64,
    pub(super) until: u64,
    /// The latest grant at the first signal of the quota.
    pub(super) signalled_after: u64,
    /// Each grant since.
    pub(super) taken: Vec<Taken>,
    /// Refunded units that the upstream may or may not have counted: the schedule may do either.
    pub(super) is_unclear: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Taken {
    pub(super) fence: u64,
    pub(super) at: u64,
    pub(super) used: u64,
    /// Units that the next grant waits for.
    pub(super) paced: u64,
}

impl Quota {
    pub(super) fn left(&self) -> u64 {
        self.units
            .saturating_sub(self.taken.iter().map(|taken| taken.used).sum())
    }

    pub(super) fn next(&self) -> u64 {
        self.taken
            .last()
            .map_or(self.since, |last| last.at + self.interval * last.paced)
    }

    pub(super) fn holds_back(&self, at: u64, cost: u64, bound: Bound) -> bool {
        let holds_back = cost > self.left() || at < self.next();
        at < self.until
            && if self.is_unclear {
                bound == Bound::Most
            } else {
                holds_back
            }
    }

    /// Settles a grant that used `actual` units. `latest`: it is the latest of all grants, for which the next one waits.
    pub(super) fn settle(&mut self, fence: u64, cost: u64, actual: u64, latest: bool) {
        if let Some(taken) = self.taken.iter_mut().find(|taken| taken.fence == fence) {
            taken.used = actual;
            if latest {
                taken.paced = cost.min(actual);
            }
        } else if fence > self.signalled_after && actual != cost {
            self.is_unclear = true;
        }
    }
}
