//! What a limit is charged for a grant, what comes back to it, and how that goes on when other things are counted.

use crate::core::costs::Costs;
use crate::strategy::Counts;

/// What is counted, now and in the grants that were taken over from former plans: what came with them goes back with them.
#[derive(Debug, Clone)]
pub(super) struct Measure {
    counts: Counts,
    /// The grants up to these fences were charged by these, oldest first.
    former: Vec<(u64, Counts)>,
}

/// What is in flight of one thing that a concurrency limit counts, or counted.
#[derive(Debug, Clone)]
pub(super) struct Account {
    pub(super) counts: Counts,
    pub(super) units: u64,
    pub(super) measure: Measure,
}

/// What is in flight when the plan changes.
#[derive(Debug)]
pub(super) struct InFlight(Vec<Account>);

impl Measure {
    pub(super) const PLAIN: Self = Self::new(Counts::Cost);

    pub(super) const fn new(counts: Counts) -> Self {
        Self { counts, former: Vec::new() }
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
        let counts = self.former.iter().find(|(last, _)| fence <= *last).map_or(self.counts, |(_, counts)| *counts);
        costs.of(counts).unwrap_or(0)
    }
}

impl Account {
    /// A grant that holds something while no limit counts this; of a unit that it does not name, nothing.
    pub(super) fn charge(&mut self, costs: Costs<'_>) {
        self.units = self.units.saturating_add(costs.of(self.counts).unwrap_or(0));
    }

    pub(super) fn release(&mut self, fence: u64, costs: Costs<'_>) {
        self.units = self.units.saturating_sub(self.measure.returned(fence, costs));
    }
}

impl InFlight {
    /// Of several accounts of the same thing, which are equal, the first counts.
    pub(super) fn new(accounts: impl IntoIterator<Item = Account>) -> Self {
        let mut in_flight = Vec::<Account>::new();
        for account in accounts {
            if in_flight.iter().all(|other| other.counts != account.counts) {
                in_flight.push(account);
            }
        }
        if in_flight.iter().all(|account| account.units == 0) {
            in_flight.clear(); // no permit holds anything
        }
        Self(in_flight)
    }

    /// What a new limit that counts `counts` takes over after the grant of this fence: of the same account, or else of the first in
    /// which anything is in flight.
    pub(super) fn taken_over_by(&self, counts: Counts, fence: u64) -> (u64, Measure) {
        let same = self.0.iter().find(|account| account.counts == counts);
        match same.or_else(|| self.0.iter().find(|account| account.units > 0)) {
            Some(account) => (account.units, account.measure.clone().changed(counts, fence)),
            None => (0, Measure::new(counts)),
        }
    }

    /// The accounts that no new limit goes on with, as the new concurrency limits count `counted`. They go on by themselves: were new
    /// grants left out, there would be too few in flight when the same is counted again.
    pub(super) fn left_over(self, counted: &[Counts]) -> Vec<Account> {
        self.0.into_iter().filter(|account| account.units > 0 && !counted.contains(&account.counts)).collect()
    }
}

/// What the limit with this index is charged for a new grant. There are no measures where all are plain.
pub(super) fn charged(measures: &[Measure], index: usize, costs: Costs<'_>) -> u64 {
    // Who does not say how many, as the limit demands, is not admitted.
    measures.get(index).map_or(costs.plain, |measure| costs.of(measure.counts).unwrap_or(u64::MAX))
}

/// What comes back to the limit with this index with the permit of this fence.
pub(super) fn returned(measures: &[Measure], index: usize, fence: u64, costs: Costs<'_>) -> u64 {
    measures.get(index).map_or(costs.plain, |measure| measure.returned(fence, costs))
}
