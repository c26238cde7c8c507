//! What a limit is charged for a grant, what comes back to it, and how that goes on when other things are counted.

use crate::core::request::Costs;
use crate::policy::Limit;
use crate::strategy::Counts;

/// What is counted, now and in the grants that were taken over from former plans: what came with them goes back with them.
#[derive(Debug, Clone, Default)]
pub(super) struct Measure {
    counts: Counts,
    /// The grants up to these fences were charged by these, oldest first.
    former: Vec<(u64, Counts)>,
}

impl Measure {
    pub(super) const fn new(counts: Counts) -> Self {
        Self {
            counts,
            former: Vec::new(),
        }
    }

    /// Goes on with this after the grant of this fence.
    fn changed(mut self, counts: Counts, fence: u64) -> Self {
        // Where nothing was granted since the last change, what was counted in between has charged no grant.
        if self.counts != counts && self.former.last().is_none_or(|(last, _)| *last < fence) {
            self.former.push((fence, self.counts));
        }
        Self { counts, ..self }
    }

    /// Whether it is the plain cost of all grants.
    pub(super) fn is_plain(&self) -> bool {
        self.counts == Counts::Cost && self.former.is_empty()
    }

    /// What a new grant is charged; `None` if it does not say how many.
    pub(super) fn charged(&self, costs: Costs<'_>) -> Option<u64> {
        costs.of(self.counts)
    }

    /// What came with the permit of this fence.
    pub(super) fn returned(&self, fence: u64, costs: Costs<'_>) -> u64 {
        let former = self.former.iter().find(|(last, _)| fence <= *last);
        let counts = former.map_or(self.counts, |(_, counts)| *counts);
        costs.of(counts).unwrap_or(0)
    }
}

/// What is in flight, by what concurrency limits count, or counted: for each thing, how many units. Nothing is twice in it.
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

    /// The things of which any unit is in flight.
    pub(super) fn iter(&self) -> impl Iterator<Item = &(Measure, u64)> {
        self.0.iter().filter(|(_, units)| *units > 0)
    }

    /// A grant that holds something while no limit counts this; of a unit that it does not name, nothing.
    pub(super) fn charge(&mut self, costs: Costs<'_>) {
        for (measure, units) in &mut self.0 {
            *units = units.saturating_add(measure.charged(costs).unwrap_or(0));
        }
    }

    /// The permit of this fence has come back.
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

    /// What a new limit that counts `counts` takes over after the grant of this fence: what is in flight of the same thing, or
    /// else of the first thing of which anything is.
    pub(super) fn taken_over_by(&self, counts: Counts, fence: u64) -> (Measure, u64) {
        let same = self.0.iter().find(|(measure, _)| measure.counts == counts);
        match same.or_else(|| self.iter().next()) {
            Some((measure, units)) => (measure.clone().changed(counts, fence), *units),
            None => (Measure::new(counts), 0),
        }
    }

    /// What no new concurrency limit goes on with. It goes on by itself: were new
    /// grants left out, there would be too few in flight when the same is counted again.
    pub(super) fn left_over(mut self, limits: &[Limit]) -> Self {
        self.0.retain(|(measure, units)| {
            let counts_it =
                |limit: &Limit| limit.counts_places() && limit.counts() == measure.counts;
            *units > 0 && !limits.iter().any(counts_it)
        });
        self
    }
}
