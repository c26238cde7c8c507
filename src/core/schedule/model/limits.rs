//! One limit, naively: a list of all charges, or a counter that is read each nanosecond.

use std::collections::BTreeSet;
use std::time::Duration;

use super::sweeper::{Sweeper, kept_age};
use crate::policy::Limit;
use crate::strategy::{Align, FixedWindow, SlidingMethod, SlidingWindow, Throttle, TokenBucket};

/// Which of two amounts is meant. They differ where the schedule may keep more than the exact amount: it may refund less, and
/// rounds up what a new limit takes over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bound {
    Least,
    Most,
}

#[derive(Debug, Clone, Copy)]
struct Charge {
    at: u64,
    /// When its window ends, if the limit has windows.
    ends: u64,
    least: u128,
    most: u128,
    /// The grant that was charged, if any, while it can be refunded.
    fence: Option<u64>,
}

impl Charge {
    fn amount(&self, bound: Bound) -> u128 {
        if bound == Bound::Least {
            self.least
        } else {
            self.most
        }
    }
}

/// What counts against a limit.
#[derive(Debug, Clone, Copy)]
enum Measure {
    /// Units come back at a rate, evenly or at the end of each period. Charges are counted in parts, a period to the unit.
    Pace {
        units: u64,
        period: u64,
        evenly: bool,
    },
    /// All units come back at the end of each window.
    Windows { period: u64, align: Align },
    /// Each unit counts for a period.
    Log { period: u64 },
    /// The units of this window, and those of the last one in proportion to its part within a period.
    Counter { period: u64 },
    /// Units in flight, which the reference counts once for all limits.
    Places,
    /// See [`Sweeper`].
    Attempts,
}

#[derive(Debug, Clone)]
pub(super) struct NaiveLimit {
    pub(super) limit: Limit,
    /// Nanoseconds from a line of the wall clock's grid to the start.
    since_epoch: u64,
    /// An instant at which a window of a counter starts.
    line: u64,
    charges: Vec<Charge>,
    /// The latest fence at the start of a pace that may be kept as a line: an earlier grant may be refunded less.
    pub(super) line_after: Option<u64>,
    /// The counter of a penalty; several if it may be any of them.
    counters: Vec<Sweeper>,
}

fn nanos(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

impl NaiveLimit {
    /// A limit that is reset, with its initial usage.
    pub(super) fn new(limit: Limit, since_epoch: u64, now: u64) -> Self {
        let mut new = Self::empty(limit, since_epoch, now);
        if let Limit::TokenBucket(TokenBucket {
            initial: Some(initial),
            ..
        }) = limit
        {
            new.charge(now, limit.capacity().saturating_sub(initial), None);
        }
        new
    }

    fn empty(limit: Limit, since_epoch: u64, now: u64) -> Self {
        let counters = if let Limit::Penalty(penalty) = limit {
            vec![Sweeper::new(penalty, now)]
        } else {
            Vec::new()
        };
        Self {
            limit,
            since_epoch,
            line: 0,
            charges: Vec::new(),
            line_after: None,
            counters,
        }
    }

    /// Takes over from a limit of another policy.
    pub(super) fn heir(limit: Limit, former: Self, now: u64, in_proportion: bool) -> Self {
        if former.limit == limit {
            return former;
        }
        let (old, new) = (
            u128::from(former.limit.capacity()),
            u128::from(limit.capacity()),
        );
        let share = |units: u128, of: u128| {
            if in_proportion {
                (units * new, of * old)
            } else {
                (units, of)
            }
        };
        let rounded_up = |(units, of): (u128, u128)| {
            let (units, of) = share(units, of);
            units.div_ceil(of)
        };
        let mut heir = Self::empty(limit, former.since_epoch, now);
        let (least, most) = (
            former.used(now, Bound::Least),
            former.used(now, Bound::Most),
        );
        let (least, of) = share(least.0, least.1);
        let carried = |at: u64, ends: u64, counts: &dyn Fn(&Charge) -> bool| {
            let amount = |bound| rounded_up((former.sum(bound, counts), 1));
            Charge {
                at,
                ends,
                least: amount(Bound::Least),
                most: amount(Bound::Most),
                fence: None,
            }
        };
        match (limit, former.measure(), heir.measure()) {
            (Limit::Penalty(penalty), Measure::Attempts, _) => {
                let carry = |units: u64| rounded_up((units.into(), 1)) as u64;
                heir.counters = former
                    .counters
                    .iter()
                    .map(|counter| counter.heir(penalty, now, carry))
                    .collect();
            }
            (Limit::Penalty(_), ..) => {
                let new = heir.counters.remove(0);
                heir.counters = ((least / of) as u64..=rounded_up(most) as u64)
                    .map(|units| new.clone().raised(units))
                    .collect();
            }
            (_, Measure::Log { period: old }, Measure::Log { period: new }) => {
                // After some units have expired, the rest must be its share at every instant.
                let instants: BTreeSet<u64> = former
                    .charges
                    .iter()
                    .map(|charge| charge.at)
                    .filter(|at| at + old > now)
                    .collect();
                for at in instants {
                    let since = carried(now - kept_age(now - at, old, new), 0, &|charge| {
                        charge.at >= at
                    });
                    let after = carried(at, 0, &|charge| charge.at > at);
                    heir.charges.push(Charge {
                        least: since.least - after.least,
                        most: since.most - after.most,
                        ..since
                    });
                }
            }
            (_, Measure::Counter { period: old }, Measure::Counter { period: new }) => {
                // Both windows are kept. The later one has started as long ago as a unit of a log would have been granted.
                let window = former.counter_window(now, old);
                let age = (i128::from(now) - i128::from(former.line)).rem_euclid(old.into()) as u64;
                heir.line = now - kept_age(age, old, new);
                heir.charges = [
                    (heir.line.saturating_sub(1), window - 1),
                    (heir.line, window),
                ]
                .map(|(at, window)| {
                    carried(at, 0, &|charge| {
                        former.counter_window(charge.at, old) == window
                    })
                })
                .to_vec();
            }
            (
                _,
                Measure::Windows {
                    period: old,
                    align: Align::FirstGrant,
                },
                Measure::Windows {
                    period: new,
                    align: Align::FirstGrant,
                },
            ) if most.0 > 0 => {
                let ends = former.window_ends(now);
                let ends = now + new - kept_age(old - (ends - now), old, new);
                heir.charges = vec![Charge {
                    at: now,
                    ends,
                    least: least.div_ceil(of),
                    most: rounded_up(most),
                    fence: None,
                }];
            }
            _ => {
                heir.charge(now, rounded_up(most) as u64, None);
                let (least, exact) = (
                    least * heir.parts() / of,
                    rounded_up((most.0 * heir.parts(), most.1)),
                );
                let granule = heir.granule();
                for charge in &mut heir.charges {
                    charge.least = least;
                    charge.most = exact.next_multiple_of(granule);
                }
            }
        }
        heir
    }

    fn measure(&self) -> Measure {
        match self.limit {
            Limit::Throttle(Throttle { interval, .. }) => Measure::Pace {
                units: 1,
                period: nanos(interval),
                evenly: true,
            },
            Limit::TokenBucket(TokenBucket {
                rate, each_period, ..
            }) => Measure::Pace {
                units: rate.units(),
                period: nanos(rate.period()),
                evenly: !each_period,
            },
            Limit::FixedWindow(FixedWindow { period, align, .. }) => Measure::Windows {
                period: nanos(period),
                align,
            },
            Limit::SlidingWindow(SlidingWindow {
                period,
                method: SlidingMethod::Log,
                ..
            }) => Measure::Log {
                period: nanos(period),
            },
            Limit::SlidingWindow(SlidingWindow { period, .. }) => Measure::Counter {
                period: nanos(period),
            },
            Limit::MaxConcurrency(_) => Measure::Places,
            Limit::Penalty(_) => Measure::Attempts,
        }
    }

    pub(super) fn counts_places(&self) -> bool {
        matches!(self.measure(), Measure::Places)
    }

    /// The number of parts of a unit in which charges are counted.
    fn parts(&self) -> u128 {
        if let Measure::Pace { period, .. } = self.measure() {
            period.into()
        } else {
            1
        }
    }

    /// The step of parts in which a pace takes over: it keeps all counts whole.
    fn granule(&self) -> u128 {
        match self.measure() {
            Measure::Pace {
                units,
                period,
                evenly: true,
            } => (1..=units.min(period))
                .rev()
                .find(|part| units % part == 0 && period % part == 0)
                .unwrap_or(1)
                .into(),
            _ => self.parts(),
        }
    }

    fn sum(&self, bound: Bound, counts: impl Fn(&Charge) -> bool) -> u128 {
        self.charges
            .iter()
            .filter(|charge| counts(charge))
            .map(|charge| charge.amount(bound))
            .sum()
    }

    /// The usage, and the size of a unit in it.
    fn used(&self, now: u64, bound: Bound) -> (u128, u128) {
        let wide = u128::from;
        match self.measure() {
            Measure::Pace {
                units,
                period,
                evenly,
            } => {
                // Each charge and all later ones, less what was refilled since.
                let mut taken = 0;
                let passed = |at| {
                    if evenly {
                        now - at
                    } else {
                        (now / period - at / period) * period
                    }
                };
                let since = self.charges.iter().rev().map(|charge| {
                    taken += charge.amount(bound);
                    taken.saturating_sub(wide(passed(charge.at)) * wide(units))
                });
                (since.max().unwrap_or(0), wide(period))
            }
            Measure::Windows { period, .. } => {
                let (ends, used) = self.latest_window(bound);
                let passed = if now < ends {
                    0
                } else {
                    (now - ends) / period + 1
                };
                (
                    used.saturating_sub(wide(self.limit.capacity()) * wide(passed)),
                    1,
                )
            }
            Measure::Log { period } => (self.sum(bound, |charge| charge.at + period > now), 1),
            Measure::Counter { period } => {
                let window = self.counter_window(now, period);
                let last = self.sum(bound, |charge| {
                    self.counter_window(charge.at, period) + 1 == window
                });
                let this = self.sum(bound, |charge| {
                    self.counter_window(charge.at, period) == window
                });
                let elapsed =
                    (i128::from(now) - i128::from(self.line)).rem_euclid(period.into()) as u128;
                (
                    last * (wide(period) - elapsed) + this * wide(period),
                    wide(period),
                )
            }
            Measure::Places => (0, 1),
            Measure::Attempts => {
                let used = self.counters_at(now).map(|counter| counter.used());
                let used = if bound == Bound::Least {
                    used.min()
                } else {
                    used.max()
                };
                (used.unwrap_or(0).into(), 1)
            }
        }
    }

    /// The number of the window of a counter that an instant lies in.
    fn counter_window(&self, at: u64, period: u64) -> i128 {
        (i128::from(at) - i128::from(self.line)).div_euclid(period.into())
    }

    /// When the latest window with a charge ends, and its usage, including the debts of earlier windows.
    fn latest_window(&self, bound: Bound) -> (u64, u128) {
        let Measure::Windows { period, .. } = self.measure() else {
            return (0, 0);
        };
        let units = self.limit.capacity();
        self.charges
            .iter()
            .fold((0, 0_u128), |(ends, used), charge| {
                let passed = if ends == 0 {
                    0
                } else {
                    (charge.ends - ends) / period
                };
                (
                    charge.ends,
                    used.saturating_sub(u128::from(units) * u128::from(passed))
                        + charge.amount(bound),
                )
            })
    }

    /// When the window of a charge ends.
    fn window_ends(&self, now: u64) -> u64 {
        let Measure::Windows { period, align, .. } = self.measure() else {
            return 0;
        };
        let phase = if align == Align::WallClock {
            self.since_epoch
        } else {
            0
        };
        let (ends, _) = self.latest_window(Bound::Most);
        match align {
            // A debt carries over to the next windows; otherwise a charge opens one.
            Align::FirstGrant if now < ends => ends,
            Align::FirstGrant if self.used(now, Bound::Most).0 > 0 => {
                ends + ((now - ends) / period + 1) * period
            }
            Align::FirstGrant => now + period,
            _ => now + period - (now + phase) % period,
        }
    }

    pub(super) fn admits(&self, now: u64, cost: u64, bound: Bound) -> bool {
        if let Measure::Attempts = self.measure() {
            let mut admits = self.counters_at(now).map(|counter| counter.admits(cost));
            return if bound == Bound::Least {
                admits.any(|admits| admits)
            } else {
                admits.all(|admits| admits)
            };
        }
        let (used, unit) = self.used(now, bound);
        used + u128::from(cost) * unit <= u128::from(self.limit.capacity()) * unit
    }

    /// Where it is open how a penalty was counted: each way that is possible.
    pub(super) fn each_way(&self) -> Vec<Self> {
        if self.counters.len() < 2 {
            return vec![self.clone()];
        }
        let one = |counter: &Sweeper| Self {
            counters: vec![counter.clone()],
            ..self.clone()
        };
        self.counters.iter().map(one).collect()
    }

    fn counters_at(&self, now: u64) -> impl Iterator<Item = Sweeper> {
        self.counters
            .iter()
            .map(move |counter| counter.clone().passed(now))
    }

    pub(super) fn charge(&mut self, now: u64, units: u64, fence: Option<u64>) {
        if let Measure::Attempts = self.measure() {
            let counters = self
                .counters_at(now)
                .filter(|counter| fence.is_none() || counter.admits(units));
            self.counters = counters.map(|counter| counter.raised(units)).collect();
        } else if self.counts_places()
            || units == 0 && matches!(self.measure(), Measure::Windows { .. })
        {
            return; // a cost of 0 opens no window
        }
        let (ends, amount) = (self.window_ends(now), u128::from(units) * self.parts());
        self.charges.push(Charge {
            at: now,
            ends,
            least: amount,
            most: amount,
            fence,
        });
    }

    /// Refunds a grant of `cost` of which `actual` units were used.
    pub(super) fn refund(&mut self, now: u64, fence: u64, cost: u64, actual: u64) {
        let Some(nth) = self
            .charges
            .iter()
            .position(|charge| charge.fence == Some(fence))
        else {
            return;
        };
        let Charge { at, ends, .. } = self.charges[nth];
        if let Measure::Attempts = self.measure() {
            self.counters
                .iter_mut()
                .for_each(|counter| counter.refund(now, at, cost - actual));
            return;
        }
        // Debts that a window has carried over to later ones stay.
        if self.charges[nth..].iter().any(|later| later.ends > ends) {
            return;
        }
        // In a pace, the later grants limit what a refund is worth. On a line, those of the same instant do as well.
        let later = &self.charges[nth + 1..];
        let is_latest = match self.line_after {
            Some(line_after) => later.is_empty() && fence > line_after,
            None => later.iter().all(|later| later.at == at),
        };
        let is_exact = !matches!(self.measure(), Measure::Pace { .. }) || is_latest;
        let amount = u128::from(actual) * self.parts();
        self.charges[nth].least = amount;
        if is_exact {
            self.charges[nth].most = amount;
        }
        self.forget_empty_window();
    }

    /// If all units are refunded, a window opened by a grant counts as never opened.
    fn forget_empty_window(&mut self) {
        if let Measure::Windows {
            align: Align::FirstGrant,
            ..
        } = self.measure()
            && self.latest_window(Bound::Most).1 == 0
        {
            self.charges.clear();
        }
    }

    /// Refunds up to this many units, the latest first. None of them is refunded again.
    pub(super) fn forgive(&mut self, now: u64, units: u64) {
        self.counters
            .iter_mut()
            .for_each(|counter| counter.forgive(now, units));
        let units = u128::from(units) * self.parts();
        match self.measure() {
            Measure::Pace { .. } | Measure::Windows { .. } => {
                let ends = self.window_ends(now);
                let left = |bound| self.used(now, bound).0.saturating_sub(units);
                self.charges = vec![Charge {
                    at: now,
                    ends,
                    least: left(Bound::Least),
                    most: left(Bound::Most),
                    fence: None,
                }];
                self.forget_empty_window();
            }
            _ => {
                let (mut least, mut most) = (units, units);
                for charge in self.charges.iter_mut().rev() {
                    let back = (charge.least.min(least), charge.most.min(most));
                    charge.least -= back.0;
                    charge.most -= back.1;
                    least -= back.0;
                    most -= back.1;
                    charge.fence = None;
                }
            }
        }
    }

    /// Records that a request that does not wait was denied. This changes only a penalty that denied it.
    pub(super) fn note_denial(&mut self, now: u64, cost: u64) {
        self.counters
            .iter_mut()
            .for_each(|counter| counter.attempt_denied(now, cost));
    }
}
