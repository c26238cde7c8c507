use std::collections::VecDeque;

use super::super::usage::carried_age;
use super::super::{LimitReport, Moment, Ratio, Usage};

/// The parameters of a [`SlidingWindow::log`](super::SlidingWindow::log), checked.
///
/// Not a [`Strategy`](super::super::Strategy), for its state is neither `Copy` nor of a fixed size; the functions are the same.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogRule {
    pub(crate) limit: u64,
    /// Nanoseconds.
    pub(crate) period: u64,
}

/// The grants that may still count, oldest first, one entry an instant. What has left is dropped at the next charge, so that
/// each entry is pushed once and dropped once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Log {
    entries: VecDeque<(Moment, u64)>,
    /// The units of all entries.
    used: u64,
}

impl LogRule {
    fn leaves(&self, granted: Moment) -> Moment {
        granted.plus(self.period)
    }

    /// Units that have left and are not dropped yet.
    fn left(&self, log: &Log, now: Moment) -> u64 {
        log.entries.iter().take_while(|entry| self.leaves(entry.0) <= now).map(|entry| entry.1).sum()
    }

    /// When `units` in all have left, those included that left before now. `None`: there are not that many.
    fn when_left(&self, log: &Log, units: u128) -> Option<Moment> {
        let mut left = 0;
        let in_the_way = log.entries.iter().find(|entry| {
            left += u128::from(entry.1);
            left >= units
        });
        in_the_way.map(|entry| self.leaves(entry.0))
    }

    /// `Err`: the instant at which `cost` is admitted when nobody else comes. More than the limit never is.
    pub(crate) fn decide(&self, log: &Log, now: Moment, cost: u64) -> Result<(), Moment> {
        // Without a look at the entries, where even those that have left leave room.
        if u128::from(log.used) + u128::from(cost) <= u128::from(self.limit) {
            return Ok(());
        }
        if cost > self.limit {
            return Err(Moment::NEVER);
        }
        let ready = self.ready_at(log, now, 0, cost);
        if ready <= now { Ok(()) } else { Err(ready) }
    }

    /// Logs `cost`, any number of units, whether or not it is admitted.
    pub(crate) fn charge(&self, log: &mut Log, now: Moment, cost: u64) {
        while let Some(&(_, units)) = log.entries.front().filter(|entry| self.leaves(entry.0) <= now) {
            log.used -= units;
            log.entries.pop_front();
        }
        // So that `used` is the sum of the entries whatever is charged.
        let cost = cost.min(u64::MAX - log.used);
        log.used += cost;
        match log.entries.back_mut() {
            Some((latest, units)) if *latest >= now => *units += cost,
            _ if cost == 0 => {}
            _ => log.entries.push_back((now, cost)),
        }
    }

    /// Takes back a grant of `cost` that was decided at `at`, if it still counts. Exact: as if it had never been.
    pub(crate) fn refund(&self, log: &mut Log, at: Moment, cost: u64) {
        let Ok(index) = log.entries.binary_search_by_key(&at, |entry| entry.0) else { return };
        let units = &mut log.entries[index].1;
        let back = cost.min(*units);
        *units -= back;
        log.used -= back;
        if *units == 0 {
            log.entries.remove(index);
        }
    }

    /// The earliest instant at which `cost` can be admitted when `ahead` units go first: a lower bound, exact for `ahead` = 0.
    ///
    /// Number all units by when they are granted: one is admitted when the one `limit` places before it leaves. Of those that go
    /// first, some may have to leave themselves, each a period after it came.
    pub(crate) fn ready_at(&self, log: &Log, now: Moment, ahead: u64, cost: u64) -> Moment {
        let limit = u128::from(self.limit.max(1));
        let last = (u128::from(ahead) + u128::from(cost)).max(1);
        let rounds = (last - 1) / limit;
        let to_leave = (u128::from(log.used) + last - rounds * limit).saturating_sub(limit);
        let first = if to_leave == 0 { now } else { self.when_left(log, to_leave).map_or(now, |at| at.max(now)) };
        first.plus(u64::try_from(rounds).unwrap_or(u64::MAX).saturating_mul(self.period))
    }

    /// Units that would be admitted now.
    pub(crate) fn remaining(&self, log: &Log, now: Moment) -> u64 {
        self.limit.saturating_sub(self.used(log, now))
    }

    /// Units that count now, debts and all.
    pub(crate) fn used(&self, log: &Log, now: Moment) -> u64 {
        log.used - self.left(log, now)
    }

    /// What stands against it now.
    pub(crate) fn usage(&self, log: &Log, now: Moment) -> Usage {
        Usage::of_units(self.used(log, now))
    }

    /// What a log of other parameters takes over: the grants, each as old as [`carried_age`] says.
    pub(crate) fn take_over(&self, now: Moment, former: &Self, log: &Log, ratio: Ratio) -> Log {
        let mut carried = Log::default();
        // From the latest on, so that what is left when some have gone is never less than its share.
        let mut units = 0;
        for &(granted, cost) in log.entries.iter().rev().take_while(|entry| former.leaves(entry.0) > now) {
            units += cost;
            let used = ratio.of_whole(Usage::of_units(units));
            if used > carried.used {
                let age = carried_age(now.since(granted), former.period, self.period);
                carried.entries.push_front((now.minus(age), used - carried.used));
                carried.used = used;
            }
        }
        carried
    }

    /// Takes back up to `cost` units, the latest first.
    pub(crate) fn forgive(&self, log: &mut Log, cost: u64) {
        let mut left = cost;
        while let Some((_, units)) = log.entries.back_mut().filter(|_| left > 0) {
            let back = left.min(*units);
            (*units, log.used, left) = (*units - back, log.used - back, left - back);
            if *units == 0 {
                log.entries.pop_back();
            }
        }
    }

    /// All that a caller who does not wait is told, when `ahead` units wait before him.
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
        log.entries.back().map_or(now, |entry| self.leaves(entry.0).max(now))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::super::MAX_SPAN_NANOS;
    use super::*;

    fn at(nanos: u64) -> Moment {
        Moment::from_nanos(nanos)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        /// Invariants 1 and 7, against a list of every grant, with refunds and debts.
        #[test]
        fn agrees_with_a_list_of_every_grant(
            limit in 1_u64..9, period in 1_u64..300,
            steps in prop::collection::vec((0_u64..120, 1_u64..9, 0_u8..12, any::<prop::sample::Index>()), 1..60),
        ) {
            let rule = LogRule { limit, period };
            let (mut log, mut now, mut grants) = (Log::default(), Moment::START, Vec::<(u64, u64)>::new());
            for (step, cost, what, pick) in steps {
                now = now.plus(step);
                let count = |grants: &[(u64, u64)], now: Moment| {
                    grants.iter().filter(|grant| grant.0 + period > now.nanos()).map(|grant| grant.1).sum::<u64>()
                };
                match what {
                    0 => {
                        rule.charge(&mut log, now, cost * 2); // whether or not there is room
                        grants.push((now.nanos(), cost * 2));
                    }
                    1 if !grants.is_empty() => {
                        let (at, cost) = grants.remove(pick.index(grants.len()));
                        rule.refund(&mut log, Moment::from_nanos(at), cost);
                    }
                    _ => {
                        let cost = cost.min(limit);
                        let admits = |now: Moment| count(&grants, now) + cost <= limit;
                        if let Err(until) = rule.decide(&log, now, cost) {
                            prop_assert!(!admits(now) && !admits(until.minus(1)) && admits(until));
                            prop_assert_eq!(until, rule.ready_at(&log, now, 0, cost));
                            prop_assert_eq!(rule.decide(&log, until.minus(1), cost), Err(until));
                            prop_assert_eq!(rule.decide(&log, until, cost), Ok(()));
                            now = until;
                        }
                        prop_assert!(admits(now));
                        rule.charge(&mut log, now, cost);
                        grants.push((now.nanos(), cost));
                        prop_assert!(count(&grants, now) <= limit);
                    }
                }
                prop_assert_eq!(rule.remaining(&log, now), limit.saturating_sub(count(&grants, now)));
                let reset = rule.reset_at(&log, now);
                prop_assert_eq!(count(&grants, reset), 0);
                prop_assert!(reset == now || count(&grants, reset.minus(1)) > 0);
                prop_assert_eq!(log.used, log.entries.iter().map(|entry| entry.1).sum::<u64>());
            }
        }

        /// Units of one that go as early as they can are the earliest that can go ahead.
        #[test]
        fn nobody_is_ready_before_it_is_predicted(
            limit in 1_u64..9, period in 1_u64..300, ahead in 0_u64..40, cost in 1_u64..9,
            before in prop::collection::vec((0_u64..120, 1_u64..20), 0..12),
        ) {
            let rule = LogRule { limit, period };
            let (mut log, mut now, cost) = (Log::default(), Moment::START, cost.min(limit));
            for (step, cost) in before {
                now = now.plus(step);
                rule.charge(&mut log, now, cost);
            }
            let predicted = rule.ready_at(&log, now, ahead, cost);
            for _ in 0..ahead {
                now = rule.decide(&log, now, 1).err().unwrap_or(now);
                rule.charge(&mut log, now, 1);
            }
            prop_assert_eq!(rule.decide(&log, now, cost).err().unwrap_or(now), predicted);
        }
    }

    /// Trap: retry-after names the oldest entry, which frees too little.
    #[test]
    fn a_cost_waits_for_the_last_unit_in_its_way_not_the_oldest() {
        let (rule, mut log) = (LogRule { limit: 3, period: 100 }, Log::default());
        for instant in [0, 10, 20] {
            rule.charge(&mut log, at(instant), 1);
        }
        let told = |cost| rule.decide(&log, at(30), cost);
        assert_eq!((told(1), told(2), told(3), told(4)), (Err(at(100)), Err(at(110)), Err(at(120)), Err(Moment::NEVER)));
    }

    /// Trap: a log that grows with the attempts, or with the units.
    #[test]
    fn holds_one_entry_an_instant_and_none_that_has_left() {
        assert_eq!(size_of::<(Moment, u64)>(), 16, "as the docs say");
        let (rule, mut log) = (LogRule { limit: 100, period: 1_000 }, Log::default());
        for nanos in 0..100_000 {
            if rule.decide(&log, at(nanos), 1).is_ok() {
                rule.charge(&mut log, at(nanos), 1);
            }
            assert!(log.entries.len() <= 100);
        }
        rule.charge(&mut log, at(200_000), 50);
        rule.charge(&mut log, at(200_000), 50);
        assert_eq!(log.entries, [(at(200_000), 100)]);
    }

    #[test]
    fn the_largest_parameters_do_not_overflow() {
        let (rule, mut log) = (LogRule { limit: u64::MAX, period: MAX_SPAN_NANOS }, Log::default());
        rule.charge(&mut log, at(3), u64::MAX);
        rule.charge(&mut log, at(4), u64::MAX);
        assert_eq!(rule.ready_at(&log, at(5), u64::MAX, u64::MAX), at(3).plus(MAX_SPAN_NANOS).plus(MAX_SPAN_NANOS));
        assert_eq!(rule.decide(&log, at(5), 1), Err(at(3 + MAX_SPAN_NANOS)));
        let slow = LogRule { limit: 1, ..rule };
        assert_eq!(slow.ready_at(&log, at(5), u64::MAX, 1), Moment::NEVER);
        rule.charge(&mut log, at(3 + MAX_SPAN_NANOS), 1);
        assert_eq!(rule.remaining(&log, at(3 + MAX_SPAN_NANOS)), u64::MAX - 1);
    }
}
