//! What a limit is charged for a grant, what comes back to it, and how that goes on when other things are counted.

use crate::core::request::Costs;
use crate::policy::Limit;
use crate::strategy::Counts;

/// What is counted, now and in the grants that were taken over from former plans: what came with them goes back with them.
#[derive(Debug, Clone)]
pub(super) struct Measure {
    counts: Counts,
    /// The grants up to these fences were charged by these, oldest first.
    former: Vec<(u64, Counts)>,
}

/// What each limit of a policy counts.
#[derive(Debug)]
pub(super) struct Measures(pub(super) Box<[Measure]>);

/// What is in flight of one thing that a concurrency limit counts, or counted.
#[derive(Debug, Clone)]
pub(super) struct InFlightOf {
    pub(super) counts: Counts,
    pub(super) units: u64,
    pub(super) measure: Measure,
}

/// What is in flight when the plan changes.
#[derive(Debug)]
pub(super) struct InFlight(Vec<InFlightOf>);

impl Measure {
    pub(super) const PLAIN: Self = Self::new(Counts::Cost);

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

    /// What came with the permit of this fence.
    pub(super) fn returned(&self, fence: u64, costs: Costs<'_>) -> u64 {
        let counts = self
            .former
            .iter()
            .find(|(last, _)| fence <= *last)
            .map_or(self.counts, |(_, counts)| *counts);
        costs.of(counts).unwrap_or(0)
    }
}

impl Measures {
    /// The measures of new limits.
    pub(super) fn new(limits: &[Limit]) -> Self {
        Self(
            limits
                .iter()
                .map(|limit| Measure::new(limit.counts()))
                .collect(),
        )
    }

    /// The measures of new limits that take over what is in flight after the grant of this fence; `None` if all count the plain cost,
    /// and have always done so.
    pub(super) fn taking_over(limits: &[Limit], in_flight: &InFlight, fence: u64) -> Option<Self> {
        let measures: Box<[_]> = limits
            .iter()
            .map(|limit| in_flight.taken_over_by(limit.counts(), fence).1)
            .collect();
        (!measures.iter().all(Measure::is_plain)).then_some(Self(measures))
    }
}

impl InFlightOf {
    /// A grant that holds something while no limit counts this; of a unit that it does not name, nothing.
    pub(super) fn charge(&mut self, costs: Costs<'_>) {
        self.units = self
            .units
            .saturating_add(costs.of(self.counts).unwrap_or(0));
    }

    pub(super) fn release(&mut self, fence: u64, costs: Costs<'_>) {
        self.units = self
            .units
            .saturating_sub(self.measure.returned(fence, costs));
    }
}

impl InFlight {
    /// Several entries for the same thing are equal: the first is kept.
    pub(super) fn new(entries: impl IntoIterator<Item = InFlightOf>) -> Self {
        let mut in_flight = Vec::<InFlightOf>::new();
        for entry in entries {
            if in_flight.iter().all(|other| other.counts != entry.counts) {
                in_flight.push(entry);
            }
        }
        if in_flight.iter().all(|entry| entry.units == 0) {
            in_flight.clear(); // no permit holds anything
        }
        Self(in_flight)
    }

    /// What a new limit that counts `counts` takes over after the grant of this fence: what is in flight of the same thing, or
    /// else of the first thing of which anything is.
    pub(super) fn taken_over_by(&self, counts: Counts, fence: u64) -> (u64, Measure) {
        let same = self.0.iter().find(|entry| entry.counts == counts);
        match same.or_else(|| self.0.iter().find(|entry| entry.units > 0)) {
            Some(entry) => (entry.units, entry.measure.clone().changed(counts, fence)),
            None => (0, Measure::new(counts)),
        }
    }

    /// What no new concurrency limit goes on with. It goes on by itself: were new
    /// grants left out, there would be too few in flight when the same is counted again.
    pub(super) fn left_over(self, limits: &[Limit]) -> Vec<InFlightOf> {
        let is_counted = |legacy: &InFlightOf| {
            limits
                .iter()
                .any(|limit| limit.counts_places() && limit.counts() == legacy.counts)
        };
        self.0
            .into_iter()
            .filter(|legacy| legacy.units > 0 && !is_counted(legacy))
            .collect()
    }
}

/// What the limit with this index is charged for a new grant. There are no measures where all are plain.
pub(super) fn charged(measures: &[Measure], index: usize, costs: Costs<'_>) -> u64 {
    // A request that does not say how many, as the limit demands, is not admitted.
    measures.get(index).map_or(costs.plain, |measure| {
        costs.of(measure.counts).unwrap_or(u64::MAX)
    })
}

/// What comes back to the limit with this index with the permit of this fence.
pub(super) fn returned(measures: &[Measure], index: usize, fence: u64, costs: Costs<'_>) -> u64 {
    measures
        .get(index)
        .map_or(costs.plain, |measure| measure.returned(fence, costs))
}
