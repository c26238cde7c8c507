//! Prefetched units of rates: the store has charged them already, and this process grants them without a call.

use crate::strategy::Moment;

/// How many units are prefetched, and for how long they are kept. By default, none are.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PrefetchOptions {
    /// The most units; 0 for none.
    pub(crate) max: u64,
    /// Nanoseconds after which the remaining units are returned.
    pub(crate) kept_for: u64,
}

/// The prefetched units that are left.
#[derive(Debug, Default)]
pub(super) struct Prefetch {
    options: PrefetchOptions,
    units: u64,
    /// The fence of the next grant.
    fence: u64,
    /// When the store charged them, by its clock.
    granted_at: u64,
    kept_until: Moment,
    /// Units granted since the last call: as many are likely to be wanted until the next one.
    demand: u64,
    /// The number of units after the last call.
    filled: u64,
}

/// Units to be returned, and when the store granted them.
pub(super) type UnusedUnits = (u64, u64);

impl Prefetch {
    pub(super) fn new(options: PrefetchOptions) -> Self {
        Self {
            options,
            ..Self::default()
        }
    }

    /// How many can be taken out.
    pub(super) fn left(&self, now: Moment) -> u64 {
        if now < self.kept_until { self.units } else { 0 }
    }

    /// Takes units out. Returns the fence of the grant and when the store granted it; `None`, without a change, if there are too
    /// few.
    pub(super) fn take(&mut self, now: Moment, cost: u64) -> Option<(u64, u64)> {
        if self.left(now) < cost {
            return None;
        }
        self.units -= cost;
        self.demand = self.demand.saturating_add(cost);
        self.fence += cost;
        Some((self.fence - cost, self.granted_at))
    }

    /// Records the units that the requests of a call asked for.
    pub(super) fn note_demand(&mut self, units: u64) {
        self.demand = self.demand.saturating_add(units);
    }

    /// Whether it is time to ask for more: less than half is left of what was in use.
    pub(super) fn runs_low(&self) -> bool {
        self.demand > 0 && self.units < self.filled.div_ceil(2)
    }

    /// How many to ask for in a call that is made now: twice the demand since the last one.
    pub(super) fn wanted(&mut self) -> u64 {
        let demand = std::mem::take(&mut self.demand);
        demand
            .saturating_mul(2)
            .min(self.options.max)
            .saturating_sub(self.units)
    }

    /// Replaces the units by those that the store has granted. Returns the remaining ones: units of two instants do not mix.
    pub(super) fn fill(
        &mut self,
        now: Moment,
        units: u64,
        first_fence: u64,
        granted_at: u64,
    ) -> Option<UnusedUnits> {
        let left = self.empty();
        self.units = units;
        self.filled = units;
        self.fence = first_fence;
        self.granted_at = granted_at;
        self.kept_until = now.plus(self.options.kept_for);
        left
    }

    /// When the remaining units are returned.
    pub(super) fn ends_at(&self) -> Moment {
        if self.units > 0 {
            self.kept_until
        } else {
            Moment::NEVER
        }
    }

    /// Takes all out.
    pub(super) fn empty(&mut self) -> Option<UnusedUnits> {
        let units = std::mem::take(&mut self.units);
        (units > 0).then_some((units, self.granted_at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_size_follows_the_demand() {
        let mut prefetch = Prefetch::new(PrefetchOptions {
            max: 100,
            kept_for: 10,
        });
        let now = Moment::START;
        assert_eq!(prefetch.take(now, 1), None);
        prefetch.note_demand(4);
        assert!(prefetch.wanted() == 8 && prefetch.wanted() == 0);
        assert_eq!(prefetch.fill(now, 8, 50, 7), None);
        assert_eq!(
            (prefetch.take(now, 3), prefetch.take(now, 1)),
            (Some((50, 7)), Some((53, 7)))
        );
        assert!(!prefetch.runs_low(), "half is left");
        assert_eq!(prefetch.take(now, 1), Some((54, 7)));
        assert!(prefetch.runs_low());
        assert_eq!(prefetch.wanted(), 10 - 3);
        assert_eq!(prefetch.fill(now, 7, 90, 9), Some((3, 7)));
        assert_eq!(
            (prefetch.ends_at(), prefetch.take(now.plus(10), 1)),
            (now.plus(10), None)
        );
        assert_eq!(
            (prefetch.empty(), prefetch.ends_at()),
            (Some((7, 9)), Moment::NEVER)
        );
    }
}
