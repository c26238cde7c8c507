//! One limit of a policy: its state, what it counts, and which grants it can refund. It can take over from a limit of a former policy.

use crate::carry_over::UsageCarryOver;
use crate::core::gate::limit_state::LimitState;
use crate::core::request::Costs;
use crate::policy::Limit;
use crate::strategy::{Counts, LimitRule, Moment};

#[derive(Debug)]
pub(super) struct CountedLimit {
    pub(super) state: LimitState,
    /// `None`: it counts the plain cost, has always done so, and can refund all grants.
    measure: Option<Box<Measure>>,
}

/// What a limit counts for new grants, what it counted for earlier ones (by which their units are returned), and which grants it
/// can refund.
#[derive(Debug, Clone, Default)]
pub(super) struct Measure {
    counts: Counts,
    /// What was counted before, oldest first, each with the last fence that was charged by it.
    former: Vec<(u64, Counts)>,
    /// The last fence whose grant it cannot refund: it was granted before the limit was added, or its units were reset since.
    refundable_after: u64,
}

impl CountedLimit {
    pub(super) fn new(limit: &Limit, rule: &LimitRule, now: Moment) -> Self {
        let measure = Measure::new(limit.counts());
        Self {
            state: LimitState::new(rule, now),
            measure: (!measure.is_plain()).then(|| Box::new(measure)),
        }
    }

    /// What it counts.
    pub(super) fn measure(&self) -> Measure {
        self.measure.as_deref().cloned().unwrap_or_default()
    }

    /// Whether it counts the plain cost, and has always done so.
    pub(super) fn is_plain(&self) -> bool {
        let measure = self.measure.as_ref();
        measure.is_none_or(|measure| measure.is_plain())
    }

    /// Forgets former measures, because all permits that were granted by one were released.
    pub(super) fn forget_former_measures(&mut self) {
        if let Some(measure) = &mut self.measure {
            measure.former.clear();
        }
    }

    /// The units that a new grant charges to it. A request that does not state a number that the limit requires is not admitted.
    pub(super) fn charged(&self, costs: Costs<'_>) -> u64 {
        match &self.measure {
            Some(measure) => costs.of(measure.counts).unwrap_or(u64::MAX),
            None => costs.plain,
        }
    }

    /// The units that the permit of this fence returns to it.
    pub(super) fn returned(&self, fence: u64, costs: Costs<'_>) -> u64 {
        let measure = self.measure.as_ref();
        measure.map_or(costs.plain, |measure| measure.returned(fence, costs))
    }

    /// Whether it charged the grant of this fence and can refund it.
    pub(super) fn has_granted(&self, fence: u64) -> bool {
        let measure = self.measure.as_ref();
        measure.is_none_or(|measure| fence > measure.refundable_after)
    }

    /// Makes the grants up to this fence non-refundable.
    pub(super) fn void_refunds(&mut self, fence: u64) {
        self.measure.get_or_insert_default().refundable_after = fence;
    }
}

impl Measure {
    fn new(counts: Counts) -> Self {
        Self {
            counts,
            ..Self::default()
        }
    }

    /// Changes what is counted for the grants after this fence.
    fn changed(mut self, counts: Counts, fence: u64) -> Self {
        // If nothing was granted since the last change, no grant was charged by the measure in between.
        if self.counts != counts && self.former.last().is_none_or(|(last, _)| *last < fence) {
            self.former.push((fence, self.counts));
        }
        Self { counts, ..self }
    }

    /// Whether it is the plain cost for all grants.
    fn is_plain(&self) -> bool {
        self.counts == Counts::Cost && self.former.is_empty()
    }

    /// The units that the permit of this fence returns.
    fn returned(&self, fence: u64, costs: Costs<'_>) -> u64 {
        let former = self.former.iter().find(|(last, _)| fence <= *last);
        let counts = former.map_or(self.counts, |(_, counts)| *counts);
        costs.of(counts).unwrap_or(0)
    }
}

/// The units in flight, by what the concurrency limits count or counted. There is one entry for each thing that is counted.
#[derive(Debug, Default)]
pub(super) struct InFlight(Vec<(Measure, u64)>);

impl InFlight {
    /// Several entries for the same thing are equal: the first is kept.
    pub(super) fn new(entries: impl IntoIterator<Item = (Measure, u64)>) -> Self {
        let mut in_flight = Vec::<(Measure, u64)>::new();
        for (measure, units) in entries {
            if in_flight
                .iter()
                .all(|(other, _)| other.counts != measure.counts)
            {
                in_flight.push((measure, units));
            }
        }
        if in_flight.iter().all(|(_, units)| *units == 0) {
            in_flight.clear(); // no permit holds anything
        }
        Self(in_flight)
    }

    /// The entries with any unit in flight.
    pub(super) fn iter(&self) -> impl Iterator<Item = &(Measure, u64)> {
        self.0.iter().filter(|(_, units)| *units > 0)
    }

    /// Charges a grant. A unit that it does not name costs nothing.
    pub(super) fn charge(&mut self, costs: Costs<'_>) {
        for (measure, units) in &mut self.0 {
            *units = units.saturating_add(costs.of(measure.counts).unwrap_or(0));
        }
    }

    /// Releases the permit of this fence.
    pub(super) fn release(&mut self, fence: u64, costs: Costs<'_>) {
        for (measure, units) in &mut self.0 {
            *units = units.saturating_sub(measure.returned(fence, costs));
        }
    }

    /// Releases units of permits whose fences are unknown.
    pub(super) fn release_units(&mut self, released: u64) {
        for (_, units) in &mut self.0 {
            *units = units.saturating_sub(released);
        }
    }

    /// The measure and the units that a new limit takes over after the grant of this fence: the entry that counts the same, or
    /// else the first one with any unit in flight.
    fn taken_over_by(&self, counts: Counts, fence: u64) -> (Measure, u64) {
        let same = self.0.iter().find(|(measure, _)| measure.counts == counts);
        match same.or_else(|| self.iter().next()) {
            Some((measure, units)) => (measure.clone().changed(counts, fence), *units),
            None => (Measure::new(counts), 0),
        }
    }

    /// The entries that no new concurrency limit counts. New grants are charged to them too: otherwise, too few units would be in
    /// flight when a later plan counts the same again.
    pub(super) fn left_over(mut self, limits: &[Limit]) -> Self {
        self.0.retain(|(measure, units)| {
            let counts_it =
                |limit: &Limit| limit.counts_places() && limit.counts() == measure.counts;
            *units > 0 && !limits.iter().any(counts_it)
        });
        self
    }
}

/// Lets each new limit, which is reset, take over the usage of an old one: an equal one, or else one of its kind, or else any that is
/// left. An equal one keeps its state. Usage is taken over only from a limit that counts the same. A new limit without a
/// counterpart starts reset. Units in flight after the grant of this fence stay in flight.
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
            new.measure = Some(Box::new(Measure {
                refundable_after: fence,
                ..measure
            }));
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
                if let Some(measure) = &mut new.measure {
                    let former = old.measure;
                    measure.refundable_after = former.map_or(0, |former| former.refundable_after);
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
