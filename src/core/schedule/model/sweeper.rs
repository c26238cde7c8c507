//! The counter of a penalty, computed by a sweeper that visits it each nanosecond.

use std::time::Duration;

use crate::strategy::{Decay, Penalty};

#[derive(Debug, Clone)]
pub(super) struct Sweeper {
    penalty: Penalty,
    now: u64,
    value: u64,
    since_step: u64,
    /// Nanoseconds that the ban still lasts.
    banned: u64,
    bans: u32,
    /// How long it has been at zero without a ban.
    quiet: u64,
}

/// The age of a charge after a limit of another period has taken it over.
pub(super) fn kept_age(age: u64, old: u64, new: u64) -> u64 {
    if new < old { age * new / old } else { age }
}

fn nanos(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

impl Sweeper {
    pub(super) fn new(penalty: Penalty, now: u64) -> Self {
        Self {
            penalty,
            now,
            value: 0,
            since_step: 0,
            banned: 0,
            bans: 0,
            quiet: 0,
        }
    }

    /// Switches to other parameters: the counter changes with the threshold. The time since its last step is kept, or scaled to a
    /// shorter step, and bans are kept.
    pub(super) fn heir(&self, penalty: Penalty, now: u64, carry: impl FnOnce(u64) -> u64) -> Self {
        let mut heir = self.clone().passed(now);
        let [old, new] = [&self.penalty, &penalty].map(|penalty| match penalty.fall {
            Decay::Steps(rate) => nanos(rate.period()),
            Decay::HalfLife(half_life) => nanos(half_life),
        });
        heir.since_step = kept_age(heir.since_step, old, new);
        heir.penalty = penalty;
        heir.value = carry(heir.value);
        heir.forgive_bans();
        heir
    }

    pub(super) fn passed(mut self, now: u64) -> Self {
        self.pass(now);
        self
    }

    fn pass(&mut self, now: u64) {
        while self.now < now {
            if self.value == 0 && self.banned == 0 && self.bans == 0 {
                self.now = now; // nothing can change it
                return;
            }
            self.now += 1;
            if self.banned > 0 {
                self.banned -= 1;
            } else if self.value > 0 {
                self.since_step += 1;
                self.step();
            } else {
                self.quiet += 1;
            }
            self.forgive_bans();
        }
    }

    fn step(&mut self) {
        let (period, falls_to): (_, &dyn Fn(u64) -> u64) = match &self.penalty.fall {
            Decay::Steps(rate) => (nanos(rate.period()), &|value| {
                value.saturating_sub(rate.units())
            }),
            Decay::HalfLife(half_life) => (nanos(*half_life), &|value| value / 2),
        };
        while self.value > 0 && self.since_step >= period {
            self.value = falls_to(self.value);
            self.since_step -= period;
            if self.value == 0 {
                self.quiet = std::mem::take(&mut self.since_step);
            }
        }
    }

    fn forgive_bans(&mut self) {
        let longest = self
            .penalty
            .ban
            .map(|first| self.penalty.longest.unwrap_or(first).max(first));
        let quiet = longest.map(|longest| nanos(self.penalty.forgive_after.unwrap_or(longest)));
        if self.value == 0 && self.banned == 0 && quiet.is_none_or(|quiet| self.quiet >= quiet) {
            self.bans = 0;
        }
    }

    pub(super) fn admits(&self, cost: u64) -> bool {
        self.banned == 0 && self.value + cost <= self.penalty.threshold
    }

    pub(super) fn used(&self) -> u64 {
        if self.banned > 0 {
            self.value.max(self.penalty.threshold)
        } else {
            self.value
        }
    }

    pub(super) fn raised(mut self, cost: u64) -> Self {
        self.raise(cost);
        self
    }

    fn raise(&mut self, cost: u64) {
        if self.banned == 0 && cost > 0 {
            if self.value == 0 {
                self.since_step = 0;
            }
            let ceiling = self
                .penalty
                .ceiling
                .unwrap_or(self.penalty.threshold * 2)
                .max(self.penalty.threshold);
            self.value = (self.value + cost).min(ceiling);
            self.quiet = 0;
        }
    }

    /// An attempt was denied, by this limit or another one; an attempt denied by another one has no effect.
    pub(super) fn attempt_denied(&mut self, now: u64, cost: u64) {
        self.pass(now);
        match self.penalty.ban {
            _ if self.admits(cost) => {}
            Some(first) if self.banned == 0 => {
                let longest = self.penalty.longest.unwrap_or(first).max(first);
                self.bans += 1;
                self.banned =
                    nanos((1..self.bans).fold(first, |length, _| (length * 2).min(longest)));
                self.value = 0;
                self.quiet = 0;
            }
            None if !self.penalty.ignores_denied => self.raise(cost),
            _ => {}
        }
    }

    pub(super) fn forgive(&mut self, now: u64, units: u64) {
        self.pass(now);
        if self.banned == 0 && self.value > 0 {
            self.value = self.value.saturating_sub(units);
            self.forgive_bans();
        }
    }

    /// Refunds an attempt that was charged at `at`, unless the counter has fallen or was reset since.
    pub(super) fn refund(&mut self, now: u64, at: u64, units: u64) {
        self.pass(now);
        if self.now - self.since_step <= at {
            self.forgive(now, units);
        }
    }
}
