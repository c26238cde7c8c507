//! The rule of a sliding window that logs each grant.

use super::super::usage::carried_age;
use super::super::{LimitReport, Moment, Ratio, Usage};
use super::grants::{FEW, Grants};

#[cfg(test)]
mod tests;

/// The parameters of a [`SlidingWindow::log`](super::SlidingWindow::log), checked.
///
/// It is not a [`Strategy`](super::super::Strategy), because its state is neither `Copy` nor of a fixed size. Its functions are the
/// same.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogRule {
    pub(crate) limit: u64,
    /// Nanoseconds.
    pub(crate) period: u64,
}

/// The grants that may still count. Expired ones are dropped at the next charges.
#[derive(Debug, Clone, Default)]
pub(crate) struct Log {
    grants: Grants,
}

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
    fn leaves(&self, granted: Moment) -> Moment {
        granted.plus(self.period)
    }

    /// Units that have expired and are not dropped yet.
    fn left(&self, log: &Log, now: Moment) -> u64 {
        if self.none_left(log, now) {
            0
        } else {
            log.grants.units_until(now.minus(self.period))
        }
    }

    #[inline(always)]
    fn none_left(&self, log: &Log, now: Moment) -> bool {
        self.leaves(log.grants.first()) > now
    }

    /// `Err`: the instant at which `cost` is admitted if no other request comes; never, if it is above the limit.
    pub(crate) fn decide(&self, log: &Log, now: Moment, cost: u64) -> Result<(), Moment> {
        let Some(room) = self.limit.checked_sub(cost) else {
            return Err(Moment::NEVER);
        };
        // The entries need not be read if there is room even with the expired ones counted.
        let to_leave = log.grants.used().saturating_sub(room);
        if to_leave == 0 {
            return Ok(());
        }
        let ready = self.left_at(log, now, to_leave);
        if ready <= now { Ok(()) } else { Err(ready) }
    }

    /// When the oldest `units` have expired. `now`, if they have already.
    fn left_at(&self, log: &Log, now: Moment, units: u64) -> Moment {
        log.grants
            .granted_at(units)
            .map_or(now, |granted| self.leaves(granted).max(now))
    }

    /// Logs `cost`, any number of units, whether or not it is admitted.
    pub(crate) fn charge(&self, log: &mut Log, now: Moment, cost: u64) {
        if !self.none_left(log, now) {
            self.drop_expired(log, now, cost);
        }
        let cost = cost.min(u64::MAX - log.grants.used());
        if cost == 0 {
            return;
        }
        log.grants.push(now, cost);
        if log.grants.used() > self.limit {
            self.join_beyond_limit(log);
        }
    }

    /// Drops expired entries of one chunk and leaves the rest to later calls, which bounds the time of each. It drops more only
    /// where all units, with `cost`, would be more than can be counted.
    fn drop_expired(&self, log: &mut Log, now: Moment, cost: u64) {
        log.grants.drop_some(now.minus(self.period));
        while log.grants.used().checked_add(cost).is_none() && !self.none_left(log, now) {
            log.grants.drop_some(now.minus(self.period));
        }
    }

    /// Bounds the entries by the limit. More of them have more units than the limit, even without those of the oldest: no request
    /// is admitted before these have left, nor when they leave, but when units of the next entry do. So the oldest may leave
    /// with the next. An expired one is never joined: where [`LogRule::charge`] leaves some, it has dropped at least one.
    fn join_beyond_limit(&self, log: &mut Log) {
        while log.grants.len() as u64 > self.limit.max(FEW as u64) {
            log.grants.join_oldest();
        }
    }

    /// Refunds a grant of `cost` that was decided at `at`, if it still counts. Exact, as if it had never been made, unless its
    /// entry was joined with a later one.
    pub(crate) fn refund(&self, log: &mut Log, at: Moment, cost: u64) {
        log.grants.take_back(at, cost);
    }

    /// The earliest instant at which `cost` can be admitted when `ahead` units go first: a lower bound, exact for `ahead` = 0.
    ///
    /// Number all units in order of their grants: a unit is admitted when the one `limit` places before it expires. Some of the
    /// units ahead may have to expire themselves, each a period after its grant.
    pub(crate) fn ready_at(&self, log: &Log, now: Moment, ahead: u64, cost: u64) -> Moment {
        let limit = u128::from(self.limit.max(1));
        let last = (u128::from(ahead) + u128::from(cost)).max(1);
        let rounds = (last - 1) / limit;
        let to_leave =
            (u128::from(log.grants.used()) + last - rounds * limit).saturating_sub(limit);
        let first = match u64::try_from(to_leave) {
            Ok(0) | Err(_) => now,
            Ok(units) => self.left_at(log, now, units),
        };
        first.plus(
            u64::try_from(rounds)
                .unwrap_or(u64::MAX)
                .saturating_mul(self.period),
        )
    }

    /// The remaining units: as many would be admitted now.
    pub(crate) fn remaining(&self, log: &Log, now: Moment) -> u64 {
        self.limit.saturating_sub(self.used(log, now))
    }

    /// Units that count now, debts included.
    pub(crate) fn used(&self, log: &Log, now: Moment) -> u64 {
        log.grants.used() - self.left(log, now)
    }

    /// The usage now.
    pub(crate) fn usage(&self, log: &Log, now: Moment) -> Usage {
        Usage::of_units(self.used(log, now))
    }

    /// The log that other parameters take over: the grants, each as old as [`carried_age`] says.
    pub(crate) fn take_over(&self, now: Moment, former: &Self, log: &Log, ratio: Ratio) -> Log {
        let mut carried = Vec::new();
        // Starts with the latest grant, so that the usage is never less than its share after some units have expired.
        let (mut units, mut used) = (0, 0);
        for (granted, cost) in log
            .grants
            .to_vec()
            .into_iter()
            .rev()
            .take_while(|entry| former.leaves(entry.0) > now)
        {
            units += cost;
            let before = std::mem::replace(&mut used, ratio.of_whole(Usage::of_units(units)));
            if used > before {
                carried.push((
                    now.minus(carried_age(now.since(granted), former.period, self.period)),
                    used - before,
                ));
            }
        }
        carried.reverse();
        let mut log = Log {
            grants: Grants::new(carried),
        };
        self.join_beyond_limit(&mut log);
        log
    }

    /// Refunds up to `cost` units, the latest first.
    pub(crate) fn forgive(&self, log: &mut Log, cost: u64) {
        log.grants.take_back_latest(cost);
    }

    /// The answer to a caller that does not wait, when `ahead` units wait before it.
    pub(crate) fn report(&self, log: &Log, now: Moment, ahead: u64, cost: u64) -> LimitReport {
        LimitReport {
            denied_until: self.decide(log, now, cost).err(),
            remaining: self.remaining(log, now),
            ready_at: self.ready_at(log, now, ahead, cost),
            reset_at: self.reset_at(log, now),
        }
    }

    /// When the log is empty, if nothing more is admitted.
    pub(crate) fn reset_at(&self, log: &Log, now: Moment) -> Moment {
        log.grants
            .last()
            .map_or(now, |granted| self.leaves(granted).max(now))
    }

    /// The grants that count now, oldest first: when, and how many units.
    pub(crate) fn counting(&self, log: &Log, now: Moment) -> Vec<(Moment, u64)> {
        let mut grants = log.grants.to_vec();
        grants.retain(|(granted, _)| self.leaves(*granted) > now);
        grants
    }
}
