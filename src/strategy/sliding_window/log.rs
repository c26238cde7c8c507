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

impl LogRule {
    fn leaves(&self, granted: Moment) -> Moment {
        granted.plus(self.period)
    }

    #[inline(always)]
    fn none_left(&self, log: &Grants, now: Moment) -> bool {
        self.leaves(log.first()) > now
    }

    /// `Err`: the instant at which `cost` is admitted if no other request comes; never, if it is above the limit.
    pub(crate) fn decide(&self, log: &Grants, now: Moment, cost: u64) -> Result<(), Moment> {
        let Some(room) = self.limit.checked_sub(cost) else {
            return Err(Moment::NEVER);
        };
        // The entries need not be read if there is room even with the expired ones counted.
        let to_leave = log.used().saturating_sub(room);
        if to_leave == 0 {
            return Ok(());
        }
        let ready = self.left_at(log, now, to_leave);
        if ready <= now { Ok(()) } else { Err(ready) }
    }

    /// When the oldest `units` have expired. `now`, if they have already.
    fn left_at(&self, log: &Grants, now: Moment, units: u64) -> Moment {
        log.granted_at(units)
            .map_or(now, |granted| self.leaves(granted).max(now))
    }

    /// Logs a grant of `cost`, any number of units, whether or not it is admitted.
    pub(crate) fn charge(&self, log: &mut Grants, now: Moment, cost: u64) {
        if !self.none_left(log, now) {
            self.drop_expired(log, now, cost);
        }
        let cost = cost.min(u64::MAX - log.used());
        if cost == 0 {
            return;
        }
        log.push(now, cost);
        if log.used() > self.limit {
            self.join_beyond_limit(log);
        }
    }

    /// Drops expired entries of one chunk and leaves the rest to later calls, which bounds the time of each. It drops more only
    /// where all units, with `cost`, would be more than can be counted.
    fn drop_expired(&self, log: &mut Grants, now: Moment, cost: u64) {
        log.drop_some(now.minus(self.period));
        while log.used().checked_add(cost).is_none() && !self.none_left(log, now) {
            log.drop_some(now.minus(self.period));
        }
    }

    /// Bounds the number of entries by the limit. Where there are more, the entries without the oldest one have at least `limit`
    /// units. So no request is admitted when the oldest entry expires, only when units of the next one do, and the oldest may expire
    /// with the next. An expired entry is never joined: where [`LogRule::charge`] leaves some, it has dropped at least one.
    fn join_beyond_limit(&self, log: &mut Grants) {
        while log.len() as u64 > self.limit.max(FEW as u64) {
            log.join_oldest();
        }
    }

    /// The earliest instant at which `cost` can be admitted when `ahead` units go first: a lower bound, exact for `ahead` = 0.
    ///
    /// Number all units in order of their grants: a unit is admitted when the one `limit` places before it expires. Some of the
    /// units ahead may have to expire themselves, each a period after its grant.
    pub(crate) fn ready_at(&self, log: &Grants, now: Moment, ahead: u64, cost: u64) -> Moment {
        let limit = u128::from(self.limit.max(1));
        let last = (u128::from(ahead) + u128::from(cost)).max(1);
        let rounds = (last - 1) / limit;
        let to_leave = (u128::from(log.used()) + last - rounds * limit).saturating_sub(limit);
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
    pub(crate) fn remaining(&self, log: &Grants, now: Moment) -> u64 {
        self.limit.saturating_sub(self.used(log, now))
    }

    /// Units that count now, debts included.
    pub(crate) fn used(&self, log: &Grants, now: Moment) -> u64 {
        // Some units may have expired and are not dropped yet.
        let left = if self.none_left(log, now) {
            0
        } else {
            log.units_until(now.minus(self.period))
        };
        log.used() - left
    }

    /// The usage now.
    pub(crate) fn usage(&self, log: &Grants, now: Moment) -> Usage {
        Usage::of_units(self.used(log, now))
    }

    /// The log that takes over the grants of a log of other parameters, each as old as [`carried_age`] says.
    pub(crate) fn take_over(
        &self,
        now: Moment,
        former: &Self,
        log: &Grants,
        ratio: Ratio,
    ) -> Grants {
        let mut carried = Vec::new();
        // Starts with the latest grant, so that the usage is never less than its share after some units have expired.
        let (mut units, mut used) = (0, 0);
        for (granted, cost) in former.counting(log, now).into_iter().rev() {
            units += cost;
            let before = std::mem::replace(&mut used, ratio.of_whole(Usage::of_units(units)));
            if used > before {
                let age = carried_age(now.since(granted), former.period, self.period);
                carried.push((now.minus(age), used - before));
            }
        }
        let mut log = Grants::default();
        for (granted, units) in carried.into_iter().rev() {
            log.push(granted, units);
        }
        self.join_beyond_limit(&mut log);
        log
    }

    /// The answer to a caller that does not wait, when `ahead` units wait before it.
    pub(crate) fn report(&self, log: &Grants, now: Moment, ahead: u64, cost: u64) -> LimitReport {
        LimitReport {
            denied_until: self.decide(log, now, cost).err(),
            remaining: self.remaining(log, now),
            ready_at: self.ready_at(log, now, ahead, cost),
            reset_at: self.reset_at(log, now),
        }
    }

    /// When the log is empty, if nothing more is admitted.
    pub(crate) fn reset_at(&self, log: &Grants, now: Moment) -> Moment {
        log.last()
            .map_or(now, |granted| self.leaves(granted).max(now))
    }

    /// The grants that count now, oldest first: when, and how many units.
    pub(crate) fn counting(&self, log: &Grants, now: Moment) -> Vec<(Moment, u64)> {
        let mut grants = log.to_vec();
        grants.retain(|(granted, _)| self.leaves(*granted) > now);
        grants
    }
}
