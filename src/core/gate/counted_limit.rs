//! One limit of a policy: its state, what it counts, and which grants it can refund. It can take over from a limit of a former policy.

use crate::carry_over::UsageCarryOver;
use crate::core::gate::limit_state::LimitState;
use crate::core::gate::measure::{InFlight, Measure};
use crate::core::request::Costs;
use crate::policy::Limit;
use crate::strategy::{Counts, LimitRule, Moment};

#[derive(Debug)]
pub(super) struct CountedLimit {
    pub(super) state: LimitState,
    /// `None`: it counts the plain cost, has always done so, and can refund all grants.
    rare: Option<Box<RareParts>>,
}

#[derive(Debug, Default)]
struct RareParts {
    measure: Measure,
    /// The last fence whose grant it cannot refund: it was granted before the limit was added, or its units were reset since.
    refundable_after: u64,
}

impl CountedLimit {
    pub(super) fn new(limit: &Limit, rule: &LimitRule, now: Moment) -> Self {
        let mut new = Self {
            state: LimitState::new(rule, now),
            rare: None,
        };
        if limit.counts() != Counts::Cost {
            new.rare_parts().measure = Measure::new(limit.counts());
        }
        new
    }

    fn rare_parts(&mut self) -> &mut RareParts {
        self.rare.get_or_insert_default()
    }

    /// What it counts.
    pub(super) fn measure(&self) -> Measure {
        let rare = self.rare.as_ref();
        rare.map_or_else(Measure::default, |rare| rare.measure.clone())
    }

    /// Whether it counts the plain cost, and has always done so.
    pub(super) fn is_plain(&self) -> bool {
        let rare = self.rare.as_ref();
        rare.is_none_or(|rare| rare.measure.is_plain())
    }

    /// All permits that were granted by another measure have come back: it counts the plain cost.
    pub(super) fn forget_measure(&mut self) {
        if let Some(rare) = &mut self.rare {
            rare.measure = Measure::default();
        }
    }

    /// What it is charged for a new grant. A request that does not say how many, as the limit demands, is not admitted.
    pub(super) fn charged(&self, costs: Costs<'_>) -> u64 {
        match &self.rare {
            Some(rare) => rare.measure.charged(costs).unwrap_or(u64::MAX),
            None => costs.plain,
        }
    }

    /// What comes back to it with the permit of this fence.
    pub(super) fn returned(&self, fence: u64, costs: Costs<'_>) -> u64 {
        let rare = self.rare.as_ref();
        rare.map_or(costs.plain, |rare| rare.measure.returned(fence, costs))
    }

    /// Whether it charged the grant of this fence and can refund it.
    pub(super) fn has_granted(&self, fence: u64) -> bool {
        let rare = self.rare.as_ref();
        rare.is_none_or(|rare| fence > rare.refundable_after)
    }

    /// Makes the grants up to this fence non-refundable.
    pub(super) fn void_refunds(&mut self, fence: u64) {
        self.rare_parts().refundable_after = fence;
    }
}

/// Lets each new limit, which is reset, take over the usage of an old one: an equal one, or else one of its kind, or else any that is
/// left. An equal one keeps its state. Only a limit that counts the same has a usage to take over. A new limit without a counterpart
/// starts reset. Units in flight after the grant of this fence stay in flight.
pub(super) fn carry_over(
    mut old_limits: Vec<(Limit, CountedLimit)>,
    mut new_limits: Vec<(&Limit, &mut CountedLimit)>,
    now: Moment,
    carry: UsageCarryOver,
    in_flight: &InFlight,
    fence: u64,
) {
    for (limit, new) in &mut new_limits {
        let (measure, units) = in_flight.taken_over_by(limit.counts(), fence);
        if !measure.is_plain() || fence > 0 {
            *new.rare_parts() = RareParts {
                measure,
                refundable_after: fence,
            };
        }
        if new.state.places().is_some() {
            new.state.charge(now, units);
        }
    }
    let alike: [fn(&Limit, &Limit) -> bool; 3] = [
        |old, new| old == new,
        |old, new| std::mem::discriminant(old) == std::mem::discriminant(new),
        |_, _| true,
    ];
    for alike in alike {
        new_limits.retain_mut(|(limit, new)| {
            let counts_places = new.state.places().is_some();
            let fits = |(old_limit, old): &(Limit, CountedLimit)| {
                let counts_alike = counts_places || old_limit.counts() == limit.counts();
                let places_alike = old.state.places().is_some() == counts_places;
                counts_alike && alike(old_limit, limit) && places_alike
            };
            let Some(found) = old_limits.iter().position(fits) else {
                return true;
            };
            let (old_limit, old) = old_limits.remove(found);
            if old_limit == **limit {
                if let Some(rare) = &mut new.rare {
                    rare.refundable_after = old.rare.map_or(0, |old| old.refundable_after);
                }
                new.state = old.state;
            } else if !counts_places {
                let ratio = carry.ratio(old_limit.capacity(), limit.capacity());
                new.state.take_over(now, &old.state, ratio);
            }
            false
        });
    }
}
