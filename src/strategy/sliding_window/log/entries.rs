//! A log as a list, for stores that keep bytes.

use super::super::super::Moment;
use super::super::grants::Grants;
use super::{Log, LogRule};

impl Log {
    /// Builds a log from grants in the order of time, as [`LogRule::counting`] returns them. `None` if these cannot be the grants
    /// of a log.
    pub(crate) fn new(grants: Vec<(Moment, u64)>) -> Option<Self> {
        let in_order = grants.is_sorted_by(|earlier, later| earlier.0 < later.0)
            && grants.iter().all(|(_, units)| *units > 0);
        let countable = grants
            .iter()
            .try_fold(0_u64, |sum, (_, units)| sum.checked_add(*units))
            .is_some();
        (in_order && countable).then(|| Self {
            grants: Grants::new(grants),
        })
    }
}

impl LogRule {
    /// The grants that count now, oldest first: when, and how many units.
    pub(crate) fn counting(&self, log: &Log, now: Moment) -> Vec<(Moment, u64)> {
        let mut grants = log.grants.to_vec();
        grants.retain(|(granted, _)| self.leaves(*granted) > now);
        grants
    }
}
